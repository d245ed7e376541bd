"""The tensors one layer keeps under plain PyTorch modules (torchtitan, DeepSpeed with Hugging Face modules).

Eager, autograd keeps the inputs of every operation; compiled, the partitioner keeps matmul inputs and outputs and
rebuilds what is cheap; `selective_ops` is torchtitan's policy: the layer's input, every other matmul's output, the
attention's output and statistics, and what collectives returned (torchtitan b5bcd76c,
distributed/activation_checkpoint.py:30-92, 179-262). Read from source; only whole torchtitan runs check it.
"""

from __future__ import annotations

from typing import Any, Literal

from parlay.estimate.frameworks import Settings
from parlay.estimate.memory_layers import INPUT, Half, Kept, Recorder, adapter_tensors, routed_rows
from parlay.estimate.shard import Shard
from parlay.formulas import activations as act
from parlay.formulas import activations_moe as moe
from parlay.formulas import activations_recurrent as recurrent
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

OPS = "selective_ops"
FP32_BYTES = 4.0


def kept_tensors_eager(kind: LayerKind, model: ModelSpec, workload: Workload, settings: Settings, shard: Shard) -> list[Kept]:
    """Return the tensors one layer of `kind` keeps for each micro-batch under eager or compiled modules."""
    r = Recorder(model, workload, settings, shard)
    eager = settings.kernels == "eager"
    r.add(INPUT, "mixer", act.token_tensors, width=model.hidden, element_bytes=r.wide, **r.rows)
    if kind.mixer.kind != "none":
        _norm(r, "mixer", "mixer norm", eager, "qkv")
        _mixer(kind, r)
    if kind.mlp.kind != "none":
        if kind.mixer.kind != "none":
            r.add("mlp norm input", "mlp", act.token_tensors, OPS, width=model.hidden, element_bytes=r.wide, **r.rows)
        routed = isinstance(kind.mlp, MoeMlp) and not kind.mlp.shared_width
        _norm(r, "mlp", "mlp norm", eager, "frozen" if routed else "up")
        _feed_forward(kind, r, eager)
    adapter_tensors(kind, r)
    return r.found


def _norm(r: Recorder, half: Half, label: str, eager: bool, feeds: LoraModule | Literal["frozen"]) -> None:
    """A norm of plain operations keeps its input in fp32 (4 bytes an element) instead of its input, and its normalised value, which
    only the gradient of its own weight reads: in bf16 (2) as Hugging Face's modules cast it, in fp32 (4) as PyTorch's. Where all is in
    fp32 its input is kept as it is. One kernel keeps two numbers a token, or one, beside its input."""
    if not eager:
        return
    if r.model.norm != "rmsnorm" or r.settings.fused_rmsnorm:
        scales = 1 if r.model.norm == "rmsnorm" else 2
        r.add(f"{label} statistics", half, act.token_tensors, OPS, width=scales, element_bytes=4.0, **r.rows)
    else:
        normalised = (
            0.0 if not r.learns("frozen") else 2.0 if r.settings.framework == "deepspeed" and r.wide < FP32_BYTES else 4.0
        )
        beyond = FP32_BYTES - r.wide + normalised
        r.add(f"{label} intermediates", half, act.token_tensors, OPS, width=r.model.hidden, element_bytes=beyond, **r.rows)
    r.add(f"{label} output", half, act.token_tensors, OPS, feeds=feeds, width=r.model.hidden, element_bytes=r.wide, **r.rows)


def _mixer(kind: LayerKind, r: Recorder) -> None:
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        wide: dict[str, Any] = {"element_bytes": r.wide, "only_with": OPS, **r.heads}
        r.add("query product", "mixer", act.attention_output, heads=x.heads, v_dim=x.head_dim, **wide)
        r.add("value product", "mixer", act.queries_keys_values, heads=0, kv_heads=x.kv_heads, qk_dim=0, v_dim=x.head_dim, **wide)
        r.add("queries, keys, values", "mixer", act.queries_keys_values, OPS, heads=x.heads, kv_heads=x.kv_heads,
              qk_dim=x.head_dim, v_dim=x.head_dim, ulysses=r.shard.ulysses, element_bytes=r.wide, **r.heads)  # fmt: skip
        _attention(r, x.heads, x.head_dim)
    elif isinstance(x, LatentAttention):
        latents = (x.q_rank or 0) + x.kv_rank + x.rope_dim
        r.add("latents", "mixer", act.token_tensors, width=latents, element_bytes=r.wide, **r.rows)
        r.add("queries, keys, values", "mixer", act.queries_keys_values, OPS, heads=x.heads, kv_heads=x.kv_heads,
              qk_dim=x.nope_dim + x.rope_dim, v_dim=x.v_dim, element_bytes=r.wide, **r.heads)  # fmt: skip
        r.add("output product", "mixer", act.token_tensors, only_with=OPS, width=r.model.hidden, element_bytes=r.wide, **r.rows)
        _attention(r, x.heads, x.v_dim)
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


