r"""Activations that a mixture-of-experts layer keeps or holds for a moment.

Symbols: n tokens of the micro-batch on the GPU [token] · h hidden width [-] · E experts, K of them per token [-]
         m width of one expert [-] · t tensor, x expert, u expert-tensor parallel degree [-] · R rows a rank's experts
         receive [token] · e bytes of one element [B]
File and line numbers are of Megatron-LM d98e8a64 and TransformerEngine d0067d0d (2.20.0.dev0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def expert_rows(
    tokens: ArrayLike,
    top_k: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    expert_tensor: ArrayLike = 1,
    imbalance: ArrayLike = 1,
    experts: ArrayLike = 1,
    capacity_factor: ArrayLike = 0,
) -> Real:
    r"""Return the rows that the experts of one rank receive in one micro-batch.

    Expert parallelism cancels: x ranks send, each holds 1/x of the experts. Sequence parallel ranks each route their own
    n/t tokens; u ranks that split one expert all receive its rows:

    $$ R = K\, \frac{n}{t}\, u\, \beta \quad\text{or, dropped and padded,}\quad
       R = E \left\lceil \phi \frac{K n}{t E} \right\rceil u $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the micro-batch on the GPU before tensor parallelism. [token]
    top_k : array_like
        Experts a token visits. [-]
    tensor : array_like, default 1
        Ranks over which the tokens are split in front of the router. [-]
    expert_tensor : array_like, default 1
        Ranks that share each expert's matrices. [-]
    imbalance : array_like, default 1
        Imbalance beta: rows of the busiest rank over the mean. [-]
    experts : array_like, default 1
        Experts of the layer; used with a capacity factor only. [-]
    capacity_factor : array_like, default 0
        Factor phi: rows each expert takes over the mean, padded; 0 = dropless. [-]

    Returns
    -------
    float or ndarray
        Rows R of one rank; shape is the broadcast of all arguments. [token]

    Raises
    ------
    FormulaDomainError
        If a size is negative, a degree < 1, or `imbalance` < 1.

    Notes
    -----
    Dropless routing of a real router varies from step to step; `imbalance` is the caller's assumption.

    Examples
    --------
    Top-8 of 4096 tokens, whatever the expert parallel degree; the padded capacity rounds up for each expert:

    >>> float(expert_rows(4096, 8))
    32768.0
    >>> float(expert_rows(4096, 6, experts=160, capacity_factor=1))
    24640.0

    References
    ----------
    .. [1] Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py:760-830 and pull request 6782.
    """
    n = _check.real("tokens", tokens, low=0)
    k = _check.real("top_k", top_k, low=0)
    t = _check.real("tensor", tensor, low=1)
    u = _check.real("expert_tensor", expert_tensor, low=1)
    busy = _check.real("imbalance", imbalance, low=1)
    E = _check.real("experts", experts, low=1)
    phi = _check.real("capacity_factor", capacity_factor, low=0)
    padded = E * np.ceil(np.round(phi * k * n / (t * E), 9))
    rows: Real = np.where(phi > 0, padded, k * n / t * busy)[()]
    return rows * u


def router_kept(
    tokens: ArrayLike, experts: ArrayLike, *, logit_bytes: ArrayLike = 4, score_bytes: ArrayLike = 12, map_bytes: ArrayLike = 1
) -> Real:
    r"""Return what the router keeps per expert and token: logits, scores, probabilities (fp32) and the routing map.

    $$ A = n E \left( e_{logit} + e_{score} + e_{map} \right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens this rank routes (after sequence parallelism). [token]
    experts : array_like
        Experts E of the layer. [-]
    logit_bytes : array_like, default 4
        Bytes e_logit of one logit. [B]
    score_bytes : array_like, default 12
        Bytes e_score of scores, normalised scores and probabilities of one expert together. [B]
    map_bytes : array_like, default 1
        Bytes e_map of one element of the boolean routing map. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    The exact list depends on the score function and its fusion; 17 bytes is the sum for fp32 routing. The router keeps its
    input in bf16, shared with the norm output [1]_.

    Examples
    --------
    >>> float(router_kept(4096, 256) / 2**20)
    17.0

    References
    ----------
    .. [1] Megatron-LM, megatron/core/transformer/moe/moe_utils.py:1382.
    """
    n = _check.real("tokens", tokens, low=0)
    E = _check.real("experts", experts, low=0)
    each = [
        _check.real(n_, v, low=0)
        for n_, v in (("logit_bytes", logit_bytes), ("score_bytes", score_bytes), ("map_bytes", map_bytes))
    ]
    return n * E * (each[0] + each[1] + each[2])


def row_map_kept(tokens: ArrayLike, experts: ArrayLike, *, index_bytes: ArrayLike = 4) -> Real:
    r"""Return the map from rows to experts that the fused permutation keeps: 2 E + 1 integers a token.

    $$ A = n (2E + 1)\, e_{index} $$

    Parameters
    ----------
    tokens : array_like
        Tokens this rank routes. [token]
    experts : array_like
        Experts E of the layer. [-]
    index_bytes : array_like, default 4
        Bytes e_index of one index. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    The permutation itself keeps no activation.

    Examples
    --------
    >>> float(row_map_kept(4096, 256))
    8404992.0

    References
    ----------
    .. [1] TransformerEngine, transformer_engine/pytorch/permutation.py:519,805.
    """
    n = _check.real("tokens", tokens, low=0)
    E = _check.real("experts", experts, low=0)
    e = _check.real("index_bytes", index_bytes, low=0)
    return n * (2 * E + 1) * e


def expert_input(rows: ArrayLike, width: ArrayLike, *, element_bytes: ArrayLike = 2, probability_bytes: ArrayLike = 8) -> Real:
    r"""Return the sorted rows that the experts keep as input of their first matrix, with their probabilities.

    $$ A = R \left( h e + e_p \right) $$

    Parameters
    ----------
    rows : array_like
        Rows R the rank's experts receive. [token]
    width : array_like
        Width of a row: hidden, or the latent width of LatentMoE. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]
    probability_bytes : array_like, default 8
        Bytes e_p a row of probabilities in fp32, permuted and sorted. [B]

    Returns
    -------
    float or ndarray
        Bytes of one layer and micro-batch. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    The probabilities are applied inside the activation, so neither the experts' output nor the combine's input is kept
    [1]_. Rows on their way (dispatched, received) are freed after the sort: `combine_held`.

    Examples
    --------
    >>> float(expert_input(32768, 7168) / 2**20)
    448.25

    References
    ----------
    .. [1] TransformerEngine, module/grouped_linear.py:930-936; Megatron-LM, core/fusions/fused_bias_swiglu.py:270.
    """
    R = _check.real("rows", rows, low=0)
    h = _check.real("width", width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    p = _check.real("probability_bytes", probability_bytes, low=0)
    return R * (h * e + p)


def combine_held(
    rows: ArrayLike,
    width: ArrayLike,
    tokens: ArrayLike,
    *,
    copies: ArrayLike = 4,
    outputs: ArrayLike = 2,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return what a MoE layer holds for a moment while it combines the experts' outputs in its forward pass.

    Four row-sized tensors live as local variables at once (permuted input, received input, un-sorted output, returned
    output), and beside them the shared experts' output and the combined output:

    $$ A = e \left( c\, R h + o\, n h \right) $$

    Parameters
    ----------
    rows : array_like
        Rows R of the rank's experts. [token]
    width : array_like
        Hidden width. [-]
    tokens : array_like
        Tokens this rank routes. [token]
    copies : array_like, default 4
        Tensors c of the size of all rows alive; 3 with a single local expert, which needs no sort. [-]
    outputs : array_like, default 2
        Outputs o of the size of all tokens alive: the combined one, and the shared experts' where there are any. [-]
    element_bytes : array_like, default 2
        Bytes of one element. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU at that moment, on top of what is kept. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    This, not the backward pass, is the peak of stages with dropless all-to-all dispatch: six measured DeepSeek ranks lie
    within 0.1 % with it and 0.5-2 % too low without.

    Examples
    --------
    >>> float(combine_held(32768, 7168, 4096) / 2**20)
    1904.0

    References
    ----------
    .. [1] Megatron-LM, megatron/core/transformer/moe/moe_layer.py:658-699, token_dispatcher.py:760-830.
    """
    R = _check.real("rows", rows, low=0)
    h = _check.real("width", width, low=0)
    n = _check.real("tokens", tokens, low=0)
    c = _check.real("copies", copies, low=0)
    o = _check.real("outputs", outputs, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return e * h * (c * R + o * n)
