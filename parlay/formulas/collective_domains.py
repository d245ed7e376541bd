r"""Collectives of a group that spans domains: what crosses, and how long it takes over both kinds of link.

Symbols: N ranks of the group [-] · g of them in one domain (a node, or a rack with one switch fabric) [-] · n bytes [B]
         W one-way rate inside the domain [B/s] · V one-way rate of the network per rank [B/s]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def remote_share(ranks: ArrayLike, local_ranks: ArrayLike) -> Real:
    r"""Return the share of a rank's peers, itself included, that lie outside its domain.

    Uniform blocks go to N ranks, of which g are near:

    $$ \frac{N - \min(g, N)}{N} $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    local_ranks : array_like
        Ranks g of the group in one domain; more than N counts as N. [-]

    Returns
    -------
    float or ndarray
        Share of an all-to-all's held bytes that crosses domains. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Equal blocks.

    Examples
    --------
    Two nodes of eight:

    >>> float(remote_share(16, 8))
    0.5

    >>> remote_share([8, 64], 8)
    array([0.   , 0.875])

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 3.2.2.
    """
    N = _check.whole("ranks", ranks, low=1)
    g = _check.whole("local_ranks", local_ranks, low=1)
    return (N - np.minimum(g, N)) / N


def spanning_all_to_all_s(
    ranks: ArrayLike, local_ranks: ArrayLike, held_bytes: ArrayLike, domain_bytes_per_s: ArrayLike, nic_bytes_per_s: ArrayLike
) -> Real:
    r"""Return the time of an all-to-all over several domains.

    Near and far blocks use different links at the same time, and the slower decides:

    $$ \max\left(\frac{g - 1}{N}\frac{n}{W},\ \frac{N - g}{N}\frac{n}{V}\right) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    local_ranks : array_like
        Ranks g of the group in one domain; more than N counts as N. [-]
    held_bytes : array_like
        Bytes n that each rank holds, its own block included. [B]
    domain_bytes_per_s : array_like
        One-way rate of a rank inside the domain. [B/s]
    nic_bytes_per_s : array_like
        One-way rate of the network per rank, its share of the NICs. [B/s]

    Returns
    -------
    float or ndarray
        Time without latency. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number >= 1, a rate not > 0, or the bytes negative.

    Notes
    -----
    Each rank sends through its own share of the NICs: an all-to-all cannot borrow idle ones.

    Examples
    --------
    >>> float(spanning_all_to_all_s(16, 8, 16e6, 400e9, 50e9))
    0.00016

    >>> spanning_all_to_all_s([8, 32], 8, 32e6, 400e9, 50e9)
    array([7.0e-05, 4.8e-04])

    References
    ----------
    .. [1] NVIDIA/nccl-tests issue 267 (an all-to-all does not aggregate NICs).
    """
    N = _check.whole("ranks", ranks, low=1)
    g = _check.whole("local_ranks", local_ranks, low=1)
    n = _check.real("held_bytes", held_bytes, low=0)
    W = _check.real("domain_bytes_per_s", domain_bytes_per_s, low=0, open_low=True)
    V = _check.real("nic_bytes_per_s", nic_bytes_per_s, low=0, open_low=True)
    g = np.minimum(g, N)
    return np.maximum((g - 1) / N * n / W, (N - g) / N * n / V)


def hierarchical_all_gather_s(
    ranks: ArrayLike, local_ranks: ArrayLike, gathered_bytes: ArrayLike, domain_bytes_per_s: ArrayLike, nic_bytes_per_s: ArrayLike
) -> Real:
    r"""Return the time of an all-gather done first across domains and then inside each.

    Each rank gathers from its peers in the N / g domains n / g bytes, less its own n / N; then the g ranks of a domain exchange what each has:

    $$ \left(\frac{1}{g} - \frac{1}{N}\right)\frac{n}{V} + \frac{g - 1}{g}\frac{n}{W} $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    local_ranks : array_like
        Ranks g of the group in one domain; more than N counts as N. [-]
    gathered_bytes : array_like
        Bytes n of the whole, gathered array. [B]
    domain_bytes_per_s : array_like
        One-way rate of a rank inside the domain. [B/s]
    nic_bytes_per_s : array_like
        One-way rate of the network per rank, its share of the NICs. [B/s]

    Returns
    -------
    float or ndarray
        Time of both parts, one after the other, without latency. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number >= 1, a rate not > 0, or the bytes negative.

    Notes
    -----
    Equal numbers of ranks in each domain. All g NICs of a domain work, which a group with one rank per domain cannot
    do. A reduce-scatter takes the same time, an all-reduce twice. Pieces let the parts overlap:
    `spanning_all_gather_s`.

    Examples
    --------
    >>> float(hierarchical_all_gather_s(16, 8, 32e9, 400e9, 50e9).round(3))
    0.11

    >>> hierarchical_all_gather_s(16, [1, 8, 16], 16e9, 400e9, 50e9)
    array([0.3   , 0.055 , 0.0375])

    References
    ----------
    .. [1] E. Chan et al., "Collective communication: theory, practice, and experience", Concurrency and Computation
       19 (2007).
    """
    N = _check.whole("ranks", ranks, low=1)
    g = _check.whole("local_ranks", local_ranks, low=1)
    n = _check.real("gathered_bytes", gathered_bytes, low=0)
    W = _check.real("domain_bytes_per_s", domain_bytes_per_s, low=0, open_low=True)
    V = _check.real("nic_bytes_per_s", nic_bytes_per_s, low=0, open_low=True)
    g = np.minimum(g, N)
    return (1 / g - 1 / N) * n / V + (g - 1) / g * n / W


def spanning_all_gather_s(
    ranks: ArrayLike, local_ranks: ArrayLike, gathered_bytes: ArrayLike, domain_bytes_per_s: ArrayLike, nic_bytes_per_s: ArrayLike
) -> Real:
    r"""Return the time of an all-gather over several domains when both kinds of link work at once.

    Rings enter and leave a domain through all of its g NICs. A domain receives the (N - g)/N of the array that it lacks, and inside each rank receives (N - 1)/N:

    $$ \max\left(\frac{N - 1}{N}\frac{n}{W},\ \frac{N - g}{N g}\frac{n}{V}\right) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    local_ranks : array_like
        Ranks g of the group in one domain; more than N counts as N. [-]
    gathered_bytes : array_like
        Bytes n of the whole, gathered array. [B]
    domain_bytes_per_s : array_like
        One-way rate of a rank inside the domain. [B/s]
    nic_bytes_per_s : array_like
        One-way rate of the network per rank, its share of the NICs. [B/s]

    Returns
    -------
    float or ndarray
        Time without latency. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number >= 1, a rate not > 0, or the bytes negative.

    Notes
    -----
    Equal numbers of ranks in each domain and at least g rings. A lower bound of the hierarchical time's far part; a
    reduce-scatter takes the same, an all-reduce twice.

    Examples
    --------
    >>> float(spanning_all_gather_s(16, 8, 16e9, 400e9, 50e9))
    0.0375

    >>> spanning_all_gather_s(16, [1, 8, 16], 16e9, 400e9, 50e9)
    array([0.3   , 0.0375, 0.0375])

    References
    ----------
    .. [1] NVIDIA/nccl, src/graph/search.cc (channels over each NIC).
    """
    N = _check.whole("ranks", ranks, low=1)
    g = _check.whole("local_ranks", local_ranks, low=1)
    n = _check.real("gathered_bytes", gathered_bytes, low=0)
    W = _check.real("domain_bytes_per_s", domain_bytes_per_s, low=0, open_low=True)
    V = _check.real("nic_bytes_per_s", nic_bytes_per_s, low=0, open_low=True)
    g = np.minimum(g, N)
    return np.maximum((N - 1) / N * n / W, (N - g) / (N * g) * n / V)
