"""Models with multi-head latent attention: DeepSeek-V2 and V3, Kimi K2, GLM-5, and others built on the same class."""

from __future__ import annotations

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.reader import Keys
from parlay.models.huggingface.shapes import Draft, dense, layer, layer_count
from parlay.models.huggingface.transformer import predict_more
from parlay.models.spec import LatentAttention

ROUTING: dict[str, routing.Experts] = {
    "deepseek_v2": routing.deepseek_plain,
    "deepseek_v3": routing.deepseek,
    "deepseek_v32": routing.deepseek,
    "glm4_moe_lite": routing.one_dense,
    "glm_moe_dsa": routing.deepseek,
    "mistral4": routing.deepseek_plain,
    "youtu": lambda keys, count: [dense(keys)] * count,
}
ALIASES = {"kimi_k2": "deepseek_v3", "deepseek_vl_v2": "deepseek_v2"}
INDEXED = ("deepseek_v32", "glm_moe_dsa")  # a small scorer picks the keys that each query sees


def latent_attention(keys: Keys) -> LatentAttention:
    """Return the attention of the DeepSeek classes; q_lora_rank null or 0 means a full-rank query projection."""
    heads = keys.integer("num_attention_heads")
    keys.find("num_key_value_heads")  # in every file, equal to the heads, and without meaning here
    keys.find("head_dim")
    nope = keys.integer("qk_nope_head_dim", low=0)
    if not nope:
        raise keys.error("qk_nope_head_dim", "must be at least 1")
    return LatentAttention(
        heads=heads,
        q_rank=keys.optional("q_lora_rank", low=0) or None,
        kv_rank=keys.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=keys.integer("qk_rope_head_dim"),
        v_dim=keys.integer("v_head_dim"),
        bias=keys.flag("attention_bias"),
    )


def build(keys: Keys, kind: str) -> Draft:
    """Return a model of latent attention and routed experts."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    mixer = latent_attention(keys)
    mlps = ROUTING[kind](keys, count)
    extra = _indexer(keys, mixer, hidden) if kind in INDEXED else 0
    indexed = _indexed_layers(keys, count) if extra else [False] * count
    layers = [layer(mixer, mlp, 2, extra if yes else 0) for mlp, yes in zip(mlps, indexed, strict=True)]
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    predict_more(keys, draft, layers[-1])
    return draft


def _indexer(keys: Keys, mixer: LatentAttention, hidden: int) -> int:
    """Parameters of the index of DeepSeek sparse attention: queries from the latent, one key with its norm, head weights."""
    heads, dim = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    keys.log.assume("the index of sparse attention is counted, and its time and memory are not priced")
    rank = mixer.q_rank or hidden
    return rank * heads * dim + hidden * dim + 2 * dim + hidden * heads


def _indexed_layers(keys: Keys, count: int) -> list[bool]:
    """Layers with an index of their own; the others use the choice of the last one that has it (GLM-5)."""
    types = keys.words("indexer_types", count)
    pattern = keys.find("index_topk_pattern")[1]
    if types is not None:
        return [kind != "shared" for kind in types]
    if isinstance(pattern, str | list) and len(pattern) >= count:
        return [mark in ("F", "full") for mark in pattern[:count]]
    step = keys.optional("index_topk_freq") or 1
    offset = keys.optional("index_skip_topk_offset", low=0)
    shift = (2 if offset is None else offset) - 1
    return [max(i - shift, 0) % step == 0 for i in range(count)]
