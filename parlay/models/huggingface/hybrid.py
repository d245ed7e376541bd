"""Models whose layers mix tokens in more than one way: Mamba, gated delta rule and attention, in the order the file gives."""

from __future__ import annotations

from collections.abc import Callable

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.latent import latent_attention
from parlay.models.huggingface.reader import MAX_LAYERS, MISSING, Keys, printable
from parlay.models.huggingface.shapes import NO_MLP, Draft, activation, dense, heads_of, layer, layer_count
from parlay.models.huggingface.transformer import predict_more
from parlay.models.spec import (
    FeedForward,
    GatedDelta,
    GroupedAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    Mixer,
    MoeMlp,
    NoMixer,
)

MAMBA_RANK_DIVISOR = 16  # dt_rank "auto" is hidden / 16, rounded up (Mamba, section 3.6)
WORDS = {  # a layer's kind in the words and letters of the files
    "M": "mamba",
    "mamba": "mamba",
    "mamba2": "mamba",
    "linear_attention": "mamba",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "E": "moe",
    "moe": "moe",
    "-": "mlp",
    "mlp": "mlp",
}


def grouped(keys: Keys, hidden: int, *, bias: bool = False, rope: bool = True) -> GroupedAttention:
    """Return the attention of a hybrid's attention layers."""
    heads, kv_heads, head_dim = heads_of(keys, hidden)
    return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias, rope=rope)


def kinds_of(keys: Keys, name: str, given: list[str]) -> list[str]:
    """Return layer kinds in our words, or raise on a word that no class knows."""
    unknown = next((word for word in given if word not in WORDS), None)
    if unknown is not None:
        raise keys.error(name, f"holds '{printable(unknown)}', which is none of {', '.join(WORDS)}")
    return [WORDS[word] for word in given]


def finish(keys: Keys, hidden: int, layers: list[LayerKind], *, ties: bool = True) -> Draft:
    """Return the draft of a hybrid; `ties` is False for a class that keeps two tables whatever the file says."""
    tied = keys.flag("tie_word_embeddings")
    if tied and not ties:
        keys.log.ignore("tie_word_embeddings: the class keeps an output matrix of its own")
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=tied and ties)
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    return draft


def _pattern(keys: Keys) -> list[str]:
    """Layer kinds of a Nemotron-H file: a list, or a string of M, E, * and -."""
    text = keys.find("hybrid_override_pattern")[1]
    words = keys.words("layers_block_type") or keys.words("layer_types")
    if words is None and text is not MISSING and text is not None:
        if not isinstance(text, str):
            raise keys.error("hybrid_override_pattern", "must be a string of the letters M, E, * and -")
        words = [letter for letter in text if letter != "|"]
    if not words:
        raise keys.error("hybrid_override_pattern", "is missing: it says which layers are Mamba, attention, experts and MLP")
    count = keys.find("num_hidden_layers")[1]
    if count not in (MISSING, None, len(words)):
        keys.log.assume(f"{len(words)} layers, as the layer pattern has; num_hidden_layers differs")
    if len(words) > MAX_LAYERS:
        raise keys.error("hybrid_override_pattern", f"describes {len(words)} layers, more than any model has")
    return kinds_of(keys, "hybrid_override_pattern", words)


def nemotron_h(keys: Keys) -> Draft:
    """Nemotron-H and Nemotron-3: each layer is one thing only, Mamba-2, attention, experts or MLP, behind one norm."""
    hidden, kinds = keys.integer("hidden_size"), _pattern(keys)
    parts = {kind: _nemotron_part(keys, hidden, kind) for kind in set(kinds)}
    draft = finish(keys, hidden, [parts[kind] for kind in kinds], ties=False)
    draft.mtp_layers = keys.optional("num_nextn_predict_layers", low=0, high=64) or 0
    if draft.mtp_layers:
        draft.mtp = _nemotron_mtp(keys, hidden)
    return draft


