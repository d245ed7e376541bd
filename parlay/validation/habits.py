"""What each framework of the published runs does unless a run says otherwise, and when: its documented defaults.

A habit belongs to a framework and its era, never to one run. `said` is what a case records when it leans on the habit.
"""

from __future__ import annotations

import dataclasses
import re

from parlay.layouts.vocabulary import CpKind, CrossEntropy, Framework, LoraModule, StateDtype
from parlay.validation.runs import Run


@dataclasses.dataclass(frozen=True, slots=True)
class Habit:
    """Defaults of one framework in one era."""

    pattern: str  # of the framework's name, in lower case
    framework: Framework  # whose accounting applies
    date: str  # ISO; the era where the run itself gives none
    zero: int
    gradient: StateDtype | None = None
    loss: CrossEntropy | None = None
    overlap: bool | None = None  # gradient reduction and weight gathering; None = the framework's default
    flash: bool = True
    sp: bool = True  # sequence parallelism wherever tp > 1
    compiled: bool | None = None
    cp_kind: CpKind = "zigzag"
    dropout: float = 0.0
    recompute: tuple[str, ...] = ()
    in_place: bool | None = None  # shards are gathered into and reduced from the tensors themselves
    bf16_gradient: StateDtype | None = None  # with bf16 weights, where it differs
    by_cost: bool = False  # layers are dealt out to pipeline stages by their cost
    pure: bool = False  # with bf16 weights nothing is kept in fp32
    nvidia_torch: bool = False  # runs in NVIDIA's containers, whose PyTorch comes with a current cuDNN
    remainder: bool = False  # with bf16 weights the fp32 main copy is held as its 16-bit remainder, see keeps_remainder
    said: str = ""


HABITS: tuple[Habit, ...] = (
    # Sources: run-settings notes of each framework (recipes and scripts at the named revisions), read 2026-11-29.
    # Undated: its skills, measured in July and August 2026 (pull requests 5094 and 5570) on main, which had the stack of release 26.06
    Habit(r"megatron-bridge", "megatron-core", "2026-06-30", 1, "bf16", "te", True, remainder=True),
    Habit(r"automodel", "torchtitan", "2026-02-28", 3, "fp32", "unfused", compiled=True, cp_kind="allgather", nvidia_torch=True,
          said="NeMo Automodel: FSDP2 with Transformer Engine layers, their fused kernels counted as compiled ones"),
    Habit(r"nemo", "megatron-core", "2025-06-30", 1, "bf16", "te", True),
    # argparse defaults of 2021 and 2022: fp16 gradients in contiguous buffers reduced after the last backward, softmax fused
    # but scores materialised, dropout 0.1 (NVIDIA/Megatron-LM v2.5 to v3.0, megatron/arguments.py)
    Habit(r"megatron-lm \(2021\)", "megatron-core", "2021-04-30", 0, "fp16", "unfused", False, flash=False, sp=False, dropout=0.1,
          said="Megatron-LM of 2021: fp16 gradients reduced after the last backward, attention scores materialised"),
    Habit(r"megatron-lm \(2022\)", "megatron-core", "2022-05-31", 0, "fp16", "unfused", False, flash=False, dropout=0.1,
          said="Megatron-LM of 2022: fp16 gradients reduced after the last backward, attention scores materialised"),
    # bf16 over a pipeline is DeepSpeed's BF16_Optimizer, which sums gradients in fp32 (DeepSpeed pull request 1801)
    Habit(r"megatron-deepspeed", "deepspeed", "2022-03-31", 1, None, "unfused", False, flash=False, sp=False, dropout=0.1,
          recompute=("full",), bf16_gradient="fp32", said="Megatron-DeepSpeed of 2022: attention scores materialised, no overlap of the reduction"),
    Habit(r"megatron-lm \(flagperf\)", "megatron-core", "2024-06-30", 1, "fp32", "unfused", False),
    Habit(r"hai-llm", "hai-llm", "2024-12-31", 1),
    Habit(r"primus.*(titan|fsdp)", "torchtitan", "2025-06-30", 3, "fp32", "unfused", True, cp_kind="allgather"),
    Habit(r"megascale|primus", "megatron-core", "2024-12-31", 1, "fp32", "unfused", True),
    # "dense CP long-seq a2a" (docs/b200/b200_release_v1.2_summary.md); its TransformerEngine 2.11 is of January 2026
    Habit(r"megatron-lm 23e00ed", "megatron-core", "2026-01-31", 1, "fp32", "unfused", False, cp_kind="ulysses",
          said="SimuMax's runs: a split sequence is exchanged by all-to-all (its summary says so)"),
    Habit(r"megatron[- ](lm|core)|\bmcore\b", "megatron-core", "2025-06-30", 1, "fp32", "unfused", False),
    Habit(r"llm[- ]foundry|composer", "torchtitan", "2023-10-31", 3, "fp32", "te", True,
          said="llm-foundry: FSDP1 of PyTorch 2, fp32 shards; the reduction's dtype in fp32 where the mode does not say"),
    # recipes/configs/llama3_1/8B_full.yaml: dtype bf16 for weights and optimizer, enable_activation_checkpointing True
    Habit(r"torchtune", "torchtitan", "2025-01-31", 3, "bf16", "chunked", True, recompute=("full",), pure=True,
          said="torchtune: weights and optimizer in bf16, activations checkpointed (its recipes' defaults)"),
    # its configurations checkpoint selectively unless they say otherwise (torchtitan models/llama3/train_configs)
    Habit(r"torchtitan|torchao", "torchtitan", "2025-01-31", 3, "fp32", "unfused", True, cp_kind="allgather", recompute=("selective_ops",)),
    Habit(r"litgpt", "torchtitan", "2025-01-31", 3, "fp32", "unfused", True, cp_kind="allgather"),
    Habit(r"maxtext|\bjax\b|\bpax(ml)?\b|axlearn|levanter", "torchtitan", "2024-10-31", 3, "fp32", "unfused", True, compiled=True, in_place=True,
          said="MaxText: XLA's fusions counted as torch.compile's"),
    # huggingface/bench_cluster, bench_cluster/template/base_config.py of July 2024
    Habit(r"nanotron", "nanotron", "2024-07-15", 1, "fp32", "unfused", False, compiled=False, by_cost=True,
          said="nanotron: ZeRO 1, fp32 gradients, sequence parallel with tp, layers dealt out by cost (its benchmark's configuration)"),
    Habit(r"paddlenlp", "deepspeed", "2023-11-30", 2, "bf16", "unfused", False, said="PaddleNLP: sharding as DeepSpeed's ZeRO"),
    Habit(r"internevo", "deepspeed", "2024-03-31", 1, "bf16", "te", True, compiled=True,
          said="InternEvo: ZeRO 1 with overlap, its fused kernels counted as compiled ones"),
    Habit(r"colossal", "deepspeed", "2025-01-31", 2, "bf16", "unfused", True),
    Habit(r"easycontext", "deepspeed", "2024-04-30", 3, "bf16", "chunked", True),
    Habit(r"deepspeed zero-\d \+ liger", "deepspeed", "2026-03-31", 3, "bf16", "chunked", True),
    Habit(r"deepspeed", "deepspeed", "2022-07-31", 3, "bf16", "unfused", True),
    Habit(r"\bfsdp|hugging ?face|\bhf\b|accelerate|transformers|\btrl\b|axolotl|llama-?factory", "torchtitan", "2024-06-30", 3, "fp32", "unfused",
          True, compiled=False, said="FSDP of plain PyTorch, layers not compiled"),
)  # fmt: skip

