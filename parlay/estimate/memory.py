"""Memory of one rank on every pipeline stage of every layout: what is allocated at the peak, reserved, and used in all.

Three meanings are kept apart. Allocated is what tensors hold at the peak (torch.cuda.max_memory_allocated). Reserved adds
what the caching allocator keeps beyond it. Total adds what lies outside the allocator: communication buffers and the
device context, the figure nvidia-smi shows. A layout fits where the total is within the device's allocatable memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate import memory_tables
from parlay.estimate.frameworks import Settings, resolve
from parlay.estimate.kept import Kept
from parlay.estimate.memory_buffers import caches, gathered_at_once, left_inputs, outside
from parlay.estimate.memory_events import EVENTS, checkpointed_share, kept_by_stage, peak
from parlay.estimate.memory_gathered import OF_GATHERED, apart, gathered, gathered_inputs
from parlay.estimate.memory_layers import INPUT
from parlay.estimate.memory_static import Static, static_state
from parlay.estimate.memory_tables import Tables
from parlay.estimate.optimizer import muon_assumption
from parlay.estimate.pipes import Owned, Pipes, codes
from parlay.estimate.shard import distinct
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, spread, total
from parlay.formulas import buffers
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]

RESERVE_SHARE = 0.038  # reserved over allocated less one: median of 344 measured ranks (formulas.buffers.allocator_reserve)
# The same beyond what FSDP2's pools are known to keep (memory_events): median of torchtitan's 12 measured runs without a pipeline
POOLS_SHARE = 0.018
DETAILED = 1024  # up to this many layouts the tree names every kept tensor


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Bytes of distinct rows, (rows, stages), with each layout's row and the first layout of each row."""

    values: dict[str, NDArray[Any]]
    first: NDArray[np.int64]
    row_of: NDArray[np.int64]

    def by_layout(self, name: str) -> NDArray[Any]:
        """Return values by (layout, stage)."""
        return self.values[name][self.row_of]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes by (layout, stage); stages that do not exist hold 0."""

    explain: Callable[[], Term]  # makes the tree
    total: Array
    state: _Rows
    moment: _Rows
    exists: NDArray[np.bool_]
    limit_bytes: float
    assumptions: tuple[str, ...]
    events: tuple[str, ...] = EVENTS

    @cached_property
    def tree(self) -> Term:
        """The device total with its parts, made when it is first asked for."""
        return self.explain()

    @property
    def static(self) -> Array:
        """Weights, gradients and optimizer state."""
        return self._real(self.state.by_layout("held"))

    @property
    def allocated(self) -> Array:
        """What tensors hold at the peak."""
        return self._real(self.state.by_layout("held") + self.moment.by_layout("held"))

    @property
    def reserved(self) -> Array:
        """What the allocator holds at the peak."""
        state = buffers.allocator_reserve(self.state.by_layout("held"), share=self.moment.by_layout("share"))
        beside = np.maximum(self.moment.by_layout("reserve") + state, self.moment.by_layout("block"))
        return np.asarray(self.allocated + self._real(beside))

    @property
    def after_step(self) -> Array:
        """What is still allocated between two steps."""
        return self._real(self.state.by_layout("left") + self.moment.by_layout("left"))

    @property
    def event(self) -> NDArray[np.int64]:
        """Which moment is the peak, see events."""
        return self.moment.by_layout("event")

    def _real(self, value: Array) -> Array:
        return np.where(self.exists, value, 0.0)

    @cached_property
    def peak(self) -> Array:
        """Device total of the fullest stage of each layout."""
        return np.asarray(self.total.max(axis=1))

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Where the fullest stage stays within what an allocator can reach."""
        return np.asarray(self.peak <= self.limit_bytes)


