"""The text of `parlay plan`."""

from __future__ import annotations

from parlay.estimate.answers import run_length
from parlay.report.layout import Typed, estimate_command, options
from parlay.report.question import question_lines
from parlay.report.sensitivity import help_line, pareto_lines, sensitivity_lines
from parlay.report.sources import accuracy_lines, assumption_count
from parlay.report.table import MONEY, RUN_TIMES, Column, Page, render, unit_for, wrap
from parlay.search.plan import Plan
from parlay.units import GIB, show_bytes, show_count, show_gib, show_number, show_usd, significant

MEMORY_ERROR = 0.05  # of a device: 9 in 10 peaks of Megatron's own tests lie within it (`parlay validate`: megatron-ci exact)
# What --launch writes, by framework (parlay.frameworks.write)
LAUNCHED = {
    "megatron-core": "Megatron-LM's arguments",
    "torchtitan": "sections of torchtitan's TOML",
    "deepspeed": "a DeepSpeed JSON",
}


def plan_lines(
    p: Plan,
    page: Page,
    gpu_hour_usd: float | None = None,
    *,
    pareto: bool = False,
    typed: Typed | None = None,
) -> list[str]:
    """Return the whole answer as lines: the question, the table, the reasons, what was rejected, what it rests on.

    `typed` is what the user wrote, for the command of the next step.
    """
    out = [*question_lines(p, page, *_asked(p)), ""]
    if p.interrupted:
        out += [*wrap(f"Interrupted: the best of the {p.priced:,} layouts priced so far, not of all.", page), ""]
    out += _table(p, page, gpu_hour_usd) if p.rows else _nothing_fits(p, page)
    if pareto and p.pareto:
        out += ["", *pareto_lines(p, page)]
    out += ["", *_counts(p, page)]
    if p.rows:
        out += _tight(p, page)
        first = p.rows[0].estimate
        out += sensitivity_lines(p, page)
        out += ["", *assumption_count(first, page), *accuracy_lines(first, page)]
        if first.workload.framework in LAUNCHED:
            out += wrap(f"launch: the next command with --launch prints {LAUNCHED[first.workload.framework]}", page, hang="  ")
        out += ["next:", *wrap(estimate_command(first, typed), page, indent="  ", hang="  ", end=" \\")]
    return out


def _asked(p: Plan) -> list[tuple[str, str]]:
    """Return what was asked beside the rules, as a line of its own."""
    said = [*p.asked, *([f"{show_bytes(p.headroom_bytes)} kept free"] if p.headroom_bytes else [])]
    return [("asked", ", ".join(said))] if said else []


def _tight(p: Plan, page: Page) -> list[str]:
    """Return a line on the headroom of the first row, where it is less than estimates of memory err by."""
    first = p.rows[0].estimate
    free = first.memory_limit_bytes - first.peak_bytes
    if p.headroom_bytes or free >= MEMORY_ERROR * first.memory_limit_bytes:
        return []
    gib = max(1, round(MEMORY_ERROR * first.memory_limit_bytes / GIB))
    said = f"row 1 leaves {show_gib(max(free, 0.0), 2)} GiB free, and memory may be off by {MEMORY_ERROR:.0%}"
    return wrap(f"{said}: --headroom {gib} keeps {gib} GiB free", page, hang="  ")


def _table(p: Plan, page: Page, gpu_hour_usd: float | None) -> list[str]:
    tokens = p.workload.total_tokens
    columns = [
        Column("#"),
        Column("layout", right=False),
        Column("tok/s/GPU"),
        Column("step s"),
        Column("MFU %", drop=2),
        Column("GiB"),
        Column("of GiB", drop=3),
    ]
    if tokens:
        runs = [run_length(row.estimate, gpu_hour_usd) for row in p.rows]
        time, second = unit_for(max(run.run_s or 0.0 for run in runs), RUN_TIMES)
        money, dollar = unit_for(max(run.cost_usd or 0.0 for run in runs), MONEY)
        columns += [Column(time), Column("GPU-hours", drop=1)]
        columns += [Column(money, drop=1)] if gpu_hour_usd else []
    rows = []
    for i, row in enumerate(p.rows):
        e = row.estimate
        cells = [
            str(i + 1), str(e.layout), f"{e.tokens_per_s_per_gpu:,.0f}", significant(e.step_s, 4), f"{100 * e.mfu:.1f}",
            f"{e.peak_bytes / GIB:.1f}", f"{e.memory_limit_bytes / GIB:.1f}",
        ]  # fmt: skip
        if tokens:
            cells += [significant((runs[i].run_s or 0) / second, 3), show_count(runs[i].gpu_hours or 0)]
            cells += [significant((runs[i].cost_usd or 0) / dollar, 3)] if gpu_hour_usd else []
        rows.append(cells)
    out = render(columns, rows, page)
    if tokens and gpu_hour_usd:
        words = {"M USD": "million USD ", "k USD": "thousand USD "}.get(money, "")
        out += wrap(f"{money}: {words}at {show_usd(gpu_hour_usd)} a GPU-hour", page)
    out.append("")
    for i, row in enumerate(p.rows):
        e = row.estimate
        out += wrap(f"{i + 1}. {options(e.layout)}; step: {row.limited_by}", page, hang="   ")
        if row.why_not_first:
            out += wrap(f"against 1: {row.why_not_first}", page, indent="   ")
        if p.explained:
            out += wrap(f"would help: {help_line(row)}", page, indent="   ", hang="   ")
    return out


def _nothing_fits(p: Plan, page: Page) -> list[str]:
    out = wrap(
        f"Nothing fits: none of {p.priced:,} layouts stays within {show_bytes(p.memory_limit_bytes)} on every stage.", page
    )
    miss = p.nearest_miss
    if miss and miss.on_hosts:
        out = wrap(
            f"Nothing fits: of {p.priced:,} layouts, those that the devices hold put more on the hosts than these have.", page
        )
    if miss:
        terms = ", ".join(f"{label} {show_bytes(value)}" for label, value in miss.largest)
        what = " of a host's memory" if miss.on_hosts else ""
        why = "" if miss.on_hosts else f" (largest: {terms})"
        out += wrap(
            f"nearest: {miss.layout} ({options(miss.layout)}) needs {show_bytes(miss.peak_bytes)}{what}, "
            f"{show_bytes(miss.over_bytes)} too much{why}",
            page,
            hang="  ",
        )
    if p.cheapest_lever:
        out += wrap(f"cheapest lever: {p.cheapest_lever}", page, hang="  ")
    if not p.priced:
        out = wrap("No layout keeps the rules, so none was priced.", page)
        for text in p.refused:
            out += wrap(text, page, hang="  ")
    return out


def _counts(p: Plan, page: Page) -> list[str]:
    rejected = sum(p.rejected.values())
    out = wrap(
        f"{show_number(p.considered, 'layout')} looked at, {p.priced:,} priced in {p.elapsed_s:.2f} s, {p.fitting:,} fit"
        + (f"; {rejected:,} rejected:" if rejected else ""),
        page,
    )
    if rejected:
        rows = [
            [name, f"{count:,}", p.reasons.get(name, "")] for name, count in sorted(p.rejected.items(), key=lambda kv: -kv[1])
        ]
        columns = [Column("rule", right=False), Column("layouts"), Column("because", right=False, text=True)]
        out += render(columns, rows, page, indent="  ")
    return out
