"""Reading a config.json: what each architecture fixes, what a file leaves out, and messages that name file and key."""

import io
import json
import sys
import tomllib
from pathlib import Path

import pytest

from parlay.errors import UsageError
from parlay.models.huggingface import import_config, load_config, read_config
from parlay.models.huggingface.shapes import runs
from parlay.models.spec import GatedDelta, GroupedAttention, LatentAttention, Mamba1, Mamba2, ModelSpec, MoeMlp
from parlay.models.write import to_toml

FILES = Path(__file__).parent / "hf"
TABLES = ("known", "random", "beside-weights")
CONFIGS = sorted(path for path in FILES.glob("*.json") if path.stem not in TABLES)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def read(**keys: object) -> ModelSpec:
    return read_config(json.dumps({**LLAMA, **keys}), "test.json").spec


def only(spec: ModelSpec, name: str | None = None):
    return spec.kinds[name or next(iter(spec.kinds))]


def load(name: str) -> ModelSpec:
    return load_config(FILES / f"{name}.json")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_survives_being_written_as_toml(path):
    spec = load_config(path)
    assert ModelSpec.model_validate(tomllib.loads(to_toml(spec))) == spec
    assert spec.id == path.stem.lower()


def test_missing_and_null_key_value_heads_mean_as_many_as_queries():
    silent = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert only(read_config(json.dumps(silent), "test.json").spec).mixer.kv_heads == 4
    assert only(read(num_key_value_heads=None)).mixer.kv_heads == 4
    assert only(load("llama-1-7b-no-kv-key")).mixer.kv_heads == 32


def test_a_class_default_is_used_and_named():
    model = read_config('{"model_type": "mistral", "hidden_size": 4096}', "test.json")
    assert only(model.spec).mixer.kv_heads == 8
    assert "num_key_value_heads = 8 (not in the file; the default of the mistral class)" in model.assumed


def test_gemma_3_4b_takes_heads_width_and_vocabulary_from_its_class():
    spec = load("gemma-3-4b")
    mixer = only(spec).mixer
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, spec.vocab) == (8, 4, 256, 262_208)
    assert spec.tied_embeddings
    assert only(spec).norms == 4


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"torch_dtype": "float16", "dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "torch.float32"}, "float32"),
        ({}, "bfloat16"),
    ],
)
def test_dtype_wins_over_torch_dtype(keys, dtype):
    model = read_config(json.dumps({**LLAMA, **keys}), "test.json")
    assert model.dtype == dtype
    assert ("dtype = bfloat16 (not in the file)" in model.assumed) == (not keys)


def test_quantization_is_noted_and_leaves_the_shapes_alone():
    plain = load("qwen3-32b-fp8")
    model = import_config(FILES / "qwen3-32b-fp8.json")
    assert model.quantization == "fp8"
    assert any("stored bytes, not the parameters" in line for line in model.assumed)
    assert plain.hidden == 5120


def test_sliding_window_is_off_where_the_switch_says_so():
    assert only(load("qwen2.5-7b")).mixer.window is None  # sliding_window is 131072, use_sliding_window false
    assert only(load("mistral-7b-v0.1")).mixer.window == 4096
    assert only(load("mistral-7b-v0.3")).mixer.window is None


def test_alternating_windows_become_one_run():
    spec = load("gemma-2-9b")
    assert [run.count for run in spec.layers] == [42]
    assert [spec.kinds[name].mixer.window for name in spec.layers[0].kinds] == [4096, None]
    names = load("gemma-3-27b").layer_names()
    assert [i for i, name in enumerate(names) if name == "attention_dense"] == list(range(5, 62, 6))


def test_gpt_oss_has_biases_sinks_and_its_own_head_width():
    spec = load("gpt-oss-20b")
    kind = only(spec)
    assert kind.mixer.head_dim == 64
    assert kind.mixer.sinks
    assert kind.mixer.qkv_bias
    assert kind.mixer.out_bias
    assert kind.mlp.bias
    assert kind.mlp.router_bias
    assert {spec.kinds[name].mixer.window for name in spec.kinds} == {128, None}
    assert all(spec.kinds[name].mixer.rope_scaled for name in spec.kinds)


