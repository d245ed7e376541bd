"""The time of one step: stage by stage, through the pipeline, and the gradient exchange and optimizer at its end.

step = m x (slowest stage's forward + backward) + bubble + exposed data-parallel traffic + optimizer + host

What compute and a transfer that run at once lose to each other, where a calibration has measured it, is in the stage's
times and in the data-parallel traffic, and shows as one term.

The slowest stage and the bubble come from closed forms (parlay.formulas.pipeline); parlay.schedules times the same
stages exactly for the layouts that are shown.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.bubble import bubble_seconds, closed_form
from parlay.estimate.communication import Pair
from parlay.estimate.costs import AXES, GROUPS, Cost, embedding_cost, head_cost, layer_costs
from parlay.estimate.dataparallel import DataParallel, data_parallel
from parlay.estimate.kept import Kept
from parlay.estimate.local import padded_vocabulary
from parlay.estimate.offload import Copies, activation_copies
from parlay.estimate.pipes import Pipes
from parlay.estimate.pricer import Pricer
from parlay.estimate.sends import OF_BLOCKING, OF_SENDS, Sends, pipeline_sends
from parlay.estimate.stages import Stages
from parlay.estimate.step_pieces import operators, overlaps, reruns, transfers
from parlay.estimate.terms import Term, total, weakest
from parlay.estimate.traits import send_by_place, traits_of
from parlay.estimate.wires import OF_RATE, TRANSFER, Wires
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Beside, Rates

Array = NDArray[np.float64]

OF_TRANSFERS = (
    "value = micro_batches x (forward_s + backward_s), sums over the blocks of the slowest stage, of what collectives take beyond the"
    f" compute beside them; {OF_RATE}"
)
OF_HIDDEN = f"value = micro_batches x hidden_s, sums over the blocks of the slowest stage; {OF_RATE}"
OF_OPERATORS = (
    "value = micro_batches x (forward_s + backward_s), sums over the blocks of the slowest stage; an operator's seconds are a smooth maximum of"
    " its FLOP and its bytes at the device's rates, or a measured table's"
)
OF_GAPS = "micro_batches x (forward_s + backward_s), what the host takes for launches of a block beyond the time of its kernels"
OF_PAIRS = (
    "the sum over transfers and the compute beside them of times x lost_s, which is the formula's time less the longer of the two"
)
OF_COPIES = "micro_batches x what to_host_s is longer than forward_s and to_device_s than backward_s"
CLOSED = (
    "closed_form_s = hops_s, of transfers beside compute, and the formula's seconds, or others_s, of one micro-batch on all other stages,"
    " over virtual"
)
OF_TIMELINE = (
    "what the pipeline takes beyond the micro-batches of its slowest stage, timed operation by operation on the stages below"
    f" (`parlay schedule`); {CLOSED}"
)
OF_CLOSED = f"what the pipeline takes beyond the micro-batches of its slowest stage, by its closed form; {CLOSED}"
AXIS_LABEL = {"tp": "tensor parallel", "cp": "context parallel", "ep": "expert parallel"}


@dataclasses.dataclass(frozen=True)
class PipeTime:
    """Seconds of a micro-batch on each stage of each pipe, and what they are made of; arrays of shape (pipes, stages)."""

    forward: Array
    backward: Array
    sends: Array  # what pipeline transfers add
    least_sends: Array  # the least that they add on any stage that one of these stands for
    lost_sends: Array  # of that, what transfers and the compute beside them lose to each other
    host: Copies  # of activations to and from the host
    weights: dict[str, Array]  # block name -> how many of it each stage runs
    rerun: Array  # share of the stage's layers that recompute
    pairs: tuple[Pair, ...]  # pipeline transfers and the compute beside them


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
    pipes: Pipes
    by_pipe: PipeTime
    beside: Beside | None
    wires: Wires
    sends_of: Sends
    weight_grad: Array  # (pipes, stages) seconds of a micro-batch's weight gradients
    closed_bubble: Array  # (layouts,) by the closed form
    end_operators: Array  # (layouts,) host operators at the end of a step
    host_operator_s: float
    timed: bool = False  # whether `bubble` is that of an exact timeline

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
            note = OF_OPERATORS if group != "launch gaps" else OF_GAPS
            compute.append(
                Term(
                    f"step.compute.{_slug(group)}", group, value, "s", source=source, inputs=inputs, note=note,
                    pieces=partial(operators, self, group),
                )
            )  # fmt: skip
        recompute = Term(
            "step.recompute", "recomputed forward", spent("recompute", ""), "s", source=weakest(t.source for t in compute),
            inputs={"micro_batches": m, "recomputed_s": spent("recompute", "") / m}, pieces=lambda: reruns(self),
        )  # fmt: skip
        exposed = []
        for axis in AXES:
            source = weakest(c.sources.get(axis, "exact") for c in self.blocks.values())
            value, inputs = both_ways("exposed_forward", "exposed_backward", axis)
            inputs["hidden_s"] = spent("hidden", axis) / m
            exposed.append(
                Term(
                    f"step.exposed.{axis}", AXIS_LABEL[axis], value, "s", TRANSFER, source=source, inputs=inputs, note=self._note(OF_TRANSFERS, axis),
                    pieces=partial(transfers, self, axis),
                )
            )  # fmt: skip
        lost_sends = self.by_pipe.lost_sends[rows, self.slowest]
        exposed.append(self._sends(lost_sends))
        exposed.append(self._copies())
        exposed += list(self.data.explain())
        if self.beside is not None:
            lost = spent("lost_forward", "") + spent("lost_backward", "") + lost_sends * m + self.data.lost
            factors = {"slow_compute": self.beside.compute, "slow_transfer": self.beside.transfer}
            exposed.append(
                Term(
                    "step.exposed.overlap", "lost to overlap", lost, "s", "contention.overlapped_s", source=self.beside.source,
                    inputs=factors, note=OF_PAIRS, pieces=lambda: overlaps(self),
                )
            )  # fmt: skip
        parts = (
            total("step.compute", "compute", tuple(compute), unit="s"),
            recompute,
            total("step.exposed", "exposed communication", tuple(exposed), unit="s"),
            self._bubble(weakest(t.source for t in compute)),
            self.data.optimizer,
            Term(
                "step.host",
                "host at the end of the step",
                self.end,
                "s",
                source="default",
                inputs={"operators": self.end_operators, "operator_s": self.host_operator_s},
                note="host operators of the stage with the most parameter tensors, one a tensor and those of any step, behind one another",
            ),
        )
        return dataclasses.replace(total("step", "step", parts, unit="s"), value=self.step)

    def _sends(self, lost: Array) -> Term:
        """Return what shows of the pipeline's sends."""
        rows, m, s = self.pipes.row_of, self.micro_batches, self.sends_of
        inputs: dict[str, Any]
        value = (self.by_pipe.sends[rows, self.slowest] - lost) * m
        inputs = {
            "micro_batches": m,
            "exposed_s": value / m,
            "chunks": self.pipes.layouts.vpp[rows],
            "exchanges": np.where(s.overlapped[rows], np.nan, s.exchanges[rows, self.slowest]),
            "one_way_s": s.each_way[rows, self.slowest],
        }
        if s.blocking is not None:
            inputs = {"micro_batches": m, "exposed_s": value / m, "bytes": s.sent[rows]} | {
                f"bytes_per_s_{place}": (s.sent / seconds)[rows]
                for place, seconds in zip(("inside", "across"), s.blocking, strict=True)
            }
        else:
            passes = (self.by_pipe.forward, self.by_pipe.backward)
            beside = {f"{name}_s": x[rows, self.slowest] for name, x in zip(("forward", "backward"), passes, strict=True)}
            inputs |= {name: np.where(s.overlapped[rows], x, np.nan) for name, x in beside.items()}
        return Term(
            "step.exposed.pp", "pipeline sends", value, "s", TRANSFER, inputs, s.source,
            note=OF_SENDS if s.blocking is None else OF_BLOCKING, pieces=lambda: s.pieces(self.wires, rows, self.slowest),
        )  # fmt: skip

    def _note(self, plain: str, axis: str) -> str:
        """Return the note of an axis' transfers, with how their collectives make their seconds where they do not add up."""
        own = dict.fromkeys(one.note for c in self.blocks.values() for one in c.transfers if one.axis == axis and one.note)
        return "; ".join([plain, *own])

    def _copies(self) -> Term:
        """Return what shows of the copies of activations to the host and back."""
        rows, m, host = self.pipes.row_of, self.micro_batches, self.by_pipe.host
        at = (rows, self.slowest)
        inputs: dict[str, Any] = {"micro_batches": m, "bytes_each_way": host.moved[at]}
        for name, seconds, beside in zip(("to_host", "to_device"), (host.down, host.up), host.passes, strict=True):
            rate = np.divide(host.moved[at], seconds[at], out=np.zeros_like(m), where=seconds[at] > 0)
            inputs |= {f"{name}_s": seconds[at], f"{name}_bytes_per_s": rate}
            inputs["forward_s" if name == "to_host" else "backward_s"] = beside[at]
        value = (host.forward + host.backward)[at] * m
        return Term(
            "step.exposed.host", "activations to and from the host", value, "s", None, inputs, host.source, note=OF_COPIES
        )

    def _bubble(self, source: str) -> Term:
        """Return the bubble beside its closed form, with the stages that it follows from."""
        rows, one, stages = self.pipes.row_of, self.by_pipe, self.pipes.stages
        x, at = self.pipes.layouts, (rows, self.slowest)
        formula, inputs = closed_form(x, stages, one.forward, one.backward, self.weight_grad, one.sends)
        told: dict[str, Any] = {k: np.broadcast_to(v, len(x))[rows] for k, v in inputs.items()}
        told |= {
            "micro_batches": self.micro_batches, "slowest_stage": stages.index[at], "slowest_forward_s": one.forward[at],
            "slowest_backward_s": one.backward[at], "slowest_sends_s": one.sends[at], "hops_s": self.hops,
            "closed_form_s": self.closed_bubble,
        }  # fmt: skip

        def by_stage() -> tuple[Term, ...]:
            found = []
            for column in range(stages.index.shape[1]):
                f, b, s = (np.where(stages.exists, y, 0.0)[rows, column] for y in (one.forward, one.backward, one.sends))
                each = {"stages": stages.count[rows, column], "forward_s": f, "backward_s": b, "sends_s": s}
                label = f"from stage {column}" if not stages.every else f"stage {column}"
                found.append(Term(f"step.bubble.{column}", label, f + b + s, "s", None, each))
            return tuple(found)

        note = OF_TIMELINE if self.timed else OF_CLOSED
        return Term("step.bubble", "pipeline bubble", self.bubble, "s", formula, told, source, note=note, pieces=by_stage)

    def hidden(self) -> Term:
        """Return the transfers that run beside compute, for the slowest stage, as a tree of seconds."""
        rows, block_row = self.pipes.row_of, self.pipes.shard.row_of[self.pipes.row_of]
        parts = []
        for axis in AXES:
            value = np.zeros_like(self.step)
            for name, cost in self.blocks.items():
                value = value + self.by_pipe.weights[name][rows, self.slowest] * cost.hidden[axis][block_row]
            source = weakest(c.sources.get(axis, "exact") for c in self.blocks.values())
            inputs = {"micro_batches": self.micro_batches, "hidden_s": value}
            parts.append(
                Term(
                    f"hidden.{axis}", AXIS_LABEL[axis], value * self.micro_batches, "s", TRANSFER, inputs, source, note=self._note(OF_HIDDEN, axis),
                    pieces=partial(transfers, self, axis, hidden=True),
                )
            )  # fmt: skip
        copies = self._copies()
        each = self.by_pipe.host.hidden[rows, self.slowest]
        parts.append(
            Term(
                "hidden.host", copies.label, each * self.micro_batches, "s", None, {**copies.inputs, "hidden_s": each}, copies.source,
                note="value = micro_batches x hidden_s, what of to_host_s and to_device_s forward_s and backward_s are long enough for",
            )
        )  # fmt: skip
        parts.append(self.data.explain_hidden())
        return total("hidden", "hidden communication", tuple(parts), unit="s")


