"""How a framework of some era runs a layer's small work: fused or not, which attention kernel, how fast the host launches.

Rates tell how fast a fused kernel streams its bytes. A framework that leaves an operation to several kernels moves more
bytes for it; these factors count that traffic tensor by tensor. They belong to a framework and its date, never to a run.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from parlay.errors import UsageError
from parlay.estimate.frameworks import capability_of, precision_aware, resolve
from parlay.estimate.precision import matmul_dtype
from parlay.hardware.spec import Cluster, Device
from parlay.layouts.vocabulary import FUSED_LAYERS
from parlay.layouts.workload import Workload
from parlay.rates.datasheet import C2C_BYTES_PER_S

Kernel = Literal["flash1", "flash2", "tuned"]  # tuned: FlashAttention-3, cuDNN and what followed them

# Bytes moved for one element by the kernels of eager PyTorch over those of one fused kernel (bf16 in and out = 4 bytes).
# RMSNorm in fp32 steps: to fp32 (2+4), square (4+4), mean (4), scale (4+4), back (4+2), weight (2+2): 36 of 4.
EAGER_NORM = 9.0
# Rotary as complex numbers: to fp32 (2+4), product (4+4), back (4+2): 20 of 4.
EAGER_ROPE = 5.0
# Rotary that Megatron does not hand to Transformer Engine because cos and sin carry a factor (rope_utils.py, apply_rotary_pos_emb:
# mscale != 1): product with cos (2+2), half negated (1+1), halves swapped (2+2), product with sin (2+2), sum (4+2), copied (2+2):
# 24 of 4. Backward: two products (4+4), negated (2), halves back (4), sum (6), zeros for the empty rest and their sum (2+6): 28 of 4.
# Each of q and k makes its two tables of a position and channel anew: cosine (4+4), factor (4+4), cast (4+2), 88 in all, and takes 14
# operations forward with them and the slices. A packed sequence goes to the fused kernel, factor or none.
PARTED_ROPE = (24.0, 28.0)
PARTED_ROPE_TABLES = 88.0
PARTED_ROPE_OPERATIONS = 28.0
# silu (2+2) and product (4+2): 10 of 6.
EAGER_ACTIVATION = 1.67
# Logits to fp32 (2+4), log-softmax (4+4), gathered loss (4): 18 of the 8 of two fused passes.
EAGER_CROSS_ENTROPY = 2.25

# FlashAttention-2 is "1.5-2.0x" slower than 3 forward and "1.5-1.75x" backward on Hopper (arXiv:2407.08608); it has no code
# for Blackwell's matmul units either. The middles of the ranges. On Ampere and Ada it is the tuned kernel.
FLASH2_FORWARD = 1.75
FLASH2_BACKWARD = 1.62
# FlashAttention-1 reaches 25-40 % of an A100's peak where 2 reaches 50-73 % (arXiv:2307.08691, abstract): the middles' ratio.
FLASH1 = 61.5 / 32.5
# cuDNN's fp8 attention over its bf16 one, forward and backward, causal, 2,048 to 32,768 tokens of Llama 3.1 70B's heads
# (NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training/results/gb200_919_only_cudnn/llama3.1_20260226_174648.csv, medians of 5;
# benchmark/attention_training/results/llama3.1/h200/llama3.1_20260928_130009.csv). Hopper's fp8 backward computes what the causal mask
# hides; without a mask it takes 1 / 1.3 of bf16's time.
FP8_ATTENTION = {"blackwell": (1.265, 1.127), "blackwell-ultra": (1.265, 1.127), "hopper": (1.485, 0.653)}
# PyTorch 2.11's scaled_dot_product_attention ran at 551 TFLOP/s backward on an H200, which only cuDNN's kernel reaches
# (parlay/rates/calibrations/h200-one-gpu.json).
SDPA_TUNED_SINCE = "2026-03-01"
FLASH2_SINCE = "2023-11-30"  # released in July 2023, in the training stacks by the end of that year

# PyTorch's non-reentrant checkpoint ends a block's second forward as soon as every tensor that its backward reads is there
# (pull request 90105, in 2.1 of October 2023); torchtitan turned that off by default (its pull request 1580). A compiled
# block never runs what nothing reads.
EARLY_STOP_SINCE = "2023-10-04"
EARLY_STOP_UNTIL = "2025-08-18"

# Seconds of host time from one operator of a layer to the next (Python modules, autograd, checks, the launch itself), on the x86
# hosts of B200 and B300. Megatron-core: Qwen3 layers with experts take 9 to 16 ms there at micro-batch 1 (36 to 51 operators);
# HAI-LLM publishes nothing that would tell it apart. DeepSpeed: layers of hidden 1024 on A100 under Megatron-DeepSpeed never take
# less than 3.4 ms (forward, recompute, backward) however small their batch (vTrain's single-node runs): 12 operators a forward,
# 3.2 forwards' worth of host time, 75 us on those hosts. Those rows turned out to be simulated from traced kernels, with nothing
# run twice (parlay/validation/data/SOURCES.md): read so they say 3.0 ms and 113 us, the tracer's own time in it. Nothing better is
# known. torchtitan and nanotron: 40 and 75 us on hosts of H100.
HOST_OPERATOR_S = {"megatron-core": 110e-6, "deepspeed": 45.5e-6, "torchtitan": 33e-6, "nanotron": 62e-6, "hai-llm": 110e-6}
# Host time of an operator over those hosts', by what the device's usual hosts are: EPYC 7002 and 7003 beside A100, Xeon 8480 beside
# H100, Grace. Megatron-LM's own tests, whose small layers all wait for the host, fit best with 1.3 and 1.05 on H100 (25 runs of
# dense layers, 12 with experts), 1.9 and 1.4 on A100 (18 and 8), 1.85 and 1.4 on GB200 (24 and 15): the middles. Layers of
# DeepSeek-V3 take 33 ms on Grace, in NVIDIA's recipe and at the start of Megatron-LM's GB200 study, which asks for 2: in between.
HOST_FACTOR = {"ampere": 1.65, "hopper": 1.2}
GRACE_FACTOR = 1.8
# Host operators at the end of a step, beside one for each parameter tensor on the rank: gradients finished and their norm waited
# for, main weights copied back tensor by tensor (Megatron-LM core/optimizer/distrib_optimizer.py, _copy_main_params_to_model_params,
# _copy_model_grads_to_main_grads; optimizer.py, get_main_grads_for_grad_norm). SimuMax's runs on B200 at 4, 8 and 32 micro-batches
# leave 8 to 13 ms a step with some 27 tensors on a rank and 25 to 45 ms with some 190 to 290 of experts. Frameworks whose optimizer
# keeps flat tensors or runs one kernel for all of them have none.
STEP_OPERATORS = {"megatron-core": 50.0, "hai-llm": 50.0}
# Of the operator a tensor, where the optimizer's own kernel reads gradients and writes weights in their formats: the loop that copies
# weights back returns at once, that over gradients hands views over instead of converting them, that of the norm stays (the same
# file, use_precision_aware_optimizer). Half is our count of what is left of these loops, not a measurement.
AWARE_TENSOR = 0.5
# Bytes/s of one rank's pipeline send under nanotron, where its link is not slower. Its engine moves one tensor at a time: two
# messages of sizes, which the host waits for, then the tensor in an unbatched send; a stage receives an activation before it sends a
# gradient (parallel/pipeline_parallel/p2p.py and state.py). Its pipelines on 8 H100 leave time in proportion to bytes: 5 to 8 GB/s a
# rank inside a node (5 runs). Those on 16 leave 0.3 to 2.2 across nodes (9 runs), whose network carries 1.5 a rank at best; that its
# engine would reach as much over a faster network as inside a node is assumed.
SENDS = {"nanotron": 5.5e9}
# A scale-up link of this many times a GPU's network: where borders between stages differ by more (TCP 288, Omni-Path 48, four HDR ports for
# eight A100 24, NDR 9), which of them leave a node is looked at stage by stage. Below, one stage of each content stands for the others.
UNEVEN_BORDERS = 40.0


def send_by_place(cluster: Cluster, workload: Workload) -> bool:
    """Return whether what a pipeline's stage sends is counted by its place, with every stage listed."""
    return (
        workload.framework in SENDS or cluster.scale_up_link.bytes_per_s.value > UNEVEN_BORDERS * cluster.nic_bytes_per_s_per_gpu
    )