def _nemotron_part(keys: Keys, hidden: int, kind: str) -> LayerKind:
    if kind == "mamba":
        return layer(_nemotron_mamba(keys), NO_MLP, 1)
    if kind == "attention":
        return layer(grouped(keys, hidden, rope=False), NO_MLP, 1)
    bias = keys.flag("mlp_bias")
    if kind == "mlp":
        return layer(NoMixer(), dense(keys, gated=False, bias=bias, fallback="relu2"), 1)
    experts = _nemotron_experts(keys)
    # The biases of the shared expert and of the projections to and from the latent; the experts themselves have none.
    latent = experts.latent_width or 0
    extra = experts.shared_width + hidden + (latent + hidden if latent else 0) if bias else 0
    return layer(NoMixer(), experts, 1, extra)


def _nemotron_experts(keys: Keys) -> MoeMlp:
    return routing.moe(
        keys,
        keys.integer("n_routed_experts"),
        keys.integer("moe_intermediate_size"),
        gated=False,
        activation=activation(keys, "relu2", "mlp_hidden_act"),
        shared_width=keys.integer("moe_shared_expert_intermediate_size", low=0),
        latent_width=keys.optional("moe_latent_size"),
        score_correction=True,
    )


def _nemotron_mamba(keys: Keys) -> Mamba2:
    renamed = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias"}
    old = {new: old if keys.has(old) else new for new, old in renamed.items()}
    return Mamba2(
        heads=keys.integer("mamba_num_heads"),
        head_dim=keys.integer("mamba_head_dim"),
        groups=keys.integer(old["n_groups"]),
        state=keys.integer("ssm_state_size"),
        conv=keys.integer(old["conv_kernel"]),
        conv_bias=keys.flag(old["use_conv_bias"], True),
        bias=keys.flag("use_bias"),
        fp32_state=_fp32_state(keys),
    )


def _fp32_state(keys: Keys) -> bool:
    """Whether the file asks for recurrent states in fp32 when the model is served; Nemotron-H and Qwen3.5 name it differently."""
    return "float32" in (keys.find("mamba_ssm_cache_dtype")[1], keys.find("mamba_ssm_dtype")[1])


def _nemotron_mtp(keys: Keys, hidden: int) -> LayerKind:
    """A multi-token-prediction module: its blocks, one mixer and one feed-forward part, as one layer of two norms."""
    text = keys.text("mtp_hybrid_override_pattern")
    words = kinds_of(keys, "mtp_layers_block_type", keys.words("mtp_layers_block_type") or list(text or "*E"))
    parts = [_nemotron_part(keys, hidden, word) for word in words]
    mixers = [part.mixer for part in parts if not isinstance(part.mixer, NoMixer)]
    blocks = [part.mlp for part in parts if part.mlp.kind != "none"]
    if len(mixers) > 1 or len(blocks) > 1:
        keys.log.assume("multi-token prediction: one mixer and one feed-forward part are read, the file names more")
    extra = sum(part.extra_parameters for part in parts)
    return layer(mixers[0] if mixers else NoMixer(), blocks[0] if blocks else NO_MLP, min(len(parts), 2), extra)