@pytest.mark.parametrize(
    ("scaling", "scaled"),
    [
        ({"rope_type": "yarn", "factor": 32.0}, True),
        ({"type": "yarn", "factor": 4.0}, True),
        ({"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}, False),  # they cancel
        ({"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5}, True),
        ({"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.0}, False),
        ({"rope_type": "yarn", "factor": 1.0}, False),
        ({"full_attention": {"rope_type": "yarn", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}, True),
        ({"rope_type": "llama3", "factor": 8.0}, False),
        ({"rope_type": "YaRN", "factor": 8.0}, True),
        ({"rope_type": "banana", "factor": 8.0}, False),
        ({"rope_type": "yarn", "factor": 8.0, "mscale": None, "attention_factor": None, "mscale_all_dim": 0}, True),
        ({"type": "yarn", "factor": None, "original_max_position_embeddings": 4096}, True),
        ({"rope_type": "default", "factor": None}, False),
        ({"type": "dynamic", "factor": 0.5}, False),
        ({}, False),
        (None, False),
    ],
)
def test_yarn_scales_cos_and_sin(scaling, scaled):
    spec = read(rope_scaling=scaling)
    assert only(spec).mixer.rope_scaled is scaled


BROKEN = ("four", -2, 0, None, [4], float("nan"), float("inf"), True, 10**400, {})


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["yarn", "linear"])
@pytest.mark.parametrize("factor", BROKEN, ids=lambda value: str(value)[:8])
def test_a_broken_factor_is_refused(name, kind, factor):
    with pytest.raises(UsageError, match=r"must be a number above 0|is null, and there is no") as caught:
        read(**{name: {"type": kind, "factor": factor}})
    assert caught.value.where == f"test.json: {name}.factor"


@pytest.mark.parametrize(
    ("scaling", "place", "message"),
    [
        ("yarn", "", "must be a table"),
        (4.0, "", "must be a table"),
        ([4], "", "must be a table"),
        ({"full_attention": 4}, ".full_attention", "must be a table"),
        ({"full_attention": {"rope_type": "yarn", "factor": "8"}}, ".full_attention.factor", "must be a number above 0"),
        ({"rope_type": 3}, ".rope_type", "must be a word"),
        ({"rope_type": "yarn", "factor": 4, "attention_factor": 0}, ".attention_factor", "must be a number above 0"),
        ({"rope_type": "yarn", "factor": 4, "mscale": "1"}, ".mscale", "must be a number from 0"),
    ],
)
def test_broken_scaling_names_its_key(scaling, place, message):
    with pytest.raises(UsageError) as caught:
        read(rope_scaling=scaling)
    assert caught.value.where == f"test.json: rope_scaling{place}"
    assert message in caught.value.message


def test_a_kind_of_scaling_that_is_not_known_is_told():
    def ignored(kind):
        return read_config(json.dumps(LLAMA | {"rope_scaling": {"rope_type": kind, "factor": 8.0}}), "test.json").ignored

    assert any("the kind 'banana' is not known" in text for text in ignored("Banana"))
    assert not any("not known" in text for text in ignored("LLAMA3"))


def test_yarn_leaves_windows_alone_where_a_file_or_olmo_3_says_so():
    tables = {"full_attention": {"rope_type": "yarn", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    config = json.loads((FILES / "gpt-oss-20b.json").read_text())
    config["rope_parameters"] = tables
    del config["rope_scaling"]
    olmo = LLAMA | {
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0},
    }
    for given in (config, olmo):
        spec = read_config(json.dumps(given), "test.json").spec
        assert {kind.mixer.window is None: kind.mixer.rope_scaled for kind in spec.kinds.values()} == {True: True, False: False}


def test_deepseek_v3_has_three_dense_layers_and_one_more_to_predict():
    spec = load("deepseek-v3")
    assert [(run.kinds, run.count) for run in spec.layers] == [(("latent_dense",), 3), (("latent_experts",), 58)]
    experts = spec.kinds["latent_experts"].mlp
    assert (experts.experts, experts.top_k, experts.width, experts.shared_width) == (256, 8, 2048, 2048)
    assert (experts.groups, experts.top_groups, experts.score_correction) == (8, 4, True)
    assert (spec.mtp_layers, spec.mtp_kind, spec.layer_count) == (1, "latent_experts", 61)
    assert load("kimi-k2").mtp_layers == 0


def test_full_rank_queries_where_the_rank_is_null():
    mixer = only(load("deepseek-v2-lite")).mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.q_rank is None


def test_llama_4_scout_routes_everywhere_and_chunks_three_of_four_layers():
    spec = load("llama-4-scout-17b-16e")
    experts = only(spec).mlp
    assert isinstance(experts, MoeMlp)
    assert (experts.width, experts.shared_width) == (8192, 8192)
    windows = [spec.kinds[name].mixer for name in spec.layer_names()[:4]]
    assert [(mixer.window, mixer.chunked, mixer.rope) for mixer in windows] == [(8192, True, True)] * 3 + [(None, False, False)]


def test_qwen3_next_has_attention_in_every_fourth_layer():
    spec = load("qwen3-next-80b-a3b")
    mixers = [spec.kinds[name].mixer for name in spec.layer_names()]
    full = [mixer for mixer in mixers if isinstance(mixer, GroupedAttention)]
    assert len(full) == 12
    assert full[0].output_gate
    assert sum(isinstance(mixer, GatedDelta) for mixer in mixers) == 36
    assert only(spec).mlp.shared_gate


def test_qwen3_moe_has_no_dense_layer_although_the_file_gives_its_width():
    spec = load("qwen3-coder-480b-a35b")
    assert len(spec.kinds) == 1
    assert only(spec).mlp.kind == "moe"


def test_nemotron_3_reads_the_pattern_of_letters():
    spec = load("nemotron-3-nano-30b-a3b")
    mixers = [spec.kinds[name] for name in spec.layer_names()]
    assert len(mixers) == 52
    assert sum(isinstance(kind.mixer, Mamba2) for kind in mixers) == 23
    assert sum(isinstance(kind.mixer, GroupedAttention) for kind in mixers) == 6
    assert all(kind.norms == 1 for kind in mixers)
    experts = next(kind.mlp for kind in mixers if kind.mlp.kind == "moe")
    assert not experts.gated
    assert experts.activation == "relu2"


@pytest.mark.parametrize(
    ("name", "fp32"),
    [("nemotron-3-nano-30b-a3b", True), ("qwen3.5-27b", True), ("qwen3.5-397b-a17b", True), ("qwen3-next-80b-a3b", False)],
)
def test_the_dtype_that_a_file_asks_of_its_states(name, fp32):
    """Nemotron-3's mamba_ssm_cache_dtype and Qwen3.5's mamba_ssm_dtype are "float32"; Qwen3-Next's file says nothing."""
    found = {kind.mixer.fp32_state for kind in load(name).kinds.values() if isinstance(kind.mixer, Mamba2 | GatedDelta)}
    assert found == {fp32}


def test_nemotron_super_prunes_attention_and_width_by_layer():
    spec = load("llama-3.3-nemotron-super-49b")
    kinds = [spec.kinds[name] for name in spec.layer_names()]
    assert sum(kind.mixer.kind == "gqa" for kind in kinds) == 49
    assert {kind.norms for kind in kinds if kind.mixer.kind == "none"} == {1}


def test_jamba_mixes_mamba_attention_and_experts():
    keys = {"model_type": "jamba", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8}
    spec = read_config(json.dumps(keys), "test.json").spec
    kinds = [spec.kinds[name] for name in spec.layer_names()]
    assert [i for i, kind in enumerate(kinds) if kind.mixer.kind == "gqa"] == [4]
    assert [i for i, kind in enumerate(kinds) if kind.mlp.kind == "moe"] == [1, 3, 5, 7]
    assert isinstance(kinds[0].mixer, Mamba1)
    assert kinds[0].mixer.dt_rank == 4


def test_latent_experts_of_nemotron_3_super():
    config = json.loads((FILES / "known.json").read_text())["nemotron-3-super-shape"]["config"]
    spec = read_config(json.dumps(config), "test.json").spec
    experts = next(kind.mlp for kind in spec.kinds.values() if kind.mlp.kind == "moe")
    assert experts.latent_width == 1024
    module = spec.kinds[spec.mtp_kind]
    assert (spec.mtp_layers, module.mixer.kind, module.mlp.kind, module.norms) == (1, "gqa", "moe", 2)


def test_deepseek_v4_shares_one_latent_and_compresses_tokens():
    config = json.loads((FILES / "known.json").read_text())["deepseek-v4-flash"]["config"]
    spec = read_config(json.dumps(config), "test.json").spec
    mixers = [spec.kinds[name].mixer for name in spec.layer_names()]
    assert [mixer.window for mixer in mixers[:4]] == [128] * 4
    assert [(mixer.compress_rate, mixer.compress_top) for mixer in mixers[:4]] == [(None, None)] * 2 + [(4, 512), (128, None)]
    assert not any(mixer.up_projection for mixer in mixers)
    assert (mixers[0].kv_rank + mixers[0].rope_dim, mixers[0].out_rank, mixers[0].out_groups) == (512, 1024, 8)
    assert spec.layer_count == 43


def test_a_width_of_nothing_is_refused():  # found by fuzzing
    with pytest.raises(UsageError, match="shared_intermediate_size: must be at least 1 in a model without experts"):
        read(model_type="granitemoeshared", num_local_experts=0)


def test_letters_say_which_layers_of_exaone_see_all():
    keys = {
        "model_type": "exaone4",
        "sliding_window": 32,
        "sliding_window_pattern": "LLG",
        "num_hidden_layers": 7,
        "layer_types": None,
    }
    names = read(**keys).layer_names()
    assert [name == "attention_dense" for name in names] == [False, False, True, False, False, True, False]


def test_hunyuan_may_give_a_number_for_each_layer():
    spec = read(model_type="hunyuan_v1_moe", num_experts=[2, 4], moe_topk=[1, 2])
    assert [spec.kinds[name].mlp.experts for name in spec.layer_names()] == [2, 4]


def test_moe_layer_freq_may_be_a_step_or_a_list():
    keys = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "moe_layer_freq": 2,
    }
    routed = [name.endswith("experts") for name in read(**keys).layer_names()]
    assert routed == [False, False, True, False, True, False]
    listed = {**keys, "moe_layer_freq": [0, 1, 0, 0, 0, 1]}
    assert [name.endswith("experts") for name in read(**listed).layer_names()] == [False, True, False, False, False, True]


def test_a_directory_and_standard_input(tmp_path, monkeypatch):
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    spec = load_config(folder)
    assert (spec.id, spec.name) == ("my-model", "My-Model")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LLAMA).encode())))
    assert load_config("-").kinds == spec.kinds
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        load_config(folder)


def test_a_huge_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" " * (17 << 20))))
    with pytest.raises(UsageError, match="standard input: is larger than 16 MiB"):
        load_config("-")


