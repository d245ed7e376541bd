"""What a pipeline's stages send to each other, and which borders between them leave a scale-up domain."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.communication import Message, Pair
from parlay.estimate.placement import axis_strides
from parlay.estimate.pricer import ELEMENT, Pricer
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term
from parlay.estimate.wires import OF_RATE, Wires
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import SCHEDULES
from parlay.rates.interface import Group

Array = NDArray[np.float64]

OF_SENDS = (
    "value = micro_batches x exposed_s, which is chunks x exchanges x one_way_s, an exchange for each border of the stage; where transfers run"
    f" beside compute, what chunks x one_way_s is longer than forward_s and than backward_s; {OF_RATE}"
)
OF_BLOCKING = (
    "a stage sends and receives over each of its borders, twice the bytes over the rate of a transfer that waits for the other, which is"
    " the framework's or, across, the network's if that is slower"
)


@dataclasses.dataclass(frozen=True)
class Sends:
    """How a pipeline's stages send to each other, by pipe."""

    exposed: Array  # (pipes, stages) seconds that they add to a micro-batch, with what is lost to overlap
    least: Array  # (pipes, stages) of the stages that one of these stands for, the least
    lost: Array
    hops: Array  # (pipes,) those of fill and drain where the others run beside compute
    source: str
    sent: Array  # bytes of one
    each_way: Array  # (pipes, stages) seconds of one over the stage's slower border, or the mean of both where it waits for each
    exchanges: Array  # (pipes, stages) borders over which a chunk waits where nothing hides them
    overlapped: NDArray[np.bool_]
    messages: tuple[Message, ...]
    pairs: tuple[Pair, ...]
    blocking: tuple[Array, Array] | None  # (pipes,) seconds of one inside a domain and across where a send waits for the other

    def pieces(self, wires: Wires, rows: NDArray[np.int64], at: NDArray[np.int64]) -> tuple[Term, ...]:
        """Return the collectives of one chunk's exchanges, of stage `at` of each row."""
        if self.blocking is not None:
            return ()
        size = self.sent.shape
        return tuple(
            wires.term(
                f"{m.op}",
                m.name,
                m.op,
                np.broadcast_to(m.nbytes, size)[rows],
                m.group.take(rows, size),
                exchanges=np.asarray(m.forward)[rows, at],
            )
            for m in self.messages
        )


