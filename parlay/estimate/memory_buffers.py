"""What a rank holds beside state and activations: caches, workspaces, and what lies outside the allocator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings, capability_of
from parlay.estimate.local import LocalParameters
from parlay.estimate.memory_rows import ROTARY_BYTES, USERBUFFERS
from parlay.estimate.memory_tables import Tables
from parlay.estimate.placement import shards_of
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, total
from parlay.formulas import activations as act
from parlay.formulas import buffers
from parlay.formulas import communication_buffers as comm
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, ModelSpec

Array = NDArray[np.float64]

CONTEXT_BYTES = 0.75e9  # CUDA context and loaded kernels: 0.5 to 1 GB (ml-engineering, debug/pytorch.md:1071); the middle
CHANNELS = 16.0  # NCCL channels of a communicator: 16 to 24 are usual; the lower, since few groups use all at once
SWITCH_CHANNELS = {9: 16.0, 10: 24.0}  # NVLS channels by compute capability (NCCL src/transport/nvls.cc:414-434)
SWITCH_RANKS = 3.0  # NVLS is used from this many ranks of one NVLink domain on
TE_GROUPED_STREAMS = 4.0  # further workspaces once a grouped product ran (TransformerEngine cpp_extensions/gemm.py:37-67)


def caches(model: ModelSpec, workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, tables: Tables) -> Term:
    """Return what stays allocated from the first step on: stand-in gradients, workspaces, tables, gathered inputs."""
    parts = []
    if any(settings.caches):
        elements = np.where((layouts.zero >= 3)[:, None], 0.0, tables.look(tables.cached_elements))
        parts.append(
            Term("memory.caches.gradients", "stand-in weight gradients", buffers.weight_gradient_cache(elements),
                 formula="buffers.weight_gradient_cache", inputs={"elements": elements})
        )  # fmt: skip
    streams = TE_GROUPED_STREAMS if settings.grouped_experts else 0.0
    te_streams = np.where(tables.grouped[tables.pattern], 1.0 + streams, 1.0) + tables.row(tables.bytes.overlap_streams)
    how: dict[str, Any] = {
        "te_bytes": settings.te_workspace_bytes,
        "te_streams": te_streams,
        "torch_bytes": settings.torch_workspace_bytes,
    }
    parts.append(
        Term("memory.caches.workspaces", "matmul workspaces", buffers.matmul_workspaces(**how),
             formula="buffers.matmul_workspaces", inputs=how, source="default")
    )  # fmt: skip
    if tables.bytes.rotary is not None:
        table = tables.row(tables.bytes.rotary)
        of_table = {
            "tokens": tables.row(workload.seq_len / tables.shard.cp), "width": tables.bytes.rotary_width,
            "element_bytes": ROTARY_BYTES, "tensor": 1,
        }  # fmt: skip
        parts.append(Term("memory.caches.rotary", "rotary table", table, formula="activations.token_tensors", inputs=of_table))
    if settings.kernels == "transformer-engine":
        parts += _last_stage(model, workload, layouts, stages, tables)
    if settings.framework == "torchtitan" and np.any(layouts.pp > 1):
        parts.append(_receive_buffers(model, workload, layouts, stages, tables))
    return total("memory.caches", "caches and workspaces", tuple(parts))


def _receive_buffers(model: ModelSpec, workload: Workload, layouts: Layouts, stages: Stages, tables: Tables) -> Term:
    """torch.distributed.pipelining makes a buffer for each micro-batch's input and output gradient when it starts, and keeps
    what it sent for the backward pass (stage.py: args_recv_info, grad_recv_info, fwd_cache); layers' inputs count elsewhere."""
    part = tables.row(tables.bytes.stream)
    rounds = layouts.micro_batches(workload.global_batch)[:, None].astype(np.float64)
    received, sent = stages.chunks - stages.embedding, stages.chunks - stages.head
    count = (rounds - stages.in_flight) * received + (rounds + stages.in_flight) * sent
    tensors = np.where((layouts.pp > 1)[:, None], np.maximum(count, 0.0), 0.0)
    inputs = {"tokens": tables.row(tables.shard.local_tokens), "width": model.hidden, "tensors": tensors, "element_bytes": 2}
    return Term(
        "memory.caches.receive", "buffers of the pipeline's exchange", tensors * part, formula="activations.token_tensors",
        inputs=inputs,
    )  # fmt: skip


def _last_stage(model: ModelSpec, workload: Workload, layouts: Layouts, stages: Stages, tables: Tables) -> list[Term]:
    """The output layer's gathered input (layers.py:627,671), and the input gradient that the loop's variable still names
    (schedules.py:2436-2447). Megatron's own attention makes its scores in the same buffer (dot_product_attention.py)."""
    s = tables.shard
    head = stages.head.astype(np.float64)
    part = tables.row(tables.bytes.stream)
    piped = (layouts.pp > 1)[:, None]
    buffer = tables.row(tables.bytes.gathered) * head
    inputs = {
        "tokens": tables.row(s.tokens),
        "width": model.hidden,
        "tensors": np.where(buffer > 0, 1.0, 0.0),
        "element_bytes": 2,
    }
    note = ""
    heads = max((kind.mixer.heads for kind in model.kinds.values() if isinstance(kind.mixer, GroupedAttention)), default=0)
    if workload.local_layers and not workload.flash_attention and heads:
        scores = act.unfused_scores(s.tokens, workload.seq_len, heads, tensor=s.tp, dropout=0)
        inputs["scores_bytes"] = tables.row(np.asarray(scores))
        note = "scores_bytes, unless the gathered input that the formula gives is larger"
        buffer = np.maximum(buffer, tables.row(np.asarray(scores)))
    return [
        Term("memory.caches.gathered", "buffer of gathered inputs and scores", buffer, formula="activations.token_tensors",
             inputs=inputs, note=note),
        Term("memory.caches.input_gradient", "last input gradient", part * head * piped, formula="activations.token_tensors",
             inputs={"tokens": tables.row(s.local_tokens), "width": model.hidden, "tensors": head * piped, "element_bytes": 2}),
    ]  # fmt: skip


