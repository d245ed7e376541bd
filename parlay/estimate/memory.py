"""Memory of one rank on every pipeline stage of every layout: what is allocated at the peak, reserved, and used in all.

Three meanings are kept apart. Allocated is what tensors hold at the peak (torch.cuda.max_memory_allocated). Reserved adds
what the caching allocator keeps beyond it. Total adds what lies outside the allocator: communication buffers and the
device context, the figure nvidia-smi shows. A layout fits where the total is within the device's allocatable memory.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate import memory_tables
from parlay.estimate.frameworks import Settings, resolve
from parlay.estimate.local import local_parameters
from parlay.estimate.memory_buffers import caches, gathered, left_inputs, outside
from parlay.estimate.memory_events import EVENTS, checkpointed_share, kept_by_stage, peak
from parlay.estimate.memory_layers import INPUT
from parlay.estimate.memory_static import static_state
from parlay.estimate.memory_tables import Tables
from parlay.estimate.shard import Shard
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, total
from parlay.formulas import buffers
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]

RESERVE_SHARE = 0.038  # reserved over allocated less one: median of 344 measured ranks (formulas.buffers.allocator_reserve)
DETAILED = 1024  # up to this many layouts the tree names every kept tensor


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes by (layout, stage); stages that do not exist hold 0."""

    tree: Term  # device total, with its parts
    allocated: Array
    reserved: Array
    total: Array
    static: Array  # weights, gradients and optimizer state
    after_step: Array  # what is still allocated between two steps
    event: NDArray[np.int64]  # which moment is the peak, see events
    limit_bytes: float
    assumptions: tuple[str, ...]
    events: tuple[str, ...] = EVENTS

    @property
    def peak(self) -> Array:
        """Device total of the fullest stage of each layout."""
        return np.asarray(self.total.max(axis=1))

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Where the fullest stage stays within what an allocator can reach."""
        return np.asarray(self.peak <= self.limit_bytes)


def memory(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages, *, settings: Settings | None = None
) -> Memory:
    """Return the memory of every stage of every layout; `settings` replaces what `workload` resolves to.

    Known to be missing, each seen in measurements (tests/estimate/test_memory*.py): four further tensors of hidden x tokens
    that some pipelines of Megatron keep after a step, cause unknown; buffers of the DeepEP and HybridEP dispatchers; stores
    that CUDA graphs keep apart; and a router's real imbalance beyond the workload's `moe_imbalance`.
    """
    settings = settings or resolve(workload, cluster.device)
    shard = Shard.of(layouts, workload, cluster)
    tables = memory_tables.build(model, workload, settings, shard, stages)
    local = local_parameters(model, workload, layouts, stages)
    state = static_state(model, settings, layouts, stages, tables, local)
    share = checkpointed_share(layouts, stages)
    kept, by_kind = kept_by_stage(model, stages, tables, share)
    always, ahead, behind = gathered(settings, layouts, stages, tables, local.dense + local.expert)
    cached = caches(model, workload, settings, layouts, stages, tables)
    unsharded = Term(
        "memory.gathered", "weights and buckets kept gathered", always, formula="buffers.bucket_bytes", source="default"
    )
    top = peak(model, workload, settings, layouts, stages, tables, kept, state.step, ahead, behind)
    activations = _activations(top.activations, kept, by_kind, stages, tables, share, detailed=len(layouts) <= DETAILED)
    allocated = total("memory.allocated", "allocated at the peak", (state.term, cached, unsharded, activations, top.temporaries))
    reserve = Term("memory.reserve", "allocator's reserve", buffers.allocator_reserve(allocated.value, share=RESERVE_SHARE),
                   formula="buffers.allocator_reserve", source="assumed", inputs={"share": RESERVE_SHARE})  # fmt: skip
    beyond = outside(model, cluster, layouts, tables)
    tree = total("memory", "device memory", (allocated, reserve, beyond))

    everywhere = bool(stages.exists.all())

    def real(value: Array) -> Array:
        return value if everywhere else np.where(stages.exists, value, 0.0)

    return Memory(
        tree=dataclasses.replace(tree, value=real(tree.value)),
        allocated=real(allocated.value),
        reserved=real(allocated.value + reserve.value),
        total=real(tree.value),
        static=real(state.term.value),
        after_step=real(state.term.value + cached.value + always + state.left + left_inputs(settings, layouts, stages, tables)),
        event=top.event,
        limit_bytes=float(cluster.device.memory.allocatable.value),
        assumptions=_assumptions(settings, workload, model),
    )


def _activations(
    held: Array, kept: Array, by_kind: dict[str, Array], stages: Stages, tables: Tables, share: Array | None, *, detailed: bool
) -> Term:
    """Return the kept activations at the peak, by layer kind, and by tensor where there are few layouts."""
    label = "activations in flight"
    if not detailed:
        return Term("memory.activations", label, held, formula="activations.token_tensors")
    times = held / np.where(kept > 0, kept, 1.0)  # micro-batches in flight, less what is on the host
    whole = np.zeros((1, 1)) if share is None else share
    parts = []
    for kind, value in by_kind.items():
        key = f"memory.activations.{kind}"
        if kind not in tables.layers:
            parts.append(Term(key, f"{kind} modules", value * times, formula="activations.token_tensors"))
            continue
        count = stages.layers[kind] * times
        tensors = tuple(
            Term(
                f"{key}.{i}",
                t.label,
                count
                * tables.row(t.value)
                * np.where(t.label == INPUT, 1.0, (1.0 - whole) * tables.row(keep.astype(np.float64))),
                formula=t.formula,
                inputs={k: tables.by_layout(v) for k, v in t.inputs.items()},
            )
            for i, (t, keep) in enumerate(tables.layers[kind].tensors)
            if keep.any()
        )
        parts.append(Term(key, f"{kind} layers", value * times, parts=tensors))
    return Term("memory.activations", label, held, parts=tuple(parts))


def _assumptions(settings: Settings, workload: Workload, model: ModelSpec) -> tuple[str, ...]:
    """Return what the figures rest on beyond the frameworks' defaults."""
    said = list(settings.assumptions)
    said.append(f"the allocator reserves {RESERVE_SHARE:.1%} beyond the peak (median of measured ranks; 0.7 % to 9.3 % occur)")
    said.append("communication buffers and device context are typical sizes, not measured here")
    if any(k.mlp.kind == "moe" for k in model.kinds.values()):
        how = f"capacity factor {workload.moe_capacity_factor:g}, padded" if workload.moe_capacity_factor else "dropless"
        said.append(f"experts: all-to-all dispatcher, {how}, the busiest rank takes {workload.moe_imbalance:g} x the mean rows")
    if settings.kernels != "transformer-engine":
        said.append(
            f"kept tensors as {settings.kernels} PyTorch modules keep them (read from source, less exact than for Megatron)"
        )
    return tuple(said)
