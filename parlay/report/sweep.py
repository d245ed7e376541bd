"""The table, CSV, JSON lines and document of `parlay sweep`."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Literal

from parlay import __version__
from parlay.layouts.workload import Workload
from parlay.report.document import Document
from parlay.report.table import RUN_TIMES, Column, Page, render, unit_for, wrap
from parlay.search.sweep import KNEE, Sweep, SweepRow
from parlay.units import GIB, significant


class SweepRowDocument(Document):
    """One combination; without a layout nothing fits."""

    model: str
    cluster: str
    gpus: int
    seq_len: int
    global_batch_sequences: int
    fits: bool
    layout_short: str | None
    tokens_per_s_per_gpu: float | None
    step_s: float | None
    mfu: float | None
    memory_peak_bytes: float | None
    memory_limit_bytes: float
    run_s: float | None
    knee: bool
    why: str
    precision: str
    optimizer: str
    framework: str
    settings: str  # other fields of training that are not their defaults, as --set takes them


class SweepReport(Document):
    """The document of `parlay sweep --json`."""

    schema_name: Literal["parlay/sweep"] = "parlay/sweep"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    scaling: Literal["strong", "weak"]
    knee_share: float
    interrupted: bool
    rows: list[SweepRowDocument]


def row_document(row: SweepRow) -> SweepRowDocument:
    """Return the document of one row."""
    c, e = row.case, row.estimate
    return SweepRowDocument(
        model=c.model.id, cluster=c.cluster.id, gpus=c.gpus, seq_len=c.workload.seq_len,
        global_batch_sequences=c.workload.global_batch, fits=e is not None, layout_short=str(e.layout) if e else None,
        tokens_per_s_per_gpu=e.tokens_per_s_per_gpu if e else None, step_s=e.step_s if e else None, mfu=e.mfu if e else None,
        memory_peak_bytes=e.peak_bytes if e else None, memory_limit_bytes=float(c.cluster.device.memory.allocatable.value),
        run_s=row.days * 86400 if row.days is not None else None, knee=row.knee, why=row.why,
        precision=c.workload.precision, optimizer=c.workload.optimizer, framework=c.workload.framework, settings="; ".join(_others(c.workload)),
    )  # fmt: skip


TOLD = ("seq_len", "global_batch", "precision", "optimizer", "framework", "total_tokens")


def _others(workload: Workload) -> list[str]:
    """Return the fields of training that are neither told elsewhere nor their defaults."""
    changed = workload.model_dump(mode="json", exclude_defaults=True)
    return [f"{name}={_word(value)}" for name, value in changed.items() if name not in TOLD]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def sweep_report(found: Sweep) -> SweepReport:
    """Return the whole document."""
    return SweepReport(
        scaling="weak" if found.weak else "strong", knee_share=KNEE, interrupted=found.interrupted,
        rows=[row_document(r) for r in found.rows],
    )  # fmt: skip


def sweep_jsonl(found: Sweep) -> list[str]:
    """Return one JSON object a row."""
    return [json.dumps(row_document(r).model_dump(), allow_nan=False) for r in found.rows]


def sweep_csv(found: Sweep) -> list[str]:
    """Return the rows as CSV with a header, in SI base units; what is not known is empty."""
    rows = [row_document(r).model_dump() for r in found.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(SweepRowDocument.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _plain(v) for k, v in row.items()} for row in rows)
    return text.getvalue().splitlines()


def _plain(value: Any) -> Any:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def sweep_lines(found: Sweep, page: Page) -> list[str]:
    """Return the table, and what the marked rows mean."""
    several = {name: len({getattr(r.case, name).id for r in found.rows}) > 1 for name in ("model", "cluster")}
    longest = max((r.days for r in found.rows if r.days is not None), default=None)
    unit = None if longest is None else unit_for(longest * 86400, RUN_TIMES)
    columns = [Column(n, right=False) for n, on in several.items() if on]
    columns += [
        Column("GPUs"),
        Column("tokens", drop=3),
        Column("batch", drop=2),
        Column("layout", right=False),
        Column("tok/s/GPU"),
    ]
    columns += [Column("step s"), Column("MFU %", drop=1), Column("GiB", drop=4), *([Column(unit[0])] if unit else [])]
    columns += [Column("", right=False, text=True)]
    rows = [_cells(r, several, unit) for r in found.rows]
    first = found.rows[0].case
    known = " on ".join(getattr(first, n).name for n, on in several.items() if not on)
    w = first.workload
    asked = [f"{'weak' if found.weak else 'strong'} scaling", w.precision, w.optimizer, w.framework, *_others(w)]
    out = [*wrap(", ".join([known, *asked] if known else asked), page), ""]
    out += render(columns, rows, page)
    refused = [r for r in found.rows if r.estimate is None and r.why]
    if refused:
        out.append("")
    for r in refused:
        out += wrap(f"{r.case.model.id} on {r.case.gpus:,} x {r.case.cluster.id}: {r.why}", page, hang="  ")
    if any(r.knee for r in found.rows):
        beyond = "a series that ends above it has none, since nothing was seen beyond"
        what = f"knee: the most GPUs that still hold {KNEE:.0%} of the best tokens/s/GPU of their series; {beyond}."
        out += ["", *wrap(what, page)]
    elif len({r.case.gpus for r in found.rows if r.estimate}) > 1:
        out += ["", *wrap(f"no knee: the most GPUs of each series still hold {KNEE:.0%} of its best tokens/s/GPU.", page)]
    if found.interrupted:
        out += ["", *wrap("Interrupted: the last row is the best so far, and further rows are missing.", page)]
    return out


def _cells(row: SweepRow, several: dict[str, bool], unit: tuple[str, float] | None) -> list[str]:
    c, e = row.case, row.estimate
    head = [getattr(c, n).id for n, on in several.items() if on]
    head += [f"{c.gpus:,}", f"{c.workload.seq_len:,}", f"{c.workload.global_batch:,}"]
    if e is None:
        return [
            *head,
            "nothing fits" if row.able else f"no {c.workload.precision}",
            "-",
            "-",
            "-",
            "-",
            *(["-"] if unit else []),
            "",
        ]
    body = [
        str(e.layout),
        f"{e.tokens_per_s_per_gpu:,.0f}",
        significant(e.step_s, 4),
        f"{100 * e.mfu:.1f}",
        f"{e.peak_bytes / GIB:.1f}",
    ]
    return [*head, *body, *([significant((row.days or 0.0) * 86400 / unit[1], 3)] if unit else []), "knee" if row.knee else ""]
