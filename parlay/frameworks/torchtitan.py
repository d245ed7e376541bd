"""A torchtitan job file (TOML): model and flavor, parallelism, batch, precision, activation checkpointing, compilation.

Names and defaults are those of torchtitan's job_config.py (pytorch/torchtitan 000204a4); older places of a setting
(experimental.*, training.*) are read too.
"""

from __future__ import annotations

import re
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given, Imported, flat
from parlay.frameworks.megatron_pipeline import held
from parlay.layouts.split import V_SHAPED, chunk_sizes
from parlay.models.load import list_models, load_model
from parlay.schedules.megatron import torchtitan_sizes

FRAMEWORK = "torchtitan"
SECTIONS = ("model", "training", "parallelism", "experimental", "activation_checkpoint", "job", "optimizer")
# torchtitan's models and flavors -> catalog
MODELS = {
    "llama3": {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3.1-405b"},
    "llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"},
    "deepseek_v3": {"16b": "deepseek-v2-lite", "236b": "deepseek-v2", "671b": "deepseek-v3"},
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
}
SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zb-v", "dualpipev": "dualpipev",
    "loopedbfs": "bfs",
}  # fmt: skip
CHUNKS = {"interleaved": 2, "zb-v": 2, "dualpipev": 2, "bfs": 2}  # a rank's stages where layers per stage are not given
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd"}
LOCAL_BATCH, SEQUENCE = 8, 2048  # defaults of the section training
EVERY = "2"  # layer that selective activation checkpointing recomputes, unless told otherwise
WITHOUT_EFFECT = (
    r"(job|profiling|metrics|lr_scheduler|checkpoint|validation|comm|fault_tolerance|debug|memory_estimation)\..*",
    r"model\.(tokenizer_path|hf_assets_path|print_after_conversion|tokenizer_.*|norm_type)",
    r"optimizer\.(lr|eps|beta.|weight_decay|implementation|fused|foreach)",
    r"training\.(dataset.*|max_norm|gc_.*|seed|steps|warmup_steps|data_parallel_type|deterministic)",
    r"activation_checkpoint\.(early_stop|per_op_sac_force_recompute_mm_shapes_by_fqns)",
    r"(float8|quantize\..*)\.(filter_fqns|fqns|precompute_float8_dynamic_scale_for_fsdp|emulate|force_recompute_fp8_weight_in_bwd)",
)

Table = dict[str, Any]


def read_torchtitan(table: Table, where: str, gpus: int | None = None, layers: int | None = None) -> Imported:
    """Return what a torchtitan job file says.

    Parameters
    ----------
    table : dict
        The parsed TOML. [-]
    where : str
        The file, for messages. [-]
    gpus : int, optional
        GPUs of the job; None = known only if the file gives the data-parallel shard degree. [-]
    layers : int, optional
        Layers of the model that is named beside the file; None = the file names the model. [-]

    Returns
    -------
    Imported
        The run, and what was not understood. [-]

    Raises
    ------
    UsageError
        A setting has a wrong type, or its degrees do not divide the GPUs.
    """
    given = Given(flat(table, where), where)
    notes: list[str] = []
    model = _model(given, notes if layers is None else [])
    depth = layers or (load_model(model).layer_count if model else None)
    layout = _layout(given, gpus, depth, notes)
    found: Table = {"training": _training(given, layout, notes), "layout": layout}
    if model is not None:
        found["model"] = model
    if "dp" in layout:
        found["gpus"] = layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"]
    layout.pop("local_batch")
    return given.imported(FRAMEWORK, found, ignore=WITHOUT_EFFECT, notes=notes)


def _model(given: Given, notes: list[str]) -> str | None:
    """Return the catalog's name of the model and flavor; None, and a note, for what the catalog does not hold."""
    name, flavor = given.text("model.name") or "llama3", given.text("model.flavor") or "debugmodel"
    known = MODELS.get(name, {}).get(flavor.lower().removesuffix("_flex_attn").removesuffix("_irope"))
    if known:
        return known
    written = re.sub(r"[^a-z0-9.]+", "-", f"{name}-{flavor}".lower())
    found = next((s.id for s in list_models() if written in s.names), None)
    if found is None:
        notes.append(f"the model {name[:40]} {flavor[:40]} is not in the catalog: name a model beside --from")
    return found


