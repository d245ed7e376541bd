"""The ladder: sizes never shrink, the next size does not fit, and what people reported about single rungs."""

import dataclasses
import itertools
import json
import re

import pytest

import parlay.search.ladder as module
from parlay.cli.main import main
from parlay.estimate.counts import parameters
from parlay.estimate.estimate import estimate
from parlay.estimate.offload import host_has_room
from parlay.hardware.load import load_cluster
from parlay.layouts.rules import Question
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.ladder import ladder_lines, ladder_report, memory_by_term
from parlay.report.table import Page
from parlay.search.ladder import (
    DEPTHS,
    LAYERS_PER_HIDDEN,
    STEP,
    family,
    fits,
    ladder,
    largest,
    model_ladder,
    rungs,
    whole_batch,
)
from parlay.search.space import Counted, Space, layouts_of

A100 = load_cluster("dgx-a100-40gb")
WORK = Workload(seq_len=4096, global_batch=512)


@pytest.fixture(scope="module")
def dense():
    return ladder(A100, 8, WORK, context_of=load_model("llama-3.2-3b"))


@pytest.fixture(scope="module")
def mixture():
    return ladder(A100, 8, WORK, experts=True)


def test_sizes_grow_and_every_layout_is_priced_alike(dense, mixture):
    for found in (dense, mixture):
        sizes = [s.parameters for s in found.steps]
        assert sizes == sorted(sizes)
        assert sizes[-1] > 10 * sizes[0] > 0
        for step in found.steps:
            e = estimate(step.model, A100, WORK, step.layout)
            assert e.fits
            assert e.tokens_per_s_per_gpu == pytest.approx(step.tokens_per_s_per_gpu, rel=1e-5)
            assert e.peak_bytes == pytest.approx(step.memory.value, rel=1e-9)
            assert sum(memory_by_term(step.memory).values()) == pytest.approx(step.memory.value)
            assert step.layout.gpus == (1 if step.rung == "one GPU" else 8)


def test_the_next_size_does_not_fit(dense):
    shapes = family()
    for rung, step in zip(rungs(experts=False), dense.steps, strict=True):
        at = shapes.index(step.model)
        assert fits(step.model, A100, WORK, 8, rung)
        assert not fits(shapes[at + 1], A100, WORK, 8, rung)


def test_what_each_rung_may_use(dense, mixture):
    allowed = {
        "one GPU": set(),
        "data parallel": {"dp"},
        "+ tensor parallel": {"tp", "dp"},
        "+ context parallel": {"tp", "cp", "dp"},
    }
    for step in dense.steps:
        if step.rung in allowed:
            assert {a for a in ("tp", "cp", "pp", "dp", "ep") if getattr(step.layout, a) > 1} <= allowed[step.rung]
        assert step.layout.offload_optimizer in ((0.0, 1.0) if "host" in step.rung else (0.0,))
        assert (step.layout.recompute == ()) or "recompute" in step.rung or "host" in step.rung
    names = [s.rung for s in mixture.steps]
    assert "+ expert parallel" in names
    assert "+ expert parallel" not in [s.rung for s in dense.steps]
    assert all(s.layout.ep == 1 for s in mixture.steps[: names.index("+ expert parallel")])


def test_zero_shrinks_what_it_shards(dense):
    """ZeRO (arXiv:1910.02054, Figure 1): 7.5B on 64 GPUs take 120, 31.4, 16.6 and 1.9 GB of model state.

    There gradients take 2 bytes; Megatron keeps them in fp32, except at stage 3, where the shards are bf16.
    """
    by_name = {s.rung: s for s in dense.steps}
    for rung, bytes_each in (("data parallel", 18), ("+ ZeRO-1", 6 + 12 / 8), ("+ ZeRO-2", 2 + 16 / 8), ("+ ZeRO-3", 16 / 8)):
        step = by_name[rung]
        held = sum(memory_by_term(step.memory)[k] for k in ("weights", "gradients", "optimizer"))
        assert held == pytest.approx(bytes_each * step.parameters, rel=0.02)


