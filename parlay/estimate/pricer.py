"""What prices an operator: its seconds forward and backward from rates, for one workload and the rows of a Shard."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.estimate.kept import MOST_ROWS, Kept
from parlay.estimate.overlap import lost_s
from parlay.estimate.shard import Shard
from parlay.estimate.terms import weakest
from parlay.estimate.traits import Traits
from parlay.layouts.vocabulary import FUSED_LAYERS
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Priced, Rates, Stream

Array = NDArray[np.float64]

FP8_PRECISIONS = {"fp8": "fp8", "fp8-blockwise": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}  # precision -> matmul dtype
ELEMENT = 2.0  # bytes of an activation in bf16 or fp16


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator: seconds of its forward, input gradient and weight gradient, per micro-batch on one rank."""

    name: str
    group: str
    forward: Array
    dgrad: Array
    wgrad: Array
    modules: frozenset[str]  # recompute modules that run this operator again
    launches: Array | float  # host operators of one forward
    source: str
    waits: Array | float = 0.0  # host operators whose time the forward loses to waiting for the device
    weights: Array | float = 0.0  # parameter tensors on the rank
    behind: float = 1.0  # host operators of the backward over those of the forward, before HOST_BACKWARD
    flops: Array | float = 0.0  # of the forward, of a product; for `explain`
    nbytes: Array | float = 0.0  # that the forward of a byte stream reads and writes; for `explain`

    def take(self, rows: NDArray[np.int64]) -> Operator:
        """Return the operator at some rows of its Shard."""
        calls, waits, weights, flops, nbytes = (
            x[rows] if isinstance(x, np.ndarray) and x.ndim else x
            for x in (self.launches, self.waits, self.weights, self.flops, self.nbytes)
        )
        seconds = (self.forward[rows], self.dgrad[rows], self.wgrad[rows])
        return Operator(
            self.name, self.group, *seconds, self.modules, calls, self.source, waits, weights, self.behind, flops, nbytes
        )

    def frozen(self) -> Operator:
        """Return the operator without its weight gradient: one product of two is left for the host to launch."""
        return dataclasses.replace(self, wgrad=np.zeros_like(self.wgrad), weights=0.0, behind=0.5)


_PRODUCTS: Kept[tuple[Priced, Priced, Priced]] = Kept()  # of few rows: forward, input gradient, weight gradient


