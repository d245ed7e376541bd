"""A timeline as files: a trace that Perfetto and chrome://tracing open, and an SVG drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from parlay.schedules.memory import held
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, LETTERS, WEIGHT
from parlay.schedules.timeline import Timeline
from parlay.units import show_number

PHASE = {FORWARD: "forward", BACKWARD: "backward", INPUT: "backward input", WEIGHT: "backward weight"}
TRACE_COLOUR = {
    FORWARD: "thread_state_running",
    BACKWARD: "good",
    INPUT: "good",
    WEIGHT: "thread_state_iowait",
}  # names of the viewer
MICROSECONDS = 1e6


def trace_events(timelines: Sequence[Timeline] | Timeline) -> dict[str, Any]:
    """Return a trace in the Trace Event Format: one process a schedule, one thread a stage, times in microseconds.

    Operations are complete events (X); arrows (s, f) lead from the operation that sends to the one that receives; a
    counter (C) shows the micro-batches whose activations a stage holds.
    """
    many = [timelines] if isinstance(timelines, Timeline) else list(timelines)
    events: list[dict[str, Any]] = []
    for pid, t in enumerate(many):
        s = t.schedule
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": s.name}})
        for r in range(s.stages):
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": r, "args": {"name": f"stage {r}"}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": r, "args": {"sort_index": r}})
        events += _operation_events(t, pid)
        events += _arrows(t, pid)
        events += _counters(t, pid)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _operation_events(t: Timeline, pid: int) -> list[dict[str, Any]]:
    """Return one event per operation; an overlapped pair is one event that names both."""
    s, stage = t.schedule, t.schedule.stage
    out = []
    for i in range(len(s)):
        if i > s.offset[stage[i]] and s.together[i - 1]:
            continue
        kind = int(s.kind[i])
        name = s.label(i) + (f"+{s.label(i + 1)}" if s.together[i] else "")
        arguments: dict[str, Any] = {"micro_batch": int(s.micro_batch[i]), "chunk": int(s.chunk[i])}
        if t.sender[i] >= 0:
            arguments["from_stage"] = int(stage[t.sender[i]])
            arguments["input_arrives_us"] = float(t.arrived_s[i] * MICROSECONDS)
        out.append(
            {
                "ph": "X", "name": name, "cat": PHASE[kind], "pid": pid, "tid": int(stage[i]), "cname": TRACE_COLOUR[kind],
                "ts": float(t.start_s[i] * MICROSECONDS), "dur": float((t.end_s[i] - t.start_s[i]) * MICROSECONDS), "args": arguments,
            }
        )  # fmt: skip
    return out


def _arrows(t: Timeline, pid: int) -> list[dict[str, Any]]:
    """Return the arrows of all transfers; each starts inside the operation that sends, as viewers ask for."""
    stage = t.schedule.stage
    out: list[dict[str, Any]] = []
    for i in np.nonzero(t.sender >= 0)[0].tolist():
        j = int(t.sender[i])
        same = {"cat": "transfer", "name": LETTERS[int(t.schedule.kind[i])], "id": f"{pid}.{i}", "pid": pid}
        middle = float((t.start_s[j] + t.end_s[j]) / 2 * MICROSECONDS)
        out.append({"ph": "s", "tid": int(stage[j]), "ts": middle, **same})
        out.append({"ph": "f", "bp": "e", "tid": int(stage[i]), "ts": float(t.start_s[i] * MICROSECONDS), **same})
    return out


def _counters(t: Timeline, pid: int) -> list[dict[str, Any]]:
    s = t.schedule
    h = held(s, s.stages / s.chunks, weight_share=0.0)
    out = []
    for r in range(s.stages):
        times, level = h.over_time(t, r)
        name = f"in flight on stage {r}"
        out += [
            {"ph": "C", "name": name, "pid": pid, "tid": r, "ts": float(x * MICROSECONDS), "args": {"micro-batches": float(y)}}
            for x, y in zip(times, level, strict=True)
        ]
    return out


ROW, GAP, LEFT, TOP, WIDTH = 26, 4, 70, 30, 1400  # pixels
SVG_COLOUR = {FORWARD: "#9ecae1", BACKWARD: "#a1d99b", INPUT: "#a1d99b", WEIGHT: "#fdae6b"}
PATTERN = {BACKWARD: "stripes", INPUT: "stripes", WEIGHT: "dots"}  # phases are told apart without colour too
MOST_RECTANGLES = 40_000  # about 8 MB; above it browsers stall


def svg(timelines: Sequence[Timeline] | Timeline) -> str:
    """Return an SVG drawing, schedules under one another on one time scale; each phase has its colour and its pattern."""
    many = [timelines] if isinstance(timelines, Timeline) else list(timelines)
    longest = max((t.step_s for t in many), default=0.0) or 1.0
    body: list[str] = []
    y = 0
    every = max(1, math.ceil(sum(len(t.schedule) for t in many) / MOST_RECTANGLES))
    for t in many:
        y += TOP
        skipped = f" (every {every}th operation drawn)" if every > 1 else ""
        title = f"{t.schedule.name}: {show_number(t.schedule.stages, 'stage')}, {show_number(t.schedule.micro_batches, 'micro-batch', 'micro-batches')}, step {t.step_s:.6g} s{skipped}"
        body.append(f'<text x="4" y="{y - 10}" class="title">{escape(title)}</text>')
        for r in range(t.schedule.stages):
            body.append(f'<text x="4" y="{y + ROW * 0.68:.0f}">stage {r}</text>')
            body.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH * t.step_s / longest:.2f}" height="{ROW}" class="idle"/>')
            body += _rectangles(t, r, y, WIDTH / longest, every)
            y += ROW + GAP
    height = y + TOP
    return "\n".join([_SVG_HEAD.format(width=WIDTH + LEFT + 10, height=height), *body, _legend(height - 8), "</svg>", ""])


def _rectangles(t: Timeline, stage: int, y: int, scale: float, every: int) -> list[str]:
    s = t.schedule
    out = []
    for i in range(s.offset[stage], s.offset[stage + 1], every):
        second = i > s.offset[stage] and bool(s.together[i - 1])
        half = ROW / 2 if second or s.together[i] else ROW
        x, width = LEFT + t.start_s[i] * scale, (t.end_s[i] - t.start_s[i]) * scale
        top = y + (half if second else 0)
        kind, name = int(s.kind[i]), s.label(i)
        place = f'x="{x:.2f}" y="{top:.1f}" width="{width:.2f}" height="{half:.1f}"'
        tip = f"<title>{name}, {t.start_s[i]:.6g} to {t.end_s[i]:.6g} s</title>"
        out.append(f'<rect {place} fill="{SVG_COLOUR[kind]}" class="op">{tip}</rect>')
        if kind in PATTERN:
            out.append(f'<rect {place} fill="url(#{PATTERN[kind]})" pointer-events="none"/>')
        if width > 8 * len(name) and half == ROW:
            out.append(f'<text x="{x + width / 2:.2f}" y="{y + ROW * 0.68:.0f}" class="name">{name}</text>')
    return out


def _legend(y: int) -> str:
    """Return the legend line: what each colour and pattern means."""
    out, x = [], LEFT
    for kind, text in ((FORWARD, "F forward"), (BACKWARD, "B backward, I its input gradient"), (WEIGHT, "W weight gradient")):
        place = f'x="{x}" y="{y - 11}" width="22" height="13"'
        out.append(f'<rect {place} fill="{SVG_COLOUR[kind]}" class="op"/>')
        if kind in PATTERN:
            out.append(f'<rect {place} fill="url(#{PATTERN[kind]})"/>')
        out.append(f'<text x="{x + 28}" y="{y}">{text}</text>')
        x += 28 + 8 * len(text) + 24
    return "\n".join(out)


_SVG_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<style>.title{{font-weight:bold}}.op{{stroke:#333;stroke-width:.4}}.idle{{fill:#f4f4f4}}.name{{text-anchor:middle;font-size:10px}}</style>
<defs>
<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6" stroke="#0005"/></pattern>
<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse"><circle cx="2" cy="2" r="1" fill="#0006"/></pattern>
</defs>"""
