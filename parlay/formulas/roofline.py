r"""The roofline: what memory bandwidth leaves of a compute rate.

Symbols: F compute rate [FLOP/s] · H memory bandwidth [B/s] · i arithmetic intensity [FLOP/B] · w FLOPs [FLOP] · n bytes moved [B]
         m rows, k inner size, c columns of a product [-] · e bytes of an element [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def machine_balance(flops_per_s: ArrayLike, memory_bytes_per_s: ArrayLike) -> Real:
    r"""Return the arithmetic intensity at which compute and memory take equally long.

    Memory delivers H bytes while compute does F operations:

    $$ \frac{F}{H} $$

    Parameters
    ----------
    flops_per_s : array_like
        Peak or achieved compute rate. [FLOP/s]
    memory_bytes_per_s : array_like
        Peak or achieved memory bandwidth. [B/s]

    Returns
    -------
    float or ndarray
        Intensity of the ridge point. [FLOP/B]

    Raises
    ------
    FormulaDomainError
        If `flops_per_s` is not > 0, or `memory_bytes_per_s` is not > 0.

    Notes
    -----
    Take both for the same data type, dense. With achieved rates in place of peaks the ridge moves.

    Examples
    --------
    H200 in fp8: 1,979 TFLOP/s over 4.8 TB/s.

    >>> round(float(machine_balance(1979e12, 4.8e12)))
    412
    >>> machine_balance([1000e12, 2000e12], 4e12)
    array([250., 500.])

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52 (2009), section 3.
    """
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    H = _check.real("memory_bytes_per_s", memory_bytes_per_s, low=0, open_low=True)
    return F / H


def attainable_flops_per_s(flops_per_byte: ArrayLike, flops_per_s: ArrayLike, memory_bytes_per_s: ArrayLike) -> Real:
    r"""Return the rate that an operation of a given intensity can reach.

    Memory feeds i H operations a second, and compute does no more than F:

    $$ \min(F,\ i H) $$

    Parameters
    ----------
    flops_per_byte : array_like
        Arithmetic intensity: FLOPs per byte moved to and from memory. [FLOP/B]
    flops_per_s : array_like
        Peak or achieved compute rate. [FLOP/s]
    memory_bytes_per_s : array_like
        Peak or achieved memory bandwidth. [B/s]

    Returns
    -------
    float or ndarray
        Attainable rate. [FLOP/s]

    Raises
    ------
    FormulaDomainError
        If `flops_per_byte` is not >= 0, or `flops_per_s` is not > 0, or `memory_bytes_per_s` is not > 0.

    Notes
    -----
    An upper bound: no launch, no tail, perfect overlap of loads and arithmetic.

    Examples
    --------
    >>> attainable_flops_per_s([1, 100, 1000], 1e15, 4e12)
    array([4.e+12, 4.e+14, 1.e+15])
    >>> float(attainable_flops_per_s(0, 1e15, 4e12))
    0.0

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52 (2009), section 3.
    """
    i = _check.real("flops_per_byte", flops_per_byte, low=0)
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    H = _check.real("memory_bytes_per_s", memory_bytes_per_s, low=0, open_low=True)
    return np.minimum(F, i * H)


def roofline_s(flops: ArrayLike, moved_bytes: ArrayLike, flops_per_s: ArrayLike, memory_bytes_per_s: ArrayLike) -> Real:
    r"""Return the least time of an operation by its FLOPs and bytes.

    The slower of compute and memory, the other hidden behind it:

    $$ \max\!\left(\frac{w}{F},\ \frac{n}{H}\right) $$

    Parameters
    ----------
    flops : array_like
        FLOPs of the operation. [FLOP]
    moved_bytes : array_like
        Bytes that the operation moves to and from memory. [B]
    flops_per_s : array_like
        Peak or achieved compute rate. [FLOP/s]
    memory_bytes_per_s : array_like
        Peak or achieved memory bandwidth. [B/s]

    Returns
    -------
    float or ndarray
        Seconds. [s]

    Raises
    ------
    FormulaDomainError
        If `flops` is not >= 0, or `moved_bytes` is not >= 0, or `flops_per_s` is not > 0, or `memory_bytes_per_s` is
        not > 0.

    Notes
    -----
    As `attainable_flops_per_s`. With rates that kernels achieve by shape it is the estimate's own rule.

    Examples
    --------
    >>> float(roofline_s(2e12, 1e9, 1e15, 4e12))
    0.002
    >>> roofline_s(2e9, [1e9, 4e9], 1e15, 4e12)
    array([0.00025, 0.001  ])

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52 (2009), section 3.
    """
    w = _check.real("flops", flops, low=0)
    n = _check.real("moved_bytes", moved_bytes, low=0)
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    H = _check.real("memory_bytes_per_s", memory_bytes_per_s, low=0, open_low=True)
    return np.maximum(w / F, n / H)


def matmul_intensity(rows: ArrayLike, inner: ArrayLike, columns: ArrayLike, *, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the arithmetic intensity of one matrix product.

    2 m k c FLOPs over the two inputs read and the result written once:

    $$ \frac{2 m k c}{e\,(m k + k c + m c)} $$

    Parameters
    ----------
    rows : array_like
        Rows m: tokens. [-]
    inner : array_like
        Inner size k. [-]
    columns : array_like
        Columns c of the result. [-]
    element_bytes : array_like, default 2
        Bytes of one element of all three matrices. [B]

    Returns
    -------
    float or ndarray
        Intensity. [FLOP/B]

    Raises
    ------
    FormulaDomainError
        If `rows` is not >= 0, or `inner` is not > 0, or `columns` is not > 0, or `element_bytes` is not > 0.

    Notes
    -----
    Each matrix crosses the memory bus once. With few rows it tends to 2 m / e: the weights are all that is read.

    Examples
    --------
    >>> round(float(matmul_intensity(8192, 4096, 4096)))
    1638
    >>> matmul_intensity([1, 16], 4096, 4096).round(2).tolist()
    [1.0, 15.88]

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52 (2009), section 3.
    """
    m = _check.real("rows", rows, low=0)
    k = _check.real("inner", inner, low=0, open_low=True)
    c = _check.real("columns", columns, low=0, open_low=True)
    e = _check.real("element_bytes", element_bytes, low=0, open_low=True)
    return 2 * m * k * c / (e * (m * k + k * c + m * c))


