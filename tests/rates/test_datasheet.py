"""Datasheet rates: bounds, labels, errors a user can cause, speed."""

import numpy as np
import pytest

from parlay.errors import UsageError
from parlay.estimate.terms import weakest
from parlay.rates.datasheet import STREAM_SHARES, datasheet_rates
from parlay.rates.interface import Group


@pytest.fixture(params=["a100-sxm-80", "h100-sxm-80", "b200-sxm", "mi300x", "l40s"])
def rates(request, cluster):
    return datasheet_rates(cluster(request.param))


def test_large_products_hold_a_plausible_share_of_the_peak(rates):
    for dtype, peak in rates.device.flops_per_s.items():
        share = 2.0 * 16384**3 / float(rates.gemm(16384, 16384, 16384, dtype).seconds) / peak.value
        assert 0.45 < share < 0.8


def test_streams_never_outrun_the_memory_and_differ_by_kind(rates):
    times = {kind: float(rates.stream(1e9, kind).seconds) for kind in STREAM_SHARES}
    assert min(times.values()) > 1e9 / rates.device.hbm_bytes_per_s.value
    assert times["cross_entropy"] > times["permute"] > times["norm"] > times["copy"]


def test_backward_attention_takes_longer_than_forward(rates):
    forward, backward = (
        float(rates.attention(8192, 8192, 32, 8, 128, 128, score_share=0.5, backward=b).seconds) for b in (False, True)
    )
    assert 2.5 < backward / forward < 4.5


def test_every_price_has_a_source_that_a_term_can_carry(rates):
    prices = [
        rates.gemm(1024, 1024, 1024, "bf16"),
        rates.grouped_gemm(1024, 8, 1024, 1024, "bf16"),
        rates.attention(1024, 1024, 8, 8, 128, 128, score_share=1.0),
        rates.stream(1e6, "norm"),
        rates.collective("all_gather", 1e6, Group.of(8, 1, 8.0)),
        rates.host_copy(1e6, "to_host"),
        rates.launch(),
    ]
    assert weakest(p.source for p in prices) == "default"
    assert all(isinstance(p.seconds, np.ndarray) and float(p.seconds) > 0 for p in prices)


def test_a_missing_dtype_names_those_that_exist(cluster):
    with pytest.raises(UsageError, match="has no fp8 peak") as error:
        datasheet_rates(cluster("a100-sxm-80")).gemm(8, 8, 8, "fp8")
    assert "bf16" in (error.value.hint or "")


def test_a_missing_host_link_is_an_error_only_when_asked_for(cluster):
    c = cluster()
    bare = c.model_copy(update={"device": c.device.model_copy(update={"host_link_bytes_per_s": None})})
    rates = datasheet_rates(bare)
    with pytest.raises(UsageError, match="host_link_bytes_per_s"):
        rates.host_copy(1e9, "to_host")


def test_host_copies_reach_what_was_measured(cluster):
    """51-52 GB/s on H100 over PCIe 5, 26.3 GB/s on A100 over PCIe 4 (Azure)."""
    assert 1e10 / float(datasheet_rates(cluster()).host_copy(1e10, "to_host").seconds) == pytest.approx(52e9, rel=0.06)
    assert 1e10 / float(datasheet_rates(cluster("a100-sxm-80")).host_copy(1e10, "to_host").seconds) == pytest.approx(
        26.3e9, rel=0.06
    )
    assert float(datasheet_rates(cluster()).host_copy(0.0, "to_host").seconds) == 0.0


def test_a_million_products_are_priced_as_arrays(cluster, processor_seconds):
    rates = datasheet_rates(cluster())
    m = np.linspace(128, 16384, 1_000_000)
    one = processor_seconds(lambda: [rates.gemm(8192.0, 4096, 8192, "bf16") for _ in range(100)]) / 100
    assert processor_seconds(lambda: rates.gemm(m, 4096, 8192, "bf16")) < 20_000 * one  # measured: 1,800
