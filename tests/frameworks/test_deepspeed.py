import json
from pathlib import Path

import pytest

from parlay.errors import UsageError
from parlay.frameworks.deepspeed import read_deepspeed
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload

DATA = Path(__file__).parent / "data"


def test_zero_3_with_the_optimizer_on_the_host():
    found = read_deepspeed(json.loads((DATA / "zero3.json").read_text()), "ds.json")
    assert found.table["gpus"] == 32  # 256 sequences of 32 ranks x 8 micro-batches of one
    layout = Layout(**found.table["layout"])
    assert (layout.dp, layout.zero, layout.micro_batch, layout.offload_optimizer) == (32, 3, 1, 1.0)
    work = Workload(**found.table["training"])
    assert (work.global_batch, work.precision, work.framework) == (256, "bf16", "deepspeed")
    assert (work.overlap_grad_reduce, work.bucket_elements) == (True, 500_000_000)
    assert found.not_understood == (
        "zero_optimization.stage3_max_live_parameters = 1000000000.0",
        "communication_data_type = fp16",
    )


@pytest.mark.parametrize(
    ("table", "where", "expected"),
    [
        ({"zero_optimization": {"stage": 2}}, "training.overlap_grad_reduce", False),
        ({"zero_optimization": {"stage": 3}}, "training.overlap_grad_reduce", True),
        ({"zero_optimization": {"stage": 3, "overlap_comm": False}}, "training.overlap_grad_reduce", False),
        ({"fp16": {"enabled": True}}, "training.precision", "fp16"),
        ({"bf16": {"enabled": "auto"}}, "training.precision", "bf16"),
        ({}, "training.precision", "fp32"),
        ({}, "layout.zero", 0),
        ({"tensor_parallel": {"autotp_size": 4}}, "layout.dp", 4),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, "training.global_batch", 96),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, "layout.micro_batch", 2),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1}, "training.global_batch", 16),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "layout.shard", 8),
        ({"expert_parallel": {"enabled": True, "autoep_size": 8}}, "layout.ep", 8),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, "layout.offload_activations", 1.0),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, "training.gradient_dtype", "fp32"),
        ({"sequence_parallel_size": 2}, "layout.cp", 2),
    ],
)
def test_one_setting_at_a_time(table, where, expected):
    value = read_deepspeed(table, "ds.json", 16).table
    for key in where.split("."):
        value = value[key]
    assert value == expected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: is 4, not 0 to 3"),
        ({"train_batch_size": "many"}, "train_batch_size: expected a number"),
        ({"train_batch_size": True}, "train_batch_size: expected a number, got true"),
        ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, "30, not 4 x 2 x 16"),
        ({"tensor_parallel": {"autotp_size": 3}}, "a multiple of 3 GPUs, not 16"),
        ({"fp16": {"enabled": [1]}}, "fp16.enabled: expected true or false"),
    ],
)
def test_what_makes_no_sense_gets_one_message(table, message):
    with pytest.raises(UsageError) as caught:
        read_deepspeed(table, "ds.json", 16)
    assert message in str(caught.value)


def test_auto_and_an_unknown_optimizer_are_said():
    found = read_deepspeed({"train_batch_size": "auto", "optimizer": {"type": "OneBitAdam"}}, "ds.json", 8)
    assert found.notes == ("train_batch_size = auto: left open", "optimizer OneBitAdam: priced as AdamW")
