r"""Causal ring attention: which share of the work each rank has in each round, by where the tokens lie.

Symbols: N ranks of the ring [-] · c tokens of a rank [token] · r a rank, from 0 [-] · j a round, from 0 [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def contiguous_round_pairs(ranks: ArrayLike, rank: ArrayLike, round_index: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the visible (query, key) pairs of one rank and round, one run of tokens a rank.

    The own block is a triangle, an earlier one is seen whole, a later one not at all:

    $$ \tfrac12 c(c + 1)\,[j = 0] + c^2\,[0 < j \le r] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    rank : array_like
        Rank r, from 0, counted round the ring. [-]
    round_index : array_like
        Round j, from 0, the rank's own block. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Pairs. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask; the block of round j is that of rank r - j, counted round the ring.

    Examples
    --------
    Round 1 of four ranks with two tokens each: rank 0 has nothing to do.

    >>> contiguous_round_pairs(4, [0, 1, 2, 3], 1, 2)
    array([0., 4., 4., 4.])

    >>> float(contiguous_round_pairs(4, 3, 0, 2))
    3.0

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    N = _check.whole("ranks", ranks, low=1)
    r = _check.whole("rank", rank, low=0)
    j = _check.whole("round_index", round_index, low=0)
    c = _check.whole("block_tokens", block_tokens, low=1)
    r, j = r % N, j % N
    return np.where(j == 0, c * (c + 1) / 2, np.where(j <= r, c * c, 0.0))[()]


def zigzag_round_pairs(ranks: ArrayLike, rank: ArrayLike, round_index: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the visible (query, key) pairs of one rank and round, chunks r and 2 N - 1 - r of 2 N a rank.

    Own block: two triangles of c / 2 and the square between them. Another rank's block is seen by half: its early chunk by
    both of ours if it comes before us, else both of its chunks by our late one:

    $$ \left(\tfrac12 c^2 + \tfrac12 c\right)[j = 0] + \tfrac12 c^2\,[j > 0] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    rank : array_like
        Rank r, from 0, counted round the ring. [-]
    round_index : array_like
        Round j, from 0, the rank's own block. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Pairs, the same for all ranks. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask; the block of round j is that of rank r - j, counted round the ring. An even c; an odd one has chunks
    of two sizes, and ranks differ by a few pairs.

    Examples
    --------
    The lesson's 3, 2, 2, 2:

    >>> zigzag_round_pairs(4, 0, [0, 1, 2, 3], 2)
    array([3., 2., 2., 2.])

    >>> float(zigzag_round_pairs(4, 2, 0, 4))
    10.0

    References
    ----------
    .. [1] zhuzilin/ring-flash-attention, README and issue 2 (zig-zag placement).
    """
    N = _check.whole("ranks", ranks, low=1)
    r = _check.whole("rank", rank, low=0)
    j = _check.whole("round_index", round_index, low=0)
    c = _check.whole("block_tokens", block_tokens, low=1)
    j = j % N
    return (c * c + np.where(j == 0, c, 0.0)) / 2 + 0 * r  # all ranks alike


def striped_round_pairs(ranks: ArrayLike, rank: ArrayLike, round_index: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the visible (query, key) pairs of one rank and round, every N-th token a rank.

    Query i of rank r sees keys 0 to i of an earlier rank and 0 to i - 1 of a later one:

    $$ \tfrac12 c(c + 1)\,[j \le r] + \tfrac12 c(c - 1)\,[j > r] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    rank : array_like
        Rank r, from 0, counted round the ring. [-]
    round_index : array_like
        Round j, from 0, the rank's own block. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Pairs. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask; the block of round j is that of rank r - j, counted round the ring.

    Examples
    --------
    >>> striped_round_pairs(4, [0, 1, 2, 3], 1, 2)
    array([1., 3., 3., 3.])

    >>> float(striped_round_pairs(4, 3, 0, 2))
    3.0

    References
    ----------
    .. [1] W. Brandon et al., "Striped Attention", arXiv:2311.09431.
    """
    N = _check.whole("ranks", ranks, low=1)
    r = _check.whole("rank", rank, low=0)
    j = _check.whole("round_index", round_index, low=0)
    c = _check.whole("block_tokens", block_tokens, low=1)
    r, j = r % N, j % N
    return c * (c + np.where(j <= r, 1.0, -1.0)) / 2


def contiguous_ring_pairs(ranks: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the pairs on the critical path of a contiguous causal ring.

    All wait for the slowest in each round: a triangle first, then N - 1 whole blocks of the last rank:

    $$ \tfrac12 c(c + 1) + (N - 1) c^2 $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Sum of the rounds' largest counts. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask, transfers hidden.

    Examples
    --------
    3 + 4 + 4 + 4:

    >>> float(contiguous_ring_pairs(4, 2))
    15.0

    >>> contiguous_ring_pairs([1, 8], 4)
    array([ 10., 122.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.whole("block_tokens", block_tokens, low=1)
    return c * (c + 1) / 2 + (N - 1) * c * c


def zigzag_ring_pairs(ranks: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the pairs on the critical path of a zig-zag causal ring.

    All ranks have equal work in each round:

    $$ \tfrac12 c(c + 1) + (N - 1) \tfrac12 c^2 $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Sum of the rounds' largest counts, also the work of every rank. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask, transfers hidden, even c.

    Examples
    --------
    3 + 2 + 2 + 2:

    >>> float(zigzag_ring_pairs(4, 2))
    9.0

    >>> zigzag_ring_pairs([1, 8], 4)
    array([10., 66.])

    References
    ----------
    .. [1] zhuzilin/ring-flash-attention, README and issue 2 (zig-zag placement).
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.whole("block_tokens", block_tokens, low=1)
    return c * (c + 1) / 2 + (N - 1) * c * c / 2


def striped_ring_pairs(ranks: ArrayLike, block_tokens: ArrayLike) -> Real:
    r"""Return the pairs on the critical path of a striped causal ring.

    In every round some rank, the last, meets an earlier one:

    $$ \tfrac12 N c(c + 1) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]

    Returns
    -------
    float or ndarray
        Sum of the rounds' largest counts. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Causal mask, transfers hidden.

    Examples
    --------
    Four times 3:

    >>> float(striped_ring_pairs(4, 2))
    12.0

    >>> striped_ring_pairs([1, 8], 4)
    array([10., 80.])

    References
    ----------
    .. [1] W. Brandon et al., "Striped Attention", arXiv:2311.09431.
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.whole("block_tokens", block_tokens, low=1)
    return N * c * (c + 1) / 2


def contiguous_busy_share(ranks: ArrayLike) -> Real:
    r"""Return the share of time in which ranks of a contiguous causal ring compute, for long blocks.

    Half of all pairs are visible, N / 2 block times a rank, while the ring takes the last rank's N - 1/2:

    $$ \frac{N / 2}{N - 1/2} $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]

    Returns
    -------
    float or ndarray
        Mean busy share; its inverse is the speedup of a balanced placement. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Blocks of many tokens, transfers hidden.

    Examples
    --------
    Four ranks: 0.57.

    >>> float(contiguous_busy_share(4).round(4))
    0.5714

    >>> contiguous_busy_share([1, 2])
    array([1.        , 0.66666667])

    References
    ----------
    .. [1] W. Brandon et al., "Striped Attention", arXiv:2311.09431.
    """
    N = _check.whole("ranks", ranks, low=1)
    return N / (2 * N - 1)
