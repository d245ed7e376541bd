"""The text of `parlay estimate` and `parlay compare`."""

from __future__ import annotations

from parlay.estimate.answers import checkpoint_bytes, differences, run_length
from parlay.estimate.estimate import Estimate
from parlay.estimate.terms import Term
from parlay.report.layout import options
from parlay.report.question import both_questions, question_lines
from parlay.report.sources import accuracy_lines, assumption_lines, both_assumption_lines
from parlay.report.table import Column, Page, apportion, render, wrap
from parlay.units import GIB, show_bytes, show_count, show_rate, show_seconds, show_usd, significant


def estimate_lines(e: Estimate, page: Page, gpu_hour_usd: float | None = None) -> list[str]:
    """Return the whole answer: verdict, memory by stage, the worst stage's terms, the step's terms."""
    out = [*question_lines(e, page, ("layout", f"{e.layout}: {options(e.layout)}")), ""]
    verdict = "fits" if e.fits else "DOES NOT FIT"
    limit = f" of {show_bytes(e.host_limit_bytes)}" if e.host_limit_bytes else ""
    hosts = f", {show_bytes(e.host_bytes)}{limit} on the hosts" if e.host_bytes else ""
    out += wrap(
        f"{verdict}: {show_bytes(e.peak_bytes)} of {show_bytes(e.memory_limit_bytes)} on stage {e.worst_stage}{hosts}; "
        f"{significant(e.step_s, 4)} s a step, {e.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {e.mfu:.1%}",
        page,
    )
    run = run_length(e, gpu_hour_usd)
    if run.run_s and run.gpu_hours:
        cost = f", {show_count(run.cost_usd)} USD at {show_usd(gpu_hour_usd or 0.0)} a GPU-hour" if run.cost_usd else ""
        tokens = show_count(e.workload.total_tokens or 0)
        out += wrap(
            f"{tokens} token{'' if tokens == '1' else 's'} take{'s' if tokens == '1' else ''} {show_seconds(run.run_s)}, {show_count(run.gpu_hours)} GPU-hours{cost}",
            page,
        )
    what = "the adapters" if e.workload.lora_rank else "weights and optimizer state"
    out += wrap(f"a checkpoint of {what} holds {show_rate(checkpoint_bytes(e), 'B')}", page)
    out += ["", *_stages(e, page), "", *_tree(e.memory[e.worst_stage], f"memory of stage {e.worst_stage}", "GiB", GIB, page)]
    out += ["", *_tree(e.step, "time of a step", "ms", 1e-3, page)]
    if e.hidden.value > 0:
        out += ["", *_tree(e.hidden, "hidden behind compute", "ms", 1e-3, page)]
    return [*out, "", *assumption_lines(e, page), *accuracy_lines(e, page)]


def _stages(e: Estimate, page: Page) -> list[str]:
    """Return memory by stage, equal neighbours in one row."""
    names = [t.label for t in e.memory[e.worst_stage].parts]
    columns = [Column("GiB of stage", right=False), *(Column(n, drop=1) for n in names), Column("total")]
    layers = ["+".join(map(str, chunks)) for chunks in e.stage_layers] if e.layout.pp > 1 else None
    if layers:
        columns.append(Column("layers"))
    rows: list[list[str]] = []
    spans: list[list[int]] = []
    for stage, tree in enumerate(e.memory):
        by_label = {t.label: t.value for t in tree.parts}
        shown = apportion([by_label.get(n, 0.0) / GIB for n in names], tree.value / GIB, 0.01)
        cells = [*(f"{x:.2f}" for x in shown), f"{tree.value / GIB:.2f}", *([layers[stage]] if layers else [])]
        if rows and rows[-1][1:] == cells:
            spans[-1][1] = stage
            rows[-1][0] = f"{spans[-1][0]}-{stage}"
        else:
            rows.append([str(stage), *cells])
            spans.append([stage, stage])
    return render(columns, rows, page)


