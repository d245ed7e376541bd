r"""Context parallelism by gathering keys and values, and by Ulysses inside a ring.

Symbols: N ranks [-] · U of them in an inner Ulysses group, R in the ring outside [-] · c tokens per rank [token]
         q query heads x head size [-] · w K/V heads x head size [-] · k K/V heads [-] · e bytes per element [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def gathered_kv_sent_bytes(ranks: ArrayLike, block_tokens: ArrayLike, kv_width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes that each rank sends when keys and values are all-gathered.

    The gathered array is N c tokens of keys and values, of which a rank passes on N - 1 shards:

    $$ 2 (N - 1) c w e $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the context-parallel group. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank, layer and forward pass. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    As many as a ring sends, but before the attention starts: exposed. The backward gathers again and reduce-scatters
    the gradients, twice this.

    Examples
    --------
    >>> float(gathered_kv_sent_bytes(8, 8192, 1024))
    234881024.0

    >>> gathered_kv_sent_bytes([1, 16], 8192, 1024)
    array([0.0000000e+00, 5.0331648e+08])

    References
    ----------
    .. [1] Llama Team, "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2.
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.real("block_tokens", block_tokens, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 2 * (N - 1) * c * w * e


def gathered_kv_bytes(ranks: ArrayLike, block_tokens: ArrayLike, kv_width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes of the gathered keys and values.

    All N c tokens of both:

    $$ 2 N c w e $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the context-parallel group. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

    Returns
    -------
    float or ndarray
        Bytes on each rank, of one layer at a time. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Freed after the layer's attention and gathered again in the backward.

    Examples
    --------
    >>> float(gathered_kv_bytes(16, 8192, 1024))
    536870912.0

    >>> gathered_kv_bytes([1, 2], 4, 8)
    array([128., 256.])

    References
    ----------
    .. [1] Llama Team, "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2.
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.real("block_tokens", block_tokens, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 2 * N * c * w * e


def hybrid_sent_bytes(
    ulysses_ranks: ArrayLike,
    ring_ranks: ArrayLike,
    block_tokens: ArrayLike,
    query_width: ArrayLike,
    kv_width: ArrayLike,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes that each rank sends with Ulysses inside and a ring outside.

    The all-to-alls of U ranks, then a ring that passes on U c tokens of a U-th of the K/V heads:

    $$ \frac{U - 1}{U} c (2 q + 2 w) e + 2 (R - 1) c w e $$

    Parameters
    ----------
    ulysses_ranks : array_like
        Ranks U of an inner Ulysses group. [-]
    ring_ranks : array_like
        Ranks R of the ring outside. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    query_width : array_like
        Query heads times head size, a d. [-]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank, layer and forward pass. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    U at most the number of K/V heads. The ring's bytes do not depend on U: what U saves is rounds, and the all-to-
    alls stay inside a node.

    Examples
    --------
    32 ranks as 8 x 4:

    >>> float(hybrid_sent_bytes(8, 4, 8192, 4096, 1024))
    247463936.0

    >>> hybrid_sent_bytes([1, 8], [8, 1], 8192, 4096, 1024)
    array([2.34881024e+08, 1.46800640e+08])

    References
    ----------
    .. [1] J. Fang, S. Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI",
       arXiv:2405.07719.
    """
    U = _check.whole("ulysses_ranks", ulysses_ranks, low=1)
    R = _check.whole("ring_ranks", ring_ranks, low=1)
    c = _check.real("block_tokens", block_tokens, low=0)
    q = _check.real("query_width", query_width, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return (U - 1) / U * c * (2 * q + 2 * w) * e + 2 * (R - 1) * c * w * e


def outer_ring_ranks(ranks: ArrayLike, kv_heads: ArrayLike) -> Real:
    r"""Return the ring that has to go around Ulysses when K/V heads are not copied.

    Ulysses takes as many ranks as there are K/V heads, the ring the rest:

    $$ \left\lceil N / \min(N, k) \right\rceil $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the context-parallel group. [-]
    kv_heads : array_like
        Key/value heads k. [-]

    Returns
    -------
    float or ndarray
        Ranks of the ring. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Exact where one of N and k divides the other.

    Examples
    --------
    >>> float(outer_ring_ranks(16, 8))
    2.0

    >>> outer_ring_ranks([4, 32], 8)
    array([1., 4.])

    References
    ----------
    .. [1] J. Fang, S. Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI",
       arXiv:2405.07719.
    """
    N = _check.whole("ranks", ranks, low=1)
    k = _check.whole("kv_heads", kv_heads, low=1)
    return np.ceil(N / np.minimum(N, k))
