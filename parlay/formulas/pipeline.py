r"""Pipeline schedules in closed form: idle time of a stage and micro-batches in flight, for equal stages.

Symbols: p stages [-] · v chunks (virtual stages) per stage [-] · m micro-batches per step [-] · r stage, from 0 [-]
         f forward [s] · B whole backward [s] · w its weight-gradient part [s], each of one stage and micro-batch
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def one_f_one_b_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under GPipe or 1F1B.

    The first micro-batch fills p - 1 stages before the last one starts, and the last gradient drains through as many:

    $$ t_\mathrm{idle} = (p - 1)(f + B) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage. [s]
    backward_s : array_like
        Backward time B of one micro-batch on one stage. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage; shape is the broadcast of all arguments. [s]

    Raises
    ------
    FormulaDomainError
        If `stages` is not a whole number >= 1 or a time is negative.

    Notes
    -----
    Equal stages, free transfers. The idle share of the step is (p - 1) / (m + p - 1).

    Examples
    --------
    >>> float(one_f_one_b_bubble_s(4, 1, 2))
    9.0
    >>> one_f_one_b_bubble_s([1, 8], 1.0, 2.0)
    array([ 0., 21.])

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3.
    .. [2] D. Narayanan et al., "Efficient Large-Scale Language Model Training", arXiv:2104.04473, section 2.2.
    """
    p = _check.whole("stages", stages, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    return (p - 1) * (f + B)


def interleaved_bubble_s(stages: ArrayLike, virtual: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under interleaved 1F1B or breadth-first.

    With v chunks a stage, fill and drain pass chunks that are v times shorter:

    $$ t_\mathrm{idle} = (p - 1)(f + B) / v $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    virtual : array_like
        Chunks v of a stage. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage. [s]
    backward_s : array_like
        Whole backward time B of one micro-batch on one stage. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage; f and B are of all its chunks together. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Equal chunks, free transfers, m a multiple of p.

    Examples
    --------
    >>> float(interleaved_bubble_s(4, 2, 1, 2))
    4.5
    >>> interleaved_bubble_s(4, [1, 3], 1, 2)
    array([9., 3.])

    References
    ----------
    .. [1] D. Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    p = _check.whole("stages", stages, low=1)
    v = _check.whole("virtual", virtual, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    return (p - 1) * (f + B) / v


def zb_h1_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under ZB-H1.

    Weight gradients fill part of the drain without holding more activations than 1F1B:

    $$ t_\mathrm{idle} = (p - 1)\max(f + \max(b - w, 0),\ b), \qquad b = B - w $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage. [s]
    backward_s : array_like
        Whole backward time B of one micro-batch on one stage. [s]
    weight_s : array_like
        Part w of the backward that computes weight gradients. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Equal stages, free transfers, m >= p. The paper prints (p - 1)(f + B - 2w), which is this where w <= b and w <= f; the
    general form is what the exact timeline gives.

    Examples
    --------
    f = B - w = w = 1 leaves a third of the bubble of 1F1B:

    >>> float(zb_h1_bubble_s(4, 1, 2, 1))
    3.0
    >>> zb_h1_bubble_s([1, 8], 1, 2, 1)
    array([0., 7.])

    References
    ----------
    .. [1] P. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, Table 1 (there T_B is B - w).
    """
    p = _check.whole("stages", stages, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    w = _check.real("weight_s", weight_s, low=0)
    return (p - 1) * np.maximum(f + np.maximum(B - 2 * w, 0.0), B - w)


def zb_h2_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under ZB-H2.

    With almost twice the activations the fill is covered as well:

    $$ t_\mathrm{idle} = (p - 1)\max(f + b - 2w,\ b - f,\ 0), \qquad b = B - w $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage. [s]
    backward_s : array_like
        Whole backward time B of one micro-batch on one stage. [s]
    weight_s : array_like
        Part w of the backward that computes weight gradients. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage between its first and its last operation. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Equal stages, free transfers, m >= 2p - 1, and no optimizer synchronisation (the paper validates it afterwards): the
    stages start and end their steps one forward apart, and that skew of (p - 1) f is no idle time where the next step follows. The paper prints (p - 1)(f + b - 2w), which is this
    where w <= f.

    Examples
    --------
    >>> float(zb_h2_bubble_s(4, 1, 2, 1))
    0.0
    >>> zb_h2_bubble_s(8, 1, [2, 2.5], 1)
    array([0. , 3.5])

    References
    ----------
    .. [1] P. Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, Table 1 (there T_B is B - w).
    """
    p = _check.whole("stages", stages, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    w = _check.real("weight_s", weight_s, low=0)
    return (p - 1) * np.maximum(np.maximum(f + B - 3 * w, B - w - f), 0.0)


def dualpipe_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under DualPipe.

    Micro-batches enter from both ends and a forward overlaps a backward, which together take f + B:

    $$ t_\mathrm{idle} = (p/2 - 1)\max(f + 2b - w,\ 2f + \max(b - w, 0)), \qquad b = B - w $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage. [s]
    backward_s : array_like
        Whole backward time B of one micro-batch on one stage. [s]
    weight_s : array_like
        Part w of the backward that computes weight gradients. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage; f, B and w are of one of its two chunks. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Equal stages, an even p, at least 2p micro-batches; the overlapped pair is taken at f + B, its compute. The
    README prints (p/2 - 1)(f&B + B - 3w), which is this where f = b >= w. Exact for f >= b; with a shorter forward it is
    off by about one forward, and parlay.schedules has the exact time.

    Examples
    --------
    >>> float(dualpipe_bubble_s(8, 1, 2, 1))
    6.0
    >>> dualpipe_bubble_s([2, 4], 1, 2, 1)
    array([0., 2.])

    References
    ----------
    .. [1] deepseek-ai/DualPipe, README, table of bubbles and memory.
    """
    p = _check.whole("stages", stages, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    w = _check.real("weight_s", weight_s, low=0)
    paired = np.maximum(2 * B + f - 3 * w, 2 * f + np.maximum(B - 2 * w, 0.0))
    return np.maximum(p / 2 - 1, 0.0) * np.maximum(paired, 0.0)


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


def zb_v_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under ZB-V where forward and both gradients take equal time.

    The V shape lets every stage start and end within one chunk of the others, and weight gradients fill the rest:

    $$ t_\mathrm{idle} = 0 \quad\text{for}\quad f = B - w = w $$

    Unequal parts leave what the weight gradients cannot fill, bounded below by the ZB-H2 form at half the chunks.

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    forward_s : array_like
        Forward time f of one micro-batch on one stage, both chunks. [s]
    backward_s : array_like
        Whole backward time B of one micro-batch on one stage, both chunks. [s]
    weight_s : array_like
        Part w of the backward that computes weight gradients. [s]

    Returns
    -------
    float or ndarray
        Idle time of each stage between its first and its last operation. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range or a time is negative.

    Notes
    -----
    Exact for f = B - w = w and m >= 2p - 1; a lower bound otherwise, see parlay.schedules for the exact time.

    Examples
    --------
    >>> float(zb_v_bubble_s(8, 1, 2, 1))
    0.0
    >>> zb_v_bubble_s([2, 4], 1, 3, 1)
    array([0.5, 1.5])

    References
    ----------
    .. [1] P. Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362, section 4.
    """
    p = _check.whole("stages", stages, low=1)
    f = _check.real("forward_s", forward_s, low=0)
    B = _check.real("backward_s", backward_s, low=0)
    w = _check.real("weight_s", weight_s, low=0)
    return (p - 1) * np.maximum(f + B - 3 * w, 0.0) / 2
