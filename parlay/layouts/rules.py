"""The rules a layout must keep, one function each: where it is broken, and why in words a person understands.

A rule sees layouts as arrays and returns a mask of the rows that break it; `check` turns that into messages for one
layout. RULES lists them all, cheapest first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.split import BOTH_WAYS, V_SHAPED
from parlay.layouts.vocabulary import CP_KINDS, SCHEDULES, CpKind, Framework, Schedule
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, LatentAttention, ModelSpec, MoeMlp

Mask = NDArray[np.bool_]

BALANCED: tuple[CpKind, ...] = ("zigzag", "allgather", "usp")  # each rank takes one early and one late chunk


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What the rules judge against."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    gpus: int

    @property
    def heads(self) -> tuple[int, ...]:
        """Return the distinct query-head counts of the model's softmax attentions."""
        return tuple(
            sorted({k.mixer.heads for k in self.model.kinds.values() if isinstance(k.mixer, GroupedAttention | LatentAttention)})
        )

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Return the distinct key/value-head counts (MLA has as many as query heads once it is expanded)."""
        found = set()
        for kind in self.model.kinds.values():
            if isinstance(kind.mixer, GroupedAttention):
                found.add(kind.mixer.kv_heads)
            elif isinstance(kind.mixer, LatentAttention):
                found.add(kind.mixer.heads)
        return tuple(sorted(found))

    @property
    def experts(self) -> tuple[MoeMlp, ...]:
        """Return the distinct mixtures of experts of the model."""
        return tuple({k.mlp for k in self.model.kinds.values() if isinstance(k.mlp, MoeMlp)})


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, the reason it exists, the mask of rows that break it, and the message for one row."""

    name: str
    reason: str
    broken: Callable[[Layouts, Question], Mask]
    message: Callable[[Layout, Question], tuple[str, str]]  # what is wrong, what is allowed


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of one layout."""

    rule: str
    message: str
    hint: str
    reason: str


def divisors(n: int, *, most: int = 24) -> list[int]:
    """Return the divisors of n, ascending, at most `most` of them.

    Examples
    --------
    >>> divisors(60)
    [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]
    """
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})[:most]


def _list(values: list[int]) -> str:
    return ", ".join(str(v) for v in values)


def _is(x: Layouts, names: Iterable[Schedule]) -> Mask:
    return np.isin(x.schedule, [SCHEDULES.index(n) for n in names])


def _schedule_of(x: Layout) -> Schedule:
    return x.schedule or ("interleaved" if x.vpp > 1 else "1f1b")


def _gpu_count(x: Layouts, q: Question) -> Mask:
    return np.asarray(x.gpus != q.gpus)


def _gpu_count_message(x: Layout, q: Question) -> tuple[str, str]:
    product = f"tp{x.tp} x cp{x.cp} x pp{x.pp} x dp{x.dp} = {x.gpus:,} GPUs, but there are {q.gpus:,}"
    others = x.tp * x.cp * x.pp
    if q.gpus % others == 0:
        return (
            product,
            f"with this tp, cp and pp, dp must be {q.gpus // others} (ep and etp share these GPUs, they do not multiply)",
        )
    return (
        product,
        f"tp x cp x pp must divide the GPU count: {_list(divisors(q.gpus))} (ep and etp share these GPUs, they do not multiply)",
    )


def _heads(x: Layouts, q: Question) -> Mask:
    return np.any([h % x.tp != 0 for h in q.heads], axis=0) if q.heads else np.zeros(len(x), bool)


def _heads_message(x: Layout, q: Question) -> tuple[str, str]:
    heads = next(h for h in q.heads if h % x.tp)
    return (
        f"tp={x.tp} does not divide the {heads} attention heads",
        f"tp may be {_list(divisors(gcd(*q.heads)))}; to use more GPUs, raise pp or dp instead",
    )


def _kv_heads(x: Layouts, q: Question) -> Mask:
    # Fewer K/V heads than tp are copied, which needs tp to be a multiple of them.
    return np.any([(k % x.tp != 0) & (x.tp % k != 0) for k in q.kv_heads], axis=0) if q.kv_heads else np.zeros(len(x), bool)


def _kv_heads_message(x: Layout, q: Question) -> tuple[str, str]:
    kv = next(k for k in q.kv_heads if k % x.tp and x.tp % k)
    allowed = [d for d in range(1, 1025) if all(k % d == 0 or d % k == 0 for k in q.kv_heads)]
    return (
        f"tp={x.tp} neither divides the {kv} key/value heads nor is a multiple of them",
        f"tp may be {_list(allowed[:16])} (above {kv} the K/V heads are copied)",
    )


def _kv_copies(x: Layouts, q: Question) -> Mask:
    if q.workload.framework == "torchtitan" or not q.kv_heads:
        return np.any([k % x.tp != 0 for k in q.kv_heads], axis=0) if q.kv_heads else np.zeros(len(x), bool)
    return np.zeros(len(x), bool)


def _kv_copies_message(x: Layout, q: Question) -> tuple[str, str]:
    kv = next(k for k in q.kv_heads if k % x.tp)
    return (
        f"tp={x.tp} is more than the {kv} key/value heads, and torchtitan shards whole heads without copying them",
        f"tp may be {_list(divisors(gcd(*q.kv_heads)))}; megatron-core copies K/V heads beyond that",
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
    broken = np.zeros(len(x), bool)
    for width in _cut_widths(q):
        broken |= width % x.tp != 0
    for moe in q.experts:
        broken |= moe.width % x.etp != 0
    return broken


def _width_message(x: Layout, q: Question) -> tuple[str, str]:
    for width, name in _cut_widths(q).items():
        if width % x.tp:
            return f"tp={x.tp} does not divide the {name} {width:,}", f"tp may be {_list(divisors(gcd(*_cut_widths(q))))}"
    width = next(m.width for m in q.experts if m.width % x.etp)
    return (
        f"etp={x.etp} does not divide the expert width {width:,}",
        f"etp may be {_list(divisors(gcd(*(m.width for m in q.experts))))}",
    )


def _node(x: Layouts, q: Question) -> Mask:
    return x.tp > q.cluster.scale_up_gpus.value


def _node_message(x: Layout, q: Question) -> tuple[str, str]:
    domain = int(q.cluster.scale_up_gpus.value)
    return (
        f"tp={x.tp} is wider than the {domain} GPUs that share {q.cluster.scale_up_link.name}",
        f"tp may be up to {domain}: its collectives run 4 times a layer and wait on the slowest link; raise pp or cp instead",
    )


def _batch(x: Layouts, q: Question) -> Mask:
    return np.asarray(q.workload.global_batch % (x.dp * x.micro_batch) != 0)


def _batch_message(x: Layout, q: Question) -> tuple[str, str]:
    g, d = q.workload.global_batch, x.dp * x.micro_batch
    near = sorted({g // d * d, (g // d + 1) * d} - {0})
    return (
        f"dp={x.dp} x micro-batch {x.micro_batch} = {d} does not divide the global batch of {g} sequences",
        f"a global batch of {_list(near)} would, or choose dp x micro-batch among the divisors of {g}",
    )


def _sequence(x: Layouts, q: Question) -> Mask:
    balanced = np.isin(x.cp_kind, [CP_KINDS.index(k) for k in BALANCED]) & q.workload.causal & (x.cp > 1)
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
    hint = f"with tp={x.tp}, {name} may be {_list(allowed)}"
    if inside and x.cp % degree:
        return f"the inner Ulysses degree {degree} does not divide cp={x.cp}", hint
    heads, kv = _list(list(q.heads)), _list(list(q.kv_heads))
    return (
        f"Ulysses over {degree} ranks and tp={x.tp} cannot share {heads} query heads and {kv} K/V heads",
        f"{hint}; beyond that use a ring, or usp with a smaller inner degree",
    )


def _experts(x: Layouts, q: Question) -> Mask:
    if not q.experts:
        return (x.ep > 1) | (x.etp > 1)
    return np.asarray(np.any([m.experts % x.ep != 0 for m in q.experts], axis=0))


def _experts_message(x: Layout, q: Question) -> tuple[str, str]:
    if not q.experts:
        return f"ep={x.ep}, etp={x.etp} on a model without experts", "leave ep and etp at 1 for a dense model"
    experts = next(m.experts for m in q.experts if m.experts % x.ep)
    return (
        f"ep={x.ep} does not divide the {experts} experts",
        f"ep may be {_list(divisors(gcd(*(m.experts for m in q.experts))))}",
    )


def _expert_grid(x: Layouts, q: Question) -> Mask:
    return np.asarray((x.tp * x.cp * x.dp) % (x.ep * x.etp) != 0)


def _expert_grid_message(x: Layout, q: Question) -> tuple[str, str]:
    grid = x.tp * x.cp * x.dp
    return (
        f"etp{x.etp} x ep{x.ep} = {x.etp * x.ep} does not divide the {grid} GPUs of a pipeline stage (tp x cp x dp)",
        f"etp x ep may be {_list(divisors(grid))}; etp is 1 unless you set it",
    )


def _layers(x: Layouts, q: Question) -> Mask:
    # The first chunk may hold the embedding alone and the last one the head: Llama 3 405B runs 126 layers in 128 chunks.
    return x.pp * x.vpp > q.model.layer_count + 2


def _layers_message(x: Layout, q: Question) -> tuple[str, str]:
    chunks, layers = x.pp * x.vpp, q.model.layer_count
    return (
        f"pp={x.pp} x vpp={x.vpp} = {chunks} chunks is more than the model's {layers} layers, embedding and head",
        f"pp x vpp may be up to {layers + 2}",
    )


def _ends(x: Layouts, q: Question) -> Mask:
    set_ends = (x.first_layers > 0) | (x.last_layers > 0)
    left = q.model.layer_count - x.first_layers - x.last_layers
    middle = (x.pp - (x.first_layers > 0) - (x.last_layers > 0)) * x.vpp
    short = (left < middle) | ((middle == 0) & (left != 0))
    for ends in (x.first_layers, x.last_layers):
        short |= (ends > 0) & (ends < x.vpp)
    return np.asarray(set_ends & (short | (x.pp < 2) | _is(x, V_SHAPED)))


def _ends_message(x: Layout, q: Question) -> tuple[str, str]:
    layers = q.model.layer_count
    said = f"first_layers={x.first_layers}, last_layers={x.last_layers}"
    if x.pp < 2 or x.schedule in V_SHAPED:
        what = f"the schedule {x.schedule}, whose stages hold both ends" if x.pp > 1 else f"pp={x.pp}"
        return f"{said} has no meaning with {what}", "leave first_layers and last_layers at 0"
    both = bool(x.first_layers) and bool(x.last_layers)
    middle = (x.pp - 1 - both) * x.vpp
    most = layers - middle
    which = "first_layers + last_layers" if both else "first_layers" if x.first_layers else "last_layers"
    least = (1 + both) * x.vpp
    each = f", {x.vpp} or more each" if both and x.vpp > 1 else ""
    hint = f"{which} may be {least if middle else most}{f' to {most}' if middle else ''}{each}; every chunk needs a layer"
    if most < least:
        hint = f"with explicit ends pp x vpp may be up to {layers}: every chunk needs a layer"
    left = layers - x.first_layers - x.last_layers
    return f"{said} leaves {left} of {layers} layers for the other {middle} chunks of pp={x.pp}", hint


def _uneven(x: Layouts, q: Question) -> Mask:
    # Megatron's --pipeline-model-parallel-layout places any number of layers on every virtual stage (since core 0.13);
    # the others cut virtual stages evenly, embedding and head counted as layers or not.
    n = x.pp * x.vpp
    layers = q.model.layer_count
    uneven = (x.vpp > 1) & (layers % n != 0) & ((layers + 2) % n != 0) & (x.first_layers + x.last_layers == 0)
    return uneven if q.workload.framework != "megatron-core" else np.zeros(len(x), bool)


def _uneven_message(x: Layout, q: Question) -> tuple[str, str]:
    layers, n = q.model.layer_count, x.pp * x.vpp
    most = (layers + 2) // x.pp
    allowed = [1, *(v for v in range(2, most + 1) if layers % (x.pp * v) == 0 or (layers + 2) % (x.pp * v) == 0)]
    return (
        f"{layers} layers do not divide over pp={x.pp} x vpp={x.vpp} = {n} chunks, with or without embedding and head counted as layers",
        f"with pp={x.pp}, vpp may be {_list(allowed)}; megatron-core also runs uneven chunks",
    )


def _schedule(x: Layouts, q: Question) -> Mask:
    m = x.micro_batches(q.workload.global_batch)
    interleaved, v_shaped, both = _is(x, ["interleaved"]), _is(x, V_SHAPED), _is(x, BOTH_WAYS)
    broken = ~interleaved & ~_is(x, ["bfs"]) & ~v_shaped & (x.vpp > 1)
    broken |= interleaved & ((x.vpp < 2) | (x.pp < 2) | (m % np.maximum(x.pp, 1) != 0))
    broken |= v_shaped & ((x.vpp != 2) | (x.pp < 2))
    broken |= both & ((x.pp % 2 != 0) | (m % 2 != 0))
    broken |= (both | _is(x, ["dualpipev"])) & (m < 2 * x.pp)
    return np.asarray(broken)


def _schedule_message(x: Layout, q: Question) -> tuple[str, str]:
    name, each = _schedule_of(x), x.dp * x.micro_batch
    m = q.workload.global_batch // each
    if name == "interleaved" and x.vpp > 1 and x.pp > 1:
        need = f"interleaved 1F1B needs a multiple of pp={x.pp} micro-batches, at least {x.pp}; there are {m}"
        lower = f", or pp may be {_list(divisors(m)[1:])}" if m > 1 else ""
        return need, f"raise the global batch to {-(-m // x.pp) * x.pp * each}{lower}, or use vpp=1"
    needs = {
        "interleaved": "vpp of 2 or more and pp of 2 or more",
        "zb-v": "vpp=2 and pp of 2 or more",
        "dualpipev": f"vpp=2, pp of 2 or more and at least {2 * x.pp} micro-batches: a global batch of {2 * x.pp * each} or more",
        "dualpipe": f"vpp=1, an even pp and an even number of at least {2 * x.pp} micro-batches:"
        f" a global batch of {2 * x.pp * each}, {(2 * x.pp + 2) * each}, ...",
    }
    need = needs.get(name, "vpp=1")
    return f"the schedule {name} does not run with pp={x.pp}, vpp={x.vpp} and {m} micro-batches", f"{name} needs {need}"


def _shard(x: Layouts, q: Question) -> Mask:
    return np.asarray((x.zero == 3) & ((x.dp * x.cp) % np.maximum(x.shard, 1) != 0))


def _shard_message(x: Layout, q: Question) -> tuple[str, str]:
    return f"a shard of {x.shard} GPUs does not divide dp x cp = {x.dp * x.cp}", f"shard may be {_list(divisors(x.dp * x.cp))}"


_RUNS: dict[Framework, tuple[Schedule, ...]] = {
    "megatron-core": ("1f1b", "interleaved"),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zb-v", "dualpipev", "bfs"),
    "deepspeed": ("1f1b",),
}


def _framework(x: Layouts, q: Question) -> Mask:
    broken = (x.pp > 1) & ~_is(x, _RUNS[q.workload.framework])
    if q.workload.framework == "deepspeed":
        broken |= (x.pp > 1) & (x.zero > 1)
        broken |= (x.cp > 1) & (x.cp_kind != CP_KINDS.index("ulysses"))
    return np.asarray(broken)


def _framework_message(x: Layout, q: Question) -> tuple[str, str]:
    f = q.workload.framework
    if f == "deepspeed" and x.pp > 1 and x.zero > 1:
        return "DeepSpeed's pipeline engine runs with ZeRO 0 or 1 only", "use zero=1 with pp, or pp=1 with zero 2 or 3"
    if f == "deepspeed" and x.cp > 1 and x.cp_kind != "ulysses":
        return "DeepSpeed shards the sequence by Ulysses only", "use cp_kind = 'ulysses'"
    others = "; ".join(f"{name}: {', '.join(runs)}" for name, runs in _RUNS.items() if name != f)
    return (
        f"{f} does not offer the pipeline schedule {_schedule_of(x)}",
        f"schedule may be {', '.join(_RUNS[f])} ({others})",
    )


def _recompute_layers(x: Layouts, q: Question) -> Mask:
    return (x.recompute_layers > 0) & ~x.recomputes("full")


def _recompute_layers_message(x: Layout, q: Question) -> tuple[str, str]:
    return "recompute_layers is set without recompute = 'full'", "set recompute = 'full', or leave recompute_layers at 0"


RULES: tuple[Rule, ...] = (
    Rule("gpus", "every GPU takes exactly one place in the grid", _gpu_count, _gpu_count_message),
    Rule("heads", "tensor parallelism gives each rank whole attention heads", _heads, _heads_message),
    Rule("kv_heads", "each rank needs whole key/value heads; copies must be equal on all ranks", _kv_heads, _kv_heads_message),
    Rule("kv_copies", "not every framework copies key/value heads", _kv_copies, _kv_copies_message),
    Rule("width", "tensor parallelism cuts matrices into equal columns", _width, _width_message),
    Rule("scale_up", "tensor-parallel collectives are too many and too large for the network", _node, _node_message),
    Rule("batch", "every data-parallel rank takes equally many whole micro-batches", _batch, _batch_message),
    Rule("sequence", "context and sequence parallelism cut the sequence into equal parts", _sequence, _sequence_message),
    Rule("ulysses", "Ulysses gives each rank whole heads for the whole sequence", _ulysses, _ulysses_message),
    Rule("experts", "expert parallelism gives each rank whole experts", _experts, _experts_message),
    Rule("expert_grid", "experts live on the same GPUs as the rest of a stage", _expert_grid, _expert_grid_message),
    Rule("layers", "every pipeline chunk holds at least one layer", _layers, _layers_message),
    Rule("ends", "explicit first and last stages must leave layers for the others", _ends, _ends_message),
    Rule("uneven", "virtual stages are cut evenly, with embedding and head counted as layers or not", _uneven, _uneven_message),
    Rule(
        "schedule", "a pipeline schedule runs only with the stages and micro-batches it is made for", _schedule, _schedule_message
    ),
    Rule("shard", "a ZeRO-3 or FSDP shard group divides the data-parallel ranks", _shard, _shard_message),
    Rule("framework", "the framework must offer the schedule and the sharding", _framework, _framework_message),
    Rule("recompute_layers", "a number of layers belongs to full recompute", _recompute_layers, _recompute_layers_message),
)


def broken_rules(layouts: Layouts, question: Question) -> dict[str, Mask]:
    """Return, for each rule, the mask of layouts that break it."""
    return {rule.name: rule.broken(layouts, question) for rule in RULES}


def check(layout: Layout, model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int | None = None) -> list[Violation]:
    """Return every rule that `layout` breaks, in the order of RULES; empty if it may run."""
    question = Question(model, cluster, workload, gpus or layout.gpus)
    arrays = Layouts.of(layout)
    found = []
    for rule in RULES:
        if bool(rule.broken(arrays, question)[0]):
            message, hint = rule.message(layout, question)
            found.append(Violation(rule.name, message, hint, rule.reason))
    return found
