"""Counts of whole models: published totals, printed FLOPs and K/V caches, and identities over made-up shapes."""

import dataclasses
import timeit
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UnknownNameError
from parlay.estimate import counts
from parlay.estimate.counts import CONVENTIONS, flops_per_token, kv_bytes, kv_bytes_per_token, parameters
from parlay.layouts.vocabulary import Convention
from parlay.models.load import list_models, load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LatentAttention, LayerKind, ModelSpec, MoeMlp, Run

GIB, MIB = 2**30, 2**20
MODELS = [summary.id for summary in list_models()]


def cut(name: str, layers: int, **mixer: int) -> ModelSpec:
    """Return a one-kind model with fewer layers, and other attention sizes where given."""
    model = load_model(name)
    (kind,) = model.kinds
    old = model.kinds[kind]
    kinds = {kind: old.model_copy(update={"mixer": old.mixer.model_copy(update=mixer)})}
    return model.model_copy(update={"layers": (Run(kinds=(kind,), count=layers),), "kinds": kinds})


# --- parameters -------------------------------------------------------------------------------------------------------

# What each implementation holds, to the last parameter: counted with transformers 5.24 on the meta device unless said.
EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,  # InternLM/lmdeploy#2761: heads of 128 where hidden/heads is 160
    "mixtral-8x7b": 46_702_792_704,  # huggingface/transformers#27945: neither 56 B nor 84 B
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,  # its unused dense width adds nothing
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "deepseek-v4-flash": 284_332_230_231,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,  # without 58 x 256 score corrections: a buffer in transformers, see the catalog file
    "kimi-k2": 1_026_408_209_408,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-27b": 27_432_406_640,
    "gpt3-175b": 174_604_259_328,  # by hand from GPT-2's class: 96 (12 h^2 + 13 h) + (50,257 + 2,048) h + 2 h
    "bloom-176b": 176_247_271_424,
    "nemotron-4-340b": 341_029_195_776,  # a gate that is not there would make it 471,488,827,392
    "grok-1": 315_684_820_992,  # by hand from xai-org/grok-1
    "glm-4.5": 352_797_814_784,
    "phi-4": 14_659_507_200,
    "olmo-2-13b": 13_716_198_400,
    "gpt2-xl": 1_557_611_200,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "falcon-7b": 6_921_720_704,  # tied by the class; the hub counts the stored copy too: 7,217,189,760
    "falcon-40b": 41_303_293_952,
    "dbrx": 131_596_523_520,
    "llama-4-scout": 108_641_793_536,
    "jamba-v0.1": 51_570_323_328,
    "command-r": 34_980_831_232,
    "mamba-2.8b": 2_768_345_600,
}
ACTIVE = {  # with and without the input embedding; None where head and embedding are one table
    "mixtral-8x7b": (12_879_925_248, 12_748_853_248),
    "deepseek-v2-lite": (2_661_150_208, 2_451_435_008),  # deepseek-ai/DeepSeek-V2#73: "2.4B" leaves the embedding out
    "deepseek-v2": (21_375_800_320, 20_851_512_320),
    "deepseek-v3": (37_552_282_624, 36_625_603_584),  # deepseek-ai/DeepSeek-V3#231
    "kimi-k2": (32_861_477_888, None),
    "gpt-oss-20b": (4_187_440_704, 3_608_307_264),  # model card: 3.61B
    "gpt-oss-120b": (5_711_982_912, 5_132_849_472),  # model card: 5.13B
    "qwen3-coder-480b-a35b": (35_474_765_312, None),
    "qwen3-next-80b-a3b": (3_874_929_408, None),
    "glm-4.5": (33_632_251_904, None),
    "dbrx": (36_469_708_800, None),
    "grok-1": (83_756_587_008, None),
    "nemotron-3-nano-30b-a3b": (3_580_073_408, 3_227_751_872),  # model card: 3.6B, 3.2B without embeddings
    "qwen3-30b-a3b": (3_353_032_704, 3_041_867_776),
    "llama-4-scout": (18_044_827_136, None),
}


