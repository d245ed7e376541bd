"""The closed vocabularies of layouts. In arrays each name is its position in the tuple, as a small integer."""

from __future__ import annotations

from itertools import permutations
from typing import Literal, get_args

CpKind = Literal["ring", "zigzag", "allgather", "ulysses", "usp"]
# ring: contiguous blocks; zigzag: balanced ring; allgather: K and V gathered, balanced; ulysses: all-to-all by heads;
# usp: Ulysses inside, zig-zag ring outside
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev", "bfs"]
Precision = Literal["fp32", "fp16", "bf16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4"]
# fp8: one scale per tensor (delayed or current); fp8-blockwise: 1x128 and 128x128 blocks; mxfp8: 1x32 blocks
Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "muon", "sgd"]
Framework = Literal["megatron-core", "torchtitan", "deepspeed", "nanotron", "hai-llm"]
StateDtype = Literal["fp32", "bf16", "fp16", "fp8"]
LoraModule = Literal["qkv", "out", "up", "down"]  # projections of attention or a mixer, and of a dense or shared MLP
Convention = Literal[
    "megatron",
    "korthikanti",
    "narayanan",
    "torchtitan",
    "torchtitan-causal",
    "nanotron",
    "llm-foundry",
    "llm-foundry-hfu",
    "palm",
]  # what a source counts as the FLOPs of a token: parlay.estimate.counts
CrossEntropy = Literal["unfused", "fused", "te", "chunked"]
Recompute = Literal[
    "none", "core_attention", "norm", "mlp_activation", "mla_up", "mlp", "moe", "shared_experts", "selective_ops", "full"
]
# modules may be combined, full stands alone; "selective" in user input means core_attention;
# selective_ops is torchtitan's per-operator policy (every other matmul and the attention output are kept)
Axis = Literal["tp", "cp", "dp", "pp"]

FUSED_LAYERS: frozenset[Framework] = frozenset(
    {"megatron-core", "hai-llm"}
)  # one fused kernel where others run PyTorch's, one by one

CP_KINDS: tuple[CpKind, ...] = get_args(CpKind)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
DEFAULT_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")  # inner to outer; ep lies inside cp x dp
ORDERS: tuple[tuple[Axis, ...], ...] = tuple(permutations(DEFAULT_ORDER))  # the default first


def recompute_bits(modules: tuple[str, ...] | frozenset[str]) -> int:
    """Return the set of recomputed modules as bits: bit i stands for RECOMPUTE[i]; "none" is 0."""
    return sum(1 << RECOMPUTE.index(m) for m in set(modules) if m != "none")


def recompute_modules(bits: int) -> tuple[str, ...]:
    """Return the names of the recomputed modules of `bits`, in the vocabulary's order."""
    return tuple(m for i, m in enumerate(RECOMPUTE) if m != "none" and bits >> i & 1)
