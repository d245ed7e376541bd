"""`parlay show`: small runs of a mechanism, so that a person can see it work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from collections.abc import Callable

    from parlay.report.table import Page

MOST_LISTED = 24  # tokens up to which a ring lists its pairs; beyond, it counts them
BF16_BYTES = 2
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


def ulysses(
    ranks: Ranks = 4,
    heads: Annotated[int, typer.Option("--heads", metavar="A", min=1, max=MOST_RANKS, help="Query heads.")] = 8,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", metavar="K", min=1, max=MOST_RANKS, help="K/V heads. [default: as query heads]")
    ] = None,
    seq: Annotated[
        int, typer.Option("--seq", "--seq-len", metavar="TOKENS", min=1, max=65536, help="Tokens of the sequence.")
    ] = 8,
    json: flags.Json = False,
) -> None:
    """Show who holds what around the all-to-all of Ulysses.

    Example: parlay show ulysses --ranks 4 --heads 8 --kv-heads 4 --seq 8
    """
    from parlay.report.show import ulysses_lines
    from parlay.simulate.show import ulysses_grids

    shown = ulysses_grids(ranks, seq, heads, kv_heads=kv_heads)
    _say("ulysses", lambda page: ulysses_lines(shown, page), json, ulysses=shown)


PARTIALS = ("1,2,3,4", "10,20,30,40")


def sp(
    partials: Annotated[
        list[str] | None,
        typer.Option(
            "--partial", metavar="A,B,...", help="A GPU's partial sums, one a token. Once for each GPU. [default: two GPUs]"
        ),
    ] = None,
    tensor: Annotated[int, typer.Option("--tp", metavar="T", min=1, max=MOST_RANKS, help="GPUs of the layer.")] = 8,
    seq: Annotated[
        int, typer.Option("--seq", "--seq-len", metavar="TOKENS", min=1, max=MOST_TOKENS, help="Tokens of it.")
    ] = 8192,
    hidden: Annotated[int, typer.Option("--hidden", metavar="H", min=1, max=1 << 20, help="Its width.")] = 4096,
    layers: Annotated[int, typer.Option("--layers", metavar="L", min=1, max=10_000, help="Layers of that kind.")] = 32,
    json: flags.Json = False,
) -> None:
    """Show sequence parallelism: what GPU 0 holds and sends.

    First a few numbers around each collective, then the regions of a layer and what they weigh, in bf16.

    Example: parlay show sp --partial 1,2,3,4 --partial 10,20,30,40
    """
    from parlay.report.show import layer_lines, sequence_parallel_lines
    from parlay.simulate.show import layer_regions, sequence_parallel
    from parlay.simulate.show_layers import layer_memory

    toy = sequence_parallel([_numbers(text) for text in partials or PARTIALS])
    regions = [layer_regions(seq, hidden, tensor=tensor, sequence=on) for on in (False, True)]
    memory = layer_memory(seq, hidden, tensor=tensor, layers=layers, element_bytes=BF16_BYTES)

    def lines(page: Page) -> list[str]:
        return [*sequence_parallel_lines(toy, page, BF16_BYTES), "", *layer_lines(regions, memory, tensor, page)]

    _say("sp", lines, json, collectives=toy, tensor=regions[0], tensor_and_sequence=regions[1], memory=memory)


def _numbers(text: str) -> list[float]:
    from parlay.errors import UsageError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [float("nan")]
    if not all(abs(number) < float("inf") for number in found):
        raise UsageError(f"'{text[:40]}' is not a list of numbers", where="--partial", hint="write it like 1,2,3,4")
    return found


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
    group.command("ulysses")(ulysses)
    group.command("sp")(sp)
    app.add_typer(group, name="show")
