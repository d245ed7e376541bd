"""The texts of `parlay show`: rounds of a ring, grids of Ulysses, collectives of sequence parallelism, loads of experts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from parlay import __version__
from parlay.report.table import Column, Page, render, wrap
from parlay.simulate.show import LayerRegion, RingRounds, SequenceParallel, UlyssesGrids
from parlay.simulate.show_experts import ExpertLoad
from parlay.simulate.show_layers import LayerMemory
from parlay.simulate.show_rates import BlockSizes, ExpertExchange, LayerTraffic
from parlay.units import show_rate, significant


def document(kind: str, **parts: Any) -> dict[str, Any]:
    """Return the JSON document of `parlay show KIND`: the data as the library gives them, keys as the fields are named."""
    head = {"schema_name": f"parlay/show-{kind}", "schema_version": 1, "parlay_version": __version__}
    return head | {key: _plain(part) for key, part in parts.items()}


def _plain(part: Any) -> Any:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.asdict(part)
    if isinstance(part, dict):
        return {key: _plain(each) for key, each in part.items()}
    return [_plain(each) for each in part] if isinstance(part, list | tuple) else part


MOST_RUNS = 6  # of tokens named one by one
MOST_GRID_ROWS = 33  # of a drawn grid, its header included


def tokens(held: Sequence[int]) -> str:
    """Return sorted tokens in braces, longer runs by their ends, many runs by the first ones and the last.

    >>> tokens([0, 7]), tokens([0, 1, 2, 3, 12, 13, 14, 15]), tokens(range(1, 64, 8))
    ('{0,7}', '{0-3,12-15}', '{1,9,17,...,57}')
    """
    runs: list[list[int]] = []
    for token in held:
        if runs and token == runs[-1][1] + 1:
            runs[-1][1] = token
        else:
            runs.append([token, token])
    named = [str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    return "{" + ",".join(named if len(named) <= MOST_RUNS else [*named[:3], "...", named[-1]]) + "}"


def ring_lines(shown: RingRounds, page: Page) -> list[str]:
    """Return who computes what in each round, the pairs of all rounds side by side, and how long the ring takes."""
    ranks = range(len(shown.query_tokens))
    mask = "causal" if shown.causal else "no mask"
    out = [page.bold(f"ring attention, {len(ranks)} ranks, {shown.layout}, {mask}"), ""]
    if any(each.pairs[r] for each in shown.rounds for r in ranks):
        rows = [
            [str(each.number) if r == 0 else "", str(r), tokens(shown.query_tokens[r]), tokens(each.key_tokens[r]),
             _pairs(each.pairs[r], each.work[r]), str(each.idle[r])]
            for each in shown.rounds for r in ranks
        ]  # fmt: skip
        columns = [
            Column("round"), Column("rank"), Column("queries", right=False), Column("K/V held", right=False),
            Column("pairs (query,key) computed", right=False, text=True), Column("idle"),
        ]  # fmt: skip
    else:
        rows = [[str(r), tokens(shown.query_tokens[r])] for r in ranks]
        columns = [Column("rank"), Column("tokens held", right=False, text=True)]
    out += [*render(columns, rows, page), ""]
    sums = [[str(e.number), *(f"{w:,}" for w in e.work), f"{e.time:,}"] for e in shown.rounds]
    sums.append(["total", *(f"{w:,}" for w in shown.work), f"{shown.time:,}"])
    heads = [Column("round"), *(Column(f"rank {r}", drop=1 + r) for r in ranks), Column("round time")]
    out += [*render(heads, sums, page), ""]
    pairs = sum(shown.work)
    text = (
        f"{pairs:,} pairs; the ring takes {shown.time:,} pair-times, at best {pairs:,} / {len(ranks)} = {_number(shown.best_time)}; "
        f"ranks idle {shown.idle_share:.1%} of it"
    )
    return [*out, *wrap(text, page)]


def _pairs(pairs: Sequence[tuple[int, int]], work: int) -> str:
    return " ".join([*(f"({q},{k})" for q, k in pairs), f"= {work}"])


def _number(value: float) -> str:
    """Return whole numbers plainly and others with five digits."""
    return f"{value:,.0f}" if value == int(value) else significant(value, 5)


def ulysses_lines(shown: UlyssesGrids, page: Page) -> list[str]:
    """Return who holds each (token, head) before and after the all-to-all, and which K/V heads each rank needs."""
    heads = len(shown.before[0])
    out = [page.bold(f"Ulysses, {shown.ranks} ranks: rank that holds each token (rows) of each query head (columns)"), ""]
    out += [*_grids(shown, page), ""]
    rows = [
        [str(r), _runs(h for h in range(heads) if shown.after[0][h] == r), _runs(kv),
         f"{shown.query_cells_sent[r]:,}", f"{shown.kv_cells_sent[r]:,}"]
        for r, kv in enumerate(shown.kv_heads_of)
    ]  # fmt: skip
    columns = [
        Column("rank"), Column("query heads", right=False), Column("K/V heads", right=False), Column("sent: cells of Q"), Column("of K and V"),
    ]  # fmt: skip
    out += [*render(columns, rows, page), ""]
    if shown.kv_copies > 1:
        text = f"K/V heads are copied: one lies on up to {shown.kv_copies} ranks; without copies at most {shown.largest_without_copies} ranks"
    else:
        text = f"no K/V head is copied; without copies at most {shown.largest_without_copies} ranks"
    return [*out, *wrap(f"{text}. The output goes back the same way as Q came.", page)]


def _grids(shown: UlyssesGrids, page: Page) -> list[str]:
    """Return both grids side by side, or one below the other, or a note where even one does not fit."""
    heads = [str(h) for h in range(len(shown.before[0]))]
    digits = len(heads[-1]) + 1
    label = max(len("token"), len(str(len(shown.before) - 1)))
    before = [_grid_row(heads, digits), *(_grid_row(map(str, row), digits) for row in shown.before)]
    starred = [
        [f"{rank}{'*' if new else ' '}" for rank, new in zip(owners, came, strict=True)]
        for owners, came in zip(shown.after, shown.arrived, strict=True)
    ]
    after = [_grid_row(cells, digits + 1) for cells in ([f"{h} " for h in heads], *starred)]
    rows = ["token", *(str(i) for i in range(len(shown.before)))]
    room = 80 if page.width is None else page.width
    note = "* came over the network"
    if len(rows) > MOST_GRID_ROWS or label + 2 + len(after[0]) > room:
        return [f"({len(rows) - 1:,} tokens of {len(heads):,} heads are too many to draw)"]
    if label + 4 + len(before[0]) + len(after[0]) <= room:
        head = f"{'':{label}}  {'before':<{len(before[0])}}  after the all-to-all"
        return [head, *(f"{n:>{label}}  {a}  {b}".rstrip() for n, a, b in zip(rows, before, after, strict=True)), note]
    out = []
    for title, grid in (("before", before), ("after the all-to-all", after)):
        out += [title, *(f"{n:>{label}}  {line}".rstrip() for n, line in zip(rows, grid, strict=True)), ""]
    return [*out[:-1], note]


def _grid_row(cells: Iterable[str], width: int) -> str:
    return "".join(cell.rjust(width) for cell in cells)


def _runs(held: Iterable[int]) -> str:
    return tokens(sorted(held)).strip("{}")


def sequence_parallel_lines(shown: SequenceParallel, page: Page, element_bytes: float) -> list[str]:
    """Return what each GPU holds around each collective, and the bytes that it sends, without and with sequence parallelism."""
    out: list[str] = []
    for title, steps, kept in zip(
        ("tensor parallelism alone", "tensor + sequence parallelism"), (shown.tensor, shown.tensor_and_sequence), shown.tokens_kept,
        strict=True,
    ):  # fmt: skip
        rows = []
        for step in steps:
            for gpu, (before, after) in enumerate(zip(step.before, step.after, strict=True)):
                sent = step.sent_elements[gpu]
                rows.append([step.collective if gpu == 0 else "", str(gpu), _vector(before), _vector(after), str(sent)])
        columns = [
            Column("collective", right=False), Column("GPU"), Column("before", right=False, text=True),
            Column("after", right=False, text=True), Column("sent"),
        ]  # fmt: skip
        sent = sum(step.sent_elements[0] for step in steps)
        text = (
            f"GPU 0 computes norm and dropout of {kept[0]} tokens and keeps them; it sends {sent} elements, "
            f"{size(sent * element_bytes)}"
        )
        out += [page.bold(title), *render(columns, rows, page), *wrap(text, page), ""]
    return out[:-1]


def layer_lines(regions: Sequence[Sequence[LayerRegion]], memory: LayerMemory, tensor: int, page: Page) -> list[str]:
    """Return what GPU 0 holds along a layer, without and with sequence parallelism, and what it keeps and sends."""
    out = [page.bold(f"one layer on GPU 0 of {tensor}, forward pass"), ""]
    rows = []
    for a, b in zip(*regions, strict=True):
        rows.append(
            [a.name, f"{_number(a.tokens)} x {_number(a.width)}", a.cut_by, f"{_number(b.tokens)} x {_number(b.width)}", b.cut_by]
        )
        if a.collective_after or b.collective_after:
            rows.append(["", a.collective_after, "", b.collective_after, ""])
    columns = [
        Column("region", right=False), Column("TP holds"), Column("split by", right=False), Column("TP + SP holds"),
        Column("split by", right=False),
    ]  # fmt: skip
    out += [*render(columns, rows, page), ""]
    sizes = [
        ("nothing split", memory.whole_bytes, memory.layers * memory.whole_bytes),
        ("TP", memory.tensor_bytes, memory.all_tensor_bytes),
        ("TP + SP", memory.tensor_and_sequence_bytes, memory.all_tensor_and_sequence_bytes),
    ]
    table = [[name, size(one), size(several)] for name, one, several in sizes]
    out += [
        *render([Column("kept for backward", right=False), Column("a layer"), Column(f"{memory.layers} layers")], table, page),
        "",
    ]
    text = (
        f"{memory.replicated_share:.0%} of what TP alone keeps is not split; SP saves a factor of {memory.saving:.2f}. "
        f"Either way each GPU sends {size(memory.sent_bytes)} in a layer's forward pass."
    )
    return [*out, *wrap(text, page)]


def size(value: float) -> str:
    """Return bytes with decimal prefixes, as the sources of these examples print them: 436 MB, 8 B."""
    return show_rate(value, "B") if value >= 1000 else f"{value:,.0f} B"


def _vector(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{v:g}" for v in values) + ")"


def experts_lines(
    load: ExpertLoad, exchanges: Sequence[tuple[str, ExpertExchange]], tokens_per_gpu: int, page: Page
) -> list[str]:
    """Return the load of each expert and GPU, what is dropped, who waits, and the exchange beside the experts' products."""
    capacity = "no capacity limit" if load.capacity is None else f"at most {load.capacity:,} copies an expert"
    gpus = len(load.rank_load)
    title = f"{len(load.wanted)} experts on {gpus} GPUs, {tokens_per_gpu:,} tokens a GPU, {capacity}"
    most = max(load.wanted)
    rows = [
        [str(i), str(load.rank_of[i]), f"{w:,}", f"{load.computed[i]:,}", f"{load.dropped[i]:,}", _bar(load.computed[i], load.dropped[i], most)]
        for i, w in enumerate(load.wanted)
    ]  # fmt: skip
    columns = [
        Column("expert"), Column("GPU"), Column("copies sent to it"), Column("computed"), Column("dropped"), Column("# computed, x dropped", right=False),
    ]  # fmt: skip
    out = [page.bold(title), "", *render(columns, rows, page), ""]
    busiest = max(load.rank_load)
    rows = [
        [
            str(r),
            f"{mine:,}",
            f"{load.rank_waiting[r]:,}",
            f"{load.rank_sent[r]:,}",
            _bar(mine, load.rank_waiting[r], busiest, "."),
        ]
        for r, mine in enumerate(load.rank_load)
    ]
    columns = [
        Column("GPU"), Column("copies computed"), Column("waits for"), Column("sent away"), Column("# busy, . waiting", right=False),
    ]  # fmt: skip
    out += [*render(columns, rows, page), ""]
    text = (
        f"the busiest GPU has {load.busiest_over_mean:.2f} times the mean; GPUs wait {load.waiting_share:.1%} of the layer's time; "
        f"{load.dropped_share:.1%} of the copies are dropped"
    )
    out += wrap(text, page)
    if not exchanges:
        return out
    rows = [
        [name, size(x.sent_bytes), _ms(x.exchange_s), rate(x.expert_flops), _ms(x.expert_s), f"{x.exchange_over_compute:.2f}"]
        for name, x in exchanges
    ]
    columns = [
        Column("with even routing, over", right=False), Column("sent by a GPU"), Column("takes ms"), Column("FLOP of experts", drop=1), Column("take ms"),
        Column("ratio"),
    ]  # fmt: skip
    return [*out, "", *render(columns, rows, page)]


