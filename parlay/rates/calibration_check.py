"""Whether a calibration file may be used on a cluster, and what its reader should know first."""

from __future__ import annotations

import datetime

from parlay.errors import UsageError
from parlay.hardware.driver_names import device_key
from parlay.hardware.spec import Cluster
from parlay.rates.calibration_file import Calibration

MOST_AGE_DAYS = 180  # two releases of drivers and NCCL
UNKNOWN = "unknown"


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
    same = (
        key in (cluster.device.id, cluster.device.rated_as)
        if key
        else _folded(c.device.name) in map(_folded, (cluster.device.name, cluster.device.id))
    )
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
