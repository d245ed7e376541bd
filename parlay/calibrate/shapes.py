"""The shapes that a model asks rates for: an estimate priced by a recorder instead of a clock."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from parlay.estimate.operators import embedding_operators, head_operators, layer_operators
from parlay.estimate.pricer import Pricer
from parlay.estimate.shard import Shard
from parlay.estimate.traits import Traits
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, LatentAttention, ModelSpec
from parlay.rates.interface import Beside, Collective, Group, HostDirection, Priced, Stream

Numbers = tuple[int, ...]
LAYOUTS = {1: "TN", 2: "NN", 3: "NT"}  # forward, input gradient, weight gradient
ANY_CLUSTER = "dgx-h100"  # shapes do not depend on it; a layout's rows ask for one


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Rates that know nothing and remember what they were asked."""

    products: list[Numbers] = dataclasses.field(default_factory=list)
    grouped: list[Numbers] = dataclasses.field(default_factory=list)
    cores: list[Numbers] = dataclasses.field(default_factory=list)
    calls: list[int] = dataclasses.field(default_factory=list)  # one entry a product that is no weight gradient
    name: str = "recorder"

    @staticmethod
    def _note(where: list[Numbers], *values: ArrayLike) -> Priced:
        columns = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in values))
        rows = zip(*(c.ravel() for c in columns), strict=True)
        where.extend(tuple(int(v) for v in row) for row in rows if all(v >= 1 and v == int(v) for v in row))
        return Priced(np.ones(columns[0].shape), "exact")

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Remember a product: a weight gradient accumulates; the others come in turn, forward, then input gradient."""
        layout = 3 if accumulate else 1 + (len(self.calls) % 2)
        if not accumulate:
            self.calls.append(0)
        return self._note(self.products, m, n, k, layout)

    def grouped_gemm(
        self,
        rows: ArrayLike,
        groups: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        *,
        fused: bool = True,
        weight_gradient: bool = False,
    ) -> Priced:
        """Remember a grouped product."""
        return self._note(self.grouped, rows, groups, n, k)

    def attention(
        self,
        queries: ArrayLike,
        keys: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        qk_dim: ArrayLike,
        v_dim: ArrayLike,
        *,
        score_share: ArrayLike,
        batch: ArrayLike = 1,
        backward: bool = False,
        dtype: str = "bf16",
    ) -> Priced:
        """Remember an attention core."""
        return self._note(self.cores, batch, queries, keys, heads, kv_heads, qk_dim, v_dim)

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Answer one second."""
        return Priced(np.ones(np.shape(nbytes)), "exact")

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Answer one second."""
        return Priced(np.ones(np.broadcast_shapes(np.shape(nbytes), group.size.shape)), "exact")

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Answer one second."""
        return Priced(np.ones(np.shape(nbytes)), "exact")

    def launch(self) -> Priced:
        """Answer one second."""
        return Priced(np.ones(()), "exact")

    def beside(self) -> Beside | None:
        """Return None."""
        return None

    def describe(self) -> dict[str, str]:
        """Return nothing."""
        return {}


@dataclasses.dataclass(frozen=True)
class Shapes:
    """What one model asks for: products m n k with their layout, grouped products, attention cores."""

    products: tuple[tuple[int, int, int, str], ...]
    grouped: tuple[Numbers, ...]  # rows, groups, n, k
    cores: tuple[Numbers, ...]  # batch, queries, keys, heads, kv heads, qk size, v size


def shapes_of(model: ModelSpec, seq_len: int, micro_batch: int, degrees: tuple[int, ...]) -> Shapes:
    """Return the shapes of a layer, the embedding and the head of `model`, cut tensor-parallel by each of `degrees`.

    Parameters
    ----------
    model : ModelSpec
        The model [-].
    seq_len : int
        Tokens of a sequence [-].
    micro_batch : int
        Sequences of a micro-batch [-].
    degrees : tuple of int
        Tensor-parallel degrees; those that do not divide the heads are left out [-].

    Returns
    -------
    Shapes
        Each shape once, products in the order forward, input gradient, weight gradient [-].
    """
    heads = [k.mixer.heads for k in model.kinds.values() if isinstance(k.mixer, GroupedAttention | LatentAttention)]
    wanted = [d for d in degrees if all(h % d == 0 for h in heads)] or [1]
    layouts = Layouts.of([Layout(tp=d, micro_batch=micro_batch) for d in wanted])
    workload = Workload(seq_len=seq_len, gradient_accumulation_fusion=True)  # so that weight gradients can be told apart
    recorder = Recorder()
    pricer = Pricer(recorder, workload, Shard.of(layouts, workload, load_cluster(ANY_CLUSTER)), model, Traits())
    for kind in model.kinds.values():
        layer_operators(pricer, kind)
    vocab = np.ceil(model.vocab / np.array(wanted, dtype=np.float64))
    embedding_operators(pricer, vocab)
    head_operators(pricer, vocab)
    products = [(m, n, k, LAYOUTS[code]) for m, n, k, code in recorder.products]
    return Shapes(tuple(dict.fromkeys(products)), tuple(dict.fromkeys(recorder.grouped)), tuple(dict.fromkeys(recorder.cores)))
