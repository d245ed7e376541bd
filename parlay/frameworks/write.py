"""A layout and its training step as the framework's own settings: Megatron-LM arguments, a torchtitan or a DeepSpeed file.

What `--from` reads back gives the same layout (tests/frameworks/test_write.py). The model's own arguments, data and schedules of the
learning rate are not written: only what the layout and the step decide. What a framework has no setting for is told in notes.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.deepspeed import OPTIMIZERS as DEEPSPEED_OPTIMIZERS
from parlay.frameworks.megatron_layout import CP_KINDS as MEGATRON_CP
from parlay.frameworks.megatron_layout import GRAPH_MODULES, MODULES
from parlay.frameworks.megatron_layout import OPTIMIZERS as MEGATRON_OPTIMIZERS
from parlay.frameworks.torchtitan import MODELS as TITAN_MODELS
from parlay.frameworks.torchtitan import SCHEDULES as TITAN_SCHEDULES
from parlay.layouts.layout import Layout
from parlay.layouts.split import V_SHAPED, chunk_sizes
from parlay.layouts.vocabulary import DEFAULT_ORDER, LoraModule
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GatedDelta, GroupedAttention, LatentAttention, Mamba1, Mamba2, ModelSpec, MoeMlp
from parlay.schedules.megatron import EMBEDDING, LAYER, LOSS, MTP, megatron_options, torchtitan_modules, torchtitan_sizes

WRITTEN = ("megatron-core", "torchtitan", "deepspeed")
# TransformerConfig's names for the split -> Megatron-LM's arguments (megatron/training/arguments.py)
SPLIT = {
    "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "pipeline_model_parallel_layout": "--pipeline-model-parallel-layout",
}
FP8 = {"fp8": "delayed", "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"}  # precision -> --fp8-recipe
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", "sgd": "SGD"}
OF_EXPERTS = {"mlp_activation", "moe", "shared_experts"}  # modules that Megatron recomputes in mixtures of experts alone
# What offloads activations where --cpu-offloading refuses, under pipeline stages or recompute (Megatron-LM, transformer_config.py)
FINE_OFFLOAD = (
    "--fine-grained-activation-offloading with those --offload-modules that make it (attn_norm, qkv_linear, core_attn, attn_proj, "
    "mlp_norm, expert_fc1, moe_act)"
)
MOST_LESS = 4  # layers that torchtitan's counts may take off either end; other splits are written module by module
TITAN_NAMES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved1f1b": "Interleaved1F1B", "zbvzerobubble": "ZBVZeroBubble",
    "dualpipev": "DualPipeV", "loopedbfs": "LoopedBFS",
}  # fmt: skip

# Megatron-Core's names of what goes into a mixer and what comes out (core/models/gpt/gpt_layer_specs.py, core/ssm)
LATENT = ["linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"]
BRIDGE_MIXERS: dict[str, tuple[list[str], list[str]]] = {
    "gqa": (["linear_qkv"], ["linear_proj"]), "mla": (LATENT, ["linear_proj"]), "mamba2": (["in_proj"], ["out_proj"]),
    "mamba1": (["in_proj"], ["out_proj"]), "gated_delta": (["in_proj"], ["out_proj"]),
}  # fmt: skip

Table = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Written:
    """Settings of a framework as text, and what it has no setting for."""

    text: str
    notes: tuple[str, ...]


def written(model: ModelSpec, workload: Workload, layout: Layout) -> Written:
    """Return the settings of the workload's framework that run `layout`.

    Raises UsageError for a framework that is not public or whose files Parlay does not write.

    Examples
    --------
    >>> from parlay.models.load import load_model
    >>> step = Workload(framework="deepspeed", global_batch=64)
    >>> written(load_model("llama-3.1-8b"), step, Layout(dp=8, zero=2)).text.splitlines()[1:4]
    ['  "train_batch_size": 64,', '  "train_micro_batch_size_per_gpu": 1,', '  "gradient_accumulation_steps": 8,']
    """
    if workload.framework not in WRITTEN:
        raise UsageError(
            f"settings of {workload.framework} are not written", where="--launch", hint=f"they are of {', '.join(WRITTEN)}"
        )
    notes: list[str] = []
    writer = {"megatron-core": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed}[workload.framework]
    text = writer(model, workload, layout, notes)
    if workload.lora_rank is not None:
        notes.append(_adapters(model, workload))
    if workload.document_len is not None:
        notes.append(
            f"documents of {workload.document_len:,} tokens that attend to themselves alone are up to how the data is packed"
        )
    if workload.moe_imbalance != 1 and _mixture(model):
        notes.append(
            f"experts whose busiest rank takes {workload.moe_imbalance:g} x the mean are up to the router, not to a setting"
        )
    return Written(text, tuple(notes))


def _adapters(model: ModelSpec, w: Workload) -> str:
    """Return where a framework's users ask for LoRA, which none of the files has a setting for."""
    if w.framework != "megatron-core":
        return f"LoRA of rank {w.lora_rank} on {', '.join(w.lora_modules)} is up to the script that makes the model; the file has no setting"
    names = [name for module in w.lora_modules for name in _bridge_modules(model, module)]
    targets = ", ".join(f'"{name}"' for name in dict.fromkeys(names))
    return (
        f"LoRA is not among Megatron-LM's arguments; Megatron-Bridge has peft=LoRA(dim={w.lora_rank}, target_modules=[{targets}])"
    )


