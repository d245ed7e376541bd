"""The main job: price every layout that may run, memory first, and rank what fits by time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import Estimate, estimate, peak_flops, price_memory, price_time
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import RULES, Question
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates
from parlay.search.levers import cheapest_lever
from parlay.search.space import Counted, Space, join, layouts_of

Array = NDArray[np.float64]
Progress = Callable[[int, float], None]  # layouts priced so far, best step seconds

TIE = 0.005  # of a step: layouts closer than this are a tie
KEPT = 4096  # best rows carried from chunk to chunk


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One recommended layout: its estimate, what limits it, and why it is not first."""

    estimate: Estimate
    limited_by: str
    why_not_first: str


@dataclasses.dataclass(frozen=True)
class Point:
    """A layout on the Pareto front of memory headroom against speed."""

    layout: Layout
    step_s: float
    peak_bytes: float


@dataclasses.dataclass(frozen=True)
class Miss:
    """The layout that comes nearest to fitting, and by how much it does not."""

    layout: Layout
    peak_bytes: float
    over_bytes: float
    largest: tuple[tuple[str, float], ...]  # the largest memory terms of its worst stage, bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """The answer of `plan`: ranked rows, the Pareto front, and what was rejected why."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    gpus: int
    rows: tuple[PlanRow, ...]
    pareto: tuple[Point, ...]
    rejected: dict[str, int]
    reasons: dict[str, str]
    considered: int
    priced: int
    fitting: int
    memory_limit_bytes: float
    nearest_miss: Miss | None
    cheapest_lever: str | None
    elapsed_s: float


def plan(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    gpus: int,
    *,
    top: int = 5,
    space: Space | None = None,
    rates: Rates | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the best layouts of `model` on `gpus` GPUs of `cluster`, at most `top` that differ in their grid."""
    start = time.perf_counter()
    peak_flops(cluster, workload)  # refuse a precision that the device does not have before pricing anything
    workload = with_overlap(workload)
    space = space or default_space(workload)
    rates = rates or rates_for(cluster)
    found = _search(model, cluster, workload, gpus, space, rates, progress)
    rows = _rows(model, cluster, workload, found, rates, top)
    lever = None
    if not found.fitting and found.nearest is not None:
        lever = cheapest_lever(model, cluster, workload, gpus, space)
    return Plan(
        model=model,
        cluster=cluster,
        workload=workload,
        gpus=gpus,
        rows=rows,
        pareto=_pareto(found),
        rejected=found.counted.rejected,
        reasons={r.name: r.reason for r in RULES} | {"memory": "the worst stage must stay within what the device can allocate"},
        considered=found.counted.considered,
        priced=found.priced,
        fitting=found.fitting,
        memory_limit_bytes=float(cluster.device.memory.allocatable.value),
        nearest_miss=_miss(model, cluster, workload, found, rates) if not found.fitting else None,
        cheapest_lever=lever,
        elapsed_s=time.perf_counter() - start,
    )


def with_overlap(workload: Workload) -> Workload:
    """Return the workload with the overlaps on that every tuned run has, where the user left them open."""
    if workload.framework != "megatron-core":
        return workload
    on = {k: True for k in ("overlap_grad_reduce", "overlap_param_gather") if getattr(workload, k) is None}
    return workload.model_copy(update=on)


def default_space(workload: Workload) -> Space:
    """Return the axes that the framework's users tune."""
    if workload.framework == "torchtitan":
        return Space(zero=(3,), recompute=((), ("selective_ops",), ("full",)), tp_overlap=(False, True))
    if workload.framework == "deepspeed":
        return Space(zero=(1, 2, 3), cp_kind=("ulysses",), recompute=((), ("full",)), vpp=(1,))
    return Space(tp_overlap=(True,), ep_overlap=(False, True))


@dataclasses.dataclass
class _Found:
    """What a search carries from chunk to chunk."""

    counted: Counted
    best: Layouts | None = None
    step: Array = dataclasses.field(default_factory=lambda: np.empty(0))
    peak: Array = dataclasses.field(default_factory=lambda: np.empty(0))
    front: list[tuple[float, float, Layout]] = dataclasses.field(default_factory=list)
    nearest: tuple[float, Layout] | None = None
    priced: int = 0
    fitting: int = 0


def _search(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    gpus: int,
    space: Space,
    rates: Rates,
    progress: Progress | None = None,
) -> _Found:
    """Price all layouts of `space`; memory for all, time for those that fit."""
    found = _Found(Counted())
    question = Question(model, cluster, workload, gpus)
    for layouts in layouts_of(question, space, found.counted):
        held = price_memory(model, cluster, workload, layouts)
        fits = held.peak <= held.limit_bytes
        found.counted.reject("memory", int((~fits).sum()))
        found.priced += len(layouts)
        if not fits.any():
            worst = int(np.argmin(held.peak))
            peak = float(held.peak[worst])
            if found.nearest is None or peak < found.nearest[0]:
                found.nearest = (peak, layouts.one(worst))
            continue
        fitting = layouts.take(fits)
        found.fitting += len(fitting)
        _merge(found, fitting, price_time(model, cluster, workload, fitting, rates).step, held.peak[fits])
        if progress:
            progress(found.priced, float(found.step[0]))
    return found


def _merge(found: _Found, layouts: Layouts, step: Array, peak: Array) -> None:
    """Keep the best KEPT rows, and the rows on the front of (time, memory)."""
    both = layouts if found.best is None else join([found.best, layouts])
    steps, peaks = np.concatenate([found.step, step]), np.concatenate([found.peak, peak])
    order = np.lexsort((peaks, steps))
    lowest = np.minimum.accumulate(peaks[order])
    on_front = np.concatenate([[True], peaks[order][1:] < lowest[:-1]])
    ahead = [(float(steps[i]), float(peaks[i]), both.one(int(i))) for i in order[on_front]]
    found.front = _non_dominated([*found.front, *ahead])
    order = order[:KEPT]
    found.best, found.step, found.peak = both.take(order), steps[order], peaks[order]


def _non_dominated(points: list[tuple[float, float, Layout]]) -> list[tuple[float, float, Layout]]:
    kept: list[tuple[float, float, Layout]] = []
    for point in sorted(points, key=lambda p: (p[0], p[1])):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def _pareto(found: _Found) -> tuple[Point, ...]:
    return tuple(Point(layout, step, peak) for step, peak, layout in found.front)


def _rows(model: ModelSpec, cluster: Cluster, workload: Workload, found: _Found, rates: Rates, top: int) -> tuple[PlanRow, ...]:
    """Return the best layout of each of the `top` best grids, with the reasons."""
    if found.best is None:
        return ()
    b = found.best
    chosen = [b.one(i) for i in _simplest_of_ties(b, found.step, top)]
    estimates = [estimate(model, cluster, workload, layout, rates=rates) for layout in chosen]
    estimates.sort(key=lambda e: e.step_s)
    first = estimates[0]
    return tuple(PlanRow(e, limited_by(e), "" if e is first else why_slower(e, first)) for e in estimates)


def _simplest_of_ties(b: Layouts, step: Array, top: int) -> list[int]:
    """Return one row of each of the `top` best grids: the fastest, or of those within TIE of it the least to set up.

    Fewer virtual stages, then less recompute, then larger micro-batches: differences below TIE are smaller than what the
    model can tell.
    """
    best: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(b)):
        grid = tuple(int(a[i]) for a in (b.tp, b.cp, b.pp, b.dp, b.ep, b.etp, b.zero))
        rows = best.get(grid)
        if rows is None:
            if len(best) == top:
                continue
            best[grid] = [i]
        elif step[i] <= step[rows[0]] * (1 + TIE):
            rows.append(i)
    return [
        min(rows, key=lambda i: (b.vpp[i], int(b.recompute[i]).bit_count(), -b.micro_batch[i], step[i])) for rows in best.values()
    ]


