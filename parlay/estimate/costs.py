"""Seconds of one layer, of the embedding and of the head, per micro-batch on one rank: one row a distinct Shard row."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.communication import layer_transfers
from parlay.estimate.operators import Operator, Pricer, embedding_operators, head_operators, layer_operators
from parlay.estimate.terms import weakest

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
BACKWARD_LAUNCHES = 2.0  # kernels of a backward over those of its forward: one for each gradient


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
    sources: dict[str, str]

    @property
    def forward_s(self) -> Array:
        """Seconds of the whole forward, exposed transfers included."""
        return np.asarray(sum(self.forward.values()) + sum(self.exposed_forward.values()))

    @property
    def backward_s(self) -> Array:
        """Seconds of the whole backward: both gradients, recompute and exposed transfers."""
        return np.asarray(sum(self.backward.values()) + sum(self.exposed_backward.values()) + self.recompute)


def layer_costs(p: Pricer) -> dict[str, Cost]:
    """Return the cost of one layer of each kind of the model."""
    found = {}
    for name, kind in p.model.kinds.items():
        operators = layer_operators(p, kind)
        found[name] = _cost(p, operators, layer_transfers(p, kind, operators))
    return found


def embedding_cost(p: Pricer) -> Cost:
    """Return the cost of the token table's look-up."""
    return _cost(p, embedding_operators(p), [])


def head_cost(p: Pricer, vocab: Array) -> Cost:
    """Return the cost of final norm, LM head and loss, `vocab` head rows on the rank."""
    return _cost(p, head_operators(p, vocab), [])


def _cost(p: Pricer, operators: list[Operator], transfers: list) -> Cost:  # type: ignore[type-arg]
    zero = np.zeros_like(p.shard.tokens)
    forward = dict.fromkeys(GROUPS, zero)
    backward = dict.fromkeys(GROUPS, zero)
    sources: dict[str, str] = {}
    weight, recompute, again, launches = zero, zero, zero, 0.0
    selective = p.shard.recomputes(frozenset({"selective_ops"}))
    for o in operators:
        forward[o.group] = forward[o.group] + o.forward
        backward[o.group] = backward[o.group] + o.dgrad + o.wgrad
        weight = weight + o.wgrad
        whole = p.shard.recomputes(o.modules)
        share = np.where(whole, 1.0, np.where(selective & (o.group != "attention core"), SELECTIVE_OPS_RERUN, 0.0))
        recompute = recompute + share * o.forward
        again = again + share * o.launches
        launches += o.launches
        sources[o.group] = weakest([o.source, sources.get(o.group, "exact")])
    gap = p.rates.launch()
    if not p.workload.cuda_graphs and launches:
        # A short kernel is over before the host has launched the next one: the layer takes the launch time instead.
        late_f = np.maximum(0.0, launches * gap.seconds - sum(forward.values()))
        late_b = np.maximum(0.0, (launches * BACKWARD_LAUNCHES + again) * gap.seconds - sum(backward.values()) - recompute)
        forward["launch gaps"], backward["launch gaps"] = late_f, late_b
    sources["launch gaps"] = gap.source
    exposed_f = dict.fromkeys(AXES, zero)
    exposed_b = dict.fromkeys(AXES, zero)
    hidden = dict.fromkeys(AXES, zero)
    for t in transfers:
        exposed_f[t.axis] = exposed_f[t.axis] + t.forward
        exposed_b[t.axis] = exposed_b[t.axis] + t.backward
        hidden[t.axis] = hidden[t.axis] + t.hidden
        recompute = recompute + np.where(p.shard.recomputes(t.modules), t.forward, 0.0)
        sources[t.axis] = weakest([t.source, sources.get(t.axis, "exact")])
    return Cost(forward, backward, weight, recompute, exposed_f, exposed_b, hidden, sources)
