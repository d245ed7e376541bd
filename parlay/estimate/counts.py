"""How many parameters a model has, part by part, how each part shards, and the FLOPs of a token.

Parts are named by the rule that shards them: "tp" is cut over the tensor-parallel ranks, "kv" too but never below one
key/value head a rank (copies beyond), "expert" over expert and expert tensor parallelism, "whole" is on every rank.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from typing import Literal

from parlay.errors import UnknownNameError
from parlay.formulas import flops as flops_formulas
from parlay.formulas import parameters as formula
from parlay.formulas import parameters_state as state_formula
from parlay.formulas import serving_state
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
)

Rule = Literal["tp", "kv", "expert", "whole"]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one part of a layer, and the rule that shards them."""

    name: str
    rule: Rule
    count: int
    group: str  # mixer, dense, routed, shared, router, norm, other


def norm_parameters(model: ModelSpec, width: int) -> int:
    """Return the parameters of one norm of `width` channels: a weight, and a bias for LayerNorm."""
    return {"rmsnorm": 1, "layernorm": 2, "layernorm_no_bias": 1, "nonparametric": 0}[model.norm] * width


def layer_parts(model: ModelSpec, kind: LayerKind) -> tuple[Part, ...]:
    """Return the parts of one layer of `kind`."""
    parts = [*_mixer(model, kind), *_feed_forward(model, kind)]
    parts.append(Part("norms", "whole", kind.norms * norm_parameters(model, model.hidden), "norm"))
    parts.append(Part("other", "whole", kind.extra_parameters, "other"))
    return tuple(p for p in parts if p.count)


def _mixer(model: ModelSpec, kind: LayerKind) -> list[Part]:
    h, m = model.hidden, kind.mixer
    if isinstance(m, GroupedAttention):
        return _grouped(model, m)
    if isinstance(m, LatentAttention):
        whole = int(formula.latent_attention_parameters(h, m.heads, m.q_rank or 0, m.kv_rank, m.nope_dim, m.rope_dim, m.v_dim))
        up = m.heads * (m.nope_dim + m.rope_dim) * (m.q_rank or h) + m.kv_rank * m.heads * (m.nope_dim + m.v_dim)
        sharded = up + m.heads * m.v_dim * h
        bias = ((m.q_rank or 0) + m.kv_rank + m.rope_dim + h) if m.bias else 0
        down = whole - sharded + bias
        if not m.up_projection:
            sharded -= m.kv_rank * m.heads * (m.nope_dim + m.v_dim)
        if m.out_rank:
            sharded += m.out_rank * (m.heads * m.v_dim + m.out_groups * h) - m.heads * m.v_dim * h
        return [
            Part("latent down-projections and norms", "whole", down, "mixer"),
            Part("heads", "tp", sharded, "mixer"),
        ]
    if isinstance(m, Mamba2):
        count = int(state_formula.mamba2_parameters(h, m.heads, m.head_dim, m.groups, m.state, m.conv, int(m.conv_bias)))
        inner = m.heads * m.head_dim
        bias = (2 * inner + 2 * m.groups * m.state + m.heads + h) if m.bias else 0
        return [Part("mamba", "tp", count + bias, "mixer")]
    if isinstance(m, Mamba1):
        count = int(state_formula.mamba1_parameters(h, m.inner, m.state, m.dt_rank, m.conv, int(m.conv_bias)))
        bias = (2 * m.inner + h) if m.bias else 0
        return [Part("mamba", "tp", count + bias + (m.dt_rank + 2 * m.state if m.inner_norms else 0), "mixer")]
    if isinstance(m, GatedDelta):
        return [Part("gated delta", "tp", _gated_delta(h, m), "mixer")]
    return []


def _gated_delta(h: int, m: GatedDelta) -> int:
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    plain = int(state_formula.gated_delta_parameters(h, keys, values, m.value_heads, m.value_dim, m.conv))
    if not m.gate_rank:
        return plain
    # Kimi Delta Attention: decay per key channel and output gate, each through a low-rank pair; no full-rank gate z.
    low_rank = 2 * h * m.gate_rank + m.gate_rank * (keys + values)
    return plain - h * values - h * m.value_heads - m.value_heads + low_rank + keys


