"""The weight matrices of one layer on one rank: their shapes, for caches, quantised copies, gathered blocks and moments.

Symbols: h hidden · a, k query and K/V heads · d head size · f MLP width · t tensor parallel · E experts
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.shard import Shard
from parlay.models.spec import DenseMlp, GatedDelta, GroupedAttention, LatentAttention, LayerKind, Mamba1, Mamba2, MoeMlp

Array = NDArray[np.float64]

COLUMNS_LIMIT = float(1 << 26)  # no matrix has more columns, so rows x this + columns names a shape


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix as one rank holds it, over the distinct rows of a Shard; `count` of that shape."""

    name: str
    rows: Array
    columns: Array
    count: Array
    linear: bool = True  # a layer of TransformerEngine; a router or a small gate is not
    grouped: bool = False  # one matrix an expert

    @property
    def elements(self) -> Array:
        """Elements of one such matrix."""
        return self.rows * self.columns

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        """Return the matrix at some rows of the Shard."""
        return Matrix(self.name, self.rows[rows], self.columns[rows], self.count[rows], self.linear, self.grouped)


def matrices(kind: LayerKind, hidden: int, shard: Shard) -> list[Matrix]:
    """Return the weight matrices of one layer of `kind`."""
    h, t = float(hidden), shard.tp
    out: list[Matrix] = []
    one = np.ones_like(t)

    def add(
        name: str,
        rows: Array | float,
        columns: Array | float,
        count: Array | float = 1.0,
        *,
        linear: bool = True,
        grouped: bool = False,
    ) -> None:
        out.append(Matrix(name, one * rows, one * columns, one * count, linear, grouped))

    _mixer_matrices(kind, h, t, add)
    m = kind.mlp
    if isinstance(m, DenseMlp):
        add("fc1", (2 if m.gated else 1) * m.width / t, h)
        add("fc2", h, m.width / t)
    elif isinstance(m, MoeMlp):
        u, local = shard.etp, m.experts / shard.ep
        wide = float(m.latent_width or h)
        add("router", float(m.experts), h, linear=False)
        add("expert fc1", (2 if m.gated else 1) * m.width / u, wide, local, grouped=True)
        add("expert fc2", wide, m.width / u, local, grouped=True)
        if m.latent_width:
            add("latent down", wide, h)
            add("latent up", h, wide)
        if m.shared_width:
            add("shared fc1", (2 if m.gated else 1) * m.shared_width / t, h)
            add("shared fc2", h, m.shared_width / t)
    return out


def _mixer_matrices(kind: LayerKind, h: float, t: Array, add: Callable[..., None]) -> None:
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        queries = x.heads * x.head_dim * (2 if x.output_gate else 1) / t
        add("qkv", queries + 2 * np.maximum(x.kv_heads / t, 1) * x.head_dim, h)
        add("proj", h, x.heads * x.head_dim / t)
    elif isinstance(x, LatentAttention):
        up = x.heads * (x.nope_dim + x.rope_dim) / t
        if x.q_rank:
            add("q down", float(x.q_rank), h)  # duplicated on every tensor-parallel rank
            add("q up", up, float(x.q_rank))
        else:
            add("q", up, h)
        add("kv down", float(x.kv_rank + x.rope_dim), h)
        if x.up_projection:
            add("kv up", x.heads * (x.nope_dim + x.v_dim) / t, float(x.kv_rank))
        if x.out_rank:
            add("proj down", float(x.out_rank), x.heads * x.v_dim / x.out_groups, x.out_groups / t)
        add("proj", h, (x.out_groups * x.out_rank if x.out_rank else x.heads * x.v_dim) / t)
    elif isinstance(x, Mamba2):
        inner = x.heads * x.head_dim
        add("mamba in", (2 * inner + 2 * x.groups * x.state + x.heads) / t, h)
        add("mamba out", h, inner / t)
    elif isinstance(x, Mamba1):
        add("mamba in", 2 * x.inner / t, h)
        add("mamba x", float(x.dt_rank + 2 * x.state), x.inner / t)
        add("mamba dt", x.inner / t, float(x.dt_rank))
        add("mamba out", h, x.inner / t)
    elif isinstance(x, GatedDelta):
        keys, values = x.key_heads * x.key_dim, x.value_heads * x.value_dim
        add("delta in", (2 * keys + (1 if x.gate_rank else 2) * values) / t, h)
        add("delta gates", 2 * x.value_heads / t, h, linear=False)
        if x.gate_rank:
            add("delta low rank", float(x.gate_rank), h, 2.0, linear=False)
            add("delta low rank up", (keys + values) / t, float(x.gate_rank), linear=False)
        add("delta out", h, values / t)


def orthogonalised(kind: LayerKind, hidden: int, shard: Shard, *, fused: bool) -> list[Matrix]:
    """Return what Muon takes for a matrix in one layer of `kind`, of what one rank holds.

    Queries, keys and values count for themselves: Megatron-core splits them by default (muon_split_qkv, optimizer_config.py), and
    elsewhere they are weights of their own, as gate and up are where a framework has not `fused` them. Each expert's weights
    are matrices of their own. What memory gives two moments, routers and small gates, is left out here as well.
    """
    out = []
    for m in matrices(kind, hidden, shard):
        if not m.linear:
            continue
        if m.name == "qkv" and isinstance(kind.mixer, GroupedAttention):
            keys = np.maximum(kind.mixer.kv_heads / shard.tp, 1.0) * kind.mixer.head_dim
            out.append(dataclasses.replace(m, name="q", rows=m.rows - 2.0 * keys))
            out.append(dataclasses.replace(m, name="k and v", rows=keys, count=2.0 * m.count))
        elif m.name.endswith("fc1") and not fused and isinstance(kind.mlp, DenseMlp | MoeMlp) and kind.mlp.gated:
            out.append(dataclasses.replace(m, name=f"{m.name} halves", rows=m.rows / 2.0, count=2.0 * m.count))
        else:
            out.append(m)
    return out


def elements_of(kind: LayerKind, hidden: int, shard: Shard, *, linear_only: bool = False) -> Array:
    """Return the elements of all weight matrices of one layer on one rank."""
    found = [m.elements * m.count for m in matrices(kind, hidden, shard) if m.linear or not linear_only]
    return np.asarray(sum(found, start=np.zeros_like(shard.tp)))


def distinct_elements(present: list[Matrix]) -> Array:
    """Return the elements of all distinct shapes among `present` (not empty), each shape once, row by row of the Shard."""
    keys = np.stack([m.rows * COLUMNS_LIMIT + m.columns for m in present])
    order = np.argsort(keys, axis=0)
    keys = np.take_along_axis(keys, order, axis=0)
    elements = np.take_along_axis(np.stack([m.elements for m in present]), order, axis=0)
    new = np.ones(keys.shape, dtype=bool)
    new[1:] = keys[1:] != keys[:-1]
    return np.asarray(np.sum(np.where(new, elements, 0.0), axis=0))
