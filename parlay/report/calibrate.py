"""The text and the documents of `parlay calibrate`: flags first, then rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from parlay import __version__
from parlay.calibrate.diff import Moved
from parlay.calibrate.fits import link_bytes_per_s
from parlay.calibrate.gates import FLAGS
from parlay.rates.calibration_file import Calibration, Fit, Link
from parlay.report.table import Column, Page, fields, render, wrap
from parlay.units import show_bytes, show_rate, show_seconds, significant

BARS = " ▁▂▃▄▅▆▇█"
MOST_NOTES = 12


def run_lines(c: Calibration, path: str, page: Page) -> list[str]:
    """Return what a run or an import left behind."""
    verdict = "complete" if c.complete else "INCOMPLETE"
    return [*wrap(f"{path}: {c.count} points, {verdict}; parlay plan ... --rates {path} uses it", page), *flag_lines(c, page)]


def flag_lines(c: Calibration, page: Page) -> list[str]:
    """Return everything that a reader should know first: warnings, errors, flags, what was skipped."""
    out: list[str] = []
    if not c.complete:
        text = "! incomplete: what is missing comes from profiles and datasheets; the same command with --resume goes on"
        out += wrap(text, page, hang="  ")
    for text in c.warnings:
        out += wrap(f"! {text}", page, hang="  ")
    counted = Counter(
        f for p in (*c.compute, *c.memory, *c.host_copies, *(q for x in c.links for q in x.points)) for f in p.flags
    )
    for name, count in counted.most_common():
        out += wrap(f"! {count} points with '{name}': {FLAGS.get(name, name)}", page, hang="  ")
    for title, notes in (("error", c.errors), ("skipped", c.skipped)):
        for note in notes[:MOST_NOTES]:
            out += wrap(f"{'!' if title == 'error' else '-'} {title}: {note.what}: {note.why}", page, hang="  ")
        if len(notes) > MOST_NOTES:
            out.append(f"  and {len(notes) - MOST_NOTES} more; --json shows all")
    return out


def show_lines(c: Calibration, page: Page) -> list[str]:
    """Return a calibration: flags, identity, products, attention, streams, links with their curves, overlap."""
    out = [*flag_lines(c, page)]
    out += ["", *fields(_identity(c), page)]
    fits = {f.target: f for f in c.fits}
    out += _compute(c, fits, page)
    out += _memory(c, fits, page)
    out += _host_copies(c, fits, page)
    out += _links(c, fits, page)
    for o in c.overlap:
        out += ["", *wrap(f"{o.compute} beside {o.comm}: products x{o.slow_compute:.2f}, collective x{o.slow_comm:.2f}", page)]
    for x in c.sustained:
        burst, held = (show_rate(rate, "FLOP/s", 4) for rate in (x.burst_flops_per_s, x.held_flops_per_s))
        out += ["", *wrap(f"{x.dtype} products over and over: {burst} in bursts, {held} held ({x.share:.0%})", page)]
    gaps = [f"{name} {show_seconds(v)}" for name, v in c.launch_s.items() if v is not None]
    if gaps:
        out += ["", f"between launched kernels: {', '.join(gaps)}"]
    return out[1:] if out and not out[0] else out


def _identity(c: Calibration) -> list[tuple[str, str]]:
    d, s, t = c.device, c.software, c.topology
    limits = ", ".join(
        x for x in (
            f"driver {d.driver}" if d.driver else "", f"{d.power_limit_w:.0f} W" if d.power_limit_w else "",
            f"{d.threads} threads a rank" if d.threads else "",
        ) if x
    )  # fmt: skip
    stack = ", ".join(f"{k} {v}" for k, v in (("torch", s.torch), ("CUDA", s.cuda), ("NCCL", _dotted(s.nccl))) if v)
    several = t.hosts * t.ranks_per_host > 1
    shape = (
        f"{t.hosts} host{'s' * (t.hosts > 1)} x {t.ranks_per_host} rank{'s' * (t.ranks_per_host > 1)}" if several else "one rank"
    )
    samples = f"up to {c.method.samples} samples" if c.method.samples > 1 else "one sample"
    among = f", {c.method.reduce_ranks} over ranks" if several else ""
    mode = "" if c.method.mode == "unknown" else f", {c.method.mode}"
    compiled = ", byte-bound kernels compiled" if c.method.compiled else ""
    method = f"{c.method.stat} of {samples}{among}{mode}{compiled}"
    transport = f", {t.transport}" if t.transport and several else ""
    starter = f", started by {t.launcher}" if t.launcher not in (None, "none") else ""
    rows = [
        ("device", d.name + (f" ({limits})" if limits else "")),
        ("measured", f"{c.created} ({c.provenance}), by {' '.join(c.tool.values())}"),
        ("software", stack),
        ("topology", shape + transport + starter),
        ("method", method),
        ("id", c.id[:16]),
    ]
    return [(name, value) for name, value in rows if value]


def _dotted(version: tuple[int, ...] | None) -> str:
    return ".".join(map(str, version)) if version else ""


def _off(fit: Fit | None) -> list[str]:
    if fit is None:
        return ["?", "?"]
    return [f"{fit.residual['median_pct']:.1f}", f"{fit.residual['max_pct']:.0f}"]


def _compute(c: Calibration, fits: dict[str, Fit], page: Page) -> list[str]:
    groups: dict[str, list[Any]] = {}
    for g in c.gemms:
        groups.setdefault(f"gemm {g.dtype}", []).append(g)
    for a in c.attentions:
        groups.setdefault(f"attention {a.dtype} {'backward' if a.backward else 'forward'}", []).append(a)
    for x in c.grouped:
        groups.setdefault(f"grouped gemm {x.dtype}", []).append(x)
    if not groups:
        return []
    fastest = max(p.flops / p.seconds.median for points in groups.values() for p in points)
    prefix, unit = ("T", 1e12) if fastest >= 1e12 else ("G", 1e9)  # of a CPU
    rows = []
    for name, points in groups.items():
        reached = sorted(p.flops / p.seconds.median / unit for p in points)
        spread = sorted(100 * p.seconds.spread for p in points)[len(points) // 2]
        cells = [significant(reached[len(reached) // 2], 3), significant(reached[-1], 3), f"{spread:.0f}"]
        rows.append([name, str(len(points)), *cells, *_off(fits.get(name))])
    columns = [
        Column("compute", right=False), Column("points"), Column(f"median {prefix}FLOP/s"), Column(f"best {prefix}FLOP/s"), Column("spread %", drop=2),
        Column("fit off %"), Column("at most %", drop=1),
    ]  # fmt: skip
    return ["", *render(columns, rows, page)]


def _memory(c: Calibration, fits: dict[str, Fit], page: Page) -> list[str]:
    kinds = dict.fromkeys(s.op for s in c.memory)
    if not kinds:
        return []
    rows = []
    for kind in kinds:
        own = [s for s in c.memory if s.op == kind]
        last = max(own, key=lambda s: s.bytes)
        rows.append(
            [
                kind,
                str(len(own)),
                show_rate(last.bytes / last.seconds.median, "B/s"),
                show_bytes(last.bytes),
                *_off(fits.get(f"stream {kind}")),
            ]
        )
    columns = [
        Column("byte-bound kernel", right=False), Column("points"), Column("rate of the largest"), Column("its bytes", drop=2),
        Column("fit off %"), Column("at most %", drop=1),
    ]  # fmt: skip
    return ["", *render(columns, rows, page)]


def _host_copies(c: Calibration, fits: dict[str, Fit], page: Page) -> list[str]:
    from parlay.rates.points import host_key

    rows = []
    for direction in dict.fromkeys(h.direction for h in c.host_copies):
        own = [h for h in c.host_copies if h.direction == direction]
        last = max(own, key=lambda h: h.bytes)
        rate = show_rate(last.bytes / last.seconds.median, "B/s")
        name = direction.replace("_", " ")
        rows.append([name, str(len(own)), rate, show_bytes(last.bytes), *_off(fits.get(host_key(direction)))])
    columns = [
        Column("host copy (pinned)", right=False), Column("points"), Column("rate of the largest"), Column("its bytes", drop=2),
        Column("fit off %"), Column("at most %", drop=1),
    ]  # fmt: skip
    return ["", *render(columns, rows, page)] if rows else []


def _links(c: Calibration, fits: dict[str, Fit], page: Page) -> list[str]:
    from parlay.rates.points import link_key

    if not c.links:
        return []
    rows = []
    for link in c.links:
        rate, last = link_bytes_per_s(link), link.points[-1]
        spread = sorted(100 * p.seconds.spread for p in link.points)[len(link.points) // 2]
        rows.append(
            [
                link.op, link.level, f"{link.n} ({link.local} a host)", show_seconds(link.points[0].seconds.median),
                show_rate(last.busbw, "B/s"), show_rate(rate, "B/s") if rate else "?", curve(link), f"{spread:.0f}", *_off(fits.get(link_key(link))),
            ]
        )  # fmt: skip
    columns = [
        Column("collective", right=False), Column("level", right=False), Column("ranks", right=False), Column("smallest"),
        Column("bus of the largest"), Column("slope from 1 MB"), Column("bus by size", right=False, drop=3), Column("spread %", drop=2),
        Column("fit off %", drop=1), Column("at most %", drop=1),
    ]  # fmt: skip
    return ["", *render(columns, rows, page)]


def curve(link: Link) -> str:
    """Return the bus bandwidth of a sweep, smallest message first, as bars of the largest one."""
    most = max((p.busbw for p in link.points), default=0.0)
    return "".join(BARS[max(1, round(8 * p.busbw / most))] for p in link.points) if most > 0 else ""


def show_document(c: Calibration) -> dict[str, Any]:
    """Return the document of `parlay calibrate show --json`: the file itself under a name of its own."""
    return {
        "schema_name": "parlay/calibration",
        "schema_version": 1,
        "parlay_version": __version__,
        "calibration": c.model_dump(mode="json"),
    }


def diff_lines(a: Calibration, b: Calibration, moved: Sequence[Moved], page: Page) -> list[str]:
    """Return the rates that moved beyond their spread, largest first, and how many did not."""
    out = fields([("A", _who(a)), ("B", _who(b))], page)
    if a.device.name != b.device.name:
        out += wrap("! the two were measured on different devices", page)
    beyond = [m for m in moved if m.beyond]
    out += ["", f"{len(moved)} points in both, {len(beyond)} moved beyond their spread"]
    rows = [
        [m.what, show_seconds(m.before_s), show_seconds(m.after_s), f"{100 * (m.after_s / m.before_s - 1):+.1f}", f"{100 * m.spread:.1f}"]
        for m in sorted(beyond, key=lambda m: -abs(m.change))
    ]  # fmt: skip
    columns = [Column("point", right=False, text=True), Column("A"), Column("B"), Column("time %"), Column("spread %")]
    return [*out, *(["", *render(columns, rows, page)] if rows else [])]


def _who(c: Calibration) -> str:
    stack = (("torch", c.software.torch), ("driver", c.device.driver))
    return ", ".join([c.device.name, c.created, *(f"{name} {version}" for name, version in stack if version)])


def diff_document(a: Calibration, b: Calibration, moved: Sequence[Moved]) -> dict[str, Any]:
    """Return the document of `parlay calibrate diff --json`."""
    return {
        "schema_name": "parlay/calibration-diff",
        "schema_version": 1,
        "parlay_version": __version__,
        "a": a.id,
        "b": b.id,
        "points": [
            {"what": m.what, "a_s": m.before_s, "b_s": m.after_s, "spread": m.spread, "beyond_spread": m.beyond} for m in moved
        ],
    }
