import tomllib
from pathlib import Path

import pytest

from parlay.errors import UsageError
from parlay.frameworks.torchtitan import MODELS, read_torchtitan
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

DATA = Path(__file__).parent / "data"


def job(text, gpus=16):
    return read_torchtitan(tomllib.loads(text), "job.toml", gpus)


def test_a_job_of_llama_405b():
    found = read_torchtitan(tomllib.loads((DATA / "llama3-405b.toml").read_text()), "f.toml", 128)
    layout = Layout(**found.table["layout"])
    assert (layout.tp, layout.dp, layout.zero, layout.micro_batch, layout.tp_overlap) == (8, 16, 3, 2, True)
    assert layout.recompute == ("full",)
    work = Workload(**found.table["training"])
    assert (work.global_batch, work.seq_len, work.precision, work.fp8_weights) == (32, 8192, "fp8", True)
    assert (work.compiled, work.loss_compiled, work.framework) == (True, True, "torchtitan")
    assert work.total_tokens == 3000 * 32 * 8192
    assert (found.table["model"], found.table["gpus"]) == ("llama-3.1-405b", 128)
    assert found.not_understood == ("parallelism.disable_loss_parallel = True",)


def test_every_flavor_is_in_the_catalog():
    for flavors in MODELS.values():
        for name in flavors.values():
            assert load_model(name).id == name


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ('[model]\nname="qwen3"\nflavor="8B"', "model", "qwen3-8b"),
        ('[model]\nname="qwen3"\nflavor="30B-A3B"', "model", "qwen3-30b-a3b"),
        ('[model]\nname="deepseek_v3"\nflavor="16B"', "model", "deepseek-v2-lite"),
        ("[parallelism]\ndata_parallel_replicate_degree=2", "layout.shard", 8),
        ("[parallelism]\ndata_parallel_replicate_degree=16\ndata_parallel_shard_degree=1", "layout.zero", 0),
        ("[parallelism]\npipeline_parallel_degree=4", "layout.schedule", "1f1b"),
        ("[parallelism]\npipeline_parallel_degree=4", "layout.micro_batch", 1),
        ('[parallelism]\npipeline_parallel_degree=4\npipeline_parallel_schedule="ZBVZeroBubble"', "layout.vpp", 2),
        ('[experimental]\npipeline_parallel_degree=4\npipeline_parallel_schedule="Interleaved1F1B"', "layout.vpp", 2),
        (
            '[model]\nflavor="8B"\n[parallelism]\npipeline_parallel_degree=4\npipeline_parallel_schedule="Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage=2",
            "layout.vpp",
            4,
        ),
        ("[parallelism]\ncontext_parallel_degree=2", "layout.cp_kind", "allgather"),
        ("[training]\nlocal_batch_size=4", "training.global_batch", 64),
        ("[training]\nglobal_batch_size=256", "training.global_batch", 256),
        ("[training]\nglobal_batch_size=-1\nbatch_size=1", "training.global_batch", 16),
        ('[activation_checkpoint]\nmode="selective"\nselective_ac_option="op"', "layout.recompute", ["selective_ops"]),
        ('[model]\nflavor="8B"\n[activation_checkpoint]\nmode="selective"', "layout.recompute_layers", 16),
        ('[activation_checkpoint]\nmode="none"', "layout.recompute", []),
        ('[compile]\nenable=true\ncomponents=["loss"]', "training.compiled", False),
        ('[compile]\nenable=true\ncomponents=["loss"]', "training.loss_compiled", True),
        ('[training]\ndtype="bfloat16"', "training.master_dtype", "bf16"),
        ('[training]\nmixed_precision_param="float32"', "training.precision", "fp32"),
        ('[model]\nconverters="quantize.linear.mx"', "training.precision", "mxfp8"),
        ('[parallelism]\nfsdp_reshard_after_forward="never"', "training.reshard_after_forward", False),
    ],
)
def test_one_setting_at_a_time(text, where, expected):
    value = job(text).table
    for key in where.split("."):
        value = value[key]
    assert value == expected


def test_gpus_may_be_told_by_the_file_or_by_nobody():
    told = job("[parallelism]\ndata_parallel_shard_degree=4\ntensor_parallel_degree=2", None).table
    assert (told["gpus"], told["layout"]["dp"]) == (8, 4)
    open_ = job("[parallelism]\ntensor_parallel_degree=2", None).table
    assert "gpus" not in open_
    assert "dp" not in open_["layout"]


def test_an_unknown_flavor_is_said():
    found = job('[model]\nname="llama3"\nflavor="debugmodel"')
    assert "model" not in found.table
    assert "debugmodel is not in the catalog" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[training]\nseq_len="long"', "training.seq_len: expected a number"),
        ("[parallelism]\ntensor_parallel_degree=3", "multiple of 3 GPUs, not 16"),
        ("[parallelism]\ndata_parallel_shard_degree=3", "multiply to 3 GPUs, not 16"),
        ("[parallelism]\ndata_parallel_shard_degree=0", "expected -1, or 1 or more"),
        ('[activation_checkpoint]\nmode="some"', "activation_checkpoint.mode"),
        ('[optimizer]\nname="Lion"', "optimizer.name"),
        ("[parallelism]\ntensor_parallel_degree=[8]", "expected a number"),
    ],
)
def test_what_makes_no_sense_gets_one_message(text, message):
    with pytest.raises(UsageError) as caught:
        job(text)
    assert message in str(caught.value)


def test_a_run_is_as_long_as_the_file_says_and_of_no_length_where_it_does_not():
    assert "total_tokens" not in job("[training]\n").table["training"]
    found = job("[training]\nsteps=1000")
    assert found.table["training"]["total_tokens"] == 1000 * 2048 * found.table["training"]["global_batch"]
