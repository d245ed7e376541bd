"""Parts of a layer from the keys that most architectures share, and the assembly of layers into a specification."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from parlay.models.huggingface.reader import MAX_LAYERS, Keys, printable
from parlay.models.spec import DenseMlp, FeedForward, GroupedAttention, LayerKind, Mixer, NoMlp, Norm, Run

Activation = Literal["silu", "gelu", "relu", "relu2"]
MOST_PERIOD = 16  # the longest repeating group of layers that is looked for

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "glu": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "squared_relu": "relu2",
    "xielu": "relu2",  # piecewise quadratic, priced as the squared ReLU
}


@dataclass
class Draft:
    """A model as read so far: its layers in order, and the fields of ModelSpec that the architecture sets."""

    hidden: int
    vocab: int
    layers: list[LayerKind]
    norm: Norm = "rmsnorm"
    tied: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    mtp: LayerKind | None = None
    mtp_layers: int = 0


def layer_count(keys: Keys) -> int:
    """Return the number of layers."""
    return keys.integer("num_hidden_layers", high=MAX_LAYERS)


def activation(keys: Keys, fallback: Activation = "silu", name: str = "hidden_act") -> Activation:
    """Return the activation's kind; variants of GELU count as one."""
    text = keys.text(name)
    if text is None:
        return fallback
    known = _ACTIVATIONS.get(text.lower(), "gelu" if "gelu" in text.lower() else None)
    if known is None:
        keys.log.assume(f"activation '{printable(text)}' is priced as {fallback}")
    return known or fallback


def heads_of(keys: Keys, hidden: int, *, own_head_dim: bool = True) -> tuple[int, int, int]:
    """Return query heads, key/value heads (default: as many) and head_dim (default: hidden / heads)."""
    heads = keys.integer("num_attention_heads")
    kv = keys.optional("num_key_value_heads") or heads
    if heads % kv:
        given = f"got {kv}" if keys.has("num_key_value_heads") else f"and the default of {keys.reader}, {kv}, does not"
        raise keys.error("num_key_value_heads", f"must divide num_attention_heads ({heads}), {given}")
    return heads, kv, head_dim_of(keys, hidden, heads, own_head_dim=own_head_dim)


def head_dim_of(keys: Keys, hidden: int, heads: int, *, own_head_dim: bool = True) -> int:
    """Return the width of a head: the file's, the class's, or hidden / heads."""
    given = keys.optional("head_dim") if own_head_dim else None
    if given is not None:
        return given
    if hidden < heads:
        raise keys.error("num_attention_heads", f"cannot exceed the hidden size ({hidden}) unless head_dim is given, got {heads}")
    if hidden % heads:
        keys.log.assume(f"head_dim = {hidden // heads} (hidden size {hidden} / {heads} heads, rounded down)")
    return hidden // heads


Windows = Callable[[Keys, int], list[int | None]]


def no_windows(keys: Keys, count: int) -> list[int | None]:
    """Every layer sees all tokens, unless the file lists layer_types."""
    return windows_by_type(keys, count, ["full_attention"] * count)


def same_window(keys: Keys, count: int) -> list[int | None]:
    """One sliding window for all layers if `sliding_window` is set (Mistral)."""
    return windows_by_type(keys, count, ["sliding_attention"] * count)


def qwen_windows(keys: Keys, count: int) -> list[int | None]:
    """A window from layer `max_window_layers` on, and only if `use_sliding_window` (Qwen2, Qwen3)."""
    if not keys.flag("use_sliding_window"):
        keys.find("sliding_window")
        keys.find("layer_types")
        keys.find("max_window_layers")
        return [None] * count
    first = keys.optional("max_window_layers", low=0) or 0
    return windows_by_type(keys, count, ["full_attention" if i < first else "sliding_attention" for i in range(count)])


def switched_window(keys: Keys, count: int) -> list[int | None]:
    """One window for all layers, only if `use_sliding_window` (Qwen3-MoE)."""
    on = keys.flag("use_sliding_window")
    return windows_by_type(keys, count, ["sliding_attention" if on else "full_attention"] * count)


