"""`parlay plan`: the best layouts for a model on a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlay.cli import asked, flags, output

if TYPE_CHECKING:
    from parlay.cli.question import Question
    from parlay.report.layout import Typed


def plan(
    model: flags.ModelOrNone = None,
    source: flags.From = None,
    on: flags.On = None,
    gpus: flags.Gpus = None,
    seq_len: flags.SeqLen = None,
    global_batch: flags.GlobalBatch = None,
    global_tokens: flags.GlobalTokens = None,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    tokens: flags.Tokens = None,
    gpu_hour_usd: flags.Price = None,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="How many layouts to show.")] = 5,
    wide: asked.Wide = False,
    fix: asked.Fix = None,
    most: asked.Most = None,
    least: asked.Least = None,
    require: asked.Require = None,
    headroom: asked.Headroom = "0",
    min_micro_batches: asked.MinMicroBatches = 1,
    pareto: asked.Pareto = False,
    sensitivity: asked.Sensitivity = False,
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    json: flags.Json = False,
) -> None:
    """Find the best parallel layouts for a model on a cluster.

    Prices every layout that the rules allow, memory first, and ranks what fits by time. Exit 1 if nothing fits. Of a framework's
    configuration (--from) it takes model and training, not the layout.

    Searched are tp, cp, pp, dp, ep, virtual stages, micro-batches, lighter last stages, recompute and overlap. --wide adds etp, ZeRO stages,
    HSDP shards, kinds of context parallelism, schedules, recompute by module and on N layers, offload and the axis order. --fix sets
    any of them: sp=off, schedule=zb-v,dualpipev, shard=node,all, recompute_layers=any, order=tp-cp-pp-dp.

    Example: parlay plan llama-3.1-70b --on dgx-h100 --gpus 64 --seq-len 8192 --global-batch 512
    """
    flags.need_model(model, source, "plan")

    from parlay.cli.framework_file import say_notes
    from parlay.cli.question import ask

    fields = flags.training(seq_len, global_batch, global_tokens, precision, optimizer, framework, tokens, lora)
    usd = flags.price(gpu_hour_usd)
    q = ask(
        model,
        on=on,
        gpus=flags.gpu_count(gpus),
        training=fields,
        sets=sets,
        gpu_hour_usd=usd,
        source=source,
        keep_layout=False,
    )
    say_notes(q)
    flags.note_price(usd, q.workload.total_tokens)

    space = asked.space_of(q, fix, asked.constraints(most, least, require, headroom, min_micro_batches), wide=wide)
    from parlay.cli.rates import rates_of

    found = asked.search(q, space, top, explain=sensitivity, rates=rates_of(rates, q.cluster))
    if not found.considered:
        raise asked.nothing_left(q, space)
    if json:
        from parlay.report.documents import plan_report

        output.say_json(plan_report(found, q.gpu_hour_usd, q.imported).model_dump())
    else:
        from parlay.report.plan import plan_lines

        output.say(plan_lines(found, output.page(), q.gpu_hour_usd, pareto=pareto, typed=_typed(q, rates)))
    if found.interrupted:
        raise KeyboardInterrupt
    if not found.rows:
        raise typer.Exit(1)


def _typed(q: Question, rates: Path | None) -> Typed:
    """Return what the next command says as it was typed, with the rates behind the cluster."""
    from parlay.report.layout import Typed

    model, cluster = q.typed
    if rates is not None:
        cluster = f"{cluster or q.cluster.id} --rates {shlex.quote(str(rates))}"
    return Typed(model, cluster, q.file_layout, q.gpu_hour_usd)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("plan")(plan)
