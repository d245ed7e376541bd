"""Rates from a calibration file, over the rates that a cluster has without one.

For each piece of work the first of these that knows it answers: the measured point itself; interpolation between measured
points inside their range; the fitted curve outside it, where there are points enough for one; then the base (a shipped
profile, then datasheet defaults). The first three are labelled "calibrated", "interpolated" and "fitted", the base keeps its own label. A label covers all of a
call's array, so it is that of the least certain element.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from parlay.hardware.spec import Cluster
from parlay.rates.calibration_file import AttentionPoint, Calibration, Fit, Gemm, GroupedGemm, HostCopy, Link, Overlap
from parlay.rates.calibration_file import Stream as StreamPoint
from parlay.rates.curves import Curve
from parlay.rates.interface import Array, Beside, Collective, Group, HostDirection, Priced, Rates, Stream
from parlay.rates.kernels import Attention, AttentionShape, GroupedProduct, Product, real
from parlay.rates.network import wire_factor
from parlay.rates.points import (
    SOURCES,
    Answer,
    Products,
    Scatter,
    Sweep,
    attention_kernel,
    attention_shape,
    best_attention,
    best_rate,
    copied,
    level_of,
    link_key,
    merged_streams,
    on_curve,
    product_of,
)

Place = tuple[str, int, int]  # operation, ranks, ranks on each host
Kernel = TypeVar("Kernel")


@dataclasses.dataclass(frozen=True, slots=True)
class Around(Generic[Kernel]):
    """A kernel's curve, the measured points around it, and whether the curve is a fit that may go beyond them."""

    kernel: Kernel
    scatter: Scatter
    fitted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class CalibratedRates:
    """Rates from a calibration file over a base; build it with `calibrated_rates`."""

    name: str
    base: Rates
    products: Mapping[str, Products]
    groups: Mapping[tuple[str, bool], Around[GroupedProduct]]
    cores: Mapping[tuple[str, bool], Around[Attention]]
    streams: Mapping[str, Curve]
    host_copies: Mapping[str, Curve]
    sweeps: Mapping[Place, Sweep]
    launch_s: float | None
    together: Beside | None
    about: Mapping[str, str]

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Seconds of one m x k by k x n product."""
        product = self.products.get(dtype)
        if product is None:
            return self.base.gemm(m, n, k, dtype, accumulate=accumulate)
        M, N, K = np.broadcast_arrays(real(m), real(n), real(k))
        found = product.answer(M, N, K, accumulate=accumulate)
        return found.priced(lambda: self.base.gemm(M, N, K, dtype, accumulate=accumulate))

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
        R, G, N, K = np.broadcast_arrays(real(rows), real(groups), real(n), real(k))

        def base() -> Priced:
            return self.base.grouped_gemm(R, G, N, K, dtype, fused=fused, weight_gradient=weight_gradient)

        found = self.groups.get((dtype, fused))
        if found is None:
            return base()
        factor, level = found.scatter.factor(R, G, N, K)
        seconds = found.kernel.seconds(R, G, N, K, weight_gradient=weight_gradient) * factor
        # Only the forward is measured.
        return Answer.of(seconds, np.maximum(level, int(weight_gradient)), fitted=found.fitted).priced(base)

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

        def base() -> Priced:
            return self.base.attention(
                queries, keys, heads, kv_heads, qk_dim, v_dim, score_share=score_share, batch=batch, backward=backward, dtype=dtype
            )  # fmt: skip

        found = self.cores.get((dtype, backward))
        if found is None:
            return base()
        shape = AttentionShape.of(queries, keys, heads, kv_heads, qk_dim, v_dim, score_share, batch)
        factor, level = found.scatter.factor(*_core_axes(shape))
        return Answer.of(_core_seconds(found.kernel, shape, backward) * factor, level, fitted=found.fitted).priced(base)

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Seconds of a bandwidth-bound kernel that reads and writes `nbytes` in all."""
        curve = self.streams.get(kind)
        if curve is None:
            return self.base.stream(nbytes, kind)
        return on_curve(curve, nbytes)

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Seconds of a collective over `group`; the base where its size or place was not measured."""
        n, local, S = np.broadcast_arrays(real(group.size), real(group.local), real(nbytes))
        seconds, known, level = np.zeros(n.shape), np.asarray((n <= 1) | (S <= 0)), 0
        for size, place in {(float(a), float(b)) for a, b in zip(n.ravel(), local.ravel(), strict=True)}:
            found = self._between(op, size, place)
            if found is None or size <= 1:
                continue
            at = (n == size) & (local == place) & (S > 0)
            low, high, share = found
            level = max(level, level_of(low.curve, S[at]), level_of(high.curve, S[at]), int(share > 0))
            logs = (1 - share) * np.log(low.seconds(S[at])) + share * np.log(high.seconds(S[at]))
            seconds[at], known[at] = np.exp(logs), True
        if known.all():
            return Priced(real(seconds), SOURCES[level])
        rest = self.base.collective(op, S, Group(n, local, group.senders))
        return Priced(real(np.where(known, seconds, rest.seconds)), rest.source)

    def _between(self, op: str, size: float, local: float) -> tuple[Sweep, Sweep, float] | None:
        """Return the measured group of that size and place, or the two around it of the same kind of place."""
        exact = self.sweeps.get((op, int(size), int(local)))
        if exact is not None and size == int(size):
            return exact, exact, 0.0
        kind = _kind(size, local)
        sizes = sorted(n for o, n, own in self.sweeps if o == op and _kind(n, own) == kind and (kind != "mixed" or own == local))
        below, above = [n for n in sizes if n < size], [n for n in sizes if n > size]
        if not below or not above:
            return None
        low, high = below[-1], above[0]
        share = math.log(size / low) / math.log(high / low)
        own = {n: n if kind == "inside" else 1 if kind == "across" else int(local) for n in (low, high)}
        return self.sweeps[op, low, own[low]], self.sweeps[op, high, own[high]], share

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Seconds of a copy between one GPU and its host."""
        curve = self.host_copies.get(direction)
        if curve is None:
            return self.base.host_copy(nbytes, direction)
        return on_curve(curve, nbytes)

    def launch(self) -> Priced:
        """Seconds between two short kernels that the host launches one after the other."""
        return self.base.launch() if self.launch_s is None else Priced(real(self.launch_s), SOURCES[0])

    def beside(self) -> Beside | None:
        """How much compute and a transfer hold each other up."""
        return self.base.beside() if self.together is None else self.together

    def describe(self) -> dict[str, str]:
        """Return where each rate comes from: how many points, in which range, how far the curve lies from them."""
        return {**self.base.describe(), **self.about}