def _bridge_modules(model: ModelSpec, module: LoraModule) -> list[str]:
    """Return Megatron-Bridge's names of the layers of a module; patterns where plain names would match routed experts too."""
    names = []
    experts = _mixture(model)
    for kind in model.kinds.values():
        x, m = kind.mixer, kind.mlp
        if module in ("qkv", "out") and isinstance(x, GroupedAttention | LatentAttention | Mamba1 | Mamba2 | GatedDelta):
            inside, outside = BRIDGE_MIXERS[x.kind]
            names += inside if module == "qkv" else outside
        elif module in ("up", "down"):
            fc = "linear_fc1" if module == "up" else "linear_fc2"
            if isinstance(m, DenseMlp):
                names.append(f"*.mlp.{fc}" if experts else fc)
            elif isinstance(m, MoeMlp) and m.shared_width:
                names.append(f"*.shared_experts.{fc}")
    return names


def _megatron(model: ModelSpec, w: Workload, x: Layout, notes: list[str]) -> str:
    """Return one argument a line, each but the last with a backslash behind it."""
    words = [
        *_degrees(model, w, x),
        *_split(model, x),
        *_sharding(x),
        *_recompute(model, x, notes),
        *_step(w, x),
        *_optimizer(w, x, notes),
        *_precision(w, x),
        *_graphs(w),
    ]
    return " \\\n".join([*words, *_offloading(model, x, notes)])


def _offloading(model: ModelSpec, x: Layout, notes: list[str]) -> list[str]:
    """Return what sends activations to the host: of whole layers, all but one at most, or a note where only modules can be named."""
    if not x.offload_activations:
        return []
    share, layers = x.offload_activations, model.layer_count
    if x.pp > 1 or x.recompute:
        beside = f"pp={x.pp}" if x.pp > 1 else f"recompute of {'+'.join(x.recompute)}"
        notes.append(
            f"{share:.4g} of the activations on the host: beside {beside} Megatron-LM names modules, not a share: {FINE_OFFLOAD}"
        )
        return []
    count = min(max(1, round(share * layers)), layers - 1)
    return [f"--cpu-offloading --cpu-offloading-num-layers {count}"] if count else []