# The names that HABITS knows, as people write them; Parlay's own names of frameworks are among them.
KNOWN = (
    "Megatron-LM, megatron-core, Megatron-Bridge, NeMo, NeMo Automodel, Megatron-DeepSpeed, MegaScale, Primus, torchtitan, torchao, torchtune, "
    "LitGPT, llm-foundry, MaxText, DeepSpeed, EasyContext, PaddleNLP, InternEvo, ColossalAI, nanotron, HAI-LLM, plain FSDP"
)

# Layers that a recipe keeps in bf16 beside narrower ones, by framework, model and precision: Megatron-Bridge's
# nemotron_3_super_bf16_with_nvfp4_mixed sets num_layers_at_end_in_bf16 = 14 (src/megatron/bridge/training/mixed_precision.py).
BF16_LAYERS = {("megatron-bridge", "nemotron-3-super-120b-a12b", "nvfp4"): 14}

# Megatron-Bridge's launcher turned the precision-aware optimizer on for every bf16 run (scripts/performance/utils/overrides.py,
# set_post_overrides) until its recipes became flat: pull request 2803, under review on 24 June 2026, drops that (issue 3836). What the
# recipe says holds since: off (recipes/qwen, nemotronh, llama: use_precision_aware_optimizer = False), but for these, which turn it on
# (recipes/moonlight, deepseek, nemotronh/nemotron_3_ultra). They ask for bf16 moments as well, which is left open here: with them
# Moonlight's six runs would hold 15 % less than they printed, and what else these hold is not known.
FLAT_RECIPES_SINCE = "2026-06-24"
PRECISION_AWARE = ("moonlight-16b-a3b", "deepseek-v3", "nemotron-3-ultra-550b-a55b")

