"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable

from parlay.errors import UnknownNameError, UsageError
from parlay.schedules import generate_loop as loop
from parlay.schedules import generate_v as vee
from parlay.schedules.schedule import Schedule, check_size

NAMES = (
    "gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev", "pipedream", "pipedream-2bw",
)  # fmt: skip
WITH_CHUNKS = ("interleaved", "bfs", "zb-h1")  # schedules that take any number of chunks per stage
TAKE_GROUPS = ("interleaved", "zb-h1", "pipedream-2bw")
TWO_CHUNKS = ("zb-v", "dualpipe", "dualpipev")  # schedules whose stages always hold two


def build(name: str, stages: int, micro_batches: int, *, virtual: int = 1, group: int | None = None) -> Schedule:
    """Return a schedule by name.

    Parameters
    ----------
    name : str
        One of NAMES. [-]
    stages : int
        Pipeline stages p. [-]
    micro_batches : int
        Micro-batches m per step; for the asynchronous schedules, the length of the stream that is shown. [-]
    virtual : int, default 1
        Chunks per stage of interleaved, bfs and zb-h1. [-]
    group : int, optional
        Micro-batches that pass one chunk before the next (interleaved, zb-h1), or that share one update
        (pipedream-2bw); the stages p unless given. [-]

    Returns
    -------
    Schedule
        The operations of every stage in order. [-]

    Raises
    ------
    UsageError
        If the schedule cannot run with these counts; the message says what it needs.

    Examples
    --------
    >>> s = build("1f1b", 2, 3)
    >>> " ".join(s.label(i) for i in range(6))
    'F0 F1 B0 F2 B1 B2'
    """
    if name not in NAMES:
        raise UnknownNameError("schedule", name, NAMES, where="schedule")
    check_size(stages, micro_batches, virtual)
    if virtual > 1 and name not in WITH_CHUNKS:
        fixed = "always holds two chunks per stage" if name in TWO_CHUNKS else "holds one chunk per stage"
        raise UsageError(
            f"{name} {fixed}, so virtual = {virtual} means nothing to it",
            where="schedule",
            hint=f"virtual belongs to {', '.join(WITH_CHUNKS)}",
        )
    if group is not None and name not in TAKE_GROUPS:
        raise UsageError(f"{name} has no groups", where="schedule", hint="group belongs to interleaved, zb-h1 and pipedream-2bw")
    p, m, v = stages, micro_batches, virtual
    makers: dict[str, Callable[[], Schedule]] = {
        "gpipe": lambda: loop.gpipe(p, m),
        "1f1b": lambda: loop.one_f_one_b(p, m),
        "interleaved": lambda: loop.interleaved(p, m, v, group),
        "bfs": lambda: loop.breadth_first(p, m, v),
        "zb-h1": lambda: loop.zero_bubble_h1(p, m, v, group),
        "zb-h2": lambda: loop.zero_bubble_h2(p, m),
        "zb-v": lambda: vee.zero_bubble_v(p, m),
        "dualpipe": lambda: vee.dualpipe(p, m),
        "dualpipev": lambda: vee.dualpipe_v(p, m),
        "pipedream": lambda: loop.one_f_one_b(p, m, name="pipedream", update_every=1),
        "pipedream-2bw": lambda: _two_buffered(p, m, group or p),
    }
    return makers[name]()


def _two_buffered(p: int, m: int, group: int) -> Schedule:
    """Return PipeDream-2BW: 1F1B without a flush, one update for every `group` micro-batches."""
    if group < p:
        raise UsageError(
            f"pipedream-2bw needs at least as many micro-batches per update as stages ({p}) for two versions to suffice, got {group}",
            where="schedule",
        )
    return loop.one_f_one_b(p, m, name="pipedream-2bw", update_every=group, double_buffered=True)