def compute_bound_rows(flops_per_byte: ArrayLike, inner: ArrayLike, columns: ArrayLike, *, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the fewest rows at which a matrix product reaches a given intensity.

    Solving the intensity of an m x k by k x c product for m:

    $$ \frac{i e}{2 - i e \left(\frac{1}{k} + \frac{1}{c}\right)} $$

    Parameters
    ----------
    flops_per_byte : array_like
        Intensity to reach, usually `machine_balance`. [FLOP/B]
    inner : array_like
        Inner size k: the hidden width. [-]
    columns : array_like
        Columns c: the feed-forward width. [-]
    element_bytes : array_like, default 2
        Bytes of one element of all three matrices. [B]

    Returns
    -------
    float or ndarray
        Rows, not rounded; infinite where no number of rows suffices. [token]

    Raises
    ------
    FormulaDomainError
        If `flops_per_byte` is not >= 0, or `inner` is not > 0, or `columns` is not > 0, or `element_bytes` is not > 0.

    Notes
    -----
    No number of rows suffices where 1/k + 1/c >= 2/(i e): inputs and outputs alone keep the memory busy. In a mixture
    the rows are the tokens of one expert.

    Examples
    --------
    A hidden width of 4,096 and experts of 1,536 in fp8 at 400 FLOP/B [2]_:

    >>> round(float(compute_bound_rows(400, 4096, 1536, element_bytes=1)), 1)
    243.6
    >>> compute_bound_rows([100, 400], 512, 128, element_bytes=1).round(1).tolist()
    [97.7, inf]

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Communications of the ACM 52 (2009), section 3.
    .. [2] V. Elango et al., "LatentMoE", arXiv:2601.18089, section 2 (the condition for one matrix and one-byte
       elements).
    """
    i = _check.real("flops_per_byte", flops_per_byte, low=0)
    k = _check.real("inner", inner, low=0, open_low=True)
    c = _check.real("columns", columns, low=0, open_low=True)
    e = _check.real("element_bytes", element_bytes, low=0, open_low=True)
    left = 2 - i * e * (1 / k + 1 / c)
    return np.where(left > 0, i * e / np.where(left > 0, left, 1.0), np.inf)[()]