def limited_by(e: Estimate) -> str:
    """Return in words what takes most of the step beyond compute, and how full the memory is."""
    leaves = [t for t in e.step.walk() if not t.parts and not t.key.startswith("step.compute.")]
    leaves.sort(key=lambda t: -t.value)
    parts = [f"{t.label} {t.value / e.step_s:.0%}" for t in leaves[:2] if t.value > 0.02 * e.step_s]
    full = e.peak_bytes / e.memory_limit_bytes
    if full > 0.9:
        parts.append(f"memory {full:.0%} full on stage {e.worst_stage}")
    compute = e.step.find("step.compute")
    share = compute.value / e.step_s if compute else 0.0
    return f"compute {share:.0%}" + (", " + ", ".join(parts) if parts else "")


def why_slower(e: Estimate, first: Estimate) -> str:
    """Return in words which terms make `e` slower than `first`."""
    base = {t.key: t for t in first.step.walk() if not t.parts}
    more = [(t.value - (base[t.key].value if t.key in base else 0.0), t) for t in e.step.walk() if not t.parts]
    more.sort(key=lambda pair: -pair[0])
    lost = e.step_s - first.step_s
    if lost < TIE * first.step_s:
        return f"a tie: {lost / first.step_s:+.1%}"
    words = [f"{t.label} {d / first.step_s:+.1%}" for d, t in more[:2] if d > 0.1 * lost]
    return f"{lost / first.step_s:+.1%} step time: " + ", ".join(words or ["many small terms"])


def _miss(model: ModelSpec, cluster: Cluster, workload: Workload, found: _Found, rates: Rates) -> Miss | None:
    if found.nearest is None:
        return None
    peak, layout = found.nearest
    e = estimate(model, cluster, workload, layout, rates=rates)
    leaves = sorted((t for t in e.memory[e.worst_stage].walk() if not t.parts), key=lambda t: -t.value)
    return Miss(layout, peak, peak - e.memory_limit_bytes, tuple((t.label, t.value) for t in leaves[:3]))
