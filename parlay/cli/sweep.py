"""`parlay sweep`: the best layout for each of many combinations, and where scaling stops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from parlay.cli import asked, flags, output
from parlay.errors import UsageError

if TYPE_CHECKING:
    from parlay.search.sweep import Sweep

MOST_CASES = 1000
LISTED = {"seq_len": "--seq-len", "global_batch": "--global-batch", "global_tokens": "--global-batch"}


def sweep(
    models: Annotated[str, typer.Argument(metavar="MODEL[,MODEL]", help="Models of the catalog, or files.")],
    on: Annotated[
        list[str], typer.Option("--on", metavar="CLUSTER[,CLUSTER]", help="Clusters of the catalog, or cluster TOMLs.")
    ],
    gpus: Annotated[list[str], typer.Option("--gpus", metavar="N[,N]", help="How many GPUs.")],
    seq_len: Annotated[list[str], typer.Option("--seq-len", metavar="TOKENS[,TOKENS]", help="Sequence lengths.")] = ["4096"],  # noqa: B006
    global_batch: Annotated[
        list[str], typer.Option("--global-batch", metavar="SEQUENCES[,SEQUENCES]", help="Sequences per step, all GPUs.")
    ] = ["512"],  # noqa: B006
    weak: Annotated[
        bool, typer.Option("--weak", help="Weak scaling: the batch is that of the fewest GPUs, and grows with them.")
    ] = False,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    tokens: flags.Tokens = None,
    gpu_hour_usd: flags.Price = None,
    days: Annotated[
        float | None,
        typer.Option("--days", metavar="N", help="Mark the fewest GPUs that train --tokens within N days; exit 1 if none do."),
    ] = None,
    most: asked.Most = None,
    least: asked.Least = None,
    require: asked.Require = None,
    headroom: asked.Headroom = "0",
    min_micro_batches: asked.MinMicroBatches = 1,
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object a row.")] = False,
    json: flags.Json = False,
) -> None:
    """Find the best layout for each of many combinations.

    Of models, clusters, GPUs, sequence lengths and batches. Strong scaling unless told otherwise. The knee is the last row of a series with 90 % of its best tokens/s/GPU, where less follows. A list may also be given piece by piece: --gpus 64 --gpus 128.

    Example: parlay sweep llama-3.1-70b --on dgx-h100 --gpus 64,128,256,512 --seq-len 8192
    """
    if csv + jsonl + json > 1:
        raise UsageError("--csv, --jsonl and --json are three forms of one answer", where="--csv", hint="give one of them")
    from parlay.cli.many import check_size, clusters_of, counts_of, idle_notes, models_of, texts_of
    from parlay.cli.progress import ProgressBar
    from parlay.cli.question import check_price, workload_of
    from parlay.cli.rates import rates_of
    from parlay.report.question import question_notes
    from parlay.search.sweep import cases, uneven_batches
    from parlay.search.sweep import sweep as run

    if days is not None and not 0 < days < math.inf:
        raise UsageError(f"must be a number of days above 0, got {days:g}", where="--days", hint="give one such as 30 or 0.5")
    workload = workload_of(flags.training(None, None, None, precision, optimizer, framework, tokens, lora), sets, listed=LISTED)
    usd = flags.price(gpu_hour_usd)
    check_price(usd, "--gpu-hour-usd")
    flags.note_price(usd, workload.total_tokens)
    if days is not None and workload.total_tokens is None:
        raise UsageError(
            "how long a run takes follows from its tokens", where="--days", hint="add --tokens, such as --tokens 15T"
        )
    limits = asked.constraints(most, least, require, headroom, min_micro_batches)
    lengths, batches = ",".join(seq_len), ",".join(global_batch)
    for text in texts_of(lengths, "--seq-len"):
        flags.note_thousands(text)
    wanted = cases(
        models_of(models), clusters_of(",".join(on)), counts_of(",".join(gpus), "--gpus"), workload, counts_of(lengths, "--seq-len", most=1 << 30),
        counts_of(batches, "--global-batch", most=1 << 30), weak=weak,
    )  # fmt: skip
    if len(wanted) > MOST_CASES:
        raise UsageError(f"{len(wanted):,} combinations are more than {MOST_CASES:,}", where="sweep", hint="give fewer values")
    for case in wanted:
        check_size(case.cluster, case.gpus)
    odd = [note for case in wanted for note in question_notes(case.model, case.workload)]
    output.note(*dict.fromkeys([*odd, *idle_notes([case.model for case in wanted], workload)]))
    if weak and (uneven := uneven_batches(wanted)):
        output.note(uneven)
    measured = {c.id: own for c in {case.cluster.id: case.cluster for case in wanted}.values() if (own := rates_of(rates, c))}
    bar = ProgressBar()
    try:
        found = run(wanted, weak=weak, constraints=limits, progress=bar, rates=measured, within_days=days, gpu_hour_usd=usd)
    finally:
        bar.close()
    _say(found, "csv" if csv else "jsonl" if jsonl else "json" if json else "text")
    if found.interrupted:
        raise KeyboardInterrupt
    if not any(r.estimate and found.in_time(r) is not False for r in found.rows):
        raise typer.Exit(1)


def _say(found: Sweep, form: str) -> None:
    from parlay.report.sweep import sweep_csv, sweep_jsonl, sweep_lines, sweep_report

    if form == "json":
        output.say_json(sweep_report(found).model_dump())
    elif form == "text":
        output.say(sweep_lines(found, output.page()))
    else:
        output.say(sweep_csv(found) if form == "csv" else sweep_jsonl(found))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("sweep")(sweep)
