"""How far off an estimate may be: what the nearest measured runs took, over what this model predicted for them.

The track record is a table of every packaged run that could be predicted (tiers A and B), written by
scripts/record_errors.py. It corrects nothing: it only says how wide the truth has been around predictions like this one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.counts import parameters
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.in_step import family_of, width_of

RECORD_FILE = Path(__file__).with_name("record.json")
# With these three, 8 in 10 measured runs lie in the range that the record without their model gives (tests/estimate/test_record.py).
NEIGHBOURS = 20  # runs whose spread is shown
OUTSIDE = 0.07  # of these, on either side
LEAST_SPREAD = 0.07  # the same benchmark moves this much from release to release, so no range is narrower
FAR = 2.0  # a distance beyond which no measured run resembles the case


@dataclasses.dataclass(frozen=True, slots=True)
class Features:
    """What makes two runs alike: hardware, width, kind of model, and sizes as powers of two."""

    device: str
    architecture: str
    width: str
    experts: bool
    framework: str
    adapters: bool  # LoRA: these alone are trained
    hosted: bool  # optimizer or activations on the host
    sizes: tuple[float, ...]  # log2 of parameters, GPUs, sequence length, tp, pp, tokens of a micro-batch


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The range that measured runs suggest around a predicted step, as factors on its seconds."""

    low: float
    high: float
    runs: int
    nearest: str
    distance: float
    of_framework: int  # of these runs, those under the framework of the case
    hosted_alike: int  # and those that keep something on the host, or nothing, as the case does

    @property
    def far(self) -> bool:
        """Whether no measured run resembles the case."""
        return self.distance > FAR


def features_of(model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout) -> Features:
    """Return the features of one case."""
    tokens = layout.micro_batch * workload.seq_len / layout.cp
    sizes = (parameters(model).total, layout.gpus, workload.seq_len, layout.tp, layout.pp, tokens)
    return Features(
        family_of(cluster.device.rated_as),
        cluster.device.architecture,
        width_of(workload.precision),
        any(kind.mlp.kind == "moe" for kind in model.kinds.values()),
        workload.framework,
        workload.lora_rank is not None,
        layout.offload_optimizer > 0 or layout.offload_activations > 0,
        tuple(round(math.log2(x), 2) for x in sizes),
    )


def expected(features: Features) -> Expected | None:
    """Return the range of the nearest measured runs, or None without a record.

    The range leaves `OUTSIDE` of the nearest runs' measured over predicted seconds on either side, one value for runs of one
    model, device and layout, so that a benchmark repeated in every release counts once. It holds the nearest run itself.
    """
    table = record()
    if not table:
        return None
    off = distances(features, columns())
    seen: dict[str, tuple[float, float]] = {}
    alike = hosted = 0
    for i in np.argsort(off, kind="stable").tolist():
        theirs, name, ratio = table[i]
        alike += name not in seen and theirs.framework == features.framework
        hosted += name not in seen and theirs.hosted == features.hosted
        seen.setdefault(name, (float(off[i]), ratio))
        if len(seen) == NEIGHBOURS:
            break
    ratios = sorted(ratio for _, ratio in seen.values())
    name, (nearest, own) = next(iter(seen.items()))
    low, high = min(_quantile(ratios, OUTSIDE), 1 - LEAST_SPREAD), max(_quantile(ratios, 1 - OUTSIDE), 1 + LEAST_SPREAD)
    if nearest <= FAR:
        low, high = min(low, own), max(high, own)
    return Expected(low, high, len(ratios), name, nearest, alike, hosted)


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """The features of many runs, one array a feature; sizes have a row each."""

    device: NDArray[np.str_]
    architecture: NDArray[np.str_]
    width: NDArray[np.str_]
    experts: NDArray[np.bool_]
    framework: NDArray[np.str_]
    adapters: NDArray[np.bool_]
    hosted: NDArray[np.bool_]
    sizes: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[Features]) -> Columns:
        """Return the columns of these rows."""
        names = ("device", "architecture", "width", "experts", "framework", "adapters", "hosted")
        plain: dict[str, Any] = {name: np.array([getattr(r, name) for r in rows]) for name in names}
        return cls(sizes=np.array([r.sizes for r in rows], dtype=np.float64).T, **plain)


def distances(a: Features, runs: Columns) -> NDArray[np.float64]:
    """Return how unlike a case is to each run: 1 for another device of the same architecture, for eight doublings of a size, ..."""
    off = np.where(runs.device == a.device, 0.0, np.where(runs.architecture == a.architecture, 1.0, 2.0))
    off += np.where(runs.width != a.width, 1.0, 0.0)
    off += np.where(runs.experts != a.experts, 1.5, 0.0)
    off += np.where(runs.adapters != a.adapters, 1.0, 0.0)
    off += np.where(runs.hosted != a.hosted, 1.0, 0.0)
    off += np.where(runs.framework != a.framework, 0.5, 0.0)
    return np.asarray(off + np.abs(runs.sizes - np.array(a.sizes)[:, None]).sum(axis=0) / 8.0)


@lru_cache(maxsize=1)
def columns() -> Columns:
    """Return the features of the track record as arrays."""
    return Columns.of([features for features, _, _ in record()])


@lru_cache(maxsize=1)
def record() -> tuple[tuple[Features, str, float], ...]:
    """Return the track record: features, name and measured over predicted seconds of every run, by name and ratio."""
    if not RECORD_FILE.is_file():
        return ()
    rows: list[dict[str, Any]] = json.loads(RECORD_FILE.read_text(encoding="utf-8"))["runs"]
    table = (
        (
            Features(
                r["device"],
                r["architecture"],
                r["width"],
                r["experts"],
                r["framework"],
                r["adapters"],
                r["hosted"],
                tuple(r["sizes"]),
            ),
            r["name"],
            float(r["measured_over_predicted"]),
        )
        for r in rows
    )
    return tuple(sorted(table, key=lambda run: run[1:]))


def _quantile(ordered: list[float], at: float) -> float:
    position = at * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
