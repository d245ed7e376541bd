"""The tensors one layer keeps under nanotron: single PyTorch operations around a Triton norm, in-place rotary and flash attention.

Read from huggingface/nanotron, models/llama.py and parallel/tensor_parallel/functional.py of mid 2024; 24 runs of
huggingface/bench_cluster check it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from parlay.estimate.frameworks import Settings
from parlay.estimate.memory_eager import kept_tensors_eager
from parlay.estimate.memory_layers import INPUT, Half, Kept, Recorder
from parlay.estimate.shard import Shard
from parlay.formulas import activations as act
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec


def kept_tensors_nanotron(kind: LayerKind, model: ModelSpec, workload: Workload, settings: Settings, shard: Shard) -> list[Kept]:
    """Return the tensors one layer of `kind` keeps for each micro-batch; kinds beyond Llama's as plain eager modules."""
    x, m = kind.mixer, kind.mlp
    if not isinstance(x, GroupedAttention) or not isinstance(m, DenseMlp):
        return kept_tensors_eager(kind, model, workload, dataclasses.replace(settings, kernels="eager"), shard)
    r = Recorder(model, workload, settings, shard)
    wide: dict[str, Any] = {"element_bytes": r.wide, **r.heads}
    _norm(r, "mixer", "mixer norm")
    if x.heads == x.kv_heads:  # the queries are a view of the one tensor that queries, keys and values were made in
        r.add("queries, keys, values before rotary", "mixer", act.queries_keys_values, heads=x.heads, kv_heads=x.kv_heads,
              qk_dim=x.head_dim, v_dim=x.head_dim, **wide)  # fmt: skip
    else:
        r.add("queries", "mixer", act.attention_output, heads=x.heads, v_dim=x.head_dim, **wide)
    r.add("keys, values", "mixer", act.queries_keys_values, heads=0, kv_heads=x.kv_heads, qk_dim=x.head_dim, v_dim=x.head_dim,
          **wide)  # fmt: skip
    # the output projection reads a transposed view, and copies it where there is more than one sequence
    copies = np.where(shard.micro_batch > 1, 2.0, 1.0)
    r.add("attention output", "mixer", act.attention_output, heads=x.heads, v_dim=x.head_dim, copies=copies, **wide)
    r.add("softmax statistics", "mixer", act.log_sum_exp, heads=x.heads, **r.heads)
    _norm(r, "mlp", "mlp norm")
    branches = 2.0 if m.gated else 1.0
    r.add("mlp activation input", "mlp", act.feed_forward, width=m.width, branches=branches, **wide)
    r.add("mlp activation output", "mlp", act.feed_forward, width=m.width, branches=branches, **wide)  # gate's, and its product
    return r.found


def _norm(r: Recorder, half: Half, label: str) -> None:
    """Record a norm's input, its scale a token, and its output as the product behind it keeps it: gathered, unless that
    gathers it again."""
    h = r.model.hidden
    r.add(f"{label} input" if r.found else INPUT, half, act.token_tensors, width=h, element_bytes=r.wide, **r.rows)
    r.add(f"{label} statistics", half, act.token_tensors, width=1, element_bytes=4.0, **r.rows)
    rows = {"tokens": r.shard.tokens} if r.settings.keeps_gathered else r.rows
    r.add(f"{label} output", half, act.token_tensors, width=h, element_bytes=r.wide, **rows)
