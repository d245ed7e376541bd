"""Which layouts a search prices, in which order: the whole space, and what is worth trying around the best of it.

A tuned space is priced whole, and then full recompute on some layers wherever it could be among the best. A wide space has too
many combinations: first everything that costs no time to save memory, then recompute and offload on those of them
that could still be among the best, the most promising first. Recompute and offload only add to what the operations of a
pipeline take, and a timeline, the longest path through operations in a fixed order, only grows with them; so the least step of
a layout with nothing recomputed and nothing on the host holds for all that save memory on it, to within a tie (a stage that
copies more hides a little more of ZeRO-3's traffic; tests/search/test_wide.py). Over a pipeline one stage may show that traffic
and another one pace the rest, so there it is left out of the bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.estimate import price_time
from parlay.estimate.least import least_steps
from parlay.estimate.shard import distinct
from parlay.estimate.time import StepTime
from parlay.layouts.layout import Layouts
from parlay.layouts.rules import Question
from parlay.layouts.vocabulary import Recompute, recompute_bits
from parlay.search.combine import useful
from parlay.search.shortlist import TIE, Timelines
from parlay.search.space import Counted, Space, join, keep, layouts_of

CHUNK = 50_000  # rows priced at a time
FULL: tuple[Recompute, ...] = ("full",)


Asked = Generator[Layouts, NDArray[np.float64], None]  # yields layouts, and is sent the bytes that each holds too many


def explored(question: Question, space: Space, counted: Counted, timelines: Timelines) -> Asked:
    """Yield the layouts to price; what `timelines` has timed by then tells what could still be among the best."""
    counted.passes = 1
    if space.wide:
        counted.passes = 2
        yield from _promising(question, space, counted, timelines)
    elif space.refine and () in space.recompute and FULL in space.recompute and len(useful(question, space.recompute)) > 1:
        counted.passes = 2
        yield from _and_on_some_layers(question, space, counted, timelines)
    else:
        yield from layouts_of(question, space, counted)


def _and_on_some_layers(question: Question, space: Space, counted: Counted, timelines: Timelines) -> Asked:
    """Yield the space, and then full recompute on some layers wherever that fits and could be among the best.

    It can fit only where full recompute of all layers does, and matters only where no recompute does not. No step with some layers
    recomputed is shorter than the bound of the layout that recomputes none.
    """
    found: list[Layouts] = []
    bounds: list[NDArray[np.float64]] = []
    for x in layouts_of(question, space, counted):
        over = yield x
        plain = x.take(_between(x, over))
        if len(plain):
            time = price_time(question.model, question.cluster, question.workload, plain, timelines.rates)
            least = without_traffic(least_steps(time, timelines.limit_s * (1 + TIE)), time, plain)
            near = timelines.near(plain, least)
            found.append(plain.take(near))
            bounds.append(least[near])
    if not found:
        return
    savings = Savings.of(question, dataclasses.replace(space, recompute=((), FULL), recompute_layers=()))
    savings = savings.take(savings.layers > 0)
    yield from _saved(question, join(found), np.concatenate(bounds), savings, counted, timelines)


def _between(x: Layouts, over: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rows that recompute nothing and hold too much where the same layout with full recompute does not."""
    same = [f.name for f in dataclasses.fields(x) if f.name not in ("recompute", "recompute_layers")]
    columns = [np.asarray(getattr(x, name)) for name in same]
    _, group = distinct([(1e6 * c if c.dtype.kind == "f" else c).astype(np.int64) for c in columns])
    fits = np.zeros(len(x), dtype=bool)
    fits[group[(over <= 0) & x.recomputes("full")]] = True
    return np.flatnonzero((x.recompute == 0) & (over > 0) & fits[group])


def _promising(question: Question, space: Space, counted: Counted, timelines: Timelines) -> Asked:
    """Yield what spends no time to save memory, then recompute and offload on what could still be among the best."""
    found: list[Layouts] = []
    bounds: list[NDArray[np.float64]] = []
    for x in layouts_of(question, bare(space), counted):
        yield x
        time = price_time(question.model, question.cluster, question.workload, on_device(x), timelines.rates)
        least = without_traffic(least_steps(time, timelines.limit_s * (1 + TIE)), time, x)
        near = timelines.near(x, least)
        _leave_out(counted, len(x) - len(near))
        found.append(x.take(near))
        bounds.append(least[near])
    if found:
        yield from _saved(
            question, join(found), np.concatenate(bounds), Savings.of(question, space), counted, timelines, _leave_out
        )


def _saved(
    question: Question, x: Layouts, least: NDArray[np.float64], savings: Savings, counted: Counted, timelines: Timelines,
    leave_out: Callable[[Counted, int], None] = lambda counted, count: None,
) -> Asked:  # fmt: skip
    """Yield what `savings` makes of the layouts that could still be among the best, the most promising first."""
    order = np.argsort(least, kind="stable")
    x, least = x.take(order), least[order]
    each = max(1, CHUNK // max(1, savings.most))
    blocks: list[Layouts] = []
    counted.passed, counted.part = 1, 0.0
    for start in range(0, len(least), each):
        block, bound = x.take(slice(start, start + each)), least[start : start + each]
        near = timelines.near(block, bound)
        leave_out(counted, len(block) - len(near))
        blocks.append(keep(savings.on(block.take(near)), question, counted))
        counted.part = min(1.0, (start + each) / len(least))
        if sum(map(len, blocks)) >= CHUNK // 2:
            yield join(blocks)
            blocks = []
    if any(len(block) for block in blocks):
        yield join(blocks)


def without_traffic(least: NDArray[np.float64], time: StepTime, x: Layouts) -> NDArray[np.float64]:
    """Return bounds without the data-parallel traffic that a pipeline's stages hide layer by layer, which longer stages hide more of."""
    return np.asarray(least - np.where((x.zero >= 2) & (x.pp > 1), time.data.exposed, 0.0))


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

    def take(self, rows: NDArray[np.bool_]) -> Savings:
        """Return some of the combinations."""
        return Savings(self.recompute[rows], self.layers[rows], self.optimizer[rows], self.activations[rows], self.model_layers)

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
