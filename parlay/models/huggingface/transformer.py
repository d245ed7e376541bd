"""Decoders of one pattern, attention then feed-forward: a recipe for each architecture says what its class fixes.

A recipe holds what no config.json says because the class decides it: where biases sit, which norms there are, whether the
feed-forward part has a gate. A bias may be a fixed truth value or the name of the key that switches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.reader import Keys, printable
from parlay.models.huggingface.shapes import (
    Activation,
    Draft,
    Windows,
    dense,
    every,
    heads_of,
    layer,
    layer_count,
    no_windows,
    qwen_windows,
    same_window,
    switched_window,
    windows_by_type,
)
from parlay.models.spec import FeedForward, GroupedAttention, LayerKind, MoeMlp, Norm

Switch = bool | str  # fixed by the class, or the name of a key


@dataclass(frozen=True)
class Recipe:
    """What a class fixes; see the module's docstring."""

    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_key: str | None = None  # the norm is there only if this key is true
    qk_norm_bias: bool = False
    norms: int = 2
    parallel_key: str | None = None  # this key makes attention and feed-forward share one norm
    norm: Norm = "rmsnorm"
    gated: bool = True
    activation: Activation = "silu"
    windows: Windows = no_windows
    experts: routing.Experts | None = None
    sinks: bool = False
    own_head_dim: bool = True
    head_bias: Switch = False
    rope: bool = True
    chunk: bool = False  # windows are chunks, and the layers without one have no rotary embedding (Llama 4)
    scales_windows: bool = True  # whether YaRN reaches layers with a window (OLMo 3: no)
    global_rope: bool = True  # whether layers without a window rotate, where others have one (Command-R 7B: no)
    extra: int = 0  # parameters of a layer that no field describes


ATTENTION_BIAS = Recipe(qkv_bias="attention_bias", out_bias="attention_bias")
LLAMA = replace(ATTENTION_BIAS, mlp_bias="mlp_bias")
PLAIN = Recipe()
QWEN3 = replace(ATTENTION_BIAS, qk_norm="head")
GLM = Recipe(qkv_bias="attention_bias")
GEMMA2 = replace(ATTENTION_BIAS, norms=4, activation="gelu", windows=every(2))
COHERE = replace(ATTENTION_BIAS, norms=1, norm="layernorm_no_bias", qk_norm="full", qk_norm_key="use_qk_norm")
OLMO2 = replace(ATTENTION_BIAS, qk_norm="full")


def _llama4_windows(keys: Keys, count: int) -> list[int | None]:
    """Chunks in the layers that rotate; `no_rope_layers` holds 1 for those, and by default three of four do."""
    step = keys.optional("no_rope_layer_interval") or 4
    flags = keys.integers("no_rope_layers") or [int((i + 1) % step != 0) for i in range(count)]
    if len(flags) != count:
        raise keys.error("no_rope_layers", f"has {len(flags)} entries for {count} layers")
    chunk = keys.optional("attention_chunk_size")
    types = keys.words("layer_types", count) or ["chunked_attention" if flag else "full_attention" for flag in flags]
    return [chunk if kind == "chunked_attention" else None for kind in types]


def _exaone_windows(keys: Keys, count: int) -> list[int | None]:
    """Each `sliding_window_pattern`-th layer sees all; the pattern may be written in letters, L local and G global."""
    pattern = keys.find("sliding_window_pattern")[1]
    if keys.optional("sliding_window", low=0) is None:
        return [None] * count
    if isinstance(pattern, str) and pattern:
        return windows_by_type(
            keys, count, ["sliding_attention" if pattern[i % len(pattern)] == "L" else "full_attention" for i in range(count)]
        )
    return every(4)(keys, count)


def _smollm_windows(keys: Keys, count: int) -> list[int | None]:
    return [None] * count if not keys.flag("use_sliding_window") else windows_by_type(keys, count, ["full_attention"] * count)


def _late_windows(keys: Keys, count: int) -> list[int | None]:
    first = keys.optional("max_window_layers", low=0) or 0
    return windows_by_type(keys, count, ["full_attention" if i < first else "sliding_attention" for i in range(count)])


def _qwen2_moe_windows(keys: Keys, count: int) -> list[int | None]:
    """As the class has it: with `use_sliding_window`, every other layer below `max_window_layers`."""
    on, first = keys.flag("use_sliding_window"), keys.optional("max_window_layers", low=0) or 0
    local = [on and (i + 1) % 2 == 1 and i < first for i in range(count)]
    return (
        windows_by_type(keys, count, ["sliding_attention" if yes else "full_attention" for yes in local])
        if on
        else [None] * count
    )


