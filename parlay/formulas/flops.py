r"""Model FLOPs. A product of m x k by k x n takes 2 m n k; a backward pass takes two products for each forward one.

Symbols: P weights that a token is multiplied with · c keys that a query meets on average · a heads
         d_k, d_v sizes of a query/key and of a value head · s sequence length · w window · n state size
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def matmul_flops(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Real:
    r"""Return the FLOPs of one matrix product.

    One multiplication and one addition for each of m n k terms:

    $$ 2 m n k $$

    Parameters
    ----------
    m : array_like
        Rows m of the first matrix and of the result. [-]
    n : array_like
        Columns n of the second matrix and of the result. [-]
    k : array_like
        Inner size k. [-]

    Returns
    -------
    float or ndarray
        FLOPs. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    Dense.

    Examples
    --------
    >>> float(matmul_flops(8192, 4096, 4096))
    274877906944.0
    >>> matmul_flops([1, 2], 4, 8)
    array([ 64., 128.])

    References
    ----------
    .. [1] G. Golub, C. Van Loan, "Matrix Computations", section 1.1.
    """
    M = _check.real("m", m, low=0)
    N = _check.real("n", n, low=0)
    K = _check.real("k", k, low=0)
    return 2 * M * N * K


def training_flops(matmul_weights: ArrayLike, score_flops: ArrayLike = 0) -> Real:
    r"""Return the model FLOPs of one token, forward and backward.

    Two FLOPs a weight forward, and twice the forward again for the gradients of inputs and of weights:

    $$ 3\,(2 P + S) $$

    Parameters
    ----------
    matmul_weights : array_like
        Weights P that each token is multiplied with. [-]
    score_flops : array_like, default 0
        FLOPs S of attention scores (or state updates) of one token, forward. [FLOP]

    Returns
    -------
    float or ndarray
        FLOPs per token. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    Attention's backward is counted as twice its forward, as every published convention does; the kernels run 2.5
    times. Recompute is not counted (that would be HFU).

    Examples
    --------
    Qwen3-30B-A3B in torchtitan's convention at 8,192 tokens:

    >>> int(training_flops(3041867776, 2 * 2 * 8192 * 32 * 128 * 48))
    37578559488
    >>> training_flops([1e9, 2e9])
    array([6.0e+09, 1.2e+10])

    References
    ----------
    .. [1] J. Kaplan et al., arXiv:2001.08361, section 2.1; A. Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B.
    """
    P = _check.real("matmul_weights", matmul_weights, low=0)
    S = _check.real("score_flops", score_flops, low=0)
    return 3 * (2 * P + S)


def adapter_training_flops(matmul_weights: ArrayLike, adapter_weights: ArrayLike, score_flops: ArrayLike = 0) -> Real:
    r"""Return the model FLOPs of one token where adapters are trained beside frozen weights.

    A frozen weight takes part in the forward and in the gradient of its input, but has no gradient of its own; adapters
    and scores have both:

    $$ 2 \cdot 2 P + 3\,(2 A + S) $$

    Parameters
    ----------
    matmul_weights : array_like
        Frozen weights P that each token is multiplied with. [-]
    adapter_weights : array_like
        Trained weights A that each token is multiplied with. [-]
    score_flops : array_like, default 0
        FLOPs S of attention scores (or state updates) of one token, forward. [FLOP]

    Returns
    -------
    float or ndarray
        FLOPs per token. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    What lies before the first adapter needs no gradient of its input either; that part of one layer is counted all the same.

    Examples
    --------
    Two thirds of what training everything takes, where adapters and scores are small:

    >>> float(adapter_training_flops(8e9, 0) / training_flops(8e9))
    0.6666666666666666
    >>> adapter_training_flops(8e9, [0, 4e7])
    array([3.200e+10, 3.224e+10])

    References
    ----------
    .. [1] E. Hu et al., arXiv:2106.09685, sections 4.1 and 4.2: no gradients for the pre-trained weights.
    """
    P = _check.real("matmul_weights", matmul_weights, low=0)
    A = _check.real("adapter_weights", adapter_weights, low=0)
    S = _check.real("score_flops", score_flops, low=0)
    return 4 * P + 3 * (2 * A + S)


def attention_flops(context: ArrayLike, heads: ArrayLike, qk_dim: ArrayLike, v_dim: ArrayLike) -> Real:
    r"""Return the forward FLOPs of one query's attention.

    Scores over the keys, then the weighted sum of the values:

    $$ 2 c\, a (d_k + d_v) $$

    Parameters
    ----------
    context : array_like
        Keys c that a query meets: s, s/2 with a causal mask, window_context with a window. [-]
    heads : array_like
        Query heads a. [-]
    qk_dim : array_like
        Size of a query or key head. [-]
    v_dim : array_like
        Size of a value head. [-]

    Returns
    -------
    float or ndarray
        FLOPs per token and layer. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    Softmax is not counted.

    Examples
    --------
    DeepSeek-V3's 61 layers at 4,096 tokens, causal, forward and backward:

    >>> float(3 * 61 * attention_flops(2048, 128, 192, 128))
    30702305280.0
    >>> attention_flops([4096, 8192], 32, 128, 128)
    array([6.71088640e+07, 1.34217728e+08])

    References
    ----------
    .. [1] T. Dao et al., arXiv:2205.14135; NVIDIA/Megatron-LM d98e8a64, megatron/training/training.py:1063-1300.
    """
    c = _check.real("context", context, low=0)
    a = _check.real("heads", heads, low=0)
    dk = _check.real("qk_dim", qk_dim, low=0)
    dv = _check.real("v_dim", v_dim, low=0)
    return 2 * c * a * (dk + dv)


def window_context(window: ArrayLike, seq_len: ArrayLike) -> Real:
    r"""Return the keys that a query meets on average under a causal sliding window.

    The first w queries see fewer than w keys:

    $$ w - \frac{w (w - 1)}{2 s} $$

    Parameters
    ----------
    window : array_like
        Tokens w that a query sees, itself included. [-]
    seq_len : array_like
        Sequence length s >= w. [-]

    Returns
    -------
    float or ndarray
        Keys per query. [-]

    Raises
    ------
    FormulaDomainError
        If an argument is below 1, or the window longer than the sequence.

    Notes
    -----
    Counts whole positions, the diagonal included; w = s gives (s + 1)/2.

    Examples
    --------
    >>> float(window_context(1024, 8192))
    960.0625
    >>> window_context([1, 8], 8)
    array([1. , 4.5])

    References
    ----------
    .. [1] NVIDIA-NeMo/Megatron-Bridge 067f987d, flop_utils.py:617-1010.
    """
    s = _check.real("seq_len", seq_len, low=1)
    w = _check.real("window", window, low=1)
    _check.real("window / seq_len", w / s, low=0, high=1)
    return w - w * (w - 1) / (2 * s)


def compressed_context(seq_len: ArrayLike, rate: ArrayLike, top: ArrayLike = math.inf) -> Real:
    r"""Return the compressed entries that a query meets on average under a causal mask.

    Position p has p / r entries behind it, of which it reads no more than k:

    $$ c = \min\left(k, \frac{s}{r}\right) - \frac{r}{2 s} \min\left(k, \frac{s}{r}\right)^2 $$

    Parameters
    ----------
    seq_len : array_like
        Sequence length s. [-]
    rate : array_like
        Tokens r that one entry stands for. [-]
    top : array_like, default infinity
        Entries k that an index picks for a query. [-]

    Returns
    -------
    float or ndarray
        Entries. [-]

    Raises
    ------
    FormulaDomainError
        If an argument is below 1.

    Notes
    -----
    The window of plain tokens beside the entries is not counted (window_context), nor are the index's own scores.

    Examples
    --------
    DeepSeek-V4 at 65,536 tokens: entries of 128 tokens, all read; entries of 4, of which 512 are read:

    >>> float(compressed_context(65536, 128)), float(compressed_context(65536, 4, 512))
    (256.0, 504.0)
    >>> compressed_context([1024, 4096], 4, 512)
    array([128., 384.])

    References
    ----------
    .. [1] huggingface/transformers, models/deepseek_v4 (compress_rates, index_topk).
    """
    s = _check.real("seq_len", seq_len, low=1)
    r = _check.real("rate", rate, low=1)
    k = _check.real("top", top, low=1)
    short = np.minimum(k, s / r)  # entries behind the last position that it reads
    return short - short * short * r / (2 * s)


def state_flops(inner: ArrayLike, state: ArrayLike, operations: ArrayLike = 7) -> Real:
    r"""Return the forward FLOPs of one token's state update and read-out in a linear-attention or state-space mixer.

    Each element of the i x n state is decayed, updated by an outer product, and read by a product:

    $$ o\, i\, n $$

    Parameters
    ----------
    inner : array_like
        Inner width i (value heads times value size). [-]
    state : array_like
        State size n (key size). [-]
    operations : array_like, default 7
        FLOPs o of one state element and token: 7 for a Mamba scan, 8 for the gated delta rule. [FLOP]

    Returns
    -------
    float or ndarray
        FLOPs per token and layer. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    The recurrent form; chunked kernels do more, to run on matmul units.

    Examples
    --------
    >>> float(state_flops(4096, 128))
    3670016.0
    >>> state_flops(4096, [64, 128], 8)
    array([2097152., 4194304.])

    References
    ----------
    .. [1] NVIDIA/Megatron-LM d98e8a64, megatron/training/training.py:840-1008 (7 and 8).
    .. [2] T. Dao, A. Gu, "Transformers are SSMs", arXiv:2405.21060, section 6.
    """
    i = _check.real("inner", inner, low=0)
    n = _check.real("state", state, low=0)
    o = _check.real("operations", operations, low=0)
    return o * i * n


def recompute_flops(forward_flops: ArrayLike, recomputed_share: ArrayLike) -> Real:
    r"""Return the hardware FLOPs of a step with recompute.

    A forward, twice that for the gradients, and the recomputed share once more:

    $$ F (3 + r) $$

    Parameters
    ----------
    forward_flops : array_like
        FLOPs F of one forward pass. [FLOP]
    recomputed_share : array_like
        Share r of the forward that runs again, 0 to 1. [-]

    Returns
    -------
    float or ndarray
        FLOPs that the hardware does (HFU's numerator). [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative or the share above 1.

    Notes
    -----
    r = 1 is full recompute: HFU = 4/3 MFU.

    Examples
    --------
    >>> float(recompute_flops(1.0, 1.0))
    4.0
    >>> recompute_flops(3.0, [0, 1])
    array([ 9., 12.])

    References
    ----------
    .. [1] V. Korthikanti et al., arXiv:2205.05198, section 6.
    """
    F = _check.real("forward_flops", forward_flops, low=0)
    r = _check.real("recomputed_share", recomputed_share, low=0, high=1)
    return F * (3 + r)
