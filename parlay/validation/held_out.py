"""Errors on runs that no fitted factor has seen: what scripts/fit_in_step.py --held-out found, by what was left out of the fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_FILE = Path(__file__).with_name("held_out.json")

# What was left out of the fit of the factors that predict a run, in words.
LEFT_OUT = {
    "nothing": "nothing: the factors as shipped",
    "fifth": "the fifth of all runs that it is in",
    "model": "all runs of its model",
    "source": "all runs of its source",
}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors [-] of the runs of one tier, each predicted with factors fitted without some runs, its own among them."""

    left_out: str
    tier: str
    runs: int
    median: float
    mean: float
    p90: float


def held_out_errors() -> tuple[HeldOut, ...]:
    """Return the errors as they were found, in the order of LEFT_OUT."""
    return tuple(HeldOut(**row) for row in json.loads(HELD_OUT_FILE.read_text(encoding="utf-8"))["errors"])
