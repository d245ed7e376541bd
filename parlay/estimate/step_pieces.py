"""What the terms of a step were put together from, for `explain`: operators, transfers and their collectives, overlapping pairs.

A piece of a block (a layer of a kind, embedding, head) tells the seconds of one, and how many of it the slowest stage runs for a
micro-batch; its value is for all micro-batches of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.communication import Pair
from parlay.estimate.costs import Cost
from parlay.estimate.overlap import lost_s
from parlay.estimate.terms import Term

if TYPE_CHECKING:
    from parlay.estimate.time import StepTime

Array = NDArray[np.float64]

OVERLAPPED = "contention.overlapped_s"


def blocks_of(t: StepTime) -> Iterator[tuple[str, Cost, Array, NDArray[np.int64]]]:
    """Yield each block's name in words, its cost, how many of it the slowest stage runs, and each layout's row of its prices."""
    rows = t.pipes.row_of
    block_row = t.pipes.shard.row_of[rows]
    several = sum(name.startswith("layer:") for name in t.blocks) > 1
    for name, cost in t.blocks.items():
        count = t.by_pipe.weights[name][rows, t.slowest]
        if count.any():
            kind = name.removeprefix("layer:")
            label = name if kind == name else f"{kind} layer" if several else "layer"
            yield label, cost, count, block_row


def operators(t: StepTime, group: str) -> tuple[Term, ...]:
    """Return the operators of a group, forward and backward."""
    found = []
    for label, cost, count, at in blocks_of(t):
        named = [(share, o.name, o.forward, o.dgrad + o.wgrad, o) for share, o in cost.operators if o.group == group]
        for share, name, forward, backward, o in named:
            f, b = (np.broadcast_to(x, t.pipes.shard.tp.shape)[at] for x in (forward, backward))
            inputs = {"blocks": share * count, "forward_s": f, "backward_s": b}
            for key, work in (("forward_flops", o.flops), ("forward_bytes", o.nbytes)):
                if np.any(work):
                    inputs[key] = np.broadcast_to(work, t.pipes.shard.tp.shape)[at]
            key = f"step.compute.{group}.{label}.{name}".replace(" ", "_")
            found.append(Term(key, f"{label}: {name}", t.micro_batches * share * count * (f + b), "s", None, inputs, o.source))
        if not named:  # what is no operator: the gaps between launches
            f, b = (x[group][at] for x in (cost.forward, cost.backward))
            inputs = {"blocks": count, "forward_s": f, "backward_s": b}
            found.append(Term(f"step.compute.{group}.{label}", label, t.micro_batches * count * (f + b), "s", None, inputs))
    return tuple(found)


def reruns(t: StepTime) -> tuple[Term, ...]:
    """Return what runs again in the backward pass, operators and transfers."""
    found = []
    for label, cost, count, at in blocks_of(t):
        share = t.rerun if "layer" in label else 1.0
        for name, seconds in cost.again:
            each = np.broadcast_to(seconds, t.pipes.shard.tp.shape)[at]
            inputs = {"blocks": share * count, "forward_s": each}
            key = f"step.recompute.{label}.{name}".replace(" ", "_")
            found.append(Term(key, f"{label}: {name}", t.micro_batches * share * count * each, "s", None, inputs))
    return tuple(found)


def transfers(t: StepTime, axis: str, *, hidden: bool = False) -> tuple[Term, ...]:
    """Return the transfers of an axis, what shows of each or what is hidden, with their collectives below them."""
    found = []
    for label, cost, count, at in blocks_of(t):
        for one in (one for one in cost.transfers if one.axis == axis):
            f, b, behind = (np.broadcast_to(x, t.pipes.shard.tp.shape)[at] for x in (one.forward, one.backward, one.hidden))
            name = f"{label}: {one.name}"
            wires = tuple(
                t.wires.term(
                    f"{m.op}.{m.name}".replace(" ", "_"), f"{name}, {m.name}", m.op, (m.nbytes + 0.0 * t.pipes.shard.tp)[at],
                    m.group.take(at, t.pipes.shard.tp.shape), forward=_at(m.forward, t, at), backward=_at(m.backward, t, at),
                )
                for m in one.messages
            )  # fmt: skip
            inputs = {"blocks": count, "forward_s": f, "backward_s": b, "hidden_s": behind}
            copies = _at(one.copied, t, at)
            if copies.any():
                inputs["copies_s"] = copies  # of these seconds, beside the collectives'
            value = t.micro_batches * count * (behind if hidden else f + b)
            key = f"{'hidden' if hidden else 'step.exposed'}.{axis}.{label}.{one.name}".replace(" ", "_")
            found.append(Term(key, name, value, "s", None, inputs, one.source, pieces=_these(wires)))
    return tuple(found)


def overlaps(t: StepTime) -> tuple[Term, ...]:
    """Return every transfer with the compute beside it, and what the two lose to each other."""
    found = []
    for label, cost, count, at in blocks_of(t):
        for one in cost.transfers:
            for p in one.pairs:
                inside = Pair(f"{label}: {one.name}, {p.name}", *(_at(x, t, at) for x in (p.transfer, p.compute, p.times)))
                found.append(_pair(t, inside, t.micro_batches * count))
    rows = t.pipes.row_of
    for p in t.by_pipe.pairs:
        sent = Pair(p.name, *(x[rows, t.slowest] for x in (p.transfer, p.compute, p.times)))
        found.append(_pair(t, sent, t.micro_batches))
    found += [_pair(t, p, 1.0) for p in t.data.pairs()]
    return tuple(found)


def _pair(t: StepTime, p: Pair, count: Array | float) -> Term:
    lost = lost_s(t.beside, p.transfer, p.compute)
    inputs = {"times": count * p.times, "transfer_s": p.transfer, "compute_s": p.compute, "lost_s": lost}
    key = f"step.exposed.overlap.{p.name}".replace(" ", "_")
    return Term(key, p.name, count * p.times * lost, "s", OVERLAPPED, inputs)


def _at(value: Array | float, t: StepTime, at: NDArray[np.int64]) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), t.pipes.shard.tp.shape)[at]


def _these(terms: tuple[Term, ...]) -> Callable[[], tuple[Term, ...]]:
    return lambda: terms