BAR = 24  # characters of the longest bar


def _bar(first: float, second: float, whole: float, mark: str = "x") -> str:
    """Return two parts of a bar in characters; what is left of `whole` stays empty."""
    a, both = round(BAR * first / max(whole, 1)), round(BAR * (first + second) / max(whole, 1))
    return "#" * a + mark * (both - a)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}" if seconds >= 1e-4 else significant(seconds * 1e3, 2)


def rate(value: float) -> str:
    """Return FLOP as a power of ten with three digits, as papers print them: 5.77e12."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


ROUNDING = 6  # decimals of a crossing that are arithmetic rather than the last bits of its floats


def _whole_tokens(crossing: float) -> str:
    """Return the first whole number of tokens at or above a crossing; one fewer would not hide the transfer."""
    return f"{math.ceil(round(crossing, ROUNDING)):,}" if math.isfinite(crossing) else f"{crossing}"


def block_size_lines(shown: BlockSizes, title: str, traffic: LayerTraffic, marked: int, page: Page) -> list[str]:
    """Return compute and transfer time by block size, the crossing marked between two rows, and what a layer sends."""
    rows, crossed = [], False
    for block in shown.blocks:
        if block.tokens >= shown.crossing_tokens and not crossed:
            crossed = True
            rows.append(["-> " + _whole_tokens(shown.crossing_tokens), "", "", "", "", "as long"])
        name = f"* {block.tokens:,}" if block.tokens == marked else f"{block.tokens:,}"
        state = "hidden" if block.hidden else "exposed"
        rows.append([name, rate(block.flops), _ms(block.compute_s), size(block.transfer_bytes), _ms(block.transfer_s), state])
    columns = [
        Column("block tokens"), Column("FLOP"), Column("computes ms"), Column("sends"), Column("takes ms"), Column("transfer", right=False),
    ]  # fmt: skip
    out = [page.bold(title), "", *render(columns, rows, page), ""]
    texts = [
        f"-> the smallest block whose transfer hides: {_whole_tokens(shown.crossing_tokens)} tokens, in the backward pass "
        f"{_whole_tokens(shown.crossing_backward_tokens)}",
        f"* a layer at this block: the ring sends {size(traffic.ring_bytes)} a GPU, Ulysses {size(traffic.ulysses_bytes)}, which nothing "
        f"hides (ring / Ulysses = {traffic.ring_over_ulysses:.3g})",
    ]
    return [*out, *(line for text in texts for line in wrap(text, page))]
