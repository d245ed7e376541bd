"""Enumerates the layouts of a cluster size as arrays, axis by axis, dropping rows that break a rule as early as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import RULES, Question, divisors
from parlay.layouts.rules_shapes import BALANCED
from parlay.layouts.split import BY_RULE
from parlay.layouts.vocabulary import CP_KINDS, DEFAULT_ORDER, Axis, CpKind, Recompute, Schedule
from parlay.search.balance import LIGHTER
from parlay.search.combine import Combine
from parlay.search.constraints import ANYTHING, Constraints

Ints = NDArray[np.int64]

ALL, NODE = 0, -1  # values of `shard`: every dp x cp rank, and those that share a scale-up domain

HOW = frozenset({"asked", "refine", "wide", "overlap_if_it_fits"})  # fields of a Space that are no axes


@dataclasses.dataclass(frozen=True)
class Space:
    """The values each axis may take. Empty tuples stand for "whatever the rules allow".

    An axis that means nothing somewhere (a schedule without a pipeline, a shard below ZeRO-3) takes its default there.
    """

    tp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    etp: tuple[int, ...] = (1,)
    vpp: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = (1, 2, 4, 8)
    zero: tuple[int, ...] = (1,)
    cp_kind: tuple[CpKind, ...] = ("zigzag",)
    recompute: tuple[tuple[Recompute, ...], ...] = ((), ("mlp_activation", "norm", "mla_up"), ("full",))
    tp_overlap: tuple[bool, ...] = (False,)
    ep_overlap: tuple[bool, ...] = (False,)
    offload_optimizer: tuple[float, ...] = (0.0,)
    first_layers: tuple[int, ...] = (BY_RULE,)  # of the first stage; () = every number
    last_layers: tuple[int, ...] = (BY_RULE, LIGHTER)
    sp: tuple[bool, ...] = (True,)
    schedule: tuple[Schedule, ...] = ("1f1b", "interleaved")
    shard: tuple[int, ...] = (ALL,)  # GPUs of a ZeRO-3 shard (HSDP), ALL or NODE; () = every divisor of dp x cp
    recompute_layers: tuple[int, ...] = (0,)  # of each chunk, with full; 0 = all; () = every number
    offload_activations: tuple[float, ...] = (0.0,)
    ulysses: tuple[int, ...] = ()  # inner degree of usp; () = every divisor of cp but 1 and cp
    order: tuple[tuple[Axis, ...], ...] = (DEFAULT_ORDER,)
    overlap_if_it_fits: bool = False  # price tp_overlap off too where its buffers are all that does not fit
    refine: bool = False  # price full recompute on some layers too, wherever it could be among the best
    wide: bool = False  # price recompute and offload only where they could still be among the best
    asked: Constraints = ANYTHING

    def open(self, asked: Constraints) -> Space:
        """Return the space within `asked`; an axis of which no listed value is left offers all its values that are."""
        kept: dict[str, Any] = {"asked": asked}
        for axis, more in WIDER.items():
            listed = getattr(self, axis)
            kept[axis] = tuple(asked.allowed(axis, listed)) or tuple(asked.allowed(axis, more)) or listed
        kept |= {axis: () for axis in OPENED if any(b.axis == axis for b in asked.bounds)}
        return dataclasses.replace(self, **kept)


WIDER: dict[str, tuple[float, ...]] = {
    "zero": (0, 1, 2, 3), "micro_batch": (1, 2, 4, 8, 16, 32, 64), "etp": (1, 2, 4, 8), "offload_optimizer": (0.0, 0.5, 1.0),
    "offload_activations": (0.0, 0.5, 1.0),
}  # fmt: skip
OPENED = ("shard", "recompute_layers")  # a bound on one of these offers every value


@dataclasses.dataclass
class Counted:
    """How many layouts were looked at, and how many each rule rejected (a layout counts once, at its first rule)."""

    considered: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    part: float = (
        0.0  # of what is gone through now, how much is done: of the grids that keep the rules, then of the layouts tried again
    )
    passes: int = 1  # over layouts: a second one saves memory on those that could be among the best
    passed: int = 0
    examples: dict[str, Layout] = dataclasses.field(default_factory=dict)  # one layout that a rule rejected, by rule

    @property
    def share(self) -> float:
        """How much of the whole search is done."""
        return (self.passed + self.part) / self.passes

    def reject(self, reason: str, count: int) -> None:
        """Add `count` rejected layouts to `reason`."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count

    def remember(self, reason: str, layouts: Layouts, broken: NDArray[np.bool_]) -> None:
        """Keep the first of the rejected layouts as an example of the rule."""
        if reason not in self.examples and broken.any():
            self.examples[reason] = layouts.one(int(np.argmax(broken)))


