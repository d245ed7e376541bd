"""Enumerates the layouts of a cluster size as arrays, axis by axis, dropping rows that break a rule as early as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError, nearest
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import RULES, Question, divisors
from parlay.layouts.vocabulary import CP_KINDS, CpKind, Recompute, recompute_bits
from parlay.search.balance import lighter_last
from parlay.search.constraints import ANYTHING, Constraints
from parlay.specfile import validate

Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Space:
    """The values each axis may take. Empty tuples stand for "whatever the rules allow"."""

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
    last_layers: tuple[int, ...] = ()  # of the last stage; 0 = by the split rule
    asked: Constraints = ANYTHING

    def open(self, asked: Constraints) -> Space:
        """Return the space within `asked`; an axis of which no listed value is left offers all its values that are."""
        kept: dict[str, Any] = {"asked": asked}
        for axis, more in WIDER.items():
            listed = getattr(self, axis)
            kept[axis] = tuple(asked.allowed(axis, listed)) or tuple(asked.allowed(axis, more)) or listed
        return dataclasses.replace(self, **kept)


WIDER: dict[str, tuple[float, ...]] = {
    "zero": (0, 1, 2, 3), "micro_batch": (1, 2, 4, 8, 16, 32, 64), "etp": (1, 2, 4, 8), "offload_optimizer": (0.0, 0.5, 1.0),
}  # fmt: skip


@dataclasses.dataclass
class Counted:
    """How many layouts were looked at, and how many each rule rejected (a layout counts once, at its first rule)."""

    considered: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    share: float = 0.0  # of the grids that keep the rules, how many are done

    def reject(self, reason: str, count: int) -> None:
        """Add `count` rejected layouts to `reason`."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count


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
    rows = list(_reasonable(question, grids(question, space), counted))
    recompute = [recompute_bits(modules) for modules in _useful(question, space)]
    lighter = {pp: lighter_last(question.model, question.workload.seq_len, pp) for pp in {int(row[2]) for row in rows}}
    for done, row in enumerate(rows):
        block = _expand(question, space, row, recompute, lighter)
        batch.append(block)
        held += len(block)
        if held >= chunk:
            counted.share = (done + 1) / len(rows)
            yield from _kept(batch, question, counted)
            batch, held = [], 0
    counted.share = 1.0
    yield from _kept(batch, question, counted)


def _kept(batch: list[Layouts], question: Question, counted: Counted) -> Iterator[Layouts]:
    if batch:
        kept = _keep(join(batch), question, counted)
        if len(kept):
            yield kept


def _reasonable(question: Question, grid: Ints, counted: Counted) -> Iterator[Ints]:
    """Yield the grids that keep the rules that depend on tp, cp, pp and dp alone, counting the others."""
    if not len(grid):
        return
    plain = Layouts.grid(tp=grid[:, 0], cp=grid[:, 1], pp=grid[:, 2], dp=grid[:, 3])
    kept = np.ones(len(grid), dtype=bool)
    early = {"heads", "kv_heads", "kv_copies", "width", "scale_up", "batch", "sequence", "layers"}
    for rule in RULES:
        if rule.name in early:
            broken = rule.broken(plain, question) & kept
            counted.reject(rule.name, int(broken.sum()))
            kept &= ~broken
    counted.considered += int((~kept).sum())
    yield from grid[kept]


