r"""Attention of one rank over the keys it holds now, its gradient, and the merge of results over disjoint key sets.

Shapes: q (heads, queries, d), k (K/V heads, keys, d), v (K/V heads, keys, d_v); `kv_of_head[i]` is the K/V head of query head i.
The FLOPs counted are those of the visible (query, key) pairs, as a kernel does them that skips what the mask hides:
2 d for each element of a product over d. Exponentials and sums are not counted (they are no matmuls).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.placement import Positions, visible
from parlay.simulate.world import Array, World

FORWARD, BACKWARD = "attention forward", "attention backward"


@dataclass(frozen=True)
class Partial:
    """Attention over some of the keys: the output, and the log of the sum of the exponentials of the scores."""

    output: Array
    log_sum_exp: Array


def grouped(heads: int, kv_heads: int) -> NDArray[np.int64]:
    """Return the K/V head of each query head: equal groups of neighbours."""
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into groups of {kv_heads} K/V heads")
    return np.arange(heads) // (heads // kv_heads)


def nothing_yet(q: Array, v_dim: int) -> Partial:
    """Return the attention over no keys at all, from which a merge starts."""
    return Partial(np.zeros((*q.shape[:2], v_dim)), np.full(q.shape[:2], -np.inf))


def merge(one: Partial, other: Partial) -> Partial:
    r"""Return the attention over the union of two disjoint key sets: outputs weighted by $e^{\mathrm{lse}_A - \mathrm{lse}}$."""
    lse = np.logaddexp(one.log_sum_exp, other.log_sum_exp)
    safe = np.where(np.isneginf(lse), 0.0, lse)  # no key seen by either: both weights are zero
    output = sum(np.exp(part.log_sum_exp - safe)[..., None] * part.output for part in (one, other))
    return Partial(np.asarray(output), lse)


def attend(
    world: World,
    rank: int,
    q: Array,
    k: Array,
    v: Array,
    at: Positions,
    keys_at: Positions,
    kv_of_head: NDArray[np.int64],
    causal: bool,
) -> Partial:
    """Return the attention of a rank's queries (at positions `at`) over one block of keys (at `keys_at`)."""
    seen = visible(at, keys_at, causal=causal)
    if not seen.any():
        return nothing_yet(q, v.shape[-1])
    scores = np.where(seen, q @ k[kv_of_head].swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    total = weights.sum(-1, keepdims=True)
    output = (weights / np.where(total == 0, 1.0, total)) @ v[kv_of_head]
    lse = np.full(total.shape, -np.inf)
    np.log(total, out=lse, where=total > 0)
    world.ledger.record_flops(FORWARD, rank, 2 * len(q) * int(seen.sum()) * (q.shape[-1] + v.shape[-1]))
    return Partial(output, (lse + np.where(total > 0, highest, 0.0))[..., 0])


def attend_backward(
    world: World,
    rank: int,
    q: Array,
    k: Array,
    v: Array,
    at: Positions,
    keys_at: Positions,
    kv_of_head: NDArray[np.int64],
    causal: bool,
    result: Partial,
    d_output: Array,
) -> tuple[Array, Array, Array]:
    """Return the gradients of q, k and v from one block of keys, given the merged result over all keys.

    Five products: the scores again, dV, dP, dQ and dK.
    """
    seen = visible(at, keys_at, causal=causal)
    if not seen.any():
        return np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = 1 / np.sqrt(q.shape[-1])
    keys, values = k[kv_of_head], v[kv_of_head]
    p = np.where(seen, np.exp(np.where(seen, q @ keys.swapaxes(-1, -2) * scale - result.log_sum_exp[..., None], 0.0)), 0.0)
    along = (d_output * result.output).sum(-1, keepdims=True)
    d_scores = p * (d_output @ values.swapaxes(-1, -2) - along) * scale
    d_k, d_v = np.zeros_like(k), np.zeros_like(v)
    np.add.at(d_k, kv_of_head, d_scores.swapaxes(-1, -2) @ q)
    np.add.at(d_v, kv_of_head, p.swapaxes(-1, -2) @ d_output)
    world.ledger.record_flops(BACKWARD, rank, 2 * len(q) * int(seen.sum()) * (3 * q.shape[-1] + 2 * v.shape[-1]))
    return d_scores @ keys, d_k, d_v
