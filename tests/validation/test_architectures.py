"""The model of a row: names as sources spell them, sizes as they print them, and what is refused with its reason."""

import contextlib
import itertools

import pytest

from parlay.estimate.counts import parameters
from parlay.models.load import list_models, load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LatentAttention, MoeMlp
from parlay.validation.architectures import UnknownArchitecture, architecture
from parlay.validation.own_models import ALIASES, OWN

# Catalog id -> spellings of sources
CATALOG = {
    "llama-3-8b": ["Llama3-8B", "LLAMA3_8B", "Meta-Llama-3-8B", "meta-llama/Meta-Llama-3.1-8B", "Llama3_1_8B", "Llama 3 8B 128K",
                   "DeepSeek-R1-Distill-Llama-8B", "llama31-8b", "LLaMA-3-8B (FP8)", "Llama3-8B-1M"],
    "llama-3-70b": ["Llama3.1-70B-Instruct", "Llama-3.1-Nemotron-70B", "LLAMA3_70B"],
    "llama-3.3-70b": ["Llama3.3 70B", "DeepSeek-R1-Distill-Llama-70B"],
    "llama-3.1-405b": ["Llama3-405B", "LLAMA3.1_405B", "Llama31_405B"],
    "llama-3.2-1b": ["llama32_1b", "llama3_2_1b", "Llama 3.2 1B"],
    "llama-2-7b": ["LLaMA-7B", "Llama-like 7B", "Vicuna-7B", "linly-ai/chinese-llama-2-7b"],
    "llama-2-70b": ["llama2-70b-lora", "Llama-2-70B LoRA"],
    "llama-1-33b": ["LLaMA-30B", "LLaMA-33B"],
    "llama-1-65b": ["LLaMA-65B"],
    "llama-4-scout": ["Llama4-17Bx16E (Scout)", "llama4-17b-16e", "Llama 4 Scout", "Llama4_E16"],
    "llama-4-maverick": ["Llama4-17Bx128E", "Llama4 Maverick (400B)", "LLAMA4_E128"],
    "deepseek-v3": ["DeepSeek_V3", "DSV3", "DeepSeek-R1", "DeepSeek-V3.1", "DeepSeek-V3-0324", "DeepSeek-V3 671B", "DeepSeek V3 37B active"],
    "deepseek-v2": ["DeepSeek-V2", "DeepSeek-V3 236B"],
    "deepseek-v2-lite": ["deepseekv2lite", "DeepSeek-V2Lite", "DeepSeek-V3 16B"],
    "deepseek-v3.2": ["DeepSeek-V3.2-Exp"],
    "deepseek-moe-16b": ["DeepSeekMoE-16B", "deepseek-moe-16b"],
    "kimi-k2": ["KimiK2", "Kimi_K2", "Kimi-K2-Thinking", "Kimi K2 (1T)"],
    "qwen2.5-7b": ["Qwen2.5-Coder-7B", "DeepSeek-R1-Distill-Qwen-7B", "qwen25_7b", "Qwen2.5 7B 2-node"],
    "qwen3-30b-a3b": ["Qwen3 MoE 30B", "Qwen3 MoE (30B-A3B)", "Qwen3-Coder-30B-A3B", "Qwen3_VL_30B_A3B"],
    "qwen3-235b-a22b": ["Qwen3-235B", "Qwen3-VL-235B-A22B"],
    "qwen3.5-397b-a17b": ["Qwen3.5 MoE 397B", "Qwen3_5_397B"],
    "qwen3-next-80b-a3b": ["Qwen3-Next"],
    "nemotron-4-15b": ["Nemotron4-15B"],
    "nemotron-4-340b": ["Nemotron4_340B", "Nemotron-4 340B", "Nemotron-340B"],
    "nemotron-h-8b": ["nemotronh_8b", "Nemotron-H 8B"],
    "nemotron-3-nano-30b-a3b": ["Nemotron3_Nano", "Nemotron V3 Nano 30B (26.02)"],
    "nemotron-3-super-120b-a12b": ["Nemotron 3 Super (120B-A12B)"],
    "nemotron-nano-12b-v2": ["NVIDIA-Nemotron-Nano-12B-v2"],
    "llama-3.3-nemotron-super-49b": ["Nemotron-Super-49B"],
    "mixtral-8x7b": ["Mixtral8x7B", "mistralai/Mixtral-8x7B-v0.1"],
    "command-r": ["Command-R"],
    "command-r-plus": ["Command R+"],
    "dbrx": ["DBRX", "databricks/dbrx-instruct"],
    "dots.llm1": ["dots.llm1"],
    "gpt2-medium": ["GPT-2 345M", "GPT-2 medium"],
    "gpt2-xl": ["GPT-2 1.5B"],
    "gpt3-175b": ["GPT-3", "GPT-175B", "GPT3_175B"],
    "gpt-530b": ["MT-NLG", "MT-NLG 530B", "Megatron-Turing NLG 530B"],
    "bloom-7b1": ["bigscience/bloomz-7b1-mt", "BLOOM-7.1B"],
    "chatglm3-6b": ["THUDM/chatglm2-6b", "ChatGLM3-6B"],
    "moonlight-16b-a3b": ["Moonlight", "Moonlight 16B"],
    "grok-1": ["Grok1 314B"],
    "glm-4.5-air": ["GLM4.5-Air"],
}  # fmt: skip

