"""The ladder: the largest model that some GPUs can train, and what each step of parallelism adds to it.

Every rung allows all that the rungs before it allow and one thing more, and takes the largest shape of a family for
which any layout fits, so sizes never shrink from rung to rung.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from parlay.estimate.counts import parameters
from parlay.estimate.estimate import price_memory, price_time
from parlay.estimate.offload import host_has_room
from parlay.estimate.precision import check_precision
from parlay.estimate.terms import Term
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import Question
from parlay.layouts.rules_stages import unoffered
from parlay.layouts.vocabulary import CP_KINDS, Framework, Optimizer
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, MoeMlp, Run
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates
from parlay.search.node_counts import fewest_gpus
from parlay.search.space import Counted, Space, layouts_of

HEAD = 128  # head size of every shape
LAYERS_PER_HIDDEN = 128  # hidden / layers: Llama 3's 8B, 70B and 405B have 128, 102 and 130 (arXiv:2407.21783, Table 3)
WIDTH = 3.5  # MLP width / hidden: 3.5 and 3.25 there
VOCABULARY = 128256
KV_HEADS = 8
STEP = 1024  # hidden sizes are multiples of it, so that every tensor-parallel degree up to 8 divides the heads
LARGEST_HIDDEN = 65536
DEPTHS = (0.75, 0.875, 1.0, 1.125, 1.25)  # of hidden / LAYERS_PER_HIDDEN
EXPERTS, TOP_K, EXPERT_WIDTH = 64, 8, 0.5  # a fine-grained mixture: expert width / hidden


@dataclasses.dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: its name, and the axes it allows."""

    name: str
    space: Space


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What fits on one rung: the model, its fastest fitting layout, memory by term on the worst stage, and speed."""

    rung: str
    model: ModelSpec | None
    parameters: int
    layout: Layout | None
    memory: Term | None
    tokens_per_s_per_gpu: float
    longest_context: int | None = None
    fewest_gpus: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Ladder:
    """A ladder on one number of GPUs of one cluster."""

    cluster: Cluster
    gpus: int
    workload: Workload
    family: str
    limit_bytes: float
    steps: tuple[Step, ...]
    growing: bool = True  # sizes grow from rung to rung; False: one model is given
    asked_batch: int = 0  # what was asked; the workload's is what the GPUs can share
    interrupted: bool = False  # the climb was stopped; the steps are the rungs so far
    why: str = ""  # why there are no steps: the cluster has not the precision
    context_of: str = ""  # the model whose longest sequences the steps tell
    positions: int | None = None  # the longest that it was made for; memory may hold longer ones


def shape(hidden: int, layers: int, *, experts: bool = False) -> ModelSpec:
    """Return a Llama-like shape of the family; with `experts` every layer is a mixture of EXPERTS experts."""
    heads = hidden // HEAD
    mixer = GroupedAttention(heads=heads, kv_heads=min(KV_HEADS, heads), head_dim=HEAD)
    mlp: DenseMlp | MoeMlp = DenseMlp(width=int(WIDTH * hidden))
    if experts:
        mlp = MoeMlp(experts=EXPERTS, top_k=TOP_K, width=int(EXPERT_WIDTH * hidden))
    kind = "experts" if experts else "dense"
    return ModelSpec(
        id=f"{kind}-{hidden}x{layers}", name=f"{hidden:,} x {layers} layers", family="ladder", hidden=hidden, vocab=VOCABULARY,
        kinds={kind: LayerKind(mixer=mixer, mlp=mlp)}, layers=(Run(kinds=(kind,), count=layers),),
    )  # fmt: skip


@lru_cache(maxsize=2)
def family(experts: bool = False) -> tuple[ModelSpec, ...]:
    """Return the shapes of a family by size: some depths for each hidden size around LAYERS_PER_HIDDEN."""
    shapes = (
        shape(hidden, max(2, 2 * round(hidden / LAYERS_PER_HIDDEN * factor / 2)), experts=experts)
        for hidden in range(STEP, LARGEST_HIDDEN + 1, STEP)
        for factor in DEPTHS
    )
    unique = {s.id: s for s in shapes}
    return tuple(sorted(unique.values(), key=lambda s: parameters(s).total))


def family_name(experts: bool) -> str:
    """Return what a family is called."""
    return f"{EXPERTS} experts, {TOP_K} a token" if experts else "dense"


def rungs(*, experts: bool, framework: Framework = "megatron-core", optimizer: Optimizer = "adamw") -> list[Rung]:
    """Return the rungs that a framework offers; expert parallelism only where there are experts."""
    one = (1,)
    base = Space(tp=one, cp=one, pp=one, dp=one, ep=one, vpp=one, micro_batch=one, zero=(0,), recompute=((),), sp=(False,))
    steps: list[Rung] = [Rung("one GPU", base)]

    def add(name: str, example: Layout | None = None, **axes: object) -> None:
        if example is None or _offers(framework, optimizer, example):  # else it would repeat the rung below it
            steps.append(Rung(name, dataclasses.replace(steps[-1].space, **axes)))  # type: ignore[arg-type]

    add("data parallel", dp=())
    for stage in (1, 2, 3):
        add(f"+ ZeRO-{stage}", Layout(zero=stage), zero=tuple(range(stage + 1)))
    add("+ tensor parallel", tp=())
    add("+ sequence parallel", sp=(True,))
    add("+ context parallel", Layout(cp=2), cp=())
    add("+ pipeline", pp=())
    if experts:
        add("+ expert parallel", ep=())
    add("+ recompute", recompute=((), ("full",)))
    add("+ optimizer on the host", Layout(offload_optimizer=1.0), offload_optimizer=(0.0, 1.0))
    add("+ activations on host", Layout(offload_activations=1.0), offload_activations=(0.0, 1.0))
    return steps


def _offers(framework: Framework, optimizer: Optimizer, example: Layout) -> bool:
    """Return whether a framework runs such a layout with any way of splitting the sequence, and any ZeRO stage where it names none."""
    stages = (example.zero,) if "zero" in example.model_fields_set else (0, 1, 2, 3)
    every = Layouts.of([example.model_copy(update={"cp_kind": kind, "zero": zero}) for kind in CP_KINDS for zero in stages])
    return not unoffered(every, framework, optimizer).all()


def candidates(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, rung: Rung) -> list[Layouts]:
    """Return the layouts of a rung that keep the rules, in blocks; the first rung always runs on one GPU."""
    count = 1 if rung.name == "one GPU" else gpus
    question = Question(model, cluster, workload, count)
    blocks = (b.take(host_has_room(model, cluster, workload, b)) for b in layouts_of(question, rung.space, Counted()))
    return [b for b in blocks if len(b)]


def fits(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, rung: Rung) -> bool:
    """Return whether any layout of the rung keeps every stage within what the device can allocate."""
    return any(
        bool(price_memory(model, cluster, workload, b).fits.any()) for b in candidates(model, cluster, workload, gpus, rung)
    )


def largest(count: int, ok: Callable[[int], bool], *, start: int = -1) -> int:
    """Return the last index below `count` for which `ok` holds, at least `start`; -1 if none. `ok` is taken as monotone.

    Examples
    --------
    >>> largest(100, lambda i: i <= 41), largest(5, lambda i: False), largest(8, lambda i: True, start=3)
    (41, -1, 7)
    """
    low, step = start, 1
    while low + step < count and ok(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, count)
    while high - low > 1:
        middle = (low + high) // 2
        if ok(middle):
            low = middle
        else:
            high = middle
    return low


def ladder(
    cluster: Cluster,
    gpus: int,
    workload: Workload,
    *,
    experts: bool = False,
    context_of: ModelSpec | None = None,
    rates: Rates | None = None,
) -> Ladder:
    """Return the largest shape of the family on every rung, and with `context_of` that model's longest sequence there."""
    check_precision(cluster.device, workload.precision)
    shapes, rates, asked = family(experts), rates or rates_for(cluster), workload.global_batch
    workload = whole_batch(workload, gpus)
    index = -1

    def price(rung: Rung) -> Step:
        nonlocal index
        index = largest(len(shapes), lambda i: fits(shapes[i], cluster, workload, gpus, rung), start=index)
        step = best_step(shapes[index] if index >= 0 else None, cluster, workload, gpus, rung, rates)
        if context_of is None:
            return step
        return dataclasses.replace(step, longest_context=longest_context(context_of, cluster, workload, gpus, rung))

    steps, interrupted = climb(rungs(experts=experts, framework=workload.framework, optimizer=workload.optimizer), price)
    limit = cluster.device.memory.allocatable.value
    found = Ladder(cluster, gpus, workload, family_name(experts), limit, steps, asked_batch=asked, interrupted=interrupted)
    return dataclasses.replace(found, context_of=context_of.name, positions=context_of.max_positions) if context_of else found


