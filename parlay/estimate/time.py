"""The time of one step: stage by stage, through the pipeline, and the gradient exchange and optimizer at its end.

step = m x (slowest stage's forward + backward) + bubble + exposed data-parallel traffic + optimizer + host

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
from parlay.estimate.kept import Kept
from parlay.estimate.local import padded_vocabulary
from parlay.estimate.offload import Copies, activation_copies
from parlay.estimate.pipes import Pipes
from parlay.estimate.placement import axis_strides
from parlay.estimate.pricer import ELEMENT, Pricer
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

OF_ONE = "collective_bytes is what one of its transfers carries, collective_seconds what that takes alone"
AXIS_LABEL = {"tp": "tensor parallel", "cp": "context parallel", "ep": "expert parallel"}


@dataclasses.dataclass(frozen=True)
class PipeTime:
    """Seconds of a micro-batch on each stage of each pipe, and what they are made of; arrays of shape (pipes, stages)."""

    forward: Array
    backward: Array
    sends: Array  # what pipeline transfers add
    lost_sends: Array  # of that, what transfers and the compute beside them lose to each other
    host: Copies  # of activations to and from the host
    weights: dict[str, Array]  # block name -> how many of it each stage runs
    rerun: Array  # share of the stage's layers that recompute


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step for each layout, and what they are made of."""

    step: Array  # (layouts,)
    slowest: NDArray[np.int64]  # (layouts,) column of the slowest stage
    micro_batches: Array
    bubble: Array
    rerun: Array  # (layouts,) share of the slowest stage's layers that recompute
    hops: Array  # (layouts,) transfers of fill and drain where the others run beside compute
    end: Array  # (layouts,) what the end of a step costs the host
    data: DataParallel
    blocks: dict[str, Cost]
    send_source: str
    pipes: Pipes
    by_pipe: PipeTime
    beside: Beside | None

    @property
    def forward(self) -> Array:
        """Seconds of a micro-batch's forward, (layouts, stages)."""
        return self.by_pipe.forward[self.pipes.row_of]

    @property
    def backward(self) -> Array:
        """Seconds of a micro-batch's backward, (layouts, stages)."""
        return self.by_pipe.backward[self.pipes.row_of]

    @property
    def sends(self) -> Array:
        """Seconds that a micro-batch's pipeline transfers add, (layouts, stages)."""
        return self.by_pipe.sends[self.pipes.row_of]

    @property
    def host(self) -> Copies:
        """Copies of a micro-batch's activations to and from the host, (layouts, stages)."""
        return self.by_pipe.host.take(self.pipes.row_of)

    @property
    def weights(self) -> dict[str, Array]:
        """How many of each block a stage runs, (layouts, stages)."""
        return {name: count[self.pipes.row_of] for name, count in self.by_pipe.weights.items()}

    def _one_collective(self, axis: str, block_row: NDArray[np.intp]) -> dict[str, Array]:
        """Return what one collective of an axis moves between whom and how long it takes: the first kind that a layout has."""
        found: dict[str, Array] = {}
        for one in (one for cost in self.blocks.values() for at, one in cost.messages if at == axis):
            parts = (
                ("ranks", one.group.size),
                ("ranks_in_a_domain", one.group.local),
                ("bytes", one.nbytes),
                ("seconds", one.seconds),
            )
            told = {f"collective_{name}": (part + 0.0 * one.seconds)[block_row] for name, part in parts}
            used = told["collective_ranks"] > 1
            missing = found.get("collective_ranks", np.ones_like(told["collective_ranks"])) <= 1
            found = {k: np.where(used & missing, v, found.get(k, 1.0 if "ranks" in k else 0.0)) for k, v in told.items()}
        return found

    def tree(self) -> Term:
        """Return the step as a tree of terms, one value a layout: the slowest stage's work, then what it waits for."""
        rows, m = self.pipes.row_of, self.micro_batches
        block_row = self.pipes.shard.row_of[rows]

        def spent(pick: str, key: str) -> Array:
            value = np.zeros_like(self.step)
            for name, cost in self.blocks.items():
                table = getattr(cost, pick)
                per_block = table[key] if isinstance(table, dict) else table
                share = self.rerun if pick == "recompute" and name.startswith("layer:") else 1.0
                value = value + share * self.by_pipe.weights[name][rows, self.slowest] * per_block[block_row]
            return value * m

        def both_ways(forward: str, backward: str, key: str) -> tuple[Array, dict[str, Array]]:
            """Return the seconds of a step, and what they are made of: micro-batches of so long a forward and a backward."""
            there, back = spent(forward, key), spent(backward, key)
            return there + back, {"micro_batches": m, "forward_s": there / m, "backward_s": back / m}

        compute = []
        for group in GROUPS:
            source = weakest(c.sources.get(group, "exact") for c in self.blocks.values())
            value, inputs = both_ways("forward", "backward", group)
            compute.append(Term(f"step.compute.{_slug(group)}", group, value, "s", source=source, inputs=inputs))
        recompute = Term(
            "step.recompute", "recomputed forward", spent("recompute", ""), "s", source=weakest(t.source for t in compute)
        )
        exposed = []
        for axis in AXES:
            source = weakest(c.sources.get(axis, "exact") for c in self.blocks.values())
            value, inputs = both_ways("exposed_forward", "exposed_backward", axis)
            inputs["hidden_s"] = spent("hidden", axis) / m
            inputs |= self._one_collective(axis, block_row)
            exposed.append(
                Term(
                    f"step.exposed.{axis}", AXIS_LABEL[axis], value, "s", "collective_times.transfer_s", source=source,
                    inputs=inputs, note=OF_ONE if "collective_bytes" in inputs else "",
                )
            )  # fmt: skip
        lost_sends = self.by_pipe.lost_sends[rows, self.slowest]
        sends = (self.by_pipe.sends[rows, self.slowest] - lost_sends) * m
        exposed.append(
            Term("step.exposed.pp", "pipeline sends", sends, "s", "collective_times.transfer_s", source=self.send_source)
        )
        host = self.by_pipe.host
        copies = (host.forward + host.backward)[rows, self.slowest] * m
        exposed.append(Term("step.exposed.host", "activations to and from the host", copies, "s", source=host.source))
        exposed += list(self.data.explain())
        if self.beside is not None:
            lost = spent("lost_forward", "") + spent("lost_backward", "") + lost_sends * m + self.data.lost
            factors = {"slow_compute": self.beside.compute, "slow_transfer": self.beside.transfer}
            exposed.append(
                Term(
                    "step.exposed.overlap", "lost to overlap", lost, "s", "contention.overlapped_s", source=self.beside.source,
                    inputs=factors,
                )
            )  # fmt: skip
        one = self.by_pipe
        slowest = {
            "micro_batches": m, "slowest_stage": self.pipes.stages.index[rows, self.slowest],
            "forward_s": one.forward[rows, self.slowest], "backward_s": one.backward[rows, self.slowest],
            "sends_s": one.sends[rows, self.slowest],
        }  # fmt: skip
        parts = (
            total("step.compute", "compute", tuple(compute), unit="s"),
            recompute,
            total("step.exposed", "exposed communication", tuple(exposed), unit="s"),
            Term(
                "step.bubble",
                "pipeline bubble",
                self.bubble,
                "s",
                source=weakest(t.source for t in compute),
                inputs=slowest,
                note="what the pipeline takes beyond the micro-batches of its slowest stage",
            ),
            self.data.optimizer,
            Term("step.host", "host at the end of the step", self.end, "s", source="default"),
        )
        return dataclasses.replace(total("step", "step", parts, unit="s"), value=self.step)

    def hidden(self) -> Term:
        """Return the transfers that run beside compute, for the slowest stage, as a tree of seconds."""
        rows, block_row = self.pipes.row_of, self.pipes.shard.row_of[self.pipes.row_of]
        parts = []
        for axis in AXES:
            value = np.zeros_like(self.step)
            for name, cost in self.blocks.items():
                value = value + self.by_pipe.weights[name][rows, self.slowest] * cost.hidden[axis][block_row]
            source = weakest(c.sources.get(axis, "exact") for c in self.blocks.values())
            parts.append(Term(f"hidden.{axis}", AXIS_LABEL[axis], value * self.micro_batches, "s", source=source))
        value = self.by_pipe.host.hidden[rows, self.slowest] * self.micro_batches
        parts.append(Term("hidden.host", "activations to and from the host", value, "s", source=self.by_pipe.host.source))
        parts.append(Term("hidden.dp", "data parallel", self.data.hidden, "s", source=self.data.source))
        return total("hidden", "hidden communication", tuple(parts), unit="s")


