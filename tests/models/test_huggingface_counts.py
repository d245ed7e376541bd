"""Parameters of imported models against the real implementation, to the last one, and the reported cases of others."""

import csv
import json
from pathlib import Path

import pytest

from parlay.estimate.counts import parameters
from parlay.models.huggingface import load_config, read_config

FILES = Path(__file__).parent / "hf"
COUNTED = list(csv.DictReader((FILES / "counts.csv").read_text().splitlines()))
KNOWN = json.loads((FILES / "known.json").read_text())
BESIDE = json.loads((FILES / "beside-weights.json").read_text())
RANDOM = json.loads((FILES / "random.json").read_text())["rows"]
TABLES = {"known.json", "random.json", "beside-weights.json"}
FAMILIES = sorted({config["model_type"] for config, _ in RANDOM})


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row["file"])
def test_published_file(row):
    counts = parameters(load_config(FILES / row["file"]))
    assert counts.total == int(row["counted_total_params"])
    if row["counted_active_params_incl_embeddings"]:
        assert counts.active == int(row["counted_active_params_incl_embeddings"])


def test_every_file_is_counted():
    assert {row["file"] for row in COUNTED} == {path.name for path in FILES.glob("*.json")} - TABLES


@pytest.mark.parametrize("name", KNOWN)
def test_known_model(name):
    assert parameters(read_config(json.dumps(KNOWN[name]["config"]), name).spec).total == KNOWN[name]["count"]


@pytest.mark.parametrize("name", BESIDE)
def test_model_whose_class_ships_beside_its_weights(name):
    assert parameters(read_config(json.dumps(BESIDE[name]["config"]), name).spec).total == BESIDE[name]["count"]


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_corners(family):
    rows = [(config, count) for config, count in RANDOM if config["model_type"] == family]
    wrong = [(config, count) for config, count in rows if parameters(read_config(json.dumps(config), family).spec).total != count]
    assert not wrong


def known(name):
    return parameters(read_config(json.dumps(KNOWN[name]["config"]), name).spec)


def file(name):
    return parameters(load_config(FILES / f"{name}.json"))


# Reported cases, each with the value that its source gives or reconciles.


def test_mistral_nemo_has_heads_narrower_than_its_hidden_size():  # InternLM/lmdeploy#2761
    assert file("mistral-nemo-12b").total == 12_247_782_400


def test_minimax_01_has_queries_wider_than_its_hidden_size():  # MiniMax-AI/MiniMax-01#29
    keys = {"model_type": "llama", "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    mixer = next(iter(read_config(json.dumps(keys), "test.json").spec.kinds.values())).mixer
    assert mixer.heads * mixer.head_dim == 8192


def test_gemma_3_4b_with_heads_missing():  # google/gemma-3-4b-pt
    counts = file("gemma-3-4b")
    assert counts.total == 4_300_079_472
    tower = 416_866_032  # SigLIP without its projector, which the reported number keeps beside the text model
    assert counts.total - tower == 3_883_213_440


def test_nemotron_super_with_nulls_and_blocks():  # nvidia/Llama-3_3-Nemotron-Super-49B-v1
    counts = file("llama-3.3-nemotron-super-49b")
    spec = load_config(FILES / "llama-3.3-nemotron-super-49b.json")
    assert counts.total == 49_867_145_216
    assert sum(spec.kinds[name].mixer.kind == "gqa" for name in spec.layer_names()) == 49


def test_mixtral_is_not_eight_times_seven():  # huggingface/transformers#27945
    counts = known("mixtral-8x7b")
    assert (counts.total, counts.active) == (46_702_792_704, 12_879_925_248)


def test_active_parameters_of_deepseek_v2_lite():  # deepseek-ai/DeepSeek-V2#73: 2.4B leaves the input embedding out
    counts = file("deepseek-v2-lite")
    assert (counts.total, counts.active, counts.active_without_embedding) == (15_706_484_224, 2_661_150_208, 2_451_435_008)


def test_active_parameters_of_deepseek_v3():  # deepseek-ai/DeepSeek-V3#231
    counts = file("deepseek-v3")
    assert (counts.total, counts.active, counts.active_without_embedding) == (671_026_404_352, 37_552_282_624, 36_625_603_584)


def test_stored_size_of_deepseek_v3_holds_the_prediction_module():  # deepseek-ai/DeepSeek-V3#19
    counts = file("deepseek-v3")
    tables = 2 * 129_280 * 7_168  # the stored module repeats embedding and head
    assert counts.total + counts.mtp + tables == pytest.approx(685e9, rel=1e-3)  # the hub rounds, and counts fp8 scales too
    assert load_config(FILES / "deepseek-v3.json").layer_count == 61


def test_a_quantised_model_counts_its_logical_parameters():  # Vahe1994/AQLM#58: 6,546,853,888 stored elements
    config = {**KNOWN["mixtral-8x7b"]["config"], "quantization_config": {"quant_method": "aqlm", "in_group_size": 8}}
    model = read_config(json.dumps(config), "test.json")
    assert parameters(model.spec).total == 46_702_792_704
    assert model.quantization == "aqlm"


def test_falcon_7b_is_tied_by_its_class():  # tiiuae/falcon-7b
    config = KNOWN["falcon-7b"]["config"]
    model = read_config(json.dumps(config), "test.json")
    assert parameters(model.spec).total == 6_921_720_704
    assert any(line.startswith("tie_word_embeddings = true") for line in model.assumed)
    untied = read_config(json.dumps({**config, "tie_word_embeddings": False}), "test.json").spec
    assert parameters(untied).total == 7_217_189_760
    heads = next(iter(model.spec.kinds.values())).mixer.heads
    assert [tp for tp in range(1, heads + 1) if heads % tp == 0] == [1, 71]


def test_opt_350m_projects_its_embedding():  # facebook/opt-350m
    assert known("opt-350m").total == 331_196_416


def test_text_parts_of_llama_4():  # ai-dynamo/aiconfigurator, two files
    scout = file("llama-4-scout-17b-16e")
    assert scout.total - scout.vision == 107_769_861_120
    assert known("llama-4-maverick-text").total == 400_711_848_960


def test_qwen3_30b_has_no_dense_layer():  # ai-dynamo/aiconfigurator: intermediate_size 6144 is given and unused
    assert known("qwen3-30b-a3b").total == 30_532_122_624


def test_nemotron_4_has_no_gate():  # arXiv:2406.11704; with a gate it would be 471,488,827,392
    counts = file("nemotron-4-340b")
    gate = 96 * 18_432 * 73_728
    assert (counts.total, counts.total + gate) == (341_029_195_776, 471_488_827_392)


def test_hybrid_patterns():  # ai-dynamo/aiconfigurator, aliyun/SimAI
    nano, following = file("nemotron-3-nano-30b-a3b"), file("qwen3-next-80b-a3b")
    assert (nano.total, nano.active) == (31_577_937_344, 3_580_073_408)
    assert (following.total, following.active) == (79_674_391_296, 3_874_929_408)


def test_vision_towers_are_counted_apart():
    assert file("qwen2-vl-7b").vision == 675_759_104
    assert file("qwen3-vl-8b").vision == 576_388_336
    assert file("llama-2-7b").vision == 0