# Own models: a name of a source, and the parameters that its size says or its paper prints
OWN_TOTALS = {
    "GPT3-126M": 126e6, "GPT-3 1.3B": 1.316e9, "GPT3-2.7B": 2.652e9, "GPT-3 5B": 5.05e9, "gpt3_6.7b": 6.66e9, "GPT-3 13B": 12.85e9,
    "GPT3-20B": 20.3e9, "GPT3-40B": 39.1e9, "GPT-1.7B": 1.66e9, "GPT-3.6B": 3.57e9, "GPT-7.5B": 7.47e9, "GPT 18.4B": 18.4e9,
    "GPT-39.1B": 39.1e9, "GPT-76.1B": 76.1e9, "GPT-145.6B": 145.6e9, "GPT-310.1B": 310.1e9, "GPT-529.6B": 529.6e9,
    "GPT-1008B": 1008e9, "GPT-22B": 22e9, "GPT-1T": 1008e9, "GPT-162.2B": 162.2e9, "Megatron-LM GPT-2 8.3B": 8.3e9, "T-NLG 17B": 17.2e9,
    "MPT-125m": 125.3e6, "MPT-1b": 1.316e9, "MPT-13b": 12.854e9, "mosaicml/mpt-30b": 29.98e9, "MPT-70b": 64.86e9,
    "NEMOTRONH_56B": 56.3e9, "NemotronH-47B": 46.8e9, "Nemotron3-8B": 8.54e9, "Nemotron4-22B": 21.3e9, "Nemotron3-22B": 21.3e9,
    "Nemotron V3.5 Lightning 30B": 31.6e9, "Mixtral 8x3B": 18.3e9, "Baichuan-13B": 13.26e9, "DeepSeek-R1-Distill-Qwen-1.5B": 1.777e9,
}  # fmt: skip

# A name that contradicts the model it starts with -> what the message says
REFUSED = {
    "GPT3-7B": "says 7B, but GPT-3 175B has 175B",
    "DeepSeek-V3-Lite": "says 'lite', so it is not DeepSeek-V3",
    "Nemotron 3 Nano 4B": "says 4B, but Nemotron 3 Nano 30B-A3B has 31.6B",
    "Nemotron-3-Super-49B": "says 49B",
    "Phi-4-multimodal": "says 'multimodal'",
    "Moonlight-3B": "says 3B",
    "Qwen3-30B-A9B": "says active 9B",
    "Qwen3-8B-VL": "says 'vl'",
    "Llama3-8B-MoE": "says 'moe'",
    "Llama3-8B / Llama3-70B": "says 70B",
    "Llama3-8B/70B": "says 70B",
    "Grok-1.5": "neither in the catalog nor printed",
    "GPT (scripts are 1.3B and 30B)": "neither in the catalog nor printed",
    "Llama3-8B (1/8 layers)": "is '1/8', not a size",
    "DeepSeek-V3 20B active": "says active 20B, but DeepSeek-V3 has 37.6B",
    "Llama3-8B (0 layers)": "layers of 'Llama3-8B (0 layers)' is 0",
}

