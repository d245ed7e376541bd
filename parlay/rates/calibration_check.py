"""Whether a calibration file may be used on a cluster, and what its reader should know first."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from parlay.errors import UsageError
from parlay.hardware.spec import Cluster
from parlay.rates.calibration_file import Calibration

MOST_AGE_DAYS = 180  # two releases of drivers and NCCL
UNKNOWN = "unknown"

# Names that torch prints for devices of the catalog (torch.cuda.get_device_name; ROCm prints the marketing name).
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


def check_file(calibration: Calibration, cluster: Cluster, *, where: str, today: datetime.date | None = None) -> list[str]:
    """Return what a reader of the file should know before trusting it on `cluster`, or raise if it cannot be used there.

    Parameters
    ----------
    calibration : Calibration
        The file [-].
    cluster : Cluster
        What is to be priced with it [-].
    where : str
        The file's name, for messages [-].
    today : date, optional
        The day to count the file's age from; without it no age is counted [-].

    Returns
    -------
    list of str
        Warnings: incomplete, old, measured on a throttled or capped device, flags of the run itself [-].

    Raises
    ------
    UsageError
        The file was measured on another device.
    """
    c = calibration
    key = (c.device.datasheet.catalog_key if c.device.datasheet else None) or device_key(c.device.name)
    same = key == cluster.device.id if key else _folded(c.device.name) in map(_folded, (cluster.device.name, cluster.device.id))
    out = []
    if c.device.name.lower() == UNKNOWN and not key:
        out.append(f"does not say which device it was measured on; it is used for {cluster.device.name}")
    elif not same:
        raise UsageError(
            f"was measured on {c.device.name}{f' ({key})' if key else ''}, and {cluster.name} has {cluster.device.name}",
            where=where,
            hint=f"calibrate on {cluster.device.id}, or choose a cluster of the measured device with --on",
        )
    if not c.complete:
        done = c.count
        out.append(f"is incomplete ({done} points); what it lacks comes from profiles and datasheets; --resume goes on")
    out += _age(c, today)
    limit, usual = c.device.power_limit_w, c.device.power_default_w
    if limit and usual and limit < usual:
        out.append(f"was measured at a power limit of {limit:.0f} W, below the default of {usual:.0f} W")
    return [*out, *c.warnings]


def _age(c: Calibration, today: datetime.date | None) -> list[str]:
    try:
        made = datetime.datetime.fromisoformat(c.created.replace("Z", "+00:00")).date()
    except ValueError:
        return [f"has no readable date ('{c.created[:30]}')"]
    if today is None or (today - made).days <= MOST_AGE_DAYS:
        return []
    stack = ", ".join(f"{k} {v}" for k, v in (("driver", c.device.driver), ("torch", c.software.torch)) if v)
    nccl = f", NCCL {'.'.join(map(str, c.software.nccl))}" if c.software.nccl else ""
    return [f"is {(today - made).days} days old ({stack}{nccl}): drivers and NCCL change rates; calibrate again"]


def _folded(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())