# Transformer Engine's fused attention trains heads of 192 (queries, keys) and 128 (values) on Blackwell from cuDNN 9.11 on
# (common/fused_attn/fused_attn.cpp), which NVIDIA's containers have since 25.07, and FlashAttention 2 has no such heads: before, scores
# were materialised (TransformerEngine issue 2285: no other kernel is left with cuDNN 9.10).
LATENT_BLACKWELL_SINCE = "2025-07-01"

# PyTorch prefers cuDNN's attention on Hopper and Blackwell from 2.9 on (pull request 162073), where it was built with cuDNN 9.15 or later
# (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention): NVIDIA's containers are since the end of 2025,
# PyTorch's own wheels since 2.11 (parlay.estimate.traits.SDPA_TUNED_SINCE).
CUDNN_SDPA_SINCE = "2025-12-01"

# Rank and modules of LoRA by framework: Megatron-Bridge's and NeMo's performance recipes adapt linear_qkv alone (perf_recipes/llama;
# NeMo scripts/performance/llm/finetune_llama3_70b.py), of rank 16 in Bridge's llama3_70b_peft_config; NeMo Automodel's benchmarks
# "*_proj" of rank 16 (examples/llm_benchmark); torchtune's 8B_lora recipes queries, values, output and MLP of rank 8; Hugging Face
# PEFT elsewhere all linear layers of rank 8 (LoraConfig).
EVERY: tuple[LoraModule, ...] = ("qkv", "out", "up", "down")
LORA: tuple[tuple[str, int, tuple[LoraModule, ...]], ...] = (
    (r"automodel", 16, EVERY),
    (r"megatron-bridge|nemo", 16, ("qkv",)),
    (r"", 8, EVERY),
)
# Mean tokens of an example of SQuAD with its prompt, which NeMo's and Megatron-Bridge's fine-tuning recipes pack: some 120 words of
# context, 11 of question and 3 of answer (arXiv:1606.05250), 1.3 tokens a word and a template. A packed sequence of 4,096 tokens has
# a twentieth of a document's attention, so twice or half as many change the step by a hundredth.
SQUAD_TOKENS = 200

# The README revisions of NVIDIA/dgxc-benchmarking name their containers: nemo:24.09, 24.12, 25.04 and 25.07.
REVISIONS = {"143b90dd": "2024-09-30", "0b71cfda": "2024-12-31", "1f6d9f40": "2025-04-30", "8f5cbb37": "2025-07-31"}
# Words of a run's notes that tell its era: llm-foundry's benchmark script has PURE mixed precision and an image of PyTorch 1.13.1 as its
# defaults (scripts/train/benchmarking/submit_benchmarks.py @ 12a63191, its first release, of May 2023).
NOTED = ((r"llm[- ]foundry", r"\bmp mode pure\b", "2023-05-31"),)
LAST_DAY = {2: 28, 4: 30, 6: 30, 9: 30, 11: 30}


def habit_of(run: Run) -> Habit | None:
    """Return the habit of a run's framework, None for a framework that is not known."""
    low = run.framework.lower()
    return next((habit for habit in HABITS if re.search(habit.pattern, low)), None)


def keeps_remainder(habit: Habit, date: str, model: str) -> bool:
    """Return whether a bf16 run that does not tell its optimizer's formats keeps the 16-bit remainder of its main weights: whether
    the precision-aware optimizer is on; `date` is the era of the run, `model` the id of its model.

    Examples
    --------
    >>> bridge = HABITS[0]
    >>> [keeps_remainder(bridge, "2026-04-30", "qwen3-30b-a3b"), keeps_remainder(bridge, "2026-06-30", "qwen3-30b-a3b")]
    [True, False]
    """
    return habit.remainder and (date < FLAT_RECIPES_SINCE or model in PRECISION_AWARE)


def era_of(run: Run, habit: Habit) -> str:
    """Return the date of a run's software as an ISO date: a container's month, a named month, what its notes tell, or the habit's era.

    A container "NeMo container 26.04.01" is of April 2026; "(2024-12)" of December 2024.
    """
    full = re.search(r"\b(20\d\d-[01]\d-[0-3]\d)\b", run.version)
    if full:
        return full[1]
    month = re.search(r"\b(20\d\d)-([01]\d)\b", run.version)
    if month:
        return _end(int(month[1]), int(month[2]))
    container = re.search(r"(?:^|container |nemo[: ])(2[3-9])\.([01]\d)(?:\.\d+)?$", run.version.strip().lower())
    if container:
        return _end(2000 + int(container[1]), int(container[2]))
    words = run.framework.lower(), run.notes.lower()
    noted = (day for who, what, day in NOTED if re.search(who, words[0]) and re.search(what, words[1]))
    return next((day for commit, day in REVISIONS.items() if commit in run.citation), next(noted, habit.date))


def _end(year: int, month: int) -> str:
    month = min(max(month, 1), 12)
    return f"{year}-{month:02d}-{LAST_DAY.get(month, 31)}"
