"""The two loops behind a timeline. Both run plain Python lists: an operation costs well under a microsecond.

NaN stands for an operation that never starts because its input never comes (see parlay.schedules.validate.deadlock).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.schedules.schedule import Schedule

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]


def in_program_order(
    schedule: Schedule, waits_for: Ints, took_s: Seconds, lag_s: Seconds, blocking: bool
) -> tuple[Seconds, Seconds]:
    """Return start and end of every operation where transfers never queue.

    Operations are timed in turn, so that whatever one waits for has its end already; two that run together are one turn.
    """
    turns = schedule.turns
    comes, took = lag_s[turns.operation], took_s[turns.operation]
    follows = np.where(turns.second > 0, np.append(lag_s, 0.0)[turns.operation + 1], 0.0)
    sent = np.append(0.0, sending(schedule, waits_for, lag_s, blocking)[turns.operation])[turns.before]
    start, end = [0.0], [0.0]  # of the start of the step, then turn by turn
    columns = (turns.before, sent, turns.input, comes, turns.second, follows, took)
    for before, sends, first, comes_s, second, follows_s, takes in zip(*map(_each, columns), strict=True):
        t = end[before] + sends
        arrives = end[first] + comes_s
        if arrives > t:
            t = arrives
        if second:  # a pair starts when both inputs are there, and ends together
            arrives = end[second] + follows_s
            if arrives > t:
                t = arrives
        start.append(t)
        end.append(t + takes)
    start[0] = end[0] = np.nan  # what never has its turn
    return np.array(start)[turns.of], np.array(end)[turns.of]


def _each(column: NDArray[Any]) -> Iterable[Any]:
    """Return the values of a column one by one, without a list where all are 0."""
    return column.tolist() if column.any() else repeat(column.dtype.type(0).item(), len(column))


def sending(schedule: Schedule, waits_for: Ints, lag_s: Seconds, blocking: bool) -> Seconds:
    """Return how long a stage sends after each operation before it computes on: 0 where transfers overlap compute."""
    after = np.zeros(len(schedule))
    if blocking:
        at = waits_for >= 0
        after[waits_for[at]] = lag_s[at]
        pairs = np.nonzero(schedule.together)[0]
        after[pairs] = np.maximum(after[pairs], after[pairs + 1])
    return after


def in_time_order(
    schedule: Schedule, waits_for: Ints, took_s: Seconds, lag_s: Seconds, link: Ints, blocking: bool
) -> tuple[Seconds, Seconds, Seconds, Seconds]:
    """Return start and end of every operation, and of the transfer that brings its input, where transfers queue.

    A link carries one transfer at a time, in the order in which operations end (at equal times, the flat order).
    """
    n = len(schedule)
    stage = schedule.stage.tolist()
    waits, took, lag, together = waits_for.tolist(), took_s.tolist(), lag_s.tolist(), schedule.together.tolist()
    receiver = np.full(n, -1, dtype=np.int64)
    receiver[waits_for[waits_for >= 0]] = np.nonzero(waits_for >= 0)[0]
    receivers = receiver.tolist()
    start, end, sent, arrived = ([float("nan")] * n for _ in range(4))
    known = [w < 0 for w in waits]
    link_free: dict[int, float] = {}
    stops = schedule.offset[1:].tolist()
    head, free = schedule.offset[:-1].tolist(), [0.0] * schedule.stages
    resting = [True] * schedule.stages
    events: list[tuple[float, int]] = []

    def begin(d: int) -> None:
        """Start the next operation of stage d if the stage rests and the inputs are known."""
        i = head[d]
        if not resting[d] or i >= stops[d] or not known[i] or (together[i] and not known[i + 1]):
            return
        members = (i, i + 1) if together[i] else (i,)
        t = max([free[d], *(arrived[k] for k in members if waits[k] >= 0)])
        resting[d] = False
        for k in members:
            start[k], end[k] = t, t + took[i]
            heappush(events, (end[k], k))

    for d in range(schedule.stages):
        begin(d)
    while events:
        now, i = heappop(events)
        d, k = stage[i], receivers[i]
        busy_until = now
        if k >= 0:
            begins = now
            if stage[k] != d:
                wire = int(link[d, stage[k]])
                begins = max(now, link_free.get(wire, 0.0)) if lag[k] > 0 else now
                link_free[wire] = max(begins + lag[k], link_free.get(wire, 0.0))
                sent[k] = begins
                busy_until = begins + lag[k] if blocking else now
            arrived[k] = begins + lag[k]
            known[k] = True
        free[d] = max(free[d], busy_until)
        if not together[i]:  # the second of a pair ends last in the order of events
            head[d] = i + 1
            resting[d] = True
            begin(d)
        if k >= 0:
            begin(stage[k])
    remote = np.array([w >= 0 and stage[w] != stage[i] for i, w in enumerate(waits)], dtype=np.bool_)
    return np.array(start), np.array(end), np.array(sent), np.where(remote, np.array(arrived), np.nan)
