"""An architecture that has no recipe: what is standard is read, and every guess is named.

Guessed are the facts that a class fixes and a file does not hold. Sizes are never guessed.
"""

from __future__ import annotations

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.latent import latent_attention
from parlay.models.huggingface.reader import Keys, printable
from parlay.models.huggingface.shapes import (
    Draft,
    activation,
    dense,
    every,
    layer,
    layer_count,
    qwen_windows,
    same_window,
    windows_by_type,
)
from parlay.models.huggingface.transformer import Recipe, attentions, predict_more
from parlay.models.spec import FeedForward, Mixer

UNREADABLE = {  # keys of layers that no standard part describes
    "is_encoder_decoder": "an encoder-decoder model",
    "hybrid_override_pattern": "a hybrid of several kinds of layer",
    "attn_layer_period": "a hybrid of several kinds of layer",
    "ssm_state_size": "a state-space model",
    "mamba_d_state": "a hybrid with Mamba layers",
    "linear_num_value_heads": "a hybrid with linear attention",
    "linear_attn_config": "a hybrid with linear attention",
    "attn_type_list": "a hybrid with linear attention",
    "conv_L_cache": "a hybrid with short convolutions",
    "cross_attention_layers": "a model with cross-attention layers",
    "hc_mult": "a model of several residual streams",
    "altup_num_inputs": "a model of several residual streams",
    "hidden_size_per_layer_input": "a model with an embedding in every layer",
    "o_lora_rank": "a model whose attention has an output of low rank",
    "compress_rates": "a model of compressed attention",
    "compress_ratios": "a model of compressed attention",
    "zero_expert_num": "a model with experts that do nothing",
    "num_memory_blocks": "a model whose layers share parameters",
    "num_hidden_groups": "a model whose layers share parameters",
}
WINDOWS = ("full_attention", "sliding_attention")  # the only kinds of layer that a standard decoder has


UNREADABLE_KINDS = {  # architectures known to be of another pattern, whatever keys a file of theirs holds
    "gemma3n": "a model of several residual streams and embeddings in every layer",
    "gemma3n_text": "a model of several residual streams and embeddings in every layer",
    "longcat_flash": "a model of two attentions in a layer and experts that do nothing",
    "falcon_h1": "a model of attention and Mamba side by side",
    "lfm2": "a hybrid with short convolutions",
    "lfm2_moe": "a hybrid with short convolutions",
    "zamba2": "a model whose layers share parameters",
    "rwkv": "a recurrent model",
    "t5": "an encoder-decoder model",
    "bert": "an encoder",
}


def build(keys: Keys, kind: str) -> Draft:
    """Return a model read as a decoder of Llama's pattern, or raise on a key that says it is something else."""
    if kind in UNREADABLE_KINDS:
        raise keys.error("model_type", f"'{kind}' is {UNREADABLE_KINDS[kind]}, which a specification does not describe")
    for name, what in UNREADABLE.items():
        if keys.data.get(name) not in (None, False, [], {}):
            raise keys.error(name, f"says that '{printable(kind)}' is {what}, of an architecture that is not known")
    other = next((word for word in keys.words("layer_types") or [] if word not in WINDOWS), None)
    if other is not None:
        message = f"holds '{printable(other)}', a kind of layer of an architecture that is not known"
        raise keys.error("layer_types", message)
    for name, value in keys.data.items():
        if name.endswith("_per_layer") and isinstance(value, list) and any(item != value[0] for item in value):
            raise keys.error(printable(name, 60), "gives each layer its own size, by the rules of a class that is not known")
    if keys.data.get("v_head_dim") is not None and not keys.has("kv_lora_rank"):
        raise keys.error("v_head_dim", "differs from head_dim only in attentions that are not known")
    keys.log.assume(f"model_type '{printable(kind)}' is not known: read as a decoder with RMS norms, two in each layer")
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    mixers = _mixers(keys, hidden, count)
    layers = [layer(mixer, mlp) for mixer, mlp in zip(mixers, _mlps(keys, count), strict=True)]
    if not keys.has("tie_word_embeddings"):
        keys.log.assume("tie_word_embeddings = false (not in the file)")
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    predict_more(keys, draft, layers[-1])
    return draft


def _first(keys: Keys, *names: str) -> str | bool:
    """Return the first of the keys that the file holds, as a switch; with none of them, no bias (noted)."""
    found = next((name for name in names if keys.has(name)), None)
    if found is None:
        keys.log.assume(f"no bias where {names[0]} would say so (not in the file)")
    return found or False


def _mixers(keys: Keys, hidden: int, count: int) -> list[Mixer]:
    if keys.has("kv_lora_rank"):
        return [latent_attention(keys)] * count
    bias = _first(keys, "attention_bias", "use_qkv_bias", "qkv_bias", "use_bias", "bias")
    norm = next((name for name in ("use_qk_norm", "qk_norm", "qk_layernorm") if keys.has(name)), None)
    if norm is None:
        keys.log.assume("no norms on q and k (no key says so)")
    windows = same_window if keys.has("sliding_window") else lambda inner, n: windows_by_type(inner, n, ["full_attention"] * n)
    if keys.has("use_sliding_window"):
        windows = qwen_windows
    elif keys.has("sliding_window_pattern") and keys.has("sliding_window"):
        windows = every(1)
    out = bias if bias in ("attention_bias", "use_bias", "bias") else _first(keys, "attention_out_bias")
    recipe = Recipe(qkv_bias=bias, out_bias=out, qk_norm="head" if norm else "none", qk_norm_key=norm, windows=windows)
    return list(attentions(keys, recipe, hidden, count))


def _mlps(keys: Keys, count: int) -> list[FeedForward]:
    if keys.has("num_experts"):
        if any(name in keys.data for name in ("first_k_dense_replace", "n_shared_experts", "n_routed_experts")):
            keys.log.assume("layers route as in DeepSeek's classes: the first first_k_dense_replace are dense")
            if not keys.has("moe_intermediate_size"):
                return [routing.moe(keys, keys.integer("num_experts"), keys.integer("intermediate_size"))] * count
            return routing.deepseek_plain(keys, count)
        if keys.has("moe_intermediate_size"):
            keys.log.assume("layers route as in Qwen's classes: all, unless decoder_sparse_step or mlp_only_layers say otherwise")
            return routing.qwen(keys, count)
        keys.log.assume("every layer routes, over experts of width intermediate_size")
        return routing.all_routed(keys, count)
    act = activation(keys)
    gated = act in ("silu", "gelu")
    keys.log.assume(f"feed-forward part {'with' if gated else 'without'} a gate (guessed from the activation, {act})")
    bias = _first(keys, "mlp_bias", "use_mlp_bias", "use_bias")
    return [dense(keys, gated=gated, bias=keys.flag(bias) if isinstance(bias, str) else bias)] * count
