"""The model that Megatron-LM's arguments describe, as the table of a ModelSpec.

Defaults are those of megatron/training/arguments.py and of TransformerConfig (NVIDIA/Megatron-LM d98e8a64).
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given
from parlay.models.load import load_model

GPT2_VOCABULARY = 50257
VOCABULARIES = {None: GPT2_VOCABULARY, "GPT2BPETokenizer": GPT2_VOCABULARY, "Llama2Tokenizer": 32000}
MAMBA_HEAD, MAMBA_GROUPS, MAMBA_STATE = 64, 8, 128  # defaults of --mamba-*
SYMBOLS = {"M": "mamba", "E": "experts", "*": "attention", "-": "mlp"}  # of --hybrid-layer-pattern
TOP_K, KV_RANK, NOPE, ROPE, VALUE = 2, 32, 128, 64, 128  # of --moe-router-topk and of latent attention
ROTARY = ("rope", "yarn", "mrope")
MOST_LAYERS = 100_000

Table = dict[str, Any]


def model_table(args: Given, name: str, notes: list[str]) -> Table | None:
    """Return the model as a table, without `vocab` where nothing tells it; None where its sizes are not given."""
    hidden, pattern = args.whole("--hidden-size", least=1), hybrid_pattern(args)
    layers = args.whole("--num-layers", least=1) or (len(pattern_layers(pattern)) if pattern else None)
    heads = args.whole("--num-attention-heads", least=1)
    if hidden is None or layers is None or heads is None:
        return None
    if layers > MOST_LAYERS:
        raise UsageError(f"{layers:,} layers is more than any model has", where=f"{args.where}: --num-layers")
    kinds, runs = _layers(args, hidden, heads, layers, pattern, notes)
    used = {kind for run in runs for kind in run["kinds"]}
    depth = args.whole("--mtp-num-layers") or 0
    ahead = ("experts" if "experts" in used else "dense") if depth else None
    learned = _positions(args) == "learned_absolute"
    table: Table = {
        "id": re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "megatron", "name": name[:200], "hidden": hidden,
        "norm": "rmsnorm" if args.text("--normalization") == "RMSNorm" else "layernorm",
        "tied_embeddings": not args.on("--untie-embeddings-and-output-weights"),
        "position_embeddings": (args.whole("--max-position-embeddings") or 0) if learned else 0,
        "kinds": {kind: part for kind, part in kinds.items() if kind in used or kind == ahead}, "layers": runs,
        "mtp_layers": depth, "mtp_kind": ahead, "mtp_shared": args.on("--mtp-use-repeated-layer"),
    }  # fmt: skip
    vocabulary = vocabulary_of(args, notes)
    return table if vocabulary is None else table | {"vocab": vocabulary}


def vocabulary_of(args: Given, notes: list[str]) -> int | None:
    """Return the tokens of the vocabulary, None where only the tokenizer's files would tell."""
    tokenizer = args.text("--tokenizer-type")
    size = args.whole("--vocab-size", least=1)
    if size is not None:
        return size + (1 if tokenizer == "NullTokenizer" else 0)  # its end-of-document token
    if tokenizer in VOCABULARIES:
        if tokenizer is None:
            notes.append(f"vocabulary: GPT-2's {GPT2_VOCABULARY:,} tokens, as no tokenizer is named")
        return VOCABULARIES[tokenizer]
    source = args.text("--tokenizer-model") or ""
    try:
        found = load_model(source.rstrip("/").split("/")[-1]) if re.fullmatch(r"[\w./-]{3,200}", source) else None
    except UsageError:
        return None
    if found:
        notes.append(f"vocabulary: that of {found.name}, by the tokenizer's name")
    return found.vocab if found else None


def _layers(
    args: Given, hidden: int, heads: int, layers: int, pattern: str | None, notes: list[str]
) -> tuple[dict[str, Table], list[Table]]:
    bias = bias_of(args)
    mixer = _attention(args, hidden, heads, bias)
    mlp = _mlp(args, hidden, bias)
    kinds: dict[str, Table] = {"dense": {"mixer": mixer, "mlp": mlp}}
    runs: list[Table] = [{"kinds": ["dense"], "count": layers}]
    if args.whole("--num-experts"):
        kinds["experts"] = {"mixer": mixer, "mlp": _experts(args, mlp)}
        runs = expert_layers(args.text("--moe-layer-freq"), layers, args.where)
    if pattern:
        return _hybrid_kinds(args, kinds, hidden), pattern_layers(pattern)
    return kinds, runs


def bias_of(args: Given) -> bool:
    """Return whether linear layers have biases: Megatron's default, unless switched off."""
    said = args.switch("--add-bias-linear")
    return said if said is not None else not args.on("--disable-bias-linear")


def _positions(args: Given) -> str:
    said = args.text("--position-embedding-type") or "learned_absolute"
    return "rope" if args.on("--use-rotary-position-embeddings") else said


