"""Values that were got wrong elsewhere, or on which sources disagree: the catalog holds the right one."""

from __future__ import annotations

import pytest

from parlay.hardware.load import load_cluster, load_device, load_link

GIB = 2**30
MIB = 2**20


@pytest.mark.parametrize(
    ("device", "mebibytes"),
    [
        ("h100", 81559),
        ("a100-80gb", 81920),
        ("a100-40gb", 40960),
        ("l40s", 46068),
        ("l4", 23034),
        ("h200", 143771),
        ("b200", 183359),
    ],
)
def test_visible_memory_is_what_the_driver_prints(device, mebibytes):
    # modal-labs/modal-client pull request 2797: nvidia-smi totals; tolerance 0.5 %
    assert load_device(device).memory.visible.value == pytest.approx(mebibytes * MIB, rel=0.005)


def test_h100_memory_is_neither_80e9_bytes_nor_74_gib():
    # brevdev/cloud pull request 140: the marketed 80 GB read as decimal showed 74 GiB; visible are 79.65
    memory = load_device("h100").memory
    assert memory.visible.value == 85_520_809_984
    assert memory.visible.value / GIB == pytest.approx(79.65, abs=0.005)
    assert memory.marketed.value / GIB == 80  # five stacks of 16 GiB
    assert memory.allocatable.value / GIB == pytest.approx(79.19, abs=0.07)


@pytest.mark.parametrize(
    ("device", "low", "high"),
    [
        ("a100", 79.14, 79.25),
        ("a100-40gb", 39.38, 39.56),
        ("h100", 79.18, 79.25),
        ("h20", 95.00, 95.01),
        ("h200", 139.72, 139.81),
        ("b200", 178.35, 178.37),
        ("gb200", 184.30, 184.32),
        ("b300", 267.68, 267.70),
        ("gb300", 276.49, 276.51),
        ("mi300x", 191.97, 191.99),
        ("mi325x", 255.69, 255.99),
        ("mi355x", 287.97, 287.99),
    ],
)
def test_allocatable_memory_in_gib(device, low, high):
    assert low - 0.005 <= load_device(device).memory.allocatable.value / GIB <= high + 0.005


def test_h20_and_gh200_print_the_same_memory_and_differ_in_units():
    h20, gh200 = load_device("h20"), load_device("gh200")
    assert h20.memory.visible.value == gh200.memory.visible.value == 97871 * MIB
    assert (h20.compute_units.value, gh200.compute_units.value) == (78, 132)


@pytest.mark.parametrize(
    ("device", "dtype", "tera"),
    [
        ("h200", "bf16", 989),
        ("h200-nvl", "bf16", 835.5),  # allenai/OLMo-core pull request 810: the NVL part is its own entry
        ("h100", "bf16", 989),
        ("h100", "fp8", 1979),
        ("h100-pcie", "bf16", 756.5),
        ("h100-nvl", "bf16", 835),
        ("h20", "bf16", 148),
        ("a100", "bf16", 312),
        ("b200", "bf16", 2250),
        ("b200", "fp4", 9000),
        ("b300", "fp4", 13500),
        ("b300", "int8", 153.5),
        ("gb200", "bf16", 2450),
        ("gb300", "fp4", 14700),
        ("gb300", "int8", 165),
        ("mi300x", "bf16", 1307.4),
        ("mi325x", "bf16", 1307.4),
        ("mi355x", "bf16", 2516.6),
        ("gaudi3", "bf16", 1677),
        ("gaudi2", "fp8", 865),
        ("rtx-4090", "bf16", 165.2),
        ("rtx-4090", "fp8", 330.3),
        ("l40s", "bf16", 362.05),
        ("a10g", "bf16", 70),
        ("v100", "fp16", 125),
        ("mi250x", "bf16", 191.5),
    ],
)
def test_dense_peak(device, dtype, tera):
    assert load_device(device).flops_per_s[dtype].value == pytest.approx(tera * 1e12, rel=1e-6)


