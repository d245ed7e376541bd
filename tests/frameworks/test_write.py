"""Settings that are written for a framework read back as the same layout and step."""

import json
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.cli.main import main
from parlay.errors import UsageError
from parlay.frameworks.deepspeed import read_deepspeed
from parlay.frameworks.megatron import read_script
from parlay.frameworks.torchtitan import read_torchtitan
from parlay.frameworks.write import written
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.rules import check
from parlay.layouts.split import chunk_sizes
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.schedules.megatron import parse_layout_string, torchtitan_sizes

H100 = load_cluster("dgx-h100")
DEGREES = ("tp", "cp", "pp", "dp", "ep", "vpp", "micro_batch")


@st.composite
def megatron(draw):
    """A model, a step and a layout that keeps Megatron-core's rules."""
    model = load_model(draw(st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"])))
    moe = any(k.mlp.kind == "moe" for k in model.kinds.values())
    work = Workload(
        global_batch=256, seq_len=8192, precision=draw(st.sampled_from(["bf16", "fp8", "fp8-blockwise"])),
        gradient_dtype=draw(st.sampled_from([None, "bf16", "fp32"])), moment_dtype=draw(st.sampled_from([None, "bf16"])),
        cross_entropy=draw(st.sampled_from([None, "fused", "te"])), overlap_grad_reduce=draw(st.booleans()),
        overlap_param_gather=draw(st.booleans()), moe_dispatcher=draw(st.sampled_from([None, "alltoall", "deepep", "hybridep"])),
        total_tokens=draw(st.sampled_from([None, 8192 * 10**6])),
    )  # fmt: skip
    pp, vpp = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2), (8, 2)]))
    ends = (
        draw(st.sampled_from([(None, None), (None, None), (None, 3), (4, 4), (None, 0)])) if vpp == 1 and pp > 1 else (None, None)
    )
    layout = Layout(
        tp=draw(st.sampled_from([1, 2, 4])), cp=draw(st.sampled_from([1, 2, 4])), pp=pp, dp=draw(st.sampled_from([4, 8])), vpp=vpp,
        ep=draw(st.sampled_from([1, 2, 4])) if moe else 1, cp_kind=draw(st.sampled_from(["zigzag", "allgather", "ulysses", "usp"])),
        ulysses=2, zero=draw(st.sampled_from([0, 1, 2, 3])), micro_batch=draw(st.sampled_from([1, 2])),
        recompute=draw(st.sampled_from([(), ("full",), ("norm", "mlp_activation")])), first_layers=ends[0], last_layers=ends[1],
        tp_overlap=draw(st.booleans()), ep_overlap=draw(st.booleans()), offload_optimizer=draw(st.sampled_from([0.0, 0.5, 1.0])),
        order=draw(st.sampled_from(["tp-cp-dp-pp", "tp-cp-pp-dp"])),
    )  # fmt: skip
    if layout.cp_kind != "usp" or layout.cp <= 2:
        layout = layout.model_copy(update={"ulysses": 1, "cp_kind": "zigzag" if layout.cp_kind == "usp" else layout.cp_kind})
    return model, work, layout


