"""Rates from a calibration: the point itself, between points, beyond them, then the base, and what a reader is told first."""

import datetime

import numpy as np
import pytest

from parlay.calibrate.file import summarise
from parlay.calibrate.fits import fitted
from parlay.errors import UsageError
from parlay.hardware.driver_names import device_key
from parlay.hardware.load import load_cluster
from parlay.rates.calibrated import calibrated_rates
from parlay.rates.calibration_check import check_file
from parlay.rates.calibration_file import (
    AttentionPoint,
    Calibration,
    Gemm,
    GroupedGemm,
    HostCopy,
    Link,
    LinkPoint,
    MeasuredDevice,
    Stream,
    Topology,
)
from parlay.rates.choose import rates_for
from parlay.rates.interface import Group
from parlay.rates.network import wire_factor

H100 = MeasuredDevice(name="NVIDIA H100 80GB HBM3", vendor="nvidia", count_per_host=8)
SHAPES = [(4096, 4096, 4096), (4096, 14336, 4096), (4096, 4096, 14336), (1024, 8192, 1024), (8192, 8192, 8192), (128, 512, 512)]
ODD = 1.7  # one shape is slower than its neighbours, as real ones are


def gemm(m, n, k, seconds=None):
    flops = 2.0 * m * n * k
    t = seconds or flops / 600e12 + 5e-6
    return Gemm(dtype="bf16", m=m, n=n, k=k, flops=flops, seconds=summarise([t] * 3), samples_s=(t,) * 3)


def sweep(op="all_reduce", n=8, local=8, rate=300e9, alpha=2e-5, level="intra", active=1):
    wire = float(wire_factor(op, n))
    points = tuple(
        LinkPoint(bytes=s, seconds=summarise([alpha + s * wire / rate]), algbw=1.0, busbw=1.0)
        for s in (2**i for i in range(12, 29, 2))
    )
    return Link(op=op, backend="nccl", level=level, n=n, local=local, groups_active=active, points=points)


def calibration(**fields):
    odd = 2.0 * 4096 * 6144 * 4096 / 600e12 * ODD
    given = {
        "created": "2026-11-29T12:00:00Z", "tool": {"name": "parlay"}, "device": H100, "complete": True,
        "compute": (*(gemm(*s) for s in SHAPES), gemm(4096, 6144, 4096, odd)),
        "links": (sweep(), sweep(n=2, local=2, rate=330e9), sweep(n=4, local=1, rate=45e9, level="inter"), sweep(n=4, local=1, rate=20e9, level="rails", active=8)),
        "memory": tuple(Stream(op="norm", bytes=s, bytes_convention="x y", seconds=summarise([s / 1e12])) for s in (10**6, 10**8)),
        "launch_s": {"eager": 6e-6},
    }  # fmt: skip
    return fitted(Calibration(**(given | fields)))


@pytest.fixture
def cluster():
    return load_cluster("dgx-h100")


@pytest.fixture
def rates(cluster):
    return calibrated_rates(calibration(), cluster, rates_for(cluster))


def test_a_measured_point_is_given_back_exactly(rates):
    for m, n, k in SHAPES:
        priced = rates.gemm(m, n, k, "bf16")
        assert float(priced.seconds) == pytest.approx(2.0 * m * n * k / 600e12 + 5e-6, rel=1e-9)
        assert priced.source == "calibrated"
    assert float(rates.gemm(4096, 6144, 4096, "bf16").seconds) == pytest.approx(2.0 * 4096 * 6144 * 4096 / 600e12 * ODD, rel=1e-9)


def test_between_points_a_neighbour_counts_and_far_away_the_curve(rates):
    plain = 2.0 * 4096 * 6400 * 4096 / 600e12
    between = rates.gemm(4096, 6400, 4096, "bf16")
    assert between.source == "interpolated"
    near = float(between.seconds)
    assert 1.2 * plain < near < ODD * plain * 1.01  # drawn to the odd shape beside it
    beyond = rates.gemm(65536, 65536, 65536, "bf16")
    assert beyond.source == "fitted"
    assert float(beyond.seconds) == pytest.approx(2.0 * 65536**3 / 600e12, rel=0.05)


