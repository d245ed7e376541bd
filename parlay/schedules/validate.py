"""Checks of a schedule: every micro-batch passes every chunk once, and no operation waits for itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, LETTERS, WEIGHT, Schedule, operation_name

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]


def validate(schedule: Schedule, *, where: str = "schedule") -> None:
    """Raise UsageError, naming stage and operation, for the first operation that is missing, doubled or out of place.

    Checked: micro-batch and chunk exist; the stage holds the chunk; no operation twice; every forward is there and has
    its backward, whole or in two parts; on a stage a forward comes before its backward, and an input gradient before
    its weight gradient. Circles between stages are found when the schedule is timed.
    """
    s, stage = schedule, schedule.stage
    _raise_first(
        s, where, (s.micro_batch < 0) | (s.micro_batch >= s.micro_batches), f"there are micro-batches 0 to {s.micro_batches - 1}"
    )
    _raise_first(s, where, (s.chunk < 0) | (s.chunk >= s.chunks), f"there are chunks 0 to {s.chunks - 1}")
    holder = s.device[s.direction[s.micro_batch], s.chunk]
    wrong = np.nonzero(holder != stage)[0]
    if wrong.size:
        _raise_first(s, where, holder != stage, f"stage {holder[wrong[0]]} holds chunk {s.chunk[wrong[0]]} for this micro-batch")
    _raise_first(s, where, _repeated(s), "it is there twice")
    at = s.index_of()
    _check_present(s, at, where)
    _check_order(s, at, where)


def _raise_first(s: Schedule, where: str, wrong: NDArray[np.bool_], why: str) -> None:
    found = np.nonzero(wrong)[0]
    if found.size:
        i = int(found[0])
        raise UsageError(f"stage {s.stage[i]}, operation {i - s.offset[s.stage[i]] + 1} ({s.label(i)}): {why}", where=where)


def _repeated(s: Schedule) -> NDArray[np.bool_]:
    key = (s.kind.astype(np.int64) * s.micro_batches + s.micro_batch) * s.chunks + s.chunk
    first = np.zeros(len(s), dtype=np.bool_)
    first[np.unique(key, return_index=True)[1]] = True
    return ~first


def _check_present(s: Schedule, at: Ints, where: str) -> None:
    whole, half, weight = at[BACKWARD] >= 0, at[INPUT] >= 0, at[WEIGHT] >= 0
    problems = [
        (at[FORWARD] < 0, FORWARD, "is missing"),
        (~whole & ~half, BACKWARD, "is missing"),
        (whole & half, INPUT, "is there beside the whole backward"),
        (half & ~weight, WEIGHT, "is missing: the backward is split"),
        (whole & weight, WEIGHT, "is there beside the whole backward, which contains it"),
    ]
    for wrong, kind, why in problems:
        found = np.argwhere(wrong)
        if found.size:
            m, c = (int(x) for x in found[0])
            holder = int(s.device[s.direction[m], c])
            more = f" (and {len(found) - 1:,} more like it)" if len(found) > 1 else ""
            raise UsageError(f"stage {holder}: {operation_name(kind, m, c, s.chunks_of(holder))} {why}{more}", where=where)


def _check_order(s: Schedule, at: Ints, where: str) -> None:
    gradient = np.maximum(at[BACKWARD], at[INPUT])
    pairs = [(at[FORWARD], gradient, "forward"), (at[INPUT], at[WEIGHT], "input gradient")]
    for before, behind, what in pairs:
        wrong = np.argwhere((before >= 0) & (behind >= 0) & (behind < before))
        if wrong.size:
            i = int(behind[tuple(wrong[0])])
            raise UsageError(
                f"stage {s.stage[i]}, operation {i - s.offset[s.stage[i]] + 1} ({s.label(i)}): it comes before its {what} "
                f"{s.label(int(before[tuple(wrong[0])]))}",
                where=where,
            )


def deadlock(s: Schedule, waits_for: Ints, end_s: Seconds) -> UsageError:
    """Return the error that names the operations which wait for each other, from the ends that were never reached."""
    stage = s.stage
    heads = {d: i for d in range(s.stages) for i in [_first_not_run(s, end_s, d)] if i is not None}
    d = next(iter(heads))
    seen: list[int] = []
    while d not in seen:
        seen.append(d)
        d = int(stage[_blocker(s, waits_for, end_s, heads[d])])
    circle = seen[seen.index(d) :]
    steps = [
        f"stage {x} stands at {s.label(heads[x])}, which waits for {s.label(b)} on stage {stage[b]}"
        for x in circle[:4]
        for b in [_blocker(s, waits_for, end_s, heads[x])]
    ]
    more = f"; {len(circle) - 4} more stages in the circle" if len(circle) > 4 else ""
    return UsageError(
        f"the operations wait for each other in a circle: {'; '.join(steps)}{more}",
        where=f"schedule {s.name}",
        hint=f"letters: {', '.join(f'{c}' for c in LETTERS)} = forward, whole backward, input gradient, weight gradient",
    )


def _first_not_run(s: Schedule, end_s: Seconds, stage: int) -> int | None:
    here = s.operations(stage)
    missing = np.nonzero(np.isnan(end_s[here]))[0]
    return int(missing[0]) + here.start if missing.size else None


def _blocker(s: Schedule, waits_for: Ints, end_s: Seconds, i: int) -> int:
    """Return the operation not yet run that operation i (or its overlapped partner) waits for."""
    for k in (i, i + 1) if s.together[i] else (i,):
        j = int(waits_for[k])
        if j >= 0 and np.isnan(end_s[j]):
            return j
    return i
