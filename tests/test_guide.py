"""The guide works as it is written: its files are read and each of its commands runs."""

import json
import re
import shlex
from pathlib import Path

import pytest

from parlay.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
CONFIG = {  # Llama 3.2 1B
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 8192 --swiglu --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16 --tensor-model-parallel-size 2 \\
  --sequence-parallel --use-distributed-optimizer --vocab-size 128256 --position-embedding-type rope --normalization RMSNorm
"""
TUNING = (ROOT / "docs" / "guides" / "fine-tuning.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    parlay (.+)$", GUIDE + TUNING, re.M)


@pytest.fixture
def files(tmp_path, monkeypatch):
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", GUIDE, re.S)
    assert [name for name, _ in blocks] == ["run.toml", "my-cluster.toml", "my-model.toml"]
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands():
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, files, capsys):
    code = main(shlex.split(command))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert all(line.startswith("note: ") for line in captured.err.splitlines())  # what a file left to assume
    assert len(captured.out.splitlines()) > 3


@pytest.mark.parametrize("flags", ["--tokens 15T --gpu-hour-usd 2.5", "--fix tp=8 --fix pp=4,8", "--framework torchtitan",
                                   "--optimizer muon", "--lora 16", "--set training.gradient_dtype=bf16"])  # fmt: skip
def test_flag_of_the_guide(flags, files, capsys):
    for flag in flags.replace("--gpu-hour-usd", ",--gpu-hour-usd").split(","):
        assert flag.split()[0] in GUIDE
    assert main([*shlex.split(COMMANDS[0]), *flags.split()]) == 0
    assert capsys.readouterr().out


def test_import_as_the_guide_has_it(files, capsys):
    command = re.search(r"`parlay (models import [^`]+)`", GUIDE).group(1)
    assert main(shlex.split(command)) == 0
    assert main(["models", "show", "my-config.toml"]) == 0
    assert "1,235,814,400" in capsys.readouterr().out
