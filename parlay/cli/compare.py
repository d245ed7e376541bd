"""`parlay compare`: two layouts side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from parlay.cli import flags, output


def compare(
    model: flags.Model,
    other: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A second run file.")] = None,
    on: flags.On = None,
    gpus: flags.Gpus = None,
    layout: Annotated[list[str] | None, typer.Option("--layout", metavar="LAYOUT", help="Give it twice: A, then B.")] = None,
    zero: flags.Zero = None,
    recompute: flags.Recompute = None,
    seq_len: flags.SeqLen = None,
    global_batch: flags.GlobalBatch = None,
    global_tokens: flags.GlobalTokens = None,
    precision: flags.Precision = None,
    optimizer: flags.Optimizer = None,
    lora: flags.Lora = None,
    framework: flags.Framework = None,
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    json: flags.Json = False,
) -> None:
    """Show which terms differ between two layouts.

    Give --layout twice, or two run files. --zero, --recompute and --set hold for both.

    Example: parlay compare llama-3.1-70b --on dgx-h100 --layout tp8.pp2.dp4 --layout tp4.pp4.dp4
    """
    from parlay.cli.framework_file import say_notes
    from parlay.cli.question import ask
    from parlay.errors import UsageError

    fields = flags.training(seq_len, global_batch, global_tokens, precision, optimizer, framework, None, lora)
    layouts: list[str | None] = list(layout or [])
    if other is None and len(layouts) != 2:
        raise UsageError(
            f"two layouts are needed, got {len(layouts)}", where="compare", hint="give --layout twice, or two run files"
        )
    if other is not None and layouts:
        raise UsageError("two run files and --layout are both given", where="compare", hint="give either")
    pairs = zip((model, other or model), layouts or [None, None], strict=True)
    both: dict[str, Any] = {"training": fields, "layout_fields": flags.layout_fields(zero, recompute), "sets": sets}
    asked = [ask(name, on=on, gpus=flags.gpu_count(gpus), layout=x, **both) for name, x in pairs]

    say_notes(*asked)

    from parlay.cli.rates import rates_of
    from parlay.estimate.estimate import estimate as price

    found, measured = [], [rates_of(rates, asked[0].cluster)]
    measured += measured if asked[1].cluster == asked[0].cluster else [rates_of(rates, asked[1].cluster)]
    for q, own in zip(asked, measured, strict=True):
        if q.layout is None:
            raise UsageError("has no [layout] section", where=model, hint="add one, or give --layout twice")
        found.append(price(q.model, q.cluster, q.workload, q.layout, gpus=q.gpus, rates=own))
    if json:
        from parlay.report.documents import compare_report

        output.say_json(compare_report(*found).model_dump())
    else:
        from parlay.report.estimate import compare_lines

        output.say(compare_lines(found[0], found[1], output.page()))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("compare")(compare)
