"""What a rank holds beside state and activations: caches, workspaces, gathered blocks, and what lies outside the allocator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import GRADIENT_BYTES, Settings, capability_of
from parlay.estimate.local import LocalParameters
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
PREFETCH_ELEMENTS = 5e8  # Megatron-FSDP gathers at least this many elements ahead (megatron_fsdp.py:415-444)
REDUCE_QUEUE_ELEMENTS = 1e9  # and lets this many gradients wait for their reduction (megatron_fsdp.py:443)
LIVE_ELEMENTS = 1e9  # DeepSpeed stage3_max_live_parameters and max_reuse_distance (zero/config.py:215-244)
DEEPSPEED_BUCKET = 5e8  # reduce_bucket_size, allgather_bucket_size (zero/config.py:113,132)


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
        parts.append(Term("memory.caches.rotary", "rotary table", table, formula="activations.token_tensors"))
    if settings.kernels == "transformer-engine":
        parts += _last_stage(model, workload, layouts, stages, tables)
    if settings.framework == "torchtitan" and np.any(layouts.pp > 1):
        parts.append(_receive_buffers(workload, layouts, stages, tables))
    return total("memory.caches", "caches and workspaces", tuple(parts))


def _receive_buffers(workload: Workload, layouts: Layouts, stages: Stages, tables: Tables) -> Term:
    """torch.distributed.pipelining makes a buffer for each micro-batch's input and output gradient when it starts, and keeps
    what it sent for the backward pass (stage.py: args_recv_info, grad_recv_info, fwd_cache); layers' inputs count elsewhere."""
    part = tables.row(tables.bytes.stream)
    rounds = layouts.micro_batches(workload.global_batch)[:, None].astype(np.float64)
    received, sent = stages.chunks - stages.embedding, stages.chunks - stages.head
    count = (rounds - stages.in_flight) * received + (rounds + stages.in_flight) * sent
    held = np.where((layouts.pp > 1)[:, None], np.maximum(count, 0.0), 0.0) * part
    return Term("memory.caches.receive", "buffers of the pipeline's exchange", held, formula="activations.token_tensors")


def _last_stage(model: ModelSpec, workload: Workload, layouts: Layouts, stages: Stages, tables: Tables) -> list[Term]:
    """The output layer's gathered input (layers.py:627,671), and the input gradient that the loop's variable still names
    (schedules.py:2436-2447). Megatron's own attention makes its scores in the same buffer (dot_product_attention.py)."""
    s = tables.shard
    head = stages.head.astype(np.float64)
    part = tables.row(tables.bytes.stream)
    piped = (layouts.pp > 1)[:, None]
    buffer = tables.row(tables.bytes.gathered) * head
    heads = max((kind.mixer.heads for kind in model.kinds.values() if isinstance(kind.mixer, GroupedAttention)), default=0)
    if workload.local_layers and not workload.flash_attention and heads:
        scores = act.unfused_scores(s.tokens, workload.seq_len, heads, tensor=s.tp, dropout=0)
        buffer = np.maximum(buffer, tables.row(np.asarray(scores)))
    return [
        Term("memory.caches.gathered", "buffer of gathered inputs and scores", buffer, formula="activations.token_tensors"),
        Term("memory.caches.input_gradient", "last input gradient", part * head * piped, formula="activations.token_tensors"),
    ]


def left_inputs(settings: Settings, layouts: Layouts, stages: Stages, tables: Tables) -> Array:
    """Return what a pipeline leaves allocated between two steps, beside what `caches` counts: every chunk still names the last
    input it received, and the input its gradient (Megatron-LM transformer_block.py, set_input_tensor; schedules.py, where
    received tensors retain their gradients)."""
    if settings.kernels != "transformer-engine":
        return np.zeros(stages.index.shape)
    part = tables.row(tables.bytes.stream)
    named = 2.0 * (stages.chunks - stages.embedding) - stages.head  # the last stage's gradient is among the caches
    return np.asarray(np.where((layouts.pp > 1)[:, None], named, 0.0) * part)


