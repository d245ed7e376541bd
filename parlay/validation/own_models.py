"""Models that only the sources of runs train, from their published shapes, and further names of models of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from parlay.models.load import load_model
from parlay.models.spec import LayerKind, ModelSpec
from parlay.models.spec import Run as Layers
from parlay.validation.shapes import dense, experts, hybrid
from parlay.validation.sizes import Sizes

# Size -> hidden, layers, heads. GPT-3's of 2020 (arXiv:2005.14165, Table 2.1; heads of 1.3B and the hidden size of 13B as NeMo
# trains them), with NeMo's 126M, 5B, 20B and 40B (NVIDIA/NeMo nemo/collections/llm/gpt/model/base.py).
GPT3 = {
    "125m": (768, 12, 12), "126m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 16), "1.3b": (2048, 24, 16),
    "2.7b": (2560, 32, 32), "5b": (4096, 24, 32), "6.7b": (4096, 32, 32), "13b": (5120, 40, 40), "20b": (6144, 44, 48),
    "40b": (8192, 48, 64),
}  # fmt: skip
# Narayanan et al., arXiv:2104.04473, Table 1
NARAYANAN = {
    "1.7b": (2304, 24, 24), "3.6b": (3072, 30, 32), "7.5b": (4096, 36, 32), "18.4b": (6144, 40, 48), "39.1b": (8192, 48, 64),
    "76.1b": (10240, 60, 80), "145.6b": (12288, 80, 96), "310.1b": (16384, 96, 128), "529.6b": (20480, 105, 128),
    "1008b": (25600, 128, 160),
}  # fmt: skip
# The same paper's models of 5.9B and 162.2B (sections 5.4.1 and 5.4.3); Shoeybi et al., arXiv:1909.08053, Table 1;
# bigscience-workshop/bigscience train/tr8-104B-wide
MEGATRON = {
    "5.9b": (3840, 32, 32), "162.2b": (20480, 32, 128), "1.2b": (1536, 40, 16), "2.5b": (1920, 54, 20), "4.2b": (2304, 64, 24),
    "8.3b": (3072, 72, 32), "104b": (11600, 64, 80),
}  # fmt: skip
# mosaicml/llm-foundry scripts/train/benchmarking/README.md and its yamls: learned positions, tied, vocabulary 50,368
MPT = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip
# NVIDIA/NeMo nemo/collections/llm/gpt/model/nemotron.py
NEMOTRON_3 = {"8b": (4096, 32, 32), "22b": (6144, 40, 48)}

# A Mamba block, an MLP and attention as NeMo writes them
NEMOTRON_H_56B = "M-M-M-M*-" + 9 * "M-M-M-M-M*-" + "M-M-M-M-M-"
NEMOTRON_H_47B = "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"

# Other names -> catalog id or name of an own model. Llama 1 and 2, and 3 and 3.1, have the same sizes.
ALIASES = {
    "llama-7b": "llama-2-7b", "llama-13b": "llama-2-13b", "llama-70b": "llama-2-70b",
    "llama-3.1-8b": "llama-3-8b", "llama-3.1-70b": "llama-3-70b", "llama-3.1-nemotron-70b": "llama-3-70b",
    "llama-4-17bx16e": "llama-4-scout", "llama-4-17b-16e": "llama-4-scout", "llama-4-109b": "llama-4-scout",
    "llama-4-17bx128e": "llama-4-maverick", "llama-4-17b-128e": "llama-4-maverick", "llama-4-400b": "llama-4-maverick",
    "deepseek-v3.1": "deepseek-v3", "deepseek-671b": "deepseek-v3", "deepseek-v2.5": "deepseek-v2", "deepseek-236b": "deepseek-v2",
    # torchtitan's configs of this name: torchtitan/models/deepseek_v3/__init__.py
    "deepseek-v3-16b": "deepseek-v2-lite", "deepseek-v3-236b": "deepseek-v2",
    "deepseek-r1-distill-llama-8b": "llama-3-8b", "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b", "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "gpt-175b": "gpt3-175b", "mt-nlg-530b": "gpt-530b", "turing-nlg-530b": "gpt-530b", "turing-530b": "gpt-530b",
    "gpt3-22b": "gpt-22b", "gpt3-530b": "gpt-530b", "gpt3-1t": "gpt-1t",
    "gpt-345m": "gpt2-medium", "gpt-j": "gpt-j-6b", "gpt2-117m": "gpt2", "gpt2-124m": "gpt2", "gpt2-1.5b": "gpt2-xl",
    "nemotron-340b": "nemotron-4-340b", "nemotron-15b": "nemotron-4-15b", "nemotron-4b": "minitron-4b",
    "nemotron-3-4b": "minitron-4b", "nemotron-4-22b": "nemotron-3-22b",
    "nemotron-3-nano": "nemotron-3-nano-30b-a3b", "nemotron-3-super": "nemotron-3-super-120b-a12b",
    "nemotron-3-ultra": "nemotron-3-ultra-550b-a55b",
    "qwen3-coder-30b": "qwen3-30b-a3b", "qwen3-vl-30b": "qwen3-30b-a3b", "qwen3-vl-235b": "qwen3-235b-a22b",
    "qwen3-next": "qwen3-next-80b-a3b", "qwen3-coder-480b": "qwen3-coder-480b-a35b", "mistral-nemo": "mistral-nemo-12b",
    "glm-4.6": "glm-4.5", "glm-4.7": "glm-4.5", "mistral-small-3.2": "mistral-small-3.1",
    "llama-3.1-nemotron-nano-8b": "llama-3-8b", "minimax-m2.1": "minimax-m2", "bloom-7.1b": "bloom-7b1", "bloom-7b": "bloom-7b1",
    "vicuna-7b": "llama-2-7b", "vicuna-13b": "llama-2-13b", "alpaca-7b": "llama-2-7b", "command-r-35b": "command-r",
    "llama-4-e16": "llama-4-scout", "llama-4-16e": "llama-4-scout",
    "llama-4-e128": "llama-4-maverick", "llama-4-128e": "llama-4-maverick",
    "olmo-2-1124-7b": "olmo-2-7b", "olmo-2-1124-13b": "olmo-2-13b", "olmo-2-0325-32b": "olmo-2-32b",
    "smollm-135m": "smollm2-135m", "tinyllama": "tinyllama-1.1b", "dots1": "dots.llm1", "kimi-linear": "kimi-linear-48b-a3b",
    "llama-2-34b": "codellama-34b", "gpt3-xl": "gpt3-1.3b", "nemotron-nano-9b": "nemotron-nano-9b-v2",
    "nemotron-nano-12b": "nemotron-nano-12b-v2",
    "nanotron-llama-1b": "llama-1b-nanotron", "falcon-2-11b": "falcon-11b",
}  # fmt: skip


def sized(name: str, shape: tuple[int, int, int], **cells: Any) -> ModelSpec:
    """Return a dense decoder of that hidden size, layers and heads in the style of its name, MLP 4 x hidden."""
    hidden, layers, heads = shape
    return dense(Sizes.of(name, {"hidden": hidden, "layers": layers, "heads": heads, "ffn": 4 * hidden, **cells}))[0]


def mpt(name: str, shape: tuple[int, int, int]) -> ModelSpec:
    """Return an MPT of llm-foundry's benchmarks, with positions for its usual 2,048 tokens."""
    return sized(name, shape, vocab=50368).model_copy(update={"position_embeddings": 2048})