@pytest.mark.parametrize("name", EXACT)
def test_total_is_exact(name):
    assert parameters(load_model(name)).total == EXACT[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_is_exact(name):
    count = parameters(load_model(name))
    active, bare = ACTIVE[name]
    assert count.active == active
    assert bare is None or count.active_without_embedding == bare


@pytest.mark.parametrize("name", MODELS)
def test_the_catalog_agrees_with_what_it_says_is_published(name):
    model = load_model(name)
    count = parameters(model)
    assert model.published.total in (None, count.total)
    assert model.published.active in (None, count.active)
    assert model.source
    assert model.published.note or model.published.source


# The size a publisher prints, in its own digits.
PRINTED = [
    ("gpt-22b", 22.0e9, 0.5e9),  # arXiv:2205.05198, Table 3
    ("gpt-175b", 175.0e9, 0.5e9),
    ("gpt-530b", 530.0e9, 0.5e9),
    ("gpt-1t", 1008.0e9, 0.5e9),  # arXiv:2104.04473, Table 1 prints the same shape as 1008.0
    ("nemotron-4-15b", 15.7e9, 0.1e9),  # arXiv:2402.16819, Table 1: 3.2B of embeddings and 12.5B
    ("kimi-k2", 1.03e12, 0.005e12),
]


@pytest.mark.parametrize(("name", "printed", "slack"), PRINTED)
def test_total_as_printed(name, printed, slack):
    assert parameters(load_model(name)).total == pytest.approx(printed, abs=slack)


def test_deepseek_v3_with_its_prediction_module():
    """README of deepseek-ai/DeepSeek-V3: 671 B and one module of 11.5 B of its own, 14 B with shared tables; 685 B stored."""
    model = load_model("deepseek-v3")
    count = parameters(model)
    assert model.layer_count == 61
    assert count.mtp / 1e9 == pytest.approx(11.5, abs=0.15)
    stored = count.total + count.mtp + 2 * count.embedding
    assert stored / 1e9 == pytest.approx(684.5, abs=0.5)


def test_tied_table_stands_twice_when_stages_part():  # NVIDIA/Megatron-LM#299: Llama 3.2 3B at pp 2
    count = parameters(load_model("llama-3.2-3b"))
    assert count.head == 0
    assert count.embedding == 394_002_432
    assert count.total + count.embedding == 3_606_752_256
    assert count.active_without_embedding == count.active


def test_total_parameters_mislead_for_experts():  # PrimeIntellect-ai/prime-rl#778
    count = parameters(load_model("qwen3-30b-a3b"))
    assert count.total / count.active == pytest.approx(9.105823091906235, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_parts_sum_to_the_whole(name):
    count = parameters(load_model(name))
    outside = (
        count.embedding + count.positions + count.embedding_norm + count.head + count.final_norm + count.other + count.vision
    )
    assert outside + sum(count.groups.values()) == count.total
    assert all(isinstance(value, int) for value in count.groups.values())
    assert 0 <= count.active_routed <= count.routed
    assert count.active_without_embedding <= count.active <= count.total


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b"])
def test_counting_takes_less_than_a_millisecond(name):
    model = load_model(name)
    best = min(timeit.repeat(lambda: parameters.__wrapped__(model), number=1, repeat=20))
    assert best < 1e-3


# --- FLOPs ------------------------------------------------------------------------------------------------------------


def test_torchtitan_count_of_an_expert_model():  # pytorch/torchtitan#4300
    model = load_model("qwen3-30b-a3b")
    assert flops_per_token(model, 8192, convention="torchtitan") == 37_578_559_488
    assert flops_per_token(model, 8192, convention="torchtitan-causal") == 27_914_883_072


def test_maxtext_table():  # AI-Hypercomputer/maxtext#1988: 1299.00 + 422.21 TFLOP, 1510.11 with the mask
    model = load_model("llama-2-7b")
    tokens = 4 * 8192
    assert tokens * flops_per_token(model, 8192, convention="nanotron") / 1e12 == pytest.approx(1721.22, rel=1e-4)
    assert tokens * flops_per_token(model, 8192, convention="megatron") / 1e12 == pytest.approx(1510.11, rel=1e-4)


def test_latent_attention_scores():  # verl-project/verl#4959
    model = load_model("deepseek-v3")
    scores = sum(run.count * counts.score_flops(model.kinds[run.kinds[0]], 4096, causal_half=True) for run in model.layers)
    assert 3 * scores == 30_702_305_280


# NVIDIA-NeMo/Megatron-Bridge 067f987d, docs/performance-summary*.md: TFLOP/s/GPU over tokens/s/GPU, and the rounding of both
BRIDGE = [
    ("qwen3-30b-a3b", 4096, 1029, 44544, 0.005),
    ("qwen3-235b-a22b", 4096, 1077, 7280, 0.002),
    ("deepseek-v3", 4096, 1635, 6288, 0.001),
    ("kimi-k2", 4096, 1099, 5372, 0.002),
    ("gpt-oss-120b", 4096, 934, 28672, 0.003),
    ("llama-3.1-405b", 8192, 2129, 843, 0.002),
    ("llama-3-70b", 4096, 1671, 3864, 0.002),
    ("llama-3-8b", 8192, 1933, 37556, 0.001),
]


@pytest.mark.parametrize(("name", "seq_len", "tflops", "tokens_per_s", "slack"), BRIDGE)
def test_bridge_tables(name, seq_len, tflops, tokens_per_s, slack):
    assert flops_per_token(load_model(name), seq_len) == pytest.approx(tflops * 1e12 / tokens_per_s, rel=slack)


def test_bridge_takes_a_mamba_mixer_to_be_twice_the_hidden_size():
    """Nemotron 3 Nano at 8,192: 776 TFLOP/s at 34,816 tokens/s; flop_utils.py sets an inner width of 2 h = 5,376, not 4,096."""
    model = load_model("nemotron-3-nano-30b-a3b")
    h, real, state, mambas = 2688, 64 * 64, 128, 23
    assumed = 2 * h
    surplus = 3 * mambas * (2 * h * 3 + 7 * state) * (assumed - real)
    assert flops_per_token(model, 8192) + surplus == pytest.approx(776e12 / 34816, rel=0.002)


def test_prediction_modules_count_only_where_a_convention_says_so():  # Megatron-Bridge: 260.65e9 with MTP, 250.46e9 without
    model = load_model("deepseek-v3")
    assert flops_per_token(model, 4096) == pytest.approx(260.65e9, rel=0.005)
    assert flops_per_token(model, 4096, mtp=False) == pytest.approx(250.46e9, rel=0.005)
    assert flops_per_token(model, 4096, convention="nanotron") == flops_per_token(model, 4096, convention="nanotron", mtp=False)


# MooreThreads/SimuMax 4dcaae51, docs/b200: measured ms of 32 micro-batches of one sequence of 4,096 a data-parallel rank on
# eight B200; TFLOP/s/GPU by Megatron's formula from those times (its 405B has 16 K/V heads).
SIMUMAX = [
    ("llama-3-70b", 12, {}, 4, 5.4365, 848),
    ("llama-3.1-405b", 4, {"kv_heads": 16}, 4, 7.0464, 851),
    ("llama-3.1-405b", 4, {"kv_heads": 16}, 4, 6.6041, 908),
    ("llama-3.1-405b", 4, {"kv_heads": 16}, 2, 3.4554, 868),
    ("llama-3.1-405b", 4, {"kv_heads": 16}, 1, 1.9018, 789),
]


@pytest.mark.parametrize(("name", "layers", "mixer", "dp", "step_s", "tflops"), SIMUMAX)
def test_simumax_rows_in_megatrons_convention(name, layers, mixer, dp, step_s, tflops):
    tokens = dp * 32 * 4096
    got = flops_per_token(cut(name, layers, **mixer), 4096) * tokens / step_s / 8 / 1e12
    assert got == pytest.approx(tflops, abs=0.5)


# arXiv:2205.05198, Table 5: GPUs, batch, seconds, MFU % of 312 TFLOP/s at 2,048 tokens. Seconds are printed to 0.01.
KORTHIKANTI = [
    ("gpt-22b", 8, 4, 1.10, 41.5, 0.25),
    ("gpt-175b", 64, 64, 13.75, 51.4, 0.06),
    ("gpt-530b", 280, 280, 37.83, 56.0, 0.06),
    ("gpt-1t", 512, 512, 71.49, 56.3, 0.06),
]


@pytest.mark.parametrize(("name", "gpus", "batch", "step_s", "mfu", "slack"), KORTHIKANTI)
def test_korthikanti_table_5(name, gpus, batch, step_s, mfu, slack):
    flops = flops_per_token(load_model(name), 2048, convention="korthikanti") * batch * 2048
    assert 100 * flops / (step_s * gpus * 312e12) == pytest.approx(mfu, abs=slack)


@pytest.mark.parametrize("name", ["gpt-22b", "gpt-175b", "gpt-530b", "gpt-1t"])
def test_closed_forms_of_the_gpt_papers(name):
    """72 B s l h^2 (1 + s/6h + V/12lh), and 96 B s l h^2 (1 + s/6h + V/16lh) with full recompute (arXiv:2104.04473)."""
    model = load_model(name)
    h, layers, V, s = model.hidden, model.layer_count, model.vocab, 2048
    plain = 72 * layers * h**2 * (1 + s / (6 * h) + V / (12 * layers * h))
    again = 96 * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))
    assert flops_per_token(model, s, convention="korthikanti") == pytest.approx(plain, rel=1e-12)
    assert flops_per_token(model, s, convention="narayanan") == pytest.approx(again, rel=1e-12)