def pipeline_sends(p: Pricer, layouts: Layouts, stages: Stages, forward: Array, backward: Array, *, by_place: bool) -> Sends:
    """Return what pipeline transfers add per micro-batch.

    Plain 1F1B sends and receives in one fused call in front of each forward and backward, exposed (Megatron forces
    overlap_p2p_comm off without virtual stages: training/arguments.py). Interleaved and bidirectional schedules
    transfer beside the next chunk's compute, once a chunk, so what shows is what a chunk is too short to hide, and the
    hops of the fill and the drain.

    A stage exchanges an activation and a gradient over each of its borders, the two at once, so plain 1F1B waits once a border: the
    first and the last stage for one, those between for two. Where several stages share a scale-up domain some borders leave it and others
    do not; where stages are not counted `by_place`, those between the ends have as many that leave as any of them.
    """
    shard, row_of = p.shard, p.shard.row_of
    # Without sequence parallelism each tensor-parallel rank still sends only its part, and the receivers gather the parts
    # over the scale-up link (Megatron's scatter-gather optimisation, arXiv:2104.04473, section 4.1).
    whole = ELEMENT * (shard.tokens * p.model.hidden)[row_of]
    part = whole / shard.tp[row_of]
    borders = Borders.of(layouts, stages, shard.domain[row_of], each=by_place)
    places = [Group(np.full_like(part, 2.0), np.full_like(part, local), borders.senders) for local in (2.0, 1.0)]
    inside, across = (p.rates.collective("send_recv", part, place) for place in places)
    each_way = np.where(borders.slow > 0, across.seconds[:, None], inside.seconds[:, None])
    waits = borders.waits(borders.slow, across.seconds, inside.seconds)
    shorter = waits - borders.waits(borders.fewest, across.seconds, inside.seconds)
    per_hop = np.divide(borders.staying * inside.seconds + borders.leaving * across.seconds, np.maximum(borders.all, 1.0))
    messages = [
        Message("send to the next stage in the domain", "send_recv", part, places[0], borders.fast, 0.0),
        Message("send to the next stage in another domain", "send_recv", part, places[1], borders.slow, 0.0),
    ]
    apart = ~shard.sp[row_of] & (shard.tp[row_of] > 1)
    if apart.any():
        parts = shard.tp_group
        gathered = p.rates.collective("all_gather", whole, Group(parts.size[row_of], parts.local[row_of]))
        each_way = each_way + np.where(apart, gathered.seconds, 0.0)[:, None]
        waits = waits + np.where(apart, gathered.seconds, 0.0)[:, None] * borders.of_a_stage
        per_hop = per_hop + np.where(apart, gathered.seconds, 0.0)
        whole_group = Group(parts.size[row_of], parts.local[row_of])
        messages.append(
            Message("all-gather of its parts", "all_gather", whole, whole_group, borders.of_a_stage * apart[:, None], 0.0)
        )
    on = layouts.pp > 1
    # GPipe sends all activations, then all gradients: each way waits on its own, for the slower border of a stage.
    gpipe = (layouts.schedule == SCHEDULES.index("gpipe"))[:, None] & (layouts.pp > 1)[:, None]
    least_way = np.where(borders.fewest > 0, across.seconds[:, None], inside.seconds[:, None])
    slow_way = np.where(borders.slow > 0, across.seconds[:, None], inside.seconds[:, None])
    shorter = np.where(gpipe, 2.0 * (slow_way - least_way), shorter)
    waits, exchanges = np.where(gpipe, 2.0 * each_way, waits), np.where(gpipe, 2.0, borders.of_a_stage)
    mean = waits / np.maximum(exchanges, 1.0)
    overlapped = (layouts.vpp > 1) | (layouts.schedule == SCHEDULES.index("dualpipe"))
    if p.workload.overlap_p2p is not None:
        overlapped = np.full(len(layouts), p.workload.overlap_p2p)
    v, each = np.asarray(layouts.vpp[:, None], dtype=np.float64), np.asarray(each_way, dtype=np.float64)
    beside = np.maximum(0.0, v * each - forward) + np.maximum(0.0, v * each - backward)
    lost = np.where((on & overlapped)[:, None], p.lost_s(v * each, forward) + p.lost_s(v * each, backward), 0.0)
    exposed = np.where(on[:, None], np.where(overlapped[:, None], beside, v * waits), 0.0)
    shorter = np.where(on & ~overlapped, 1.0, 0.0)[:, None] * v * shorter
    hops = np.where(on & overlapped, 2.0 * borders.all * per_hop, 0.0)
    source, blocking = (across if np.any(borders.leaving > 0) else inside).source, None
    if p.traits.sends is not None:
        alone = part / p.traits.sends
        blocking = alone, np.maximum(alone, across.seconds)
        exposed, least = (2.0 * borders.waits(n, blocking[1], alone) for n in (borders.slow, borders.fewest))
        shorter = exposed - least
        source = (
            across.source if np.any((blocking[1] > alone) & (borders.leaving > 0)) else "profile"
        )  # the network's, where it is what some send waits for
    times = 1.0 * (on & overlapped)[:, None] * np.ones_like(forward)
    pairs = (
        Pair("pipeline sends beside the forward", v * each * np.ones_like(forward), forward, times),
        Pair("pipeline sends beside the backward", v * each * np.ones_like(forward), backward, times),
    )
    each_way = np.where(overlapped[:, None], each_way, mean)
    return Sends(
        exposed + lost,
        exposed + lost - shorter,
        lost,
        hops,
        source,
        part,
        each_way,
        exchanges,
        overlapped,
        tuple(messages),
        pairs,
        blocking,
    )


