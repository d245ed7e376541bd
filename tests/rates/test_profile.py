"""Shipped profiles: held-out points, physical bounds, relatives, labels, what a training load costs."""

import csv
import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from parlay.estimate.record import features_of
from parlay.hardware.load import cluster_of, load_cluster, load_device
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.rates.in_step import factor_of
from parlay.rates.interface import Group
from parlay.rates.kernels import Product, Residuals
from parlay.rates.profile import (
    FOLDER,
    KNOWN,
    clock_factor,
    either_way,
    further_rows,
    load_profile,
    profile_of,
    profile_rates,
    residuals_of,
)

CLUSTERS = {
    "a100-sxm": "dgx-a100", "h100-sxm": "dgx-h100", "h200-sxm": "dgx-h200", "b200": "dgx-b200", "b300": "dgx-b300",
    "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "l40s": "l40s-pcie-8",
}  # fmt: skip
SAMPLE = Path(__file__).parent / "data" / "measured-sample.csv"


def rates_of(device, **options):
    """Rates of kernels alone: the factors of parlay.rates.in_step are about whole steps."""
    return profile_rates(load_cluster(CLUSTERS[device]), **{"in_step": {}, **options})


def sample():
    """Return held-out measured points by device and kind: arguments and seconds."""
    out = defaultdict(list)
    with SAMPLE.open(newline="") as file:
        for row in csv.DictReader(file):
            arguments = dict(pair.split("=") for pair in row["arguments"].split(";"))
            out[row["device"], row["kind"]].append((arguments, float(row["seconds"])))
    return out


MEASURED = sample()


@pytest.mark.parametrize("device", KNOWN)
def test_products_reproduce_held_out_points_as_well_as_the_profile_says(device):
    rates = rates_of(device, sustained=False)
    stated = load_profile(device)["gemm"]["bf16"]["error"]
    points = MEASURED[device, "gemm"]
    errors = []
    for arguments, seconds in points:
        m, n, k = (float(arguments[axis]) for axis in "mnk")
        errors.append(abs(float(rates.gemm(m, n, k, "bf16").seconds) / seconds - 1))
    assert len(points) >= 15
    assert np.median(errors) <= 2.5 * stated["median"]  # twenty points of thousands
    assert max(errors) <= stated["max"] + 0.01
    assert stated["median"] < 0.10


@pytest.mark.parametrize("device", [d for d in KNOWN if d in ("a100-sxm", "h100-sxm", "h200-sxm", "l40s")])
def test_attention_reproduces_held_out_points_as_well_as_the_profile_says(device):
    rates = rates_of(device)
    stated = load_profile(device)["attention"]["forward"]["error_from_4096_tokens"]
    errors = []
    for arguments, seconds in MEASURED[device, "attention"]:
        b, s, h, g, d = (float(arguments[x]) for x in ("batch", "length", "heads", "kv_heads", "dim"))
        predicted = rates.attention(s, s, h, g, d, d, score_share=0.5, batch=b)
        errors.append(abs(float(predicted.seconds) / seconds - 1))
    assert len(errors) >= 10
    assert np.median(errors) <= 2.5 * stated["median"]
    assert max(errors) <= stated["max"] + 0.01


@pytest.mark.parametrize("device", KNOWN)
def test_collectives_go_through_measured_points(device):
    rates = rates_of(device)
    for arguments, seconds in MEASURED[device, "collective"]:
        n = np.float64(arguments["ranks"])
        priced = rates.collective(arguments["op"], float(arguments["bytes"]), Group(np.asarray(n), np.asarray(n)))
        assert float(priced.seconds) == pytest.approx(seconds, rel=2e-3)
        assert priced.source == "profile"


