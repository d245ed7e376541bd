"""What an estimate rests on: assumptions, and where its rates come from."""

from __future__ import annotations

from parlay.estimate.estimate import Estimate
from parlay.report.table import Page, wrap

MEANING = {
    "exact": "follow from shapes alone",
    "calibrated": "were measured on this machine",
    "profile": "come from a shipped profile of this device",
    "datasheet": "come from the datasheet or a scaled relative",
    "default": "come from datasheet peaks x default efficiencies",
    "assumed": "rest on an assumption",
}
CONVENTION = {
    "megatron": "causal attention halved, LM head counted, recompute and router not; padded vocabulary not",
}


def assumption_lines(e: Estimate, page: Page) -> list[str]:
    """Return the settings that were taken because nothing else was said."""
    return wrap("assumed: " + "; ".join(e.assumptions), page, hang="  ") if e.assumptions else []


def accuracy_lines(e: Estimate, page: Page) -> list[str]:
    """Return which share of the step rests on which kind of rate, and the MFU convention."""
    shares: dict[str, float] = {}
    for term in e.step.walk():
        if not term.parts and term.value > 0:
            shares[term.source] = shares.get(term.source, 0.0) + term.value
    parts = [
        f"{value / e.step_s:.0%} of the step {MEANING[name]}" for name, value in sorted(shares.items(), key=lambda kv: -kv[1])
    ]
    out = wrap("rates: " + "; ".join(parts), page, hang="  ")
    peak = f"{e.mfu_peak_flops_per_s / 1e12:,.0f} TFLOP/s dense {e.workload.precision}"
    out += wrap(f"MFU: {CONVENTION[e.mfu_convention]}; against {peak} ({e.mfu_convention} convention)", page, hang="  ")
    return out
