"""The two loops behind a timeline. Both run plain Python lists: an operation costs well under a microsecond.

NaN stands for an operation that never starts because its input never comes (see parlay.schedules.validate.deadlock).
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from parlay.schedules.schedule import Schedule

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]


def in_program_order(
    schedule: Schedule, waits_for: Ints, took_s: Seconds, lag_s: Seconds, blocking: bool
) -> tuple[Seconds, Seconds]:
    """Return start and end of every operation where transfers never queue.

    Each stage runs as far as its inputs are known, then sleeps until the operation it waits for has run.
    """
    n = len(schedule)
    waits, took, lag, together = waits_for.tolist(), took_s.tolist(), lag_s.tolist(), schedule.together.tolist()
    after = sending(schedule, waits_for, lag_s, blocking).tolist()
    start, end, sleeper = [-1.0] * n, [-1.0] * n, [-1] * n  # sleeper: the stage that waits for an operation
    position, stops = schedule.offset[:-1].tolist(), schedule.offset[1:].tolist()
    free = [0.0] * schedule.stages
    ready = list(range(schedule.stages))[::-1]
    while ready:
        d = ready.pop()
        i, stop, t = position[d], stops[d], free[d]
        while i < stop:
            j = waits[i]
            if j >= 0:
                arrives = end[j]
                if arrives < 0.0:
                    sleeper[j] = d
                    break
                arrives += lag[i]
                if arrives > t:
                    t = arrives
            if together[i]:  # the pair starts when both inputs are there, and ends together
                j = waits[i + 1]
                if j >= 0:
                    arrives = end[j]
                    if arrives < 0.0:
                        sleeper[j] = d
                        break
                    arrives += lag[i + 1]
                    if arrives > t:
                        t = arrives
                start[i + 1], end[i + 1] = t, t + took[i]
                if sleeper[i + 1] >= 0:
                    ready.append(sleeper[i + 1])
            start[i] = t
            t += took[i]
            end[i] = t
            if sleeper[i] >= 0:
                ready.append(sleeper[i])
            t += after[i]
            i += 2 if together[i] else 1
        position[d], free[d] = i, t
    ends = np.array(end)
    never = ends < 0
    return np.where(never, np.nan, np.array(start)), np.where(never, np.nan, ends)


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