def memory(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages, *, settings: Settings | None = None,
    pipes: Pipes | None = None,
) -> Memory:  # fmt: skip
    """Return the memory of every stage of every layout; `settings` replaces what `workload` resolves to.

    `pipes` are those of the layouts, worked out here unless they are given.

    Known to be missing, each seen in measurements (tests/estimate/test_memory*.py): four further tensors of hidden x tokens
    that some pipelines of Megatron keep after a step, cause unknown; buffers of the HybridEP dispatcher; stores
    that CUDA graphs keep apart; and a router's real imbalance beyond the workload's `moe_imbalance`.
    """
    settings = settings or resolve(workload, cluster.device)
    pipes = pipes or Pipes.of(model, cluster, workload, layouts, stages)
    tables = memory_tables.build(model, workload, settings, pipes.shard, pipes.stages)
    owned = Owned.of(layouts, stages, pipes)
    of_rows = tables.take(pipes.row_of[owned.rows])
    state = _STATES.of_columns(
        (model, workload, settings), owned.columns,
        lambda: static_state(model, settings, owned.layouts, owned.stages, of_rows, owned.local), stages.listed,
    )  # fmt: skip

    rows, moment_of = distinct(_moment_columns(settings, layouts, pipes))
    few, here, at = layouts.take(rows), stages.take(rows), pipes.row_of[rows]
    tables, local = tables.take(at), pipes.local(at)
    share = checkpointed_share(few, here)
    kept, by_kind = kept_by_stage(model, here, tables, share)
    held_by = gathered(model, workload, settings, few, here, tables, local)
    cached = caches(model, workload, settings, few, here, tables)
    unsharded = Term(
        "memory.gathered", "weights and buckets kept gathered", held_by.always, formula="buffers.bucket_bytes", source="default",
         inputs={"parameters": local.trained.total, **gathered_inputs(settings, tables)}, note=OF_GATHERED,
     )  # fmt: skip
    behind, block = gathered_at_once(settings, few, here, tables, local)
    top = peak(model, workload, settings, few, here, tables, kept, state.step[owned.row_of[rows]] + behind, held_by)
    beyond = outside(model, cluster, workload, few, tables)
    stays = cached.value + held_by.always
    held, left = stays + top.held, stays + left_inputs(settings, few, here, tables)
    fixed = state.term.value * np.ones(here.share.shape[1])
    pooled = apart(settings, few)[:, None]
    each = np.where(pooled, POOLS_SHARE, RESERVE_SHARE)
    filled = np.where(pooled, np.maximum(stays + top.pooled, held), held)
    reserve = filled - held + buffers.allocator_reserve(filled, share=each)
    everything = fixed[owned.row_of] * (1.0 + each[moment_of]) + (held + reserve + beyond.value)[moment_of]
    block = block * np.ones(held.shape)

    def beside() -> Array:
        """Return what the allocator holds beyond what is allocated: the usual, or at least a block that nothing else serves."""
        usual = reserve[moment_of] + buffers.allocator_reserve(fixed[owned.row_of], share=each[moment_of])
        return np.asarray(np.maximum(usual, block[moment_of]))

    if block.any():
        everything = fixed[owned.row_of] + (held + beyond.value)[moment_of] + beside()
    total_bytes = everything if stages.everywhere else np.where(stages.exists, everything, 0.0)

    def explain() -> Term:
        detailed = len(layouts) <= DETAILED
        at_peak, temporaries = top.explain()
        activations = _activations(at_peak, kept, by_kind, here, tables, share, detailed=detailed)
        parts = (spread(x, rows, moment_of) for x in (cached, unsharded, activations, temporaries))
        allocated = total("memory.allocated", "allocated at the peak", (spread(state.term, owned.rows, owned.row_of), *parts))
        inputs: dict[str, Any] = {"allocated": (filled + 0.0)[moment_of] + fixed[owned.row_of], "share": each[moment_of],
                                  "pools_bytes": (filled - held)[moment_of]}  # fmt: skip
        note = "of what is allocated, and what the pools of streams keep beyond it"
        if block.any():
            inputs["block_bytes"], note = block[moment_of], f"{note}; at least a block that nothing freed can serve"
        free = Term("memory.reserve", "allocator's reserve", beside(), formula="buffers.allocator_reserve", source="assumed",
                    inputs=inputs, note=note)  # fmt: skip
        tree = total("memory", "device memory", (allocated, free, spread(beyond, rows, moment_of)))
        return dataclasses.replace(tree, value=total_bytes)

    return Memory(
        explain=explain,
        total=total_bytes,
        state=_Rows({"held": fixed, "left": fixed + state.left}, owned.rows, owned.row_of),
        moment=_Rows(
            {"held": held, "left": left, "event": top.event, "reserve": reserve, "share": each, "block": block}, rows, moment_of
        ),
        exists=stages.exists,
        limit_bytes=float(cluster.device.memory.allocatable.value),
        assumptions=_assumptions(settings, workload, model, pooled),
    )