@settings(max_examples=200, deadline=None)
@given(megatron())
def test_megatron_arguments_read_back(problem):
    model, work, layout = problem
    if check(layout, model, H100, work):
        return
    text = written(model, work, layout).text
    moe = any(k.mlp.kind == "moe" for k in model.kinds.values())
    shape = f"--num-layers {model.layer_count} --hidden-size 64 --num-attention-heads 4 " + ("--num-experts 8 " if moe else "")
    shape += f"--mtp-num-layers {model.mtp_layers} " if model.mtp_layers else ""
    found = read_script(f"python pretrain_gpt.py {shape} \\\n{text}", "s.sh", "m", layout.gpus).table
    back = Layout(**found["layout"])
    for axis in DEGREES:
        assert getattr(back, axis) == getattr(layout, axis), axis
    kept = layout.recompute if moe else tuple(m for m in layout.recompute if m != "mlp_activation")  # which is of experts alone
    assert (back.zero, back.recompute, back.offload_optimizer) == (layout.zero, kept, layout.offload_optimizer)
    assert back.tp_overlap == (layout.tp_overlap and layout.tp > 1)
    assert back.ep_overlap == (layout.ep_overlap and layout.ep > 1)
    assert back.order == layout.order
    assert layout.cp == 1 or (back.cp_kind, back.ulysses) == (layout.cp_kind, layout.ulysses)
    if layout.pp > 1:
        sizes = [chunk_sizes(model.layer_count, x.pp, x.vpp, *x.ends, tail=1 + model.mtp_layers) for x in (layout, back)]
        if "--pipeline-model-parallel-layout" in text:
            string = text.split("--pipeline-model-parallel-layout '")[1].split("'")[0]
            assert [c.count("t") for c in parse_layout_string(string, stages=layout.pp)] == sizes[0]
        else:
            assert sizes[0] == sizes[1]
    training = found["training"]
    assert (training["seq_len"], training["global_batch"], training["precision"]) == (8192, 256, work.precision)
    half = work.gradient_dtype == "bf16" or (work.gradient_dtype is None and layout.zero == 3)
    assert training.get("gradient_dtype") == (None if half and layout.zero == 3 else "bf16" if half else "fp32")
    assert training.get("total_tokens") == work.total_tokens
    assert training.get("moment_dtype", "fp32") == (work.moment_dtype or "fp32")
    assert not moe or training["moe_dispatcher"] == work.dispatcher
    assert training["dropout"] == 0


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ({"dp": 8}, {}),
        ({"tp": 4, "dp": 2, "tp_overlap": True, "micro_batch": 2, "recompute": ("full",)}, {}),
        ({"dp": 8, "cp": 2, "cp_kind": "allgather", "recompute": ("selective_ops",), "shard": 8}, {"precision": "fp8"}),
        ({"pp": 4, "dp": 2, "vpp": 2, "schedule": "interleaved"}, {}),
        ({"pp": 2, "dp": 4, "schedule": "zb-v", "vpp": 2, "offload_optimizer": 1.0}, {}),
        ({"dp": 8, "recompute": ("full",), "recompute_layers": 16}, {}),
    ],
)
def test_a_torchtitan_file_reads_back(layout, more):
    model, work = load_model("llama-3-8b"), Workload(framework="torchtitan", global_batch=64, seq_len=8192, **more)
    x = Layout(**{"zero": 3} | layout)
    table = tomllib.loads(written(model, work, x).text)
    table["model"] = table.get("model", {}) | {"name": "llama3", "flavor": "8B"}
    found = read_torchtitan(table, "job.toml").table
    back = Layout(**found["layout"])
    for axis in (*DEGREES, "zero", "recompute", "recompute_layers", "tp_overlap", "offload_optimizer"):
        assert getattr(back, axis) == getattr(x, axis), axis
    assert back.shard in (x.shard, x.dp * x.cp if x.shard is None else None)
    assert x.pp == 1 or back.schedule == x.schedule
    assert x.cp == 1 or back.cp_kind == x.cp_kind
    training = found["training"]
    assert (training["seq_len"], training["global_batch"], training["precision"]) == (8192, 64, work.precision)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "gemma-3-27b", "deepseek-v2-lite"]), st.sampled_from([2, 3, 4, 8]),
    st.sampled_from(["1f1b", "gpipe", "interleaved", "bfs", "zb-v"]), st.integers(2, 6),
    st.sampled_from([None, 0, 1, 2, 9]), st.sampled_from([None, 0, 1, 3, 5]),
)  # fmt: skip
def test_torchtitan_makes_the_chunks_that_are_written(name, pp, schedule, vpp, first, last):
    """By its own counting (distributed/pipeline_parallel.py) or module by module; and what is read back holds the same layers."""
    model, work = load_model(name), Workload(framework="torchtitan", global_batch=64 * pp)
    vpp = {"1f1b": 1, "gpipe": 1, "zb-v": 2}.get(schedule, vpp)
    ends = {"first_layers": first, "last_layers": last} if schedule != "zb-v" else {}
    x = Layout(pp=pp, dp=8, zero=3, schedule=schedule, vpp=vpp, **ends)
    if any(v.rule != "framework" for v in check(x, model, H100, work)):
        return
    sizes = chunk_sizes(model.layer_count, pp, vpp, *x.ends)
    table = tomllib.loads(written(model, work, x).text)
    told = table["parallelism"]
    less = [told.get(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")]
    if "pipeline_parallel_layers_per_stage" in told:
        made = math.ceil((model.layer_count + sum(less)) / told["pipeline_parallel_layers_per_stage"])
        assert made == len(sizes)
        assert torchtitan_sizes(model.layer_count, made, *less) == sizes
    else:
        assert [sum(n.startswith("layers.") for n in part) for part in told["module_fqns_per_model_part"]] == sizes
    back = Layout(**read_torchtitan(table, "job.toml", layers=model.layer_count).table["layout"])
    assert (back.vpp, back.schedule) == (vpp, schedule)
    assert chunk_sizes(model.layer_count, pp, vpp, *back.ends) == sizes


@pytest.mark.parametrize(
    ("layout", "way", "other"),
    [
        ({"dp": 4, "pp": 2}, "--fine-grained-activation-offloading", "--cpu-offloading"),
        ({"dp": 8, "recompute": ("norm",)}, "--fine-grained-activation-offloading", "--cpu-offloading"),
    ],
)
def test_the_way_of_offloading_activations_that_runs_is_said(layout, way, other):
    """--cpu-offloading refuses pipeline stages and recompute (transformer_config.py)."""
    found = written(load_model("llama-3.1-8b"), Workload(global_batch=64), Layout(**layout, offload_activations=0.5))
    assert any("0.5 of the activations" in note and way in note and other not in note for note in found.notes)
    assert "offload" not in found.text


@pytest.mark.parametrize(("share", "layers", "read"), [(0.5, 16, 0.5), (1.0, 31, 1.0), (0.01, 1, 1 / 32)])
def test_offloaded_activations_are_written_by_layer(share, layers, read):
    """Of 32 layers; the last one stays (Transformer Engine's get_cpu_offload_context), so that all but one are all."""
    x = Layout(dp=8, offload_activations=share)
    found = written(load_model("llama-3.1-8b"), Workload(global_batch=64), x)
    assert f"--cpu-offloading --cpu-offloading-num-layers {layers}" in found.text
    assert read_script(found.text, "s.sh", "m", 8, 32).table["layout"]["offload_activations"] == read
    bare = read_script(found.text, "s.sh", "m", 8)
    assert bare.table["layout"]["offload_activations"] == 0
    assert any(f"activations of {layers} layers on the host" in note for note in bare.notes)


@pytest.mark.parametrize(
    ("framework", "more", "layout", "said", "missing"),
    [
        ("torchtitan", {"optimizer": "muon"}, {}, None, None),
        ("torchtitan", {"optimizer": "adamw-8bit"}, {}, "torchtitan has no adamw-8bit", "[optimizer]"),
        ("torchtitan", {}, {"recompute": ("mlp",)}, "torchtitan has no recompute of mlp", "full"),
        ("deepspeed", {"precision": "fp8"}, {}, "a DeepSpeed file has no fp8", "fp8"),
        ("deepspeed", {}, {"recompute": ("core_attention",)}, "what is recomputed, core_attention,", "activation_checkpointing"),
        (
            "megatron-core",
            {},
            {"recompute": ("mlp_activation",)},
            "a model without experts has no moe_act to recompute",
            "recompute",
        ),
        ("megatron-core", {"optimizer": "adafactor"}, {}, "Megatron-LM has no adafactor", "--optimizer "),
        ("megatron-core", {"optimizer": "muon"}, {"zero": 3}, "runs muon without FSDP", "distributed-optimizer"),
    ],
)
def test_what_a_framework_has_not_is_said_and_not_written(framework, more, layout, said, missing):
    model = load_model("llama-3.1-8b")
    found = written(model, Workload(framework=framework, global_batch=64, **more), Layout(**{"dp": 8, "zero": 2} | layout))
    assert said is None or any(said in note for note in found.notes)
    assert missing is None or missing not in found.text


def test_an_optimizer_reads_back():
    model = load_model("llama-3-8b")
    for optimizer in ("adamw", "muon", "sgd"):
        for zero in (0, 1):
            work = Workload(global_batch=64, optimizer=optimizer)
            text = written(model, work, Layout(dp=8, zero=zero)).text
            found = read_script(f"python pretrain_gpt.py {text}", "s.sh", "m", 8).table
            assert (found["training"]["optimizer"], found["layout"]["zero"]) == (optimizer, zero)
        work = Workload(global_batch=64, optimizer=optimizer, framework="torchtitan")
        table = tomllib.loads(written(model, work, Layout(dp=8, zero=3)).text)
        read = read_torchtitan(table, "job.toml")
        assert read.table["training"]["optimizer"] == optimizer
        assert read.table["model"] == "llama-3-8b"
        assert not read.not_understood


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 8, "zero": 3, "micro_batch": 2},
        {"tp": 2, "dp": 4, "zero": 1, "offload_optimizer": 0.5},
        {"dp": 4, "cp": 2, "cp_kind": "ulysses", "zero": 3, "recompute": ("full",), "offload_activations": 1.0},
        {"pp": 2, "dp": 4, "zero": 1},
    ],
)
def test_a_deepspeed_file_reads_back(layout):
    model, work = load_model("llama-3.1-8b"), Workload(framework="deepspeed", global_batch=64)
    x = Layout(**layout)
    settings = written(model, work, x)
    found = read_deepspeed(json.loads(settings.text), "ds.json", x.gpus).table
    back = Layout(**found["layout"])
    for axis in (*DEGREES, "zero", "recompute", "offload_optimizer", "offload_activations"):
        assert getattr(back, axis) == getattr(x, axis), axis
    assert found["training"]["global_batch"] == 64
    assert any("4,096 tokens" in note for note in settings.notes)


