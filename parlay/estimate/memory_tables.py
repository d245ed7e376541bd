"""Tables of what depends on a Shard's row and on which kinds of layer share a stage: built once a pair, then looked up."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.kept import Kept
from parlay.estimate.memory_moments import LayerMemory, layer_memory
from parlay.estimate.memory_rows import RowBytes, row_bytes
from parlay.estimate.memory_weights import Matrix, distinct_elements, matrices
from parlay.estimate.shard import Shard, agreeing
from parlay.estimate.stages import Stages
from parlay.formulas.parameters import padded_vocabulary
from parlay.layouts.layout import takes_all
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec, MoeMlp

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Tables:
    """Layer memory by kind (rows of the Shard), and lookups by (layout, stage)."""

    shard: Shard
    bytes: RowBytes
    layers: dict[str, LayerMemory]
    matrices: dict[str, list[Matrix]]
    vocab: Array  # padded, by row of the Shard
    pattern: NDArray[np.int64]  # (layouts, stages): which combination of kinds, embedding and head
    forward_extra: Array  # (rows, patterns)
    backward_extra: Array
    cached_elements: Array
    unit_elements: Array  # the largest block
    largest_matrix: Array
    grouped: NDArray[np.bool_]  # (patterns,)

    def at(self, shard: Shard, pattern: NDArray[np.int64]) -> Tables:
        """Return these tables for other layouts of the same rows."""
        return dataclasses.replace(self, shard=shard, pattern=pattern)

    def take(self, rows: NDArray[np.int64]) -> Tables:
        """Return the tables for some of the layouts."""
        if takes_all(rows, len(self.shard.row_of)):
            return self
        shard = dataclasses.replace(self.shard, row_of=self.shard.row_of[rows])
        return self.at(shard, self.pattern[rows])

    def row(self, values: Array) -> Array:
        """Return values by Shard row as a column by layout."""
        return np.asarray(values[self.shard.row_of][:, None])

    def by_layout(self, value: Any) -> Any:
        """Return an input by layout where it is an array by Shard row; other inputs as they are."""
        rows = isinstance(value, np.ndarray) and value.shape == self.shard.tp.shape
        return value[self.shard.row_of] if rows else value

    def look(self, table: Array) -> Array:
        """Return a (rows, patterns) table by (layout, stage)."""
        return np.asarray(table.ravel()[self.shard.row_of[:, None] * table.shape[1] + self.pattern])


def build(model: ModelSpec, workload: Workload, settings: Settings, shard: Shard, stages: Stages) -> Tables:
    """Return the tables of one model, workload and set of stages."""
    used = {*model.layer_names(), *([model.mtp_kind] if model.mtp_layers and model.mtp_kind else [])}
    kinds = [name for name in model.kinds if name in used]
    codes, pattern = _patterns(model, kinds, stages)
    question = (model, workload, settings)
    return _TABLES.of_rows(question, shard, lambda: _tables(*question, shard, kinds, codes), *codes).at(shard, pattern)


_TABLES: Kept[Tables] = Kept()


def _tables(model: ModelSpec, workload: Workload, settings: Settings, shard: Shard, kinds: list[str], codes: list[int]) -> Tables:
    """Return the tables of the rows of a Shard and of some combinations of layer kinds; no stage has its pattern yet."""
    layers = {k: layer_memory(model.kinds[k], model, workload, settings, shard) for k in kinds}
    weights = {k: matrices(model.kinds[k], model.hidden, shard) for k in kinds}
    vocab = np.asarray(padded_vocabulary(model.vocab, settings.vocab_multiple, shard.tp))
    width = max(len(codes), 1)
    tables = {name: np.zeros((len(shard.tp), width)) for name in ("forward", "backward", "cached", "unit", "matrix")}
    grouped = np.zeros(width, dtype=bool)
    lowest = np.full_like(shard.tp, -np.inf)
    cut = agreeing(shard, len(shard.tp), ("tp", "ep", "etp"))  # what the shapes of weights follow from
    for i, code in enumerate(codes):
        present = [k for j, k in enumerate(kinds) if code >> j & 1]
        head, embedding = bool(code >> len(kinds) & 1), bool(code >> (len(kinds) + 1) & 1)
        column = {"forward": lowest, "backward": lowest, "unit": np.zeros_like(shard.tp), "matrix": np.zeros_like(shard.tp)}
        for k in present:
            column["forward"] = np.maximum(column["forward"], layers[k].forward_extra)
            column["backward"] = np.maximum(column["backward"], layers[k].backward_extra)
            column["unit"] = np.maximum(column["unit"], np.asarray(sum(m.elements * m.count for m in weights[k])))
            for m in weights[k]:
                column["matrix"] = np.maximum(column["matrix"], m.elements)
        table_rows = vocab / shard.tp * model.hidden
        if head or embedding:
            column["matrix"] = np.maximum(column["matrix"], table_rows)
        for name, values in column.items():
            tables[name][:, i] = np.where(np.isfinite(values), values, 0.0)
        tables["cached"][:, i] = _cached(
            model, settings, shard, [m for k in present for m in weights[k]], vocab if head else None, cut
        )
        grouped[i] = any(isinstance(model.kinds[k].mlp, MoeMlp) for k in present)
    return Tables(
        shard,
        row_bytes(model, settings, shard, vocab),
        layers,
        weights,
        vocab,
        np.zeros((1, 1), dtype=np.int64),
        tables["forward"],
        tables["backward"],
        tables["cached"],
        tables["unit"],
        tables["matrix"],
        grouped,
    )


def _cached(
    model: ModelSpec, settings: Settings, shard: Shard, present: list[Matrix], vocab: Array | None, cut: tuple[Ints, Ints]
) -> Array:
    """Return the elements of the stand-in gradients that a stage caches: distinct shapes of what the version caches.

    `cut` is the first of each of the distinct rows as far as weights go, and for each row which of them it is.
    """
    linear, grouped, head = settings.caches
    grouped = grouped if settings.grouped_experts else linear
    shapes = [m for m in present if m.linear and (grouped if m.grouped else linear)]
    if head and vocab is not None:
        one = np.ones_like(shard.tp)
        shapes.append(Matrix("output layer", vocab / shard.tp, one * model.hidden, one))
    first, row_of = cut
    return distinct_elements([m.take(first) for m in shapes])[row_of] if shapes else np.zeros_like(shard.tp)


def _patterns(model: ModelSpec, kinds: list[str], stages: Stages) -> tuple[list[int], NDArray[np.int64]]:
    """Return the combinations of layer kinds, head and embedding that occur, and which of them each stage has."""
    rows = stages.rows
    code = np.zeros(rows["index"].shape, dtype=np.int64)
    for j, kind in enumerate(kinds):
        here = stages.kinds[kind] > 0
        if kind == model.mtp_kind:
            here = here | (rows["mtp"] > 0)
        code += here.astype(np.int64) << j
    code += rows["head"].astype(np.int64) << len(kinds)
    code += rows["embedding"].astype(np.int64) << (len(kinds) + 1)
    if len(kinds) > 16:  # too many combinations for a dense lookup
        codes, pattern = np.unique(code, return_inverse=True)
        return [int(c) for c in codes], pattern.reshape(code.shape)[stages.row_of]
    codes = np.flatnonzero(np.bincount(code.ravel()))
    place = np.zeros(int(codes[-1]) + 1, dtype=np.int64)
    place[codes] = np.arange(len(codes))
    return [int(c) for c in codes], place[code][stages.row_of]