def baichuan_13b(name: str, vocab: int) -> ModelSpec:
    """Return Baichuan-13B or Baichuan2-13B (baichuan-inc/Baichuan-13B-Base and Baichuan2-13B-Base config.json)."""
    return dense(Sizes.of(name, {"hidden": 5120, "layers": 40, "heads": 40, "ffn": 13696, "vocab": vocab}))[0]


def nemotron_h(name: str, width: int, pattern: str) -> ModelSpec:
    """Return Nemotron-H 47B or 56B (arXiv:2504.03624, Table 1; layer patterns of NVIDIA/NeMo nemo/collections/llm/gpt/model/ssm.py)."""
    parts = {"M": "mamba", "-": "mlp", "*": "attention"}
    arch = {
        "hidden": 8192, "ffn": width, "mamba_layers": pattern.count("M"), "mlp_layers": pattern.count("-"),
        "attn_layers": pattern.count("*"), "heads": 64, "kv_heads": 8, "vocab": 131072,
    }  # fmt: skip
    layers = tuple(Layers(kinds=(parts[letter],), count=1) for letter in pattern)
    return hybrid(Sizes.of(name, arch), None)[0].model_copy(update={"layers": layers})


def nemotron_3_5_lightning() -> ModelSpec:
    """Return Nemotron 3.5 Lightning: Nemotron 3 Nano's shape with multi-token prediction.

    NVIDIA/Megatron-LM d98e8a64, tests/functional_tests/test_cases/hybrid/nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200.
    """
    nano = load_model("nemotron-3-nano-30b-a3b")
    both = LayerKind(mixer=nano.kinds["attention"].mixer, mlp=nano.kinds["experts"].mlp)
    return nano.model_copy(update={"id": "nemotron-3.5-lightning", "kinds": {**nano.kinds, "mtp": both}, "mtp_kind": "mtp"})


