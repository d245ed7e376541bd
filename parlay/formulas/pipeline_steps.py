r"""Pipelines as whole steps: idle share, unequal stages, versions of the weights, rematerialisation.

Symbols: p stages [-] · v chunks per stage [-] · m micro-batches per step [-] · r stage, from 0 [-] · g group of micro-batches [-]
         t_r time of stage r, both passes [s] · L layers [-] · n bytes of the batch between two layers [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def bubble_share(stages: ArrayLike, micro_batches: ArrayLike, virtual: ArrayLike = 1) -> Real:
    r"""Return the share of a step in which a stage waits, under GPipe, 1F1B or interleaved 1F1B.

    Fill and drain take (p - 1)/v of a micro-batch's time beside its m:

    $$ \frac{p - 1}{p - 1 + m v} $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]
    virtual : array_like, default 1
        Chunks v of a stage. [-]

    Returns
    -------
    float or ndarray
        Idle over idle and busy time. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Equal chunks, free transfers, v > 1 with m a multiple of p. Breadth-first as interleaved. At m >= 4 p it stays
    below a fifth.

    Examples
    --------
    One micro-batch on four stages; GPipe's rule of four micro-batches a stage:

    >>> bubble_share([4, 8], [1, 32]).round(4)
    array([0.75  , 0.1795])

    >>> float(bubble_share(4, 9, 3))
    0.1

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3.
    .. [2] D. Narayanan et al., "Efficient Large-Scale Language Model Training", arXiv:2104.04473, section 2.2.
    .. [3] J. Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv:2211.05953, section 4.
    """
    p = _check.whole("stages", stages, low=1)
    m = _check.whole("micro_batches", micro_batches, low=1)
    v = _check.whole("virtual", virtual, low=1)
    return (p - 1) / (p - 1 + m * v)


def uneven_pipeline_s(stage_times_sum: ArrayLike, stage_time_max: ArrayLike, micro_batches: ArrayLike) -> Real:
    r"""Return the time of a synchronous 1F1B or GPipe step with unequal stages.

    One micro-batch passes all stages, and each further one costs the slowest stage once:

    $$ \sum_r t_r + (m - 1) \max_r t_r $$

    Parameters
    ----------
    stage_times_sum : array_like
        Sum of the stages' times for one micro-batch, forward and backward. [s]
    stage_time_max : array_like
        Time t of the slowest stage for one micro-batch, forward and backward. [s]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Time of the step. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Free transfers. Exact for equal stages, and under 1F1B wherever the last stage is the slowest. An upper bound
    where all stages have the same ratio of backward to forward: a slow early stage works through the wait. Where the
    ratios differ, 1F1B can take a few per cent longer; the exact timeline then decides.

    Examples
    --------
    Four stages of 3 s, eight micro-batches: (8 + 3) x 3.

    >>> float(uneven_pipeline_s(12, 3, 8))
    33.0

    >>> uneven_pipeline_s([12, 13], [3, 4], 8)
    array([33., 41.])

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3.
    .. [2] D. Narayanan et al., "Efficient Large-Scale Language Model Training", arXiv:2104.04473, section 2.2.
    """
    S = _check.real("stage_times_sum", stage_times_sum, low=0)
    t = _check.real("stage_time_max", stage_time_max, low=0)
    m = _check.whole("micro_batches", micro_batches, low=1)
    return S + (m - 1) * t


def interleaved_group_in_flight_chunks(
    stages: ArrayLike, stage: ArrayLike, virtual: ArrayLike, group: ArrayLike, micro_batches: ArrayLike
) -> Real:
    r"""Return the chunks whose activations a stage holds under interleaved 1F1B with groups of any size.

    Warm-up runs 2(p - r - 1) + (v - 1) g forwards, and one more precedes the first backward:

    $$ \min(m v,\ 2(p - r - 1) + (v - 1) g + 1) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    stage : array_like
        Stage r, from 0. [-]
    virtual : array_like
        Chunks v of a stage. [-]
    group : array_like
        Micro-batches g that run through a chunk before the next; p unless set. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]

    Returns
    -------
    float or ndarray
        Chunks in flight at the peak; divide by v for whole-stage micro-batches. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    g at least p. Stage r at most p - 1.

    Examples
    --------
    g = p, the default: 34 warm-up chunks and one.

    >>> float(interleaved_group_in_flight_chunks(4, 0, 8, 4, 64))
    35.0

    >>> interleaved_group_in_flight_chunks(4, 0, 8, [4, 8], 64)
    array([35., 63.])

    References
    ----------
    .. [1] NVIDIA/Megatron-LM d98e8a64, megatron/core/pipeline_parallel/schedules.py:960-979
       (microbatch_group_size_per_vp_stage).
    """
    p = _check.whole("stages", stages, low=1)
    r = _check.whole("stage", stage, low=0)
    v = _check.whole("virtual", virtual, low=1)
    g = _check.whole("group", group, low=1)
    m = _check.whole("micro_batches", micro_batches, low=1)
    return np.minimum(m * v, 2 * np.maximum(p - r - 1, 0.0) + (v - 1) * g + 1)


def pipedream_weight_versions(stages: ArrayLike, stage: ArrayLike) -> Real:
    r"""Return the versions of its weights that a stage keeps under asynchronous PipeDream.

    Each micro-batch in flight needs the weights of its forward for its backward:

    $$ \max(p - r, 1) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    stage : array_like
        Stage r, from 0. [-]

    Returns
    -------
    float or ndarray
        Versions. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Weights are stashed, updates follow each micro-batch. Synchronous schedules keep one.

    Examples
    --------
    Eight stages, first and last:

    >>> pipedream_weight_versions(8, [0, 7])
    array([8., 1.])

    >>> float(pipedream_weight_versions(4, 1))
    3.0

    References
    ----------
    .. [1] A. Harlap et al., "PipeDream", arXiv:1806.03377, section 3.3.
    """
    p = _check.whole("stages", stages, low=1)
    r = _check.whole("stage", stage, low=0)
    return np.maximum(p - r, 1.0)


def double_buffered_weight_versions(stages: ArrayLike) -> Real:
    r"""Return the versions of its weights that a stage keeps under PipeDream-2BW.

    Micro-batches in flight finish with the old version while new ones start with the next:

    $$ \min(2, p) $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]

    Returns
    -------
    float or ndarray
        Versions. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Gradients accumulated over at least p micro-batches.

    Examples
    --------
    >>> float(double_buffered_weight_versions(8))
    2.0

    >>> double_buffered_weight_versions([1, 2])
    array([1., 2.])

    References
    ----------
    .. [1] D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv:2006.09503, section 3.1.
    """
    p = _check.whole("stages", stages, low=1)
    return np.minimum(2.0, p)


def rematerialised_bytes(stages: ArrayLike, micro_batches: ArrayLike, layers: ArrayLike, boundary_bytes: ArrayLike) -> Real:
    r"""Return the peak of activations of a GPipe stage that computes its layers again.

    The batch's input of the stage stays, and one micro-batch's layers at a time:

    $$ n + \frac{L}{p}\frac{n}{m} $$

    Parameters
    ----------
    stages : array_like
        Pipeline stages p. [-]
    micro_batches : array_like
        Micro-batches m per step. [-]
    layers : array_like
        Layers L of the model. [-]
    boundary_bytes : array_like
        Bytes n that the whole batch has between two layers. [B]

    Returns
    -------
    float or ndarray
        Bytes of boundary activations. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Counts one tensor a layer, as the source; the inner tensors of a layer being recomputed come on top.

    Examples
    --------
    Llama-3-8B, 128 samples of 4,096 tokens in 16 micro-batches on 8 stages: 5.37 GB.

    >>> float(rematerialised_bytes(8, 16, 32, 4294967296))
    5368709120.0

    >>> rematerialised_bytes([1, 8], 16, 32, 1e9)
    array([3.00e+09, 1.25e+09])

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3.
    """
    p = _check.whole("stages", stages, low=1)
    m = _check.whole("micro_batches", micro_batches, low=1)
    L = _check.real("layers", layers, low=0)
    n = _check.real("boundary_bytes", boundary_bytes, low=0)
    return n + L / p * n / m
