"""The gradient of an embedding table that two pipeline stages hold: summed between them at the end of a step, beside nothing.

A tied table stands on the first stage and, as the output layer, on the last; multi-token prediction reads a copy of the
embedding on the last stage too. Megatron-core sums the whole main gradient of both after the data-parallel reduction
(core/distributed/finalize_model_grads.py, _allreduce_word_embedding_grads), DeepSpeed the gradients of its tied layers
(runtime/pipe/module.py, allreduce_tied_weight_gradients), nanotron those of tied parameters (parallel/tied_parameters.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.local import padded_vocabulary
from parlay.estimate.placement import axis_strides, domains
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term
from parlay.estimate.wires import Wires
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Group, Rates

Array = NDArray[np.float64]

SUMMED_BY = ("megatron-core", "deepspeed", "nanotron")  # DeepSeek keeps both on one rank (DualPipe), torchtitan ties nothing
ENDS = 2.0  # ranks that sum: the first and the last stage's


def tied_gradient(
    model: ModelSpec, cluster: Cluster, workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, rates: Rates
) -> Term | None:
    """Return the seconds that summing the gradients of a shared embedding table takes, or None where no table is shared."""
    shared = model.tied_embeddings or model.mtp_layers > 0
    if not shared or settings.frozen_bytes is not None or workload.framework not in SUMMED_BY:
        return None
    second = stages.head if model.tied_embeddings else stages.mtp > 0
    apart = (layouts.pp > 1) & ~(stages.embedding & second).any(axis=1)
    pipeline = axis_strides(layouts)["pp"] * layouts.pp  # GPUs that one pipeline spans
    together = np.where(domains(cluster, layouts) % pipeline == 0, ENDS, 1.0)
    # Megatron-FSDP sums shards of it (finalize_model_grads.py, _local_tensor).
    fully = (layouts.zero >= 2) & (workload.framework == "megatron-core")
    each = np.where(
        fully, settings.sharded_gradient_bytes / np.minimum(layouts.shard, layouts.dp * layouts.cp), settings.gradient_bytes
    )
    nbytes = each * padded_vocabulary(model.vocab, layouts.tp, workload) * model.hidden / layouts.tp
    summed = rates.collective("all_reduce", nbytes, Group(np.full_like(together, ENDS), together))
    told = {
        "table_bytes": nbytes,
        **Wires.of(cluster, rates).told("all_reduce", nbytes, Group(np.full_like(together, ENDS), together)),
    }
    return Term(
        "step.exposed.tied", "embedding's gradient", np.where(apart, summed.seconds, 0.0), "s", "collective_times.transfer_s",
        told, summed.source, note="where the first and the last stage both hold the table, each sums both gradients",
    )  # fmt: skip
