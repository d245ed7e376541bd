"""The closed vocabulary of units: parse what people write, print what they read. SI base units everywhere inside.

Decimal prefixes are powers of 1000 (GB = 1e9 bytes) and binary ones powers of 1024 (GiB = 2**30 bytes). Bits are
spelled "bit" or a lower-case "b" after a prefix (Gb, Gbit) and are divided by eight; bytes are an upper-case "B".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from parlay.errors import UsageError

GIB = 2**30
MIB = 2**20
KIB = 2**10

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "day": 86400.0, "days": 86400.0}
_COUNT = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20}


def _bytes_factor(unit: str) -> float | None:
    match = re.fullmatch(r"(Ki|Mi|Gi|Ti|Pi|[kKMGTPE]?)(B|bytes?|b|bits?)", unit)
    if not match:
        return None
    prefix, base = match.groups()
    scale = _BINARY.get(prefix) or _DECIMAL[prefix]
    return scale / 8 if base in ("b", "bit", "bits") else scale


def _rate_factor(unit: str) -> float | None:
    match = re.fullmatch(r"(.+?)(/s|ps)", unit)
    return _bytes_factor(match.group(1)) if match else None


def _flops_factor(unit: str) -> float | None:
    match = re.fullmatch(r"([kKMGTPE]?)(FLOP/s|FLOPS|FLOPs|FLOPs/s|flops)", unit)
    return _DECIMAL[match.group(1)] if match else None


_DIMENSIONS: dict[str, tuple[Callable[[str], float | None], str]] = {
    "bytes": (_bytes_factor, "80 GB, 79.2 GiB, 512 MiB"),
    "bytes/s": (_rate_factor, "450 GB/s, 400 Gbit/s, 3.35 TB/s"),
    "FLOP/s": (_flops_factor, "989 TFLOP/s, 1.5 PFLOP/s"),
    "s": (_TIME.get, "5 us, 2.1 ms, 3 h"),
    "W": ({"W": 1.0, "kW": 1e3}.get, "700 W"),
    "count": (_COUNT.get, "512, 15T, 4M"),
}


def parse_quantity(text: object, dimension: str, *, where: str | None = None, positive: bool = True) -> float:
    """Return `text` ("400 Gbit/s", or a bare number in SI base units) as a float in SI base units of `dimension`.

    Raises UsageError, naming what is allowed, for a unit of another dimension, a negative, NaN or infinite value.
    """
    factor_of, examples = _DIMENSIONS[dimension]
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise UsageError(
            f"expected a quantity in {dimension}, got {type(text).__name__}", where=where, hint=f"write it like {examples}"
        )
    if isinstance(text, str):
        match = re.fullmatch(r"\s*([-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*", text)
        factor = None
        if match:
            unit = match.group(2)
            factor = 1.0 if unit == "" else factor_of(unit)
        if not match or factor is None:
            what = "a count" if dimension == "count" else f"a quantity in {dimension}"
            raise UsageError(f"'{text[:60]}' is not {what}", where=where, hint=f"write it like {examples}")
        value = float(match.group(1).replace(",", "").replace("_", "")) * factor
    else:
        value = float(text)
    if not math.isfinite(value) or (value <= 0 if positive else value < 0):
        bound = "greater than zero" if positive else "zero or more"
        raise UsageError(f"'{str(text)[:60]}' must be finite and {bound}", where=where, hint=f"write it like {examples}")
    return value


def parse_count(text: object, *, where: str | None = None) -> int:
    """Return a whole number written plainly or with K, M, B, T (powers of 1000), such as 15T tokens, or Ki, Mi (of 1024)."""
    value = parse_quantity(text, "count", where=where)
    if value != int(value):
        raise UsageError(f"'{str(text)[:60]}' must be a whole number", where=where)
    return int(value)


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, thousands grouped, never in exponent form below 1e15."""
    if not math.isfinite(value):
        return "?"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded))) if rounded else exponent
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def show_gib(value_bytes: float, digits: int = 1) -> str:
    """Return bytes as GiB with a fixed number of decimals, for a column whose header names the unit, or beside such a column."""
    return f"{value_bytes / GIB:,.{digits}f}"


def show_bytes(value: float, digits: int = 3) -> str:
    """Return bytes with the binary unit that suits their size: 71.3 GiB, 512 MiB, 96 B."""
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if abs(value) >= factor:
            return f"{significant(value / factor, digits)} {unit}"
    return f"{value:,.0f} B"


def show_seconds(value: float, digits: int = 3) -> str:
    """Return seconds with the unit that suits their size: 12.3 s, 4.56 ms, 7.8 us, 3.2 h, 41 days."""
    magnitude = _rounded(value, digits)
    for factor, unit in ((86400.0 * 2, "days"), (3600.0, "h"), (1.0, "s"), (1e-3, "ms")):
        if magnitude >= factor:
            scale = 86400.0 if unit == "days" else factor
            return f"{significant(value / scale, digits)} {unit}"
    return f"{significant(value / 1e-6, digits)} us"


def show_rate(value: float, unit: str, digits: int = 3) -> str:
    """Return a decimal-prefixed rate: 989 TFLOP/s, 450 GB/s, 3.35 TB/s (`unit` is FLOP/s, B/s, FLOP or B)."""
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * (1 if prefix != "P" else 10):
            return f"{significant(value / factor, digits)} {prefix}{unit}"
    return f"{significant(value, digits)} {unit}"


def exact_count(value: int) -> str:
    """Return a whole number as `parse_count` reads it back.

    >>> exact_count(15 * 10**12), exact_count(1_234_567)
    ('15T', '1234567')
    """
    factor, suffix = next(((f, s) for s, f in (("T", 10**12), ("B", 10**9), ("M", 10**6)) if value % f == 0), (1, ""))
    return f"{value // factor}{suffix}"


def show_count(value: float, digits: int = 3) -> str:
    """Return a count as people say it: 70.6B, 15T, 512, 8,192; a small amount that is not whole keeps its digits: 0.284.

    >>> show_count(999_885_952), show_count(0.2837), show_count(15e12), show_count(512)
    ('1.00B', '0.284', '15.0T', '512')
    """
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if _rounded(value, digits) >= factor:
            return f"{significant(value / factor, digits)}{suffix}"
    small = 0 < abs(value) < 100 and value != int(value)
    return significant(value, digits) if small else f"{value:,.0f}"


def _rounded(value: float, digits: int) -> float:
    """Return the size of a value as it will be printed: 999.9 million is a billion, not 1,000 million."""
    return float(f"{abs(value):.{digits - 1}e}") if math.isfinite(value) else abs(value)


def show_number(value: int, word: str, several: str | None = None) -> str:
    """Return a whole number of things; `several` is their word where an s behind `word` is not.

    >>> show_number(1, "token"), show_number(8192, "token"), show_number(2, "batch", "batches")
    ('1 token', '8,192 tokens', '2 batches')
    """
    return f"{value:,} {word if value == 1 else several or f'{word}s'}"


def show_usd(value: float) -> str:
    """Return a price of an hour in USD, exactly.

    >>> show_usd(2), show_usd(2.5), show_usd(1.235)
    ('2.00 USD', '2.50 USD', '1.235 USD')
    """
    return f"{value:,.2f} USD" if round(value, 2) == value else f"{value:,.10g} USD"