# mosaicml/llm-foundry 8c8dd48f, scripts/train/benchmarking/README.md: MPT-7B on A100, tokens/s/GPU and MFU %
@pytest.mark.parametrize(("tokens_per_s", "mfu"), [(3679, 50.92), (3725, 51.55), (3665, 50.73)])
def test_llm_foundry_rows(tokens_per_s, mfu):
    """A100 rows at 2,048 tokens; their model adds 2,048 learned positions (6,658,859,008 parameters in all)."""
    model = load_model("mpt-7b").model_copy(update={"position_embeddings": 2048})
    assert parameters(model).total == pytest.approx(6_658_859_008, rel=1e-3)
    flops = flops_per_token(model, 2048, convention="llm-foundry")
    assert 100 * flops * tokens_per_s / 312e12 == pytest.approx(mfu, rel=2e-3)
    assert flops_per_token(model, 2048, convention="llm-foundry-hfu") == pytest.approx(flops * 4 / 3)


def test_mfu_is_of_the_dense_peak():  # NVIDIA/Megatron-LM#1565: 420 TFLOP/s on H200 is 42.5 %, not 21 % of the sparse figure
    from parlay.hardware.load import load_device

    assert 420e12 / load_device("h200-sxm").flops_per_s["bf16"].value == pytest.approx(0.4247, rel=0.01)