@dataclasses.dataclass(frozen=True)
class Pricer:
    """Prices operators at one set of rates for one workload and the distinct rows of a Shard."""

    rates: Rates
    workload: Workload
    shard: Shard
    model: ModelSpec
    traits: Traits = dataclasses.field(default_factory=Traits)
    products: Kept[tuple[Priced, Priced, Priced]] = dataclasses.field(default_factory=Kept)

    @property
    def trains(self) -> bool:
        """Whether the model's own weights are trained; LoRA freezes them."""
        return self.workload.lora_rank is None

    @property
    def accumulates(self) -> bool:
        """Whether weight gradients are written by adding to fp32 main gradients (Megatron's default)."""
        return self.workload.framework in FUSED_LAYERS and self.workload.gradient_accumulation_fusion is not False

    @property
    def fp8_attention(self) -> bool:
        """Whether the attention core's products are in fp8, which they are where those of linear layers are narrow."""
        return bool(self.workload.fp8_attention) and self.workload.precision in FP8_PRECISIONS

    def lost_s(self, transfer_s: Array, compute_s: Array) -> Array:
        """Seconds that a transfer and the compute beside it lose to each other."""
        return lost_s(self.rates.beside(), transfer_s, compute_s)

    @property
    def dtype(self) -> str:
        """The dtype of the linear layers' matmuls."""
        p = self.workload.precision
        return self.traits.fp32_products if p == "fp32" else FP8_PRECISIONS.get(p, p)

    @cached_property
    def across_tensor(self) -> tuple[Priced, Priced, Priced]:
        """All-gather, reduce-scatter and all-reduce of a tensor of the residual stream over the tensor-parallel group."""
        nbytes, group = ELEMENT * self.shard.tokens * self.model.hidden, self.shard.tp_group
        return (
            self.rates.collective("all_gather", nbytes, group),
            self.rates.collective("reduce_scatter", nbytes, group),
            self.rates.collective("all_reduce", nbytes, group),
        )

    def gemm(
        self,
        name: str,
        group: str,
        rows: ArrayLike,
        out: ArrayLike,
        inner: ArrayLike,
        modules: tuple[str, ...] = (),
        *,
        dtype: str | None = None,
    ) -> Operator:
        """Return a linear layer rows x inner -> rows x out with both of its gradients, or the input's alone where it is frozen."""
        found = self.product(name, group, rows, out, inner, dtype or self.dtype, modules)
        return found if self.trains else found.frozen()

    def product(
        self, name: str, group: str, rows: ArrayLike, out: ArrayLike, inner: ArrayLike, kind: str, modules: tuple[str, ...] = ()
    ) -> Operator:
        """Return a product with a trained weight in number format `kind`."""
        adds = self.accumulates

        def priced() -> tuple[Priced, Priced, Priced]:
            fwd, dgrad = self.rates.gemm(rows, out, inner, kind), self.rates.gemm(rows, inner, out, kind)
            # The weight gradient adds into the fp32 main gradient where the framework fuses the two.
            return fwd, dgrad, self.rates.gemm(inner, out, rows, kind, accumulate=adds)

        sizes = [np.asarray(x, dtype=np.float64) for x in (rows, out, inner)]
        # Layers of several kinds, and layouts of one question, have many a product in common.
        known = _PRODUCTS if len(self.shard.tp) <= MOST_ROWS else self.products
        fwd, dgrad, wgrad = known.get((self.rates,), priced, kind, adds, *((x.shape, x.tobytes()) for x in sizes))
        source = weakest([fwd.source, dgrad.source, wgrad.source])
        seconds, flops = (fwd.seconds, dgrad.seconds, wgrad.seconds), 2.0 * sizes[0] * sizes[1] * sizes[2]
        return Operator(name, group, *seconds, frozenset(modules), 1.0, source, weights=1.0, flops=flops)

    def grouped(
        self, name: str, rows: ArrayLike, groups: ArrayLike, out: ArrayLike, inner: ArrayLike, modules: tuple[str, ...]
    ) -> Operator:
        """Return a grouped linear layer over `groups` experts that share `rows` tokens evenly."""
        fused = self.traits.fused_groups
        fwd = self.rates.grouped_gemm(rows, groups, out, inner, self.dtype, fused=fused)
        dgrad = self.rates.grouped_gemm(rows, groups, inner, out, self.dtype, fused=fused)
        wgrad = self.rates.grouped_gemm(rows, groups, out, inner, self.dtype, fused=fused, weight_gradient=True)
        source = weakest([fwd.source, dgrad.source, wgrad.source])
        held = np.asarray(groups, dtype=np.float64)
        seconds = (fwd.seconds, dgrad.seconds, wgrad.seconds)
        flops = 2.0 * np.asarray(rows, dtype=np.float64) * np.asarray(out, dtype=np.float64) * np.asarray(inner, dtype=np.float64)
        found = Operator(name, "experts", *seconds, frozenset(modules), 1.0, source, weights=held, flops=flops)
        return found if self.trains else found.frozen()

    def stream(
        self,
        name: str,
        nbytes: ArrayLike,
        kind: Stream,
        modules: tuple[str, ...] = (),
        *,
        backward: ArrayLike = 1.5,
        group: str = "norms and elementwise",
        launches: float = 1.0,
        waits: float = 0.0,
    ) -> Operator:
        """Return a bandwidth-bound operator; its backward moves `backward` times the bytes of its forward."""
        fwd = self.rates.stream(nbytes, kind)
        back = self.rates.stream(np.asarray(nbytes) * backward, kind)
        zero = np.zeros_like(fwd.seconds)
        weights = 1.0 if kind == "norm" and self.trains else 0.0
        return Operator(
            name, group, fwd.seconds, back.seconds, zero, frozenset(modules), launches, fwd.source, waits, weights,
            nbytes=np.asarray(nbytes, dtype=np.float64),
        )  # fmt: skip

    def gradient(self, name: str, nbytes: ArrayLike, group: str = "norms and elementwise") -> Operator:
        """Return what moves `nbytes` of weight gradients behind a backward, with no forward."""
        back = self.rates.stream(nbytes, "residual")
        zero = np.zeros_like(back.seconds)
        return Operator(name, group, zero, zero, back.seconds, frozenset(), 0.0, back.source)

    def casts(
        self, name: str, elements: ArrayLike, modules: tuple[str, ...] = (), *, gradient: ArrayLike = 0.0
    ) -> list[Operator]:
        """Return the quantisation of one GEMM's input (`elements`) and of its output's gradient (`gradient` elements).

        One scale a tensor needs the largest value first (a read of its own); then bf16 is read and a row-wise and a
        column-wise copy written, of which the weight gradient reads the second. Block scales need no first pass.
        """
        if self.workload.precision not in FP8_PRECISIONS:
            return []
        first = ELEMENT if self.workload.precision == "fp8" else 0.0
        width = 0.5 if self.workload.precision == "nvfp4" else 1.0
        each = first + ELEMENT + (2 if self.trains else 1) * width
        fwd = self.rates.stream(np.asarray(elements) * each, "cast")
        bwd = self.rates.stream(np.broadcast_to(np.asarray(gradient) * each, np.shape(fwd.seconds)), "cast")
        zero = np.zeros_like(fwd.seconds)
        launches = 2.0 if first else 1.0
        return [
            Operator(
                f"{name} quantisation", "quantisation", fwd.seconds, bwd.seconds, zero, frozenset(modules), launches, fwd.source
            )
        ]
