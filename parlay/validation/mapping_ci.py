"""From the arguments of Megatron-LM's functional tests to model, workload and layout."""

from __future__ import annotations

import json
import re
from typing import Any

from parlay.errors import ParlayError
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba2,
    ModelSpec,
    MoeMlp,
    NoMixer,
    NoMlp,
)
from parlay.models.spec import Run as Layers
from parlay.specfile import validate
from parlay.validation import settings as words
from parlay.validation.architectures import pattern_layers
from parlay.validation.clusters import cluster_of
from parlay.validation.mapping import Case, Unmapped
from parlay.validation.runs import Run

GPT2_VOCABULARY = 50257
VOCABULARIES = {"GPT2BPE(default)": GPT2_VOCABULARY, "Llama2Tokenizer": 32000}
VISION = "a vision-language model"
NOT_DECODERS = {"bert": "an encoder", "t5": "an encoder-decoder", "mimo": VISION, "multimodal-llava": VISION}
MAMBA_HEAD, MAMBA_GROUPS, MAMBA_STATE = 64, 8, 128  # megatron/training/arguments.py: defaults of --mamba-*


def map_ci(run: Run) -> Case | Unmapped:
    """Return a row of megatron-ci.csv as a Case, or why it cannot be."""
    row = run.columns
    reason = _refusal(run)
    if reason:
        return Unmapped(run, reason)
    said: list[str] = []
    try:
        args = json.loads(row.get("args_json") or "{}")
        cluster, _ = cluster_of(run)
        if cluster is None:
            return Unmapped(run, f"the device '{run.hardware}' is not known for sure")
        degrees = _degrees(run, args)
        model = _model(run, args, degrees["tp"])
        layout = _layout(run, args, degrees, said)
        workload = _workload(run, args, degrees, said)
    except ParlayError as error:
        return Unmapped(run, error.message)
    except _Refused as refused:
        return Unmapped(run, str(refused))
    except (ValueError, TypeError, KeyError) as error:
        return Unmapped(run, f"arguments cannot be understood: {error}")
    if row.get("impl") == "local":
        said.append("local layers counted as Transformer Engine's")
    return Case(run, model, cluster, workload, layout, tuple(said))


class _Refused(Exception):
    """The reason why a row cannot be mapped."""


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


