"""Seconds of kernels on one device: products, grouped products, attention, byte streams.

Legend: t seconds; F FLOP/s reached; W bytes/s reached; p exponent of the soft maximum; t0 fixed seconds of a kernel;
e bytes per element; m, n, k sizes of a product; l mean number of keys a query sees. One formula for every device: a
datasheet and a measured profile differ only in the constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.rates.interface import Array

# Bytes per element of a product's inputs; its output is two bytes wide unless the inputs are wider.
ELEMENT_BYTES: Mapping[str, float] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp6": 0.75, "fp4": 0.5,
}  # fmt: skip
ACCUMULATED_BYTES = 8.0  # an fp32 element read and written


def real(value: ArrayLike) -> Array:
    """Return `value` as an array of float64."""
    return np.asarray(value, dtype=np.float64)


def soft_maximum(first: ArrayLike, second: ArrayLike, exponent: float) -> Array:
    """Return (first^p + second^p)^(1/p): the larger of two times where they differ, more where they meet.

    p = 1 adds them, p = infinity takes the larger one; p < 1 charges more than the sum (a pipe that fills slowly).
    """
    a, b = real(first), real(second)
    high = real(np.maximum(a, b))
    ratio = np.divide(np.minimum(a, b), high, out=np.zeros(high.shape), where=high > 0)
    if exponent == 1.0:
        return real(high * (1.0 + ratio))
    if exponent == 2.0:
        return real(high * np.sqrt(1.0 + ratio * ratio))
    with np.errstate(divide="ignore"):  # log(0) = -inf gives exp(-inf) = 0, which is meant
        return real(high * np.exp(np.log1p(np.exp(exponent * np.log(ratio))) / exponent))


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """Constants of a matrix product in one dtype: t = (t_F^p + t_B^p)^(1/p) + t0, never below FLOP / peak."""

    peak_flops_per_s: float
    flops_per_s: float
    bytes_per_s: float
    exponent: float
    fixed_s: float
    element_bytes: float

    def seconds(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, accumulate: bool = False) -> Array:
        """Return the seconds of m x k by k x n; added to an fp32 matrix if `accumulate`, as weight gradients are."""
        M, N, K = real(m), real(n), real(k)
        flops = 2.0 * M * N * K
        output_bytes = ACCUMULATED_BYTES if accumulate else max(self.element_bytes, 2.0)
        nbytes = self.element_bytes * (M * K + K * N) + output_bytes * M * N
        work = soft_maximum(flops / self.flops_per_s, nbytes / self.bytes_per_s, self.exponent)
        return real(np.where(flops > 0, np.maximum(work, flops / self.peak_flops_per_s) + self.fixed_s, 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Residuals:
    """Measured over formula time of products on a grid of shapes; between nodes linear in the logarithms."""

    axes: tuple[Array, Array, Array]  # logarithms of m, n and k, ascending
    logs: Array  # log(measured / formula) at the nodes

    @classmethod
    def of(cls, m: ArrayLike, n: ArrayLike, k: ArrayLike, logs: ArrayLike) -> Residuals:
        """Return the residuals of a grid whose axes are given as sizes."""
        return cls((np.log(real(m)), np.log(real(n)), np.log(real(k))), real(logs))

    def factor(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        """Return what to multiply the formula's seconds by; outside the grid as at its edge."""
        (i, x), (j, y), (r, z) = (self._place(np.log(np.maximum(real(v), 1.0)), axis) for v, axis in zip((m, n, k), self.axes))
        rows, columns = self.logs.shape[1:]
        # The eight corners around each product, then linear along m, n and k in turn: most often only one of these is an array.
        corners = np.array([(a * rows + b) * columns + c for a in (0, 1) for b in (0, 1) for c in (0, 1)])
        at = np.asarray((i * rows + j) * columns + r)
        found = self.logs.ravel()[at[..., None] + corners]
        for share in (x, y, z):
            half = found.shape[-1] // 2
            found = found[..., :half] + np.asarray(share)[..., None] * (found[..., half:] - found[..., :half])
        return real(np.exp(found[..., 0]))

    @staticmethod
    def _place(x: Array, axis: Array) -> tuple[NDArray[np.intp], Array]:
        # searchsorted over the inner nodes cannot leave the grid
        i = np.searchsorted(axis[1:-1], x, side="right")
        return i, np.minimum(np.maximum((x - axis[i]) / (axis[i + 1] - axis[i]), 0.0), 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class GroupedProduct:
    """Constants of many products of one layer. A group of r rows computes as if it had r + `padding_rows`.

    Where each group is a launch of its own, the host cannot start them faster than one every `group_s`.
    """

    product: Product
    flops_share: float  # FLOP/s of the grouped kernel over that of one large product
    padding_rows: float
    group_s: float  # 0 where one kernel holds all groups

    def seconds(self, rows: ArrayLike, groups: ArrayLike, n: ArrayLike, k: ArrayLike, *, weight_gradient: bool = False) -> Array:
        """Return the seconds of `groups` products that share `rows` rows evenly.

        Forward and input gradient multiply rows x k by k x n; the weight gradient k x rows by rows x n, added in fp32.
        """
        R, N, K = real(rows), real(n), real(k)
        G = np.minimum(real(groups), R)  # a group without rows costs nothing
        c = self.product
        flops = 2.0 * (R + G * self.padding_rows) * N * K
        weights, outputs = (
            (ACCUMULATED_BYTES, c.element_bytes) if weight_gradient else (c.element_bytes, max(c.element_bytes, 2.0))
        )
        nbytes = c.element_bytes * R * K + weights * G * K * N + outputs * R * N
        work = soft_maximum(flops / (c.flops_per_s * self.flops_share), nbytes / c.bytes_per_s, c.exponent)
        least = np.maximum(2.0 * R * N * K / c.peak_flops_per_s, G * self.group_s)
        return real(np.where(R * N * K > 0, np.maximum(work, least) + c.fixed_s, 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """Constants of fused attention in one direction: t = FLOP / F(d) x (l0 / l + (1, u0 / u)_q) + bytes / W + t0.

    l = keys x score_share is what a query sees on average, u = batch x heads x queries the rows that can run at once:
    short loops and few rows leave a device idle; (,)_q is the soft maximum with exponent q.
    F(d) is interpolated over the mean head size (qk + v) / 2.
    """

    peak_flops_per_s: float
    head_dims: tuple[float, ...]
    flops_per_s: tuple[float, ...]  # one a head size
    half_length: float  # l0
    half_rows: float  # u0
    rows_exponent: float  # q
    bytes_per_s: float
    fixed_s: float
    element_bytes: float = 2.0

    def seconds(self, flops: Array, nbytes: Array, mean_dim: Array, length: Array, rows: Array) -> Array:
        """Return the seconds of `flops` over `rows` rows that see `length` keys each."""
        F = np.interp(mean_dim, self.head_dims, self.flops_per_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = soft_maximum(1.0, self.half_rows / rows, self.rows_exponent)
            work = flops / F * (self.half_length / length + busy) + nbytes / self.bytes_per_s
            least = flops / self.peak_flops_per_s
            return real(np.where(flops > 0, np.maximum(work, least) + self.fixed_s, 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionShape:
    """Work of fused attention, both directions counted as flash attention does them."""

    forward_flops: Array
    backward_flops: Array
    forward_elements: Array
    backward_elements: Array
    mean_dim: Array
    length: Array
    rows: Array

    @classmethod
    def of(
        cls,
        queries: ArrayLike,
        keys: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        qk_dim: ArrayLike,
        v_dim: ArrayLike,
        score_share: ArrayLike,
        batch: ArrayLike,
    ) -> AttentionShape:
        """Return FLOPs and elements moved. Backward is five products where forward is two: three over qk, two over v."""
        q, s, h, g, dk, dv, share, b = (real(x) for x in (queries, keys, heads, kv_heads, qk_dim, v_dim, score_share, batch))
        scores = 2.0 * b * h * q * s * share
        reads = b * (q * h * dk + s * g * (dk + dv))
        writes = b * q * h * dv
        return cls(
            forward_flops=scores * (dk + dv),
            backward_flops=scores * (3.0 * dk + 2.0 * dv),
            forward_elements=reads + writes,
            backward_elements=2.0 * reads + 2.0 * writes,  # reads q k v o do, writes dq dk dv
            mean_dim=(dk + dv) / 2.0,
            length=s * share,
            rows=b * h * q,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Streams:
    """Constants of bandwidth-bound kernels: t = bytes / (share of peak x peak) + t0, one share a kind."""

    bytes_per_s: float
    shares: Mapping[str, float]
    fixed_s: float

    def seconds(self, nbytes: ArrayLike, kind: str) -> Array:
        """Return the seconds of a kernel of `kind` that moves `nbytes`."""
        size = real(nbytes)
        return real(np.where(size > 0, size / (self.bytes_per_s * self.shares[kind]) + self.fixed_s, 0.0))
