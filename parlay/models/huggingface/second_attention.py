"""Models with a second kind of attention beside the usual one: lightning attention (MiniMax-01), and attention from the text
on the image (Llama 3.2 Vision).

Neither has a mixer of its own in the specification. Both are written as grouped attention that has exactly their parameters;
how the estimate then prices them is said in what was assumed.
"""

from __future__ import annotations

from collections.abc import Callable

from parlay.models.huggingface import experts as routing
from parlay.models.huggingface.reader import MISSING, Keys
from parlay.models.huggingface.shapes import Draft, dense, heads_of, layer, layer_count
from parlay.models.spec import GroupedAttention

MLLAMA_EXTRA_ROWS = 8  # rows of the token table beyond the vocabulary, for the image token
MLLAMA_GATES = 2  # one learned scale on the attention and one on the feed-forward part of a cross-attention layer


def minimax(keys: Keys) -> Draft:
    """MiniMax-01 and M1: lightning attention in most layers, softmax attention in the rest, experts in all.

    Lightning attention has q, k, v and an output gate of the full width, and a norm over all heads. With as many key and value
    heads as queries, a gate on the output and the norm as extra parameters, grouped attention holds the same.
    """
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    heads, kv_heads, head_dim = heads_of(keys, hidden)
    block = keys.optional("block_size") or 256
    softmax = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    lightning = GroupedAttention(
        heads=heads, kv_heads=heads, head_dim=head_dim, output_gate=True, window=block, chunked=True, rope=False
    )
    keys.log.assume(f"lightning attention is priced as attention within blocks of {block} tokens; its parameters are exact")
    full = _minimax_layers(keys, count)
    mlps = routing.all_routed(keys, count)
    shared = keys.find("shared_intermediate_size")[1]
    if shared not in (MISSING, None, 0, [0]):
        raise keys.error("shared_intermediate_size", "must be 0: a shared expert of this class is not described")
    layers = [
        layer(softmax, mlp) if yes else layer(lightning, mlp, 2, heads * head_dim) for yes, mlp in zip(full, mlps, strict=True)
    ]
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    return draft


def _minimax_layers(keys: Keys, count: int) -> list[bool]:
    """Layers of softmax attention: by words, by attn_type_list (1 for softmax), or every second from the first."""
    words = keys.words("layer_types", count)
    if words is not None:
        return [word == "full_attention" for word in words]
    flags = keys.integers("attn_type_list", count)
    return [i % 2 == 0 for i in range(count)] if flags is None else [flag == 1 for flag in flags]


def mllama(keys: Keys) -> Draft:
    """Llama 3.2 Vision's text model: a layer of `cross_attention_layers` attends to the image instead of the text."""
    count, hidden = layer_count(keys), keys.integer("hidden_size")
    heads, kv_heads, head_dim = heads_of(keys, hidden, own_head_dim=False)
    own = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    cross = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qk_norm="head", rope=False)
    keys.log.assume("cross-attention is priced as attention on the text; its parameters are exact")
    crossed = set(keys.integers("cross_attention_layers") or MLLAMA_LAYERS)
    mlp = dense(keys)
    layers = [layer(cross, mlp, 2, MLLAMA_GATES) if i in crossed else layer(own, mlp) for i in range(count)]
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    draft.fields["extra_parameters"] = MLLAMA_EXTRA_ROWS * hidden
    return draft


MLLAMA_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)  # the class's default

BUILDERS: dict[str, Callable[[Keys], Draft]] = {
    "minimax": minimax,
    "minimax_text_01": minimax,
    "minimax_m1": minimax,
    "mllama_text_model": mllama,
}
