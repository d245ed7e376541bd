"""Which layouts a search prices, in which order: the whole space, and what is worth trying around the best of it.

A tuned space is priced whole, and then full recompute on some layers is tried on the best grids. A wide space has too
many combinations: first everything that costs no time to save memory, then recompute and offload on those of them
that could still be among the best, the most promising first. Recompute and offload only add to what the operations of a
pipeline take, and a timeline, the longest path through operations in a fixed order, only grows with them; so the least step of
a layout with nothing recomputed and nothing on the host holds for all that save memory on it, to within a tie (a stage that
copies more hides a little more of ZeRO-3's traffic; tests/search/test_wide.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.estimate.least import least_steps
from parlay.layouts.layout import Layouts
from parlay.layouts.rules import Question
from parlay.layouts.vocabulary import Recompute, recompute_bits
from parlay.search.combine import useful
from parlay.search.shortlist import GRID, TIE, Timelines
from parlay.search.space import Counted, Space, join, keep, layouts_of

Best = Callable[[], Layouts | None]  # the fastest rows so far by closed form, if there are any

CHUNK = 50_000  # rows priced at a time
REFINED = 16  # grids on which full recompute on some layers is tried
FULL: tuple[Recompute, ...] = ("full",)


def explored(question: Question, space: Space, counted: Counted, best: Best, timelines: Timelines) -> Iterator[Layouts]:
    """Yield the layouts to price; `best` tells what has been found by then."""
    if space.wide:
        yield from _promising(question, space, counted, timelines)
        return
    yield from layouts_of(question, space, counted)
    yield from _on_some_layers(question, space, counted, best)


def _on_some_layers(question: Question, space: Space, counted: Counted, best: Best) -> Iterator[Layouts]:
    """Yield full recompute on some layers for each grid of the best rows, where the space leaves this open."""
    found = best()
    if not space.refine or found is None or FULL not in space.recompute or len(useful(question, space.recompute)) < 2:
        return
    rows = np.stack([getattr(found, name) for name in (*GRID, "zero")], axis=1)  # fastest first
    grids = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])[:REFINED]]
    blocks = []
    ep_overlap = (False,) if False in space.ep_overlap else space.ep_overlap
    some = dataclasses.replace(space, recompute=(FULL,), recompute_layers=(), ep_overlap=ep_overlap)
    for tp, cp, pp, dp, ep, etp, zero in grids.tolist():
        few = dataclasses.replace(some, tp=(tp,), cp=(cp,), pp=(pp,), dp=(dp,), ep=(ep,), etp=(etp,), zero=(zero,))
        for x in layouts_of(question, few, counted):
            new = x.recompute_layers > 0
            counted.considered -= int((~new).sum())
            blocks.append(x.take(new))
    blocks = [b for b in blocks if len(b)]
    if blocks:
        yield join(blocks)


def _promising(question: Question, space: Space, counted: Counted, timelines: Timelines) -> Iterator[Layouts]:
    """Yield what spends no time to save memory, then recompute and offload on what could still be among the best."""
    found: list[Layouts] = []
    bounds: list[NDArray[np.float64]] = []
    for x in layouts_of(question, bare(space), counted):
        yield x
        time = price_time(question.model, question.cluster, question.workload, on_device(x), timelines.rates)
        least = least_steps(time, timelines.limit_s * (1 + TIE))
        near = timelines.near(x, least)
        _leave_out(counted, len(x) - len(near))
        found.append(x.take(near))
        bounds.append(least[near])
    if not found:
        return
    everything, least = join(found), np.concatenate(bounds)
    order = np.argsort(least, kind="stable")
    everything, least = everything.take(order), least[order]
    savings = Savings.of(question, space)
    each = max(1, CHUNK // max(1, savings.most))
    blocks: list[Layouts] = []
    for start in range(0, len(least), each):
        block, bound = everything.take(slice(start, start + each)), least[start : start + each]
        near = timelines.near(block, bound)
        _leave_out(counted, len(block) - len(near))
        blocks.append(keep(savings.on(block.take(near)), question, counted))
        if sum(map(len, blocks)) >= CHUNK // 2:
            yield join(blocks)
            blocks = []
    if any(len(block) for block in blocks):
        yield join(blocks)


def on_device(x: Layouts) -> Layouts:
    """Return the layouts with nothing on the host: less recompute keeps more, and so copies more of a share that must go there."""
    if not (x.offload_activations.any() or x.offload_optimizer.any()):
        return x
    nothing = np.zeros(len(x))
    return dataclasses.replace(x, offload_activations=nothing, offload_optimizer=nothing)


def _leave_out(counted: Counted, count: int) -> None:
    counted.considered += count
    counted.reject("slower", count)


def _without_recompute(space: Space) -> bool:
    """Return whether the space allows no recompute at all; else what is recomputed is not left for later."""
    return () in space.recompute and bool(space.asked.allowed("recompute_layers", (0,)))


def bare(space: Space) -> Space:
    """Return the space with the least that it allows to be spent on saving memory."""
    return dataclasses.replace(
        space,
        recompute=((),) if _without_recompute(space) else space.recompute,
        offload_optimizer=(min(space.offload_optimizer),),
        offload_activations=(min(space.offload_activations),),
    )


@dataclasses.dataclass(frozen=True)
class Savings:
    """What a space allows to be spent on saving memory beyond the least, as columns of equal length."""

    recompute: NDArray[np.int64]
    layers: NDArray[np.int64]
    optimizer: NDArray[np.float64]
    activations: NDArray[np.float64]
    model_layers: int

    @property
    def most(self) -> int:
        """Rows that one layout turns into, at most."""
        return len(self.recompute)

    @classmethod
    def of(cls, question: Question, space: Space) -> Savings:
        """Return every combination but the least; a combination of full recompute for each number of layers."""
        layers, asked = question.model.layer_count, space.asked.allowed
        counts = asked("recompute_layers", space.recompute_layers or range(layers + 2))
        none = asked("recompute_layers", (0,))
        saved = [(recompute_bits(m), n) for m in useful(question, space.recompute) for n in (counts if m == FULL else none)]
        if not _without_recompute(space):
            saved = []  # nothing is added to what the least recomputes already
        rows = [
            (bits, n, o, a)
            for bits, n in saved or [(-1, 0)]
            for o in asked("offload_optimizer", space.offload_optimizer)
            for a in asked("offload_activations", space.offload_activations)
        ]
        least = (0 if saved else -1, 0, min(space.offload_optimizer), min(space.offload_activations))
        table = np.array([r for r in rows if r != least] or np.zeros((0, 4)), dtype=np.float64).reshape(-1, 4).T
        return cls(table[0].astype(np.int64), table[1].astype(np.int64), table[2], table[3], layers)

    def on(self, x: Layouts) -> Layouts:
        """Return every layout of `x` with every combination; numbers of layers that a chunk does not have are left out."""
        rows, which = np.repeat(np.arange(len(x)), self.most), np.tile(np.arange(self.most), len(x))
        longest = -(-(self.model_layers + 2) // (x.pp * x.vpp))
        fits = self.layers[which] < longest[rows]
        rows, which = rows[fits], which[fits]
        many = x.take(rows)
        bits = self.recompute[which]
        return dataclasses.replace(
            many,
            recompute=np.where(bits < 0, many.recompute, bits),
            recompute_layers=np.where(bits < 0, many.recompute_layers, self.layers[which]),
            offload_optimizer=self.optimizer[which],
            offload_activations=self.activations[which],
        )
