r"""Buffers beside state and activations: workspaces, caches, gathered shards, buckets, the allocator's reserve.

Symbols: P parameters of one unit [-] · D ranks of a shard [-] · e bytes of one element [B]
File and line numbers are of Megatron-LM d98e8a64, TransformerEngine d0067d0d, DeepSpeed edaa7221 and PyTorch 010ae4a8
(torch/distributed/fsdp/_fully_shard).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def weight_gradient_cache(elements: ArrayLike, *, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the cached stand-in gradients of gradient-accumulation fusion: one tensor for each distinct weight shape.

    The fused weight gradient adds into the main gradient buffer; autograd still wants a tensor, and gets a cached one:

    $$ A = e \sum_{\text{distinct } (r, c)} r\, c $$

    Parameters
    ----------
    elements : array_like
        Elements of all distinct weight shapes of the stage, r rows and c columns each, output layer included, summed. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes from the first backward pass on. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    Linear layers since TransformerEngine 2.3, grouped linear layers since 2.10 (2025-10), Megatron's output layer since
    2025-08. Never freed. Without the fusion each weight's own gradient lives for a moment instead.

    Examples
    --------
    Llama-3.1 70B, tp 1: 1.59 GiB (four shapes of a layer) and 1.96 GiB (output layer).

    >>> shapes = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]
    >>> round(float(weight_gradient_cache(sum(r * c for r, c in shapes)) / 2**30), 2)
    1.59

    References
    ----------
    .. [1] TransformerEngine, module/base.py:134-148, linear.py:1365, grouped_linear.py:1230 and pull request 2305;
       Megatron-LM, core/tensor_parallel/layers.py:733-762.
    """
    n = _check.real("elements", elements, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return n * e


def matmul_workspaces(
    *,
    te_bytes: ArrayLike = 33554432,
    te_streams: ArrayLike = 1,
    torch_bytes: ArrayLike = 8519680,
    torch_handles: ArrayLike = 2,
) -> Real:
    r"""Return the static workspaces of the matmul libraries.

    $$ A = n_{te}\, w_{te} + n_{torch}\, w_{torch} $$

    Parameters
    ----------
    te_bytes : array_like, default 33554432
        Size w_te of TransformerEngine's cuBLAS workspace: 32 MiB from sm90 on, 4 MiB before. [B]
    te_streams : array_like, default 1
        Number n_te of such workspaces: 1, and 4 more as soon as a grouped product ran; 3 times with userbuffers. [-]
    torch_bytes : array_like, default 8519680
        Size w_torch of PyTorch's cuBLAS workspace of one handle and stream: 8.125 MiB, 32 MiB on Hopper. [B]
    torch_handles : array_like, default 2
        Handles n_torch and streams in use: forward, and autograd's thread. [-]

    Returns
    -------
    float or ndarray
        Bytes. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    Two torch handles are inferred: they explain fifteen dense B200 ranks to 1.2 MiB.

    Examples
    --------
    >>> float(matmul_workspaces() / 2**20), float(matmul_workspaces(te_streams=5) / 2**20)
    (48.25, 176.25)

    References
    ----------
    .. [1] TransformerEngine, cpp_extensions/gemm.py:37-67; PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    te = _check.real("te_bytes", te_bytes, low=0)
    streams = _check.real("te_streams", te_streams, low=0)
    torch = _check.real("torch_bytes", torch_bytes, low=0)
    handles = _check.real("torch_handles", torch_handles, low=0)
    return te * streams + torch * handles


def unsharded_forward(unit: ArrayLike, *, shards: ArrayLike, copies: ArrayLike = 3, element_bytes: ArrayLike = 2) -> Real:
    r"""Return what FSDP2 holds of gathered weights in the forward pass, one unit ahead.

    The unit's own weights, the all-gather output they were copied out of (kept until the next copy), the next unit's
    all-gather output, and its copied-in shard:

    $$ A = e P_u \left( c + \frac{1}{D} \right) $$

    Parameters
    ----------
    unit : array_like
        Parameters P_u of the largest unit, a transformer block. [-]
    shards : array_like
        Ranks D of the shard. [-]
    copies : array_like, default 3
        Tensors c of full size alive. [-]
    element_bytes : array_like, default 2
        Bytes of a gathered element. [B]

    Returns
    -------
    float or ndarray
        Bytes at the peak of the forward pass. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `shards` < 1.

    Notes
    -----
    The root unit with output layer and final norm stays gathered; count it apart.

    Examples
    --------
    A Llama-3.1 8B block of 218M parameters over 8 ranks:

    >>> round(float(unsharded_forward(218112000, shards=8) / 2**30), 2)
    1.27

    References
    ----------
    .. [1] PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather, copy-out),
       _fsdp_param_group.py (wait_for_unshard frees late in the forward pass only).
    """
    P = _check.real("unit", unit, low=0)
    D = _check.real("shards", shards, low=1)
    c = _check.real("copies", copies, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return P * e * (c + 1 / D)


def unsharded_backward(
    unit: ArrayLike,
    *,
    weight_copies: ArrayLike = 2,
    element_bytes: ArrayLike = 2,
    gradient_bytes: ArrayLike = 2,
    reduce_bytes: ArrayLike = 4,
) -> Real:
    r"""Return what FSDP2 holds of gathered weights and gradients in the backward pass.

    The unit's weights, the next unit's all-gather output, the unit's gradients, and a reduce-scatter input in the reduce
    dtype, the previous unit's or its own:

    $$ A = P_u \left( c\, e + g + r \right) $$

    Parameters
    ----------
    unit : array_like
        Parameters P_u of the largest unit. [-]
    weight_copies : array_like, default 2
        Weight tensors c of full size alive. [-]
    element_bytes : array_like, default 2
        Bytes of a gathered weight. [B]
    gradient_bytes : array_like, default 2
        Bytes g of an unreduced gradient. [B]
    reduce_bytes : array_like, default 4
        Bytes r of an element of the reduce-scatter input. [B]

    Returns
    -------
    float or ndarray
        Bytes at the peak of the backward pass. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    The reduce-scatter output is the sharded gradient and counts as state; the previous input is freed before the next
    is made, so beside the last block it is the output layer's. The next unit's weights are copied out of the all-gather
    output only when its own backward pass begins [2]_. With HSDP an all-reduce input of the same dtype, 1/D in size, lives one layer longer.

    Examples
    --------
    >>> round(float(unsharded_backward(218112000) / 2**30), 2)
    2.03

    References
    ----------
    .. [1] PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce), _fsdp_param_group.py
       (post_backward, _backward_prefetch).
    .. [2] Real `fully_shard` of PyTorch 2.13 over fake tensors, this project's scripts/simulate_fsdp.py.
    """
    P = _check.real("unit", unit, low=0)
    c = _check.real("weight_copies", weight_copies, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    g = _check.real("gradient_bytes", gradient_bytes, low=0)
    r = _check.real("reduce_bytes", reduce_bytes, low=0)
    return P * (c * e + g + r)


def bucket_bytes(
    parameters: ArrayLike, *, bucket_elements: ArrayLike = 500000000, buckets: ArrayLike = 1, element_bytes: ArrayLike = 2
) -> Real:
    r"""Return reduce or prefetch buckets: a fixed number of elements, never more than there are parameters.

    $$ A = n\, e \min(B, P) $$

    Parameters
    ----------
    parameters : array_like
        Parameters on the GPU before sharding. [-]
    bucket_elements : array_like, default 500000000
        Elements of a bucket: DeepSpeed's reduce_bucket_size 5e8, Megatron-FSDP's reduce queue 1e9. [-]
    buckets : array_like, default 1
        Buckets n alive; 2 with DeepSpeed's overlap_comm. [-]
    element_bytes : array_like, default 2
        Bytes of the communication dtype. [B]

    Returns
    -------
    float or ndarray
        Bytes. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    A parameter larger than the bucket is reduced alone.

    Examples
    --------
    >>> bucket_bytes([1e8, 7e9], buckets=2)
    array([4.e+08, 2.e+09])

    References
    ----------
    .. [1] DeepSpeed, runtime/zero/config.py:113,132, stage_1_and_2.py:2499-2514; Megatron-LM,
       core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py:415-444.
    """
    P = _check.real("parameters", parameters, low=0)
    B = _check.real("bucket_elements", bucket_elements, low=0)
    n = _check.real("buckets", buckets, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return n * e * np.minimum(B, P)


def shard_copy_bytes(
    parameters: ArrayLike, *, gathers: ArrayLike = 2, around_gather: ArrayLike = 4, around_reduction: ArrayLike = 6
) -> Real:
    r"""Return the bytes of device memory that copies around the transfers of a shard read and write.

    A gathered parameter is copied out of the buffer that the gathering fills, a gradient into the one that a reduction
    reads:

    $$ P (G g + r) $$

    Parameters
    ----------
    parameters : array_like
        Parameters P of the blocks in question. [-]
    gathers : array_like, default 2
        Gatherings G: two where a block is freed after its forward, else one. [-]
    around_gather : array_like, default 4
        Bytes g that a parameter moves around one gathering: read and written in bf16. [B]
    around_reduction : array_like, default 6
        Bytes r that a gradient moves around one reduction: read in bf16, written in fp32. [B]

    Returns
    -------
    float or ndarray
        Bytes read and written. [B]

    Raises
    ------
    FormulaDomainError
        If a size or a count is negative.

    Notes
    -----
    FSDP1 keeps a block as one flat tensor, so nothing moves around its gathering (0); its gradients are concatenated (4), cast
    (2 + 4) and divided (4 + 4) before an fp32 reduction: 18. DeepSpeed's stage 3 concatenates what it gathered (4), copies
    gradients into a bucket, concatenates them by rank and divides them: 12. Buffers that hold the tensors themselves move
    nothing.

    Examples
    --------
    A layer of Llama 3.1 8B under FSDP2, and under FSDP1:

    >>> float(shard_copy_bytes(218_112_000))
    3053568000.0
    >>> float(shard_copy_bytes(218_112_000, around_gather=0, around_reduction=18))
    3926016000.0

    References
    ----------
    .. [1] PyTorch 010ae4a8, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (split_with_sizes_copy, chunk_cat) and
       torch/distributed/fsdp/_runtime_utils.py; DeepSpeed edaa7221, runtime/zero/partition_parameters.py, stage3.py,
       runtime/comm/coalesced_collectives.py.
    """
    P = _check.real("parameters", parameters, low=0)
    G = _check.real("gathers", gathers, low=0)
    g = _check.real("around_gather", around_gather, low=0)
    r = _check.real("around_reduction", around_reduction, low=0)
    return P * (G * g + r)


def allocator_reserve(allocated: ArrayLike, *, share: ArrayLike = 0.038) -> Real:
    r"""Return what the caching allocator reserves beyond what is allocated at the peak.

    $$ A = \rho A_{peak} $$

    Parameters
    ----------
    allocated : array_like
        Peak A_peak of allocated bytes. [B]
    share : array_like, default 0.038
        Share rho: reserved over allocated, less one. [-]

    Returns
    -------
    float or ndarray
        Bytes. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    A measured spread, not a law: 344 B200 ranks without expandable segments had 0.007 to 0.093, quartiles 0.029 and
    0.055, median 0.038; 131k-token sequences 0.073. FSDP2's streams reserve in pools of their own, which the memory estimate
    counts one by one; torchtitan's runs had a median of 0.018 beyond these.

    Examples
    --------
    >>> float(allocator_reserve(70e9))
    2660000000.0

    References
    ----------
    .. [1] MooreThreads/SimuMax 4dcaae51, docs/b200/b200_release_v1.2_summary.json (real allocated and reserved bytes).
    """
    A = _check.real("allocated", allocated, low=0)
    rho = _check.real("share", share, low=0)
    return A * rho
