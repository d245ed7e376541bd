"""What every stage holds while a schedule runs: activations by micro-batch and chunk, and versions of the weights.

A forward allocates the activations of its chunk when it starts. A whole backward frees them when it ends. A split
backward frees what only its input gradient needs; what the weight gradient needs stays until that one ends, together
with the gradients of the outputs that it will read.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from parlay.schedules.timeline import Timeline
from parlay.units import show_bytes

Bytes = NDArray[np.float64]
Ints = NDArray[np.int64]

# What keeps fewer micro-batches in flight than a schedule does.
LESS = {"gpipe": "1f1b, ", "bfs": "interleaved, ", "interleaved": "1f1b, ", "zb-h2": "zb-h1, ", "pipedream": "pipedream-2bw, "}


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Memory of every stage over time.

    Attributes
    ----------
    during
        What the stage of each operation holds while it runs, in the unit of the activations given. [B]
    peak
        Largest of these on each stage, shape (stages,). [B]
    peak_at
        The operation, in the schedule's flat order, that first reaches it, shape (stages,). [-]
    """

    schedule: Schedule
    during: Bytes
    peak: Bytes
    peak_at: Ints

    def over_time(self, timeline: Timeline, stage: int) -> tuple[Bytes, Bytes]:
        """Return the times at which an operation of `stage` starts, and what the stage holds from then on."""
        here = self.schedule.operations(stage)
        return timeline.start_s[here], self.during[here]

    def too_much(self, limit: ArrayLike) -> str:
        """Return at which stage and operation a stage first holds more than `limit`, and what would help; "" if none does."""
        most = np.broadcast_to(np.asarray(limit, dtype=np.float64), self.peak.shape)
        over = np.nonzero(self.peak > most)[0]
        if not over.size:
            return ""
        r = int(over[np.argmax((self.peak - most)[over])])
        first = int(self.schedule.offset[r] + np.argmax(self.during[self.schedule.operations(r)] > most[r]))
        return (
            f"{self.schedule.name} holds more than there is: stage {r} passes {show_bytes(most[r])} at "
            f"{self.schedule.label(first)} and reaches {show_bytes(self.peak[r])} at {self.schedule.label(int(self.peak_at[r]))}; "
            f"less: {LESS.get(self.schedule.name, '')}recompute, or smaller micro-batches"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """What each of some schedules holds, and what a stage may hold. [B]"""

    held: tuple[Held, ...]
    limit_bytes: float

    @property
    def fits(self) -> bool:
        """Whether no stage of any of them holds more than it may."""
        return not any(h.too_much(self.limit_bytes) for h in self.held)


def held(
    schedule: Schedule, activation_bytes: ArrayLike = 1.0, *, weight_share: ArrayLike = 1.0, gradient_bytes: ArrayLike = 0.0
) -> Held:
    """Return what every stage holds; it depends on the order of operations alone, not on their times.

    Parameters
    ----------
    schedule : Schedule
        What every stage runs. [-]
    activation_bytes : array_like, default 1
        Activations that one micro-batch leaves on each chunk; 1 counts micro-batches instead of bytes. [B]
    weight_share : array_like, default 1
        Share of them that the weight gradient still needs after the input gradient, per chunk. [-]
    gradient_bytes : array_like, default 0
        Output gradients kept from the input gradient to the weight gradient, per chunk. [B]

    Returns
    -------
    Held
        Memory during every operation, and the peak of every stage with its place. [B]

    Examples
    --------
    >>> from parlay.schedules import build
    >>> held(build("1f1b", 4, 8)).peak.tolist()
    [4.0, 3.0, 2.0, 1.0]
    >>> h = held(build("zb-h1", 4, 8))
    >>> h.peak.tolist(), h.schedule.label(int(h.peak_at[3]))
    ([4.0, 4.0, 4.0, 4.0], 'F3')
    """
    s = schedule
    size, share, kept = (
        np.broadcast_to(np.asarray(x, dtype=np.float64), (s.chunks,)) for x in (activation_bytes, weight_share, gradient_bytes)
    )
    at_start, at_end = np.zeros((4, s.chunks)), np.zeros((4, s.chunks))
    at_start[FORWARD], at_end[BACKWARD] = size, size
    at_start[INPUT], at_end[INPUT] = kept, (1 - share) * size
    at_end[WEIGHT] = share * size + kept
    gained, lost = at_start[s.kind, s.chunk], at_end[s.kind, s.chunk]
    level = np.cumsum(gained) - np.cumsum(lost) + lost
    base = np.concatenate([[0.0], np.cumsum(gained - lost)])[s.offset[:-1]]
    during = level - np.repeat(base, np.diff(s.offset))
    second = np.concatenate([[False], s.together[:-1]])
    during[:-1][s.together[:-1]] = during[1:][second[1:]]  # an overlapped pair runs at the same time
    peak_at = np.array([s.offset[r] + int(np.argmax(during[s.operations(r)])) for r in range(s.stages)], dtype=np.int64)
    return Held(s, during, during[peak_at], peak_at)


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """Weight versions of a schedule.

    Attributes
    ----------
    kept
        Versions each stage keeps at once, shape (stages,). [-]
    used
        Version each micro-batch is computed with on each stage; 0 = initial weights, shape (stages, micro_batches). [-]
    staleness
        Updates made between a micro-batch's forward reading that version and its own update, same shape. [-]
    """

    kept: Ints
    used: Ints
    staleness: Ints


def versions(schedule: Schedule) -> Versions:
    """Return the weight versions that every stage keeps, and how stale a micro-batch's weights are.

    PipeDream updates a stage after every backward; a forward reads the newest weights there, and its backward the same
    ones, which are stashed until then. PipeDream-2BW updates once per group, and a group reads the version made one
    update before the newest, so that two buffers suffice. A schedule with a flush keeps one.

    Examples
    --------
    >>> from parlay.schedules import build
    >>> v = versions(build("pipedream", 4, 12))
    >>> v.kept.tolist(), v.staleness[:, -1].tolist()
    ([4, 3, 2, 1], [3, 2, 1, 0])
    >>> w = versions(build("pipedream-2bw", 4, 16))
    >>> w.kept.tolist(), w.staleness[:, -1].tolist()
    ([2, 2, 2, 2], [1, 1, 1, 1])
    """
    s, every = schedule, schedule.update_every
    used = np.zeros((s.stages, s.micro_batches), dtype=np.int64)
    if not every:
        return Versions(np.ones(s.stages, dtype=np.int64), used, used.copy())
    kept = np.ones(s.stages, dtype=np.int64)
    for r in range(s.stages):
        here = s.operations(r)
        kept[r] = _replay(s, here, used[r])
    own = np.arange(s.micro_batches) // every  # updates made before the one this micro-batch belongs to
    return Versions(kept, used, own[None, :] - used)


def _replay(s: Schedule, here: slice, used: Ints) -> int:
    """Fill in the version every micro-batch reads on one stage and return the most that it keeps at once."""
    newest, done, most = 0, 0, 1
    being_computed: dict[int, int] = {}
    for kind, m in zip(s.kind[here].tolist(), s.micro_batch[here].tolist(), strict=True):
        if kind == FORWARD:
            used[m] = max(m // s.update_every - 1, 0) if s.double_buffered else newest
            being_computed[m] = int(used[m])
        elif kind == BACKWARD:
            done += 1
            del being_computed[m]
            newest = done // s.update_every
        most = max(most, len({*being_computed.values(), newest}))
    return most
