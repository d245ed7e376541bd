"""The compute operators of one layer on one rank: their shapes, and their seconds forward and backward.

Symbols: n tokens of the micro-batch on the rank · h hidden · a, k query and K/V heads · d head size · f MLP width
         t tensor parallel · E, K experts and experts per token · r routed rows on the rank · e bytes per element
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.adapters import linear
from parlay.estimate.counts import compressed_entries
from parlay.estimate.memory_weights import elements_of
from parlay.estimate.pricer import ELEMENT, Operator, Pricer
from parlay.estimate.traits import PARTED_ROPE, PARTED_ROPE_OPERATIONS, PARTED_ROPE_TABLES
from parlay.layouts.vocabulary import CP_KINDS
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    MoeMlp,
)
from parlay.rates.interface import Priced, Stream

Array = NDArray[np.float64]

# Host operators that a dispatcher's wait for the device costs a forward: what ran ahead is gone, so the queue must fill again. A
# backward has the counts. One value for all: the published runs of experts that wait for the host (49, on H100, B200, B300 and
# GB200) are off by 0 % at the median with it, by -9 % with 15 and +9 % with 45. The all-gather dispatcher waits for one sum as
# well, but the host-bound expert layers of Megatron-LM's own tests leave no room for more than its operators.
HOST_WAIT_OPERATORS = 26.0
# Host time of one plain PyTorch operator (5 to 10 us a call, its autograd node included) over a Transformer Engine module's.
PLAIN_OPERATOR = 0.1
# Share of a product's FLOP/s that chunked scans reach: Triton kernels with fp32 states, five passes. The seven Nemotron-H runs
# on H100 leave about 3 ms a Mamba layer of 8,192 tokens for the scan, 25 times what its FLOPs take as plain products.
SCAN_SHARE = 0.04
PERMUTATIONS = ("permute", "unpermute")  # names of the operators
ATTENTION_TILE = 128  # queries that a block of flash attention works on at once (FlashAttention-2 and 3, cuDNN: 64 to 192)


def attention_share(window: int | None, seq_len: float, causal: bool, *, chunked: bool = False) -> float:
    """Return the share of all (query, key) pairs that a mask lets through.

    A causal sliding window of w sees w - w (w - 1) / (2 s) keys on average; chunked attention is causal inside
    chunks of w.

    Examples
    --------
    >>> attention_share(None, 8192, True), attention_share(None, 8192, False)
    (0.5, 1.0)
    >>> round(attention_share(1024, 8192, True), 4)
    0.1172
    """
    s = seq_len
    if window is None or window >= s:
        return 0.5 if causal else 1.0
    if chunked:
        return window / s * (0.5 if causal else 1.0)
    seen = window - window * (window - 1) / (2 * s)
    return seen / s if causal else min(1.0, 2 * seen / s)


def layer_operators(p: Pricer, kind: LayerKind) -> list[Operator]:
    """Return the operators of one layer of `kind`, in forward order."""
    h, n = float(p.model.hidden), p.shard.local_tokens
    operators: list[Operator] = []
    mixer, mlp = kind.mixer, kind.mlp
    again: tuple[str, ...]
    if mixer.kind != "none":
        again = ("norm",) if _alone(p, isinstance(mixer, LatentAttention)) else ()
        operators.append(p.stream("norm", _norm_factor(p) * 2 * ELEMENT * n * h * max(1, kind.norms // 2), "norm", again))
        operators += _mixer(p, mixer)
        operators.append(p.stream("residual", 3 * ELEMENT * n * h, "residual", backward=0.67))
    if mlp.kind != "none":
        half = "moe" if isinstance(mlp, MoeMlp) else "mlp"
        again = ("norm", half) if _alone(p, half == "moe") else (half,)
        operators.append(p.stream("mlp norm", _norm_factor(p) * 2 * ELEMENT * n * h * max(1, kind.norms // 2), "norm", again))
        operators += (
            _moe(p, mlp) if isinstance(mlp, MoeMlp) else _dense(p, mlp, p.shard.tokens) if isinstance(mlp, DenseMlp) else []
        )
        operators.append(p.stream("mlp residual", 3 * ELEMENT * n * h, "residual", backward=0.67))
    if p.traits.added and p.trains:
        operators.append(p.gradient("gradient accumulation", p.traits.added * elements_of(kind, p.model.hidden, p.shard)))
    return operators


def _alone(p: Pricer, separate: bool) -> bool:
    """Return whether a norm or an activation is a module of its own, which can be recomputed; fused into the product beside it,
    it cannot (Megatron-LM transformer_layer.py:475-536). HAI-LLM recomputes all of a kind (arXiv:2412.19437, section 3.2.3)."""
    return separate or p.workload.framework != "megatron-core"


def _mixer(p: Pricer, mixer: object) -> list[Operator]:
    if isinstance(mixer, GroupedAttention):
        return _grouped_attention(p, mixer)
    if isinstance(mixer, LatentAttention):
        return _latent_attention(p, mixer)
    if isinstance(mixer, Mamba2 | Mamba1 | GatedDelta):
        return _recurrent(p, mixer)
    return []


def _core(
    p: Pricer, heads: Array, kv_heads: Array, qk: float, v: float, window: int | None, chunked: bool, entries: float = 0.0
) -> list[Operator]:
    """Return the attention core: flash attention (a kernel for each ring step), or unfused scores and softmax.

    `entries` are the compressed ones that a query sees beside its window.
    """
    s, w = p.shard, p.workload
    # A tile of queries reads the window of its first and of its last one: whole tiles are computed, masked or not.
    wide = window if window is None or chunked else window + ATTENTION_TILE
    pairs = attention_share(None, s.seq_len, w.causal)
    if w.document_len is not None:
        pairs = min(pairs, attention_share(w.document_len + ATTENTION_TILE, s.seq_len, w.causal, chunked=True))
    share = min(attention_share(wide, s.seq_len, w.causal, chunked=chunked) + entries / s.seq_len, pairs)
    local, local_kv = heads / s.ulysses, np.maximum(kv_heads / s.ulysses, 1.0)
    gathered = s.cp_kind == CP_KINDS.index("allgather")
    queries = np.where(gathered, s.seq_len / s.cp, s.seq_len / s.ring)
    # A ring step sees one block of keys. Contiguous causal blocks make the last rank compute c - 1/2 of c blocks while
    # all wait for it; balanced, every rank computes half of each block.
    contiguous = (s.cp_kind == CP_KINDS.index("ring")) & (s.ring > 1) & w.causal
    twice = np.where(contiguous, 2 - 1 / s.ring, 1.0)
    # cuDNN's backward in fp8 computes what a window hides as well (gpt-oss's heads on GB200, as traits.FP8_ATTENTION).
    seen = {False: share, True: pairs if p.fp8_attention else share}
    computed = {backward: np.minimum(part * twice, 1.0) for backward, part in seen.items()}
    if not w.flash_attention:
        return _unfused(p, local, queries, qk, v)
    seconds, source = {}, ""
    for backward in (False, True):
        step = p.rates.attention(
            queries, s.seq_len / s.ring, local, local_kv, qk, v, score_share=computed[backward], batch=s.micro_batch, backward=backward,
            dtype=p.traits.wide_products,
        )  # fmt: skip
        slower = p.traits.attention_backward if backward else p.traits.attention_forward
        slower /= p.traits.fp8_attention[backward] if p.fp8_attention else 1.0
        seconds[backward], source = s.ring * step.seconds * slower, step.source
    modules = frozenset({"core_attention"})
    zero = np.zeros_like(seconds[False])
    core = [Operator("attention", "attention core", seconds[False], seconds[True], zero, modules, 1.0, source)]
    if np.any(s.ring > 1):
        core.append(_ring_merge(p, local * v, (local * qk + local_kv * (qk + v)), modules))
    return core


def _unfused(p: Pricer, heads: Array, queries: Array, qk: float, v: float) -> list[Operator]:
    """Return attention with its scores in memory: two batched products over all pairs, and softmax with mask and dropout.

    A mask saves nothing here: masked scores are computed and thrown away. The backward has two products for each.
    """
    s = p.shard
    rows, modules, wide = s.micro_batch * heads * queries, frozenset({"core_attention"}), p.traits.wide_products
    scores = p.rates.gemm(rows, s.seq_len, qk, wide)  # one product a head, in one batched call
    values = p.rates.gemm(rows, v, s.seq_len, wide)
    fwd = scores.seconds + values.seconds
    zero = np.zeros_like(fwd)
    drop = 2.5 if p.workload.dropout else 0.0  # read, write and a byte of mask more, in either direction
    # The fused causal softmax reads the scores below the diagonal alone and writes them all; its backward reads gradients
    # and probabilities (Megatron-LM megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
    read = 0.5 if p.workload.causal else 1.0
    there, back = read + 1.0 + drop, 2 * read + 1.0 + drop
    nbytes, group = there * ELEMENT * rows * s.seq_len, "attention core"
    return [
        Operator("attention", "attention core", fwd, 2 * fwd, zero, modules, 2.0, scores.source),
        p.stream("softmax", nbytes, "softmax", ("core_attention",), backward=back / there, group=group, launches=2.0),
    ]


def _ring_merge(p: Pricer, out_width: Array, gradient_width: Array, modules: frozenset[str]) -> Operator:
    """Return what a ring adds to every step: partial outputs merged in fp32, partial gradients summed.

    Forward, each step's output is read and the fp32 sum read and written (context_parallel.py:1897-1912); backward,
    dQ, dK and dV of a step are read and their sums read and written in the inputs' type (context_parallel.py:2087-2142).
    """
    s = p.shard
    rows = s.tokens * s.ulysses  # queries of this rank, each merged once a step
    steps = np.where(s.ring > 1, s.ring, 0.0)
    fwd = p.rates.stream(steps * rows * out_width * (ELEMENT + 8.0), "residual")
    bwd = p.rates.stream(steps * rows * gradient_width * 3 * ELEMENT, "residual")
    zero = np.zeros_like(fwd.seconds)
    # A ring step is an attention kernel and a merge of its own; layouts without a ring, priced beside, have neither.
    calls = np.where(s.ring > 1, 2 * s.ring - 1, 0.0)
    return Operator("ring merge", "attention core", fwd.seconds, bwd.seconds, zero, modules, calls, fwd.source)


def _norm_factor(p: Pricer) -> float:
    return p.traits.norm if p.model.norm == "rmsnorm" else 1.0


def _rotary(p: Pricer, a: GroupedAttention, tokens: Array, heads: Array) -> Operator:
    elements = tokens * heads * a.head_dim
    if a.rope_scaled and p.traits.parted_rope:
        moved, back = (each * elements for each in PARTED_ROPE)
        moved = moved + PARTED_ROPE_TABLES * tokens / p.shard.micro_batch * a.head_dim
        return p.stream("rotary", moved, "rope", backward=back / moved, launches=PLAIN_OPERATOR * PARTED_ROPE_OPERATIONS)
    return p.stream("rotary", p.traits.rope * 2 * ELEMENT * elements, "rope", backward=1.0)


def _grouped_attention(p: Pricer, a: GroupedAttention) -> list[Operator]:
    s, h = p.shard, float(p.model.hidden)
    heads, kv = a.heads / s.tp, np.maximum(a.kv_heads / s.tp, 1.0)
    d, n = float(a.head_dim), s.tokens
    q_width = heads * d * (2 if a.output_gate else 1)
    found = [
        *p.casts("qkv input", s.local_tokens * h, gradient=n * (q_width + 2 * kv * d)),
        *linear(p, "qkv projection", "attention projections", n, q_width + 2 * kv * d, h, at="qkv", parts=3.0),
    ]
    if a.qk_norm != "none":
        found.append(p.stream("q/k norm", 2 * ELEMENT * n * (heads + kv) * d, "norm"))
    if a.rope:
        found.append(_rotary(p, a, n, heads + kv))
    found += _core(p, heads, kv, d, d, a.window, a.chunked)
    found += p.casts("attention output", n * heads * d, gradient=s.local_tokens * h)
    found += linear(p, "output projection", "attention projections", n, h, heads * d, at="out")
    return found


def _latent_attention(p: Pricer, a: LatentAttention) -> list[Operator]:
    s, h = p.shard, float(p.model.hidden)
    heads, n, local = a.heads / s.tp, s.tokens, s.local_tokens
    qk = float(a.nope_dim + a.rope_dim)
    q_rank = float(a.q_rank or 0)
    group = "attention projections"
    up = ("mla_up",)
    found = p.casts("attention input", local * h, gradient=local * (q_rank + a.kv_rank + a.rope_dim))
    # Down-projections are replicated over tp and run on the tokens that sequence parallelism leaves on the rank.
    if a.q_rank:
        found += linear(p, "q down-projection", group, local, q_rank, h, at="qkv", split=False)
    found += linear(p, "kv down-projection", group, local, float(a.kv_rank + a.rope_dim), h, at="qkv", split=False)
    found.append(p.stream("latent norms", 2 * ELEMENT * local * (q_rank + a.kv_rank), "norm", ("norm", "mla_up"), launches=2.0))
    found += p.casts("latent", n * (q_rank + a.kv_rank), up, gradient=n * heads * (qk + a.nope_dim + a.v_dim))
    found += linear(p, "q up-projection", group, n, heads * qk, q_rank or h, up if a.q_rank else (), at="qkv")
    if a.up_projection:
        found += linear(p, "kv up-projection", group, n, heads * (a.nope_dim + a.v_dim), float(a.kv_rank), up, at="qkv")
    found.append(p.stream("rotary", 3 * ELEMENT * n * heads * qk, "rope", up, backward=1.0))
    shared = heads if a.up_projection else np.ones_like(heads)  # else the latent is the one key and value of all heads
    found += _core(p, heads, shared, qk, float(a.v_dim), a.window, False, compressed_entries(a, s.seq_len))
    found += p.casts("attention output", n * heads * a.v_dim, gradient=local * h)
    wide = heads * a.v_dim
    if a.out_rank:  # each group of heads goes through a rank of its own
        groups = a.out_groups / s.tp
        found.append(p.gemm("output down-projection by groups", group, n * groups, float(a.out_rank), wide / groups))
        wide = groups * a.out_rank
    found += linear(p, "output projection", group, n, h, wide, at="out")
    return found


def _recurrent(p: Pricer, m: Mamba2 | Mamba1 | GatedDelta) -> list[Operator]:
    """Return a state-space or linear-attention mixer: projections, convolution, chunked scan, gated norm."""
    s, h, n = p.shard, float(p.model.hidden), p.shard.tokens
    group = "attention projections"
    if isinstance(m, Mamba2):
        inner, wide = float(m.heads * m.head_dim), float(2 * m.heads * m.head_dim + 2 * m.groups * m.state + m.heads)
        conv, state = inner + 2 * m.groups * m.state, float(m.state)
    elif isinstance(m, Mamba1):
        inner, wide = float(m.inner), 2.0 * m.inner + m.dt_rank + 2 * m.state
        conv, state = inner, float(m.state)
    else:
        inner = float(m.value_heads * m.value_dim)
        wide = 2.0 * m.key_heads * m.key_dim + 2 * inner + 2 * m.value_heads
        conv, state = 2.0 * m.key_heads * m.key_dim + inner, float(m.key_dim)
    chunk = 128.0  # tokens per block of the chunked scan; the kernels' common default (Mamba-2, section 6)
    scan_flops = n * inner / s.tp * (4 * state + 2 * chunk)  # two products with the state and one inside the chunk
    plain = p.rates.gemm(n, inner / s.tp, scan_flops / (2 * n * inner / s.tp), p.traits.wide_products)
    scan = Priced(plain.seconds / SCAN_SHARE, "default")
    return [
        *p.casts("mixer input", n * h, gradient=n * wide / s.tp),
        *linear(p, "mixer input projection", group, n, wide / s.tp, h, at="qkv"),
        p.stream("convolution", 2 * ELEMENT * n * conv / s.tp, "activation"),
        # Recomputing the attention core leaves it alone (Megatron-LM transformer/attention.py has it, ssm/mamba_mixer.py has not).
        Operator("scan", "attention core", scan.seconds, 2 * scan.seconds, 0 * scan.seconds, frozenset(), 5.0, scan.source),
        p.stream("gated norm", 3 * ELEMENT * n * inner / s.tp, "norm"),
        *linear(p, "mixer output projection", group, n, h, inner / s.tp, at="out"),
    ]


def _dense(p: Pricer, m: DenseMlp, tokens: Array, *, modules: tuple[str, ...] = ("mlp",), prefix: str = "mlp") -> list[Operator]:
    s, h = p.shard, float(p.model.hidden)
    width = m.width / s.tp
    branches = 2.0 if m.gated else 1.0
    return [
        *p.casts(f"{prefix} input", s.local_tokens * h, modules, gradient=tokens * branches * width),
        *linear(p, f"{prefix} up-projection", "mlp", tokens, branches * width, h, modules, at="up", parts=branches),
        p.stream(
            f"{prefix} activation",
            (p.traits.activation if m.gated else 1.0) * ELEMENT * tokens * width * (branches + 1),
            "activation",
            (*modules, "mlp_activation") if _alone(p, False) else modules,
        ),
        *p.casts(f"{prefix} hidden", tokens * width, modules, gradient=s.local_tokens * h),
        *linear(p, f"{prefix} down-projection", "mlp", tokens, h, width, modules, at="down"),
    ]


def routed_rows(p: Pricer, m: MoeMlp) -> Array:
    """Return the (token, expert) rows that the busiest rank's experts receive in one micro-batch.

    An ep x etp grid of ranks shares the tokens of its members: with ep alone every rank keeps as many rows as it sends,
    K n; expert tensor parallelism gathers the tokens of its ranks.
    """
    w = p.workload
    held = p.shard.local_tokens * m.top_k * p.shard.etp
    load = np.where(p.shard.ep > 1, w.moe_imbalance, 1.0) if w.moe_capacity_factor is None else w.moe_capacity_factor
    return np.asarray(held * load)


def permutations(p: Pricer, m: MoeMlp) -> tuple[Operator, Operator]:
    """Return the permutations of tokens to experts and back.

    Each reads every token once and writes its K copies, or the other way round; the all-to-all dispatcher also sorts what arrived by
    expert (one more read and write), which a fused dispatcher's kernel leaves in place.
    """
    row = routed_rows(p, m) / p.shard.etp * float(m.latent_width or p.model.hidden)
    passes = 1 + 1 / m.top_k + (0.0 if p.workload.dispatcher in ("deepep", "hybridep") else 2.0)
    there = p.stream(PERMUTATIONS[0], 4 * ELEMENT * row, "permute", ("moe",), backward=1.0, group="experts")
    back = p.stream(PERMUTATIONS[1], passes * ELEMENT * row, "permute", ("moe",), backward=1.0, group="experts")
    return there, back


def without_permutations(p: Pricer, operators: list[Operator]) -> list[Operator]:
    """Return a layer's operators where permutations that run with their transfer, beside other compute, take none of their own."""
    beside = permutes_beside(p)
    if not beside.any():
        return operators
    here = np.where(beside, 0.0, 1.0)
    return [
        dataclasses.replace(o, forward=here * o.forward, dgrad=here * o.dgrad) if o.name in PERMUTATIONS else o for o in operators
    ]


