"""From the closed form to the exact timeline: the rows that can still be shown are timed operation by operation and ranked again.

Closed forms take chunks as equally long; the timeline has them as they are. Rows of one grid that differ in virtual
stages, schedule or ends are kept apart until then, because between these the closed form can err. What a timeline has told
about one cut of the layers, it tells about the others that are cut alike.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.estimate.shard import distinct
from parlay.estimate.stages import stages_of
from parlay.estimate.time import StepTime
from parlay.estimate.timeline import exact_bubble_s
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE = 0.005  # of a step: layouts closer than this are a tie
GRIDS = 64  # at least so many grids are kept until they are timed
WIDE_GRIDS = 128  # the same of a wide space, whose closed forms err more often by more
MARGIN = 0.15  # a pipe that the closed form has slower than the slowest of these by more than this is not kept
# By which a timeline may be shorter than the closed form, for each schedule: measured, not proven (docs/benchmarks.md).
SLACK = np.array([{"dualpipe": 0.10, "dualpipev": 0.11}.get(name, 0.08) for name in SCHEDULES])
# The same once a pipe that is cut alike and has as many micro-batches was timed: among the fastest twentieth of a space it holds
# for 19 of 20 layouts, and the others miss it by up to 0.04 (tests/search/test_wide.py).
SAME_CUT = 0.02
OPERATIONS = (
    1_000  # timed of a row, or ROUNDS if these are more; the rest of a step follows from the last one (docs/benchmarks.md)
)
ROUNDS = 3
GRID = ("tp", "cp", "pp", "dp", "ep", "etp")
WORK = (  # what the operations of a pipeline take and how they stand
    "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "schedule", "first_layers", "last_layers", "micro_batch", "cp_kind", "ulysses", "sp",
    "tp_overlap", "ep_overlap", "recompute", "recompute_layers", "order",
)  # fmt: skip
# How layers lie on stages and chunks, and how long expert layers are beside embedding and head.
CUT = ("pp", "vpp", "schedule", "first_layers", "last_layers", "ep_overlap")
PIPE = (*GRID, "zero", "vpp", "schedule", "first_layers", "last_layers")


def near_best(x: Layouts, step: Array, peak: Array, top: int, *, wide: bool = False) -> Ints:
    """Return the rows that can still be shown, fastest first: of the fastest grids, those within TIE of their pipe's best.

    Nothing that is dropped can come back: more rows make a grid's or a pipe's best only faster.
    """
    grid, pipe = _groups(x, GRID), _groups(x, PIPE)
    fastest, quickest = _least(grid, step), _least(pipe, step)
    limit = np.sort(fastest)[min(max(top, WIDE_GRIDS if wide else GRIDS), len(fastest)) - 1]
    near = (fastest[grid] <= limit) & (step <= quickest[pipe] * (1 + TIE)) & (step <= limit * (1 + MARGIN))
    rows = np.flatnonzero(near)
    return rows[np.lexsort((peak[rows], step[rows]))]


@dataclasses.dataclass
class Timelines:
    """Exact steps of the layouts of one question, as far as they can matter to its `top` best grids; what was timed is kept."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    rates: Rates
    top: int
    bubbles: dict[tuple[int, ...], float] = dataclasses.field(default_factory=dict)  # of each work
    over: dict[tuple[int, ...], float] = dataclasses.field(default_factory=dict)  # least timeline over closed form, by cut

    def ranked(self, x: Layouts, step: Array) -> Ints:
        """Return one row of each of the best grids, best first; `step` is the closed form's.

        Of rows within TIE of the best of their pipe, and then of pipes within TIE of the best of their grid, the least to
        set up is taken: fewer virtual stages, then less of ZeRO, then less recompute, then larger micro-batches. Differences below TIE are
        smaller than what the model can tell.
        """
        rows, few, exact = self._timed(x, step)
        best = _simplest(few, exact, _groups(few, GRID))
        return np.asarray(rows[best[np.argsort(exact[best], kind="stable")]][: self.top])

    def limit_s(self, x: Layouts, step: Array, before: float) -> float:
        """Return the exact step of the slowest grid that would be shown, or `before`, what it was of fewer rows, if that is less."""
        near = np.flatnonzero(self.least_s(x, step) <= before * (1 + TIE))
        if not len(near):
            return before
        _, few, exact = self._timed(x.take(near), step[near])
        fastest = np.sort(_least(_groups(few, GRID), exact))
        return min(before, float(fastest[self.top - 1])) if len(fastest) >= self.top else before

    def least_s(self, x: Layouts, step: Array) -> Array:
        """Return what the exact step of each row may be at least, by its closed form and the pipes that are cut alike."""
        columns = self._cuts(x)
        first, cut = distinct(columns)
        share = np.array([self._share(c) for c in zip(*(column[first].tolist() for column in columns), strict=True)])
        return np.asarray(step * share[cut])

    def look_at_cuts(self, x: Layouts, step: Array) -> None:
        """Time one row of each cut of which nothing is known: the fastest by its closed form."""
        x = x.take(np.argsort(step, kind="stable"))
        columns = self._cuts(x)
        first, _ = distinct(columns)
        known = [cut in self.over for cut in zip(*(column[first].tolist() for column in columns), strict=True)]
        some = x.take(first[~np.array(known, dtype=bool) & (x.pp[first] > 1)])
        if len(some):
            time = self._priced(some)
            for i, cut in enumerate(zip(*(column.tolist() for column in self._cuts(some)), strict=True)):
                self.over[cut] = float(1.0 + (_bubble_s(time, self.model, some, i) - time.bubble[i]) / time.step[i])

    def _cuts(self, x: Layouts) -> list[Ints]:
        """Return how layers lie on stages and chunks, and how many micro-batches pass them, as columns."""
        return [*(np.asarray(getattr(x, name)).astype(np.int64) for name in CUT), x.micro_batches(self.workload.global_batch)]

    def _share(self, cut: tuple[int, ...]) -> float:
        """Return the least share of its closed form that a timeline of this cut may take: all of it without a pipeline."""
        if cut[0] < 2:
            return 1.0
        return self.over[cut] - SAME_CUT if cut in self.over else 1.0 - float(SLACK[cut[CUT.index("schedule")]])

    def _priced(self, x: Layouts) -> StepTime:
        stages = stages_of(self.model, x, self.workload.global_batch)
        return price_time(self.model, self.cluster, self.workload, x, self.rates, stages=stages)

    def _timed(self, x: Layouts, step: Array) -> tuple[Ints, Layouts, Array]:
        """Return the rows whose timelines were worth looking at, fastest first by their closed forms, and their exact steps."""
        rows = _simplest(x, step, _groups(x, PIPE))
        rows = rows[np.argsort(step[rows], kind="stable")]
        few = x.take(rows)
        exact = self._worth_timing(few)
        timed = np.flatnonzero(np.isfinite(exact))
        return rows[timed], few.take(timed), exact[timed]

    def _worth_timing(self, x: Layouts) -> Array:
        """Return exact steps of rows that stand fastest first by their closed form; infinite where they could change nothing.

        That is where the least that a timeline may be is slower than a row of the same grid, or than `top` grids, by theirs.
        """
        grid = _groups(x, GRID)
        time = self._priced(x)
        exact = np.full(len(x), np.inf)
        best = np.full(int(grid.max()) + 1, np.inf)
        works = np.stack(
            [np.asarray(getattr(x, n)).astype(np.int64) for n in WORK] + [(1e6 * x.offload_activations).astype(np.int64)]
        )
        work: list[list[int]] = works.T.tolist()
        for row, cut in enumerate(zip(*(column.tolist() for column in self._cuts(x)), strict=True)):
            slowest = float(np.sort(best)[self.top - 1]) if self.top <= len(best) else np.inf
            if time.step[row] * self._share(cut) <= min(best[grid[row]], slowest) * (1 + TIE):
                same = tuple(work[row])
                if same not in self.bubbles:
                    self.bubbles[same] = _bubble_s(time, self.model, x, row)
                exact[row] = time.step[row] - time.bubble[row] + self.bubbles[same]
                best[grid[row]] = min(best[grid[row]], exact[row])
                share = float(exact[row] / time.step[row])
                self.over[cut] = min(self.over.get(cut, share), share)
        return exact