def test_the_hubs_cache_names_the_model(tmp_path):
    folder = tmp_path / "models--owner--Some-Model" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(folder).name == "Some-Model"


def test_the_class_is_guessed_from_architectures():
    keys = {key: value for key, value in LLAMA.items() if key != "model_type"}
    spec = read_config(json.dumps({**keys, "architectures": ["Qwen3ForCausalLM"]}), "test.json").spec
    assert only(spec).mixer.qk_norm == "head"


def test_an_unknown_architecture_is_read_and_its_guesses_are_named():
    model = read_config(json.dumps({**LLAMA, "model_type": "brand_new", "num_experts": 4, "num_experts_per_tok": 2}), "new.json")
    assert only(model.spec).mlp.experts == 4
    text = "\n".join(model.assumed)
    for guess in (
        "'brand_new' is not known",
        "no bias",
        "no norms on q and k",
        "every layer routes",
        "tie_word_embeddings = false",
    ):
        assert guess in text


def test_an_unknown_hybrid_is_refused_by_the_key_that_says_so():
    with pytest.raises(UsageError, match=r"new\.json: mamba_d_state: says that 'brand_new' is a hybrid"):
        read_config(json.dumps({**LLAMA, "model_type": "brand_new", "mamba_d_state": 16}), "new.json")