def _degrees(model: ModelSpec, w: Workload, x: Layout) -> list[str]:
    degrees = {"tensor-model": x.tp, "pipeline-model": x.pp, "context": x.cp, "expert-model": x.ep}
    words = [f"--{name}-parallel-size {n}" for name, n in degrees.items() if n > 1 or name in ("tensor-model", "pipeline-model")]
    if _mixture(model):
        words.append(f"--expert-tensor-parallel-size {x.etp}")
    if x.tp > 1 and x.sp is not False:
        words.append("--sequence-parallel")
    if x.cp > 1:
        kind = next(said for said, kind in MEGATRON_CP.items() if kind == ("zigzag" if x.cp_kind == "ring" else x.cp_kind))
        words.append(f"--cp-comm-type {kind}")
        if x.cp_kind == "usp":
            words.append(f"--hierarchical-context-parallel-sizes {x.ulysses} {x.cp // x.ulysses}")
    words += ["--tp-comm-overlap"] if x.tp_overlap and x.tp > 1 else []
    words += ["--overlap-moe-expert-parallel-comm"] if x.ep_overlap and x.ep > 1 else []
    words += ["--use-tp-pp-dp-mapping"] if x.order != DEFAULT_ORDER else []
    return words + _experts(model, w)


def _experts(model: ModelSpec, w: Workload) -> list[str]:
    if not _mixture(model):
        return []
    flex = w.dispatcher in ("deepep", "hybridep")
    words = [f"--moe-token-dispatcher-type {'flex' if flex else w.dispatcher}"]
    words += [f"--moe-flex-dispatcher-backend {w.dispatcher}"] if flex else []
    words += ["--moe-grouped-gemm"] if w.moe_grouped is not False else []
    return words + ([f"--moe-expert-capacity-factor {w.moe_capacity_factor:g}"] if w.moe_capacity_factor else [])


def _mixture(model: ModelSpec) -> bool:
    return any(isinstance(kind.mlp, MoeMlp) for kind in model.kinds.values())


def _split(model: ModelSpec, x: Layout) -> list[str]:
    """Return how layers lie on stages and chunks."""
    if x.pp == 1:
        return []
    sizes = chunk_sizes(model.layer_count, x.pp, x.vpp, *x.ends, tail=1 + model.mtp_layers)
    chunks = [LAYER * n for n in sizes]
    chunks[0] = EMBEDDING + chunks[0]
    chunks[-1] += MTP * model.mtp_layers + LOSS
    options = megatron_options(chunks, x.pp)
    words = [f"{SPLIT[name]} {value}" if value is not True else SPLIT[name] for name, value in options.items()]
    words = [f"{w.split(' ', 1)[0]} '{w.split(' ', 1)[1]}'" if "layout " in w else w for w in words]
    if x.vpp > 1 and "pipeline_model_parallel_layout" not in options:
        words.append(f"--num-virtual-stages-per-pipeline-rank {x.vpp}")
    return words


def _sharding(x: Layout) -> list[str]:
    words = []
    if x.zero > 1:
        words += [
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {'optim_grads' if x.zero == 2 else 'optim_grads_params'}",
        ]
    ranks = x.dp * x.cp
    words += [f"--num-distributed-optimizer-instances {ranks // x.shard}"] if x.zero and x.shard and x.shard < ranks else []
    if x.offload_optimizer:
        words += [
            "--use-precision-aware-optimizer",
            "--optimizer-cpu-offload",
            f"--optimizer-offload-fraction {x.offload_optimizer:g}",
        ]
    return words


def _recompute(model: ModelSpec, x: Layout, notes: list[str]) -> list[str]:
    if x.recompute == ("full",):
        method = (
            f"block --recompute-num-layers {x.recompute_layers}" if x.recompute_layers else "uniform --recompute-num-layers 1"
        )
        return [f"--recompute-granularity full --recompute-method {method}"]
    names = {module: said for said, module in MODULES.items()}
    idle = set() if _mixture(model) else OF_EXPERTS & set(x.recompute)
    if idle:
        notes.append(f"a model without experts has no {' or '.join(sorted(names[m] for m in idle))} to recompute: not written")
    said = [names[module] for module in x.recompute if module in names and module not in idle]
    return [f"--recompute-granularity selective --recompute-modules {' '.join(said)}"] if said else []


