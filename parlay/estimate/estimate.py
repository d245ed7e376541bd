"""One layout priced in full: memory of every stage, time of a step, and what both rest on."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError
from parlay.estimate.adapters import trained_adapters
from parlay.estimate.counts import flops_per_token
from parlay.estimate.kept import Kept
from parlay.estimate.memory import Memory, memory
from parlay.estimate.offload import host_bytes
from parlay.estimate.pipes import Pipes
from parlay.estimate.precision import check_precision, matmul_dtype, with_bf16_ends
from parlay.estimate.record import Expected, expected, features_of
from parlay.estimate.stages import Stages, stages_of
from parlay.estimate.terms import Term
from parlay.estimate.time import StepTime, step_time
from parlay.estimate.timeline import with_timeline
from parlay.estimate.traits import send_by_place
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import Violation, check
from parlay.layouts.split import layers_of_stages
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates


@dataclasses.dataclass(frozen=True)
class Prices:
    """Memory and time of many layouts."""

    layouts: Layouts
    memory: Memory
    time: StepTime

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Where the worst stage stays within what an allocator can reach, shape (layouts,)."""
        return np.asarray(self.memory.peak <= self.memory.limit_bytes)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Everything Parlay says about one layout; `model` is the one that was asked for, whatever layers `price` keeps in bf16.

    The totals are there at once; what they are made of (`memory`, `step`, `hidden`), where it comes from (`sources`) and what
    measured runs say (`expected`) is worked out when it is first asked for. Memory trees hold bytes, the step tree seconds.
    """

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    layout: Layout
    gpus: int
    fits: bool
    memory_limit_bytes: float
    peak_bytes: float
    worst_stage: int
    step_s: float
    tokens_per_s_per_gpu: float
    flops_per_token: float
    mfu: float
    mfu_convention: str
    mfu_peak_flops_per_s: float
    assumptions: tuple[str, ...]
    violations: tuple[Violation, ...]
    host_bytes: float  # offloaded to the fullest host
    host_limit_bytes: float | None  # of its memory; None where that is not known
    prices: Prices = dataclasses.field(repr=False, compare=False)  # of this one layout, its step with the exact timeline

    @property
    def stage_layers(self) -> list[list[int]]:
        """Layers of each chunk that a stage holds, by stage; the embedding and the head beside them are not counted."""
        x, virtual = self.layout, self.layout.vpp
        schedule = x.schedule or ("interleaved" if virtual > 1 else "1f1b")
        return layers_of_stages(self.model.layer_count, x.pp, virtual, schedule, x.ends, 1 + self.model.mtp_layers)

    @cached_property
    def memory(self) -> tuple[Term, ...]:
        """What every stage holds, as a tree of bytes each."""
        return tuple(self.prices.memory.tree.at(0, stage) for stage in range(self.layout.pp))

    @cached_property
    def step(self) -> Term:
        """What the step is made of, as a tree of seconds."""
        return self.prices.time.tree().at(0)

    @cached_property
    def hidden(self) -> Term:
        """The transfers that run beside compute, as a tree of seconds."""
        return self.prices.time.hidden().at(0)

    @cached_property
    def sources(self) -> dict[str, str]:
        """Where each part of the step comes from, by the key of its term."""
        return {t.key: t.source for t in self.step.walk() if not t.parts}

    @cached_property
    def expected(self) -> Expected | None:
        """How far measured runs lay from predictions like this one."""
        return expected(features_of(self.model, self.cluster, self.workload, self.layout))


def deciding_stages(model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts) -> Stages:
    """Return the stages that can decide: one of each content, or all where what a stage sends depends on its place."""
    return stages_of(model, layouts, workload.global_batch, every=send_by_place(cluster, workload))


def price(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, rates: Rates, *, every: bool = False
) -> Prices:
    """Return memory and time of `layouts`; with `every` all stages are listed, else those that can decide."""
    model = with_bf16_ends(model, workload)
    stages = stages_of(model, layouts, workload.global_batch) if every else deciding_stages(model, cluster, workload, layouts)
    pipes = Pipes.of(model, cluster, workload, layouts, stages)
    held = memory(model, cluster, workload, layouts, stages, pipes=pipes)
    return Prices(layouts, held, step_time(model, cluster, workload, layouts, stages, rates, pipes))


def price_memory(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    *,
    stages: Stages | None = None,
    pipes: Pipes | None = None,
) -> Memory:
    """Return the memory of `layouts`, on the stages that can decide and by pipes worked out here, unless given."""
    model = with_bf16_ends(model, workload)
    stages = deciding_stages(model, cluster, workload, layouts) if stages is None else stages
    return memory(model, cluster, workload, layouts, stages, pipes=pipes)


def price_time(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    rates: Rates,
    *,
    stages: Stages | None = None,
    pipes: Pipes | None = None,
) -> StepTime:
    """Return the time of a step of `layouts`, on the stages that can decide and by pipes worked out here, unless given."""
    model = with_bf16_ends(model, workload)
    stages = deciding_stages(model, cluster, workload, layouts) if stages is None else stages
    pipes = pipes or Pipes.of(model, cluster, workload, layouts, stages)
    return step_time(model, cluster, workload, layouts, stages, rates, pipes)


def peak_flops(cluster: Cluster, workload: Workload) -> float:
    """Return the dense datasheet peak [FLOP/s] of the precision's matmuls, or raise if the device cannot train in it."""
    check_precision(cluster.device, workload.precision)
    dtype = matmul_dtype(cluster.device, workload.precision)
    assert dtype is not None  # it was checked
    return float(cluster.device.flops_per_s[dtype].value)