def nanotron_llama_1b() -> ModelSpec:
    """Return the 1B Llama of nanotron's benchmarks: HuggingFaceFW/ablation-model-fineweb-v1 config.json."""
    arch = {
        "hidden": 2048, "layers": 24, "heads": 32, "kv_heads": 32, "ffn": 4096, "vocab": 50272, "tied_embeddings": True,
    }  # fmt: skip
    return dense(Sizes.of("llama-1B", arch))[0]


def mixtral_8x3b() -> ModelSpec:
    """Return Mixtral 8x3B (NVIDIA/NeMo nemo/collections/llm/gpt/model/mixtral.py; its vocabulary is Mixtral 8x7B's)."""
    arch = {
        "hidden": 2560, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 8960, "experts": 8, "topk": 2, "vocab": 32000,
    }  # fmt: skip
    return experts(Sizes.of("Mixtral-8x3B", arch), None)


def distilled_qwen_1_5b() -> ModelSpec:
    """Return DeepSeek-R1-Distill-Qwen-1.5B: Qwen2.5-1.5B with a head of its own (its config.json: tie_word_embeddings false)."""
    return load_model("qwen2.5-1.5b").model_copy(update={"id": "deepseek-r1-distill-qwen-1.5b", "tied_embeddings": False})


def nemotron_3(name: str, shape: tuple[int, int, int]) -> ModelSpec:
    """Return a Nemotron-3 dense size of 2024."""
    return sized(name, shape, vocab=256000)


def _own() -> Iterator[tuple[str, Callable[[], ModelSpec]]]:
    for size, shape in GPT3.items():
        for name in (f"gpt3-{size}", f"gpt-{size}"):
            yield name, partial(sized, f"GPT3-{size.upper()}", shape, vocab=50257)
    for size, shape in (NARAYANAN | MEGATRON).items():
        for name in (f"gpt3-{size}", f"gpt2-{size}", f"gpt-{size}"):
            yield name, partial(sized, f"GPT-{size.upper()}", shape, vocab=51200)
    for size, shape in MPT.items():
        yield f"mpt-{size}", partial(mpt, f"MPT-{size}", shape)
    for size, shape in NEMOTRON_3.items():
        for name in (f"nemotron-3-{size}", f"nemotron-{size}"):
            yield name, partial(nemotron_3, f"Nemotron-{size.upper()}", shape)


OWN: dict[str, Callable[[], ModelSpec]] = {
    **dict(_own()),
    "turing-nlg-17b": partial(sized, "Turing-NLG-17B", (4256, 78, 28), vocab=50257),  # Microsoft, 13 February 2020
    "t-nlg-17b": partial(sized, "Turing-NLG-17B", (4256, 78, 28), vocab=50257),
    "nemotron-h-56b": partial(nemotron_h, "Nemotron-H-56B", 32768, NEMOTRON_H_56B),
    "nemotron-h-47b": partial(nemotron_h, "Nemotron-H-47B", 30720, NEMOTRON_H_47B),
    "nemotron-3.5-lightning": nemotron_3_5_lightning,
    "llama-1b-nanotron": nanotron_llama_1b,
    "mixtral-8x3b": mixtral_8x3b,
    "deepseek-r1-distill-qwen-1.5b": distilled_qwen_1_5b,
    "baichuan-13b": partial(baichuan_13b, "Baichuan-13B", 64000),
    "baichuan2-13b": partial(baichuan_13b, "Baichuan2-13B", 125696),
}
