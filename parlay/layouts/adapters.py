"""Where LoRA's adapters can stand: the linear layers of a layer, by the name of their module (arXiv:2106.09685, section 4.2)."""

from __future__ import annotations

import dataclasses

from parlay.layouts.vocabulary import FUSED_LAYERS, LoraModule
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    MoeMlp,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """A weight that an adapter can stand at: its module, whole sizes, and whether tensor parallelism splits it.

    `parts` are the layers of their own that make it where a framework does not fuse them (queries, keys and values; gate and up):
    each has an A of its own.
    """

    module: LoraModule
    out: int
    inner: int
    split: bool = True
    parts: int = 1


def linears(kind: LayerKind, hidden: int) -> list[Linear]:
    """Return the linear layers of a layer that LoRA can adapt: all but routers, gates and routed experts."""
    return [*_of_mixer(kind, hidden), *_of_mlp(kind, hidden)]


def _of_mixer(kind: LayerKind, h: int) -> list[Linear]:
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        queries = x.heads * x.head_dim
        return [
            Linear("qkv", queries * (2 if x.output_gate else 1) + 2 * x.kv_heads * x.head_dim, h, parts=3),
            Linear("out", h, queries),
        ]
    if isinstance(x, LatentAttention):
        up = x.heads * (x.nope_dim + x.rope_dim)
        down = [Linear("qkv", x.q_rank, h, split=False), Linear("qkv", up, x.q_rank)] if x.q_rank else [Linear("qkv", up, h)]
        rise = [Linear("qkv", x.heads * (x.nope_dim + x.v_dim), x.kv_rank)] if x.up_projection else []
        out = x.out_groups * x.out_rank if x.out_rank else x.heads * x.v_dim
        return [*down, Linear("qkv", x.kv_rank + x.rope_dim, h, split=False), *rise, Linear("out", h, out)]
    if isinstance(x, Mamba2):
        inner = x.heads * x.head_dim
        return [Linear("qkv", 2 * inner + 2 * x.groups * x.state + x.heads, h), Linear("out", h, inner)]
    if isinstance(x, Mamba1):
        return [Linear("qkv", 2 * x.inner, h), Linear("out", h, x.inner)]
    if isinstance(x, GatedDelta):
        keys, values = x.key_heads * x.key_dim, x.value_heads * x.value_dim
        return [Linear("qkv", 2 * keys + 2 * values + 2 * x.value_heads, h), Linear("out", h, values)]
    return []


def _of_mlp(kind: LayerKind, h: int) -> list[Linear]:
    m = kind.mlp
    width = m.width if isinstance(m, DenseMlp) else m.shared_width if isinstance(m, MoeMlp) else 0
    gated = isinstance(m, DenseMlp | MoeMlp) and m.gated
    branches = 2 if gated else 1
    return [Linear("up", branches * width, h, parts=branches), Linear("down", h, width)] if width else []


def adapted(kind: LayerKind, hidden: int, workload: Workload) -> list[Linear]:
    """Return the linear layers of a layer that the workload's adapters stand at, in the parts that its framework has."""
    if workload.lora_rank is None:
        return []
    found = [one for one in linears(kind, hidden) if one.module in workload.lora_modules]
    return [dataclasses.replace(one, parts=1) for one in found] if workload.framework in FUSED_LAYERS else found