def _attention(args: Given, hidden: int, heads: int, bias: bool) -> Table:
    normed = args.on("--qk-layernorm")  # latent attention: the norms of its latents, which the specification always has
    if args.on("--multi-latent-attention"):
        return {
            "kind": "mla", "heads": heads, "q_rank": args.whole("--q-lora-rank"), "kv_rank": args.whole("--kv-lora-rank") or KV_RANK,
            "nope_dim": args.whole("--qk-head-dim") or NOPE, "rope_dim": args.whole("--qk-pos-emb-head-dim") or ROPE,
            "v_dim": args.whole("--v-head-dim") or VALUE, "bias": bias,
        }  # fmt: skip
    groups = args.whole("--num-query-groups", least=1) if args.on("--group-query-attention") else heads
    window = re.findall(r"-?\d+", args.text("--window-size") or "")
    return {
        "kind": "gqa", "heads": heads, "kv_heads": groups or 1,
        "head_dim": args.whole("--kv-channels", least=1) or max(hidden // heads, 1),
        "qkv_bias": bias or args.on("--add-qkv-bias"), "out_bias": bias, "qk_norm": "head" if normed else "none",
        "rope": _positions(args) in ROTARY, "window": int(window[0]) + 1 if window and int(window[0]) >= 0 else None,
        "sinks": args.text("--softmax-type") == "learnable", "output_gate": args.on("--attention-output-gate"),
    }  # fmt: skip


def _mlp(args: Given, hidden: int, bias: bool) -> Table:
    gated = args.on("--swiglu")
    default = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    activation = "silu" if gated else "relu2" if args.on("--squared-relu") else "gelu"
    width = args.whole("--ffn-hidden-size", least=1) or default
    return {"kind": "dense", "width": width, "gated": gated, "bias": bias, "activation": activation}


def _experts(args: Given, mlp: Table) -> Table:
    """Return the mixture of experts; a bias of the linear layers is on the experts' as well."""
    return mlp | {
        "kind": "moe", "experts": args.whole("--num-experts"), "top_k": args.whole("--moe-router-topk", least=1) or TOP_K,
        "width": args.whole("--moe-ffn-hidden-size", least=1) or mlp["width"],
        "shared_width": args.whole("--moe-shared-expert-intermediate-size") or 0,
        "shared_gate": args.on("--moe-shared-expert-gate"), "latent_width": args.whole("--moe-latent-size", least=1),
        "score_correction": args.on("--moe-router-enable-expert-bias"),
        "groups": args.whole("--moe-router-num-groups", least=1) or 1,
        "top_groups": args.whole("--moe-router-group-topk", least=1),
    }  # fmt: skip


def expert_layers(text: str | None, layers: int, where: str) -> list[Table]:
    """Return runs of dense and expert layers of --moe-layer-freq: every N-th layer, or a list of 0 and 1 with repetitions.

    Examples
    --------
    >>> expert_layers("([0]*3+[1]*11)", 14, "args")
    [{'kinds': ['dense'], 'count': 3}, {'kinds': ['experts'], 'count': 11}]
    >>> expert_layers("2", 4, "args") == expert_layers("[1,0]*2", 4, "args")
    True
    """
    if not text:
        return [{"kinds": ["experts"], "count": layers}]
    if text.strip().isdecimal() and 0 < len(text) < 7 and int(text) > 0:
        marks = ["1" if i % int(text) == 0 else "0" for i in range(layers)]
    else:
        compact = re.sub(r"\s+", "", text)
        if not re.fullmatch(r"\(?(\[[01](,[01])*\](\*\d{1,5})?\+?)+\)?", compact):
            raise UsageError(f"'{text[:60]}' is not a pattern of layers", where=f"{where}: --moe-layer-freq")
        parts = re.findall(r"\[([01,]+)\](?:\*(\d+))?", compact)
        if sum((len(units) + 1) // 2 * int(count or 1) for units, count in parts) != layers:
            raise UsageError(f"'{text[:60]}' does not name {layers:,} layers", where=f"{where}: --moe-layer-freq")
        marks = [mark for units, count in parts for mark in units.split(",") * int(count or 1)]
    return [{"kinds": ["experts" if mark == "1" else "dense"], "count": len(list(run))} for mark, run in groupby(marks)]


def hybrid_pattern(args: Given) -> str | None:
    """Return the pattern of a hybrid model's layers."""
    return args.text("--hybrid-layer-pattern", "--hybrid-override-pattern")


def pattern_layers(pattern: str) -> list[Table]:
    """Return the layers of a hybrid pattern: M Mamba, E experts, * attention, - MLP; | and what follows / dropped.

    Examples
    --------
    >>> [run["kinds"][0] for run in pattern_layers("MEM*E")]
    ['mamba', 'experts', 'mamba', 'attention', 'experts']
    """
    return [{"kinds": [SYMBOLS[c]], "count": 1} for c in pattern.split("/")[0] if c in SYMBOLS]


def _hybrid_kinds(args: Given, kinds: dict[str, Table], hidden: int) -> dict[str, Table]:
    head = args.whole("--mamba-head-dim", least=1) or MAMBA_HEAD
    mamba = {
        "kind": "mamba2", "heads": args.whole("--mamba-num-heads", least=1) or max(2 * hidden // head, 1), "head_dim": head,
        "groups": args.whole("--mamba-num-groups", least=1) or MAMBA_GROUPS,
        "state": args.whole("--mamba-state-dim", least=1) or MAMBA_STATE,
    }  # fmt: skip
    none = {"kind": "none"}
    found = {
        "mamba": {"mixer": mamba, "mlp": none, "norms": 1},
        "attention": {"mixer": kinds["dense"]["mixer"], "mlp": none, "norms": 1},
        "mlp": {"mixer": none, "mlp": kinds["dense"]["mlp"], "norms": 1},
        "dense": kinds["dense"],
    }
    if "experts" in kinds:
        found["experts"] = {"mixer": none, "mlp": kinds["experts"]["mlp"], "norms": 1}
    return found
