r"""Activations that recurrent mixers (Mamba, gated DeltaNet) keep: approximations from the structure of their kernels.

Symbols: n tokens of the micro-batch on the GPU [token] · t tensor-parallel degree [-] · q tokens of a chunk [token]
         e bytes of one element [B]
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def mamba2_kept(
    tokens: ArrayLike,
    inner: ArrayLike,
    groups: ArrayLike,
    state: ArrayLike,
    heads: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    chunk: ArrayLike = 256,
    element_bytes: ArrayLike = 2,
    state_bytes: ArrayLike = 4,
) -> Real:
    r"""Return what a Mamba-2 mixer keeps: projection output, scan inputs and output, chunk states, gated output.

    The fused scan keeps its packed input (z, x, B, C, dt) and its output, recomputes the convolution, and keeps one state
    matrix a chunk; the gated norm's output is the input of the output projection:

    $$ A = \frac{n}{t} \left( e\,(2 I + 2 G N + H) + 2 e I + \frac{e_s I N}{q} \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    inner : array_like
        Inner width I = heads x head size. [-]
    groups : array_like
        Groups G that share B and C. [-]
    state : array_like
        State size N. [-]
    heads : array_like
        Heads H, one time step each. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    chunk : array_like, default 256
        Tokens of one chunk q of the scan. [token]
    element_bytes : array_like, default 2
        Bytes of an activation. [B]
    state_bytes : array_like, default 4
        Bytes e_s of one element of a chunk state (fp32). [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or a degree or `chunk` < 1.

    Notes
    -----
    An approximation from the structure of the fused kernel (mamba_split_conv1d_scan_combined), not from a measured rank.
    Mamba-1 is taken with state size N per channel and no groups: its scan keeps the state every chunk too.

    Examples
    --------
    >>> float(mamba2_kept(1, 8192, 8, 128, 128))
    86272.0

    References
    ----------
    .. [1] T. Dao, A. Gu, "Transformers are SSMs", arXiv:2405.21060, section 6 (chunked state passing).
    """
    n = _check.real("tokens", tokens, low=0)
    inner_ = _check.real("inner", inner, low=0)
    g = _check.real("groups", groups, low=0)
    N = _check.real("state", state, low=0)
    H = _check.real("heads", heads, low=0)
    t = _check.real("tensor", tensor, low=1)
    q = _check.real("chunk", chunk, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    es = _check.real("state_bytes", state_bytes, low=0)
    return n / t * (e * (4 * inner_ + 2 * g * N + H) + es * inner_ * N / q)


def gated_delta_kept(
    tokens: ArrayLike,
    key_width: ArrayLike,
    value_width: ArrayLike,
    value_heads: ArrayLike,
    key_dim: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    chunk: ArrayLike = 64,
    element_bytes: ArrayLike = 2,
    state_bytes: ArrayLike = 2,
) -> Real:
    r"""Return what a gated DeltaNet mixer keeps: convolution in and out of q, k, v, gates, chunk states, gated output.

    $$ A = \frac{n}{t} \left( e\,(2 (2 w_k + w_v) + 3 w_v + 4 H_v) + \frac{e_s w_v d_k}{q} \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    key_width : array_like
        Width w_k: key heads x key size. [-]
    value_width : array_like
        Width w_v: value heads x value size. [-]
    value_heads : array_like
        Heads H_v of values: two gates (fp32) each. [-]
    key_dim : array_like
        Size d_k of a key head: rows of a state matrix. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    chunk : array_like, default 64
        Tokens of one chunk q. [token]
    element_bytes : array_like, default 2
        Bytes of an activation. [B]
    state_bytes : array_like, default 2
        Bytes e_s of one element of a chunk state. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or a degree or `chunk` < 1.

    Notes
    -----
    An approximation from the structure of the chunked kernel, not from a measured rank. The three value-wide tensors are
    the gate z, the scan's output and the gated norm's output.

    Examples
    --------
    Qwen3-Next: 16 key heads and 32 value heads of 128.

    >>> float(gated_delta_kept(1, 2048, 4096, 32, 128))
    73984.0

    References
    ----------
    .. [1] S. Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3 (chunked form).
    """
    n = _check.real("tokens", tokens, low=0)
    wk = _check.real("key_width", key_width, low=0)
    wv = _check.real("value_width", value_width, low=0)
    H = _check.real("value_heads", value_heads, low=0)
    dk = _check.real("key_dim", key_dim, low=0)
    t = _check.real("tensor", tensor, low=1)
    q = _check.real("chunk", chunk, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    es = _check.real("state_bytes", state_bytes, low=0)
    return n / t * (e * (2 * (2 * wk + wv) + 3 * wv + 4 * H) + es * wv * dk / q)
