"""--from FILE: a framework's configuration as the base of the question, and the notes about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from parlay.cli import output
from parlay.errors import UsageError

if TYPE_CHECKING:
    from parlay.cli.question import Question
    from parlay.frameworks.given import Imported
    from parlay.layouts.layout import Layout
    from parlay.layouts.workload import Workload


def base_table(
    source: str, gpus: int | None, layout: str | None, keep_layout: bool, model: object = None
) -> tuple[dict[str, Any], Imported]:
    """Return the table of a framework's file and what was read; without its layout where one is looked for."""
    from parlay.frameworks.detect import read_framework

    layers = _layers(model)
    try:
        imported = read_framework(source, gpus if layout is None else None, layers)
    except UsageError:
        if keep_layout or source == "-":
            raise
        imported = read_framework(source, layers=layers)  # its layout need not suit the GPUs, as another one is looked for
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in imported.table.items()}
    if not keep_layout:
        table.pop("layout", None)
    return table, imported


def _layers(model: object) -> int | None:
    """Return the layers of a model named beside the file; None where it cannot be read yet, which is said where it is used."""
    from parlay.errors import ParlayError
    from parlay.models.huggingface import import_config
    from parlay.models.load import is_config, load_model

    if not isinstance(model, str) or model == "-":
        return None
    try:
        return (import_config(model).spec if is_config(model) else load_model(model)).layer_count
    except ParlayError:
        return None


def check_whole(table: dict[str, Any], source: str, needs_gpus: bool, imported: Imported) -> None:
    """Raise UsageError where the file, the flags and --set together name no whole model, or not how many GPUs."""
    model = table.get("model")
    if model is None:
        unread = imported.not_understood
        because = f" (not understood: {'; '.join(unread[:3])})" if unread else ""
        hint = f"name it before the file: MODEL --from {source}; `parlay models list` shows all, a config.json works too"
        raise UsageError(f"names no model{because}", where=source, hint=hint)
    if isinstance(model, dict) and "vocab" not in model and "extends" not in model:
        raise UsageError(
            "does not tell the size of the vocabulary: it is in the tokenizer's files", where=source,
            hint="add --set model.vocab=128256, or name the model before --from",
        )  # fmt: skip
    if needs_gpus and "dp" not in table.get("layout", {}):
        raise UsageError("does not say how many GPUs", where=source, hint="say it with --gpus 64, or give the whole --layout")


def say_notes(*asked: Question) -> None:
    """Write to stderr what was assumed to read a config.json, what --layout left of a file's, how that was read, which settings change
    nothing, and what is odd; each once."""
    lines = dict.fromkeys(line for q in asked for line in _notes(q))
    output.note(*lines)


Fields = TypeVar("Fields", "Workload", "Layout")


def _said(fields: Fields, read: dict[str, Any]) -> Fields:
    """Return the fields of which only those count as given that somebody said: a framework's file says nothing by what is off."""
    off = {name for name, value in read.items() if value is False and getattr(fields, name, None) is False}
    values = {name: getattr(fields, name) for name in type(fields).model_fields}
    return type(fields).model_construct(fields.model_fields_set - off, **values)


def _notes(asked: Question) -> list[str]:
    from parlay.estimate.idle import idle_settings
    from parlay.report.question import question_notes
    from parlay.units import show_number

    lines = [*asked.model_notes, *asked.layout_notes, *question_notes(asked.model, asked.workload)]
    found = asked.imported
    read = found.table if found else {}
    layout = None if asked.layout is None else _said(asked.layout, read.get("layout", {}))
    lines += idle_settings(asked.model, asked.cluster, _said(asked.workload, read.get("training", {})), layout)
    if found is not None:
        counts = (
            f"{show_number(len(found.understood), 'setting')} understood, {len(found.ignored)} without effect on time or memory"
        )
        lines += [f"read as {found.framework}: {counts}", *found.notes, *(f"not understood: {x}" for x in found.not_understood)]
    return lines
