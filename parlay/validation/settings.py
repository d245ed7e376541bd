"""What a source says in words about a run's settings, as values: recompute, sharding, overlap, graphs, dtypes, layout.

Each function takes the text of one column and returns None where the text says nothing, so that the framework's
documented default applies and is recorded as an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parlay.layouts.vocabulary import CrossEntropy, Precision, StateDtype
from parlay.layouts.workload import AttentionKernel, Dispatcher, GraphModule
from parlay.schedules.megatron import LAYER, parse_layout_string

# Words of the sources -> recompute modules of parlay.layouts.vocabulary
RECOMPUTED: tuple[tuple[str, str], ...] = (
    (r"core_attn|core attention|recompute-activations", "core_attention"),
    (r"layernorm", "norm"),
    (r"moe_act|mlp_act", "mlp_activation"),
    (r"mla_up_proj|up_proj", "mla_up"),
    (r"shared_experts", "shared_experts"),
    (r"\bmlp\b", "mlp"),
    (r"\bmoe\b", "moe"),
)
# MaxText's remat policies keep the attention projections (and the second MLP matrix); all between them runs again.
# save_dot_with_context_except_mlp keeps attention's output too.
REMAT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"save_dot_with_context_except_mlp", ("norm", "mlp")),
    (r"custom remat policy", ("core_attention", "norm", "mlp")),
)


def recompute_of(text: str) -> tuple[tuple[str, ...], int] | None:
    """Return recomputed modules and, with full recompute of a number of layers, that number (0 = all).

    Examples
    --------
    >>> recompute_of("selective:layernorm+moe_act"), recompute_of("full:uniform, every layer"), recompute_of("none")
    ((('norm', 'mlp_activation'), 0), (('full',), 0), ((), 0))
    >>> recompute_of("selective (per-op SAC)"), recompute_of("full (5 layers)"), recompute_of("unknown")
    ((('selective_ops',), 0), (('full',), 5), None)
    >>> recompute_of("full, uniform, 1 layers"), recompute_of("gradient checkpointing"), recompute_of("off")
    ((('full',), 0), (('full',), 0), ((), 0))
    """
    low = text.strip().lower()
    if not low or low.startswith("unknown"):
        return None
    if re.match(r"(none|no|off|false|0)\b", low):
        return (), 0
    for pattern, modules in REMAT:
        if re.search(pattern, low):
            return modules, 0
    if re.match(r"full\b|remat full|(yes|true|on|1)$|(activation|gradient) checkpoint", low):
        # Megatron's "uniform" recomputes every layer, in groups of so many; "block" that many layers alone
        count = None if "uniform" in low else re.search(r"(\d+) layers", low)
        return ("full",), int(count[1]) if count else 0
    if "per-op" in low:
        return ("selective_ops",), 0
    found = tuple(module for pattern, module in RECOMPUTED if re.search(pattern, low))
    if found:
        return found, 0
    return (("core_attention",), 0) if low.startswith("selective") else None


def every_nth(text: str) -> int | None:
    """Return n where each n-th layer is recomputed in full, torchtitan's selective mode with a number.

    Examples
    --------
    >>> every_nth("selective (every 2nd layer)"), every_nth("selective (2)"), every_nth("selective (per-op SAC)")
    (2, 2, None)
    """
    found = re.search(r"every (\d+)(?:st|nd|rd|th)? layer|selective[ :(=]+'?(\d+)\b", text.lower())
    return max(1, int(found[1] or found[2])) if found else None


# Words of the sources -> ZeRO stage; the first that matches from the start wins.
SHARDING: tuple[tuple[str, int], ...] = (
    (r"none|no\b|off\b|ddp|false|0$", 0),
    (r"(dist\w*|sharded)[ -]optimizer", 1),
    (r"(h|mega\w*[- ])?fsdp|full_shard|hybrid_shard|shard_grad_op|zero\+\+", 3),
    (r"(?:sharding[ _-]*)?stage ?_?([0-3])|zero\D*([0-3])", -1),  # as printed
)


def zero_of(text: str) -> tuple[int, int | None, bool | None] | None:
    """Return the ZeRO stage, GPUs of a shard (None = all), and whether weights are freed after the forward (None = default).

    Examples
    --------
    >>> zero_of("zero1"), zero_of("fsdp (degree 64)"), zero_of("fsdp (FSDP2, params kept after forward = zero2)")
    ((1, None, None), (3, 64, None), (3, None, False))
    >>> zero_of("sharding stage2"), zero_of("fsdp (HSDP, shard 8 x replicate 16)"), zero_of("ddp"), zero_of("who knows")
    ((2, None, None), (3, 8, None), (0, None, None), None)
    """
    low = text.strip().lower()
    degree = re.search(r"degree (\d+)|shard (\d+)|fsdp (?:\()?(\d+) ?x", low)
    shard = next((int(d) for d in degree.groups() if d), None) if degree else None
    for pattern, stage in SHARDING:
        found = re.match(pattern, low)
        if not found:
            continue
        if stage < 0:
            return int(found[1] or found[2]), shard, None
        if stage < 3:
            return stage, None, None
        kept = "zero2" in low or "after forward no" in low or "kept after forward" in low or "shard_grad_op" in low
        freed = "after forward yes" in low or "zero3" in low
        return 3, shard, False if kept else True if freed else None
    return None


def switch_of(text: str) -> bool | None:
    """Return True for "on ...", False for "off ...", None for what says neither.

    Examples
    --------
    >>> switch_of("on (async TP)"), switch_of("off (TP=1)"), switch_of("n/a"), switch_of("unknown")
    (True, False, None, None)
    """
    low = text.strip().lower()
    return True if low.startswith("on") else False if low.startswith("off") else None


def dispatcher_of(text: str) -> Dispatcher | None:
    """Return the mixture-of-experts dispatcher."""
    low = text.lower()
    names: dict[str, Dispatcher] = {"hybridep": "hybridep", "deepep": "deepep", "allgather": "allgather", "alltoall": "alltoall"}
    return next((name for word, name in names.items() if word in low), None)


def capacity_of(text: str) -> float | None:
    """Return the capacity factor that tokens are padded to, None where none are dropped.

    Examples
    --------
    >>> capacity_of("capacity=1.0 (padded to capacity)"), capacity_of("force-balanced, dropless")
    (1.0, None)
    """
    found = re.search(r"capacity(?: factor)?[ =]+(\d+(?:\.\d+)?)", text.lower())
    return float(found[1]) if found and float(found[1]) > 0 else None


def graphs_of(text: str) -> tuple[bool | None, tuple[GraphModule, ...]]:
    """Return whether whole layers are captured as CUDA graphs, and else the parts that are.

    Examples
    --------
    >>> graphs_of("full (full iteration)"), graphs_of("modules:moe_router+moe_preprocess"), graphs_of("none")
    ((True, ()), (False, ('moe_router',)), (False, ()))
    """
    low = text.strip().lower()
    if low.startswith(("full", "per-layer")):
        return True, ()
    if low.startswith("none"):
        return False, ()
    if not low.startswith("modules:"):
        return None, ()
    words: tuple[tuple[str, GraphModule], ...] = (
        ("attn", "attention"), ("mamba", "mamba"), ("moe_router", "moe_router"), (":mlp", "mlp"), ("+mlp", "mlp"),
    )  # fmt: skip
    return False, tuple(dict.fromkeys(module for word, module in words if word in low))


def attention_kernel_of(backend: str) -> AttentionKernel | None:
    """Return the generation of the attention kernel where the source names it; PyTorch's own flash kernel is the second.

    Examples
    --------
    >>> attention_kernel_of("torch SDPA (flash)"), attention_kernel_of("auto (Transformer Engine)"), attention_kernel_of("")
    ('flash-2', 'cudnn', None)
    >>> attention_kernel_of("Transformer Engine flash (NVTE_FUSED_ATTN=0)")
    'flash-2'
    """
    low = backend.lower()
    if "sdpa" in low:  # llm-foundry's "attn_impl flash" is flash-attn 1.0 before release 0.4 of November 2023: the era decides
        return "flash-2"
    if "cudnn" in low or low.startswith("fused"):
        return "cudnn"
    if "transformer engine" in low and "unfused" not in low:  # it prefers cuDNN's unless told otherwise
        return "flash-2" if low.startswith("transformer engine flash") else "cudnn"
    return None


def gradient_of(text: str) -> StateDtype | None:
    """Return the dtype of the accumulated gradient where the text says one thing.

    Examples
    --------
    >>> gradient_of("bf16 (buffer and reduce)"), gradient_of("bf16 or fp32 reduce, by Composer version"), gradient_of("")
    ('bf16', None, None)
    >>> gradient_of("bf16 or fp32 reduce not stated; main grads fp32")
    'fp32'
    """
    low = text.strip().lower()
    main = re.search(r"main grads (bf16|fp32)", low)
    if main:
        return "bf16" if main[1] == "bf16" else "fp32"
    if " or " in low or "unknown" in low or "otherwise" in low:
        return None
    found = re.match(r"(bf16|fp16|fp32)", low)
    kinds: dict[str, StateDtype] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
    return kinds[found[1]] if found else None


def states_of(text: str, precision: str) -> tuple[StateDtype | None, StateDtype | None]:
    """Return the dtypes of the main weights and of the moments.

    A precision-aware optimizer on bf16 weights keeps a 16-bit remainder of the fp32 main weight, two bytes: "fp16" here.

    Examples
    --------
    >>> states_of("main params fp32, exp_avg bf16, exp_avg_sq bf16", "mxfp8")
    ('fp32', 'bf16')
    >>> states_of("main params fp32, exp_avg fp32, exp_avg_sq fp32; precision-aware on for bf16", "bf16")
    ('fp16', 'fp32')
    """
    low = text.strip().lower()
    if not low:
        return None, None
    if "no fp32 main copy" in low:
        return "bf16", "bf16"
    moment: StateDtype | None = "bf16" if "exp_avg bf16" in low else "fp32" if "exp_avg fp32" in low else None
    remainder = ("16-bit" in low and "precision-aware off" not in low) or "precision-aware on for bf16" in low
    if remainder and ("for bf16" not in low or precision == "bf16"):
        return "fp16", moment
    return "fp32" if "fp32" in low else None, moment


def loss_of(text: str) -> CrossEntropy | None:
    """Return the cross entropy.

    Examples
    --------
    >>> loss_of("fused CE (te)"), loss_of("fused CE (native)"), loss_of("vocab-parallel CE"), loss_of("fused linear CE")
    ('te', 'fused', 'unfused', 'chunked')
    """
    low = text.strip().lower()
    if not low or low == "unknown":
        return None
    if "linear" in low:
        return "chunked"
    if "te)" in low or "flash-attn" in low:  # both keep the gradient in place of the logits
        return "te"
    if "native" in low:
        return "fused"
    return "unfused"


def mtp_of(text: str) -> int | None:
    """Return how many multi-token-prediction layers run.

    Examples
    --------
    >>> mtp_of("on (2 layers)"), mtp_of("off"), mtp_of("")
    (2, 0, None)
    """
    low = text.strip().lower()
    found = re.search(r"(\d+) layer", low)
    return 0 if low.startswith("off") else int(found[1]) if found else 1 if low.startswith("on") else None


def vocabulary_of(text: str) -> int | None:
    """Return the vocabulary that the logits have, padding included.

    Examples
    --------
    >>> vocabulary_of("128512 (128256 padded to a multiple of 512)"), vocabulary_of("51200 (yaml names ...)"), vocabulary_of("")
    (128512, 51200, None)
    >>> vocabulary_of("128,256 (set in model config)")
    128256
    """
    found = re.match(r"(\d{4,7}|\d{1,4},\d{3})\b", text.strip())
    return int(found[1].replace(",", "")) if found else None


def offloaded_share(text: str, layers: int) -> float | None:
    """Return the share of the activations that lie on the host.

    Examples
    --------
    >>> offloaded_share("activations of 40 layers to CPU", 80), offloaded_share("activation checkpoints to CPU", 32)
    (0.5, 1.0)
    >>> offloaded_share("activation offload to CPU", 32), offloaded_share("fine-grained activation offload: fused_group_mlp", 32)
    (1.0, None)
    """
    low = text.strip().lower()
    found = re.search(r"activations of (\d+) layers", low)
    if found:
        return min(1.0, int(found[1]) / layers)
    return 1.0 if re.match(r"activations?(/| checkpoints| to | offload|$)", low) else None


def optimizer_offloaded(text: str) -> float:
    """Return the share of the optimizer's state that lies on the host and is updated there, of a cell on offload.

    Examples
    --------
    >>> optimizer_offloaded("activations/optimizer (ZeRO-3 offload)"), optimizer_offloaded("params+optimizer (CPU)"), optimizer_offloaded("none")
    (1.0, 1.0, 0.0)
    >>> optimizer_offloaded("optimizer (50%)"), optimizer_offloaded("optimizer to CPU (fraction 0.5)")
    (0.5, 0.5)
    """
    low = text.strip().lower()
    if not re.match(r"optimizer|.*optimizer.*(offload|cpu|host)|zero-?(3 )?offload", low):
        return 0.0
    part = re.search(r"(\d+(?:\.\d+)?) ?%|fraction (0?\.\d+)", low)
    return min(1.0, float(part[1]) / 100 if part[1] else float(part[2])) if part else 1.0


def layers_by_chunk(text: str, stages: int, virtual: int) -> tuple[int, int] | None:
    """Return the layers of the first and of the last stage that a description of a pipeline's split gives.

    Understands a Megatron layout string ("Et*4|(t*4|)*14tmL"), "15 layers in first, 16 in middle, 14 in last stage",
    and "4x15,1 (16 stages ...)"; None where the split is even or the text says nothing of it.

    Examples
    --------
    >>> layers_by_chunk("Et*4|(t*4|)*14tmL", 16, 1), layers_by_chunk("Et|(tt|)*30L", 8, 4)
    ((4, 1), (7, 6))
    >>> layers_by_chunk("15 layers in first, 16 in middle, 14 in last stage", 8, 1)
    (15, 14)
    """
    words = re.search(r"(\d+) layers in first.*?(\d+) in last", text)
    if words:
        return int(words[1]), int(words[2])
    listed = re.search(r"in order: (\d+)x(\d+),(\d+)", text)
    if listed:
        return _ends([int(listed[1])] * int(listed[2]) + [int(listed[3])], stages, virtual)
    string = text.strip().split(" ")[0].split(":")[0]
    if not string.startswith("E") or "L" not in string:
        return None
    return _ends([chunk.count(LAYER) for chunk in parse_layout_string(string)], stages, virtual)


def _ends(chunks: Sequence[int], stages: int, virtual: int) -> tuple[int, int] | None:
    if len(chunks) != stages * virtual:
        return None
    return sum(chunks[0::stages]), sum(chunks[stages - 1 :: stages])


PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"fp4|nvfp4", "nvfp4"),
    (r"fp8[-_ ]?mx|mx[-_ ]?fp8", "mxfp8"),
    (r"fp8.*(block|sub-?channel|128x128)|fp8-sc\b", "fp8-blockwise"),
    (r"fp8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|tf32|float32", "fp32"),
)


def precision_of(text: str) -> Precision | None:
    """Return the precision of the linear layers' products; what stands in brackets counts only where nothing else tells.

    Examples
    --------
    >>> precision_of("fp8-cs"), precision_of("fp8-mx"), precision_of("fp4"), precision_of("fp16 (O2)"), precision_of("?")
    ('fp8', 'mxfp8', 'nvfp4', 'fp16', None)
    >>> precision_of("bf16 (no fp8)"), precision_of("fp8 (tile/block-wise)"), precision_of("bfloat16")
    ('bf16', 'fp8-blockwise', 'bf16')
    """
    whole = text.lower()
    outside = whole.split("(")[0]
    first = outside if not outside.strip().startswith("fp8") else whole  # what kind of fp8 may stand in brackets
    names = (next((name for pattern, name in PRECISIONS if re.search(pattern, low)), None) for low in (first, whole))
    return next((name for name in names if name), None)
