"""Error statistics: of a group of runs, of a ranking of layouts, and of the naive predictor that ours must beat.

An error is predicted / measured - 1. Median, mean and 90th percentile are of its absolute value; the bias is the median of the
signed error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one group of runs, as shares (0.1 is 10 %)."""

    group: str
    count: int
    median: float
    mean: float
    p90: float
    bias: float  # median of the signed error
    worst: float  # signed error of the largest size


def errors_of(group: str, signed: ArrayLike) -> Errors:
    """Return the statistics of signed errors [-]; raises ValueError for none.

    Examples
    --------
    >>> e = errors_of("all", [0.1, -0.2, 0.3])
    >>> e.count, round(e.median, 3), round(e.mean, 3), round(e.p90, 3), round(e.bias, 3), round(e.worst, 3)
    (3, 0.2, 0.2, 0.28, 0.1, 0.3)
    """
    x = np.asarray(signed, dtype=np.float64)
    if not x.size:
        raise ValueError("no errors to summarise")
    size = np.abs(x)
    return Errors(
        group=group,
        count=int(x.size),
        median=float(np.median(size)),
        mean=float(np.mean(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(np.median(x)),
        worst=float(x[np.argmax(size)]),
    )


def ranks(values: ArrayLike) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return ranks from 0; equal values share the mean of their ranks.

    Examples
    --------
    >>> ranks([3.0, 1.0, 3.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    x = np.asarray(values, dtype=np.float64)
    _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
    first = np.cumsum(count) - count
    return np.asarray((first + (count - 1) / 2)[inverse], dtype=np.float64)


def spearman(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Return Spearman's rank correlation [-]: 1 where both orders agree; 0 where one side is constant.

    Examples
    --------
    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    a, b = ranks(predicted), ranks(measured)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / size) if size else 0.0


def regret(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Return how much slower the layout predicted fastest was measured to be than the fastest [-].

    Examples
    --------
    >>> round(regret([1.0, 2.0], [1.1, 1.0]), 3)
    0.1
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return float(m[np.argmin(p)] / m.min() - 1)


def naive_seconds(flops: Sequence[float], gpus: Sequence[float], measured: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return seconds [s] as one FLOP/s of each group predicts them: the median over the group's own runs.

    The median is taken from the runs that are then predicted, so this predictor is flattered.

    Examples
    --------
    >>> naive_seconds([10, 20, 30], [1, 1, 1], [1, 2, 6], ["a", "a", "a"])
    [1.0, 2.0, 3.0]
    """
    rates: dict[str, list[float]] = {}
    for f, n, t, g in zip(flops, gpus, measured, groups, strict=True):
        rates.setdefault(g, []).append(f / n / t)
    middle = {g: float(np.median(r)) for g, r in rates.items()}
    return [f / n / middle[g] for f, n, g in zip(flops, gpus, groups, strict=True)]
