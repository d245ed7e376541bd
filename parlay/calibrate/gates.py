"""What cannot be true is refused, and what looks odd is flagged, for measured and imported points alike."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.hardware.spec import Cluster, Device
from parlay.rates.calibration_file import (
    AttentionPoint,
    Calibration,
    Datasheet,
    Gemm,
    GroupedGemm,
    HostCopy,
    Link,
    LinkPoint,
    Note,
    Stream,
)

ABOVE = 1.05  # of the datasheet: clocks and rounding explain less than this, a wrong count of FLOPs or bytes more
HOST_SHARED = 2.0  # devices that share a host link at most: two of a GB200 board
STREAM_BYTES = 256 << 20  # smaller streams may lie in a cache
MOST_SPREAD = 0.15  # 90th percentile over median
SLOWER = 0.90  # a larger message that takes less than this share of a smaller one's time
FLAGS = {
    "spread": "the samples lie far apart (90th percentile more than 15 % over the median): other work ran beside it",
    "non-monotone": "a larger message took less time than a smaller one: a switch of algorithm, or noise",
    "single value": "imported without samples: nothing is known of its spread",
}


def sheet_of(device: Device, cluster: Cluster | None) -> Datasheet:
    """Return what the catalog says that a device, and the links of its cluster, can do at most."""
    return Datasheet(
        catalog_key=device.id,
        flops={str(d): p.value for d, p in device.flops_per_s.items()},
        hbm_bytes_per_s=device.hbm_bytes_per_s.value,
        link_bytes_per_s=cluster.scale_up_link.bytes_per_s.value if cluster else None,
        host_link_bytes_per_s=device.host_link_bytes_per_s.value if device.host_link_bytes_per_s else None,
    )


def refuse_compute(point: Gemm | GroupedGemm | AttentionPoint, sheet: Datasheet | None) -> str | None:
    """Return why a product or attention cannot be true, None where it can."""
    peak = sheet.flops.get(point.dtype) if sheet else None
    reached = point.flops / point.seconds.median
    if peak is None or reached <= ABOVE * peak:
        return None
    return f"{reached / 1e12:,.1f} TFLOP/s is {reached / peak:.2f} of the datasheet's {peak / 1e12:,.1f}: refused"


def refuse_stream(point: Stream, sheet: Datasheet | None) -> str | None:
    """Return why a byte-bound kernel cannot be true, None where it can."""
    peak = sheet.hbm_bytes_per_s if sheet else None
    reached = point.bytes / point.seconds.median
    if peak is None or point.bytes < STREAM_BYTES or reached <= ABOVE * peak:
        return None
    return f"{reached / 1e9:,.0f} GB/s is {reached / peak:.2f} of the datasheet's {peak / 1e9:,.0f}: refused"


def refuse_host(point: HostCopy, sheet: Datasheet | None) -> str | None:
    """Return why a copy between device and host cannot be true, None where it can.

    The datasheet counts what each device has when all copy; one alone may have its neighbour's half of a shared link too.
    """
    peak = sheet.host_link_bytes_per_s if sheet else None
    reached = point.bytes / point.seconds.median
    if peak is None or reached <= ABOVE * HOST_SHARED * peak:
        return None
    return f"{reached / 1e9:,.0f} GB/s is {reached / peak:.2f} of the datasheet's {peak / 1e9:,.0f}: refused"


def refuse_link(link: Link, point: LinkPoint, sheet: Datasheet | None) -> str | None:
    """Return why a collective inside a host cannot be true, None where it can.

    A switch that adds in the network (NVLS) lets the bus bandwidth of an all-reduce exceed the link by up to 2 (n-1)/n.
    """
    peak = sheet.link_bytes_per_s if sheet else None
    if peak is None or link.level != "intra":
        return None
    most = peak * (max(2 * (link.n - 1) / link.n, 1.0) if link.op == "all_reduce" else 1.0)
    if point.busbw <= ABOVE * most:
        return None
    return f"{point.busbw / 1e9:,.0f} GB/s is {point.busbw / most:.2f} of what the link can carry ({most / 1e9:,.0f}): refused"


def point_flags(spread: float, samples: int) -> tuple[str, ...]:
    """Return the flags of one point."""
    if samples <= 1:
        return ("single value",)
    return ("spread",) if spread > MOST_SPREAD else ()


def flag_order(points: Sequence[LinkPoint]) -> tuple[LinkPoint, ...]:
    """Return a sweep sorted by size, with points flagged that took less time than a smaller message."""
    out: list[LinkPoint] = []
    slowest = 0.0
    for p in sorted(points, key=lambda p: p.bytes):
        odd = p.seconds.median < SLOWER * slowest
        flags = tuple(f for f in p.flags if f != "non-monotone") + (("non-monotone",) if odd else ())
        out.append(p.model_copy(update={"flags": flags}))
        slowest = max(slowest, p.seconds.median)
    return tuple(out)


def sift(c: Calibration) -> Calibration:
    """Return a calibration without the points that cannot be true, each named among its errors, and with flags set.

    A sweep with one size that cannot be true goes as a whole: whatever it measured was not this link.
    """
    sheet = c.device.datasheet
    errors = list(c.errors)

    def keep(what: str, why: str | None) -> bool:
        if why is not None:
            errors.append(Note(what=what, why=why))
        return why is None

    compute = tuple(p for p in c.compute if keep(f"{p.op} {p.dtype}", refuse_compute(p, sheet)))
    memory = tuple(s for s in c.memory if keep(f"{s.op} {s.bytes} bytes", refuse_stream(s, sheet)))
    copies = tuple(h for h in c.host_copies if keep(f"host copy {h.direction} {h.bytes} bytes", refuse_host(h, sheet)))
    links = []
    for link in c.links:
        why = next((w for w in (refuse_link(link, p, sheet) for p in link.points) if w), None)
        if keep(f"{link.op} over {link.n}, every size", why):
            links.append(link.model_copy(update={"points": flag_order(link.points)}))
    kept = {"compute": compute, "memory": memory, "host_copies": copies, "links": tuple(links), "errors": tuple(errors)}
    return c.model_copy(update=kept)
