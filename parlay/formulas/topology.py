r"""Where the ranks of a group lie, from the order of the axes.

Symbols: q members of a group [-] · s stride between them [-] · D consecutive ranks of a domain [-] · r a rank, from 0 [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def coordinate(rank: ArrayLike, stride: ArrayLike, size: ArrayLike) -> Real:
    r"""Return the place of a rank in its group along one axis.

    Ranks count through the inner axes first:

    $$ \left\lfloor \frac{r}{s} \right\rfloor \bmod q $$

    Parameters
    ----------
    rank : array_like
        Rank r, from 0. [-]
    stride : array_like
        Ranks s from one member to the next: the product of the axes inside. [-]
    size : array_like
        Ranks q of a group. [-]

    Returns
    -------
    float or ndarray
        Place, from 0. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range.

    Notes
    -----
    Axis order inner to outer, the product of all sizes is the number of ranks.

    Examples
    --------
    tp 8, then cp 2: rank 13 is tp 5 of cp 1:

    >>> float(coordinate(13, 8, 2))
    1.0

    >>> coordinate([0, 7, 8, 16], 8, 2)
    array([0., 0., 1., 0.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; NVIDIA/Megatron-LM,
       megatron/core/parallel_state.py (RankGenerator).
    """
    r = _check.whole("rank", rank, low=0)
    s = _check.whole("stride", stride, low=1)
    q = _check.whole("size", size, low=1)
    return np.floor(r / s) % q


def first_member(rank: ArrayLike, stride: ArrayLike, size: ArrayLike) -> Real:
    r"""Return the lowest rank of the group that a rank belongs to along one axis.

    Step back by the place times the stride:

    $$ r - s \left(\left\lfloor \frac{r}{s} \right\rfloor \bmod q\right) $$

    Parameters
    ----------
    rank : array_like
        Rank r, from 0. [-]
    stride : array_like
        Ranks s from one member to the next: the product of the axes inside. [-]
    size : array_like
        Ranks q of a group. [-]

    Returns
    -------
    float or ndarray
        Rank, from 0. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range.

    Notes
    -----
    The members follow at the stride.

    Examples
    --------
    >>> float(first_member(13, 8, 2))
    5.0

    >>> first_member([0, 7, 8, 16], 8, 2)
    array([ 0.,  7.,  0., 16.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; NVIDIA/Megatron-LM,
       megatron/core/parallel_state.py (RankGenerator).
    """
    r = _check.whole("rank", rank, low=0)
    s = _check.whole("stride", stride, low=1)
    q = _check.whole("size", size, low=1)
    return r - s * (np.floor(r / s) % q)


def ranks_in_domain(size: ArrayLike, stride: ArrayLike, domain: ArrayLike) -> Real:
    r"""Return how many members of a group lie in one domain.

    A domain of D consecutive ranks has room for D / s members at stride s:

    $$ \min\left(q,\ \max\left(1, \left\lfloor \frac{D}{s} \right\rfloor\right)\right) $$

    Parameters
    ----------
    size : array_like
        Ranks q of a group. [-]
    stride : array_like
        Ranks s from one member to the next: the product of the axes inside. [-]
    domain : array_like
        Ranks D that share a scale-up domain. [-]

    Returns
    -------
    float or ndarray
        Members of the group in one domain. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range.

    Notes
    -----
    Exact where each of s, q s and D divides the next larger, as powers of two do; else domains hold different numbers
    and this is the fewest that one in the middle of a group holds.

    Examples
    --------
    Nodes of eight: tp 8 is inside, data parallelism over tp 2 has four members a node, over tp 8 one:

    >>> ranks_in_domain([8, 16, 16], [1, 2, 8], 8)
    array([8., 4., 1.])

    >>> float(ranks_in_domain(64, 1, 72))
    64.0

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; NVIDIA/Megatron-LM,
       megatron/core/parallel_state.py (RankGenerator).
    .. [2] cli99/llm-analysis issue 27 (the stride, not the size of a group, decides its link).
    """
    q = _check.whole("size", size, low=1)
    s = _check.whole("stride", stride, low=1)
    D = _check.whole("domain", domain, low=1)
    return np.minimum(q, np.maximum(1.0, np.floor(D / s)))


def domains_spanned(size: ArrayLike, stride: ArrayLike, domain: ArrayLike) -> Real:
    r"""Return over how many domains a group spreads.

    Its members over those of one domain:

    $$ \left\lceil q / \min(q, \max(1, \lfloor D / s \rfloor)) \right\rceil $$

    Parameters
    ----------
    size : array_like
        Ranks q of a group. [-]
    stride : array_like
        Ranks s from one member to the next: the product of the axes inside. [-]
    domain : array_like
        Ranks D that share a scale-up domain. [-]

    Returns
    -------
    float or ndarray
        Domains. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range.

    Notes
    -----
    As `ranks_in_domain`.

    Examples
    --------
    >>> float(domains_spanned(16, 2, 8))
    4.0

    >>> domains_spanned([8, 16], [1, 8], 8)
    array([ 1., 16.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; NVIDIA/Megatron-LM,
       megatron/core/parallel_state.py (RankGenerator).
    """
    q = _check.whole("size", size, low=1)
    s = _check.whole("stride", stride, low=1)
    D = _check.whole("domain", domain, low=1)
    return np.ceil(q / np.minimum(q, np.maximum(1.0, np.floor(D / s))))
