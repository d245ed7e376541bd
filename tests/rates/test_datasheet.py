"""Datasheet rates: bounds, labels, errors a user can cause, speed."""

import numpy as np
import pytest

from parlay.errors import UsageError
from parlay.estimate.terms import weakest
from parlay.hardware.load import list_devices, load_cluster, load_device
from parlay.rates.datasheet import C2C_BYTES_PER_S, HOST_SHARE, STREAM_SHARES, datasheet_rates
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


# TFLOP/s of AITER's kernels, bf16, 128 channels: forward and backward, the gradient of queries in fp32 (ROCm/aiter 0403bcdfd,
# op_tests/cpp/mha/README.md). Sequences, heads, key heads, length, causal; a causal row counts half of the square.
AITER = {
    "mi300x": [
        (1, 32, 8, 4096, False, 527.73, 423.53), (4, 64, 8, 8192, False, 592.16, 468.71), (1, 32, 8, 8192, True, 522.68, 388.235),
        (8, 32, 8, 4096, True, 513.1, 409.05), (4, 64, 8, 8192, True, 540.515, 434.645), (1, 64, 8, 16384, True, 541.55, 412.04),
    ],
    "mi355x": [
        (1, 32, 8, 4096, False, 1177.11, 781.81), (4, 64, 8, 8192, False, 1407.58, 798.0), (1, 32, 8, 8192, True, 1247.73, 765.75),
        (8, 32, 8, 4096, True, 1166.875, 726.06), (4, 64, 8, 8192, True, 1319.225, 774.25), (1, 64, 8, 16384, True, 1392.485, 808.93),
    ],
}  # fmt: skip


@pytest.mark.parametrize("device", AITER)
def test_attention_on_amd_runs_as_its_own_kernels_do(device):
    rates = datasheet_rates(load_cluster(device))
    for batch, heads, kv_heads, length, causal, *measured in AITER[device]:
        share = (length + 1) / (2 * length) if causal else 1.0
        for backward, tflops in zip((False, True), measured, strict=True):
            flops = (2.5 if backward else 1.0) * 4 * batch * heads * length**2 * 128 * (0.5 if causal else 1.0)
            price = rates.attention(length, length, heads, kv_heads, 128, 128, score_share=share, batch=batch, backward=backward)
            assert flops / float(price.seconds) / 1e12 == pytest.approx(tflops, rel=0.15)


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


MEASURED = {
    ("h100-sxm", "to_device"): 51e9, ("h100-sxm", "to_host"): 52e9, ("h200-sxm", "to_device"): 55.43e9, ("h200-sxm", "to_host"): 55.06e9,
    ("a100-sxm", "to_device"): 26.28e9,
}  # fmt: skip


@pytest.mark.parametrize("direction", ["to_device", "to_host"])
@pytest.mark.parametrize("device", [d.id for d in list_devices() if load_device(d.id).host_link_bytes_per_s])
def test_host_copies_run_at_what_was_measured_or_at_a_share_of_the_link(cluster, device, direction):
    """51 and 52 GB/s on H100, 55 on H200 over PCIe 5, 26.3 GB/s on A100 over PCIe 4 (Azure, ml-engineering)."""
    found = load_device(device)
    c = cluster().model_copy(update={"device": found})
    copied = datasheet_rates(c).host_copy(1e12, direction)
    measured = MEASURED.get((device, direction))
    link = found.host_link_bytes_per_s.value
    wanted = measured or link * HOST_SHARE["c2c" if link > C2C_BYTES_PER_S else "pcie"]
    assert 1e12 / float(copied.seconds) == pytest.approx(wanted, rel=1e-4)
    assert copied.source == ("profile" if measured else "default")
    said = datasheet_rates(c).describe()["host_copy"]
    assert (f"{direction.replace('_', ' ')} {wanted / 1e9:.4g} GB/s" in said) == bool(measured)
    assert float(datasheet_rates(c).host_copy(0.0, direction).seconds) == 0.0


def test_measured_copies_of_another_host_do_not_count(cluster):
    """GB300's were taken with one GPU a Grace, of which a rack's GPUs have half; a slower link of one's own holds as well."""
    two = load_device("gb300")
    assert two.achieved["host_to_device_bytes_per_s"].value > two.host_link_bytes_per_s.value
    h100 = load_device("h100-sxm")
    link = h100.host_link_bytes_per_s.model_copy(update={"value": 20e9})
    slow = cluster().model_copy(update={"device": h100.model_copy(update={"host_link_bytes_per_s": link})})
    assert 1e12 / float(datasheet_rates(slow).host_copy(1e12, "to_host").seconds) == pytest.approx(17e9, rel=1e-4)


def test_a_million_products_are_priced_as_arrays(cluster, processor_seconds):
    rates = datasheet_rates(cluster())
    m = np.linspace(128, 16384, 1_000_000)
    one = processor_seconds(lambda: [rates.gemm(8192.0, 4096, 8192, "bf16") for _ in range(100)]) / 100
    assert processor_seconds(lambda: rates.gemm(m, 4096, 8192, "bf16")) < 20_000 * one  # measured: 1,800
