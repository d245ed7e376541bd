"""The same computations on one rank, nothing cut and nothing merged: what the sharded ones have to equal.

They are written from the definitions, not from the code that they check: attention forms the whole score matrix, and its gradient
goes through the derivative of the softmax.
"""

from __future__ import annotations

import numpy as np

from parlay.simulate.world import Array


def softmax(scores: Array) -> Array:
    """Return the softmax over the last axis."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    """Return softmax(q k^T / sqrt(d)) v for tokens in order; groups of query heads share a K/V head."""
    return _probabilities(q, k, causal=causal) @ np.repeat(v, len(q) // len(v), axis=0)


def attention_backward(q: Array, k: Array, v: Array, d_output: Array, *, causal: bool) -> tuple[Array, Array, Array]:
    """Return the gradients of q, k and v."""
    group = len(q) // len(k)
    p = _probabilities(q, k, causal=causal)
    d_p = d_output @ np.repeat(v, group, axis=0).swapaxes(-1, -2)
    d_scores = p * d_p - p * (p * d_p).sum(-1, keepdims=True)
    root = np.sqrt(q.shape[-1])
    d_q = d_scores @ np.repeat(k, group, axis=0) / root
    d_k = d_scores.swapaxes(-1, -2) @ q / root
    d_v = p.swapaxes(-1, -2) @ d_output
    return d_q, _over_groups(d_k, group), _over_groups(d_v, group)


def _probabilities(q: Array, k: Array, *, causal: bool) -> Array:
    scores = q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return softmax(scores)


def _over_groups(gradient: Array, group: int) -> Array:
    return np.asarray(gradient.reshape(-1, group, *gradient.shape[1:]).sum(1))
