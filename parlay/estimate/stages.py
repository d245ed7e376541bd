"""What each pipeline stage of each layout holds: layers by kind, embedding, head, and micro-batches in flight.

Arrays have shape (layouts, stages). The stages axis holds every stage (padded; `exists` masks), or, for the search,
one stage of each distinct content: the earliest. That is enough: all stages with equal content take equal time, and
of these the earliest holds the most micro-batches in flight, because no schedule here has in-flight counts that grow
along the pipeline (formulas.pipeline; tests/estimate/test_stages.py checks it), so it has the highest peak.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.inflight import in_flight
from parlay.estimate.kept import Kept
from parlay.estimate.shard import distinct
from parlay.layouts.layout import Layouts, takes_all
from parlay.layouts.split import BOTH_WAYS, V_SHAPED, chunk_count, chunk_sizes, chunks_of_stage
from parlay.layouts.vocabulary import SCHEDULES, Schedule
from parlay.models.spec import ModelSpec

FILLS_BY_CHUNK: frozenset[Schedule] = frozenset({"dualpipe", "dualpipev"})
Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Stages:
    """Stages of layouts, arrays of shape (layouts, stages); `layers` maps a layer kind to how many the stage holds.

    Few layouts differ in their stages: what these hold is kept by distinct row, and gathered when it is asked for.
    """

    rows: Mapping[str, NDArray[Any]]  # by distinct split, schedule and number of micro-batches, (rows, stages)
    kinds: Mapping[str, Array]
    flying: Mapping[str, Array]
    chunk: Mapping[str, Array]
    row_of: Ints
    every: bool  # whether each stage is listed, else one of each content

    def take(self, rows: NDArray[Any]) -> Stages:
        """Return the stages of some layouts."""
        if takes_all(rows, len(self.row_of)):
            return self
        return Stages(self.rows, self.kinds, self.flying, self.chunk, self.row_of[rows], self.every)

    @property
    def listed(self) -> tuple[bool, int]:
        """How the stages of a layout are listed: each of them or one of each content, padded to how many."""
        return self.every, self.rows["index"].shape[1]

    @cached_property
    def everywhere(self) -> bool:
        """Whether no layout is padded."""
        return bool(self.rows["exists"].all()) or bool(self.exists.all())

    @cached_property
    def layers(self) -> dict[str, Array]:
        """Layers of each kind on the stage."""
        return {kind: count[self.row_of] for kind, count in self.kinds.items()}

    @cached_property
    def kept_layers(self) -> dict[str, Array]:
        """Layers of each kind whose activations a micro-batch in flight stands for.

        They are the stage's layers but under the DualPipes, of whose two chunks the one that is nearer to the start of its
        pipeline has more micro-batches in flight (tests/estimate/test_stages.py runs their schedules).
        """
        if self.flying is self.kinds:
            return self.layers
        return {kind: count[self.row_of] for kind, count in self.flying.items()}

    @cached_property
    def entry_layers(self) -> dict[str, Array]:
        """Least layers of each kind in the chunk through which a micro-batch enters the stage, over all stages of its content."""
        return {kind: count[self.row_of] for kind, count in self.chunk.items()}

    @cached_property
    def kept_mtp(self) -> Array:
        """The same of multi-token-prediction modules."""
        return self.rows["kept_mtp"][self.row_of]

    @cached_property
    def layer_total(self) -> Array:
        """Layers of the stage, all kinds and chunks together."""
        return np.asarray(sum(self.kinds.values()))[self.row_of]

    @cached_property
    def index(self) -> Ints:
        """Place in the pipeline, from 0."""
        return self.rows["index"][self.row_of]

    @cached_property
    def exists(self) -> NDArray[np.bool_]:
        """Where there is a stage: layouts with fewer stages are padded."""
        return self.rows["exists"][self.row_of]

    @cached_property
    def count(self) -> Array:
        """Stages of this content; 1 each when every stage is listed."""
        return self.rows["count"][self.row_of]

    @cached_property
    def embedding(self) -> NDArray[np.bool_]:
        """Where the stage holds the embedding."""
        return self.rows["embedding"][self.row_of]

    @cached_property
    def head(self) -> NDArray[np.bool_]:
        """Where the stage holds the head."""
        return self.rows["head"][self.row_of]

    @cached_property
    def mtp(self) -> Array:
        """Multi-token-prediction modules on the stage."""
        return self.rows["mtp"][self.row_of]

    @cached_property
    def in_flight(self) -> Array:
        """Micro-batches, in whole-stage units, whose activations the stage holds at its peak."""
        return self.rows["in_flight"][self.row_of]

    @cached_property
    def chunk_layers(self) -> Array:
        """Layers of the stage's largest chunk."""
        return self.rows["chunk_layers"][self.row_of]

    @cached_property
    def chunks(self) -> Array:
        """Chunks (virtual stages) on the stage."""
        return self.rows["chunks"][self.row_of]

    @cached_property
    def share(self) -> Array:
        """Part of the micro-batches that pass each chunk of the stage (1/2 for DualPipe, which runs both ways)."""
        return self.rows["share"][self.row_of]


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
    flying: list[tuple[float, ...]]  # per stage and layer kind: layers times micro-batches in flight over the stage's own
    head_flying: list[float]  # the same of the last chunk, where the stage holds it
    # Layers by kind of the chunk that a micro-batch enters by: the least of all stages of this content.
    entry: list[tuple[int, ...]]


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
    content = _Content([], [], [], [], [], [], [], [], [], [])
    seen: dict[tuple[object, ...], int] = {}
    for stage in range(pp):
        mine = chunks_of_stage(stage, pp, vpp, schedule)
        held = tuple(int(sum(u[edges[c + 1]] - u[edges[c]] for c in mine)) for u in upto)
        flying: tuple[float, ...] = held
        of_head = 1.0
        if schedule in FILLS_BY_CHUNK:  # chunk c of n has n - c in flight; as many of both make (n + 1) / 2
            weight = {c: 2.0 * (chunks - c) / (chunks + 1) for c in mine}
            flying = tuple(round(float(sum(weight[c] * (u[edges[c + 1]] - u[edges[c]]) for c in mine)), 9) for u in upto)
            of_head = 2.0 / (chunks + 1)
        key = (held, 0 in mine, chunks - 1 in mine, max(sizes[c] for c in mine), len(mine), flying, of_head)
        enters = mine if schedule in BOTH_WAYS else mine[:1]
        entry = tuple(int(min(u[edges[c + 1]] - u[edges[c]] for c in enters)) for u in upto)
        if not every and key in seen:
            at = seen[key]
            content.count[at] += 1
            content.entry[at] = tuple(min(pair) for pair in zip(content.entry[at], entry, strict=True))
            continue
        seen[key] = len(content.index)
        for column, value in zip(dataclasses.fields(_Content), (stage, 1, *key, entry), strict=True):
            getattr(content, column.name).append(value)
    return content