def permutes_beside(p: Pricer) -> NDArray[np.bool_]:
    """Return where permutations run with their transfer beside another micro-batch's compute, by row.

    HybridEP's dispatch and combine permute themselves (Megatron-LM core/transformer/moe/fused_a2a.py: dispatch_with_permute,
    combine_with_unpermute), so on the stream that the 1F1B overlap gives them.
    """
    return np.asarray(p.shard.ep_overlap & (p.shard.ep > 1) & (p.workload.dispatcher == "hybridep"))


def _moe(p: Pricer, m: MoeMlp) -> list[Operator]:
    s, h, n = p.shard, float(p.model.hidden), p.shard.local_tokens
    rows, held = routed_rows(p, m), m.experts / s.ep
    inner = float(m.latent_width or h)
    width = m.width / s.etp
    branches = 2.0 if m.gated else 1.0
    moe = ("moe",)
    found = [
        p.gemm("router", "experts", n, float(m.experts), h, moe, dtype=p.traits.wide_products),
        p.stream("router softmax and top-k", 17.0 * n * m.experts, "softmax", moe, group="experts", launches=6.0),
    ]
    if m.latent_width:
        found.append(p.gemm("latent down-projection", "experts", n, inner, h, moe))
    flex = p.workload.dispatcher in ("deepep", "hybridep")
    # Fused dispatchers permute inside their own kernels. The all-to-all one waits for the router's counts on the host
    # (token_dispatcher.py:425-440), which drains the queue of launched kernels once a layer.
    calls = 1.0 if flex else 4.0
    permute, unpermute = permutations(p, m)
    wait = (
        0.0
        if p.workload.dispatcher in ("hybridep", "allgather") or p.workload.moe_capacity_factor is not None
        else HOST_WAIT_OPERATORS
    )
    # What the fused kernels do not move: the activation's input and output, its output's casts and its gradient's.
    apart = 0.0 if p.traits.fused_experts else 1.0
    found += [
        dataclasses.replace(permute, launches=calls, waits=wait),
        *p.casts("expert input", rows * inner, moe, gradient=apart * rows * branches * width),
        p.grouped("expert up-projection", rows, held, branches * width, inner, moe),
        p.stream(
            "expert activation", apart * ELEMENT * rows * width * (branches + 1), "activation", ("moe", "mlp_activation"),
            group="experts",
        ),
        *p.casts("expert hidden", apart * rows * width, moe, gradient=rows * inner),
        p.grouped("expert down-projection", rows, held, inner, width, moe),
        dataclasses.replace(unpermute, launches=calls),
    ]  # fmt: skip
    if m.bias:
        found.append(_expert_biases(p, rows, held, inner, branches * width))
    if m.latent_width:
        found.append(p.gemm("latent up-projection", "experts", n, h, inner, moe))
    if m.shared_width:
        shared = DenseMlp(width=m.shared_width, gated=m.gated, activation=m.activation)
        found += _dense(p, shared, s.tokens, modules=("moe", "shared_experts"), prefix="shared expert")
    return found


