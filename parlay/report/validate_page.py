"""The page docs/validation.md, generated from a validation of the runs that Parlay ships."""

from __future__ import annotations

from collections.abc import Sequence

from parlay.report.validate import HELD, MEANINGS, WORTH_SHOWING, error_cells, held_rows, percent, signed
from parlay.units import significant
from parlay.validation import tables
from parlay.validation.held_out import LEFT_OUT, held_out_errors
from parlay.validation.predict import Validation
from parlay.validation.statistics import Errors

HEAD = ("runs", "median %", "mean %", "90th pct. %", "bias %", "worst %")

INTRODUCTION = """# Validation

This page is generated: `parlay validate` prints the same numbers, but for those of factors that were fitted again. Every run below was published by others, and
measured, but for vTrain's single-node rows: their file calls them measured, and they are computed by vTrain's simulator
(`parlay/validation/data/SOURCES.md`). Parlay predicts each from its published settings alone. An error is predicted / measured - 1; median, mean and 90th percentile are of its
size, the bias is the median with its sign (negative: predicted too fast). One factor per device and number format is fitted to the runs of tiers A and B,
and what an operator costs the host, by framework and kind of host, was read off runs whose layers wait for it (`parlay/estimate/traits.py`,
`operators.py`), as was the rate of nanotron's blocking sends off its pipelines; no constant belongs to a run, a source or a model.

Runs of tier A print a complete layout, and their recompute setting is known; in tier B it is not known for sure; C lacks part of
the layout or the batch; `weak` are runs that their own source casts doubt on. Where a setting is not published the framework's
documented default of that date is used; `parlay validate --json` lists these assumptions run by run.
"""

READING = """## How to repeat this

    parlay validate
    parlay validate --where 'hardware=h100-sxm and tier=A' --worst 20
    parlay validate --runs my-runs.csv --settings my-settings.csv

A file of runs has the columns of `published-runs.csv` (in `parlay/validation/data/`), of vTrain's tables or of Megatron-LM's
golden values; the header tells which. Columns that Parlay does not know are kept for `--where`.

`8k` in a cell, and in `--where`, is 8,192, since sources mean powers of two with it; elsewhere on the command line and in TOML files
`8k` is 8,000. The row's assumptions say how it was read. A comma parts thousands (`9,000`); `60,5` is not understood. Where
`gpus_per_node` is less than the usual node of the device has, the run is priced on nodes that small. A row whose layout cannot run its batch, whose id another row has, or whose cells cannot be understood
is listed as not predicted, with the reason; a row without an id is called by its number. Where a step and tokens/s of one row differ by
more than 5 % the step is compared, and the row's assumptions say so.
"""


HELD_TEXT = """A run whose speed was measured fitted on its devices, so its layout must be predicted to fit. Listed are all runs together, and the
sources with runs that are not; a device gives its memory less what its driver keeps. vTrain's one-node rows are left out: a program that
knows no memory simulated them."""


def validation_page(v: Validation) -> str:
    """Return the Markdown of docs/validation.md."""
    runs = tables.timed(v)
    share = tables.share_predicted(v, ("A", "B"))
    counted = f"{v.count:,} runs, {len(v.predictions):,} predicted"
    counted += f"; of tiers A and B {percent(share)} %." if share is not None else "."
    parts = [INTRODUCTION, counted, "## Step time", _errors("group", tables.aims(v))]
    parts += ["### Beside a naive predictor", _naive(v), "### On runs that no factor was fitted to", _held_out()]
    for title in ("tier", "source", "device", "precision", "parallelism"):
        parts += [f"### By {title}", _errors(title, tables.by(runs, tables.BREAKDOWNS[title]))]
    parts += ["## Memory", "In the source's own meaning and unit.", _errors("source and meaning", tables.memory_errors(v))]
    parts += ["### Runs that trained", HELD_TEXT, markdown_table(HELD, held_rows(v))]
    parts += ["## Ranking layouts", _rankings(v), "## The worst runs", _worst(v), "## Not predicted", _unpredicted(v), READING]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table; the first `left` columns are aligned left, the others right."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    lines = [list(header), rule, *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _errors(title: str, errors: Sequence[Errors]) -> str:
    return markdown_table((title, *HEAD), [error_cells(e) for e in errors])


