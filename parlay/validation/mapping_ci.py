"""From the arguments of Megatron-LM's functional tests to model, workload and layout."""

from __future__ import annotations

import json

from parlay.errors import ParlayError
from parlay.frameworks.given import Given
from parlay.frameworks.megatron_layout import layout_fields, training_fields
from parlay.frameworks.megatron_model import model_table
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.specfile import validate
from parlay.validation.clusters import cluster_of
from parlay.validation.mapping import ODD, Case, Unmapped
from parlay.validation.runs import Run

VISION = "a vision-language model"
NODE_GPUS = 8  # where the number is not given
NOT_DECODERS = {"bert": "an encoder", "t5": "an encoder-decoder", "mimo": VISION, "multimodal-llava": VISION}


def map_ci(run: Run) -> Case | Unmapped:
    """Return a row of megatron-ci.csv as a Case, or why it cannot be."""
    row = run.columns
    reason = _refusal(run)
    if reason:
        return Unmapped(run, reason)
    said: list[str] = [*run.readings]
    try:
        args = Given({f"--{name}": value for name, value in json.loads(row.get("args_json") or "{}").items()}, run.id)
        cluster, _ = cluster_of(run)
        if cluster is None:
            return Unmapped(run, f"the device '{run.hardware}' is not known for sure")
        model = _model(run, args)
        layout = _layout(run, args, said)
        workload = _workload(run, args, layout.dp, said)
        if workload.global_batch < layout.dp * layout.micro_batch:
            return Unmapped(
                run, f"its batch of {workload.global_batch} gives {layout.dp} data-parallel ranks no micro-batch each"
            )
    except ParlayError as error:
        return Unmapped(run, error.message)
    except (*ODD, RecursionError) as error:
        return Unmapped(run, f"arguments cannot be understood: {error}")
    if row.get("impl") == "local":
        said.append("local layers counted as Transformer Engine's")
    return Case(run, model, cluster, workload, layout, tuple(said))


def _refusal(run: Run) -> str:
    row = run.columns
    if run.problems:
        return run.problems[0]
    if row.get("kind", "train") != "train":
        return f"a test of {row['kind']}, not of training"
    if run.model in NOT_DECODERS:
        return f"{NOT_DECODERS[run.model]}, not a decoder-only language model"
    if row.get("gpus_source", "").startswith("UNKNOWN"):
        return "the GPU count of this multi-node test is not known"
    if row.get("gbs_divides") == "False":
        return "its batch contradicts the GPU count"
    if row.get("offload"):
        return "activation offload by module is not modelled"
    if '"flextron"' in row.get("args_json", ""):
        return "Flextron's elastic widths are not modelled"
    return ""


def _model(run: Run, args: Given) -> ModelSpec:
    if run.columns.get("hybrid_pattern"):  # the table may have it from the checkpoint that a test starts from
        args.values["--hybrid-layer-pattern"] = run.columns["hybrid_pattern"]
    table = model_table(args, "a model of Megatron-LM's tests", [])
    if table is None:
        raise ValueError("layers, width or heads are not given")
    if "vocab" not in table:
        raise ValueError(f"the vocabulary of {run.columns.get('tokenizer') or 'its tokenizer'} is not known")
    return validate(ModelSpec, table | {"id": "megatron-ci"}, run.id)


def _layout(run: Run, args: Given, said: list[str]) -> Layout:
    if run.columns.get("cp_comm"):
        said.append("context parallelism of two levels: Ulysses over 2 ranks inside, ring outside")
    return validate(Layout, layout_fields(args, run.gpus or NODE_GPUS, []), run.id)


def _workload(run: Run, args: Given, dp: int, said: list[str]) -> Workload:
    """Return the step; where the table has a column of its own (environment and era included), the column speaks."""
    row = run.columns
    fields = training_fields(args, dp, said) | {
        "flash_attention": row.get("attn_backend") != "unfused" and row.get("impl") != "local",
        "gradient_dtype": "bf16" if row.get("acc_fp32") == "False" else "fp32",
        "cuda_graphs": row.get("cuda_graph", "") not in ("", "none"),
        "gradient_accumulation_fusion": row.get("grad_fusion") == "True",
        "moe_dispatcher": _dispatcher(row.get("dispatcher", ""), args),
        "framework_date": row.get("golden_date") or None,
    }
    for name in ("total_tokens", "cuda_graph_modules"):
        fields.pop(name, None)
    return validate(Workload, fields, run.id)


def _dispatcher(text: str, args: Given) -> str | None:
    return (args.text("--moe-flex-dispatcher-backend") or "deepep") if text == "flex" else text or "allgather"