def step_time(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages, rates: Rates, pipes: Pipes
) -> StepTime:
    """Return the time of one step of every layout; `pipes` are those of the layouts."""
    pricer = Pricer(rates, workload, pipes.shard, model, traits_of(workload, cluster.device))
    blocks = _BLOCKS.of_rows((model, workload, cluster, rates), pipes.shard, lambda: _blocks(pricer))
    one, send_source, hops, weight_grad = _micro_batch(pricer, cluster, blocks, pipes)
    busy = np.where(pipes.stages.exists, one.forward + one.backward + one.sends, 0.0)
    slowest = np.argmax(busy, axis=1)
    rows = np.arange(len(slowest))
    m = pipes.layouts.micro_batches(workload.global_batch).astype(np.float64)
    bubble = bubble_seconds(pipes.layouts, pipes.stages, one.forward, one.backward, weight_grad, one.sends) + hops
    running, row_of = m * busy[rows, slowest] + bubble, pipes.row_of
    data = data_parallel(model, cluster, workload, layouts, stages, rates, pipes, one.forward, one.backward, m)
    end = _end_on_host(pricer, blocks, pipes)
    step = (running + end)[row_of] + data.exposed + data.lost + data.optimizer.value
    return StepTime(
        step, slowest[row_of], m[row_of], bubble[row_of], one.rerun[rows, slowest][row_of], hops[row_of], end[row_of], data, blocks,
        send_source, pipes, one, rates.beside(),
    )  # fmt: skip


