"""Rules on what is cut inside a layer: heads, widths, the sequence and the experts."""

from __future__ import annotations

from math import gcd, lcm

import numpy as np

from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rule import Mask, Question, Rule, any_of, divisors, listed, split_as
from parlay.layouts.vocabulary import CP_KINDS, CpKind

BALANCED: tuple[CpKind, ...] = ("zigzag", "allgather", "usp")  # each rank takes one early and one late chunk


MOST_TP = 1024  # ranks that are looked at for a hint


def _tp_hint(q: Question, more: str = "") -> str:
    """Return which degrees keep every rule on the shapes that tensor parallelism cuts, and the width of the fast links."""
    widest = min(int(q.cluster.scale_up_gpus.value), MOST_TP)
    tries = Layouts.grid(tp=np.arange(1, widest + 1))
    broken = _heads(tries, q) | _kv_heads(tries, q) | _kv_copies(tries, q) | _width(tries, q)
    allowed = [int(t) for t in tries.tp[~broken]][:16]
    return f"tp may be {listed(allowed)} ({widest} GPUs share {q.cluster.scale_up_link.name}){more}"


def _heads(x: Layouts, q: Question) -> Mask:
    return any_of(x, (h % x.tp != 0 for h in q.heads))


def _heads_message(x: Layout, q: Question) -> tuple[str, str]:
    heads = next(h for h in q.heads if h % x.tp)
    return (
        f"tp={x.tp} does not divide the {heads} attention heads",
        _tp_hint(q, "; to use more GPUs, raise pp or dp instead"),
    )


def _kv_heads(x: Layouts, q: Question) -> Mask:
    # Fewer K/V heads than tp are copied, which needs tp to be a multiple of them.
    return any_of(x, ((k % x.tp != 0) & (x.tp % k != 0) for k in q.kv_heads))


def _kv_heads_message(x: Layout, q: Question) -> tuple[str, str]:
    kv = next(k for k in q.kv_heads if k % x.tp and x.tp % k)
    return (
        f"tp={x.tp} neither divides the {kv} key/value heads nor is a multiple of them",
        _tp_hint(q, f"; above {kv} the K/V heads are copied"),
    )


def _kv_copies(x: Layouts, q: Question) -> Mask:
    return any_of(x, (k % x.tp != 0 for k in q.kv_heads if q.workload.framework == "torchtitan"))


def _kv_copies_message(x: Layout, q: Question) -> tuple[str, str]:
    kv = next(k for k in q.kv_heads if k % x.tp)
    return (
        f"tp={x.tp} is more than the {kv} key/value heads, and torchtitan shards whole heads without copying them",
        _tp_hint(q, "; megatron-core copies K/V heads beyond that"),
    )


def _cut_widths(q: Question) -> dict[int, str]:
    """Return what tensor parallelism cuts into equal parts beside attention, with its name.

    The hidden size is not among them: every rank holds whole rows of it, and the vocabulary is padded to a multiple.
    """
    found: dict[int, str] = {}
    for kind in q.model.kinds.values():
        mlp, mixer = kind.mlp, kind.mixer
        if mlp.kind == "dense":
            found[mlp.width] = "MLP width"
        elif mlp.kind == "moe" and mlp.shared_width:
            found[mlp.shared_width] = "shared experts' width"
        if mixer.kind == "mamba2":
            found |= {mixer.heads: "Mamba heads", mixer.groups: "Mamba groups"}
        elif mixer.kind == "mamba1":
            found[mixer.inner] = "Mamba inner width"
        elif mixer.kind == "gated_delta":
            found |= {mixer.key_heads: "DeltaNet key heads", mixer.value_heads: "DeltaNet value heads"}
    return found


def _width(x: Layouts, q: Question) -> Mask:
    cut = any_of(x, (width % x.tp != 0 for width in _cut_widths(q)))
    return cut | any_of(x, (moe.width % x.etp != 0 for moe in q.experts))


def _width_message(x: Layout, q: Question) -> tuple[str, str]:
    for width, name in _cut_widths(q).items():
        if width % x.tp:
            return f"tp={x.tp} does not divide the {name} {width:,}", _tp_hint(q)
    width = next(m.width for m in q.experts if m.width % x.etp)
    return (
        f"etp={x.etp} does not divide the expert width {width:,}",
        f"etp may be {listed(divisors(gcd(*(m.width for m in q.experts))))}",
    )


def _node(x: Layouts, q: Question) -> Mask:
    return x.tp > q.cluster.scale_up_gpus.value


def _node_message(x: Layout, q: Question) -> tuple[str, str]:
    domain = int(q.cluster.scale_up_gpus.value)
    return (
        f"tp={x.tp} is wider than the {domain} GPUs that share {q.cluster.scale_up_link.name}",
        f"tp may be up to {domain}: its collectives run 4 times a layer and wait on the slowest link; raise pp or cp instead",
    )


