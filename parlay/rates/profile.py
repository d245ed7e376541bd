"""Rates from a shipped profile: what was measured on this device, or on its nearest relative, scaled.

A profile says for products, attention and collectives what a table of measured kernels fits to, how far the fit lies from
points it never saw, and how much slower a device runs under a training load than in those short bursts. What a profile
does not hold (most byte streams, the network between domains, host copies, launch gaps) stays a default.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from parlay.hardware.spec import Cluster, Device
from parlay.rates.curves import Curve, MeasuredDomain
from parlay.rates.datasheet import (
    GROUP_S,
    GROUPED_FLOPS_SHARE,
    GROUPED_PADDING_ROWS,
    DatasheetRates,
    backward_share,
    datasheet_rates,
)
from parlay.rates.in_step import Factors, factor_of
from parlay.rates.interface import Array, Beside, Collective, Group, HostDirection, Priced, Stream
from parlay.rates.kernels import ELEMENT_BYTES, Attention, AttentionShape, GroupedProduct, Product, Residuals, Streams, real
from parlay.rates.network import Network

FOLDER = Path(__file__).parent / "profiles"
# A cooler or hotter relative: the clock that a power limit leaves goes with the square root of the power per peak FLOP/s
# (dynamic power is f V^2, and V falls with f). An assumption, used only where nobody measured the device itself.
POWER_EXPONENT = 0.5
SAME_LINK = 0.05  # a scale-up link within 5 % of the measured one is the same link
HALF_DTYPES = ("bf16", "fp16")  # one tensor-core rate

Origin = Literal["profile", "datasheet"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExactShapes:
    """Products whose time a training stack measured: keys of (m, n, k), sorted, and their share of the peak."""

    keys: Array
    shares: Array
    peak_flops_per_s: float

    @staticmethod
    def key(m: Array, n: Array, k: Array) -> Array:
        """Return one number for each (m, n, k); exact below 2^17 in each."""
        return (m * 2.0**17 + n) * 2.0**17 + k

    def replace(self, seconds: Array, m: Array, n: Array, k: Array) -> Array:
        """Return `seconds` with those of measured shapes put in."""
        small = np.maximum(np.maximum(m, n), k) < 2.0**17
        for wanted in (self.key(n, m, k), self.key(m, n, k)):  # the transposed product is the same work; as given wins
            at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            hit = (self.keys[at] == wanted) & small
            if not hit.any():
                continue
            seconds = np.where(hit, 2.0 * m * n * k / (self.shares[at] * self.peak_flops_per_s), seconds)
        return real(seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """Constants of grouped products (see kernels.GroupedProduct) and where they come from."""

    flops_share: float
    padding_rows: float
    group_s: float
    origin: Origin | Literal["default"]


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileRates:
    """Rates from a profile, with datasheet defaults for what it lacks; build it with `profile_rates`."""

    name: str
    base: DatasheetRates
    origin: Origin
    products: Mapping[str, Product]
    residuals: Residuals | None
    exact: ExactShapes | None
    forward: Attention
    backward: Attention
    forward_origin: Origin
    backward_origin: Origin | Literal["default"]
    fused: Grouping
    launched: Grouping
    measured_streams: Mapping[str, float]
    network: Network
    network_origin: Origin | Literal["default"]
    about: Mapping[str, str]
    in_step: Mapping[str, float]  # share of a product's own FLOP/s that is left inside a training step, by dtype

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Seconds of one m x k by k x n product."""
        product = self.products.get(dtype)
        if product is None:
            return self.base.gemm(m, n, k, dtype, accumulate=accumulate)
        M, N, K = real(m), real(n), real(k)
        seconds = product.seconds(M, N, K, accumulate=accumulate)
        if dtype in HALF_DTYPES:
            if self.residuals is not None:
                seconds = seconds * self.residuals.factor(M, N, K)
            if self.exact is not None:
                seconds = self.exact.replace(seconds, M, N, K)
        seconds = np.maximum(seconds, 2.0 * M * N * K / product.peak_flops_per_s) / self.in_step.get(dtype, 1.0)
        return Priced(real(seconds), self.origin)

    def grouped_gemm(
        self,
        rows: ArrayLike,
        groups: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        *,
        fused: bool = True,
        weight_gradient: bool = False,
    ) -> Priced:
        """Seconds of `groups` products of rows/groups x k by k x n."""
        product = self.products.get(dtype)
        if product is None:
            return self.base.grouped_gemm(rows, groups, n, k, dtype, fused=fused, weight_gradient=weight_gradient)
        which = self.fused if fused else self.launched
        kernel = GroupedProduct(product, which.flops_share, which.padding_rows, which.group_s)
        seconds = kernel.seconds(rows, groups, n, k, weight_gradient=weight_gradient) / self.in_step.get(dtype, 1.0)
        # Groups launched one after the other as plain products are always a way to do it, so no grouped kernel is slower.
        count = np.maximum(np.minimum(real(groups), real(rows)), 1.0)
        each = real(rows) / count
        if weight_gradient:
            alone = count * (self.gemm(k, n, each, dtype, accumulate=True).seconds + which.group_s)
        else:
            alone = count * (self.gemm(each, n, k, dtype).seconds + which.group_s)
        return Priced(real(np.minimum(seconds, alone)), which.origin)

    def attention(
        self,
        queries: ArrayLike,
        keys: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        qk_dim: ArrayLike,
        v_dim: ArrayLike,
        *,
        score_share: ArrayLike,
        batch: ArrayLike = 1,
        backward: bool = False,
        dtype: str = "bf16",
    ) -> Priced:
        """Seconds of fused attention in one direction."""
        if dtype not in HALF_DTYPES:
            return self.base.attention(
                queries,
                keys,
                heads,
                kv_heads,
                qk_dim,
                v_dim,
                score_share=score_share,
                batch=batch,
                backward=backward,
                dtype=dtype,
            )
        shape = AttentionShape.of(queries, keys, heads, kv_heads, qk_dim, v_dim, score_share, batch)
        kernel = self.backward if backward else self.forward
        flops = shape.backward_flops if backward else shape.forward_flops
        nbytes = (shape.backward_elements if backward else shape.forward_elements) * kernel.element_bytes
        seconds = kernel.seconds(flops, nbytes, shape.mean_dim, shape.length, shape.rows)
        return Priced(seconds, self.backward_origin if backward else self.forward_origin)

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Seconds of a bandwidth-bound kernel that reads and writes `nbytes` in all."""
        if kind not in self.measured_streams:
            return self.base.stream(nbytes, kind)
        streams = self.base.streams
        seconds = Streams(streams.bytes_per_s, self.measured_streams, streams.fixed_s).seconds(nbytes, kind)
        return Priced(seconds, self.origin)

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Seconds of a collective over `group`; a group that leaves the domain counts as default."""
        leaves = bool((real(group.size) > real(group.local)).any())
        measured = op in getattr(self.network.domain, "curves", ()) and not leaves
        return Priced(self.network.seconds(op, nbytes, group), self.network_origin if measured else "default")

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Seconds of a copy between one GPU and its host, one direction."""
        return self.base.host_copy(nbytes, direction)

    def launch(self) -> Priced:
        """Seconds between two short kernels that the host launches one after the other."""
        return self.base.launch()

    def beside(self) -> Beside | None:
        """Return the default: the profiles hold no compute beside a transfer."""
        return self.base.beside()

    def describe(self) -> dict[str, str]:
        """Return where each rate comes from and how far its fit lies from points it never saw."""
        return {**self.base.describe(), **self.about}


@lru_cache(maxsize=16)
def load_profile(name: str) -> dict[str, Any]:
    """Return the profile of a device as written by scripts/fit_rates.py; do not change it."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


