"""Ulysses: all-to-alls turn a shard of the tokens into a shard of the heads and back; and Ulysses inside a ring.

Rank u of a group of U takes the u-th run of query heads, and the K/V heads that these need: a K/V head that more than one rank
needs is sent to each of them (copied), and its gradients come back from all of them and are summed by the owner of the tokens.
Rank i * U + u is member u of Ulysses group i; the ranks with the same u form a ring. R = 1 is Ulysses alone, U = 1 a ring alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.attention import grouped
from parlay.simulate.collectives import all_to_all, even_sizes, split
from parlay.simulate.placement import Positions, token_positions
from parlay.simulate.ring import RingForward, ring_attention, ring_attention_backward
from parlay.simulate.world import Array, World

Heads = NDArray[np.int64]
QUERIES, KEYS_VALUES, OUTPUT = "Ulysses Q", "Ulysses K/V", "Ulysses output"
D_QUERIES, D_KEYS_VALUES, D_OUTPUT = "Ulysses dQ", "Ulysses dK/dV", "Ulysses d output"


@dataclass(frozen=True)
class Plan:
    """Who holds what: per rank the positions of its tokens, per member the query heads, K/V heads and how these belong together."""

    ulysses: int
    ring: int
    positions: list[Positions]
    query_heads: list[Heads]
    kv_heads: list[Heads]
    causal: bool

    def groups(self) -> list[list[int]]:
        """Return the ranks of each Ulysses group: neighbours, so that the group can lie inside a node."""
        return [list(range(i * self.ulysses, (i + 1) * self.ulysses)) for i in range(self.ring)]

    def rings(self) -> list[list[int]]:
        """Return the ranks of each ring."""
        return [list(range(u, self.ulysses * self.ring, self.ulysses)) for u in range(self.ulysses)]

    def group_positions(self) -> list[Positions]:
        """Return the positions of the tokens of each Ulysses group."""
        return [np.concatenate([self.positions[rank] for rank in group]) for group in self.groups()]


@dataclass(frozen=True)
class UlyssesForward:
    """What the forward pass keeps: the outputs by tokens; by ring and ring rank, the queries by heads and the ring's results."""

    outputs: list[Array]
    queries: list[list[Array]]
    rings: list[RingForward]


def plan(
    seq_len: int, heads: int, kv_heads: int, *, ulysses: int, ring: int = 1, layout: str = "zigzag", causal: bool = True
) -> Plan:
    """Return who holds which tokens and heads.

    Parameters
    ----------
    seq_len : int
        Tokens of the sequence. [token]
    heads, kv_heads : int
        Query heads a and K/V heads k. [-]
    ulysses : int
        Ranks of a Ulysses group, at most as many as query heads. [-]
    ring : int, default 1
        Ulysses groups in the ring. [-]
    layout : str, default "zigzag"
        How the tokens lie on the groups of the ring; inside a group they are cut into runs. [-]
    causal : bool, default True
        Whether a query sees only its own position and those before.

    Examples
    --------
    Four ranks, two K/V heads: each is copied to two ranks.

    >>> [each.tolist() for each in plan(8, 4, 2, ulysses=4).kv_heads]
    [[0], [0], [1], [1]]
    """
    if ulysses > heads:
        raise ValueError(f"Ulysses over {ulysses} ranks needs as many query heads, got {heads}")
    positions = []
    for block in token_positions(seq_len, ring, layout):
        positions += np.split(block, np.cumsum(even_sizes(len(block), ulysses))[:-1])
    query_heads = np.split(np.arange(heads), np.cumsum(even_sizes(heads, ulysses))[:-1])
    shared = grouped(heads, kv_heads)
    return Plan(ulysses, ring, positions, query_heads, [np.unique(shared[mine]) for mine in query_heads], causal)