def _kind(size: float, local: float) -> str:
    return "inside" if local >= size else "across" if local == 1 else "mixed"


def _core_axes(shape: AttentionShape) -> tuple[Array, Array, Array]:
    return shape.mean_dim, shape.length, shape.rows


def _core_seconds(kernel: Attention, shape: AttentionShape, backward: bool) -> Array:
    flops = shape.backward_flops if backward else shape.forward_flops
    nbytes = (shape.backward_elements if backward else shape.forward_elements) * kernel.element_bytes
    return kernel.seconds(flops, nbytes, shape.mean_dim, shape.length, shape.rows)


def calibrated_rates(calibration: Calibration, cluster: Cluster, base: Rates) -> CalibratedRates:
    """Return rates from a calibration over `base`.

    Parameters
    ----------
    calibration : Calibration
        A file with its fits; without them measured points are used, and nothing beyond their range [-].
    cluster : Cluster
        The cluster to price; its peaks bound every product [-].
    base : Rates
        What answers for work that the file does not know [-].

    Returns
    -------
    CalibratedRates
        Rates whose every answer says which of SOURCES it is, or the base's source [-].

    Notes
    -----
    Medians are used: they are what a training step sees. Of two sweeps of one group the one with more groups at once
    counts, because training uses all network ports at the same time.
    """
    fits = {f.target: f for f in calibration.fits}
    peaks = {str(d): p.value for d, p in cluster.device.flops_per_s.items()}
    products = _products(calibration.gemms, fits, peaks, held_shares(calibration))
    cores = _cores(calibration.attentions, fits, peaks)
    streams = _streams(calibration.memory)
    sweeps = _sweeps(calibration.links, fits)
    return CalibratedRates(
        name=f"calibrated:{calibration.id[:12] or calibration.device.name}",
        base=base,
        products=products,
        groups=_groups(calibration.grouped, products),
        cores=cores,
        streams=streams,
        host_copies=_host_copies(calibration.host_copies),
        sweeps=sweeps,
        launch_s=calibration.launch_s.get("eager"),
        together=_together(calibration.overlap),
        about=_about(calibration, fits),
    )


