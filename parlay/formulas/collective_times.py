r"""Collectives: steps, bus bandwidth and time on links of one kind.

Symbols: N ranks of the group [-] · n bytes that a rank sends [B] · W one-way rate [B/s] · alpha latency of a step [s]
         k steps [-] · algbw array size over time [B/s] · busbw what a link carries [B/s]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def ring_all_gather_steps(ranks: ArrayLike) -> Real:
    r"""Return the steps of a ring all-gather or reduce-scatter.

    A shard needs N - 1 hops to reach every rank:

    $$ N - 1 $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]

    Returns
    -------
    float or ndarray
        Steps one after the other. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    A pairwise all-to-all takes as many exchanges, but they do not wait for each other.

    Examples
    --------
    >>> float(ring_all_gather_steps(8))
    7.0

    >>> ring_all_gather_steps([1, 64])
    array([ 0., 63.])

    References
    ----------
    .. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
       (2009).
    """
    N = _check.whole("ranks", ranks, low=1)
    return N - 1


def ring_all_reduce_steps(ranks: ArrayLike) -> Real:
    r"""Return the steps of a ring all-reduce.

    N - 1 steps of the reduce-scatter and N - 1 of the all-gather:

    $$ 2(N - 1) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]

    Returns
    -------
    float or ndarray
        Steps one after the other. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Latency grows with the ranks: trees take over for small arrays.

    Examples
    --------
    >>> float(ring_all_reduce_steps(8))
    14.0

    >>> ring_all_reduce_steps([1, 64])
    array([  0., 126.])

    References
    ----------
    .. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
       (2009).
    """
    N = _check.whole("ranks", ranks, low=1)
    return 2 * (N - 1)


def tree_all_reduce_steps(ranks: ArrayLike) -> Real:
    r"""Return the steps of an all-reduce along a balanced binary tree.

    Up to the root and down again:

    $$ 2 \lceil \log_2 N \rceil $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]

    Returns
    -------
    float or ndarray
        Steps one after the other. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Pieces follow each other, so the steps cost latency only. NCCL's trees span nodes and use a chain inside each.

    Examples
    --------
    >>> float(tree_all_reduce_steps(64))
    12.0

    >>> tree_all_reduce_steps([1, 2, 5, 8])
    array([0., 2., 6., 6.])

    References
    ----------
    .. [1] P. Sanders et al., "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
       Computing 35 (2009).
    """
    N = _check.whole("ranks", ranks, low=1)
    return 2 * np.ceil(np.log2(N))


def gather_bus_bytes_per_s(ranks: ArrayLike, algorithm_bytes_per_s: ArrayLike) -> Real:
    r"""Return the bus bandwidth of an all-gather, reduce-scatter or all-to-all.

    A link carries (N - 1)/N of the array in the time that the algorithm bandwidth divides the whole by:

    $$ \mathrm{busbw} = \frac{N - 1}{N}\,\mathrm{algbw} $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    algorithm_bytes_per_s : array_like
        Array size over time, as algbw is printed. [B/s]

    Returns
    -------
    float or ndarray
        Bus bandwidth. [B/s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    The size is that of the whole array, as in nccl-tests.

    Examples
    --------
    >>> float(gather_bus_bytes_per_s(8, 400e9))
    350000000000.0

    >>> gather_bus_bytes_per_s([2, 4], 100.0)
    array([50., 75.])

    References
    ----------
    .. [1] NVIDIA/nccl-tests, doc/PERFORMANCE.md (algorithm and bus bandwidth).
    """
    N = _check.whole("ranks", ranks, low=1)
    w = _check.real("algorithm_bytes_per_s", algorithm_bytes_per_s, low=0)
    return (N - 1) / N * w


def all_reduce_bus_bytes_per_s(ranks: ArrayLike, algorithm_bytes_per_s: ArrayLike) -> Real:
    r"""Return the bus bandwidth of an all-reduce.

    A link of a ring carries the array almost twice:

    $$ \mathrm{busbw} = 2\frac{N - 1}{N}\,\mathrm{algbw} $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the group. [-]
    algorithm_bytes_per_s : array_like
        Array size over time, as algbw is printed. [B/s]

    Returns
    -------
    float or ndarray
        Bus bandwidth. [B/s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    With a reducing switch the same factor is printed although fewer bytes move.

    Examples
    --------
    >>> float(all_reduce_bus_bytes_per_s(8, 200e9))
    350000000000.0

    >>> all_reduce_bus_bytes_per_s([2, 4], 100.0)
    array([100., 150.])

    References
    ----------
    .. [1] NVIDIA/nccl-tests, doc/PERFORMANCE.md (algorithm and bus bandwidth).
    """
    N = _check.whole("ranks", ranks, low=1)
    w = _check.real("algorithm_bytes_per_s", algorithm_bytes_per_s, low=0)
    return 2 * (N - 1) / N * w


def transfer_s(sent_bytes: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike, steps: ArrayLike = 1) -> Real:
    r"""Return the time of a transfer or collective from its bytes and its steps.

    Latency once a step, and the bytes at the achieved rate:

    $$ k\,\alpha + \frac{n}{W} $$

    Parameters
    ----------
    sent_bytes : array_like
        Bytes n that a rank sends. [B]
    bytes_per_s : array_like
        One-way rate that a rank reaches at this size. [B/s]
    latency_s : array_like
        Time of a step of no bytes. [s]
    steps : array_like, default 1
        Steps k one after the other; 1 for a point-to-point transfer. [-]

    Returns
    -------
    float or ndarray
        Time. [s]

    Raises
    ------
    FormulaDomainError
        If the rate is not > 0, `steps` is no whole number or another argument is negative.

    Notes
    -----
    The Hockney model. The achieved rate itself depends on the size, which the caller's rate has to reflect.

    Examples
    --------
    >>> float(transfer_s(450e6, 450e9, 5e-6))
    0.001005

    >>> transfer_s(0, 50e9, 5e-6, [1, 14])
    array([5.e-06, 7.e-05])

    References
    ----------
    .. [1] R. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
    """
    n = _check.real("sent_bytes", sent_bytes, low=0)
    W = _check.real("bytes_per_s", bytes_per_s, low=0, open_low=True)
    a = _check.real("latency_s", latency_s, low=0)
    k = _check.whole("steps", steps, low=0)
    return k * a + n / W