def left_inputs(settings: Settings, layouts: Layouts, stages: Stages, tables: Tables) -> Array:
    """Return what a pipeline leaves allocated between two steps, beside what `caches` counts: every chunk still names the last
    input it received, and the input its gradient (Megatron-LM transformer_block.py, set_input_tensor; schedules.py, where
    received tensors retain their gradients)."""
    if settings.kernels != "transformer-engine":
        return np.zeros(stages.index.shape)
    part = tables.row(tables.bytes.stream)
    named = 2.0 * (stages.chunks - stages.embedding) - stages.head  # the last stage's gradient is among the caches
    return np.asarray(np.where((layouts.pp > 1)[:, None], named, 0.0) * part)


def gathered_at_once(
    settings: Settings, layouts: Layouts, stages: Stages, tables: Tables, local: LocalParameters
) -> tuple[Array, Array]:
    """Return what nanotron's ZeRO holds while it gathers all weights behind the optimizer's step, and what the allocator reserves
    anew for that.

    optim/zero.py, _all_gather_params, and distributed.py, all_gather_coalesced: every rank's weights are flattened into a tensor,
    its own into one more, and ProcessGroupNCCL's all-gather of a list makes one tensor of all of them (newLikeFlat). No block that
    the step left is as large as that one unless its largest tensor was: the fp32 logits, the table's gradient or a layer's.
    """
    if settings.framework != "nanotron":
        return np.zeros((1, 1)), np.zeros((1, 1))
    ranks, _ = shards_of(layouts)
    here = ((layouts.zero >= 1)[:, None] & (ranks > 1)).astype(np.float64)
    weights = settings.wire_bytes * local.trained.total * here
    one = tables.bytes
    of_a_layer = np.max([t.value for layer in tables.layers.values() for t, _ in layer.tensors], axis=0)
    largest = np.maximum(
        tables.row(of_a_layer),
        np.maximum(tables.row(one.logits_kept) * stages.head, tables.row(one.table_gradient) * stages.embedding),
    )
    return weights * (2.0 + 1.0 / ranks), np.where(weights > largest, weights, 0.0)


def _nvlink_tokens(ranks: NDArray[np.int64]) -> Array:
    """Return the tokens of one of DeepEP's NVLink queues by its expert-parallel ranks (deep_ep/buffers/legacy.py:245-258)."""
    return np.where(ranks <= 8, 256.0, np.where(ranks <= 64, 288.0, 560.0))


def outside(model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, tables: Tables) -> Term:
    """Return what lies outside the allocator: communicators, userbuffers, DeepEP's queues, the device context."""
    groups = (layouts.tp, layouts.cp, layouts.dp, layouts.pp, layouts.ep, layouts.etp)
    count = np.stack([g > 1 for g in groups]).sum(axis=0).astype(np.float64)[:, None]
    rings = comm.ring_communicator(channels=CHANNELS) * count
    domain = float(cluster.scale_up_gpus.value)
    generation = int(capability_of(cluster.device))
    channels = SWITCH_CHANNELS.get(generation, 0.0) if cluster.scale_up_link.kind == "nvlink" else 0.0
    in_switch = ((layouts.tp >= SWITCH_RANKS) & (layouts.tp <= domain)).astype(np.float64)[:, None]
    switch = comm.switch_communicator(channels=channels) * in_switch
    overlapped = tables.row(tables.bytes.userbuffers)
    ranks = np.maximum(layouts.ep, 1)
    queues = {"ranks": ranks[:, None], "nvlink_tokens": _nvlink_tokens(ranks)[:, None]}
    held = comm.deepep_buffers(hidden=model.hidden, **queues)
    dispatcher = np.where((layouts.ep > 1)[:, None] & (workload.dispatcher == "deepep"), held, 0.0)
    return total(
        "memory.outside",
        "communication buffers and context",
        (
            Term("memory.outside.rings", "NCCL rings", rings, formula="communication_buffers.ring_communicator", source="assumed",
                 inputs={"communicators": count, "channels": CHANNELS}),
            Term("memory.outside.switch", "NVLink switch buffers", switch, formula="communication_buffers.switch_communicator",
                 source="assumed", inputs={"channels": channels}),
            Term("memory.outside.userbuffers", "overlap buffers of tensor parallelism", overlapped, source="assumed",
                 formula="activations.token_tensors",
                 inputs={"tokens": tables.row(tables.shard.tokens), "width": model.hidden, "element_bytes": 2,
                         "tensors": np.where(overlapped > 0, USERBUFFERS, 0.0)}),
            Term("memory.outside.deepep", "DeepEP buffers", dispatcher, formula="communication_buffers.deepep_buffers",
                 source="assumed", inputs=queues),
            Term("memory.outside.context", "device context and kernels", np.float64(CONTEXT_BYTES), source="assumed",
                 note="CUDA context and loaded kernels, the middle of 0.5 to 1 GB (ml-engineering, debug/pytorch.md)"),
        ),
    )  # fmt: skip
