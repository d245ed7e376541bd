r"""Collectives: what each rank sends.

Symbols: N ranks of the group [-] · n bytes [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def all_gather_sent_bytes(ranks: ArrayLike, gathered_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends in an all-gather.

    Every shard of n / N passes N - 1 links, and each rank passes on all shards but one:

    $$ \frac{N - 1}{N} n $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    gathered_bytes : array_like
        Bytes n of the whole, gathered array. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank, the same as received. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Equal shards, ring or direct. The argument is the size after the gather: taking it for the size of a shard
    overstates the traffic N times.

    Examples
    --------
    1.6 GB gathered over 256 ranks [2]_:

    >>> float(all_gather_sent_bytes(256, 1.6e9))
    1593750000.0

    >>> all_gather_sent_bytes([1, 8], 800)
    array([  0., 700.])

    References
    ----------
    .. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
       (2009).
    .. [2] aliyun/SimAI issue 74 (the size of an all-gather read as the size of a shard).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("gathered_bytes", gathered_bytes, low=0)
    return (N - 1) / N * n


def reduce_scatter_sent_bytes(ranks: ArrayLike, full_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends in a reduce-scatter.

    An all-gather backwards: each partial sum of n / N passes N - 1 links:

    $$ \frac{N - 1}{N} n $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    full_bytes : array_like
        Bytes n of the array that each rank holds before. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank, the same as received. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Equal shards; sums travel in the type of the array.

    Examples
    --------
    >>> float(reduce_scatter_sent_bytes(4, 256))
    192.0

    >>> reduce_scatter_sent_bytes([1, 8], 800)
    array([  0., 700.])

    References
    ----------
    .. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
       (2009).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("full_bytes", full_bytes, low=0)
    return (N - 1) / N * n


def all_reduce_sent_bytes(ranks: ArrayLike, full_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends in an all-reduce.

    A reduce-scatter followed by an all-gather. Each of the two sends (N - 1)/N of the array:

    $$ 2 \frac{N - 1}{N} n $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    full_bytes : array_like
        Bytes n of the array that each rank holds. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank; over a tree, the mean of the ranks. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Ring. In a double binary tree each of two trees carries half the array up and down its N - 1 edges: the same mean,
    but a rank with two children sends 2 n. A switch that reduces needs less: `switch_all_reduce_sent_bytes`.

    Examples
    --------
    >>> float(all_reduce_sent_bytes(4, 256))
    384.0

    >>> all_reduce_sent_bytes([1, 2, 8], 800)
    array([   0.,  800., 1400.])

    References
    ----------
    .. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
       (2009).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("full_bytes", full_bytes, low=0)
    return 2 * (N - 1) / N * n


def all_to_all_sent_bytes(ranks: ArrayLike, held_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends in an all-to-all.

    Of N equal blocks one stays:

    $$ \frac{N - 1}{N} n $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    held_bytes : array_like
        Bytes n that each rank holds, its own block included. [B]

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
    Equal blocks; uneven ones are as slow as the rank that sends or receives most.

    Examples
    --------
    >>> float(all_to_all_sent_bytes(8, 2**20))
    917504.0

    >>> all_to_all_sent_bytes([1, 4], 100)
    array([ 0., 75.])

    References
    ----------
    .. [1] M. Snir et al., "MPI: The Complete Reference", section 4.10.
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("held_bytes", held_bytes, low=0)
    return (N - 1) / N * n


def broadcast_sent_bytes(ranks: ArrayLike, full_bytes: ArrayLike) -> Real:
    r"""Return the bytes that the busiest rank sends in a broadcast along a chain.

    Each rank but the last passes the whole array on, in pieces:

    $$ n\,[N > 1] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    full_bytes : array_like
        Bytes n that the root holds. [B]

    Returns
    -------
    float or ndarray
        Bytes sent by each rank but the last. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Chain with many pieces. A binary tree halves the steps' growth but its inner ranks send 2 n.

    Examples
    --------
    >>> float(broadcast_sent_bytes(8, 100))
    100.0

    >>> broadcast_sent_bytes([1, 2], 100)
    array([  0., 100.])

    References
    ----------
    .. [1] NVIDIA/nccl-tests, doc/PERFORMANCE.md (algorithm and bus bandwidth).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("full_bytes", full_bytes, low=0)
    return np.where(N > 1, n, 0.0)[()]


def switch_all_reduce_sent_bytes(ranks: ArrayLike, full_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank puts on its links when the switch reduces (NVLS).

    The switch reads every rank's copy of each slice and adds them, n per rank; the slice's owner then sends the sum once and the switch multiplies it:

    $$ \left(1 + \frac{1}{N}\right) n\,[N > 1] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    full_bytes : array_like
        Bytes n of the array that each rank holds. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank, the same as received. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Inside one domain of switches that can reduce. At large N this is half of a ring's 2 n; nccl-tests still
    multiplies by the ring's factor, so its bus bandwidth can exceed the link.

    Examples
    --------
    >>> float(switch_all_reduce_sent_bytes(8, 800))
    900.0

    >>> switch_all_reduce_sent_bytes([1, 2, 4], 800)
    array([   0., 1200., 1000.])

    References
    ----------
    .. [1] B. Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor Collectives",
       ISCA 2020.
    .. [2] NVIDIA/nccl, src/device/all_reduce.h (NVLS: each rank reduces and multicasts its own slice).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("full_bytes", full_bytes, low=0)
    return np.where(N > 1, (1 + 1 / N) * n, 0.0)[()]


def switch_all_gather_sent_bytes(ranks: ArrayLike, gathered_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends when the switch multiplies an all-gather (NVLS).

    Each rank stores its shard once to all:

    $$ \frac{n}{N}\,[N > 1] $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    gathered_bytes : array_like
        Bytes n of the whole, gathered array. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank; it still receives about n. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Receiving bounds the time, so only the sending side gains. A reduce-scatter is the mirror image: n read from each
    rank, n / N received.

    Examples
    --------
    >>> float(switch_all_gather_sent_bytes(8, 800))
    100.0

    >>> switch_all_gather_sent_bytes([1, 4], 800)
    array([  0., 200.])

    References
    ----------
    .. [1] NVIDIA/nccl, src/device/all_gather.h (NVLS).
    """
    N = _check.whole("ranks", ranks, low=1)
    n = _check.real("gathered_bytes", gathered_bytes, low=0)
    return np.where(N > 1, n / N, 0.0)[()]
