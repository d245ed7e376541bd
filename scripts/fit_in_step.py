"""Fit how much slower matrix products run inside a training step than alone, one factor a device and width of number.

A product alone is fed from warm caches at the clock of a short burst or of its own steady state. Inside a step it shares
power, memory and multiprocessors with communication and small kernels, hour after hour. The factor is that one ratio:
it belongs to a device and a dtype, is bounded by 1, and zeroes the median error of the packaged runs (tiers A and B) of
the device, of whichever source and model: of its dense ones where there are 10 of 2 models, since runs of experts tell as much of their
dispatch; else of all, each model once. Groups of fewer than 10 runs or 3 models, or without a dense model, get none and lean on a
relative.

    python scripts/fit_in_step.py            # prints the table and writes parlay/rates/in_step.json

Fitted without the runs of a source, of a model or of a fifth of all, the factors predict those runs about as well; that goes
into parlay/validation/held_out.json, which docs/validation.md shows:

    python scripts/fit_in_step.py --held-out
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.layouts.layout import Layouts
from parlay.rates.choose import rates_for
from parlay.rates.in_step import IN_STEP_FILE, Factors, family_of, width_of
from parlay.validation.held_out import HELD_OUT_FILE, LEFT_OUT
from parlay.validation.mapping import Case, Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.runs import packaged_runs
from parlay.validation.statistics import errors_of

LEAST_RUNS, LEAST_MODELS = 10, 3
LEAST_DENSE = 2  # models, where all are dense
FACTORS = np.linspace(0.5, 1.0, 11)  # at which every run is priced; between two of them a step is as good as linear
MOST_ERROR = 0.15  # a group that one factor leaves further off misses something else, so its factor would hide that
FOLDS = 5


@dataclass(frozen=True)
class Priced:
    """A run with its errors under each of FACTORS."""

    case: Case
    measured_s: float
    errors: NDArray[np.float64]

    @property
    def dense(self) -> bool:
        """Return whether the model has no experts."""
        return all(kind.mlp.kind != "moe" for kind in self.case.model.kinds.values())


Groups = Mapping[tuple[str, str], list[Priced]]  # by device family and width


def predicted(case: Case, factors: Factors | None = None) -> float:
    """Return the seconds of a step under given factors, or the shipped ones."""
    rates = rates_for(case.cluster, in_step=factors)
    time = price_time(case.model, case.cluster, case.workload, Layouts.of(case.layout), rates)
    return float(time.step[0]) * case.scale


def priced_runs() -> Groups:
    """Return mapped runs of tiers A and B with measured seconds."""
    found: dict[tuple[str, str], list[Priced]] = collections.defaultdict(list)
    for run in packaged_runs():
        case = map_run(run) if run.tier in ("A", "B") else None
        seconds = None if case is None or isinstance(case, Unmapped) else measured_step(case).step_s
        if case is None or isinstance(case, Unmapped) or seconds is None:
            continue
        family, width = family_of(case.cluster.device.id), width_of(case.workload.precision)
        errors = [predicted(case, {family: {width: float(f)}}) / seconds - 1 for f in FACTORS]
        found[family, width].append(Priced(case, seconds, np.array(errors)))
    return dict(sorted(found.items()))


def fit(runs: list[Priced]) -> tuple[float, float, float]:
    """Return (factor, median signed error without it, median absolute error with it).

    Beside runs of experts every model counts once, by its median: many runs of one tell of one dispatch.
    """
    errors = np.array([run.errors for run in runs])
    if all(run.dense for run in runs):
        medians = np.median(errors, axis=0)  # they fall as the factor rises
    else:
        names = np.array([run.case.model.id for run in runs])
        medians = np.median([np.median(errors[names == name], axis=0) for name in dict.fromkeys(names)], axis=0)
    before = float(medians[-1])
    factor = 1.0 if before >= 0 else round(float(np.interp(0.0, medians[::-1], FACTORS[::-1])), 3)
    after = np.median(np.abs([np.interp(factor, FACTORS, one) for one in errors]))
    return factor, before, float(after)


def models_of(runs: list[Priced]) -> int:
    """Return how many models the runs train."""
    return len({run.case.model.id for run in runs})


def fit_all(groups: Groups, *, say: Callable[[str], None] = lambda text: None) -> dict[str, dict[str, dict[str, float]]]:
    """Return the factors of all groups that have enough runs, with what they rest on."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (family, width), every in groups.items():
        dense = [run for run in every if run.dense]
        enough = len(dense) >= LEAST_RUNS and models_of(dense) >= LEAST_DENSE
        runs = dense if enough else every
        models = models_of(runs)
        head = f"{family:12s} {width:5s} {len(runs):4d} runs of {models} models: "
        if not enough and (len(runs) < LEAST_RUNS or models < LEAST_MODELS):
            say(head + "too few")
            continue
        if not any(run.dense for run in runs):
            say(head + "all of experts, which tell as much of their dispatch")
            continue
        factor, before, after = fit(runs)
        say(head + f"{factor:.3f} ({before:+.1%} before, {after:.1%} after)")
        if factor < 1.0 and after > MOST_ERROR:
            say(" " * 19 + "not kept: one factor does not explain these runs")
            continue
        table.setdefault(family, {})[width] = {
            "factor": factor, "runs": len(runs), "models": models,
            "median_error_before": round(before, 4), "median_absolute_error_after": round(after, 4),
        }  # fmt: skip
    return table


