r"""Bytes of weights, gradients and optimizer state that one GPU holds between steps, for every sharding scheme.

Symbols: P parameters on the GPU after tensor, pipeline and expert parallelism [-] · D ranks that share a shard [-]
         w, g, q, o bytes of a weight, an accumulated gradient, a main weight, all moments of a parameter [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def zero_state(
    parameters: ArrayLike,
    *,
    stage: ArrayLike,
    shards: ArrayLike,
    weight_bytes: ArrayLike = 2,
    gradient_bytes: ArrayLike = 2,
    master_bytes: ArrayLike = 4,
    moments_bytes: ArrayLike = 8,
    step_gradient_bytes: ArrayLike = 0,
) -> Real:
    r"""Return weights, gradients and optimizer state of one GPU at a ZeRO stage.

    Stage 1 shards the optimizer, stage 2 the gradients too, stage 3 the weights too:

    $$ S = P \left( \frac{w}{D_3} + \frac{g}{D_2} + \frac{q + o + g_{step}}{D_1} \right) $$

    with $D_k = D$ at stage k and above, else 1.

    Parameters
    ----------
    parameters : array_like
        Parameters on the GPU before sharding. [-]
    stage : array_like
        0, 1, 2 or 3; 0 shards nothing. [-]
    shards : array_like
        Ranks D that share one copy of the state; D_1, D_2 and D_3 are D from that stage on, else 1. [-]
    weight_bytes : array_like, default 2
        Bytes of a weight used in compute. [B]
    gradient_bytes : array_like, default 2
        Bytes of an accumulated gradient. [B]
    master_bytes : array_like, default 4
        Bytes of the main weight kept beside the weight; 0 where the weight itself is updated. [B]
    moments_bytes : array_like, default 8
        Bytes of all moments of one parameter. [B]
    step_gradient_bytes : array_like, default 0
        Bytes g_step of an fp32 copy of the gradient that exists during the step only. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU; shape is the broadcast of all arguments. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, `stage` is not 0..3, or `shards` < 1.

    Notes
    -----
    Megatron's distributed optimizer is stage 1 with fp32 gradients (6 + 12/D); its parameter and gradient buffers are
    contiguous and reductions run in place, so nothing comes on top. FSDP2 is stage 3 with fp32 weights that are their own
    main weights (16/D). Bucket padding (64 elements a parameter, lcm(D, 128) a bucket) is left out: under 0.1 %.

    Examples
    --------
    Megatron without and with its distributed optimizer over 8 ranks: 18 and 7.5 bytes a parameter.

    >>> zero_state(1, stage=[0, 1], shards=8, gradient_bytes=4)
    array([18. ,  7.5])

    DeepSpeed's stages 1, 2, 3 over 64 ranks, bf16 gradients: 4 + 12/D, 2 + 14/D, 16/D.

    >>> zero_state(64, stage=[1, 2, 3], shards=64)
    array([268., 142.,  16.])

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3 and figure 1.
    .. [2] Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py:1181-1195, core/optimizer/distrib_optimizer.py:445.
    .. [3] DeepSpeed edaa7221, runtime/zero/stage_1_and_2.py:3093-3095 (2P + 18P/D), stage3.py:731-752.
    """
    P = _check.real("parameters", parameters, low=0)
    z = _check.whole("stage", stage, low=0, high=3)
    D = _check.real("shards", shards, low=1)
    w = _check.real("weight_bytes", weight_bytes, low=0)
    g = _check.real("gradient_bytes", gradient_bytes, low=0)
    q = _check.real("master_bytes", master_bytes, low=0)
    o = _check.real("moments_bytes", moments_bytes, low=0)
    step = _check.real("step_gradient_bytes", step_gradient_bytes, low=0)
    return P * (w / np.where(z >= 3, D, 1) + g / np.where(z >= 2, D, 1) + (q + o + step) / np.where(z >= 1, D, 1))


def sharded_bytes(parameters: ArrayLike, bytes_each: ArrayLike, *, shards: ArrayLike = 1) -> Real:
    r"""Return the bytes of one kind of state: `bytes_each` a parameter, split over `shards` ranks.

    $$ S = \frac{P\, b}{D} $$

    Parameters
    ----------
    parameters : array_like
        Parameters on the GPU before sharding. [-]
    bytes_each : array_like
        Bytes b a parameter: 8 for Adam's two fp32 moments, 4 for SGD with momentum or Muon's one. [B]
    shards : array_like, default 1
        Ranks that share one copy. [-]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `shards` < 1.

    Notes
    -----
    With Megatron's precision-aware optimizer the main weight is a 16-bit remainder beside the bf16 weight (2 bytes, not
    4), and moments may be bf16 (4 for both) or fp8 (2 for both) [1]_.

    Examples
    --------
    Muon keeps one momentum for matrices; embeddings, head and norms stay with Adam:

    >>> float(sharded_bytes(7e9, 4, shards=8) + sharded_bytes(1e9, 8, shards=8))
    4500000000.0

    References
    ----------
    .. [1] Megatron-LM d98e8a64, core/optimizer/optimizer_config.py:187-206; TransformerEngine fused_adam.py:139-215.
    .. [2] K. Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024): one momentum buffer.
    """
    P = _check.real("parameters", parameters, low=0)
    b = _check.real("bytes_each", bytes_each, low=0)
    D = _check.real("shards", shards, low=1)
    return P * b / D


def blockwise_moments(
    parameters: ArrayLike,
    *,
    shards: ArrayLike = 1,
    moments: ArrayLike = 2,
    block: ArrayLike = 256,
    element_bytes: ArrayLike = 1,
    scale_bytes: ArrayLike = 4,
) -> Real:
    r"""Return the moments of 8-bit Adam: one byte an element and one fp32 scale a block.

    $$ S = \frac{\nu P}{D} \left( e + \frac{e_s}{B} \right) $$

    Parameters
    ----------
    parameters : array_like
        Parameters on the GPU before sharding. [-]
    shards : array_like, default 1
        Ranks that share one copy. [-]
    moments : array_like, default 2
        Quantised moments nu. [-]
    block : array_like, default 256
        Elements B that share a scale. [-]
    element_bytes : array_like, default 1
        Bytes e of a quantised element. [B]
    scale_bytes : array_like, default 4
        Bytes e_s of a scale. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or `shards` or `block` < 1.

    Notes
    -----
    bitsandbytes keeps tensors under 4096 elements, and by choice embeddings, in 32 bits; that is left out.

    Examples
    --------
    >>> float(blockwise_moments(8.03e9))
    16310937500.0

    References
    ----------
    .. [1] T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861 (blocks of 2048);
       bitsandbytes optimizers use 256.
    """
    P = _check.real("parameters", parameters, low=0)
    D = _check.real("shards", shards, low=1)
    count = _check.real("moments", moments, low=0)
    B = _check.real("block", block, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    s = _check.real("scale_bytes", scale_bytes, low=0)
    return count * P / D * (e + s / B)


def factored_moments(
    rows: ArrayLike, columns: ArrayLike, *, matrices: ArrayLike = 1, shards: ArrayLike = 1, state_bytes: ArrayLike = 4
) -> Real:
    r"""Return Adafactor's second moment: one number a row and one a column of each matrix, no first moment.

    $$ S = \frac{\nu (r + c)\, e}{D} $$

    Parameters
    ----------
    rows : array_like
        Rows r of a weight matrix. [-]
    columns : array_like
        Columns c of a weight matrix. [-]
    matrices : array_like, default 1
        Matrices nu of this shape. [-]
    shards : array_like, default 1
        Ranks that share one copy. [-]
    state_bytes : array_like, default 4
        Bytes e of one number. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `shards` < 1.

    Notes
    -----
    Vectors keep a full second moment; they are under 0.1 % of a model. With a first moment add `sharded_bytes`.

    Examples
    --------
    >>> float(factored_moments(28672, 8192))
    147456.0

    References
    ----------
    .. [1] N. Shazeer, M. Stern, "Adafactor", arXiv:1804.04235, section 3.
    """
    r = _check.real("rows", rows, low=0)
    c = _check.real("columns", columns, low=0)
    count = _check.real("matrices", matrices, low=0)
    D = _check.real("shards", shards, low=1)
    e = _check.real("state_bytes", state_bytes, low=0)
    return count * (r + c) * e / D


def quantised_copies(
    parameters: ArrayLike,
    *,
    copies: ArrayLike = 2,
    block: ArrayLike = np.inf,
    element_bytes: ArrayLike = 1,
    scale_bytes: ArrayLike = 4,
) -> Real:
    r"""Return the low-precision copies of linear weights that stay for the whole step, scales included.

    $$ S = \kappa P \left( e + \frac{e_s}{B} \right) $$

    Parameters
    ----------
    parameters : array_like
        Parameters of linear layers run in low precision, on the GPU. [-]
    copies : array_like, default 2
        Copies kappa: 2 where the transposed (column-wise) copy is kept beside the row-wise one, else 1. [-]
    block : array_like, default inf
        Elements B that share a scale: infinite per tensor, 16384 for 128 x 128 blocks, 32 for mxfp8, 16 for nvfp4. [-]
    element_bytes : array_like, default 1
        Bytes e of an element: 1 for fp8, 0.5 for fp4. [B]
    scale_bytes : array_like, default 4
        Bytes e_s of a scale: 4 for fp32, 1 for e8m0 and e4m3. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `block` < 1.

    Notes
    -----
    Below compute capability 10 an fp8 product takes transposed operands only, so per-tensor scaling keeps both copies
    there and one from sm100 on; mxfp8 keeps two everywhere, because its two directions are quantised differently [1]_.
    A Megatron mixture-of-experts test measured 657 MiB where this gives 649.

    Examples
    --------
    >>> quantised_copies(1e9, copies=[2, 1])
    array([2.e+09, 1.e+09])
    >>> float(quantised_copies(1e9, block=32, scale_bytes=1))
    2062500000.0

    References
    ----------
    .. [1] TransformerEngine d0067d0d, module/base.py:792-867, utils.py:658-663, tensor/mxfp8_tensor.py:160-176.
    """
    P = _check.real("parameters", parameters, low=0)
    k = _check.real("copies", copies, low=0)
    B = _check.real("block", block, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    s = _check.real("scale_bytes", scale_bytes, low=0)
    return k * P * (e + s / B)


def checkpoint_bytes(
    parameters: ArrayLike, *, weight_bytes: ArrayLike = 2, master_bytes: ArrayLike = 4, moments_bytes: ArrayLike = 8
) -> Real:
    r"""Return the bytes of a checkpoint that training can go on from.

    Weights, main weights and moments of every trained parameter, each once, whatever the layout; gradients are not saved:

    $$ C = P (w + q + o) $$

    Parameters
    ----------
    parameters : array_like
        Parameters P that are trained. [-]
    weight_bytes : array_like, default 2
        Bytes w of the weight used in compute. [B]
    master_bytes : array_like, default 4
        Bytes q of a main weight; 0 where the weight itself is updated. [B]
    moments_bytes : array_like, default 8
        Bytes o of all moments of a parameter. [B]

    Returns
    -------
    float or ndarray
        Bytes on storage. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    The state of the data loader and of random numbers is left out: megabytes.

    Examples
    --------
    BLOOM-176B, whose full checkpoint is printed as 2.3 TB and its bf16 weights as 329 GB, both in powers of two:

    >>> round(float(checkpoint_bytes(176_247_271_424) / 2**40), 2)
    2.24
    >>> checkpoint_bytes([1e9, 2e9], master_bytes=0)
    array([1.e+10, 2.e+10])

    References
    ----------
    .. [1] BigScience, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model", model card: checkpoint size.
    """
    P = _check.real("parameters", parameters, low=0)
    w = _check.real("weight_bytes", weight_bytes, low=0)
    q = _check.real("master_bytes", master_bytes, low=0)
    o = _check.real("moments_bytes", moments_bytes, low=0)
    return P * (w + q + o)


def zero_infinity_estimate(
    parameters: ArrayLike, largest_layer: ArrayLike, *, shards: ArrayLike, state_bytes: ArrayLike = 18, live_bytes: ArrayLike = 4
) -> Real:
    r"""Return DeepSpeed's own estimate for ZeRO-3: 18 bytes a parameter sharded, and the largest layer gathered twice.

    $$ S = \frac{18 P}{D} + 4 P_{largest} $$

    Parameters
    ----------
    parameters : array_like
        Parameters of the model. [-]
    largest_layer : array_like
        Parameters P_largest of its largest layer. [-]
    shards : array_like
        Ranks D. [-]
    state_bytes : array_like, default 18
        Sharded bytes a parameter: 2 weight, 4 gradient, 12 optimizer. [B]
    live_bytes : array_like, default 4
        Bytes a parameter of the layers gathered at one time: two bf16 copies. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU without activations. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `shards` < 1.

    Notes
    -----
    The estimate leaves out reduce buckets and everything that prefetch keeps live.

    Examples
    --------
    A 2851M-parameter model on 8 GPUs: 6.09 GiB is printed.

    >>> round(float(zero_infinity_estimate(2851e6, 32e6, shards=8) / 2**30), 2)
    6.09

    References
    ----------
    .. [1] DeepSpeed edaa7221, runtime/zero/stage3.py:3744-3772; pull request 965.
    """
    P = _check.real("parameters", parameters, low=0)
    largest = _check.real("largest_layer", largest_layer, low=0)
    D = _check.real("shards", shards, low=1)
    b = _check.real("state_bytes", state_bytes, low=0)
    live = _check.real("live_bytes", live_bytes, low=0)
    return P * b / D + largest * live