def test_conventions_differ_only_in_what_they_say():
    model = load_model("llama-3.1-8b")
    halved = dataclasses.replace(CONVENTIONS["nanotron"], causal_half=True)
    scores = 12 * 32 * 32 * 128 * 8192
    assert flops_per_token(model, 8192, convention=halved) == flops_per_token(model, 8192, convention="nanotron") - scores / 2
    headless = dataclasses.replace(halved, logits=False)
    assert (
        flops_per_token(model, 8192, convention=halved) - flops_per_token(model, 8192, convention=headless) == 6 * 4096 * 128256
    )
    padded = flops_per_token(model, 8192, vocab=129_024)
    assert padded - flops_per_token(model, 8192) == 6 * 4096 * (129_024 - 128_256)


def test_a_window_bounds_the_scores_only_where_it_counts():
    model = load_model("mistral-7b")
    full = dataclasses.replace(CONVENTIONS["megatron"], windows=False)
    gap = flops_per_token(model, 32768, convention=full) - flops_per_token(model, 32768)
    assert gap == pytest.approx(3 * 32 * 4 * 32 * 128 * (32768 / 2 - (4096 - 4096 * 4095 / (2 * 32768))))
    assert flops_per_token(model, 4096, convention=full) == flops_per_token(model, 4096)


