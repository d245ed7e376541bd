"""Guards for formula arguments: a failure names the argument, its value, where it sits, and what is allowed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Real = NDArray[np.float64] | np.float64


class FormulaDomainError(ValueError):
    """An argument lies outside the domain where the formula means anything."""


def real(name: str, value: ArrayLike, *, low: float, high: float = np.inf, open_low: bool = False) -> Real:
    """Return `value` as float64, or raise if any element leaves [low, high] (or (low, high] if `open_low`)."""
    # Most arguments are plain numbers or arrays of one element: they need no array operations.
    one = value.item() if type(value) is np.ndarray and value.size == 1 and value.dtype == np.float64 else value
    if type(one) in (int, float) and (low < one if open_low else low <= one) and one <= high:  # type: ignore[operator]
        return value[()] if type(value) is np.ndarray else np.float64(one)  # type: ignore[arg-type]
    x = np.asarray(value, dtype=np.float64)
    if x.size and (low < x.min() if open_low else low <= x.min()) and (high == np.inf or x.max() <= high):  # not so with a NaN
        return x[()]
    inside = x > low if open_low else x >= low
    if high != np.inf:
        inside = inside & (x <= high)
    if not inside.all():
        first = np.unravel_index(np.argmin(inside), x.shape)
        where = f" at index {tuple(int(i) for i in first)}" if x.ndim else ""
        bound = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if np.isfinite(high) else "")
        raise FormulaDomainError(f"`{name}` must be {bound}, got {x[first]:g}{where}")
    return x[()]


def whole(name: str, value: ArrayLike, *, low: float, high: float = np.inf) -> Real:
    """Return `value` as float64 whole numbers within [low, high], or raise naming the first that is not."""
    x = np.asarray(real(name, value, low=low, high=high))
    off = x != np.floor(x)
    if off.any():
        first = np.unravel_index(np.argmax(off), x.shape)
        where = f" at index {tuple(int(i) for i in first)}" if x.ndim else ""
        raise FormulaDomainError(f"`{name}` must be a whole number, got {x[first]:g}{where}")
    return x[()]
