"""How much slower matrix products run inside a training step than alone: one factor a device and width of number.

The factors are fitted once, over the packaged runs of a device, by scripts/fit_in_step.py; a device without enough runs
takes the factor of its architecture's nearest relative, or of that one's, or 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

IN_STEP_FILE = Path(__file__).with_name("in_step.json")

# Devices that share a die and its limits with one that has runs, and which width leans on which where there are too few.
FAMILIES = {
    "a100-sxm-40gb": "a100-sxm", "a800-sxm": "a100-sxm", "h200-sxm": "h100-sxm", "h800-sxm": "h100-sxm",
    "h100-sxm-96gb-hbm2e": "h100-sxm", "h20": "h100-sxm", "gh200": "h100-sxm", "gh200-144gb": "h100-sxm",
}  # fmt: skip
RELATIVES = {"b300": "b200", "gb300": "gb200", "b200": "gb200", "gb200": "b200"}

Factors = Mapping[str, Mapping[str, float]]


def width_of(precision_or_dtype: str) -> str:
    """Return the width of number that a precision's or a dtype's products run in: fp4, fp8, or half (16 bits and more)."""
    if precision_or_dtype in ("nvfp4", "fp4"):
        return "fp4"
    return "fp8" if precision_or_dtype.startswith(("fp8", "mxfp8")) else "half"


def family_of(device: str) -> str:
    """Return the device whose factors a device shares."""
    return FAMILIES.get(device, device)


def factor_of(device: str, dtype: str, factors: Factors | None = None) -> float:
    """Return the factor on FLOP/s of one device and dtype; `factors` replaces the shipped ones."""
    table = shipped() if factors is None else factors
    family, width = family_of(device), width_of(dtype)
    asked: set[str] = set()
    while family not in asked:  # a relative may lean on its own
        if width in table.get(family, {}):
            return table[family][width]
        asked.add(family)
        family = RELATIVES.get(family, family)
    return 1.0


@lru_cache(maxsize=1)
def shipped() -> Factors:
    """Return the shipped factors."""
    if not IN_STEP_FILE.is_file():
        return {}
    document = json.loads(IN_STEP_FILE.read_text(encoding="utf-8"))
    return {device: {width: float(fit["factor"]) for width, fit in row.items()} for device, row in document["factors"].items()}