def test_one_call_prices_many_shapes(rates):
    m = np.array([4096, 4096, 128])
    n, k = np.array([4096, 6144, 512]), np.array([4096, 4096, 512])
    each = [float(rates.gemm(*s, "bf16").seconds) for s in zip(m, n, k)]
    assert rates.gemm(m, n, k, "bf16").seconds.tolist() == pytest.approx(each)
    assert rates.gemm(m[:, None], n[None, :], 4096, "bf16").seconds.shape == (3, 3)


def test_what_was_not_measured_comes_from_the_base_and_says_so(rates, cluster):
    base = rates_for(cluster)
    for mine, theirs in (
        (rates.gemm(4096, 4096, 4096, "fp8"), base.gemm(4096, 4096, 4096, "fp8")),
        (rates.stream(1e8, "softmax"), base.stream(1e8, "softmax")),
        (rates.grouped_gemm(8192, 8, 4096, 4096, "bf16"), base.grouped_gemm(8192, 8, 4096, 4096, "bf16")),
        (rates.collective("all_to_all", 1e8, Group.of(8, 1, 8)), base.collective("all_to_all", 1e8, Group.of(8, 1, 8))),
        (
            rates.attention(4096, 4096, 32, 8, 128, 128, score_share=0.5),
            base.attention(4096, 4096, 32, 8, 128, 128, score_share=0.5),
        ),
    ):
        assert float(mine.seconds) == float(theirs.seconds)
        assert mine.source == theirs.source != "calibrated"


def test_collectives_at_points_between_and_beyond(rates):
    group = Group.of(8, 1, 8)
    at = rates.collective("all_reduce", 2**20, group)
    assert at.source == "calibrated"
    assert float(at.seconds) == pytest.approx(2e-5 + 2**20 * 1.75 / 300e9)
    between = rates.collective("all_reduce", 2**21, group)
    assert between.source == "interpolated"
    assert float(between.seconds) == pytest.approx(2e-5 + 2**21 * 1.75 / 300e9, rel=0.1)  # sizes four apart
    beyond = rates.collective("all_reduce", 2**33, group)
    assert beyond.source == "fitted"
    assert float(beyond.seconds) == pytest.approx(2**33 * 1.75 / 300e9, rel=0.02)
    just = float(rates.collective("all_reduce", 2**28 + 1, group).seconds)
    assert just == pytest.approx(float(rates.collective("all_reduce", 2**28, group).seconds), rel=1e-3)  # no jump at the end


def test_a_group_between_measured_ones_is_interpolated_and_a_larger_one_is_not(rates):
    four = rates.collective("all_reduce", 2**28, Group.of(4, 1, 8))
    assert four.source == "interpolated"
    low, high = (float(rates.collective("all_reduce", 2**28, Group.of(n, 1, 8)).seconds) for n in (2, 8))
    assert low < float(four.seconds) < high
    assert rates.collective("all_reduce", 2**28, Group.of(64, 1, 8)).source != "calibrated"  # NVLS, trees: nothing to carry over


def test_of_two_sweeps_the_one_with_every_port_in_use_counts(rates):
    across = Group(np.float64(4), np.float64(1))
    assert float(rates.collective("all_reduce", 2**28, across).seconds) == pytest.approx(2e-5 + 2**28 * 1.5 / 20e9, rel=1e-6)


def test_mixed_groups_take_each_answer_from_where_it_is_known(rates, cluster):
    group = Group(np.array([8.0, 64.0, 1.0]), np.array([8.0, 8.0, 1.0]))
    mixed = rates.collective("all_reduce", np.full(3, 2.0**20), group)
    assert mixed.seconds[0] == pytest.approx(2e-5 + 2**20 * 1.75 / 300e9)
    assert mixed.seconds[1] == rates_for(cluster).collective("all_reduce", 2**20, Group.of(64, 1, 8)).seconds
    assert mixed.seconds[2] == 0
    assert mixed.source != "calibrated"