# Peak bf16 FLOP/s and memory bytes/s of each profile, so that choosing a relative opens one file, not eight.
KNOWN: Mapping[str, tuple[str, float, float]] = {
    "a100-sxm": ("ampere", 312e12, 2.039e12),
    "h100-sxm": ("hopper", 989e12, 3.35e12),
    "h200-sxm": ("hopper", 989e12, 4.8e12),
    "b200": ("blackwell", 2250e12, 7.7e12),
    "gb200": ("blackwell", 2450e12, 8.0e12),
    "b300": ("blackwell-ultra", 2250e12, 7.7e12),
    "gb300": ("blackwell-ultra", 2450e12, 8.0e12),
    "l40s": ("ada", 362.05e12, 0.864e12),
}


def profile_of(device: Device) -> str | None:
    """Return the profile of this device or of its nearest relative: same architecture, nearest peak and memory."""
    if device.rated_as in KNOWN:
        return device.rated_as
    peak = device.flops_per_s.get("bf16")
    if peak is None:
        return None

    def distance(name: str) -> float:
        _, flops, hbm = KNOWN[name]
        return abs(float(np.log(peak.value / flops))) + abs(float(np.log(device.hbm_bytes_per_s.value / hbm)))

    family = [name for name, known in KNOWN.items() if known[0] == device.architecture]
    return min(family, key=distance, default=None)


