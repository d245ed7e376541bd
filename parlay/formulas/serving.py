r"""Serving: what the K/V cache takes, and the least time that memory or compute allows a step.

Symbols: n tokens [token] · s tokens of a sequence, w window [token] · k key/value heads, or experts of a token [-] · d head size [-]
         r latent width, d_R rotary size [-] · L layers [-] · t tensor-parallel degree [-] · e bytes of an element [B]
         P weights [B] or parameters [-] · K cache [B] · M memory, q usable share · A activations, C context [B] · b bytes of a token
         F matmul rate [FLOP/s] · H memory bandwidth [B/s] · S score FLOPs [FLOP] · E experts [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def grouped_kv_bytes(
    tokens: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    layers: ArrayLike,
    *,
    tensor: ArrayLike = 1,
    element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes of the K/V cache on one GPU, with grouped or full multi-head attention.

    A key and a value of each head, layer and token; a rank holds at least one whole head:

    $$ 2\, n\, L \max\!\left(\frac{k}{t}, 1\right) d\, e $$

    Parameters
    ----------
    tokens : array_like
        Tokens in the cache, over all sequences. [token]
    kv_heads : array_like
        Key/value heads k of a layer. [-]
    head_dim : array_like
        Size d of a head. [-]
    layers : array_like
        Layers L that keep a cache. [-]
    tensor : array_like, default 1
        Tensor-parallel degree. [-]
    element_bytes : array_like, default 2
        Bytes of one element of the cache: 2 for bf16, 1 for fp8. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If `tokens` is not >= 0, or `kv_heads` is not a whole number >= 1, or `head_dim` is not >= 0, or `layers` is not
        >= 0, or `tensor` is not a whole number >= 1, or `element_bytes` is not >= 0.

    Notes
    -----
    Tensor-parallel degrees beyond the number of key/value heads copy heads and save nothing.

    Examples
    --------
    Llama-3.1 8B (32 layers, 8 heads of 128): 131,072 bytes a token.

    >>> float(grouped_kv_bytes(1, 8, 128, 32))
    131072.0

    Four key/value heads on eight ranks are copied (48 layers):

    >>> grouped_kv_bytes(1, 4, 128, 48, tensor=[1, 4, 8])
    array([98304., 24576., 24576.])

    References
    ----------
    .. [1] W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
       arXiv:2309.06180, section 3.
    .. [2] J. Ainslie et al., "GQA", arXiv:2305.13245 (fewer key/value heads than query heads).
    """
    n = _check.real("tokens", tokens, low=0)
    k = _check.whole("kv_heads", kv_heads, low=1)
    d = _check.real("head_dim", head_dim, low=0)
    L = _check.real("layers", layers, low=0)
    t = _check.whole("tensor", tensor, low=1)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 2 * n * L * np.maximum(k / t, 1.0) * d * e