def _expert_biases(p: Pricer, rows: Array, held: Array, out: float, hidden: Array) -> Operator:
    """Return the biases of an expert's two products.

    The first one's is added by its product, and its gradient is a sum over the rows. Megatron-core scales the second one's
    by the router's weight, expert after expert, in fp32: the outer product is written (4), added to the output (2 + 4 read,
    4 written), the experts concatenated (4 + 4) and cast back (4 + 2). Its backward casts (2 + 4, 4 + 2), takes both
    factors' gradients (12 each) and concatenates (4) (TEGroupedMLP._apply_bias, moe/experts.py). Elsewhere it is one
    addition (2 read, 2 written) and a sum.
    """
    scaled = p.workload.framework == "megatron-core" and not p.traits.fused_experts
    kind: Stream = "residual"
    forward = p.rates.stream(rows * out * (28.0 if scaled else 4.0), kind)
    backward = p.rates.stream(rows * out * (40.0 if scaled else 2.0) + ELEMENT * rows * hidden, kind)
    launches = PLAIN_OPERATOR * (2.0 * held + 2.0) if scaled else 1.0
    zero = np.zeros_like(forward.seconds)
    modules = frozenset({"moe"})
    return Operator("expert biases", "experts", forward.seconds, backward.seconds, zero, modules, launches, forward.source)


