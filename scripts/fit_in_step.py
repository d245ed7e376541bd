"""Fit how much slower matrix products run inside a training step than alone, one factor a device and width of number.

A product alone is fed from warm caches at the clock of a short burst or of its own steady state. Inside a step it shares
power, memory and multiprocessors with communication and small kernels, hour after hour. The factor is that one ratio:
it belongs to a device and a dtype, is bounded by 1, and zeroes the median error of all packaged runs (tiers A and B) of
the device, of whichever source and model. Groups of fewer than 10 runs or 3 models, or without a dense model, get none and lean on a
relative.

    python scripts/fit_in_step.py            # prints the table and writes parlay/rates/in_step.json
"""

from __future__ import annotations

import collections
import datetime
import json
from pathlib import Path

import numpy as np

from parlay.estimate.estimate import price_time
from parlay.layouts.layout import Layouts
from parlay.rates.choose import rates_for
from parlay.rates.in_step import IN_STEP_FILE, family_of, width_of
from parlay.validation.mapping import Case, Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.runs import packaged_runs

LEAST_RUNS, LEAST_MODELS, LOWEST = 10, 3, 0.5
MOST_ERROR = 0.15  # a group that one factor leaves further off misses something else, so its factor would hide that


def cases() -> dict[tuple[str, str], list[tuple[Case, float]]]:
    """Return mapped runs of tiers A and B with measured seconds, by device family and width."""
    found = collections.defaultdict(list)
    for run in packaged_runs():
        case = map_run(run) if run.tier in ("A", "B") else None
        if case is None or isinstance(case, Unmapped):
            continue
        seconds = measured_step(case).step_s
        if seconds is not None:
            found[family_of(case.cluster.device.id), width_of(case.workload.precision)].append((case, seconds))
    return found


def median_error(items: list[tuple[Case, float]], family: str, width: str, factor: float) -> tuple[float, float]:
    """Return the median signed and absolute error of `items` with one factor in force."""
    errors = []
    for case, seconds in items:
        rates = rates_for(case.cluster, in_step={family: {width: factor}})
        time = price_time(case.model, case.cluster, case.workload, Layouts.of(case.layout), rates)
        errors.append(float(time.step[0]) * case.scale / seconds - 1)
    return float(np.median(errors)), float(np.median(np.abs(errors)))


def fit(items: list[tuple[Case, float]], family: str, width: str) -> tuple[float, float, float]:
    """Return (factor, median signed error without it, median absolute error with it)."""
    before, absolute = median_error(items, family, width, 1.0)
    if before >= 0:
        return 1.0, before, absolute
    low, high = LOWEST, 1.0
    for _ in range(7):
        middle = (low + high) / 2
        signed, absolute = median_error(items, family, width, middle)
        low, high = (middle, high) if signed > 0 else (low, middle)  # too slow: the factor must rise
    factor = round((low + high) / 2, 3)
    return factor, before, median_error(items, family, width, factor)[1]


def main() -> None:
    """Fit every group and write the file."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (family, width), items in sorted(cases().items()):
        models = len({case.model.id for case, _ in items})
        if len(items) < LEAST_RUNS or models < LEAST_MODELS:
            print(f"{family:12s} {width:5s} {len(items):4d} runs of {models} models: too few")
            continue
        if all(any(kind.mlp.kind == "moe" for kind in case.model.kinds.values()) for case, _ in items):
            print(
                f"{family:12s} {width:5s} {len(items):4d} runs of {models} models: all of experts, which tell as much of their dispatch"
            )
            continue
        factor, before, after = fit(items, family, width)
        print(
            f"{family:12s} {width:5s} {len(items):4d} runs of {models} models: {factor:.3f} ({before:+.1%} before, {after:.1%} after)"
        )
        if factor < 1.0 and after > MOST_ERROR:
            print(f"{'':12s} {'':5s} not kept: one factor does not explain these runs")
            continue
        table.setdefault(family, {})[width] = {
            "factor": factor, "runs": len(items), "models": models,
            "median_error_before": round(before, 4), "median_absolute_error_after": round(after, 4),
        }  # fmt: skip
    document = {
        "what": "FLOP/s of matrix products inside a training step over those alone; see scripts/fit_in_step.py",
        "fitted": datetime.date.today().isoformat(),
        "source": "published training runs of tiers A and B packaged with Parlay (parlay/validation/data)",
        "factors": table,
    }
    Path(IN_STEP_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
