"""Every combination of a space's axes on one grid of tp, cp, pp and dp, as arrays.

Axes that depend on each other are combined first (schedule with virtual stages and ends, ZeRO with shards, kind of context
parallelism with its inner degree), so that hardly a row is made only to break a rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parlay.layouts.layout import Layouts
from parlay.layouts.rules import Question, divisors
from parlay.layouts.split import BY_RULE, V_SHAPED, layers_of_stages
from parlay.layouts.vocabulary import CP_KINDS, ORDERS, SCHEDULES, Recompute, Schedule, recompute_bits
from parlay.search.balance import LIGHTER, lighter_last

if TYPE_CHECKING:
    from parlay.search.space import Space

Rows = list[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Combine:
    """The combinations of a space for one question, at most about `most` rows at a time."""

    question: Question
    space: Space
    most: int = 50_000

    @cached_property
    def recompute(self) -> Rows:
        """Sets of recomputed modules that differ on the model, as bits, each with whether it is full recompute."""
        return [(recompute_bits(modules), "full" in modules) for modules in useful(self.question, self.space.recompute)]

    @cached_property
    def pipes(self) -> dict[int, Rows]:
        """Virtual stages, schedule and ends of each number of stages, filled in as they are needed."""
        return {}

    def of(self, tp: int, cp: int, pp: int, dp: int) -> Iterator[Layouts]:
        """Yield every combination of the other axes on one grid."""
        space, question = self.space, self.question
        asked = space.asked.allowed
        per_rank = question.workload.global_batch // dp
        micro = [b for b in space.micro_batch if per_rank % b == 0] or [1]
        micro = [b for b in asked("micro_batch", micro) if per_rank // b >= space.asked.min_micro_batches]
        experts = question.experts
        if experts:
            ep = [e for e in (space.ep or divisors(experts[0].experts, most=1 << 12)) if (tp * cp * dp) % e == 0]
            etp = [e for e in space.etp if tp % e == 0 or e == 1]
        else:
            ep, etp = [1], [1]
        orders = space.order if pp > 1 and dp > 1 else space.order[:1]
        axes: list[tuple[tuple[str, ...], Rows]] = [
            (("ep",), _single(asked("ep", ep))),
            (("etp",), _single(asked("etp", etp))),
            (("vpp", "schedule", "first_layers", "last_layers"), self._pipes(pp)),
            (("micro_batch",), _single(micro)),
            (("zero", "shard"), self._states(tp, cp, dp)),
            (("cp_kind", "ulysses"), self._contexts(cp)),
            (("recompute", "recompute_layers"), []),
            (("sp", "tp_overlap"), self._tensors(tp)),
            (("ep_overlap",), _single(space.ep_overlap if experts else (False,))),
            (("offload_optimizer",), _single(asked("offload_optimizer", space.offload_optimizer))),
            (("offload_activations",), _single(asked("offload_activations", space.offload_activations))),
            (("order",), _single([ORDERS.index(o) for o in orders])),
        ]
        pipe, saved = 2, 6
        for pipes in self._groups(axes[pipe][1]):
            axes[saved] = (axes[saved][0], self._saved(pp, pipes[0][0]))
            each = int(np.prod([len(rows) for i, (_, rows) in enumerate(axes) if i != pipe], dtype=np.int64))
            if not each:
                continue
            step = max(1, self.most // each)
            for start in range(0, len(pipes), step):
                axes[pipe] = (axes[pipe][0], pipes[start : start + step])
                yield _mesh(axes, tp=tp, cp=cp, pp=pp, dp=dp)

    def _groups(self, pipes: Rows) -> list[Rows]:
        """Return the pipes whose chunks are equally long together, where the number of recomputed layers is open."""
        if self.space.recompute_layers or not any(full for _, full in self.recompute):
            return [pipes] if pipes else []
        return [[p for p in pipes if p[0] == v] for v in dict.fromkeys(p[0] for p in pipes)]

    def _pipes(self, pp: int) -> Rows:
        if pp not in self.pipes:
            self.pipes[pp] = list(dict.fromkeys(self._every_pipe(pp)))
        return self.pipes[pp]

    def _every_pipe(self, pp: int) -> Iterator[tuple[int, int, int, int]]:
        space, layers = self.space, self.question.model.layer_count
        most = max(1, (layers + 2) // pp) if pp > 1 else 1
        uneven = self.question.workload.framework == "megatron-core"
        virtual = list(space.vpp) or [v for v in range(1, most + 1) if v == 1 or _cuts(layers, pp, v, uneven)]
        lighter = lighter_last(self.question.model, self.question.workload.seq_len, pp)
        for v in space.asked.allowed("vpp", virtual):
            if pp == 1:
                yield (v, SCHEDULES.index("1f1b"), BY_RULE, BY_RULE)
                continue
            for schedule in space.schedule:
                if not runs(schedule, v):
                    continue
                for first, last in self._ends(pp, v, schedule, lighter):
                    yield (v, SCHEDULES.index(schedule), first, last)

    def _ends(self, pp: int, v: int, schedule: Schedule, lighter: int | None) -> Rows:
        """Return the layers of the first and last stage; a bound counts those that the split rule gives as well.

        Where a bound leaves none of the listed values, every number that it allows is offered.
        """
        space, model = self.space, self.question.model
        every = (BY_RULE, *range(max(0, model.layer_count - (pp - 1) * v) + 1))
        light = (lighter,) if lighter is not None and lighter >= v and schedule not in V_SHAPED else ()
        lasts = tuple(n for last in space.last_layers for n in (light if last == LIGHTER else (last,))) or every
        listed = {"first_layers": space.first_layers or every, "last_layers": lasts}
        bounded = {axis for axis in listed if any(b.axis == axis for b in (*space.asked.bounds, *space.asked.implied))}

        def within(first: int, last: int) -> bool:
            held = layers_of_stages(model.layer_count, pp, v, schedule, (first, last), 1 + model.mtp_layers)
            ends = {"first_layers": sum(held[0]), "last_layers": sum(held[-1])}
            return all(space.asked.allowed(axis, [count]) for axis, count in ends.items())

        for offered in (listed, {axis: every if axis in bounded else values for axis, values in listed.items()}):
            found = [(a, b) for a in offered["first_layers"] for b in offered["last_layers"] if not bounded or within(a, b)]
            if found:
                return found
        return []

    def _states(self, tp: int, cp: int, dp: int) -> Rows:
        """Return ZeRO stages with the GPUs of a shard: all of dp x cp below ZeRO-3."""
        from parlay.search.space import NODE

        space, ranks = self.space, dp * cp
        node = max(1, int(self.question.cluster.scale_up_gpus.value) // tp)
        sizes = [{NODE: node}.get(s, s) or ranks for s in space.shard]
        if not space.shard:
            whole = cp if self.question.workload.framework == "torchtitan" else 1
            sizes = [d for d in divisors(ranks, most=1 << 20) if d % whole == 0 and (d > 1 or ranks == 1)]
        elif len(sizes) > 1:  # of several, those that this grid has not are left out; a single one is held to the rules
            sizes = [s for s in sizes if ranks % s == 0 and s % cp == 0 and s > 1] or [ranks]
        states = [(z, s) for z in space.asked.allowed("zero", space.zero) for s in (dict.fromkeys(sizes) if z == 3 else (ranks,))]
        return [(z, s) for z, s in states if space.asked.allowed("shard", [s])]

    def _contexts(self, cp: int) -> Rows:
        space = self.space
        if cp == 1:
            return [(CP_KINDS.index("zigzag"), 1)]
        inner = space.ulysses or tuple(d for d in divisors(cp)[1:] if d < cp)
        return [(CP_KINDS.index(k), u) for k in space.cp_kind for u in (inner if k == "usp" else (1,))]

    def _saved(self, pp: int, virtual: int) -> Rows:
        """Return what is recomputed: sets of modules, and full recompute on some or all layers of each chunk."""
        longest = -(-(self.question.model.layer_count + 2) // (pp * virtual))
        layers = self.space.recompute_layers or tuple(range(longest))
        layers = tuple(self.space.asked.allowed("recompute_layers", layers))
        zero = tuple(self.space.asked.allowed("recompute_layers", (0,)))
        return [(bits, n) for bits, full in self.recompute for n in (layers if full else zero)]

    def _tensors(self, tp: int) -> Rows:
        """Return sequence parallelism with the overlap of tensor-parallel traffic, which needs it."""
        if tp == 1:
            return [(False, False)]
        return list(dict.fromkeys((sp, sp and overlap) for sp in self.space.sp for overlap in self.space.tp_overlap))


def runs(schedule: Schedule, virtual: int) -> bool:
    """Return whether a schedule runs with so many chunks on each stage."""
    if schedule in V_SHAPED:
        return virtual == 2
    return virtual > 1 if schedule == "interleaved" else virtual == 1 or schedule == "bfs"


def useful(question: Question, choices: Sequence[tuple[Recompute, ...]]) -> list[tuple[Recompute, ...]]:
    """Return the recompute choices that differ on this model: modules that it lacks are left out."""
    has: set[str] = {"full", "core_attention", "norm", "selective_ops"}
    for kind in question.model.kinds.values():
        if question.workload.framework == "hai-llm" and kind.mlp.kind == "dense":
            has.add("mlp_activation")
        has |= {"mla_up"} if kind.mixer.kind == "mla" else set()
        if kind.mlp.kind == "moe":
            has |= {"moe", "mlp_activation"} | ({"shared_experts"} if kind.mlp.shared_width else set())
        elif kind.mlp.kind == "dense":
            has |= {"mlp"}
    found: list[tuple[Recompute, ...]] = []
    for modules in choices:
        kept = tuple(m for m in modules if m in has)
        if (kept or not modules) and kept not in found:
            found.append(kept)
    return found


def _cuts(layers: int, pp: int, virtual: int, uneven: bool) -> bool:
    """Return whether virtual stages are worth trying: equal ones, or uneven ones of which no smaller number is as short."""
    chunks = pp * virtual
    if pp == 1 or layers % chunks == 0 or (layers + 2) % chunks == 0:
        return pp > 1
    longest = -(-(layers + 2) // chunks)
    return uneven and longest < -(-(layers + 2) // (chunks - pp)) and chunks <= layers


def _single(values: Sequence[Any]) -> Rows:
    return [(v,) for v in values]


_TYPES = {"sp": bool, "tp_overlap": bool, "ep_overlap": bool, "offload_optimizer": float, "offload_activations": float}


def _mesh(axes: list[tuple[tuple[str, ...], Rows]], **grid: int) -> Layouts:
    """Return every combination of the rows of all axes; an axis gives one column for each of its names."""
    shape = tuple(len(rows) for _, rows in axes)
    size = int(np.prod(shape, dtype=np.int64))
    columns: dict[str, Any] = {name: np.full(size, value, dtype=np.int64) for name, value in grid.items()}
    for i, (names, rows) in enumerate(axes):
        along = tuple(n if i == k else 1 for k, n in enumerate(shape))
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            column = np.asarray(values, dtype=_TYPES.get(name, np.int64)).reshape(along)
            columns[name] = np.broadcast_to(column, shape).ravel()
    return Layouts(**columns)
