"""The time of one step: stage by stage, through the pipeline, and the gradient exchange and optimizer at its end.

step = m x (slowest stage's forward + backward) + bubble + exposed data-parallel traffic + optimizer

What compute and a transfer that run at once lose to each other, where a calibration has measured it, is in the stage's
times and in the data-parallel traffic, and shows as one term.

The slowest stage and the bubble come from closed forms (parlay.formulas.pipeline); parlay.schedules times the same
stages exactly for the layouts that are shown.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.bubble import bubble_seconds
from parlay.estimate.costs import AXES, GROUPS, Cost, embedding_cost, head_cost, layer_costs
from parlay.estimate.dataparallel import DataParallel, data_parallel
from parlay.estimate.local import LocalParameters, padded_vocabulary
from parlay.estimate.offload import Copies, activation_copies
from parlay.estimate.operators import ELEMENT, Pricer
from parlay.estimate.placement import axis_strides
from parlay.estimate.shard import Shard
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, total, weakest
from parlay.estimate.traits import traits_of
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Beside, Group, Rates

Array = NDArray[np.float64]

AXIS_LABEL = {"tp": "tensor parallel", "cp": "context parallel", "ep": "expert parallel"}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step for each layout, and what they are made of."""

    step: Array  # (layouts,)
    forward: Array  # (layouts, stages) per micro-batch
    backward: Array
    sends: Array  # exposed pipeline transfers per micro-batch
    slowest: NDArray[np.int64]  # (layouts,) column of the slowest stage
    micro_batches: Array
    bubble: Array
    data: DataParallel
    shard: Shard
    blocks: dict[str, Cost]
    weights: dict[str, Array]  # block name -> how many of it each stage runs, (layouts, stages)
    rerun: Array  # (layouts,) share of the slowest stage's layers that recompute
    rerun_by_stage: Array  # (layouts, stages)
    host: Copies  # of activations to and from the host
    hops: Array  # (layouts,) transfers of fill and drain where the others run beside compute
    send_source: str
    lost_sends: Array  # of `sends`, what transfers and the compute beside them lose to each other
    beside: Beside | None

    def tree(self) -> Term:
        """Return the step as a tree of terms, one value a layout: the slowest stage's work, then what it waits for."""
        rows = np.arange(len(self.step))
        m = self.micro_batches

        def spent(pick: str, key: str) -> Array:
            value = np.zeros_like(self.step)
            for name, cost in self.blocks.items():
                table = getattr(cost, pick)
                per_block = table[key] if isinstance(table, dict) else table
                share = self.rerun if pick == "recompute" and name.startswith("layer:") else 1.0
                value = value + share * self.weights[name][rows, self.slowest] * per_block[self.shard.row_of]
            return value * m

        compute = []
        for group in GROUPS:
            source = weakest(c.sources.get(group, "exact") for c in self.blocks.values())
            label = group
            value = spent("forward", group) + spent("backward", group)
            compute.append(Term(f"step.compute.{_slug(group)}", label, value, "s", source=source))
        recompute = Term(
            "step.recompute", "recomputed forward", spent("recompute", ""), "s", source=weakest(t.source for t in compute)
        )
        exposed = []
        for axis in AXES:
            source = weakest(c.sources.get(axis, "exact") for c in self.blocks.values())
            value = spent("exposed_forward", axis) + spent("exposed_backward", axis)
            exposed.append(
                Term(f"step.exposed.{axis}", AXIS_LABEL[axis], value, "s", "collective_times.transfer_s", source=source)
            )
        lost_sends = self.lost_sends[rows, self.slowest]
        sends = (self.sends[rows, self.slowest] - lost_sends) * m
        exposed.append(
            Term("step.exposed.pp", "pipeline sends", sends, "s", "collective_times.transfer_s", source=self.send_source)
        )
        copies = (self.host.forward + self.host.backward)[rows, self.slowest] * m
        exposed.append(Term("step.exposed.host", "activations to and from the host", copies, "s", source=self.host.source))
        exposed += list(self.data.terms)
        if self.beside is not None:
            lost = spent("lost_forward", "") + spent("lost_backward", "") + lost_sends * m + self.data.lost
            factors = {"slow_compute": self.beside.compute, "slow_transfer": self.beside.transfer}
            exposed.append(
                Term(
                    "step.exposed.overlap", "lost to overlap", lost, "s", "contention.overlapped_s", source=self.beside.source,
                    inputs=factors,
                )
            )  # fmt: skip
        parts = (
            total("step.compute", "compute", tuple(compute), unit="s"),
            recompute,
            total("step.exposed", "exposed communication", tuple(exposed), unit="s"),
            Term("step.bubble", "pipeline bubble", self.bubble, "s", source="exact"),
            self.data.optimizer,
        )
        return total("step", "step", parts, unit="s")

    def hidden(self) -> Term:
        """Return the transfers that run beside compute, for the slowest stage, as a tree of seconds."""
        rows = np.arange(len(self.step))
        parts = []
        for axis in AXES:
            value = np.zeros_like(self.step)
            for name, cost in self.blocks.items():
                value = value + self.weights[name][rows, self.slowest] * cost.hidden[axis][self.shard.row_of]
            parts.append(Term(f"hidden.{axis}", AXIS_LABEL[axis], value * self.micro_batches, "s"))
        value = self.host.hidden[rows, self.slowest] * self.micro_batches
        parts.append(Term("hidden.host", "activations to and from the host", value, "s"))
        parts.append(Term("hidden.dp", "data parallel", self.data.hidden, "s"))
        return total("hidden", "hidden communication", tuple(parts), unit="s")


