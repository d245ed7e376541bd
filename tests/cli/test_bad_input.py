"""Whatever is asked wrongly is one message that names the place and what is allowed, and exit code 2."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PLAN = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8"]
ESTIMATE = ["estimate", "llama-3.1-70b", "--on", "dgx-h100"]


def assert_refused(ran, message, hint=""):
    assert ran.code == 2
    assert ran.out == ""
    lines = ran.err.rstrip("\n").split("\n")
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert "Traceback" not in ran.err
    assert len(lines) <= 2
    if hint:
        assert lines[1].startswith("hint: ")
        assert hint in lines[1]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["plan", "llama-3.1-80b", "--on", "dgx-h100", "--gpus", "8"], "unknown model 'llama-3.1-80b'", "llama-3.1-8b"),
        (["plan", "llama-3.1-8b", "--on", "dgx-h10", "--gpus", "8"], "unknown cluster 'dgx-h10'", "dgx-h100"),
        (["plan", "llama-3.1-8b", "--gpus", "8"], "no cluster given", "parlay hardware list"),
        (["plan", "llama-3.1-8b", "--on", "dgx-h100"], "no GPU count given", "--gpus"),
        ([*PLAN[:-1], "0"], "gpus: must be a whole number from 1", ""),
        ([*PLAN[:-1], "-8"], "gpus: must be a whole number from 1", "such as 64"),
        ([*PLAN, "--frobnicate"], "no such option: --frobnicate", "`parlay plan --help`"),
        ([*PLAN, "--seqlen", "8"], "no such option: --seqlen", "did you mean --seq-len?"),
        (["sweep", "", "--on", "dgx-h100", "--gpus", "8"], "MODEL: '' is not a list", "llama-3.1-8b,llama-3.1-70b"),
        (["sweep", "llama-3.1-8b", "--on", ",", "--gpus", "8"], "--on: ',' is not a list", "dgx-h100,dgx-h200"),
        ([*ESTIMATE, "--layout", "tp8.tp4"], "'tp' is given twice", "every axis once"),
        ([*ESTIMATE, "--layout", "tp0"], "tp must be at least 1, got 0", "leaving it out"),
        (
            ["explain", "nonsense.term", *ESTIMATE[1:], "--layout", "tp8.pp4"],
            "unknown term 'nonsense.term'",
            "parlay explain step",
        ),
        (
            ["schedule", "1f1b", "--weight", "5"],
            "--weight: the weight gradient takes 5 s, more than the whole backward of 2 s",
            "at most 2",
        ),
        (["show", "sp", "--tp", "3", "--seq", "10", "--hidden", "6"], "--seq: 10 does not divide over --tp 3", "9 or 12"),
        (["show", "sp", "--tp", "8", "--seq", "16", "--hidden", "7"], "--hidden: 7 does not divide over --tp 8", "choose 8"),
        ([*PLAN, "--seq-len", "-3"], "seq_len", ""),
        ([*PLAN, "--seq-len", "nan"], "'nan' is not a count", "512"),
        ([*PLAN, "--seq-len", "8 GiB"], "'8 GiB' is not a count", "512"),
        ([*PLAN, "--seq-len", "1e300"], "seq_len", ""),
        ([*PLAN, "--global-batch", "0"], "global_batch", ""),
        ([*PLAN, "--precision", "bf17"], "precision", ""),
        ([*PLAN, "--optimizer", "adam"], "optimizer", ""),
        (
            [*PLAN, "--optimizer", "adamw-8bit", "--set", "training.moment_dtype=bf16"],
            "training.moment_dtype: adamw-8bit keeps its moments in 8 bits alone, got bf16",
            "--set training.moment_dtype=null",
        ),
        ([*PLAN, "--framework", "megatron"], "framework", ""),
        ([*PLAN, "--tokens", "15X"], "'15X' is not a count", "15T"),
        (
            ["plan", "llama-3.1-8b", "--on", "dgx-a100", "--gpus", "8", "--set", "training.attention_kernel=flash-3"],
            "training.attention_kernel: flash-3 needs an NVIDIA device of compute capability 9.0 or higher, and NVIDIA A100 SXM4 80GB has 8.0",
            "flash-2",
        ),
        (
            ["estimate", "llama-3.1-8b", "--on", "mi300x-8", "--layout", "dp8", "--set", "training.attention_kernel=flash-4"],
            "compute capability 9.0 or higher, and AMD Instinct MI300X",
            "flash-2",
        ),
        ([*PLAN, "--gpu-hour-usd", "$2.5"], "--gpu-hour-usd: '$2.5' is not a price", "such as 2.5"),
        ([*PLAN[:-1], "1e30"], "--gpus: must be a whole number from 1 to 16,777,216, got 1e30", ""),
        (
            ["plan", "meta-llama/Llama-3.1-70B", *PLAN[2:]],
            "nothing is fetched from Hugging Face",
            "the catalog has llama-3.1-70b",
        ),
        (["plan", "nobody/zyxwvut", *PLAN[2:]], "nobody/zyxwvut: no such file", "download its config.json"),
        (["estimate", *PLAN[1:], "--layout", "dp8", "--zero", "4"], "--zero: '4' is not a ZeRO stage", "0, 1, 2 and 3"),
        ([*PLAN, "--gpu-hour-usd", "nan"], "a price per GPU-hour must be above 0", ""),
        ([*PLAN, "--gpu-hour-usd", "-1"], "a price per GPU-hour must be above 0", ""),
        (
            [*PLAN, "--global-tokens", "4M", "--seq-len", "8192"],
            "not a whole number of sequences",
            "choose 3,997,696 or 4,005,888",
        ),
        ([*PLAN, "--set", "training.seqlen=8192"], "unknown key 'seqlen'", "did you mean seq_len"),
        ([*PLAN, "--set", "trainning.seq_len=8192"], "unknown section 'trainning'", "did you mean training"),
        ([*PLAN, "--set", "training"], "'training' is not a setting", "--set training.seq_len"),
        ([*PLAN, "--fix", "tq=8"], "tq", ""),
        ([*PLAN, "--fix", "mbs=1", "--fix", "micro_batch=2"], "'micro_batch' is fixed twice", "--fix micro_batch=A,B"),
        ([*PLAN, "--fix", "schedule=zb-v"], "megatron-core does not offer the pipeline schedule zb-v", "torchtitan: gpipe"),
        ([*PLAN, "--require", "schedule=zb-v"], "schedule has names, not sizes", "write --fix schedule=zb-v"),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4", "--recompute", ","], "',' names no module", ""),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4", "--recompute", "full,none"], "'none' stands alone", ""),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4.ulysses2"], "ulysses=2 is the inner degree of usp", "cp_kind=usp"),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4.ulysses2", "--set", "layout.cp_kind=usp"], "but cp is 1", "raise cp"),
        ([*ESTIMATE, "--layout", "tp12.pp2.dp4"], "tp=12 does not divide", "tp may be 1, 2, 4, 8 (8 GPUs share"),
        ([*PLAN, "--fix", "ep=8"], "--fix ep=8: llama-3.1-8b has no experts", "leave out ep"),
        ([*PLAN, "--require", "ep>=2"], "ep>=2: llama-3.1-8b has no experts", "leave out ep"),
        ([*PLAN, "--require", "etp>=2"], "etp>=2: llama-3.1-8b has no experts", "leave out etp"),
        ([*PLAN, "--fix", "ulysses=2", "--fix", "cp_kind=zigzag"], "ulysses is the inner degree of usp alone", "cp_kind=usp"),
        ([*PLAN, "--require", "zero>=4"], "zero>=4: leave no value of zero", "zero can be 0, 1, 2, 3"),
        ([*PLAN, "--require", "vpp>=99"], "vpp>=99: leave no value of vpp", "vpp can be 1 to 34"),
        ([*PLAN, "--require", "tp>=16"], "tp>=16: leave no value of tp", "tp can be 1, 2, 4, 8"),
        (
            [*PLAN, "--min-micro-batches", "600"],
            "more than the batch has",
            "a batch of 512 sequences allows at most 512, with dp=1",
        ),
        ([*PLAN, "--min-micro-batches", "200", "--fix", "dp=4"], "more than the batch has", "at most 128, with dp=4"),
        ([*PLAN, "--fix", "mbs=1024"], "micro-batches of 1024 do not divide the batch of 512 sequences", "1, 2, 4, 8"),
        (
            [*PLAN, "--fix", "mb=3", "--fix", "dp=4"],
            "dp=4 x micro-batches of 3 do not divide the batch",
            "dp x micro_batch can be",
        ),
        ([*PLAN, "--headroom", "1e9"], "must be from 0 to 1,000,000 GiB, got 1e9", "4GiB"),
        ([*PLAN, "--headroom", "-1"], "must be from 0 to 1,000,000 GiB, got -1", "4GiB"),
        ([*PLAN, "--headroom", "4s"], "'4s' is not a quantity in bytes", "GiB"),
        ([*PLAN, "--gpu-hour-usd", "1e30"], "must be above 0 and below 1,000,000, got 1e+30", "2.5"),
        ([*PLAN[:-1], "1-8"], "--gpus: '1-8' is not a count", "512"),
        ([*PLAN[:-1], "0.5k1"], "--gpus: '0.5k1' is not a count", "512"),
        (["schedule", "1f1b", "--forward", "5GB"], "--forward: '5GB' is not a quantity in s", "2.1 ms"),
        (["explain", "step.exposed.tp", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8"], "no layout given", "--layout"),
        ([*ESTIMATE, "--layout", "tp8", "--set", "layout.last_layer=null"], "unknown key 'last_layer'", "last_layers"),
        ([*ESTIMATE, "--layout", "tp8", "--set", "model=null"], "no model given", "models list"),
        ([*ESTIMATE, "--layout", "tp8", "--set", "layout.tp=rule"], "layout: tp", ""),
        ([*ESTIMATE, "--layout", "tp8", "--set", "layout.order=[1,2]"], "got 1 (1 more problem)", ""),
        (["show", "experts", "--link", "-5GB/s"], "'-5GB/s' must be finite and greater than zero", "write it like"),
        (["show", "experts", "--link", "0GB/s"], "must be finite and greater than zero", "write it like"),
        (["hardware", "show", "nope.json"], "read from TOML files alone, and there is no such file", "extends"),
        (["hardware", "show", "/zyxw.toml"], "no such file", "a file that exists"),
        (["plan", "llama-3.1-8b", "--on", "dgx-a100", "--gpus", "8", "--precision", "fp8"], "has no fp8 matmul rate", "bf16"),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4", "--gpus", "128"], "64", ""),
        ([*ESTIMATE, "--layout", "tp16.pp4"], "tp=16", ""),
        ([*ESTIMATE, "--layout", "tp8.pp2.dq4"], "'dq4' is not part of a layout", "tp8.pp4.dp2"),
        ([*ESTIMATE, "--layout", "tp8.tp8"], "'tp' is given twice", ""),
        ([*ESTIMATE, "--layout", "tp0"], "tp", ""),
        ([*ESTIMATE, "--layout", ""], "is not part of a layout", ""),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp3", "--global-batch", "512"], "512", ""),
        ([*ESTIMATE, "--layout", "tp8.pp2.dp4", "--recompute", "everything"], "unknown recompute module 'everything'", ""),
        ([*ESTIMATE, "--gpus", "64"], "no layout given", "parlay plan"),
        (ESTIMATE, "no GPU count given", "or give a layout"),
        (["compare", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp8"], "two layouts are needed, got 1", "twice"),
        (["plan", "--model", "llama-3.1-8b"], "no such option: --model", "the model comes first"),
        (["plan", "llama-3.1-8b", "--tp", "8"], "no such option: --tp", "--fix tp=8"),
        (
            ["plan", "llama-3.1-70b", "--on", "dgx-h100", "--gpus", "64", "--fix", "tp=3"],
            "tp=3 does not divide 64 GPUs",
            "1, 2, 4",
        ),
        (
            ["plan", "llama-3.1-70b", "--on", "dgx-h100", "--gpus", "8", "--fix", "tp=4", "--max", "tp=2"],
            "leave no value of tp",
            "loosen",
        ),
        (
            ["plan", "mixtral-8x7b", "--on", "dgx-h100", "--gpus", "64", "--fix", "ep=3"],
            "does not divide 8 experts",
            "1, 2, 4, 8",
        ),
        (
            ["plan", "llama-3.1-70b", "--on", "dgx-h100", "--gpus", "64", "--fix", "tp=8", "--fix", "pp=16"],
            "no layout of 64",
            "64",
        ),
        (["check", "llama-3.1-8b"], "is not a run file", "TOML"),
        (["show", "ring", "--ranks", "0"], "--ranks", "parlay show ring --help"),
        (["check", "missing.toml"], "no such file", ""),
        (["explain", "one_f_one_b_bubble"], "unknown formula", "one_f_one_b_bubble_s"),
        (["explain", "in_flight.gpipe_in_flight", "--set", "micro_batches=0.5"], "`micro_batches` must be", ""),
        (["explain", "in_flight.gpipe_in_flight", "--set", "micro=4"], "unknown argument 'micro'", "micro_batches"),
        (["explain", "roofline.machine_balance", "--set", "flops_per_s=3 GB"], "'3 GB' is not a quantity in FLOP/s", "TFLOP/s"),
        (["explain", "roofline.machine_balance", "--set", "flops_per_s=989 TFLOP/s"], "needs memory_bytes_per_s", "--set"),
        (
            ["explain", "pipeline.one_f_one_b_bubble_s", "--gpus", "4", "--on", "dgx-h100"],
            "--on, --gpus: a formula is of no estimate",
            "leave them out, or give a value of the formula by --set NAME=VALUE: stages",
        ),
        (["explain", "--seq-len", "4096"], "--seq-len: the list of formulas takes no such option", "leave it out"),
        (["explain", "--set", "stages=4"], "--set: the list of formulas takes no such option", "name a formula"),
        (["explain", "step.bubble"], "names a term of an estimate, not a formula", "MODEL --on CLUSTER --layout"),
        (["verify", "moe-capacty"], "unknown example", "moe-capacity"),
        (["models", "show", "llama-3.1-8b", "--seq-len", "0"], "--seq-len: '0' must be finite and greater than zero", "512"),
        (
            ["models", "show", "llama-3.1-8b", "--seq-len", "1e30"],
            "--seq-len: must be a whole number from 1 to 1,073,741,824",
            "",
        ),
        (["models", "show", "llama-3.1-8b", "--seq-len", "8k,9k"], "--seq-len: '8k,9k' is not a count", "512"),
        (["models", "show", "llama"], "unknown model 'llama'", "did you mean"),
        (["hardware", "show", "h1000"], "unknown", "did you mean"),
    ],
)
def test_command_line(parlay, arguments, message, hint):
    assert_refused(parlay(*arguments), message, hint)


def test_a_folder_without_a_configuration(parlay, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert_refused(parlay("models", "show", "mine"), "mine: is a folder without a config.json", "a model's TOML file")
    assert_refused(parlay("models", "show", "./mine"), "holds no config.json", "name the file itself")


RUN = 'model = "llama-3.1-8b"\ncluster = "dgx-h100"\n'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "is missing", "model"),
        ('model = "llama-3.1-8b', "not valid TOML", ""),
        (RUN + "[layout\n", "not valid TOML", ""),
        (RUN + "[layot]\ntp = 8\n", "unknown key 'layot'", "did you mean layout"),
        (RUN + "[layout]\ntpp = 8\n", "layout: tpp: unknown key 'tpp'", "did you mean tp"),
        (RUN + "[layout]\ntp = 'eight'\n", "layout: tp: ", ""),
        (RUN + "[layout]\ntp = nan\n", "layout: tp: ", ""),
        (RUN + "[layout]\ntp = 8.5\n", "layout: tp: ", ""),
        (RUN + "[layout]\ntp = true\n", "layout: tp: must be a number, got true", ""),
        (RUN + "[training]\nseq_len = true\n[layout]\ntp = 8\n", "training: seq_len: must be a number, got true", ""),
        (RUN + "layout = 3\n", "layout: expected a table, got int", "[layout]"),
        (RUN + "[training]\nseq_len = '8 GB'\n[layout]\ntp = 8\n", "training.seq_len: '8 GB' is not a count", ""),
        (RUN + "[layout]\ntp = 8\n[budget]\nmemory = 70\n", "budget.memory: unknown limit 'memory'", "memory_gib"),
        (
            RUN + "[layout]\ntp = 8\n[budget]\nmemory_gib = -70\n",
            "budget.memory_gib: must be a number above 0 and below 1e30",
            "",
        ),
        (RUN + "[layout]\ntp = 8\n[budget]\ngpu_hours = 70\n", "cannot be checked", "total_tokens"),
        (RUN + "gpus = 8\n", "layout: is missing", "parlay plan"),
        ('model = 3\ncluster = "dgx-h100"\n[layout]\ntp = 8\n', "model: must be a name, a file or a table, got 3", ""),
        ('model = "llama-3.1-8b"\ncluster = 3\n[layout]\ntp = 8\n', "cluster: expected a name", ""),
    ],
)
def test_run_files(parlay, run_file, text, message, hint):
    path = run_file(text)
    ran = parlay("check", path)
    assert_refused(ran, message, hint)
    assert str(path) in ran.err


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "RUN", "--on", "dgx-h100", "--gpus", "8"],
        ["models", "show", "RUN"],
        ["ladder", "--on", "dgx-h100", "--gpus", "8", "--model", "RUN"],
    ],
    ids=lambda c: c[0],
)
def test_a_run_file_where_a_model_is_wanted(parlay, run_file, command):
    path = run_file(RUN + "[layout]\ntp = 8\n")
    ran = parlay(*(path if word == "RUN" else word for word in command))
    assert_refused(ran, "is a run file of Parlay, not a model", "give its model instead: llama-3.1-8b")


def test_a_run_file_given_as_the_cluster_is_said_to_be_one(parlay, run_file):
    path = run_file("model = 'llama-3.1-8b'\ncluster = 'dgx-h100'\ngpus = 8\n")
    ran = parlay("plan", "llama-3.1-8b", "--on", path)
    assert_refused(ran, "is a run file of Parlay, not a cluster", f"parlay plan {path}")
    assert parlay("plan", path, "--top", "1").code == 0


def test_a_problem_of_a_setting_is_not_said_to_be_in_a_file(parlay):
    ran = parlay(*ESTIMATE, "--layout", "tp8", "--set", "layout.order=[1,2]")
    assert "file" not in ran.err


def test_a_folder_with_a_config_is_offered(parlay, tmp_path, monkeypatch):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert_refused(parlay("plan", "hf", "--on", "dgx-h100", "--gpus", "8"), "unknown model 'hf'", "write ./hf")


@pytest.mark.parametrize(
    ("command", "closed", "message"),
    [
        ("models list", ">&-", "standard output: is closed"),
        ("plan llama-3.1-8b --on dgx-h100 --gpus 8 --json", ">&-", "standard output: is closed"),
        ("estimate llama-3.1-8b --from - --on dgx-h100", "<&-", "standard input: is closed"),
        ("models import -", "<&-", "standard input: is closed"),
        ("models import -", "0>/dev/null", "standard input: cannot be read"),
        ("models show nope", "2>&-", ""),
    ],
)
def test_closed_streams_are_no_bug_of_ours(command, closed, message):
    ran = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m parlay {command} {closed}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: {message}" if message else "")
    assert "bug" not in ran.stderr


def test_mfu_as_a_percentage(parlay, run_file):
    path = run_file(RUN + "[layout]\ntp = 8\n[budget]\nmfu = 40\n")
    assert_refused(parlay("check", path), "must be a share from 0 to 1, got 40", "is it 0.4?")


def test_files_are_not_replaced_unasked(parlay, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text("mine", encoding="utf-8")
    command = ["schedule", "1f1b", "--stages", "2", "--micro-batches", "4", "-o", trace]
    assert_refused(parlay(*command), "exists already", "--force")
    assert trace.read_text(encoding="utf-8") == "mine"
    assert parlay(*command, "--force").code == 0
    assert trace.read_text(encoding="utf-8").startswith("{")


def test_an_import_never_replaces_what_it_read(parlay, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    assert_refused(parlay("models", "import", config, "-o", config, "--force"), "is the file that was read", "my-model.toml")
    assert_refused(parlay("models", "import", tmp_path, "-o", config, "--force"), "is the file that was read", "my-model.toml")
    assert json.loads(config.read_text(encoding="utf-8")) == {"model_type": "llama"}


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_bug_of_ours():
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "parlay", "models", "list"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: standard output: cannot be written (No space left")


def test_a_pipe_that_knows_ascii_alone():
    command = [sys.executable, "-m", "parlay", "explain", "pipeline.one_f_one_b_bubble_s"]
    ran = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert ran.returncode == 0
    assert ran.stdout.isascii()
    assert b"?" in ran.stdout


def test_a_framework_file_whose_model_rests_on_an_unset_variable(parlay, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("python pretrain_gpt.py --num-layers $L --hidden-size 1024 --num-attention-heads 16 --seq-length 1024\n")
    for command in ("estimate", "plan"):
        ran = parlay(command, "--from", script, "--on", "dgx-h100")
        assert_refused(ran, "names no model (not understood: --num-layers $L)", f"name it before the file: MODEL --from {script}")


def test_a_price_without_tokens_is_said_to_give_no_cost(parlay):
    ran = parlay("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--gpu-hour-usd", "2")
    assert ran.code == 0
    assert "--gpu-hour-usd needs --tokens" in ran.err


def test_a_huge_file(parlay, run_file):
    assert_refused(parlay("check", run_file("#" * (2 << 20))), "is larger than")


def test_a_binary_file(parlay, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00model")
    assert_refused(parlay("check", path), "is not UTF-8 text")


def test_a_directory(parlay, tmp_path):
    (tmp_path / "run.toml").mkdir()
    assert_refused(parlay("check", tmp_path / "run.toml"), "cannot be read")


def test_deeply_nested_toml(parlay, run_file):
    assert_refused(parlay("check", run_file("x = " + "[" * 5000 + "]" * 5000)), "nested too deeply")


@pytest.mark.parametrize(
    ("name", "text", "arguments", "message", "hint"),
    [
        ("run.toml", "model = 'llama-3.1-8b'\n[layout]\ndp = 8\n", ["check", "run.toml"], "no cluster given", 'cluster = "dgx-h100"'),
        ("run.toml", "model = 'llama-3.1-8b'\ncluster = 'dgx-h100'\n", ["check", "run.toml"], "no GPU count given", "gpus = 64"),
        ("c.toml", "", ["plan", "llama-3.1-8b", "--on", "c.toml", "--gpus", "8"], "is empty", "extends ="),
        ("m.json", '{"a":', ["plan", "m.json", "--on", "dgx-h100", "--gpus", "8"], "not valid JSON", "that line"),
        ("d.json", '{"a":', [*PLAN, "--from", "d.json"], "not valid JSON", "that line"),
        ("s.json", '{"a":', ["schedule", "s.json"], "not valid JSON", "TOML"),
        (
            "c.toml", 'extends = "dgx-h100"\n[device]\nmemory = "160 GiB"\n', ["plan", "llama-3.1-8b", "--on", "c.toml", "--gpus", "8"],
            "device: memory: must be a table, got '160 GiB'", "its keys: marketed, allocatable, visible (may be left out)",
        ),
    ],
)  # fmt: skip
def test_a_bad_file_gets_a_hint_on_what_to_write(parlay, tmp_path, monkeypatch, name, text, arguments, message, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert_refused(parlay(*arguments), message, hint)


def test_a_budget_takes_mfu_in_percent(parlay, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("model = 'llama-3.2-1b'\ncluster = 'dgx-h100'\n[layout]\ndp = 8\n[budget]\nmfu = '1.5%'\n")
    ran = parlay("check", str(path), "--json")
    assert ran.code == 0
    assert [x["limit"] for x in json.loads(ran.out)["limits"] if x["name"] == "mfu"] == [0.015]
    assert_refused(parlay("check", str(path), "--set", 'budget.step_s="45%"'), "'45%' is a share, but step_s is none", "mfu")
    assert_refused(parlay("check", str(path), "--set", 'budget.mfu="145%"'), "must be a share from 0 to 1", "")


@pytest.mark.parametrize("arguments", [
    ["plan", "gpt2", "--on", "dgx-h100", "--gpus", "8"], ["estimate", "gpt2", "--on", "dgx-h100", "--layout", "dp8"],
    ["sweep", "gpt2", "--on", "dgx-h100", "--gpus", "8"], ["compare", "gpt2", "--on", "dgx-h100", "--layout", "dp8", "--layout", "tp2.dp4"],
])  # fmt: skip
def test_a_context_that_the_model_was_not_made_for_is_noted_once(parlay, arguments):
    ran = parlay(*arguments, "--seq-len", "2048", "--json")
    note = "note: a context of 2,048 tokens is longer than the 1,024 positions that GPT-2 small was made for: they must be extended\n"
    assert ran.err == note
    assert ran.code == 0
    assert parlay(*arguments, "--seq-len", "1024", "--json").err == ""
    if arguments[0] != "sweep":
        assert parlay(*arguments, "--seq-len", "2048", "--set", "training.document_len=512", "--json").err == ""


def test_a_run_of_less_than_a_step_is_noted(parlay):
    ran = parlay(*ESTIMATE, "--layout", "tp8.pp4", "--tokens", "15", "--json")
    assert (
        ran.err == "note: the run of 15 tokens is less than one step of 2,097,152: its time and cost are of that part of a step\n"
    )
    assert parlay(*ESTIMATE, "--layout", "tp8.pp4", "--tokens", "2097152", "--json").err == ""


def test_no_minus_zero_in_json(capsys):
    from parlay.cli.output import say_json

    say_json({"a": -0.0, "b": [(-0.0, 1.5)], "c": 0, "d": -1.0})
    assert "-0.0" not in (out := capsys.readouterr().out)
    assert json.loads(out) == {"a": 0.0, "b": [[0.0, 1.5]], "c": 0, "d": -1.0}
