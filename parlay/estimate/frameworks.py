"""What each framework keeps and does unless told otherwise: a workload's open fields, filled in, and said out loud.

Sources: Megatron-LM d98e8a64, TransformerEngine d0067d0d (2.20.0.dev0), torchtitan b5bcd76c, DeepSpeed edaa7221,
PyTorch 010ae4a8, nanotron 03b83fc8. Bytes unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
from datetime import date
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.estimate.kept import Kept
from parlay.estimate.loss import Kernels, LossBytes, loss_bytes
from parlay.hardware.spec import Device
from parlay.layouts.vocabulary import FUSED_LAYERS, CrossEntropy, Framework, Optimizer, Precision, StateDtype
from parlay.layouts.workload import Workload

T = TypeVar("T")

BYTES: dict[StateDtype, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
FP32: StateDtype = "fp32"
MIB = float(1 << 20)
GRADIENT_BYTES = 2.0  # of a bf16 gradient as the backward writes it, and of a gathered weight
FSDP2_SINCE = "2024-03-01"  # torchtitan and what followed it shard by parameter; stacks of 2023 by flat tensor
NO_BUCKETS = 1e18  # elements: everything in one piece

# TransformerEngine 2.3 (May 2025) caches stand-in gradients of linear layers; Megatron its output layer's since commit
# e7c55de9; grouped linear layers since TransformerEngine pull request 2305.
LINEAR_CACHE_SINCE = date(2025, 5, 14)
HEAD_CACHE_SINCE = date(2025, 8, 1)
GROUPED_CACHE_SINCE = date(2025, 10, 27)

# TransformerEngine's Adam makes fp32 copies of moments of less, all of an optimizer's at once, and since 2.13 (pull request 2632) none
# of bf16 moments. Megatron's optimizers of dense weights and of experts step one after the other (ChainedOptimizer).
BF16_MOMENTS_IN_PLACE_SINCE = date(2026, 3, 18)

# PyTorch's own cuBLAS workspace: 2 x 4 MiB + 8 x 16 KiB, 32 MiB on Hopper (pull request 91564), since PyTorch 2.12 of May 2026
# on Blackwell as well (pull request 175344); CUBLAS_WORKSPACE_CONFIG=:4096:8 makes it 32 MiB everywhere.
TORCH_WORKSPACE_MIB = 8.125
TORCH_LARGE_WORKSPACE_MIB = 32.0
BLACKWELL_WORKSPACE_SINCE = date(2026, 5, 13)


# PyTorch's rms_norm is one CUDA kernel since 2.9 of October 2025 (pull request 153666; aten/src/ATen/native/layer_norm.cpp, rms_norm_symint
# where weight and input have one dtype); layer_norm always was. Hugging Face's modules under DeepSpeed spell RMSNorm out.
FUSED_RMSNORM_SINCE = date(2025, 10, 15)
# nanotron's column-parallel products kept their gathered inputs until pull request 203 of July 2024 gathers them again.
NANOTRON_REGATHERS_SINCE = date(2024, 8, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class LowPrecision:
    """How a low-precision recipe stores an element: its bytes, elements that share a scale, bytes of a scale."""

    element_bytes: float
    weight_block: float
    activation_block: float
    scale_bytes: float
    one_way_from: float  # compute capability from which one copy serves both directions

    @property
    def activation_bytes(self) -> float:
        """Bytes of a kept activation element, its share of the scale included."""
        return self.element_bytes + self.scale_bytes / self.activation_block

    def copies(self, capability: float) -> float:
        """Quantised copies of a weight: row-wise alone, or row- and column-wise."""
        return 1.0 if capability >= self.one_way_from else 2.0


# TransformerEngine utils.py:658-663, tensor/mxfp8_tensor.py:160-176, tensor/float8_blockwise_tensor.py:190-210
RECIPES: dict[Precision, LowPrecision] = {
    "fp8": LowPrecision(1.0, np.inf, np.inf, 4.0, 10.0),
    "fp8-blockwise": LowPrecision(1.0, 128.0 * 128.0, 128.0, 4.0, np.inf),
    "mxfp8": LowPrecision(1.0, 32.0, 32.0, 1.0, np.inf),
    "nvfp4": LowPrecision(0.5, 16.0, 16.0, 1.0, np.inf),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What a framework does where the workload leaves it open; `source` names the code that says so."""

    kernels: Kernels
    gradient: StateDtype
    sharded_gradient: StateDtype  # at ZeRO stage 3
    cross_entropy: CrossEntropy
    vocab_multiple: int
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    gradient_accumulation_fusion: bool
    reduce: StateDtype
    step_bytes: float  # an fp32 gradient shard that exists during the step
    source: str
    moment: StateDtype = FP32