def every(period: int) -> Windows:
    """Return the rule of windows in all layers but each `period`-th (Gemma 2: 2, Gemma 3: 6)."""

    def rule(keys: Keys, count: int) -> list[int | None]:
        step = keys.optional("sliding_window_pattern") if type(keys.find("sliding_window_pattern")[1]) is int else None
        step = step or period
        return windows_by_type(
            keys, count, ["full_attention" if (i + 1) % step == 0 else "sliding_attention" for i in range(count)]
        )

    return rule


def windows_by_type(keys: Keys, count: int, default: Sequence[str]) -> list[int | None]:
    """Return each layer's window: by the file's layer_types, or by the class's `default` where it has none."""
    types = keys.words("layer_types", count) or list(default)
    if "sliding_attention" not in types:
        keys.find("sliding_window")
        return [None] * count
    window = keys.optional("sliding_window", low=0) or None  # 0 means none, as it does for the class
    return [window if kind == "sliding_attention" else None for kind in types]


def dense(
    keys: Keys, width: int | None = None, *, gated: bool = True, bias: bool = False, fallback: Activation = "silu"
) -> DenseMlp:
    """Return the plain feed-forward part of width `intermediate_size`."""
    return DenseMlp(
        width=keys.integer("intermediate_size") if width is None else width,
        gated=gated,
        activation=activation(keys, fallback),
        bias=bias,
    )


@functools.lru_cache(maxsize=512)
def _layer(mixer: Mixer, mlp: FeedForward, norms: int, extra: int) -> LayerKind:
    return LayerKind(mixer=mixer, mlp=mlp, norms=norms, extra_parameters=extra)


def layer(mixer: Mixer, mlp: FeedForward, norms: int = 2, extra: int = 0) -> LayerKind:
    """Return a kind of layer; the same arguments return the same object, so long models stay small."""
    return _layer(mixer, mlp, norms, extra)


def name_of(kind: LayerKind) -> str:
    """Return a short name for a kind of layer: what mixes tokens, and what follows."""
    mixer = {"gqa": "attention", "mla": "latent", "none": ""}.get(kind.mixer.kind, kind.mixer.kind)
    if isinstance(kind.mixer, GroupedAttention) and kind.mixer.window is not None:
        mixer = "chunked" if kind.mixer.chunked else "sliding"
    mlp = {"dense": "dense", "moe": "experts", "none": ""}[kind.mlp.kind]
    return "_".join(part for part in (mixer, mlp) if part) or "empty"


def named(layers: Sequence[LayerKind]) -> tuple[dict[str, LayerKind], list[str]]:
    """Return the kinds by name and the name of every layer; equal kinds share one name."""
    by_kind: dict[LayerKind, str] = {}
    names: dict[str, LayerKind] = {}
    for kind in layers:
        if kind not in by_kind:
            base = name = name_of(kind)
            number = 2
            while name in names:
                name, number = f"{base}_{number}", number + 1
            by_kind[kind], names[name] = name, kind
    return names, [by_kind[kind] for kind in layers]


def runs(names: Sequence[str]) -> tuple[Run, ...]:
    """Return the layers as few runs: at each place the group, at most MOST_PERIOD long, that repeats the furthest."""
    found: list[Run] = []
    start = 0
    while start < len(names):
        best, reach = 1, _repeats(names, start, 1)
        for period in range(2, MOST_PERIOD + 1):
            length = _repeats(names, start, period)
            if length >= 2 * period and length > reach:
                best, reach = period, length
        found.append(Run(kinds=tuple(names[start : start + best]), count=reach))
        start += reach
    return tuple(found)


def _repeats(names: Sequence[str], start: int, period: int) -> int:
    end = start + period
    while end < len(names) and names[end] == names[end - period]:
        end += 1
    return min(end, len(names)) - start


NO_MLP = NoMlp()