def no_ladder(
    why: str, cluster: Cluster, gpus: int, workload: Workload, *, model: ModelSpec | None = None, experts: bool = False
) -> Ladder:
    """Return the ladder, without steps, of a cluster that cannot run what is asked."""
    limit = cluster.device.memory.allocatable.value
    name = model.name if model else family_name(experts)
    return Ladder(cluster, gpus, workload, name, limit, (), growing=model is None, asked_batch=workload.global_batch, why=why)


def climb(up: Sequence[Rung], price: Callable[[Rung], Step]) -> tuple[tuple[Step, ...], bool]:
    """Return the steps of the rungs in turn; a KeyboardInterrupt ends them with those so far, if any, and True."""
    steps: list[Step] = []
    for rung in up:
        try:
            steps.append(price(rung))
        except KeyboardInterrupt:
            if not steps:
                raise
            return tuple(steps), True
    return tuple(steps), False


def model_ladder(
    model: ModelSpec, cluster: Cluster, gpus: int, workload: Workload, *, most_gpus: int = 16384, rates: Rates | None = None
) -> Ladder:
    """Return, for one model, the fewest GPUs (see `node_counts`) and the longest sequence on `gpus` GPUs, rung by rung."""
    check_precision(cluster.device, workload.precision)
    experts = any(kind.mlp.kind == "moe" for kind in model.kinds.values())
    rates, asked = rates or rates_for(cluster), workload.global_batch
    workload = whole_batch(workload, gpus)

    def price(rung: Rung) -> Step:
        most = 1 if rung.name == "one GPU" else most_gpus
        fewest = fewest_gpus(cluster, lambda n: fits(model, cluster, whole_batch(workload, n), n, rung), most=most)
        step = (
            best_step(model, cluster, workload, gpus, rung, rates) if fits(model, cluster, workload, gpus, rung) else _none(rung)
        )
        context = longest_context(model, cluster, workload, gpus, rung)
        return dataclasses.replace(step, fewest_gpus=fewest, longest_context=context)

    steps, interrupted = climb(rungs(experts=experts, framework=workload.framework, optimizer=workload.optimizer), price)
    limit = cluster.device.memory.allocatable.value
    return Ladder(
        cluster, gpus, workload, model.name, limit, steps, growing=False, asked_batch=asked, interrupted=interrupted,
        context_of=model.name, positions=model.max_positions,
    )  # fmt: skip


