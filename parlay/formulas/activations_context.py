r"""Buffers that context parallelism holds for a moment while attention runs over a split sequence.

Symbols: n tokens of the micro-batch on one rank [token] · c ranks of the ring [-] · a query, k key/value heads [-]
         d head size [-] · t tensor-parallel degree [-] · e bytes of one element [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def ring_forward_held(
    tokens: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    ring: ArrayLike,
    tensor: ArrayLike = 1,
    rank: ArrayLike = 0,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return what ring attention holds in the forward pass: every block it received and every step's output.

    $$ A = e \left( 2 d\, c\, n \max(k/t, 1) + \frac{a d}{t} n \left[ (r + 1) + \frac{c - 1 - r}{2} \right] \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens on one rank. [token]
    heads : array_like
        Query heads of the layer (after Ulysses, where both are used). [-]
    kv_heads : array_like
        Key/value heads. [-]
    head_dim : array_like
        Size of a head. [-]
    ring : array_like
        Ranks c of the ring. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    rank : array_like, default 0
        Rank r in the ring; the last one holds the most. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes held at the end of one layer's attention. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or a degree < 1.

    Notes
    -----
    TransformerEngine keeps all received blocks in a list until the loop ends; a textbook ring needs two blocks only. With
    the balanced causal order, steps after the rank's own compute half of the queries [1]_.

    Examples
    --------
    Llama-3.1 8B, 4096 tokens on each of 8 ranks, the last rank:

    >>> float(ring_forward_held(4096, 32, 8, 128, ring=8, rank=7) / 2**20)
    384.0

    References
    ----------
    .. [1] TransformerEngine, attention/dot_product_attention/context_parallel.py:1685-1717, 1980-2036.
    """
    n, a, k, d, c, t, e = _ring(tokens, heads, kv_heads, head_dim, ring, tensor, element_bytes)
    r = _check.real("rank", rank, low=0)
    own = np.minimum(r, c - 1)
    outputs = (own + 1) + (c - 1 - own) / 2
    return e * d * n * (2 * c * np.maximum(k / t, 1) + a / t * outputs)


def ring_backward_held(
    tokens: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    ring: ArrayLike,
    tensor: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return what ring attention holds in the backward pass: two double buffers of K, V, dK and dV, and dQ.

    $$ A = e d n \left( 8 \max(k/t, 1) + \frac{a}{t} \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens on one rank. [token]
    heads : array_like
        Query heads. [-]
    kv_heads : array_like
        Key/value heads. [-]
    head_dim : array_like
        Size of a head. [-]
    ring : array_like
        Ranks of the ring; 1 = no ring, no buffers. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes held during one layer's attention backward. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or a degree < 1.

    Notes
    -----
    Two buffers of (2, KV) for the data and their gradients, each K and V of a block: four KV pairs [1]_.

    Examples
    --------
    >>> float(ring_backward_held(4096, 32, 8, 128, ring=8) / 2**20)
    96.0

    References
    ----------
    .. [1] TransformerEngine, attention/dot_product_attention/context_parallel.py:2396-2401.
    """
    n, a, k, d, c, t, e = _ring(tokens, heads, kv_heads, head_dim, ring, tensor, element_bytes)
    held: Real = np.where(c > 1, e * d * n * (8 * np.maximum(k / t, 1) + a / t), 0.0 * e * n)[()]
    return held


def gathered_keys_values(
    tokens: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    *,
    ranks: ArrayLike,
    tensor: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the keys and values of the whole sequence that all-gather context parallelism holds for one layer.

    $$ A = e\, c\, n \max(k/t, 1) (d_{qk} + d_v) $$

    Parameters
    ----------
    tokens : array_like
        Tokens on one rank. [token]
    kv_heads : array_like
        Key/value heads. [-]
    qk_dim : array_like
        Size d_qk of a key head. [-]
    v_dim : array_like
        Size d_v of a value head. [-]
    ranks : array_like
        Context-parallel ranks c. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes held during one layer's attention. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or a degree < 1.

    Notes
    -----
    Only local q, k, v and output are kept; K and V are gathered again in the backward pass [1]_.

    Examples
    --------
    >>> float(gathered_keys_values(8192, 8, 128, 128, ranks=16, tensor=8) / 2**20)
    64.0

    References
    ----------
    .. [1] TransformerEngine, attention/dot_product_attention/context_parallel.py:3014-3640.
    """
    n = _check.real("tokens", tokens, low=0)
    k = _check.real("kv_heads", kv_heads, low=0)
    dk = _check.real("qk_dim", qk_dim, low=0)
    dv = _check.real("v_dim", v_dim, low=0)
    c = _check.real("ranks", ranks, low=1)
    t = _check.real("tensor", tensor, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    return e * c * n * np.maximum(k / t, 1) * (dk + dv)


def _ring(
    tokens: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    ring: ArrayLike,
    tensor: ArrayLike,
    element: ArrayLike,
) -> tuple[Real, ...]:
    return (
        _check.real("tokens", tokens, low=0),
        _check.real("heads", heads, low=0),
        _check.real("kv_heads", kv_heads, low=0),
        _check.real("head_dim", head_dim, low=0),
        _check.real("ring", ring, low=1),
        _check.real("tensor", tensor, low=1),
        _check.real("element_bytes", element, low=0),
    )