@pytest.mark.parametrize("device", KNOWN)
def test_no_rate_exceeds_a_datasheet_peak(device):
    rates, spec = rates_of(device, sustained=False), load_device(device)
    size = 2.0 ** np.arange(5, 17)
    for dtype in rates.products:
        m, n, k = np.meshgrid(size, size, size)
        t = rates.gemm(m, n, k, dtype).seconds
        assert (2.0 * m * n * k / t <= spec.flops_per_s[dtype].value * (1 + 1e-9)).all()
        assert rates.products[dtype].bytes_per_s <= spec.hbm_bytes_per_s.value
        assert 0 < rates.products[dtype].fixed_s < 5e-5
        assert 1.0 <= rates.products[dtype].exponent <= 8.0
    for kernel in (rates.forward, rates.backward):
        assert max(kernel.flops_per_s) <= spec.flops_per_s["bf16"].value
        assert kernel.bytes_per_s <= spec.hbm_bytes_per_s.value
        assert min(kernel.half_length, kernel.half_rows, kernel.fixed_s) > 0
    assert all(0 < share <= 1 for share in rates.measured_streams.values())
    assert 0 < rates.fused.flops_share <= 1
    assert 0 < rates.launched.flops_share <= 1


@pytest.mark.parametrize("device", KNOWN)
def test_twice_the_work_never_takes_less_time(device):
    rates = rates_of(device)
    size = 2.0 ** np.arange(7, 17)
    m, n, k = np.meshgrid(size, size, size, indexing="ij")
    t = rates.gemm(m, n, k, "bf16").seconds
    for axis in range(3):
        ratio = np.delete(t, 0, axis) / np.delete(t, -1, axis)
        assert ratio.min() > 0.97  # residuals are linear between nodes, the formula is not
    large = t[5:, 5:, 5:]
    assert all((np.diff(large, axis=axis) > 0).all() for axis in range(3))


def grid(rows, columns, logs):
    """One inner size."""
    return further_rows(rows, columns, np.array(logs)[..., None])


def test_a_product_and_its_transposed_one_have_their_mean():
    logs = either_way([2, 4, 6], [2, 4, 8], np.array([[1, 3, 5], [7, 2, 4], [0, 9, 6]])[..., None])
    assert logs[..., 0].tolist() == [[1, 5, 5], [5, 2, 4], [0, 9, 6]]  # 6 is no column and 8 no row


@pytest.mark.parametrize("device", KNOWN)
def test_transposed_products_within_rows_and_columns_take_the_same(device):
    rates = dataclasses.replace(rates_of(device), exact=None)
    m, n, k = 2.0 ** np.random.default_rng(7).integers(6, 13, (3, 200))
    assert rates.gemm(m, n, k, "bf16").seconds == pytest.approx(rates.gemm(n, m, k, "bf16").seconds, rel=1e-9)


def test_shared_residuals_tell_a_training_stacks_products_better():
    """395 products of SimuMax on B200, their distance to the curve less their common ratio: 6.3 % at the median, and 5.9 % shared."""
    data = load_profile("b200")
    fit, peak = data["gemm"]["bf16"], data["peak_flops_per_s"]["bf16"]
    block = fit["residuals"]
    curve = Product(peak, *(fit[x] for x in ("flops_per_s", "bytes_per_s", "exponent", "fixed_s")), 2.0)
    m, n, k, share = np.array(data["points"]["shapes"], dtype=float).T
    logs = np.array(block["per_mille"]).reshape([len(block[axis]) for axis in "mnk"]) / 1000
    off = []
    for residuals in (Residuals.of(block["m"], block["n"], block["k"], logs), residuals_of(block)):
        error = np.log(2 * m * n * k / (share * peak) / (curve.seconds(m, n, k) * residuals.factor(m, n, k)))
        off.append(float(np.median(np.abs(error - np.median(error)))))
    assert off == pytest.approx([0.0628, 0.0590], abs=5e-4)


def test_rows_beyond_a_table_are_those_of_transposed_products():
    """The 1 x 4 product is 7 off, so the 4 x 1 product is; the last row tells the columns that no row has."""
    rows, logs = grid([1, 2], [1, 2, 4], [[0, 3, 7], [3, 1, 8]])
    assert rows == [1, 2, 4]
    assert logs[..., 0].tolist() == [[0, 3, 7], [3, 1, 8], [7, 8, 8]]


def test_a_table_keeps_its_last_row_where_transposed_products_are_no_better():
    """The 1 x 2 product says 3 of the 2 x 1 product's 0, the 1 x 1 product 0; or the last row is no column."""
    assert grid([1, 2], [1, 2, 4], [[0, 3, 7], [0, 1, 8]])[0] == [1, 2]
    assert grid([1, 2], [1, 4], [[0, 7], [3, 8]])[0] == [1, 2]
    assert grid([1, 2], [1, 2], [[0, 3], [3, 1]])[0] == [1, 2]


