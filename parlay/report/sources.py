"""What an estimate rests on: assumptions, and where its rates come from."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.estimate.counts import CONVENTIONS
from parlay.estimate.estimate import Estimate
from parlay.estimate.precision import matmul_dtype
from parlay.report.table import Page, wrap
from parlay.units import show_number, significant

MEANING = {
    "exact": "shapes alone",
    "calibrated": "measurements on this machine",
    "interpolated": "interpolation between measurements on this machine",
    "fitted": "curves fitted to measurements on this machine",
    "profile": "measurements of this device that Parlay ships",
    "datasheet": "a datasheet or a relative of this device",
    "default": "datasheet peaks x default efficiencies",
    "assumed": "an assumption",
}
MEANING_OF_BYTES = MEANING | {"default": "default sizes of the libraries' buffers"}  # no rate is behind a size
LEAST_SHARE = 0.005  # of the step; what prints as 0 % is left out


def assumption_lines(e: Estimate, page: Page) -> list[str]:
    """Return the settings that were taken because nothing else was said, one a line."""
    return _assumed("assumed, since nothing else was said:", e.assumptions, page)


def both_assumption_lines(first: Estimate, second: Estimate, page: Page) -> list[str]:
    """Return what two estimates assume, and what only one of them does."""
    a, b = first.assumptions, second.assumptions
    return [
        *_assumed("assumed in both, since nothing else was said:", [text for text in a if text in b], page),
        *_assumed("assumed in A alone:", [text for text in a if text not in b], page),
        *_assumed("assumed in B alone:", [text for text in b if text not in a], page),
    ]


def _assumed(title: str, texts: Sequence[str], page: Page) -> list[str]:
    if not texts:
        return []
    return [title, *(line for text in texts for line in wrap(f"- {text}", page, indent="  ", hang="  "))]


def assumption_count(e: Estimate, page: Page) -> list[str]:
    """Return how many settings were assumed, and where they are listed."""
    return (
        wrap(
            f"assumed: {show_number(len(e.assumptions), 'setting')}; the next command lists {'it' if len(e.assumptions) == 1 else 'them'}",
            page,
        )
        if e.assumptions
        else []
    )


def accuracy_lines(e: Estimate, page: Page) -> list[str]:
    """Return which share of the step rests on which kind of rate, and the MFU convention."""
    shares: dict[str, float] = {}
    for term in e.step.walk():
        if not term.parts and term.value > 0:
            shares[term.source] = shares.get(term.source, 0.0) + term.value
    ranked = sorted(shares.items(), key=lambda kv: -kv[1])
    parts = [f"{value / e.step_s:.0%} {MEANING[name]}" for name, value in ranked if value >= LEAST_SHARE * e.step_s]
    out = wrap("step time from: " + "; ".join(parts), page, hang="  ")
    precision = e.workload.precision
    format_ = matmul_dtype(e.cluster.device, precision) if precision == "fp32" else precision
    peak = f"{e.mfu_peak_flops_per_s / 1e12:,.0f} TFLOP/s dense {format_}"
    convention = CONVENTIONS[e.mfu_convention]
    counted = convention.in_words
    if e.workload.lora_rank is not None:
        scores = counted.split(", ")[0]
        counted = f"{scores}, 4 FLOPs for each frozen weight and 6 for each adapter's; recompute not"
    if e.model.mtp_layers and convention.mtp:
        counted = counted.replace("LM head counted", "LM head and multi-token prediction counted")
    out += wrap(f"MFU: {counted}; against {peak} ({e.mfu_convention})", page, hang="  ")
    return [*out, *expected_lines(e, page)]


def expected_lines(e: Estimate, page: Page) -> list[str]:
    """Return the range in which measured runs like this one lay, and how like it they are."""
    x = e.expected
    if x is None:
        return []
    low, high = significant(e.step_s * x.low, 3), significant(e.step_s * x.high, 3)
    alike = f"nearest: {x.nearest}" if not x.far else f"no measured run is like it; the nearest is {x.nearest}"
    if not x.of_framework:
        alike = f"{alike}; none of them ran under {e.workload.framework}"
    if not x.hosted_alike:
        on_host = e.layout.offload_optimizer or e.layout.offload_activations
        alike = f"{alike}; {'none' if on_host else 'all'} of them put anything on the host, so it may be further off"
    if e.cluster.nic_link.kind == "tcp" and e.gpus > e.cluster.scale_up_gpus.value:
        alike = f"{alike}; of all measured runs nanotron's alone sent over TCP, so it may be further off"
    told = f"expect {low} to {high} s a step, from the {x.runs} nearest measured runs: 8 in 10 lie in such a range"
    return wrap(f"{told}; {alike}", page, hang="  ")
