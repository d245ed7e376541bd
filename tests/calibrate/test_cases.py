"""Cases that people reported of calibrations (tests/data/field-cases.jsonl has their sources)."""

import json
from pathlib import Path

import pytest

from parlay.calibrate.engine import WARM_CALLS
from parlay.calibrate.file import summarise
from parlay.calibrate.fits import fitted
from parlay.calibrate.kernels import BURST_S, SUSTAINED_S
from parlay.hardware.load import load_cluster
from parlay.rates.calibrated import calibrated_rates
from parlay.rates.calibration_check import check_file
from parlay.rates.calibration_file import Calibration, Gemm, MeasuredDevice, Method, Sustained
from parlay.rates.choose import rates_for
from parlay.rates.datasheet import datasheet_rates
from parlay.report.calibrate import show_lines
from parlay.report.table import Page

SIDES = (1024, 2048, 4096, 8192, 12288)


def case(name):
    path = Path(__file__).parents[1] / "data" / "field-cases.jsonl"
    return next(row for row in map(json.loads, path.read_text().splitlines()) if row.get("id") == name)["correct"]


def calibration(device, rate, *, first=None, **fields):
    """Products at `rate`, whose first sample ran at `first`."""
    gemms = []
    for side in SIDES:
        flops = 2.0 * side**3
        samples = [flops / (first or rate), *([flops / rate] * 19)]
        gemms.append(Gemm(dtype="bf16", m=side, n=side, k=side, flops=flops, seconds=summarise(samples)))
    named = MeasuredDevice(name=device, vendor="nvidia") if isinstance(device, str) else device
    return fitted(Calibration(created="2026-11-29", tool={}, complete=True, device=named, compute=tuple(gemms), **fields))


def product_flops_per_s(rates, side=8192):
    return 2.0 * side**3 / float(rates.gemm(side, side, side, "bf16").seconds)


def test_a_cold_first_product_does_not_count():
    cold, held = case("cali-119")["cold_best"] * 1e12, 720e12
    assert WARM_CALLS["cuda"] >= 10
    cluster = load_cluster("dgx-h100")
    c = calibration("NVIDIA H100 80GB HBM3", held, first=cold)
    assert c.gemms[0].flops / c.gemms[0].seconds.min == pytest.approx(cold)  # it is in the samples
    assert product_flops_per_s(calibrated_rates(c, cluster, rates_for(cluster))) == pytest.approx(held, rel=1e-6)


def test_a_burst_and_a_held_rate_are_both_kept_and_training_takes_the_held_one():
    correct = case("cali-120")
    peak, throttled = correct["peak"] * 1e12, correct["throttled"] * 1e12
    assert BURST_S <= 5e-3 < 1.0 <= SUSTAINED_S
    cluster = load_cluster("dgx-b200")
    held = Sustained(dtype="bf16", burst_flops_per_s=peak, held_flops_per_s=throttled)
    assert 1 - held.share == pytest.approx(correct["drop"], abs=0.005)
    c = calibration("NVIDIA B200", peak, sustained=(held,), method=Method(mode="burst"))
    rates = calibrated_rates(c, cluster, rates_for(cluster))
    assert product_flops_per_s(rates) == pytest.approx(throttled, rel=1e-6)
    assert "0.85" in rates.describe()["clock bf16"]
    assert "1,450 TFLOP/s in bursts, 1,237 TFLOP/s held (85%)" in "\n".join(show_lines(c, Page()))
    longer = c.model_copy(update={"method": Method(mode="sustained")})  # points that were themselves timed under load
    assert product_flops_per_s(calibrated_rates(longer, cluster, rates_for(cluster))) == pytest.approx(peak, rel=1e-6)


def test_a_power_cap_is_recorded_and_warned_of():
    correct = case("cali-121")
    cluster = load_cluster("gb300-nvl72")
    capped = MeasuredDevice(name="NVIDIA GB300", vendor="nvidia", power_limit_w=500.0, power_default_w=1400.0)
    c = calibration(capped, correct["capped"] * 1e12)
    assert check_file(c, cluster, where="c.json") == ["was measured at a power limit of 500 W, below the default of 1400 W"]
    assert product_flops_per_s(calibrated_rates(c, cluster, rates_for(cluster))) == pytest.approx(617e12, rel=1e-6)
    assert correct["rated_low"] > 2 * correct["capped"]


def test_uncalibrated_rates_lie_below_the_roofline_and_say_what_they_are():
    """A bare roofline was 1.4 to 1.9 times too fast on A100; defaults carry an efficiency and are never called measured."""
    correct = case("cali-124")
    ratios = [e / r for e, r in zip(correct["est"], correct["real"])]
    assert (round(min(ratios), 1), round(max(ratios), 1)) == (1.4, 1.9)
    cluster = load_cluster("dgx-a100")
    peak, memory = cluster.device.flops_per_s["bf16"].value, cluster.device.hbm_bytes_per_s.value
    rates = datasheet_rates(cluster)
    product, stream = rates.gemm(8192, 8192, 8192, "bf16"), rates.stream(1e9, "norm")
    assert product.source == stream.source == "default"
    assert float(product.seconds) > 1.2 * 2.0 * 8192**3 / peak
    assert float(stream.seconds) > 1.2 * 1e9 / memory
    skinny = rates.gemm(32, 4096, 4096, "bf16")  # a decode step's product reads its weights
    assert float(skinny.seconds) > 1.2 * 2.0 * 4096 * 4096 / memory
