"""When each rank of a ring computes, sends and waits: one event after the other, for any work a rank and round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RingClock:
    """By rank, when it has finished and how long it waited before that; and when the last one has finished."""

    finished_s: list[float]
    waited_s: list[float]
    ring_s: float


def run_ring(compute_s: Sequence[Sequence[float]], transfer_s: float) -> RingClock:
    """Return the times of a ring in which a rank passes a block on while it computes with it.

    Parameters
    ----------
    compute_s : sequence of sequence of float
        By round, by rank, the time of its attention. [s]
    transfer_s : float
        Time of one block over one link. [s]

    Returns
    -------
    RingClock
        Finishing and waiting times by rank.

    Notes
    -----
    A rank starts a round when its block has arrived and the round before is done, and then sends the block on. It has two buffers:
    a neighbour sends the next block only when the rank has started on the one before. So a link never carries two at a time.

    Examples
    --------
    Two ranks, three seconds of attention a round, five for a transfer: the second round waits two.

    >>> run_ring([[3, 3], [3, 3]], 5)
    RingClock(finished_s=[8.0, 8.0], waited_s=[2.0, 2.0], ring_s=8.0)
    """
    N = len(compute_s[0])
    start, done, waited = [0.0] * N, [0.0] * N, [0.0] * N
    for n, work in enumerate(compute_s):
        if n:
            # From rank r - 1, once it and the receiver have both started on the block before.
            arrived = [max(start[r - 1], start[r]) + transfer_s for r in range(N)]
            start = [max(done[r], arrived[r]) for r in range(N)]
            waited = [waited[r] + start[r] - done[r] for r in range(N)]
        done = [start[r] + float(work[r]) for r in range(N)]
    return RingClock(done, waited, max(done))