def test_forward_and_backward_of_a_kernel_share_one_rate(cluster):
    points = [
        Stream(op="norm", direction=way, bytes=b, bytes_convention="", seconds=summarise([t]))
        for way, b, t in (("forward", 4_000_000, 4e-6), ("backward", 6_000_000, 12e-6))
    ]
    rates = calibrated_rates(calibration(memory=tuple(points)), cluster, rates_for(cluster))
    both = float(rates.stream(4e6, "norm").seconds + rates.stream(6e6, "norm").seconds)
    assert both == pytest.approx(16e-6)


def test_attention_at_measured_lengths(cluster):
    points = []
    for s in (1024, 2048, 4096, 8192):
        flops = 2.0 * 32 * s * s * 0.5 * 256
        points.append(
            AttentionPoint(
                dtype="bf16", batch=1, queries=s, keys=s, heads=32, kv_heads=8, qk_dim=128, v_dim=128, flops=flops,
                seconds=summarise([flops / 450e12 * (1 + 200 / s)]),
            )
        )  # fmt: skip
    rates = calibrated_rates(calibration(compute=tuple(points)), cluster, rates_for(cluster))
    for p in points:
        found = rates.attention(p.queries, p.keys, 32, 8, 128, 128, score_share=0.5)
        assert float(found.seconds) == pytest.approx(p.seconds.median, rel=1e-6)
        assert found.source == "calibrated"
    assert rates.attention(4096, 4096, 32, 8, 128, 128, score_share=0.5, backward=True).source != "calibrated"


def test_describe_says_what_each_rate_rests_on(rates):
    about = rates.describe()
    assert about["gemm"].startswith("calibrated: 7 points measured 2026-11-29")
    assert "all_reduce over 8 (8 a host)" in about["collective"]
    assert about["launch"].startswith("calibrated")
    assert not about["attention"].startswith("calibrated")


def test_another_device_is_refused(cluster):
    other = calibration(device=MeasuredDevice(name="NVIDIA A100-SXM4-80GB", vendor="nvidia"))
    with pytest.raises(UsageError, match="A100") as caught:
        check_file(other, cluster, where="c.json")
    assert "--on" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "days", "words"),
    [
        ({}, 1, None),
        ({"complete": False}, 1, "incomplete"),
        ({}, 200, "200 days old"),
        ({"warnings": ("throttled: sw_power_cap",)}, 1, "sw_power_cap"),
        ({"device": H100.model_copy(update={"power_limit_w": 500.0, "power_default_w": 700.0})}, 1, "500 W"),
        ({"device": H100.model_copy(update={"name": "unknown"})}, 1, "which device"),
    ],
)
def test_what_a_reader_is_told(cluster, fields, days, words):
    today = datetime.date(2026, 11, 29) + datetime.timedelta(days=days)
    found = check_file(calibration(**fields), cluster, where="c.json", today=today)
    assert [words in text for text in found] == ([True] if words else [])


def test_a_device_of_no_catalog_is_known_by_its_name(cluster):
    mine = cluster.model_copy(update={"device": cluster.device.model_copy(update={"id": "my-cpu", "name": "AMD EPYC"})})
    assert check_file(calibration(device=MeasuredDevice(name="AMD EPYC", vendor="cpu")), mine, where="c") == []
    assert device_key("AMD EPYC") is None


def test_every_named_device_is_in_the_catalog():
    from parlay.hardware.driver_names import DEVICE_NAMES
    from parlay.hardware.load import load_device

    assert all(load_device(key).id == key for key in DEVICE_NAMES.values())