def test_an_unknown_convention_suggests():
    with pytest.raises(UnknownNameError) as caught:
        flops_per_token(load_model("llama-3.1-8b"), 4096, convention="megatrn")
    assert "megatron" in (caught.value.hint or "")


sizes = st.integers(1, 8)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Return a small model of two kinds, with and without experts, biases and latent attention."""
    bias = draw(st.booleans())
    k = draw(sizes)
    grouped = GroupedAttention(
        heads=k * draw(sizes), kv_heads=k, head_dim=8 * draw(sizes), qkv_bias=bias, out_bias=bias, sinks=bias
    )
    rank = draw(st.one_of(st.none(), sizes))
    latent = LatentAttention(
        heads=draw(sizes), q_rank=rank, kv_rank=draw(sizes), nope_dim=draw(sizes), rope_dim=2, v_dim=draw(sizes)
    )
    experts = draw(st.integers(2, 16))
    dense = DenseMlp(width=draw(sizes), gated=draw(st.booleans()), bias=bias)
    moe = MoeMlp(
        experts=experts, top_k=draw(st.integers(1, experts)), width=draw(sizes), gated=dense.gated, bias=bias,
        shared_width=draw(st.integers(0, 8)), router_bias=bias,
    )  # fmt: skip
    kinds = {"a": LayerKind(mixer=grouped, mlp=dense), "b": LayerKind(mixer=draw(st.sampled_from([grouped, latent])), mlp=moe)}
    return ModelSpec(
        id="made-up", name="made up", hidden=8 * draw(sizes), vocab=draw(st.integers(1, 1000)), kinds=kinds,
        layers=(Run(kinds=("a",), count=draw(sizes)), Run(kinds=("b", "a"), count=draw(sizes))),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])), tied_embeddings=draw(st.booleans()),
    )  # fmt: skip


def products(model: ModelSpec) -> int:
    """Return rows times columns of every matrix that one token is multiplied with, listed matrix by matrix, router left out."""
    h, total = model.hidden, model.hidden * model.vocab
    for name in model.layer_names():
        x, m = model.kinds[name].mixer, model.kinds[name].mlp
        if isinstance(x, GroupedAttention):
            shapes = [(h, x.heads * x.head_dim), (h, 2 * x.kv_heads * x.head_dim), (x.heads * x.head_dim, h)]
        else:
            qk = x.heads * (x.nope_dim + x.rope_dim)
            shapes = [(h, qk)] if x.q_rank is None else [(h, x.q_rank), (1, x.q_rank), (x.q_rank, qk)]  # Megatron counts norms
            shapes += [(h, x.kv_rank + x.rope_dim), (1, x.kv_rank), (x.kv_rank, x.heads * (x.nope_dim + x.v_dim))]
            shapes += [(x.heads * x.v_dim, h)]
        width = m.width if isinstance(m, DenseMlp) else m.top_k * m.width + m.shared_width
        shapes += [(h, width)] * (3 if m.gated else 2)
        total += sum(rows * columns for rows, columns in shapes)
    return total


@settings(max_examples=60, deadline=None)
@given(model=models(), seq_len=st.integers(1, 4096))
def test_flops_are_twice_the_matrices_and_the_scores(model, seq_len):
    scores = 0
    for name in model.layer_names():
        x = model.kinds[name].mixer
        width = 2 * x.head_dim if isinstance(x, GroupedAttention) else x.nope_dim + x.rope_dim + x.v_dim
        scores += 2 * seq_len * x.heads * width
    assert flops_per_token(model, seq_len, convention="nanotron") == pytest.approx(3 * (2 * products(model) + scores), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(model=models())
def test_active_of_all_experts_is_the_total(model):
    wide = {
        name: kind.model_copy(update={"mlp": kind.mlp.model_copy(update={"top_k": kind.mlp.experts})})
        if isinstance(kind.mlp, MoeMlp)
        else kind
        for name, kind in model.kinds.items()
    }
    count = parameters(model.model_copy(update={"kinds": wide}))
    assert count.active == count.total
    assert parameters(model).total == count.total


# --- the cache --------------------------------------------------------------------------------------------------------


def test_kv_heads_are_copied_beyond_their_number():  # huggingface/transformers#48307: 4 K/V heads, 48 layers
    model = load_model("qwen3-30b-a3b")
    assert kv_bytes_per_token(model, tensor_parallel=4) == 24_576
    assert kv_bytes_per_token(model, tensor_parallel=8) == 24_576
    assert kv_bytes_per_token(model) == 4 * 24_576


def test_cache_of_one_page_size_and_of_windows():  # alvarobartt/hf-mem#70: gpt-oss-20b, 8,192 tokens, batch 32
    model = load_model("gpt-oss-20b")
    assert kv_bytes(model, 8192, batch=32, unified_pages=True) / GIB == 12.0
    assert kv_bytes(model, 8192, batch=32) / GIB == pytest.approx(6.094, abs=0.0005)


def test_cache_of_sliding_layers():  # lablup/mlxcel#172: Gemma 3 1B at 32,768 tokens
    model = load_model("gemma-3-1b")
    assert kv_bytes(model, 32768) / MIB == 139.0
    assert kv_bytes(model, 32768, unified_pages=True) / MIB == 832.0


def test_latent_cache_keeps_the_latent_on_every_rank():  # 61 layers of 512 + 64 values of two bytes
    model = load_model("deepseek-v3")
    assert kv_bytes_per_token(model) == kv_bytes_per_token(model, tensor_parallel=8) == 61 * 576 * 2


def test_cache_of_a_known_model():  # Llama 3.1 8B: 131,072 bytes a token in bf16
    assert kv_bytes_per_token(load_model("llama-3.1-8b")) == 131_072
    assert kv_bytes(load_model("llama-3.1-8b"), 1000, batch=3, element_bytes=1) == 131_072 / 2 * 3000


def test_state_mixers_keep_no_keys():  # Qwen3-Next: 12 of 48 layers are softmax attention
    assert kv_bytes_per_token(load_model("qwen3-next-80b-a3b")) == 12 * 2 * 2 * 256 * 2


# --- parts ------------------------------------------------------------------------------------------------------------


def test_each_part_says_how_it_shards():
    model = load_model("gpt-oss-20b")
    rules = {part.name: part.rule for part in counts.layer_parts(model, model.kinds["attention_experts"])}
    assert rules == {
        "queries and output": "tp",
        "keys and values": "kv",
        "output bias": "whole",
        "routed experts": "expert",
        "router": "whole",
        "norms": "whole",
    }


def test_latent_down_projections_are_on_every_rank():
    model = load_model("deepseek-v3")
    parts = {part.name: part for part in counts.layer_parts(model, model.kinds["latent_experts"])}
    down = 7168 * 1536 + 1536 + 7168 * 576 + 512
    assert parts["latent down-projections and norms"].count == down
    assert parts["latent down-projections and norms"].rule == "whole"
    assert parts["heads"].count == 187_107_328 - down
    assert parts["shared experts"].rule == "tp"


def test_a_workload_may_name_every_convention():
    assert set(get_args(Convention)) == set(CONVENTIONS)


def test_the_words_of_a_convention_follow_from_what_it_counts():
    assert CONVENTIONS["megatron"].in_words == "causal attention halved, LM head counted; recompute, router and padding not"
    assert "HFU" in CONVENTIONS["narayanan"].in_words
    assert len({c.in_words for c in CONVENTIONS.values()}) >= len(CONVENTIONS) - 2  # torchtitan's is PaLM's, but for windows


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("nemotron-3-super-120b-a12b", 121, 12), ("nemotron-3-ultra-550b-a55b", 549, 55), ("nemotron-3-nano-30b-a3b", 32, 3)],
)
def test_nemotron_3_is_what_its_names_say(name, total, active):
    """The active ones without the input embedding, as the model cards count them."""
    count = parameters(load_model(name))
    assert (round(count.total / 1e9), round(count.active_without_embedding / 1e9)) == (total, active)
