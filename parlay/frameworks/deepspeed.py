"""A DeepSpeed configuration (JSON): batch, ZeRO, precision, parallelism, offload, activation checkpointing. It names no model.

Keys and defaults are those of deepspeed/runtime/config.py and zero/config.py (deepspeedai/DeepSpeed edaa7221). "auto" leaves
a value to the trainer that reads the file, so it counts as not given.
"""

from __future__ import annotations

from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given, Imported, flat

FRAMEWORK = "DeepSpeed"
KEYS = (
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16", "fp16",
    "optimizer",
)  # fmt: skip
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "sgd": "sgd"}
PRECISIONS = ("bf16.enabled", "fp16.enabled", "bfloat16.enabled")
DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "bfp16": "bf16"}
WITHOUT_EFFECT = (
    r"(gradient_clipping|steps_per_print|wall_clock_breakdown|dump_state|seed|zero_allow_untested_optimizer|prescale_gradients)",
    r"(zero_force_ds_cpu_optimizer|gradient_predivide_factor|memory_breakdown|disable_allgather|checkpoint\..*|data_types\.none)",
    r"(scheduler|tensorboard|wandb|csv_monitor|comet|comms_logger|flops_profiler|elasticity|autotuning|monitor_config|aio)\..*",
    r"optimizer\.params\..*",
    r"fp16\.(loss_scale|loss_scale_window|initial_scale_power|hysteresis|min_loss_scale|consecutive_hysteresis|auto_cast)",
    r"zero_optimization\.(.*gather_(16bit|fp16)_weights_on_model_save|elastic_checkpoint|load_from_fp32_weights|round_robin_gradients)",
    r"zero_optimization\.(ignore_unused_parameters|contiguous_gradients|legacy_stage1)",
    r"zero_optimization\.offload_.*\.(pin_memory|buffer_count|buffer_size|fast_init|nvme_path|pipeline.*|max_in_cpu)",
    r"(activation_checkpointing\.(profile|number_checkpoints|synchronize_checkpoint_boundary|contiguous_memory_optimization))",
)

Table = dict[str, Any]


def read_deepspeed(table: Table, where: str, gpus: int | None = None) -> Imported:
    """Return what a DeepSpeed configuration says.

    Parameters
    ----------
    table : dict
        The parsed JSON. [-]
    where : str
        The file, for messages. [-]
    gpus : int, optional
        GPUs of the job; None = known only if the three batch sizes tell the data-parallel degree. [-]

    Returns
    -------
    Imported
        The run without a model, and what was not understood. [-]

    Raises
    ------
    UsageError
        A setting has a wrong type, or its degrees or batches do not divide.
    """
    settings = flat(table, where)
    given = Given({key: value for key, value in settings.items() if value != "auto" and value is not None}, where)
    notes = [f"{key} = auto: left open" for key, value in settings.items() if value == "auto" and _matters(key)]
    open_precision = any(settings.get(key) == "auto" for key in PRECISIONS)
    degrees = _degrees(given)
    batch, micro, dp = _batch(given, degrees, gpus)
    layout: Table = {
        **degrees,
        "micro_batch": micro or 1,
        "zero": _stage(given),
        **_offload(given, notes),
        **_parts(given, notes),
    }
    training = _training(given, batch, layout["zero"], open_precision, notes)
    found: Table = {"training": training, "layout": layout}
    if dp is not None:
        layout["dp"] = dp
        found["gpus"] = degrees["tp"] * degrees["cp"] * degrees["pp"] * dp
        size = given.whole("zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size")
        if size and size > 1 and layout["zero"] == 3:
            layout["shard"] = size
    return given.imported(FRAMEWORK, found, ignore=WITHOUT_EFFECT, notes=notes)


def _matters(key: str) -> bool:
    return key.startswith("train_") or key in ("gradient_accumulation_steps", *PRECISIONS)


def _degrees(given: Given) -> dict[str, int]:
    tp = given.whole("tensor_parallel.autotp_size", "tensor_parallel.tp_size", "tensor_parallel.tp.tp_size", least=0) or 1
    pp = given.whole("pipeline.stages", "pipeline_parallel_size", least=1) or 1
    cp = given.whole("sequence_parallel_size", "sequence_parallel.size", least=1) or 1
    on = given.switch("expert_parallel.enabled")
    ep = given.whole("expert_parallel.autoep_size", "expert_parallel.ep_size", "moe.ep_size", least=1) or 1
    return {"tp": tp, "pp": pp, "cp": cp, "ep": 1 if on is False else ep}


