r"""Pipeline schedules in closed form: idle time of a stage, for equal stages.

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


def zb_v_bubble_s(stages: ArrayLike, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike) -> Real:
    r"""Return the idle time of a stage per step under ZB-V, none where forward and both gradients take equal time.

    The V shape lets every stage start and end within one chunk of the others, and weight gradients fill the rest. Unequal parts
    leave what these cannot fill, bounded below by the ZB-H2 form at half the chunks:

    $$ t_\mathrm{idle} = (p - 1)\max(f + B - 3w,\ 0) / 2 $$

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
