"""How far off an estimate may be: what the nearest measured runs took, over what this model predicted for them.

The track record is a table of every packaged run that could be predicted (tiers A and B), written by
scripts/record_errors.py. It corrects nothing: it only says how wide the truth has been around predictions like this one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from parlay.estimate.counts import parameters
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.in_step import family_of, width_of

RECORD_FILE = Path(__file__).with_name("record.json")
NEIGHBOURS = 15  # runs whose spread is shown: enough for a tenth and a ninth decile
LEAST_SPREAD = 0.05  # the same benchmark moves this much from release to release, so no range is narrower
FAR = 2.0  # a distance beyond which no measured run resembles the case


@dataclasses.dataclass(frozen=True, slots=True)
class Features:
    """What makes two runs alike: hardware, width, kind of model, and sizes as powers of two."""

    device: str
    architecture: str
    width: str
    experts: bool
    framework: str
    sizes: tuple[float, ...]  # log2 of parameters, GPUs, sequence length, tp, pp, tokens of a micro-batch


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The range that measured runs suggest around a predicted step, as factors on its seconds."""

    low: float
    high: float
    runs: int
    nearest: str
    distance: float

    @property
    def far(self) -> bool:
        """Whether no measured run resembles the case."""
        return self.distance > FAR


def features_of(model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout) -> Features:
    """Return the features of one case."""
    tokens = layout.micro_batch * workload.seq_len / layout.cp
    sizes = (parameters(model).total, layout.gpus, workload.seq_len, layout.tp, layout.pp, tokens)
    return Features(
        family_of(cluster.device.id),
        cluster.device.architecture,
        width_of(workload.precision),
        any(kind.mlp.kind == "moe" for kind in model.kinds.values()),
        workload.framework,
        tuple(round(math.log2(x), 2) for x in sizes),
    )


def distance(a: Features, b: Features) -> float:
    """Return how unlike two cases are: 1 for another device of the same architecture, for four doublings of a size, ..."""
    off = 0.0 if a.device == b.device else 1.0 if a.architecture == b.architecture else 2.0
    off += 1.0 if a.width != b.width else 0.0
    off += 1.5 if a.experts != b.experts else 0.0
    off += 0.5 if a.framework != b.framework else 0.0
    return off + sum(abs(x - y) for x, y in zip(a.sizes, b.sizes, strict=True)) / 8.0


def expected(features: Features) -> Expected | None:
    """Return the range of the nearest measured runs, or None without a record.

    The range spans the first to the ninth decile of measured over predicted seconds among the nearest runs, one value for
    runs of one model, device and layout, so that a benchmark repeated in every release counts once.
    """
    table = record()
    if not table:
        return None
    near = sorted(((distance(features, f), name, ratio) for f, name, ratio in table))
    seen: dict[str, tuple[float, float]] = {}
    for off, name, ratio in near:
        seen.setdefault(name, (off, ratio))
        if len(seen) == NEIGHBOURS:
            break
    ratios = sorted(ratio for _, ratio in seen.values())
    name, (off, _) = next(iter(seen.items()))
    low, high = min(_decile(ratios, 0.1), 1 - LEAST_SPREAD), max(_decile(ratios, 0.9), 1 + LEAST_SPREAD)
    return Expected(low, high, len(ratios), name, off)


@lru_cache(maxsize=1)
def record() -> tuple[tuple[Features, str, float], ...]:
    """Return the track record: features, name and measured over predicted seconds of every run."""
    if not RECORD_FILE.is_file():
        return ()
    rows: list[dict[str, Any]] = json.loads(RECORD_FILE.read_text(encoding="utf-8"))["runs"]
    return tuple(
        (
            Features(r["device"], r["architecture"], r["width"], r["experts"], r["framework"], tuple(r["sizes"])),
            r["name"],
            float(r["measured_over_predicted"]),
        )
        for r in rows
    )


def _decile(ordered: list[float], at: float) -> float:
    position = at * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
