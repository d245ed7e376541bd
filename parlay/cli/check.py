"""`parlay check`: a run file's layout against its budget, for continuous integration."""

from __future__ import annotations

from typing import Annotated

import typer

from parlay.cli import flags, output


def check(
    run: Annotated[str, typer.Argument(metavar="RUN.toml", help="A run file with [layout] and [budget].")],
    rates: flags.Rates = None,
    sets: flags.Sets = None,
    json: flags.Json = False,
) -> None:
    """Hold the layout of a run file to its budget (a gate for CI).

    Exit 1 if any limit of [budget] is broken, or the layout does not fit the device (device_memory_gib, always a limit). Limits: memory_gib, step_s, gpu_hours, cost_usd (at most); tokens_per_s_per_gpu, mfu (at least); a text has a unit, such as "76GiB" or "5M". Without a [budget] the device's memory alone is checked, and the verdict says so.

    Example: parlay check run.toml
    """
    from parlay.cli.framework_file import say_notes
    from parlay.cli.question import ask
    from parlay.errors import UsageError

    if not run.endswith(".toml"):
        raise UsageError(
            "is not a run file", where=run, hint="parlay check takes a TOML file with model, cluster, [layout] and [budget]"
        )
    q = ask(run, sets=sets, options=False)
    say_notes(q)
    if q.layout is None:
        raise UsageError("is missing", where=f"{run}: layout", hint="add [layout] with tp, pp, dp ...; `parlay plan` finds one")

    from parlay.cli.rates import rates_of
    from parlay.estimate.budget import check_budget
    from parlay.estimate.estimate import estimate as price

    found = price(q.model, q.cluster, q.workload, q.layout, gpus=q.gpus, rates=rates_of(rates, q.cluster))
    results = check_budget(found, q.budget, q.gpu_hour_usd, where=f"{run}: budget")
    from parlay.report.budget import budget_lines, check_report

    if json:
        output.say_json(check_report(found, results, q.gpu_hour_usd).model_dump())
    else:
        output.say(budget_lines(found, results, output.page(), q.gpu_hour_usd))
    if not all(r.kept for r in results):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("check")(check)
