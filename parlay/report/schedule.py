"""The text and the document of `parlay schedule`: a drawing with one row a stage, and a table of schedules side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from parlay import __version__
from parlay.report.table import Column, Page, render, wrap
from parlay.schedules.memory import Held, Room
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, LETTERS, WEIGHT
from parlay.schedules.summary import Summary
from parlay.schedules.timeline import Timeline
from parlay.units import show_bytes, show_number, significant

WIDEST = 160  # columns of a drawing where the page has no limit (piped): more does not fit a reader's screen
CELL = 3  # columns that show letter and number of an operation, such as F12
SHOWN = {FORWARD: "F", BACKWARD: "B", INPUT: "B", WEIGHT: "W"}
FILL = {FORWARD: "-", BACKWARD: "=", INPUT: "=", WEIGHT: "~"}
IDLE = "."
CUT = " // "
LEGEND = (
    "F- forward   B= backward   W~ weight gradient   . idle   lower case: the stage's second, fourth, .. chunk   + overlapped"
)


def schedule_lines(
    timelines: Sequence[Timeline], summaries: Sequence[Summary], page: Page, room: Room | None = None
) -> list[str]:
    """Return every schedule's drawing on one time scale, then the table; with `room` what does not fit is said."""
    longest = max(t.step_s for t in timelines)
    out: list[str] = []
    for t in timelines:
        out += [*drawing_lines(t, page, longest_s=longest), ""]
    out += [*(page.dim(x) for x in wrap(LEGEND, page)), ""]
    out += summary_lines(summaries, page, room)
    over = [text for h in room.held if (text := h.too_much(room.limit_bytes))] if room else []
    return [*out, *(line for text in over for line in wrap(text, page, hang="  "))]


def drawing_lines(timeline: Timeline, page: Page, *, longest_s: float | None = None) -> list[str]:
    """Return the drawing of one schedule: a heading, one row a stage, the scale and the legend.

    Time is scaled so that the shortest operation shows letter and micro-batch, or to the page's width where that is
    narrower. Where an operation would be narrower than its letter, the middle of the step is left out.
    """
    s = timeline.schedule
    label = len(f"stage {s.stages - 1}")
    room = max(min(WIDEST if page.width is None else page.width, WIDEST) - label - 3, 10)
    whole = longest_s or timeline.step_s or 1.0
    shortest = _shortest(timeline, whole)
    width = min(math.ceil(CELL * whole / shortest), room)
    scale, cut = width / whole, shortest * width / whole < 1
    if cut:
        scale = CELL / shortest
        half = (room - len(CUT)) // 2
        cut = timeline.step_s * scale > 2 * half
    windows = [(0.0, half), (timeline.step_s * scale - half, half)] if cut else [(0.0, round(timeline.step_s * scale))]
    rows = [CUT.join(_operations(timeline, r, scale, first, columns) for first, columns in windows) for r in range(s.stages)]
    notes = f"one column = {significant(1 / scale, 3)} s"
    if cut:
        notes += (
            f"; {significant(timeline.step_s - 2 * half / scale, 3)} s of {significant(timeline.step_s, 4)} s left out at{CUT}"
        )
    return [
        page.bold(f"{s.name}: {show_number(s.stages, 'stage')}, {show_number(s.micro_batches, 'micro-batch', 'micro-batches')}"),
        *(f"{f'stage {r}'.ljust(label)} |{row}|" for r, row in enumerate(rows)),
        *(page.dim(x) for x in wrap(notes, page)),
    ]


def _shortest(timeline: Timeline, otherwise: float) -> float:
    took = timeline.end_s - timeline.start_s
    return float(took[took > 0].min(initial=otherwise))


def _operations(timeline: Timeline, stage: int, scale: float, first: float, width: int) -> str:
    """Return `width` columns of a stage's row from column `first` on."""
    s = timeline.schedule
    row = [IDLE] * width
    held = s.chunks_of(stage)
    for i in range(s.offset[stage], s.offset[stage + 1]):
        if i > s.offset[stage] and s.together[i - 1]:
            continue
        a, b = round(timeline.start_s[i] * scale - first), round(timeline.end_s[i] * scale - first)
        if b <= a or b <= 0 or a >= width:
            continue
        text = "+".join(_name(timeline, k, held) for k in ((i, i + 1) if s.together[i] else (i,)))
        if len(text) > b - a:
            text = "".join(c for c in text if not c.isdigit())
        cell = text[: b - a].ljust(b - a, FILL[int(s.kind[i + 1] if s.together[i] else s.kind[i])])
        row[max(a, 0) : min(b, width)] = cell[max(-a, 0) : max(-a, 0) + min(b, width) - max(a, 0)]
    return "".join(row)