def latent_kv_bytes(
    tokens: ArrayLike, kv_rank: ArrayLike, rope_dim: ArrayLike, layers: ArrayLike, *, element_bytes: ArrayLike = 2
) -> Real:
    r"""Return the bytes of the K/V cache on one GPU with latent attention (MLA).

    A layer keeps one latent and one rotary key a token, for all heads together:

    $$ n\, L\, (r + d_R)\, e $$

    Parameters
    ----------
    tokens : array_like
        Tokens in the cache, over all sequences. [token]
    kv_rank : array_like
        Width r of the latent. [-]
    rope_dim : array_like
        Size of the rotary key that all heads share. [-]
    layers : array_like
        Layers L that keep a cache. [-]
    element_bytes : array_like, default 2
        Bytes of one element of the cache: 2 for bf16, 1 for fp8. [B]

    Returns
    -------
    float or ndarray
        Bytes on one GPU. [B]

    Raises
    ------
    FormulaDomainError
        If `tokens` is not >= 0, or `kv_rank` is not >= 0, or `rope_dim` is not >= 0, or `layers` is not >= 0, or
        `element_bytes` is not >= 0.

    Notes
    -----
    The same on every tensor-parallel rank, since all heads read the one latent. Engines that store the up-projected
    keys and values need as much as full attention.

    Examples
    --------
    DeepSeek-V3: rank 512, rotary 64, 61 layers: 70,272 bytes a token, where full attention with its 128 heads would take 4 MB.

    >>> float(latent_kv_bytes(1, 512, 64, 61))
    70272.0
    >>> latent_kv_bytes([1, 1000], 512, 64, 61, element_bytes=1)
    array([   35136., 35136000.])

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.4 and Table 1.
    """
    n = _check.real("tokens", tokens, low=0)
    r = _check.real("kv_rank", kv_rank, low=0)
    r_R = _check.real("rope_dim", rope_dim, low=0)
    L = _check.real("layers", layers, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return n * L * (r + r_R) * e


def windowed_tokens(context: ArrayLike, window: ArrayLike, *, unified_pages: ArrayLike = 0) -> Real:
    r"""Return the tokens of a sequence that a sliding-window layer keeps in its cache.

    Keys older than the window are never read again; an engine with one page size for all layers keeps them all the
    same:

    $$ \min(s, w)\ \text{ or } s $$

    Parameters
    ----------
    context : array_like
        Tokens s of a sequence so far. [token]
    window : array_like
        Window w of the layer: how many keys a query sees, itself included. [token]
    unified_pages : array_like, default 0
        1 where the engine reserves pages of every layer for the whole sequence, else 0. [-]

    Returns
    -------
    float or ndarray
        Tokens of one sequence. [token]

    Raises
    ------
    FormulaDomainError
        If `context` is not >= 0, or `window` is not > 0, or `unified_pages` is not >= 0 and <= 1.

    Notes
    -----
    Put in place of the tokens of `grouped_kv_bytes` for the layers that have the window, so cost per token is no
    constant of the model.

    Examples
    --------
    gpt-oss-20b, 8,192 tokens, window 128:

    >>> windowed_tokens(8192, 128, unified_pages=[0, 1])
    array([ 128., 8192.])
    >>> float(windowed_tokens(100, 128))
    100.0

    References
    ----------
    .. [1] OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925, section 2 (windows of 128 in every second
       layer).
    .. [2] I. Beltagy et al., "Longformer", arXiv:2004.05150, section 3.1.
    """
    s = _check.real("context", context, low=0)
    w = _check.real("window", window, low=0, open_low=True)
    u = _check.real("unified_pages", unified_pages, low=0, high=1)
    return (1 - u) * np.minimum(s, w) + u * s


def cache_room_tokens(
    memory_bytes: ArrayLike,
    utilization: ArrayLike,
    weight_bytes: ArrayLike,
    activation_bytes: ArrayLike,
    other_bytes: ArrayLike,
    token_bytes: ArrayLike,
) -> Real:
    r"""Return the tokens for which memory is left after everything else.

    What the engine may use, less what it needs before the first token of cache:

    $$ \frac{\max(q M - P - A - C, 0)}{b} $$

    Parameters
    ----------
    memory_bytes : array_like
        Memory of the GPU. [B]
    utilization : array_like
        Share of it that the engine may use. [-]
    weight_bytes : array_like
        Weights on the GPU. [B]
    activation_bytes : array_like
        Peak of the activations during the largest batch, measured by the engine. [B]
    other_bytes : array_like
        Context, graphs and communication buffers. [B]
    token_bytes : array_like
        Cache bytes of one token. [B/token]

    Returns
    -------
    float or ndarray
        Tokens, not rounded to pages. [token]

    Raises
    ------
    FormulaDomainError
        If `memory_bytes` is not >= 0, or `utilization` is not >= 0 and <= 1, or `weight_bytes` is not >= 0, or
        `activation_bytes` is not >= 0, or `other_bytes` is not >= 0, or `token_bytes` is not > 0.

    Notes
    -----
    Layers of one kind; with windows, `windowed_tokens` makes the cost of a token depend on the length. Leaving
    activations and context out overestimates a measured engine by a third.

    Examples
    --------
    Llama-3.1 8B on a 24 GiB card at 0.9: 54,400 tokens counted with weights alone, while the engine kept 1.59 GiB more for
    itself and had room for 41,408 [2]_:

    >>> cache_room_tokens(24 * 2**30, 0.9, 14.96 * 2**30, [0, 1.59 * 2**30], 0, 131072).round(-2).tolist()
    [54400.0, 41400.0]
    >>> cache_room_tokens(80e9, 0.9, [70e9, 75e9], 0, 0, 1e5)
    array([20000.,     0.])

    References
    ----------
    .. [1] W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
       arXiv:2309.06180, section 3.
    .. [2] casys-kaist/LLMServingSim pull request 59 (simulated and real room of one engine).
    """
    M = _check.real("memory_bytes", memory_bytes, low=0)
    q = _check.real("utilization", utilization, low=0, high=1)
    P = _check.real("weight_bytes", weight_bytes, low=0)
    A_ = _check.real("activation_bytes", activation_bytes, low=0)
    C = _check.real("other_bytes", other_bytes, low=0)
    b = _check.real("token_bytes", token_bytes, low=0, open_low=True)
    return np.maximum(q * M - P - A_ - C, 0.0) / b


def decode_floor_s(weight_bytes: ArrayLike, cache_bytes: ArrayLike, hbm_bytes_per_s: ArrayLike) -> Real:
    r"""Return the least time of one decode step that memory allows.

    Every weight and every cached key and value is read once, however many sequences are decoded together:

    $$ \frac{P + K}{H} $$

    Parameters
    ----------
    weight_bytes : array_like
        Weights that the step reads: all of a dense model, the experts that a batch touches of a mixture. [B]
    cache_bytes : array_like
        K/V cache that the step reads, over all sequences. [B]
    hbm_bytes_per_s : array_like
        Memory bandwidth that the kernels reach. [B/s]

    Returns
    -------
    float or ndarray
        Seconds of a step, which makes one token for each sequence. [s]

    Raises
    ------
    FormulaDomainError
        If `weight_bytes` is not >= 0, or `cache_bytes` is not >= 0, or `hbm_bytes_per_s` is not > 0.

    Notes
    -----
    A lower bound: launches, communication and the gap to the datasheet's bandwidth come on top; four measured settings
    of a 7B model on an A100 took 1.4 to 1.9 times as long [2]_.

    Examples
    --------
    Llama-3.1 8B in bf16 on 3.35 TB/s: at best 4.8 ms a token, batch 1.

    >>> round(1e3 * float(decode_floor_s(16.06e9, 0, 3.35e12)), 2)
    4.79
    >>> decode_floor_s(16e9, [0, 16e9], 2e12)
    array([0.008, 0.016])

    References
    ----------
    .. [1] R. Pope et al., "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2.
    .. [2] hahnyuan/LLM-Viewer issue 4.
    """
    P = _check.real("weight_bytes", weight_bytes, low=0)
    K = _check.real("cache_bytes", cache_bytes, low=0)
    H = _check.real("hbm_bytes_per_s", hbm_bytes_per_s, low=0, open_low=True)
    return (P + K) / H


def prefill_floor_s(tokens: ArrayLike, active_parameters: ArrayLike, score_flops: ArrayLike, flops_per_s: ArrayLike) -> Real:
    r"""Return the least time of a prefill that compute allows.

    Two FLOPs a parameter and token, and attention over the prompt:

    $$ \frac{2 n P + S}{F} $$

    Parameters
    ----------
    tokens : array_like
        Tokens of the prompt. [token]
    active_parameters : array_like
        Parameters that each token is multiplied with. [-]
    score_flops : array_like
        FLOPs of the attention scores of the whole prompt, forward. [FLOP]
    flops_per_s : array_like
        Matmul rate that the kernels reach. [FLOP/s]

    Returns
    -------
    float or ndarray
        Seconds. [s]

    Raises
    ------
    FormulaDomainError
        If `tokens` is not >= 0, or `active_parameters` is not >= 0, or `score_flops` is not >= 0, or `flops_per_s` is
        not > 0.

    Notes
    -----
    Compute-bound, which prompts of a few hundred tokens and more are. Logits are computed for the last token alone.

    Examples
    --------
    Llama-3.1 8B, 8,192 tokens at 600 TFLOP/s:

    >>> round(float(prefill_floor_s(8192, 7.5e9, 17.6e12, 600e12)), 3)
    0.234
    >>> prefill_floor_s([1e3, 2e3], 5e9, 0, 1e15)
    array([0.01, 0.02])

    References
    ----------
    .. [1] R. Pope et al., "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2.
    """
    n = _check.real("tokens", tokens, low=0)
    P = _check.real("active_parameters", active_parameters, low=0)
    S = _check.real("score_flops", score_flops, low=0)
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    return (2 * n * P + S) / F


def tokens_per_expert(tokens: ArrayLike, top_k: ArrayLike, experts: ArrayLike) -> Real:
    r"""Return the mean tokens that an expert gets in a step.

    n tokens choose k of E experts each:

    $$ \frac{n k}{E} $$

    Parameters
    ----------
    tokens : array_like
        Tokens n of a step, over all ranks that share the experts. [token]
    top_k : array_like
        Experts k of each token. [-]
    experts : array_like
        Routed experts E. [-]

    Returns
    -------
    float or ndarray
        Tokens of one expert. [token]

    Raises
    ------
    FormulaDomainError
        If `tokens` is not >= 0, or `top_k` is not >= 0, or `experts` is not a whole number >= 1.

    Notes
    -----
    Uniform routing; the busiest expert gets more.

    Examples
    --------
    >>> float(tokens_per_expert(1024, 8, 128))
    64.0
    >>> tokens_per_expert([1, 1024], 8, 256)
    array([3.125e-02, 3.200e+01])

    References
    ----------
    .. [1] N. Shazeer et al., "Outrageously Large Neural Networks", arXiv:1701.06538, section 3.1 (the shrinking batch).
    """
    n = _check.real("tokens", tokens, low=0)
    k = _check.real("top_k", top_k, low=0)
    E = _check.whole("experts", experts, low=1)
    return n * k / E


def experts_touched(tokens: ArrayLike, top_k: ArrayLike, experts: ArrayLike) -> Real:
    r"""Return the mean number of experts that at least one token of a step chooses.

    A token misses an expert with probability 1 - k/E, and n tokens miss it together with its n-th power:

    $$ E\left(1 - \left(1 - \frac{k}{E}\right)^n\right) $$

    Parameters
    ----------
    tokens : array_like
        Tokens n of a step, over all ranks that share the experts. [token]
    top_k : array_like
        Experts k of each token, at most E. [-]
    experts : array_like
        Routed experts E. [-]

    Returns
    -------
    float or ndarray
        Experts whose weights the step reads. [-]

    Raises
    ------
    FormulaDomainError
        If `tokens` is not >= 0, or `top_k` is not >= 0, or `experts` is not a whole number >= 1, or `top_k` >
        `experts`.

    Notes
    -----
    Uniform and independent routing. Decode of a mixture reads these experts' weights, not the active parameters of one
    token.

    Examples
    --------
    One token touches its eight of 128 experts, 64 tokens nearly all:

    >>> experts_touched([1, 64], 8, 128).round(1).tolist()
    [8.0, 125.9]
    >>> float(experts_touched(0, 8, 128))
    0.0

    References
    ----------
    .. [1] N. Shazeer et al., arXiv:1701.06538, section 3.1; the count is the mean of n independent draws.
    """
    n = _check.real("tokens", tokens, low=0)
    k = _check.real("top_k", top_k, low=0)
    E = _check.whole("experts", experts, low=1)
    share = _check.real("top_k / experts", k / E, low=0, high=1)
    return E * (1 - (1 - share) ** n)
