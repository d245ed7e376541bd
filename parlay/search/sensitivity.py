"""What would help: the single change of a layout that gains most, and what faster hardware would bring.

Faster hardware is a faster kind of work, as reached, not as printed: +10 % FLOP/s makes every matrix product and attention
kernel take 1/1.1 of its time, +10 % of a link every collective on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from parlay.estimate.estimate import Estimate, estimate, price_memory, price_time
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import Question, broken_rules
from parlay.layouts.split import V_SHAPED
from parlay.rates.interface import Beside, Collective, Group, HostDirection, Priced, Rates, Stream

GAIN = 0.10  # how much faster each kind of work is made
TIMED = 2  # changes of each kind that are timed operation by operation
LEAST = 0.005  # of a step: smaller gains are not worth a change


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One change of a layout, the share of the step that it saves, and memory that it lacks (0 where it fits)."""

    words: str
    layout: Layout
    gain: float
    over_bytes: float


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """The share of the step that one kind of work saves when it runs 10 % faster."""

    what: str
    gain: float


@dataclasses.dataclass(frozen=True, slots=True)
class Faster:
    """Rates with some kinds of work faster by a factor each."""

    base: Rates
    products: float = 1.0
    streams: float = 1.0
    inside: float = 1.0  # collectives inside a scale-up domain
    between: float = 1.0  # collectives that leave it

    @property
    def name(self) -> str:
        """Return the name of the rates below."""
        return self.base.name

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Seconds of one product."""
        return _over(self.base.gemm(m, n, k, dtype, accumulate=accumulate), self.products)

    def grouped_gemm(
        self, rows: ArrayLike, groups: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, fused: bool = True,
        weight_gradient: bool = False,
    ) -> Priced:  # fmt: skip
        """Seconds of grouped products."""
        return _over(
            self.base.grouped_gemm(rows, groups, n, k, dtype, fused=fused, weight_gradient=weight_gradient), self.products
        )

    def attention(
        self, queries: ArrayLike, keys: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, qk_dim: ArrayLike, v_dim: ArrayLike, *,
        score_share: ArrayLike, batch: ArrayLike = 1, backward: bool = False, dtype: str = "bf16",
    ) -> Priced:  # fmt: skip
        """Seconds of fused attention."""
        found = self.base.attention(
            queries, keys, heads, kv_heads, qk_dim, v_dim, score_share=score_share, batch=batch, backward=backward, dtype=dtype
        )
        return _over(found, self.products)

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Seconds of a bandwidth-bound kernel."""
        return _over(self.base.stream(nbytes, kind), self.streams)

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Seconds of a collective, on the link where its group lies."""
        found = self.base.collective(op, nbytes, group)
        factor = np.where(np.asarray(group.size) > np.asarray(group.local), self.between, self.inside)
        return Priced(np.asarray(found.seconds / factor), found.source)

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Seconds of a copy between a GPU and its host."""
        return self.base.host_copy(nbytes, direction)

    def launch(self) -> Priced:
        """Seconds between two short kernels."""
        return self.base.launch()

    def beside(self) -> Beside | None:
        """How much compute and a transfer hold each other up."""
        return self.base.beside()

    def describe(self) -> dict[str, str]:
        """Where the rates below come from."""
        return self.base.describe()


def _over(found: Priced, factor: float) -> Priced:
    return Priced(np.asarray(found.seconds / factor), found.source)


KINDS = {"FLOP/s": "products", "HBM": "streams", "scale-up link": "inside", "network": "between"}


def sensitivities(e: Estimate, rates: Rates) -> tuple[Sensitivity, ...]:
    """Return what 10 % more FLOP/s, HBM, scale-up link and network would save of the step, the layout kept."""

    def step(r: Rates) -> float:
        return estimate(e.model, e.cluster, e.workload, e.layout, rates=r).step_s

    base, faster = step(rates), 1.0 + GAIN
    return tuple(Sensitivity(what, 1.0 - step(Faster(rates, **{field: faster})) / base) for what, field in KINDS.items())