def _naive(v: Validation) -> str:
    text = "The naive predictor has one FLOP/s for each device and precision: the median over these same runs, which flatters it."
    rows = [
        [c.ours.group, f"{c.ours.count:,}", percent(c.naive.median), percent(c.naive.p90), percent(c.ours.median), percent(c.ours.p90)]
        for c in tables.naive(v, tables.BREAKDOWNS["tier"])
    ]  # fmt: skip
    header = ("tier", "runs", "naive median %", "naive 90th pct. %", "Parlay median %", "Parlay 90th pct. %")
    return f"{text}\n\n{markdown_table(header, rows)}"


def _held_out() -> str:
    text = (
        "The same factors fitted again without some of the runs (`scripts/fit_in_step.py --held-out`), and the errors of the runs "
        "that were left out; where too few of a device are left, it leans on a relative as any device without runs does. "
        "What an operator costs the host and the rate of nanotron's sends stay as shipped, although some of these runs helped to find them."
    )
    rows = [
        [LEFT_OUT[e.left_out], e.tier, f"{e.runs:,}", percent(e.median), percent(e.mean), percent(e.p90)]
        for e in held_out_errors()
    ]
    return (
        f"{text}\n\n{markdown_table(('left out of the fit', 'tier', 'runs', 'median %', 'mean %', '90th pct. %'), rows, left=2)}"
    )


def _rankings(v: Validation) -> str:
    text = (
        "Several layouts of one model, batch and GPU count. Regret is how much slower the layout that Parlay would pick was "
        "measured to be than the fastest."
    )
    found = tables.rankings(v)
    sums = [
        [r.source, str(r.groups), f"{r.layouts:,}", f"{r.correlation:.2f}", percent(r.mean_regret), percent(r.worst_regret)]
        for r in tables.ranked(found)
    ]
    header = ("source", "groups", "layouts", "median rank correlation", "mean regret %", "worst regret %")
    rows = [
        [r.source, r.model, f"{r.gpus:,}", f"{r.global_batch:,}", str(r.layouts), f"{r.correlation:.2f}", percent(r.regret), r.picked, r.fastest]
        for r in found
        if r.regret > WORTH_SHOWING
    ]  # fmt: skip
    each = ("source", "model", "GPUs", "batch", "layouts", "rank correlation", "regret %", "picked", "fastest")
    tail = f"Groups with a regret above 1 %:\n\n{markdown_table(each, rows, left=2)}" if rows else "No regret is above 1 %."
    return f"{text}\n\n{markdown_table(header, sums)}\n\n{tail}"


def _worst(v: Validation) -> str:
    rows = [
        [p.run.id, p.case.model.name, p.case.cluster.name, str(p.case.layout), p.dominant, significant(p.predicted_s, 3),
         significant(p.measured_s or 0.0, 3), signed(p.error or 0.0)]
        for p in tables.worst(v, 20)
    ]  # fmt: skip
    header = ("run", "model", "cluster", "layout", "largest term", "predicted s", "measured s", "error %")
    memory = [
        [p.run.id, str(p.case.layout), MEANINGS.get(m.measured.meaning, m.measured.meaning), signed(m.error)]
        for p, m in tables.worst_memory(v, 20)
    ]
    both = [markdown_table(header, rows, left=5)]
    if memory:
        both += ["Memory:", markdown_table(("run", "layout", "meaning", "error %"), memory, left=3)]
    return "\n\n".join(both)


def _unpredicted(v: Validation) -> str:
    rows = [[reason, run.id, f"{count:,}"] for reason, count, run in tables.reasons(v)]
    return markdown_table(("because", "such as", "runs"), rows, left=2) if rows else "Every run is predicted."
