"""Ring attention: queries stay, K/V blocks travel, results merge; in the backward pass the gradients of a block travel with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.attention import Partial, attend, attend_backward, grouped, merge, nothing_yet
from parlay.simulate.collectives import ring_shift
from parlay.simulate.placement import Positions
from parlay.simulate.world import Array, World

KV_FORWARD, KV_BACKWARD, GRADIENTS = "ring K/V forward", "ring K/V backward", "ring dK/dV"


@dataclass(frozen=True)
class RingForward:
    """What each rank keeps of the forward pass: its result, and the K/V block that it held last (that of the next rank).

    `held_bytes` is the most that a rank held at one time: queries, output, the block in use and the one that arrives. [B]
    """

    results: list[Partial]
    last_k: list[Array]
    last_v: list[Array]
    held_bytes: list[int]


def ring_attention(
    world: World,
    q: Sequence[Array],
    k: Sequence[Array],
    v: Sequence[Array],
    positions: Sequence[Positions],
    *,
    causal: bool,
    kv_of_head: NDArray[np.int64] | None = None,
    ranks: Sequence[int] | None = None,
) -> RingForward:
    """Return the attention of every rank's queries over all keys.

    In round n rank r holds the block of rank r - n; it sends it on to rank r + 1 while it computes, but not in the last round.

    Parameters
    ----------
    world : World
        The ranks and their ledger.
    q, k, v : sequence of ndarray
        One array a rank, (heads, tokens, head size). [-]
    positions : sequence of ndarray
        The positions of each rank's tokens. [-]
    causal : bool
        Whether a query sees only its own position and those before.
    kv_of_head : ndarray, optional
        The K/V head of each query head; equal groups where it is left out. [-]
    ranks : sequence of int, optional
        The ranks of the ring, all where it is left out. [-]

    Returns
    -------
    RingForward
        One result a rank, and the block each rank held last.
    """
    group = world.everyone(ranks)
    N = len(group)
    heads = grouped(len(q[0]), len(k[0])) if kv_of_head is None else kv_of_head
    held_k, held_v = [x.copy() for x in k], [x.copy() for x in v]
    results, most = [nothing_yet(q[i], v[i].shape[-1]) for i in range(N)], [0] * N
    for n in range(N):
        for i in range(N):
            at, keys_at = positions[i], positions[(i - n) % N]
            results[i] = merge(results[i], attend(world, group[i], q[i], held_k[i], held_v[i], at, keys_at, heads, causal))
        arriving: list[list[Array]] = []
        if n < N - 1:
            arriving = [ring_shift(world, held, operation=KV_FORWARD, ranks=group) for held in (held_k, held_v)]
        for i in range(N):
            arrays = [q[i], results[i].output, held_k[i], held_v[i], *(block[i] for block in arriving)]
            most[i] = max(most[i], sum(array.nbytes for array in arrays))
        held_k, held_v = arriving or (held_k, held_v)
    return RingForward(results, held_k, held_v, most)


def ring_attention_backward(
    world: World,
    q: Sequence[Array],
    forward: RingForward,
    d_output: Sequence[Array],
    positions: Sequence[Positions],
    *,
    causal: bool,
    kv_of_head: NDArray[np.int64] | None = None,
    ranks: Sequence[int] | None = None,
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return the gradients of q, k and v on the ranks that own them.

    The ring turns the other way and starts from the blocks that the forward pass left (rank r holds that of rank r + 1), so that in
    round n rank r holds the block of rank r + 1 + n and in the last one its own: dK and dV arrive at home, after N - 1 sends each of
    K, V, dK and dV.
    """
    group = world.everyone(ranks)
    N = len(group)
    held_k, held_v = list(forward.last_k), list(forward.last_v)
    heads = grouped(len(q[0]), len(held_k[0])) if kv_of_head is None else kv_of_head
    d_q = [np.zeros_like(x) for x in q]
    d_k = [np.zeros_like(x) for x in held_k]
    d_v = [np.zeros_like(x) for x in held_v]
    for n in range(N):
        if n:
            held_k = ring_shift(world, held_k, operation=KV_BACKWARD, ranks=group, by=-1)
            held_v = ring_shift(world, held_v, operation=KV_BACKWARD, ranks=group, by=-1)
            d_k = ring_shift(world, d_k, operation=GRADIENTS, ranks=group, by=-1)
            d_v = ring_shift(world, d_v, operation=GRADIENTS, ranks=group, by=-1)
        for i in range(N):
            at, keys_at = positions[i], positions[(i + 1 + n) % N]
            block = (q[i], held_k[i], held_v[i], at, keys_at, heads, causal, forward.results[i], d_output[i])
            parts = attend_backward(world, group[i], *block)
            d_q[i], d_k[i], d_v[i] = d_q[i] + parts[0], d_k[i] + parts[1], d_v[i] + parts[2]
    return d_q, d_k, d_v
