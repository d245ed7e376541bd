"""Seconds of one layer, of the embedding and of the head, per micro-batch on one rank: one row a distinct Shard row."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.communication import Transfer, layer_transfers
from parlay.estimate.operators import embedding_operators, head_operators, layer_operators, without_permutations
from parlay.estimate.pricer import FP8_PRECISIONS, Operator, Pricer
from parlay.estimate.shard import Shard
from parlay.estimate.terms import weakest
from parlay.estimate.traits import HOST_BACKWARD, TRANSFER_OPERATORS
from parlay.models.spec import LayerKind

Array = NDArray[np.float64]

GROUPS = (
    "attention core",
    "attention projections",
    "mlp",
    "experts",
    "norms and elementwise",
    "embedding and head",
    "quantisation",
    "launch gaps",
)
AXES = ("tp", "cp", "ep")
SELECTIVE_OPS_RERUN = 0.5  # torchtitan keeps every other matmul (activation_checkpoint.py), so half of them run again


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of one block per micro-batch: compute by group, recompute, exposed and hidden transfers by axis.

    `backward` includes the weight gradients, which `weight` repeats alone for the schedules that defer them.
    """

    forward: dict[str, Array]
    backward: dict[str, Array]
    weight: Array
    recompute: Array
    exposed_forward: dict[str, Array]
    exposed_backward: dict[str, Array]
    hidden: dict[str, Array]
    lost_forward: Array  # seconds that compute and transfers lose to each other
    lost_backward: Array
    tensors: Array  # parameter tensors on the rank
    sources: dict[str, str]
    # What the seconds above were summed from, for `explain`: operators and how much of each counts, transfers, what runs again.
    operators: tuple[tuple[float, Operator], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    again: tuple[tuple[str, Array], ...] = ()

    @cached_property
    def forward_s(self) -> Array:
        """Seconds of the whole forward, exposed transfers and what is lost to overlap included."""
        return np.asarray(sum(self.forward.values()) + sum(self.exposed_forward.values()) + self.lost_forward)

    @cached_property
    def backward_s(self) -> Array:
        """Seconds of the whole backward: both gradients, recompute, exposed transfers and what is lost to overlap."""
        return np.asarray(sum(self.backward.values()) + sum(self.exposed_backward.values()) + self.lost_backward + self.recompute)


def layer_costs(p: Pricer) -> dict[str, Cost]:
    """Return the cost of one layer of each kind of the model."""
    found = {}
    shard, row_of = p.shard.sizes()  # an operator's seconds do not depend on what runs again or beside it
    for name, kind in p.model.kinds.items():
        own = dataclasses.replace(p, workload=p.workload.model_copy(update={"precision": "bf16"})) if in_bf16(p, kind) else p
        operators = layer_operators(dataclasses.replace(own, shard=shard), kind)
        if shard is not p.shard:
            operators = [o.take(row_of) for o in operators]
        operators = without_permutations(own, operators)
        found[name] = _cost(own, operators, layer_transfers(own, kind, operators))
    return found


def in_bf16(p: Pricer, kind: LayerKind) -> bool:
    """Return whether a kind's products stay in bf16 where the precision has narrower ones."""
    return kind.bf16 and p.workload.precision in FP8_PRECISIONS


def embedding_cost(p: Pricer, vocab: Array) -> Cost:
    """Return the cost of the token table's look-up, `vocab` rows of the table on the rank."""
    return _cost(p, embedding_operators(p, vocab), [], checkpointed=False)


def head_cost(p: Pricer, vocab: Array) -> Cost:
    """Return the cost of final norm, LM head and loss, `vocab` head rows on the rank."""
    return _cost(p, head_operators(p, vocab), [], checkpointed=False)


def _cost(p: Pricer, operators: list[Operator], transfers: list[Transfer], *, checkpointed: bool = True) -> Cost:
    """Return the cost of a block; only layers are checkpointed, embedding and head are never run again."""
    zero = np.zeros_like(p.shard.tokens)
    forward = dict.fromkeys(GROUPS, zero)
    backward = dict.fromkeys(GROUPS, zero)
    sources: dict[str, str] = {}
    weight, recompute, again, host, behind, waits, tensors = zero, zero, zero, zero, zero, zero, zero
    checkpointed = checkpointed and bool(p.shard.recompute.any())
    tail = unread_tail(operators) if p.traits.early_stop else frozenset()
    reruns: list[tuple[str, Array]] = []
    for o in operators:
        forward[o.group] = forward[o.group] + o.forward
        backward[o.group] = backward[o.group] + o.dgrad + o.wgrad
        weight = weight + o.wgrad
        tensors = tensors + o.weights
        calls, waited = (0.0, 0.0) if captured(p, o) else (o.launches, o.waits)
        if checkpointed and o.name not in tail:
            share = _rerun_share(p.shard, o)
            recompute = recompute + share * o.forward
            reruns.append((o.name, share * o.forward))
            again = again + share * (calls + waited)
        host, behind, waits = host + calls, behind + o.behind * calls, waits + waited
        sources[o.group] = weakest([o.source, sources.get(o.group, "exact")])
    exposed_f = dict.fromkeys(AXES, zero)
    exposed_b = dict.fromkeys(AXES, zero)
    hidden = dict.fromkeys(AXES, zero)
    lost_f, lost_b = zero, zero
    for t in transfers:
        exposed_f[t.axis] = exposed_f[t.axis] + t.forward
        exposed_b[t.axis] = exposed_b[t.axis] + t.backward
        hidden[t.axis] = hidden[t.axis] + t.hidden
        lost_f, lost_b = lost_f + t.lost_forward, lost_b + t.lost_backward
        rerun = np.where(p.shard.recomputes(t.modules), t.forward + t.lost_forward, 0.0)
        recompute = recompute + rerun
        reruns.append((t.name, rerun))
        runs = TRANSFER_OPERATORS * (t.forward + t.backward + t.hidden > 0)
        host, behind = host + runs, behind + runs
        again = again + np.where(p.shard.recomputes(t.modules), runs, 0.0)
        sources[t.axis] = weakest([t.source, sources.get(t.axis, "exact")])
    if not p.workload.cuda_graphs:
        # Kernels that are over before the host has launched the next one: the block takes the host's time instead.
        each = max(p.traits.host_operator_s, float(p.rates.launch().seconds))
        busy_f = sum(forward.values()) + sum(exposed_f.values()) + lost_f
        busy_b = sum(backward.values()) + sum(exposed_b.values()) + lost_b + recompute
        forward["launch gaps"] = np.maximum(0.0, (host + waits) * each - busy_f)
        backward["launch gaps"] = np.maximum(0.0, (behind * HOST_BACKWARD + again) * each - busy_b)
    sources["launch gaps"] = "default"
    return Cost(
        forward, backward, weight, recompute, exposed_f, exposed_b, hidden, lost_f, lost_b, tensors, sources,
        tuple((1.0, o) for o in operators), tuple(transfers), tuple(reruns),
    )  # fmt: skip


def _rerun_share(shard: Shard, o: Operator) -> Array:
    """Return how much of an operator's forward runs again, by row: all, a part or nothing."""
    part = SELECTIVE_OPS_RERUN if o.group != "attention core" else 0.0
    selective = np.where(shard.recomputes(frozenset({"selective_ops"})), part, 0.0)
    return np.where(shard.recomputes(o.modules), 1.0, selective)


def unread_tail(operators: list[Operator]) -> frozenset[str]:
    """Return the last operators of a layer whose outputs no backward reads: residual sums, and the product before them.

    A product keeps its inputs, which are there before it runs. Whatever comes before it is needed.
    """
    names = []
    for o in reversed(operators):
        if not o.name.endswith(("residual", "down-projection")):
            break
        names.append(o.name)
        if o.name.endswith("down-projection"):
            break
    return frozenset(names)


CAPTURED = {
    "attention": ("attention core", "attention projections"),
    "mlp": ("mlp",),
    "mamba": ("attention core", "attention projections"),
}


def captured(p: Pricer, o: Operator) -> bool:
    """Return whether a CUDA graph of a module replays this operator without the host."""
    for module in p.workload.cuda_graph_modules:
        if o.group in CAPTURED.get(module, ()) or (module == "moe_router" and o.name.startswith("router")):
            return True
        if module in ("attention", "mamba") and o.name in ("norm", "residual", "rotary", "q/k norm", "convolution", "gated norm"):
            return True
    return False
