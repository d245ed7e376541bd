"""The least that the timeline of a pipeline can take, in arrays: what a search may leave out by.

For every stage q of a schedule the step is at least what must pass before q can start, what q itself computes, what it must wait
for in between, and what must follow once it is done. The greatest of these over all stages is a lower bound:

1. Fill. The first operation of q is a forward of its first chunk, since all others of q follow from one, and it needs the
   same micro-batch's forward through the first chunks of the stages before q (of either end's, where micro-batches enter at
   both, DualPipe).
2. Work. m micro-batches take m times forward and backward of all chunks of q: operations of one device do not run at once.
3. Drain. Where backwards are whole, the last operation of q is a backward of its first chunk: behind a forward, or a backward
   of a later chunk, comes this one on q itself. Then the same micro-batch passes the first chunks of the stages before q.
   Where weight gradients are put off, one of these may come last, and nothing need follow.
4. Waits of plain 1F1B and GPipe. Between the first forward on q and the first backward, the micro-batch passes forward and
   backward of all stages behind q. In this time q can run no more than the other forwards that its order has there: n - 1 of
   1F1B, where n = min(p - q, m) are in flight, all m - 1 of GPipe. The same holds between the last forward of 1F1B and the
   backward of that micro-batch, which n - 1 backwards come before. If m > n, the last forward follows the first backward, so
   both waits count. GPipe has one.

Transfers between the chunks only add to this, and the part of a step that is no pipeline is what it is. What a stage takes is
known by its content alone (`Stages` lists each content once, with its earliest stage and how many there are), so sums over the
stages before or behind q are bounded from below by their least stage, and by the sum of all without q and the longest of the
rest. The last stage of a content stands no earlier than its first one and as many more as there are, which is enough for sums
that grow with q.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.stages import Stages
from parlay.estimate.time import StepTime
from parlay.layouts.layout import Layouts
from parlay.layouts.split import BOTH_WAYS
from parlay.layouts.vocabulary import SCHEDULES, Schedule

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

WHOLE: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "bfs")  # schedules that run a backward in one piece


def least_steps(time: StepTime, most: float = np.inf) -> Array:
    """Return the seconds that each layout's step takes at least with the exact timeline of its pipeline, shape (layouts,).

    Without a pipeline this is the step itself. A layout whose slowest stage alone works longer than `most` seconds gets what it
    works for, which is less. Stages may be listed by content (stages_of(..., every=False)).
    """
    pipes, row_of = time.pipes, time.pipes.row_of
    working = time.step - time.bubble  # nothing of a step runs beside its pipeline
    m = np.ones(len(pipes.layouts))
    m[row_of] = time.micro_batches
    one, there = time.by_pipe, pipes.stages.exists
    told, least_told = (np.where(there, one.forward + one.backward + s, 0.0).max(axis=1) for s in (one.sends, one.least_sends))
    working = working - (m * (told - least_told))[row_of]  # a stage may stand for others that send less
    looked = np.zeros(len(pipes.layouts), dtype=bool)
    looked[row_of[working <= most]] = True
    rows = np.flatnonzero(looked & (pipes.layouts.pp > 1))
    least = np.zeros(len(pipes.layouts))
    if len(rows):
        hop = np.ones(len(pipes.layouts))
        hop[row_of] = time.hops
        hop = hop / (2.0 * np.maximum(pipes.layouts.pp - 1, 1))  # of one transfer beside compute, from chunk to chunk
        least[rows] = _least_bubbles(time, rows, m[rows][:, None], hop[rows][:, None])
    return np.asarray(np.where(pipes.layouts.pp[row_of] > 1, working + least[row_of], time.step))


def _least_bubbles(time: StepTime, rows: Ints, m: Array, hop: Array) -> Array:
    """Return the least seconds of a step, beyond the slowest stage's work, from the first forward to the last backward.

    By pipe, of the pipes `rows` with `m` micro-batches each and `hop` seconds from chunk to chunk, shape (rows, 1).
    """
    x, stages, one = time.pipes.layouts.take(rows), time.pipes.stages.take(rows), time.by_pipe
    there, p = stages.exists, x.pp[:, None].astype(np.float64)
    busy = np.where(there, one.forward[rows] + one.backward[rows] + one.least_sends[rows], 0.0)
    forward, backward = (s + np.where(there, hop, 0.0) for s in _entry_s(time, rows, stages))
    fill, drain, around = (_Sums(stages, p, s) for s in (forward, backward, forward + backward))
    earliest, latest = stages.index.astype(np.float64), stages.index + stages.count - 1.0
    whole, both_ways, plain, gpipe = (_is(x, names) for names in (WHOLE, tuple(BOTH_WAYS), ("1f1b",), ("gpipe",)))
    longest = m * busy
    for q in (earliest, latest):  # what enters at both ends reaches the middle last, so there only a known place counts
        before = np.where(both_ways, np.minimum(earliest, p - 1 - earliest) * fill.least, fill.before(q))
        longest = np.maximum(longest, before + m * busy + np.where(whole, drain.before(q), 0.0))
    if (plain | gpipe).any():  # where the earliest of a content stands is known, so what it waits for is
        behind, n = around.behind(earliest), np.minimum(p - earliest, m)
        own = (s[rows] + one.least_sends[rows] / 2 for s in (one.forward, one.backward))
        first, last = (np.maximum(behind - (n - 1) * s, 0.0) for s in own)
        waits = np.where(gpipe, behind, np.where(m > n, first + last, np.maximum(first, last)))
        waited = fill.before(earliest) + m * busy + waits + drain.before(earliest)
        longest = np.where(plain | gpipe, np.maximum(longest, waited), longest)
    return np.asarray(longest.max(axis=1, initial=0.0, where=there) - (m * busy).max(axis=1))


def _entry_s(time: StepTime, rows: Ints, stages: Stages) -> tuple[Array, Array]:
    """Return the least seconds, forward and backward, of the chunk that a micro-batch enters a stage by; all chunks send."""
    one, row_of = time.by_pipe, time.pipes.shard.row_of[rows]
    own = one.least_sends[rows] / 2  # either way
    some = np.where(stages.exists, own, np.inf).min(axis=1, keepdims=True)  # of each stage
    sends = np.where(stages.chunks > 1, some, own)
    forward, backward = one.forward[rows], one.backward[rows]
    if (stages.chunks > 1).any():
        there, back = np.zeros_like(forward), np.zeros_like(backward)
        for kind, count in stages.entry_layers.items():
            cost = time.blocks[f"layer:{kind}"]
            kept = (1.0 - one.rerun[rows]) * cost.recompute[row_of][:, None]
            there = there + count * cost.forward_s[row_of][:, None]
            back = back + count * (cost.backward_s[row_of][:, None] - kept)
        forward, backward = (np.where(stages.chunks > 1, a, b) for a, b in ((there, forward), (back, backward)))
    sends = sends / stages.chunks
    return np.where(stages.exists, forward + sends, 0.0), np.where(stages.exists, backward + sends, 0.0)


class _Sums:
    """Lower bounds of sums over the stages before and behind one, of seconds by content."""

    def __init__(self, stages: Stages, p: Array, seconds: Array) -> None:
        inf = np.where(stages.exists, seconds, np.inf)
        self.p = p
        self.least = inf.min(axis=1, keepdims=True)
        self.most = np.where(stages.exists, seconds, 0.0).max(axis=1, keepdims=True)
        self.others = (stages.count * np.where(stages.exists, seconds, 0.0)).sum(axis=1, keepdims=True) - seconds

    def before(self, q: Array) -> Array:
        """Return the least that the stages before `q` sum to."""
        return np.asarray(np.maximum(q * self.least, self.others - (self.p - 1 - q) * self.most))

    def behind(self, q: Array) -> Array:
        """Return the least that the stages behind `q` sum to."""
        return np.asarray(np.maximum((self.p - 1 - q) * self.least, self.others - q * self.most))


def _is(x: Layouts, names: tuple[Schedule, ...]) -> Mask:
    return np.asarray(np.isin(x.schedule, [SCHEDULES.index(name) for name in names])[:, None])
