"""Settings without effect are told, those with one are not; and what is told really changes nothing."""

import pytest

from parlay.estimate.estimate import estimate
from parlay.estimate.idle import idle_settings
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

H100 = load_cluster("dgx-h100")
LLAMA, QWEN = load_model("llama-3.2-1b"), load_model("qwen3-30b-a3b")
BATCH = {"seq_len": 2048, "global_batch": 32}


@pytest.mark.parametrize(
    ("model", "workload", "layout", "words"),
    [
        (LLAMA, {"bf16_layers": 2}, {}, "bf16_layers changes nothing: under bf16"),
        (LLAMA, {"fp8_attention": True}, {}, "fp8_attention changes nothing: under bf16"),
        (LLAMA, {"moe_capacity_factor": 2.0}, {}, "moe_capacity_factor changes nothing: the model has no experts"),
        (LLAMA, {"moe_dispatcher": "deepep"}, {}, "moe_dispatcher changes nothing"),
        (
            LLAMA,
            {"framework": "torchtitan", "overlap_grad_reduce": False},
            {"zero": 3},
            "overlap_grad_reduce changes nothing: FSDP2",
        ),
        (LLAMA, {}, {"cp_kind": "ulysses"}, "cp_kind changes nothing at cp=1"),
        (LLAMA, {}, {"tp_overlap": True}, "tp_overlap changes nothing at tp=1"),
        (LLAMA, {}, {"ep_overlap": True}, "ep_overlap changes nothing without experts"),
        (QWEN, {}, {"ep_overlap": True}, "ep_overlap changes nothing at ep=1"),
        (LLAMA, {}, {"recompute": ("norm",)}, "recompute norm frees nothing here: megatron-core"),
        (QWEN, {}, {"recompute": ("mla_up",)}, "recompute mla_up frees nothing here"),
    ],
)
def test_a_setting_without_effect_is_told_and_has_none(model, workload, layout, words):
    given, plain = Workload(**BATCH, **workload), Workload(**BATCH, framework=workload.get("framework", "megatron-core"))
    base = {"zero": layout["zero"]} if "zero" in layout else {}
    told = idle_settings(model, H100, given, Layout(dp=8, **layout))
    assert len(told) == 1
    assert words in told[0]
    with_it, without = (
        estimate(model, H100, w, Layout(dp=8, **x)) for w, x in ((given, layout), (plain, base))
    )  # fmt: skip
    assert with_it.step_s == pytest.approx(without.step_s, rel=1e-12)
    assert with_it.peak_bytes == pytest.approx(without.peak_bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "workload", "layout"),
    [
        (LLAMA, {}, {}),
        (LLAMA, {"precision": "fp8", "bf16_layers": 2, "fp8_attention": True}, {}),
        (QWEN, {"moe_capacity_factor": 2.0, "moe_dispatcher": "deepep"}, {"ep": 8, "recompute": ("norm", "mlp_activation")}),
        (LLAMA, {}, {"cp": 2, "cp_kind": "ulysses", "dp": 4}),
        (LLAMA, {}, {"tp": 2, "dp": 4, "tp_overlap": True, "recompute": ("mlp",)}),
        (LLAMA, {}, {"recompute": ("full",), "recompute_layers": 8}),
    ],
)
def test_a_setting_with_an_effect_is_not_told(model, workload, layout):
    assert idle_settings(model, H100, Workload(**BATCH, **workload), Layout(**{"dp": 8, **layout})) == []


def test_more_than_there_is_means_all():
    told = idle_settings(LLAMA, H100, Workload(precision="fp8", bf16_layers=99), Layout(recompute=("full",), recompute_layers=16))
    assert told == [
        "training.bf16_layers = 99 are all 16 layers of the model",
        "layout.recompute_layers = 16 are all layers of a chunk, which has 16 at most",
    ]