def test_a_topology_of_many_hosts_is_kept():
    assert calibration(topology=Topology(hosts=2, ranks_per_host=8)).topology.hosts == 2


def few(dtype="fp8", count=3, slow=1.0, **fields):
    """A file with fewer products of a type than a curve needs, of uneven speed."""
    shapes = [(4096, 4096, 4096), (8192, 8192, 4096), (2048, 14336, 4096), (16384, 4096, 8192)][:count]
    points = []
    for i, (m, n, k) in enumerate(shapes):
        flops = 2.0 * m * n * k
        t = slow * flops / (900e12 + 100e12 * i)
        points.append(Gemm(dtype=dtype, m=m, n=n, k=k, flops=flops, seconds=summarise([t])))
    return calibration(compute=tuple(points), **fields)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_products_too_few_for_a_fit_are_used_where_they_were_measured(cluster, count):
    c, base = few(count=count), rates_for(cluster)
    assert not [f for f in c.fits if f.target == "gemm fp8"]
    rates = calibrated_rates(c, cluster, base)
    for g in c.gemms:
        found = rates.gemm(g.m, g.n, g.k, "fp8")
        assert float(found.seconds) == pytest.approx(g.seconds.median, rel=1e-12)
        assert found.source == "calibrated"
    far = (32768, 32768, 32768)
    assert rates.gemm(*far, "fp8").seconds == base.gemm(*far, "fp8").seconds
    assert rates.gemm(*far, "fp8").source == base.gemm(*far, "fp8").source
    assert rates.describe()["gemm fp8"].endswith("too few to fit, so the base beyond")


def test_between_products_too_few_for_a_fit_the_nearest_rates_count(cluster):
    rates, half = (calibrated_rates(few(slow=s), cluster, rates_for(cluster)) for s in (1.0, 2.0))
    inside = (6000, 6000, 4096)
    found = rates.gemm(*inside, "fp8")
    assert found.source == "interpolated"
    reached = 2.0 * np.prod(inside, dtype=float) / float(found.seconds)
    assert 900e12 < reached < 1100e12
    assert float(half.gemm(*inside, "fp8").seconds) == pytest.approx(2 * float(found.seconds))
    outside = (6000, 6000, 6000)  # no product with as long an inner side was measured
    assert rates.gemm(*outside, "fp8").source not in ("calibrated", "interpolated", "fitted")


def test_one_call_takes_each_shape_from_where_it_is_known(cluster):
    c, base = few(), rates_for(cluster)
    rates = calibrated_rates(c, cluster, base)
    m = np.array([4096.0, 65536.0])
    found = rates.gemm(m, 4096, 4096, "fp8")
    assert found.seconds[0] == pytest.approx(c.gemms[0].seconds.median)
    assert found.seconds[1] == base.gemm(m, 4096, 4096, "fp8").seconds[1]
    assert found.source == base.gemm(m, 4096, 4096, "fp8").source


def test_a_type_that_the_datasheet_lacks_is_priced_where_it_was_measured(cluster):
    mine = cluster.model_copy(update={"device": cluster.device.model_copy(update={"flops_per_s": {"bf16": cluster.device.flops_per_s["bf16"]}})})  # fmt: skip
    rates = calibrated_rates(few(), mine, rates_for(mine, profiles=False))
    assert rates.gemm(4096, 4096, 4096, "fp8").source == "calibrated"
    with pytest.raises(UsageError, match="fp8"):
        rates.gemm(65536, 65536, 65536, "fp8")


def test_beyond_the_range_a_neighbour_counts_and_the_answer_is_the_fits(rates):
    edge = rates.gemm(16384, 8192, 8192, "bf16")
    assert edge.source == "fitted"
    assert float(edge.seconds) == pytest.approx(2.0 * 16384 * 8192 * 8192 / 600e12, rel=0.05)