def exact_steps(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, rates: Rates) -> Array:
    """Return the seconds of a step of each layout with the bubble of its own timeline."""
    time = price_time(model, cluster, workload, x, rates, stages=stages_of(model, x, workload.global_batch))
    bubbles = np.array([_bubble_s(time, model, x, row) for row in range(len(x))])
    return np.asarray(time.step - time.bubble + bubbles)


def _bubble_s(time: StepTime, model: ModelSpec, x: Layouts, row: int) -> float:
    if x.pp[row] < 2:
        return float(time.bubble[row])
    return exact_bubble_s(time, model, x.one(row), row=row, most=OPERATIONS, rounds=ROUNDS)


def _simplest(x: Layouts, step: Array, group: Ints) -> Ints:
    """Return one row of each group: the fastest, or of those within TIE of it the least to set up."""
    tied = np.flatnonzero(step <= _least(group, step)[group] * (1 + TIE))
    recomputed = np.array([int(b).bit_count() for b in x.recompute[tied]])
    order = np.lexsort(
        (step[tied], -x.micro_batch[tied], x.recompute_layers[tied], recomputed, x.zero[tied], x.vpp[tied], group[tied])
    )
    tied = tied[order]
    return np.asarray(tied[np.unique(group[tied], return_index=True)[1]])


def _groups(x: Layouts, names: tuple[str, ...]) -> Ints:
    return distinct([np.asarray(getattr(x, name)) for name in names], ordered=True)[1]


def _least(group: Ints, value: Array) -> Array:
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, value)
    return least
