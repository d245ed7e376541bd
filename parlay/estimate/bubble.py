"""The pipeline bubble of each layout: the closed form of its schedule, on stages that may differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.stages import Stages
from parlay.formulas import pipeline
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import SCHEDULES, Schedule

Array = NDArray[np.float64]


def bubble_seconds(layouts: Layouts, stages: Stages, forward: Array, backward: Array, weight: Array, sends: Array) -> Array:
    """Return the seconds per step that the slowest stage waits, shape (layouts,).

    Fill and drain pass every other stage once: sum(f + B) - max(f + B) for GPipe and 1F1B, divided by the virtual
    stages where these interleave. The schedules that defer weight gradients take them out of it (see each formula).
    """
    p = layouts.pp.astype(np.float64)
    whole = np.where(stages.exists, (forward + backward + sends) * stages.count, 0.0)
    busy = np.where(stages.exists, forward + backward + sends, 0.0)
    others = np.maximum(whole.sum(axis=1) - busy.max(axis=1), 0.0)
    stage_count = np.maximum(stages.count.sum(axis=1), 1.0)

    def mean(x: Array) -> Array:
        return np.asarray(np.where(stages.exists, x * stages.count, 0.0).sum(axis=1) / stage_count)

    f, b, w = mean(forward), mean(backward), mean(weight)
    bubble = others / np.where(_is(layouts, "interleaved", "bfs"), layouts.vpp, 1)
    special: dict[Schedule, Callable[[], Any]] = {
        "zb-h1": lambda: pipeline.zb_h1_bubble_s(p, f, b, w),
        "zb-h2": lambda: pipeline.zb_h2_bubble_s(p, f, b, w),
        "zb-v": lambda: pipeline.zb_v_bubble_s(p, f, b, w),
        "dualpipe": lambda: pipeline.dualpipe_bubble_s(p, f, b, w),
        "dualpipev": lambda: pipeline.dualpipe_bubble_s(2 * p, f / 2, b / 2, w / 2),  # 2 p chunks of half a stage
    }
    for code in np.flatnonzero(np.bincount(layouts.schedule)):
        seconds = special.get(SCHEDULES[code])
        if seconds is not None:
            bubble = np.where(layouts.schedule == code, np.maximum(seconds(), 0.0), bubble)
    return np.asarray(np.where(layouts.pp > 1, bubble, 0.0))


FORMULAS: dict[Schedule, str] = {
    "gpipe": "one_f_one_b_bubble_s", "1f1b": "one_f_one_b_bubble_s", "interleaved": "interleaved_bubble_s",
    "bfs": "interleaved_bubble_s", "zb-h1": "zb_h1_bubble_s", "zb-h2": "zb_h2_bubble_s", "zb-v": "zb_v_bubble_s",
    "dualpipe": "dualpipe_bubble_s", "dualpipev": "dualpipe_bubble_s",
}  # fmt: skip


def closed_form(
    layouts: Layouts, stages: Stages, forward: Array, backward: Array, weight: Array, sends: Array
) -> tuple[str | None, dict[str, Array]]:
    """Return the formula behind `bubble_seconds`, if all layouts have one, and what goes into it, shape (layouts,).

    Means over the stages; with the closed forms of 1F1B and its like, a backward has the sends with it, as fill and drain do.
    """
    names = {FORMULAS[SCHEDULES[code]] for code in np.flatnonzero(np.bincount(layouts.schedule))}
    plain = _is(layouts, "gpipe", "1f1b", "interleaved", "bfs")
    count = np.maximum(stages.count.sum(axis=1), 1.0)
    f, b, w = (np.where(stages.exists, x * stages.count, 0.0).sum(axis=1) / count for x in (forward, backward, weight))
    whole = np.where(stages.exists, (forward + backward + sends) * stages.count, 0.0).sum(axis=1)
    busy = np.where(stages.exists, forward + backward + sends, 0.0).max(axis=1)
    both_ways = _is(layouts, "dualpipev")
    half = np.where(both_ways, 0.5, 1.0)
    inputs = {
        "stages": np.where(both_ways, 2.0, 1.0) * layouts.pp,
        "virtual": np.where(_is(layouts, "interleaved", "bfs"), layouts.vpp, np.nan),
        "others_s": np.where(plain, np.maximum(whole - busy, 0.0), np.nan),
        "forward_s": np.where(plain, np.nan, half * f),
        "backward_s": np.where(plain, np.nan, half * b),
        "weight_s": np.where(plain, np.nan, half * w),
    }
    return (f"pipeline.{names.pop()}" if len(names) == 1 else None), inputs


def _is(layouts: Layouts, *names: Schedule) -> NDArray[np.bool_]:
    found = np.zeros(len(layouts), dtype=bool)
    for name in names:
        found |= layouts.schedule == SCHEDULES.index(name)
    return found