def test_the_tables_that_go_on_by_transposed_products():
    """The A100's alone ends before its columns at a row that is a column; cut there, it tells 8,192 rows to 4.6 %, not 9.3 %."""
    rows = {}
    for device in KNOWN:
        block = load_profile(device)["gemm"]["bf16"].get("residuals")
        if block:
            logs = np.array(block["per_mille"]).reshape([len(block[axis]) for axis in "mnk"]) / 1000
            longer, found = further_rows(block["m"], block["n"], logs)
            assert np.array_equal(found[: len(logs)], logs)
            rows[device] = longer[len(logs) :]
            if device == "a100-sxm":
                columns = [block["n"].index(size) for size in block["m"][:-1]]
                turned = logs[:-1, block["n"].index(8192)]
                assert np.abs(turned - logs[-1, columns]).mean() == pytest.approx(0.0465, abs=5e-4)
                assert np.abs(logs[-2, columns] - logs[-1, columns]).mean() == pytest.approx(0.0932, abs=5e-4)
    assert {device: more for device, more in rows.items() if more} == {"a100-sxm": [16384, 65536]}


def test_many_rows_by_few_columns_take_what_few_rows_by_many_columns_take():
    """Micro-batch 24 of 2,048 tokens over a tensor-parallel product: 229 TFLOP/s by the last row, 260 measured the other way."""
    rates = rates_of("a100-sxm")
    tall, wide = (float(rates.gemm(*size, 8192, "bf16").seconds) for size in ((65536, 4096), (4096, 65536)))
    assert tall == pytest.approx(wide, rel=1e-9)


def test_tall_products_move_their_bytes_no_faster_than_memory():
    """By the last measured row 524,288 x 64 x 1,024 would on an A100 read and write at 1.07 times the peak."""
    size = 2.0 ** np.arange(6, 20)
    m, n, k = np.meshgrid(size, size[:11], size[:11], indexing="ij")
    seconds = rates_of("a100-sxm", sustained=False).gemm(m, n, k, "bf16").seconds
    moved = 2.0 * (m * k + k * n + m * n)
    assert (moved / seconds).max() < load_device("a100-sxm").hbm_bytes_per_s.value


@pytest.mark.parametrize("device", KNOWN)
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_a_measured_collective_never_takes_less_for_more_bytes(device, op):
    rates = rates_of(device)
    size = np.logspace(1, 10.5, 80)
    domain = load_cluster(CLUSTERS[device]).scale_up_gpus.value
    for n in (2.0, 3.0, 4.0, 8.0, 32.0):
        local = min(n, domain)
        t = rates.collective(op, size, Group(np.asarray(n), np.asarray(local))).seconds
        assert (np.diff(t) >= 0).all()
        assert (t > 0).all()


def test_a_training_load_holds_lower_clocks_than_a_burst():
    """An H100 holds about 600-780 of its 989 TFLOP/s on real data; B200 rows of SimuMax lie near 1,100."""
    for device, low, high in (("h100-sxm", 580e12, 780e12), ("a100-sxm", 220e12, 275e12), ("b200", 1000e12, 1450e12)):
        burst, held = (rates_of(device, sustained=s) for s in (False, True))
        shape = (8192, 12000, 8192, "bf16")  # no shape that a profile knows exactly
        rate = 2.0 * 8192 * 12000 * 8192 / float(held.gemm(*shape).seconds)
        assert low < rate < high
        assert float(held.gemm(*shape).seconds) > float(burst.gemm(*shape).seconds)


def test_shapes_that_a_training_stack_measured_are_taken_as_they_are():
    rates = rates_of("b200")
    m, n, k, share = load_profile("b200")["points"]["shapes"][100]
    assert 2.0 * m * n * k / float(rates.gemm(m, n, k, "bf16").seconds) == pytest.approx(share * 2250e12, rel=1e-9)
    alone, among = rates.gemm(m, n, k, "bf16").seconds, rates.gemm([m, m + 1], n, k, "bf16").seconds
    assert among[0] == float(alone)
    assert among[1] != float(alone)