def _end_on_host(p: Pricer, blocks: dict[str, Cost], pipes: Pipes) -> Array:
    """Return the seconds that the host of the stage with the most parameter tensors needs between two steps."""
    fixed, stages, row_of = p.traits.step_operators, pipes.stages, pipes.shard.row_of
    if fixed is None:
        return np.zeros(len(pipes.layouts))
    outside = 1.0 if p.trains else 0.0
    tensors: Array = outside * (1.0 * stages.embedding + 2.0 * stages.head)  # tables and the final norm
    for kind, count in stages.layers.items():
        tensors = tensors + count * blocks[f"layer:{kind}"].tensors[row_of][:, None]
    return np.asarray((fixed + p.traits.tensor_operators * tensors.max(axis=1)) * p.traits.host_operator_s)


def _micro_batch(p: Pricer, cluster: Cluster, blocks: dict[str, Cost], pipes: Pipes) -> tuple[PipeTime, str, Array, Array]:
    """Return the time of one micro-batch, where that of its transfers comes from, their fill and drain, and weight gradients."""
    model, stages, row_of = p.model, pipes.stages, pipes.shard.row_of
    weights: dict[str, Array] = {f"layer:{k}": n * stages.share for k, n in stages.layers.items()}
    weights["embedding"] = stages.embedding * stages.share
    weights["head"] = (stages.head + stages.mtp) * stages.share
    if model.mtp_layers and model.mtp_kind:
        name = f"layer:{model.mtp_kind}"
        weights[name] = weights[name] + stages.mtp * stages.share
    rerun = _recomputed_share(pipes.layouts, stages)
    forward = np.zeros_like(stages.share)
    backward, weight_grad = np.zeros_like(forward), np.zeros_like(forward)
    for name, cost in blocks.items():
        n = weights[name]
        forward = forward + n * cost.forward_s[row_of][:, None]
        kept = (1.0 - rerun) * cost.recompute[row_of][:, None] if name.startswith("layer:") else 0.0
        backward = backward + n * (cost.backward_s[row_of][:, None] - kept)
        weight_grad = weight_grad + n * cost.weight[row_of][:, None]
    host = activation_copies(model, cluster, p.workload, pipes, p.rates, forward, backward)
    forward, backward = forward + host.forward, backward + host.backward
    send, lost, hops, source = _sends(p, pipes.layouts, stages, forward, backward)
    one = PipeTime(forward, backward, send, lost, host, weights, rerun * np.ones_like(stages.share))
    return one, source, hops, weight_grad