def profile_rates(cluster: Cluster, *, sustained: bool = True, in_step: Factors | None = None) -> ProfileRates | None:
    """Return rates from the profile of the cluster's device or its nearest relative, None where there is neither.

    Parameters
    ----------
    cluster : Cluster
        What to price; its datasheet peaks bound every rate and scale a relative's profile.
    sustained : bool
        Whether to count the clocks that the device holds under a training load (random data, steady state) instead
        of those of short bursts.
    in_step : mapping, optional
        Factors by device and width that replace the shipped ones of parlay.rates.in_step; they count if `sustained`.

    Notes
    -----
    A relative's profile keeps its efficiencies: FLOP/s scale with the peak, bytes/s with the memory, seconds of starting a
    kernel stay. Such rates are labelled "datasheet", one step below "profile".
    """
    device = cluster.device
    name = profile_of(device)
    if name is None:
        return None
    data, base = load_profile(name), datasheet_rates(cluster)
    own = name == device.rated_as
    origin: Origin = "profile" if own else "datasheet"
    forward, backward = _attention(data, device)
    grouped = data.get("grouped", {})
    network, measured = _network(data, base.network, cluster)
    streams: Mapping[str, float] = data.get("streams", {}).get("shares", {})
    return ProfileRates(
        name=f"profile:{name}" if own else f"profile:{name} scaled to {device.id}",
        base=base,
        origin=origin,
        products=_products(data, device, sustained),
        residuals=_residuals(data),
        exact=_exact(data) if own and sustained else None,
        forward=forward,
        backward=backward,
        forward_origin=_attention_origin(data["attention"]["forward"], origin),
        backward_origin=_attention_origin(data["attention"]["backward"], origin)
        if "backward" in data["attention"]
        else "default",
        fused=_grouping(grouped.get("fused"), origin, Grouping(GROUPED_FLOPS_SHARE, GROUPED_PADDING_ROWS, 0.0, "default")),
        launched=_grouping(grouped.get("launched"), origin, Grouping(GROUPED_FLOPS_SHARE, 0.0, GROUP_S, "default")),
        measured_streams=streams,
        network=network,
        network_origin=origin if measured else "default",
        about=_about(data, device, own, measured, sustained),
        in_step={str(d): factor_of(device.rated_as, d, in_step) for d in device.flops_per_s} if sustained else {},
    )


def _attention_origin(block: Mapping[str, Any], origin: Origin) -> Origin:
    """Return `origin`, but "datasheet" for a block that the fit itself scaled from a relative."""
    return "datasheet" if block["source"].startswith("scaled from") else origin


def _grouping(block: Mapping[str, float] | None, origin: Origin, default: Grouping) -> Grouping:
    if block is None:
        return default
    return Grouping(block["flops_share"], block.get("padding_rows", 0.0), block.get("group_s", 0.0), origin)


def _scale(data: Mapping[str, Any], device: Device) -> tuple[float, float]:
    """Return this device's bf16 peak and memory rate over those of the profile's."""
    flops = device.flops_per_s["bf16"].value / data["peak_flops_per_s"]["bf16"] if "bf16" in device.flops_per_s else 1.0
    return flops, device.hbm_bytes_per_s.value / data["hbm_bytes_per_s"]