_STATES: Kept[Static] = Kept()


def _moment_columns(settings: Settings, layouts: Layouts, pipes: Pipes) -> list[NDArray[np.int64]]:
    """Return what the moments of a step depend on: the pipe, and of ZeRO what it gathers or what the optimizer's step holds."""
    sharded = layouts.zero >= 3
    columns = [pipes.row_of, sharded.astype(np.int64), np.where(sharded, layouts.shard, 0)]
    if settings.step_bytes or settings.scaled_bytes or settings.framework == "deepspeed":
        columns += [layouts.zero, layouts.shard, codes(layouts.offload_optimizer)]
    elif settings.framework == "nanotron":
        columns += [layouts.zero, layouts.shard]
    elif settings.sharded_step_bytes:
        columns.append(np.where(sharded, codes(layouts.offload_optimizer), 0))
    return columns


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
            inputs = {"module_bytes": value / np.maximum(stages.kept_mtp, 1.0), "modules_in_flight": stages.kept_mtp * times}
            note = "module_bytes x modules_in_flight: a layer's kept tensors, and those of the projection before it"
            parts.append(
                Term(key, f"{kind} modules", value * times, formula="activations.token_tensors", inputs=inputs, note=note)
            )
            continue
        count = stages.kept_layers[kind] * times
        tensors = tuple(
            Term(
                f"{key}.{i}",
                t.label,
                count
                * tables.row(t.value)
                * np.where(t.label == INPUT, 1.0, (1.0 - whole) * tables.row(keep.astype(np.float64))),
                formula=t.formula,
                inputs={k: tables.by_layout(v) for k, v in t.inputs.items()} | {"layers_in_flight": count},
                note="of one layer and micro-batch, times the layers and micro-batches in flight",
            )
            for i, (t, keep) in enumerate(tables.layers[kind].tensors)
            if keep.any()
        )
        parts.append(Term(key, f"{kind} layers", value * times, parts=tensors))
    return Term("memory.activations", label, held, parts=tuple(parts))


def _assumptions(settings: Settings, workload: Workload, model: ModelSpec, pooled: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return what the figures rest on beyond the frameworks' defaults."""
    said = list(settings.assumptions)
    if settings.optimizer == "muon":
        said.append(muon_assumption(settings))
    if not pooled.all():
        said.append(
            f"the allocator reserves {RESERVE_SHARE:.1%} beyond the peak (median of measured ranks; 0.7 % to 9.3 % occur)"
        )
    if pooled.any():
        said.append(f"FSDP2's streams reserve in pools of their own, and {POOLS_SHARE:.1%} beyond (median of torchtitan's runs)")
    said.append("communication buffers and device context are typical sizes, not measured here")
    if any(k.mlp.kind == "moe" for k in model.kinds.values()):
        how = f"capacity factor {workload.moe_capacity_factor:g}, padded" if workload.moe_capacity_factor else "dropless"
        dispatcher = {"alltoall": "all-to-all", "allgather": "all-gather", "deepep": "DeepEP", "hybridep": "HybridEP"}
        said.append(
            f"experts: {dispatcher[workload.dispatcher]} dispatcher, {how}, the busiest rank takes {workload.moe_imbalance:g} x the mean rows"
        )
    if settings.kernels != "transformer-engine":
        said.append(
            f"kept tensors as {settings.kernels} PyTorch modules keep them (read from source, less exact than for Megatron)"
        )
    return tuple(said)