def _expand(question: Question, space: Space, grid: Ints, recompute: list[int], lighter: dict[int, int]) -> Layouts:
    """Return every combination of the remaining axes on one grid; `lighter` gives the last stage's layers by stages."""
    tp, cp, pp, dp = (int(x) for x in grid)
    layers = question.model.layer_count
    per_rank = question.workload.global_batch // dp
    asked = space.asked.allowed
    micro = [b for b in space.micro_batch if per_rank % b == 0] or [1]
    micro = [b for b in asked("micro_batch", micro) if per_rank // b >= space.asked.min_micro_batches]
    experts = question.experts
    stage = tp * cp * dp
    if experts:
        ep = [e for e in (space.ep or divisors(experts[0].experts, most=1 << 12)) if stage % e == 0]
        etp = [e for e in space.etp if tp % e == 0 or e == 1]
    else:
        ep, etp = [1], [1]
    most_virtual = max(1, (layers + 2) // pp) if pp > 1 else 1
    uneven = question.workload.framework == "megatron-core"
    virtual = [v for v in (space.vpp or range(1, most_virtual + 1)) if v == 1 or _cuts(layers, pp, v, uneven)]
    kinds = [CP_KINDS.index(k) for k in space.cp_kind] if cp > 1 else [CP_KINDS.index("zigzag")]
    last = space.last_layers or tuple({0, lighter[pp]})
    axes = [
        np.asarray(a)
        for a in (
            asked("ep", ep), asked("etp", etp), asked("vpp", virtual), micro, asked("zero", space.zero), kinds, recompute,
            space.tp_overlap if tp > 1 else (False,), space.ep_overlap if experts else (False,),
            asked("offload_optimizer", space.offload_optimizer), last if pp > 1 else (0,),
        )
    ]  # fmt: skip
    names = (
        "ep", "etp", "vpp", "micro_batch", "zero", "cp_kind", "recompute", "tp_overlap", "ep_overlap", "offload_optimizer",
        "last_layers",
    )  # fmt: skip
    mesh = dict(zip(names, np.meshgrid(*axes, indexing="ij", copy=False), strict=True))
    if not space.last_layers and pp > 1:
        # With virtual stages a short last stage makes rounds uneven, which the closed form that ranks does not see.
        sound = (mesh["last_layers"] == 0) | (mesh["vpp"] == 1)
        mesh = {name: column[sound] for name, column in mesh.items()}
    return Layouts.grid(tp=np.full_like(mesh["ep"], tp, dtype=np.int64), cp=cp, pp=pp, dp=dp, **mesh)


def _cuts(layers: int, pp: int, virtual: int, uneven: bool) -> bool:
    """Return whether virtual stages are worth trying: equal ones, or uneven ones of which no smaller number is as short."""
    chunks = pp * virtual
    if pp == 1 or layers % chunks == 0 or (layers + 2) % chunks == 0:
        return pp > 1
    longest = -(-(layers + 2) // chunks)
    return uneven and longest < -(-(layers + 2) // (chunks - pp)) and chunks <= layers


def _useful(question: Question, space: Space) -> list[tuple[Recompute, ...]]:
    """Return the recompute choices that differ on this model: modules that it lacks are left out."""
    has: set[str] = {"full", "core_attention", "norm", "selective_ops"}
    for kind in question.model.kinds.values():
        has |= {"mla_up"} if kind.mixer.kind == "mla" else set()
        if kind.mlp.kind == "moe":
            has |= {"moe", "mlp_activation"} | ({"shared_experts"} if kind.mlp.shared_width else set())
        elif kind.mlp.kind == "dense":
            has |= {"mlp"}
    found: list[tuple[Recompute, ...]] = []
    for modules in space.recompute:
        useful = tuple(m for m in modules if m in has)
        if (useful or not modules) and useful not in found:
            found.append(useful)
    return found


def _keep(layouts: Layouts, question: Question, counted: Counted) -> Layouts:
    counted.considered += len(layouts)
    kept = np.ones(len(layouts), dtype=bool)
    for rule in RULES:
        broken = rule.broken(layouts, question) & kept
        if broken.any():
            counted.reject(rule.name, int(broken.sum()))
            kept &= ~broken
    return layouts if kept.all() else layouts.take(kept)


def join(blocks: list[Layouts]) -> Layouts:
    """Return the rows of all blocks, one after the other."""
    fields = [f.name for f in dataclasses.fields(Layouts) if f.name != "order"]
    return Layouts(order=blocks[0].order, **{n: np.concatenate([getattr(b, n) for b in blocks]) for n in fields})


def fixed(space: Space, texts: list[str], layout: Layout | None = None) -> Space:
    """Return `space` with axes kept at the values of "tp=8" or "pp=4,8", and at what a partial layout sets.

    Raises UsageError for an unknown axis or a value of the wrong kind.
    """
    kept: dict[str, Any] = {}
    names = {f.name for f in dataclasses.fields(space)} - {"asked"}
    if layout is not None:
        for name in layout.model_fields_set & names:
            kept[name] = (getattr(layout, name),)
    for text in texts:
        axis, sign, values = text.partition("=")
        axis = {"mb": "micro_batch"}.get(axis.strip(), axis.strip())
        if axis not in names:
            near = nearest(axis, names)
            hint = f"did you mean {' or '.join(near)}?" if near else f"axes: {', '.join(sorted(names))}"
            raise UsageError(f"unknown axis '{axis[:40]}'", where=f"--fix {text[:60]}", hint=hint)
        if not sign or not values.strip():
            raise UsageError(f"'{text[:60]}' gives no value", where="--fix", hint="write --fix tp=8 or --fix pp=4,8")
        kept[axis] = tuple(_value(axis, v.strip(), text) for v in values.split(","))
    return dataclasses.replace(space, **kept)


def _value(axis: str, text: str, whole: str) -> Any:
    """Return one value of an axis, checked by Layout's own rules."""
    given: Any = text
    if axis in ("tp_overlap", "ep_overlap"):
        given = {"on": True, "true": True, "off": False, "false": False}.get(text.lower(), text)
    elif text.lstrip("-").isdigit():
        given = int(text)
    checked = validate(Layout, {axis: given}, f"--fix {whole[:60]}")
    return getattr(checked, axis)