def clock_factor(data: Mapping[str, Any], device: Device, dtype: str) -> float:
    """Return the share of burst FLOP/s that the device holds; 1 where no source says."""
    factors = data.get("sustained", {}).get("factors", {})
    factor = float(factors.get(dtype, 1.0))
    power = data.get("power_w")
    if data["device"] == device.rated_as or not factors or not power or device.power_w is None:
        return factor
    per_flop = (device.power_w.value / power) / _scale(data, device)[0]
    return float(min(1.0, factor * per_flop**POWER_EXPONENT))


def _products(data: Mapping[str, Any], device: Device, sustained: bool) -> dict[str, Product]:
    out = {}
    _, hbm = _scale(data, device)
    for dtype in device.flops_per_s:
        theirs = "bf16" if dtype in HALF_DTYPES else dtype
        block = data["gemm"].get(theirs)
        if block is None:
            continue
        peak = device.flops_per_s[dtype].value
        clock = clock_factor(data, device, theirs) if sustained and not block.get("sustained") else 1.0
        out[str(dtype)] = Product(
            peak_flops_per_s=peak,
            flops_per_s=block["flops_per_s"] * clock * peak / data["peak_flops_per_s"][theirs],
            bytes_per_s=block["bytes_per_s"] * hbm,
            exponent=block["exponent"],
            fixed_s=block["fixed_s"],
            element_bytes=ELEMENT_BYTES[dtype],
        )
    return out


def _residuals(data: Mapping[str, Any]) -> Residuals | None:
    block = data["gemm"]["bf16"].get("residuals")
    return None if block is None else residuals_of(block)


def residuals_of(block: Mapping[str, Any]) -> Residuals:
    """Return the residuals of a profile's block: those of further rows with it, a product and its transposed one the same."""
    shape = tuple(len(block[axis]) for axis in "mnk")
    m, n = [int(size) for size in block["m"]], [int(size) for size in block["n"]]
    rows, logs = further_rows(m, n, np.array(block["per_mille"]).reshape(shape) / 1000.0)
    return Residuals.of(rows, n, block["k"], either_way(rows, n, logs))


def either_way(m: Sequence[int], n: Sequence[int], logs: Array) -> Array:
    """Return a grid of residuals in which a product and its transposed one have their mean.

    They are the same work, of which one library's heuristics favour one way and the next version's the other; a training step runs all
    layouts besides. The 395 products that a training stack timed on B200 (`points`) lie 5.9 % from the curve at the median, less their
    common ratio, instead of 6.3 %. Only sizes that are rows and columns share: beyond a table's rows its transposed products are not
    taken for granted (`further_rows`).
    """
    shared = [size for size in m if size in n]
    at = np.ix_([m.index(size) for size in shared], [n.index(size) for size in shared])
    both = logs.copy()
    both[at] = (logs[at] + logs[at].swapaxes(0, 1)) / 2.0
    return both


def further_rows(m: Sequence[int], n: Sequence[int], logs: Array) -> tuple[list[int], Array]:
    """Return the rows of a grid of residuals, and its logs, with those rows more that only its columns reach.

    The A100's table ends at 8,192 rows, where a micro-batch of 16 sequences of 2,048 has 32,768, but its columns reach 65,536, and
    a product and its transposed one are the same work. The last row held beyond itself would keep what it alone has: tiles that
    leave multiprocessors idle in the last of few waves. Transposed products tell the A100's 8,192 rows to 4.6 % in the mean, the
    row before them to 9.3 %. A table that does not show them to be better keeps its last row.

    Parameters
    ----------
    m, n : sequence of int
        Rows and columns of the measured products, ascending. [-]
    logs : ndarray
        log(measured / formula) by m, n and k. [-]

    Returns
    -------
    tuple
        Rows and logs, the same where transposed products are not better. Columns that are no rows keep the last measured row. [-]
    """
    beyond = [size for size in n if size > m[-1]]
    if m[-1] not in n or not beyond:
        return list(m), logs
    shared = [size for size in m if size in n]
    rows, columns = [m.index(size) for size in shared], [n.index(size) for size in shared]
    transposed = logs[rows][:, [n.index(size) for size in (m[-1], *beyond)]].swapaxes(0, 1)
    last, before = logs[-1, columns[:-1]], logs[-2, columns[:-1]]
    if np.abs(transposed[0, :-1] - last).mean() >= np.abs(before - last).mean():
        return list(m), logs
    further = np.repeat(logs[-1:], len(beyond), axis=0)
    further[:, columns] = transposed[1:]
    return [*m, *beyond], np.concatenate([logs, further])


