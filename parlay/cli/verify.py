"""`parlay verify`: the formulas against published worked examples, for continuous integration."""

from __future__ import annotations

from typing import Annotated

import typer

from parlay.cli import flags, output

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Examples to check; all where none is given.")]
All = Annotated[
    bool, typer.Option("--all", help="Show what every example prints and what the formulas give, not the problems alone.")
]


def verify(ids: Ids = None, everything: All = False, json: flags.Json = False) -> None:
    """Check the formulas against worked examples (a gate for CI).

    Exit 1 if one disagrees. An example "agrees" if the formulas give what the document prints, to its own rounding. An "erratum" is a number that
    the document has wrong: the formulas must differ from it and give the right one.

    Example: parlay verify --json
    """
    from parlay.errors import UnknownNameError
    from parlay.report.verify import verify_lines, verify_report
    from parlay.validation.worked_examples import examples
    from parlay.validation.worked_examples import verify as check

    known = [e.id for e in examples()]
    for given in ids or []:
        if given not in known:
            raise UnknownNameError("example", given, known, hint="`parlay verify --all` lists all")
    outcomes = check(ids or ())
    if json:
        output.say_json(verify_report(outcomes).model_dump())
    else:
        output.say(verify_lines(outcomes, output.page(), everything=everything or bool(ids)))
    if not all(o.passed for o in outcomes):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("verify")(verify)
