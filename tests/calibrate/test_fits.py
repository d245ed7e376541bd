"""Fits find the constants behind curves that were made from them, through noise, bursts and switches of protocol."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.calibrate.file import summarise
from parlay.calibrate.fits import (
    fit_attention,
    fit_gemm,
    fit_host_copies,
    fit_link,
    fit_stream,
    fitted,
    link_bytes_per_s,
    theil_sen,
)
from parlay.rates.calibration_file import AttentionPoint, Calibration, Gemm, HostCopy, Link, LinkPoint, MeasuredDevice, Stream
from parlay.rates.kernels import AttentionShape, soft_maximum
from parlay.rates.network import wire_factor

SIZES = [2**i for i in range(10, 31, 2)]


def link(times, op="all_reduce", n=8, sizes=SIZES):
    wire = float(wire_factor(op, n))
    points = tuple(
        LinkPoint(bytes=s, seconds=summarise(np.atleast_1d(t)), algbw=s / np.median(t), busbw=s * wire / np.median(t))
        for s, t in zip(sizes, times)
    )
    return Link(op=op, backend="nccl", level="intra", n=n, local=n, points=points)


def knee(alpha, rate, exponent, op="all_reduce", n=8):
    return soft_maximum(alpha, np.array(SIZES) * float(wire_factor(op, n)) / rate, exponent)


@settings(max_examples=25, deadline=None)
@given(st.floats(2e-6, 1e-4), st.floats(1e8, 9e11), st.floats(0.5, 2.0))
def test_a_soft_knee_is_found_again(alpha, rate, exponent):
    fit = fit_link(link(knee(alpha, rate, exponent)))
    assert fit.residual["max_pct"] < 1.0
    if SIZES[-1] * 1.75 / rate > 10 * alpha:  # the plateau is seen
        assert fit.params["bytes_per_s"] == pytest.approx(rate, rel=0.03)


def test_minima_and_slopes_survive_a_busy_host_and_bursts():
    """A shaper passes the first 128 KiB at once, and a third of the samples are twice too slow: calibration of a known link."""
    rng = np.random.default_rng(7)
    rate, wire = 119.55e6, float(wire_factor("all_reduce", 2))
    sizes = [2**i for i in range(14, 24)]
    times = []
    for s in sizes:
        clean = 2e-4 + max(s * wire - 131072, 0) / rate
        times.append(clean * np.where(rng.random(15) < 0.33, 2.0, 1.0 + 0.02 * rng.random(15)))
    found = link_bytes_per_s(link(times, n=2, sizes=sizes))
    assert found == pytest.approx(rate, rel=0.02)
    assert max(s * wire / min(t) for s, t in zip(sizes, times)) > 1.2 * rate  # "peak bus bandwidth" would have misled


def test_one_size_of_a_megabyte_gives_no_rate():
    assert link_bytes_per_s(link([1e-3, 2e-3], sizes=[1024, 1 << 20])) is None


def test_theil_sen_ignores_a_quarter_of_wild_points():
    x = np.arange(1.0, 13.0)
    y = 3.0 * x
    y[[2, 5, 9]] *= 40
    assert theil_sen(x, y) == pytest.approx(3.0, rel=0.02)


def products(F, W, p, t0, dtype="bf16"):
    rng = np.random.default_rng(1)
    out = []
    for m, n, k in 2 ** rng.integers(6, 14, size=(30, 3)):
        m, n, k = int(m), int(n), int(k)
        flops, nbytes = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
        t = float(soft_maximum(flops / F, nbytes / W, p)) + t0
        out.append(Gemm(dtype=dtype, m=m, n=n, k=k, flops=flops, seconds=summarise([t])))
    return out


def test_constants_of_products_are_found_again():
    fit = fit_gemm(products(700e12, 2.5e12, 2.0, 4e-6), "bf16")
    assert fit.params["flops_per_s"] == pytest.approx(700e12, rel=0.02)
    assert fit.params["bytes_per_s"] == pytest.approx(2.5e12, rel=0.1)
    assert fit.params["fixed_s"] == pytest.approx(4e-6, rel=0.1)
    assert fit.residual["max_pct"] < 2


def test_the_exponent_stays_within_its_bounds():
    noisy = [g.model_copy(update={"seconds": summarise([2e-5])}) for g in products(700e12, 2.5e12, 2.0, 4e-6)]
    assert 1.0 <= fit_gemm(noisy, "bf16").params["exponent"] <= 8.0


def test_too_few_points_give_no_fit():
    assert fit_gemm(products(700e12, 2.5e12, 2.0, 4e-6)[:4], "bf16") is None


@pytest.mark.parametrize("backward", [False, True])
def test_attention_by_head_size_and_length(backward):
    points = []
    for d, F in ((64, 400e12), (128, 500e12)):
        for s in (1024, 2048, 4096, 8192):
            shape = AttentionShape.of(s, s, 32, 8, d, d, 0.5, 2)
            flops = float(shape.backward_flops if backward else shape.forward_flops)
            t = flops / F * (1 + 300 / (s / 2)) + 1e-5
            points.append(
                AttentionPoint(
                    dtype="bf16", batch=2, queries=s, keys=s, heads=32, kv_heads=8, qk_dim=d, v_dim=d,
                    backward=backward, flops=flops, seconds=summarise([t]),
                )
            )  # fmt: skip
    fit = fit_attention(points, "bf16", backward=backward)
    assert fit.params["flops_per_s_at_64"] == pytest.approx(400e12, rel=0.02)
    assert fit.params["flops_per_s_at_128"] == pytest.approx(500e12, rel=0.02)
    assert fit.params["half_length"] == pytest.approx(300, rel=0.1)


def test_streams():
    points = [
        Stream(op="norm", bytes=s, bytes_convention="x y", seconds=summarise([s / 2e12 + 3e-6])) for s in (10**6, 10**7, 10**8)
    ]
    fit = fit_stream(points, "norm")
    assert fit.params["bytes_per_s"] == pytest.approx(2e12, rel=0.01)
    assert fit.params["fixed_s"] == pytest.approx(3e-6, rel=0.02)


def test_copies_to_the_host_are_fitted_by_direction():
    points = [
        HostCopy(direction=way, bytes=s, seconds=summarise([s / rate + 1e-5, s / rate + 1.1e-5, s / rate + 1.1e-5]))
        for way, rate in (("to_host", 40e9), ("to_device", 50e9))
        for s in (1 << 16, 1 << 20, 1 << 28)
    ]
    for way, rate in (("to_host", 40e9), ("to_device", 50e9)):
        fit = fit_host_copies(points, way)
        assert fit.params["bytes_per_s"] == pytest.approx(rate, rel=0.01)
        assert fit.params["fixed_s"] == pytest.approx(1.1e-5, rel=0.05)
    c = fitted(Calibration(created="2026-11-29", tool={}, device=MeasuredDevice(name="x", vendor="y"), host_copies=tuple(points)))
    assert [f.target for f in c.fits] == ["host copy to_host", "host copy to_device"]
    assert fit_host_copies(points[:1], "to_host") is None


def test_fits_come_from_the_samples_of_a_file_alone():
    c = Calibration(created="2026-11-29", tool={}, device=MeasuredDevice(name="x", vendor="y"))

    c = c.model_copy(update={"compute": tuple(products(700e12, 2.5e12, 2.0, 4e-6)), "links": (link(knee(1e-5, 4e11, 0.6)),)})
    once = fitted(c)
    assert [f.target for f in once.fits] == ["gemm bf16", "all_reduce n=8 local=8 groups=1 nccl bf16"]
    assert fitted(once) == once
