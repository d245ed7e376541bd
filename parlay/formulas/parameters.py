r"""Parameters of a model's parts. Whole counts, exact in float64 up to 2**53.

Symbols: h hidden · a, k query and K/V heads · d head size · f MLP width · E experts · V vocabulary
         r_q, r_kv ranks of latent attention · d_n, d_r, d_v its head sizes (without rotary, rotary, value)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def attention_parameters(hidden: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, head_dim: ArrayLike) -> Real:
    r"""Return the weights of softmax attention with grouped keys and values.

    Projections to queries, to keys and values, and back:

    $$ P = h a d + 2 h k d + a d h $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    heads : array_like
        Query heads a. [-]
    kv_heads : array_like
        Key/value heads k. [-]
    head_dim : array_like
        Head size d; a d need not equal h. [-]

    Returns
    -------
    float or ndarray
        Weights, biases left out. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    Add qkv biases (a + 2k) d, an output bias h, and q/k norms where a model has them.

    Examples
    --------
    Llama-3.1-8B:

    >>> int(attention_parameters(4096, 32, 8, 128))
    41943040
    >>> attention_parameters(4096, 32, [8, 32], 128)
    array([41943040., 67108864.])

    References
    ----------
    .. [1] J. Ainslie et al., "GQA", arXiv:2305.13245.
    """
    h = _check.whole("hidden", hidden, low=1)
    a = _check.whole("heads", heads, low=1)
    k = _check.whole("kv_heads", kv_heads, low=1)
    d = _check.whole("head_dim", head_dim, low=1)
    return h * a * d + 2 * h * k * d + a * d * h


def latent_attention_parameters(
    hidden: ArrayLike,
    heads: ArrayLike,
    q_rank: ArrayLike,
    kv_rank: ArrayLike,
    nope_dim: ArrayLike,
    rope_dim: ArrayLike,
    v_dim: ArrayLike,
) -> Real:
    r"""Return the weights of multi-head latent attention, its two inner norms included.

    Down to the ranks, up to the heads, and the output projection:

    $$ P = h r_q + r_q + r_q a (d_n + d_r) + h (r_{kv} + d_r) + r_{kv} + r_{kv} a (d_n + d_v) + a d_v h $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    heads : array_like
        Heads a. [-]
    q_rank : array_like
        Rank r_q of the queries; 0 for a full projection. [-]
    kv_rank : array_like
        Rank r_kv of keys and values. [-]
    nope_dim : array_like
        Head size d_n without rotary embedding. [-]
    rope_dim : array_like
        Rotary head size d_r, shared by all heads for keys. [-]
    v_dim : array_like
        Value head size d_v. [-]

    Returns
    -------
    float or ndarray
        Weights; with r_q = 0 the query part is h a (d_n + d_r). [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    The norms have one weight a channel.

    Examples
    --------
    DeepSeek-V3:

    >>> int(latent_attention_parameters(7168, 128, 1536, 512, 128, 64, 128))
    187107328
    >>> latent_attention_parameters(2048, 16, [0, 1536], 512, 128, 64, 128)
    array([13763072., 15337472.])

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.
    """
    h = _check.whole("hidden", hidden, low=1)
    a = _check.whole("heads", heads, low=1)
    rq = _check.whole("q_rank", q_rank, low=0)
    rkv = _check.whole("kv_rank", kv_rank, low=1)
    dn = _check.whole("nope_dim", nope_dim, low=0)
    dr = _check.whole("rope_dim", rope_dim, low=0)
    dv = _check.whole("v_dim", v_dim, low=1)
    up = a * (dn + dr)
    queries = np.where(rq > 0, h * rq + rq + rq * up, h * up)
    return queries + h * (rkv + dr) + rkv + rkv * a * (dn + dv) + a * dv * h


def mlp_parameters(hidden: ArrayLike, width: ArrayLike, matrices: ArrayLike = 3) -> Real:
    r"""Return the weights of a feed-forward part.

    Every matrix joins the hidden size and the inner width:

    $$ P = c\, h f,\quad c \in \{2, 3\} $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    width : array_like
        Inner width f. [-]
    matrices : array_like, default 3
        Matrices c: 3 for a gated MLP (gate, up, down), 2 for a plain one. [-]

    Returns
    -------
    float or ndarray
        Weights, biases left out. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    Biases add f a matrix into the width and h for the one out of it.

    Examples
    --------
    Llama-3.1-8B, and a GPT with four times the hidden size:

    >>> int(mlp_parameters(4096, 14336))
    176160768
    >>> mlp_parameters([1024, 2048], [4096, 8192], 2)
    array([ 8388608., 33554432.])

    References
    ----------
    .. [1] N. Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
    """
    h = _check.whole("hidden", hidden, low=1)
    f = _check.whole("width", width, low=1)
    c = _check.whole("matrices", matrices, low=1)
    return c * h * f


def expert_parameters(hidden: ArrayLike, width: ArrayLike, experts: ArrayLike, matrices: ArrayLike = 3) -> Real:
    r"""Return the weights of all routed experts of a layer, without the router.

    Each expert is a feed-forward part of its own:

    $$ P = E\, c\, h f $$

    Parameters
    ----------
    hidden : array_like
        Width h that the experts read and write (the latent width under LatentMoE). [-]
    width : array_like
        Inner width f of one expert. [-]
    experts : array_like
        Experts E. [-]
    matrices : array_like, default 3
        Matrices c of one expert. [-]

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
    The router adds h E, shared experts their own mlp_parameters.

    Examples
    --------
    Mixtral 8x7B:

    >>> int(expert_parameters(4096, 14336, 8))
    1409286144
    >>> expert_parameters(7168, 2048, [1, 256])
    array([4.40401920e+07, 1.12742892e+10])

    References
    ----------
    .. [1] N. Shazeer et al., "Outrageously Large Neural Networks", arXiv:1701.06538.
    """
    h = _check.whole("hidden", hidden, low=1)
    f = _check.whole("width", width, low=1)
    E = _check.whole("experts", experts, low=1)
    c = _check.whole("matrices", matrices, low=1)
    return E * c * h * f


def router_parameters(hidden: ArrayLike, experts: ArrayLike) -> Real:
    r"""Return the weights of a router.

    One score for each expert:

    $$ P = h E $$

    Parameters
    ----------
    hidden : array_like
        Hidden size h. [-]
    experts : array_like
        Experts E. [-]

    Returns
    -------
    float or ndarray
        Weights, biases and score corrections left out. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    DeepSeek-V3's score correction (E values a layer) is set by a rule, not by a gradient: transformers keeps it as a
    buffer, DeepSeek's own code as a parameter. It is not counted here.

    Examples
    --------
    >>> int(router_parameters(7168, 256))
    1835008
    >>> router_parameters(4096, [8, 64])
    array([ 32768., 262144.])

    References
    ----------
    .. [1] N. Shazeer et al., "Outrageously Large Neural Networks", arXiv:1701.06538.
    """
    h = _check.whole("hidden", hidden, low=1)
    E = _check.whole("experts", experts, low=1)
    return h * E


def embedding_parameters(vocab: ArrayLike, width: ArrayLike, tables: ArrayLike = 1) -> Real:
    r"""Return the weights of the token embedding and of the LM head.

    A row of the table for each word, twice if the head has a table of its own:

    $$ P = n V h,\quad n \in \{1, 2\} $$

    Parameters
    ----------
    vocab : array_like
        Vocabulary V, padded if the tables are. [-]
    width : array_like
        Width of the table: the hidden size h in nearly every model. [-]
    tables : array_like, default 1
        Tables n: 1 where head and embedding are tied, 2 where they are not. [-]

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
    Learned positions are a further table of as many rows as positions.

    Examples
    --------
    Llama-3.1-8B, untied, and Llama-3.2-3B, tied:

    >>> int(embedding_parameters(128256, 4096, 2))
    1050673152
    >>> embedding_parameters(128256, [4096, 3072], [2, 1])
    array([1.05067315e+09, 3.94002432e+08])

    References
    ----------
    .. [1] O. Press, L. Wolf, "Using the Output Embedding to Improve Language Models", arXiv:1608.05859 (tied tables).
    """
    V = _check.whole("vocab", vocab, low=1)
    h = _check.whole("width", width, low=1)
    n = _check.whole("tables", tables, low=1)
    return n * V * h


def lora_parameters(rank: ArrayLike, inner: ArrayLike, out: ArrayLike) -> Real:
    r"""Return the weights of a LoRA adapter beside one linear layer.

    A of r x k brings the input down to the rank, B of d x r brings it up to the output:

    $$ P = r \left( k + d \right) $$

    Parameters
    ----------
    rank : array_like
        Rank r of the adapter. [-]
    inner : array_like
        Input size k of the linear layer. [-]
    out : array_like
        Output size d of the linear layer. [-]

    Returns
    -------
    float or ndarray
        Weights. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below 1 or not a whole number.

    Notes
    -----
    No bias. A fused projection of queries, keys and values counts as one layer, as Megatron's is; three layers of their own
    have three A.

    Examples
    --------
    GPT-3 with rank 4 on queries and values of 96 layers, printed as 18.9 M [1, table 4 and section 5.5]:

    >>> int(96 * 2 * lora_parameters(4, 12288, 12288))
    18874368
    >>> lora_parameters([8, 16], 4096, 4096)
    array([ 65536., 131072.])

    References
    ----------
    .. [1] E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, section 4.1.
    """
    r = _check.whole("rank", rank, low=1)
    k = _check.whole("inner", inner, low=1)
    d = _check.whole("out", out, low=1)
    return r * (k + d)


def padded_vocabulary(vocab: ArrayLike, multiple: ArrayLike = 128, tensor_parallel: ArrayLike = 1) -> Real:
    r"""Return the vocabulary as tensor parallelism pads it.

    Every rank takes an equal number of rows, a multiple of what its matmul likes:

    $$ V' = m t \lceil V / (m t) \rceil $$

    Parameters
    ----------
    vocab : array_like
        Vocabulary V. [-]
    multiple : array_like, default 128
        Number m that the padded size must be a multiple of on each tensor-parallel rank. [-]
    tensor_parallel : array_like, default 1
        Tensor-parallel degree t. [-]

    Returns
    -------
    float or ndarray
        Rows of the padded table. [-]

    Raises
    ------
    FormulaDomainError
        If a size is below its least value or not a whole number.

    Notes
    -----
    Megatron pads to 128 t unless make-vocab-size-divisible-by says otherwise; multiple 1 pads to equal shards only.

    Examples
    --------
    GPT-2's 50,257 rows:

    >>> padded_vocabulary(50257, 128, [1, 2, 4, 8])
    array([50304., 50432., 50688., 51200.])
    >>> int(padded_vocabulary(151552, 128, 6))
    152064

    References
    ----------
    .. [1] NVIDIA/Megatron-LM, megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    V = _check.whole("vocab", vocab, low=1)
    m = _check.whole("multiple", multiple, low=1)
    t = _check.whole("tensor_parallel", tensor_parallel, low=1)
    return np.ceil(V / (m * t)) * (m * t)
