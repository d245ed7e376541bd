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
from parlay.estimate.time import StepTime
from parlay.estimate.timeline import exact_bubble_s
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE = 0.005  # of a step: layouts closer than this are a tie
GRIDS = 64  # at least so many grids are on the shortlist
MARGIN = 0.15  # a pipe that the closed form has slower than the slowest of these by more than this is not on it
SLACK = 0.04  # by which a timeline may be shorter than the closed form (interleaved 1F1B: benchmarks.md)
# The same once pipes that are cut alike have been timed. Among them the share differs by up to 0.05, mostly by 0.01; on twelve
# questions (benchmarks.md) the rows shown are those that timing all of the shortlist finds.
SAME_CUT = 0.01
OPERATIONS, ROUNDS = (
    1_000,
    3,
)  # timed of a row: the more of the two; the rest of a step follows from the last round (benchmarks.md)
GRID = ("tp", "cp", "pp", "dp", "ep", "etp", "zero")
WORK = (  # what the operations of a pipeline take and how they stand
    "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "schedule", "first_layers", "last_layers", "micro_batch", "cp_kind", "ulysses", "sp",
    "tp_overlap", "ep_overlap", "recompute", "recompute_layers", "order",
)  # fmt: skip
CUT = ("pp", "vpp", "schedule", "first_layers", "last_layers")  # how layers lie on stages and chunks
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
    """Return the step of the slowest grid that is kept; infinite while there is room for more."""
    fastest = _least(_groups(x, GRID), step)
    many = max(top, GRIDS)
    return float(np.sort(fastest)[many - 1]) if len(fastest) >= many else float("inf")


def ranked(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, step: Array, rates: Rates, top: int) -> Ints:
    """Return one row of each of the `top` best grids, best first, by their exact timelines.

    Of rows within TIE of the best of their pipe, and then of pipes within TIE of the best of their grid, the least to set
    up is taken: fewer virtual stages, then less recompute, then larger micro-batches. Differences below TIE are smaller
    than what the model can tell.
    """
    rows = _simplest(x, step, _groups(x, PIPE))
    rows = rows[np.argsort(step[rows], kind="stable")]
    few = x.take(rows)
    exact = _worth_timing(model, cluster, workload, few, rates, top)
    timed = np.flatnonzero(np.isfinite(exact))
    rows, few, exact = rows[timed], few.take(timed), exact[timed]
    best = _simplest(few, exact, _groups(few, GRID))
    return np.asarray(rows[best[np.argsort(exact[best], kind="stable")]][:top])


def _worth_timing(model: ModelSpec, cluster: Cluster, workload: Workload, x: Layouts, rates: Rates, top: int) -> Array:
    """Return exact steps of rows that stand fastest first by their closed form; infinite where timing them could change nothing.

    That is where the closed form less SLACK is slower than a row of the same grid, or than `top` grids, by their timelines.
    Pipes that are cut alike and timed already say how far the closed form lies below the timeline for such a cut: uneven
    chunks cost all of them about the same share.
    """
    grid = _groups(x, GRID)
    time = price_time(model, cluster, workload, x, rates, stages=stages_of(model, x, workload.global_batch))
    exact = np.full(len(x), np.inf)
    best = np.full(int(grid.max()) + 1, np.inf)
    work = distinct(
        [*(np.asarray(getattr(x, n)).astype(np.int64) for n in WORK), (1e6 * x.offload_activations).astype(np.int64)]
    )[1]
    cut = distinct([np.asarray(getattr(x, n)).astype(np.int64) for n in CUT])[1]
    over = np.ones(int(cut.max()) + 1)  # timeline over closed form, the least of a cut
    seen = np.zeros(len(over), dtype=bool)
    bubbles: dict[int, float] = {}
    for row in range(len(x)):
        beaten = min(best[grid[row]], float(np.sort(best)[top - 1]) if top <= len(best) else np.inf) * (1 + TIE)
        slack = SAME_CUT if seen[cut[row]] else SLACK
        if time.step[row] * (over[cut[row]] - slack) <= beaten:
            same = int(work[row])
            if same not in bubbles:
                bubbles[same] = _bubble_s(time, model, x, row)
            exact[row] = time.step[row] - time.bubble[row] + bubbles[same]
            best[grid[row]] = min(best[grid[row]], exact[row])
            share = exact[row] / time.step[row]
            over[cut[row]] = min(over[cut[row]], share) if seen[cut[row]] else share
            seen[cut[row]] = True
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
    order = np.lexsort((step[tied], -x.micro_batch[tied], x.recompute_layers[tied], recomputed, x.vpp[tied], group[tied]))
    tied = tied[order]
    return np.asarray(tied[np.unique(group[tied], return_index=True)[1]])


def _groups(x: Layouts, names: tuple[str, ...]) -> Ints:
    return distinct([np.asarray(getattr(x, name)) for name in names], ordered=True)[1]


def _least(group: Ints, value: Array) -> Array:
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, value)
    return least
