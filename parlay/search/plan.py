"""The main job: price every layout that may run, memory first, and rank what fits by time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import Estimate, deciding_stages, estimate, peak_flops, price_memory, price_time
from parlay.estimate.least import least_steps
from parlay.estimate.memory_rows import overlap_bytes
from parlay.estimate.offload import host_bytes, host_has_room
from parlay.estimate.pipes import Pipes
from parlay.estimate.precision import with_bf16_ends
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import RULES, Question
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates
from parlay.search.explore import CHUNK, Asked, explored
from parlay.search.levers import cheapest_lever
from parlay.search.sensitivity import Change, Sensitivity, most_helpful, sensitivities
from parlay.search.shortlist import TIE, Timelines
from parlay.search.space import Counted, Space, join
from parlay.search.spaces import default_space

Array = NDArray[np.float64]
REASONS = {
    "memory": "the worst stage must stay within what the device can allocate",
    "host": "the hosts' memory must hold what is offloaded",
    "slower": "recompute and offload not priced: slower than the best grids even without",
}
LESS_ON_HOSTS = "offload less, take a smaller micro-batch, or more GPUs"
Progress = Callable[[int, float | None, float], None]  # layouts priced so far, best step seconds, share of grids done


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One recommended layout: its estimate, what limits it, and why it is not first."""

    estimate: Estimate
    limited_by: str
    why_not_first: str
    help: Change | None = None  # the single change that saves most; looked for only where asked


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
    on_hosts: bool  # whether both are of a host's memory: the device holds its part
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
    asked: tuple[str, ...] = ()  # constraints beside the rules, in words
    headroom_bytes: float = 0.0  # kept free, already taken from memory_limit_bytes
    explained: bool = False
    sensitivities: tuple[Sensitivity, ...] = ()  # of the first row
    interrupted: bool = False  # the search was stopped; the rows are the best so far
    refused: tuple[str, ...] = ()  # where no layout keeps the rules: what the rules that refuse most say, by example


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
    explain: bool = False,
    levers: bool = True,
) -> Plan:
    """Return the best layouts of `model` on `gpus` GPUs of `cluster`, at most `top` that differ in their grid.

    With `explain` every row carries the change that would help most, and the plan what faster hardware would bring to
    the first; without `levers` nothing is searched for what would make a layout fit. A KeyboardInterrupt ends the search with the best so far, if there is any.
    """
    start = time.perf_counter()
    peak_flops(cluster, workload)  # refuse a precision that the device does not have before pricing anything
    workload = with_overlap(workload)
    space = space or default_space(workload)
    rates = rates or rates_for(cluster)
    priced = with_bf16_ends(model, workload)
    found = _search(priced, cluster, workload, gpus, space, rates, progress, top)
    rows = _rows(model, cluster, workload, found, rates, top)
    if explain:
        rows = tuple(
            dataclasses.replace(r, help=most_helpful(r.estimate, rates, headroom_bytes=space.asked.headroom_bytes)) for r in rows
        )
    lever = None
    if levers and not found.fitting and found.nearest is not None and not found.interrupted:
        lever = LESS_ON_HOSTS if found.nearest[0] else cheapest_lever(priced, cluster, workload, gpus, space)
    return Plan(
        model=model,
        cluster=cluster,
        workload=workload,
        gpus=gpus,
        rows=rows,
        pareto=_pareto(found),
        rejected=found.counted.rejected,
        reasons={r.name: r.reason for r in RULES} | REASONS,
        considered=found.counted.considered,
        priced=found.priced,
        fitting=found.fitting,
        memory_limit_bytes=float(cluster.device.memory.allocatable.value) - space.asked.headroom_bytes,
        nearest_miss=_miss(priced, cluster, workload, found, rates, space.asked.headroom_bytes) if not found.fitting else None,
        cheapest_lever=lever,
        elapsed_s=time.perf_counter() - start,
        asked=tuple(space.asked.words()),
        headroom_bytes=space.asked.headroom_bytes,
        explained=explain,
        sensitivities=sensitivities(rows[0].estimate, rates) if explain and rows else (),
        interrupted=found.interrupted,
        refused=_refused(Question(priced, cluster, workload, gpus), found) if not found.priced else (),
    )