DEFAULTS: dict[Framework, Defaults] = {
    "megatron-core": Defaults(
        "transformer-engine", "fp32", "bf16", "unfused", 128, False, False, True, "fp32", 0.0,
        "megatron/training/arguments.py:1209-1216, distributed_data_parallel_config.py:188-195",
    ),
    "torchtitan": Defaults(
        "eager", "fp32", "fp32", "unfused", 1, True, True, False, "fp32", 0.0,
        "torchtitan/config/configs.py:85-102, torchtitan/distributed/fsdp.py:255-345",
    ),
    "deepspeed": Defaults(
        "eager", "bf16", "bf16", "unfused", 1, False, False, False, "bf16", 4.0,
        "deepspeed/runtime/zero/config.py, stage_1_and_2.py:2340-2400, stage3.py:731-752",
    ),
    "nanotron": Defaults(
        "nanotron", "fp32", "fp32", "unfused", 1, False, False, False, "fp32", 0.0,
        "nanotron optim/gradient_accumulator.py, optim/zero.py, config/parallelism_config.py",
    ),
    # DeepSeek's own framework is known from its papers alone; what they leave open is taken as Megatron-core has it.
    "hai-llm": Defaults(
        "transformer-engine", "fp32", "fp32", "unfused", 128, True, True, True, "fp32", 0.0,
        "arXiv:2412.19437, sections 3.2 and 3.3; arXiv:2401.02954, section 2.4 (overlap of ZeRO-1's reduction)", moment="bf16",
    ),
}  # fmt: skip


