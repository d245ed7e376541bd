"""Collectives inside a scale-up domain as they were measured: interpolated, not fitted.

A curve holds seconds by bytes for one operation and one group size. Between sizes it is linear in the logarithms; beyond
the last size it goes on at the rate of the last step. Between group sizes the logarithm of the time is interpolated over
the logarithm of the size; beyond the largest one the same bytes on the wire are priced, and the latency grows by hops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from parlay.rates.interface import Array, Collective
from parlay.rates.kernels import real
from parlay.rates.network import Domain, wire_factor


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one operation and group size by bytes of the whole buffer; both ascending."""

    nbytes: Array
    time_s: Array
    log_nbytes: Array = dataclasses.field(init=False, repr=False, compare=False)
    log_time_s: Array = dataclasses.field(init=False, repr=False, compare=False)
    beyond: float = dataclasses.field(init=False, repr=False, compare=False)  # seconds of a byte more than the last size

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_nbytes", np.log(self.nbytes))
        object.__setattr__(self, "log_time_s", np.log(self.time_s))
        last = (self.time_s[-1] - self.time_s[-2]) / (self.nbytes[-1] - self.nbytes[-2]) if len(self.nbytes) > 1 else 0.0
        object.__setattr__(self, "beyond", float(last))

    def seconds(self, nbytes: Array) -> Array:
        """Return the seconds of a buffer of `nbytes`."""
        S = np.maximum(nbytes, self.nbytes[0])
        inside = np.exp(np.interp(np.log(S), self.log_nbytes, self.log_time_s))
        return real(inside + np.maximum(S - self.nbytes[-1], 0.0) * self.beyond)


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """Collectives by measured curves; what was not measured falls back to the constants of `plain`."""

    curves: Mapping[str, Mapping[int, Curve]]
    plain: Domain
    scale: float = 1.0  # bytes/s of this link over those of the measured one
    sizes: Mapping[str, tuple[list[int], Array]] = dataclasses.field(
        init=False, repr=False, compare=False
    )  # and their logarithms

    def __post_init__(self) -> None:
        sizes = {op: sorted(curves) for op, curves in self.curves.items()}
        object.__setattr__(self, "sizes", {op: (n, np.log(np.array(n, dtype=np.float64))) for op, n in sizes.items()})

    def seconds(self, op: Collective, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
        """Return the seconds of a collective whose ranks all sit in one domain."""
        if op not in self.curves:
            return self.plain.seconds(op, nbytes, ranks)
        S, n = real(nbytes) / self.scale, real(ranks)
        sizes, axis = self.sizes[op]
        wire = wire_factor(op, n) * S
        at = np.log(np.minimum(np.maximum(n, sizes[0]), sizes[-1]))
        i = np.minimum(np.maximum(np.searchsorted(axis, at, side="right") - 1, 0), len(sizes) - 2)
        share = (at - axis[i]) / (axis[i + 1] - axis[i])
        logs: Array = np.zeros(np.broadcast(S, n).shape)
        for j, size in enumerate(sizes):  # each curve only if some group lies on it or beside it
            part = np.where(i == j, 1.0 - share, np.where(i + 1 == j, share, 0.0))
            if part.any():
                logs = logs + part * np.log(self._at(op, size, S, n, wire))
        return real(np.where(n > 1, np.exp(logs), 0.0))

    def _at(self, op: Collective, size: int, S: Array, n: Array, wire: Array) -> Array:
        """Return the seconds by the curve of `size` ranks, stretched for groups that are larger than any measured one."""
        curve = self.curves[op][size]
        if size != self.sizes[op][0][-1]:
            return curve.seconds(S)
        reduced = (op == "all_reduce") & (n >= self.plain.switch_ranks) & (size < self.plain.switch_ranks)
        stretched = wire / wire_factor(op, size) / np.where(reduced, self.plain.switch_gain, 1.0)
        more = np.maximum(self.plain.latency(op, n) - self.plain.latency(op, size), 0.0)
        return real(np.where(n > size, curve.seconds(stretched) + more, curve.seconds(S)))