def _attention(r: Recorder, heads: int, v_dim: int) -> None:
    """Fused attention writes its output token by token, so what the output projection reads is that tensor; scores in memory need it
    for the projection alone."""
    output: dict[str, Any] = {"heads": heads, "v_dim": v_dim, "element_bytes": r.wide, **r.heads}
    if r.workload.flash_attention:
        r.add("attention output", "mixer", act.attention_output, **output)
        r.add("softmax statistics", "mixer", act.log_sum_exp, heads=heads, **r.heads)
    else:
        r.add("attention output", "mixer", act.attention_output, OPS, feeds="out", **output)
        r.add("attention scores", "mixer", act.unfused_scores, "core_attention", OPS, keys=r.workload.seq_len, heads=heads,
              dropout=float(r.workload.dropout > 0), element_bytes=r.wide, **r.heads)  # fmt: skip


def _feed_forward(kind: LayerKind, r: Recorder, eager: bool) -> None:
    m = kind.mlp
    h = r.model.hidden
    if isinstance(m, DenseMlp):
        latent = isinstance(kind.mixer, LatentAttention)  # an odd number of products comes before, so w3 is kept, w2 is not
        products = (2.0 if m.gated else 1.0, m.width)
        r.add("gate product", "mlp", act.feed_forward, only_with=OPS, width=m.width, branches=1, element_bytes=r.wide, **r.heads)
        if not latent and eager:  # the product before its reduction: whole rows; no gradient needs it, and compiled it is dropped
            r.add("down product", "mlp", act.token_tensors, only_with=OPS, tokens=r.shard.tokens, width=h, element_bytes=r.wide)
        r.add(
            "mlp products",
            "mlp",
            act.feed_forward,
            OPS,
            "mlp",
            width=products[1],
            branches=products[0],
            element_bytes=r.wide,
            **r.heads,
        )
        if eager:
            r.add(
                "mlp activation",
                "mlp",
                act.feed_forward,
                OPS,
                "mlp",
                width=m.width,
                branches=products[0] - (0.0 if r.learns("down") else 1.0),  # their product is the last matrix's input alone
                element_bytes=r.wide,
                **r.heads,
            )
    elif isinstance(m, MoeMlp):
        rows, wide = routed_rows(m, r.workload, r.shard), float(m.latent_width or h)
        branches = 2.0 if m.gated else 1.0
        each: dict[str, Any] = {"tokens": rows, "tensor": r.shard.etp, "element_bytes": r.wide}
        r.add("router", "mlp", moe.router_kept, tokens=r.shard.local_tokens, experts=m.experts)
        read = 2.0 if r.learns("frozen") else 1.0  # the weight gradients read what was dispatched, the router's what came back
        r.add("dispatched and returned rows", "mlp", moe.expert_input, "moe", rows=read * rows, width=wide, element_bytes=r.wide)
        r.add("expert products", "mlp", act.feed_forward, "moe", width=m.width, branches=branches, **each)
        r.add("expert output", "mlp", act.feed_forward, "moe", width=wide, branches=1, tokens=rows, element_bytes=r.wide)
        if eager:
            r.add("expert activation", "mlp", act.feed_forward, "moe", OPS, width=m.width, branches=branches, **each)
        if m.shared_width:
            r.add("shared products", "mlp", act.feed_forward, "moe", OPS, "shared_experts", width=m.shared_width,
                  branches=branches, element_bytes=r.wide, **r.heads)  # fmt: skip
            r.add("shared activation", "mlp", act.feed_forward, "moe", OPS, "shared_experts", feeds="down", width=m.shared_width, branches=1,
                  element_bytes=r.wide, **r.heads)  # fmt: skip
