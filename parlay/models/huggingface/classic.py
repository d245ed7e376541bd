"""The first decoders: GPT-2, GPT-J, GPT-Neo, GPT-NeoX, GPT-BigCode, CodeGen, BLOOM, OPT, Falcon, MPT, and DBRX's tables."""

from __future__ import annotations

from collections.abc import Callable

from parlay.models.huggingface.experts import moe
from parlay.models.huggingface.reader import Keys
from parlay.models.huggingface.shapes import Draft, activation, dense, head_dim_of, layer, layer_count
from parlay.models.spec import DenseMlp, FeedForward, GroupedAttention, Norm

MLP_RATIO = 4  # width of the feed-forward part over the hidden size where the file says nothing
OPT_OFFSET = 2  # rows that OPT's position table has beyond its positions


def attention(
    keys: Keys,
    hidden: int,
    *,
    kv_heads: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    rope: bool = False,
    window: int | None = None,
) -> GroupedAttention:
    """Return an attention whose heads divide the hidden size; `kv_heads` None means as many as queries."""
    heads = keys.integer("num_attention_heads")
    if hidden % heads:
        raise keys.error("num_attention_heads", f"must divide the hidden size ({hidden}), got {heads}")
    kv = heads if kv_heads is None else kv_heads
    if heads % kv:
        raise keys.error("num_kv_heads", f"must divide the number of attention heads ({heads}), got {kv}")
    return GroupedAttention(
        heads=heads, kv_heads=kv, head_dim=hidden // heads, qkv_bias=qkv_bias, out_bias=out_bias, rope=rope, window=window
    )


def mlp(keys: Keys, hidden: int, *, bias: bool, name: str = "n_inner") -> DenseMlp:
    """Return a feed-forward part of two matrices, four times the hidden size unless `name` says otherwise."""
    width = keys.optional(name) or MLP_RATIO * hidden
    return dense(keys, width, gated=False, bias=bias, fallback="gelu")


def draft(
    keys: Keys, hidden: int, mixer: GroupedAttention, block: FeedForward, *, norms: int = 2, norm: Norm = "layernorm"
) -> Draft:
    """Return a model of equal layers."""
    layers = [layer(mixer, block, norms)] * layer_count(keys)
    made = Draft(hidden, keys.integer("vocab_size"), layers, norm=norm, tied=keys.flag("tie_word_embeddings"))
    made.fields["max_positions"] = keys.optional("max_position_embeddings")
    return made


def gpt2(keys: Keys) -> Draft:
    """GPT-2: learned positions, biases everywhere."""
    hidden = keys.integer("hidden_size")
    made = draft(keys, hidden, attention(keys, hidden, qkv_bias=True, out_bias=True), mlp(keys, hidden, bias=True))
    made.fields.update(position_embeddings=keys.integer("max_position_embeddings"), dropout=True)
    return made


def gpt_bigcode(keys: Keys) -> Draft:
    """StarCoder 1: GPT-2 with one key and value head if `multi_query`."""
    hidden = keys.integer("hidden_size")
    kv = 1 if keys.flag("multi_query") else None
    mixer = attention(keys, hidden, kv_heads=kv, qkv_bias=True, out_bias=True)
    made = draft(keys, hidden, mixer, mlp(keys, hidden, bias=True))
    made.fields.update(position_embeddings=keys.integer("max_position_embeddings"), dropout=True)
    return made


def gptj(keys: Keys) -> Draft:
    """GPT-J and CodeGen: one norm feeds attention (no biases) and feed-forward (biases); the head has a bias."""
    hidden = keys.integer("hidden_size")
    made = draft(keys, hidden, attention(keys, hidden, rope=True), mlp(keys, hidden, bias=True), norms=1)
    made.fields["head_bias"] = True
    return made


def gpt_neo(keys: Keys) -> Draft:
    """GPT-Neo: learned positions, local and global layers in turn, a bias only on the attention's output."""
    hidden, count = keys.integer("hidden_size"), layer_count(keys)
    window = keys.optional("window_size")
    block = mlp(keys, hidden, bias=True, name="intermediate_size")
    kinds = _attention_types(keys, count)
    mixers = {kind: attention(keys, hidden, out_bias=True, window=window if kind == "local" else None) for kind in set(kinds)}
    made = draft(keys, hidden, mixers[kinds[0]], block)
    made.layers = [layer(mixers[kind], block) for kind in kinds]
    made.fields["position_embeddings"] = keys.integer("max_position_embeddings")
    return made


def _attention_types(keys: Keys, count: int) -> list[str]:
    given = keys.find("attention_types")[1]
    if not isinstance(given, list):
        return [("global", "local")[i % 2] for i in range(count)]
    kinds: list[str] = []
    for item in given:
        match item:
            case [[*names], int(times)] if 0 <= times <= count and all(name in ("global", "local") for name in names):
                kinds += names * times
            case _:
                raise keys.error("attention_types", 'must be a list of [["global", "local"], times]')
    if len(kinds) != count:
        raise keys.error("attention_types", f"describes {len(kinds)} layers, and the model has {count}")
    return kinds


def gpt_neox(keys: Keys) -> Draft:
    """GPT-NeoX and Pythia: two norms, biases, and an output matrix of its own."""
    hidden = keys.integer("hidden_size")
    bias = keys.flag("attention_bias")
    mixer = attention(keys, hidden, qkv_bias=bias, out_bias=bias, rope=True)
    return draft(keys, hidden, mixer, mlp(keys, hidden, bias=True, name="intermediate_size"))


