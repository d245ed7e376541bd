"""What cannot be true is refused, what looks odd is flagged."""

import pytest

from parlay.calibrate.diff import differences
from parlay.calibrate.file import summarise
from parlay.calibrate.gates import (
    flag_order,
    point_flags,
    refuse_compute,
    refuse_host,
    refuse_link,
    refuse_stream,
    sheet_of,
    sift,
)
from parlay.hardware.load import load_device
from parlay.rates.calibration_file import Calibration, Datasheet, Gemm, HostCopy, Link, LinkPoint, MeasuredDevice, Stream

SHEET = Datasheet(catalog_key="h100-sxm", flops={"bf16": 989e12}, hbm_bytes_per_s=3.35e12, link_bytes_per_s=450e9)


def gemm(reached, dtype="bf16"):
    flops = 2.0 * 4096**3
    return Gemm(dtype=dtype, m=4096, n=4096, k=4096, flops=flops, seconds=summarise([flops / reached]))


def point(bus, nbytes=1 << 30):
    return LinkPoint(bytes=nbytes, seconds=summarise([1e-3]), algbw=1.0, busbw=bus)


def link(op, n=8, level="intra", points=()):
    return Link(op=op, backend="nccl", level=level, n=n, local=n, points=points)


def test_products_above_the_datasheet_are_refused():
    assert refuse_compute(gemm(989e12 * 1.04), SHEET) is None
    assert "1.06 of the datasheet" in refuse_compute(gemm(989e12 * 1.06), SHEET)
    assert refuse_compute(gemm(9e15, dtype="fp8"), SHEET) is None  # a type whose peak nobody gave
    assert refuse_compute(gemm(9e15), None) is None


def test_streams_may_come_from_a_cache_unless_they_are_large():
    def stream(nbytes):
        return Stream(op="copy", bytes=nbytes, bytes_convention="", seconds=summarise([nbytes / 5e12]))

    assert refuse_stream(stream(64 << 20), SHEET) is None
    assert refuse_stream(stream(512 << 20), SHEET) is not None


def test_a_copy_to_the_host_may_use_what_a_neighbour_leaves_and_no_more():
    """Two devices of a GB200 board share a link that the catalog halves; a copy counted twice would read more than both."""

    def copy(rate):
        return HostCopy(direction="to_host", bytes=1 << 28, seconds=summarise([(1 << 28) / rate]))

    sheet = sheet_of(load_device("gb200"), None)
    assert refuse_host(copy(420e9), sheet) is None
    assert "refused" in refuse_host(copy(480e9), sheet)
    assert refuse_host(copy(480e9), SHEET) is None  # nobody gave its host link
    both = Calibration(created="2026-11-29", tool={}, device=MeasuredDevice(name="GB200", vendor="nvidia", datasheet=sheet), host_copies=(copy(480e9), copy(200e9)))  # fmt: skip
    kept = sift(both)
    assert kept.host_copies == (both.host_copies[1],)
    assert kept.errors[0].what == f"host copy to_host {1 << 28} bytes"


def test_a_switch_that_adds_may_pass_the_link_and_nothing_else_may():
    """NVLS reads 482 of 450 GB/s on 8 GPUs; a send to oneself read 1.45 of the link."""
    assert refuse_link(link("all_reduce"), point(482e9), SHEET) is None
    assert refuse_link(link("all_gather"), point(482e9), SHEET) is not None
    assert "refused" in refuse_link(link("send_recv", 2), point(1.4517 * 450e9), SHEET)
    assert refuse_link(link("all_reduce"), point(450e9 * 1.75 * 1.06), SHEET) is not None
    assert refuse_link(link("all_gather", level="inter"), point(1e12), SHEET) is None  # its link is another


def test_refused_points_are_named_and_left_out():
    c = Calibration(
        created="2026-11-29", tool={}, device=MeasuredDevice(name="x", vendor="nvidia", datasheet=SHEET),
        compute=(gemm(700e12), gemm(2000e12)), links=(link("send_recv", 2, points=(point(653e9), point(380e9, 1 << 20))),),
    )  # fmt: skip
    found = sift(c)
    assert len(found.compute) == 1
    assert found.links == ()  # its smaller message looks possible, and was sent over the same wrong path
    assert len(found.errors) == 2


def test_flags():
    assert point_flags(0.14, 20) == ()
    assert point_flags(0.16, 20) == ("spread",)
    assert point_flags(0.0, 1) == ("single value",)
    times = [(1, 1.0), (2, 2.0), (4, 1.5), (8, 1.9), (16, 4.0)]
    points = [LinkPoint(bytes=b, seconds=summarise([t]), algbw=1, busbw=1) for b, t in reversed(times)]
    assert [p.flags for p in flag_order(points)] == [(), (), ("non-monotone",), (), ()]


@pytest.mark.parametrize(("scale", "moved"), [(1.02, False), (0.98, False), (1.05, True), (0.9, True)])
def test_a_rate_moves_where_it_leaves_its_spread(scale, moved):
    def one(t):
        samples = [t * (1 + 0.001 * i) for i in range(20)]
        g = Gemm(dtype="bf16", m=64, n=64, k=64, flops=1e6, seconds=summarise(samples))
        return Calibration(created="2026-11-29", tool={}, device=MeasuredDevice(name="x", vendor="y"), compute=(g,))

    (found,) = differences(one(1e-3), one(1e-3 * scale))
    assert found.beyond is moved
    assert found.after_s / found.before_s == pytest.approx(scale)
