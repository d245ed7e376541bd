"""Finding a model: names, files that start from others, config.json, and one clear message for each kind of bad input."""

import io
import re
import sys
import timeit

import pytest

from parlay.errors import UnknownNameError, UsageError
from parlay.models import load as loader
from parlay.models.load import list_models, load_model
from parlay.models.spec import DenseMlp, GroupedAttention, MoeMlp

SMALL = """
id = "small"
name = "Small"
hidden = 64
vocab = 100
[kinds.block.mixer]
kind = "gqa"
heads = 8
kv_heads = 2
head_dim = 8
[kinds.block.mlp]
kind = "dense"
width = 128
[[layers]]
kinds = ["block"]
count = 2
"""

ASKED = [  # what the catalog must hold, by the names people use
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b",
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.3-70b", "mistral-7b-v0.1", "mistral-7b-v0.3", "mixtral-8x7b", "mixtral-8x22b",
    "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b",
    "qwen3-235b-a22b", "qwen3-coder-480b-a35b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-r1", "kimi-k2",
    "gpt-oss-20b", "gpt-oss-120b", "gemma-2-9b", "gemma-2-27b", "gemma-3-27b", "gpt3-175b", "gpt-22b", "gpt-175b", "gpt-530b",
    "gpt-1t", "bloom-176b", "nemotron-4-340b", "nemotron-4-15b", "grok-1", "glm-4.5", "phi-4", "olmo-2-13b", "gpt2-xl",
]  # fmt: skip


def write(path, text):
    path.write_text(text)
    return path


def refused(name):
    with pytest.raises(UsageError) as caught:
        load_model(name)
    assert caught.value.code == 2
    return caught.value


@pytest.mark.parametrize("name", ASKED)
def test_the_catalog_holds(name):
    assert load_model(name).layer_count > 0


@pytest.mark.parametrize("name", ["LLAMA-3.1-8B", "llama_3.1_8b", "Llama 3.1 8B", " llama-3.1-8b ", "llama3.1-8b"])
def test_case_and_separators_do_not_matter(name):
    assert load_model(name).id == "llama-3.1-8b"


def test_every_name_of_the_list_finds_its_own_entry():
    for summary in list_models():
        assert summary.path.stem == summary.id
        for name in summary.names:
            assert load_model(name).id == summary.id


def test_the_list_is_sorted_and_says_the_family():
    found = list_models()
    assert [s.id for s in found] == sorted(s.id for s in found)
    assert all(s.detail and s.name for s in found)


def test_an_unknown_name_suggests():
    error = refused("lama-3.1-8b")
    assert isinstance(error, UnknownNameError)
    assert "llama-3.1-8b" in error.suggestions
    assert "models list" in (error.hint or "")
    assert len(str(refused("x" * 10_000))) < 200


def test_a_file_of_ones_own(tmp_path):
    spec = load_model(write(tmp_path / "small.toml", SMALL))
    assert (spec.id, spec.layer_count) == ("small", 2)
    assert load_model(str(tmp_path / "small.toml")) == spec


def test_extends_a_catalog_model_and_changes_one_number(tmp_path):
    path = write(tmp_path / "wide.toml", 'extends = "llama-3.1-8b"\n[kinds.attention_dense.mlp]\nwidth = 20480\n')
    base, spec = load_model("llama-3.1-8b"), load_model(path)
    (kind,) = spec.kinds.values()
    assert spec.id == "wide"
    assert not spec.aliases
    assert spec.published.total is None  # another shape is not what was published
    assert isinstance(kind.mlp, DenseMlp)
    assert kind.mlp.width == 20480
    assert kind.mlp.gated
    assert kind.mixer == next(iter(base.kinds.values())).mixer
    assert spec.layers == base.layers


def test_a_part_of_another_kind_replaces_the_old_one(tmp_path):
    write(tmp_path / "small.toml", SMALL)
    text = 'extends = "small.toml"\n[kinds.block.mlp]\nkind = "moe"\nexperts = 4\ntop_k = 2\nwidth = 32\n'
    spec = load_model(write(tmp_path / "experts.toml", text))
    assert spec.kinds["block"].mlp == MoeMlp(experts=4, top_k=2, width=32)
    assert isinstance(spec.kinds["block"].mixer, GroupedAttention)


