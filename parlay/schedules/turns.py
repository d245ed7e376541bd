"""The turns in which the operations of a schedule can be timed: each after all that it needs, whatever they take."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]  # of 32 bits: long schedules are kept


@dataclasses.dataclass(frozen=True, slots=True)
class Turns:
    """Operations turn by turn; two that run together are one turn. Turns count from 1: turn 0 is the start of the step.

    Attributes
    ----------
    operation
        The operation of each turn, the first of two. [-]
    before, input, second
        The turn before it on its stage, the one that it waits for, and the one that the second of two waits for. [-]
    of
        The turn of every operation; 0 for operations that wait for each other in a circle. [-]
    """

    operation: Ints
    before: Ints
    input: Ints
    second: Ints
    of: Ints


def turns_of(waits_for: Ints, together: NDArray[np.bool_], offset: Ints) -> Turns:
    """Return the turns of a schedule whose operations wait for these (-1: for none)."""
    n, operation = len(waits_for), _in_turn(waits_for.tolist(), together.tolist(), offset.tolist())
    pairs = operation[together[operation]]
    of = np.zeros(n + 1, dtype=np.int32)  # the last is what -1 finds: the start of the step
    of[operation] = np.arange(1, len(operation) + 1)
    of[pairs + 1] = of[pairs]
    before = np.arange(-1, n - 1)
    before[offset[:-1][offset[:-1] < n]] = -1
    second = np.zeros(len(operation), dtype=np.int32)
    second[of[pairs] - 1] = of[waits_for[pairs + 1]]
    return Turns(operation, of[before[operation]], of[waits_for[operation]], second, of[:-1])


def _in_turn(waits: list[int], together: list[bool], offset: list[int]) -> Ints:
    """Return the first operation of every turn. A stage runs as far as its inputs are known, then sleeps until the next is."""
    known, sleeper = [False] * len(waits) + [True], [-1] * len(waits)  # what waits for -1 waits for nothing
    head, stops = offset[:-1], offset[1:]
    ready, turns = list(range(len(stops)))[::-1], []
    while ready:
        stage = ready.pop()
        i, stop = head[stage], stops[stage]
        while i < stop:
            j = waits[i] if not (together[i] and known[waits[i]]) else waits[i + 1]
            if not known[j]:
                sleeper[j] = stage
                break
            turns.append(i)
            for k in (i, i + 1) if together[i] else (i,):
                known[k] = True
                if sleeper[k] >= 0:
                    ready.append(sleeper[k])
                i = k + 1
        head[stage] = i
    return np.array(turns, dtype=np.int32)
