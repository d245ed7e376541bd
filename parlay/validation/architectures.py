"""The model of a run: a catalog entry, or a shape that the source prints.

Names of sources differ in case, dashes and suffixes; NAMES maps each to the catalog. Models that only these sources
train (MPT, the proxies with fewer layers, benchmark models) are built here from their published shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from parlay.errors import ParlayError, UsageError
from parlay.estimate.counts import parameters
from parlay.frameworks import megatron_model
from parlay.models.load import load_model
from parlay.models.spec import (
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba2,
    ModelSpec,
    MoeMlp,
    NoMixer,
    NoMlp,
)
from parlay.models.spec import Run as Layers

# Folded name of a source -> catalog id. The first pattern that matches from the start of the name wins.
NAMES: tuple[tuple[str, str], ...] = (
    (r"(deepseek-?|ds)v4-?flash", "deepseek-v4-flash"),
    (r"deepseek-?v3|dsv3", "deepseek-v3"),
    (r"deepseek-?v2-lite", "deepseek-v2-lite"),
    (r"deepseek-?v2", "deepseek-v2"),
    (r"gpt-?oss-120b", "gpt-oss-120b"),
    (r"gpt-?oss-20b", "gpt-oss-20b"),
    (r"gpt-?3-175b|gpt-175b", "gpt3-175b"),
    (r"grok-?1", "grok-1"),
    (r"kimi-k2", "kimi-k2"),
    (r"llama-?3.?1?-?405b", "llama-3.1-405b"),
    (r"llama-?3.?1?-?70b", "llama-3-70b"),
    (r"llama-?3.?1?-?8b", "llama-3-8b"),
    (r"llama-?2?-(chinese-)?70b|llama-like-70b", "llama-2-70b"),
    (r"llama-?2?-(chinese-)?13b", "llama-2-13b"),
    (r"llama-?2?-(chinese-)?7b|llama-like-7b|internlm-7b", "llama-2-7b"),
    (r"llama-?4-scout", "llama-4-scout"),
    (r"llama-?4-maverick", "llama-4-maverick"),
    (r"mixtral-8x7b", "mixtral-8x7b"),
    (r"mixtral-8x22b", "mixtral-8x22b"),
    (r"mistral-7b", "mistral-7b"),
    (r"nemotron-?4?-340b", "nemotron-4-340b"),
    (r"nemotron-?4?-15b", "nemotron-4-15b"),
    (r"nemotron-(v)?3-nano", "nemotron-3-nano-30b-a3b"),
    (r"nemotron-(v)?3-super", "nemotron-3-super-120b-a12b"),
    (r"nemotron-(v)?3-ultra", "nemotron-3-ultra-550b-a55b"),
    (r"moonlight", "moonlight-16b-a3b"),
    (r"qwen-?3[.-]5-397b", "qwen3.5-397b-a17b"),
    (r"qwen-?3[.-]5-27b", "qwen3.5-27b"),
    (r"qwen-?3-next-80b", "qwen3-next-80b-a3b"),
    (r"qwen-?3-(moe-)?30b", "qwen3-30b-a3b"),
    (r"qwen-?3-(moe-)?235b", "qwen3-235b-a22b"),
    (r"qwen-?3-32b", "qwen3-32b"),
    (r"qwen-?3-14b", "qwen3-14b"),
    (r"qwen-?3-8b", "qwen3-8b"),
    (r"qwen-?2.5-72b", "qwen2.5-72b"),
    (r"qwen-?2.5-32b", "qwen2.5-32b"),
    (r"qwen-?2.5-14b", "qwen2.5-14b"),
    (r"qwen-?2.5-7b", "qwen2.5-7b"),
    (r"qwen-?2-7b", "qwen2-7b"),
    (r"bloom-176b$", "bloom-176b"),
)


class UnknownArchitecture(UsageError):
    """No catalog entry and no published shape: the run cannot be predicted."""


def fold(name: str) -> str:
    """Return a model name in lower case with single dashes, without the organisation before it.

    Examples
    --------
    >>> fold("Qwen3_30B_a3B (tokendrop)"), fold("Nemotron V3 Nano 30B"), fold("meta-llama/Llama-2-7b-hf")
    ('qwen3-30b-a3b-tokendrop', 'nemotron-v3-nano-30b', 'llama-2-7b-hf')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().rsplit("/", 1)[-1]).strip("-")


