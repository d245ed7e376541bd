r"""Logits and loss: what the output layer of the last stage holds.

Symbols: n tokens of the micro-batch on the GPU [token] · V padded vocabulary [-] · t tensor-parallel degree [-]
         h hidden width [-] · e bytes of one element, b bytes an implementation holds per logit [B]
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def logits_held(
    tokens: ArrayLike, vocab: ArrayLike, bytes_per_logit: ArrayLike, *, tensor: ArrayLike = 1, chunks: ArrayLike = 1
) -> Real:
    r"""Return the bytes that logits, their softmax and their gradients hold together.

    $$ A = \frac{n\, V\, b}{t\, C} $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU. [token]
    vocab : array_like
        Padded vocabulary. [-]
    bytes_per_logit : array_like
        Bytes b the implementation holds per logit at the moment asked for, see Notes. [B]
    tensor : array_like, default 1
        Ranks that split the vocabulary. [-]
    chunks : array_like, default 1
        Pieces C of the sequence whose loss is computed one after the other. [-]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or `tensor` or `chunks` < 1.

    Notes
    -----
    Bytes per logit (forward peak, kept, backward peak): Megatron vocab-parallel 6, 4, 6; its compiled fusion 10, 4, 6
    (measured: fusion is not free memory); the TransformerEngine kernel before July 2026 2, 2, 2 (the gradient overwrites the logits), later 6, 4, 6; plain PyTorch
    14 in the backward pass, compiled 10 [1]_ [2]_.

    Examples
    --------
    A 62,080-wide shard at 131,072 tokens, eager vocab-parallel: 45.5 GiB; 46.2 was measured (SkyRL pull request 1841).

    >>> round(float(logits_held(131072, 62080, 6) / 2**30), 1)
    45.5

    References
    ----------
    .. [1] Megatron-LM d98e8a64, core/tensor_parallel/cross_entropy.py:25,60-110; core/fusions/fused_cross_entropy.py:82.
    .. [2] TransformerEngine, transformer_engine/pytorch/cross_entropy.py:53-79, pull request 3193; torchtitan b5bcd76c,
       torchtitan/components/loss.py:24-180, 501-540.
    """
    n = _check.real("tokens", tokens, low=0)
    V = _check.real("vocab", vocab, low=0)
    b = _check.real("bytes_per_logit", bytes_per_logit, low=0)
    t = _check.real("tensor", tensor, low=1)
    c = _check.real("chunks", chunks, low=1)
    return n * V * b / (t * c)


def output_layer_gradient(
    tokens: ArrayLike, hidden: ArrayLike, *, tensor: ArrayLike = 1, sequence_parallel: ArrayLike = 0, element_bytes: ArrayLike = 2
) -> Real:
    r"""Return the input gradient of the output layer: whole sequence, and its reduce-scattered shard beside it.

    $$ A = n h e \left( 1 + \frac{\sigma}{t} \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU before sequence parallelism. [token]
    hidden : array_like
        Hidden width. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    sequence_parallel : array_like, default 0
        Whether it is so, sigma: 1 where the gradient is reduce-scattered over the sequence, else 0. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes at the moment of the output layer's backward pass. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `tensor` < 1.

    Notes
    -----
    Without sequence parallelism the gradient is all-reduced in place.

    Examples
    --------
    >>> output_layer_gradient(4096, 8192, tensor=[1, 8], sequence_parallel=[0, 1])
    array([67108864., 75497472.])

    References
    ----------
    .. [1] Megatron-LM d98e8a64, megatron/core/tensor_parallel/layers.py:671-790.
    """
    n = _check.real("tokens", tokens, low=0)
    h = _check.real("hidden", hidden, low=0)
    t = _check.real("tensor", tensor, low=1)
    sp = _check.real("sequence_parallel", sequence_parallel, low=0, high=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    return n * h * e * (1 + sp * (t > 1) / t)
