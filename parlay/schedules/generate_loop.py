"""Schedules that pass micro-batches down the stages in one direction: GPipe, 1F1B, interleaved, breadth-first, ZB-H1/H2.

Symbols: p stages, v chunks per stage, m micro-batches, r stage, g micro-batches per group.
Each stage runs a list of forwards and a list of backwards: some forwards first (warm-up), then one of each in turn,
then the backwards that are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Columns, Ints, Schedule, assemble, looped

Order = tuple[Ints, Ints]  # micro-batch and chunk turn (0 .. v - 1) of each step


def gpipe(p: int, m: int) -> Schedule:
    """Return GPipe: all forwards, then all backwards."""
    steps = np.arange(m), np.zeros(m, dtype=np.int64)
    return assemble("gpipe", m, looped(p), [_alternate(r, p, m, steps, steps) for r in range(p)])


def one_f_one_b(p: int, m: int, *, name: str = "1f1b", update_every: int = 0, double_buffered: bool = False) -> Schedule:
    """Return 1F1B: p - 1 - r forwards, then one forward and one backward in turn."""
    steps = np.arange(m), np.zeros(m, dtype=np.int64)
    stages = [_alternate(r, p, p - 1 - r, steps, steps) for r in range(p)]
    return assemble(name, m, looped(p), stages, update_every=update_every, double_buffered=double_buffered)


def breadth_first(p: int, m: int, v: int) -> Schedule:
    """Return the breadth-first schedule: every micro-batch passes a chunk before any enters the next one.

    The gradients return in the opposite order, last micro-batch first.
    """
    turn = np.repeat(np.arange(v), m)
    forward = np.tile(np.arange(m), v), turn
    backward = np.tile(np.arange(m)[::-1], v), turn[::-1]
    return assemble("bfs", m, looped(p, v), [_alternate(r, p, m * v, forward, backward) for r in range(p)])


def interleaved(p: int, m: int, v: int, group: int | None = None) -> Schedule:
    """Return interleaved 1F1B with groups of `group` micro-batches (p unless told otherwise).

    Stage r warms up with 2(p - r - 1) + (v - 1)g forwards (Megatron-LM d98e8a64, core/pipeline_parallel/schedules.py:960).
    """
    g = _group("interleaved", p, m, group)
    forward, backward = _grouped(m, v, g)
    warm = [2 * (p - r - 1) + (v - 1) * g for r in range(p)]
    return assemble("interleaved", m, looped(p, v), [_alternate(r, p, warm[r], forward, backward) for r in range(p)])


def zero_bubble_h1(p: int, m: int, v: int = 1, group: int | None = None) -> Schedule:
    """Return ZB-H1: 1F1B whose weight gradients stage r runs r micro-batches late, which fills half of the drain.

    With v > 1 it is the interleaved form of it (torch.distributed.pipelining's ScheduleInterleavedZeroBubble).
    """
    g = _group("zb-h1", p, m, group) if v > 1 else p
    forward, backward = _grouped(m, v, g)
    stages = [_deferred(r, p, (p - r - 1) + (v - 1) * g, r, forward, backward) for r in range(p)]
    return assemble("zb-h1", m, looped(p, v), stages)


def zero_bubble_h2(p: int, m: int) -> Schedule:
    """Return ZB-H2: twice the warm-up of ZB-H1 and twice the delay of its weight gradients, so no stage waits."""
    steps = np.arange(m), np.zeros(m, dtype=np.int64)
    stages = [_deferred(r, p, 2 * (p - r - 1), 2 * r, steps, steps) for r in range(p)]
    return assemble("zb-h2", m, looped(p), stages)


def _group(name: str, p: int, m: int, group: int | None) -> int:
    """Return the micro-batches per group, or raise where the last group would leave the pipeline waiting."""
    if group is None:
        if m % p:
            raise UsageError(
                f"{name} needs micro-batches to be a multiple of the {p} stages, got {m}",
                where="schedule",
                hint=f"{m // p * p or p} or {-(-m // p) * p} would do, or give a group size",
            )
        return p
    if not p <= group <= max(m, p):
        raise UsageError(
            f"{name} needs groups of {p} (the stages) to {max(m, p)} (the micro-batches) micro-batches, got {group}",
            where="schedule",
        )
    if 0 < m % group < p:
        raise UsageError(
            f"{name} with groups of {group} leaves a last group of {m % group} micro-batches, fewer than the {p} stages",
            where="schedule",
            hint="choose a group size that divides the micro-batches",
        )
    return group


def _grouped(m: int, v: int, g: int) -> tuple[Order, Order]:
    """Return forwards and backwards in groups: g micro-batches through chunk 0, then the same through chunk 1, ..."""
    starts = np.arange(0, m, g)
    turns = np.arange(v)
    ends = np.minimum(starts + g, m)
    micro = np.concatenate([np.tile(np.arange(a, b), v) for a, b in zip(starts, ends, strict=True)])
    turn = np.concatenate([np.repeat(turns, b - a) for a, b in zip(starts, ends, strict=True)])
    return (micro, turn), (micro, v - 1 - turn)


def _alternate(r: int, p: int, warm: int, forward: Order, backward: Order) -> Columns:
    """Return stage r: `warm` forwards, then forward and backward in turn, then the backwards that are left."""
    n = len(forward[0])
    warm = min(warm, n)
    steps = np.arange(n)
    at_forward = np.where(steps < warm, steps, 2 * steps - warm)
    at_backward = np.where(steps < n - warm, 2 * steps + warm + 1, n + steps)
    return _place(r, p, [(FORWARD, at_forward, forward), (BACKWARD, at_backward, backward)])


def _deferred(r: int, p: int, warm: int, late: int, forward: Order, backward: Order) -> Columns:
    """Return stage r with split backwards: the weight gradient of step j follows the input gradient of step j + late."""
    n = len(forward[0])
    warm, late = min(warm, n), min(late, n)
    steps = np.arange(n)
    done_f = np.minimum(steps + 1 + warm, n)  # forwards before input gradient `step`
    done_w = np.maximum(steps - late, 0)  # weight gradients before it
    at_input = done_f + steps + done_w
    forward_behind = np.maximum(steps - warm, 0)  # input gradients before forward `step`
    at_forward = steps + forward_behind + np.maximum(forward_behind - late, 0)
    follows = np.minimum(steps + late, n - 1)
    at_weight = np.where(steps + late < n, at_input[follows] + 1, 2 * n + steps)
    return _place(r, p, [(FORWARD, at_forward, forward), (INPUT, at_input, backward), (WEIGHT, at_weight, backward)])


def _place(r: int, p: int, lists: list[tuple[int, NDArray[np.int64], Order]]) -> Columns:
    """Return the columns of stage r with each list's operations at the places given for it."""
    size = sum(len(at) for _, at, _ in lists)
    kind, micro, chunk = (np.empty(size, dtype=np.int64) for _ in range(3))
    for code, at, (steps, turn) in lists:
        kind[at], micro[at], chunk[at] = code, steps, turn * p + r
    return kind, micro, chunk, np.zeros(size, dtype=np.bool_)
