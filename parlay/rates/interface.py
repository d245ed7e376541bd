"""The one interface to speed: seconds of an operation on this hardware, and where that figure comes from."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv"]
Stream = Literal[
    "norm", "rope", "activation", "residual", "softmax", "cross_entropy", "optimizer", "permute", "cast", "copy", "embedding"
]

HostDirection = Literal["to_host", "to_device"]


class Priced(NamedTuple):
    """Seconds, and the source of the rate behind them (see parlay.estimate.terms)."""

    seconds: Array
    source: str


class Beside(NamedTuple):
    """How much slower compute and a transfer get beside one another: time together over time alone, each at least 1."""

    compute: float
    transfer: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Where the ranks of a communicator sit: `size` ranks, `local` of them in each scale-up domain they touch."""

    size: Array
    local: Array
    senders: Array | float = 1.0  # share of a domain's GPUs that send over the network at once, counted for single sends

    def take(self, rows: NDArray[np.int64], shape: tuple[int, ...]) -> Group:
        """Return the groups of some rows of arrays of `shape`."""
        size, local, senders = (np.broadcast_to(x, shape)[rows] for x in (self.size, self.local, self.senders))
        return Group(size, local, senders)

    @classmethod
    def of(cls, size: ArrayLike, stride: ArrayLike, domain: ArrayLike) -> Group:
        """Return the group of `size` ranks that lie `stride` GPUs apart where `domain` GPUs share a scale-up link.

        Groups of one axis follow each other, so they start at every multiple of gcd(size x stride, domain): where neither divides the
        other, some group has that many GPUs in one of its domains, and the fewest ranks in a domain set the pace.
        """
        n, apart, whole = np.asarray(size, dtype=np.float64), np.asarray(stride, dtype=np.float64), np.asarray(domain)
        aligned = np.gcd(np.rint(n * apart).astype(np.int64), np.rint(whole).astype(np.int64))
        return cls(n, np.minimum(np.maximum(np.floor(aligned / apart), 1.0), n))


class Rates(Protocol):
    """Seconds of each kind of work. Every argument broadcasts; dtypes are parlay.hardware.spec.Dtype names."""

    @property
    def name(self) -> str:
        """Where these rates come from, in one word or two: profile:h100-sxm, datasheet:l4."""
        ...

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Seconds of one m x k by k x n product (2 m n k FLOP); added to an fp32 matrix if `accumulate`."""
        ...

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
        """Seconds of `groups` products of rows/groups x k by k x n; `rows` counts all groups together.

        One kernel holds all groups if `fused`; else each group is a launch of its own (multi-stream cuBLAS). The weight
        gradient has the same sizes and FLOPs as the forward product; it is added to fp32 gradients.
        """
        ...

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
        """Seconds of fused attention; `score_share` is the part of queries x keys that is computed (1/2 causal)."""
        ...

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Seconds of a bandwidth-bound kernel that reads and writes `nbytes` in all."""
        ...

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Seconds of a collective; `nbytes` is the whole buffer (all-gather: gathered; the others: the input)."""
        ...

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Seconds of a copy between one GPU and pinned memory of its host while the other GPUs copy too."""
        ...

    def launch(self) -> Priced:
        """Seconds between two short kernels that the host launches one after the other."""
        ...

    def beside(self) -> Beside | None:
        """How much compute and a transfer hold each other up, None where nobody measured it and neither is slowed."""
        ...

    def describe(self) -> dict[str, str]:
        """Where the rate of each kind of work comes from and how far its fit lies from what was measured."""
        ...