def test_extends_looks_beside_the_file_and_chains(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "small.toml", SMALL)
    write(tmp_path / "sub" / "middle.toml", 'extends = "../small.toml"\nhidden = 128\n')
    spec = load_model(write(tmp_path / "sub" / "last.toml", 'extends = "./middle.toml"\nvocab = 7\n'))
    assert (spec.hidden, spec.vocab, spec.id) == (128, 7, "last")


def test_cycles_and_long_chains_are_refused(tmp_path):
    write(tmp_path / "a.toml", 'extends = "./b.toml"\n')
    write(tmp_path / "b.toml", 'extends = "./a.toml"\n')
    error = refused(tmp_path / "a.toml")
    assert "a.toml -> b.toml -> a.toml" in error.message
    for i in range(loader.MOST_EXTENDS + 2):
        write(tmp_path / f"c{i}.toml", f'extends = "./c{i + 1}.toml"\n')
    assert "chain" in refused(tmp_path / "c0.toml").message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("hidden = 64\n", ""), "hidden: is missing"),
        (("hidden = 64", "hidden = -64"), "hidden: .*greater than 0"),
        (("hidden = 64", "hidden = nan"), "hidden"),
        (("hidden = 64", 'hidden = "64 MiB"'), "hidden: .*whole number"),
        (("heads = 8\n", "heads = 7\n"), r"heads \(7\) must be a multiple of kv_heads \(2\)"),
        (('kind = "gqa"', 'kind = "gqua"'), "mixer: .*gqa"),
        (('kinds = ["block"]', 'kinds = ["blok"]'), "layer kind 'blok' is not one of"),
        (("count = 2", "count = 200000"), "200000 layers"),
        (("count = 2", "count = 0"), "count: .*greater than 0"),
        (("width = 128", "width = 99999999999999999"), "width: must be at most [\\d,]+, got 99999999999999999"),
        (('[kinds.block.mlp]\nkind = "dense"\nwidth = 128\n', ""), "mlp: is missing"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_is_allowed(tmp_path, change, says):
    path = write(tmp_path / "wrong.toml", SMALL.replace(*change))
    error = refused(path)
    assert str(error).startswith(str(path))
    assert re.search(says, str(error))


def test_a_key_near_a_known_one_is_suggested(tmp_path):
    error = refused(write(tmp_path / "near.toml", SMALL.replace("vocab = 100", "vocab = 100\ntied_embedings = true")))
    assert "tied_embedings" in str(error)
    assert "tied_embeddings" in (error.hint or "")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"id = ", "not valid TOML"),
        (SMALL.encode()[:-12], "not valid TOML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"#" * (1 << 21), "larger than"),
        (b"extends = 7\n", "expected a name or a file"),
        (b'extends = "no-such-model"\n', "unknown model 'no-such-model'"),
        (b'extends = "./gone.toml"\n', "not a file"),
        (b"x = " + b"[" * 500 + b"]" * 500, "nest"),
    ],
)
def test_a_file_that_is_no_specification(tmp_path, content, says):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    error = refused(path)
    assert str(path) in str(error)
    assert says in str(error)


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    write(tmp_path / "small.toml", SMALL)
    error = refused(tmp_path / "smal.toml")
    assert "no such file" in str(error)
    assert "small.toml" in (error.hint or "")


def test_config_json_file_directory_and_stream(tmp_path, monkeypatch):
    text = '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}'
    write(tmp_path / "config.json", text)
    assert load_model(tmp_path / "config.json").layer_count == 2
    assert load_model(str(tmp_path)).layer_count == 2

    class Stream:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Stream)
    assert load_model("-").hidden == 64
    assert "config.json" in str(refused(str(tmp_path / "gone" / "config.json")))


def test_listing_needs_no_pydantic_validation_of_every_file():
    loader._catalog.cache_clear()
    assert timeit.timeit(list_models, number=1) < 1.0


def test_models_of_one_kind_of_layer_call_it_the_same():
    """Else `compare` of two models lists every activation of a layer twice, under two names."""
    named: dict[tuple[str, str, bool], set[str]] = {}
    for summary in list_models():
        model = load_model(summary.id)
        if len(model.kinds) == 1:
            ((name, kind),) = model.kinds.items()
            windowed = getattr(kind.mixer, "window", None) is not None
            named.setdefault((kind.mixer.kind, kind.mlp.kind, windowed), set()).add(name)
    assert {key: len(names) for key, names in named.items() if len(names) > 1} == {}
    assert named["gqa", "dense", False] == {"attention_dense"}