def whole_batch(workload: Workload, gpus: int) -> Workload:
    """Return the workload with a batch that `gpus` data-parallel ranks can share."""
    if workload.global_batch % gpus == 0:
        return workload
    return workload.model_copy(update={"global_batch": max(gpus, workload.global_batch // gpus * gpus)})


def longest_context(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, rung: Rung) -> int | None:
    """Return the longest sequence, in steps of an eighth of a power of two from 1,024, that fits; None if none does."""
    lengths = sorted({2**e * k // 8 for e in range(10, 28) for k in range(8, 16)})

    def ok(i: int) -> bool:
        longer = workload.model_copy(update={"seq_len": lengths[i]})
        return fits(model, cluster, longer, gpus, rung)

    found = largest(len(lengths), ok)
    return lengths[found] if found >= 0 else None


def best_step(model: ModelSpec | None, cluster: Cluster, workload: Workload, gpus: int, rung: Rung, rates: Rates) -> Step:
    """Return the fastest fitting layout of one model on one rung."""
    if model is None:
        return _none(rung)
    best: tuple[float, Layout, Term] | None = None
    for block in candidates(model, cluster, workload, gpus, rung):
        held = price_memory(model, cluster, workload, block)
        if not held.fits.any():
            continue
        kept = block.take(held.fits)
        step = price_time(model, cluster, workload, kept, rates).step
        at = int(np.argmin(step))
        if best is None or step[at] < best[0]:
            layout = kept.one(at)
            memory = price_memory(model, cluster, workload, Layouts.of(layout))
            stage = int(np.argmax(np.where(memory.total > 0, memory.total, -1)[0]))
            best = (float(step[at]), layout, memory.tree.at(0, stage))
    if best is None:
        return _none(rung)
    seconds, layout, memory_tree = best
    speed = workload.global_batch * workload.seq_len / seconds / layout.gpus
    return Step(rung.name, model, parameters(model).total, layout, memory_tree, speed)


def _none(rung: Rung) -> Step:
    return Step(rung.name, None, 0, None, None, 0.0)
