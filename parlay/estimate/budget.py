"""A budget: limits that an estimate must keep, for a gate in continuous integration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from parlay.errors import UsageError, nearest
from parlay.estimate.answers import run_length
from parlay.estimate.estimate import Estimate
from parlay.units import GIB, parse_quantity

AT_MOST = ("memory_gib", "step_s", "gpu_hours", "cost_usd")
AT_LEAST = ("tokens_per_s_per_gpu", "mfu")
# What a limit written with a unit is a quantity of, and that in the unit that the limit's name ends with.
QUANTITIES = {
    "memory_gib": ("bytes", GIB), "step_s": ("s", 1), "gpu_hours": ("count", 1), "cost_usd": ("count", 1), "mfu": ("count", 1),
    "tokens_per_s_per_gpu": ("count", 1),
}  # fmt: skip
HOST = "host_memory_gib"  # the same of the memory of a host, where something is offloaded to it
DEVICE = "device_memory_gib"  # a limit that no budget names: what an allocator can reach on the device


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One limit and what the estimate says; `at_most` tells which side is allowed."""

    name: str
    limit: float
    value: float
    at_most: bool

    @property
    def kept(self) -> bool:
        """Whether the estimate is on the allowed side."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def _number(name: str, limit: Any, where: str) -> Any:
    """Return a limit that is text, such as "76GiB", "90 s" or "5M", as a number in the unit that its name ends with; "45%" of mfu is 0.45."""
    if not isinstance(limit, str):
        return limit
    share = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", limit)
    if share:
        if name != "mfu":
            raise UsageError(f"'{limit[:40]}' is a share, but {name} is none", where=where, hint="only mfu takes %")
        return float(share[1]) / 100
    try:
        return float(limit)
    except ValueError:
        dimension, unit = QUANTITIES[name]
        return parse_quantity(limit, dimension, where=where) / unit


def check_budget(e: Estimate, budget: Mapping[str, Any], gpu_hour_usd: float | None, *, where: str) -> list[Limit]:
    """Return every limit of `budget` with the estimate's value, after the device's own memory, which no budget can raise.

    The hosts' memory is one too where something is offloaded to it.

    Raises UsageError for an unknown limit, a limit that is not a positive number, or one whose inputs are missing.
    """
    results = [Limit(DEVICE, e.memory_limit_bytes / GIB, e.peak_bytes / GIB, True)]
    if e.host_bytes and e.host_limit_bytes:
        results.append(Limit(HOST, e.host_limit_bytes / GIB, e.host_bytes / GIB, True))
    run = run_length(e, gpu_hour_usd)
    values = {
        "memory_gib": e.peak_bytes / GIB,
        "step_s": e.step_s,
        "tokens_per_s_per_gpu": e.tokens_per_s_per_gpu,
        "mfu": e.mfu,
        "gpu_hours": run.gpu_hours,
        "cost_usd": run.cost_usd,
    }
    for name, limit in budget.items():
        if name not in values:
            near = nearest(name, values)
            hint = f"did you mean {' or '.join(near)}?" if near else f"limits: {', '.join(values)}"
            raise UsageError(f"unknown limit '{name}'", where=f"{where}.{name}", hint=hint)
        limit = _number(name, limit, where=f"{where}.{name}")
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < 1e30:
            raise UsageError(f"must be a number above 0 and below 1e30, got {limit!r}", where=f"{where}.{name}")
        if name == "mfu" and limit > 1:
            hint = f"is it {limit / 100:g}?" if limit <= 100 else ""
            raise UsageError(f"must be a share from 0 to 1, got {limit!r}", where=f"{where}.{name}", hint=hint)
        value = values[name]
        if value is None:
            need = "training.total_tokens" + (" and gpu_hour_usd" if name == "cost_usd" else "")
            raise UsageError("cannot be checked", where=f"{where}.{name}", hint=f"set {need}")
        results.append(Limit(name, float(limit), value, name in AT_MOST))
    return results
