"""Compute and transfer times side by side, as data: a ring's block size, and a mixture layer's exchange against its experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.errors import UsageError
from parlay.formulas import experts, ring_attention, ulysses


@dataclass(frozen=True)
class Block:
    """One block size: what a round computes and sends, how long both take, and whether the transfer is hidden."""

    tokens: int
    flops: float
    transfer_bytes: float
    compute_s: float
    transfer_s: float
    hidden: bool


@dataclass(frozen=True)
class BlockSizes:
    """Block sizes of a ring over one link; the crossing is where a transfer takes as long as its compute, not rounded. [token]"""

    blocks: list[Block]
    crossing_tokens: float
    crossing_backward_tokens: float


def block_sizes(
    blocks: Sequence[int],
    *,
    flops_per_s: float,
    link_bytes_per_s: float,
    query_width: int,
    queries_per_kv: int = 1,
    causal: bool = False,
    element_bytes: float = 2,
) -> BlockSizes:
    """Return compute and transfer time of one ring round for each block size, and where they cross.

    Parameters
    ----------
    blocks : sequence of int
        Block sizes c, tokens a rank. [token]
    flops_per_s : float
        Rate that attention reaches. [FLOP/s]
    link_bytes_per_s : float
        Bandwidth of the ring's slowest hop, one direction. [B/s]
    query_width : int
        Query heads times head size; the crossing does not depend on it. [-]
    queries_per_kv : int, default 1
        Query heads a K/V head. [-]
    causal : bool, default False
        Whether a mask hides half of each round's scores, the tokens placed so that all ranks have equal work.
    element_bytes : float, default 2
        Bytes of a K/V element. [B]

    Returns
    -------
    BlockSizes
        One row a block size, and the crossing in the forward and in the backward pass.

    Raises
    ------
    UsageError
        If the width does not divide into K/V heads, or a size or rate is not positive.

    Examples
    --------
    >>> block_sizes([16384], flops_per_s=989e12, link_bytes_per_s=50e9, query_width=4096).crossing_tokens
    19780.0
    """
    if min(flops_per_s, link_bytes_per_s, query_width, queries_per_kv, element_bytes, *blocks) <= 0:
        raise UsageError("block sizes, widths and rates must be > 0")
    if query_width % queries_per_kv:
        raise UsageError(f"a width of {query_width} does not divide into groups of {queries_per_kv} query heads")
    share = 0.5 if causal else 1.0
    rows = []
    for c in blocks:
        work = float(ring_attention.round_flops(c, query_width, share))
        size = float(ring_attention.round_bytes(c, query_width // queries_per_kv, element_bytes))
        compute, transfer = work / flops_per_s, size / link_bytes_per_s
        rows.append(Block(c, work, size, compute, transfer, transfer <= compute))
    given = {"queries_per_kv": queries_per_kv, "kv_element_bytes": element_bytes, "score_share": share}
    forward = float(ring_attention.ring_block_min(flops_per_s, link_bytes_per_s, **given))
    return BlockSizes(rows, forward, float(ring_attention.ring_block_min_backward(flops_per_s, link_bytes_per_s, **given)))


@dataclass(frozen=True)
class LayerTraffic:
    """Bytes that each rank sends in a layer's forward pass with a ring and with Ulysses, and the ratio of the two."""

    ring_bytes: float
    ulysses_bytes: float
    ring_over_ulysses: float


def layer_traffic(
    ranks: int, seq_len: int, *, query_width: int, queries_per_kv: int = 1, element_bytes: float = 2
) -> LayerTraffic:
    """Return what ring attention and Ulysses send for one layer.

    Parameters
    ----------
    ranks : int
        Ranks N, at least two. [-]
    seq_len : int
        Tokens of the sequence. [token]
    query_width : int
        Query heads times head size. [-]
    queries_per_kv : int, default 1
        Query heads a K/V head. [-]
    element_bytes : float, default 2
        Bytes of an element. [B]

    Returns
    -------
    LayerTraffic
        Bytes of both and their ratio.

    Raises
    ------
    UsageError
        If there is nothing to exchange.

    Examples
    --------
    >>> layer_traffic(8, 131072, query_width=4096)
    LayerTraffic(ring_bytes=1879048192.0, ulysses_bytes=469762048.0, ring_over_ulysses=4.0)
    """
    if ranks < 2 or min(seq_len, query_width, queries_per_kv, element_bytes) <= 0:
        raise UsageError("at least two ranks, and sizes > 0")
    c, kv_width = seq_len / ranks, query_width / queries_per_kv
    ring = float(ring_attention.ring_sent_bytes(ranks, c, kv_width, element_bytes))
    other = float(ulysses.ulysses_sent_bytes(ranks, c, query_width, kv_width, element_bytes))
    return LayerTraffic(ring, other, ring / other)


@dataclass(frozen=True)
class ExpertExchange:
    """Dispatch and combine of one mixture layer on one rank, forward, against its experts' products, uniform routing."""

    copies: int
    sent_bytes: float
    exchange_s: float
    expert_flops: float
    expert_s: float
    exchange_over_compute: float


def expert_exchange(
    ranks: int,
    tokens: int,
    top_k: int,
    *,
    hidden: int,
    expert_width: int,
    flops_per_s: float,
    link_bytes_per_s: float,
    matrices: int = 3,
    element_bytes: float = 2,
) -> ExpertExchange:
    """Return how long the all-to-alls of a mixture layer take beside its experts.

    Parameters
    ----------
    ranks : int
        Expert-parallel ranks. [-]
    tokens : int
        Tokens of one rank. [token]
    top_k : int
        Experts a token visits. [-]
    hidden, expert_width : int
        Width of a token's vector, and inner width of an expert. [-]
    flops_per_s : float
        Rate of the experts' products. [FLOP/s]
    link_bytes_per_s : float
        Bandwidth of one rank, one direction. [B/s]
    matrices : int, default 3
        Matrices of an expert: 3 gated, 2 plain. [-]
    element_bytes : float, default 2
        Bytes of an element, both ways. [B]

    Returns
    -------
    ExpertExchange
        Bytes, FLOPs, both times and their ratio.

    Raises
    ------
    UsageError
        If a size or rate is not positive.

    Examples
    --------
    >>> rates = {"flops_per_s": 989e12, "link_bytes_per_s": 50e9}
    >>> shown = expert_exchange(8, 8192, 2, hidden=4096, expert_width=14336, **rates)
    >>> shown.copies, shown.sent_bytes, round(shown.exchange_over_compute, 2)
    (16384, 234881024.0, 0.8)
    """
    if min(ranks, tokens, top_k, hidden, expert_width, flops_per_s, link_bytes_per_s, matrices, element_bytes) <= 0:
        raise UsageError("counts, sizes and rates must be > 0")
    sent = float(experts.exchange_sent_bytes(ranks, top_k, tokens, hidden, element_bytes, element_bytes))
    work = float(experts.expert_flops(top_k, tokens, hidden, expert_width, matrices))
    ratio = experts.exchange_to_compute(ranks, expert_width, flops_per_s, link_bytes_per_s, matrices, element_bytes)
    return ExpertExchange(top_k * tokens, sent, sent / link_bytes_per_s, work, work / flops_per_s, float(ratio))