def step_time(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    stages: Stages,
    rates: Rates,
    local: LocalParameters,
) -> StepTime:
    """Return the time of one step of every layout. Arrays are (layouts,) or (layouts, stages)."""
    shard = Shard.of(layouts, workload, cluster)
    pricer = Pricer(rates, workload, shard, model, traits_of(workload, cluster.device))
    vocab = padded_vocabulary(model.vocab, shard.tp, workload) / shard.tp
    blocks: dict[str, Cost] = {f"layer:{k}": c for k, c in layer_costs(pricer).items()}
    blocks["embedding"], blocks["head"] = embedding_cost(pricer), head_cost(pricer, vocab)
    weights: dict[str, Array] = {f"layer:{k}": n * stages.share for k, n in stages.layers.items()}
    weights["embedding"] = stages.embedding * stages.share
    weights["head"] = (stages.head + stages.mtp) * stages.share
    if model.mtp_layers and model.mtp_kind:
        name = f"layer:{model.mtp_kind}"
        weights[name] = weights[name] + stages.mtp * stages.share
    rerun = _recomputed_share(layouts, stages)
    forward = np.zeros_like(stages.share)
    backward, weight_grad = np.zeros_like(forward), np.zeros_like(forward)
    for name, cost in blocks.items():
        n = weights[name]
        forward = forward + n * cost.forward_s[shard.row_of][:, None]
        kept = (1.0 - rerun) * cost.recompute[shard.row_of][:, None] if name.startswith("layer:") else 0.0
        backward = backward + n * (cost.backward_s[shard.row_of][:, None] - kept)
        weight_grad = weight_grad + n * cost.weight[shard.row_of][:, None]
    host = activation_copies(model, cluster, workload, layouts, stages, rates, forward, backward)
    forward, backward = forward + host.forward, backward + host.backward
    send, lost_sends, hops, send_source = _sends(pricer, layouts, forward, backward)
    busy = np.where(stages.exists, forward + backward + send, 0.0)
    slowest = np.argmax(busy, axis=1)
    m = layouts.micro_batches(workload.global_batch).astype(np.float64)
    rows = np.arange(len(layouts))
    bubble = bubble_seconds(layouts, stages, forward, backward, weight_grad, send) + hops
    data = data_parallel(model, cluster, workload, layouts, stages, rates, local, forward, backward, m)
    step = m * busy[rows, slowest] + bubble + data.exposed + data.lost + data.optimizer.value
    return StepTime(
        step, forward, backward, send, slowest, m, bubble, data, shard, blocks, weights, rerun[rows, slowest], rerun * np.ones_like(stages.share), host, hops, send_source,
        lost_sends, rates.beside(),
    )  # fmt: skip


def _recomputed_share(layouts: Layouts, stages: Stages) -> Array:
    """Return the share of a stage's layers that recompute: all, or with full on N layers N of each chunk's."""
    count = layouts.recompute_layers[:, None]
    share = np.minimum(count, stages.chunk_layers) / np.maximum(stages.chunk_layers, 1.0)
    return np.asarray(np.where(count > 0, share, 1.0))


def _sends(p: Pricer, layouts: Layouts, forward: Array, backward: Array) -> tuple[Array, Array, Array, str]:
    """Return the seconds that pipeline transfers add per micro-batch (by stage), what of it is lost to overlap, those of fill
    and drain, and their source.

    Plain 1F1B sends and receives in one fused call in front of each forward and backward, exposed (Megatron forces
    overlap_p2p_comm off without virtual stages: training/arguments.py). Interleaved and bidirectional schedules
    transfer beside the next chunk's compute, once a chunk, so what shows is what a chunk is too short to hide, and the
    hops of the fill and the drain.
    """
    shard, row_of = p.shard, p.shard.row_of
    # Without sequence parallelism each tensor-parallel rank still sends only its part, and the receivers gather the parts
    # over the scale-up link (Megatron's scatter-gather optimisation, arXiv:2104.04473, section 4.1).
    whole = ELEMENT * (shard.tokens * p.model.hidden)[row_of]
    sent = p.rates.collective("send_recv", whole / shard.tp[row_of], Group.of(2.0, axis_strides(layouts)["pp"], shard.domain))
    parts = shard.tp_group
    gathered = p.rates.collective("all_gather", whole, Group(parts.size[row_of], parts.local[row_of]))
    each_way = sent.seconds + np.where(shard.sp[row_of] | (shard.tp[row_of] == 1), 0.0, gathered.seconds)
    on = layouts.pp > 1
    overlapped = (layouts.vpp > 1) | (layouts.schedule == SCHEDULES.index("dualpipe"))
    if p.workload.overlap_p2p is not None:
        overlapped = np.full(len(layouts), p.workload.overlap_p2p)
    v, each = layouts.vpp[:, None], each_way[:, None]
    beside = np.maximum(0.0, v * each - forward) + np.maximum(0.0, v * each - backward)
    lost = np.where((on & overlapped)[:, None], p.lost_s(v * each, forward) + p.lost_s(v * each, backward), 0.0)
    exposed = np.where(on[:, None], np.where(overlapped[:, None], beside, 2.0 * v * each), 0.0)
    hops = np.where(on & overlapped, 2.0 * (layouts.pp - 1) * each_way, 0.0)
    return exposed + lost, lost, hops, sent.source


def _slug(text: str) -> str:
    return text.replace(" and ", "_").replace(" ", "_")
