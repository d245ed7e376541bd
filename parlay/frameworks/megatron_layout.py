"""Layout and training step that Megatron-LM's arguments describe.

Defaults are those of megatron/training/arguments.py and of TransformerConfig (NVIDIA/Megatron-LM d98e8a64).
"""

from __future__ import annotations

import re
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given
from parlay.frameworks.megatron_pipeline import ends_of, layers_of, virtual_stages

# Names of --recompute-modules -> parlay.layouts.vocabulary.Recompute
MODULES = {
    "core_attn": "core_attention", "layernorm": "norm", "moe_act": "mlp_activation", "mla_up_proj": "mla_up",
    "shared_experts": "shared_experts", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}  # --data-parallel-sharding-strategy -> ZeRO
CP_KINDS = {"p2p": "zigzag", "all_gather": "allgather", "allgather": "allgather", "a2a": "ulysses", "a2a+p2p": "usp"}
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
RECIPES = {"blockwise": "fp8-blockwise", "mxfp8": "mxfp8", "delayed": "fp8", "tensorwise": "fp8", "custom": "fp8"}
DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
GRAPH_MODULES = {"attn": "attention", "mamba": "mamba", "mlp": "mlp", "moe_router": "moe_router", "moe": "moe"}
HIDDEN_DROPOUT = 0.1
VOCABULARY_MULTIPLE = 128

Table = dict[str, Any]


def gpus_of(args: Given) -> int | None:
    """Return the processes that the launcher starts: those of a node times the nodes."""
    node = args.whole("--nproc-per-node", "--gpus-per-node", least=1)
    nodes = args.whole("--nnodes", least=1)
    total = args.whole("--world-size", least=1)
    return total or (node * (nodes or 1) if node else None)


def layout_fields(args: Given, gpus: int | None, notes: list[str], layers: int | None = None) -> Table:
    """Return the fields of a Layout; `dp` only where the number of GPUs is known. `layers` are those of a model beside the file."""
    degrees = degrees_of(args, gpus)
    modules, count = recompute_of(args, notes)
    tp, cp, ep = degrees["tp"], degrees["cp"], degrees["ep"]
    sizes = re.findall(r"\d+", args.text("--hierarchical-context-parallel-sizes") or "")
    kind, inner = cp_kind_of(args, cp, int(sizes[0]) if sizes and len(sizes[0]) < 6 else 2, notes)
    instances = args.whole("--num-distributed-optimizer-instances", least=1) or 1
    ends = ends_of(args, degrees["pp"], degrees["vpp"], notes)
    offload = args.on("--optimizer-cpu-offload")
    fraction = args.number("--optimizer-offload-fraction")
    fields: Table = {
        **degrees, "sp": args.on("--sequence-parallel"), "cp_kind": kind, "ulysses": inner, "zero": zero_of(args),
        "micro_batch": args.whole("--micro-batch-size", least=1) or 1, "recompute": list(modules), "recompute_layers": count,
        "first_layers": ends[0], "last_layers": ends[1], "tp_overlap": args.on("--tp-comm-overlap") and tp > 1,
        "ep_overlap": args.on("--overlap-moe-expert-parallel-comm") and ep > 1,
        "offload_optimizer": (1.0 if fraction is None else fraction) if offload else 0.0,
        "offload_activations": _offloaded(args, layers_of(args) or layers, notes),
    }  # fmt: skip
    if args.on("--use-tp-pp-dp-mapping"):
        fields["order"] = ["tp", "cp", "pp", "dp"]
    if instances > 1 and "dp" in degrees:
        fields["shard"] = max(1, degrees["dp"] * cp // instances)
    return fields


def _offloaded(args: Given, layers: int | None, notes: list[str]) -> float:
    """Return the share of the activations that go to the host; all layers but the last one is Megatron's most, and counts as all."""
    count = args.whole("--cpu-offloading-num-layers") or 0
    on = args.on("--cpu-offloading") or count > 0
    if args.on("--fine-grained-activation-offloading"):
        modules = " ".join(re.findall(r"\w+", args.text("--offload-modules") or "")) or "no module"
        notes.append(f"activations of {modules[:80]} on the host: which share of all that is is not modelled, counted on the GPU")
    if not on or not count:
        return 0.0
    if layers is None:
        notes.append(f"activations of {count} layers on the host: counted on the GPU, as the model's layers are not told")
        return 0.0
    return 1.0 if count >= layers - 1 else count / layers


def degrees_of(args: Given, gpus: int | None) -> dict[str, int]:
    """Return the degrees of parallelism; a mixture of experts has etp = tp unless told otherwise."""
    tp = args.whole("--tensor-model-parallel-size", least=1) or 1
    pp = args.whole("--pipeline-model-parallel-size", least=1) or 1
    cp = args.whole("--context-parallel-size", least=1) or 1
    ep = args.whole("--expert-model-parallel-size", least=1) or 1
    given = args.whole("--expert-tensor-parallel-size", least=1)
    etp = given or tp
    moe = args.whole("--num-experts") or ep > 1 or given  # a file without its model may still place experts
    degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp if moe else 1, "vpp": virtual_stages(args, pp)}
    if gpus is not None:
        if gpus % (tp * pp * cp):
            raise UsageError(
                f"tp{tp} x cp{cp} x pp{pp} does not divide {gpus:,} GPUs", where=args.where,
                hint=f"give another number: --gpus {tp * pp * cp}, or a multiple of it",
            )  # fmt: skip
        degrees["dp"] = gpus // (tp * pp * cp)
    return degrees