def step_time(
    model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages, rates: Rates, pipes: Pipes
) -> StepTime:
    """Return the time of one step of every layout; `pipes` are those of the layouts."""
    pricer = Pricer(rates, workload, pipes.shard, model, traits_of(workload, cluster.device))
    blocks = _BLOCKS.of_rows((model, workload, cluster, rates), pipes.shard, lambda: _blocks(pricer))
    one, sends, weight_grad = _micro_batch(pricer, cluster, blocks, pipes)
    hops = sends.hops
    busy = np.where(pipes.stages.exists, one.forward + one.backward + one.sends, 0.0)
    slowest = np.argmax(busy, axis=1)
    rows = np.arange(len(slowest))
    m = pipes.layouts.micro_batches(workload.global_batch).astype(np.float64)
    bubble = bubble_seconds(pipes.layouts, pipes.stages, one.forward, one.backward, weight_grad, one.sends) + hops
    running, row_of = m * busy[rows, slowest] + bubble, pipes.row_of
    data = data_parallel(model, cluster, workload, layouts, stages, rates, pipes, one.forward, one.backward, m)
    called = _end_on_host(pricer, blocks, pipes)
    end = called * pricer.traits.host_operator_s
    step = (running + end)[row_of] + data.exposed + data.lost + data.optimizer.value
    return StepTime(
        step, slowest[row_of], m[row_of], bubble[row_of], one.rerun[rows, slowest][row_of], hops[row_of], end[row_of], data, blocks,
        pipes, one, rates.beside(), Wires.of(cluster, rates), sends, weight_grad, bubble[row_of], called[row_of],
        pricer.traits.host_operator_s,
    )  # fmt: skip