RECIPES: dict[str, Recipe] = {
    "llama": LLAMA,
    "mistral": replace(PLAIN, windows=same_window),
    "ministral": replace(PLAIN, windows=no_windows),
    "ministral3": PLAIN,
    "mixtral": replace(PLAIN, windows=same_window, experts=routing.all_routed),
    "qwen2": Recipe(qkv_bias=True, windows=qwen_windows),
    "qwen2_moe": Recipe(qkv_bias="qkv_bias", windows=_qwen2_moe_windows, experts=routing.qwen),
    "qwen3": replace(QWEN3, windows=qwen_windows),
    "qwen3_moe": replace(QWEN3, windows=switched_window, experts=routing.qwen),
    "glm": GLM,
    "glm4": replace(GLM, norms=4),
    "glm4v_text": Recipe(qkv_bias=True, norms=4, own_head_dim=False),
    "glm4_moe": replace(GLM, qk_norm="head", qk_norm_key="use_qk_norm", experts=routing.deepseek),
    "gpt_oss": replace(ATTENTION_BIAS, sinks=True, windows=every(2), experts=routing.gpt_oss),
    "gemma": replace(ATTENTION_BIAS, activation="gelu"),
    "gemma2": GEMMA2,
    "gemma3_text": replace(GEMMA2, qk_norm="head", windows=every(6)),
    "phi": Recipe(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        qk_norm="head",
        qk_norm_key="qk_layernorm",
        qk_norm_bias=True,
        norms=1,
        norm="layernorm",
        gated=False,
        activation="gelu",
        head_bias=True,
    ),
    "phi3": replace(PLAIN, windows=same_window),
    "phimoe": replace(
        ATTENTION_BIAS, norm="layernorm", windows=same_window, experts=routing.all_routed, head_bias="lm_head_bias"
    ),
    "olmo": replace(ATTENTION_BIAS, norm="nonparametric"),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, windows=every(4), scales_windows=False),
    "olmoe": replace(OLMO2, experts=routing.all_routed),
    "flex_olmo": replace(OLMO2, experts=routing.all_routed),
    "starcoder2": Recipe(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        norm="layernorm",
        gated=False,
        activation="gelu",
        windows=same_window,
    ),
    "cohere": COHERE,
    "cohere2": replace(COHERE, qk_norm="none", qk_norm_key=None, own_head_dim=False, windows=every(4), global_rope=False),
    "nemotron": replace(LLAMA, norm="layernorm", gated=False, activation="relu2"),
    "llama4_text": replace(ATTENTION_BIAS, windows=_llama4_windows, experts=routing.llama4, chunk=True),
    "granite": LLAMA,
    "granitemoe": replace(ATTENTION_BIAS, experts=routing.all_routed),
    "granitemoeshared": replace(ATTENTION_BIAS, experts=routing.granite_shared),
    "smollm3": replace(LLAMA, windows=_smollm_windows),
    "ernie4_5": Recipe(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "ernie4_5_moe": Recipe(qkv_bias="use_bias", out_bias="use_bias", head_bias="use_bias", experts=routing.ernie),
    "hunyuan_v1_dense": QWEN3,
    "hunyuan_v1_moe": replace(QWEN3, experts=routing.hunyuan),
    "seed_oss": Recipe(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "exaone": PLAIN,
    "exaone4": Recipe(qk_norm="head", windows=_exaone_windows),
    "exaone_moe": Recipe(qk_norm="head", windows=_exaone_windows, experts=routing.deepseek),
    "dots1": replace(QWEN3, windows=_late_windows, experts=routing.deepseek),
    "cwm": Recipe(mlp_bias="mlp_bias", windows=every(4)),
    "arcee": replace(LLAMA, gated=False, activation="relu2"),
    "apertus": replace(ATTENTION_BIAS, qk_norm="head", gated=False, activation="relu2", extra=2),  # two values of xIELU
    "stablelm": Recipe(
        qkv_bias="use_qkv_bias",
        norm="layernorm",
        qk_norm="full",
        qk_norm_key="qk_layernorm",
        parallel_key="use_parallel_residual",
    ),
    "minimax_m2": Recipe(qk_norm="full", experts=routing.minimax_m2),
    "helium": replace(ATTENTION_BIAS, out_bias=False, mlp_bias="mlp_bias"),
    "internlm3": Recipe(qkv_bias="qkv_bias", out_bias="qkv_bias", mlp_bias="bias"),
    # Classes that ship beside their weights.
    "mimo": Recipe(qkv_bias="attention_bias", windows=qwen_windows),
    "grok-1": Recipe(norms=4, activation="gelu", experts=routing.all_routed),
    "internlm": Recipe(qkv_bias="bias", out_bias="bias"),
    "internlm2": Recipe(qkv_bias="bias", out_bias="bias"),
    "baichuan": PLAIN,
    "deepseek": replace(ATTENTION_BIAS, experts=routing.deepseek_plain),
}
ALIASES = {  # model_type -> the architecture whose class it shares
    "grok1": "grok-1",
    "grok": "grok-1",
    "code_llama": "llama",
    "yi": "llama",
    "Yi": "llama",
    "aquila": "llama",
    "aquila3": "llama",
    "xverse": "llama",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "phi4_multimodal": "phi3",
}


def build(keys: Keys, recipe: Recipe) -> Draft:
    """Return the model that a recipe and a file describe."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    mixers = attentions(keys, recipe, hidden, count)
    mlps = feed_forwards(keys, recipe, count)
    extras = [recipe.extra] * count
    if recipe.experts is routing.ernie:
        extras = [_ernie_extra(mlp, hidden, keys.flag("use_bias")) for mlp in mlps]
    norms = 1 if recipe.parallel_key and keys.flag(recipe.parallel_key) else recipe.norms
    layers = [layer(mixer, mlp, norms, extra) for mixer, mlp, extra in zip(mixers, mlps, extras, strict=True)]
    draft = Draft(hidden, keys.integer("vocab_size"), layers, norm=recipe.norm, tied=keys.flag("tie_word_embeddings"))
    draft.fields["head_bias"] = switched(keys, recipe.head_bias)
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    predict_more(keys, draft, layers[-1])
    return draft


def _ernie_extra(mlp: FeedForward, hidden: int, bias: bool) -> int:
    """ERNIE's correction per expert, a parameter there, and the biases of its shared experts."""
    if not isinstance(mlp, MoeMlp):
        return 0
    return mlp.experts + (2 * mlp.shared_width + hidden if bias and mlp.shared_width else 0)


def predict_more(keys: Keys, draft: Draft, kind: LayerKind) -> None:
    """Note the multi-token-prediction modules: each is one layer of `kind` beside the model's own layers."""
    draft.mtp_layers = keys.optional("num_nextn_predict_layers", low=0, high=64) or 0
    draft.mtp = kind if draft.mtp_layers else None


def attentions(keys: Keys, recipe: Recipe, hidden: int, count: int) -> list[GroupedAttention]:
    """Return every layer's attention."""
    heads, kv_heads, head_dim = heads_of(keys, hidden, own_head_dim=recipe.own_head_dim)
    windows = recipe.windows(keys, count)
    mixed = any(window is None for window in windows) and any(window is not None for window in windows)
    has_norm = recipe.qk_norm != "none" and (recipe.qk_norm_key is None or keys.flag(recipe.qk_norm_key))
    made: dict[int | None, GroupedAttention] = {}
    for window in set(windows):
        made[window] = GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=switched(keys, recipe.qkv_bias),
            out_bias=switched(keys, recipe.out_bias),
            qk_norm=recipe.qk_norm if has_norm else "none",
            qk_norm_bias=recipe.qk_norm_bias and has_norm,
            window=window,
            chunked=recipe.chunk and window is not None,
            sinks=recipe.sinks,
            rope_scaled=recipe.rope and (recipe.scales_windows or window is None) and scaled_rotary(keys, window is not None),
            rope=recipe.rope and (window is not None or not mixed or (recipe.global_rope and not recipe.chunk)),
        )
    return [made[window] for window in windows]