def embedding_operators(p: Pricer, vocab: Array) -> list[Operator]:
    """Return the token table's look-up on one rank that holds `vocab` rows; its backward adds into the table's gradient, all of which
    is written, whatever rows the tokens name, where the table is trained."""
    n, h = p.shard.tokens, float(p.model.hidden)
    found = p.stream("embedding", 2 * ELEMENT * n * h, "embedding", backward=2.0, group="embedding and head")
    if not p.trains:
        return [dataclasses.replace(found, dgrad=np.zeros_like(found.dgrad))]
    return [found, p.gradient("table gradient", p.traits.table_added * vocab * h, "embedding and head")]


def head_operators(p: Pricer, vocab: Array) -> list[Operator]:
    """Return final norm, LM head and loss on one rank that holds `vocab` rows of the head."""
    n, h = p.shard.tokens, float(p.model.hidden)
    group = "embedding and head"
    added = [p.gradient("head gradient accumulation", p.traits.added * vocab * h, group)] if p.traits.added and p.trains else []
    return [
        p.stream("final norm", _norm_factor(p) * 2 * ELEMENT * p.shard.local_tokens * h, "norm", group=group),
        p.gemm("head", group, n, vocab, h, dtype="bf16" if p.dtype in ("fp8", "fp4") else p.dtype),
        # Read the logits, take the maximum, exponentiate, sum: two passes over bf16 logits and one fp32 result.
        p.stream(
            "cross entropy",
            p.traits.cross_entropy * n * vocab * (2 * ELEMENT + 4),
            "cross_entropy",
            backward=1.0,
            group=group,
            launches=6.0,
        ),
        *added,
    ]
