"""What each pipeline stage of each layout holds: layers by kind, embedding, head, and micro-batches in flight.

Arrays have shape (layouts, stages). The stages axis holds every stage (padded; `exists` masks), or, for the search,
one stage of each distinct content: the earliest. That is enough: all stages with equal content take equal time, and
of these the earliest holds the most micro-batches in flight, because no schedule here has in-flight counts that grow
along the pipeline (formulas.pipeline; tests/estimate/test_stages.py checks it), so it has the highest peak.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.inflight import in_flight
from parlay.layouts.layout import Layouts
from parlay.layouts.split import V_SHAPED, chunk_count, chunk_sizes, chunks_of_stage
from parlay.layouts.vocabulary import SCHEDULES, Schedule
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Stages:
    """Stages of layouts, arrays of shape (layouts, stages); `layers` maps a layer kind to how many the stage holds."""

    index: Ints
    exists: NDArray[np.bool_]
    count: Array  # stages of this content; 1 each when every stage is listed
    layers: dict[str, Array]
    embedding: NDArray[np.bool_]
    head: NDArray[np.bool_]
    mtp: Array  # multi-token-prediction modules on the stage
    in_flight: Array  # micro-batches, in whole-stage units, whose activations the stage holds at its peak
    chunk_layers: Array  # layers of the stage's largest chunk
    chunks: Array  # chunks (virtual stages) on the stage
    share: Array  # part of the micro-batches that pass each chunk of the stage (1/2 for DualPipe, which runs both ways)

    @property
    def layer_total(self) -> Array:
        """Layers of the stage, all kinds and chunks together."""
        return np.asarray(sum(self.layers.values()))

    def take(self, rows: NDArray[np.bool_]) -> Stages:
        """Return the stages of some layouts."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        layers = {kind: count[rows] for kind, count in fields.pop("layers").items()}
        return Stages(layers=layers, **{name: value[rows] for name, value in fields.items()})


@dataclasses.dataclass(frozen=True)
class _Content:
    """The distinct stage contents of one split, earliest stage of each, as columns."""

    index: list[int]
    count: list[int]
    layers: list[tuple[int, ...]]  # per stage, one entry a layer kind
    embedding: list[bool]
    head: list[bool]
    largest: list[int]
    chunks: list[int]


@lru_cache(maxsize=4096)
def _contents(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    pp: int,
    vpp: int,
    first: int,
    last: int,
    schedule: Schedule,
    every: bool,
    tail: int,
) -> _Content:
    """Return what the stages of one split hold."""
    chunks = chunk_count(pp, vpp, schedule)
    turns = 2 if schedule in V_SHAPED else vpp
    sizes = chunk_sizes(len(names), chunks // turns, turns, first, last, tail)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    upto = np.array([[0, *np.cumsum([n == k for n in names])] for k in kinds])  # layers of kind k before layer i
    content = _Content([], [], [], [], [], [], [])
    seen: dict[tuple[object, ...], int] = {}
    for stage in range(pp):
        mine = chunks_of_stage(stage, pp, vpp, schedule)
        held = tuple(int(sum(u[edges[c + 1]] - u[edges[c]] for c in mine)) for u in upto)
        key = (held, 0 in mine, chunks - 1 in mine, max(sizes[c] for c in mine), len(mine))
        if not every and key in seen:
            content.count[seen[key]] += 1
            continue
        seen[key] = len(content.index)
        for column, value in zip(dataclasses.fields(_Content), (stage, 1, *key), strict=True):
            getattr(content, column.name).append(value)
    return content


def stages_of(model: ModelSpec, layouts: Layouts, global_batch: int, *, every: bool = True) -> Stages:
    """Return every stage of every layout, or with `every=False` the earliest stage of each distinct content."""
    names, kinds = tuple(model.layer_names()), tuple(model.kinds)
    keys = np.stack([layouts.pp, layouts.vpp, layouts.first_layers, layouts.last_layers, layouts.schedule], axis=1)
    unique, row_of = _unique_rows(keys)
    contents = [_contents(names, kinds, *(int(x) for x in u[:4]), SCHEDULES[u[4]], every, 1 + model.mtp_layers) for u in unique]
    width = max(len(c.index) for c in contents)

    def column(name: str, pad: float = 0) -> Array:
        table = np.array([[*getattr(c, name), *[pad] * (width - len(c.index))] for c in contents], dtype=np.float64)
        return np.asarray(table[row_of])

    index = column("index").astype(np.int64)
    exists = column("count") > 0
    last = np.asarray(layouts.pp)[:, None] - 1
    head = column("head") > 0
    layer_table = np.array(
        [[*c.layers, *[(0,) * len(kinds)] * (width - len(c.index))] for c in contents], dtype=np.float64
    )  # (unique, stages, kinds)
    layers = {kind: layer_table[row_of, :, i] for i, kind in enumerate(kinds)}
    chunks = column("chunks", 1)
    m = layouts.micro_batches(global_batch)[:, None]
    flight = in_flight(layouts.schedule[:, None], layouts.pp[:, None], layouts.vpp[:, None], m, np.minimum(index, last))
    both = layouts.schedule == SCHEDULES.index("dualpipe")
    return Stages(
        index=index,
        exists=exists,
        count=column("count"),
        layers=layers,
        embedding=column("embedding") > 0,
        head=head,
        mtp=np.asarray(head * float(model.mtp_layers), dtype=np.float64),
        in_flight=flight,
        chunk_layers=column("largest"),
        chunks=chunks,
        share=np.where(both, 0.5, 1.0)[:, None] * np.ones_like(chunks),
    )


def _unique_rows(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of small whole numbers and, for each row, which of them it is."""
    packed = np.zeros(len(keys), dtype=np.int64)
    for i in range(keys.shape[1]):
        packed = packed * (int(keys[:, i].max()) + 1) + keys[:, i]
    _, first, row_of = np.unique(packed, return_index=True, return_inverse=True)
    return keys[first], row_of
