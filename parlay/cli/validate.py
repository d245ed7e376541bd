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

    Each run is predicted from its published settings alone.

    FILTER compares columns with = != < <= > >= ~ (holds the text), joined by and, or, and parentheses.

    Example: parlay validate --where 'source=korthikanti or tier=B' --worst 5
    """
    from parlay.errors import UsageError
    from parlay.validation.predict import validate_runs
    from parlay.validation.runs import packaged_runs, read_runs

    if settings is not None and runs is None:
        raise UsageError("needs --runs", where="--settings", hint="the runs that Parlay ships bring their own settings")
    found = validate_runs(packaged_runs() if runs is None else read_runs(runs, settings), where=where)
    if not found.count:
        raise UsageError("keeps no run", where="--where", hint="`parlay validate` lists the sources, tiers and devices there are")

    from parlay.report.validate import validation_document, validation_lines

    if json:
        output.say_json(validation_document(found, worst=worst))
    else:
        output.say(validation_lines(found, output.page(), worst=worst))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("validate")(validate)
