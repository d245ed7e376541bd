"""Megatron-LM's arguments from a launch script, a plain list, or YAML (MODEL_ARGS of its functional tests)."""

from __future__ import annotations

from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given, Imported, flat
from parlay.frameworks.megatron_layout import gpus_of, layout_fields, training_fields
from parlay.frameworks.megatron_model import model_table
from parlay.frameworks.shell import launch_arguments

FRAMEWORK = "Megatron-LM"
OTHER_MODELS = (
    "pretrain_bert",
    "pretrain_t5",
    "pretrain_ict",
    "pretrain_retro",
    "pretrain_vision",
    "pretrain_vlm",
    "pretrain_mimo",
)
# Arguments that change neither memory nor time of a training step: learning rates, paths, logging, checkpoints, seeds, launchers
WITHOUT_EFFECT = (
    r"--(lr|min-lr|lr-.*|decoupled-.*|override-opt.?param-scheduler|use-checkpoint-.*|start-weight-decay|end-weight-decay)",
    r"--(weight-decay.*|adam-.*|sgd-momentum|muon-.*|clip-grad|seed|init-method-std|loss-scale|initial-loss-scale|min-loss-scale)",
    r"--(data-.*path|.*-data-path|data-cache-path|per-split-data-args-path|split|mock-data|vocab-file|merge-file|dataloader-type)",
    r"--(tokenizer-.*|tiktoken-.*|num-workers|no-mmap-bin-files|no-create-attention-mask-in-dataloader|num-dataset-builder-threads)",
    r"--(log-.*|no-log-.*|tensorboard-.*|wandb-.*|timing-log-.*|logging-level|profile.*|use-pytorch-profiler|nvtx-.*|one-logger-.*)",
    r"--(save.*|load.*|no-load-.*|no-save-.*|ckpt-.*|no-ckpt-.*|dist-ckpt-.*|auto-detect-ckpt-format|async-.*|finetune)",
    r"--(use-dist-ckpt.*|non-persistent-.*|use-persistent-ckpt-worker|pretrained-checkpoint|exit-.*|eval-.*|train-data-exact.*)",
    r"--(distributed-.*|master-(addr|port)|node-rank|rdzv-.*|nproc.*|nnodes|world-size|gpus-per-node|log-dir|tee|redirects|max-restarts|local-ranks-filter|role)",
    r"--(manual-gc.*|rerun-mode|straggler-.*|no-check-for-.*|check-.*|verify-integrity|test-mode|enable-ft-package|calc-ft.*)",
    r"--(rotary-base|rotary-percent|rotary-scaling-factor|rope-scaling.*|use-rope-scaling|mscale.*|norm-epsilon|attention-dropout)",
    r"--(apply-layernorm-1p|moe-aux-loss-coeff|moe-z-loss-coeff|moe-router-load-balancing-type|moe-router-score-function)",
    r"--(moe-router-topk-scaling-factor|moe-router-bias-update-rate|moe-router-pre-softmax|moe-router-dtype|mtp-loss-.*)",
    r"--(use-mcore-models|no-position-embedding|reset-.*|eod-mask-loss|calculate-per-token-loss|transformer-impl|model-provider)",
    r"--(distribute-saved-activations|fp8-amax-.*|fp8-margin|fp8-interval|is-hybrid-model|spec|te-rng-tracker|num-layers)",
    r"--(original-max-position-embeddings|max-position-embeddings|job-name|account|partition|container-.*|output|nodes|ntasks.*)",
)  # fmt: skip


def read_script(text: str, where: str, name: str, gpus: int | None = None, layers: int | None = None) -> Imported:
    """Return what a launch script or a plain list of Megatron-LM's arguments says.

    Parameters
    ----------
    text : str
        The script, which is not run. [-]
    where : str
        The file, for messages. [-]
    name : str
        What to call the model. [-]
    gpus : int, optional
        GPUs of the job; None = what the launcher's own arguments say. [-]
    layers : int, optional
        Layers of the model that is named beside the script; None = the script tells them. [-]

    Returns
    -------
    Imported
        The run, and what was not understood. [-]

    Raises
    ------
    UsageError
        There are no arguments in it, one has a wrong type, or it does not train a decoder.
    """
    words, unfollowed = launch_arguments(text, where)
    values = as_values(words)
    other = next((w for w in words if w.rsplit("/", 1)[-1].startswith(OTHER_MODELS)), None)
    if other:
        raise UsageError(f"{other[:60]} does not train a decoder-only language model", where=where)
    if not values:
        raise UsageError("no Megatron-LM arguments found", where=where, hint="expected flags such as --num-layers 32")
    return _read(values, where, name, gpus, layers, unfollowed)


def read_yaml(table: dict[Any, Any], where: str, name: str, gpus: int | None = None, layers: int | None = None) -> Imported:
    """Return what a YAML file says: MODEL_ARGS with flags, or names with underscores at any level; see read_script."""
    inner = table.get("MODEL_ARGS", table)
    if not isinstance(inner, dict):
        raise UsageError(f"expected a table, got {type(inner).__name__}", where=f"{where}: MODEL_ARGS")
    values = {_flag(key.rsplit(".", 1)[-1]): value for key, value in flat(inner, where).items() if value not in (False, None)}
    return _read(values, where, name, gpus, layers, [])


def _flag(name: str) -> str:
    return "--" + name.lstrip("-").replace("_", "-")


def as_values(words: list[str]) -> dict[str, Any]:
    """Return flags with their values: none is True, one is text, more are a list; the last of a repeated flag wins.

    Examples
    --------
    >>> as_values(["torchrun", "--nproc_per_node=8", "x.py", "--bf16", "--rampup-batch-size", "16", "16"])
    {'--nproc-per-node': '8', '--bf16': True, '--rampup-batch-size': ['16', '16']}
    """
    found: dict[str, Any] = {}
    open_flag = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word.partition("=")
            open_flag = _flag(name)
            found[open_flag] = value if sign else True
        elif open_flag and not word.endswith(".py"):
            old = found[open_flag]
            found[open_flag] = word if old is True else [*old, word] if isinstance(old, list) else [old, word]
        else:
            open_flag = ""
    return found


def _read(values: dict[str, Any], where: str, name: str, gpus: int | None, layers: int | None, unfollowed: list[str]) -> Imported:
    args = Given(values, where)
    notes: list[str] = []
    count = gpus if gpus is not None else gpus_of(args)
    model = model_table(args, name, notes)
    layout = layout_fields(args, count, notes, layers)
    training = training_fields(args, layout.get("dp"), notes)
    table: dict[str, Any] = {"training": training, "layout": layout}
    if model is not None:
        table["model"] = model
    if count is not None:
        table["gpus"] = count
    return args.imported(FRAMEWORK, table, ignore=WITHOUT_EFFECT, notes=notes, also=unfollowed)
