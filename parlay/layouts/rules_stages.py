"""Rules on the grid of GPUs, the batch, the pipeline's stages and schedule, and what a framework offers."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rule import Mask, Question, Rule, divisors, listed, schedule_of, scheduled
from parlay.layouts.split import BOTH_WAYS, BY_RULE, V_SHAPED
from parlay.layouts.vocabulary import (
    CP_KINDS,
    DEFAULT_ORDER,
    ORDERS,
    RECOMPUTE,
    Framework,
    Optimizer,
    Recompute,
    Schedule,
    recompute_bits,
)
from parlay.layouts.workload import Workload


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
        f"tp x cp x pp must divide the GPU count: {listed(divisors(q.gpus))} (ep and etp share these GPUs, they do not multiply)",
    )


def _batch(x: Layouts, q: Question) -> Mask:
    return np.asarray(q.workload.global_batch % (x.dp * x.micro_batch) != 0)


def _batch_message(x: Layout, q: Question) -> tuple[str, str]:
    g, d = q.workload.global_batch, x.dp * x.micro_batch
    near = sorted({g // d * d, (g // d + 1) * d} - {0})
    return (
        f"dp={x.dp} x micro-batch {x.micro_batch} = {d} does not divide the global batch of {g} sequences",
        f"a global batch of {listed(near)} would, or choose dp x micro-batch among the divisors of {g}",
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
    first, last = x.first_layers != BY_RULE, x.last_layers != BY_RULE
    set_ends = first | last
    if not set_ends.any():
        return np.asarray(set_ends)
    left = q.model.layer_count - np.maximum(x.first_layers, 0) - np.maximum(x.last_layers, 0)
    middle = (x.pp - first - last) * x.vpp
    short = (left < middle) | ((middle == 0) & (left != 0))
    for ends in (x.first_layers, x.last_layers):
        short |= (ends > 0) & (ends < x.vpp)
    return np.asarray(set_ends & (short | (x.pp < 2) | scheduled(x, V_SHAPED)))


def _ends_message(x: Layout, q: Question) -> tuple[str, str]:
    layers = q.model.layer_count
    first, last = x.first_layers is not None, x.last_layers is not None
    said = ", ".join([f"first_layers={x.first_layers}"] * first + [f"last_layers={x.last_layers}"] * last)
    if x.pp < 2 or x.schedule in V_SHAPED:
        what = f"the schedule {x.schedule}, whose stages hold both ends" if x.pp > 1 else f"pp={x.pp}"
        return f"{said} has no meaning with {what}", "leave out first_layers and last_layers"
    both = first and last
    middle = (x.pp - 1 - both) * x.vpp
    most = layers - middle
    which = "first_layers + last_layers" if both else "first_layers" if first else "last_layers"
    least = (1 + both) * x.vpp if x.vpp > 1 else 0
    each = f", {x.vpp} or more each" if both and x.vpp > 1 else ""
    allowed = f"may be {least} to {most}" if middle else f"must be {layers}"
    hint = f"{which} {allowed}{each}; every chunk between the ends needs a layer"
    if most < least:
        hint = f"with explicit ends pp x vpp may be up to {layers}: every chunk between them needs a layer"
    left = layers - (x.first_layers or 0) - (x.last_layers or 0)
    return f"{said} leaves {left} of {layers} layers for the other {middle} chunks of pp={x.pp}", hint


def _uneven(x: Layouts, q: Question) -> Mask:
    # Megatron's --pipeline-model-parallel-layout places any number of layers on every virtual stage (since core 0.13);
    # the others cut virtual stages evenly, embedding and head counted as layers or not.
    n = x.pp * x.vpp
    layers = q.model.layer_count
    uneven = (x.vpp > 1) & (layers % n != 0) & ((layers + 2) % n != 0) & (x.first_layers == BY_RULE) & (x.last_layers == BY_RULE)
    return uneven if q.workload.framework != "megatron-core" else np.zeros(len(x), bool)


def _uneven_message(x: Layout, q: Question) -> tuple[str, str]:
    layers, n = q.model.layer_count, x.pp * x.vpp
    most = (layers + 2) // x.pp
    allowed = [1, *(v for v in range(2, most + 1) if layers % (x.pp * v) == 0 or (layers + 2) % (x.pp * v) == 0)]
    return (
        f"{layers} layers do not divide over pp={x.pp} x vpp={x.vpp} = {n} chunks, with or without embedding and head counted as layers",
        f"with pp={x.pp}, vpp may be {listed(allowed)}; megatron-core also runs uneven chunks",
    )


def _schedule(x: Layouts, q: Question) -> Mask:
    m = x.micro_batches(q.workload.global_batch)
    interleaved, v_shaped, both = scheduled(x, ["interleaved"]), scheduled(x, V_SHAPED), scheduled(x, BOTH_WAYS)
    broken = ~interleaved & ~scheduled(x, ["bfs"]) & ~v_shaped & (x.vpp > 1)
    broken |= interleaved & ((x.vpp < 2) | (x.pp < 2) | (m % np.maximum(x.pp, 1) != 0))
    broken |= v_shaped & ((x.vpp != 2) | (x.pp < 2))
    broken |= both & ((x.pp % 2 != 0) | (m % 2 != 0))
    broken |= (both | scheduled(x, ["dualpipev"])) & (m < 2 * x.pp)
    return np.asarray(broken)


def _schedule_message(x: Layout, q: Question) -> tuple[str, str]:
    name, each = schedule_of(x), x.dp * x.micro_batch
    m = q.workload.global_batch // each
    if name == "interleaved" and x.vpp > 1 and x.pp > 1:
        need = f"interleaved 1F1B needs a multiple of pp={x.pp} micro-batches, at least {x.pp}; there are {m}"
        lower = f", or pp may be {listed(divisors(m)[1:])}" if m > 1 else ""
        return need, f"raise the global batch to {-(-m // x.pp) * x.pp * each}{lower}, or use vpp=1"
    needs = {
        "interleaved": "vpp of 2 or more and pp of 2 or more",
        "zb-v": "vpp=2 and pp of 2 or more",
        "dualpipev": f"vpp=2, pp of 2 or more and at least {2 * x.pp} micro-batches: a global batch of {2 * x.pp * each} or more",
        "dualpipe": "an even pp"
        if x.pp % 2
        else "pp of 2 or more"
        if x.pp < 2
        else "vpp=1, an even pp and an even number of at least"
        f" {2 * x.pp} micro-batches: a global batch of {2 * x.pp * each}, {(2 * x.pp + 2) * each}, ...",
    }
    need = needs.get(name, "vpp=1")
    return f"the schedule {name} does not run with pp={x.pp}, vpp={x.vpp} and {m} micro-batches", f"{name} needs {need}"


def _shard(x: Layouts, q: Question) -> Mask:
    size = np.maximum(x.shard, 1)
    broken = ((x.dp * x.cp) % size != 0) | ((x.shard == 1) & (x.dp * x.cp > 1))
    if q.workload.framework == "torchtitan":  # it shards over data_parallel_shard_degree x context_parallel_degree
        broken |= size % x.cp != 0
    return np.asarray((x.zero == 3) & broken)


def _shard_message(x: Layout, q: Question) -> tuple[str, str]:
    ranks = x.dp * x.cp
    allowed = [d for d in divisors(ranks, most=1 << 20) if d > 1 and (q.workload.framework != "torchtitan" or d % x.cp == 0)][:24]
    if x.shard == 1:
        return "a shard of one GPU shards nothing", f"use zero=0, or shard may be {listed(allowed)}"
    if ranks % (x.shard or 1):
        return f"a shard of {x.shard} GPUs does not divide dp x cp = {ranks}", f"shard may be {listed(allowed)}"
    return (
        f"a shard of {x.shard} GPUs does not hold whole context-parallel groups of cp={x.cp}",
        f"shard may be {listed(allowed)}",
    )


RUNS: dict[Framework, tuple[Schedule, ...]] = {
    "megatron-core": ("1f1b", "interleaved"),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zb-v", "dualpipev", "bfs"),
    "deepspeed": ("1f1b",),
    "nanotron": ("gpipe", "1f1b"),
    "hai-llm": ("1f1b", "zb-h1", "dualpipe"),  # arXiv:2401.02954, 2405.04434 ("zero-bubble", of one memory with 1F1B), 2412.19437
}


# What a framework can recompute, beside nothing. Megatron: --recompute-modules; HAI-LLM: DeepSeek's papers name modules; torchtitan:
# activation_checkpoint.mode; Megatron-DeepSpeed and nanotron: whole layers, or the attention core.
MODULES = tuple(m for m in RECOMPUTE if m not in ("none", "selective_ops"))
RECOMPUTES: dict[Framework, tuple[Recompute, ...]] = {
    "megatron-core": MODULES,
    "torchtitan": ("selective_ops", "full"),
    "deepspeed": ("core_attention", "full"),
    "nanotron": ("core_attention", "full"),
    "hai-llm": MODULES,
}


def unoffered(x: Layouts, framework: Framework, optimizer: Optimizer = "adamw") -> Mask:
    """Return where a framework has not the schedule, sharding, context parallelism, recompute or offload of a layout."""
    broken = (x.pp > 1) & ~scheduled(x, RUNS[framework])
    broken |= (x.recompute & ~recompute_bits(RECOMPUTES[framework])) != 0
    if framework == "deepspeed":
        broken |= (x.pp > 1) & (x.zero > 1)
        broken |= (x.cp > 1) & (x.cp_kind != CP_KINDS.index("ulysses"))
        # Megatron-DeepSpeed, megatron/core/parallel_state.py, asserts that neither tensor nor pipeline parallelism is beside it.
        broken |= (x.cp > 1) & ((x.tp > 1) | (x.pp > 1))
    if framework == "megatron-core":
        if optimizer == "muon":  # "Muon optimizer does not support Megatron-FSDP" (megatron/training/arguments.py)
            broken |= x.zero > 1
        # --cpu-offloading refuses any recompute and pipeline stages (transformer_config.py); --fine-grained-activation-offloading
        # runs with stages, interleaved or not, and with recompute of modules (docs/user-guide/features of core 0.18).
        broken |= (x.offload_activations > 0) & x.recomputes("full")
    if framework == "torchtitan":  # it replicates (DDP) or shards everything (FSDP2); its enable_cpu_offload is a switch
        broken |= (x.zero == 1) | (x.zero == 2) | ((x.offload_optimizer > 0) & (x.offload_optimizer < 1))
    if framework == "deepspeed":  # a ratio is for stage 3 alone (runtime/zero/offload_config.py)
        broken |= (x.zero < 3) & (x.offload_optimizer > 0) & (x.offload_optimizer < 1)
    if framework in ("nanotron", "deepspeed"):
        broken |= x.tp_overlap & (x.tp > 1)
    if framework in ("nanotron", "hai-llm"):
        broken |= (x.zero > 1) | (x.offload_optimizer > 0) | (x.offload_activations > 0) | (x.cp > 1)
    return np.asarray(broken)


def _framework(x: Layouts, q: Question) -> Mask:
    broken = unoffered(x, q.workload.framework, q.workload.optimizer) | (
        x.tp_overlap & (x.tp > 1) & (not overlaps_tensor(q.workload))
    )
    return broken | ((x.offload_activations > 0) & _captures_layers(q.workload))


def _captures_layers(workload: Workload) -> bool:
    """Return whether Megatron-core captures whole layers, in which no activation leaves for the host: transformer_config.py refuses
    --cpu-offloading with graphs, and a capture cannot hold a module that is offloaded (its guide to fine-grained offloading)."""
    return workload.framework == "megatron-core" and bool(workload.cuda_graphs)


def overlaps_tensor(workload: Workload) -> bool:
    """Return whether tensor-parallel traffic can run in pieces beside products: torchtitan's can only where layers are compiled
    (torchtitan distributed/tensor_parallel.py, maybe_enable_async_tp)."""
    return workload.framework != "torchtitan" or bool(workload.compiled)


def _framework_message(x: Layout, q: Question) -> tuple[str, str]:
    f = q.workload.framework
    if other := [m for m in x.recompute if m not in ("none", *RECOMPUTES[f])]:
        return f"{f} does not recompute {', '.join(other)}", f"recompute may be none, {', '.join(RECOMPUTES[f])}"
    if f == "deepspeed" and x.pp > 1 and x.zero > 1:
        return "DeepSpeed's pipeline engine runs with ZeRO 0 or 1 only", "use zero=1 with pp, or pp=1 with zero 2 or 3"
    if f == "deepspeed" and x.cp > 1 and x.cp_kind != "ulysses":
        return "DeepSpeed shards the sequence by Ulysses only", "use cp_kind = 'ulysses'"
    if f == "deepspeed" and x.cp > 1 and (x.tp > 1 or x.pp > 1):
        beside = " and ".join(f"{name}={n}" for name, n in (("tp", x.tp), ("pp", x.pp)) if n > 1)
        return f"DeepSpeed's Ulysses runs without tensor or pipeline parallelism, and here is {beside}", (
            "use tp=1 and pp=1 with cp, or cp=1"
        )
    if f == "torchtitan" and x.zero in (1, 2):
        return f"torchtitan has no ZeRO-{x.zero}: it replicates (DDP) or shards weights, gradients and optimizer state (FSDP2)", (
            "use zero=3, which keeps weights gathered after a forward with training.reshard_after_forward = false, or zero=0"
        )
    if f in ("torchtitan", "deepspeed") and 0 < x.offload_optimizer < 1 and (f == "torchtitan" or x.zero < 3):
        here = "" if f == "torchtitan" else " below ZeRO-3"
        return f"{f} offloads the optimizer whole or not at all{here}", "set offload_optimizer=1, or 0"
    if f == "megatron-core" and q.workload.optimizer == "muon" and x.zero > 1:
        return f"Megatron-LM runs muon with a sharded optimizer alone, not with ZeRO-{x.zero}", "use zero=1, or zero=0"
    if f == "megatron-core" and x.offload_activations and "full" in x.recompute:
        return "megatron-core does not offload activations of layers that it recomputes whole", (
            "recompute other modules (norm, mlp_activation, mla_up, core_attention) or none, or set offload_activations=0"
        )
    if x.offload_activations and _captures_layers(q.workload):
        return "megatron-core does not offload activations of layers that CUDA graphs capture", (
            "set training.cuda_graphs = false, or offload_activations=0"
        )
    if f in ("nanotron", "deepspeed") and x.tp_overlap and x.tp > 1:
        return f"{f} runs no tensor-parallel traffic in pieces beside its products", "leave tp_overlap off"
    if not overlaps_tensor(q.workload) and x.tp_overlap and x.tp > 1:
        return (
            "torchtitan's async tensor parallelism needs torch.compile",
            "set training.compiled = true, or leave tp_overlap off",
        )
    if f == "nanotron" and x.cp > 1:
        return "nanotron is modelled without context parallelism", "use cp=1"
    if f == "nanotron" and x.zero > 1:
        return "nanotron shards optimizer state only", "use zero=1, or zero=0"
    if f in ("nanotron", "hai-llm") and (x.offload_optimizer or x.offload_activations):
        who = "nanotron keeps" if f == "nanotron" else "DeepSeek's papers put, under hai-llm,"
        return f"{who} neither optimizer state nor activations on the host", "leave both offloads at 0"
    if f == "hai-llm" and x.zero > 1:
        return "DeepSeek's papers describe ZeRO-1 alone under hai-llm", "use zero=1, or zero=0"
    if f == "hai-llm" and x.cp > 1:
        return "DeepSeek's papers describe no context parallelism under hai-llm", "use cp=1"
    others = "; ".join(f"{name}: {', '.join(runs)}" for name, runs in RUNS.items() if name != f)
    return (
        f"{f} does not offer the pipeline schedule {schedule_of(x)}",
        f"schedule may be {', '.join(RUNS[f])} ({others})",
    )


def _recompute_layers(x: Layouts, q: Question) -> Mask:
    return (x.recompute_layers > 0) & ~x.recomputes("full")


def _recompute_layers_message(x: Layout, q: Question) -> tuple[str, str]:
    return "recompute_layers is set without recompute = 'full'", "set recompute = 'full', or leave recompute_layers at 0"


def _sequence_parallel(x: Layouts, q: Question) -> Mask:
    if q.workload.framework != "megatron-core":
        return np.zeros(len(x), bool)
    return np.asarray((x.tp > 1) & ~x.sp & (x.tp_overlap | bool(q.experts)))


def _sequence_parallel_message(x: Layout, q: Question) -> tuple[str, str]:
    what = "its overlap (--tp-comm-overlap)" if x.tp_overlap else "a mixture of experts"
    return (
        f"megatron-core refuses {what} under tp={x.tp} without sequence parallelism",
        "leave sp on" + (", or turn tp_overlap off" if x.tp_overlap and not q.experts else ", or use tp=1"),
    )


def _ep_overlap(x: Layouts, q: Question) -> Mask:
    # Megatron-LM asserts all three in megatron/training/arguments.py and transformer_config.py. In HAI-LLM it is DualPipe that
    # runs the forward of one micro-batch beside the backward of another (arXiv:2412.19437, section 3.2.1).
    rerun = x.recomputes("full") | x.recomputes("moe")
    if q.workload.framework == "hai-llm":
        alone = (x.pp == 1) | ~scheduled(x, BOTH_WAYS)
    elif q.workload.framework == "megatron-core":
        alone = (x.pp > 1) & (x.vpp == 1)
    else:  # torchtitan hides it under DualPipeV alone (distributed/dual_pipe_v.py)
        alone = ~scheduled(x, ["dualpipev"]) if q.workload.framework == "torchtitan" else np.ones(len(x), bool)
    return np.asarray(x.ep_overlap & (x.ep > 1) & (alone | rerun))


def _ep_overlap_message(x: Layout, q: Question) -> tuple[str, str]:
    if {"full", "moe"} & set(x.recompute):
        return f"{q.workload.framework} does not overlap expert traffic while it recomputes whole layers or experts", (
            "turn ep_overlap off, or recompute other modules (norm, mlp_activation, mla_up, core_attention)"
        )
    if q.workload.framework == "hai-llm":
        return (
            "hai-llm overlaps expert traffic only under DualPipe",
            "set schedule=dualpipe with pp of 2 or more, or turn ep_overlap off",
        )
    if q.workload.framework != "megatron-core":
        titan = q.workload.framework == "torchtitan"
        return f"{q.workload.framework} does not overlap expert traffic{' but under DualPipeV' if titan else ''}", (
            f"{'set schedule=dualpipev with pp of 2 or more and vpp=2, or ' if titan else ''}turn ep_overlap off"
        )
    return (
        f"megatron-core overlaps expert traffic with pp={x.pp} only where virtual stages are on",
        "set vpp to 2 or more, or turn ep_overlap off",
    )


def _overlap(x: Layouts, q: Question) -> Mask:
    # Megatron-LM asserts that --overlap-param-gather stands beside --overlap-grad-reduce (megatron/training/arguments.py).
    w = q.workload
    if w.framework != "megatron-core" or not w.overlap_param_gather or w.overlap_grad_reduce:
        return np.zeros(len(x), bool)
    by_itself = (x.zero == 3) & (w.overlap_grad_reduce is None)  # Megatron-FSDP overlaps both unless told otherwise
    return np.asarray((x.zero > 0) & (x.dp * x.cp > 1) & ~by_itself)


def _overlap_message(x: Layout, q: Question) -> tuple[str, str]:
    return (
        "megatron-core refuses overlap_param_gather without overlap_grad_reduce",
        "add --set training.overlap_grad_reduce=true, or leave overlap_param_gather out",
    )


FUSED_DISPATCH = ("deepep", "hybridep")


def _dispatcher(x: Layouts, q: Question) -> Mask:
    # Megatron-LM asserts it (core/transformer/moe/token_dispatcher.py: "Flex token dispatcher requires TPxEP > 1").
    if not q.experts or q.workload.moe_dispatcher not in FUSED_DISPATCH:
        return np.zeros(len(x), bool)
    if q.workload.framework in ("deepspeed", "nanotron"):
        return np.ones(len(x), bool)
    return np.asarray((x.tp if q.workload.framework == "megatron-core" else 1) * x.ep == 1)


def _dispatcher_message(x: Layout, q: Question) -> tuple[str, str]:
    name, f = q.workload.moe_dispatcher, q.workload.framework
    if f in ("deepspeed", "nanotron"):
        return f"{f} does not dispatch tokens with {name}", "set training.moe_dispatcher = 'alltoall', or leave it out"
    spread = "tp x ep" if f == "megatron-core" else "ep"
    return f"{name} carries tokens between ranks, and {spread} is 1", "raise ep, or set training.moe_dispatcher = 'alltoall'"


def _order(x: Layouts, q: Question) -> Mask:
    broken = np.zeros(len(x), bool)
    for code in np.flatnonzero(np.bincount(x.order)[1:]) + 1:
        mine = x.order == code
        place = ORDERS[code].index
        for inner, outer in combinations(DEFAULT_ORDER, 2):
            swapped = place(inner) > place(outer)
            if swapped and not (q.workload.framework == "megatron-core" and (inner, outer) == ("dp", "pp")):
                broken |= mine & (getattr(x, inner) > 1) & (getattr(x, outer) > 1)
            elif swapped and q.experts:
                broken |= mine & (x.pp > 1) & (x.edp != x.dp)
    return broken


def _order_message(x: Layout, q: Question) -> tuple[str, str]:
    usual = "-".join(DEFAULT_ORDER)
    said = f"{q.workload.framework} does not place the axes as {'-'.join(x.order)}"
    if q.workload.framework != "megatron-core":
        return said, f"order may be {usual} (inner to outer); megatron-core also runs tp-cp-pp-dp"
    if x.order == ("tp", "cp", "pp", "dp"):
        edp = x.tp * x.cp * x.dp // (x.etp * x.ep)
        return (
            f"with pp inside dp (--use-tp-pp-dp-mapping) megatron-core needs as many copies of experts ({edp}) as of the rest ({x.dp})",
            f"choose etp x ep = tp x cp = {x.tp * x.cp}, or order {usual}",
        )
    return said, f"order may be {usual}, or tp-cp-pp-dp (--use-tp-pp-dp-mapping)"


STAGE_RULES: tuple[Rule, ...] = (
    Rule("gpus", "every GPU takes exactly one place in the grid", _gpu_count, _gpu_count_message),
    Rule("batch", "every data-parallel rank takes equally many whole micro-batches", _batch, _batch_message),
    Rule("layers", "every pipeline chunk holds at least one layer, or the embedding or the head", _layers, _layers_message),
    Rule("ends", "explicit first and last stages must leave layers for the others", _ends, _ends_message),
    Rule(
        "uneven",
        "other frameworks than megatron-core cut virtual stages evenly, embedding and head counted as layers or not",
        _uneven,
        _uneven_message,
    ),
    Rule(
        "schedule", "a pipeline schedule runs only with the stages and micro-batches it is made for", _schedule, _schedule_message
    ),
    Rule(
        "shard",
        "a ZeRO-3 or FSDP shard group divides the data-parallel ranks, in whole groups of what it shards over",
        _shard,
        _shard_message,
    ),
    Rule(
        "framework",
        "the framework must offer the schedule, the sharding, context parallelism and offload",
        _framework,
        _framework_message,
    ),
    Rule("sp", "a framework refuses some options without sequence parallelism", _sequence_parallel, _sequence_parallel_message),
    Rule(
        "ep_overlap", "overlapped expert traffic needs two micro-batches at a time on a stage", _ep_overlap, _ep_overlap_message
    ),
    Rule("overlap", "a framework gathers weights beside compute only where it reduces gradients so", _overlap, _overlap_message),
    Rule("order", "a framework places the axes of the grid in a fixed order", _order, _order_message),
    Rule(
        "dispatcher",
        "a fused dispatcher carries tokens between ranks, where the framework has one",
        _dispatcher,
        _dispatcher_message,
    ),
    Rule("recompute_layers", "a number of layers belongs to full recompute", _recompute_layers, _recompute_layers_message),
)