def estimate(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, *, gpus: int | None = None, rates: Rates | None = None
) -> Estimate:
    """Return the full estimate of one layout. A layout that breaks a rule raises UsageError with every broken rule."""
    arrays = Layouts.of(layout)
    violations = tuple(check(layout, with_bf16_ends(model, workload), cluster, workload, gpus, arrays=arrays))
    if violations:
        first, *others = violations
        more = "".join(f"; also: {v.message}" for v in others)
        raise UsageError(first.message + more, where=f"layout {layout}", hint=first.hint)
    return _estimate(model, cluster, workload, layout, rates or _RATES.get((cluster,), lambda: rates_for(cluster)), arrays)


_RATES: Kept[Rates] = Kept()


def _estimate(
    model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout, rates: Rates, arrays: Layouts | None = None
) -> Estimate:
    peak = peak_flops(cluster, workload)
    priced = with_bf16_ends(model, workload)
    prices = price(priced, cluster, workload, Layouts.of(layout) if arrays is None else arrays, rates, every=True)
    prices = dataclasses.replace(prices, time=with_timeline(prices.time, priced, layout))
    held = prices.memory.total[0]
    hosted = float(host_bytes(priced, cluster, workload, Layouts.of(layout) if arrays is None else arrays)[0])
    room = None if cluster.host_memory_bytes is None else float(cluster.host_memory_bytes.value)
    worst = int(held.argmax())
    step_s = float(prices.time.step[0])
    per_gpu = workload.global_batch * workload.seq_len / step_s / layout.gpus
    adapters = trained_adapters(model, workload)
    reach = min(workload.document_len or workload.seq_len, workload.seq_len)
    flops = flops_per_token(model, reach, convention=workload.flops_convention, adapters=adapters)
    return Estimate(
        model=model,
        cluster=cluster,
        workload=workload,
        layout=layout,
        gpus=layout.gpus,
        fits=bool(prices.fits[0]) and (room is None or hosted <= room),
        memory_limit_bytes=float(prices.memory.limit_bytes),
        peak_bytes=float(held[worst]),
        worst_stage=worst,
        step_s=step_s,
        tokens_per_s_per_gpu=per_gpu,
        flops_per_token=flops,
        mfu=per_gpu * flops / peak,
        mfu_convention=workload.flops_convention,
        mfu_peak_flops_per_s=peak,
        assumptions=prices.memory.assumptions,
        violations=(),
        host_bytes=hosted,
        host_limit_bytes=room,
        prices=prices,
    )
