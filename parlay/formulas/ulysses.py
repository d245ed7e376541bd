r"""Ulysses: an all-to-all turns shards of the sequence into shards of the heads, and another turns them back.

Symbols: N ranks [-] · c tokens per rank [token] · q query heads x head size [-] · w K/V heads x head size [-]
         e bytes per element [B] · x copies of each K/V head [-] · a query heads [-] · k K/V heads [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def ulysses_sent_bytes(
    ranks: ArrayLike,
    local_tokens: ArrayLike,
    query_width: ArrayLike,
    kv_width: ArrayLike,
    element_bytes: ArrayLike = 2,
    kv_copies: ArrayLike = 1,
) -> Real:
    r"""Return the bytes that each rank sends in the forward pass of one Ulysses layer.

    Queries, keys, values and the output each pass an all-to-all that keeps one N-th:

    $$ \frac{N - 1}{N} c (2 q + 2 x w) e $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the all-to-all. [-]
    local_tokens : array_like
        Tokens c of a rank before the exchange. [token]
    query_width : array_like
        Query heads times head size, a d. [-]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]
    kv_copies : array_like, default 1
        Copies of each K/V head, more than 1 where there are fewer heads than ranks. [-]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    The backward sends as much. Copied heads travel once per copy, and one rank of each set of copies keeps its own:
    exact for x = 1 and where copies go to other ranks as whole heads.

    Examples
    --------
    Llama-3-8B, 65,536 tokens over 8 ranks:

    >>> float(ulysses_sent_bytes(8, 8192, 4096, 1024))
    146800640.0

    Multi-head attention, 128k tokens over 8 ranks: 470 MB.

    >>> ulysses_sent_bytes([1, 8], 16384, 4096, 4096)
    array([0.00000000e+00, 4.69762048e+08])

    References
    ----------
    .. [1] S. A. Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509, section 3.2.
    .. [2] deepspeedai/DeepSpeed issue 6808 (ring against Ulysses).
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.real("local_tokens", local_tokens, low=0)
    q = _check.real("query_width", query_width, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    x = _check.real("kv_copies", kv_copies, low=1)
    return (N - 1) / N * c * (2 * q + 2 * x * w) * e


def kv_head_copies(ranks: ArrayLike, kv_heads: ArrayLike) -> Real:
    r"""Return how often Ulysses has to copy each K/V head.

    Every rank needs at least one head:

    $$ \max\left(1, \left\lceil N / k \right\rceil\right) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the all-to-all. [-]
    kv_heads : array_like
        Key/value heads k. [-]

    Returns
    -------
    float or ndarray
        Copies of each head. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Exact where one of N and k divides the other.

    Examples
    --------
    Two K/V heads over eight ranks:

    >>> float(kv_head_copies(8, 2))
    4.0

    >>> kv_head_copies(8, [1, 8, 32])
    array([8., 1., 1.])

    References
    ----------
    .. [1] S. A. Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509, section 3.2.
    .. [2] PrimeIntellect-ai/prime-rl pull request 3042.
    """
    N = _check.whole("ranks", ranks, low=1)
    k = _check.whole("kv_heads", kv_heads, low=1)
    return np.maximum(1.0, np.ceil(N / k))


def largest_degree(query_heads: ArrayLike, kv_heads: ArrayLike, kv_copies: ArrayLike = 1) -> Real:
    r"""Return the largest number of ranks that Ulysses can use.

    Each rank takes whole query heads and whole, perhaps copied, K/V heads:

    $$ \min(a, x k) $$

    Parameters
    ----------
    query_heads : array_like
        Query heads a. [-]
    kv_heads : array_like
        Key/value heads k. [-]
    kv_copies : array_like, default 1
        Copies of each K/V head that are allowed. [-]

    Returns
    -------
    float or ndarray
        Ranks. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    The number must also divide both. Beyond it, a ring over groups of Ulysses (USP).

    Examples
    --------
    32 query and 8 K/V heads:

    >>> float(largest_degree(32, 8))
    8.0

    >>> largest_degree(32, 8, [2, 8])
    array([16., 32.])

    References
    ----------
    .. [1] S. A. Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509, section 3.2.
    .. [2] J. Fang, S. Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI",
       arXiv:2405.07719.
    """
    a = _check.whole("query_heads", query_heads, low=1)
    k = _check.whole("kv_heads", kv_heads, low=1)
    x = _check.whole("kv_copies", kv_copies, low=1)
    return np.minimum(a, x * k)
