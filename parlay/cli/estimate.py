"""`parlay estimate`: one layout in full."""

from __future__ import annotations

from typing import Annotated

import typer

from parlay.cli import flags, output

Layout = Annotated[str | None, typer.Option("--layout", metavar="LAYOUT", help="Such as tp8.pp4.dp2.vpp2.ep8.mb1.")]
Launch = Annotated[
    bool,
    typer.Option(
        "--launch", help="Print the framework's own settings instead: Megatron-LM arguments, torchtitan TOML, DeepSpeed JSON."
    ),
]


def estimate(
    model: flags.ModelOrNone = None,
    source: flags.From = None,
    on: flags.On = None,
    gpus: flags.Gpus = None,
    layout: Layout = None,
    zero: flags.Zero = None,
    recompute: flags.Recompute = None,
    seq_len: flags.SeqLen = None,
    global_batch: flags.GlobalBatch = None,
    global_tokens: flags.GlobalTokens = None,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    tokens: flags.Tokens = None,
    gpu_hour_usd: flags.Price = None,
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    launch: Launch = False,
    json: flags.Json = False,
) -> None:
    """Price one layout: memory by stage, time term by term.

    The layout may also stand in a run file's [layout] section, or in a framework's own configuration (--from). Beside either, --layout
    replaces the degrees: what it leaves out is 1. Recompute and what else it cannot say stay as the file has them. Exit 1 if it does not
    fit.

    Example: parlay estimate llama-3.1-70b --on dgx-h100 --layout tp8.pp2.dp4 --seq-len 8192 --global-batch 512
    """
    flags.need_model(model, source, "estimate")

    from parlay.errors import UsageError

    if launch and json:
        raise UsageError("--launch prints a framework's own text", where="--launch --json", hint="leave one of them out")

    from parlay.cli.framework_file import say_notes
    from parlay.cli.question import ask

    fields = flags.training(seq_len, global_batch, global_tokens, precision, optimizer, framework, tokens, lora)
    usd = flags.price(gpu_hour_usd)
    q = ask(
        model, on=on, gpus=flags.gpu_count(gpus), layout=layout, training=fields, layout_fields=flags.layout_fields(zero, recompute),
        sets=sets, gpu_hour_usd=usd, source=source,
    )  # fmt: skip
    say_notes(q)
    flags.note_price(usd, q.workload.total_tokens)
    if q.layout is None:
        raise UsageError(
            "no layout given", where="estimate", hint="write one: --layout tp8.pp4.dp2; `parlay plan` finds the best"
        )

    from parlay.cli.rates import rates_of
    from parlay.estimate.estimate import estimate as price

    chosen = rates_of(rates, q.cluster)
    found = price(q.model, q.cluster, q.workload, q.layout, gpus=q.gpus, rates=chosen)
    if launch:
        from parlay.estimate.launch import launch as launched
        from parlay.units import show_bytes

        settings = launched(found, chosen)
        tight = (
            () if found.fits else (f"it does not fit: {show_bytes(found.peak_bytes)} of {show_bytes(found.memory_limit_bytes)}",)
        )
        output.note(*tight, *settings.notes)
        output.say(settings.text.splitlines())
    elif json:
        from parlay.report.documents import estimate_report

        output.say_json(estimate_report(found, q.gpu_hour_usd, q.imported).model_dump())
    else:
        from parlay.report.estimate import estimate_lines

        output.say(estimate_lines(found, output.page(), q.gpu_hour_usd))
    if not found.fits:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("estimate")(estimate)
