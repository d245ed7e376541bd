"""`parlay show`: small runs of a mechanism, so that a person can see it work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from collections.abc import Callable

    from parlay.report.table import Page

MOST_LISTED = 24  # tokens up to which a ring lists its pairs; beyond, it counts them
MOST_TOKENS, MOST_RANKS = 1 << 22, 1024  # what a small run is; more would take minutes

Ranks = Annotated[int, typer.Option("--ranks", metavar="N", min=1, max=MOST_RANKS, help="Ranks that share the sequence.")]
SeqLen = Annotated[
    int, typer.Option("--seq", "--seq-len", metavar="TOKENS", min=1, max=MOST_TOKENS, help="Tokens of the sequence.")
]


def ring(
    ranks: Ranks = 4,
    seq: SeqLen = 8,
    layout: Annotated[
        str, typer.Option("--layout", metavar="LAYOUT", help="How tokens lie on ranks: contiguous, zigzag or striped.")
    ] = "zigzag",
    causal: Annotated[bool, typer.Option("--causal/--no-causal", help="Whether a query sees only keys up to itself.")] = True,
    json: flags.Json = False,
) -> None:
    """Show ring attention round by round, and who waits.

    Example: parlay show ring --ranks 4 --seq 8 --layout zigzag
    """
    from parlay.report.show import ring_lines
    from parlay.simulate.show import ring_rounds

    shown = ring_rounds(ranks, seq, layout=layout, causal=causal, list_pairs=seq <= MOST_LISTED)
    _say("ring", lambda page: ring_lines(shown, page), json, ring=shown)


def _say(kind: str, lines: Callable[[Page], list[str]], json: bool, **parts: Any) -> None:
    from parlay.report.show import document

    if json:
        output.say_json(document(kind, **parts))
    else:
        output.say(lines(output.page()))


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(help="Show a mechanism at work, in small numbers.", rich_markup_mode=None, no_args_is_help=True)
    group.command("ring")(ring)
    app.add_typer(group, name="show")
