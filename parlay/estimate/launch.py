"""The settings of a framework that run an estimate, and by name what they do not say although the price rests on it."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np

from parlay.errors import ParlayError
from parlay.estimate.estimate import Estimate, price
from parlay.frameworks.deepspeed import read_deepspeed
from parlay.frameworks.given import Imported
from parlay.frameworks.megatron import read_script
from parlay.frameworks.torchtitan import read_torchtitan
from parlay.frameworks.write import Written, written
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates

SAME = 1e-9  # relative difference of two prices that are one
COMMENTS = ("megatron-core", "torchtitan")  # whose files may hold comments: a shell script, TOML
# Changes neither memory nor time of a step, so no price tells whether it was lost
WITHOUT_PRICE = ("total_tokens", "flops_convention")


def launch(e: Estimate, rates: Rates | None = None) -> Written:
    """Return the settings that run an estimate's layout; what `--from` would price otherwise is named in a note and in a comment.

    Raises UsageError as `parlay.frameworks.write.written` does.
    """
    settings = written(e.model, e.workload, e.layout)
    rates = rates or rates_for(e.cluster)
    lost = [f"{name}={_word(asked)} (read back as {_word(got)})" for name, asked, got in _lost(e, settings.text, rates)]
    if not lost:
        return settings
    said = f"not in these settings: {', '.join(lost)}"
    text = f"{settings.text}\n# {said}" if e.workload.framework in COMMENTS else settings.text
    return Written(text, (*settings.notes, said))


def read_back(model: ModelSpec, workload: Workload, layout: Layout, text: str) -> tuple[Workload, Layout]:
    """Return the step and the layout that the written settings give beside their model and number of GPUs."""
    found = _read(model, workload, layout.gpus, text).table
    return Workload.model_validate(found["training"]), Layout.model_validate(found["layout"])


def _read(model: ModelSpec, workload: Workload, gpus: int, text: str) -> Imported:
    if workload.framework == "torchtitan":
        return read_torchtitan(tomllib.loads(text), "--launch", gpus, model.layer_count)
    if workload.framework == "deepspeed":
        return read_deepspeed(json.loads(text), "--launch", gpus)
    return read_script(text, "--launch", model.id, gpus, model.layer_count)


def _lost(e: Estimate, text: str, rates: Rates) -> list[tuple[str, Any, Any]]:
    """Return name, asked and read value of the fields without which the settings that are read back have another price.

    A field is named where putting it back changes the price of what was read. Fields that matter only together are all named.
    """
    work, layout = read_back(e.model, e.workload, e.layout, text)
    asked = _price(e, e.workload, e.layout, rates)
    rest = dict(_differing(e, work, layout))
    unpriced = [f"training.{name}" for name in WITHOUT_PRICE]
    found = [(name, *rest.pop(name)) for name in unpriced if name in rest]
    if _same(asked, _price(e, work, layout, rates)):
        return found
    for name, (mine, got) in rest.items():
        changed = _price(e, *_with(e.workload, e.layout, {name: got}), rates)
        if not _same(asked, changed):
            found.append((name, mine, got))
    others = {name: got for name, (_, got) in rest.items() if name not in [told for told, _, _ in found]}
    if not _same(asked, _price(e, *_with(e.workload, e.layout, others), rates)):
        found += [(name, *rest[name]) for name in others]
    return found


def _differing(e: Estimate, work: Workload, layout: Layout) -> Iterator[tuple[str, tuple[Any, Any]]]:
    mine, read = Layouts.of(e.layout), Layouts.of(layout)
    for field in dataclasses.fields(Layouts):
        if getattr(mine, field.name)[0] != getattr(read, field.name)[0]:
            yield f"layout.{field.name}", (getattr(e.layout, field.name), getattr(layout, field.name))
    for name in Workload.model_fields:
        if getattr(e.workload, name) != getattr(work, name):
            yield f"training.{name}", (getattr(e.workload, name), getattr(work, name))


def _with(work: Workload, layout: Layout, values: dict[str, Any]) -> tuple[Workload, Layout]:
    parts = {
        section: {k.split(".")[1]: v for k, v in values.items() if k.startswith(section)} for section in ("training", "layout")
    }
    return work.model_copy(update=parts["training"]), layout.model_copy(update=parts["layout"])


def _price(e: Estimate, work: Workload, layout: Layout, rates: Rates) -> tuple[float, float] | None:
    """Return step and peak, None for what cannot be priced: a field on its own may make no sense."""
    try:
        with np.errstate(all="ignore"):
            found = price(e.model, e.cluster, work, Layouts.of(layout), rates)
    except (ParlayError, ArithmeticError, LookupError, ValueError):
        return None
    return float(found.time.step[0]), float(found.memory.peak[0])


def _same(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool:
    return a is not None and b is not None and all(abs(x - y) <= SAME * abs(x) for x, y in zip(a, b, strict=True))


def _word(value: Any) -> str:
    """Return a value as --set takes it; what is left open is "open".

    >>> _word(None), _word(True), _word(("norm", "moe")), _word(()), _word(0.5)
    ('open', 'true', 'norm+moe', 'none', '0.5')
    """
    if value is None:
        return "open"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return str(value)
