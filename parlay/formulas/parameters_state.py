r"""Parameters of mixers that keep a state instead of keys and values. Whole counts, exact in float64 up to 2**53.

Symbols: h hidden · a heads · d head size · g groups · n state size · c taps of the convolution · b its bias (1 or 0)
         i inner width · r rank of the time step · K, W widths of all keys and of all values together
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def mamba2_parameters(
    hidden: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    groups: ArrayLike,
    state: ArrayLike,
    conv: ArrayLike,
    conv_bias: ArrayLike = 1,
) -> Real:
    r"""Return the weights of a Mamba-2 mixer.

    Input projection to z, x, B, C and dt; convolution over x, B and C; A, D and the dt bias of each head; gated norm;
    output projection:

    $$ P = h(2 a d + 2 g n + a) + (a d + 2 g n)(c + b) + 3 a + a d + a d h $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    heads : array_like
        Heads a. [-]
    head_dim : array_like
        Head size d; the inner width is a d. [-]
    groups : array_like
        Groups g of B and C. [-]
    state : array_like
        State size n. [-]
    conv : array_like
        Taps c of the convolution. [-]
    conv_bias : array_like, default 1
        1 if the convolution has a bias, 0 if not. [-]

    Returns
    -------
    float or ndarray
        Weights. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    b is conv_bias. Projection biases are left out.

    Examples
    --------
    Nemotron-3-Nano:

    >>> int(mamba2_parameters(2688, 64, 64, 8, 128, 4))
    38742208
    >>> mamba2_parameters(4096, 128, 64, 8, [64, 128], 4)
    array([1.05436544e+08, 1.09635968e+08])

    References
    ----------
    .. [1] T. Dao, A. Gu, "Transformers are SSMs", arXiv:2405.21060.
    """
    h = _check.whole("hidden", hidden, low=1)
    a = _check.whole("heads", heads, low=1)
    d = _check.whole("head_dim", head_dim, low=1)
    g = _check.whole("groups", groups, low=1)
    n = _check.whole("state", state, low=1)
    c = _check.whole("conv", conv, low=1)
    b = _check.whole("conv_bias", conv_bias, low=0)
    inner, mixed = a * d, a * d + 2 * g * n
    return h * (inner + mixed + a) + mixed * (c + b) + 3 * a + inner + inner * h


def mamba1_parameters(
    hidden: ArrayLike, inner: ArrayLike, state: ArrayLike, dt_rank: ArrayLike, conv: ArrayLike, conv_bias: ArrayLike = 1
) -> Real:
    r"""Return the weights of a Mamba-1 mixer.

    Input projection to x and z, convolution, projection to dt, B and C, dt projection with bias, A and D, output projection:

    $$ P = 2 h i + i (c + b) + i (r + 2n) + r i + i + i n + i + i h $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    inner : array_like
        Inner width i. [-]
    state : array_like
        State size n. [-]
    dt_rank : array_like
        Rank r of the time step. [-]
    conv : array_like
        Taps c of the convolution. [-]
    conv_bias : array_like, default 1
        1 if the convolution has a bias, 0 if not. [-]

    Returns
    -------
    float or ndarray
        Weights. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    b is conv_bias. Jamba adds three inner norms of r + 2n weights.

    Examples
    --------
    Jamba v0.1:

    >>> int(mamba1_parameters(4096, 8192, 16, 256, 4))
    105308160
    >>> mamba1_parameters(4096, 8192, [16, 32], 256, 4)
    array([1.05308160e+08, 1.05701376e+08])

    References
    ----------
    .. [1] A. Gu, T. Dao, "Mamba", arXiv:2312.00752.
    """
    h = _check.whole("hidden", hidden, low=1)
    i = _check.whole("inner", inner, low=1)
    n = _check.whole("state", state, low=1)
    r = _check.whole("dt_rank", dt_rank, low=1)
    c = _check.whole("conv", conv, low=1)
    b = _check.whole("conv_bias", conv_bias, low=0)
    return 2 * h * i + i * (c + b) + i * (r + 2 * n) + r * i + i + i * n + i + i * h


def gated_delta_parameters(
    hidden: ArrayLike, key_width: ArrayLike, value_width: ArrayLike, value_heads: ArrayLike, value_dim: ArrayLike, conv: ArrayLike
) -> Real:
    r"""Return the weights of a gated DeltaNet mixer.

    Projections to q, k, v and gate z, and to the step and decay of each head; convolution over q, k and v; decay and step
    bias of each head; norm; output projection:

    $$ P = h(2K + 2W) + 2 h a + c(2K + W) + 2a + d + W h $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    key_width : array_like
        Key heads times key size, K. [-]
    value_width : array_like
        Value heads times value size, W. [-]
    value_heads : array_like
        Value heads a. [-]
    value_dim : array_like
        Value head size d. [-]
    conv : array_like
        Taps c of the convolution. [-]

    Returns
    -------
    float or ndarray
        Weights. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    No biases (Qwen3-Next).

    Examples
    --------
    Qwen3-Next-80B-A3B:

    >>> int(gated_delta_parameters(2048, 2048, 4096, 32, 128, 4))
    33718464
    >>> gated_delta_parameters(2048, 2048, 4096, [16, 32], 128, 4)
    array([33652896., 33718464.])

    References
    ----------
    .. [1] S. Yang et al., "Gated Delta Networks", arXiv:2412.06464.
    """
    h = _check.whole("hidden", hidden, low=1)
    K = _check.whole("key_width", key_width, low=1)
    W = _check.whole("value_width", value_width, low=1)
    a = _check.whole("value_heads", value_heads, low=1)
    d = _check.whole("value_dim", value_dim, low=1)
    c = _check.whole("conv", conv, low=1)
    return h * (2 * K + 2 * W) + 2 * h * a + c * (2 * K + W) + 2 * a + d + W * h
