"""A Hugging Face config.json from end to end: planned from a file, a directory and standard input; imported; planned again."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

FILES = Path(__file__).parents[1] / "models" / "hf"
NOT_CONFIGS = {"known", "random", "beside-weights"}  # several configs in one file
CONFIGS = sorted(f.stem for f in FILES.glob("*.json") if f.stem not in NOT_CONFIGS)
# one of each kind: dense, windows, sinks, latent attention, hybrids, pruned, a wrapper around text and vision
PLANNED = ["llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b", "deepseek-v2-lite", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b",
           "llama-3.3-nemotron-super-49b", "qwen2-vl-7b"]  # fmt: skip
WHERE = ["--on", "dgx-h100", "--gpus", "64"]


def rows(ran):
    """Return a plan without the model's name and the seconds that the search took."""
    assert ran.code == 0, ran.err
    return [re.sub(r"priced in .* s,|parlay estimate \S+", "", line) for line in ran.out.splitlines()[1:]]


@pytest.mark.parametrize("name", PLANNED)
def test_a_config_is_planned_imported_and_planned_again(parlay, tmp_path, monkeypatch, name):
    from_file = rows(parlay("plan", FILES / f"{name}.json", *WHERE))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((FILES / f"{name}.json").read_bytes())
    assert rows(parlay("plan", folder, *WHERE)) == from_file
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((FILES / f"{name}.json").read_bytes())))
    assert rows(parlay("plan", "-", *WHERE)) == from_file
    ran = parlay("models", "import", FILES / f"{name}.json", "-o", tmp_path / "m.toml")
    assert (ran.code, ran.out) == (0, "")
    assert rows(parlay("plan", tmp_path / "m.toml", *WHERE)) == from_file


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_is_imported_and_shown_the_same(parlay, tmp_path, name):
    assert parlay("models", "import", FILES / f"{name}.json", "-o", tmp_path / "m.toml").code == 0
    shown = [parlay("models", "show", x, "--json").document for x in (FILES / f"{name}.json", tmp_path / "m.toml")]
    for key in ("parameters", "flops_per_token", "kv_bytes_per_token"):
        assert shown[0][key] == shown[1][key]


def test_what_was_assumed_is_said(parlay, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}', encoding="utf-8")
    ran = parlay("plan", tmp_path, *WHERE)
    assert ran.code == 0
    assert "note: hidden_size = 4096 (not in the file; the default of the llama class)\n" in ran.err
    assert f"parlay estimate {tmp_path} --on dgx-h100" in ran.out  # the next command names the file, not a model of the catalog
    priced = parlay("estimate", tmp_path, "--on", "dgx-h100", "--layout", "tp2.dp4")
    assert "note: hidden_size = 4096" in priced.err


def test_a_prime_number_of_heads_allows_no_tensor_parallelism():
    model, cluster = load_model("falcon-7b"), load_cluster("dgx-h100")
    assert {k.mixer.heads for k in model.kinds.values()} == {71}
    allowed = []
    for tp in range(1, 72):
        broken = check(Layout(tp=tp), model, cluster, Workload(), tp)
        if "heads" not in {v.rule for v in broken}:
            allowed.append(tp)
    assert allowed == [1, 71]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be one JSON table"),
        (b"{}", "num_hidden_layers: is missing"),
        (b'{"model_type": 5}', "model_type"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 200_000, "deep"),
        (json.dumps({"model_type": "llama", "hidden_size": -8}).encode(), "hidden_size"),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["models", "import"]])
def test_a_bad_config_gets_one_message(parlay, tmp_path, command, content, message):
    (tmp_path / "config.json").write_bytes(content)
    ran = parlay(*command, tmp_path / "config.json", *(WHERE if command == ["plan"] else []))
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1


def test_show_and_import_say_what_they_guessed(parlay, tmp_path):
    """An architecture that is not known is read by guesses: `models show` notes them as `plan` and `models import` do."""
    config = {"model_type": "newarch", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "weird_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shown, written = parlay("models", "show", tmp_path), parlay("models", "import", tmp_path)
    assert shown.err == written.err
    assert "note: model_type 'newarch' is not known" in shown.err
    assert "note: ignored: weird_size" in shown.err
    document = parlay("models", "import", tmp_path, "--json").document
    assert document["schema_name"] == "parlay/model-import"
    assert document["model"] == parlay("models", "show", tmp_path, "--json").document["model"]
    assert [f"note: {x}" for x in document["assumed"]] + ["note: ignored: weird_size"] == shown.err.splitlines()
    to = tmp_path / "mine.toml"
    both = parlay("models", "import", tmp_path, "--json", "-o", to)
    assert both.document["model"]["hidden"] == 64
    assert load_model(to).hidden == 64


@pytest.mark.parametrize("command", [["sweep", "X", *WHERE], ["explain", "step.bubble", "X", "--on", "dgx-h100", "--layout", "tp2"],
                                     ["compare", "X", "--on", "dgx-h100", "--layout", "tp2", "--layout", "tp1.pp2"]],
                         ids=lambda c: c[0])  # fmt: skip
def test_guesses_are_noted_once_wherever_a_config_is_priced(parlay, tmp_path, command):
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 128, "num_hidden_layers": 64, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = parlay(*(tmp_path if word == "X" else word for word in command))
    assert ran.code == 0
    assert ran.err.count("num_attention_heads = 32 (not in the file") == 1