def _step(w: Workload, x: Layout) -> list[str]:
    words = [f"--micro-batch-size {x.micro_batch}", f"--global-batch-size {w.global_batch}", f"--seq-length {w.seq_len}"]
    words += [f"--train-samples {-(-w.total_tokens // w.seq_len)}"] if w.total_tokens else []
    words += [f"--hidden-dropout {w.dropout:g} --attention-dropout {w.dropout:g}"]
    words += [f"--make-vocab-size-divisible-by {w.vocab_multiple}"] if w.vocab_multiple else []
    reduces, gathers = (x.zero == 3 if told is None else told for told in (w.overlap_grad_reduce, w.overlap_param_gather))
    words += ["--overlap-grad-reduce"] if reduces and x.dp * x.cp > 1 else []
    words += ["--overlap-param-gather"] if gathers and x.dp * x.cp > 1 and x.zero else []
    words += ["--no-overlap-p2p-communication"] if w.overlap_p2p is False else []
    if w.cross_entropy in ("fused", "te"):
        words.append(f"--cross-entropy-loss-fusion --cross-entropy-fusion-impl {'te' if w.cross_entropy == 'te' else 'native'}")
    words += ["--no-gradient-accumulation-fusion"] if w.gradient_accumulation_fusion is False else []
    return words + (["--deterministic-mode"] if w.deterministic else [])


def _optimizer(w: Workload, x: Layout, notes: list[str]) -> list[str]:
    """Return the optimizer; Megatron shards muon's state by whole layers (dist_muon), not by its distributed optimizer."""
    said = next((said for said, mine in MEGATRON_OPTIMIZERS.items() if mine == w.optimizer), None)
    if said is None:
        notes.append(f"Megatron-LM has no {w.optimizer}: the arguments name no optimizer")
    if w.optimizer == "muon" and x.zero > 1:
        notes.append(f"Megatron-LM runs muon without FSDP: ZeRO-{x.zero} of it is not to be had")
    if w.optimizer == "muon" and x.zero == 1:
        return ["--optimizer dist_muon"]
    words = [f"--optimizer {said}"] if said else []
    return words + (["--use-distributed-optimizer"] if x.zero and w.optimizer != "muon" else [])


def _bf16_ends(w: Workload) -> list[str]:
    """Return which first and last layers stay in bf16 beside narrower ones."""
    if not w.bf16_layers or (w.precision not in FP8 and w.precision != "nvfp4"):
        return []
    start, end = w.bf16_ends
    return [f"--first-last-layers-bf16 --num-layers-at-start-in-bf16 {start} --num-layers-at-end-in-bf16 {end}"]


def _precision(w: Workload, x: Layout) -> list[str]:
    words = ["--fp16"] if w.precision == "fp16" else [] if w.precision == "fp32" else ["--bf16"]
    words += [f"--fp8-format hybrid --fp8-recipe {FP8[w.precision]}"] if w.precision in FP8 else []
    words += ["--fp4-format e2m1"] if w.precision == "nvfp4" else []
    words += ["--fp8-param-gather"] if w.fp8_weights else []
    words += _bf16_ends(w)
    if w.gradient_dtype == "bf16" or (w.gradient_dtype is None and x.zero == 3):  # Megatron's FSDP keeps them as its weights
        words.append("--grad-reduce-in-bf16")
    if w.precision == "fp16" and w.gradient_dtype == "fp32":
        words.append("--accumulate-allreduce-grads-in-fp32")
    if w.moment_dtype or w.master_dtype:
        moment, master = w.moment_dtype or "fp32", w.master_dtype or "fp32"
        words.append(
            f"--use-precision-aware-optimizer --exp-avg-dtype {moment} --exp-avg-sq-dtype {moment} --main-params-dtype {master}"
        )
    return words