# Passes over the gradients before Adam: their norm reads them once. PyTorch's clip_grad_norm_ (torchtitan, nanotron) and
# DeepSpeed's unscale_and_clip_grads multiply in place whatever the norm is, Megatron only a norm above the limit, which is
# left out; the scaler of its fp16 steps reads and writes them once more (core/optimizer/optimizer.py, prepare_grads).
GRADIENT_PASSES: dict[Framework, float] = {
    "megatron-core": 1.0,
    "hai-llm": 1.0,
    "torchtitan": 3.0,
    "deepspeed": 3.0,
    "nanotron": 3.0,
}
UNSCALING_PASSES = 2.0
# Passes over the gradients around their reduction, at ZeRO stage 0 and at 1 or 2: Megatron divides a bucket in place
# (core/distributed/param_and_grad_buffer.py, start_grad_sync); DeepSpeed flattens, divides and copies back (runtime/engine.py,
# allreduce_bucket and allreduce_and_copy), or copies into its bucket and divides (zero/stage_1_and_2.py, average_tensor);
# PyTorch's DDP copies into buckets and out of them; nanotron reduces its buffer with the mean as it is.
REDUCTION_PASSES: dict[Framework, tuple[float, float]] = {
    "megatron-core": (2.0, 2.0), "hai-llm": (2.0, 2.0), "deepspeed": (6.0, 4.0), "torchtitan": (4.0, 4.0), "nanotron": (0.0, 0.0),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A workload with nothing left open, for one device; bytes are per parameter or per element."""

    framework: Framework
    kernels: Kernels
    weight_bytes: float
    wire_bytes: float  # of a weight that ranks gather
    gradient_bytes: float
    sharded_gradient_bytes: float  # at ZeRO stage 3
    master_bytes: float
    moment_bytes: float  # of one moment
    step_bytes: float  # what exists during the optimizer step only
    sharded_step_bytes: float  # at ZeRO stage 3
    scaled_bytes: float  # and beside either while one optimizer steps: fp32 copies of its moments
    left_bytes: float  # of those, what is freed only when the next step begins
    sharded_left_bytes: float  # at ZeRO stage 3
    reduce_bytes: float
    gradient_passes: float  # over the gradients before the optimizer's kernel
    converted_bytes: tuple[float, float]  # of the copy that it reads in place of a gradient, below and at ZeRO stage 3
    copied_bytes: float  # of a main weight that a pass of its own reads to write the weight
    loss: LossBytes
    vocab_multiple: int
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_p2p: bool | None
    reshard_after_forward: bool | None  # None: see `reshards`
    gradient_accumulation_fusion: bool
    caches: tuple[bool, bool, bool]  # stand-in gradients of linear, grouped linear, output layer
    recipe: LowPrecision | None
    weight_copies: float  # quantised copies of each linear weight
    quantised_only: bool  # no bf16 weight beside them
    te_workspace_bytes: float
    torch_workspace_bytes: float
    optimizer: Optimizer
    bucket_elements: int | None
    assumptions: tuple[str, ...]
    shard_copies: tuple[float, float] = (0.0, 0.0)  # bytes a parameter moves on the device around a gathering, a reduction
    reduction_passes: tuple[float, float] = (0.0, 0.0)  # over the gradients around their reduction, at ZeRO stage 0 and at 1 or 2
    keeps_gathered: bool = False  # a product whose input sequence parallelism gathers keeps it gathered
    frozen_bytes: float | None = None  # of a weight that is not trained; None: all are
    fused_rmsnorm: bool = True  # where kernels are eager: RMSNorm is one of them, which keeps its input and a scale a token
    grouped_experts: bool = True  # experts run as one grouped product, not one after the other

    def bucket_elements_of(self, data_ranks: ArrayLike) -> NDArray[np.float64]:
        """Return the elements of a gradient bucket for a number of data-parallel ranks (Megatron's grows with them)."""
        ranks = np.asarray(data_ranks, dtype=np.float64)
        if self.bucket_elements is not None:
            return np.full(ranks.shape, float(self.bucket_elements))
        if self.framework == "deepspeed":
            return np.full(ranks.shape, 5e8)  # reduce_bucket_size
        if not self.overlap_grad_reduce:
            return np.full(ranks.shape, NO_BUCKETS)
        # max(40e6, 1e6 dp): megatron/core/distributed/distributed_data_parallel.py:133-171
        return np.maximum(40e6, 1e6 * ranks)

    @property
    def moments_bytes(self) -> float:
        """Bytes of all moments of a parameter under AdamW."""
        return 2.0 * self.moment_bytes

    @property
    def states_bytes(self) -> float:
        """Bytes of all states that the optimizer keeps of a parameter; adafactor's factors are a few for a whole matrix."""
        return {"adamw": self.moments_bytes, "adamw-8bit": 2.0, "adafactor": 0.0, "muon": 4.0, "sgd": 4.0}[self.optimizer]

    def reshards(self, stages: ArrayLike) -> NDArray[np.bool_]:
        """Return whether ZeRO-3 frees gathered weights after each forward, and reduces after each backward, over so many stages.

        torchtitan's default keeps them over a pipeline's step (distributed/fsdp.py); Megatron-FSDP frees and reduces always
        (core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py, grad_reduce_every_bprop).
        """
        pp = np.asarray(stages)
        if self.reshard_after_forward is not None:
            return np.full(pp.shape, self.reshard_after_forward)
        return np.asarray((pp == 1) | (self.framework != "torchtitan"))

    def step_of(self, *, sharded: bool) -> dict[str, float]:
        """Return the arguments of `optimizer_step.step_traffic_bytes`, of ZeRO stage 3 or below."""
        return {
            "gradient_bytes": self.sharded_gradient_bytes if sharded else self.gradient_bytes,
            "master_bytes": self.master_bytes, "moments_bytes": self.states_bytes, "weight_bytes": self.weight_bytes,
            "passes": self.gradient_passes, "converted_bytes": self.converted_bytes[sharded], "copied_bytes": self.copied_bytes,
        }  # fmt: skip


class _Chooser:
    """Picks a given value or the default, and remembers in words which defaults were taken."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def of(self, value: T | None, default: T, sentence: str) -> T:
        """Return `value`, or `default` and note the sentence."""
        if value is None:
            self.said.append(sentence)
            return default
        return value


_SETTINGS: Kept[Settings] = Kept()


def resolve(workload: Workload, device: Device) -> Settings:
    """Return `workload` with the framework's defaults of its date filled in, and the assumptions that took."""
    return _SETTINGS.get((workload, device), lambda: _resolved(workload, device))


# What optimizers keep that have a format of their own, as parlay.estimate.memory_static prices them.
MOMENTS_KEPT: dict[Optimizer, str] = {
    "adamw-8bit": "optimizer moments in 8 bits, an fp32 scale for every 256 elements (bitsandbytes' default)",
    "adafactor": "factored optimizer moments in fp32",
}


def _resolved(workload: Workload, device: Device) -> Settings:
    base, who, choose = DEFAULTS[workload.framework], workload.framework, _Chooser()
    default = base.gradient
    if who == "megatron-core" and workload.precision == "fp16":
        default = "fp16"  # only bf16 turns --accumulate-allreduce-grads-in-fp32 on by itself (megatron/training/arguments.py)
    if workload.precision == "fp32":
        default = "fp32"  # there is nothing narrower
    narrower = workload.precision != "fp32" and BYTES[base.sharded_gradient] != BYTES[default]
    fully = f", in {base.sharded_gradient} under ZeRO-3" if narrower else ""
    grad = choose.of(workload.gradient_dtype, default, f"gradients accumulate in {default}{fully} ({who}'s default)")
    sharded = grad if workload.gradient_dtype or workload.precision == "fp32" else base.sharded_gradient
    kept = MOMENTS_KEPT.get(workload.optimizer, f"optimizer moments in {base.moment}")
    moment = choose.of(workload.moment_dtype, base.moment, kept)
    master = choose.of(workload.master_dtype, FP32, "main weights in fp32")
    loss = choose.of(workload.cross_entropy, base.cross_entropy, f"cross entropy {base.cross_entropy} ({who}'s default)")
    vocab = choose.of(workload.vocab_multiple, base.vocab_multiple, f"vocabulary padded to {base.vocab_multiple} x tp")
    reduce = choose.of(
        workload.overlap_grad_reduce, base.overlap_grad_reduce, _overlap("gradient reduction", base.overlap_grad_reduce)
    )
    gather = choose.of(
        workload.overlap_param_gather, base.overlap_param_gather, _overlap("weight gathering", base.overlap_param_gather)
    )
    compiled = workload.compiled if who in FUSED_LAYERS else choose.of(workload.compiled, False, "torch.compile off")
    kernels: Kernels = "compiled" if compiled and base.kernels == "eager" else base.kernels
    day = _day(workload, choose)
    fp32 = workload.precision == "fp32"
    own_master = who == "torchtitan" or fp32  # the weight that is updated is the weight that is used, cast where it must be
    capability = capability_of(device)
    recipe = RECIPES.get(workload.precision)
    fusion, caches = _fusion(workload, base, day)
    if who == "hai-llm":
        choose.said += _published(workload)
    if workload.fp8_attention and recipe is not None:
        choose.said.append(
            "attention in fp8 takes what cuDNN's own benchmarks measured: its backward computes what a window hides, on Hopper what the"
            " causal mask hides as well"
        )
    if workload.lora_rank is not None:
        choose.said += _adapted(workload)
    return Settings(
        framework=who,
        kernels=kernels,
        weight_bytes=4.0 if fp32 or (own_master and master == "fp32") else 2.0,
        wire_bytes=4.0 if fp32 else 2.0,
        gradient_bytes=BYTES[grad] + (2.0 if who == "deepspeed" and grad == "fp32" and not fp32 else 0.0),  # BF16_Optimizer
        sharded_gradient_bytes=BYTES[sharded],
        master_bytes=0.0 if own_master or master == "bf16" else BYTES[master],
        moment_bytes=BYTES[moment],
        step_bytes=_step_bytes(who, base, grad, master, moment),
        sharded_step_bytes=_step_bytes(who, base, sharded, master, moment),
        scaled_bytes=_scaled_bytes(who, moment, day),
        left_bytes=_gradient_copies(who, grad, master, moment),
        sharded_left_bytes=_gradient_copies(who, sharded, master, moment),
        gradient_passes=GRADIENT_PASSES[who]
        + (UNSCALING_PASSES if workload.precision == "fp16" and who in FUSED_LAYERS else 0.0),
        converted_bytes=(_converted_bytes(who, grad, master, moment), _converted_bytes(who, sharded, master, moment)),
        copied_bytes=0.0 if own_master or master != "fp32" or (who == "megatron-core" and moment != "fp32") else BYTES[master],
        reduce_bytes=BYTES[
            sharded if who == "megatron-core" or fp32 else base.reduce
        ],  # Megatron-FSDP reduces in its gradients' format
        loss=loss_bytes(loss, "eager" if kernels == "compiled" and workload.loss_compiled is False else kernels, day, who),
        vocab_multiple=vocab,
        overlap_grad_reduce=reduce,
        overlap_param_gather=gather,
        overlap_p2p=workload.overlap_p2p,
        reshard_after_forward=workload.reshard_after_forward,
        gradient_accumulation_fusion=fusion,
        caches=caches,
        recipe=recipe,
        weight_copies=recipe.copies(capability) if recipe and who in FUSED_LAYERS else 0.0,
        quantised_only=workload.stores_fp8_weights and recipe is not None,
        te_workspace_bytes=(32 if capability >= 9.0 else 4) * MIB if kernels == "transformer-engine" else 0.0,
        torch_workspace_bytes=_torch_workspace(capability, workload, day) * MIB,
        optimizer=workload.optimizer,
        bucket_elements=workload.bucket_elements,
        assumptions=tuple(choose.said),
        shard_copies=_shard_copies(workload, 4.0 if fp32 else BYTES[base.reduce]),
        reduction_passes=REDUCTION_PASSES[who],
        keeps_gathered=who == "nanotron" and day < NANOTRON_REGATHERS_SINCE,
        fused_rmsnorm=who == "torchtitan" and day >= FUSED_RMSNORM_SINCE,
        frozen_bytes=None if workload.lora_rank is None else 4.0 if fp32 else 2.0,
        grouped_experts=workload.moe_grouped is not False,
    )


def _published(workload: Workload) -> list[str]:
    """Return what DeepSeek's papers say of HAI-LLM and is taken for granted where the workload leaves it open."""
    said = ["hai-llm as its papers describe it; what they leave open as megatron-core has it"]
    if workload.fp8_weights is None and workload.stores_fp8_weights:
        said.append("weights kept in fp8 alone, cast from the fp32 main weights")
    if workload.fp8_activation_inputs is None and workload.stores_fp8_inputs:
        said.append("inputs of activation functions kept in fp8")
    return said


def _adapted(workload: Workload) -> list[str]:
    """Return what is taken for granted of LoRA."""
    wide = workload.precision == "fp32"
    return [
        f"LoRA of rank {workload.lora_rank}: all other weights are frozen, in {'fp32' if wide else 'bf16'}, without gradients or"
        " optimizer state",
        f"adapters without dropout{'' if wide else ', in 16-bit products'}; routed experts, embedding, head and prediction modules have none",
    ]


def capability_of(device: Device) -> float:
    """Return the CUDA compute capability as a number, 0 for devices that have none."""
    try:
        return float(device.compute_capability or 0.0)
    except ValueError:  # an AMD architecture such as gfx942
        return 0.0


def _fusion(workload: Workload, base: Defaults, day: date) -> tuple[bool, tuple[bool, bool, bool]]:
    """Return whether weight gradients add into the main gradient, and which layers' stand-in gradients are cached."""
    given = workload.gradient_accumulation_fusion
    fusion = base.gradient_accumulation_fusion if given is None or workload.framework not in FUSED_LAYERS else given
    cached = fusion and workload.framework == "megatron-core" and workload.lora_rank is None
    return fusion, (
        cached and day >= LINEAR_CACHE_SINCE,
        cached and day >= GROUPED_CACHE_SINCE,
        cached and day >= HEAD_CACHE_SINCE,
    )


def _torch_workspace(capability: float, workload: Workload, day: date) -> float:
    """Return the MiB of the workspace that PyTorch gives each matmul handle."""
    large = 9.0 <= capability < 10.0 or (capability >= 10.0 and day >= BLACKWELL_WORKSPACE_SINCE)
    return TORCH_LARGE_WORKSPACE_MIB if large or workload.deterministic else TORCH_WORKSPACE_MIB


def _shard_copies(workload: Workload, reduce_bytes: float) -> tuple[float, float]:
    """Return the bytes of device memory that a parameter moves around one gathering and around one reduction of a shard.

    FSDP1 keeps a block in one flat tensor: nothing around a gathering; the backward of its views concatenates the
    gradients (read, write), casts them to the reduction's type and divides them beforehand (torch/distributed/fsdp/
    _flat_param.py, _runtime_utils.py). FSDP2 copies each parameter out of the gathered buffer and each gradient into the
    reduction's (fully_shard/_fsdp_collectives.py: split_with_sizes_copy, chunk_cat). DeepSpeed's stage 3 concatenates the
    gathered pieces, copies gradients into a bucket, concatenates them by rank and divides them (partition_parameters.py,
    stage3.py, coalesced_collectives.py). XLA and Megatron's FSDP move nothing: their buffers hold the tensors themselves.
    """
    each = 4.0 if workload.precision == "fp32" else GRADIENT_BYTES
    copy = 2 * each
    if workload.shards_in_place:
        return 0.0, 0.0
    if workload.framework == "torchtitan":
        cast = each + reduce_bytes
        if workload.framework_date is not None and workload.framework_date < FSDP2_SINCE:
            return 0.0, copy + (cast if reduce_bytes != each else 0.0) + 2 * reduce_bytes
        return copy, cast
    return (copy, 3 * copy) if workload.framework == "deepspeed" else (0.0, 0.0)


def _step_bytes(who: Framework, base: Defaults, grad: StateDtype, master: StateDtype, moment: StateDtype) -> float:
    """Return the bytes a parameter of the fp32 copies of gradients, which exist during the step only."""
    if who != "megatron-core":
        return base.step_bytes if BYTES[grad] < 4 else 0.0
    return _gradient_copies(who, grad, master, moment)


def _scaled_bytes(who: Framework, moment: StateDtype, day: date) -> float:
    """Return the bytes a parameter of the fp32 copies of both moments that an optimizer of Megatron makes for its step.

    fused_adam.py, step: `get_unscaled_state(...).float()` of every state before the kernel, and `del unscaled_lists` behind it.
    """
    copied = moment in ("fp16", "fp8") or (moment == "bf16" and day < BF16_MOMENTS_IN_PLACE_SINCE)
    return 8.0 if who == "megatron-core" and copied else 0.0


def _gradient_copies(who: Framework, grad: StateDtype, master: StateDtype, moment: StateDtype) -> float:
    """Return the bytes a parameter of Megatron's fp32 copies of its gradient shards, which live until the next step zeroes them.

    distrib_optimizer.py:2784-2792: `.float()` copies bf16 shards; the precision-aware optimizer reads them as they are. Megatron-FSDP
    converts them to the main weights' format as well (megatron_fsdp/param_and_grad_buffer.py, update_main_grads).
    """
    return 4.0 if who == "megatron-core" and BYTES[grad] < 4 and not precision_aware(master, moment) else 0.0


def precision_aware(master: StateDtype, moment: StateDtype) -> bool:
    """Return whether Megatron's optimizer reads gradients and writes weights in formats of its own, within its kernel."""
    return master != "fp32" or moment != "fp32"


def _converted_bytes(who: Framework, grad: StateDtype, master: StateDtype, moment: StateDtype) -> float:
    """Return the bytes of the fp32 copy of a gradient that the optimizer's kernel reads (DeepSpeed stage_1_and_2.py:2340-2400)."""
    return 4.0 if who == "deepspeed" and BYTES[grad] < 4 else _gradient_copies(who, grad, master, moment)


def _overlap(what: str, default: bool) -> str:
    return f"{what} {'overlapped' if default else 'not overlapped'} with compute (the framework's default; ZeRO-3 overlaps it layer by layer)"


def _day(workload: Workload, choose: _Chooser) -> date:
    if workload.framework_date is None:
        return choose.of(None, date.max, "buffers and kernels of the framework's current version")
    return date.fromisoformat(workload.framework_date)
