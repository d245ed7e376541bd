"""Lines of a plan that go beyond the ranking: what would help, faster hardware, and the front of speed and memory."""

from __future__ import annotations

from parlay.report.layout import options
from parlay.report.table import Column, Page, render, wrap
from parlay.search.plan import Plan, PlanRow
from parlay.search.sensitivity import GAIN, LEAST
from parlay.units import GIB, show_gib, significant


def help_line(row: PlanRow) -> str:
    """Return the single change that would help a row most, in words."""
    change = row.help
    if change is None:
        return f"no single change tried saves more than {LEAST:.1%}"
    lacks = f", but needs {show_gib(change.over_bytes, 2)} GiB more memory" if change.over_bytes else ""
    return f"{change.words} ({change.layout}) would save {change.gain:.1%} of the step{lacks}"


def sensitivity_lines(p: Plan, page: Page) -> list[str]:
    """Return what faster hardware would save of the first row's step, the most first."""
    if not p.sensitivities:
        return []
    ranked = sorted(p.sensitivities, key=lambda s: -s.gain)
    parts = [f"{s.what} {s.gain:.1%}" for s in ranked]
    return wrap(f"{GAIN:.0%} more of each would save, of the first layout's step: " + ", ".join(parts), page, hang="  ")


def pareto_lines(p: Plan, page: Page) -> list[str]:
    """Return the layouts that no other one beats in both speed and memory."""
    columns = [
        Column("layout", right=False), Column("step s"), Column("slower by"), Column("GiB"), Column("free GiB", drop=2),
        Column("options", right=False, text=True, drop=1),
    ]  # fmt: skip
    if not p.pareto:
        return []
    first = p.pareto[0].step_s
    rows = [
        [
            str(x.layout), significant(x.step_s, 4), f"{x.step_s / first - 1:.1%}", f"{x.peak_bytes / GIB:.1f}",
            f"{(p.memory_limit_bytes - x.peak_bytes) / GIB:.1f}", options(x.layout),
        ]
        for x in p.pareto
    ]  # fmt: skip
    head = wrap(
        "Less memory costs time: no layout is both faster and smaller than one of these, by closed forms of the bubble "
        "(the rows above are timed operation by operation)", page,
    )  # fmt: skip
    return [*head, *render(columns, rows, page, indent="  ")]