def _name(timeline: Timeline, i: int, held: list[int]) -> str:
    s = timeline.schedule
    letter = SHOWN[int(s.kind[i])]
    second = held.index(int(s.chunk[i])) % 2 == 1
    return f"{letter.lower() if second else letter}{s.micro_batch[i]}"


def summary_lines(summaries: Sequence[Summary], page: Page, room: Room | None = None) -> list[str]:
    """Return the table of schedules side by side, with the bytes that they hold where there is a limit to them."""
    columns = [
        Column("schedule", right=False),
        Column("step s"),
        Column("bubble %"),
        Column("within stage %", drop=3),
        Column("in flight, first"),
        Column("last", drop=4),
        Column("most"),
        Column("with W kept", drop=2),
        Column("weights", drop=1),
        Column("stale", drop=5),
    ]
    rows = [
        [
            s.name,
            significant(s.step_s, 4),
            f"{100 * s.bubble_share:.2f}",
            f"{100 * s.gaps_share:.2f}",
            _count(s.in_flight[0]),
            _count(s.in_flight[-1]),
            _count(max(s.in_flight)),
            _count(max(s.in_flight_kept)),
            f"{_count(s.weights)}x",
            str(s.staleness),
        ]
        for s in summaries
    ]
    if room:
        columns += [Column("holds"), Column("of", drop=3), Column("")]
        for cells, h in zip(rows, room.held, strict=True):
            verdict = "TOO MUCH" if h.too_much(room.limit_bytes) else "fits"
            cells += [show_bytes(float(h.peak.max())), show_bytes(room.limit_bytes), verdict]
    note = (
        "bubble: share of the step a stage is idle, the mean of all; within stage: the same between its own first and last operation. "
        "in flight: micro-batches' activations on a p-th of the model at the peak, until the input gradient; with W kept: until the "
        "weight gradient"
    )
    return [*render(columns, rows, page), *(page.dim(x) for x in wrap(note, page))]


def _count(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def schedule_document(timelines: Sequence[Timeline], summaries: Sequence[Summary], room: Room | None = None) -> dict[str, Any]:
    """Return the JSON document: the table's figures, start and end of every operation, and with `room` what fits."""
    held = room.held if room else [None] * len(timelines)
    limit = room.limit_bytes if room else None
    return {
        "schema_name": "parlay/schedule",
        "schema_version": 1,
        "parlay_version": __version__,
        "memory_limit_bytes": limit,
        "fits": room.fits if room else None,
        "schedules": [_document(t, s) | _fits(h, limit) for t, s, h in zip(timelines, summaries, held, strict=True)],
    }


def _fits(h: Held | None, limit: float | None) -> dict[str, Any]:
    """Return the bytes that each stage holds and whether they fit; nothing of it is known without a limit."""
    if h is None or limit is None:
        return {"held_bytes": None, "fits": None}
    return {"held_bytes": h.peak.tolist(), "fits": not h.too_much(limit)}


def _document(t: Timeline, summary: Summary) -> dict[str, Any]:
    s = t.schedule
    costs = t.costs
    return {
        "name": summary.name,
        "stages": summary.stages,
        "chunks_per_stage": summary.chunks_per_stage,
        "micro_batches": summary.micro_batches,
        "step_s": summary.step_s,
        "bubble_share": summary.bubble_share,
        "within_stage_share": summary.gaps_share,
        "idle_s": t.idle_s.tolist(),
        "busy_s": list(summary.busy_s),
        "in_flight_micro_batches": list(summary.in_flight),
        "in_flight_until_weight_gradient_micro_batches": list(summary.in_flight_kept),
        "in_flight_peak_operation": list(summary.peak_operation),
        "weight_copies": summary.weights,
        "staleness_updates": summary.staleness,
        "chunk_forward_s": costs.forward_s.tolist(),
        "chunk_backward_s": costs.backward_s.tolist(),
        "chunk_weight_s": costs.weight_s.tolist(),
        "chunk_transfer_s": costs.transfer_s.tolist(),
        "operations": [_stage_document(t, r) for r in range(s.stages)],
        "critical_path": [{"stage": int(s.stage[i]), "operation": s.label(i)} for i in t.critical_path()],
    }


def _stage_document(t: Timeline, stage: int) -> dict[str, Any]:
    s = t.schedule
    here = s.operations(stage)
    return {
        "stage": stage,
        "chunks": s.chunks_of(stage),
        "kind": [LETTERS[k] for k in s.kind[here]],
        "micro_batch": s.micro_batch[here].tolist(),
        "chunk": s.chunk[here].tolist(),
        "start_s": t.start_s[here].tolist(),
        "end_s": t.end_s[here].tolist(),
    }
