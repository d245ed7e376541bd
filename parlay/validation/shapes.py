"""Models from printed sizes: decoders built anew, and known models with what a source prints laid over them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

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
    Norm,
)
from parlay.models.spec import Run as Layers
from parlay.validation.sizes import Sizes, UnknownArchitecture

PRINTED = "sizes printed by the source of the run"
VOCAB = 51200  # GPT-2's 50,257 as Megatron-LM pads it for 8-way tensor parallelism, as its papers do
Part = TypeVar("Part", bound=BaseModel)


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """What a family of dense decoders has in common beside its sizes."""

    family: str
    gated: bool
    norm: Norm
    bias: bool = False
    tied: bool = False
    rope: bool = False
    positions: int = 0
    dropout: bool = False
    embedding_norm: bool = False

    @property
    def activation(self) -> str:
        """The activation of the feed-forward part."""
        return "silu" if self.gated else "relu2" if self.family == "nemotron" else "gelu"


GPT = Style("gpt", gated=False, norm="layernorm", bias=True, tied=True, positions=2048, dropout=True)
LLAMA = Style("llama", gated=True, norm="rmsnorm", rope=True)
# Start of a folded name -> style; Nemotron-4 (arXiv:2402.16819): squared ReLU, no bias, rotary positions, untied.
STYLES: tuple[tuple[str, Style], ...] = (
    ("mpt", Style("gpt", gated=False, norm="layernorm_no_bias", tied=True)),
    ("bloom", dataclasses.replace(GPT, positions=0, embedding_norm=True)),
    ("nemotron", Style("nemotron", gated=False, norm="layernorm", rope=True)),
    ("gpt|megatron|opt-|turing|t-nlg|mt-nlg", GPT),
    (
        r"(code-?)?llama|(ds-|deepseek)|qwen|mi[sx]tral|mini?stral|yi-|intern-?lm|aquila|baichuan|gemma|olmo|smollm|(chat)?glm"
        "|phi|tinyllama|granite|command|vicuna|alpaca|minicpm|seed",
        LLAMA,
    ),
)


def fold(name: str) -> str:
    """Return a model name in lower case with single dashes, without the organisation before it.

    Examples
    --------
    >>> fold("Qwen3_30B_a3B (tokendrop)"), fold("Nemotron V3 Nano 30B"), fold("meta-llama/Llama-2-7b-hf")
    ('qwen3-30b-a3b-tokendrop', 'nemotron-v3-nano-30b', 'llama-2-7b-hf')
    """
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"^[a-z][a-z.-]*/(?=\S)", "", name.lower())).strip("-")


def style_of(sizes: Sizes) -> Style:
    """Return the style of a name; an unknown one is gated where its MLP is narrower than the usual 4 x hidden."""
    folded = fold(sizes.name)
    named = next((style for start, style in STYLES if re.match(start, folded)), None)
    if named is None:
        hidden = sizes.need("hidden")
        named = GPT if (sizes.get("ffn") or 4 * hidden) >= 4 * hidden else LLAMA
    return named


def dense(sizes: Sizes) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return a dense decoder from printed sizes, in the style of its family."""
    style = style_of(sizes)
    hidden, layers = sizes.need("hidden"), sizes.need("layers")
    width = sizes.get("ffn")
    gated = sizes.flag("gated_ffn", style.gated)
    mlp = DenseMlp.model_validate(
        {
            "width": width or 4 * hidden,
            "gated": gated,
            "bias": style.bias,
            "activation": style.activation if gated == style.gated else "silu" if gated else "gelu",
        }
    )
    said = ["MLP width 4 x hidden (not printed)"] * (width is None)
    said += [f"vocabulary of {VOCAB:,} (not printed)"] * (style.gated and sizes.get("vocab") is None)
    return _model(sizes, style, {"block": LayerKind(mixer=_attention(sizes, style), mlp=mlp)}, _run("block", layers)), tuple(said)