def ulysses_attention(world: World, q: Sequence[Array], k: Sequence[Array], v: Sequence[Array], by: Plan) -> UlyssesForward:
    """Return the attention of every rank's queries over all keys: to heads, a ring over the groups, back to tokens."""
    q_heads = to_heads(world, q, by, by.query_heads, QUERIES)
    k_heads = to_heads(world, k, by, by.kv_heads, KEYS_VALUES)
    v_heads = to_heads(world, v, by, by.kv_heads, KEYS_VALUES)
    queries, rings = [], []
    for u, ranks in enumerate(by.rings()):
        mine_q, mine_k, mine_v = ([array[rank] for rank in ranks] for array in (q_heads, k_heads, v_heads))
        local = _local_kv(by, u, len(q[0]), len(k[0]))
        queries.append(mine_q)
        at = by.group_positions()
        rings.append(ring_attention(world, mine_q, mine_k, mine_v, at, causal=by.causal, kv_of_head=local, ranks=ranks))
    outputs = _by_rank(by, [[part.output for part in each.results] for each in rings])
    return UlyssesForward(to_tokens(world, outputs, by, by.query_heads, OUTPUT), queries, rings)


def ulysses_attention_backward(
    world: World, forward: UlyssesForward, d_output: Sequence[Array], by: Plan, kv_heads: int
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return the gradients of q, k and v on the ranks that own the tokens."""
    d_heads = to_heads(world, d_output, by, by.query_heads, D_OUTPUT)
    parts: list[tuple[list[Array], list[Array], list[Array]]] = []
    for u, ranks in enumerate(by.rings()):
        local = _local_kv(by, u, len(d_output[0]), kv_heads)
        mine = [d_heads[rank] for rank in ranks]
        at = by.group_positions()
        parts.append(
            ring_attention_backward(
                world, forward.queries[u], forward.rings[u], mine, at, causal=by.causal, kv_of_head=local, ranks=ranks
            )
        )
    d_q, d_k, d_v = (_by_rank(by, [part[which] for part in parts]) for which in range(3))
    return (
        to_tokens(world, d_q, by, by.query_heads, D_QUERIES),
        to_tokens(world, d_k, by, by.kv_heads, D_KEYS_VALUES),
        to_tokens(world, d_v, by, by.kv_heads, D_KEYS_VALUES),
    )


def _local_kv(by: Plan, u: int, heads: int, kv_heads: int) -> Heads:
    return np.searchsorted(by.kv_heads[u], grouped(heads, kv_heads)[by.query_heads[u]])


def _by_rank(by: Plan, by_ring: Sequence[Sequence[Array]]) -> list[Array]:
    return [by_ring[rank % by.ulysses][rank // by.ulysses] for rank in range(by.ulysses * by.ring)]


def to_heads(world: World, shards: Sequence[Array], by: Plan, head_sets: Sequence[Heads], operation: str) -> list[Array]:
    """Return per rank all tokens of its group for its own heads."""
    out: list[Array] = []
    for group in by.groups():
        blocks = [[shards[rank][mine] for mine in head_sets] for rank in group]
        out += [np.concatenate(each, axis=1) for each in all_to_all(world, blocks, operation=operation, ranks=group)]
    return out


def to_tokens(world: World, shards: Sequence[Array], by: Plan, head_sets: Sequence[Heads], operation: str) -> list[Array]:
    """Return per rank its own tokens for all heads; what several ranks send for one head is summed."""
    out: list[Array] = []
    total = int(max(mine.max() for mine in head_sets)) + 1
    for group in by.groups():
        sizes = [len(by.positions[rank]) for rank in group]
        blocks = [split(shards[rank], sizes, axis=1) for rank in group]
        for u, parts in enumerate(all_to_all(world, blocks, operation=operation, ranks=group)):
            tokens = np.zeros((total, sizes[u], parts[0].shape[-1]))
            for mine, part in zip(head_sets, parts):
                tokens[mine] += part
            out.append(tokens)
    return out
