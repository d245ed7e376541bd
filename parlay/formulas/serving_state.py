r"""Serving recurrent mixers (Mamba, gated DeltaNet): the state that a sequence keeps in place of keys and values.

Symbols: I inner width [-] · h heads, d size of a head [-] · N state size [-] · g groups [-] · L layers [-] · c width of the convolution [-]
         k key heads, v value heads [-] · d_k, d_v size of a key, of a value [-] · t tensor-parallel degree [-]
         e_s bytes of a state's element, e_c of the convolution's [B]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def mamba1_state_bytes(
    inner: ArrayLike,
    state: ArrayLike,
    conv: ArrayLike,
    layers: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    state_bytes: ArrayLike = 2,
    conv_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes that one sequence keeps on one GPU in Mamba-1 layers, however long it is.

    Each channel keeps its state and the last inputs of its convolution; the next token brings one more:

    $$ L\, \frac{I}{t} \left( N e_s + (c - 1)\, e_c \right) $$

    Parameters
    ----------
    inner : array_like
        Inner width I. [-]
    state : array_like
        State size N of a channel. [-]
    conv : array_like
        Width c of the causal convolution. [-]
    layers : array_like
        Mamba-1 layers L. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    state_bytes : array_like, default 2
        Bytes of an element of the state: 2 for bf16, 4 for fp32. [B]
    conv_bytes : array_like, default 2
        Bytes of an input of the convolution. [B]

    Returns
    -------
    float or ndarray
        Bytes of one sequence on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If `inner` is not >= 0, or `state` is not >= 0, or `conv` is not a whole number >= 1, or `layers` is not >= 0, or
        `tensor` is not a whole number >= 1, or `state_bytes` is not >= 0, or `conv_bytes` is not >= 0.

    Notes
    -----
    As vLLM keeps it: both in the model's dtype unless it is told otherwise [1]_. The authors' own code keeps all c inputs [2]_.

    Examples
    --------
    Mamba 2.8B: 64 layers of 5,120 channels, 12.5 MB a sequence; with states in fp32 22.9 MB:

    >>> float(mamba1_state_bytes(5120, 16, 4, 64))
    12451840.0
    >>> mamba1_state_bytes(5120, 16, 4, 64, tensor=[1, 2], state_bytes=4)
    array([22937600., 11468800.])

    References
    ----------
    .. [1] vLLM 02d71083, model_executor/layers/mamba/mamba_utils.py (mamba1_state_shape, _mamba_state_dtype).
    .. [2] A. Gu and T. Dao, "Mamba", arXiv:2312.00752; state-spaces/mamba, mamba_ssm/modules/mamba_simple.py
       (allocate_inference_cache).
    """
    I_ = _check.real("inner", inner, low=0)
    N = _check.real("state", state, low=0)
    c = _check.whole("conv", conv, low=1)
    L = _check.real("layers", layers, low=0)
    t = _check.whole("tensor", tensor, low=1)
    e_s = _check.real("state_bytes", state_bytes, low=0)
    e_c = _check.real("conv_bytes", conv_bytes, low=0)
    return L * I_ / t * (N * e_s + (c - 1) * e_c)


