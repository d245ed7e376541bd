"""--from: a framework's configuration as the question."""

import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from parlay.cli.main import main

DATA = Path(__file__).parents[1] / "frameworks" / "data"
SMALL = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 --micro-batch-size 2"


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_script_is_estimated_and_what_was_not_understood_is_listed(capsys):
    code, out, err = run(capsys, "estimate", "--from", DATA / "llama3-8b-fp8.sh", "--on", "dgx-h100")
    assert code == 0
    assert "layout    tp2.pp1.dp8.mb1: ZeRO-1, recompute core_attention+mlp" in out
    assert "8,192 tokens x 128 sequences, fp8" in out
    assert "note: read as Megatron-LM: 34 settings understood" in err
    assert "note: not understood: --window-attn-skip-freq $SKIP\n" in err


def test_one_setting_is_one_setting(capsys, tmp_path):
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}', encoding="utf-8")
    _, _, err = run(capsys, "estimate", "llama-3.2-1b", "--from", tmp_path / "ds.json", "--on", "dgx-h100", "--gpus", 8)
    assert "note: read as DeepSpeed: 1 setting understood" in err


def test_json_holds_how_the_file_was_read(capsys):
    code, out, _ = run(capsys, "estimate", "llama-3.1-8b", "--from", DATA / "zero3.json", "--on", "dgx-h100", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["imported"]["framework"] == "DeepSpeed"
    assert document["imported"]["not_understood"][-1] == "communication_data_type = fp16"
    assert document["estimate"]["layout"]["dp"] == 32
    assert document["question"]["framework"] == "deepspeed"


def test_plan_takes_model_and_training_and_looks_for_a_layout(capsys):
    code, out, _ = run(
        capsys, "plan", "llama-3.2-1b", "--from", DATA / "llama3-405b.toml", "--on", "dgx-h100", "--gpus", 8, "--json", "--top", 1
    )
    document = json.loads(out)
    assert code == 0
    assert document["question"]["seq_len"] == 8192
    assert document["question"]["precision"] == "fp8"
    assert document["rows"][0]["estimate"]["layout"]["tp"] < 8  # the file's eight ways are not kept for a small model
    assert document["imported"]["framework"] == "torchtitan"


def test_flags_win(capsys):
    script = DATA / "llama3-8b-fp8.sh"
    extra = [
        "--gpus",
        32,
        "--seq-len",
        4096,
        "--precision",
        "bf16",
        "--recompute",
        "none",
        "--zero",
        0,
        "--set",
        "training.optimizer=sgd",
    ]
    _, out, _ = run(capsys, "estimate", "--from", script, "--on", "dgx-h100", "--json", *extra)
    document = json.loads(out)
    asked, layout = document["question"], document["estimate"]["layout"]
    assert (asked["seq_len"], asked["precision"], asked["global_batch_sequences"], asked["optimizer"]) == (
        4096,
        "bf16",
        128,
        "sgd",
    )
    assert (layout["tp"], layout["dp"], layout["zero"], list(layout["recompute"])) == (2, 16, 0, [])
    _, out, _ = run(capsys, "estimate", "--from", script, "--on", "dgx-h100", "--json", "--layout", "tp4.pp2.dp2")
    layout = json.loads(out)["estimate"]["layout"]
    assert (layout["tp"], layout["pp"], layout["dp"], layout["micro_batch"]) == (4, 2, 2, 1)  # degrees are replaced
    assert list(layout["recompute"]) == ["core_attention", "mlp"]  # what the text cannot say stays


def test_the_next_command_of_a_plan_prices_its_first_row(capsys):
    script = str(DATA / "llama3-8b-fp8.sh")
    code, out, _ = run(capsys, "plan", "--from", script, "--on", "dgx-h100", "--gpus", 8, "--top", 1)
    assert code == 0
    command = " ".join(out[out.index("next:") + 5 :].replace("\\\n", " ").split())
    assert command.startswith(f"parlay estimate --from {script} --on dgx-h100 --layout tp")
    code, priced, _ = run(capsys, *command.split()[1:], "--json")
    code, planned, _ = run(capsys, "plan", "--from", script, "--on", "dgx-h100", "--gpus", 8, "--top", 1, "--json")
    first = json.loads(planned)["rows"][0]["estimate"]
    assert json.loads(priced)["estimate"]["step_s"] == pytest.approx(first["step_s"])
    for key in ("layout_short", "memory_peak_bytes"):
        assert json.loads(priced)["estimate"][key] == first[key]


def priced_again(capsys, *asked):
    """Return the first row of a plan, and the estimate and question of the next command that it prints."""
    _, out, _ = run(capsys, "plan", *asked, "--top", 1)
    command = " ".join(out[out.index("next:") + 5 :].replace("\\\n", " ").split())
    document = json.loads(run(capsys, *shlex.split(command)[1:], "--json")[1])
    first = json.loads(run(capsys, "plan", *asked, "--top", 1, "--json")[1])["rows"][0]["estimate"]
    return first, document["estimate"], command


FULL = f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {SMALL} --vocab-size 32000 --tensor-model-parallel-size 2 "
FULL += "--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize("model", ['model = "llama-3.1-8b"', "model = { extends = 'llama-3.1-8b' }", None])
def test_the_next_command_wins_over_what_a_file_says_of_the_layout(capsys, tmp_path, model):
    """The file recomputes everything, without sequence parallelism; the plan is told to do neither."""
    if model is None:
        path = tmp_path / "train.sh"
        path.write_text(FULL, encoding="utf-8")
        asked = ["--from", path]
    else:
        path = tmp_path / "run.toml"
        layout = "[layout]\nrecompute = 'full'\nsp = false\nzero = 0\nvpp = 1\nlast_layers = 7\nschedule = '1f1b'\n"
        path.write_text(f"{model}\ncluster = 'dgx-h100'\ngpus = 64\n[training]\nprecision = 'fp8'\n{layout}", encoding="utf-8")
        asked = [path, "--precision", "bf16", "--fix", "last_layers=rule", "--fix", "zero=1"]
    asked += ["--on", "dgx-h100", "--gpus", 8, "--fix", "recompute=none", "--fix", "sp=on", "--fix", "tp=2", "--fix", "pp=2"]
    asked += ["--tokens", "15T", "--gpu-hour-usd", "2.5"]
    first, again, command = priced_again(capsys, *asked)
    assert first.pop("step_s") == pytest.approx(again.pop("step_s"))
    filled = ("schedule", "shard", "sp")  # a plan fills in what a layout leaves open
    assert again["layout"] | dict.fromkeys(filled) == first["layout"] | dict.fromkeys(filled), command
    assert again["memory_peak_bytes"] == first["memory_peak_bytes"], command
    for key in ("run_s", "gpu_hours", "cost_usd"):
        assert again[key] == pytest.approx(first[key]), command
    assert "--tokens 15T --gpu-hour-usd 2.5" in command


def test_a_layout_beside_a_run_file_replaces_its_degrees(capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        "model = 'llama-3.1-70b'\ncluster = 'dgx-h100'\ngpus = 128\n"
        "[layout]\ntp = 4\ncp = 2\npp = 4\ndp = 4\nvpp = 5\nmicro_batch = 2\nlast_layers = 10\n"
        "schedule = 'interleaved'\nzero = 0\nsp = true\ncp_kind = 'zigzag'\nrecompute = 'full'\nrecompute_layers = 2\ntp_overlap = true\n",
        encoding="utf-8",
    )
    code, out, err = run(capsys, "estimate", path, "--layout", "tp8.pp4.dp2", "--json")
    layout = json.loads(out)["estimate"]["layout"]
    assert code == 0
    assert [layout[a] for a in ("tp", "cp", "pp", "dp", "vpp", "micro_batch", "last_layers")] == [8, 1, 4, 2, 1, 1, None]
    assert (layout["recompute"], layout["recompute_layers"], layout["tp_overlap"]) == (["full"], 2, True)
    assert (
        f"--layout replaces the degrees of {path}; kept from it: zero=0, recompute=full, recompute_layers=2, tp_overlap=true"
        in err
    )
    changed = ["--recompute", "none", "--zero", "1", "--set", "layout.tp_overlap=false"]
    assert "replaces" not in run(capsys, "estimate", path, "--layout", "tp8.pp4.dp2", *changed)[2]


def test_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{SMALL} --tensor-model-parallel-size 2".encode())))
    code, out, _ = run(capsys, "estimate", "--from", "-", "--on", "dgx-h100", "--gpus", 8)
    assert code in (0, 1)
    assert "tp2.pp1.dp4" in out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "not valid JSON: line 1"),
        ("a.json", "[1]", "expected an object, got list"),
        ("a.json", "[" * 100_000, "not valid JSON: nested too deeply"),
        ("a.json", '{"hidden_size": 8, "architectures": []}', "is a model, not a framework's configuration"),
        ("a.json", '{"x": 1}', "has none of DeepSpeed's keys"),
        ("a.json", '{"train_batch_size": {"a": 1}}', "names no model"),
        ("a.toml", "[model", "not valid TOML"),
        ("a.toml", "[other]\nx = 1", "has none of torchtitan's sections"),
        ("a.toml", "model = 'llama-3-8b'\ncluster = 'dgx-h100'", "is a run file of Parlay"),
        ("a.toml", "x = " + "[" * 50_000, "not valid TOML"),
        ("a.yaml", "MODEL_ARGS: [1, 2", "not valid YAML: line "),
        ("a.yaml", "MODEL_ARGS:\n  - --num-layers", "MODEL_ARGS: expected a table, got list"),
        ("a.yaml", "just text", "expected a table, got str"),
        ("a.yaml", "x: 1", "has none of Megatron-LM's arguments"),
        ("a.yaml", "a: &a [1]\nMODEL_ARGS: *a", "uses YAML aliases"),
        ("a.yaml", "MODEL_ARGS: " + "{a: " * 5_000, "not valid YAML"),
        ("a.yaml", "MODEL_ARGS: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a.sh", "", "is empty"),
        ("a.sh", "echo hello", "no Megatron-LM arguments found"),
        ("a.sh", SMALL, "does not say how many GPUs"),
        ("a.sh", f"torchrun --nproc-per-node 8 x.py {SMALL} --tokenizer-type HuggingFaceTokenizer", "the size of the vocabulary"),
        ("a.sh", "torchrun --nproc-per-node 8 x.py --num-layers four", "--num-layers: expected a number, got 'four'"),
        ("a.txt", "x" * 300_000, "is larger than"),
    ],
)
def test_a_file_that_makes_no_sense_gets_one_message(capsys, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    code, out, err = run(capsys, "estimate", "--from", path, "--on", "dgx-h100")
    assert code == 2
    assert message in err + out
    assert "Traceback" not in err
    assert out == ""
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1


def test_a_missing_file_a_directory_and_bytes(capsys, tmp_path):
    for path in (tmp_path / "no.sh", tmp_path):
        assert run(capsys, "estimate", "--from", path, "--on", "dgx-h100")[0] == 2
    (tmp_path / "b.sh").write_bytes(b"\xff\xfe\x00")
    code, _, err = run(capsys, "estimate", "--from", tmp_path / "b.sh", "--on", "dgx-h100")
    assert code == 2
    assert "is not UTF-8 text" in err


def test_optimizer_instances_below_zero_3_are_priced(capsys, tmp_path):
    """Half the ranks share an optimizer state, so each holds twice as much of it."""
    peaks = []
    for more in ("", " --num-distributed-optimizer-instances 2"):
        path = tmp_path / "train.sh"
        path.write_text(f"{FULL} --use-distributed-optimizer{more}", encoding="utf-8")
        code, out, _ = run(capsys, "estimate", "--from", path, "--on", "dgx-h100", "--json")
        assert code == 0
        peaks.append(json.loads(out)["estimate"]["memory_peak_bytes"])
    assert peaks[1] > peaks[0]
