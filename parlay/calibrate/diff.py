"""Which rates moved between two calibrations by more than their samples scatter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from parlay.calibrate.fits import LEAST_SPREAD
from parlay.rates.calibration_file import Calibration, Gemm, GroupedGemm, Times


@dataclasses.dataclass(frozen=True)
class Moved:
    """One point in both files: its medians and the scatter of the wider of the two."""

    what: str
    before_s: float
    after_s: float
    spread: float  # share of the median

    @property
    def change(self) -> float:
        """Logarithm of after over before: +0.1 is a tenth slower."""
        return math.log(self.after_s / self.before_s)

    @property
    def beyond(self) -> bool:
        """Whether the change is larger than the scatter explains."""
        return abs(self.change) > math.log1p(self.spread)


def differences(before: Calibration, after: Calibration) -> list[Moved]:
    """Return every point that both files hold, with its change and its scatter.

    The scatter is the larger 90th percentile over the median of the two, at least the 3 % below which no uncertainty is
    stated: few samples say too little of their own error.
    """
    first, second = dict(_points(before)), dict(_points(after))
    out = []
    for what, a in first.items():
        b = second.get(what)
        if b is not None:
            out.append(Moved(what, a.median, b.median, max(a.spread, b.spread, LEAST_SPREAD / 100)))
    return out


def _points(c: Calibration) -> Iterator[tuple[str, Times]]:
    for p in c.compute:
        if isinstance(p, Gemm):
            yield f"gemm {p.dtype} {p.m} x {p.k} x {p.n} {p.layout}{' accumulated' if p.accumulate else ''}", p.seconds
        elif isinstance(p, GroupedGemm):
            yield f"grouped gemm {p.dtype} {p.rows} rows, {p.groups} groups, {p.k} x {p.n}", p.seconds
        else:
            way = "backward" if p.backward else "forward"
            yield f"attention {p.dtype} {way} {p.batch} x {p.queries} x {p.heads}/{p.kv_heads} x {p.qk_dim}", p.seconds
    for s in c.memory:
        yield f"{s.op} {s.direction} {s.dtype} {s.bytes} bytes", s.seconds
    for h in c.host_copies:
        yield f"host copy {h.direction.replace('_', ' ')} {h.bytes} bytes", h.seconds
    for link in c.links:
        for q in link.points:
            yield f"{link.op} {link.level} over {link.n} ({link.local} a host) {link.backend} {q.bytes} bytes", q.seconds