def _degrees(run: Run, args: dict[str, Any]) -> dict[str, int]:
    tp, pp, cp, gpus = run.tp or 1, run.pp or 1, run.cp or 1, run.gpus or 8
    if gpus % (tp * pp * cp):
        raise _Refused(f"tp{tp} x cp{cp} x pp{pp} does not divide {gpus} GPUs")
    layers, text = int(args.get("num-layers") or 0), run.columns.get("vpp_layers_per_stage", "")
    chunks = run.columns.get("layout", "")
    vpp = 1
    if text.startswith("stages="):
        vpp = int(text.removeprefix("stages="))
    elif text:
        vpp = max(1, layers // pp // int(text))
    elif chunks:
        vpp = max(1, (words.expand_layout(chunks).count("|") + 1) // pp)
    ep = run.ep or 1
    return {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // (tp * pp * cp), "vpp": vpp, "ep": ep, "etp": run.etp or 1}


def _layout(run: Run, args: dict[str, Any], degrees: dict[str, int], said: list[str]) -> Layout:
    row = run.columns
    modules, count = words.recompute_of(_recompute_words(row.get("recompute", ""))) or ((), 0)
    ends = words.layers_by_chunk(row.get("layout", ""), degrees["pp"], degrees["vpp"]) or (
        int(args.get("decoder-first-pipeline-num-layers") or 0),
        int(args.get("decoder-last-pipeline-num-layers") or 0),
    )
    sharding = row.get("fsdp_sharding", "")
    fsdp = row.get("megatron_fsdp") == "True" or row.get("torch_fsdp2") == "True"
    if row.get("cp_comm"):
        said.append("context parallelism of two levels: Ulysses over 2 ranks inside, ring outside")
    instances = int(args.get("num-distributed-optimizer-instances") or 1)
    if args.get("defer-embedding-wgrad-compute"):
        said.append("what the deferred gradient of the embedding keeps is not counted")
    moe = bool(row.get("experts"))
    fields = {
        **degrees,
        "etp": degrees["etp"] if moe else 1,
        "sp": bool(run.sp),
        "cp_kind": "usp" if row.get("cp_comm") and degrees["cp"] > 2 else "zigzag",
        "ulysses": 2 if row.get("cp_comm") and degrees["cp"] > 2 else 1,
        "zero": 3 if fsdp and sharding != "optim" else 1 if row.get("dist_opt") == "True" else 0,
        "shard": max(1, degrees["dp"] * degrees["cp"] // instances) if instances > 1 else None,
        "micro_batch": run.micro_batch or 1,
        "recompute": modules,
        "recompute_layers": count if "full" in modules else 0,
        "first_layers": ends[0],
        "last_layers": ends[1],
        "tp_overlap": bool(args.get("tp-comm-overlap")) and degrees["tp"] > 1,
        "ep_overlap": bool(args.get("overlap-moe-expert-parallel-comm")) and degrees["ep"] > 1,
    }
    return validate(Layout, fields, run.id)


def _recompute_words(text: str) -> str:
    """Return Megatron's three recompute arguments in the words of the other sources."""
    if "granularity=full" in text:
        return "full"
    modules = re.search(r"\[(.*?)\]", text)
    return f"selective:{modules[1].replace(' ', '+')}" if modules else "none"


def _workload(run: Run, args: dict[str, Any], degrees: dict[str, int], said: list[str]) -> Workload:
    row = run.columns
    precision = words.precision_of(row.get("precision", "").replace("?", ""))
    fused = "te" if args.get("cross-entropy-fusion-impl") == "te" else "fused"
    if run.global_batch is None:
        said.append("global batch: one micro-batch a rank (Megatron's default)")
    fields = {
        "seq_len": run.seq_len or int(args.get("max-position-embeddings") or 1024),
        "global_batch": run.global_batch or (run.micro_batch or 1) * degrees["dp"],
        "precision": precision or "bf16",
        "optimizer": "muon" if row.get("optimizer") == "muon" else "adamw",
        "flash_attention": row.get("attn_backend") != "unfused" and row.get("impl") != "local",
        "gradient_dtype": "bf16" if row.get("acc_fp32") == "False" else "fp32",
        "cross_entropy": fused if row.get("xent_fusion") == "True" else "unfused",
        "vocab_multiple": int(row.get("vocab_div") or 128),
        "fp8_weights": True if "param_gather" in row.get("precision", "") else None,
        "dropout": float(row.get("hidden_dropout") or 0.0),
        "overlap_grad_reduce": row.get("overlap_grad") == "True",
        "overlap_param_gather": row.get("overlap_param") == "True",
        "cuda_graphs": row.get("cuda_graph", "") not in ("", "none"),
        "gradient_accumulation_fusion": row.get("grad_fusion") == "True",
        "moe_grouped": row.get("grouped_gemm") == "True" if row.get("experts") else None,
        "moe_dispatcher": _dispatcher(row.get("dispatcher", ""), args),
        "deterministic": row.get("deterministic") == "True",
        "framework_date": row.get("golden_date") or None,
    }
    return validate(Workload, fields, run.id)


def _dispatcher(text: str, args: dict[str, Any]) -> str | None:
    return str(args.get("moe-flex-dispatcher-backend", "deepep")) if text == "flex" else text or None


def _vocabulary(run: Run) -> int:
    row = run.columns
    if row.get("vocab_arg"):
        return int(row["vocab_arg"]) + (1 if row.get("tokenizer") == "NullTokenizer" else 0)  # its end-of-document token
    size = VOCABULARIES.get(row.get("tokenizer", ""))
    if size is None:
        raise _Refused(f"the vocabulary of {row.get('tokenizer') or 'its tokenizer'} is not known")
    return size


def _model(run: Run, args: dict[str, Any], tp: int) -> ModelSpec:
    row, hidden = run.columns, int(run.columns["hidden"])
    gated, bias = row.get("swiglu") == "True", row.get("bias") == "True"
    activation = "silu" if gated else "relu2" if row.get("squared_relu") == "True" else "gelu"
    default = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    width = int(row.get("ffn") or default)
    mixer = _attention(row, args, hidden, bias)
    dense = LayerKind(mixer=mixer, mlp=DenseMlp(width=width, gated=gated, bias=bias, activation=activation))
    kinds = {"dense": dense}
    layers: tuple[Layers, ...] = (Layers(kinds=("dense",), count=int(row.get("layers") or 1)),)
    depth = int(args.get("mtp-num-layers") or 0)
    if row.get("experts"):
        experts = MoeMlp(
            experts=int(row["experts"]), top_k=int(row["topk"] or 2), width=int(row.get("moe_ffn") or width), gated=gated,
            activation=activation, bias=bias, shared_width=int(row.get("shared_expert_ffn") or 0),
            latent_width=args.get("moe-latent-size"), score_correction=bool(args.get("moe-router-enable-expert-bias")),
        )  # fmt: skip
        kinds["experts"] = LayerKind(mixer=mixer, mlp=experts)
        layers = _frequency(str(args.get("moe-layer-freq", "")), int(row.get("layers") or 1))
    if row.get("hybrid_pattern"):
        kinds = _hybrid_kinds(kinds, args, hidden)
        layers = pattern_layers(row["hybrid_pattern"])
    used = {name for run_ in layers for name in run_.kinds}
    mtp_kind = ("experts" if "experts" in used else "dense") if depth else None
    return ModelSpec(
        id="megatron-ci", name="a model of Megatron-LM's tests", hidden=hidden, vocab=_vocabulary(run),
        norm="rmsnorm" if row.get("norm") == "RMSNorm" else "layernorm",
        tied_embeddings=row.get("untie") != "True",
        position_embeddings=int(args.get("max-position-embeddings") or 0) if row.get("pos_emb") == "learned_absolute" else 0,
        kinds={name: kind for name, kind in kinds.items() if name in used}, layers=layers, mtp_layers=depth, mtp_kind=mtp_kind,
    )  # fmt: skip


def _attention(row: Any, args: dict[str, Any], hidden: int, bias: bool) -> GroupedAttention | LatentAttention:
    heads = int(row["heads"])
    if row.get("mla") == "True":
        return LatentAttention(
            heads=heads, q_rank=args.get("q-lora-rank"), kv_rank=int(args["kv-lora-rank"]), nope_dim=int(args["qk-head-dim"]),
            rope_dim=int(args["qk-pos-emb-head-dim"]), v_dim=int(args["v-head-dim"]), bias=bias,
        )  # fmt: skip
    return GroupedAttention(
        heads=heads, kv_heads=int(row.get("kv_groups") or heads), head_dim=int(row.get("kv_channels") or hidden // heads),
        qkv_bias=bias, out_bias=bias, qk_norm="head" if args.get("qk-layernorm") else "none", rope=row.get("pos_emb") == "rope",
    )  # fmt: skip


def _frequency(text: str, layers: int) -> tuple[Layers, ...]:
    """Return dense and expert layers of --moe-layer-freq: "([0]*3+[1]*11)" is three dense layers, then eleven with experts."""
    parts = re.findall(r"\[([01])\]\*(\d+)", text)
    if not parts:
        return (Layers(kinds=("experts",), count=layers),)
    return tuple(Layers(kinds=("experts" if kind == "1" else "dense",), count=int(count)) for kind, count in parts)


def _hybrid_kinds(kinds: dict[str, LayerKind], args: dict[str, Any], hidden: int) -> dict[str, LayerKind]:
    head = int(args.get("mamba-head-dim") or MAMBA_HEAD)
    mamba = Mamba2(
        heads=int(args.get("mamba-num-heads") or 2 * hidden // head), head_dim=head,
        groups=int(args.get("mamba-num-groups") or MAMBA_GROUPS), state=int(args.get("mamba-state-dim") or MAMBA_STATE),
    )  # fmt: skip
    found = {
        "mamba": LayerKind(mixer=mamba, mlp=NoMlp(), norms=1),
        "attention": LayerKind(mixer=kinds["dense"].mixer, mlp=NoMlp(), norms=1),
        "mlp": LayerKind(mixer=NoMixer(), mlp=kinds["dense"].mlp, norms=1),
    }
    if "experts" in kinds:
        found["experts"] = LayerKind(mixer=NoMixer(), mlp=kinds["experts"].mlp, norms=1)
    return found