def jamba(keys: Keys) -> Draft:
    """Jamba: Mamba-1 with inner norms, attention in one layer of `attn_layer_period`, experts in one of `expert_layer_period`."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    period, offset = keys.integer("attn_layer_period"), keys.integer("attn_layer_offset", low=0)
    attention = grouped(keys, hidden, rope=False)
    mamba = Mamba1(
        inner=keys.integer("mamba_expand") * hidden,
        state=keys.integer("mamba_d_state"),
        dt_rank=_rank(keys, "mamba_dt_rank", hidden),
        conv=keys.integer("mamba_d_conv"),
        conv_bias=keys.flag("mamba_conv_bias"),
        bias=keys.flag("mamba_proj_bias"),
        inner_norms=True,
    )
    mlps = routing.jamba(keys, count)
    return finish(keys, hidden, [layer(attention if i % period == offset else mamba, mlp) for i, mlp in enumerate(mlps)])


def _rank(keys: Keys, name: str, hidden: int) -> int:
    given = keys.find(name)[1]
    if given in (MISSING, None, "auto"):
        return -(-hidden // MAMBA_RANK_DIVISOR)
    return keys.integer(name)


def mamba1(keys: Keys) -> Draft:
    """Mamba: one mixer a layer, no feed-forward part."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    mixer = Mamba1(
        inner=keys.integer("expand") * hidden,
        state=keys.integer("state_size"),
        dt_rank=_rank(keys, "time_step_rank", hidden),
        conv=keys.integer("conv_kernel"),
        conv_bias=keys.flag("use_conv_bias"),
        bias=keys.flag("use_bias"),
    )
    return finish(keys, hidden, [layer(mixer, NO_MLP, 1)] * count)


def mamba2(keys: Keys) -> Draft:
    """Mamba-2: one mixer a layer, no feed-forward part."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    heads, head_dim = keys.integer("num_heads"), keys.integer("head_dim")
    if heads * head_dim != keys.integer("expand") * hidden:
        raise keys.error("num_heads", f"times head_dim must be expand x hidden_size ({keys.integer('expand') * hidden})")
    mixer = Mamba2(
        heads=heads,
        head_dim=head_dim,
        groups=keys.integer("n_groups"),
        state=keys.integer("state_size"),
        conv=keys.integer("conv_kernel"),
        conv_bias=keys.flag("use_conv_bias"),
        bias=keys.flag("use_bias"),
    )
    return finish(keys, hidden, [layer(mixer, NO_MLP, 1)] * count)


def _bamba_mamba(keys: Keys, hidden: int) -> Mamba2:
    """The Mamba-2 mixer as IBM's classes name its numbers; a head's width may be "auto"."""
    heads = keys.integer("mamba_n_heads")
    inner = keys.integer("mamba_expand") * hidden
    given = keys.find("mamba_d_head")[1]
    head_dim = inner // heads if given in (MISSING, None, "auto") else keys.integer("mamba_d_head")
    if head_dim * heads != inner:
        raise keys.error("mamba_n_heads", f"times mamba_d_head must be mamba_expand x hidden_size ({inner}), got {heads}")
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        groups=keys.integer("mamba_n_groups"),
        state=keys.integer("mamba_d_state"),
        conv=keys.integer("mamba_d_conv"),
        conv_bias=keys.flag("mamba_conv_bias"),
        bias=keys.flag("mamba_proj_bias"),
    )


def bamba(keys: Keys) -> Draft:
    """Bamba: Mamba-2 except in the layers of `attn_layer_indices`, a gated feed-forward part in each."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    chosen = set(keys.integers("attn_layer_indices") or ())
    bias = keys.flag("attention_bias")
    mlp = dense(keys, bias=keys.flag("mlp_bias"))
    mixers: dict[bool, Mixer] = {}
    if any(i in chosen for i in range(count)):
        mixers[True] = grouped(keys, hidden, bias=bias)
    if any(i not in chosen for i in range(count)):
        mixers[False] = _bamba_mamba(keys, hidden)
    return finish(keys, hidden, [layer(mixers[i in chosen], mlp) for i in range(count)])


