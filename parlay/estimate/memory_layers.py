"""The tensors one layer keeps for its backward pass under fused kernels (Megatron-core with TransformerEngine).

One entry a tensor: which half of the layer makes it, and which recompute choices drop it. Arrays run over the distinct
rows of a Shard. Lines are of Megatron-LM d98e8a64 and TransformerEngine d0067d0d.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.shard import Shard
from parlay.formulas import activations as act
from parlay.formulas import activations_moe as moe
from parlay.formulas import activations_recurrent as recurrent
from parlay.layouts.adapters import adapted
from parlay.layouts.vocabulary import LoraModule
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
)

Array = NDArray[np.float64]
Half = Literal["mixer", "mlp"]

INPUT = "layer input"  # the one tensor that full recompute keeps


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """One kept tensor: its bytes a micro-batch, the half of the layer it belongs to, and what drops it."""

    label: str
    value: Array
    half: Half
    formula: str
    inputs: Mapping[str, Any]
    dropped_by: frozenset[str] = frozenset()
    only_with: str | None = None  # a recompute choice without which the tensor is not kept at all


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Collects the kept tensors of one layer kind."""

    model: ModelSpec
    workload: Workload
    settings: Settings
    shard: Shard
    found: list[Kept] = dataclasses.field(default_factory=list)

    def add(
        self, label: str, half: Half, formula: Any, *dropped_by: str, only_with: str | None = None,
        feeds: LoraModule | Literal["frozen"] | None = None, **inputs: Any,
    ) -> None:  # fmt: skip
        """Record the tensor that `formula` prices with `inputs`; one that only `feeds` weight gradients goes with them."""
        if feeds is not None and not self.learns(feeds):
            return
        room = formula.__module__.rsplit(".", 1)[1]
        value = formula(**inputs) + np.zeros_like(self.shard.tp)
        self.found.append(Kept(label, value, half, f"{room}.{formula.__name__}", inputs, frozenset(dropped_by), only_with))

    def learns(self, module: str) -> bool:
        """Whether a linear layer of a module, or its adapter, has a weight gradient, which reads the layer's input."""
        return self.workload.lora_rank is None or module in self.workload.lora_modules

    @cached_property
    def rows(self) -> dict[str, Any]:
        """Arguments of tensors of one row a token."""
        return {"tokens": self.shard.tokens, "tensor": self.shard.tp, "sequence_parallel": self.shard.sp.astype(np.float64)}

    @cached_property
    def heads(self) -> dict[str, Any]:
        """Arguments of tensors that tensor parallelism splits by heads or width."""
        return {"tokens": self.shard.tokens, "tensor": self.shard.tp}

    @property
    def wide(self) -> float:
        """Bytes of an element that no recipe quantises."""
        return 4.0 if self.workload.precision == "fp32" else 2.0

    @property
    def matmul(self) -> float:
        """Bytes of an element kept only as input of a linear layer (layernorm_linear.py:475-492, linear.py:593-617)."""
        quantised = self.settings.recipe is not None and self.workload.lora_rank is None  # an adapter reads it as it comes
        return self.settings.recipe.activation_bytes if self.settings.recipe and quantised else self.wide

    @property
    def activated(self) -> float:
        """Bytes of an element that an activation function keeps: Megatron-LM casts it (fused_bias_swiglu.py, fp8_input_store),
        HAI-LLM quantises it (arXiv:2412.19437, section 3.3.3)."""
        if self.all_of_a_kind and self.settings.recipe and self.workload.stores_fp8_inputs:
            return self.settings.recipe.activation_bytes
        return 1.0 if self.workload.stores_fp8_inputs else self.wide

    @property
    def all_of_a_kind(self) -> bool:
        """Whether recomputing norms and activation functions means all of them, as in HAI-LLM (arXiv:2412.19437, section 3.2.3)."""
        return self.workload.framework == "hai-llm"