def _degree(given: Given, name: str) -> int:
    places = (f"parallelism.{name}", f"experimental.{name}", f"training.{name}")
    return given.whole(*places, least=1) or 1


def _layout(given: Given, gpus: int | None, layers: int | None, notes: list[str]) -> Table:
    tp, cp, pp = (_degree(given, f"{axis}_parallel_degree") for axis in ("tensor", "context", "pipeline"))
    copies = _degree(given, "data_parallel_replicate_degree")
    shard = _shard(given, gpus, tp * cp * pp * copies)
    schedule, sizes = _schedule(given, pp, layers, notes)
    vpp = len(sizes) // pp if pp > 1 else 1
    asynchronous = given.on("parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel")
    local = given.whole("training.local_batch_size", "training.batch_size", least=1) or LOCAL_BATCH
    micro = given.whole("parallelism.pipeline_parallel_microbatch_size", least=1) or 1
    fields: Table = {
        "tp": tp, "cp": cp, "pp": pp, "ep": _degree(given, "expert_parallel_degree"),
        "etp": _degree(given, "expert_tensor_parallel_degree"), "vpp": vpp, "micro_batch": micro if pp > 1 else local,
        "cp_kind": "zigzag" if given.text("parallelism.context_parallel_rotate_method") == "alltoall" else "allgather",
        "tp_overlap": tp > 1 and asynchronous,
        **_recompute(given, layers, pp * vpp, notes), "zero": 3 if shard is None or shard * cp > 1 else 0, "local_batch": local,
    }  # fmt: skip
    if schedule:
        fields["schedule"] = schedule
    told = [n for n in sizes if n is not None]
    if pp > 1 and told and schedule not in V_SHAPED and told != chunk_sizes(sum(told), pp, vpp):
        fields["first_layers"], fields["last_layers"] = held(told, pp, vpp, 1, notes)
    if shard is not None:
        fields["dp"] = copies * shard
        if copies > 1 and shard * cp > 1:
            fields["shard"] = shard * cp
    if given.on("training.enable_cpu_offload"):
        fields["offload_optimizer"] = 1.0
        notes.append("CPU offload: the optimizer's state is taken off the GPU; weights and gradients are still counted on it")
    return fields


def _shard(given: Given, gpus: int | None, others: int) -> int | None:
    """Return the data-parallel shard degree; -1, the default, takes the GPUs that the other degrees leave."""
    name = next((n for n in ("parallelism", "training") if f"{n}.data_parallel_shard_degree" in given), "parallelism")
    said = given.whole(f"{name}.data_parallel_shard_degree", least=-1)
    if said == 0:
        raise UsageError("expected -1, or 1 or more, got 0", where=f"{given.where}: {name}.data_parallel_shard_degree")
    if said is not None and said > 0:
        if gpus is not None and gpus != said * others:
            raise UsageError(
                f"its degrees multiply to {said * others:,} GPUs, not {gpus:,}", where=given.where,
                hint=f"leave --gpus out, or give --gpus {said * others}",
            )  # fmt: skip
        return said
    if gpus is None:
        return None
    if gpus % others:
        raise UsageError(
            f"its degrees need a multiple of {others:,} GPUs, not {gpus:,}", where=given.where, hint=f"e.g. --gpus {others}"
        )
    return gpus // others