def gathered(
    settings: Settings, layouts: Layouts, stages: Stages, tables: Tables, local: LocalParameters
) -> tuple[Array, Array, Array]:
    """Return what ZeRO holds unsharded: always (by layout and stage), and on top in a forward and in a backward pass."""
    always, forward, backward = (np.zeros(local.dense.shape) for _ in range(3))
    if settings.framework == "deepspeed":
        bucket = buffers.bucket_bytes(
            local.trained.total, bucket_elements=DEEPSPEED_BUCKET, element_bytes=settings.gradient_bytes
        )
        always = np.where((layouts.zero >= 2)[:, None], bucket, 0.0)
    rows = np.flatnonzero(layouts.zero >= 3)
    if len(rows):
        shards, _ = shards_of(layouts)
        unit, piped, mine = tables.look(tables.unit_elements)[rows], (layouts.pp > 1)[rows, None], local.take(rows)
        root = tables.row(tables.bytes.table_gradient)[rows] * stages.head[rows]
        stay, ahead, behind = _sharded(settings, unit, piped, mine, shards[rows], root)
        always[rows] += stay
        forward[rows], backward[rows] = ahead, behind
    return always, forward, backward


def _sharded(
    settings: Settings, unit: Array, piped: NDArray[np.bool_], local: LocalParameters, shards: Array, root: Array
) -> tuple[Array, Array, Array]:
    """Return `gathered` for layouts at ZeRO stage 3: `unit` the largest block, `local` the stage's parameters."""
    mine, trained = local.total, local.trained.total
    # Frozen blocks have no gradients, and those of adapters are small beside the weights they stand at.
    grad = 0.0 if local.adapters is not None else GRADIENT_BYTES
    reduce = 0.0 if local.adapters is not None else settings.reduce_bytes
    if settings.framework == "deepspeed":
        live = np.minimum(buffers.bucket_bytes(mine, bucket_elements=LIVE_ELEMENTS, element_bytes=2.0) + 2.0 * unit, 2.0 * mine)
        return np.zeros(mine.shape), np.asarray(live), np.asarray(live)
    ahead = np.asarray(buffers.unsharded_forward(unit, shards=shards))
    behind = np.asarray(buffers.unsharded_backward(unit, gradient_bytes=grad, reduce_bytes=reduce))
    if settings.framework == "megatron-core":
        prefetch = buffers.bucket_bytes(mine, bucket_elements=PREFETCH_ELEMENTS, element_bytes=2.0)
        queue = buffers.bucket_bytes(
            trained, bucket_elements=REDUCE_QUEUE_ELEMENTS, element_bytes=settings.sharded_gradient_bytes
        )
        ahead = np.minimum(2.0 * unit + prefetch + root, 2.0 * mine)  # never more than there are
        behind, root = ahead + queue, 0.0 * root  # and none between two steps
    reshard = settings.reshard_after_forward
    # Without resharding the whole stage stays gathered; over a pipeline its gradients wait, unreduced, for the last
    # micro-batch (torchtitan distributed/fsdp.py; torch.distributed.pipelining schedules.py, REDUCE_GRAD).
    stays = piped if reshard is None else np.full(piped.shape, not reshard)
    whole = 2.0 * mine + np.where(piped, settings.reduce_bytes * trained, 0.0)
    return (
        np.where(stays, whole, root),
        np.where(stays, 0.0, ahead),
        np.where(stays, reduce * unit, behind),
    )


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
                 formula="activations.token_tensors"),
            Term("memory.outside.deepep", "DeepEP buffers", dispatcher, formula="communication_buffers.deepep_buffers",
                 source="assumed", inputs=queues),
            Term("memory.outside.context", "device context and kernels", np.float64(CONTEXT_BYTES), source="assumed"),
        ),
    )  # fmt: skip
