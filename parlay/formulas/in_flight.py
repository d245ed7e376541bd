r"""Micro-batches in flight: how many a stage holds at once under each pipeline schedule, for equal stages.

Symbols: p stages [-] · v chunks (virtual stages) per stage [-] · m micro-batches per step [-] · r stage, from 0 [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def one_f_one_b_in_flight(stages: ArrayLike, stage: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the micro-batches whose activations a stage holds under 1F1B, ZB-H1 or synchronous PipeDream.

    Stage r starts its first backward after p - r forwards:

    $$ n = \min(m, p - r) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    stage : array_like
        Stage r, from 0. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Micro-batches in flight at the peak. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    The peak falls at the start of a backward.

    Examples
    --------
    >>> float(one_f_one_b_in_flight(8, 0, 64))
    8.0
    >>> one_f_one_b_in_flight(8, [0, 7], 4)
    array([4., 1.])

    References
    ----------
    .. [1] D. Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    p = _check.whole("stages", stages, low=1)
    r = _check.whole("stage", stage, low=0)
    m = _check.whole("micro_batches", micro_batches, low=0)
    return np.minimum(m, np.maximum(p - r, 1.0))


def gpipe_in_flight(micro_batches: ArrayLike) -> Real:
    r"""Return the micro-batches whose activations every stage holds under GPipe and breadth-first schedules.

    All forwards run before the first backward:

    $$ n = m $$

    Parameters
    ----------
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Micro-batches in flight at the peak. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Without rematerialisation.

    Examples
    --------
    >>> float(gpipe_in_flight(32))
    32.0
    >>> gpipe_in_flight([4, 8])
    array([4., 8.])

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965.
    """
    return _check.whole("micro_batches", micro_batches, low=0)


def interleaved_in_flight_chunks(stages: ArrayLike, stage: ArrayLike, virtual: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the chunks whose activations a stage holds under interleaved 1F1B.

    Warm-up runs 2(p - r - 1) + (v - 1)p forwards, then one more precedes the first backward:

    $$ n = \min(m v,\ 2(p - r - 1) + (v - 1)p + 1) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    stage : array_like
        Stage r, from 0. [-]
    virtual : array_like
        Chunks v of a stage. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Chunks in flight at the peak; divide by v for whole-stage micro-batches. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Group size p (Megatron's default), no overlap of expert all-to-alls, which adds one.

    Examples
    --------
    Megatron warms rank 0 of p = 4, v = 8 up with 34 chunks, so 35 are in flight, 4.375 micro-batches:

    >>> float(interleaved_in_flight_chunks(4, 0, 8, 64))
    35.0
    >>> interleaved_in_flight_chunks(4, [0, 3], 8, 64)
    array([35., 29.])

    References
    ----------
    .. [1] NVIDIA/Megatron-LM d98e8a64, megatron/core/pipeline_parallel/schedules.py:960-979.
    """
    p = _check.whole("stages", stages, low=1)
    r = _check.whole("stage", stage, low=0)
    v = _check.whole("virtual", virtual, low=1)
    m = _check.whole("micro_batches", micro_batches, low=0)
    return np.minimum(m * v, 2 * np.maximum(p - r - 1, 0.0) + (v - 1) * p + 1)


def zb_h2_in_flight(stages: ArrayLike, stage: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the micro-batches whose activations a stage holds under ZB-H2.

    Each stage warms up with one more forward for every stage behind it:

    $$ n = \min(m, 2(p - r) - 1) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    stage : array_like
        Stage r, from 0. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Micro-batches in flight at the peak. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Weight gradients keep their inputs a little longer; the timeline counts them.

    Examples
    --------
    >>> float(zb_h2_in_flight(8, 0, 64))
    15.0
    >>> zb_h2_in_flight(4, [0, 3], 64)
    array([7., 1.])

    References
    ----------
    .. [1] P. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, Table 1 (there T_B is B - w).
    """
    p = _check.whole("stages", stages, low=1)
    r = _check.whole("stage", stage, low=0)
    m = _check.whole("micro_batches", micro_batches, low=0)
    return np.minimum(m, np.maximum(2 * (p - r) - 1, 1.0))


def zb_v_in_flight(stages: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the micro-batches whose activations every stage holds under ZB-V.

    The V shape gives each stage an early and a late chunk, so all stages hold 2p half-stage chunks:

    $$ n = \min(m, p) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Micro-batches in flight at the peak, in units of both chunks. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Equal chunks.

    Examples
    --------
    >>> float(zb_v_in_flight(8, 64))
    8.0
    >>> zb_v_in_flight([2, 4], 3)
    array([2., 3.])

    References
    ----------
    .. [1] P. Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362.
    """
    p = _check.whole("stages", stages, low=1)
    m = _check.whole("micro_batches", micro_batches, low=0)
    return np.minimum(m, p)


def dualpipe_in_flight(stages: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the micro-batches whose activations every stage holds under DualPipe.

    $$ n = \min(m, p + 1) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Micro-batches in flight at the peak, each of one of the stage's two chunks. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Each device also keeps two chunks of the weights.

    Examples
    --------
    >>> float(dualpipe_in_flight(8, 64))
    9.0
    >>> dualpipe_in_flight([2, 4], 64)
    array([3., 5.])

    References
    ----------
    .. [1] deepseek-ai/DualPipe, README, table of bubbles and memory.
    """
    p = _check.whole("stages", stages, low=1)
    m = _check.whole("micro_batches", micro_batches, low=0)
    return np.minimum(m, p + 1)