def _batch(given: Given, degrees: dict[str, int], gpus: int | None) -> tuple[int | None, int | None, int | None]:
    """Return global batch, micro-batch and data-parallel degree: any two of the sizes and the GPUs tell the rest."""
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if gpus is not None and gpus % others:
        raise UsageError(f"its degrees need a multiple of {others:,} GPUs, not {gpus:,}", where=given.where, hint="change --gpus")
    dp = gpus // others if gpus is not None else None
    whole = given.whole("train_batch_size", least=1)
    micro = given.whole("train_micro_batch_size_per_gpu", least=1)
    steps = given.whole("gradient_accumulation_steps", least=1)
    if whole and micro and steps:
        told, rest = divmod(whole, micro * steps)
        if rest or (dp is not None and told != dp):
            meant = f"{micro} x {steps} x {dp} ranks" if dp else f"a multiple of {micro} x {steps}"
            raise UsageError(
                f"is {whole:,}, not {meant}", where=f"{given.where}: train_batch_size", hint="change a batch or --gpus"
            )
        return whole, micro, told
    if dp is None:
        return whole, micro, None
    if whole:
        return whole, micro or max(1, whole // ((steps or 1) * dp)), dp
    return (micro or 1) * (steps or 1) * dp, micro, dp


def _stage(given: Given) -> int:
    stage = given.whole("zero_optimization.stage") or 0
    if stage > 3:
        raise UsageError(f"is {stage}, not 0 to 3", where=f"{given.where}: zero_optimization.stage")
    return stage


def _offload(given: Given, notes: list[str]) -> Table:
    device = given.text("zero_optimization.offload_optimizer.device") or "none"
    ratio = given.number("zero_optimization.offload_optimizer.ratio")
    weights = given.text("zero_optimization.offload_param.device") or "none"
    old = given.on("zero_optimization.cpu_offload")
    if weights != "none":
        notes.append(f"weights offloaded to {weights[:10]}: not modelled, counted on the GPU")
    if device == "nvme":
        notes.append("optimizer state on NVMe: priced as on the host's memory")
    return {"offload_optimizer": (1.0 if ratio is None else ratio) if device != "none" or old else 0.0}


def _parts(given: Given, notes: list[str]) -> Table:
    """Return what activation checkpointing keeps on the host. DeepSpeed's file does not say whether the model calls it."""
    checkpointed = [n for n in given.values if n.startswith("activation_checkpointing.")]
    offloaded = given.on("activation_checkpointing.cpu_checkpointing")
    given.on("activation_checkpointing.partition_activations")
    if checkpointed:
        notes.append("activation checkpointing: taken as full recompute, as the file has its section")
    ulysses = {"cp_kind": "ulysses"}
    return {"recompute": ["full"] if checkpointed else [], "offload_activations": 1.0 if offloaded else 0.0, **ulysses}


def _training(given: Given, batch: int | None, stage: int, open_precision: bool, notes: list[str]) -> Table:
    optimizer = given.text("optimizer.type") or "AdamW"
    if optimizer.lower() not in OPTIMIZERS:
        notes.append(f"optimizer {optimizer[:30]}: priced as AdamW")
    half, brain = given.on("fp16.enabled"), given.on("bf16.enabled", "bfloat16.enabled")
    if open_precision and not (half or brain):
        notes.append("precision: bf16, as the file leaves it open")
    gradient = given.text("data_types.grad_accum_dtype", "bf16.grad_accum_dtype")
    bucket = given.whole("zero_optimization.reduce_bucket_size", least=1)
    overlap = given.switch("zero_optimization.overlap_comm")
    overlap = stage == 3 if overlap is None else overlap  # the default: zero/config.py
    gathered = given.whole("zero_optimization.stage3_prefetch_bucket_size")
    fields: Table = {
        "framework": "deepspeed", "global_batch": batch, "optimizer": OPTIMIZERS.get(optimizer.lower(), "adamw"),
        "precision": "fp16" if half else "bf16" if brain or open_precision else "fp32",
        "gradient_dtype": DTYPES.get(gradient) if gradient else None, "bucket_elements": bucket,
        "overlap_grad_reduce": overlap, "overlap_param_gather": overlap if gathered is None else gathered > 0,
        "seq_len": given.whole("seq_length", "max_seq_len", least=1),
        "compiled": given.switch("compile.enabled"),
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value is not None}