def test_backward_attention_of_b200_lies_near_its_measured_rows():
    """SimuMax, causal: batch 1, efficiency over the whole square of 2250 TFLOP/s (five products)."""
    rows = [(4096, 64, 8, 128, 128, 0.7294), (32768, 16, 2, 128, 128, 0.87171), (4096, 128, 128, 192, 128, 0.64255)]
    for s, h, g, dk, dv, share in rows:
        measured = 5.0 * s * s * h * (dk + dv) / (share * 2250e12)
        priced = rates_of("b200").attention(s, s, h, g, dk, dv, score_share=0.5, backward=True)
        assert float(priced.seconds) == pytest.approx(measured, rel=0.12)
        assert priced.source == "profile"


# TFLOP/s of attention and of the dense layers inside training steps of Llama-3.1-8B at long sequences, causal half counted
# (ml-engineering, insights/when-to-upgrade-gpus). The runs recompute every layer and do not count it: the forward runs twice.
IN_STEP = [("h200-sxm", 447, 463), ("b200", 834, 771)]


@pytest.mark.parametrize(("device", "attention", "dense"), IN_STEP)
def test_kernels_run_as_fast_as_inside_a_real_step(device, attention, dense):
    rates, s = rates_of(device), 131072
    forward, backward = (
        float(rates.attention(s, s, 32, 8, 128, 128, score_share=0.5, backward=b).seconds) for b in (False, True)
    )
    counted = 3.5 * 2 * 256 * 0.5 * s * s * 32
    assert counted / (2 * forward + backward) / 1e12 == pytest.approx(attention, rel=0.05)
    seconds = flops = 0.0
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):  # QKV, projection, gate and up, down
        seconds += 2 * float(rates.gemm(s, n, k, "bf16").seconds) + float(rates.gemm(s, k, n, "bf16").seconds)
        seconds += float(rates.gemm(n, k, s, "bf16", accumulate=True).seconds)
        flops += 6 * s * n * k
    assert flops / seconds / 1e12 == pytest.approx(dense, rel=0.05)


def test_groups_launched_one_by_one_lie_near_their_measured_rows():
    """SimuMax, B200: groups, rows of each, n, k, share of 2250 TFLOP/s; the weight gradient adds to fp32."""
    rows = [(160, 154, 3072, 5120, 0.19969, False), (256, 128, 4096, 7168, 0.20811, False), (80, 308, 3072, 5120, 0.38676, False),
            (160, 154, 3072, 5120, 0.09365, True), (256, 128, 4096, 7168, 0.07749, True)]  # fmt: skip
    for groups, each, n, k, share, gradient in rows:
        measured = 2.0 * groups * each * n * k / (share * 2250e12)
        priced = rates_of("b200").grouped_gemm(groups * each, groups, n, k, "bf16", fused=False, weight_gradient=gradient)
        assert float(priced.seconds) == pytest.approx(measured, rel=0.3)


def test_a_weight_gradient_costs_more_than_a_product_of_its_size():
    rates = rates_of("h100-sxm")
    assert rates.gemm(1024, 1024, 256, "bf16", accumulate=True).seconds > rates.gemm(1024, 1024, 256, "bf16").seconds


def test_devices_without_a_table_scale_from_their_nearest_relative():
    assert profile_of(load_device("h20")) in ("h100-sxm", "h200-sxm")
    assert profile_of(load_device("a800-sxm")) == "a100-sxm"
    assert profile_of(load_device("l4")) == "l40s"
    assert profile_of(load_device("mi300x")) is None
    rates = rates_for(load_cluster("hgx-h20"))
    assert "scaled to h20" in rates.name
    assert rates.gemm(4096, 4096, 4096, "bf16").source == "datasheet"
    assert rates.describe()["gemm"].startswith("scaled from h")
    assert 2.0 * 4096**3 / float(rates.gemm(4096, 4096, 4096, "bf16").seconds) < load_device("h20").flops_per_s["bf16"].value


