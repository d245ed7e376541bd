"""Curves through measured points, derived again from the samples at any time.

Legend: t seconds; S bytes of the buffer, wire bytes are S x the collective's factor; W bytes/s; a latency; p exponent of
the soft maximum; F FLOP/s; t0 fixed seconds. All fits minimise relative errors (differences of logarithms), with a loss
that grows only linearly beyond HUBER, so that one bad point does not bend a curve.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from parlay.rates.calibration_file import FITS_VERSION, AttentionPoint, Calibration, Fit, Gemm, HostCopy, Link, Stream
from parlay.rates.kernels import ACCUMULATED_BYTES, ELEMENT_BYTES, soft_maximum
from parlay.rates.network import wire_factor
from parlay.rates.points import attention_shape, copied, host_key, link_key, merged_streams

Array = NDArray[np.float64]
Model = Callable[[Array], Array]

LARGE_BYTES = 1 << 20  # rates of links are judged on messages of 1 MB and more: smaller ones pass shapers and caches
HUBER = 0.1  # relative errors beyond 10 % count linearly
ROUNDS = 60
PRODUCT_EXPONENTS = (1.0, 8.0)  # fp8 fits ran away to p -> 0 without bounds
KNEE_EXPONENTS = (0.3, 8.0)  # published NCCL curves fit to 0.51-0.72; a clean alpha-beta link to 1 and more
LEAST_SPREAD = 3.0  # %: a smaller uncertainty is not stated, since bootstraps over few samples under-cover


def theil_sen(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the median of the slopes between every two points: two bad points in seven do not move it.

    Examples
    --------
    >>> theil_sen([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 60.0, 8.0])
    2.0
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    i, j = np.triu_indices(len(a), 1)
    apart = a[i] != a[j]
    return float(np.median((b[j] - b[i])[apart] / (a[j] - a[i])[apart]))


def link_bytes_per_s(link: Link, *, stat: str = "min", least_bytes: int = LARGE_BYTES) -> float | None:
    """Return the bytes/s behind a sweep, by the slope of time over wire bytes.

    Parameters
    ----------
    link : Link
        A sweep over sizes [-].
    stat : str
        Which statistic of the samples: "min" is nearest to the wire's own rate, "median" to what a step sees [-].
    least_bytes : int
        Smaller messages are left out [bytes].

    Returns
    -------
    float or None
        Bytes per second on the wire of one rank, None where fewer than two sizes are left [bytes/s].

    Notes
    -----
    On links of known rate this estimator was off by -1.3 to 0.0 % with minima and -4.4 to +2.4 % with medians.
    """
    points = [p for p in link.points if p.bytes >= least_bytes]
    if len(points) < 2:
        return None
    wire = float(wire_factor(link.op, link.n))
    slope = theil_sen([p.bytes * wire for p in points], [getattr(p.seconds, stat) for p in points])
    return 1.0 / slope if slope > 0 else None


def least_logs(
    model: Model, observed: Array, starts: Sequence[Sequence[float]], low: Sequence[float], high: Sequence[float]
) -> Array:
    """Return the parameters (as logarithms) whose curve lies nearest to `observed`, by damped Gauss-Newton steps.

    The best of several starts is taken. Steps are cut to the bounds; the loss is Huber's on log differences.
    """
    lower, upper, target = np.asarray(low), np.asarray(high), np.log(observed)
    best, best_loss = np.clip(np.asarray(starts[0], dtype=np.float64), lower, upper), math.inf

    def residual(x: Array) -> Array:
        return np.asarray(np.log(np.maximum(model(x), 1e-300)) - target)

    def loss(r: Array) -> float:
        size = np.abs(r)
        return float(np.sum(np.where(size <= HUBER, size**2, 2 * HUBER * size - HUBER**2)))

    for start in starts:
        x, damping = np.clip(np.asarray(start, dtype=np.float64), lower, upper), 1e-2
        r = residual(x)
        now = loss(r)
        for _ in range(ROUNDS):
            step = _step(residual, x, r, damping)
            moved = np.clip(x + step, lower, upper)
            r_moved = residual(moved)
            after = loss(r_moved)
            if after < now:
                done = now - after < 1e-9 * now
                x, r, now, damping = moved, r_moved, after, damping / 3
                if done:
                    break
            else:
                damping *= 4
                if damping > 1e8:
                    break
        if now < best_loss:
            best, best_loss = x, now
    return best


def _step(residual: Callable[[Array], Array], x: Array, r: Array, damping: float) -> Array:
    jacobian = np.stack([(residual(x + d) - r) / 1e-5 for d in np.eye(len(x)) * 1e-5], axis=1)
    weight = np.minimum(1.0, HUBER / np.maximum(np.abs(r), 1e-12))
    normal = jacobian.T @ (weight[:, None] * jacobian)
    normal += damping * np.diag(np.diag(normal) + 1e-9)
    return np.asarray(-np.linalg.solve(normal, jacobian.T @ (weight * r)))


def fit_link(link: Link) -> Fit | None:
    """Return the soft knee t = (a^p + (wire / W)^p)^(1/p) of a sweep, or None where it has fewer than three sizes."""
    if len(link.points) < 3:
        return None
    wire = np.array([p.bytes for p in link.points], dtype=np.float64) * float(wire_factor(link.op, link.n))
    t = np.array([p.seconds.median for p in link.points])
    judged = link_bytes_per_s(link)
    rate = judged or float(wire[-1] / t[-1])

    def model(x: Array) -> Array:
        return soft_maximum(np.exp(x[0]), wire / np.exp(x[1]), float(np.exp(x[2])))

    starts = [(math.log(t[0] * share), math.log(rate), math.log(p)) for share in (0.9, 0.3) for p in (0.6, 1.0, 2.0)]
    bounds = ((math.log(1e-8), math.log(rate / 10), math.log(KNEE_EXPONENTS[0])), (math.log(10.0), math.log(rate * 3), math.log(KNEE_EXPONENTS[1])))  # fmt: skip
    found = least_logs(model, t, starts, *bounds)
    alpha, W, p = (float(v) for v in np.exp(found))
    params = {"alpha_s": alpha, "bytes_per_s": W, "exponent": p}
    if judged is not None:
        params["theil_sen_bytes_per_s"] = judged
    return Fit(
        target=link_key(link),
        form="soft_knee",
        params=params,
        plateau=float(wire[-1] / t[-1]),
        range=(float(link.points[0].bytes), float(link.points[-1].bytes)),
        residual=_residual(model(found), t),
        spread_pct=_spread([q.seconds.spread for q in link.points if q.bytes >= LARGE_BYTES]),
        estimator="log-Huber on medians; theil_sen_bytes_per_s: Theil-Sen on minima of 1 MB and more",
    )


def fit_gemm(points: Sequence[Gemm], dtype: str, least: int = 5) -> Fit | None:
    """Return the p-norm of compute and byte time plus t0 through products of one dtype; None below `least` points."""
    if len(points) < least:
        return None
    m, n, k = (np.array([getattr(g, axis) for g in points], dtype=np.float64) for axis in "mnk")
    t = np.array([g.seconds.median for g in points])
    e = ELEMENT_BYTES.get(dtype, 2.0)
    output = np.array([ACCUMULATED_BYTES if g.accumulate else max(e, 2.0) for g in points])
    flops, nbytes = 2.0 * m * n * k, e * (m * k + k * n) + output * m * n
    F0, W0 = float(np.max(flops / t)), float(np.max(nbytes / t))

    def model(x: Array) -> Array:
        F, W, p, t0 = np.exp(x)
        return np.asarray(soft_maximum(flops / F, nbytes / W, float(p)) + t0)

    low = (math.log(F0 / 10), math.log(W0 / 3), math.log(PRODUCT_EXPONENTS[0]), math.log(1e-9))
    high = (math.log(F0 * 1.5), math.log(W0 * 1000), math.log(PRODUCT_EXPONENTS[1]), math.log(float(t.min()) * 0.95))
    starts = [(math.log(F0), math.log(W0 * w), math.log(2.0), math.log(float(t.min()) * s)) for w in (2, 20) for s in (0.02, 0.4)]
    found = least_logs(model, t, starts, low, high)
    F, W, p, t0 = (float(v) for v in np.exp(found))
    return Fit(
        target=f"gemm {dtype}",
        form="p_norm",
        params={"flops_per_s": F, "bytes_per_s": W, "exponent": p, "fixed_s": t0},
        plateau=F0,
        range=(float(flops.min()), float(flops.max())),
        residual=_residual(model(found), t),
        spread_pct=_spread([g.seconds.spread for g in points]),
        estimator="log-Huber on medians",
    )


def fit_attention(points: Sequence[AttentionPoint], dtype: str, *, backward: bool, least: int = 3) -> Fit | None:
    """Return F by head size, half length and t0 of attention in one direction; None below `least` points.

    t = FLOP / F(d) x (1 + l0 / l) + t0 with l the keys that a query sees on average.
    """
    if len(points) < least:
        return None
    shape = attention_shape(points)
    flops = shape.backward_flops if backward else shape.forward_flops
    t = np.array([a.seconds.median for a in points])
    dims = sorted(set(shape.mean_dim.tolist()))
    at = np.searchsorted(dims, shape.mean_dim)
    reached = [float(np.max((flops / t)[at == i])) for i in range(len(dims))]

    def model(x: Array) -> Array:
        F, l0, t0 = np.exp(x[:-2])[at], np.exp(x[-2]), np.exp(x[-1])
        return np.asarray(flops / F * (1.0 + l0 / shape.length) + t0)

    logs, first = [math.log(f) for f in reached], float(t.min())
    starts = [(*[x + 0.1 for x in logs], math.log(l0), math.log(first * 0.1)) for l0 in (8.0, 200.0)]
    low = (*[x - 1.0 for x in logs], math.log(0.1), math.log(1e-9))
    high = (*[x + 1.5 for x in logs], math.log(8192.0), math.log(first * 0.9))
    found = least_logs(model, t, starts, low, high)
    values = np.exp(found)
    params = {f"flops_per_s_at_{d:g}": float(v) for d, v in zip(dims, values[:-2], strict=True)}
    return Fit(
        target=f"attention {dtype} {'backward' if backward else 'forward'}",
        form="half_length",
        params={**params, "half_length": float(values[-2]), "fixed_s": float(values[-1])},
        plateau=max(reached),
        range=(float(flops.min()), float(flops.max())),
        residual=_residual(model(found), t),
        spread_pct=_spread([a.seconds.spread for a in points]),
        estimator="log-Huber on medians",
    )


def fit_stream(points: Sequence[Stream], kind: str) -> Fit | None:
    """Return bytes / W + t0 of a byte-bound kernel, all directions together; None below two sizes."""
    size, t = merged_streams(points)
    return _affine(f"stream {kind}", size, t, [p.seconds.spread for p in points])


def fit_host_copies(points: Sequence[HostCopy], direction: str) -> Fit | None:
    """Return bytes / W + t0 of copies in one direction; None below two sizes."""
    own = [p for p in points if p.direction == direction]
    return _affine(host_key(direction), *copied(own), [p.seconds.spread for p in own])


def _affine(target: str, size: Array, t: Array, spreads: Sequence[float]) -> Fit | None:
    if len(size) < 2:
        return None
    W0 = float(np.max(size / t))

    def model(x: Array) -> Array:
        return np.asarray(size / np.exp(x[0]) + np.exp(x[1]))

    first = float(t.min())
    starts = [(math.log(W0), math.log(first * share)) for share in (0.02, 0.5)]
    found = least_logs(model, t, starts, (math.log(W0 / 20), math.log(1e-9)), (math.log(W0 * 2), math.log(first)))
    return Fit(
        target=target,
        form="affine",
        params={"bytes_per_s": float(np.exp(found[0])), "fixed_s": float(np.exp(found[1]))},
        plateau=W0,
        range=(float(size.min()), float(size.max())),
        residual=_residual(model(found), t),
        spread_pct=_spread(spreads),
        estimator="log-Huber on medians",
    )


def fits_of(calibration: Calibration) -> tuple[Fit, ...]:
    """Return every fit that the samples of a calibration support."""
    found: list[Fit | None] = []
    products: dict[str, list[Gemm]] = defaultdict(list)
    for g in calibration.gemms:
        products[g.dtype].append(g)
    found += [fit_gemm(points, dtype) for dtype, points in products.items()]
    cores: dict[tuple[str, bool], list[AttentionPoint]] = defaultdict(list)
    for a in calibration.attentions:
        cores[a.dtype, a.backward].append(a)
    found += [fit_attention(points, dtype, backward=back) for (dtype, back), points in cores.items()]
    streams: dict[str, list[Stream]] = defaultdict(list)
    for s in calibration.memory:
        streams[s.op].append(s)
    found += [fit_stream(points, kind) for kind, points in streams.items()]
    found += [fit_host_copies(calibration.host_copies, d) for d in dict.fromkeys(p.direction for p in calibration.host_copies)]
    found += [fit_link(link) for link in calibration.links]
    return tuple(f for f in found if f is not None)


def fitted(calibration: Calibration) -> Calibration:
    """Return the calibration with its fits derived again from its samples."""
    return calibration.model_copy(update={"fits": fits_of(calibration), "fits_version": FITS_VERSION})


def _residual(predicted: Array, observed: Array) -> dict[str, float]:
    error = np.abs(predicted / observed - 1.0) * 100
    return {"median_pct": float(np.median(error)), "max_pct": float(error.max()), "n": float(len(error))}


def _spread(spreads: Sequence[float]) -> float:
    return max(LEAST_SPREAD, 100 * float(np.median(spreads))) if len(spreads) else LEAST_SPREAD
