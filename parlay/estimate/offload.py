"""Kept activations that wait on the host: how many bytes, and what the copies over the host link show of themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate import memory_tables
from parlay.estimate.adapters import trained_adapters
from parlay.estimate.counts import parameters
from parlay.estimate.frameworks import resolve
from parlay.estimate.memory_events import checkpointed_share, in_flight_of, kept_by_stage, on_host
from parlay.estimate.pipes import Pipes
from parlay.estimate.stages import Stages, stages_of
from parlay.estimate.terms import weakest
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Copies:
    """Seconds per micro-batch of the copies of each stage, (pipes or layouts, stages): exposed in both passes, and hidden."""

    forward: Array
    backward: Array
    hidden: Array
    source: str
    moved: Array  # bytes each way
    down: Array  # seconds of the copies alone, to the host and back
    up: Array
    passes: tuple[Array, Array]  # seconds of the forward and the backward that they run beside

    def take(self, rows: NDArray[np.int64]) -> Copies:
        """Return the copies of some rows."""
        return Copies(
            self.forward[rows], self.backward[rows], self.hidden[rows], self.source, self.moved[rows], self.down[rows],
            self.up[rows], (self.passes[0][rows], self.passes[1][rows]),
        )  # fmt: skip


def hosted_activations(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages, *, pipes: Pipes | None = None
) -> tuple[Array, Array]:
    """Return the bytes of kept activations that a GPU of each stage has on its host, and those it copies a micro-batch.

    Both have shape (layouts, stages). Two layers' worth never leaves, because it is needed at once (memory_events).
    `pipes` are those of the layouts, worked out here unless they are given.
    """
    pipes = pipes or Pipes.of(model, cluster, workload, layouts, stages)
    held, moved = _by_pipe(model, cluster, workload, pipes)
    return held[pipes.row_of], moved[pipes.row_of]


def _by_pipe(model: ModelSpec, cluster: Cluster, workload: Workload, pipes: Pipes) -> tuple[Array, Array]:
    layouts, stages = pipes.layouts, pipes.stages
    tables = memory_tables.build(model, workload, resolve(workload, cluster.device), pipes.shard, stages)
    each, _ = kept_by_stage(model, stages, tables, checkpointed_share(layouts, stages))
    held = on_host(each * in_flight_of(workload, layouts, stages), each, layouts, stages)
    moved = on_host(each, each, layouts, stages)
    return np.broadcast_to(held, each.shape), np.broadcast_to(moved, each.shape)


def activation_copies(
    model: ModelSpec, cluster: Cluster, workload: Workload, pipes: Pipes, rates: Rates, forward: Array, backward: Array
) -> Copies:
    """Return what the copies of a micro-batch add to its forward and backward pass, by pipe.

    A layer's tensors go down while the layers after it compute, and come back before their backward while the layers
    after it go backward, on streams of their own (Megatron-LM, fine_grained_activation_offload.py): what a pass is too
    short to hide shows. `forward` and `backward` are the seconds of the passes.
    """
    nothing = np.zeros_like(forward)
    if not pipes.layouts.offload_activations.any():
        return Copies(nothing, nothing, nothing, "exact", nothing, nothing, nothing, (forward, backward))
    _, moved = _by_pipe(model, cluster, workload, pipes)
    down, up = rates.host_copy(moved, "to_host"), rates.host_copy(moved, "to_device")
    seconds = [np.where(moved > 0, copy.seconds, 0.0) for copy in (down, up)]
    exposed = np.maximum(0.0, seconds[0] - forward), np.maximum(0.0, seconds[1] - backward)
    hidden, source = seconds[0] + seconds[1] - exposed[0] - exposed[1], weakest([down.source, up.source])
    return Copies(*exposed, hidden, source, moved, seconds[0], seconds[1], (forward, backward))


def host_has_room(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages | None = None, *,
    pipes: Pipes | None = None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return where the hosts' memory holds what is offloaded, shape (layouts,); one whose size is not known has room for all."""
    if cluster.host_memory_bytes is None:
        return np.ones(len(layouts), dtype=bool)
    needed = host_bytes(model, cluster, workload, layouts, stages, pipes=pipes)
    return np.asarray(needed <= cluster.host_memory_bytes.value)


def host_bytes(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages | None = None, *,
    pipes: Pipes | None = None,
) -> Array:  # fmt: skip
    """Return the bytes that are offloaded to the fullest host, shape (layouts,). [B]

    Main weights and moments once over all hosts, or on every rank without ZeRO, and the activations of a host whose GPUs
    are all of the fullest stage.
    """
    optimizer, activations = layouts.offload_optimizer.any(), layouts.offload_activations > 0
    if not (optimizer or activations.any()):
        return np.zeros(len(layouts))
    settings = resolve(workload, cluster.device)
    copies = np.where(layouts.zero >= 1, layouts.dp * layouts.cp // layouts.shard, layouts.dp * layouts.cp)
    gpus = int(cluster.gpus_per_node.value)
    nodes = -(-layouts.gpus // gpus)
    adapters = trained_adapters(model, workload)
    trained = parameters(model).total if adapters is None else adapters
    each = trained * (settings.master_bytes + settings.moments_bytes)
    needed = each * copies * layouts.offload_optimizer / nodes
    if activations.any():
        few = layouts.take(activations)
        held = stages_of(model, few, workload.global_batch, every=False) if stages is None else stages.take(activations)
        mine = pipes.take(activations) if pipes else None
        bytes_each, _ = hosted_activations(model, cluster, workload, few, held, pipes=mine)
        needed[activations] += np.where(held.exists, bytes_each, 0.0).max(axis=1) * np.minimum(gpus, few.gpus)
    return np.asarray(needed)