_BLOCKS: Kept[dict[str, Cost]] = Kept()


def _blocks(p: Pricer) -> dict[str, Cost]:
    """Return what one layer of each kind, the embedding and the head cost, by row of the Shard."""
    vocab = padded_vocabulary(p.model.vocab, p.shard.tp, p.workload) / p.shard.tp
    blocks: dict[str, Cost] = {f"layer:{k}": c for k, c in layer_costs(p).items()}
    blocks["embedding"], blocks["head"] = embedding_cost(p, vocab), head_cost(p, vocab)
    return blocks


def _recomputed_share(layouts: Layouts, stages: Stages) -> Array:
    """Return the share of a stage's layers that recompute: all, or with full on N layers N of each chunk's."""
    count = layouts.recompute_layers[:, None]
    share = np.minimum(count, stages.chunk_layers) / np.maximum(stages.chunk_layers, 1.0)
    return np.asarray(np.where(count > 0, share, 1.0))


def _sends(p: Pricer, layouts: Layouts, stages: Stages, forward: Array, backward: Array) -> tuple[Array, Array, Array, str]:
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
    each_way = sent.seconds
    apart = ~shard.sp[row_of] & (shard.tp[row_of] > 1)
    if apart.any():
        parts = shard.tp_group
        gathered = p.rates.collective("all_gather", whole, Group(parts.size[row_of], parts.local[row_of]))
        each_way = each_way + np.where(apart, gathered.seconds, 0.0)
    on = layouts.pp > 1
    overlapped = (layouts.vpp > 1) | (layouts.schedule == SCHEDULES.index("dualpipe"))
    if p.workload.overlap_p2p is not None:
        overlapped = np.full(len(layouts), p.workload.overlap_p2p)
    v, each = layouts.vpp[:, None], each_way[:, None]
    beside = np.maximum(0.0, v * each - forward) + np.maximum(0.0, v * each - backward)
    lost = np.where((on & overlapped)[:, None], p.lost_s(v * each, forward) + p.lost_s(v * each, backward), 0.0)
    exposed = np.where(on[:, None], np.where(overlapped[:, None], beside, 2.0 * v * each), 0.0)
    hops = np.where(on & overlapped, 2.0 * (layouts.pp - 1) * each_way, 0.0)
    source = sent.source
    if p.traits.sends is not None:
        exposed, source = _blocking_sends(p, layouts, stages, whole / shard.tp[row_of], p.traits.sends), "profile"
    return exposed + lost, lost, hops, source


def _blocking_sends(p: Pricer, layouts: Layouts, stages: Stages, sent: Array, rate: tuple[float, float]) -> Array:
    """Return the seconds a micro-batch that every stage sends and receives where one transfer waits for the other.

    A stage moves an activation and a gradient over each of its two borders, of which those that leave the scale-up domain are slower.
    """
    apart, at = axis_strides(layouts)["pp"][:, None], stages.index
    above = (at > 0, np.floor((at - 1) * apart / p.shard.domain) != np.floor(at * apart / p.shard.domain))
    below = (at < layouts.pp[:, None] - 1, np.floor(at * apart / p.shard.domain) != np.floor((at + 1) * apart / p.shard.domain))
    seconds = [np.where(there, 2.0 * sent[:, None] / np.where(leaves, rate[1], rate[0]), 0.0) for there, leaves in (above, below)]
    return np.asarray(seconds[0] + seconds[1])


def _slug(text: str) -> str:
    return text.replace(" and ", "_").replace(" ", "_")