def _together(measured: Sequence[Overlap]) -> Beside | None:
    """Return the median slow-down of all pairs measured; a little below 1 is noise, since neither helps the other."""
    if not measured:
        return None
    pairs = np.array([(x.slow_compute, x.slow_comm) for x in measured])
    compute, transfer = (float(v) for v in np.maximum(np.median(pairs, axis=0), 1.0))
    return Beside(compute, transfer, SOURCES[0])


def held_shares(c: Calibration) -> dict[str, float]:
    """Return by dtype what a training load leaves of the products' rates: points timed in bursts run at higher clocks."""
    return {x.dtype: x.share for x in c.sustained} if c.method.mode == "burst" else {}


def _products(
    gemms: Sequence[Gemm], fits: Mapping[str, Fit], peaks: Mapping[str, float], held: Mapping[str, float]
) -> dict[str, Products]:
    out = {}
    for dtype in dict.fromkeys(g.dtype for g in gemms):
        fit, own = fits.get(f"gemm {dtype}"), [g for g in gemms if g.dtype == dtype]
        peak = max(peaks.get(dtype, math.inf), fit.plateau or 0.0) if fit else math.inf
        curve = product_of(fit, dtype, peak) if fit else best_rate(own, dtype)
        plain, added = [g for g in own if not g.accumulate], [g for g in own if g.accumulate]
        scatters = (_scatter(plain or added, curve), _scatter(added, curve) if added else None)
        out[dtype] = Products(curve, *scatters, held.get(dtype, 1.0), fit is not None)
    return out


def _scatter(gemms: Sequence[Gemm], curve: Product) -> Scatter:
    """Return the residuals of products, the mean where one shape was measured in several layouts."""
    logs: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for g in gemms:
        formula = float(curve.seconds(g.m, g.n, g.k, accumulate=g.accumulate))
        logs[g.m, g.n, g.k].append(math.log(g.seconds.median / formula))
    return Scatter(np.log(np.array(list(logs), dtype=np.float64)), np.array([float(np.mean(v)) for v in logs.values()]))


def _groups(points: Sequence[GroupedGemm], products: Mapping[str, Products]) -> dict[tuple[str, bool], Around[GroupedProduct]]:
    out = {}
    for dtype, fused in dict.fromkeys((g.dtype, g.fused) for g in points):
        own = [g for g in points if (g.dtype, g.fused) == (dtype, fused)]
        fitted = dtype in products and products[dtype].fitted
        kernel = GroupedProduct(products[dtype].curve if fitted else best_rate(own, dtype), 1.0, 0.0, 0.0)
        sizes = np.array([(g.rows, g.groups, g.n, g.k) for g in own], dtype=np.float64)
        formula = kernel.seconds(*sizes.T)
        measured = np.array([g.seconds.median for g in own])
        out[dtype, fused] = Around(kernel, Scatter(np.log(sizes), np.log(measured / formula)), fitted)
    return out


def _cores(
    points: Sequence[AttentionPoint], fits: Mapping[str, Fit], peaks: Mapping[str, float]
) -> dict[tuple[str, bool], Around[Attention]]:
    out = {}
    for dtype, backward in dict.fromkeys((a.dtype, a.backward) for a in points):
        fit = fits.get(f"attention {dtype} {'backward' if backward else 'forward'}")
        own = [a for a in points if (a.dtype, a.backward) == (dtype, backward)]
        peak = max(peaks.get(dtype, math.inf), fit.plateau or 0.0) if fit else math.inf
        kernel = attention_kernel(fit, peak) if fit else best_attention(own)
        shape = attention_shape(own)
        residual = np.log(np.array([a.seconds.median for a in own]) / _core_seconds(kernel, shape, backward))
        out[dtype, backward] = Around(kernel, Scatter(np.log(np.stack(_core_axes(shape), axis=1)), residual), fit is not None)
    return out


