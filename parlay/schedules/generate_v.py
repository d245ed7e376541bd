"""Schedules where every stage holds an early and a late piece of the model: ZB-V, DualPipe and DualPipeV.

Symbols: p stages, m micro-batches, r stage. A stream is one of the two chunks of a stage as micro-batches pass it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from parlay.errors import UsageError
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, Stage, assemble, v_shaped


class _Streams:
    """Writes down one stage: counts micro-batches per stream and keeps the weight gradients that wait."""

    def __init__(self, chunks: tuple[int, int], first: tuple[int, int] = (0, 0), most: int | None = None) -> None:
        self.stage = Stage()
        self.chunks = chunks
        self.first = first
        self.most = most  # micro-batches beyond this number are counted but not run
        self.done = {FORWARD: [0, 0], INPUT: [0, 0], WEIGHT: [0, 0]}
        self.waiting: deque[tuple[int, int]] = deque()

    def _put(self, kind: int, stream: int, count: int, together: bool = False) -> None:
        if self.most is None or count < self.most:
            self.stage.add(kind, self.first[stream] + count, self.chunks[stream], together)

    def _next(self, kind: int, stream: int) -> int:
        self.done[kind][stream] += 1
        return self.done[kind][stream] - 1

    def forward(self, stream: int, together: bool = False) -> None:
        """Append the next forward of a stream."""
        self._put(FORWARD, stream, self._next(FORWARD, stream), together)

    def backward(self, stream: int, *, split: bool = False) -> None:
        """Append the next backward; if `split`, only its input gradient, and the weight gradient waits."""
        count = self._next(INPUT, stream)
        self._put(INPUT if split else BACKWARD, stream, count)
        if split:
            self.waiting.append((stream, count))

    def weight(self) -> None:
        """Append the weight gradient that has waited longest, if any."""
        if self.waiting:
            stream, count = self.waiting.popleft()
            self._put(WEIGHT, stream, count)

    def weight_of(self, stream: int) -> None:
        """Append the next weight gradient of a stream."""
        self._put(WEIGHT, stream, self._next(WEIGHT, stream))

    def both(self, forward: int, backward: int) -> None:
        """Append an overlapped forward of one stream and backward of the other."""
        self.forward(forward, together=True)
        self.backward(backward)


def zero_bubble_v(p: int, m: int) -> Schedule:
    """Return ZB-V: chunks run down the stages and back up; weight gradients fill the drain (arXiv:2405.15362)."""
    return assemble("zb-v", m, v_shaped(p), [_zero_bubble_v_stage(p, m, r) for r in range(p)])


def _zero_bubble_v_stage(p: int, m: int, r: int) -> Stage:
    """Return one stage. Below 2p - 1 micro-batches the pipeline never fills: the missing ones are left out."""
    s = _Streams((r, 2 * p - 1 - r), most=m)
    total = max(2 * p - 1, m)
    for _ in range(2 * (p - r) - 1):
        s.forward(0)
    for _ in range(r):
        s.forward(1)
        s.forward(0)
    for _ in range(p - r):
        s.forward(1)
        _split_at_once(s, 1)
    while s.done[FORWARD][1] < s.done[FORWARD][0] or s.done[FORWARD][0] < total:
        if s.done[FORWARD][0] < total:
            s.forward(0)
        _split_at_once(s, 0)
        s.forward(1)
        _split_at_once(s, 1)
    for _ in range(r):
        s.backward(0, split=True)
        s.backward(1, split=True)
    for _ in range(p - r):
        s.backward(0, split=True)
        s.weight_of(0)
    for stream in (1, 0):
        while s.done[WEIGHT][stream] < s.done[INPUT][stream]:
            s.weight_of(stream)
    return s.stage


def _split_at_once(s: _Streams, stream: int) -> None:
    s.backward(stream, split=True)
    s.weight_of(stream)


def dualpipe(p: int, m: int) -> Schedule:
    """Return DualPipe: half the micro-batches enter at either end, every stage holds its chunk of both directions."""
    if p % 2 or m % 2 or m < 2 * p:
        raise UsageError(
            f"dualpipe needs an even number of stages and an even number of micro-batches, at least twice the stages; "
            f"got {p} stages, {m} micro-batches",
            where="schedule",
        )
    half = m // 2
    stages = []
    for r in range(p):
        h = min(r, p - 1 - r)
        down, up = (r, 0), (p - 1 - r, half)  # chunk held for a direction, and that direction's first micro-batch
        near, far = (down, up) if r < p // 2 else (up, down)
        streams = _Streams((near[0], far[0]), (near[1], far[1]))
        stages.append(_dual_stage(streams, p // 2, half, h))
    down_the_stages = np.arange(p, dtype=np.int64)
    device = np.stack([down_the_stages, down_the_stages[::-1]])
    direction = (np.arange(m) >= half).astype(np.int64)
    return assemble("dualpipe", m, device, stages, direction=direction)


def dualpipe_v(p: int, m: int) -> Schedule:
    """Return DualPipeV: DualPipe folded in half, so that p stages hold a V of 2p chunks and no weights twice."""
    if m < 2 * p:
        raise UsageError(
            f"dualpipev needs at least twice as many micro-batches as stages; got {p} stages, {m} micro-batches", where="schedule"
        )
    stages = [_dual_stage(_Streams((r, 2 * p - 1 - r)), p, m, r) for r in range(p)]
    return assemble("dualpipev", m, v_shaped(p), stages)


def _dual_stage(s: _Streams, depth: int, count: int, h: int) -> Stage:
    """Return the eight phases of a DualPipe stage: `depth` stages to the middle, `count` micro-batches per stream.

    Stream 0 enters from the near end. h is the distance from that end (deepseek-ai/DualPipe, dualpipe/dualpipe.py).
    """
    rest = depth - h - 1  # stages between this one and the middle
    for _ in range(2 * rest):
        s.forward(0)
    for _ in range(h + 1):
        s.forward(0)
        s.forward(1)
    for _ in range(rest):
        s.backward(1, split=True)
        s.weight()
        s.forward(1)
    for i in range(count - 2 * depth + h + 1):
        if i == 0 and rest == 0:  # the middle does not overlap its first pair: that shortens the fill
            s.forward(0)
            s.backward(1)
        else:
            s.both(0, 1)
        s.both(1, 0)
    for _ in range(rest):
        s.backward(1)
        s.both(1, 0)
    split = False
    for i in range(h + 1):
        split = split or (h % 2 == 1 and i == (h + 1) // 2)
        s.backward(1, split=split)
        split = split or (h % 2 == 0 and i == (h + 1) // 2)
        s.backward(0, split=split)
    for _ in range(rest):
        s.weight()
        s.backward(0, split=True)
    for _ in range(h + 1):
        s.weight()
    return s.stage