REFUSED = 2  # rules that are quoted


def _refused(question: Question, found: _Found) -> tuple[str, ...]:
    """Return what the rules that refuse most layouts say of one of them."""
    most = sorted(found.counted.rejected.items(), key=lambda kv: -kv[1])
    by_name = {rule.name: rule for rule in RULES}
    out = []
    for name, _ in most[:REFUSED]:
        if name in by_name and name in found.counted.examples:
            layout = found.counted.examples[name]
            message, hint = by_name[name].message(layout, question)
            out.append(f"{name}, such as {layout}: {message}; {hint}")
    return tuple(out)


def with_overlap(workload: Workload) -> Workload:
    """Return the workload with the overlaps on that every tuned run has, where the user left them open."""
    if workload.framework != "megatron-core":
        return workload
    on = {k: True for k in ("overlap_grad_reduce", "overlap_param_gather") if getattr(workload, k) is None}
    return workload.model_copy(update=on)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """Some layouts with their step by closed form, the least that it can be [s], and peak memory [B]."""

    layouts: Layouts
    step: Array
    least: Array
    peak: Array

    def take(self, index: NDArray[np.int64]) -> _Kept:
        return _Kept(self.layouts.take(index), self.step[index], self.least[index], self.peak[index])

    def and_(self, other: _Kept | None) -> _Kept:
        if other is None:
            return self
        return _Kept(
            join([other.layouts, self.layouts]),
            np.concatenate([other.step, self.step]),
            np.concatenate([other.least, self.least]),
            np.concatenate([other.peak, self.peak]),
        )


@dataclasses.dataclass
class _Found:
    """What a search carries from chunk to chunk; `kept` is set at once, so an interrupt leaves it whole."""

    counted: Counted
    timelines: Timelines
    kept: tuple[_Kept, _Kept] | None = None  # what can be shown, and the front of time and memory
    nearest: tuple[bool, float, Layout] | None = None  # whether only hosts lack memory, the bytes needed, of which layout
    priced: int = 0
    fitting: int = 0
    interrupted: bool = False


def _search(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    gpus: int,
    space: Space,
    rates: Rates,
    progress: Progress | None = None,
    top: int = 5,
) -> _Found:
    """Price all layouts of `space`; memory for all, time for those that fit."""
    found = _Found(Counted(), Timelines(model, cluster, workload, rates, top))
    question = Question(model, cluster, workload, gpus)
    spare: list[Layouts] = []
    try:
        every = explored(question, space, found.counted, found.timelines)
        layouts = next(every, None)
        while layouts is not None:
            over = _priced(question, space, rates, found, layouts)
            if space.overlap_if_it_fits:
                buffers = overlap_bytes(model, cluster, workload, layouts)
                spare.append(layouts.take(np.flatnonzero((over > 0) & (over <= buffers))))
                if sum(map(len, spare)) > CHUNK:
                    _without_overlap(question, space, rates, found, spare)
            if progress:
                progress(found.priced, min(found.timelines.fastest.values(), default=None), found.counted.share)
            layouts = _next(every, over)
        _without_overlap(question, space, rates, found, spare)
    except KeyboardInterrupt:
        if found.kept is None:
            raise
        found.interrupted = True
    return found


def _next(every: Asked, over: Array) -> Layouts | None:
    """Return the next layouts to price, told how much the last ones held too much; None at the end."""
    try:
        return every.send(over)
    except StopIteration:
        return None


def _without_overlap(question: Question, space: Space, rates: Rates, found: _Found, spare: list[Layouts]) -> None:
    """Price layouts without tensor-parallel overlap, of which only its buffers did not fit, and forget them."""
    if any(len(x) for x in spare):
        x = join([x for x in spare if len(x)])
        found.counted.considered += len(x)
        _priced(question, space, rates, found, dataclasses.replace(x, tp_overlap=np.zeros(len(x), dtype=bool)))
    spare.clear()


