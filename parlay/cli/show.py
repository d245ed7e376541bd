"""`parlay show`: small runs of a mechanism, so that a person can see it work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from parlay.report.table import Page

MOST_LISTED = 24  # tokens up to which a ring lists its pairs; beyond, it counts them
BF16_BYTES = 2
MOST_SCORES = 1 << 26  # of a router; half a GiB
MOST_CELLS = 1 << 22  # that are listed one by one
STEPS = 4  # powers of two shown on each side of a crossing
DEFAULT_LINKS = ("nvlink4", "ib-ndr")
MOST_TOKENS, MOST_RANKS = 1 << 22, 1024

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

    _check_small(ranks * seq, MOST_CELLS, "ranks x tokens")
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

    _check_small(heads * seq, MOST_CELLS, "heads x tokens")
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
    from parlay.errors import UsageError
    from parlay.report.show import layer_lines, sequence_parallel_lines
    from parlay.simulate.show import layer_regions, sequence_parallel
    from parlay.simulate.show_layers import layer_memory

    for name, count in (("--seq", seq), ("--hidden", hidden)):
        if count % tensor:
            near = (
                f"choose {count // tensor * tensor:,} or {-(-count // tensor) * tensor:,}"
                if count > tensor
                else f"choose {tensor:,}"
            )
            raise UsageError(f"{count:,} does not divide over --tp {tensor}", where=name, hint=f"{near}, or another --tp")
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


Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Whose bf16 peak computes, unless --flops-per-s says another rate.")
]
FlopsPerS = Annotated[str | None, typer.Option("--flops-per-s", metavar="RATE", help="Rate that is reached, such as 500TFLOP/s.")]
Links = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="NAME", help="A link of the catalog, or a rate such as 50GB/s. [default: nvlink4 and ib-ndr]"),
]


def experts(
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, max=MOST_RANKS, help="GPUs that share the experts.")] = 8,
    number: Annotated[int, typer.Option("--experts", metavar="E", min=1, max=4096, help="Experts.")] = 8,
    skew: Annotated[
        float,
        typer.Option("--skew", metavar="S", min=0, max=20, help="How uneven: expert i is i ** -S as popular as expert 1."),
    ] = 0.0,
    capacity: Annotated[
        float | None, typer.Option("--capacity", metavar="F", help="Copies an expert takes, over the mean. [default: no limit]")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", metavar="T", min=1, max=1 << 20, help="Tokens of each GPU.")] = 8192,
    top_k: Annotated[int, typer.Option("--top-k", metavar="K", min=1, max=64, help="Experts a token visits.")] = 2,
    hidden: Annotated[int, typer.Option("--hidden", metavar="H", min=1, max=1 << 20, help="Width of a token.")] = 4096,
    expert_width: Annotated[int, typer.Option("--expert-width", metavar="F", min=1, max=1 << 20, help="Inner width.")] = 14336,
    links: Links = None,
    device: Device = "h100-sxm",
    flops_per_s: FlopsPerS = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Another draw of the router.")] = 0,
    json: flags.Json = False,
) -> None:
    """Show the load of experts under a skewed router.

    One draw: load by expert and GPU, copies dropped, GPUs waiting. Then the exchange beside the products of gated experts, if routing were even.

    Example: parlay show experts --gpus 8 --experts 8 --skew 1 --capacity 1.25
    """
    from parlay.report.show import experts_lines
    from parlay.simulate.show_experts import expert_load
    from parlay.simulate.show_rates import expert_exchange

    _check_small(gpus * tokens * number, MOST_SCORES, "scores (tokens of all GPUs x experts)")
    load = expert_load(number, gpus, tokens, top_k, skew=skew, capacity_factor=capacity, seed=seed)
    peak = _flops_per_s(device, flops_per_s)
    exchanges = [
        (
            name,
            expert_exchange(gpus, tokens, top_k, hidden=hidden, expert_width=expert_width, flops_per_s=peak, link_bytes_per_s=w),
        )
        for name, w in _rates(links or DEFAULT_LINKS)
    ]
    named = [{"link": name, "exchange": exchange} for name, exchange in exchanges]
    _say("experts", lambda page: experts_lines(load, exchanges, tokens, page), json, load=load, even_routing=named)


def _check_small(count: int, most: int, what: str) -> None:
    """Raise where a run is not small: it would take minutes, or more memory than a laptop has."""
    from parlay.errors import UsageError

    if count > most:
        raise UsageError(
            f"{count:,} {what} are more than the {most:,} that a small run takes", where="show", hint="smaller numbers"
        )


def block_size(
    link: Annotated[
        str, typer.Option("--link", metavar="NAME", help="A link of the catalog, or a rate such as 50GB/s.")
    ] = "nvlink4",
    queries_per_kv: Annotated[
        int, typer.Option("--queries-per-kv", metavar="G", min=1, max=4096, help="Query heads a K/V head.")
    ] = 1,
    causal: Annotated[bool, typer.Option("--causal/--no-causal", help="Half of each round is masked, tokens balanced.")] = False,
    hidden: Annotated[int, typer.Option("--hidden", metavar="H", min=1, max=1 << 20, help="Width of all query heads.")] = 4096,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", min=2, max=MOST_RANKS, help="Ranks of the ring.")] = 8,
    seq: Annotated[int, typer.Option("--seq", "--seq-len", metavar="TOKENS", min=2, max=1 << 30, help="Tokens.")] = 131072,
    device: Device = "h100-sxm",
    flops_per_s: FlopsPerS = None,
    json: flags.Json = False,
) -> None:
    """Show from which block on a ring hides its transfer.

    Example: parlay show block-size --link ib-ndr --queries-per-kv 4 --causal
    """
    from parlay.errors import UsageError
    from parlay.report.show import block_size_lines
    from parlay.simulate.show_rates import block_sizes, layer_traffic

    if seq < ranks:
        raise UsageError(f"{seq} tokens over {ranks} ranks leave a rank without tokens", hint="at least one token a rank")
    (name, bandwidth), peak, block = *_rates([link]), _flops_per_s(device, flops_per_s), seq // ranks
    given: dict[str, Any] = {
        "flops_per_s": peak, "link_bytes_per_s": bandwidth, "query_width": hidden, "queries_per_kv": queries_per_kv, "causal": causal,
    }  # fmt: skip
    crossing = block_sizes([block], **given).crossing_tokens
    middle = max(round(math.log2(crossing)), STEPS) if math.isfinite(crossing) else STEPS
    shown = block_sizes(sorted({block, *(2**k for k in range(middle - STEPS, middle + STEPS + 1))}), **given)
    traffic = layer_traffic(ranks, block * ranks, query_width=hidden, queries_per_kv=queries_per_kv)
    title = (
        f"ring attention over {name}"
        + (f", {queries_per_kv} query heads a K/V head" if queries_per_kv > 1 else "")
        + ", causal" * causal
    )
    _say(
        "block-size",
        lambda page: block_size_lines(shown, title, traffic, block, page),
        json,
        block_sizes=shown,
        layer=traffic,
        block=block,
    )


def _rates(links: Iterable[str]) -> list[tuple[str, float]]:
    """Return name and one-way rate of each link, which is a name of the catalog or a rate."""
    from parlay.hardware.load import load_link, user_catalog_directory
    from parlay.units import parse_quantity

    user = user_catalog_directory()
    return [
        (
            name,
            parse_quantity(name, "bytes/s", where="--link")
            if name.lstrip("+-.")[:1].isdigit()
            else load_link(name, user).bytes_per_s.value,
        )
        for name in links
    ]


def _flops_per_s(device: str, rate: str | None) -> float:
    from parlay.errors import UsageError
    from parlay.hardware.load import load_device, user_catalog_directory
    from parlay.units import parse_quantity

    if rate is not None:
        return parse_quantity(rate, "FLOP/s", where="--flops-per-s")
    found = load_device(device, user_catalog_directory()).flops_per_s
    if "bf16" not in found:
        raise UsageError("has no bf16 rate", where=f"--device {device}", hint="say one: --flops-per-s 100TFLOP/s")
    return found["bf16"].value


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
    group.command("experts")(experts)
    group.command("block-size")(block_size)
    app.add_typer(group, name="show")
