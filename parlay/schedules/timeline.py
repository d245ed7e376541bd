"""The exact timeline of a schedule: when every operation starts and ends, what a stage waits for, what decides the step.

A stage runs its operations one after another in their order, each as soon as the stage is free and its input has
arrived. Without shared links one pass over the stages suffices, each as far as its inputs are known; with shared links
operations end in the order of time, so that transfers queue in the order in which they are asked for.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.schedules.costs import Costs
from parlay.schedules.engine import in_program_order, in_time_order
from parlay.schedules.schedule import Schedule
from parlay.schedules.validate import deadlock

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """When everything happens.

    Attributes
    ----------
    start_s, end_s
        Of every operation, in the schedule's flat order. [s]
    sender
        Operation on another stage that sends an operation its input, or -1. [-]
    sent_s, arrived_s
        When that transfer starts and ends; NaN where there is none. [s]
    """

    schedule: Schedule
    costs: Costs
    start_s: Seconds
    end_s: Seconds
    sender: Ints
    sent_s: Seconds
    arrived_s: Seconds

    @property
    def step_s(self) -> float:
        """Time from the first operation to the end of the last one, and of the last transfer that a stage waits in."""
        return float(self.end_s.max(initial=0.0))

    @property
    def busy_s(self) -> Seconds:
        """Compute time of each stage, shape (stages,)."""
        took = self.end_s - self.start_s
        second = np.concatenate([[False], self.schedule.together[:-1]])
        counted = np.where(second, 0.0, took)
        return np.asarray(np.bincount(self.schedule.stage, counted, minlength=self.schedule.stages), dtype=np.float64)

    @property
    def idle_s(self) -> Seconds:
        """Time each stage does not compute within the step, shape (stages,)."""
        return self.step_s - self.busy_s

    @property
    def gaps_s(self) -> Seconds:
        """Time each stage does not compute between its own first start and last end, shape (stages,).

        What is left of the bubble where steps follow each other without a common synchronisation (zero-bubble papers).
        """
        return self._last() - self._first() - self.busy_s

    @property
    def bubble_share(self) -> float:
        """Mean share of the step in which a stage is idle."""
        return float(self.idle_s.mean() / self.step_s) if self.step_s else 0.0

    def _first(self) -> Seconds:
        return np.asarray(self.start_s[self.schedule.offset[:-1]])

    def _last(self) -> Seconds:
        return np.asarray(self.end_s[self.schedule.offset[1:] - 1])

    def critical_path(self) -> list[int]:
        """Return the operations that decide the step, first to last: each starts when the one before it lets it."""
        s = self.schedule
        first = set(s.offset[:-1].tolist())
        waits = s.waits_for()
        path = [int(np.argmax(self.end_s))]
        while self.start_s[path[-1]] > 0 or path[-1] not in first:
            path.append(self._cause(path[-1], first, waits))
            if path[-1] < 0:
                path.pop()
                break
        return path[::-1]

    def _cause(self, i: int, first: set[int], waits: Ints) -> int:
        """Return the operation whose end (or transfer) starts operation i; -1 where it starts the step."""
        s = self.schedule
        lead = i - 1 if i not in first and s.together[i - 1] else i
        at = self.start_s[i]
        for k in (lead, lead + 1) if s.together[lead] else (lead,):
            j = int(waits[k])
            ready = self.arrived_s[k] if self.sender[k] >= 0 else self.end_s[j] if j >= 0 else -1.0
            if j >= 0 and ready == at and at > 0:
                return j
        return lead - 1 if lead not in first else -1


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Return the exact timeline of `schedule`.

    Parameters
    ----------
    schedule : Schedule
        What every stage runs. [-]
    costs : Costs, optional
        Seconds of operations and transfers; forward 1, backward 2 and free transfers unless given. [s]

    Returns
    -------
    Timeline
        Start and end of every operation and transfer. [s]

    Raises
    ------
    UsageError
        If the operations wait for each other in a circle; the message names stages and operations.

    Examples
    --------
    >>> from parlay.schedules import build
    >>> t = simulate(build("1f1b", 4, 8))
    >>> t.step_s, t.idle_s.tolist()
    (33.0, [9.0, 9.0, 9.0, 9.0])
    """
    costs = Costs.of(schedule) if costs is None else costs
    waits = schedule.waits_for()
    stage = schedule.stage
    took = costs.of_operations(schedule)
    lag = costs.of_transfers(schedule, waits)
    pairs = np.nonzero(schedule.together)[0]
    if len(pairs):
        took[pairs] = (took[pairs] + took[pairs + 1]) * costs.overlapped
        took[pairs + 1] = took[pairs]
    remote = (waits >= 0) & (stage[np.maximum(waits, 0)] != stage)
    if costs.sharing == "none":
        start, end = in_program_order(schedule, waits, took, lag, costs.blocking)
        sent = np.where(remote, end[np.maximum(waits, 0)], np.nan)
        arrived = sent + lag
    else:
        start, end, sent, arrived = in_time_order(schedule, waits, took, lag, costs.links(schedule.stages), costs.blocking)
    if np.isnan(end).any():
        raise deadlock(schedule, waits, end)
    return Timeline(schedule, costs, start, end, np.where(remote, waits, -1), sent, arrived)