@pytest.mark.parametrize("kind", ["gemma3n", "falcon_h1", "lfm2", "bert"])
def test_an_architecture_that_a_specification_cannot_hold_is_refused(kind):
    with pytest.raises(UsageError, match=rf"new\.json: model_type: '{kind}' is an? "):
        read_config(json.dumps({**LLAMA, "model_type": kind}), "new.json")


def test_an_unknown_kind_of_layer_is_refused():
    keys = {**LLAMA, "model_type": "brand_new", "layer_types": ["full_attention", "wavelet"]}
    with pytest.raises(UsageError, match=r"layer_types: holds 'wavelet', a kind of layer"):
        read_config(json.dumps(keys), "new.json")


def test_sizes_that_differ_by_layer_are_refused_where_the_class_is_not_known():
    keys = {**LLAMA, "model_type": "brand_new", "num_attention_heads_per_layer": [4, 8]}
    with pytest.raises(UsageError, match=r"num_attention_heads_per_layer: gives each layer its own size"):
        read_config(json.dumps(keys), "new.json")


def test_an_unknown_mixture_follows_the_layers_it_lists():
    keys = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_layer_types": ["dense", "sparse"]}
    names = read(model_type="brand_new", **keys).layer_names()
    assert names == ["attention_dense", "attention_experts"]


