"""Models whose layers a search has pruned one by one: Llama-Nemotron (block_configs, the DeciLM class)."""

from __future__ import annotations

from parlay.models.huggingface.reader import MAX_LAYERS, Keys
from parlay.models.huggingface.shapes import Draft, activation, head_dim_of, layer
from parlay.models.spec import DenseMlp, FeedForward, GroupedAttention, Mixer, NoMixer, NoMlp

WIDTH_MULTIPLE = 256  # the class rounds each feed-forward width up to this


def build(keys: Keys) -> Draft:
    """Return a model whose every layer has its own key and value heads and feed-forward width, or lacks either."""
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    head_dim = head_dim_of(keys, hidden, heads)
    blocks = keys.find("block_configs")[1]
    if not isinstance(blocks, list) or not blocks:
        raise keys.error("block_configs", "must be a list with a table for every layer")
    count = keys.optional("num_hidden_layers", high=MAX_LAYERS) or len(blocks)
    if len(blocks) != count:
        raise keys.error("block_configs", f"has {len(blocks)} entries for {count} layers")
    for unused in ("num_key_value_heads", "intermediate_size", "ffn_hidden_size"):  # null in the files, decided per block
        keys.find(unused)
    layers = []
    for i, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise keys.error("block_configs", f"must hold a table for every layer, entry {i} is none")
        inner = Keys(block, keys.where, keys.log, path=f"{keys.path}block_configs[{i}].")
        mixer = _mixer(keys, inner, heads, head_dim)
        mlp = _mlp(keys, inner, hidden)
        linear = [part for part in ("attention", "ffn") if _linear(inner, part)]
        norms = (mixer.kind != "none") + (mlp.kind != "none") + len(linear)
        layers.append(layer(mixer, mlp, norms, len(linear) * hidden * hidden))
    draft = Draft(hidden, keys.integer("vocab_size"), layers, tied=keys.flag("tie_word_embeddings"))
    draft.fields["max_positions"] = keys.optional("max_position_embeddings")
    return draft


def _linear(block: Keys, part: str) -> bool:
    """Return whether a part is replaced by one square matrix: its parameters are counted, and no part is laid out for it."""
    table = block.table(part)
    if table is None:
        raise block.error(part, "is missing")
    replaced = table.flag("replace_with_linear") and not table.flag("no_op")
    if replaced:
        block.log.assume(f"{part} replaced by one linear map is counted, and its time is not priced")
    return replaced


def _mixer(keys: Keys, block: Keys, heads: int, head_dim: int) -> Mixer:
    table = block.table("attention")
    if table is None:
        raise block.error("attention", "is missing")
    if table.flag("no_op") or table.flag("replace_with_linear"):
        return NoMixer()
    group = table.integer("n_heads_in_group", fallback=None)
    if heads % group:
        raise table.error("n_heads_in_group", f"must divide num_attention_heads ({heads}), got {group}")
    bias = keys.flag("attention_bias")
    window = table.optional("window_length")
    return GroupedAttention(heads=heads, kv_heads=heads // group, head_dim=head_dim, qkv_bias=bias, out_bias=bias, window=window)


def _mlp(keys: Keys, block: Keys, hidden: int) -> FeedForward:
    table = block.table("ffn")
    if table is None:
        raise block.error("ffn", "is missing")
    if table.flag("no_op") or table.flag("replace_with_linear"):
        return NoMlp()
    return DenseMlp(width=_width(table, hidden), activation=activation(keys), bias=keys.flag("mlp_bias"))


def _width(table: Keys, hidden: int) -> int:
    """Return the width: 2/3 of 2 x multiplier x hidden, rounded up to a multiple of 256."""
    given = table.find("intermediate_size")[1]
    if isinstance(given, int):
        return table.integer("intermediate_size")
    value = table.find("ffn_mult")[1]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1024:
        raise table.error("ffn_mult", "must be a number above 0 and at most 1024")
    width = int(2 * value * hidden / 3)
    return -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
