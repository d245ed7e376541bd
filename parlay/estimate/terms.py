"""Terms: every number of an estimate knows its formula, its inputs and its source, and sums to its parent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Unit = Literal["bytes", "s", "FLOP", "bytes/s", "FLOP/s", "-"]
Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """One named quantity, for one layout or many.

    `value` broadcasts over (layouts,) or (layouts, stages). `formula` names a function of parlay.formulas as
    "module.function" (None for a sum). `inputs` holds what was put into it, under its argument names, not a number where it is
    not of that layout. `source` says
    where the least certain input comes from: "exact", "datasheet", "default", "profile", "calibrated" (a measured point), "interpolated" (between points), "fitted" (a curve
    beyond them), "assumed".
    """

    key: str
    label: str
    value: Any
    unit: Unit = "bytes"
    formula: str | None = None
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = "exact"
    parts: tuple[Term, ...] = ()
    note: str = ""
    # What it was put together from, for `explain` alone, which makes them when it asks: they need not sum to the value.
    pieces: Callable[[], tuple[Term, ...]] = tuple

    def walk(self) -> Iterator[Term]:
        """Yield this term and everything below it, parents first."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def find(self, key: str) -> Term | None:
        """Return the first term named `key`, here or below."""
        return next((t for t in self.walk() if t.key == key), None)

    def at(self, row: int, stage: int | None = None) -> Term:
        """Return the same tree for one layout (and one stage where the value has stages): plain floats inside."""
        return Term(
            self.key,
            self.label,
            float(_pick(self.value, row, stage)),
            self.unit,
            self.formula,
            {k: x for k, v in self.inputs.items() if (x := _plain(_pick(v, row, stage))) == x},
            self.source,
            tuple(p.at(row, stage) for p in self.parts),
            self.note,
            lambda: tuple(p.at(row, stage) for p in self.pieces()),
        )


def spread(term: Term, rows: NDArray[np.int64], row_of: NDArray[np.int64]) -> Term:
    """Return a tree over distinct rows as one over layouts: `row_of` names the row of each layout, `rows` lists the rows."""

    if len(rows) == len(row_of) == 1:
        return term

    def one(value: Any) -> Any:
        by_row = isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == len(rows)
        return value[row_of] if by_row else value

    return dataclasses.replace(
        term,
        value=one(term.value),
        inputs={k: one(v) for k, v in term.inputs.items()},
        parts=tuple(spread(p, rows, row_of) for p in term.parts),
        pieces=lambda: tuple(spread(p, rows, row_of) for p in term.pieces()),
    )


def total(key: str, label: str, parts: tuple[Term, ...], *, unit: Unit = "bytes", note: str = "") -> Term:
    """Return the sum of `parts` as a term of its own."""
    value: Any = sum((p.value for p in parts), start=np.float64(0.0))
    return Term(key, label, value, unit, parts=parts, source=weakest(p.source for p in parts), note=note)


_ORDER = ("exact", "calibrated", "interpolated", "fitted", "profile", "datasheet", "default", "assumed")


def weakest(sources: Any) -> str:
    """Return the least certain of several sources."""
    return max(sources, key=_ORDER.index, default="exact")


def _pick(value: Any, row: int, stage: int | None) -> Any:
    array = np.asarray(value)
    if array.ndim == 0:
        return array[()]
    picked = array[row if array.shape[0] > 1 else 0]
    if picked.ndim == 0 or stage is None:
        return picked if picked.ndim == 0 else picked.max()
    return picked[stage if picked.shape[0] > 1 else 0]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
