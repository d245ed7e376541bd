"""The texts of `parlay show`: rounds of a ring, grids of Ulysses, collectives of sequence parallelism, loads of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from parlay import __version__
from parlay.report.table import Column, Page, render, wrap
from parlay.simulate.show import RingRounds
from parlay.units import significant


def document(kind: str, **parts: Any) -> dict[str, Any]:
    """Return the JSON document of `parlay show KIND`: the data as the library gives them, keys as the fields are named."""
    head = {"schema_name": f"parlay/show-{kind}", "schema_version": 1, "parlay_version": __version__}
    return head | {key: _plain(part) for key, part in parts.items()}


def _plain(part: Any) -> Any:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.asdict(part)
    return [_plain(each) for each in part] if isinstance(part, list | tuple) else part


MOST_RUNS = 6  # of tokens named one by one


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