def test_parts_without_a_dtype_do_not_list_it():
    assert "fp8" not in load_device("a100").flops_per_s
    assert "bf16" not in load_device("v100").flops_per_s


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("h100", 3.35),
        ("b200", 7.7),
        ("gb200", 8.0),
        ("b300", 7.7),
        ("gh200-144gb", 4.9),
        ("rtx-pro-6000", 1.597),
        ("h200", 4.8),
        ("a100", 2.039),
    ],
)
def test_memory_bandwidth(device, tera):
    assert load_device(device).hbm_bytes_per_s.value == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("link", "giga"),
    [
        ("nvlink2", 150),
        ("nvlink3", 300),
        ("nvlink3-a800", 200),
        ("nvlink4", 450),  # never the 900 that adds both directions
        ("nvlink4-h800", 200),
        ("nvlink4-h20", 450),
        ("nvlink5", 900),
        ("xgmi-mi300x", 448),
        ("xgmi-mi355x", 535.5),
        ("pcie4-x16", 31),
        ("pcie5-x16", 63),
        ("ib-hdr", 25),
        ("ib-ndr", 50),
        ("ib-xdr", 100),
        ("roce-100", 12.5),
        ("roce-400", 50),
        ("efa-p4d", 12.5),
        ("efa-p5", 12.5),
        ("efa-p5en", 25),
        ("efa-p6", 50),
        ("tcp-100", 12.5),
        ("slingshot-11", 25),
    ],
)
def test_link_rate_of_one_direction(link, giga):
    assert load_link(link).bytes_per_s.value == pytest.approx(giga * 1e9)


@pytest.mark.parametrize(
    ("link", "entry", "giga", "tolerance"),
    [
        ("nvlink4", "p2p_bytes_per_s", 380, 0.05),  # NVIDIA/nccl issue 1264
        ("nvlink4", "p2p_both_ways_bytes_per_s", 749, 0.05),
        ("nvlink4-h800", "p2p_bytes_per_s", 160, 0.05),  # deepseek-ai/DeepEP issue 16
        ("nvlink4-h20", "p2p_bytes_per_s", 337.35, 0.05),
        ("ib-ndr", "nic_bytes_per_s", 48.5, 0.02),  # NVIDIA/nccl-tests issue 267
    ],
)
def test_achieved_rate_is_kept_beside_the_nominal_one(link, entry, giga, tolerance):
    spec = load_link(link)
    assert spec.achieved[entry].value == pytest.approx(giga * 1e9, rel=tolerance)
    assert spec.achieved[entry].kind == "measured"
    if "both" not in entry:
        assert spec.achieved[entry].value < spec.bytes_per_s.value


def test_h800_and_h20_do_not_share_a_link():
    assert load_cluster("h800").scale_up_link.id != load_cluster("hgx-h20").scale_up_link.id


@pytest.mark.parametrize(
    ("cluster", "giga"),
    [
        ("dgx-a100", 25),
        ("dgx-h100", 50),
        ("dgx-b200", 50),  # ConnectX-7, not the ConnectX-8 that one table assumes
        ("dgx-b300", 100),
        ("gb200-nvl72", 50),
        ("gb300-nvl72", 100),
        ("aws-p4d", 6.25),
        ("aws-p5", 50),
        ("aws-p5-tcp", 1.5625),  # one 100 Gbit/s card of 32, shared by eight GPUs
        ("aws-p6e-gb200", 100),
        ("gcp-a3-high", 12.5),  # 800 of the 1000 Gbit/s headline
        ("gcp-a3-mega", 25),
        ("gcp-a3-ultra", 50),
        ("gcp-a4x", 50),
        ("jean-zay-a100", 6.25),
        ("frontier", 12.5),
        ("meta-24k", 50),
    ],
)
def test_network_per_gpu(cluster, giga):
    assert load_cluster(cluster).nic_bytes_per_s_per_gpu == pytest.approx(giga * 1e9)


def test_host_memory_of_a_grace_tray_does_not_count_hbm():
    for name in ("gb200-nvl72", "gb300-nvl72"):
        assert load_cluster(name).host_memory_bytes.value == 960 * GIB


def test_host_link_of_x86_blackwell_is_pcie_5():
    assert load_device("b200").host_link_bytes_per_s.value == load_device("b300").host_link_bytes_per_s.value == 63e9


def test_only_the_roce_cluster_of_meta_is_oversubscribed():
    meta = load_cluster("meta-24k")
    assert (meta.oversubscription.value, meta.pod_gpus.value) == (7, 3072)
    assert load_cluster("meta-24k-ib").oversubscription is None