def _grouped(model: ModelSpec, a: GroupedAttention) -> list[Part]:
    h, d = model.hidden, a.head_dim
    q, kv = a.heads * d * (2 if a.output_gate else 1), 2 * a.kv_heads * d
    weights = int(formula.attention_parameters(h, a.heads, a.kv_heads, d))
    gate = h * a.heads * d if a.output_gate else 0
    norm_width = {"none": 0, "head": 2 * d, "full": (a.heads + a.kv_heads) * d}[a.qk_norm]
    norms = norm_width * (2 if a.qk_norm_bias else 1)
    return [
        Part(
            "queries and output", "tp", weights - h * kv + gate + (q if a.qkv_bias else 0) + (a.heads if a.sinks else 0), "mixer"
        ),
        Part("keys and values", "kv", h * kv + (kv if a.qkv_bias else 0), "mixer"),
        Part("output bias", "whole", h if a.out_bias else 0, "mixer"),
        Part("q/k norms", "tp" if a.qk_norm == "full" else "whole", norms, "mixer"),
    ]


def _feed_forward(model: ModelSpec, kind: LayerKind) -> list[Part]:
    h, m = model.hidden, kind.mlp
    if isinstance(m, DenseMlp):
        matrices = 3 if m.gated else 2
        return [
            Part(
                "mlp",
                "tp",
                int(formula.mlp_parameters(h, m.width, matrices)) + (m.width * (matrices - 1) if m.bias else 0),
                "dense",
            ),
            Part("mlp output bias", "whole", h if m.bias else 0, "dense"),
        ]
    if not isinstance(m, MoeMlp):
        return []
    matrices = 3 if m.gated else 2
    wide = m.latent_width or h
    bias = m.experts * (m.width * (matrices - 1) + wide) if m.bias else 0
    return [
        Part("routed experts", "expert", int(formula.expert_parameters(wide, m.width, m.experts, matrices)) + bias, "routed"),
        Part("shared experts", "tp", int(formula.mlp_parameters(h, m.shared_width, matrices)) if m.shared_width else 0, "shared"),
        Part("shared gate", "whole", h if m.shared_gate else 0, "shared"),
        Part("latent projections", "whole", 2 * h * m.latent_width if m.latent_width else 0, "shared"),
        # A score correction is a buffer, not a parameter, in the published implementation, and is left out.
        Part("router", "whole", int(formula.router_parameters(h, m.experts)) + (m.experts if m.router_bias else 0), "router"),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by part; `layers` maps a layer kind to (layers of it, parameters of one)."""

    embedding: int
    positions: int
    embedding_norm: int
    head: int
    final_norm: int
    layers: dict[str, tuple[int, int]]
    groups: dict[str, int]  # mixer, dense, routed, shared, router, norm, other: all layers together
    other: int
    vision: int
    mtp: int
    routed: int
    active_routed: int

    @property
    def total(self) -> int:
        """All parameters of the model, multi-token-prediction modules left out as publishers do."""
        outside = self.embedding + self.positions + self.embedding_norm + self.head + self.final_norm + self.other + self.vision
        return outside + sum(count * each for count, each in self.layers.values())

    @property
    def active(self) -> int:
        """Parameters that one token meets: all but the experts it is not routed to, input embedding included."""
        return self.total - self.routed + self.active_routed

    @property
    def active_without_embedding(self) -> int:
        """As `active` without the input embedding, where the head does not share it."""
        return self.active - (self.embedding if self.head >= self.embedding else 0)


@lru_cache(maxsize=256)
def parameters(model: ModelSpec) -> ParameterCounts:
    """Return the parameters of `model`, exact to the published implementation."""
    parts = {name: layer_parts(model, kind) for name, kind in model.kinds.items()}
    names = model.layer_names()
    counts = {name: names.count(name) for name in model.kinds}
    groups: dict[str, int] = {}
    routed = active = 0
    for name, found in parts.items():
        mlp = model.kinds[name].mlp
        for part in found:
            groups[part.group] = groups.get(part.group, 0) + counts[name] * part.count
            if part.group == "routed" and isinstance(mlp, MoeMlp):
                routed += counts[name] * part.count
                active += counts[name] * (part.count // mlp.experts * mlp.top_k)
    each = {name: sum(p.count for p in found) for name, found in parts.items()}
    table = model.embedding_projection or model.hidden
    projections = 2 * model.hidden * table if model.embedding_projection else 0
    return ParameterCounts(
        embedding=int(formula.embedding_parameters(model.vocab, table)),
        positions=model.position_embeddings * model.hidden,
        embedding_norm=norm_parameters(model, model.hidden) if model.embedding_norm else 0,
        head=(0 if model.tied_embeddings else model.vocab * table) + (model.vocab if model.head_bias else 0),
        final_norm=norm_parameters(model, model.hidden) if model.final_norm else 0,
        layers={name: (counts[name], each[name]) for name in model.kinds if counts[name]},
        groups=groups,
        other=model.extra_parameters + projections,
        vision=model.vision_parameters,
        mtp=model.mtp_modules * (each[model.mtp_kind] + mtp_extra(model)) if model.mtp_kind else 0,
        routed=routed,
        active_routed=active,
    )


def mtp_extra(model: ModelSpec) -> int:
    """Return what a multi-token-prediction module holds beside its layer: a 2h x h projection and three norms."""
    return 2 * model.hidden * model.hidden + 3 * norm_parameters(model, model.hidden)


@dataclasses.dataclass(frozen=True, slots=True)
class FlopsConvention:
    """What a source counts as the FLOPs of a token. Tokens per second need no convention; TFLOP/s and MFU do."""

    name: str
    source: str
    causal_half: bool = False  # only the scores under a causal mask
    windows: bool = True  # a sliding window bounds the scores
    all_parameters: bool = False  # 6 N over all active parameters, vectors included; else matmul weights without the router
    embedding: bool = False  # with all_parameters: the input embedding is among them, although it costs no FLOPs
    logits: bool = True  # the LM head counts
    mtp: bool = False  # multi-token-prediction modules count
    recompute: bool = False  # a second forward of the layers counts (HFU, full recompute)

    @property
    def in_words(self) -> str:
        """What counts and what does not."""
        scores = "causal attention halved" if self.causal_half else "attention counted in full"
        weights = "6 FLOPs for every active parameter" if self.all_parameters else "LM head counted"
        embedding = ", the input embedding among them" if self.embedding else ""
        again = ", a second forward of the layers counted (HFU)" if self.recompute else ""
        left = [] if self.recompute else ["recompute"]
        left += [] if self.all_parameters else ["router", "padding"]
        out = f"; {' and '.join([', '.join(left[:-1])] * (len(left) > 1) + left[-1:])} not" if left else ""
        return f"{scores}, {weights}{embedding}{again}{out}"


CONVENTIONS = {
    c.name: c
    for c in (
        FlopsConvention(
            "megatron",
            "NVIDIA/Megatron-LM d98e8a64, megatron/training/training.py:1063-1300; windows: Megatron-Bridge flop_utils.py",
            causal_half=True,
            mtp=True,
        ),
        FlopsConvention("korthikanti", "V. Korthikanti et al., arXiv:2205.05198, appendix A, equation 7", windows=False),
        FlopsConvention(
            "narayanan", "D. Narayanan et al., arXiv:2104.04473, section 3: full recompute", windows=False, recompute=True
        ),
        FlopsConvention(
            "torchtitan", "pytorch/torchtitan b5bcd76c, torchtitan/models/utils.py:440-545", windows=False, all_parameters=True
        ),
        FlopsConvention(
            "torchtitan-causal", "torchtitan's with the causal half of the scores", causal_half=True, all_parameters=True
        ),
        FlopsConvention("nanotron", "huggingface/nanotron 2411b022, llama.py:1157-1226", windows=False),
        FlopsConvention(
            "llm-foundry",
            "mosaicml/llm-foundry 8c8dd48f, modeling_mpt.py:1588-1620",
            windows=False,
            all_parameters=True,
            embedding=True,
        ),
        FlopsConvention(
            "llm-foundry-hfu",
            "mosaicml/llm-foundry 8c8dd48f, scripts/train/benchmarking/README.md: HFU = 4/3 MFU",
            windows=False,
            all_parameters=True,
            embedding=True,
            recompute=True,
        ),
        FlopsConvention("palm", "A. Chowdhery et al., arXiv:2204.02311, appendix B", windows=False, all_parameters=True),
    )
}


@lru_cache(maxsize=1024)
def flops_per_token(
    model: ModelSpec,
    seq_len: int,
    *,
    convention: str | FlopsConvention = "megatron",
    vocab: int | None = None,
    mtp: bool = True,
    adapters: int | None = None,
) -> float:
    """Return the FLOPs of one training token, forward and backward, in a convention of CONVENTIONS or of one's own.

    `vocab` replaces the vocabulary (Megatron counts the padded one); `mtp` switches multi-token prediction off. With
    `adapters` trained weights beside it the model is frozen, and no convention counts recompute.
    Raises UnknownNameError for a name that is not in CONVENTIONS.
    """
    if isinstance(convention, str) and convention not in CONVENTIONS:
        raise UnknownNameError("FLOPs convention", convention, CONVENTIONS)
    c = CONVENTIONS[convention] if isinstance(convention, str) else convention
    names = model.layer_names()
    depth = model.mtp_layers if c.mtp and mtp and model.mtp_kind else 0
    names += [model.mtp_kind or ""] * depth
    scores = sum(
        names.count(n) * score_flops(kind, seq_len, causal_half=c.causal_half, windows=c.windows)
        for n, kind in model.kinds.items()
    )
    logits = model.hidden * (vocab or model.vocab) * (1 + depth)
    if c.all_parameters:
        count = parameters(model)
        weights = (count.active if c.embedding else count.active_without_embedding) - logits
    else:
        weights = sum(names.count(n) * matmul_weights(model, kind) for n, kind in model.kinds.items())
        weights += depth * (3 * model.hidden + 2 * model.hidden * model.hidden)
    if adapters is not None:
        frozen = weights + (logits if c.logits else 0)
        return float(flops_formulas.adapter_training_flops(frozen, adapters, scores))
    again = 1.0 if c.recompute else 0.0
    layers = flops_formulas.recompute_flops(2 * weights + scores, again)
    # Full recompute repeats the layers; the head's forward runs once. llm-foundry's 4/3 holds for the whole.
    head = flops_formulas.recompute_flops(2 * logits, again if c.all_parameters else 0.0)
    return float(layers + (head if c.logits else 0.0))


def matmul_weights(model: ModelSpec, kind: LayerKind) -> int:
    """Return the weights of one layer that a token is multiplied with, the router left out (as Megatron counts)."""
    total = 0
    for part in layer_parts(model, kind):
        if part.group in ("norm", "other", "router") or part.name in ("output bias", "mlp output bias", "q/k norms"):
            continue
        if part.group == "routed" and isinstance(kind.mlp, MoeMlp):
            total += part.count // kind.mlp.experts * kind.mlp.top_k
        else:
            total += part.count
    return total - _vectors(model, kind)


def _vectors(model: ModelSpec, kind: LayerKind) -> int:
    """Return the biases, norms and other vectors among the matmul parts, which cost no matmul FLOPs.

    A convolution's taps stay: each is one multiplication and one addition a token, as a weight is. The two norms of
    latent attention stay too, because Megatron's own count has them.
    """
    m, x = kind.mlp, kind.mixer
    count = 0
    if isinstance(x, GroupedAttention):
        wide = (x.heads * (2 if x.output_gate else 1) + 2 * x.kv_heads) * x.head_dim
        count += (wide if x.qkv_bias else 0) + (x.heads if x.sinks else 0)
    elif isinstance(x, Mamba2):
        inner, mixed = x.heads * x.head_dim, x.heads * x.head_dim + 2 * x.groups * x.state
        count += 3 * x.heads + inner + (mixed if x.conv_bias else 0)
    elif isinstance(x, Mamba1):
        count += x.inner * (2 + x.state + int(x.conv_bias)) + (x.dt_rank + 2 * x.state if x.inner_norms else 0)
    elif isinstance(x, GatedDelta):
        count += x.value_heads + (x.key_heads * x.key_dim if x.gate_rank else x.value_heads) + x.value_dim
    if isinstance(m, DenseMlp) and m.bias:
        count += m.width * (2 if m.gated else 1)
    if isinstance(m, MoeMlp) and m.bias:
        count += m.top_k * (m.width * (2 if m.gated else 1) + (m.latent_width or model.hidden))
    return count


# FLOPs of one state element a token: NVIDIA/Megatron-LM d98e8a64, megatron/training/training.py:840-1008.
MAMBA_STATE_FLOPS = 7  # decay, input, update and read-out of the scan
DELTA_STATE_FLOPS = 8  # as a linear attention, and the product that the delta rule subtracts


def score_flops(kind: LayerKind, seq_len: int, *, causal_half: bool, windows: bool = True) -> float:
    """Return the forward FLOPs of one token's attention scores in one layer (or of its state updates)."""
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        window = x.window if windows else None
        context = attention_context(window, seq_len, causal_half=causal_half, chunked=x.chunked)
        return float(flops_formulas.attention_flops(context, x.heads, x.head_dim, x.head_dim))
    if isinstance(x, LatentAttention):
        context = attention_context(x.window if windows else None, seq_len, causal_half=causal_half)
        if windows:
            context = min(context + compressed_entries(x, seq_len), seq_len / 2 if causal_half else seq_len)
        return float(flops_formulas.attention_flops(context, x.heads, x.nope_dim + x.rope_dim, x.v_dim))
    if isinstance(x, Mamba2):
        return float(flops_formulas.state_flops(x.heads * x.head_dim, x.state, MAMBA_STATE_FLOPS))
    if isinstance(x, Mamba1):
        return float(flops_formulas.state_flops(x.inner, x.state, MAMBA_STATE_FLOPS))
    if isinstance(x, GatedDelta):
        return float(flops_formulas.state_flops(x.value_heads * x.value_dim, x.key_dim, DELTA_STATE_FLOPS))
    return 0.0


def compressed_entries(x: LatentAttention, seq_len: float) -> float:
    """Return the compressed entries that a query meets on average beside its window (DeepSeek-V4)."""
    if x.compress_rate is None:
        return 0.0
    return float(flops_formulas.compressed_context(seq_len, x.compress_rate, x.compress_top or math.inf))


def cached_tokens(kind: LayerKind, context: int) -> float:
    """Return the tokens or entries that a layer's cache holds of a sequence: all, a window, or a window and compressed entries."""
    x = kind.mixer
    window = getattr(x, "window", None)
    kept = float(context) if window is None else min(float(window), float(context))
    if isinstance(x, LatentAttention) and x.compress_rate is not None:
        kept = min(kept + context / x.compress_rate, float(context))
    return kept


def attention_context(window: int | None, seq_len: int, *, causal_half: bool, chunked: bool = False) -> float:
    """Return the keys that a query meets on average: s, s/2 causal, or what a window leaves of it."""
    if window is None or window >= seq_len:
        return seq_len / 2 if causal_half else float(seq_len)
    if chunked:
        return window / 2 if causal_half else float(window)
    return float(flops_formulas.window_context(window, seq_len))


def kv_bytes_per_token(model: ModelSpec, *, element_bytes: float = 2.0, tensor_parallel: int = 1) -> float:
    """Return the bytes that one token adds to the K/V cache of one rank, all layers, windows left out."""
    per_kind = {n: _kv_elements(k, tensor_parallel) for n, k in model.kinds.items()}
    return element_bytes * sum(per_kind[n] for n in model.layer_names())


def kv_bytes(model: ModelSpec, context: int, *, batch: int = 1, element_bytes: float = 2.0, unified_pages: bool = False) -> float:
    """Return the K/V cache of `batch` sequences of `context` tokens; windowed layers keep their window only.

    With `unified_pages` every layer reserves pages for the whole context, as engines with one page size for all do.
    """
    total = 0.0
    for name in model.layer_names():
        kind = model.kinds[name]
        total += _kv_elements(kind, 1) * (context if unified_pages else cached_tokens(kind, context))
    return element_bytes * batch * total


def state_bytes(kind: LayerKind, *, element_bytes: float = 2.0, tensor_parallel: int = 1) -> float:
    """Return what one sequence keeps in one layer on a rank, however long it is: 0 but for recurrent mixers.

    As vLLM keeps it: inputs of the convolution in the model's dtype, the state too unless the model asks for fp32.
    """
    x = kind.mixer
    if not isinstance(x, Mamba1 | Mamba2 | GatedDelta):
        return 0.0
    fp32 = x.fp32_state or (isinstance(x, GatedDelta) and x.gate_rank is not None)
    how = {"tensor": tensor_parallel, "state_bytes": 4.0 if fp32 else element_bytes, "conv_bytes": element_bytes}
    if isinstance(x, Mamba1):
        return float(serving_state.mamba1_state_bytes(x.inner, x.state, x.conv, 1, **how))
    if isinstance(x, Mamba2):
        return float(serving_state.mamba2_state_bytes(x.heads, x.head_dim, x.groups, x.state, x.conv, 1, **how))
    return float(serving_state.delta_state_bytes(x.key_heads, x.value_heads, x.key_dim, x.value_dim, x.conv, 1, **how))


def _kv_elements(kind: LayerKind, tensor_parallel: int) -> float:
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        return 2.0 * max(x.kv_heads / tensor_parallel, 1.0) * x.head_dim
    if isinstance(x, LatentAttention):
        return float(x.kv_rank + x.rope_dim)  # the latent is shared by all heads, so every rank keeps all of it
    return 0.0
