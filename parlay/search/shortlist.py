"""From the closed form to the exact timeline: the rows that can still be shown are timed operation by operation and ranked again.

Closed forms take chunks as equally long; the timeline has them as they are. Rows of one grid that differ in virtual
stages, schedule or ends are kept apart until then, because between these the closed form can err.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.estimate.shard import distinct
from parlay.estimate.stages import stages_of
from parlay.estimate.timeline import exact_bubble_s
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE = 0.005  # of a step: layouts closer than this are a tie
GRIDS, ROWS = 16, 32  # at least so many grids and rows are timed operation by operation
MARGIN = 0.15  # a pipe that the closed form has slower than the slowest grid kept by more than this is not timed
OPERATIONS = 5_000  # of a row; the rest of a step follows from its last rounds (within 0.01 %: benchmarks.md)
GRID = ("tp", "cp", "pp", "dp", "ep", "etp", "zero")
PIPE = (*GRID, "vpp", "schedule", "first_layers", "last_layers")


def near_best(x: Layouts, step: Array, peak: Array, top: int) -> Ints:
    """Return the rows that can still be shown, fastest first: of the fastest grids, those within TIE of their pipe's best.

    Nothing that is dropped can come back: more rows make a grid's or a pipe's best only faster.
    """
    grid, pipe = _groups(x, GRID), _groups(x, PIPE)
    fastest, quickest = _least(grid, step), _least(pipe, step)
    limit = np.sort(fastest)[min(max(top, GRIDS), len(fastest)) - 1]
    near = (fastest[grid] <= limit) & (step <= quickest[pipe] * (1 + TIE)) & (step <= limit * (1 + MARGIN))
    rows = np.flatnonzero(near)
    return rows[np.lexsort((peak[rows], step[rows]))]


def limit_s(x: Layouts, step: Array, top: int) -> float:
    """Return the step that a further row must beat to be timed: that of the slowest grid kept; infinite while grids are free."""
    fastest = _least(_groups(x, GRID), step)
    return float(np.sort(fastest)[max(top, GRIDS) - 1]) * (1 + MARGIN) if len(fastest) >= max(top, GRIDS) else float("inf")


def ranked(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, step: Array, rates: Rates, top: int) -> Ints:
    """Return one row of each of the `top` best grids, best first, by their exact timelines.

    Of rows within TIE of the best of their pipe, and then of pipes within TIE of the best of their grid, the least to set
    up is taken: fewer virtual stages, then less recompute, then larger micro-batches. Differences below TIE are smaller
    than what the model can tell.
    """
    rows = _simplest(x, step, _groups(x, PIPE))
    rows = rows[np.argsort(step[rows], kind="stable")]
    grid = _groups(x, GRID)[rows]
    first = np.unique(grid, return_index=True)[1]  # each grid's fastest
    rank = np.full(len(rows), len(rows))
    rank[np.sort(first)] = np.arange(len(first))
    order = np.argsort(np.where(rank < max(top, GRIDS), -1, np.arange(len(rows))), kind="stable")
    rows = rows[order[: max(ROWS, max(top, GRIDS))]]
    few = x.take(rows)
    exact = exact_steps(model, cluster, workload, few, rates)
    best = _simplest(few, exact, _groups(few, GRID))
    return np.asarray(rows[best[np.argsort(exact[best], kind="stable")]][:top])


def exact_steps(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, rates: Rates) -> Array:
    """Return the seconds of a step of each layout with the bubble of its own timeline."""
    stages = stages_of(model, x, workload.global_batch)
    time = price_time(model, cluster, workload, x, rates, stages=stages)
    exact = time.step.copy()
    for row in np.flatnonzero(x.pp > 1):
        exact[row] += exact_bubble_s(time, model, x.one(int(row)), row=int(row), most=OPERATIONS) - time.bubble[row]
    return exact


def _simplest(x: Layouts, step: Array, group: Ints) -> Ints:
    """Return one row of each group: the fastest, or of those within TIE of it the least to set up."""
    tied = np.flatnonzero(step <= _least(group, step)[group] * (1 + TIE))
    recomputed = np.array([int(b).bit_count() for b in x.recompute[tied]])
    order = np.lexsort((step[tied], -x.micro_batch[tied], x.recompute_layers[tied], recomputed, x.vpp[tied], group[tied]))
    tied = tied[order]
    return np.asarray(tied[np.unique(group[tied], return_index=True)[1]])


def _groups(x: Layouts, names: tuple[str, ...]) -> Ints:
    return distinct([np.asarray(getattr(x, name)) for name in names])[1]


def _least(group: Ints, value: Array) -> Array:
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, value)
    return least