def _exact(data: Mapping[str, Any]) -> ExactShapes | None:
    if "points" not in data:
        return None
    m, n, k, share = np.array(data["points"]["shapes"], dtype=np.float64).T
    keys = ExactShapes.key(m, n, k)
    order = np.argsort(keys)
    return ExactShapes(keys[order], share[order], data["peak_flops_per_s"]["bf16"])


def _attention(data: Mapping[str, Any], device: Device) -> tuple[Attention, Attention]:
    flops, hbm = _scale(data, device)
    peak = device.flops_per_s["bf16"].value if "bf16" in device.flops_per_s else data["peak_flops_per_s"]["bf16"]

    def kernel(block: Mapping[str, Any], share: float = 1.0) -> Attention:
        return Attention(
            peak_flops_per_s=peak,
            head_dims=tuple(block["head_dims"]),
            flops_per_s=tuple(v * flops * share for v in block["flops_per_s"]),
            half_length=block["half_length"],
            half_rows=block["half_rows"] * min(flops, 1.0),  # fewer units need fewer rows; faster ones the same
            rows_exponent=block["rows_exponent"],
            bytes_per_s=block["bytes_per_s"] * hbm,
            fixed_s=block["fixed_s"],
        )

    # A cooler relative clocks attention down as it does products; the measured device's own tables hold what it keeps.
    flops *= clock_factor(data, device, "bf16") / data.get("sustained", {}).get("factors", {}).get("bf16", 1.0)
    tables = data["attention"]
    if "backward" in tables:
        return kernel(tables["forward"]), kernel(tables["backward"])
    return kernel(tables["forward"]), kernel(tables["forward"], backward_share(device))


def _network(data: Mapping[str, Any], plain: Network, cluster: Cluster) -> tuple[Network, bool]:
    """Return the network with measured curves inside the domain where the link is the measured one."""
    block = data["collective"]
    ratio = cluster.scale_up_link.bytes_per_s.value / block["link_bytes_per_s"]
    if abs(ratio - 1.0) > SAME_LINK:
        return plain, False
    curves = {
        op: {int(n): Curve(real(c["bytes"]), real(c["microseconds"]) * 1e-6) for n, c in sizes.items()}
        for op, sizes in block["curves"].items()
    }
    return dataclasses.replace(plain, domain=MeasuredDomain(curves, plain.default_domain)), True


def _about(data: Mapping[str, Any], device: Device, own: bool, measured: bool, sustained: bool) -> dict[str, str]:
    head = "profile" if own else f"scaled from {data['device']}"

    def line(block: Mapping[str, Any]) -> str:
        error = block.get("error", block.get("formula_error", {}))
        judged = "in sample, " if "fitted_points" in error else ""
        fit = f"; fit off by {judged}{error['median']:.1%} median, {error['p90']:.1%} p90, {error['max']:.0%} max"
        return f"{head}: {block['source']}{fit}"

    out = {f"gemm {dtype}": line(block) for dtype, block in data["gemm"].items()}
    out["gemm"] = out.pop("gemm bf16")
    out["attention"] = line(data["attention"]["forward"])
    if "backward" in data["attention"]:
        out["attention backward"] = line(data["attention"]["backward"])
    else:
        out["attention backward"] = f"default: {backward_share(device)} of the forward FLOP/s ({head} forward)"
    if "fused" in data.get("grouped", {}):
        out["grouped_gemm"] = line(data["grouped"]["fused"])
    if "launched" in data.get("grouped", {}):
        out["grouped_gemm not fused"] = line(data["grouped"]["launched"])
    if measured:
        out["collective"] = f"{line(data['collective'])}; beyond the scale-up domain: default"
    if "streams" in data:
        out["stream"] = f"{head} for {', '.join(data['streams']['shares'])}: {data['streams']['source']}; others default"
    if "sustained" in data and sustained:
        out["clock"] = f"{clock_factor(data, device, 'bf16'):.2f} of burst bf16 FLOP/s: {data['sustained']['source']}"
    return out
