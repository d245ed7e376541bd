r"""Tensor and sequence parallelism: what a layer sends, and how often.

Symbols: t ranks [-] · T tokens [token] · h hidden width [-] · L layers [-] · e bytes per element [B] · n bytes of an output [B]
         a x b a weight matrix [-] · y inputs of a layer gathered again [-]
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def layer_sent_bytes(ranks: ArrayLike, tokens: ArrayLike, width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes that each rank sends in the forward pass of one layer.

    Two blocks, each an all-reduce of T h elements, or with sequence parallelism a reduce-scatter and an all-gather of the same size:

    $$ 4 \frac{t - 1}{t} T h e $$

    Parameters
    ----------
    ranks : array_like
        Tensor-parallel ranks t. [-]
    tokens : array_like
        Tokens T of a micro-batch, of all tensor-parallel ranks together. [token]
    width : array_like
        Hidden width h. [-]
    element_bytes : array_like, default 2
        Bytes of an activation element. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Attention and MLP split by columns, then rows. The backward sends as much, and more where sequence parallelism
    gathers a saved input again for its weight gradient.

    Examples
    --------
    >>> float(layer_sent_bytes(8, 8192, 4096))
    234881024.0

    >>> layer_sent_bytes([1, 2], 8192, 4096)
    array([0.00000000e+00, 1.34217728e+08])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
    .. [2] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198,
       section 4.2.
    """
    t = _check.whole("ranks", ranks, low=1)
    T = _check.real("tokens", tokens, low=0)
    h = _check.real("width", width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 4 * (t - 1) / t * T * h * e


def all_reduces(layers: ArrayLike) -> Real:
    r"""Return the all-reduces of one micro-batch under tensor parallelism without sequence parallelism.

    One after each of two blocks in the forward, one before each in the backward:

    $$ 4 L $$

    Parameters
    ----------
    layers : array_like
        Layers L. [-]

    Returns
    -------
    float or ndarray
        All-reduces, forward and backward. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    No recomputation, which would repeat the forward's two.

    Examples
    --------
    >>> float(all_reduces(1))
    4.0

    >>> all_reduces([32, 80])
    array([128., 320.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
    """
    L = _check.whole("layers", layers, low=0)
    return 4 * L


def sequence_parallel_gathers(layers: ArrayLike, gathered_again: ArrayLike = 0) -> Real:
    r"""Return the all-gathers of one micro-batch under tensor and sequence parallelism.

    Two in the forward, the adjoints of two reduce-scatters in the backward, and the inputs that weight gradients need whole:

    $$ (4 + y) L $$

    Parameters
    ----------
    layers : array_like
        Layers L. [-]
    gathered_again : array_like, default 0
        Inputs of a layer gathered again for weight gradients: Megatron keeps them split and gathers both, 2. [-]

    Returns
    -------
    float or ndarray
        All-gathers, forward and backward. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    No recomputation.

    Examples
    --------
    As the lesson counts:

    >>> float(sequence_parallel_gathers(1))
    4.0

    >>> sequence_parallel_gathers(32, [0, 2])
    array([128., 192.])

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198,
       section 4.2.
    .. [2] NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py
       (LinearWithGradAccumulationAndAsyncCommunication gathers the input in its backward).
    """
    L = _check.whole("layers", layers, low=0)
    y = _check.whole("gathered_again", gathered_again, low=0)
    return (4 + y) * L


def sequence_parallel_scatters(layers: ArrayLike) -> Real:
    r"""Return the reduce-scatters of one micro-batch under tensor and sequence parallelism.

    Two in the forward, the adjoints of two all-gathers in the backward:

    $$ 4 L $$

    Parameters
    ----------
    layers : array_like
        Layers L. [-]

    Returns
    -------
    float or ndarray
        Reduce-scatters, forward and backward. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    No recomputation.

    Examples
    --------
    >>> float(sequence_parallel_scatters(1))
    4.0

    >>> sequence_parallel_scatters([32, 80])
    array([128., 320.])

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198,
       section 4.2.
    """
    L = _check.whole("layers", layers, low=0)
    return 4 * L


def column_output_sent_bytes(ranks: ArrayLike, output_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends to make the output of a column-split product whole.

    Each rank has a block of columns, which an all-gather puts side by side:

    $$ \frac{t - 1}{t} n $$

    Parameters
    ----------
    ranks : array_like
        Tensor-parallel ranks t. [-]
    output_bytes : array_like
        Bytes n of the whole output. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Nothing is sent where a row-split product follows, which wants the columns split.

    Examples
    --------
    >>> float(column_output_sent_bytes(4, 1024))
    768.0

    >>> column_output_sent_bytes([1, 2], 1024)
    array([  0., 512.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
    """
    t = _check.whole("ranks", ranks, low=1)
    n = _check.real("output_bytes", output_bytes, low=0)
    return (t - 1) / t * n


def row_output_sent_bytes(ranks: ArrayLike, output_bytes: ArrayLike) -> Real:
    r"""Return the bytes that each rank sends to make the output of a row-split product whole.

    Each rank has a summand of the whole output, which an all-reduce adds up:

    $$ 2 \frac{t - 1}{t} n $$

    Parameters
    ----------
    ranks : array_like
        Tensor-parallel ranks t. [-]
    output_bytes : array_like
        Bytes n of the whole output. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    A reduce-scatter sends half and leaves the sum split by tokens.

    Examples
    --------
    4,096 tokens of 1,024 fp32 numbers over four ranks:

    >>> float(row_output_sent_bytes(4, 4096 * 1024 * 4))
    25165824.0

    >>> row_output_sent_bytes([1, 2], 1024)
    array([   0., 1024.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
    """
    t = _check.whole("ranks", ranks, low=1)
    n = _check.real("output_bytes", output_bytes, low=0)
    return 2 * (t - 1) / t * n


def shard_bytes(ranks: ArrayLike, rows: ArrayLike, columns: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes of a rank's shard of a weight matrix.

    Split by rows or by columns:

    $$ \frac{a b e}{t} $$

    Parameters
    ----------
    ranks : array_like
        Tensor-parallel ranks t. [-]
    rows : array_like
        Rows of a weight matrix. [-]
    columns : array_like
        Columns of it. [-]
    element_bytes : array_like, default 2
        Bytes of an activation element. [B]

    Returns
    -------
    float or ndarray
        Bytes per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    t divides the side that is split.

    Examples
    --------
    8,192 x 32,768 in fp32 over four ranks:

    >>> float(shard_bytes(4, 8192, 32768, 4))
    268435456.0

    >>> shard_bytes([1, 2], 8, 8)
    array([128.,  64.])

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
    """
    t = _check.whole("ranks", ranks, low=1)
    a = _check.real("rows", rows, low=0)
    b = _check.real("columns", columns, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return a * b * e / t
