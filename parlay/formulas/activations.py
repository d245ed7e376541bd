r"""Activations that one layer keeps from its forward to its backward pass, tensor by tensor.

Every formula counts one micro-batch on one GPU. A kept tensor is counted once even where two operations hold it.

Symbols: n tokens of the micro-batch on the GPU (micro-batch x sequence / cp) [token] · h hidden width [-]
         a query heads [-] · k key/value heads [-] · d head size [-] · f feed-forward width of one branch [-]
         t tensor-parallel degree [-] · e bytes of one element [B]
File and line numbers are of Megatron-LM d98e8a64 and TransformerEngine d0067d0d (2.20.0.dev0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def korthikanti_layer(
    tokens: ArrayLike,
    hidden: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    sequence_parallel: ArrayLike = 0,
    element_bytes: ArrayLike = 2,
    mask_bytes: ArrayLike = 1,
) -> Real:
    r"""Return what a GPT layer (MHA, 4h GeLU, dropout, fused attention) keeps by the classic count.

    Norm inputs and outputs and two dropout masks are not split by tensor parallelism unless sequence parallelism is on:

    $$ A = n h \left( \frac{4e + 2\mu}{t_{sp}} + \frac{12 e}{t} \right)
         = 34\,n h,\quad \left(10 + \tfrac{24}{t}\right) n h,\quad \tfrac{34}{t}\,n h $$

    Parameters
    ----------
    tokens : array_like
        Sequence length x micro-batch on the GPU. [token]
    hidden : array_like
        Hidden width h. [-]
    tensor : array_like, default 1
        Tensor-parallel degree t. [-]
    sequence_parallel : array_like, default 0
        1 where norms and dropout are split over the sequence, else 0: t_sp is t or 1. [-]
    element_bytes : array_like, default 2
        Bytes of an activation. [B]
    mask_bytes : array_like, default 1
        Bytes mu of one element of a dropout mask. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch; shape is the broadcast of all arguments. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    The score matrix of unfused attention comes on top: `unfused_scores`.

    Examples
    --------
    >>> float(korthikanti_layer(8192, 4096))
    1140850688.0
    >>> korthikanti_layer(8192, 4096, tensor=8, sequence_parallel=[0, 1])
    array([4.36207616e+08, 1.42606336e+08])

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198,
       equations 1, 2 and 4 without the 5as/h term.
    """
    n, h, t, split = _token_split(tokens, "hidden", hidden, tensor, sequence_parallel)
    e = _check.real("element_bytes", element_bytes, low=0)
    mask = _check.real("mask_bytes", mask_bytes, low=0)
    return n * h * ((4 * e + 2 * mask) / split + 12 * e / t)


def unfused_scores(
    tokens: ArrayLike,
    keys: ArrayLike,
    heads: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    dropout: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
    mask_bytes: ArrayLike = 1,
) -> Real:
    r"""Return the score-shaped tensors that attention keeps when it is not fused: 5 a s^2 b with dropout.

    The softmax output is kept; dropout adds its mask and its output:

    $$ A = \frac{a}{t}\, n\, s \left( e + \delta (e + \mu) \right) $$

    Parameters
    ----------
    tokens : array_like
        Query tokens of the micro-batch, n = s b. [token]
    keys : array_like
        Keys each query is compared with, s. [token]
    heads : array_like
        Query heads a of the whole layer. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    dropout : array_like, default 1
        Whether attention dropout is on, delta: 1 or 0. [-]
    element_bytes : array_like, default 2
        Bytes of one score. [B]
    mask_bytes : array_like, default 1
        Bytes mu of one element of the mask. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, `tensor` < 1, or `dropout` leaves [0, 1].

    Notes
    -----
    The whole square is stored, causal or not. Fused (flash) attention keeps none of this: see `log_sum_exp`.

    Examples
    --------
    GPT-3, s = 2048: 5 a s / h = 80, more than the other 34 [1]_.

    >>> float(unfused_scores(2048, 2048, 96) / (2048 * 12288))
    80.0

    References
    ----------
    .. [1] V. Korthikanti et al., arXiv:2205.05198, equation 1.
    .. [2] Megatron-LM, megatron/core/fusions/fused_softmax.py:36 (what the unfused softmax saves).
    """
    n = _check.real("tokens", tokens, low=0)
    s = _check.real("keys", keys, low=0)
    a = _check.real("heads", heads, low=0)
    t = _check.real("tensor", tensor, low=1)
    drop = _check.real("dropout", dropout, low=0, high=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    mask = _check.real("mask_bytes", mask_bytes, low=0)
    return a / t * n * s * (e + drop * (e + mask))


def token_tensors(
    tokens: ArrayLike,
    width: ArrayLike,
    *,
    tensors: ArrayLike = 1,
    tensor: ArrayLike = 1,
    sequence_parallel: ArrayLike = 0,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return `tensors` tensors of one row a token, split over the sequence where sequence parallelism is on.

    $$ A = \frac{\nu\, n\, w\, e}{t_{sp}} $$

    Norm inputs (the residual stream), norm outputs, checkpointed layer inputs (rematerialisation), stage boundaries, the
    latents of MLA and, with one byte an element, dropout masks all have this form.

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU before tensor parallelism. [token]
    width : array_like
        Elements w of one row. [-]
    tensors : array_like, default 1
        Number nu of such tensors. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    sequence_parallel : array_like, default 0
        1 where the tokens are split over the tensor-parallel ranks, else 0: t_sp is t or 1. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    With sequence parallelism the gathered input of a linear layer is not kept: its shard is gathered again in the
    backward pass (`ln_out_needs_gather`) [1]_.

    Examples
    --------
    Layer inputs of Llama-3 8B kept by full recompute: 128 sequences of 4096 tokens, one layer, 4.29 GB.

    >>> float(token_tensors(128 * 4096, 4096))
    4294967296.0

    References
    ----------
    .. [1] TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py:526-535.
    """
    n, w, _, split = _token_split(tokens, "width", width, tensor, sequence_parallel)
    count = _check.real("tensors", tensors, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return count * n * w * e / split


def queries_keys_values(
    tokens: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    qk_dim: ArrayLike,
    v_dim: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    ulysses: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the queries, keys and values that fused attention keeps, after the rotary embedding.

    $$ A = n e \left( \frac{a}{t} d_{qk} + \max\!\left(\frac{k}{t}, u\right)(d_{qk} + d_v) \right) $$

    A rank holds at least one key/value head, and with Ulysses of degree u each of the u ranks does after the all-to-all,
    in units of its own tokens u heads in all.

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    heads : array_like
        Query heads of the layer. [-]
    kv_heads : array_like
        Key/value heads of the layer (MLA: as many as query heads). [-]
    qk_dim : array_like
        Size d_qk of a query or key head. [-]
    v_dim : array_like
        Size d_v of a value head. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    ulysses : array_like, default 1
        Ranks u that split the heads by all-to-all. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or `tensor` or `ulysses` < 1.

    Notes
    -----
    The packed projection is a view that is freed: rotary writes new q and k, v is made contiguous [1]_.

    Examples
    --------
    Llama-3.1 70B: 2 (a + 2k) d = 20480 bytes a token; more ranks than key/value heads stop dividing them:

    >>> queries_keys_values(1, 64, 8, 128, 128, tensor=[1, 8, 16])
    array([20480.,  2560.,  1536.])

    References
    ----------
    .. [1] TransformerEngine, transformer_engine/pytorch/attention/rope.py:152,223.
    """
    n = _check.real("tokens", tokens, low=0)
    a = _check.real("heads", heads, low=0)
    k = _check.real("kv_heads", kv_heads, low=0)
    d_qk = _check.real("qk_dim", qk_dim, low=0)
    d_v = _check.real("v_dim", v_dim, low=0)
    t = _check.real("tensor", tensor, low=1)
    u = _check.real("ulysses", ulysses, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    return n * e * (a / t * d_qk + np.maximum(k / t, u) * (d_qk + d_v))


def attention_output(
    tokens: ArrayLike,
    heads: ArrayLike,
    v_dim: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    copies: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the attention output, which the output projection keeps as its input.

    $$ A = \frac{\kappa\, n\, a\, d_v\, e}{t} $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    heads : array_like
        Query heads. [-]
    v_dim : array_like
        Size d_v of a value head. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    copies : array_like, default 1
        Copies kappa: 1; 2 with Ulysses, which keeps the output before and after its all-to-all. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    Attention and the projection share the tensor, except with Ulysses [1]_ and with per-tensor delayed-scaling fp8, which
    keeps a quantised copy for the projection.

    Examples
    --------
    >>> attention_output(4096, 64, 128, tensor=[1, 8])
    array([67108864.,  8388608.])

    References
    ----------
    .. [1] TransformerEngine, context_parallel.py:4491-4576; seven measured ranks agree to the megabyte.
    """
    n = _check.real("tokens", tokens, low=0)
    a = _check.real("heads", heads, low=0)
    d = _check.real("v_dim", v_dim, low=0)
    t = _check.real("tensor", tensor, low=1)
    copies_ = _check.real("copies", copies, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return copies_ * n * a * d * e / t


def log_sum_exp(tokens: ArrayLike, heads: ArrayLike, *, tensor: ArrayLike = 1, statistic_bytes: ArrayLike = 4) -> Real:
    r"""Return the softmax statistics that fused attention keeps instead of the scores: one number a head and token.

    $$ A = \frac{n\, a\, e_{stat}}{t} $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    heads : array_like
        Query heads. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    statistic_bytes : array_like, default 4
        Bytes e_stat of one statistic (fp32). [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    Recomputing the attention core with fused attention saves this tensor alone: q, k and v are the inputs of the
    recomputation and the projection still keeps the output. Measured on Moonlight-16B: 4 MB of 36.6 GB.

    Examples
    --------
    >>> float(27 * log_sum_exp(4096, 16, tensor=2) / 1e6)  # Moonlight-16B, 27 layers
    3.538944

    References
    ----------
    .. [1] flash-attention 0251105a, flash_attn_interface.py:499; TransformerEngine cpp_extensions/fused_attn.py:408.
    """
    n = _check.real("tokens", tokens, low=0)
    a = _check.real("heads", heads, low=0)
    t = _check.real("tensor", tensor, low=1)
    e = _check.real("statistic_bytes", statistic_bytes, low=0)
    return n * a * e / t


def feed_forward(
    tokens: ArrayLike, width: ArrayLike, *, branches: ArrayLike = 2, tensor: ArrayLike = 1, element_bytes: ArrayLike = 2
) -> Real:
    r"""Return one side of a feed-forward activation: its input (1 or 2 branches) or its output (1 branch).

    $$ A = \frac{\beta\, n\, f\, e}{t} $$

    Parameters
    ----------
    tokens : array_like
        Rows: tokens of the micro-batch on the GPU, or rows that its experts receive. [token]
    width : array_like
        Feed-forward width f of one branch. [-]
    branches : array_like, default 2
        Branches beta: 2 for the input of a gated activation (gate and up), 1 for a plain one, 1 for the output of either. [-]
    tensor : array_like, default 1
        Tensor-parallel degree (of experts: the expert tensor degree). [-]
    element_bytes : array_like, default 2
        Bytes of one element; 1 where the input is stored in fp8. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    The fused activation keeps its input only [1]_; its output is the input that the second matrix keeps.

    Examples
    --------
    Llama-3.1 8B: 4f in front of and 2f behind the activation, bytes a token.

    >>> feed_forward(1, 14336, branches=[2, 1])
    array([57344., 28672.])

    References
    ----------
    .. [1] Megatron-LM, megatron/core/fusions/fused_bias_swiglu.py:235.
    """
    n = _check.real("tokens", tokens, low=0)
    f = _check.real("width", width, low=0)
    b = _check.real("branches", branches, low=0)
    t = _check.real("tensor", tensor, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    return b * n * f * e / t


def _token_split(
    tokens: ArrayLike, name: str, width: ArrayLike, tensor: ArrayLike, sequence_parallel: ArrayLike
) -> tuple[Real, ...]:
    """Return checked tokens, width and t, and what divides tensors that only sequence parallelism splits."""
    n = _check.real("tokens", tokens, low=0)
    h = _check.real(name, width, low=0)
    t = _check.real("tensor", tensor, low=1)
    sp = _check.real("sequence_parallel", sequence_parallel, low=0, high=1)
    split: Real = np.where(sp > 0, t, 1.0)[()]
    return n, h, t, split