def _sequence(x: Layouts, q: Question) -> Mask:
    balanced = split_as(x, BALANCED) & q.workload.causal & (x.cp > 1)
    unit = x.cp * np.lcm(np.where(balanced, 2, 1), np.where(x.sp, x.tp, 1))
    return np.asarray(q.workload.seq_len % unit != 0)


def _sequence_message(x: Layout, q: Question) -> tuple[str, str]:
    s = q.workload.seq_len
    parts = x.tp if (x.tp > 1 if x.sp is None else x.sp) else 1
    balanced = x.cp > 1 and q.workload.causal and x.cp_kind in BALANCED
    unit = x.cp * lcm(2 if balanced else 1, parts)
    why = [f"2 x cp={x.cp}, one early and one late chunk a rank"] if balanced else [f"cp={x.cp}"] if x.cp > 1 else []
    why += [f"tp={parts}, sequence parallel"] if parts > 1 else []
    return (
        f"a sequence of {s:,} tokens is not a multiple of {unit:,} ({'; '.join(why)})",
        f"the next lengths that are: {(s // unit + 1) * unit:,} and {(s // unit + 2) * unit:,}",
    )


def _ulysses(x: Layouts, q: Question) -> Mask:
    degree = np.where(x.cp_kind == CP_KINDS.index("ulysses"), x.cp, np.where(x.cp_kind == CP_KINDS.index("usp"), x.ulysses, 1))
    if not (degree > 1).any():
        return np.zeros(len(x), bool)
    broken = (x.cp_kind == CP_KINDS.index("usp")) & (x.cp % np.maximum(x.ulysses, 1) != 0)
    for h in q.heads:
        broken |= h % (x.tp * degree) != 0
    for k in q.kv_heads:
        local = np.maximum(k // x.tp, 1)
        broken |= (degree > 1) & (local % degree != 0) & (degree % local != 0)
    return np.asarray(broken & (degree > 1))


def _ulysses_message(x: Layout, q: Question) -> tuple[str, str]:
    inside = x.cp_kind == "usp"
    degree, name = (x.ulysses, "ulysses") if inside else (x.cp, "cp")
    tries = np.asarray(divisors(x.cp if inside else max(q.heads), most=1 << 10))
    broken = _ulysses(Layouts.grid(tp=x.tp, cp=tries, cp_kind=CP_KINDS.index("ulysses")), q)
    allowed = [int(d) for d in tries[~broken]]
    hint = f"with tp={x.tp}, {name} may be {listed(allowed)}"
    if inside and x.cp % degree:
        return f"the inner Ulysses degree {degree} does not divide cp={x.cp}", hint
    heads, kv = listed(list(q.heads)), listed(list(q.kv_heads))
    return (
        f"Ulysses over {degree} ranks and tp={x.tp} cannot share {heads} query heads and {kv} K/V heads",
        f"{hint}; beyond that use a ring, or usp with a smaller inner degree",
    )


def _experts(x: Layouts, q: Question) -> Mask:
    if not q.experts:
        return (x.ep > 1) | (x.etp > 1)
    return any_of(x, (m.experts % x.ep != 0 for m in q.experts))


def _experts_message(x: Layout, q: Question) -> tuple[str, str]:
    if not q.experts:
        return f"ep={x.ep}, etp={x.etp} on a model without experts", "leave ep and etp at 1 for a dense model"
    experts = next(m.experts for m in q.experts if m.experts % x.ep)
    return (
        f"ep={x.ep} does not divide the {experts} experts",
        f"ep may be {listed(divisors(gcd(*(m.experts for m in q.experts))))}",
    )


def _expert_grid(x: Layouts, q: Question) -> Mask:
    return np.asarray((x.tp * x.cp * x.dp) % (x.ep * x.etp) != 0)


def _expert_grid_message(x: Layout, q: Question) -> tuple[str, str]:
    grid = x.tp * x.cp * x.dp
    return (
        f"etp{x.etp} x ep{x.ep} = {x.etp * x.ep} does not divide the {grid} GPUs of a pipeline stage (tp x cp x dp)",
        f"etp x ep may be {listed(divisors(grid))}; etp is 1 unless you set it",
    )


SHAPE_RULES: tuple[Rule, ...] = (
    Rule("heads", "tensor parallelism gives each rank whole attention heads", _heads, _heads_message),
    Rule("kv_heads", "each rank needs whole key/value heads; copies must be equal on all ranks", _kv_heads, _kv_heads_message),
    Rule("kv_copies", "not every framework copies key/value heads", _kv_copies, _kv_copies_message),
    Rule("width", "tensor parallelism cuts matrices into equal columns", _width, _width_message),
    Rule("scale_up", "tensor-parallel collectives are too many and too large for the network", _node, _node_message),
    Rule("sequence", "context and sequence parallelism cut the sequence into equal parts", _sequence, _sequence_message),
    Rule("ulysses", "Ulysses gives each rank whole heads for the whole sequence", _ulysses, _ulysses_message),
    Rule("experts", "expert parallelism gives each rank whole experts", _experts, _experts_message),
    Rule("expert_grid", "experts live on the same GPUs as the rest of a stage", _expert_grid, _expert_grid_message),
)
