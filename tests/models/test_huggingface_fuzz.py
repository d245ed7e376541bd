"""Whatever a config.json holds, the reader gives a specification or one message, soon; thousands more run in the script."""

import importlib.util
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.models.huggingface import read_config

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_config_reader.py"
loaded = importlib.util.spec_from_file_location("fuzz_config_reader", SCRIPT)
fuzz = importlib.util.module_from_spec(loaded)
loaded.loader.exec_module(fuzz)

CONFIGS = fuzz.configs()
NAMES = sorted({key for config in CONFIGS for table in fuzz.tables(config) if isinstance(table, dict) for key in table})


def test_mutated_configs_give_a_specification_or_a_message():
    r = random.Random(20261129)
    seen = set()
    for _ in range(300):
        seen.add(fuzz.outcome(fuzz.mutate(r, r.choice(CONFIGS), NAMES)))
    assert seen == {"specification", "message"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
def test_any_value_under_any_key(config, keys):
    fuzz.outcome(json.dumps({**config, **keys}))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text):
    fuzz.outcome(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200_000), st.booleans())
def test_any_depth(depth, table):
    fuzz.outcome('{"text_config": ' + fuzz.nested(depth, table) + "}")


def test_an_error_of_another_kind_would_escape(monkeypatch):
    monkeypatch.setattr("parlay.models.huggingface.parse", lambda *_: {"model_type": "llama", "hidden_size": object()})
    with pytest.raises(TypeError):
        fuzz.outcome("{}")


def test_labels_for_a_quarter_of_a_million_tokens_are_read():
    labels = {str(i): f"LABEL_{i}" for i in range(250_000)}
    config = {"model_type": "llama", "id2label": labels}
    assert read_config(json.dumps(config), "test.json").spec.hidden == 4096


def test_a_key_of_millions_of_characters_is_no_trouble(processor_seconds):
    text = json.dumps({"model_type": "llama", "a" * 8_000_000: 1, "layer_types": None})
    assert read_config(text, "test.json").ignored == ("a" * 60,)
    assert processor_seconds(lambda: read_config(text, "test.json")) < 30 * processor_seconds(lambda: json.loads(text))  # 2.6


def test_too_many_values_are_refused_before_parsing(processor_seconds):
    text = '{"id2label": {' + ",".join(f'"{i}":1' for i in range(600_000)) + "}}"

    def refused():
        with pytest.raises(UsageError, match="holds more than"):
            read_config(text, "test.json")

    assert processor_seconds(refused) < 0.5 * processor_seconds(lambda: json.loads(text))  # measured: 0.03