def _end_on_host(p: Pricer, blocks: dict[str, Cost], pipes: Pipes) -> Array:
    """Return the operators that the host of the stage with the most parameter tensors has between two steps."""
    fixed, stages, row_of = p.traits.step_operators, pipes.stages, pipes.shard.row_of
    if fixed is None:
        return np.zeros(len(pipes.layouts))
    outside = 1.0 if p.trains else 0.0
    tensors: Array = outside * (1.0 * stages.embedding + 2.0 * stages.head)  # tables and the final norm
    for kind, count in stages.layers.items():
        tensors = tensors + count * blocks[f"layer:{kind}"].tensors[row_of][:, None]
    return np.asarray(fixed + p.traits.tensor_operators * tensors.max(axis=1))


def _micro_batch(p: Pricer, cluster: Cluster, blocks: dict[str, Cost], pipes: Pipes) -> tuple[PipeTime, Sends, Array]:
    """Return the time of one micro-batch, its transfers from stage to stage, and its weight gradients."""
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
    sends = pipeline_sends(p, pipes.layouts, stages, forward, backward, by_place=send_by_place(cluster, p.workload))
    one = PipeTime(
        forward, backward, sends.exposed, sends.least, sends.lost, host, weights, rerun * np.ones_like(stages.share), sends.pairs
    )
    return one, sends, weight_grad


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


def _slug(text: str) -> str:
    return text.replace(" and ", "_").replace(" ", "_")
