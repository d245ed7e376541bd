"""What the mechanisms look like, as data: the rounds of a ring, who holds what around an all-to-all, before and after a collective.

Everything here is a small run of the simulated ranks, or counts of it; nothing is formatted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError
from parlay.simulate import collectives, ulysses
from parlay.simulate.placement import LAYOUTS, Positions, token_positions
from parlay.simulate.world import World

Pair = tuple[int, int]


@dataclass(frozen=True)
class RingRound:
    """One round: by rank whose block it holds, that block's tokens, the pairs it computes and how many; the time is the largest."""

    number: int
    block_of: list[int]
    key_tokens: list[list[int]]
    pairs: list[list[Pair]]
    work: list[int]
    time: int
    idle: list[int]


@dataclass(frozen=True)
class RingRounds:
    """All rounds of a ring. Work and time are in (query, key) pairs."""

    layout: str
    causal: bool
    query_tokens: list[list[int]]
    rounds: list[RingRound]
    work: list[int]
    time: int
    best_time: float
    idle_share: float


def ring_rounds(ranks: int, seq_len: int, *, layout: str = "zigzag", causal: bool = True, list_pairs: bool = True) -> RingRounds:
    """Return which (query, key) pairs each rank computes in each round of ring attention, and who waits.

    Parameters
    ----------
    ranks : int
        Ranks N of the ring. [-]
    seq_len : int
        Tokens of the sequence. [token]
    layout : {"zigzag", "contiguous", "striped"}
        How the tokens lie on the ranks. [-]
    causal : bool, default True
        Whether a query sees only its own position and those before.
    list_pairs : bool, default True
        Whether to list the pairs, not only to count them.

    Returns
    -------
    RingRounds
        Rounds, work by rank, the ring's time (the sum of the rounds' longest) and the share of it that ranks idle.

    Raises
    ------
    UsageError
        If the layout is unknown, or a rank would hold no token.

    Examples
    --------
    >>> shown = ring_rounds(4, 8, layout="contiguous")
    >>> shown.work, [each.time for each in shown.rounds], shown.time
    ([3, 7, 11, 15], [3, 4, 4, 4], 15)
    """
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout '{layout}'", hint=f"one of {', '.join(LAYOUTS)}")
    if ranks < 1 or seq_len < ranks:
        raise UsageError(f"{seq_len} tokens over {ranks} ranks leave a rank without tokens", hint="at least one token a rank")
    held = token_positions(seq_len, ranks, layout)
    rounds = []
    for n in range(ranks):
        blocks = [(r - n) % ranks for r in range(ranks)]
        work = [_count(held[r], held[b], causal) for r, b in enumerate(blocks)]
        pairs = [_pairs(held[r], held[b], causal) if list_pairs else [] for r, b in enumerate(blocks)]
        idle = [max(work) - mine for mine in work]
        rounds.append(RingRound(n, blocks, [_sorted(held[b]) for b in blocks], pairs, work, max(work), idle))
    total = [sum(each.work[r] for each in rounds) for r in range(ranks)]
    time = sum(each.time for each in rounds)
    tokens = [_sorted(mine) for mine in held]
    return RingRounds(layout, causal, tokens, rounds, total, time, sum(total) / ranks, 1 - sum(total) / (ranks * time))


@dataclass(frozen=True)
class UlyssesGrids:
    """Owner of each cell (token, head) before and after the all-to-all; which cells arrived over the network; K/V heads by rank."""

    ranks: int
    before: list[list[int]]
    after: list[list[int]]
    arrived: list[list[bool]]
    kv_heads_of: list[list[int]]
    kv_copies: int
    largest_without_copies: int
    query_cells_sent: list[int]
    kv_cells_sent: list[int]


