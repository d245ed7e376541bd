"""Measured points as the pieces of calibrated rates: scattered shapes around a curve, and curves over sizes."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.rates.calibration_file import AttentionPoint, Fit, Gemm, GroupedGemm, HostCopy, Link
from parlay.rates.calibration_file import Stream as StreamPoint
from parlay.rates.curves import Curve
from parlay.rates.interface import Array, Priced
from parlay.rates.kernels import ELEMENT_BYTES, Attention, AttentionShape, Product, real, soft_maximum

SOURCES = ("calibrated", "interpolated", "fitted")  # a measured point, between points, a curve beyond them: least certain last
NEIGHBOURS = 4  # residuals of the nearest measured shapes: 3.6 % median against 4.4 % of the curve alone (35,700 H100 products)
MOST_DISTANCE = math.log(4.0)  # shapes further than 4x away in some size say little: the curve alone counts there
SAME_FILE = 1e-9  # relative difference of sizes that count as the same point


def link_key(link: Link) -> str:
    """Return the name of a sweep's fit."""
    return f"{link.op} n={link.n} local={link.local} groups={link.groups_active} {link.backend} {link.dtype}"


def host_key(direction: str) -> str:
    """Return the name of a direction's fit."""
    return f"host copy {direction}"


def attention_shape(points: Sequence[AttentionPoint]) -> AttentionShape:
    """Return the work of attention points."""
    rows = [(a.queries, a.keys, a.heads, a.kv_heads, a.qk_dim, a.v_dim, 0.5 if a.causal else 1.0, a.batch) for a in points]
    q, k, h, g, qk, v, share, batch = np.array(rows, dtype=np.float64).T
    return AttentionShape.of(q, k, h, g, qk, v, share, batch)


def attention_kernel(fit: Fit, peak_flops_per_s: float) -> Attention:
    """Return the constants that a fit gives to parlay.rates.kernels.Attention."""
    prefix = "flops_per_s_at_"
    dims = sorted((float(key.removeprefix(prefix)), value) for key, value in fit.params.items() if key.startswith(prefix))
    return Attention(
        peak_flops_per_s=peak_flops_per_s,
        head_dims=tuple(d for d, _ in dims),
        flops_per_s=tuple(v for _, v in dims),
        half_length=fit.params["half_length"],
        half_rows=0.0,
        rows_exponent=1.0,
        bytes_per_s=math.inf,
        fixed_s=fit.params["fixed_s"],
    )


def best_rate(points: Sequence[Gemm | GroupedGemm], dtype: str) -> Product:
    """Return the best measured FLOP/s as a curve: what carries from point to point where they are too few for a fit."""
    return Product(
        peak_flops_per_s=math.inf,
        flops_per_s=max(p.flops / p.seconds.median for p in points),
        bytes_per_s=math.inf,
        exponent=1.0,
        fixed_s=0.0,
        element_bytes=ELEMENT_BYTES.get(dtype, 2.0),
    )


def best_attention(points: Sequence[AttentionPoint]) -> Attention:
    """Return the best measured FLOP/s as a curve, as `best_rate` does for products."""
    rate = max(p.flops / p.seconds.median for p in points)
    return Attention(math.inf, (1.0,), (rate,), 0.0, 0.0, 1.0, math.inf, 0.0)


def product_of(fit: Fit, dtype: str, peak_flops_per_s: float) -> Product:
    """Return the constants that a fit gives to parlay.rates.kernels.Product."""
    c = fit.params
    return Product(
        peak_flops_per_s=peak_flops_per_s,
        flops_per_s=c["flops_per_s"],
        bytes_per_s=c["bytes_per_s"],
        exponent=c["exponent"],
        fixed_s=c["fixed_s"],
        element_bytes=ELEMENT_BYTES.get(dtype, 2.0),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Scatter:
    """Measured over formula time at scattered shapes: exact on a point, the mean of the nearest logs around it."""

    logs: Array  # (points, axes) logarithms of the sizes
    residuals: Array  # log(measured / formula)

    def factor(self, *sizes: Array) -> tuple[Array, NDArray[np.int64]]:
        """Return what to multiply the formula's seconds by, 1 far from every point, and which of SOURCES each answer is.

        Only a shape inside the measured range of every size counts as between points; one beyond it leans on its
        neighbours as well, but is the curve's.
        """
        flat = np.stack([np.log(np.maximum(np.ravel(x), 1e-300)) for x in np.broadcast_arrays(*sizes)], axis=1)
        shapes, back = np.unique(flat, axis=0, return_inverse=True)
        apart = np.abs(shapes[:, None, :] - self.logs[None, :, :])
        distance = np.sqrt((apart**2).sum(axis=2))
        near = np.argsort(distance, axis=1)[:, :NEIGHBOURS]
        rows = np.arange(len(shapes))[:, None]
        d = distance[rows, near]
        usable = apart.max(axis=2)[rows, near] <= MOST_DISTANCE
        hit = d <= SAME_FILE * np.maximum(1.0, np.abs(shapes).max(axis=1, keepdims=True))
        weight = np.where(usable, 1.0 / np.maximum(d, 1e-12) ** 2, 0.0)
        weight = np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), weight)
        total = weight.sum(axis=1)
        mean = np.divide((weight * self.residuals[near]).sum(axis=1), total, out=np.zeros(len(shapes)), where=total > 0)
        low, high = (edge(self.logs, axis=0) for edge in (np.min, np.max))
        inside = np.all((shapes >= low - SAME_FILE) & (shapes <= high + SAME_FILE), axis=1)
        level = np.where(hit.any(axis=1), 0, np.where((total > 0) & inside, 1, 2))
        shape, at = np.broadcast_shapes(*(np.shape(x) for x in sizes)), np.ravel(back)
        return real(np.exp(mean)[at].reshape(shape)), level[at].reshape(shape)


