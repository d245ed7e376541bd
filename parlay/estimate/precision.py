"""Which precisions a device can train in, and in which number format its matrix products run then."""

from __future__ import annotations

import itertools
from functools import lru_cache

from parlay.errors import UsageError
from parlay.estimate.frameworks import RECIPES, capability_of
from parlay.hardware.spec import Device, Dtype
from parlay.layouts.vocabulary import Precision
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec, Run

# The number formats in which the products of a precision may run, the one that is taken first where a device has it. fp32 products
# are TF32: "default to tf32" in TransformerEngine common/gemm/cublaslt_gemm.cu, whose layers Megatron runs.
MATMUL_DTYPES: dict[Precision, tuple[Dtype, ...]] = {
    "fp32": ("tf32", "fp32"),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "fp8": ("fp8",),
    "fp8-blockwise": ("fp8",),
    "mxfp8": ("fp8",),
    "nvfp4": ("fp4",),
}
# Block scales need more of a device than a rate: from which CUDA compute capability on Transformer Engine takes a recipe, and below
# which (pytorch/quantization.py: _compute_mxfp8_support, _compute_nvfp4_support, _compute_fp8_block_scaling_support).
CAPABILITIES: dict[Precision, tuple[float, float]] = {
    "fp8-blockwise": (9.0, float("inf")),
    "mxfp8": (10.0, 12.0),
    "nvfp4": (10.0, float("inf")),
}
NVIDIA, AMD = "nvidia", "amd"
AMD_MXFP8 = "gfx950"  # the first with MXFP8: "gfx950 or higher required" (AMD-AGI/Primus-Turbo, pytorch/core/low_precision.py)
NVIDIA_ONLY = ("nvfp4",)  # 16 elements and a scale in fp8; other vendors' fp4 products take MXFP4, 32 and a power of two


def with_bf16_ends(model: ModelSpec, workload: Workload) -> ModelSpec:
    """Return the model with the first and last layers that a workload keeps in bf16 as kinds of their own, `dense` as `dense_bf16`.

    Megatron's --first-last-layers-bf16 keeps one at each end unless told otherwise. A model that has been through comes back as it is.
    """
    if not workload.bf16_layers or workload.precision not in RECIPES or any(kind.bf16 for kind in model.kinds.values()):
        return model
    return _with_bf16_ends(model, *workload.bf16_ends)


@lru_cache(maxsize=64)
def _with_bf16_ends(model: ModelSpec, start: int, end: int) -> ModelSpec:
    names, kinds = model.layer_names(), dict(model.kinds)
    ends = {i for i in range(len(names)) if i < start or i >= len(names) - end}
    for name in {names[i] for i in ends}:
        kinds[f"{name}_bf16"] = kinds[name].model_copy(update={"bf16": True})
    runs = itertools.groupby(f"{name}_bf16" if i in ends else name for i, name in enumerate(names))
    layers = tuple(Run(kinds=(name,), count=len(list(run))) for name, run in runs)
    used = {name for run in layers for name in run.kinds} | ({model.mtp_kind} if model.mtp_kind else set())
    return model.model_copy(update={"kinds": {name: kind for name, kind in kinds.items() if name in used}, "layers": layers})


def matmul_dtype(device: Device, precision: Precision) -> Dtype | None:
    """Return the number format of a precision's products on a device, None where it has no rate for any."""
    return next((dtype for dtype in MATMUL_DTYPES[precision] if dtype in device.flops_per_s), None)


def why_not(device: Device, precision: Precision) -> str:
    """Return why a device cannot train in a precision, nothing where it can."""
    if matmul_dtype(device, precision) is None:
        return f"has no {' or '.join(MATMUL_DTYPES[precision])} matmul rate"
    vendor, capability = device.vendor.lower(), capability_of(device)
    if vendor == NVIDIA and precision in CAPABILITIES and capability:
        low, high = CAPABILITIES[precision]
        if not low <= capability < high:
            need = f"{low:.1f} or higher" if high == float("inf") else f"from {low:.1f} to below {high:.1f}"
            return f"has compute capability {capability:.1f}, and {precision} needs {need}"
    if vendor == AMD and precision == "mxfp8" and (device.compute_capability or AMD_MXFP8) < AMD_MXFP8:
        return f"is {device.compute_capability}, and mxfp8 needs {AMD_MXFP8} or higher"
    if vendor != NVIDIA and precision in NVIDIA_ONLY:
        return f"is no NVIDIA device, and {precision} runs on theirs alone"
    return ""


def precisions_of(device: Device) -> tuple[Precision, ...]:
    """Return the precisions that a device can train in."""
    return tuple(p for p in MATMUL_DTYPES if not why_not(device, p))


def check_precision(device: Device, precision: Precision, use: str = "train") -> None:
    """Raise UsageError where a device cannot `use` a precision."""
    why = why_not(device, precision)
    if why:
        raise UsageError(
            f"{device.name} {why}, so it cannot {use} in {precision}",
            where="precision",
            hint=f"precision may be {', '.join(precisions_of(device))}",
        )