def test_a_relative_with_less_power_per_flop_runs_slower_clocks():
    data = load_profile("h100-sxm")
    own = clock_factor(data, load_device("h100-sxm"), "bf16")
    assert clock_factor(data, load_device("h100-pcie"), "bf16") < own
    assert clock_factor(data, load_device("h20"), "bf16") == 1.0


def test_an_unknown_architecture_falls_back_to_datasheet_defaults(cluster):
    c = cluster()
    odd = c.model_copy(update={"device": c.device.model_copy(update={"id": "x1", "architecture": "unheard-of"})})
    rates = rates_for(odd)
    assert rates.name == "datasheet:x1"
    assert rates.gemm(4096, 4096, 4096, "bf16").source == "default"


def test_profiles_can_be_refused_and_a_calibration_wins(cluster):
    c = load_cluster("dgx-h100")
    assert rates_for(c, profiles=False).name == "datasheet:h100-sxm"
    other = rates_for(load_cluster("dgx-a100"))
    assert rates_for(c, calibration=other) is other


def test_another_scale_up_link_is_not_priced_by_measured_curves():
    c = load_cluster("dgx-h100")
    slower = c.scale_up_link.model_copy(update={"bytes_per_s": c.scale_up_link.bytes_per_s.model_copy(update={"value": 200e9})})
    rates = profile_rates(c.model_copy(update={"scale_up_link": slower}))
    eight = Group(np.asarray(8.0), np.asarray(8.0))
    priced = rates.collective("all_gather", 2.0**30, eight)
    assert priced.source == "default"
    assert priced.seconds > rates_of("h100-sxm").collective("all_gather", 2.0**30, eight).seconds * 1.8


def test_a_group_that_leaves_the_domain_is_a_default():
    priced = rates_of("h100-sxm").collective("all_gather", 1e9, Group(np.asarray(16.0), np.asarray(8.0)))
    assert priced.source == "default"


def test_a_rack_prices_more_ranks_than_were_measured():
    """850 GB/s for an all-reduce over 72 GPUs in the switch, 680 as a ring (NVIDIA GTC25 S72583, by ml-engineering)."""
    rates = rates_of("gb200")
    size = 2.0**34
    n = Group(np.asarray(72.0), np.asarray(72.0))
    bus = 2 * 71 / 72 * size / float(rates.collective("all_reduce", size, n).seconds)
    assert bus == pytest.approx(850e9, rel=0.12)
    ring = 71 / 72 * size / float(rates.collective("all_gather", size, n).seconds)
    assert ring == pytest.approx(680e9, rel=0.15)


def test_describe_names_source_and_residuals():
    about = rates_of("h100-sxm").describe()
    assert "aiconfigurator" in about["gemm"]
    assert "median" in about["gemm"]
    assert "beyond the scale-up domain: default" in about["collective"]
    assert about["launch"].startswith("default")
    assert "MAMF" in about["clock"]


def test_what_was_scaled_or_fitted_on_few_points_says_so():
    long = (8192, 8192, 32, 8, 128, 128)
    rack = rates_of("gb300")
    assert rack.attention(*long, score_share=0.5).source == "datasheet"
    assert "scaled from b200" in rack.describe()["attention"]
    assert rates_of("b200").attention(*long, score_share=0.5).source == "profile"
    assert "in sample" in rates_of("b200").describe()["attention backward"]
    assert rates_of("h100-sxm").attention(*long, score_share=0.5, backward=True).source == "default"
    assert rates_of("h200-sxm").describe()["clock"].split(": ", 1)[1].startswith("as h100-sxm")


def test_known_profiles_are_those_that_are_shipped():
    assert {p.stem for p in FOLDER.glob("*.json")} == set(KNOWN)
    for name, (architecture, flops, hbm) in KNOWN.items():
        device = load_device(name)
        assert device.architecture == architecture
        assert device.flops_per_s["bf16"].value == pytest.approx(flops, rel=1e-3)
        assert device.hbm_bytes_per_s.value == pytest.approx(hbm, rel=0.02)
        assert load_profile(name)["peak_flops_per_s"]["bf16"] == device.flops_per_s["bf16"].value