def _streams(points: Sequence[StreamPoint]) -> dict[str, Curve]:
    """Return one curve a kind."""
    out = {}
    for kind in dict.fromkeys(p.op for p in points):
        sizes, seconds = merged_streams([p for p in points if p.op == kind])
        if len(sizes):
            out[kind] = _curve(sizes, seconds)
    return out


def _host_copies(points: Sequence[HostCopy]) -> dict[str, Curve]:
    """Return one curve a direction."""
    return {d: _curve(*copied([p for p in points if p.direction == d])) for d in dict.fromkeys(p.direction for p in points)}


def _curve(sizes: Array, seconds: Array) -> Curve:
    """Return a curve through points; through one alone, its own rate at every size."""
    if len(sizes) == 1:
        sizes, seconds = np.append(sizes, sizes * 2), np.append(seconds, seconds * 2)
    return Curve(sizes, seconds)


def _sweeps(links: Sequence[Link], fits: Mapping[str, Fit]) -> dict[Place, Sweep]:
    out: dict[Place, tuple[int, Sweep]] = {}
    for link in links:
        points = sorted(link.points, key=lambda p: p.bytes)
        if len(points) < 2:
            continue
        curve = Curve(np.array([float(p.bytes) for p in points]), np.array([p.seconds.median for p in points]))
        place = (link.op, link.n, link.local)
        if place not in out or link.groups_active > out[place][0]:
            out[place] = (link.groups_active, Sweep(curve, fits.get(link_key(link)), float(wire_factor(link.op, link.n))))
    return {place: sweep for place, (_, sweep) in out.items()}


def _about(c: Calibration, fits: Mapping[str, Fit]) -> dict[str, str]:
    when = f"measured {c.created[:10]} on {c.device.name}" if c.provenance == "measured" else f"imported, {c.device.name}"

    def line(count: int, fit: Fit | None, beyond: str = "") -> str:
        off = (
            f"; curve off by {fit.residual['median_pct']:.1f} % median, {fit.residual['max_pct']:.0f} % max in sample"
            if fit
            else ""
        )
        beyond = beyond or ("fitted beyond" if fit else "too few to fit, so the base beyond")
        return f"calibrated: {count} points {when}; exact at a point, interpolated between, {beyond}{off}"

    out = {}
    for dtype in dict.fromkeys(g.dtype for g in c.gemms):
        key = "gemm" if dtype == "bf16" else f"gemm {dtype}"
        out[key] = line(sum(g.dtype == dtype for g in c.gemms), fits.get(f"gemm {dtype}"))
    for backward in (False, True):
        own = [a for a in c.attentions if a.backward == backward]
        if own:
            name = "attention backward" if backward else "attention"
            out[name] = line(len(own), fits.get(f"attention {own[0].dtype} {'backward' if backward else 'forward'}"))
    if c.grouped:
        out["grouped_gemm"] = line(len(c.grouped), None, "beyond them as plain products")
    if c.memory:
        kinds = ", ".join(dict.fromkeys(s.op for s in c.memory))
        out["stream"] = f"calibrated: {len(c.memory)} points {when} ({kinds}); other kinds from the base"
    if c.host_copies:
        ways = " and ".join(dict.fromkeys(x.direction.replace("_", " ") for x in c.host_copies))
        out["host_copy"] = f"calibrated: {len(c.host_copies)} points {when} ({ways})"
    if c.links:
        held = ", ".join(f"{x.op} over {x.n} ({x.local} a host)" for x in c.links)
        out["collective"] = f"calibrated: {when}: {held}; other groups from the base"
    for dtype, share in held_shares(c).items():
        out[f"clock {dtype}"] = f"calibrated: {share:.2f} of the rate of bursts is held under load; products count with it"
    for x in c.overlap:
        pair = f"products x{x.slow_compute:.2f} beside {x.comm}, which takes x{x.slow_comm:.2f}"
        out["overlap"] = f"calibrated: {when}: {pair}; used wherever compute and a transfer run at once"
    if c.launch_s.get("eager") is not None:
        out["launch"] = f"calibrated: {when}"
    return out
