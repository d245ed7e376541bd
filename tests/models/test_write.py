"""A specification written as TOML is read back equal, by the loader that people use."""

import json
import tomllib
from pathlib import Path

import pytest

from parlay.models.huggingface import read_config
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Published, Run
from parlay.models.write import HEADER, to_toml

ROWS = json.loads((Path(__file__).parent / "hf" / "random.json").read_text())["rows"]
FIRST = {config["model_type"]: config for config, _ in reversed(ROWS)}


@pytest.mark.parametrize("family", sorted(FIRST))
def test_load_model_reads_back_what_was_written(family, tmp_path):
    spec = read_config(json.dumps(FIRST[family]), "config.json", name="My model").spec
    path = tmp_path / "my-model.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    assert load_model(path) == spec


def spec_of(**fields):
    kind = LayerKind(mixer=GroupedAttention(heads=2, kv_heads=1, head_dim=8), mlp=DenseMlp(width=32))
    layers = (Run(kinds=("block", "block"), count=3),)
    return ModelSpec(**{"id": "a", "name": "A", "hidden": 16, "vocab": 10, "kinds": {"block": kind}, "layers": layers, **fields})


def test_texts_with_quotes_lines_and_controls_survive():
    spec = spec_of(
        name='a "quoted" \\ name', notes="two\nlines\tand \x7f and \x01 and é", published=Published(total=5, source="x = 'y'")
    )
    assert ModelSpec.model_validate(tomllib.loads(to_toml(spec))) == spec


def test_defaults_are_left_out_and_parts_stay_told_apart():
    text = to_toml(spec_of())
    assert text.startswith(f"# {HEADER}\n")
    assert text.endswith("\n")
    assert "gated" not in text
    assert "qkv_bias" not in text
    assert 'kind = "gqa"' in text


def test_a_kind_may_have_any_name():
    kind = spec_of().kinds["block"]
    spec = spec_of(kinds={"a b.c": kind}, layers=(Run(kinds=("a b.c",), count=1),))
    assert ModelSpec.model_validate(tomllib.loads(to_toml(spec))) == spec