class Answer(NamedTuple):
    """Seconds of each element, which of SOURCES each is, and which the file can answer for at all."""

    seconds: Array
    level: NDArray[np.int64]
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, seconds: Array, level: NDArray[np.int64], *, fitted: bool) -> Answer:
        """Return an answer; without a fit, nothing beyond the measured points is known."""
        return cls(real(seconds), level, np.ones(level.shape, dtype=bool) if fitted else level < 2)

    def priced(self, rest: Callable[[], Priced]) -> Priced:
        """Return the seconds with their source; `rest` answers for what is not known, and then gives the source."""
        if self.known.all():
            return Priced(self.seconds, SOURCES[int(self.level.max(initial=0))])
        base = rest()
        return Priced(real(np.where(self.known, self.seconds, base.seconds)), base.source)


@dataclasses.dataclass(frozen=True, slots=True)
class Products:
    """Products of one dtype: a curve and the measured points around which it is corrected.

    Too few points give no fit: then the curve is the best measured rate, which only carries from one point to the next.
    """

    curve: Product
    plain: Scatter
    accumulated: Scatter | None
    held: float = 1.0  # share of the measured rates that a training load leaves
    fitted: bool = True

    def answer(self, m: Array, n: Array, k: Array, *, accumulate: bool) -> Answer:
        """Return the seconds of m x k by k x n."""
        formula = self.curve.seconds(m, n, k, accumulate=accumulate)
        own = self.accumulated if accumulate else self.plain
        factor, level = (own or self.plain).factor(m, n, k)
        return Answer.of(formula * factor / self.held, np.maximum(level, int(own is None)), fitted=self.fitted)


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """A collective's measured curve, with the fitted one beyond its range and a plateau that caps it."""

    curve: Curve
    fit: Fit | None
    wire: float  # bytes on the wire by byte of the buffer

    def seconds(self, nbytes: Array) -> Array:
        """Return the seconds of buffers of `nbytes`."""
        measured = self.curve.seconds(nbytes)
        if self.fit is None:
            return measured
        c = self.fit.params
        fitted = soft_maximum(c["alpha_s"], nbytes * self.wire / c["bytes_per_s"], c["exponent"])
        if self.fit.plateau:
            fitted = np.maximum(fitted, nbytes * self.wire / self.fit.plateau)
        # Larger than measured: the curve's shape, continued from its last point, so that nothing jumps there.
        last = self.curve.nbytes[-1]
        at_last = float(soft_maximum(c["alpha_s"], last * self.wire / c["bytes_per_s"], c["exponent"]))
        if self.fit.plateau:
            at_last = max(at_last, last * self.wire / self.fit.plateau)
        above = fitted * float(self.curve.time_s[-1]) / at_last
        return real(np.where(nbytes > last, above, measured))


def merged_streams(points: Sequence[StreamPoint]) -> tuple[Array, Array]:
    """Return bytes and seconds of one kind of kernel, forward and backward of one size together as one point.

    The planner asks for both directions at one rate, so the point holds the bytes and seconds of both, per forward's bytes.
    """
    by_size: dict[float, list[StreamPoint]] = defaultdict(list)
    forward = sorted((p for p in points if p.direction != "backward"), key=lambda p: p.bytes)
    backward = sorted((p for p in points if p.direction == "backward"), key=lambda p: p.bytes)
    paired = len(forward) == len(backward)
    for i, p in enumerate(forward):
        by_size[float(p.bytes)] += [p, backward[i]] if paired else [p]
    sizes = np.array(sorted(by_size))
    rates = [sum(p.bytes for p in by_size[s]) / sum(p.seconds.median for p in by_size[s]) for s in sizes.tolist()]
    return sizes, sizes / np.array(rates)


def copied(points: Sequence[HostCopy]) -> tuple[Array, Array]:
    """Return bytes and seconds of copies in one direction, smallest first, the mean where a size was measured twice."""
    sizes = sorted({p.bytes for p in points})
    seconds = [np.mean([p.seconds.median for p in points if p.bytes == size]) for size in sizes]
    return real(sizes), real(seconds)


def level_of(curve: Curve, nbytes: Array) -> int:
    """Return which of SOURCES answers for buffers of `nbytes`: all on points, all inside their range, or some outside."""
    if not nbytes.size:
        return 0
    if np.any((nbytes < curve.nbytes[0]) | (nbytes > curve.nbytes[-1])):
        return 2
    return 0 if bool(np.isin(nbytes, curve.nbytes).all()) else 1


def on_curve(curve: Curve, nbytes: ArrayLike) -> Priced:
    """Return the seconds of streams of `nbytes`; smaller than measured, they take the smallest point's time."""
    size = real(nbytes)
    return Priced(real(np.where(size > 0, curve.seconds(np.maximum(size, 1.0)), 0.0)), SOURCES[level_of(curve, size[size > 0])])