# Frameworks that add a weight's gradient into a main gradient of its own behind the backward of every micro-batch: Megatron's hook
# where the product has not added it already, which no look-up of a table does (core/distributed/distributed_data_parallel.py,
# _make_backward_post_hook: main_grad.add_), and nanotron for all weights (optim/gradient_accumulator.py, _accumulate_grad and its hook).
ADDING = ("megatron-core", "hai-llm", "nanotron")
HOST_BACKWARD = 1.2  # host time of a backward over that of its forward: autograd runs it from C++
TRANSFER_OPERATORS = 0.5  # host operators of one collective: tp 2 to 8 adds 0.3-0.5 ms to the layer above, of 12 collectives


# Megatron-LM reduces the input gradient of a column-parallel product beside its weight gradient since the end of 2021 (asynchronous
# tensor-parallel all-reduce, in release 3.0); Megatron-DeepSpeed forked before that and followed in 2023.
ASYNC_REDUCE_SINCE = {"megatron-core": "2021-10-31", "deepspeed": "2023-06-30"}
# "H100 / H800" for FlashAttention-3 and "Hopper and Blackwell GPUs" for FlashAttention-4 (Dao-AILab/flash-attention, README.md).
KERNEL_CAPABILITY = {"flash-3": 9.0, "flash-4": 9.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """Traffic of small operations over a fused kernel's, slow-down of attention over the tuned kernel's, host seconds."""

    host_operator_s: float = 0.0
    step_operators: float | None = None  # at the end of a step beside one a parameter tensor; None: none of either
    tensor_operators: float = 1.0  # and of that one
    fused_groups: bool = True  # experts in one grouped kernel; Transformer Engine launches one a group on several streams
    fused_experts: bool = False  # and with their activation, its casts and biases inside the products' kernels

    norm: float = 1.0  # of RMSNorm; LayerNorm is one kernel everywhere
    rope: float = 1.0
    parted_rope: bool = False  # rotary angles with a factor run as single operations
    activation: float = 1.0  # of a gated one; a lone GELU or ReLU is one kernel everywhere
    cross_entropy: float = 1.0
    attention_forward: float = 1.0
    attention_backward: float = 1.0
    fp8_attention: tuple[float, float] = (1.0, 1.0)  # how much faster either is with products in fp8
    async_reduce: bool = True  # the tensor-parallel all-reduce of a backward runs beside the weight gradient
    sends: float | None = (
        None  # bytes/s of blocking sends, one after the other, unless a link is slower; None: as the links have it
    )
    fp32_products: str = "fp32"  # the number format in which products of fp32 training run
    wide_products: str = "bf16"  # and those that no precision makes narrower: attention, router
    added: float = 0.0  # bytes that a weight's gradient moves to be added to its main gradient, where its product does not add it
    table_added: float = 0.0  # and that of a token table: filled with zeros, then added
    early_stop: bool = False  # a recomputed block's last product, which no backward reads, is not run again


def check_attention(workload: Workload, device: Device) -> None:
    """Raise UsageError where a device does not run the attention kernel that is asked for."""
    need, capability = KERNEL_CAPABILITY.get(workload.attention_kernel or "", 0.0), capability_of(device)
    nvidia = device.vendor.lower() == "nvidia"
    if capability < need and not (nvidia and device.compute_capability is None):
        has = f"{device.name} has {capability:.1f}" if nvidia else f"{device.name} is none"
        raise UsageError(
            f"{workload.attention_kernel} needs an NVIDIA device of compute capability {need:.1f} or higher, and {has}",
            where="training.attention_kernel",
            hint="leave it out, or set flash-2",
        )
    if workload.fp8_attention and workload.framework not in FUSED_LAYERS:
        raise UsageError(
            f"attention in fp8 is Transformer Engine's, which {workload.framework} does not run", where="training.fp8_attention",
            hint="leave it out, or choose --framework megatron-core",
        )  # fmt: skip
    if workload.fp8_attention and workload.attention_kernel == "flash-2":
        raise UsageError(
            "FlashAttention-2 has no fp8",
            where="training.fp8_attention",
            hint="leave one of the two out, or set attention_kernel to cudnn",
        )


def traits_of(workload: Workload, device: Device) -> Traits:
    """Return the traits of a workload's framework, date and compilation on a device."""
    check_attention(workload, device)
    kernel = attention_kernel(workload)
    newer = capability_of(device) >= 9.0 and device.vendor.lower() == "nvidia"
    forward = (FLASH2_FORWARD if newer else 1.0) if kernel != "tuned" else 1.0
    backward = (FLASH2_BACKWARD if newer else 1.0) if kernel != "tuned" else 1.0
    older = FLASH1 if kernel == "flash1" else 1.0
    # torchtitan's own layers, Hugging Face's, and whatever a workload says is not compiled, run one PyTorch operation a kernel.
    settings = resolve(workload, device)
    adds = (settings.wire_bytes + 2 * settings.gradient_bytes) * (workload.framework in ADDING)  # both are read, one is written
    eager = workload.compiled is False or (settings.kernels == "eager" and not workload.compiled)
    return Traits(
        host_operator_s=HOST_OPERATOR_S[workload.framework] * _host_factor(device),
        step_operators=STEP_OPERATORS.get(workload.framework),
        tensor_operators=AWARE_TENSOR
        if precision_aware(workload.master_dtype or "fp32", workload.moment_dtype or "fp32")
        else 1.0,
        fused_groups=workload.framework != "megatron-core" or _fused_experts(workload, device),
        fused_experts=_fused_experts(workload, device),
        norm=EAGER_NORM if eager and not settings.fused_rmsnorm else 1.0,
        rope=EAGER_ROPE if eager else 1.0,
        parted_rope=workload.framework == "megatron-core" and workload.document_len is None,
        activation=EAGER_ACTIVATION if eager else 1.0,
        cross_entropy=EAGER_CROSS_ENTROPY
        if workload.cross_entropy == "unfused" and workload.framework not in FUSED_LAYERS
        else 1.0,
        attention_forward=forward * older,
        attention_backward=backward * older,
        fp8_attention=FP8_ATTENTION.get(device.architecture.lower(), (1.0, 1.0)),
        async_reduce=(workload.framework_date or "9") >= ASYNC_REDUCE_SINCE.get(workload.framework, ""),
        sends=SENDS.get(workload.framework),
        fp32_products=matmul_dtype(device, "fp32") or "fp32",
        wide_products=_wide_products(workload, device),
        added=0.0 if settings.gradient_accumulation_fusion else adds,
        table_added=settings.wire_bytes + adds,
        early_stop=_early_stop(workload),
    )


def _fused_experts(workload: Workload, device: Device) -> bool:
    """Return whether an expert layer runs in Transformer Engine's fused grouped kernels.

    A whole iteration that is captured with dropless routing must learn the rows of its experts on the device. Megatron-core has that
    with HybridEP, a paged stash and Transformer Engine's op fuser, and refuses every other combination (core/transformer/moe/
    token_dispatcher.py, experts.py); its kernel multiplies, activates and casts at once (TransformerEngine pytorch/ops/fused/
    grouped_mlp.py: block scales, compute capability 10).
    """
    captured = bool(workload.cuda_graphs) and workload.moe_capacity_factor is None and workload.dispatcher == "hybridep"
    block_scaled = workload.precision in ("mxfp8", "nvfp4") and 10.0 <= capability_of(device) < 11.0
    return workload.framework == "megatron-core" and captured and block_scaled


def _wide_products(workload: Workload, device: Device) -> str:
    """Return the number format of attention and router: fp32's own in fp32 training, else bf16, or fp16 where a device has no bf16."""
    if workload.precision == "fp32":
        return matmul_dtype(device, "fp32") or "fp32"
    return "bf16" if "bf16" in device.flops_per_s else "fp16"


def _host_factor(device: Device) -> float:
    """Return how much longer an operator takes on a device's usual host than on those of B200 and B300."""
    link = device.host_link_bytes_per_s
    grace = link is not None and link.value > C2C_BYTES_PER_S  # the CPU on one board with the GPU
    return GRACE_FACTOR if grace else HOST_FACTOR.get(device.architecture.lower(), 1.0)


def attention_kernel(workload: Workload) -> Kernel:
    """Return the attention kernel that a framework of that date calls where nothing else is said.

    Megatron-core calls Transformer Engine, which picks cuDNN or FlashAttention-3; torchtitan calls PyTorch's
    scaled_dot_product_attention, which was FlashAttention-2 for long and is cuDNN on Hopper now; DeepSpeed's models call
    FlashAttention-2.
    """
    if workload.attention_kernel is not None:
        return "flash2" if workload.attention_kernel == "flash-2" else "tuned"
    date = workload.framework_date
    if date is not None and date < FLASH2_SINCE:
        return "flash1"
    current = workload.framework == "torchtitan" and (date is None or date >= SDPA_TUNED_SINCE)
    return "tuned" if workload.framework in FUSED_LAYERS or current else "flash2"


def _early_stop(workload: Workload) -> bool:
    """Return whether a second forward leaves out the tail that no backward reads."""
    date = workload.framework_date
    dated = date is not None and EARLY_STOP_SINCE <= date < EARLY_STOP_UNTIL
    return workload.framework == "torchtitan" and (bool(workload.compiled) or dated)
