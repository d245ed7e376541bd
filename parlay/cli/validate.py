"""`parlay validate`: measured runs against predictions from their published settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parlay.cli import flags, output


def validate(
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE.csv", help="Measured runs. [default: those that Parlay ships]")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE.csv", help="Settings of the runs, joined by id.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="FILTER", help="Keep some runs, such as 'hardware=h100-sxm and tier=A'.")
    ] = None,
    worst: Annotated[
        int, typer.Option("--worst", metavar="N", min=0, max=10_000, help="How many of the worst runs to list.")
    ] = 20,
    json: flags.Json = False,
) -> None:
    """Predict published runs and show the errors.

    Each run is predicted from its published settings alone. Exit 1 if none can be.

    FILTER compares columns with = != < <= > >= ~ (holds the text), joined by and, or, and parentheses. A framework is one that a run names, or one of Parlay's own names: megatron-core, deepspeed, ...

    Example: parlay validate --where 'source=korthikanti or tier=B' --worst 5
    """
    from parlay.errors import UsageError
    from parlay.validation.predict import validate_runs
    from parlay.validation.runs import packaged_runs, read_runs
    from parlay.validation.where import values_of

    if settings is not None and runs is None:
        raise UsageError("needs --runs", where="--settings", hint="the runs that Parlay ships bring their own settings")
    measured = packaged_runs() if runs is None else read_runs(runs, settings)
    found = validate_runs(measured, where=where)
    if not found.count:
        hint = values_of(measured, where or "") or "`parlay validate` lists the sources, tiers and devices there are"
        raise UsageError("keeps no run", where="--where", hint=hint)

    from parlay.report.validate import validation_lines
    from parlay.report.validate_document import validation_report

    if json:
        output.say_json(validation_report(found, worst=worst).model_dump())
    else:
        output.say(validation_lines(found, output.page(), worst=worst))
    if not found.predictions:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("validate")(validate)