def kept_tensors(kind: LayerKind, model: ModelSpec, workload: Workload, settings: Settings, shard: Shard) -> list[Kept]:
    """Return the tensors one layer of `kind` keeps for each micro-batch when nothing is recomputed."""
    r = Recorder(model, workload, dataclasses.replace(settings, recipe=None) if kind.bf16 else settings, shard)
    if kind.mixer.kind != "none":
        _mixer(kind, r)
    if kind.mlp.kind != "none":
        _feed_forward(kind, r)
    if not r.found:
        r.add(INPUT, "mixer", act.token_tensors, width=model.hidden, element_bytes=r.wide, **r.rows)
    extra = kind.norms - (kind.mixer.kind != "none") - (kind.mlp.kind != "none")
    if extra > 0:  # norms behind a block (Gemma): each keeps its input, which nothing else holds
        r.add("post-norm inputs", "mlp", act.token_tensors, width=model.hidden, tensors=extra, element_bytes=r.wide, **r.rows)
    adapter_tensors(kind, r)
    return r.found


DROPPED_BY: dict[LoraModule, tuple[str, ...]] = {
    "qkv": (),
    "out": (),
    "up": ("mlp", "shared_experts"),
    "down": ("mlp", "shared_experts"),
}


def adapter_tensors(kind: LayerKind, r: Recorder) -> None:
    """Record what lies between the two products of each of a layer's adapters, r numbers a token, which every rank gathers."""
    for module in r.workload.lora_modules:
        count = sum(one.parts for one in adapted(kind, r.model.hidden, r.workload) if one.module == module)
        if count:
            half: Half = "mixer" if module in ("qkv", "out") else "mlp"
            r.add(f"{module} adapter", half, act.token_tensors, *DROPPED_BY[module], tokens=r.shard.tokens,
                  width=r.workload.lora_rank, tensors=count, element_bytes=r.wide)  # fmt: skip


def _norm_statistics(model: ModelSpec) -> float:
    """Return the fp32 numbers a norm keeps a token: the scale, and the mean where it subtracts one."""
    return 2.0 if model.norm.startswith("layernorm") or model.norm == "nonparametric" else 1.0


def _norm(
    r: Recorder, half: Half, label: str, *, separate: bool, feeds: LoraModule | Literal["frozen"], dropped_by: tuple[str, ...] = ()
) -> None:  # fmt: skip
    """Record the residual stream that enters a norm, and the norm's output. A norm fused into the linear layer behind it
    cannot be recomputed on its own (transformer_layer.py:475-536); `separate` says it is a module of its own."""
    h = r.model.hidden
    modules = (*dropped_by, "norm") if separate or r.all_of_a_kind else dropped_by
    entry = INPUT if not r.found else f"{label} input"
    r.add(entry, half, act.token_tensors, width=h, element_bytes=r.wide, **r.rows)
    bytes_each = r.wide if separate and label == "mlp norm" else r.matmul  # router and experts share the bf16 output
    r.add(f"{label} output", half, act.token_tensors, *modules, feeds=feeds, width=h, element_bytes=bytes_each, **r.rows)
    statistics = _norm_statistics(r.model)
    r.add(f"{label} statistics", half, act.token_tensors, *dropped_by, width=1, tensors=statistics, element_bytes=4.0, **r.rows)