def _schedule(given: Given, pp: int, layers: int | None, notes: list[str]) -> tuple[str | None, list[int | None]]:
    """Return the schedule and the layers of every chunk, None where the split rule decides."""
    said = given.text("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule") or "1F1B"
    per_stage = given.whole("parallelism.pipeline_parallel_layers_per_stage", least=1)
    less = [given.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    modules = given.take("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return None, [None]
    schedule = SCHEDULES.get(said.lower())
    if schedule is None:
        notes.append(f"the schedule {said[:40]} is not modelled: priced as interleaved 1F1B")
        schedule = "interleaved"
    if isinstance(modules, list) and modules and len(modules) % pp == 0 and all(isinstance(part, list) for part in modules):
        return schedule, [sum(str(name).startswith("layers.") for name in part) for part in modules]
    if modules is not None:
        notes.append(f"module_fqns_per_model_part is no list of lists for {pp} ranks: the split rule decides")
    chunks = pp * CHUNKS.get(schedule, 1)
    first, last = (1 if n is None else n for n in less)  # torchtitan's default
    if per_stage and layers and schedule in ("interleaved", "bfs"):
        made = -(-(layers + first + last) // per_stage)
        chunks = max(1, round(made / pp)) * pp
        if made != chunks:
            notes.append(
                f"torchtitan makes {made} stages by {per_stage} layers, which {pp} ranks cannot share: priced as {chunks}"
            )
    if layers and less != [None, None] and min(sizes := torchtitan_sizes(layers, chunks, first, last)) >= 0:
        return schedule, list(sizes)
    return schedule, [None] * chunks


def _recompute(given: Given, layers: int | None, chunks: int, notes: list[str]) -> Table:
    """Return what is recomputed: all, by operator, or all of every n-th layer (the default: every second)."""
    mode = given.text("activation_checkpoint.mode") or "selective"
    option = given.text("activation_checkpoint.selective_ac_option", "activation_checkpoint.selective_ac_type") or EVERY
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise UsageError(f"'{mode[:40]}' is not known", where=f"{given.where}: activation_checkpoint.mode")
    if mode == "memory_budget":
        notes.append("activation checkpointing by a memory budget is not modelled: priced without")
    if mode in ("none", "memory_budget"):
        return {"recompute": []}
    if mode == "selective" and option == "op":
        return {"recompute": ["selective_ops"]}
    if mode == "full" or option == "1":
        return {"recompute": ["full"]}
    if not re.fullmatch(r"[1-9]\d{0,4}", option):
        raise UsageError(f"'{option[:40]}' is not known", where=f"{given.where}: activation_checkpoint.selective_ac_option")
    if layers is None:
        notes.append(f"activation checkpointing of every layer number {option}: priced as of every layer")
        return {"recompute": ["full"]}
    return {"recompute": ["full"], "recompute_layers": max(1, layers // (chunks * int(option)))}


def _training(given: Given, layout: Table, notes: list[str]) -> Table:
    sequence = given.whole("training.seq_len", least=1) or SEQUENCE
    batch = given.whole("training.global_batch_size", least=-1)
    dp = layout.get("dp")
    count = batch if batch and batch > 0 else layout["local_batch"] * dp if dp else None
    steps = given.whole("training.steps", least=1)
    optimizer = given.text("optimizer.name") or "AdamW"
    if optimizer.lower() not in OPTIMIZERS:
        raise UsageError(f"'{optimizer[:40]}' is not known", where=f"{given.where}: optimizer.name", hint="AdamW, Muon or SGD")
    reshard = given.text("parallelism.fsdp_reshard_after_forward") or "default"
    fields: Table = {
        "framework": "torchtitan", "seq_len": sequence, "global_batch": count, "optimizer": OPTIMIZERS[optimizer.lower()],
        "total_tokens": count * sequence * steps if count and steps else None,
        "reshard_after_forward": {"always": True, "never": False}.get(reshard), **_compiled(given), **_precision(given, notes),
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value is not None}


def _compiled(given: Given) -> Table:
    """Return what is compiled: the model by the old switch; model and loss, or the parts named, by the new section."""
    whole = given.on("training.compile")
    parts = given.text("compile.components") or "model loss"
    on = given.on("compile.enable")
    return {"compiled": whole or (on and "model" in parts), "loss_compiled": whole or (on and "loss" in parts)}


def _precision(given: Given, notes: list[str]) -> Table:
    converters = re.findall(r"[\w.]+", given.text("model.converters") or "")
    recipe = given.text("float8.recipe_name", "quantize.linear.float8.recipe_name", "quantize.dense.float8.recipe_name")
    gathered = given.on(
        *(f"{p}.enable_fsdp_float8_all_gather" for p in ("float8", "quantize.linear.float8", "quantize.dense.float8"))
    )
    eight = any("float8" in c or c == "fp8" for c in converters)
    micro_scaled = any(c.split(".")[-1] in ("mx", "mxfp8") for c in converters)
    if eight and recipe and "rowwise" in recipe:
        notes.append("float8 with a scale a row: priced as one scale a tensor")
    parameter, dtype = given.text("training.mixed_precision_param") or "bfloat16", given.text("training.dtype") or "float32"
    precision = "mxfp8" if micro_scaled else "fp8" if eight else "fp32" if parameter == "float32" else "bf16"
    kept = {"master_dtype": "bf16", "moment_dtype": "bf16", "gradient_dtype": "bf16"} if dtype == "bfloat16" else {}
    return {"precision": precision, "fp8_weights": True if eight and gathered else None, **kept}