def test_a_message_shows_no_control_characters():
    with pytest.raises(UsageError) as caught:
        read_config(json.dumps({"model_type": "\x1b[31m" + "x" * 500}), "new.json")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_parts_replaced_by_one_matrix_are_counted():
    blocks = [
        {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
    ]
    kinds = list(read(model_type="nemotron-nas", block_configs=blocks).kinds.values())
    assert [(kind.mixer.kind, kind.mlp.kind, kind.norms, kind.extra_parameters) for kind in kinds] == [
        ("none", "dense", 2, 64 * 64),
        ("gqa", "none", 1, 0),
    ]


def test_an_unknown_architecture_cannot_guess_a_size():
    keys = {**LLAMA, "model_type": "brand_new"}
    del keys["intermediate_size"]
    with pytest.raises(UsageError, match=r"new\.json: intermediate_size: is missing") as caught:
        read_config(json.dumps(keys), "new.json")
    assert "ffn_hidden_size" in caught.value.hint


def test_keys_that_nothing_used_are_listed():
    model = read_config(json.dumps({**LLAMA, "engram_table_size": 5, "dropout": 0.1, "use_wings": False}), "test.json")
    assert model.ignored == ("engram_table_size",)


def test_an_audio_part_is_not_counted_and_said_so():
    text = json.dumps(
        {"model_type": "qwen2_vl", **{k: v for k, v in LLAMA.items() if k != "model_type"}, "audio_config": {"d_model": 64}}
    )
    assert "audio_config: its parameters are not counted" in read_config(text, "test.json").ignored


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": "4096"}, r'test\.json: hidden_size: must be a whole number from 1 to \d+, got "4096"'),
        ({"hidden_size": 10**30}, r"got a number of 100 bits"),
        ({"hidden_size": None}, r"hidden_size: is null; the llama class needs a whole number here"),
        ({"num_hidden_layers": 10**12}, r"num_hidden_layers: must be a whole number from 1 to 10000"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads: must divide num_attention_heads \(4\), got 3"),
        (
            {"model_type": "qwen2", "num_attention_heads": 6, "hidden_size": 66, "num_key_value_heads": 4},
            r"must divide .* \(6\), got 4",
        ),
        ({"attention_bias": "yes"}, r'attention_bias: must be true or false, got "yes"'),
        ({"hidden_size": True}, r"hidden_size: must be a whole number"),
        ({"hidden_size": float("nan")}, r"hidden_size: .*got NaN"),
        ({"num_attention_heads": 128}, r"num_attention_heads: cannot exceed the hidden size \(64\)"),
        ({"layer_types": ["full_attention"]}, r"layer_types: has 1 entries for 2 layers"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            r"cannot exceed the number of experts \(2\), got 3",
        ),
        ({"model_type": 7}, r"model_type: must be a word"),
        ({"text_config": [1]}, r"text_config: must be a table, got a list of 1"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MXM"}, r"holds 'X', which is none of"),
    ],
)
def test_a_wrong_key_is_named(keys, message):
    with pytest.raises(UsageError, match=message):
        read(**keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"not valid JSON: .* \(line 1, column 1\)"),
        ("[]", r"must be one JSON table, got a list of 0"),
        ('{"a": 1,}', r"line 1, column"),
        ('{"a": ' + "9" * 5000 + "}", r"too many digits"),
        ('{"a": ' + "[" * 100_000, r"nested too deeply"),
        ('{"a": [' + "[]," * 600_000 + "[]]}", r"holds more than 1,048,576 values"),
        (" " * ((16 << 20) + 1), r"larger than 16 MiB"),
    ],
)
def test_a_text_that_is_no_config(text, message):
    with pytest.raises(UsageError, match=r"^test\.json: .*" + message):
        read_config(text, "test.json")


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(UsageError, match="is larger than 16,777,216 bytes"):
        load_config(path)


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "llama.json").write_text("{}")
    with pytest.raises(UsageError, match="no such file") as caught:
        load_config(tmp_path / "lama.json")
    assert "llama.json" in caught.value.hint


def test_a_key_given_twice_is_reported():
    model = read_config('{"hidden_size": 1, ' + json.dumps(LLAMA)[1:], "test.json")
    assert model.spec.hidden == 64
    assert '"hidden_size" is given 2 times: the last one counts' in model.assumed


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("aaaa", [("a", 4)]),
        ("abababab", [("ab", 8)]),
        ("aababab", [("a", 2), ("ba", 5)]),
        ("abcabcab", [("abc", 8)]),
        ("abc", [("a", 1), ("b", 1), ("c", 1)]),
        ("aaabbb", [("a", 3), ("b", 3)]),
    ],
)
def test_layers_become_few_runs(names, found):
    made = runs(list(names))
    assert [("".join(run.kinds), run.count) for run in made] == found
    assert "".join(run.kinds[i % len(run.kinds)] for run in made for i in range(run.count)) == names
