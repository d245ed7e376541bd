"""Clusters built by hand, so that these tests depend on no catalog file."""

import pytest

from parlay.hardware.spec import Cluster

DEVICES = {  # id: architecture, capability, HBM GB, HBM bytes/s, bf16, fp8, fp4 FLOP/s, host bytes/s, scale-up bytes/s
    "a100-sxm-80": ("ampere", "8.0", 80, 2.039e12, 312e12, None, None, 31e9, 300e9),
    "h100-sxm-80": ("hopper", "9.0", 80, 3.35e12, 989e12, 1979e12, None, 63e9, 450e9),
    "h200-sxm-141": ("hopper", "9.0", 141, 4.8e12, 989e12, 1979e12, None, 63e9, 450e9),
    "h20": ("hopper", "9.0", 96, 4.0e12, 148e12, 296e12, None, 63e9, 450e9),
    "b200-sxm": ("blackwell", "10.0", 180, 7.7e12, 2250e12, 4500e12, 9000e12, 63e9, 900e9),
    "b300-sxm": ("blackwell-ultra", "10.3", 270, 7.7e12, 2250e12, 4500e12, 13500e12, 63e9, 900e9),
    "gb200": ("blackwell", "10.0", 186, 8e12, 2450e12, 4900e12, 9800e12, 225e9, 900e9),
    "gb300": ("blackwell-ultra", "10.3", 279, 8e12, 2450e12, 4900e12, 14700e12, 225e9, 900e9),
    "l40s": ("ada", "8.9", 48, 864e9, 362.05e12, 733e12, None, 31e9, 31e9),
    "mi300x": ("cdna3", None, 192, 5.3e12, 1307.4e12, 2614.9e12, None, 63e9, 448e9),
}
KIND = {"l40s": "pcie", "mi300x": "xgmi"}


def build(
    device: str = "h100-sxm-80",
    *,
    per_node: int = 8,
    domain: int = 8,
    nics: int = 8,
    nic: float = 50e9,
    nic_kind: str = "infiniband",
) -> Cluster:
    architecture, capability, size, hbm, bf16, fp8, fp4, host, link = DEVICES[device]
    peaks = {"bf16": bf16, "fp16": bf16, "fp8": fp8, "fp4": fp4}
    return Cluster.model_validate(
        {
            "id": f"test-{device}",
            "name": f"Test {device}",
            "device": {
                "id": device,
                "name": device.upper(),
                "vendor": "amd" if device.startswith("mi") else "nvidia",
                "architecture": architecture,
                "compute_capability": capability,
                "memory": {"marketed": size * 10**9, "allocatable": size * 10**9},
                "hbm_bytes_per_s": hbm,
                "flops_per_s": {k: v for k, v in peaks.items() if v},
                "host_link_bytes_per_s": host,
            },
            "gpus_per_node": per_node,
            "scale_up_gpus": domain,
            "scale_up_link": {
                "id": "up", "name": "up", "kind": KIND.get(device, "nvlink"), "bytes_per_s": link, "per": "gpu",
                "latency_s": 1e-6,
            },
            "nics_per_node": nics,
            "nic_link": {
                "id": "out", "name": "out", "kind": nic_kind, "bytes_per_s": nic, "per": "nic", "latency_s": 2e-6,
            },
        }
    )  # fmt: skip


@pytest.fixture(scope="session")
def cluster():
    return build
