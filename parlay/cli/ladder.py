"""`parlay ladder`: the largest model that some GPUs can train or serve, and what each step of parallelism adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from parlay.cli import flags, output
from parlay.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from parlay.hardware.spec import Cluster
    from parlay.layouts.workload import Workload
    from parlay.models.spec import ModelSpec
    from parlay.rates.interface import Rates
    from parlay.search.ladder import Ladder
    from parlay.search.serving import Serving


def ladder(
    on: Annotated[
        list[str], typer.Option("--on", metavar="CLUSTER[,CLUSTER]", help="Clusters of the catalog, or cluster TOMLs.")
    ],
    gpus: Annotated[list[str], typer.Option("--gpus", metavar="N[,N]", help="How many GPUs; several are answered one by one.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Ask for the fewest GPUs and the longest sequence of this model instead."),
    ] = None,
    context_of: Annotated[
        str | None, typer.Option("--context-of", metavar="MODEL", help="Add the longest sequence of this model on every rung.")
    ] = None,
    experts: Annotated[bool, typer.Option("--experts", help="Shapes with experts instead of dense ones.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Ask what can be served instead: batch x context under tp, pp, ep.")
    ] = False,
    seq_len: flags.SeqLen = None,
    global_batch: Annotated[
        str | None,
        typer.Option(
            "--global-batch", metavar="SEQUENCES", help="Sequences per step, made a multiple of the GPUs. [default: 512]"
        ),
    ] = None,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    json: flags.Json = False,
) -> None:
    """Show the largest model that GPUs can train or serve.

    Each rung says how much a step of parallelism adds. With --serve: weights, K/V cache and activations, the largest batch times context. --seq-len is the context, --precision the format of the weights; options of training are refused.

    Example: parlay ladder --on dgx-a100-40gb,dgx-a100 --gpus 8,16
    """
    from parlay.cli.many import check_size, clusters_of, counts_of, idle_notes
    from parlay.cli.question import workload_of
    from parlay.cli.rates import rates_of
    from parlay.search.able import refusals

    workload = workload_of(flags.training(seq_len, global_batch, None, precision, optimizer, framework, None, lora), sets)
    asked = [(c, n) for c in clusters_of(",".join(on)) for n in counts_of(",".join(gpus), "--gpus")]
    for cluster, count in asked:
        check_size(cluster, count)
    if model and (experts or context_of):
        raise UsageError(
            "--model asks about one model; --experts and --context-of about shapes that grow",
            where="--model",
            hint="leave one out",
        )
    if serve:
        _refuse_training(context_of, global_batch, optimizer, framework, rates, lora, sets)
    chosen, context = _model(model), _model(context_of)
    if not serve:
        output.note(*idle_notes([*([chosen] if chosen else _largest(experts)), *([context] if context else [])], workload))
    unable = refusals([c for c, _ in asked], workload.precision, "serve" if serve else "train")
    ladders: list[Ladder] = []
    served: list[Serving] = []
    interrupted = False
    try:
        for cluster, count in asked:
            why = unable.get(cluster.id, "")
            if serve:
                served.append(_serve(cluster, count, workload, chosen, experts, why))
            elif why:
                ladders.append(_no_ladder(why, cluster, count, workload, chosen, experts))
            else:
                ladders.append(_ladder(cluster, count, workload, chosen, context, experts, rates_of(rates, cluster)))
                if ladders[-1].interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not ladders and not served:
            raise
        interrupted = True
    _say(ladders, served, json, len(asked) if interrupted else 0)
    if interrupted:
        raise KeyboardInterrupt
    fits = any(s.layout for x in ladders for s in x.steps) or any(s.fits for x in served for s in x.splits)
    if not fits:
        raise typer.Exit(1)


def _refuse_training(
    context_of: str | None,
    global_batch: str | None,
    optimizer: str | None,
    framework: str | None,
    rates: Path | None,
    lora: str | None,
    sets: list[str] | None,
) -> None:
    """Raise UsageError where --serve meets an option that only training has."""
    given = {
        "--context-of": context_of, "--global-batch": global_batch, "--optimizer": optimizer, "--framework": framework, "--rates": rates, "--lora": lora,
        "--set": sets or None,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"--serve asks what can be served; {name} is about training",
                where=name,
                hint="leave one out; --serve takes --model or --experts, --seq-len and --precision",
            )


def _model(name: str | None) -> ModelSpec | None:
    from parlay.models.load import load_model

    return load_model(name) if name else None


def _largest(experts: bool) -> list[ModelSpec]:
    """Return the shape with the most layers of those that grow."""
    from parlay.search.ladder import family

    return [max(family(experts), key=lambda shape: shape.layer_count)]


def _serve(cluster: Cluster, gpus: int, workload: Workload, model: ModelSpec | None, experts: bool, why: str) -> Serving:
    from parlay.search.serving import serve, serves_nothing

    if why:
        return serves_nothing(why, cluster, gpus, workload.seq_len, model=model, experts=experts, weight_dtype=workload.precision)
    return serve(cluster, gpus, workload.seq_len, model=model, experts=experts, weight_dtype=workload.precision)


def _no_ladder(why: str, cluster: Cluster, gpus: int, workload: Workload, model: ModelSpec | None, experts: bool) -> Ladder:
    from parlay.search.ladder import no_ladder

    return no_ladder(why, cluster, gpus, workload, model=model, experts=experts)


def _ladder(
    cluster: Cluster,
    gpus: int,
    workload: Workload,
    model: ModelSpec | None,
    context: ModelSpec | None,
    experts: bool,
    rates: Rates | None,
) -> Ladder:
    from parlay.search.ladder import ladder, model_ladder

    if model:
        return model_ladder(model, cluster, gpus, workload, rates=rates)
    return ladder(cluster, gpus, workload, experts=experts, context_of=context, rates=rates)


def _say(ladders: list[Ladder], served: list[Serving], json: bool, cut: int) -> None:
    """Print the answers; `cut` is how many were asked for where the command was interrupted, else 0."""
    from parlay.report.ladder import interrupted_lines, ladder_lines, ladder_report, serving_lines

    if json:
        output.say_json(ladder_report(ladders, served, interrupted=cut > 0).model_dump())
        return
    page = output.page()
    lines = ladder_lines(ladders, page)
    for found in served:
        lines += [*([""] if lines else []), *serving_lines(found, page)]
    lines += ["", *interrupted_lines(ladders, served, cut, page)] if cut else []
    output.say(lines)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("ladder")(ladder)
