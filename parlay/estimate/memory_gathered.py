"""What ZeRO holds gathered and not yet reduced, at each moment of a step.

FSDP2's moments were read off real `fully_shard` under torchtitan's wrapping (scripts/simulate_fsdp.py, PyTorch 2.13). The
output layer stays gathered until its own backward pass; a block's weights, its gradients, the next block's all-gather output
and the reduction's input of whatever came before lie beside each other; all-gathers and reductions allocate in pools of their
streams. Not known: how pools grow where blocks are larger than the output layer (experts), or over a pipeline: there the largest
moment of the compute pool, or the share that other frameworks' ranks show, stands for what they reserve; and what HSDP's
all-reduce holds one layer longer is not counted. DeepSpeed and Megatron-FSDP gather and reduce by rules of their own.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import GRADIENT_BYTES, Settings
from parlay.estimate.local import LocalParameters
from parlay.estimate.memory_tables import Tables
from parlay.estimate.placement import shards_of
from parlay.estimate.stages import Stages
from parlay.formulas import buffers
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]

PREFETCH_ELEMENTS = 5e8  # Megatron-FSDP gathers at least this many elements ahead (megatron_fsdp.py:415-444)
REDUCE_QUEUE_ELEMENTS = 1e9  # and lets this many gradients wait for their reduction (megatron_fsdp.py:443)
LIVE_ELEMENTS = 1e9  # DeepSpeed stage3_max_live_parameters and max_reuse_distance (zero/config.py:215-244)
DEEPSPEED_BUCKET = 5e8  # reduce_bucket_size, allgather_bucket_size (zero/config.py:113,132)


OF_GATHERED = (
    "largest blocks and tables in bf16 as they lie beside each other at that moment, by the rules of each framework's ZeRO-3 (FSDP2's"
    " moments were read off real runs): parlay.estimate.memory_gathered"
)


@dataclasses.dataclass(frozen=True)
class Apart:
    """FSDP2's moments at the output layer and its pools, by layout and stage; where `here` is false, none of it counts."""

    here: NDArray[np.bool_]  # by layout, a column
    loss: Array  # at the loss
    output: Array  # at the output layer's backward pass, after the loss has gone
    absent: Array  # gradient shards that the first micro-batch has not made before its last layers
    ahead: Array  # of `backward`: the next block's all-gather output, which another pool holds
    pool: Array  # what the all-gather stream's pool keeps
    tables: Array  # room of the token table's and the output layer's gathered weights
    reduction: Array  # input of the output layer's reduction


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Bytes held unsharded, by layout and stage: always, and on top in a forward, a backward and the embedding's backward pass
    (beside its gradient); `apart` where these moments do not coincide with those of the output layer."""

    always: Array
    forward: Array
    backward: Array
    embedding: Array
    apart: Apart | None = None


def gathered(
    model: ModelSpec, workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, tables: Tables,
    local: LocalParameters,
) -> Gathered:  # fmt: skip
    """Return what ZeRO holds unsharded."""
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
    plain = Gathered(always, forward, backward, backward)
    here = apart(settings, layouts)[:, None]
    return _apart(model, workload, settings, layouts, stages, tables, local, here, plain) if here.any() else plain


def gathered_inputs(settings: Settings, tables: Tables) -> dict[str, Array | float]:
    """Return what the bytes that are held unsharded follow from."""
    return {
        "block_elements": tables.look(tables.unit_elements), "table_elements": tables.row(tables.bytes.table_gradient) / GRADIENT_BYTES,
        "weight_bytes": GRADIENT_BYTES, "gradient_bytes": GRADIENT_BYTES, "reduce_bytes": settings.reduce_bytes,
    }  # fmt: skip


def apart(settings: Settings, layouts: Layouts) -> NDArray[np.bool_]:
    """Return where FSDP2 shards each block again after its forward pass; over a pipeline torchtitan leaves it gathered, and the
    stage still names the logits (torch.distributed.pipelining stage.py, fwd_cache)."""
    if settings.framework != "torchtitan" or settings.reshard_after_forward is False:
        return np.zeros(len(layouts), dtype=bool)
    return np.asarray((layouts.zero >= 3) & (layouts.pp == 1))


def _apart(
    model: ModelSpec, workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, tables: Tables,
    local: LocalParameters, here: NDArray[np.bool_], plain: Gathered,
) -> Gathered:  # fmt: skip
    """Return FSDP2's moments where blocks are sharded again after their forward pass: W = 2 P bytes of weights, R the reduction's
    input.

    Loss: the output layer's W. Its backward: its gradients and R, which are larger than its W and its all-gather output, beside
    the last block's all-gather output. A block's: its W, its gradients, the next block's all-gather output, and the R of what
    came before it. The embedding's: its W, its gradients and the first block's R, or its own R instead of the first two.
    """
    trains = local.adapters is None  # frozen blocks have no gradients, and those of adapters are small
    grad, reduce = (GRADIENT_BYTES, settings.reduce_bytes) if trains else (0.0, 0.0)
    unit, table = tables.look(tables.unit_elements), tables.row(tables.bytes.table_gradient) / GRADIENT_BYTES
    head = table * stages.head
    block = GRADIENT_BYTES * unit
    reduction = reduce * np.maximum(unit, head)
    backward = buffers.unsharded_backward(unit, weight_copies=2, gradient_bytes=grad, reduce_bytes=0) + reduction
    output = block + np.maximum(2.0 * GRADIENT_BYTES, grad + reduce) * head
    embedding = np.maximum(GRADIENT_BYTES * table + reduce * unit, reduce * table)
    of_dense, of_expert = shards_of(layouts)
    mine = local.trained
    made = settings.sharded_gradient_bytes * (mine.dense / of_dense + mine.expert / of_expert)
    once = (layouts.micro_batches(workload.global_batch) == 1)[:, None] & trains
    tied = GRADIENT_BYTES * table * (stages.head | stages.embedding)
    both = tied if model.tied_embeddings else GRADIENT_BYTES * table * (1.0 * stages.head + stages.embedding)
    copied_in = np.maximum(block, tied) / of_dense
    moments = Apart(
        here,
        loss=GRADIENT_BYTES * head,
        output=output,
        absent=np.where(here & once, made, 0.0),
        ahead=block,
        pool=both + block + copied_in,
        tables=both,
        reduction=reduce * head,
    )
    return Gathered(
        np.where(here, 0.0, plain.always),
        plain.forward,
        np.where(here, backward, plain.backward),
        np.where(here, embedding, plain.embedding),
        moments,
    )


def _sharded(
    settings: Settings, unit: Array, piped: NDArray[np.bool_], local: LocalParameters, shards: Array, root: Array
) -> tuple[Array, Array, Array]:
    """Return what stays, and what a forward and a backward pass hold, for layouts at ZeRO stage 3: `unit` the largest block,
    `local` the stage's parameters."""
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
    # Without resharding the whole stage stays gathered; over a pipeline its gradients wait, unreduced, for the last
    # micro-batch (torchtitan distributed/fsdp.py; torch.distributed.pipelining schedules.py, REDUCE_GRAD).
    stays = ~settings.reshards(np.where(piped, 2, 1))
    whole = 2.0 * mine + np.where(piped, settings.reduce_bytes * trained, 0.0)
    return (
        np.where(stays, whole, root),
        np.where(stays, 0.0, ahead),
        np.where(stays, reduce * unit, behind),
    )
