"""--from FILE: a framework's configuration as the base of the question, and the notes about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from parlay.errors import UsageError

if TYPE_CHECKING:
    from parlay.frameworks.given import Imported

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "first_layers", "last_layers", "shard")  # what --layout replaces as one


def base_table(source: str, gpus: int | None, layout: str | None, keep_layout: bool) -> tuple[dict[str, Any], Imported]:
    """Return the table of a framework's file and what was read; without its layout where the command looks for one."""
    from parlay.frameworks.detect import read_framework

    try:
        imported = read_framework(source, gpus if layout is None else None)
    except UsageError:
        if keep_layout or source == "-":
            raise
        imported = read_framework(source)  # its layout need not suit the GPUs, as another one is looked for
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in imported.table.items()}
    if not keep_layout:
        table.pop("layout", None)
    elif layout is not None:
        table["layout"] = {key: value for key, value in table["layout"].items() if key not in DEGREES}
        table.pop("gpus", None)
    return table, imported


def check_whole(table: dict[str, Any], source: str, needs_gpus: bool) -> None:
    """Raise UsageError where the file, the flags and --set together name no whole model, or not how many GPUs."""
    model = table.get("model")
    if model is None:
        raise UsageError("names no model", where=source, hint=f"name it: parlay estimate llama-3.1-8b --from {source}")
    if isinstance(model, dict) and "vocab" not in model and "extends" not in model:
        raise UsageError(
            "does not tell the size of the vocabulary: it is in the tokenizer's files", where=source,
            hint="add --set model.vocab=128256, or name the model before --from",
        )  # fmt: skip
    if needs_gpus and "dp" not in table.get("layout", {}):
        raise UsageError("does not say how many GPUs", where=source, hint="say it with --gpus 64, or give the whole --layout")


def say_notes(imported: Imported | None) -> None:
    """Write to stderr what a framework's file was read as, what was assumed, and what was not understood."""
    if imported is None:
        return
    counts = f"{len(imported.understood)} settings understood, {len(imported.ignored)} without effect on time or memory"
    lines = [
        f"read as {imported.framework}: {counts}",
        *imported.notes,
        *(f"not understood: {x}" for x in imported.not_understood),
    ]
    sys.stderr.write("".join(f"note: {line}\n" for line in lines))