def _graphs(w: Workload) -> list[str]:
    if w.cuda_graphs:
        return ["--cuda-graph-impl local"]
    names = {module: said for said, module in GRAPH_MODULES.items()}
    parts = " ".join(names[m] for m in w.cuda_graph_modules if m in names)
    return [f"--cuda-graph-impl transformer_engine --cuda-graph-scope {parts}"] if parts else []


def _torchtitan(model: ModelSpec, w: Workload, x: Layout, notes: list[str]) -> str:
    """Return the sections of a job file that the layout decides."""
    replicas = x.dp * x.cp // (x.shard or x.dp * x.cp) if x.zero == 3 else x.dp
    pipeline: Table = {"pipeline_parallel_degree": x.pp}
    if x.pp > 1:
        schedule = x.schedule or ("interleaved" if x.vpp > 1 else "1f1b")
        said = next(name for name, mine in TITAN_SCHEDULES.items() if mine == schedule)
        pipeline |= {"pipeline_parallel_schedule": TITAN_NAMES[said], "pipeline_parallel_microbatch_size": x.micro_batch}
        pipeline |= _titan_split(model, x, schedule)
    whole = w.global_batch // x.dp if x.pp > 1 else x.micro_batch
    full = {"mode": "full"} if x.recompute == ("full",) else {"mode": "none"}
    if x.recompute == ("full",) and x.recompute_layers:
        every = max(1, round(model.layer_count / (x.pp * x.vpp * x.recompute_layers)))
        full = {"mode": "selective", "selective_ac_option": str(every)}
        notes.append(f"full recompute on {x.recompute_layers} layers of each chunk is that of every layer number {every}")
    kept = {"mode": "selective", "selective_ac_option": "op"} if x.recompute == ("selective_ops",) else full
    if x.recompute not in ((), ("full",), ("selective_ops",)):
        notes.append(f"torchtitan has no recompute of {'+'.join(x.recompute)}: the file recomputes nothing")
    named = next(((family, f) for family, all_ in TITAN_MODELS.items() for f, mine in all_.items() if mine == model.id), None)
    optimizer = OPTIMIZERS.get(w.optimizer)
    if optimizer is None:
        notes.append(f"torchtitan has no {w.optimizer}: the file names no optimizer")
    converter = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}.get(w.precision)
    sections: dict[str, Table] = {
        "model": ({"name": named[0], "flavor": named[1].upper()} if named else {}) | ({"converters": [converter]} if converter else {}),
        "optimizer": {"name": optimizer} if optimizer else {},
        "training": {
            "local_batch_size": whole, "global_batch_size": w.global_batch, "seq_len": w.seq_len,
            "mixed_precision_param": "float32" if w.precision == "fp32" else "bfloat16",
            **({"enable_cpu_offload": True} if x.offload_optimizer else {}),
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": x.dp // replicas, "tensor_parallel_degree": x.tp,
            "enable_async_tensor_parallel": bool(x.tp_overlap and x.tp > 1), "context_parallel_degree": x.cp,
            "context_parallel_rotate_method": "allgather" if x.cp_kind == "allgather" else "alltoall",
            **pipeline, "expert_parallel_degree": x.ep, "expert_tensor_parallel_degree": x.etp,
        },
        "activation_checkpoint": kept,
        "compile": {"enable": bool(w.compiled)},
    }  # fmt: skip
    if w.precision not in ("fp32", "bf16", "fp8", "mxfp8"):
        notes.append(f"torchtitan has no {w.precision}")
    lines = []
    for name, table in sections.items():
        if table:
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines).rstrip("\n")