def test_one_gpu_of_40_gb_trains_between_1_and_2_billion_parameters(dense):
    """18 bytes a parameter leave room for at most 42 GB / 18; ZeRO's paper trains 1.4B on a 32 GB V100 at 16 bytes."""
    assert 1.0e9 < dense.steps[0].parameters < 42.4e9 / 18


def test_contexts_never_shrink_and_are_the_longest(dense):
    found = [s.longest_context or 0 for s in dense.steps]
    assert found == sorted(found)
    model = load_model("llama-3.2-3b")
    for rung, step in zip(rungs(experts=False), dense.steps, strict=True):
        if step.longest_context:
            assert fits(model, A100, WORK.model_copy(update={"seq_len": step.longest_context}), 8, rung)
            assert not fits(model, A100, WORK.model_copy(update={"seq_len": 2 * step.longest_context}), 8, rung)


def test_a_given_model_gets_fewest_gpus_and_longest_sequence():
    found = model_ladder(load_model("llama-3.1-8b"), A100, 8, WORK)
    assert not found.growing
    fewest = [s.fewest_gpus or 1 << 30 for s in found.steps]
    assert all(b <= a for a, b in itertools.pairwise(fewest))
    state = 18 * parameters(load_model("llama-3.1-8b")).total
    by_name = {s.rung: s for s in found.steps}
    assert by_name["one GPU"].layout is None
    assert by_name["+ ZeRO-3"].fewest_gpus * found.limit_bytes > state
    assert by_name["+ optimizer on the host"].fewest_gpus < by_name["+ recompute"].fewest_gpus


def test_fewest_gpus_are_whole_nodes_not_powers_of_two():
    """Three nodes of DGX H100 hold Llama 3.1 70B with full recompute; two do not, whichever layout."""
    model, h100, work = load_model("llama-3.1-70b"), load_cluster("dgx-h100"), Workload()
    found = model_ladder(model, h100, 64, work)
    by_name = {s.rung: s for s in found.steps}
    rung = next(r for r in rungs(experts=False) if r.name == "+ recompute")
    assert by_name["+ recompute"].fewest_gpus == 24
    assert fits(model, h100, whole_batch(work, 24), 24, rung)
    assert not fits(model, h100, whole_batch(work, 16), 16, rung)
    text = " ".join(" ".join(ladder_lines([found], Page())).split())
    assert "layout on 64 GPUs" in text
    assert "parts of a node that divide it, and whole nodes" in text


def test_hosts_without_room_take_no_optimizer():
    model = load_model("llama-3.1-70b")
    space = Space(offload_optimizer=(0.0, 1.0), vpp=(1,), micro_batch=(1,))
    layouts = next(layouts_of(Question(model, A100, WORK, 8), space, Counted()))
    held = A100.host_memory_bytes
    small = A100.model_copy(update={"host_memory_bytes": held.model_copy(update={"value": 12.0 * 70.6e9 * 0.99})})
    unknown = A100.model_copy(update={"host_memory_bytes": None})
    assert host_has_room(model, A100, WORK, layouts).all()
    assert host_has_room(model, unknown, WORK, layouts).all()
    assert (host_has_room(model, small, WORK, layouts) == (layouts.offload_optimizer == 0)).all()
    copies = dataclasses.replace(layouts, zero=layouts.zero * 0)
    assert not host_has_room(model, A100, WORK, copies).all()


def test_shapes_are_llama_like():
    shapes = family()
    sizes = [parameters(s).total for s in shapes]
    assert sizes == sorted(sizes)
    assert all(s.hidden % STEP == 0 for s in shapes)
    for s in shapes:
        assert min(DEPTHS) * 0.8 < s.layer_count * LAYERS_PER_HIDDEN / s.hidden < max(DEPTHS) * 1.2
    near = min(shapes, key=lambda s: abs(parameters(s).total - 70.6e9))
    assert (near.hidden, near.layer_count) == pytest.approx((8192, 80), rel=0.2)