@dataclasses.dataclass(frozen=True)
class Borders:
    """The borders between a pipeline's stages, and which of them leave a scale-up domain."""

    all: Array  # (pipes,)
    leaving: Array  # (pipes,)
    senders: Array  # (pipes,) share of a domain's GPUs that send over a border that leaves it
    slow: Array  # (pipes, stages) of the borders of a stage, those that leave: with virtual stages the last one meets the first again
    fast: Array  # (pipes, stages) those that do not
    fewest: Array  # (pipes, stages) the fewest that leave of any stage that one of these stands for

    def waits(self, slow: Array, across: Array, inside: Array) -> Array:
        """Return the seconds of one exchange over each border of a stage, `slow` of which leave: (pipes, stages)."""
        return np.asarray(slow * across[:, None] + (self.of_a_stage - slow) * inside[:, None])

    @property
    def of_a_stage(self) -> Array:
        """Borders of each stage: (pipes, stages)."""
        return self.slow + self.fast

    @property
    def staying(self) -> Array:
        """Borders that do not leave: (pipes,)."""
        return self.all - self.leaving

    @classmethod
    def of(cls, layouts: Layouts, stages: Stages, domain: Array, *, each: bool) -> Borders:
        """Return the borders of each pipe's stages where `domain` GPUs (pipes,) share a scale-up link.

        `each` stage has its own, or those between the ends are taken to have as many slow borders as any of them has (`send_by_place`).
        Pipelines follow each other, so some start at every multiple of g = gcd(GPUs of a pipeline, domain): a border leaves where a multiple of g lies
        behind the first rank of the stage above it and not behind the last one of the stage below.
        """
        apart, pp, at = axis_strides(layouts)["pp"], layouts.pp.astype(np.float64), stages.index
        start = np.gcd((apart * pp).astype(np.int64), domain.astype(np.int64)).astype(np.float64)

        def leaves(border: NDArray[Any], rows: Any = slice(None)) -> NDArray[np.bool_]:  # the one below stage `border`
            a, g = apart[rows, None], start[rows, None]
            inside = (border >= 0) & (border < pp[rows, None] - 1)
            return np.asarray(inside & (np.floor(((border + 2) * a - 1) / g) > np.floor(border * a / g)))

        every = np.maximum(start / apart, 1.0)
        leaving, most = np.floor((pp - 1.0) / every), np.where(start == apart, 2.0, 1.0)
        odd = np.flatnonzero(start % apart != 0)  # stages that do not divide a domain: their borders are looked at one by one
        if len(odd):
            found = 1.0 * leaves(np.arange(-1, layouts.pp[odd].max())[None, :], odd)
            leaving[odd], most[odd] = found.sum(axis=1), (found[:, 1:] + found[:, :-1]).max(axis=1)
        # A domain between two others sends an activation over one border and a gradient over the other.
        senders = np.minimum(apart * np.where(leaving > 1, 2.0, 1.0) / domain, 1.0)
        between, turns = (at > 0) & (at < pp[:, None] - 1), (layouts.vpp > 1)[:, None]
        both = np.where(between | turns, 2.0, 1.0) * (pp > 1)[:, None]
        some = (leaving > 0)[:, None]
        own = 1.0 * leaves(at - 1) + 1.0 * leaves(at)
        slow = own if each else np.where(between, most[:, None] * some, own)
        least = np.where(start % apart == 0, np.maximum(3.0 - every, 0.0), 0.0)[:, None] * some
        fewest = np.where(between, np.minimum(least, slow), own) if each and not stages.every else slow
        slow, fewest = (np.minimum(np.where(turns, 2.0 * some, n), both) for n in (slow, fewest))
        return cls(pp - 1.0, leaving, senders, np.asarray(slow), np.asarray(both - slow), np.asarray(fewest))
