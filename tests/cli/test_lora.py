"""LoRA and packed documents from the command line: asked by a flag, told in the answer, asked again by its next command."""

import shlex

import pytest

ASKED = ("llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64")
LAYOUT = ("llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.pp1.dp4", "--global-batch", "64")


def test_an_answer_says_what_is_trained(parlay):
    ran = parlay("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=qkv,out")
    assert ran.code == 0
    assert "LoRA of rank 16 on qkv, out trains 9.44M parameters" in ran.out
    assert "adapter moments" in ran.out
    question = parlay("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=qkv,out", "--json").document[
        "question"
    ]
    assert (question["lora_rank"], question["parameters_trained"]) == (16, 9_437_184)


def test_without_lora_all_parameters_are_trained(parlay):
    question = parlay("estimate", *LAYOUT, "--json").document["question"]
    assert question["lora_rank"] is None
    assert question["parameters_trained"] == question["parameters_total"]


@pytest.mark.parametrize("more", [(), ("--set", "training.lora_modules=qkv"), ("--set", "training.document_len=256")])
def test_the_next_command_prices_the_same_step(parlay, more):
    ran = parlay("plan", *ASKED, "--lora", "8", *more, "--json")
    again = parlay("plan", *ASKED, "--lora", "8", *more)
    command = shlex.split(
        " ".join(line for line in again.out.splitlines() if line.startswith("  parlay estimate"))[len("  parlay ") :]
    )
    found = parlay(*command, "--json").document["estimate"]
    assert found["step_s"] == pytest.approx(ran.document["rows"][0]["estimate"]["step_s"])


def test_lora_fits_where_training_everything_does_not(parlay):
    asked = ("llama-3.1-70b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64")
    assert parlay("plan", *asked).code == 1
    assert parlay("plan", *asked, "--lora", "16").code == 0


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("megatron-core", 'peft=LoRA(dim=16, target_modules=["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])'),
        ("torchtitan", "is up to the script"),
        ("deepspeed", "is up to the script"),
    ],
)
def test_launch_says_where_lora_is_asked_for(parlay, framework, words):
    ran = parlay("estimate", *LAYOUT, "--lora", "16", "--framework", framework, "--launch")
    assert ran.code == 0
    assert words in ran.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("estimate", *LAYOUT, "--lora", "0"), "greater than 0"),
        (("estimate", *LAYOUT, "--lora", "many"), "whole number"),
        (("estimate", *LAYOUT, "--lora", "3"), "does not divide the LoRA rank of 3"),
        (("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=experts"), "'qkv', 'out', 'up' or 'down'"),
        (
            ("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=[]"),
            "must name one or more of qkv, out, up, down",
        ),
        (("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=qkv,qkv"), "each once"),
        (("estimate", *LAYOUT, "--lora", "16", "--optimizer", "muon"), "adamw, adamw-8bit, sgd"),
        (("estimate", *LAYOUT, "--set", "training.lora_modules=qkv"), "--lora 16"),
        (("estimate", *LAYOUT, "--lora", "²"), "whole number"),
        (("ladder", "--on", "dgx-h100", "--gpus", "8", "--serve", "--lora", "8"), "--lora is about training"),
    ],
)
def test_refused_with_what_is_allowed(parlay, command, words):
    ran = parlay(*command)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_a_run_file_may_ask_for_it(parlay, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "llama-3.1-8b"\ncluster = "dgx-h100"\ngpus = 8\n[training]\nglobal_batch = 64\nlora_rank = 16\n'
        'lora_modules = ["qkv", "out"]\n[layout]\ntp = 2\ndp = 4\n',
        encoding="utf-8",
    )
    from_file = parlay("estimate", file, "--json").document
    flags = parlay("estimate", *LAYOUT, "--lora", "16", "--set", "training.lora_modules=qkv+out", "--json").document
    assert from_file["estimate"]["step_s"] == flags["estimate"]["step_s"]


def test_a_ladder_and_a_sweep_take_it(parlay):
    with_it, without = (
        parlay("ladder", "--on", "dgx-h100", "--gpus", "8", *more, "--json").document["ladders"][0]["steps"][-1]["parameters"]
        for more in (("--lora", "16"), ())
    )
    assert with_it > 2 * without
    rows = parlay("sweep", "llama-3.1-70b", "--on", "dgx-h100", "--gpus", "8,16", "--lora", "16", "--json").document["rows"]
    assert all(row["fits"] for row in rows)


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("mamba-2.8b", '"in_proj", "out_proj"'),
        ("mixtral-8x7b", '"linear_qkv", "linear_proj"'),
        ("deepseek-v3", '"linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj", '
         '"*.mlp.linear_fc1", "*.shared_experts.linear_fc1", "*.mlp.linear_fc2", "*.shared_experts.linear_fc2"'),
    ],
)  # fmt: skip
def test_launch_names_the_layers_that_the_model_has(parlay, model, targets):
    ran = parlay("estimate", model, "--on", "dgx-h100", "--layout", "tp8", "--global-batch", "8", "--lora", "16", "--launch")
    assert f"target_modules=[{targets}])" in ran.err


def test_modules_that_a_model_lacks_are_not_said_to_be_adapted(parlay):
    ran = parlay("estimate", "mixtral-8x7b", "--on", "dgx-h100", "--layout", "tp8", "--global-batch", "8", "--lora", "16")
    assert "LoRA of rank 16 on qkv, out trains" in ran.out


def test_packed_documents_are_told(parlay):
    ran = parlay("estimate", *LAYOUT, "--set", "training.document_len=512")
    assert "documents of 512 tokens packed" in ran.out
    assert "documents of 10,000,000 tokens cut at" in parlay("estimate", *LAYOUT, "--set", "training.document_len=10000000").out
    assert parlay("estimate", *LAYOUT, "--set", "training.document_len=512", "--json").document["question"]["document_len"] == 512
    assert "up to how the data is packed" in parlay("estimate", *LAYOUT, "--set", "training.document_len=512", "--launch").err


def test_a_term_of_adapters_is_explained(parlay):
    ran = parlay("explain", "memory.optimizer.adapter.moments", *LAYOUT, "--lora", "16")
    assert ran.code == 0
    assert "adapter moments" in ran.out