DEEPSEEK = {
    "hidden": 7168, "layers": 4, "heads": 128, "ffn": 18432, "expert_ffn": 2048, "shared_ffn": 2048, "experts": 256, "topk": 8,
    "vocab": 129280, "dense_layers": 1, "mla": {"q_lora": 1536, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v": 128},
}  # fmt: skip
EXPERTS = {"hidden": 2048, "layers": 24, "heads": 16, "kv_heads": 4, "expert_ffn": 1024, "experts": 64, "topk": 4, "vocab": 32000}
DENSE = {"hidden": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "ffn": 12288, "vocab": 151936}


def built(name, **arch):
    return architecture(name, arch)[0]


def kinds(model, part):
    return [one for kind in model.kinds.values() for one in (kind.mixer, kind.mlp) if isinstance(one, part)]


def total(model):
    return parameters(model).total


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, names in CATALOG.items() for name in names])
def test_a_name_of_the_catalog(model, name):
    assert built(name).id == model


@pytest.mark.parametrize("name", OWN_TOTALS)
def test_a_model_of_the_sources_own(name):
    assert total(built(name)) == pytest.approx(OWN_TOTALS[name], rel=0.01)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_contradicts_itself(name):
    with pytest.raises(UnknownArchitecture) as caught:
        built(name)
    assert REFUSED[name] in caught.value.message


def test_every_model_of_the_catalog_is_found_by_its_names():
    """Another entry is right only where our tables say that the sizes are the same."""
    wrong = []
    for summary in list_models():
        for name in (*summary.names, summary.id.upper().replace("-", "_")):
            found = built(name)
            if found.id != summary.id and total(found) != pytest.approx(total(load_model(summary.id)), rel=0.001):
                wrong.append((name, found.id))
    assert not wrong


def test_every_other_name_means_something():
    for name, entry in ALIASES.items():
        assert total(built(name)) == total(OWN[entry]() if entry in OWN else load_model(entry))


@pytest.mark.parametrize(
    ("name", "layers"),
    [("DeepSeek-V3 4L", 4), ("DeepSeek-V3 (1 layer)", 1), ("DeepSeek-V3, 4 layers", 4), ("deepseek_v3_12L", 12), ("Llama3-8B (4 of 32 layers)", 4), ("Llama3-8B (64 layers)", 64)],
)  # fmt: skip
def test_layers_that_a_name_tells(name, layers):
    assert built(name).layer_count == layers


# Printed sizes


def test_all_layers_of_a_proxy_may_be_dense():
    model = built("deepseekv3 (3 layers)", **DEEPSEEK | {"layers": 3, "dense_layers": 3})
    assert (model.layer_count, kinds(model, MoeMlp)) == (3, [])
    assert built("deepseekv3", **DEEPSEEK | {"layers": 3, "dense_layers": 9}).layer_count == 3


@pytest.mark.parametrize(
    "missing", [("vocab",), ("expert_ffn", "topk"), ("experts", "shared_ffn", "ffn", "heads", "hidden"), ("dense_layers",)]
)
def test_what_latent_attention_lacks_is_of_the_known_model(missing):
    cells = {key: value for key, value in DEEPSEEK.items() if key not in missing}
    expected = DEEPSEEK if "dense_layers" not in missing else DEEPSEEK | {"dense_layers": 3}
    assert total(built("deepseekv3 (4 layers)", **cells)) == total(built("deepseekv3 (4 layers)", **expected))


def test_latent_attention_that_is_only_named():
    whole = total(built("deepseekv3 (4 layers)", **DEEPSEEK))
    assert total(built("deepseekv3 (4 layers)", **DEEPSEEK | {"mla": True})) == whole
    assert total(built("deepseekv3 (4 layers)", **DEEPSEEK | {"mla": {"kv_lora": 512}})) == whole
    (mixer, *_) = kinds(built("deepseekv3", **DEEPSEEK | {"mla": DEEPSEEK["mla"] | {"q_lora": 0}}), LatentAttention)
    assert mixer.q_rank is None


