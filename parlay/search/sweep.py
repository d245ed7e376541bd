"""Sweeps: the best layout for each combination of model, cluster, GPUs, sequence length and batch, and where scaling stops.

Strong scaling keeps the batch while GPUs grow; weak scaling grows it with them, from the batch at the fewest GPUs. A deadline
asks for the fewest GPUs of each series that end the whole run in time.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from parlay.estimate.answers import RunLength, run_length
from parlay.estimate.estimate import Estimate
from parlay.hardware.spec import Cluster
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates
from parlay.search.able import refusals
from parlay.search.constraints import ANYTHING, Constraints
from parlay.search.plan import Plan, Progress, plan
from parlay.search.spaces import default_space
from parlay.units import show_bytes

KNEE = 0.90  # of the best tokens/s/GPU of a series


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One combination."""

    model: ModelSpec
    cluster: Cluster
    gpus: int
    workload: Workload


@dataclasses.dataclass(frozen=True, slots=True)
class SweepRow:
    """A combination's best layout; without an estimate nothing fits, and `why` says by how much, or which rules reject all."""

    case: Case
    estimate: Estimate | None
    why: str
    knee: bool = False
    able: bool = True  # False: the cluster has not the precision
    fewest: bool = False  # the fewest GPUs of its series that end the run in time

    @property
    def days(self) -> float | None:
        """Days of the whole run; None without `total_tokens` or a fit."""
        seconds = self.run().run_s
        return seconds / 86400 if seconds is not None else None

    def run(self, gpu_hour_usd: float | None = None) -> RunLength:
        """Return how long the whole run takes and costs, at the price given or else at the cluster's own."""
        own = self.case.cluster.gpu_hour_usd
        price = gpu_hour_usd if gpu_hour_usd is not None else own.value if own else None
        return run_length(self.estimate, price) if self.estimate else RunLength()


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """All rows, in the order of models, clusters, sequence lengths, batches and GPUs."""

    rows: tuple[SweepRow, ...]
    weak: bool
    interrupted: bool = False
    within_days: float | None = None  # what the whole run may take
    gpu_hour_usd: float | None = None  # the price asked with; None leaves each cluster its own

    def in_time(self, row: SweepRow) -> bool | None:
        """Return whether a row ends the whole run within the days asked for; None where none were asked for."""
        return None if self.within_days is None else row.days is not None and row.days <= self.within_days


def cases(
    models: Sequence[ModelSpec], clusters: Sequence[Cluster], gpus: Sequence[int], workload: Workload, seq_lens: Sequence[int],
    batches: Sequence[int], *, weak: bool = False,
) -> list[Case]:  # fmt: skip
    """Return every combination; with `weak` a batch is that of the fewest GPUs and grows with them, rounded to whole sequences."""
    found = []
    for model, cluster, seq_len, batch in itertools.product(models, clusters, seq_lens, batches):
        for n in sorted(gpus):
            size = max(1, round(batch * n / min(gpus))) if weak else batch
            found.append(Case(model, cluster, n, workload.model_copy(update={"seq_len": seq_len, "global_batch": size})))
    return found


def uneven_batches(wanted: Sequence[Case]) -> str:
    """Return which batches of a weak sweep, as whole sequences, give a GPU more or less work than the fewest GPUs get; "" if none."""
    off: dict[str, float] = {}
    for series in itertools.groupby(wanted, key=lambda c: (c.model.id, c.cluster.id, c.workload.seq_len)):
        first: Case | None = None
        for case in series[1]:
            first = case if first is None or case.gpus <= first.gpus else first
            share = case.workload.global_batch * first.gpus / (first.workload.global_batch * case.gpus) - 1
            if share:
                off[f"{case.workload.global_batch:,} on {case.gpus:,} GPUs {share:+.1%}"] = share
    if not off:
        return ""
    return f"batches are whole sequences, so work per GPU is not the same throughout: {', '.join(off)}; a knee may come of that"