def ulysses_grids(ranks: int, seq_len: int, heads: int, *, kv_heads: int | None = None) -> UlyssesGrids:
    """Return who holds each token of each head before and after the all-to-all of Ulysses.

    Parameters
    ----------
    ranks : int
        Ranks N. [-]
    seq_len : int
        Tokens. [token]
    heads : int
        Query heads. [-]
    kv_heads : int, optional
        K/V heads; as many as query heads where it is left out. [-]

    Returns
    -------
    UlyssesGrids
        Grids by token and query head; K/V heads that each rank needs, and on how many ranks one K/V head lies at most.

    Raises
    ------
    UsageError
        If there are more ranks than query heads or tokens, or the heads do not group.

    Examples
    --------
    >>> shown = ulysses_grids(2, 4, 2)
    >>> shown.before, shown.after
    ([[0, 0], [0, 0], [1, 1], [1, 1]], [[0, 1], [0, 1], [0, 1], [0, 1]])
    """
    kv = heads if kv_heads is None else kv_heads
    if ranks > heads:
        raise UsageError(
            f"Ulysses over {ranks} ranks needs at least {ranks} query heads, got {heads}", hint="add a ring across groups"
        )
    if heads % kv:
        raise UsageError(f"{heads} query heads do not divide into {kv} K/V heads")
    if seq_len < ranks:
        raise UsageError(f"{seq_len} tokens over {ranks} ranks leave a rank without tokens", hint="at least one token a rank")
    by, world = ulysses.plan(seq_len, heads, kv, ulysses=ranks, layout="contiguous"), World(ranks)
    # Each cell is one number, the rank that holds it before, so that eight bytes on the wire are one cell.
    owners = [np.full((heads, len(mine), 1), float(r)) for r, mine in enumerate(by.positions)]
    received = ulysses.to_heads(world, owners, by, by.query_heads, ulysses.QUERIES)
    for _ in ("K", "V"):
        ulysses.to_heads(world, [each[:kv] for each in owners], by, by.kv_heads, ulysses.KEYS_VALUES)
    before, after = np.empty((seq_len, heads), int), np.empty((seq_len, heads), int)
    for r, mine in enumerate(by.query_heads):
        before[:, mine] = received[r][..., 0].T
        after[:, mine] = r
    copies = int(np.bincount(np.concatenate(by.kv_heads)).max())
    sent = [[n // 8 for n in world.ledger.sent_bytes(name).tolist()] for name in (ulysses.QUERIES, ulysses.KEYS_VALUES)]
    heads_of = [mine.tolist() for mine in by.kv_heads]
    return UlyssesGrids(ranks, before.tolist(), after.tolist(), (before != after).tolist(), heads_of, copies, kv, *sent)


@dataclass(frozen=True)
class CollectiveStep:
    """What each GPU holds before and after one collective, and how many elements each sent."""

    collective: str
    before: list[list[float]]
    after: list[list[float]]
    sent_elements: list[int]


@dataclass(frozen=True)
class SequenceParallel:
    """The same partial sums under tensor parallelism alone, and with sequence parallelism."""

    tensor: list[CollectiveStep]
    tensor_and_sequence: list[CollectiveStep]
    tokens_kept: tuple[list[int], list[int]]


def sequence_parallel(partials: Sequence[Sequence[float]]) -> SequenceParallel:
    """Return what GPUs hold around the collectives behind a row product and in front of the next column product.

    Parameters
    ----------
    partials : sequence of sequence of float
        By GPU, its partial sum for each token (hidden width 1). [-]

    Returns
    -------
    SequenceParallel
        One all-reduce, or a reduce-scatter and an all-gather; tokens whose norm and dropout each GPU computes and keeps.

    Raises
    ------
    UsageError
        If the GPUs do not hold equally many tokens.

    Examples
    --------
    >>> shown = sequence_parallel([[1, 2, 3, 4], [10, 20, 30, 40]])
    >>> shown.tensor_and_sequence[0].after
    [[11.0, 22.0], [33.0, 44.0]]
    """
    rows = [np.asarray(mine, dtype=np.float64) for mine in partials]
    if not rows or len({len(mine) for mine in rows}) != 1:
        raise UsageError("every GPU holds a partial sum of the same tokens", hint="lists of equal length")
    t, worlds = len(rows), (World(len(rows)), World(len(rows)))
    summed = collectives.all_reduce(worlds[0], rows)
    plain = [_step(worlds[0], "all-reduce", rows, summed)]
    scattered = collectives.reduce_scatter(worlds[1], rows)
    gathered = collectives.all_gather(worlds[1], scattered)
    steps = [_step(worlds[1], "reduce-scatter", rows, scattered), _step(worlds[1], "all-gather", scattered, gathered)]
    return SequenceParallel(plain, steps, ([len(summed[0])] * t, [len(mine) for mine in scattered]))


@dataclass(frozen=True)
class LayerRegion:
    """One region of a layer on GPU 0: what it computes, how its tensors are cut, their shape, and the collective behind it."""

    name: str
    cut_by: str
    tokens: float
    width: float
    collective_after: str


def layer_regions(
    seq_len: int, hidden: int, *, tensor: int, sequence: bool, heads_width: int | None = None, mlp_width: int | None = None
) -> list[LayerRegion]:
    """Return which part of each activation GPU 0 holds along one layer's forward pass, for one sequence.

    Parameters
    ----------
    seq_len, hidden : int
        Tokens and hidden width. [-]
    tensor : int
        Tensor-parallel degree t. [-]
    sequence : bool
        Whether sequence parallelism is on.
    heads_width, mlp_width : int, optional
        Width of all query heads and of the MLP; the hidden width, and four times it, where they are left out. [-]

    Examples
    --------
    >>> [each.tokens for each in layer_regions(8, 16, tensor=4, sequence=True)]
    [2.0, 8.0, 2.0, 8.0, 2.0]
    """
    rows, cut = (seq_len / tensor, "tokens") if sequence else (float(seq_len), "nothing")
    gather, reduce = ("all-gather", "reduce-scatter") if sequence else ("", "all-reduce")
    a, f = heads_width or hidden, mlp_width or 4 * hidden
    return [
        LayerRegion("norm", cut, rows, hidden, gather),
        LayerRegion("attention", "heads", float(seq_len), a / tensor, reduce),
        LayerRegion("dropout, residual, norm", cut, rows, hidden, gather),
        LayerRegion("MLP", "columns", float(seq_len), f / tensor, reduce),
        LayerRegion("dropout, residual", cut, rows, hidden, ""),
    ]


def _step(world: World, name: str, before: Sequence[NDArray[np.float64]], after: Sequence[NDArray[np.float64]]) -> CollectiveStep:
    sent = [n // 8 for n in world.ledger.sent_bytes(name).tolist()]
    return CollectiveStep(name, [each.tolist() for each in before], [each.tolist() for each in after], sent)


def _count(queries: Positions, keys: Positions, causal: bool) -> int:
    """Return how many pairs are visible, without a table of all pairs."""
    if not causal:
        return queries.size * keys.size
    return int(np.searchsorted(np.sort(keys), queries, side="right").sum())


def _pairs(queries: Positions, keys: Positions, causal: bool) -> list[Pair]:
    return [(q, k) for q in _sorted(queries) for k in _sorted(keys) if not causal or k <= q]


def _sorted(tokens: Positions) -> list[int]:
    return sorted(int(token) for token in tokens)