def experts(sizes: Sizes, known: ModelSpec | None) -> ModelSpec:
    """Return a decoder of grouped attention and experts from printed sizes; `known` is the dense model it starts from."""
    base = _attention_of(known) if known else None
    width = sizes.get("expert_ffn") or sizes.need("ffn", _width_of(known))
    count, layers = sizes.need("experts"), sizes.need("layers", known.layer_count if known else None)
    mlp = MoeMlp(experts=count, top_k=sizes.need("topk"), width=width, shared_width=_shared(sizes, width))
    mixer = _part(base, _grouped(base, sizes, known.hidden)) if known and base else _attention(sizes, LLAMA)
    kinds = {"experts": LayerKind(mixer=mixer, mlp=mlp)}
    first = min(sizes.get("dense_layers") or 0, layers)
    if first:
        kinds["dense"] = LayerKind(mixer=mixer, mlp=DenseMlp(width=sizes.need("ffn")))
    runs = (*_run("dense", first), *_run("experts", layers - first))
    vocab = sizes.need("vocab", known.vocab if known else None)
    return _model(sizes, LLAMA, kinds, runs, vocab=vocab)


def latent(sizes: Sizes, known: ModelSpec | None) -> ModelSpec:
    """Return a DeepSeek-style model from printed sizes; those that are not printed are of the known model."""
    parts = [part for kind in known.kinds.values() for part in (kind.mixer, kind.mlp)] if known else []
    mixer = next((part for part in parts if isinstance(part, LatentAttention)), None)
    routed = next((part for part in parts if isinstance(part, MoeMlp)), None)
    wide = next((part for part in parts if isinstance(part, DenseMlp)), None)
    ranks = {"kv_rank": "kv_lora", "nope_dim": "qk_nope", "rope_dim": "qk_rope", "v_dim": "v", "heads": "heads"}
    values: dict[str, Any] = {field: sizes.need(key, getattr(mixer, field, None)) for field, key in ranks.items()}
    values["q_rank"] = (sizes.get("q_lora") or None) if "q_lora" in sizes.latent or not mixer else mixer.q_rank
    attention = LatentAttention(**values)
    layers = sizes.need("layers", known.layer_count if known else None)
    first = sizes.get("dense_layers")
    if first is None:
        first = sum(isinstance(known.kinds[name].mlp, DenseMlp) for name in known.layer_names()) if known else 0
    first = min(first, layers)
    kinds: dict[str, LayerKind] = {}
    if first:
        kinds["dense"] = LayerKind(mixer=attention, mlp=DenseMlp(width=sizes.need("ffn", wide.width if wide else None)))
    if first < layers:
        width = sizes.need("expert_ffn", routed.width if routed else None)
        shared = _shared(sizes, width, routed.shared_width if routed else 0)
        count, top = sizes.need("experts", getattr(routed, "experts", None)), sizes.need("topk", getattr(routed, "top_k", None))
        kinds["experts"] = LayerKind(mixer=attention, mlp=MoeMlp(experts=count, top_k=top, width=width, shared_width=shared))
    runs = (*_run("dense", first), *_run("experts", layers - first))
    style = dataclasses.replace(LLAMA, family="deepseek")
    vocab = sizes.need("vocab", known.vocab if known else None)
    return _model(sizes, style, kinds, runs, vocab=vocab)