def _mixer(kind: LayerKind, r: Recorder) -> None:
    x = kind.mixer
    if isinstance(x, LatentAttention):
        _norm(r, "mixer", "mixer norm", separate=True, feeds="qkv")
        _latent(x, r)
    else:
        _norm(r, "mixer", "mixer norm", separate=False, feeds="qkv")
    if isinstance(x, GroupedAttention):
        _grouped(x, r)
    elif isinstance(x, Mamba2):
        r.add(
            "mamba",
            "mixer",
            recurrent.mamba2_kept,
            inner=x.heads * x.head_dim,
            groups=x.groups,
            state=x.state,
            heads=x.heads,
            **r.heads,
        )
    elif isinstance(x, Mamba1):
        r.add("mamba", "mixer", recurrent.mamba2_kept, inner=x.inner, groups=0, state=x.state, heads=0, **r.heads)
    elif isinstance(x, GatedDelta):
        keys, values = x.key_heads * x.key_dim, x.value_heads * x.value_dim
        r.add("gated delta", "mixer", recurrent.gated_delta_kept, key_width=keys, value_width=values, value_heads=x.value_heads,
              key_dim=x.key_dim, **r.heads)  # fmt: skip
    if r.workload.dropout:
        r.add("dropout mask", "mixer", act.token_tensors, width=r.model.hidden, element_bytes=1.0, **r.rows)


def _grouped(x: GroupedAttention, r: Recorder) -> None:
    if x.qk_norm != "none":
        r.add("q/k norm inputs", "mixer", act.queries_keys_values, heads=x.heads, kv_heads=x.kv_heads, qk_dim=x.head_dim, v_dim=0,
              element_bytes=r.wide, **r.heads)  # fmt: skip
    r.add("queries, keys, values", "mixer", act.queries_keys_values, heads=x.heads, kv_heads=x.kv_heads, qk_dim=x.head_dim,
          v_dim=x.head_dim, ulysses=r.shard.ulysses, element_bytes=r.wide, **r.heads)  # fmt: skip
    _scores(r, x.heads, x.head_dim)
    if x.output_gate:
        r.add(
            "output gate",
            "mixer",
            act.attention_output,
            heads=x.heads,
            v_dim=x.head_dim,
            copies=2,
            element_bytes=r.wide,
            **r.heads,
        )


def _latent(x: LatentAttention, r: Recorder) -> None:
    """Multi-head latent attention: multi_latent_attention.py:638-972; mla_up keeps the latents and the rotary key."""
    latents = (x.q_rank or 0) + x.kv_rank
    r.add("latents and rotary key", "mixer", act.token_tensors, width=latents + x.rope_dim, element_bytes=r.wide, **r.rows)
    r.add(
        "latents after their norm",
        "mixer",
        act.token_tensors,
        "mla_up",
        feeds="qkv",
        width=latents,
        element_bytes=r.matmul,
        **r.rows,
    )
    r.add("queries, keys, values", "mixer", act.queries_keys_values, "mla_up", heads=x.heads, kv_heads=x.kv_heads,
          qk_dim=x.nope_dim + x.rope_dim, v_dim=x.v_dim, ulysses=1, element_bytes=r.wide, **r.heads)  # fmt: skip
    _scores(r, x.heads, x.v_dim)


def _scores(r: Recorder, heads: int, v_dim: int) -> None:
    """Attention's own tensors. Recomputing a fused core saves the statistics alone (attention.py:446-495)."""
    split = np.where(r.shard.ulysses > 1, 2.0, 1.0)
    r.add(
        "attention output", "mixer", act.attention_output, heads=heads, v_dim=v_dim, copies=split, element_bytes=r.wide, **r.heads
    )
    if r.workload.flash_attention:
        r.add("softmax statistics", "mixer", act.log_sum_exp, "core_attention", heads=heads, **r.heads)
        return
    r.add("attention scores", "mixer", act.unfused_scores, "core_attention", keys=r.workload.seq_len, heads=heads,
          dropout=float(r.workload.dropout > 0), element_bytes=r.wide, **r.heads)  # fmt: skip


