"""Bytes that follow from a Shard's row alone, layers left out: the residual stream, the output layer, buffers beside both."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings, resolve
from parlay.estimate.shard import Shard
from parlay.formulas import activations as act
from parlay.formulas import logits
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, LatentAttention, ModelSpec

Array = NDArray[np.float64]

USERBUFFERS = 9.0  # one for each overlapped product: 8 to 10 (TransformerEngine module/base.py:340-420)
TE_OVERLAP_STREAMS = 3.0  # a workspace of its own, of three, for products that overlap (TransformerEngine cpp_extensions/gemm.py)
ROTARY_BYTES = 4.0  # fp32 table


@dataclasses.dataclass(frozen=True)
class RowBytes:
    """Bytes by row of a Shard."""

    stream: Array  # one tensor of the residual stream on the rank
    gathered: Array  # the same of all tensor-parallel ranks, where a product gathers it
    rotary: Array | None  # None without a rotary embedding
    rotary_width: int  # of the table
    userbuffers: Array
    overlap_streams: Array  # further workspaces, a number
    table_gradient: Array  # of the token table in bf16
    mtp: Array  # of a multi-token-prediction module: the embedding norm's input, the concatenation, its final norm
    logits_kept: Array  # a micro-batch's logits between its forward and its backward pass
    logits_forward: Array  # and at the peak of either
    logits_backward: Array
    logits_output: Array  # the output itself, where the loop lets it go before the backward pass
    before_head: Array  # final norm and what the output layer gathers
    head_gradient: Array  # of the output layer's input


def row_bytes(model: ModelSpec, settings: Settings, shard: Shard, vocab: Array) -> RowBytes:
    """Return the bytes of every row; `vocab` is padded."""
    s, hidden, loss = shard, model.hidden, settings.loss
    sp = s.sp.astype(np.float64)
    overlapped = s.tp_overlap & (s.tp > 1)
    whole = np.asarray(act.token_tensors(s.tokens, hidden))
    rotary = _rotary_dim(model)
    # a norm of plain operations keeps three tensors more, as in memory_eager
    tensors = 5.0 if settings.kernels == "eager" else 2.0
    final = act.token_tensors(s.tokens, hidden, tensors=tensors, tensor=s.tp, sequence_parallel=sp)
    statistics = act.token_tensors(s.tokens, 1, tensor=s.tp, sequence_parallel=sp, element_bytes=4)
    part = act.token_tensors(s.tokens, hidden, tensor=s.tp, sequence_parallel=sp)

    def held(bytes_per_logit: float) -> Array:
        return np.asarray(logits.logits_held(s.tokens, vocab, bytes_per_logit, tensor=s.tp, chunks=loss.chunks))

    return RowBytes(
        stream=np.asarray(act.token_tensors(s.local_tokens, hidden)),
        gathered=np.where(s.sp & (s.tp > 1), whole, 0.0),
        rotary=np.asarray(act.token_tensors(s.seq_len / s.cp, rotary, element_bytes=ROTARY_BYTES)) if rotary else None,
        rotary_width=rotary,
        userbuffers=np.where(overlapped, np.asarray(act.token_tensors(s.tokens, hidden, tensors=USERBUFFERS)), 0.0),
        overlap_streams=np.where(overlapped, TE_OVERLAP_STREAMS, 0.0),
        table_gradient=2.0 * (vocab / s.tp) * hidden,
        mtp=np.asarray(act.token_tensors(s.tokens, hidden, tensors=5, tensor=s.tp, sequence_parallel=sp)),
        logits_kept=held(loss.kept),
        logits_forward=held(loss.forward),
        logits_backward=held(loss.backward),
        logits_output=held(loss.output),
        before_head=np.asarray(final + statistics + whole - part if settings.keeps_gathered else final + statistics),
        head_gradient=np.asarray(logits.output_layer_gradient(s.tokens, hidden, tensor=s.tp, sequence_parallel=sp)),
    )


def _rotary_dim(model: ModelSpec) -> int:
    """Return the head size the rotary table is made for (0 without rotary embedding)."""
    sizes = [0]
    for kind in model.kinds.values():
        if isinstance(kind.mixer, GroupedAttention) and kind.mixer.rope and not model.position_embeddings:
            sizes.append(kind.mixer.head_dim)
        elif isinstance(kind.mixer, LatentAttention):
            sizes.append(kind.mixer.rope_dim)
    return max(sizes)


def overlap_bytes(model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts) -> Array:
    """Return the most that layouts hold for tensor-parallel traffic beside compute: userbuffers, and workspaces with what the
    allocator reserves beside them. [B]
    """
    tokens = layouts.micro_batch * (workload.seq_len / layouts.cp)
    buffers = np.asarray(act.token_tensors(tokens, model.hidden, tensors=USERBUFFERS))
    workspaces = TE_OVERLAP_STREAMS * resolve(workload, cluster.device).te_workspace_bytes
    return np.asarray(np.where(layouts.tp_overlap & (layouts.tp > 1), buffers + 2.0 * workspaces, 0.0))