def test_attention_and_grouped_products_too_few_for_a_fit(cluster):
    flops = 2.0 * 32 * 4096 * 4096 * 0.5 * 256
    core = AttentionPoint(dtype="bf16", batch=1, queries=4096, keys=4096, heads=32, kv_heads=8, qk_dim=128, v_dim=128, flops=flops, seconds=summarise([flops / 300e12]))  # fmt: skip
    group = GroupedGemm(dtype="bf16", rows=8192, groups=8, n=4096, k=4096, flops=2.0 * 8192 * 4096**2, seconds=summarise([1e-3]))
    base = rates_for(cluster)
    rates = calibrated_rates(calibration(compute=(core, group)), cluster, base)
    found = rates.attention(4096, 4096, 32, 8, 128, 128, score_share=0.5)
    assert (float(found.seconds), found.source) == (pytest.approx(flops / 300e12), "calibrated")
    longer = rates.attention(8192, 8192, 32, 8, 128, 128, score_share=0.5)
    assert float(longer.seconds) == float(base.attention(8192, 8192, 32, 8, 128, 128, score_share=0.5).seconds)
    grouped = rates.grouped_gemm(8192, 8, 4096, 4096, "bf16")
    assert (float(grouped.seconds), grouped.source) == (pytest.approx(1e-3), "calibrated")


def copies(direction, rate, sizes=(1 << 20, 1 << 24, 1 << 28)):
    return [HostCopy(direction=direction, bytes=s, seconds=summarise([1e-5 + s / rate])) for s in sizes]


def test_copies_to_the_host_and_back_are_priced_by_the_file(cluster):
    base = rates_for(cluster)
    both = calibrated_rates(calibration(host_copies=(*copies("to_host", 40e9), *copies("to_device", 50e9))), cluster, base)
    for direction, rate in (("to_host", 40e9), ("to_device", 50e9)):
        at = both.host_copy(1 << 24, direction)
        assert (float(at.seconds), at.source) == (pytest.approx(1e-5 + (1 << 24) / rate), "calibrated")
        assert both.host_copy(1 << 23, direction).source == "interpolated"
        beyond = both.host_copy(1 << 33, direction)
        assert beyond.source == "fitted"
        assert float(beyond.seconds) == pytest.approx((1 << 33) / rate, rel=0.01)
        assert float(both.host_copy(0.0, direction).seconds) == 0
    assert both.describe()["host_copy"].startswith("calibrated: 6 points measured 2026-11-29")
    one = calibrated_rates(calibration(host_copies=tuple(copies("to_host", 40e9))), cluster, base)
    assert float(one.host_copy(1e9, "to_device").seconds) == float(base.host_copy(1e9, "to_device").seconds)
    assert one.host_copy(1e9, "to_device").source == base.host_copy(1e9, "to_device").source == "profile"  # the catalog's H100


def test_a_host_link_that_the_hardware_file_lacks_comes_from_the_calibration(cluster):
    bare = cluster.model_copy(update={"device": cluster.device.model_copy(update={"host_link_bytes_per_s": None})})
    with pytest.raises(UsageError, match="host_link_bytes_per_s"):
        rates_for(bare).host_copy(1e9, "to_host")
    mine = calibrated_rates(calibration(host_copies=tuple(copies("to_host", 40e9))), bare, rates_for(bare))
    assert mine.host_copy(1 << 28, "to_host").source == "calibrated"


def test_a_lone_sender_has_a_nic_beside_a_calibration_too():
    """Eight A100 share four NICs on this cluster; its sends were not measured, so they are the base's."""
    cluster = load_cluster("jean-zay-a100")
    base = rates_for(cluster)
    mine = calibrated_rates(calibration(), cluster, base)
    lone, all_of_them = (Group(np.array(2.0), np.array(1.0), senders) for senders in (0.5, 1.0))
    seconds = [float(mine.collective("send_recv", 2**26, place).seconds) for place in (lone, all_of_them)]
    assert seconds == [float(base.collective("send_recv", 2**26, place).seconds) for place in (lone, all_of_them)]
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=0.01)
