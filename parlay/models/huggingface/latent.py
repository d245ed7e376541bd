"""Models with multi-head latent attention: DeepSeek-V2 and V3, Kimi K2, GLM-5, and others built on the same class."""

from __future__ import annotations

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.reader import Keys, printable
from parlay.models.huggingface.shapes import Draft, dense, layer, layer_count
from parlay.models.huggingface.transformer import predict_more
from parlay.models.spec import LatentAttention, LayerKind, MoeMlp

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


V4_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}  # the class's default, tokens per entry
V4_WORDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
V4_ROPE_SHARE = 8  # an eighth of a head rotates where the file says nothing


def deepseek_v4(keys: Keys) -> Draft:
    """DeepSeek-V4: one latent serves all heads as key and value, compressed over tokens, between several residual streams.

    Parameters are exact. A query sees a sliding window and compressed entries: those that an index picks (compressed sparse
    attention), or all (heavily compressed attention).
    """
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    width, streams = keys.integer("moe_intermediate_size"), keys.integer("hc_mult", high=64)
    shared = (keys.optional("n_shared_experts", low=0) or 0) * width
    experts = routing.moe(keys, keys.integer("n_routed_experts"), width, shared_width=shared, score_correction=True)
    for unused in ("num_key_value_heads", "index_topk", "num_hash_layers", "mlp_layer_types", "o_groups"):
        keys.find(unused)
    mixing = (2 + streams) * streams
    residual = 2 * (mixing * streams * hidden + mixing + 3)  # before attention and before the experts
    words = _v4_words(keys, count)
    kinds = {word: _v4_layer(keys, hidden, word, experts, residual) for word in set(words)}
    keys.log.assume(
        "compressed attention is priced without its index and compressor, residual streams not at all; counts are exact"
    )
    draft = Draft(hidden, keys.integer("vocab_size"), [kinds[word] for word in words], tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    draft.fields["extra_parameters"] = streams * streams * hidden + streams + 1
    predict_more(keys, draft, draft.layers[-1])
    return draft


def _v4_words(keys: Keys, count: int) -> list[str]:
    """Return each layer's kind of attention: by words, by compress_ratios (0, 4, 128), or as the class has it."""
    words = keys.words("layer_types", count)
    ratios = keys.integers("compress_ratios")
    if words is None and ratios is not None:
        if len(ratios) < count:
            raise keys.error("compress_ratios", f"has {len(ratios)} entries for {count} layers")
        words = [V4_WORDS.get(ratio, str(ratio)) for ratio in ratios[:count]]  # what follows is of the prediction modules
    if words is None:
        sparse, heavy = V4_WORDS[4], V4_WORDS[128]
        words = [heavy if i < 2 or i % 2 == 0 else sparse for i in range(count)]
    unknown = next((word for word in words if word not in V4_WORDS.values()), None)
    if unknown is not None:
        raise keys.error("compress_ratios", f"or layer_types holds '{printable(unknown)}', which is no attention of this class")
    return words


def _v4_layer(keys: Keys, hidden: int, word: str, experts: MoeMlp, residual: int) -> LayerKind:
    heads, dim, rank = keys.integer("num_attention_heads"), keys.integer("head_dim"), keys.integer("q_lora_rank")
    rope = keys.optional("qk_rope_head_dim") or dim // V4_ROPE_SHARE
    if not 0 < rope < dim:
        raise keys.error("qk_rope_head_dim", f"must be below head_dim ({dim}), got {rope}")
    window = keys.integer("sliding_window")
    extra = residual + rope + heads  # the latent's norm is as wide as a head, and each head has a sink
    compressed: dict[str, int | None] = {}
    if word != V4_WORDS[0]:
        rates = keys.table("compress_rates")
        rate = (rates.optional(word) if rates else None) or V4_RATES[word]
        sparse = word == V4_WORDS[4]
        wide = 2 * dim if sparse else dim
        extra += 2 * hidden * wide + rate * wide + dim
        if sparse:
            extra += _v4_index(keys, hidden, rank, rate)
        compressed = {"compress_rate": rate, "compress_top": keys.integer("index_topk") if sparse else None}
    mixer = LatentAttention(
        heads=heads,
        q_rank=rank,
        kv_rank=dim - rope,
        nope_dim=dim - rope,
        rope_dim=rope,
        v_dim=dim,
        window=window,
        up_projection=False,
        out_rank=keys.integer("o_lora_rank"),
        out_groups=keys.integer("o_groups"),
        **compressed,
    )
    return layer(mixer, experts, 2, extra)


def _v4_index(keys: Keys, hidden: int, rank: int, rate: int) -> int:
    """Parameters of the index of compressed entries: its own compressor, queries from the latent, head weights."""
    heads, dim = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    return 2 * hidden * 2 * dim + rate * 2 * dim + dim + rank * heads * dim + hidden * heads