SCALES = ("attention_factor", "mscale", "mscale_all_dim")  # what multiplies cos and sin
UNSCALED = frozenset(("default", "mrope"))
BEFORE = "original_max_position_embeddings"
SCALINGS = ("default", "linear", "dynamic", "ntk", "yarn", "longrope", "su", "llama3", "mrope", "proportional")  # kinds there are


def scaled_rotary(keys: Keys, windowed: bool) -> bool:
    """Return whether cos and sin carry a factor in layers with or without a window: YaRN's, unless it is 1 or its two scales cancel.

    transformers, modeling_rope_utils.py, _compute_yarn_parameters; tables by kind of layer have its names. Other kinds of scaling change
    angles alone, or are read by no framework whose kernels differ.
    """
    for name in ("rope_scaling", "rope_parameters"):
        table = keys.table(name)
        if table is None:
            continue
        table = table.table("sliding_attention" if windowed else "full_attention") or table
        words = [kind.lower() for kind in map(table.text, ("rope_type", "type")) if kind]
        own, mscale, every_mscale = (table.real(key, nought=key != "attention_factor") for key in SCALES)
        factor = table.real("factor")
        if table.find("factor")[1] is None and not UNSCALED.issuperset(words) and not table.has(BEFORE):
            raise table.error("factor", f"is null, and there is no {BEFORE} that it follows from", hint="such as 8.0")
        for word in words:
            if word not in SCALINGS:
                keys.log.ignore(f"{name}: the kind '{printable(word)}' is not known, so it is taken to scale angles alone")
        if "yarn" in words:
            if own is not None:
                return own != 1
            return mscale != every_mscale if mscale and every_mscale else factor != 1
    return False


def feed_forwards(keys: Keys, recipe: Recipe, count: int) -> list[FeedForward]:
    """Return every layer's feed-forward part."""
    if recipe.experts is not None:
        return recipe.experts(keys, count)
    bias = switched(keys, recipe.mlp_bias)
    return [dense(keys, gated=recipe.gated, bias=bias, fallback=recipe.activation)] * count


def switched(keys: Keys, switch: Switch) -> bool:
    """Return a bias that is fixed, or switched by the key named."""
    return keys.flag(switch) if isinstance(switch, str) else switch