def granite_hybrid(keys: Keys) -> Draft:
    """Granite 4: Mamba-2 or attention, then experts beside a shared part; with no experts, the shared part alone."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    words = keys.words("layer_types", count) or ["mamba"] * count
    kinds = kinds_of(keys, "layer_types", words)
    mlps = routing.granite_shared(keys, count)
    mixers: dict[str, Mixer] = {}
    if "mamba" in kinds:
        mixers["mamba"] = _bamba_mamba(keys, hidden)
    if "attention" in kinds:
        rope = keys.text("position_embedding_type") == "rope"
        mixers["attention"] = grouped(keys, hidden, bias=keys.flag("attention_bias"), rope=rope)
    if not set(kinds) <= set(mixers):
        raise keys.error("layer_types", "must hold mamba and attention only")
    return finish(keys, hidden, [layer(mixers[kind], mlp) for kind, mlp in zip(kinds, mlps, strict=True)])


def _delta_layers(keys: Keys, hidden: int, count: int) -> list[Mixer]:
    """Gated delta rule in all layers but each `full_attention_interval`-th, where q is twice as wide to gate the output."""
    step = keys.optional("full_attention_interval") or 4
    keys.find("attn_output_gate")  # in some files; the class always gates
    words = keys.words("layer_types", count)
    full = [(i + 1) % step == 0 for i in range(count)] if words is None else [word == "full_attention" for word in words]
    heads, kv_heads, head_dim = heads_of(keys, hidden)
    bias = keys.flag("attention_bias")
    attention = GroupedAttention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias, qk_norm="head", output_gate=True
    )
    key_heads, value_heads = keys.integer("linear_num_key_heads"), keys.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise keys.error("linear_num_value_heads", f"must be a multiple of linear_num_key_heads ({key_heads}), got {value_heads}")
    delta = GatedDelta(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=keys.integer("linear_key_head_dim"),
        value_dim=keys.integer("linear_value_head_dim"),
        conv=keys.integer("linear_conv_kernel_dim"),
        fp32_state=_fp32_state(keys),
    )
    return [attention if yes else delta for yes in full]


def _delta_model(keys: Keys, mlps: Callable[[Keys, int], list[FeedForward]]) -> Draft:
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    mixers = _delta_layers(keys, hidden, count)
    layers = [layer(mixer, mlp) for mixer, mlp in zip(mixers, mlps(keys, count), strict=True)]
    draft = finish(keys, hidden, layers)
    full = next((kind for kind in layers if isinstance(kind.mixer, GroupedAttention)), layers[-1])
    predict_more(keys, draft, full)
    return draft


def qwen3_next(keys: Keys) -> Draft:
    """Qwen3-Next: three of four layers are gated DeltaNet, every layer routes beside a gated shared expert."""
    return _delta_model(keys, routing.qwen)


def qwen3_5(keys: Keys) -> Draft:
    """Qwen3.5: as Qwen3-Next with a dense feed-forward part."""
    return _delta_model(keys, lambda inner, count: [dense(inner)] * count)


def kimi_linear(keys: Keys) -> Draft:
    """Kimi Linear: Kimi Delta Attention, and latent attention in the layers the file lists, counted from 1 there."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    table = keys.table("linear_attn_config") or Keys({}, keys.where, keys.log)
    words = keys.words("layer_types", count)
    listed = table.integers("full_attn_layers")
    table.find("kda_layers")
    if words is not None:
        full = [word == "full_attention" for word in words]
    elif listed is not None:
        full = [i + 1 in listed for i in range(count)]
    else:
        full = [i > 0 and i % 4 == 0 for i in range(count)]
    heads = table.optional("num_heads") or keys.integer("linear_num_heads")
    dim = table.optional("head_dim") or keys.integer("linear_head_dim")
    conv = table.optional("short_conv_kernel_size") or keys.integer("linear_conv_kernel_dim")
    delta = GatedDelta(key_heads=heads, value_heads=heads, key_dim=dim, value_dim=dim, conv=conv, gate_rank=dim)
    latent = latent_attention(keys)
    mlps = routing.deepseek(keys, count, first_dense=None if keys.has("first_k_dense_replace") else 1)
    layers = [layer(latent if yes else delta, mlp) for yes, mlp in zip(full, mlps, strict=True)]
    return finish(keys, hidden, layers, ties=False)


BUILDERS: dict[str, Callable[[Keys], Draft]] = {
    "nemotron_h": nemotron_h,
    "jamba": jamba,
    "mamba": mamba1,
    "falcon_mamba": mamba1,
    "mamba2": mamba2,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_next,
    "kimi_linear": kimi_linear,
}
