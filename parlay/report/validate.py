"""The text and the document of `parlay validate`."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.errors import visible
from parlay.report.table import Column, Page, render, wrap
from parlay.units import significant
from parlay.validation import tables
from parlay.validation.predict import MemoryPrediction, Prediction, Validation
from parlay.validation.statistics import Errors

GIB = float(1 << 30)
ERROR_COLUMNS = (
    Column("runs"), Column("median %"), Column("mean %"), Column("90th pct. %"), Column("bias %"), Column("worst %", drop=1),
)  # fmt: skip
MEANINGS = {"after_step": "allocated after the step", "nvidia-smi": "nvidia-smi", "unstated": "meaning not stated"}


def percent(share: float) -> str:
    """Return a share as percent with one decimal."""
    return f"{100 * share:.1f}"


def signed(share: float) -> str:
    """Return a signed share as percent with one decimal."""
    return f"{100 * share:+.1f}"


def error_cells(e: Errors) -> list[str]:
    """Return the cells of one row of an error table."""
    return [e.group, f"{e.count:,}", percent(e.median), percent(e.mean), percent(e.p90), signed(e.bias), signed(e.worst)]


def error_table(title: str, errors: Sequence[Errors], page: Page) -> list[str]:
    """Return one error table with its heading column."""
    return render((Column(title, right=False), *ERROR_COLUMNS), [error_cells(e) for e in errors], page)


def validation_lines(v: Validation, page: Page, *, worst: int) -> list[str]:
    """Return the whole answer: what was predicted, errors by group, rankings, worst rows, and what could not be predicted."""
    runs = tables.timed(v)
    figures = len(tables.memory_rows(v))
    out = wrap(
        f"runs {v.count:,}: {len(v.predictions):,} predicted ({len(runs):,} with a measured speed, {figures:,} memory figures), "
        f"{len(v.unpredicted):,} not",
        page,
    )
    out += wrap("error = predicted / measured - 1; median, mean and 90th percentile of its size, bias = signed median", page)
    if runs:
        for title, key in tables.BREAKDOWNS.items():
            out += ["", *error_table(f"step time by {title}", tables.by(runs, key), page)]
        out += ["", *_naive(v, page)]
    if figures:
        out += ["", *error_table("memory by source and meaning", tables.memory_errors(v), page)]
    out += _held(v, page, min(worst, MOST_OVER))
    out += _rankings(v, page)
    if worst and runs:
        out += ["", *_worst(tables.worst(v, worst), page)]
    if worst and figures:
        out += ["", *_worst_memory(tables.worst_memory(v, worst), page)]
    return [*out, *_notes(v, page), *_without_speed(v, page), *_unpredicted(v, page)]


def _naive(v: Validation, page: Page) -> list[str]:
    columns = [
        Column("one FLOP/s per device and precision", right=False),
        Column("runs"),
        Column("median %"),
        Column("90th pct. %"),
    ]
    columns += [Column("ours: median %"), Column("90th pct. %")]
    rows = [
        [c.naive.group, f"{c.naive.count:,}", percent(c.naive.median), percent(c.naive.p90), percent(c.ours.median), percent(c.ours.p90)]
        for c in tables.naive(v, tables.BREAKDOWNS["tier"])
    ]  # fmt: skip
    return render(columns, rows, page)


def held_rows(v: Validation) -> list[list[str]]:
    """Return the cells of the runs that trained: all of them, then each source with runs that are predicted not to fit."""
    found = tables.held(v)
    if not found:
        return []
    short = [h for h in found if h.fit < h.runs]
    rows = [["all", f"{sum(h.runs for h in found):,}", f"{sum(h.fit for h in found):,}", percent(max(h.fullest for h in found))]]
    return [*rows, *([h.source, f"{h.runs:,}", f"{h.fit:,}", percent(h.fullest)] for h in short)]


MOST_OVER = 5  # runs that trained and are predicted not to fit, by name
HELD = ("runs that trained, so fitted", "runs", "predicted to fit", "fullest % of limit")


def _held(v: Validation, page: Page, most: int) -> list[str]:
    rows = held_rows(v)
    if not rows:
        return []
    lines = ["", *render((Column(HELD[0], right=False), *(Column(name) for name in HELD[1:])), rows, page)]
    over = sorted((p for p in tables.trained(v) if p.fullness > 1.0), key=lambda p: -p.fullness)[:most]
    named = visible(", ".join(f"{p.run.id} {percent(p.fullness)} %" for p in over))
    return [*lines, *wrap(f"fullest: {named}", page)] if over else lines


WORTH_SHOWING = 0.01  # rankings whose regret is more than this are listed one by one


def _rankings(v: Validation, page: Page) -> list[str]:
    found = tables.rankings(v)
    if not found:
        return []
    together = (
        Column("layouts of one model and batch", right=False), Column("groups"), Column("layouts"), Column("median rank corr."),
        Column("mean regret %"), Column("worst regret %"),
    )  # fmt: skip
    sums = [
        [r.source, str(r.groups), f"{r.layouts:,}", f"{r.correlation:.2f}", percent(r.mean_regret), percent(r.worst_regret)]
        for r in tables.ranked(found)
    ]
    columns = (
        Column("regret above 1 %", right=False), Column("GPUs"), Column("batch"), Column("layouts"), Column("rank corr."),
        Column("regret %"), Column("picked", right=False, drop=1), Column("fastest", right=False, drop=2),
    )  # fmt: skip
    rows = [
        [f"{r.source} {r.model}", f"{r.gpus:,}", f"{r.global_batch:,}", str(r.layouts), f"{r.correlation:.2f}", percent(r.regret), r.picked, r.fastest]
        for r in found
        if r.regret > WORTH_SHOWING
    ]  # fmt: skip
    return ["", *render(together, sums, page), *(["", *render(columns, rows, page)] if rows else [])]


def _worst(rows: Sequence[Prediction], page: Page) -> list[str]:
    columns = (
        Column("worst runs", right=False), Column("error %"), Column("predicted s"), Column("measured s"),
        Column("layout", right=False, drop=1), Column("largest term", right=False, drop=2), Column("model", right=False, drop=3),
    )  # fmt: skip
    cells = [
        [p.run.id, signed(p.error or 0.0), significant(p.predicted_s, 3), significant(p.measured_s or 0.0, 3),
         str(p.case.layout), p.dominant, p.case.model.name]
        for p in rows
    ]  # fmt: skip
    return render(columns, cells, page)


def _worst_memory(rows: Sequence[tuple[Prediction, MemoryPrediction]], page: Page) -> list[str]:
    columns = (
        Column("worst memory figures", right=False), Column("error %"), Column("predicted GiB"), Column("measured GiB"),
        Column("meaning", right=False), Column("layout", right=False, drop=1),
    )  # fmt: skip
    cells = [
        [p.run.id, signed(m.error), significant(m.predicted_bytes / GIB, 4), significant(m.measured.nbytes / GIB, 4),
         f"{MEANINGS.get(m.measured.meaning, m.measured.meaning)}, {m.measured.rank} rank", str(p.case.layout)]
        for p, m in rows
    ]  # fmt: skip
    return render(columns, cells, page)


MOST_NOTES = 20
MOST_NAMED = 5  # runs of one reason


def _notes(v: Validation, page: Page) -> list[str]:
    """Return what is odd in single rows that were predicted all the same."""
    rows = [[p.run.id, note] for p in v.predictions for note in p.notes]
    if not rows:
        return []
    columns = (Column("of single rows", right=False), Column("note", right=False))
    more = len(rows) - MOST_NOTES
    said = [f"and {more:,} more: --json has the assumptions of every row"] if more > 0 else []
    return ["", *render(columns, rows[:MOST_NOTES], page), *said]


def _without_speed(v: Validation, page: Page) -> list[str]:
    """Return the runs whose memory alone is compared, though they print a figure of speed."""
    groups: dict[str, list[str]] = {}
    for p in v.predictions:
        if p.measured_s is None and (p.run.flops_per_s_per_gpu is not None or p.run.columns.get("mfu", "").strip()):
            groups.setdefault(p.measured_how, []).append(p.run.id)
    rows = [
        [f"{len(ids):,}", why, ", ".join(ids[:MOST_NAMED]) + (", ..." if len(ids) > MOST_NAMED else "")]
        for why, ids in groups.items()
    ]
    columns = (
        Column("runs"),
        Column("no speed to compare, because", right=False, text=True),
        Column("which", right=False, text=True),
    )
    return ["", *render(columns, rows, page)] if rows else []


def _unpredicted(v: Validation, page: Page) -> list[str]:
    if not v.unpredicted:
        return []
    rows = [[f"{count:,}", reason, run.id] for reason, count, run in tables.reasons(v)]
    columns = (
        Column("runs"),
        Column("not predicted, because", right=False, text=True),
        Column("such as", right=False, text=True),
    )
    return ["", *render(columns, rows, page)]