def held_out(groups: Groups) -> dict[str, dict[str, list[float]]]:
    """Return the errors of all runs by what was left out of the fit of their factors, and by tier."""
    marks: dict[str, Callable[[Case], object]] = {
        "nothing": lambda case: None,
        "fifth": lambda case: zlib.crc32(case.run.id.encode()) % FOLDS,
        "model": lambda case: case.model.id,
        "source": lambda case: case.run.source,
    }
    found: dict[str, dict[str, list[float]]] = {}
    for name in LEFT_OUT:
        mark, errors = marks[name], collections.defaultdict(list)
        for value in {mark(run.case): None for runs in groups.values() for run in runs}:
            chosen = {key: [r for r in runs if mark(r.case) == value] for key, runs in groups.items()}
            others = {key: [r for r in runs if mark(r.case) != value] for key, runs in groups.items()}
            factors = {
                f: {w: g["factor"] for w, g in of.items()} for f, of in fit_all(others if value is not None else groups).items()
            }
            for run in (r for runs in chosen.values() for r in runs):
                errors[run.case.run.tier].append(predicted(run.case, factors) / run.measured_s - 1)
        found[name] = dict(sorted(errors.items()))
    return found


def main() -> None:
    """Fit every group and write the file, or what the factors of other runs predict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true", help="write parlay/validation/held_out.json and nothing else")
    held = parser.parse_args().held_out
    groups = priced_runs()
    if held:
        rows = [
            {"left_out": name, "tier": tier, "runs": e.count, "median": round(e.median, 4), "mean": round(e.mean, 4), "p90": round(e.p90, 4)}
            for name, tiers in held_out(groups).items()
            for tier, e in ((tier, errors_of(tier, errors)) for tier, errors in tiers.items())
        ]  # fmt: skip
        print("\n".join(f"{r['left_out']:8s} {r['tier']} {r['median']:.1%} {r['mean']:.1%} {r['p90']:.1%}" for r in rows))
        lines = ",\n".join(json.dumps(row) for row in rows)
        Path(HELD_OUT_FILE).write_text(
            '{"source": "scripts/fit_in_step.py --held-out", "errors": [\n' + lines + "\n]}\n", encoding="utf-8"
        )
        return
    document = {
        "what": "FLOP/s of matrix products inside a training step over those alone; see scripts/fit_in_step.py",
        "fitted": datetime.date.today().isoformat(),
        "source": "published training runs of tiers A and B packaged with Parlay (parlay/validation/data)",
        "factors": fit_all(groups, say=print),
    }
    Path(IN_STEP_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