def cp_kind_of(args: Given, cp: int, inner: int, notes: list[str]) -> tuple[str, int]:
    """Return how context parallelism exchanges keys and values, and the ranks of the inner Ulysses."""
    said = (args.text("--cp-comm-type") or "p2p").split()
    if len(set(said)) > 1:
        notes.append(f"context parallelism differs by layer ({' '.join(said)[:60]}): the first is taken for all")
    kind = CP_KINDS.get(said[0].strip("[],") if said else "p2p", "zigzag")
    if kind == "usp":
        return ("usp", inner) if cp > inner else ("zigzag", 1)
    return (kind, 1) if cp > 1 else ("zigzag", 1)


def zero_of(args: Given) -> int:
    """Return the ZeRO stage: of FSDP where it is on, else 1 with the distributed optimizer and 0 without."""
    sharded = args.on("--use-distributed-optimizer")
    strategy = args.text("--data-parallel-sharding-strategy") or "no_shard"
    if args.on("--use-torch-fsdp2"):
        return 3
    if args.on("--use-megatron-fsdp", "--use-custom-fsdp"):
        return SHARDING.get(strategy, 3)
    return 1 if sharded or args.text("--optimizer") == "dist_muon" else 0  # which shards its state layer by layer


def recompute_of(args: Given, notes: list[str]) -> tuple[tuple[str, ...], int]:
    """Return recomputed modules and, with full recompute of some layers of a stage, their number (0 = all)."""
    granularity = args.text("--recompute-granularity") or ""
    method, count = args.text("--recompute-method"), args.whole("--recompute-num-layers", least=1)
    names = re.findall(r"\w+", args.text("--recompute-modules") or "core_attn")
    if granularity == "full":
        if method == "uniform" and (count or 1) > 1:
            notes.append(f"full recompute in groups of {count} layers: priced as every layer by itself")
        return ("full",), (count or 0) if method == "block" else 0
    if granularity == "selective" or args.on("--recompute-activations"):
        unknown = [n for n in names if n not in MODULES]
        if unknown:
            notes.append(f"recompute of {', '.join(unknown)[:60]} is not modelled")
        return tuple(MODULES[n] for n in names if n in MODULES), 0
    return (), 0


def training_fields(args: Given, dp: int | None, notes: list[str]) -> Table:
    """Return the fields of a Workload."""
    micro = args.whole("--micro-batch-size", least=1) or 1
    batch = args.whole("--global-batch-size", least=1)
    if batch is None and dp is not None:
        batch = micro * dp
        notes.append("global batch: one micro-batch a rank (Megatron's default)")
    sequence = args.whole("--seq-length", "--encoder-seq-length", least=1)
    precision = precision_of(args)
    fused = args.on("--cross-entropy-loss-fusion")
    te = args.text("--cross-entropy-fusion-impl") == "te"
    dropout = args.number("--hidden-dropout")
    fields: Table = {
        "framework": "megatron-core", "seq_len": sequence or args.whole("--max-position-embeddings", least=1),
        "global_batch": batch, "precision": precision, "optimizer": _optimizer(args), "flash_attention": _flash(args),
        "gradient_dtype": gradient_of(args), "cross_entropy": ("te" if te else "fused") if fused else "unfused",
        "vocab_multiple": args.whole("--make-vocab-size-divisible-by", least=1) or VOCABULARY_MULTIPLE,
        "fp8_weights": args.on("--fp8-param-gather") or None,
        "fp8_activation_inputs": args.on("--activation-func-fp8-input-store") or None,
        "dropout": HIDDEN_DROPOUT if dropout is None else dropout,
        "overlap_grad_reduce": args.on("--overlap-grad-reduce"), "overlap_param_gather": args.on("--overlap-param-gather"),
        "overlap_p2p": False if args.on("--no-overlap-p2p-communication") else None,
        "gradient_accumulation_fusion": not args.on("--no-gradient-accumulation-fusion"),
        "local_layers": args.text("--transformer-impl") == "local",
        "deferred_head_gradients": _deferred(args),
        "deterministic": args.on("--deterministic-mode"), "total_tokens": _tokens(args, sequence, batch),
        **_bf16_layers(args), **_experts(args), **_states(args), **graphs_of(args),
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value is not None}