def architecture(name: str, arch: Mapping[str, Any]) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model of a run, and what had to be assumed about its shape.

    Parameters
    ----------
    name : str
        The model as the source calls it. [-]
    arch : Mapping
        Sizes that the source prints; may be empty or partial. [-]

    Returns
    -------
    tuple of ModelSpec and tuple of str
        The model, and assumptions in words. [-]

    Raises
    ------
    UnknownArchitecture
        Neither the catalog nor the source tells the shape.
    """
    folded = fold(name)
    if "mamba_layers" in arch:
        return _hybrid(name, arch), ("layer order evenly mixed", "Mamba: 256 heads of 64, 8 groups, state 256")
    if {"hidden", "layers"} <= arch.keys() and ("experts" not in arch or "mla" in arch):
        if "mla" in arch:
            return _latent(name, arch), ()
        known = _named(folded)
        partial = not {"heads", "ffn"} <= arch.keys() and "ffn_note" not in arch
        if not (partial and known):
            return _dense(name, arch)
    own = OWN.get(next((key for key in OWN if folded.startswith(key)), ""))
    model = own() if own else _named(folded)
    if model is None:
        raise UnknownArchitecture(f"the shape of '{name}' is neither in the catalog nor printed by the source")
    layers = arch.get("layers") or _layers_in_name(name)
    if isinstance(layers, int) and layers < model.layer_count:
        return first_layers(model, layers), (f"the first {layers} layers of {model.name}",)
    return model, ()


def _layers_in_name(name: str) -> int | None:
    found = re.search(r"(\d+) layers", name)
    return int(found[1]) if found else None


@lru_cache(maxsize=256)
def _named(folded: str) -> ModelSpec | None:
    for pattern, entry in NAMES:
        if re.match(pattern, folded):
            return _catalog(entry)
    words = re.sub(r"^([a-z]+)(\d)", r"\1-\2", folded).split("-")
    for kept in range(len(words), 1, -1):  # without what a source adds at the end: instruct, hf, a table's remark
        for name in ("-".join(words[:kept]), "-".join([words[0] + words[1], *words[2:kept]])):
            if any(c.isdigit() for c in name):
                found = _catalog(name)
                if found is not None:
                    return found
    return None


def _catalog(entry: str) -> ModelSpec | None:
    try:
        return load_model(entry)
    except ParlayError:
        return None


def first_layers(model: ModelSpec, count: int) -> ModelSpec:
    """Return `model` cut to its first `count` layers."""
    names = model.layer_names()[:count]
    runs: list[Layers] = []
    for name in names:
        if runs and runs[-1].kinds == (name,):
            runs[-1] = Layers(kinds=(name,), count=runs[-1].count + 1)
        else:
            runs.append(Layers(kinds=(name,), count=1))
    return model.model_copy(update={"id": f"{model.id}-{count}-layers", "layers": tuple(runs)})


def _number(value: Any, default: int) -> int:
    """Return a size; some sources print it with a remark ("8 in model; 16 in README")."""
    if isinstance(value, int):
        return value
    found = re.match(r"\d+", str(value or ""))
    return int(found[0]) if found else default


def _dense(name: str, arch: Mapping[str, Any]) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return a dense decoder from printed sizes: GPT-style, or Llama-style where the name says so."""
    said: list[str] = []
    folded = fold(name)
    hidden, heads = int(arch["hidden"]), _number(arch.get("heads"), 0)
    if not heads:
        raise UnknownArchitecture(f"the source prints no number of heads for '{name}'")
    if hidden % heads:
        raise UnknownArchitecture(f"{heads} heads do not divide the hidden size {hidden} of '{name}'")
    gpt = not folded.startswith("llama")
    width = _number(arch.get("ffn"), 4 * hidden)
    if "ffn" not in arch:
        said.append("MLP width 4 x hidden (not printed)")
    bias = gpt and not folded.startswith("mpt")
    position = 0 if not gpt or folded.startswith(("bloom", "mpt")) else 2048
    vocab = _number(arch.get("vocab"), 51200)
    model = ModelSpec(
        id=folded,
        name=name,
        family="gpt" if gpt else "llama",
        hidden=hidden,
        vocab=vocab,
        norm="layernorm" if bias else "layernorm_no_bias" if gpt else "rmsnorm",
        tied_embeddings=bool(arch.get("tied_embeddings", gpt)),
        position_embeddings=position,
        embedding_norm=folded.startswith("bloom"),
        dropout=gpt and not folded.startswith("mpt"),
        kinds={
            "block": LayerKind(
                mixer=GroupedAttention(
                    heads=heads,
                    kv_heads=_number(arch.get("kv_heads"), heads),
                    head_dim=hidden // heads,
                    qkv_bias=bias,
                    out_bias=bias,
                    rope=not gpt,
                ),
                mlp=DenseMlp(width=width, gated=not gpt, activation="gelu" if gpt else "silu", bias=bias),
            )
        },
        layers=(Layers(kinds=("block",), count=int(arch["layers"])),),
        source="sizes printed by the source of the run",
    )
    counted = arch.get("num_params")
    if isinstance(counted, int) and arch.get("pos") == "learned":
        model = model.model_copy(update={"position_embeddings": max(0, (counted - parameters(model).total) // hidden)})
    return model, tuple(said)


def _latent(name: str, arch: Mapping[str, Any]) -> ModelSpec:
    """Return a DeepSeek-style model from printed sizes."""
    mla = arch["mla"]
    mixer = LatentAttention(
        heads=int(arch["heads"]), q_rank=mla.get("q_lora"), kv_rank=mla["kv_lora"], nope_dim=mla["qk_nope"],
        rope_dim=mla["qk_rope"], v_dim=mla["v"],
    )  # fmt: skip
    experts = MoeMlp(
        experts=int(arch["experts"]), top_k=int(arch["topk"]), width=int(arch["expert_ffn"]),
        shared_width=int(arch.get("shared_ffn", 0)),
    )  # fmt: skip
    dense = int(arch.get("dense_layers", 0))
    kinds = {"experts": LayerKind(mixer=mixer, mlp=experts)}
    layers = [Layers(kinds=("experts",), count=int(arch["layers"]) - dense)]
    if dense:
        kinds["dense"] = LayerKind(mixer=mixer, mlp=DenseMlp(width=int(arch["ffn"])))
        layers.insert(0, Layers(kinds=("dense",), count=dense))
    return ModelSpec(
        id=fold(name), name=name, family="deepseek", hidden=int(arch["hidden"]), vocab=int(arch["vocab"]), kinds=kinds,
        layers=tuple(layers), source="sizes printed by the source of the run",
    )  # fmt: skip


def _hybrid(name: str, arch: Mapping[str, Any]) -> ModelSpec:
    """Return a Nemotron-H model from its counts of Mamba, MLP and attention blocks (arXiv:2504.03624, Table 1)."""
    heads = int(arch["heads"])
    counts = {"mamba": int(arch["mamba_layers"]), "mlp": int(arch["mlp_layers"]), "attention": int(arch["attn_layers"])}
    kinds = {
        "mamba": LayerKind(mixer=Mamba2(heads=256, head_dim=64, groups=8, state=256), mlp=NoMlp(), norms=1),
        "mlp": LayerKind(mixer=NoMixer(), mlp=DenseMlp(width=int(arch["ffn"]), gated=False, activation="relu2"), norms=1),
        "attention": LayerKind(
            mixer=GroupedAttention(heads=heads, kv_heads=int(arch["kv_heads"]), head_dim=128, rope=False), mlp=NoMlp(), norms=1
        ),
    }
    return ModelSpec(
        id=fold(name), name=name, family="nemotron", hidden=int(arch["hidden"]), vocab=int(arch["vocab"]), kinds=kinds,
        layers=_mixed(counts), source="arXiv:2504.03624",
    )  # fmt: skip


def _mixed(counts: Mapping[str, int]) -> tuple[Layers, ...]:
    """Return an even mixture of layer kinds: which comes next is the one furthest behind its share."""
    total = sum(counts.values())
    done = dict.fromkeys(counts, 0)
    runs: list[Layers] = []
    for place in range(1, total + 1):
        name = max(counts, key=lambda k: counts[k] * place / total - done[k])
        done[name] += 1
        runs.append(Layers(kinds=(name,), count=1))
    return tuple(runs)


def pattern_layers(pattern: str) -> tuple[Layers, ...]:
    """Return the layers of a Megatron hybrid pattern as this room keeps them."""
    return tuple(Layers(**run) for run in megatron_model.pattern_layers(pattern))


def nemotron_h_56b() -> ModelSpec:
    """Return Nemotron-H 56B (arXiv:2504.03624, table 1)."""
    arch = {
        "hidden": 8192, "ffn": 32768, "mamba_layers": 54, "mlp_layers": 54, "attn_layers": 10, "heads": 64, "kv_heads": 8, "vocab": 131072,
    }  # fmt: skip
    return _hybrid("Nemotron-H-56B", arch)


def nemotron_3_5_lightning() -> ModelSpec:
    """Return Nemotron 3.5 Lightning: Nemotron 3 Nano's shape with multi-token prediction.

    NVIDIA/Megatron-LM d98e8a64, tests/functional_tests/test_cases/hybrid/nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200.
    """
    nano = load_model("nemotron-3-nano-30b-a3b")
    both = LayerKind(mixer=nano.kinds["attention"].mixer, mlp=nano.kinds["experts"].mlp)
    return nano.model_copy(update={"id": "nemotron-3.5-lightning", "kinds": {**nano.kinds, "mtp": both}, "mtp_kind": "mtp"})


def nanotron_llama_1b() -> ModelSpec:
    """Return the 1B Llama of nanotron's benchmarks: HuggingFaceFW/ablation-model-fineweb-v1 config.json."""
    arch = {
        "hidden": 2048, "layers": 24, "heads": 32, "kv_heads": 32, "ffn": 4096, "vocab": 50272, "tied_embeddings": True,
    }  # fmt: skip
    return _dense("llama-1B", arch)[0]


def _gpt3(name: str, hidden: int, layers: int, heads: int) -> ModelSpec:
    """Return a GPT-3 size (arXiv:2005.14165, Table 2.1; NeMo's gpt3 20B recipe)."""
    return _dense(name, {"hidden": hidden, "layers": layers, "heads": heads, "vocab": 50257, "ffn": 4 * hidden})[0]


def _nemotron(name: str, hidden: int, layers: int, heads: int) -> ModelSpec:
    """Return a Nemotron-3 dense size of 2024 (NVIDIA/NeMo nemo/collections/llm/gpt/model/nemotron.py)."""
    kind = LayerKind(
        mixer=GroupedAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        mlp=DenseMlp(width=4 * hidden, gated=False, activation="relu2"),
    )
    return ModelSpec(
        id=fold(name), name=name, family="nemotron", hidden=hidden, vocab=256000, norm="layernorm", kinds={"block": kind},
        layers=(Layers(kinds=("block",), count=layers),), source=_nemotron.__doc__ or "",
    )  # fmt: skip


def baichuan_2_13b() -> ModelSpec:
    """Return Baichuan2-13B (baichuan-inc/Baichuan2-13B-Base config.json)."""
    arch = {"hidden": 5120, "layers": 40, "heads": 40, "ffn": 13696, "vocab": 125696, "tied_embeddings": False}
    return _dense("llama-baichuan2-13b", arch)[0]


OWN = {
    "nemotron-h-56b": nemotron_h_56b,
    "nemotron-3-5-lightning": nemotron_3_5_lightning,
    "llama-1b-nanotron": nanotron_llama_1b,
    "nemotron-8b": lambda: _nemotron("Nemotron-8B", 4096, 32, 32),
    "nemotron-22b": lambda: _nemotron("Nemotron-22B", 6144, 40, 48),
    "gpt3-5b": lambda: _gpt3("GPT3-5B", 4096, 24, 32),
    "gpt3-20b": lambda: _gpt3("GPT3-20B", 6144, 44, 48),
    "gpt3-13b": lambda: _gpt3("GPT3-13B", 5120, 40, 40),
    "gpt3-6.7b": lambda: _gpt3("GPT3-6.7B", 4096, 32, 32),
    "baichuan2-13b": baichuan_2_13b,
}