@pytest.mark.parametrize("last", [-1, 0, 1, 2, 7, 30, 98, 99])
def test_largest_finds_the_last(last):
    asked = []
    assert largest(100, lambda i: asked.append(i) or i <= last) == last
    assert len(asked) <= 16


def test_lines_and_documents(dense, mixture):
    text = "\n".join(ladder_lines([dense, mixture], Page()))
    assert "longest context of Llama 3.2 3B" in text
    bars = [line.count("#") for line in text.splitlines() if line.rstrip().endswith("#")]
    assert max(bars) == 30
    assert len(bars) == len(dense.steps) + len(mixture.steps)
    document = ladder_report([dense]).model_dump()
    assert [s["parameters"] for s in document["ladders"][0]["steps"]] == [s.parameters for s in dense.steps]
    assert max(len(line) for line in ladder_lines([dense], Page(80))) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "dgx-a100", "--gpus", "0"], "greater than zero"),
        (["--on", "dgx-a100", "--gpus", "8,x"], "'x'"),
        (["--on", "dgx-a10", "--gpus", "8"], "dgx-a10"),
        (["--on", "dgx-a100", "--gpus", "8", "--model", "llama-3.1-8b", "--experts"], "--model asks about one model"),
        (["--on", "dgx-a100", "--gpus", "8", "--model", "llama-9"], "llama-9"),
    ],
)
def test_wrong_questions(arguments, said, capsys):
    assert main(["ladder", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_nothing_serves_is_a_no(capsys):
    assert main(["ladder", "--on", "dgx-a100-40gb", "--gpus", "1", "--serve", "--model", "llama-3.1-405b"]) == 1
    assert main(["ladder", "--on", "dgx-a100-40gb", "--gpus", "1", "--serve", "--model", "llama-3.2-1b"]) == 0
    assert "batch x context" in capsys.readouterr().out


def test_a_batch_that_the_gpus_cannot_share_is_trimmed():
    found = ladder(load_cluster("dgx-a100"), 3, Workload(global_batch=512))
    assert found.workload.global_batch == 510
    sizes = [step.parameters for step in found.steps]
    assert all(sizes)
    assert sizes == sorted(sizes)


def test_a_ladder_has_no_rung_that_the_framework_does_not_offer():
    every = ("megatron-core", "torchtitan", "deepspeed", "nanotron", "hai-llm")
    names = {f: [r.name for r in rungs(experts=False, framework=f)] for f in every}
    assert len(names["megatron-core"]) == 12
    assert names["deepspeed"] == names["megatron-core"]
    assert [n for n in names["megatron-core"] if n not in names["torchtitan"]] == ["+ ZeRO-1", "+ ZeRO-2"]  # DDP or FSDP2
    lacking = ["+ ZeRO-2", "+ ZeRO-3", "+ context parallel", "+ optimizer on the host", "+ activations on host"]
    for framework in ("nanotron", "hai-llm"):
        assert [n for n in names["megatron-core"] if n not in names[framework]] == lacking


def test_a_batch_that_is_not_the_asked_one_is_named(capsys):
    """12 GPUs cannot share 100 sequences, nor 1,024 GPUs 512; what they can share is said in the table and in the document."""
    for gpus, asked, taken, why in (
        (12, 100, 96, "no multiple of 12 GPUs"),
        (32, 16, 32, "less than a sequence for each of 32 GPUs"),
    ):
        found = model_ladder(load_model("llama-3.2-1b"), A100, gpus, Workload(global_batch=asked), most_gpus=1)
        text = "\n".join(ladder_lines([found], Page()))
        assert f"note: a global batch of {asked} is {why}" in text
        assert f"; {taken} is taken" in text
        document = ladder_report([found]).model_dump()["ladders"][0]
        assert (document["asked_batch_sequences"], document["global_batch_sequences"]) == (asked, taken)
        assert f"{taken} is taken" in document["note"]
    kept = model_ladder(load_model("llama-3.2-1b"), A100, 8, Workload(global_batch=64), most_gpus=1)
    assert "note:" not in "\n".join(ladder_lines([kept], Page()))
    assert ladder_report([kept]).model_dump()["ladders"][0]["note"] == ""


@pytest.fixture
def stopping(monkeypatch):
    """Let a ladder be interrupted when it prices its step number `after` + 1."""

    real = module.best_step

    def stop(after):
        seen = []

        def interrupted(*given):
            seen.append(1)
            if len(seen) > after:
                raise KeyboardInterrupt
            return real(*given)

        monkeypatch.setattr(module, "best_step", interrupted)

    return stop


@pytest.mark.parametrize(
    ("after", "rows", "missing"),
    [
        (12, 12, "1 of 2 answers are missing"),
        (14, 14, "the last one lacks further rungs"),
        (3, 3, "further rungs and 1 of 2 answers"),
    ],
)
def test_an_interrupted_ladder_prints_what_is_done(stopping, capsys, after, rows, missing):
    command = ["ladder", "--on", "dgx-a100-40gb", "--gpus", "8,16"]
    stopping(after)
    assert main(command) == 130
    ran = capsys.readouterr()
    assert len(re.findall(r"^(?:one GPU|data parallel|\+ .*?) +[\d.]+B +#", ran.out, re.MULTILINE)) == rows
    assert missing in ran.out
    assert ran.err == "interrupted\n"
    stopping(after)
    assert main([*command, "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"] is True
    assert sum(len(x["steps"]) for x in document["ladders"]) == rows


def test_a_ladder_that_is_interrupted_at_once_has_nothing_to_print(stopping, capsys):
    stopping(0)
    assert main(["ladder", "--on", "dgx-a100-40gb", "--gpus", "8"]) == 130
    assert tuple(capsys.readouterr()) == ("", "interrupted\n")


@pytest.mark.parametrize(
    "option",
    [
        ("--context-of", "llama-3.1-8b"),
        ("--global-batch", "64"),
        ("--optimizer", "sgd"),
        ("--framework", "torchtitan"),
        ("--rates", "x.json"),
    ],
)
def test_serving_refuses_what_only_training_has(option, capsys):
    assert main(["ladder", "--on", "dgx-a100", "--gpus", "8", "--serve", *option]) == 2
    said = capsys.readouterr().err
    assert f"error: {option[0]}: --serve asks what can be served; {option[0]} is about training" in said
    assert "hint: leave one out" in said


def test_contexts_beyond_a_models_positions_are_said(dense):
    """Llama 3 8B was made for 8,192 tokens, of which eight H100 hold many times more; Llama 3.2 3B for 131,072."""
    found = model_ladder(load_model("llama-3-8b"), load_cluster("dgx-h100"), 8, Workload(seq_len=4096, global_batch=64))
    assert "Llama 3 8B was made for 8,192 positions" in "\n".join(ladder_lines([found], Page()))
    assert ladder_report([found]).ladders[0].model_context_tokens == 8192
    assert ladder_report([dense]).ladders[0].model_context_tokens == 131072
    longest = max(s.longest_context or 0 for s in dense.steps)
    assert ("was made for" in "\n".join(ladder_lines([dense], Page()))) == (longest > 131072)


def test_muon_climbs_no_rung_that_megatron_refuses_it():
    names = [r.name for r in rungs(experts=False, optimizer="muon")]
    assert "+ ZeRO-1" in names
    assert not {"+ ZeRO-2", "+ ZeRO-3"} & set(names)
    assert "+ ZeRO-3" in [r.name for r in rungs(experts=False, framework="torchtitan", optimizer="muon")]
