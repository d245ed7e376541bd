"""The table, CSV, JSON lines and document of `parlay sweep`."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from typing import Any, Literal

from parlay import __version__
from parlay.layouts.workload import Workload
from parlay.report.document import Document
from parlay.report.table import MONEY, RUN_TIMES, Column, Page, render, unit_for, wrap
from parlay.search.sweep import KNEE, Sweep, SweepRow, series_of
from parlay.units import GIB, show_count, show_number, show_seconds, show_usd, significant


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
    gpu_hours: float | None
    cost_usd: float | None
    knee: bool
    why: str
    precision: str
    optimizer: str
    framework: str
    in_time: bool | None  # whether the run ends within the days asked for
    fewest_in_time: bool  # with the fewest GPUs of its series
    settings: str  # other fields of training that are not their defaults, as --set takes them


class SweepReport(Document):
    """The document of `parlay sweep --json`."""

    schema_name: Literal["parlay/sweep"] = "parlay/sweep"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    scaling: Literal["strong", "weak"]
    knee_share: float
    interrupted: bool
    within_s: float | None  # what the whole run may take
    rows: list[SweepRowDocument]


def row_document(found: Sweep, row: SweepRow) -> SweepRowDocument:
    """Return the document of one row of a sweep."""
    c, e = row.case, row.estimate
    return SweepRowDocument(
        model=c.model.id, cluster=c.cluster.id, gpus=c.gpus, seq_len=c.workload.seq_len,
        global_batch_sequences=c.workload.global_batch, fits=e is not None, layout_short=str(e.layout) if e else None,
        tokens_per_s_per_gpu=e.tokens_per_s_per_gpu if e else None, step_s=e.step_s if e else None, mfu=e.mfu if e else None,
        memory_peak_bytes=e.peak_bytes if e else None, memory_limit_bytes=float(c.cluster.device.memory.allocatable.value),
        **dataclasses.asdict(row.run(found.gpu_hour_usd)), knee=row.knee, why=row.why,
        in_time=found.in_time(row), fewest_in_time=row.fewest,
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
        within_s=found.within_days * 86400 if found.within_days is not None else None,
        rows=[row_document(found, r) for r in found.rows],
    )  # fmt: skip


def sweep_jsonl(found: Sweep) -> list[str]:
    """Return one JSON object a row."""
    return [json.dumps(row_document(found, r).model_dump(), allow_nan=False) for r in found.rows]


def sweep_csv(found: Sweep) -> list[str]:
    """Return the rows as CSV with a header, in SI base units; what is not known is empty."""
    rows = [row_document(found, r).model_dump() for r in found.rows]
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
    whole = _run_columns(found)
    columns = [Column(n, right=False) for n, on in several.items() if on]
    columns += [
        Column("GPUs"),
        Column("tokens", drop=0 if _differ(found, "seq_len") else 5),
        Column("batch", drop=0 if _differ(found, "global_batch") else 4),
        Column("layout", right=False),
        Column("tok/s/GPU", drop=1),
    ]
    columns += [Column("step s", drop=2), Column("MFU %", drop=7), Column("GiB", drop=8), *whole]
    columns += [Column("", right=False, text=True)]
    rows = [_cells(r, several, [cell(r) for cell in whole.values()]) for r in found.rows]
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
        where = f"{r.case.model.id} on {r.case.gpus:,} x {r.case.cluster.id}"
        out += wrap(f"{where}{_differing(found, r)}: {r.why}", page, hang="  ")
    if any(r.knee for r in found.rows):
        beyond = "a series that ends above it has none, since nothing was seen beyond"
        what = f"knee: the most GPUs that still hold {KNEE:.0%} of the best tokens/s/GPU of their series; {beyond}."
        out += ["", *wrap(what, page)]
    elif len({r.case.gpus for r in found.rows if r.estimate}) > 1:
        out += ["", *wrap(f"no knee: the most GPUs of each series still hold {KNEE:.0%} of its best tokens/s/GPU.", page)]
    out += _price(found, page) + _deadline(found, page)
    if found.interrupted:
        out += ["", *wrap("Interrupted: the last row is the best so far, and further rows are missing.", page)]
    return out


def _price(found: Sweep, page: Page) -> list[str]:
    """Return the prices behind the costs shown; nothing where none is shown."""
    priced = {r.case.cluster.id: r.case.cluster for r in found.rows if r.run(found.gpu_hour_usd).cost_usd is not None}
    if not priced:
        return []
    own = {c.id: c.gpu_hour_usd.value for c in priced.values() if c.gpu_hour_usd}
    each = [f"{show_usd(usd)} a GPU-hour on {name}" for name, usd in own.items()]
    prices = f"{show_usd(found.gpu_hour_usd)} a GPU-hour" if found.gpu_hour_usd is not None else ", ".join(each)
    return ["", *wrap(f"cost: {prices}.", page)]


def _deadline(found: Sweep, page: Page) -> list[str]:
    """Return whether the run ends in time, and what the marks mean; nothing where no days were asked for."""
    if found.within_days is None:
        return []
    tokens, limit = show_count(found.rows[0].case.workload.total_tokens or 0), show_seconds(found.within_days * 86400)
    if any(r.fewest for r in found.rows):
        what = f"fewest: the fewest GPUs of their series that train {tokens} tokens within {limit}, if nothing fails."
        late = [s for s in series_of(found.rows) if not any(r.fewest for r in s)]
        missed = [line for s in late for line in wrap(f"none in time: {_nearest(found, s)}", page, hang="  ")]
        return ["", *wrap(what, page), *missed]
    quickest = min((r for r in found.rows if r.days is not None), key=lambda r: r.days or 0.0, default=None)
    if quickest is None:
        return []
    who = f"{quickest.case.gpus:,} x {quickest.case.cluster.id}"
    took = show_seconds((quickest.days or 0.0) * 86400)
    return ["", *wrap(f"None of these trains {tokens} tokens within {limit}; {who} would take {took}.", page)]


def _nearest(found: Sweep, series: list[SweepRow]) -> str:
    """Return which series has no row in time, and how long its quickest would take."""
    case = series[0].case
    which = f"{case.model.id} on {case.cluster.id} at {show_number(case.workload.seq_len, 'token')}"
    if _several_batches(found):
        which += f" {'from' if found.weak else 'with'} a batch of {case.workload.global_batch:,}"
    quickest = min((r for r in series if r.days is not None), key=lambda r: r.days or 0.0, default=None)
    if quickest is None:
        return f"{which}: {'nothing fits' if all(r.able for r in series) else f'no {case.workload.precision}'}"
    return f"{which}: the nearest, {show_number(quickest.case.gpus, 'GPU')}, takes {show_seconds((quickest.days or 0.0) * 86400)}"


def _differing(found: Sweep, row: SweepRow) -> str:
    """Return the sequence length and the batch of a row, each where the series of the sweep differ in it."""
    w = row.case.workload
    said = [f"at {show_number(w.seq_len, 'token')}"] if len({r.case.workload.seq_len for r in found.rows}) > 1 else []
    said += [f"with a batch of {w.global_batch:,}"] if _several_batches(found) else []
    return f" {' '.join(said)}" if said else ""


def _several_batches(found: Sweep) -> bool:
    """Return whether the series differ in their batch; with weak scaling it grows along each."""
    return len({series[0].case.workload.global_batch for series in series_of(found.rows)}) > 1


def _differ(found: Sweep, field: str) -> bool:
    """Return whether rows of one model, cluster and number of GPUs differ in a field of training."""
    seen: dict[tuple[str, str, int], set[int]] = {}
    for r in found.rows:
        seen.setdefault((r.case.model.id, r.case.cluster.id, r.case.gpus), set()).add(getattr(r.case.workload, field))
    return any(len(values) > 1 for values in seen.values())


def _run_columns(found: Sweep) -> dict[Column, Callable[[SweepRow], str]]:
    """Return the columns of the whole run and what each tells of a row: time, GPU-hours and, where a price is known, the cost."""
    runs = [r.run(found.gpu_hour_usd) for r in found.rows]
    longest = max((run.run_s for run in runs if run.run_s is not None), default=None)
    if longest is None:
        return {}
    time, second = unit_for(longest, RUN_TIMES)
    columns: dict[Column, Callable[[SweepRow], str]] = {
        Column(time): lambda r: _told(r.run().run_s, lambda s: significant(s / second, 3)),
        Column("GPU-hours", drop=6): lambda r: _told(r.run().gpu_hours, show_count),
    }
    dearest = max((run.cost_usd for run in runs if run.cost_usd is not None), default=None)
    if dearest is not None:
        money, dollar = unit_for(dearest, MONEY)
        columns[Column(money, drop=3)] = lambda r: _told(
            r.run(found.gpu_hour_usd).cost_usd, lambda usd: significant(usd / dollar, 3)
        )
    return columns


def _told(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _cells(row: SweepRow, several: dict[str, bool], whole: list[str]) -> list[str]:
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
            *whole,
            "",
        ]
    body = [
        str(e.layout),
        f"{e.tokens_per_s_per_gpu:,.0f}",
        significant(e.step_s, 4),
        f"{100 * e.mfu:.1f}",
        f"{e.peak_bytes / GIB:.1f}",
    ]
    marks = [mark for mark, on in (("fewest", row.fewest), ("knee", row.knee)) if on]
    return [*head, *body, *whole, ", ".join(marks)]
