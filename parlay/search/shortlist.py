"""From bounds to exact timelines: what a search may drop, and which rows it shows.

A layout is dropped only where the least that its step can take (parlay.estimate.least, proven there) is longer than the exact step
of a row of the same grid, or than those of as many grids as are shown, that were timed operation by operation: it could not be
shown whatever its own timeline said. Everything else is timed. Exact steps only get better as more is timed, so
nothing that was dropped can come back.
"""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.estimate.shard import distinct
from parlay.estimate.stages import stages_of
from parlay.estimate.time import StepTime
from parlay.estimate.timeline import exact_bubble_s
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TIE = 0.005  # of a step: layouts closer than this are a tie
BATCH = 16  # rows that are priced with all of their stages at once before they are timed
OPERATIONS = (
    1_000  # timed of a row, or ROUNDS if these are more; the rest of a step follows from the last one (docs/benchmarks.md)
)
ROUNDS = 3
GRID = ("tp", "cp", "pp", "dp", "ep", "etp")
WORK = (  # what the operations of a pipeline take and how they stand
    "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "schedule", "first_layers", "last_layers", "micro_batch", "cp_kind", "ulysses", "sp",
    "tp_overlap", "ep_overlap", "recompute", "recompute_layers", "order",
)  # fmt: skip


@dataclasses.dataclass
class Timelines:
    """Exact steps of the layouts of one question, as far as they can matter to its `top` best grids; what was timed is kept."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    rates: Rates
    top: int
    bubbles: dict[tuple[int, ...], float] = dataclasses.field(default_factory=dict)  # of each work
    fastest: dict[tuple[int, ...], float] = dataclasses.field(default_factory=dict)  # exact step of the best timed row, by grid

    @property
    def limit_s(self) -> float:
        """The exact step of the slowest grid that would be shown of what was timed so far."""
        best = heapq.nsmallest(self.top, self.fastest.values())
        return best[-1] if len(best) == self.top else np.inf

    def near(self, x: Layouts, least: Array) -> Ints:
        """Return the rows that could still be shown, or tie with one that is: no timed row proves them slower."""
        rows = np.flatnonzero(least <= self.limit_s * (1 + TIE))
        columns = [getattr(x, name)[rows] for name in GRID]
        first, grid = distinct(columns)
        found = zip(*(column[first].tolist() for column in columns), strict=True)
        best = np.array([self.fastest.get(key, np.inf) for key in found])
        return np.asarray(rows[least[rows] <= best[grid] * (1 + TIE)]) if len(rows) else rows

    def look_at(self, x: Layouts, least: Array) -> None:
        """Time every row that could be shown, the most promising first."""
        rest = np.argsort(least, kind="stable")
        while len(rest := rest[self.near(x.take(rest), least[rest])]):
            some, rest = rest[:BATCH], rest[BATCH:]
            self._time(x.take(some), least[some])

    def ranked(self, x: Layouts) -> Ints:
        """Return one row of each of the best grids, best first; `x` are rows that were looked at.

        Of rows within TIE of the best of their grid the least to set up is taken: fewer virtual stages, then less of ZeRO, then
        less recompute, then larger micro-batches. Differences below TIE are smaller than what the model can tell.
        """
        exact = self._exact(x)
        best = _simplest(x, exact)
        return np.asarray(best[np.argsort(exact[best], kind="stable")][: self.top])

    def _time(self, x: Layouts, least: Array) -> None:
        """Time those of some rows, most promising first, that the ones before do not prove slower."""
        time = self._priced(x)
        grids = zip(*(getattr(x, name).tolist() for name in GRID), strict=True)
        for row, (grid, work) in enumerate(zip(grids, _works(x), strict=True)):
            best = self.fastest.get(grid, np.inf)
            if least[row] <= min(best, self.limit_s) * (1 + TIE):
                bubble = self._bubble_s(time, x, row, work)
                self.fastest[grid] = min(best, float(time.step[row] - time.bubble[row] + bubble))

    def _exact(self, x: Layouts) -> Array:
        """Return the exact steps of rows whose works were timed, and of others too."""
        time = self._priced(x)
        bubbles = np.array([self._bubble_s(time, x, row, work) for row, work in enumerate(_works(x))])
        return np.asarray(time.step - time.bubble + bubbles)

    def _bubble_s(self, time: StepTime, x: Layouts, row: int, work: tuple[int, ...]) -> float:
        if work not in self.bubbles:
            self.bubbles[work] = _bubble_s(time, self.model, x, row)
        return self.bubbles[work]

    def _priced(self, x: Layouts) -> StepTime:
        stages = stages_of(self.model, x, self.workload.global_batch)
        return price_time(self.model, self.cluster, self.workload, x, self.rates, stages=stages)


def exact_steps(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, rates: Rates) -> Array:
    """Return the seconds of a step of each layout with the bubble of its own timeline."""
    time = price_time(model, cluster, workload, x, rates, stages=stages_of(model, x, workload.global_batch))
    bubbles = np.array([_bubble_s(time, model, x, row) for row in range(len(x))])
    return np.asarray(time.step - time.bubble + bubbles)


def _bubble_s(time: StepTime, model: ModelSpec, x: Layouts, row: int) -> float:
    if x.pp[row] < 2:
        return float(time.bubble[row])
    return exact_bubble_s(time, model, x.one(row), row=row, most=OPERATIONS, rounds=ROUNDS)


def _works(x: Layouts) -> list[tuple[int, ...]]:
    columns = [np.asarray(getattr(x, name)).astype(np.int64) for name in WORK]
    columns.append((1e6 * x.offload_activations).astype(np.int64))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _simplest(x: Layouts, step: Array) -> Ints:
    """Return one row of each grid: the fastest, or of those within TIE of it the least to set up."""
    grid = distinct([np.asarray(getattr(x, name)) for name in GRID], ordered=True)[1]
    least = np.full(int(grid.max()) + 1, np.inf)
    np.minimum.at(least, grid, step)
    tied = np.flatnonzero(step <= least[grid] * (1 + TIE))
    recomputed = np.array([int(b).bit_count() for b in x.recompute[tied]])
    order = np.lexsort(
        (step[tied], -x.micro_batch[tied], x.recompute_layers[tied], recomputed, x.zero[tied], x.vpp[tied], grid[tied])
    )
    tied = tied[order]
    return np.asarray(tied[np.unique(grid[tied], return_index=True)[1]])