def mamba2_state_bytes(
    heads: ArrayLike,
    head_dim: ArrayLike,
    groups: ArrayLike,
    state: ArrayLike,
    conv: ArrayLike,
    layers: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    state_bytes: ArrayLike = 2,
    conv_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes that one sequence keeps on one GPU in Mamba-2 layers, however long it is.

    Each head keeps a matrix, and the convolution over x, B and C all but one of its inputs; a rank holds at least one whole group:

    $$ L \left( \frac{h d}{t} N e_s + \left(\frac{h d}{t} + 2 N \max\!\left(\frac{g}{t}, 1\right)\right) (c - 1)\, e_c \right) $$

    Parameters
    ----------
    heads : array_like
        Heads h. [-]
    head_dim : array_like
        Size d of a head. [-]
    groups : array_like
        Groups g that share B and C. [-]
    state : array_like
        State size N. [-]
    conv : array_like
        Width c of the causal convolution. [-]
    layers : array_like
        Mamba-2 layers L. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    state_bytes : array_like, default 2
        Bytes of an element of the state: 2 for bf16, 4 for fp32. [B]
    conv_bytes : array_like, default 2
        Bytes of an input of the convolution. [B]

    Returns
    -------
    float or ndarray
        Bytes of one sequence on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If `heads` is not >= 0, or `head_dim` is not >= 0, or `groups` is not a whole number >= 1, or `state` is not >= 0, or
        `conv` is not a whole number >= 1, or `layers` is not >= 0, or `tensor` is not a whole number >= 1, or `state_bytes` is
        not >= 0, or `conv_bytes` is not >= 0.

    Notes
    -----
    As vLLM keeps it: both in the model's dtype, the state in fp32 where a model's file asks for it [1]_.

    Examples
    --------
    Nemotron-H 8B: 24 Mamba-2 layers of 128 heads, 51.8 MB a sequence, where its 4 attention layers keep 16 KiB a token:

    >>> float(mamba2_state_bytes(128, 64, 8, 128, 4, 24))
    51806208.0

    Tensor-parallel degrees beyond the number of groups copy B and C:

    >>> mamba2_state_bytes(16, 64, 1, 128, 4, 1, tensor=[1, 8])
    array([269824.,  35072.])

    References
    ----------
    .. [1] vLLM 02d71083, model_executor/layers/mamba/mamba_utils.py (mamba2_state_shape, _mamba_state_dtype).
    .. [2] T. Dao and A. Gu, "Transformers are SSMs", arXiv:2405.21060, section 7.1 (x, B and C go through the convolution).
    """
    h = _check.real("heads", heads, low=0)
    d = _check.real("head_dim", head_dim, low=0)
    g = _check.whole("groups", groups, low=1)
    N = _check.real("state", state, low=0)
    c = _check.whole("conv", conv, low=1)
    L = _check.real("layers", layers, low=0)
    t = _check.whole("tensor", tensor, low=1)
    e_s = _check.real("state_bytes", state_bytes, low=0)
    e_c = _check.real("conv_bytes", conv_bytes, low=0)
    inner = h * d / t
    return L * (inner * N * e_s + (inner + 2 * N * np.maximum(g / t, 1.0)) * (c - 1) * e_c)


def delta_state_bytes(
    key_heads: ArrayLike,
    value_heads: ArrayLike,
    key_dim: ArrayLike,
    value_dim: ArrayLike,
    conv: ArrayLike,
    layers: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    state_bytes: ArrayLike = 2,
    conv_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes that one sequence keeps on one GPU in gated-delta layers, however long it is.

    Each value head keeps a matrix of keys by values, and the convolution over queries, keys and values its last inputs; a rank
    holds at least one whole key head:

    $$ L \left( \frac{v}{t} d_k d_v e_s + \left(2 \max\!\left(\frac{k}{t}, 1\right) d_k + \frac{v}{t} d_v\right) (c - 1)\, e_c \right) $$

    Parameters
    ----------
    key_heads : array_like
        Key heads k, as many as query heads. [-]
    value_heads : array_like
        Value heads v. [-]
    key_dim : array_like
        Size of a key. [-]
    value_dim : array_like
        Size of a value. [-]
    conv : array_like
        Width c of the causal convolution. [-]
    layers : array_like
        Gated-delta layers L. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    state_bytes : array_like, default 2
        Bytes of an element of the state: 2 for bf16, 4 for fp32. [B]
    conv_bytes : array_like, default 2
        Bytes of an input of the convolution. [B]

    Returns
    -------
    float or ndarray
        Bytes of one sequence on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If `key_heads` is not a whole number >= 1, or `value_heads` is not >= 0, or `key_dim` is not >= 0, or `value_dim` is
        not >= 0, or `conv` is not a whole number >= 1, or `layers` is not >= 0, or `tensor` is not a whole number >= 1, or
        `state_bytes` is not >= 0, or `conv_bytes` is not >= 0.

    Notes
    -----
    As vLLM keeps it: both in the model's dtype, the state in fp32 where a model's file asks for it (Qwen3.5) and for Kimi Delta
    Attention always [1]_.

    Examples
    --------
    A layer with 16 key heads and 32 value heads of 128 and the state in fp32: 2 MiB and 48 KiB, or half the state in bf16:

    >>> (delta_state_bytes(16, 32, 128, 128, 4, 1, state_bytes=[4, 2]) / 1024).tolist()
    [2096.0, 1072.0]

    Qwen3-Next 80B-A3B has 36 such layers:

    >>> float(delta_state_bytes(16, 32, 128, 128, 4, 36))
    39518208.0

    References
    ----------
    .. [1] vLLM 02d71083, model_executor/layers/mamba/mamba_utils.py (gated_delta_net_state_shape, kda_state_shape,
       kda_state_dtype).
    .. [2] S. Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3 (the state of a head).
    """
    k = _check.whole("key_heads", key_heads, low=1)
    v = _check.real("value_heads", value_heads, low=0)
    d_k = _check.real("key_dim", key_dim, low=0)
    d_v = _check.real("value_dim", value_dim, low=0)
    c = _check.whole("conv", conv, low=1)
    L = _check.real("layers", layers, low=0)
    t = _check.whole("tensor", tensor, low=1)
    e_s = _check.real("state_bytes", state_bytes, low=0)
    e_c = _check.real("conv_bytes", conv_bytes, low=0)
    return L * (v / t * d_k * d_v * e_s + (2 * np.maximum(k / t, 1.0) * d_k + v / t * d_v) * (c - 1) * e_c)