def test_a_hybrid_lacks_what_is_known():
    assert total(built("Nemotron-H-56B", mamba_layers=54)) == total(built("Nemotron-H-56B"))
    assert total(built("nemotronh_8b", mamba_layers=24, hidden=4096)) == total(load_model("nemotron-h-8b"))
    assert built("Nemotron-H-56B", mamba_layers=27, mlp_layers=27, attn_layers=5).layer_count == 59


def test_sizes_with_remarks():
    model = built("GPT-9B", hidden="5120 (assumed)", layers="40 (paper)", heads="40", kv_heads="8 in model; 16 in README",
                  ffn="4h", vocab="50,257")  # fmt: skip
    (mlp,), (mixer,) = kinds(model, DenseMlp), kinds(model, GroupedAttention)
    assert (model.hidden, model.layer_count, mixer.heads, mixer.kv_heads, mlp.width, model.vocab) == (
        5120,
        40,
        40,
        8,
        20480,
        50257,
    )
    assert built("Llama3-8B", hidden=None, layers="", heads="n/a", ffn="3.5 x hidden", vocab="128,256").id == "llama-3-8b"


def test_keys_as_others_spell_them():
    ours = built("Somebody-9B", **DENSE)
    theirs = {"hidden_size": 4096, "num_layers": 36, "num_attention_heads": 32, "num_query_groups": 8, "ffn_hidden_size": 12288}
    assert total(built("Somebody-9B", **theirs, vocab_size=151936)) == total(ours)


@pytest.mark.parametrize(
    "family", ["Qwen9", "Mistral", "Yi", "InternLM2", "CodeLlama", "Aquila2", "Baichuan2", "OLMo", "SmolLM", "Gemma"]
)
def test_families_in_llamas_style_are_gated(family):
    model = built(f"{family}-99B", **DENSE | {"ffn": 16384})
    assert kinds(model, DenseMlp)[0].gated
    assert not model.tied_embeddings
    assert not kinds(built(f"{family}-99B", **DENSE, gated_ffn=False), DenseMlp)[0].gated


@pytest.mark.parametrize(("ffn", "gated"), [(16384, False), (11008, True)])
def test_a_family_that_is_not_known_is_gated_where_its_mlp_is_narrow(ffn, gated):
    assert kinds(built("Somebody-7B", **DENSE | {"ffn": ffn}), DenseMlp)[0].gated is gated


def test_printed_sizes_are_laid_over_the_known_model():
    same = built("Qwen3-8B", **DENSE)
    assert same == load_model("qwen3-8b")
    model = built("Qwen3-8B", **DENSE | {"layers": 12, "ffn": 6144}, tied_embeddings="true", head_dim=64)
    (mixer,), (mlp,) = kinds(model, GroupedAttention), kinds(model, DenseMlp)
    assert (mixer.head_dim, mixer.qk_norm, mlp.width, mlp.gated, model.tied_embeddings, model.layer_count) == (
        64,
        "head",
        6144,
        True,
        True,
        12,
    )
    assert total(built("Nemotron4-22B", hidden=6144, layers=40, vocab=256000)) == total(built("Nemotron4-22B"))
    assert built("Nemotron4-340B", hidden=18432, layers=96, vocab=256000).id == "nemotron-4-340b"


def test_experts_without_latent_attention():
    model = built("Somebody's MoE", **EXPERTS)
    by_hand = 24 * (2048 * 128 * (16 + 4 + 4 + 16) + 64 * 3 * 2048 * 1024 + 64 * 2048 + 2 * 2048) + 2 * 32000 * 2048 + 2048
    assert total(model) == by_hand
    shared = built("Somebody's MoE", **EXPERTS, shared_ffn=2048, dense_layers=1, ffn=8192)
    assert (kinds(shared, MoeMlp)[0].shared_width, kinds(shared, DenseMlp)[0].width, shared.layer_count) == (2048, 8192, 24)
    assert (
        total(built("Mixtral 8x7B", **DENSE | {"layers": 32, "ffn": 14336, "vocab": 32000, "experts": 8, "topk": 2}))
        == 46702792704
    )