def hybrid(sizes: Sizes, known: ModelSpec | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return a Nemotron-H model from its counts of Mamba, MLP and attention blocks, in the order of the known model."""
    roles = {_role(kind): kind for kind in known.kinds.values()} if known else {}
    counted = Counter(_role(known.kinds[name]) for name in known.layer_names()) if known else Counter[str]()
    keys = {"mamba": "mamba_layers", "mlp": "mlp_layers", "attention": "attn_layers"}
    counts = {role: sizes.need(key, counted.get(role)) for role, key in keys.items()}
    if not sum(counts.values()):
        raise UnknownArchitecture(f"the numbers of layers of '{sizes.name[:80]}' are all 0")
    attention, wide = _attention_of(known) if known else None, _width_of(known)
    mixer = GroupedAttention(
        heads=sizes.need("heads", attention.heads if attention else None),
        kv_heads=sizes.need("kv_heads", attention.kv_heads if attention else None),
        head_dim=sizes.get("head_dim") or (attention.head_dim if attention else 128),
        rope=False,
    )
    said = []
    mamba = roles["mamba"].mixer if "mamba" in roles else None
    if mamba is None:
        mamba = Mamba2(heads=256, head_dim=64, groups=8, state=256)  # of Nemotron-H 47B and 56B
        said.append("Mamba: 256 heads of 64, 8 groups, state 256")
    layers = tuple(Layers(kinds=(_role(known.kinds[name]),), count=1) for name in known.layer_names()) if known else ()
    if counts != dict(counted):
        layers = _mixed(counts)
        said.append("layer order evenly mixed")
    mlp = DenseMlp(width=sizes.need("ffn", wide), gated=False, activation="relu2")
    kinds = {
        "mamba": LayerKind(mixer=mamba, mlp=NoMlp(), norms=1),
        "mlp": LayerKind(mixer=NoMixer(), mlp=mlp, norms=1),
        "attention": LayerKind(mixer=mixer, mlp=NoMlp(), norms=1),
    }
    style = dataclasses.replace(LLAMA, family="nemotron")
    vocab = sizes.need("vocab", known.vocab if known else None)
    return _model(sizes, style, kinds, layers, vocab=vocab), tuple(said)


def changed(known: ModelSpec, sizes: Sizes) -> ModelSpec:
    """Return a known model with the printed sizes in place of its own; the model itself where all agree."""
    hidden = sizes.need("hidden")
    dense_too = any(isinstance(kind.mlp, DenseMlp) for kind in known.kinds.values())
    kinds = {name: _changed_kind(kind, sizes, known, dense_too) for name, kind in known.kinds.items()}
    update = {
        "hidden": hidden, "kinds": kinds, "vocab": sizes.get("vocab") or known.vocab,
        "tied_embeddings": sizes.flag("tied_embeddings", known.tied_embeddings),
    }  # fmt: skip
    if all(value == getattr(known, field) for field, value in update.items()):
        return known
    return ModelSpec.model_validate(dict(known) | update | {"id": fold(sizes.name)})


def resized(model: ModelSpec, count: int, dense_layers: int | None = None) -> ModelSpec:
    """Return `model` with `count` layers: its first ones, the last kind repeated; `dense_layers` of them without experts."""
    names = model.layer_names()
    names = names[:count] + names[-1:] * (count - len(names))
    if dense_layers is not None:
        plain = next((n for n, kind in model.kinds.items() if isinstance(kind.mlp, DenseMlp)), names[0])
        routed = next((n for n, kind in model.kinds.items() if isinstance(kind.mlp, MoeMlp)), names[-1])
        first = min(dense_layers, count)
        names = [plain] * first + [routed] * (count - first)
    if names == model.layer_names():
        return model
    runs: list[Layers] = []
    for name in names:
        if runs and runs[-1].kinds == (name,):
            runs[-1] = Layers(kinds=(name,), count=runs[-1].count + 1)
        else:
            runs.append(Layers(kinds=(name,), count=1))
    name = model.id if model.id.endswith(f"-{count}-layers") else f"{model.id}-{count}-layers"
    return ModelSpec.model_validate(dict(model) | {"id": name, "layers": tuple(runs)})


def _changed_kind(kind: LayerKind, sizes: Sizes, known: ModelSpec, dense_too: bool) -> LayerKind:
    mixer, mlp = kind.mixer, kind.mlp
    if isinstance(mixer, GroupedAttention):
        mixer = _part(mixer, _grouped(mixer, sizes, known.hidden))
    elif isinstance(mixer, LatentAttention):
        mixer = _part(mixer, {"heads": sizes.get("heads") or mixer.heads})
    if isinstance(mlp, DenseMlp):
        scaled = mlp.width * sizes.need("hidden") // known.hidden
        mlp = _part(mlp, {"width": sizes.get("ffn") or scaled, "gated": sizes.flag("gated_ffn", mlp.gated)})
    elif isinstance(mlp, MoeMlp):
        mlp = _part(mlp, _routed(mlp, sizes, None if dense_too else sizes.get("ffn")))
    return LayerKind(mixer=mixer, mlp=mlp, norms=kind.norms, extra_parameters=kind.extra_parameters)


def _routed(mlp: MoeMlp, sizes: Sizes, ffn: int | None) -> dict[str, Any]:
    """Return what printed sizes change of experts. Qwen's configs print as `ffn` the width of all experts of a token."""
    width = sizes.get("expert_ffn") or (ffn if ffn and ffn != mlp.width * mlp.top_k else mlp.width)
    count = sizes.get("experts") or mlp.experts
    found = {"experts": count, "top_k": sizes.get("topk") or min(mlp.top_k, count), "width": width}
    found["shared_width"] = _shared(sizes, width, mlp.shared_width)
    return found | ({} if count == mlp.experts else {"groups": 1, "top_groups": None})


def _shared(sizes: Sizes, width: int, known: int = 0) -> int:
    """Return the width of all shared experts together."""
    printed, count = sizes.get("shared_ffn"), sizes.get("shared_experts")
    return printed if printed is not None else count * width if count is not None else known


def _grouped(mixer: GroupedAttention, sizes: Sizes, known_hidden: int) -> dict[str, Any]:
    """Return what printed sizes change of attention; heads as wide as hidden / heads stay so."""
    hidden, heads = sizes.need("hidden"), sizes.get("heads") or mixer.heads
    kept = (hidden, heads) == (known_hidden, mixer.heads) or mixer.heads * mixer.head_dim != known_hidden
    return {
        "heads": heads,
        "kv_heads": sizes.get("kv_heads") or (heads if mixer.kv_heads == mixer.heads else mixer.kv_heads),
        "head_dim": sizes.get("head_dim") or (mixer.head_dim if kept else _even(sizes, hidden, heads)),
    }


def _attention(sizes: Sizes, style: Style) -> GroupedAttention:
    hidden, heads = sizes.need("hidden"), sizes.need("heads")
    return GroupedAttention(
        heads=heads, kv_heads=sizes.get("kv_heads") or heads, head_dim=sizes.get("head_dim") or _even(sizes, hidden, heads),
        qkv_bias=style.bias, out_bias=style.bias, rope=style.rope,
    )  # fmt: skip


def _even(sizes: Sizes, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise UnknownArchitecture(f"{heads} heads do not divide the hidden size {hidden} of '{sizes.name[:80]}'")
    return hidden // heads


def _model(
    sizes: Sizes, style: Style, kinds: Mapping[str, LayerKind], layers: tuple[Layers, ...],
    vocab: int = VOCAB,
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        id=fold(sizes.name), name=sizes.name, family=style.family, hidden=sizes.need("hidden"),
        vocab=sizes.need("vocab", vocab), norm=style.norm, tied_embeddings=sizes.flag("tied_embeddings", style.tied),
        position_embeddings=style.positions, embedding_norm=style.embedding_norm, dropout=style.dropout, kinds=dict(kinds),
        layers=layers, source=PRINTED,
    )  # fmt: skip


def _run(kind: str, count: int) -> tuple[Layers, ...]:
    return (Layers(kinds=(kind,), count=count),) if count else ()


def _part(part: Part, update: dict[str, Any]) -> Part:
    """Return a part of a layer with some fields changed, checked anew."""
    return type(part).model_validate(part.model_dump() | update)


def _attention_of(model: ModelSpec) -> GroupedAttention | None:
    return next((kind.mixer for kind in model.kinds.values() if isinstance(kind.mixer, GroupedAttention)), None)


def _width_of(model: ModelSpec | None) -> int | None:
    kinds = model.kinds.values() if model else ()
    return next((kind.mlp.width for kind in kinds if isinstance(kind.mlp, DenseMlp)), None)


def _role(kind: LayerKind) -> str:
    """Return what a block of a Nemotron-H model is."""
    return "mamba" if isinstance(kind.mixer, Mamba2) else "attention" if isinstance(kind.mixer, GroupedAttention) else "mlp"


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
