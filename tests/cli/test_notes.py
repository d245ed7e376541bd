"""What commands note beside their answers: settings without effect, refusals alone, series that are late."""

import re

import pytest


def test_what_changes_nothing_is_said_once_by_commands_of_many_layouts(parlay):
    idle = ["--set", "training.moe_imbalance=2", "--set", "training.bf16_layers=2", "--seq-len", "1024", "--global-batch", "64"]
    bf16 = "note: training.bf16_layers changes nothing: under bf16 no product is narrower\n"
    dense = "training.moe_imbalance changes nothing: the model has no experts\n"
    both = parlay("sweep", "llama-3.2-1b,olmoe-1b-7b", "--on", "dgx-h100", "--gpus", "8,16", *idle).err
    assert sorted(both.splitlines(True)) == sorted([bf16, f"note: llama-3.2-1b: {dense}"])
    assert parlay("ladder", "--on", "dgx-h100", "--gpus", "1,2", "--model", "llama-3.2-1b", *idle).err == f"{bf16}note: {dense}"
    assert parlay("ladder", "--on", "dgx-h100", "--gpus", "1", "--experts", *idle).err == bf16


def test_a_dense_model_launched_with_an_imbalance_is_told_once(parlay):
    ran = parlay(
        *["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.dp4", "--set", "training.moe_imbalance=2", "--launch"]
    )
    assert ran.err == "note: training.moe_imbalance changes nothing: the model has no experts\n"


def test_a_refused_layout_gets_its_refusal_alone(parlay):
    ran = parlay(
        *[
            "estimate",
            "llama-3.1-8b",
            "--on",
            "dgx-h100",
            "--layout",
            "tp2.dp4",
            "--framework",
            "torchtitan",
            "--recompute",
            "norm",
        ]
    )
    assert ran.code == 2
    assert ran.err.startswith("error: layout tp2.pp1.dp4.mb1: torchtitan does not recompute norm\n")


def test_a_file_says_nothing_by_what_is_off(parlay, tmp_path):
    """Megatron's arguments leave sequence parallelism and overlaps off where they do not name them."""
    path = tmp_path / "a.sh"
    path.write_text("--use-distributed-optimizer --bf16 --hidden-dropout 0 --global-batch-size 64 --context-parallel-size 1\n")
    asked = ["estimate", "llama-3.2-1b", "--on", "dgx-h100", "--from", path, "--gpus", "1"]
    assert "changes nothing" not in parlay(*asked).err
    assert "note: layout.sp changes nothing at tp=1\n" in parlay(*asked, "--set", "layout.sp=true").err
    path.write_text(path.read_text().replace("--bf16", "--bf16 --overlap-grad-reduce"))
    assert "note: training.overlap_grad_reduce changes nothing: no other rank" in parlay(*asked).err


def test_selective_is_what_the_framework_calls_so(parlay, run_file):
    """torchtitan's selective mode is by operation; elsewhere the word stands for the attention core."""
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.dp4"]
    file = run_file(
        'model = "llama-3.1-8b"\ncluster = "dgx-h100"\n[layout]\ndp = 8\nrecompute = "selective"\n[training]\nframework = "torchtitan"\n'
    )
    for framework, module in (("torchtitan", "selective_ops"), ("megatron-core", "core_attention")):
        who = ["--framework", framework, "--json"]
        for said in (
            ["--recompute", "selective"],
            ["--set", "layout.recompute=selective"],
            ["--set", "layout.recompute=['selective']"],
        ):
            assert parlay(*asked, *who, *said).document["estimate"]["layout"]["recompute"] == [module]
        assert parlay("estimate", file, *who).document["estimate"]["layout"]["recompute"] == [module]
        found = parlay("plan", "llama-3.1-8b", *asked[2:4], "--gpus", "8", "--fix", "recompute=selective", "--fix", "tp=2", *who)
        assert {tuple(row["estimate"]["layout"]["recompute"]) for row in found.document["rows"]} == {(module,)}
    assert "core_attention" in parlay(*asked, "--framework", "torchtitan", "--recompute", "core_attention").err


def test_a_sweep_names_the_series_that_are_never_in_time(parlay):
    asked = [
        "sweep",
        "llama-3.2-1b,llama-3.1-8b,llama-3.1-70b",
        "--on",
        "dgx-h100",
        "--gpus",
        "1,8",
        "--tokens",
        "100B",
        "--days",
        "10",
    ]
    ran = parlay(*asked, "--seq-len", "1024,2048", "--global-batch", "64,128")
    late = [line for line in ran.out.splitlines() if line.startswith("none in time: ")]
    rows = parlay(*asked, "--seq-len", "1024,2048", "--global-batch", "64,128", "--json").document["rows"]
    in_time = {(r["model"], r["seq_len"], r["global_batch_sequences"]) for r in rows if r["in_time"]}
    every = {(r["model"], r["seq_len"], r["global_batch_sequences"]) for r in rows}
    assert len(late) == len(every - in_time) > 0
    assert in_time
    for model, length, batch in every - in_time:
        days = [
            r["run_s"] / 86400
            for r in rows
            if (r["model"], r["seq_len"], r["global_batch_sequences"]) == (model, length, batch) and r["fits"]
        ]
        (line,) = [x for x in late if f" {model} on dgx-h100 at {length:,} tokens with a batch of {batch}: " in x]
        told = re.search(r"the nearest, 8 GPUs, takes ([\d.]+) days", line)
        assert (float(told[1]) == pytest.approx(min(days), rel=0.01)) if days else line.endswith("nothing fits")
    none = [line for line in ran.out.splitlines() if re.match(r"\S+ on \d+ x dgx-h100", line)]
    assert len(none) == len(set(none)) == sum(not r["fits"] for r in rows)
    assert any(" at 1,024 tokens with a batch of 64: none of " in line for line in none)
    one = parlay("sweep", "llama-3.1-70b", "--on", "dgx-h100", "--gpus", "1", "--seq-len", "1024", "--global-batch", "64").out
    assert "llama-3.1-70b on 1 x dgx-h100: none of" in one