def _feed_forward(kind: LayerKind, r: Recorder) -> None:
    m = kind.mlp
    parallel = kind.norms == 1 and kind.mixer.kind != "none"  # one norm feeds both halves
    if isinstance(m, MoeMlp):
        if not parallel:
            _norm(r, "mlp", "mlp norm", separate=True, feeds="up" if m.shared_width else "frozen")
        _experts(m, r)
    elif isinstance(m, DenseMlp):
        if not parallel:
            h = r.model.hidden
            r.add("mlp norm input" if r.found else INPUT, "mlp", act.token_tensors, width=h, element_bytes=r.wide, **r.rows)
            norm = ("mlp", "norm") if r.all_of_a_kind else ("mlp",)
            r.add("mlp norm output", "mlp", act.token_tensors, *norm, feeds="up", width=h, element_bytes=r.matmul, **r.rows)
            statistics = _norm_statistics(r.model)
            r.add("mlp norm statistics", "mlp", act.token_tensors, width=1, tensors=statistics, element_bytes=4.0, **r.rows)
        branches = 2.0 if m.gated else 1.0
        r.add(
            "mlp activation input",
            "mlp",
            act.feed_forward,
            "mlp",
            width=m.width,
            branches=branches,
            element_bytes=r.activated,
            **r.heads,
        )
        activation = ("mlp", "mlp_activation") if r.all_of_a_kind else ("mlp",)
        r.add("mlp activation output", "mlp", act.feed_forward, *activation, feeds="down", width=m.width, branches=1,
              element_bytes=r.matmul, **r.heads)  # fmt: skip
    if r.workload.dropout:
        r.add("dropout mask", "mlp", act.token_tensors, width=r.model.hidden, element_bytes=1.0, **r.rows)


def routed_rows(m: MoeMlp, workload: Workload, shard: Shard) -> Array:
    """Return the rows the experts of the busiest rank receive in one micro-batch."""
    return np.asarray(
        moe.expert_rows(
            shard.tokens, m.top_k, tensor=np.where(shard.sp, shard.tp, shard.etp), expert_tensor=shard.etp, experts=m.experts,
            imbalance=np.where(shard.ep > 1, workload.moe_imbalance, 1.0), capacity_factor=workload.moe_capacity_factor or 0.0,
        )
    )  # fmt: skip


def _experts(m: MoeMlp, r: Recorder) -> None:
    """Router, experts, shared experts: moe_layer.py, experts.py:1019-1030, grouped_linear.py:930-936."""
    s, rows = r.shard, routed_rows(m, r.workload, r.shard)
    branches = 2.0 if m.gated else 1.0
    wide = float(m.latent_width or r.model.hidden)
    r.add("router", "mlp", moe.router_kept, "moe", tokens=s.local_tokens, experts=m.experts)
    r.add("row map", "mlp", moe.row_map_kept, "moe", tokens=s.local_tokens, experts=m.experts)
    r.add("expert input", "mlp", moe.expert_input, "moe", feeds="frozen", rows=rows, width=wide, element_bytes=r.matmul)
    r.add("expert activation input", "mlp", act.feed_forward, "moe", tokens=rows, width=m.width, branches=branches, tensor=s.etp,
          element_bytes=r.activated)  # fmt: skip
    r.add("expert activation output", "mlp", act.feed_forward, "moe", "mlp_activation", feeds="frozen", tokens=rows, width=m.width,
          branches=1, tensor=s.etp, element_bytes=r.matmul)  # fmt: skip
    if m.latent_width:
        r.add(
            "latent output",
            "mlp",
            act.token_tensors,
            "moe",
            feeds="frozen",
            width=m.latent_width,
            element_bytes=r.matmul,
            **r.rows,
        )
    if m.shared_width:
        r.add("shared activation input", "mlp", act.feed_forward, "moe", "shared_experts", width=m.shared_width,
              branches=branches, element_bytes=r.activated, **r.heads)  # fmt: skip
        shared = ("moe", "shared_experts", "mlp_activation") if r.all_of_a_kind else ("moe", "shared_experts")
        r.add("shared activation output", "mlp", act.feed_forward, *shared, feeds="down", width=m.shared_width, branches=1,
              element_bytes=r.matmul, **r.heads)  # fmt: skip