def single_changes(layout: Layout, layers: int) -> Iterator[tuple[str, Layout]]:
    """Yield each change worth trying, with the layout it makes; whether it may run is for the rules to say."""
    x = layout
    for words, fields in _degrees(x, layers):
        yield words, x.model_copy(update=fields)
    if x.recompute:
        yield "no recompute", x.model_copy(update={"recompute": (), "recompute_layers": 0})
        yield (
            "recompute norms and activations only",
            x.model_copy(update={"recompute": ("norm", "mlp_activation"), "recompute_layers": 0}),
        )
    for axis, on in (("tp", x.tp > 1), ("ep", x.ep > 1)):
        if on:
            flag = f"{axis}_overlap"
            now = getattr(x, flag)
            yield f"{axis} overlap {'off' if now else 'on'}", x.model_copy(update={flag: not now})


def _degrees(x: Layout, layers: int) -> Iterator[tuple[str, dict[str, object]]]:
    yield f"micro-batch {2 * x.micro_batch}", {"micro_batch": 2 * x.micro_batch}
    if x.micro_batch % 2 == 0:
        yield f"micro-batch {x.micro_batch // 2}", {"micro_batch": x.micro_batch // 2}
    if x.pp > 1 and x.schedule not in V_SHAPED:
        for vpp in (v for v in range(1, layers // x.pp + 1) if v != x.vpp and (v == 1 or layers % (x.pp * v) == 0)):
            yield f"vpp {vpp}", {"vpp": vpp, "schedule": None}
    for axis in ("tp", "cp", "pp"):
        degree = getattr(x, axis)
        if degree % 2 == 0:
            yield f"{axis} {degree // 2}, dp {2 * x.dp}", {axis: degree // 2, "dp": 2 * x.dp, **_open(x)}
        if x.dp % 2 == 0:
            yield f"{axis} {2 * degree}, dp {x.dp // 2}", {axis: 2 * degree, "dp": x.dp // 2, **_open(x)}
    yield f"ep {2 * x.ep}", {"ep": 2 * x.ep}
    if x.ep % 2 == 0:
        yield f"ep {x.ep // 2}", {"ep": x.ep // 2}


def _open(x: Layout) -> dict[str, object]:
    """Return the fields that follow from the degrees, left open again."""
    return {"sp": None, "shard": None, "schedule": x.schedule if x.schedule in V_SHAPED else None}


def most_helpful(e: Estimate, rates: Rates, *, headroom_bytes: float = 0.0) -> Change | None:
    """Return the valid single change that saves most of the step: one that fits, else one that lacks memory, else None.

    All changes are ranked by the search's closed forms; the best TIMED of those that fit, and of the others, are then
    timed as the layouts that are shown are, and those figures count.
    """
    named = list(single_changes(e.layout, e.model.layer_count))
    layouts = Layouts.of([x for _, x in named])
    broken = np.any(list(broken_rules(layouts, Question(e.model, e.cluster, e.workload, e.gpus)).values()), axis=0)
    named, layouts = [n for n, bad in zip(named, broken, strict=True) if not bad], layouts.take(~broken)
    if not named:
        return None
    step = price_time(e.model, e.cluster, e.workload, layouts, rates).step
    held = price_memory(e.model, e.cluster, e.workload, layouts)
    over = np.maximum(held.peak - (held.limit_bytes - headroom_bytes), 0.0)
    for able in (over == 0.0, over > 0.0):
        found = []
        for i in [int(i) for i in np.argsort(step) if able[i]][:TIMED]:
            exact = estimate(e.model, e.cluster, e.workload, named[i][1], rates=rates).step_s
            found.append(Change(*named[i], 1.0 - exact / e.step_s, float(over[i])))
        best = max(found, key=lambda c: c.gain, default=None)
        if best and best.gain > LEAST:
            return best
    return None