def sweep(
    asked: Sequence[Case],
    *,
    weak: bool = False,
    constraints: Constraints = ANYTHING,
    progress: Progress | None = None,
    rates: Mapping[str, Rates] | None = None,
    within_days: float | None = None,
    gpu_hour_usd: float | None = None,
) -> Sweep:
    """Return the best layout of every case. A KeyboardInterrupt ends it with the rows so far, if there are any.

    With `within_days` the first row of each series that ends the run of `total_tokens` in time is marked.

    A cluster without the precision has rows that say so; where none has it, UsageError is raised.
    `rates` holds measured rates by the id of their cluster.
    """
    rows: list[SweepRow] = []
    interrupted = False
    unable = refusals([case.cluster for case in asked], asked[0].workload.precision) if asked else {}
    for case in asked:
        if case.cluster.id in unable:
            rows.append(SweepRow(case, None, unable[case.cluster.id], able=False))
            continue
        try:
            row, interrupted = _row(case, constraints, progress, (rates or {}).get(case.cluster.id))
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
            break
        rows.append(row)
        if interrupted:
            break
    return Sweep(_with_fewest(_with_knees(rows), within_days), weak, interrupted, within_days, gpu_hour_usd)


def _row(case: Case, constraints: Constraints, progress: Progress | None, rates: Rates | None) -> tuple[SweepRow, bool]:
    space = default_space(case.workload).open(constraints)
    found = plan(
        case.model, case.cluster, case.workload, case.gpus, top=1, space=space, rates=rates, progress=progress, levers=False
    )
    if found.rows:
        return SweepRow(case, found.rows[0].estimate, ""), found.interrupted
    return SweepRow(case, None, why_nothing(found)), found.interrupted


def why_nothing(found: Plan) -> str:
    """Return what a plan without rows fell short of: memory, by how much at least; or the rules that reject its layouts."""
    miss = found.nearest_miss
    if miss is not None and miss.on_hosts:
        return f"the hosts lack memory: the nearest, {miss.layout}, needs {show_bytes(miss.peak_bytes)} of one, {show_bytes(miss.over_bytes)} too much"
    if miss is not None:
        largest = ", ".join(f"{label} {show_bytes(value)}" for label, value in miss.largest[:2])
        return (
            f"none of {found.priced:,} layouts stays within {show_bytes(found.memory_limit_bytes)}; the nearest, {miss.layout}, needs "
            f"{show_bytes(miss.peak_bytes)}, {show_bytes(miss.over_bytes)} too much ({largest})"
        )
    if not found.considered:
        return "no layout of this many GPUs is within what was asked"
    counts = sorted(found.rejected.items(), key=lambda kv: -kv[1])
    rules = "; ".join(f"{name} rejects {count:,} ({found.reasons[name]})" for name, count in counts[:2])
    return f"none of {found.considered:,} layouts keeps the rules: {rules}"


def _with_knees(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """Return the rows with the knee of each run of rows marked: the most GPUs that still hold KNEE of the best tokens/s/GPU.

    A series is a run of rows with rising GPU counts, as `cases` makes them; one with fewer than two fitting rows has no
    knee, nor has one whose last row still holds it, since nothing was seen beyond it.
    """
    out: list[SweepRow] = []
    for group in series_of(rows):
        speeds = [(i, r.estimate.tokens_per_s_per_gpu) for i, r in enumerate(group) if r.estimate]
        best = max((s for _, s in speeds), default=0.0)
        holds = [i for i, s in speeds if s >= KNEE * best]
        bent = len(speeds) > 1 and bool(holds) and holds[-1] != len(group) - 1
        out += [dataclasses.replace(r, knee=bent and i == holds[-1]) for i, r in enumerate(group)]
    return tuple(out)


def _with_fewest(rows: Sequence[SweepRow], within_days: float | None) -> tuple[SweepRow, ...]:
    """Return the rows with the fewest GPUs of each series that end the whole run in time marked."""
    out: list[SweepRow] = []
    for group in series_of(rows):
        first = next((i for i, r in enumerate(group) if within_days and r.days is not None and r.days <= within_days), None)
        out += [dataclasses.replace(r, fewest=i == first) for i, r in enumerate(group)]
    return tuple(out)


def series_of(rows: Sequence[SweepRow]) -> list[list[SweepRow]]:
    """Return the rows series by series: runs of rows with rising GPU counts, as `cases` makes them."""
    out: list[list[SweepRow]] = []
    for row in rows:
        same = out and row.case.gpus > out[-1][-1].case.gpus and _kin(row, out[-1][-1])
        if same:
            out[-1].append(row)
        else:
            out.append([row])
    return out


def _kin(a: SweepRow, b: SweepRow) -> bool:
    return (a.case.model.id, a.case.cluster.id, a.case.workload.seq_len) == (
        b.case.model.id,
        b.case.cluster.id,
        b.case.workload.seq_len,
    )