def _priced(question: Question, space: Space, rates: Rates, found: _Found, layouts: Layouts) -> Array:
    """Price memory of all and time of what fits, keep the best, and return the bytes that each layout holds too many."""
    model, cluster, workload = question.model, question.cluster, question.workload
    stages = deciding_stages(model, cluster, workload, layouts)
    pipes = Pipes.of(model, cluster, workload, layouts, stages)
    held = price_memory(model, cluster, workload, layouts, stages=stages, pipes=pipes)
    room = host_has_room(model, cluster, workload, layouts, stages, pipes=pipes)
    over = held.peak - (held.limit_bytes - space.asked.headroom_bytes)
    fits = (over <= 0) & room
    if fits.any():
        fitting = layouts.take(fits)
        running, mine = stages.take(fits), pipes.take(fits)
        time = price_time(model, cluster, workload, fitting, rates, stages=running, pipes=mine)
        least = least_steps(time, found.timelines.limit_s * (1 + TIE))
        found.kept = _merged(found, _Kept(fitting, time.step, least, held.peak[fits]))
    else:
        _nearer(found, question, layouts, held.peak, over)
    found.counted.reject("host", int((~room).sum()))
    found.counted.reject("memory", int((~fits & room).sum()))
    found.priced += len(layouts)
    found.fitting += int(fits.sum())
    return np.asarray(over)


def _nearer(found: _Found, question: Question, layouts: Layouts, peak: Array, over: Array) -> None:
    """Remember the layout that comes nearest to fitting the device, or where all do, to fitting the hosts."""
    rows = np.flatnonzero(over > 0)
    hosts = not len(rows)
    needed = host_bytes(question.model, question.cluster, question.workload, layouts) if hosts else peak
    rows = np.arange(len(layouts)) if hosts else rows
    least = int(rows[np.argmin(needed[rows])])
    mine = (hosts, float(needed[least]), layouts.one(least))
    if found.nearest is None or mine[:2] < found.nearest[:2]:
        found.nearest = mine


def _merged(found: _Found, more: _Kept) -> tuple[_Kept, _Kept]:
    """Return what was kept and `more` together: what can be shown, and the front."""
    best, front = found.kept or (None, None)
    found.timelines.look_at(more.layouts, more.least)
    near = more.take(found.timelines.near(more.layouts, more.least)).and_(best)
    near = near.take(found.timelines.near(near.layouts, near.least))
    return near, _front(_front(more).and_(front))


def _front(rows: _Kept) -> _Kept:
    """Return the rows that no other row beats in both time and memory, fastest first."""
    order = np.lexsort((rows.peak, rows.step))
    peaks = rows.peak[order]
    lowest = np.minimum.accumulate(peaks)
    return rows.take(order[np.concatenate([[True], peaks[1:] < lowest[:-1]])])


def _pareto(found: _Found) -> tuple[Point, ...]:
    if found.kept is None:
        return ()
    front = found.kept[1]
    return tuple(Point(front.layouts.one(i), float(front.step[i]), float(front.peak[i])) for i in range(len(front.step)))


def _rows(model: ModelSpec, cluster: Cluster, workload: Workload, found: _Found, rates: Rates, top: int) -> tuple[PlanRow, ...]:
    """Return the best layout of each of the `top` best grids, with the reasons."""
    if found.kept is None:
        return ()
    best = found.kept[0].layouts
    chosen = [best.one(i) for i in found.timelines.ranked(best)]
    estimates = [estimate(model, cluster, workload, layout, rates=rates) for layout in chosen]
    estimates.sort(key=lambda e: e.step_s)
    first = estimates[0]
    return tuple(PlanRow(e, limited_by(e), "" if e is first else why_slower(e, first)) for e in estimates)


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


def _miss(model: ModelSpec, cluster: Cluster, workload: Workload, found: _Found, rates: Rates, headroom: float) -> Miss | None:
    if found.nearest is None:
        return None
    hosts, needed, layout = found.nearest
    e = estimate(model, cluster, workload, layout, rates=rates)
    leaves = sorted((t for t in e.memory[e.worst_stage].walk() if not t.parts), key=lambda t: -t.value)
    limit = (e.host_limit_bytes or 0.0) if hosts else e.memory_limit_bytes - headroom
    return Miss(layout, needed, needed - limit, hosts, tuple((t.label, t.value) for t in leaves[:3]))