def _tree(term: Term, title: str, unit: str, scale: float, page: Page) -> list[str]:
    """Return a tree as an indented table; zero terms are left out, so the rows shown sum to their parent."""
    rows: list[list[str]] = []

    def walk(t: Term, depth: int, shown: float) -> None:
        if t.value == 0 and depth:
            return
        share = f"{t.value / term.value:.1%}" if term.value else ""
        rows.append(["  " * depth + t.label, f"{shown:,.2f}", share, "" if t.parts else t.source])
        for part, figure in zip(t.parts, apportion([p.value / scale for p in t.parts], shown, 0.01), strict=True):
            walk(part, depth + 1, figure)

    walk(term, 0, round(term.value / scale, 2))
    columns = [Column(title, right=False), Column(unit), Column("share", drop=2), Column("source", right=False, drop=1)]
    return render(columns, rows, page)


def _work(e: Estimate) -> float:
    """Return the tokens of a step that fall to one GPU."""
    return e.workload.global_batch * e.workload.seq_len / e.gpus


def _sizes(first: Estimate, second: Estimate) -> list[list[str]]:
    """Return GPUs and what a step takes of all of them together, where A and B run on different numbers of GPUs."""
    if first.gpus == second.gpus:
        return []
    a, b = (e.step_s * e.gpus for e in (first, second))
    return [
        ["GPUs", f"{first.gpus:,}", f"{second.gpus:,}", f"{second.gpus / first.gpus - 1:+.1%}"],
        ["GPU-s a step", f"{a:,.0f}", f"{b:,.0f}", f"{b / a - 1:+.1%}"],
    ]


def compare_lines(first: Estimate, second: Estimate, page: Page) -> list[str]:
    """Return two estimates side by side and the terms that differ, largest difference first."""
    out = [*both_questions(first, second, page), ""]
    for name, e in (("A", first), ("B", second)):
        out += wrap(f"{name}  {e.layout}: {options(e.layout)}", page, hang="   ")
    rows = [
        *_sizes(first, second),
        ["tokens/s/GPU", f"{first.tokens_per_s_per_gpu:,.0f}", f"{second.tokens_per_s_per_gpu:,.0f}", ""],
        ["step s", significant(first.step_s, 4), significant(second.step_s, 4), f"{second.step_s / first.step_s - 1:+.1%}"],
        ["MFU %", f"{100 * first.mfu:.1f}", f"{100 * second.mfu:.1f}", ""],
        [
            "memory GiB",
            f"{first.peak_bytes / GIB:.1f}",
            f"{second.peak_bytes / GIB:.1f}",
            f"{second.peak_bytes / first.peak_bytes - 1:+.1%}",
        ],
        ["fits", "yes" if first.fits else "no", "yes" if second.fits else "no", ""],
    ]
    out += ["", *render([Column("", right=False), Column("A"), Column("B"), Column("B to A", drop=1)], rows, page), ""]
    if _work(first) != _work(second):
        said = "A step of A and one of B are not the same work per GPU: compare tokens/s/GPU, and read times as shares of their step."
        out += [*wrap(said, page), ""]
    for unit, shown, scale in (("s", "ms", 1e-3), ("bytes", "GiB", GIB)):
        found = [d for d in differences(first, second) if d[2] == unit and d[3] != d[4]]
        found.sort(key=lambda d: -abs((d[4] or 0) - (d[3] or 0)))
        title = "time" if unit == "s" else "memory of the worst stage"
        cells = [
            [label, f"{(a or 0) / scale:,.2f}", f"{(b or 0) / scale:,.2f}", f"{((b or 0) - (a or 0)) / scale:+,.2f}"]
            for _, label, _, a, b in found
            if max(abs(a or 0), abs(b or 0)) >= 0.005 * scale  # what would print as 0.00 twice says nothing
        ]
        if cells:
            columns = [
                Column(title, right=False),
                Column(f"A {shown}", drop=1),
                Column(f"B {shown}", drop=1),
                Column(f"B - A {shown}"),
            ]
            out += [*render(columns, cells, page), ""]
    return [*out, *both_assumption_lines(first, second, page)]
