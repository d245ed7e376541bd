"""What is asked of the cluster: sequences, batch, precision, optimizer, and the framework whose accounting applies.

A field left at None takes the default that the framework documents (parlay.estimate.frameworks); an estimate says so.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from parlay.layouts.vocabulary import Convention, CrossEntropy, Framework, LoraModule, Optimizer, Precision, StateDtype
from parlay.specfile import Spec

GraphModule = Literal["attention", "mamba", "mlp", "moe_router", "moe"]
AttentionKernel = Literal["flash-2", "flash-3", "flash-4", "cudnn"]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]  # deepep, hybridep: fused kernels, no permute of their own


class Workload(Spec):
    """One training step as the user asks for it."""

    seq_len: Annotated[int, Field(gt=0, le=1 << 30)] = 4096
    global_batch: Annotated[int, Field(gt=0, le=1 << 30)] = 512  # sequences per step, over all GPUs
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    framework: Framework = "megatron-core"
    causal: bool = True
    document_len: Annotated[int, Field(gt=0, le=1 << 30)] | None = (
        None  # mean of packed documents that attend to themselves alone
    )
    flash_attention: bool = True
    local_layers: bool = False  # Megatron's own layers, not Transformer Engine's (Megatron --transformer-impl local)
    total_tokens: Annotated[int, Field(gt=0, le=10**18)] | None = None  # of the whole training run
    gradient_dtype: StateDtype | None = None  # of the accumulated, reduced gradient
    moment_dtype: StateDtype | None = None  # of the optimizer's moments
    master_dtype: StateDtype | None = None  # of the main weights; "bf16" = none kept beside the weights
    cross_entropy: CrossEntropy | None = None
    vocab_multiple: Annotated[int, Field(gt=0, le=1 << 20)] | None = None  # the vocabulary is padded to this x tp
    fp8_weights: bool | None = None  # weights kept only in fp8 (fp8 primary weights, fp8 all-gather)
    bf16_layers: Annotated[int, Field(ge=0, le=1 << 20)] = (
        0  # first and last layers whose products stay in bf16 beside fp8 or fp4 ones
    )
    bf16_layers_at_start: Annotated[int, Field(ge=0, le=1 << 20)] | None = (
        None  # of these, the first ones; None: half, rounded up
    )
    fp8_activation_inputs: bool | None = None  # activation functions keep their inputs in fp8 and run again in the backward pass
    dropout: float = Field(default=0.0, ge=0, lt=1)
    moe_imbalance: float = Field(default=1.0, ge=1, le=1000)  # busiest rank's routed tokens over the mean
    moe_capacity_factor: float | None = Field(default=None, gt=0, le=1000)  # None = dropless
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_p2p: bool | None = None
    reshard_after_forward: bool | None = None  # FSDP: free a block's gathered weights after its forward
    shards_in_place: bool | None = None  # FSDP gathers into and reduces from the tensors themselves: no copies on the device
    cuda_graphs: bool | None = None  # whole layers or the whole iteration are captured
    cuda_graph_modules: tuple[GraphModule, ...] = ()  # captured parts where whole layers are not
    moe_dispatcher: Dispatcher | None = None
    moe_grouped: bool | None = None  # False: a rank's experts run one after the other, not as one grouped product
    attention_kernel: AttentionKernel | None = None  # None = what the device's profile was measured with
    fp8_attention: bool | None = None  # the attention core's products in fp8 as well
    deterministic: bool = False  # deterministic kernels and CUBLAS_WORKSPACE_CONFIG=:4096:8 (Megatron --deterministic-mode)
    compiled: bool | None = None  # torch.compile (torchtitan)
    loss_compiled: bool | None = None  # None = as `compiled`
    gradient_accumulation_fusion: bool | None = None  # Megatron: weight gradients add into the main gradient
    deferred_head_gradients: Annotated[int, Field(ge=0)] | None = None  # micro-batches (0: all) of which it waits for the end
    bucket_elements: Annotated[int, Field(gt=0)] | None = None
    lora_rank: Annotated[int, Field(gt=0, le=1 << 16)] | None = (
        None  # LoRA: the model is frozen, adapters of this rank are trained
    )
    lora_modules: tuple[LoraModule, ...] = ("qkv", "out", "up", "down")  # where the adapters stand
    flops_convention: Convention = "megatron"  # which FLOPs the printed MFU counts; nothing else follows from it
    framework_date: str | None = None  # ISO date; defaults of the era apply

    @field_validator("precision", mode="before")
    @classmethod
    def _any_case(cls, given: object) -> object:
        return given.lower() if isinstance(given, str) else given

    @field_validator("lora_modules", "cuda_graph_modules", mode="before")
    @classmethod
    def _list(cls, given: object) -> object:
        return tuple(re.split(r"[,+ -]+", given)) if isinstance(given, str) and given else given

    @field_validator("lora_modules")
    @classmethod
    def _some(cls, given: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
        if not given or len(set(given)) < len(given):
            raise ValueError(f"must name one or more of {', '.join(get_args(LoraModule))}, each once")
        return given

    @field_validator("framework_date", mode="before")
    @classmethod
    def _date(cls, given: object) -> object:
        if isinstance(given, date):  # TOML has dates of its own, and with a time, whose day counts
            return given.isoformat()[: len("2025-11-30")]
        if not isinstance(given, str) and (not isinstance(given, int) or isinstance(given, bool)):
            return given
        try:  # eras compare one spelling, whether 20250630, 2025-W27-1 or 2025-06-30T12:00:00 was written
            return datetime.fromisoformat(str(given)).date().isoformat()
        except ValueError:
            raise ValueError(f"'{str(given)[:40]}' is not a date; write it like 2025-11-30") from None

    @property
    def dispatcher(self) -> Dispatcher:
        """What carries tokens to their experts: DeepEP under hai-llm, which it is a part of; elsewhere the all-to-all."""
        return self.moe_dispatcher or ("deepep" if self.framework == "hai-llm" else "alltoall")

    @property
    def bf16_ends(self) -> tuple[int, int]:
        """How many first and last layers keep their products in bf16: as told, or half of them each, the odd one first."""
        given = self.bf16_layers_at_start
        start = -(-self.bf16_layers // 2) if given is None else min(given, self.bf16_layers)
        return start, self.bf16_layers - start

    @property
    def dispatches_fp8(self) -> bool:
        """Whether tokens and their gradients travel to the experts in fp8 and back in bf16 (arXiv:2412.19437, section 3.3.3)."""
        return self._in_fp8

    @property
    def stores_fp8_weights(self) -> bool:
        """Whether weights are kept in fp8 alone. HAI-LLM casts fp32 main weights to fp8 (arXiv:2412.19437, figure 6)."""
        return self._in_fp8 if self.fp8_weights is None else self.fp8_weights

    @property
    def stores_fp8_inputs(self) -> bool:
        """Whether activation functions keep their inputs in fp8. HAI-LLM does for SwiGLU (arXiv:2412.19437, section 3.3.3)."""
        return self._in_fp8 if self.fp8_activation_inputs is None else self.fp8_activation_inputs

    @property
    def _in_fp8(self) -> bool:
        return self.framework == "hai-llm" and self.precision in ("fp8", "fp8-blockwise", "mxfp8")