def grids(question: Question, space: Space) -> Ints:
    """Return the (tp, cp, pp, dp) grids whose product is the GPU count, one row each, within what `space` allows."""
    gpus = question.gpus
    divs = divisors(gpus, most=1 << 20)
    widest = int(question.cluster.scale_up_gpus.value)
    rows = []
    asked = space.asked.allowed
    for tp in asked("tp", space.tp or [d for d in divs if d <= widest]):
        for cp in asked("cp", space.cp or [d for d in divs if d <= max(1, question.workload.seq_len // 256)]):
            for pp in asked("pp", space.pp or [d for d in divs if d <= question.model.layer_count + 2]):
                dp, rest = divmod(gpus, tp * cp * pp)
                if rest == 0 and dp and (not space.dp or dp in space.dp) and asked("dp", [dp]):
                    rows.append((tp, cp, pp, dp))
    return np.asarray(rows, dtype=np.int64).reshape(-1, 4)


def layouts_of(question: Question, space: Space, counted: Counted, *, chunk: int = 50_000) -> Iterator[Layouts]:
    """Yield the layouts of `space` that keep every rule, about `chunk` rows at a time: small enough for the cache."""
    batch: list[Layouts] = []
    held = 0
    rows = list(_reasonable(question, space, counted))
    combine = Combine(question, space, chunk)
    for done, row in enumerate(rows):
        for block in combine.of(*(int(x) for x in row)):
            batch.append(block)
            held += len(block)
            if held >= chunk:
                counted.part = (done + 1) / len(rows)
                yield from _kept(batch, question, counted)
                batch, held = [], 0
    counted.part = 1.0
    yield from _kept(batch, question, counted)


def _kept(batch: list[Layouts], question: Question, counted: Counted) -> Iterator[Layouts]:
    if batch:
        kept = keep(join(batch), question, counted)
        if len(kept):
            yield kept


def _reasonable(question: Question, space: Space, counted: Counted) -> Iterator[Ints]:
    """Yield the grids that keep the rules that depend on tp, cp, pp and dp alone, counting the others."""
    grid = grids(question, space)
    if not len(grid):
        return
    # The axis values that cut the sequence into the fewest parts: what breaks a rule with these breaks it with any.
    kind = next((k for k in space.cp_kind if k not in BALANCED), "zigzag")
    sp = (grid[:, 0] > 1) & (False not in space.sp)
    plain = Layouts.grid(tp=grid[:, 0], cp=grid[:, 1], pp=grid[:, 2], dp=grid[:, 3], cp_kind=CP_KINDS.index(kind), sp=sp)
    kept = np.ones(len(grid), dtype=bool)
    early = {"heads", "kv_heads", "kv_copies", "width", "scale_up", "batch", "sequence", "layers"}
    for rule in RULES:
        if rule.name in early:
            broken = rule.broken(plain, question) & kept
            counted.reject(rule.name, int(broken.sum()))
            counted.remember(rule.name, plain, broken)
            kept &= ~broken
    counted.considered += int((~kept).sum())
    yield from grid[kept]


def keep(layouts: Layouts, question: Question, counted: Counted) -> Layouts:
    """Return the rows that keep every rule, counting the others."""
    counted.considered += len(layouts)
    kept = np.ones(len(layouts), dtype=bool)
    for rule in RULES:
        broken = rule.broken(layouts, question) & kept
        if broken.any():
            counted.reject(rule.name, int(broken.sum()))
            counted.remember(rule.name, layouts, broken)
            kept &= ~broken
    return layouts if kept.all() else layouts.take(kept)


def join(blocks: list[Layouts]) -> Layouts:
    """Return the rows of all blocks, one after the other."""
    return Layouts(**{f.name: np.concatenate([getattr(b, f.name) for b in blocks]) for f in dataclasses.fields(Layouts)})