def bloom(keys: Keys) -> Draft:
    """BLOOM: ALiBi, biases everywhere, a norm behind the token table."""
    hidden = keys.integer("hidden_size")
    made = draft(keys, hidden, attention(keys, hidden, qkv_bias=True, out_bias=True), mlp(keys, hidden, bias=True))
    made.fields["embedding_norm"] = True
    return made


def opt(keys: Keys) -> Draft:
    """OPT: learned positions, and in the 350M model a narrower token table and norms behind each part."""
    hidden = keys.integer("hidden_size")
    bias = keys.flag("enable_bias")
    affine = keys.flag("layer_norm_elementwise_affine")
    block = dense(keys, keys.integer("ffn_dim"), gated=False, bias=bias, fallback="relu")
    mixer = attention(keys, hidden, qkv_bias=bias, out_bias=bias)
    made = draft(keys, hidden, mixer, block, norm="layernorm" if affine else "nonparametric")
    width = keys.optional("word_embed_proj_dim") or hidden
    made.fields.update(
        position_embeddings=keys.integer("max_position_embeddings") + OPT_OFFSET,
        embedding_projection=width if width != hidden else None,
        final_norm=keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm"),
        dropout=True,
    )
    return made


def falcon(keys: Keys) -> Draft:
    """Falcon: attention and feed-forward in parallel behind one or two norms; 7B has one key and value head, 40B groups."""
    hidden = keys.integer("hidden_size")
    # The first files of Falcon-40B name no architecture: their n_head_kv tells it apart.
    new, bias = keys.flag("new_decoder_architecture") or keys.has("n_head_kv"), keys.flag("bias")
    if new:
        kv = keys.optional("n_head_kv" if keys.has("n_head_kv") else "num_kv_heads")
    else:
        kv = 1 if keys.flag("multi_query") else None
        keys.find("num_kv_heads")
    norms = 2
    if keys.flag("parallel_attn"):
        norms = 2 if (keys.optional("num_ln_in_parallel_attn") or (2 if new else 1)) == 2 else 1
    mixer = attention(keys, hidden, kv_heads=kv, qkv_bias=bias, out_bias=bias, rope=not keys.flag("alibi"))
    return draft(keys, hidden, mixer, mlp(keys, hidden, bias=bias, name="ffn_hidden_size"), norms=norms)


def mpt(keys: Keys) -> Draft:
    """MPT: ALiBi, no biases at all, norms without bias; attn_config may ask for norms on q and k."""
    hidden = keys.integer("hidden_size")
    ratio = keys.optional("expansion_ratio") or MLP_RATIO
    mixer = attention(keys, hidden)
    made = draft(keys, hidden, mixer, dense(keys, ratio * hidden, gated=False, fallback="gelu"), norm="layernorm_no_bias")
    table = keys.table("attn_config")
    if table is not None and table.flag("qk_ln"):
        keys.log.ignore("attn_config.qk_ln: the norms of q and k are not in the class that loads this file")
    return made


def dbrx(keys: Keys) -> Draft:
    """DBRX: fine-grained experts, its numbers in attn_config and ffn_config."""
    hidden = keys.integer("hidden_size")
    attn = keys.table("attn_config") or Keys({}, keys.where, keys.log, path="attn_config.")
    ffn = keys.table("ffn_config") or Keys({}, keys.where, keys.log, path="ffn_config.")
    attn.defaults, attn.reader = {"kv_n_heads": 1}, "the dbrx class"
    ffn.defaults, ffn.reader = {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}, "the dbrx class"
    mixer = attention(keys, hidden, kv_heads=attn.integer("kv_n_heads"), rope=True)
    number, top_k = ffn.integer("moe_num_experts"), ffn.integer("moe_top_k")
    if top_k > number:
        raise ffn.error("moe_top_k", f"cannot exceed moe_num_experts ({number}), got {top_k}")
    act = ffn.table("ffn_act_fn")
    block = moe(
        keys, number, ffn.integer("ffn_hidden_size"), top_k=top_k, activation=activation(act, name="name") if act else "silu"
    )
    return draft(keys, hidden, mixer, block, norm="layernorm_no_bias")


def qwen1(keys: Keys) -> Draft:
    """The first Qwen: biases on q, k, v, and `intermediate_size` counts both halves of the gated part."""
    hidden = keys.integer("hidden_size")
    mixer = attention(keys, hidden, qkv_bias=True, rope=True)
    return draft(keys, hidden, mixer, dense(keys, keys.integer("intermediate_size") // 2), norm="rmsnorm")


def chatglm(keys: Keys) -> Draft:
    """ChatGLM2, ChatGLM3, GLM-4-9B: key and value groups named multi_query_group_num."""
    hidden = keys.integer("hidden_size")
    heads = keys.integer("num_attention_heads")
    kv = keys.integer("multi_query_group_num") if keys.flag("multi_query_attention") else heads
    if heads % kv:
        raise keys.error("multi_query_group_num", f"must divide num_attention_heads ({heads}), got {kv}")
    bias = keys.flag("add_bias_linear")
    mixer = GroupedAttention(
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim_of(keys, hidden, heads),
        qkv_bias=bias or keys.flag("add_qkv_bias"),
        out_bias=bias,
    )
    block = dense(keys, keys.integer("ffn_hidden_size"), bias=bias)
    return draft(keys, hidden, mixer, block, norm="rmsnorm" if keys.flag("rmsnorm", True) else "layernorm")


BUILDERS: dict[str, Callable[[Keys], Draft]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gptj": gptj,
    "codegen": gptj,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "bloom": bloom,
    "opt": opt,
    "falcon": falcon,
    "mpt": mpt,
    "dbrx": dbrx,
    "qwen": qwen1,
    "chatglm": chatglm,
}
ALIASES = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon", "gpt_sw3": "gpt2"}
