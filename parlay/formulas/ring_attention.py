r"""Ring attention: the transfer of K/V blocks must hide behind the attention it feeds.

Symbols: c block [token] · F matmul rate [FLOP/s] · W one-way ring bandwidth per device [B/s] · N ranks of the ring [-]
         g query heads per K/V head [-] · e bytes per K/V element [B] · m share of scores computed [-]
         q query heads x head size [-] · w K/V heads x head size [-] · t, u compute and transfer time of a round [s]
         d head size, which cancels [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def ring_block_min(
    flops_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    queries_per_kv: ArrayLike = 1,
    kv_element_bytes: ArrayLike = 2,
    score_share: ArrayLike = 1,
) -> Real:
    r"""Return the smallest block at which a ring step's K/V transfer is hidden by its attention.

    One step computes $4 m c^2 d$ FLOP ($QK^\top$ and $PV$, $d$ = query heads x head dim) while it passes on
    $2 c (d/g) e$ bytes (K and V). The width $d$ cancels:

    $$ \frac{4 m c^2 d}{F} \ge \frac{2 c\, d\, e}{g W} \quad\Longleftrightarrow\quad c \ge \frac{e F}{2 m g W} $$

    Parameters
    ----------
    flops_per_s : array_like
        Matmul rate one device reaches inside attention, not the datasheet peak. [FLOP/s]
    link_bytes_per_s : array_like
        Bandwidth of the slowest hop of the ring, one direction, per device. [B/s]
    queries_per_kv : array_like, default 1
        Query heads per K/V head. [-]
    kv_element_bytes : array_like, default 2
        Bytes of one K/V element on the wire: 2 for bf16, 1 for fp8. [B]
    score_share : array_like, default 1
        Share of each c x c score block that is computed: 1 for full attention, 0.5 for causal attention with striped
        or zig-zag placement. Contiguous causal placement stays at 1, as the last device computes whole blocks and all
        others wait. [-]

    Returns
    -------
    float or ndarray
        Block size c per device, not rounded. [token]

    Raises
    ------
    FormulaDomainError
        If a rate or size is not > 0, `queries_per_kv` < 1, or `score_share` not in (0, 1].

    Notes
    -----
    Forward pass, bandwidth-bound ring. Out of scope: hop latency (it adds c-independent time, so d no longer
    cancels), K/V kept as an MLA latent, and the backward pass (`ring_block_min_backward`).

    Examples
    --------
    A100 over NVLink, bf16, MHA, full attention: Table 2 of [1]_ prints 1.0e3.

    >>> float(ring_block_min(312e12, 300e9))
    1040.0

    Causal doubles the block, eight query heads per K/V head divide it by eight:

    >>> ring_block_min(312e12, [300e9, 12.5e9], queries_per_kv=8, score_share=0.5)
    array([ 260., 6240.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    .. [2] W. Brandon et al., "Striped Attention", arXiv:2311.09431.
    """
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    W = _check.real("link_bytes_per_s", link_bytes_per_s, low=0, open_low=True)
    g = _check.real("queries_per_kv", queries_per_kv, low=1)
    e = _check.real("kv_element_bytes", kv_element_bytes, low=0, open_low=True)
    m = _check.real("score_share", score_share, low=0, high=1, open_low=True)
    return e * F / (2 * m * g * W)


def ring_block_min_backward(
    flops_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    queries_per_kv: ArrayLike = 1,
    kv_element_bytes: ArrayLike = 2,
    score_share: ArrayLike = 1,
) -> Real:
    r"""Return the smallest block at which a backward ring step's transfers are hidden by its attention.

    Flash attention's backward does five products where the forward does two, 2.5 times its FLOPs, and passes on
    the gradients of K and V beside K and V, twice its bytes:

    $$ \frac{10 m c^2 d}{F} \ge \frac{4 c\, d\, e}{g W} \quad\Longleftrightarrow\quad c \ge \frac{2 e F}{5 m g W} $$

    Parameters
    ----------
    flops_per_s : array_like
        Matmul rate one device reaches inside attention, not the datasheet peak. [FLOP/s]
    link_bytes_per_s : array_like
        Bandwidth of the slowest hop of the ring, one direction, per device. [B/s]
    queries_per_kv : array_like, default 1
        Query heads per K/V head. [-]
    kv_element_bytes : array_like, default 2
        Bytes of one K/V element on the wire: 2 for bf16, 1 for fp8. [B]
    score_share : array_like, default 1
        Share of each c x c score block that is computed: 1 for full attention, 0.5 for causal attention with striped
        or zig-zag placement. Contiguous causal placement stays at 1, as the last device computes whole blocks and all
        others wait. [-]

    Returns
    -------
    float or ndarray
        Block size c per device, not rounded. [token]

    Raises
    ------
    FormulaDomainError
        If a rate or size is not > 0, `queries_per_kv` < 1, or `score_share` not in (0, 1].

    Notes
    -----
    Gradients travel in the type of K and V; frameworks that accumulate them in fp32 send 1.5 times the bytes. Equal
    rate in both passes, which real kernels miss by 20 to 30 %.

    Examples
    --------
    0.8 of the forward's 1,040:

    >>> float(ring_block_min_backward(312e12, 300e9))
    832.0

    >>> ring_block_min_backward(1e15, [450e9, 50e9], queries_per_kv=8)
    array([ 222.22222222, 2000.        ])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    .. [2] T. Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1.
    """
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    W = _check.real("link_bytes_per_s", link_bytes_per_s, low=0, open_low=True)
    g = _check.real("queries_per_kv", queries_per_kv, low=1)
    e = _check.real("kv_element_bytes", kv_element_bytes, low=0, open_low=True)
    m = _check.real("score_share", score_share, low=0, high=1, open_low=True)
    return 2 * e * F / (5 * m * g * W)


def round_flops(block_tokens: ArrayLike, query_width: ArrayLike, score_share: ArrayLike = 1) -> Real:
    r"""Return the FLOPs of one round of ring attention on one rank.

    Two products of c x c scores with all query heads:

    $$ 4 m c^2 q $$

    Parameters
    ----------
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    query_width : array_like
        Query heads times head size, a d. [-]
    score_share : array_like, default 1
        Share of each c x c score block that is computed: 1 for full attention, 0.5 for causal attention with striped
        or zig-zag placement. Contiguous causal placement stays at 1, as the last device computes whole blocks and all
        others wait. [-]

    Returns
    -------
    float or ndarray
        FLOPs, forward. [FLOP]

    Raises
    ------
    FormulaDomainError
        If an argument is negative or `score_share` not in (0, 1].

    Notes
    -----
    Equal head sizes of keys and values. The backward does 2.5 times as many.

    Examples
    --------
    16,384 tokens of width 4,096: 4.40 TFLOP.

    >>> float(round_flops(16384, 4096))
    4398046511104.0

    >>> round_flops([1, 2], 8)
    array([ 32., 128.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    c = _check.real("block_tokens", block_tokens, low=0)
    q = _check.real("query_width", query_width, low=0)
    m = _check.real("score_share", score_share, low=0, high=1, open_low=True)
    return 4 * m * c**2 * q


def round_bytes(block_tokens: ArrayLike, kv_width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes that each rank passes on in one round of the forward ring.

    A block of keys and one of values:

    $$ 2 c w e $$

    Parameters
    ----------
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    Grouped-query attention narrows w; an MLA latent would send its own width once.

    Examples
    --------
    268 MB of multi-head attention:

    >>> float(round_bytes(16384, 4096))
    268435456.0

    >>> round_bytes(16384, [4096, 1024])
    array([2.68435456e+08, 6.71088640e+07])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    c = _check.real("block_tokens", block_tokens, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 2 * c * w * e


def ring_sent_bytes(ranks: ArrayLike, block_tokens: ArrayLike, kv_width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes that each rank sends in the forward pass of one layer's ring.

    Every block visits the N - 1 other ranks:

    $$ 2 (N - 1) c w e $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

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
    The backward sends twice as much, or more where it accumulates in fp32, and one hop more for the gradients to
    reach home.

    Examples
    --------
    Llama-3-8B, 65,536 tokens over 8 ranks:

    >>> float(ring_sent_bytes(8, 8192, 1024))
    234881024.0

    >>> ring_sent_bytes([1, 8], 16384, 4096)
    array([0.00000000e+00, 1.87904819e+09])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    .. [2] deepspeedai/DeepSpeed issue 6808 (ring against Ulysses).
    """
    N = _check.whole("ranks", ranks, low=1)
    c = _check.real("block_tokens", block_tokens, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return 2 * (N - 1) * c * w * e


def ring_held_bytes(block_tokens: ArrayLike, query_width: ArrayLike, kv_width: ArrayLike, element_bytes: ArrayLike = 2) -> Real:
    r"""Return the bytes of blocks that one rank holds during a round.

    Queries and output, and keys and values twice, the block in use and the one that arrives:

    $$ (2 c q + 4 c w) e $$

    Parameters
    ----------
    block_tokens : array_like
        Tokens c of a rank's block. [token]
    query_width : array_like
        Query heads times head size, a d. [-]
    kv_width : array_like
        Key/value heads times head size, k d. [-]
    element_bytes : array_like, default 2
        Bytes of one K or V element on the wire. [B]

    Returns
    -------
    float or ndarray
        Bytes per layer, whatever the length of the sequence. [B]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    Six equal blocks where q = w. The statistics of the softmax (4 bytes a row and head) come on top; Transformer
    Engine keeps more, see `activations_context.ring_forward_held`.

    Examples
    --------
    6 c h elements of bf16:

    >>> float(ring_held_bytes(16384, 4096, 4096))
    805306368.0

    >>> ring_held_bytes(1, [8, 16], 8)
    array([ 96., 128.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    c = _check.real("block_tokens", block_tokens, low=0)
    q = _check.real("query_width", query_width, low=0)
    w = _check.real("kv_width", kv_width, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    return (2 * c * q + 4 * c * w) * e


def ring_forward_s(ranks: ArrayLike, round_compute_s: ArrayLike, round_transfer_s: ArrayLike) -> Real:
    r"""Return the time of a forward ring whose transfers run beside the attention.

    Each of N - 1 rounds takes the longer of computing and passing on; the last block is not passed on:

    $$ (N - 1)\max(t, u) + t $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    round_compute_s : array_like
        Time t of one round's attention on the slowest rank. [s]
    round_transfer_s : array_like
        Time u to pass one block on. [s]

    Returns
    -------
    float or ndarray
        Time of one layer's ring. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Equal rounds. Kernels beside a transfer lose some of their rate to it. Contiguous causal placement has a cheaper
    first round: see `ring_placement`.

    Examples
    --------
    128k tokens over 8 ranks on a network of 50 GB/s: 4.45 ms to compute, 5.37 to pass on.

    >>> float(ring_forward_s(8, 4.45, 5.37).round(2))
    42.04

    >>> ring_forward_s([1, 8], 4.0, 1.0)
    array([ 4., 32.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    N = _check.whole("ranks", ranks, low=1)
    t = _check.real("round_compute_s", round_compute_s, low=0)
    u = _check.real("round_transfer_s", round_transfer_s, low=0)
    return (N - 1) * np.maximum(t, u) + t


def ring_exposed_s(ranks: ArrayLike, round_compute_s: ArrayLike, round_transfer_s: ArrayLike) -> Real:
    r"""Return how long a forward ring waits for transfers.

    What a round's transfer exceeds its attention by, in N - 1 rounds:

    $$ (N - 1)\max(u - t, 0) $$

    Parameters
    ----------
    ranks : array_like
        Ranks N of the ring. [-]
    round_compute_s : array_like
        Time t of one round's attention on the slowest rank. [s]
    round_transfer_s : array_like
        Time u to pass one block on. [s]

    Returns
    -------
    float or ndarray
        Time beyond the attention itself. [s]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    As `ring_forward_s`.

    Examples
    --------
    >>> float(ring_exposed_s(8, 4.0, 5.0))
    7.0

    >>> ring_exposed_s(8, 4.0, [1.0, 6.0])
    array([ 0., 14.])

    References
    ----------
    .. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
       arXiv:2310.01889, section 3.
    """
    N = _check.whole("ranks", ranks, low=1)
    t = _check.real("round_compute_s", round_compute_s, low=0)
    u = _check.real("round_transfer_s", round_transfer_s, low=0)
    return (N - 1) * np.maximum(u - t, 0.0)
