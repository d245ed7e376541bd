"""The text and the documents of `parlay hardware`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parlay import __version__
from parlay.hardware.spec import Cluster, Device, Link, Sourced
from parlay.report.table import Column, Page, fields, render
from parlay.units import show_bytes, show_rate, show_seconds, show_usd, significant


def hardware_list_lines(clusters: Sequence[Cluster], devices: Sequence[Device], links: Sequence[Link], page: Page) -> list[str]:
    """Return three tables."""
    rows = [
        [
            c.id, c.device.id, f"{c.gpus_per_node.value:.0f}", f"{c.scale_up_gpus.value:.0f}",
            _giga(c.scale_up_link.bytes_per_s.value), _giga(c.nic_bytes_per_s_per_gpu), c.name,
        ]
        for c in clusters
    ]  # fmt: skip
    columns = [
        Column("cluster", right=False), Column("device", right=False), Column("GPUs/node"), Column("scale-up", drop=2),
        Column("link GB/s", drop=1), Column("net GB/s/GPU", drop=1), Column("name", right=False, drop=3),
    ]  # fmt: skip
    out = render(columns, rows, page)
    rows = [
        [
            d.id, f"{d.memory.allocatable.value / 2**30:,.1f}", f"{d.hbm_bytes_per_s.value / 1e12:.2f}", _peak(d, "bf16"), _peak(d, "fp8"),
            _peak(d, "fp4"), d.name,
        ]
        for d in devices
    ]  # fmt: skip
    columns = [
        Column("device", right=False), Column("allocatable GiB"), Column("HBM TB/s", drop=1), Column("bf16 TFLOP/s"),
        Column("fp8", drop=2), Column("fp4", drop=3), Column("name", right=False, drop=4),
    ]  # fmt: skip
    out += ["", *render(columns, rows, page)]
    rows = [[x.id, x.kind, _giga(x.bytes_per_s.value), x.per, f"{x.latency_s.value * 1e6:.1f}", x.name] for x in links]
    columns = [
        Column("link", right=False), Column("kind", right=False), Column("GB/s one way"), Column("per", right=False),
        Column("latency us", drop=1), Column("name", right=False, drop=2),
    ]  # fmt: skip
    return [*out, "", *render(columns, rows, page)]


def _peak(device: Device, dtype: str) -> str:
    peak = device.flops_per_s.get(dtype)  # type: ignore[call-overload]
    return _tera(peak.value) if peak else "-"


def _giga(bytes_per_s: float) -> str:
    """Return a rate in GB/s with all of its digits up to the second behind the point: 450, 6.25, 12.5."""
    return f"{round(bytes_per_s / 1e9, 2):,g}" if bytes_per_s < 1e12 else f"{bytes_per_s / 1e9:,.0f}"


def _tera(flops_per_s: float) -> str:
    """Return whole TFLOP/s, one figure in the list and on a device's own page."""
    return f"{flops_per_s / 1e12:,.0f}"


def hardware_list_document(clusters: Sequence[Cluster], devices: Sequence[Device], links: Sequence[Link]) -> dict[str, Any]:
    """Return the document of `parlay hardware list --json`."""
    return {
        "schema_name": "parlay/hardware",
        "schema_version": 1,
        "parlay_version": __version__,
        "clusters": [{"id": c.id, "name": c.name, "device": c.device.id, "aliases": list(c.aliases)} for c in clusters],
        "devices": [{"id": d.id, "name": d.name, "aliases": list(d.aliases)} for d in devices],
        "links": [{"id": x.id, "name": x.name, "aliases": list(x.aliases)} for x in links],
    }


def hardware_lines(spec: Cluster | Device | Link, page: Page) -> list[str]:
    """Return every value of a specification with its kind, and the sources below them."""
    head = [("name", spec.name), ("id", spec.id + (f", also {', '.join(spec.aliases)}" if spec.aliases else ""))]
    if isinstance(spec, Cluster):
        head += [
            ("device", f"{spec.device.name} ({spec.device.id})"),
            ("scale-up link", f"{spec.scale_up_link.name} ({spec.scale_up_link.id})"),
        ]
        head += [("network link", f"{spec.nic_link.name} ({spec.nic_link.id})"), ("network a GPU", _network(spec))]
    if spec.notes:
        head.append(("notes", spec.notes))
    values = list(_values(spec))
    origins = [v.source + (f" ({v.note})" if v.note else "") for _, v in values]
    numbers = {text: i + 1 for i, text in enumerate(dict.fromkeys(origins))}
    rows = [[key, _shown(key, v), v.kind, f"[{numbers[text]}]"] for (key, v), text in zip(values, origins, strict=True)]
    columns = [Column("value", right=False), Column(""), Column("kind", right=False), Column("source", right=False)]
    sources = fields([(f"[{number}]", text) for text, number in numbers.items()], page)
    return [*fields(head, page), "", *render(columns, rows, page), "", *sources]


def _network(c: Cluster) -> str:
    """Return the rate between nodes that estimates count, and what an oversubscribed network takes off it."""
    rate = f"{show_rate(c.nic_bytes_per_s_per_gpu, 'B/s')} one way between nodes"
    if c.oversubscription is None or c.oversubscription.value == 1:
        return rate
    ratio = f"oversubscribed {c.oversubscription.value:g}:1"
    if c.pod_gpus is None:
        return f"{rate}, {ratio}"
    return f"{rate}; {ratio} above pods of {c.pod_gpus.value:,.0f} GPUs"


def hardware_document(spec: Cluster | Device | Link) -> dict[str, Any]:
    """Return the document of `parlay hardware show --json`."""
    kind = type(spec).__name__.lower()
    return {
        "schema_name": f"parlay/{kind}",
        "schema_version": 1,
        "parlay_version": __version__,
        kind: spec.model_dump(mode="json"),
    }


def _values(spec: Any, prefix: str = "") -> Iterator[tuple[str, Sourced]]:
    """Yield every sourced value of a specification with its key; parts with a page of their own are left out."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Sourced):
            yield prefix + name, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(inner, Sourced):
                    yield f"{prefix}{name}.{key}", inner
        elif hasattr(type(value), "model_fields") and not isinstance(value, Device | Link):
            yield from _values(value, f"{prefix}{name}.")


def _shown(key: str, value: Sourced) -> str:
    if "flops" in key:
        return f"{_tera(value.value)} TFLOP/s" if value.value >= 1e14 else show_rate(value.value, "FLOP/s")
    if key.endswith("bytes_per_s"):
        return show_rate(value.value, "B/s")
    if "memory" in key or key.endswith("bytes"):
        return show_bytes(value.value, 4)
    if key.endswith("_hz"):
        return show_rate(value.value, "Hz")
    if key.endswith("_w"):
        return f"{value.value:,.0f} W"
    if key.endswith("_s"):
        return show_seconds(value.value)
    if key.endswith("_usd"):
        return show_usd(value.value)
    return f"{value.value:,.0f}" if value.value == int(value.value) else significant(value.value, 4)