def stages_of(model: ModelSpec, layouts: Layouts, global_batch: int, *, every: bool = True) -> Stages:
    """Return every stage of every layout, or with `every=False` the earliest stage of each distinct content."""
    columns = [layouts.pp, layouts.vpp, layouts.first_layers, layouts.last_layers, layouts.schedule]
    columns.append(layouts.micro_batches(global_batch))
    return _STAGES.of_columns((model,), columns, lambda: _stages_of(model, columns, every), every)


_STAGES: Kept[Stages] = Kept()


def _stages_of(model: ModelSpec, columns: list[Ints], every: bool) -> Stages:
    """Return the stages of splits, schedules and numbers of micro-batches."""
    first, row_of = distinct(columns)
    pp, vpp, _, _, schedule, m = keys = np.stack(columns)[:, first]
    names, kinds = _NAMES.get((model,), lambda: (tuple(model.layer_names()), tuple(model.kinds)))
    found = tuple(map(tuple, keys[:5].T.tolist()))
    rows, layers, flying, entry = _rows_of(names, kinds, found, every, 1 + model.mtp_layers)
    at = np.minimum(rows["index"], pp[:, None] - 1)
    flight = in_flight(schedule[:, None], pp[:, None], vpp[:, None], m[:, None], at)
    mtp = np.asarray(rows["head"] * float(model.mtp_layers), dtype=np.float64)
    return Stages(
        {**rows, "in_flight": flight, "mtp": mtp, "kept_mtp": mtp * rows["head_flying"]}, layers, flying, entry, row_of, every
    )


_NAMES: Kept[tuple[tuple[str, ...], tuple[str, ...]]] = Kept()


@lru_cache(maxsize=256)
def _rows_of(
    names: tuple[str, ...], kinds: tuple[str, ...], splits: tuple[tuple[int, ...], ...], every: bool, tail: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Return what follows from splits and schedules alone, one row each, the layers by kind, in flight, and of the first chunk."""
    unique = {split: i for i, split in enumerate(dict.fromkeys(splits))}
    contents = [_contents(names, kinds, *u[:4], SCHEDULES[u[4]], every, tail) for u in unique]
    width = max(len(c.index) for c in contents)
    place = np.array([unique[split] for split in splits])

    def column(name: str, pad: float = 0) -> Array:
        table = np.array([[*getattr(c, name), *[pad] * (width - len(c.index))] for c in contents], dtype=np.float64)
        return np.asarray(table[place])

    def by_kind(name: str) -> dict[str, Array]:
        padded = [[*getattr(c, name), *[(0,) * len(kinds)] * (width - len(c.index))] for c in contents]
        table = np.array(padded, dtype=np.float64)  # (unique, stages, kinds)
        return {kind: table[place, :, i] for i, kind in enumerate(kinds)}

    both = np.array([u[4] == SCHEDULES.index("dualpipe") for u in splits])[:, None]
    count, chunks = column("count"), column("chunks", 1)
    rows: dict[str, NDArray[Any]] = {
        "index": column("index").astype(np.int64),
        "exists": count > 0,
        "count": count,
        "embedding": column("embedding") > 0,
        "head": column("head") > 0,
        "chunk_layers": column("largest"),
        "chunks": chunks,
        "share": np.where(both, 0.5, 1.0) * np.ones_like(chunks),
        "head_flying": column("head_flying", 1),
    }
    layers = by_kind("layers")
    apart = any(SCHEDULES[u[4]] in FILLS_BY_CHUNK for u in splits)
    several = any(len(c.chunks) and max(c.chunks) > 1 for c in contents)
    return rows, layers, by_kind("flying") if apart else layers, by_kind("entry") if several else layers