def test_everything_broadcasts():
    rates = rates_of("h100-sxm")
    tokens, heads = np.array([[1024.0], [8192.0]]), np.array([8.0, 16.0, 32.0])
    assert rates.gemm(tokens, 4096, heads * 128, "bf16").seconds.shape == (2, 3)
    assert rates.attention(tokens, tokens, heads, 8, 128, 128, score_share=0.5).seconds.shape == (2, 3)
    assert rates.grouped_gemm(tokens, heads, 4096, 2048, "bf16").seconds.shape == (2, 3)
    one = float(rates.gemm(8192, 4096, 4096, "bf16").seconds)
    assert rates.gemm(tokens, 4096, heads * 128, "bf16").seconds[1, 2] == pytest.approx(one)


def test_evaluation_is_vectorised(processor_seconds):
    rates = profile_rates(load_cluster("dgx-b200"))
    m = np.linspace(128, 16384, 100_000)
    one = processor_seconds(lambda: [rates.gemm(8192.0, 4096, 8192, "bf16") for _ in range(100)]) / 100
    assert processor_seconds(lambda: rates.gemm(m, 4096, 8192, "bf16")) < 2000 * one  # measured: 270, of 100,000 products


def test_a_profile_is_read_once():
    assert load_profile("b200") is load_profile("b200")


@pytest.mark.parametrize(("device", "share"), [("a100-sxm", 0.63 / 0.73), ("h100-sxm", 0.75)])
def test_attention_runs_backward_at_its_architecture_s_share_of_the_forward_rate(device, share):
    """Long, wide attention: five products backward for two forward, at FlashAttention's own ratio (0.63 and 0.73 of an A100)."""
    rates = rates_of(device)
    seconds = [float(rates.attention(32768, 32768, 64, 64, 128, 128, score_share=0.5, backward=b).seconds) for b in (False, True)]
    assert 2.5 * seconds[0] / seconds[1] == pytest.approx(share, rel=0.03)


def test_a_device_without_a_factor_leans_on_its_relative_and_on_that_one_s():
    factors = {"gb200": {"fp4": 0.8, "half": 0.7}, "b200": {"half": 0.9}}
    assert [factor_of(device, "fp4", factors) for device in ("gb200", "b200", "b300", "gb300")] == [0.8, 0.8, 0.8, 0.8]
    assert [factor_of(device, "bf16", factors) for device in ("gb200", "b200", "b300", "gb300")] == [0.7, 0.9, 0.9, 0.7]
    assert factor_of("b300", "fp8", factors) == factor_of("h100-sxm", "bf16", factors) == 1.0  # nobody has one


def test_a_cooler_relative_clocks_attention_down_as_it_does_products():
    """500 W instead of 700 W leave sqrt(5/7) of the clock, where dynamic power is f V^2 and V falls with f."""
    hot, cool = load_cluster("dgx-h100"), load_cluster("grand-teton-h100-96gb")
    long = [
        float(profile_rates(c, in_step={}).attention(32768, 32768, 64, 64, 128, 128, score_share=0.5).seconds)
        for c in (hot, cool)
    ]
    wide = [float(profile_rates(c, in_step={}).gemm(16384, 16384, 16384, "bf16").seconds) for c in (hot, cool)]
    assert long[0] / long[1] == pytest.approx((5 / 7) ** 0.5, rel=0.02)
    assert long[0] / long[1] == pytest.approx(wide[0] / wide[1], rel=0.02)


def test_a_device_with_another_capacity_keeps_what_was_measured():
    """Products, factors of a training step and the record of runs are those of the device that a file starts from."""
    mine = cluster_of({"extends": "dgx-h100", "id": "ours", "device": {"memory": {"allocatable": "70 GiB"}}}, "ours")
    base = load_cluster("dgx-h100")
    assert mine.device.id != base.device.id
    ours, theirs = rates_for(mine), rates_for(base)
    assert ours.name == theirs.name == "profile:h100-sxm"
    assert ours.in_step == theirs.in_step
    assert ours.gemm(4096, 8192, 8192, "bf16") == theirs.gemm(4096, 8192, 8192, "bf16")
    work, layout = Workload(), Layout(tp=8)
    model = load_model("llama-3.1-8b")
    assert features_of(model, mine, work, layout) == features_of(model, base, work, layout)