def test_a_plan_names_what_launch_writes(capsys):
    from parlay.frameworks.write import WRITTEN
    from parlay.report.plan import LAUNCHED

    assert set(LAUNCHED) == set(WRITTEN)
    for framework, said in (*LAUNCHED.items(), ("nanotron", None)):
        asked = ["llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--framework", framework]
        assert main(["plan", *asked]) == 0
        out = capsys.readouterr().out
        assert (said in out) if said else "launch:" not in out


@pytest.mark.parametrize("framework", ["nanotron", "hai-llm"])
def test_other_frameworks_are_refused(framework):
    with pytest.raises(UsageError, match="not written"):
        written(load_model("llama-3.1-8b"), Workload(framework=framework), Layout(dp=8))


def step_s(document):
    return document["estimate"]["step_s"]


def test_the_command_prints_what_from_reads(tmp_path, capsys):
    asked = ["llama-3.1-70b", "--on", "dgx-h100", "--layout", "tp4.cp2.pp4.dp2.vpp3.mb1", "--seq-len", "8192"]
    assert main(["estimate", *asked, "--launch"]) == 0
    text = capsys.readouterr().out
    assert "--tensor-model-parallel-size 4" in text
    assert "--pipeline-model-parallel-layout 'E" in text  # 80 layers on 12 chunks
    path = tmp_path / "args.sh"
    path.write_text(text)
    assert main(["estimate", "llama-3.1-70b", "--on", "dgx-h100", "--from", str(path), "--gpus", "64", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert main(["estimate", *asked, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert step_s(again) == pytest.approx(step_s(first), rel=0.03)


def test_a_torchtitan_file_of_many_chunks_reads_back_beside_its_model(tmp_path, capsys):
    asked = ["llama-3.1-70b", "--on", "dgx-h100", "--seq-len", "8192", "--global-batch", "512", "--framework", "torchtitan"]
    layout = ["--layout", "tp4.cp2.pp4.dp2.vpp5.mb1", "--recompute", "full"]
    assert main(["estimate", *asked, *layout, "--launch"]) == 1  # it does not fit
    path = tmp_path / "job.toml"
    path.write_text(capsys.readouterr().out)
    assert main(["estimate", "llama-3.1-70b", "--on", "dgx-h100", "--from", str(path), "--gpus", "64", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "not in the catalog" not in err
    assert main(["estimate", *asked, *layout, "--json"]) == 1
    first = json.loads(capsys.readouterr().out)
    assert step_s(json.loads(out)) == pytest.approx(step_s(first), rel=1e-9)


def test_launch_says_what_is_wrong_beside_the_settings(capsys):
    asked = ["estimate", "llama-3.1-70b", "--on", "dgx-h100", "--layout", "dp8", "--launch"]
    assert main(asked) == 1
    out, err = capsys.readouterr()
    assert "--use-distributed-optimizer" in out
    assert "does not fit" in err
    assert main([*asked, "--json"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_arguments_without_a_model_are_all_understood():
    model = load_model("deepseek-v3")
    text = written(model, Workload(global_batch=1024, moe_dispatcher="deepep"), Layout(pp=16, dp=64, ep=64, tp=1)).text
    found = read_script(text, "s.sh", "m", 1024)
    assert found.not_understood == ()
    assert (found.table["layout"]["ep"], found.table["layout"]["etp"]) == (64, 1)
    assert found.table["training"]["moe_dispatcher"] == "deepep"