def test_printed_experts_change_a_known_model():
    (experts,) = set(kinds(built("Mixtral-8x7B", experts=4, topk=1), MoeMlp))
    assert (experts.experts, experts.top_k, experts.width) == (4, 1, 14336)
    model = built("DeepSeek-V3", layers=8, dense_layers=2, experts=64, topk=4)
    assert [isinstance(model.kinds[name].mlp, DenseMlp) for name in model.layer_names()] == [True] * 2 + [False] * 6
    assert kinds(model, MoeMlp)[0].experts == 64
    qwen = {"hidden": 2048, "layers": 48, "heads": 32, "kv_heads": 4, "ffn": 6144, "experts": 128, "topk": 8}
    assert built("Qwen3-30B-A3B", **qwen).id == "qwen3-30b-a3b"


@pytest.mark.parametrize(
    ("name", "arch", "says"),
    [
        ("GPT-9B", {"hidden": 4096, "layers": 32}, "no number of heads for 'GPT-9B'"),
        ("GPT-9B", {"hidden": 4096, "layers": 32, "heads": 33}, "33 heads do not divide the hidden size 4096"),
        ("GPT-9B", {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 7}, "heads (32) must be a multiple of kv_heads (7)"),
        ("Llama3-8B", {"kv_heads": 7}, "must be a multiple of kv_heads (7)"),
        ("Llama3-8B", {"hidden": 0}, "hidden of 'Llama3-8B' is 0"),
        ("Llama3-8B", {"layers": "all"}, "layers of 'Llama3-8B' is 'all', not a size"),
        ("Llama3-8B", {"layers": 10**9}, "more than any model has"),
        ("Llama3-8B", {"hidden": "4h"}, "hidden of 'Llama3-8B' is '4h', not a size"),
        ("Llama3-8B", {"hidden": True}, "hidden of 'Llama3-8B' is 'True', not a size"),
        ("Llama3-8B", {"gated_ffn": "perhaps"}, "neither true nor false"),
        ("Mixtral-8x7B", {"topk": 9}, "top_k (9) cannot exceed experts (8)"),
        ("Somebody", DEEPSEEK | {"vocab": None}, "no vocabulary for 'Somebody'"),
        ("Somebody", DEEPSEEK | {"mla": True}, "no kv_lora for 'Somebody'"),
        ("Somebody", {"mamba_layers": 4}, "no mlp_layers for 'Somebody'"),
        ("Somebody", EXPERTS | {"topk": None}, "no topk"),
        ("MPT-7b", {"num_params": 10**12, "pos": "learned"}, "num_params of 'MPT-7b' is 1000000000000, but its sizes make 66"),
    ],
)  # fmt: skip
def test_a_cell_that_does_not_fit_is_named(name, arch, says):
    with pytest.raises(UnknownArchitecture) as caught:
        architecture(name, arch)
    assert says in caught.value.message


ODD = (
    0,
    -1,
    7,
    0.5,
    float("nan"),
    float("inf"),
    2**70,
    True,
    "",
    "x",
    "7 (?)",
    "9" * 5000,
    None,
    [],
    {},
    {"kv_lora": "x"},
    ["4h"],
)


@pytest.mark.parametrize(
    "base", [("Llama3-8B", DENSE), ("deepseekv3", DEEPSEEK), ("x", EXPERTS), ("Nemotron-H-56B", {"mamba_layers": 54})]
)
def test_nothing_odd_breaks(base):
    name, arch = base
    cells = {*DENSE, *DEEPSEEK, *EXPERTS, "mamba_layers", "gated_ffn", "tied_embeddings", "head_dim", "num_params", "pos"}
    for key, value in itertools.product(sorted(cells), ODD):
        with contextlib.suppress(UnknownArchitecture):
            assert total(built(name, **arch | {key: value})) > 0