def _titan_split(model: ModelSpec, x: Layout, schedule: str) -> Table:
    """Return the settings that make these chunks: counts of layers where they can, else the modules of every chunk.

    torchtitan makes ceil((layers + less of the first + less of the last) / layers per stage) chunks, and refuses a number that
    pp does not divide (distributed/pipeline_parallel.py).
    """
    sizes = chunk_sizes(model.layer_count, x.pp, 2 if schedule in V_SHAPED else x.vpp, *x.ends, tail=1 + model.mtp_layers)
    for first, last in sorted(product(range(MOST_LESS + 1), repeat=2), key=lambda less: abs(less[0] - 1) + abs(less[1] - 1)):
        units = model.layer_count + first + last
        each = -(-units // len(sizes))
        if -(-units // each) == len(sizes) and torchtitan_sizes(model.layer_count, len(sizes), first, last) == sizes:
            ends = {"first": first, "last": last}
            less = {f"pipeline_parallel_{end}_stage_less_layers": n for end, n in ends.items() if n != 1}  # 1 is the default
            return {"pipeline_parallel_layers_per_stage": each, **less}
    chunks = [LAYER * n for n in sizes]
    chunks[0], chunks[-1] = EMBEDDING + chunks[0], chunks[-1] + LOSS
    return {"module_fqns_per_model_part": torchtitan_modules(chunks)}


def _deepspeed(model: ModelSpec, w: Workload, x: Layout, notes: list[str]) -> str:
    """Return a configuration file; recompute is the model's own call of DeepSpeed's activation checkpointing."""
    zero: Table = {
        "stage": x.zero,
        "overlap_comm": bool(w.overlap_grad_reduce) if w.overlap_grad_reduce is not None else x.zero == 3,
    }
    if x.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "ratio": x.offload_optimizer}
    if x.zero == 3 and x.shard and x.shard < x.dp * x.cp:
        zero["zero_hpz_partition_size"] = x.shard
    if w.bucket_elements:
        zero["reduce_bucket_size"] = w.bucket_elements
    table: Table = {
        "train_batch_size": w.global_batch, "train_micro_batch_size_per_gpu": x.micro_batch,
        "gradient_accumulation_steps": w.global_batch // (x.micro_batch * x.dp),
        "fp16" if w.precision == "fp16" else "bf16": {"enabled": w.precision != "fp32"},
        "zero_optimization": zero, "optimizer": {"type": OPTIMIZERS.get(w.optimizer, w.optimizer)},
    }  # fmt: skip
    if w.gradient_dtype:
        table["data_types"] = {"grad_accum_dtype": w.gradient_dtype}
    if x.tp > 1:
        table["tensor_parallel"] = {"autotp_size": x.tp}
    if x.pp > 1:
        table["pipeline"] = {"stages": x.pp}
    if x.cp > 1:
        table["sequence_parallel_size"] = x.cp
    if x.ep > 1:
        table["expert_parallel"] = {"enabled": True, "autoep_size": x.ep}
    if w.precision not in ("fp32", "fp16", "bf16"):
        notes.append(f"a DeepSpeed file has no {w.precision}: it says bf16, and the model's own layers must run in {w.precision}")
    if w.optimizer not in DEEPSPEED_OPTIMIZERS.values():
        notes.append(f"DeepSpeed has no {w.optimizer} of its own: the script must make it")
    if x.recompute and (x.recompute != ("full",) or x.recompute_layers):
        what = "+".join(x.recompute) + (f" on {x.recompute_layers} layers of a stage" if x.recompute_layers else "")
        notes.append(f"what is recomputed, {what}, is up to what the model calls deepspeed.checkpointing.checkpoint for")
    elif x.recompute or x.offload_activations:
        table["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": bool(x.offload_activations)}
        notes.append("the model must call deepspeed.checkpointing.checkpoint for its layers")
    notes.append(f"the sequence length of {w.seq_len:,} tokens is the model's and the data's")
    return json.dumps(table, indent=2)