def _bf16_layers(args: Given) -> dict[str, int]:
    """Return how many layers at the ends keep bf16 products under fp8 or fp4; one at each end unless told otherwise."""
    start, end = args.whole("--num-layers-at-start-in-bf16"), args.whole("--num-layers-at-end-in-bf16")
    if not args.on("--first-last-layers-bf16"):
        return {}
    first = 1 if start is None else start
    return {"bf16_layers": first + (1 if end is None else end), "bf16_layers_at_start": first}


def _deferred(args: Given) -> int | None:
    limit = args.whole("--wgrad-deferral-limit") or 0
    return limit if args.on("--defer-embedding-wgrad-compute") else None


def precision_of(args: Given) -> str:
    """Return the precision of the linear layers' products."""
    recipe = args.text("--fp8-recipe") or "delayed"
    if args.text("--fp4-format", "--fp4"):
        return "nvfp4"
    if args.text("--fp8-format", "--fp8"):
        return RECIPES.get(recipe, "fp8")
    return "bf16" if args.on("--bf16") else "fp16" if args.on("--fp16") else "fp32"


def gradient_of(args: Given) -> str | None:
    """Return the dtype of the accumulated gradient: fp32 with bf16 weights unless told otherwise; None, which is bf16 sharded, where
    Megatron's FSDP shards weights and reduces in bf16, as a layout of ZeRO-3 does by default."""
    told = args.on("--accumulate-allreduce-grads-in-fp32")
    half = args.on("--grad-reduce-in-bf16")
    if args.on("--bf16"):
        return "fp32" if not half else None if zero_of(args) == 3 else "bf16"
    return "fp32" if told or not args.on("--fp16") else "fp16"


def graphs_of(args: Given) -> Table:
    """Return whether whole layers are captured as CUDA graphs, or else which of their parts."""
    on = (args.text("--cuda-graph-impl") or "none") != "none" or args.on("--enable-cuda-graph", "--external-cuda-graph")
    named = re.findall(r"\w+", args.text("--cuda-graph-modules", "--cuda-graph-scope") or "")
    parts = [GRAPH_MODULES[n] for n in named if n in GRAPH_MODULES]
    return {"cuda_graphs": False, "cuda_graph_modules": parts} if on and parts else {"cuda_graphs": on}


def _optimizer(args: Given) -> str:
    said = args.text("--optimizer") or "adam"
    if said not in OPTIMIZERS:
        raise UsageError(
            f"'{said[:40]}' is not known", where=f"{args.where}: --optimizer", hint=f"known: {', '.join(OPTIMIZERS)}"
        )
    return OPTIMIZERS[said]


def _flash(args: Given) -> bool:
    backend = args.text("--attention-backend") or "auto"
    local = args.text("--transformer-impl") == "local"
    return backend not in ("unfused", "local") and (args.on("--use-flash-attn") or not local)


def _tokens(args: Given, sequence: int | None, batch: int | None) -> int | None:
    """Return the tokens of the whole run."""
    samples, steps = args.whole("--train-samples", least=1), args.whole("--train-iters", least=1)
    total = (samples or (steps or 0) * (batch or 0)) * (sequence or 0)
    return total if 0 < total <= 10**18 else None


def _experts(args: Given) -> Table:
    """Return the settings of a mixture of experts; Megatron gathers all tokens unless told otherwise."""
    named = args.text("--moe-token-dispatcher-type") or args.on("--moe-grouped-gemm")
    if not args.whole("--num-experts") and not named:
        return {}
    said = args.text("--moe-token-dispatcher-type") or "allgather"
    backend = args.text("--moe-flex-dispatcher-backend") or "deepep"
    capacity = args.number("--moe-expert-capacity-factor")
    dispatcher = {"alltoall": "alltoall", "allgather": "allgather", "flex": backend}.get(said)
    return {
        "moe_grouped": args.on("--moe-grouped-gemm"), "moe_dispatcher": dispatcher,
        "moe_capacity_factor": capacity if capacity and capacity > 0 else None,
    }  # fmt: skip


def _states(args: Given) -> Table:
    """Return the dtypes of the optimizer's states, which only the precision-aware optimizer changes."""
    main, moment = args.text("--main-params-dtype"), args.text("--exp-avg-dtype")
    if not args.on("--use-precision-aware-optimizer"):
        return {}
    return {"master_dtype": DTYPES.get(main or "fp32"), "moment_dtype": DTYPES.get(moment or "fp32")}
