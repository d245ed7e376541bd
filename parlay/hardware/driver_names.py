"""Devices by the names that their drivers print."""

from __future__ import annotations

from collections.abc import Mapping

# Names that nvidia-smi and torch.cuda.get_device_name print for devices of the catalog; ROCm prints the marketing name.
DEVICE_NAMES: Mapping[str, str] = {
    "nvidia a100-sxm4-80gb": "a100-sxm", "nvidia a100-sxm4-40gb": "a100-sxm-40gb", "nvidia a100 80gb pcie": "a100-pcie",
    "nvidia a100-pcie-40gb": "a100-pcie-40gb", "nvidia a800-sxm4-80gb": "a800-sxm", "nvidia a10g": "a10g",
    "nvidia h100 80gb hbm3": "h100-sxm", "nvidia h100 pcie": "h100-pcie", "nvidia h100 nvl": "h100-nvl",
    "nvidia h200": "h200-sxm", "nvidia h200 nvl": "h200-nvl", "nvidia h20": "h20", "nvidia h800": "h800-sxm",
    "nvidia gh200 480gb": "gh200", "nvidia gh200 144g hbm3e": "gh200-144gb", "nvidia b200": "b200", "nvidia gb200": "gb200",
    "nvidia b300 sxm6 ac": "b300", "nvidia gb300": "gb300", "nvidia l40s": "l40s", "nvidia geforce rtx 4090": "rtx-4090",
    "nvidia rtx 6000 ada generation": "rtx-6000-ada", "tesla v100-sxm2-32gb": "v100-sxm", "tesla v100-sxm3-32gb": "v100-sxm",
    "amd instinct mi250x": "mi250x", "amd instinct mi300x": "mi300x", "amd instinct mi325x": "mi325x",
    "amd instinct mi355x": "mi355x",
}  # fmt: skip


def device_key(name: str) -> str | None:
    """Return the catalog's id of a device by the name that its driver gives, None where it is not known.

    Examples
    --------
    >>> device_key("NVIDIA H100 80GB HBM3")
    'h100-sxm'
    """
    return DEVICE_NAMES.get(" ".join(name.lower().split()))
