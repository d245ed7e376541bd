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


FP8 = {"precision": "fp8"}
TITAN, DEEPSPEED, NANOTRON = ({"framework": name} for name in ("torchtitan", "deepspeed", "nanotron"))
ZERO = {stage: {"dp": 8, "zero": stage} for stage in range(4)}
PIPED = {"tp": 2, "pp": 2, "dp": 2}
TP8, ONE = {"tp": 8}, {"pp": 8}

# Model, what the run is anyway, its layout, the setting, and what is said of it.
IDLE = [
    (LLAMA, {}, {}, "training.bf16_layers", 2, "changes nothing: under bf16"),
    (LLAMA, {}, {}, "training.fp8_attention", True, "changes nothing: under bf16"),
    (LLAMA, {}, {}, "training.fp8_weights", True, "changes nothing: under bf16"),
    (LLAMA, {}, {}, "training.bf16_layers_at_start", 2, "changes nothing: under bf16"),
    (LLAMA, FP8, {}, "training.bf16_layers_at_start", 2, "changes nothing without training.bf16_layers"),
    (LLAMA, FP8 | {"flash_attention": False}, {}, "training.fp8_attention", True, "changes nothing: without flash_attention"),
    (LLAMA, {}, {}, "training.moe_capacity_factor", 2.0, "changes nothing: the model has no experts"),
    (LLAMA, {}, {}, "training.moe_dispatcher", "deepep", "changes nothing: the model has no experts"),
    (LLAMA, TITAN, ZERO[3], "training.overlap_grad_reduce", False, "changes nothing: ZeRO-3 runs"),
    (LLAMA, TITAN, ZERO[3], "training.overlap_param_gather", False, "changes nothing: FSDP2"),
    (LLAMA, TITAN, ZERO[0], "training.overlap_param_gather", False, "changes nothing: FSDP2"),
    *((LLAMA, w, ZERO[3], f"training.{name}", value, "changes nothing: ZeRO-3 runs") for w in ({}, DEEPSPEED)
      for name, value in (("overlap_grad_reduce", False), ("overlap_param_gather", False), ("bucket_elements", 10**6))),
    (LLAMA, {}, ZERO[2], "training.overlap_grad_reduce", True, "changes nothing: ZeRO-2 runs"),
    (LLAMA, {}, ZERO[2], "training.bucket_elements", 10**6, "changes nothing: ZeRO-2 runs"),
    (LLAMA, {"overlap_grad_reduce": True}, ZERO[0], "training.overlap_param_gather", True, "changes nothing: no weights are gathered"),
    *((LLAMA, w, {**x, "dp": 1}, f"training.{name}", value, "changes nothing: no other rank") for w in ({}, DEEPSPEED, NANOTRON)
      for x in (TP8, ONE) for name, value in (("overlap_grad_reduce", True), ("bucket_elements", 10**6))),
    (LLAMA, DEEPSPEED, {"tp": 8, "dp": 1}, "training.overlap_param_gather", True, "changes nothing: no other rank"),
    (QWEN, {}, {"tp": 8, "etp": 8, "dp": 1}, "training.overlap_grad_reduce", True, "changes nothing: no other rank"),
    *((LLAMA, w, ZERO[stage], "training.reshard_after_forward", False, "changes nothing below ZeRO-3") for w in ({}, DEEPSPEED)
      for stage in (0, 1, 2)),
    (LLAMA, {}, PIPED, "training.reshard_after_forward", False, "changes nothing below ZeRO-3"),
    *((LLAMA, w, {"tp": 2, "dp": 4}, f"training.{name}", value, "changes nothing at pp=1") for w in ({}, TITAN, DEEPSPEED, NANOTRON)
      for name, value in (("overlap_p2p", True), ("overlap_p2p", False), ("deferred_head_gradients", 0))),
    *((m, w, {"tp": 2, "dp": 4}, "training.dropout", 0.1, "changes nothing: models of") for w in (TITAN, DEEPSPEED, NANOTRON)
      for m in (LLAMA, QWEN)),
    *((LLAMA, w, {}, "layout.sp", sp, "changes nothing at tp=1") for w in ({}, DEEPSPEED) for sp in (True, False)),
    (LLAMA, {}, {"tp": 2, "dp": 8}, "layout.order", ("tp", "cp", "pp", "dp"), "changes nothing: tp-dp lies as by default"),
    (LLAMA, {}, {"tp": 4, "dp": 4}, "layout.order", ("tp", "pp", "dp", "cp"), "changes nothing: tp-dp lies as by default"),
    (LLAMA, {}, {}, "layout.cp_kind", "ulysses", "changes nothing at cp=1"),
    (LLAMA, {}, {}, "layout.tp_overlap", True, "changes nothing at tp=1"),
    (LLAMA, {}, {}, "layout.ep_overlap", True, "changes nothing without experts"),
    (QWEN, {}, {}, "layout.ep_overlap", True, "changes nothing at ep=1"),
    (QWEN, {}, {}, "training.moe_imbalance", 2.0, "changes nothing at ep=1"),
    *((LLAMA, w, ZERO[stage], "training.gradient_accumulation_fusion", on, "changes nothing: no product of")
      for w, stage in ((TITAN, 3), (DEEPSPEED, 1), (NANOTRON, 1)) for on in (True, False)),
    (LLAMA, {}, {}, "layout.recompute", ("norm",), "recompute norm frees nothing here: megatron-core"),
    (QWEN, {}, {}, "layout.recompute", ("mla_up",), "recompute mla_up frees nothing here"),
]  # fmt: skip
# The same settings where they do change something.
BUSY = [
    (LLAMA, FP8, {}, "training.bf16_layers", 2),
    (LLAMA, FP8, {}, "training.fp8_weights", True),
    (LLAMA, FP8 | {"bf16_layers": 4}, PIPED, "training.bf16_layers_at_start", 0),
    (QWEN, {}, {"ep": 8}, "training.moe_capacity_factor", 2.0),
    (LLAMA, TITAN, ZERO[0], "training.overlap_grad_reduce", False),
    (LLAMA, {}, ZERO[0], "training.overlap_grad_reduce", True),
    (LLAMA, {"overlap_grad_reduce": True}, ZERO[1], "training.overlap_param_gather", True),
    (LLAMA, {}, ZERO[1], "training.bucket_elements", 10**6),
    (LLAMA, DEEPSPEED, ZERO[2], "training.overlap_grad_reduce", True),
    (LLAMA, DEEPSPEED, ZERO[2], "training.bucket_elements", 10**6),
    (LLAMA, {}, {"cp": 8, "dp": 1}, "training.overlap_grad_reduce", True),
    (QWEN, {}, {"tp": 8, "dp": 1}, "training.overlap_grad_reduce", True),  # every rank has all experts
    (QWEN, {}, {"tp": 8, "dp": 1}, "training.bucket_elements", 10**6),
    (LLAMA, {"framework": "hai-llm"}, {"pp": 4, "dp": 1, "schedule": "dualpipe"}, "training.overlap_grad_reduce", False),
    (LLAMA, {}, ZERO[3], "training.reshard_after_forward", False),
    (LLAMA, {}, PIPED | {"zero": 2}, "training.reshard_after_forward", False),
    (LLAMA, {}, PIPED, "training.overlap_p2p", True),
    (LLAMA, {}, PIPED, "training.deferred_head_gradients", 0),
    (LLAMA, {}, {}, "training.dropout", 0.1),
    *((LLAMA, w | {"flash_attention": False}, {}, "training.dropout", 0.1) for w in (TITAN, DEEPSPEED, NANOTRON)),
    (LLAMA, {}, {"tp": 2, "dp": 4}, "layout.sp", False),
    (LLAMA, {}, {"pp": 4, "dp": 8}, "layout.order", ("tp", "cp", "pp", "dp")),
    (LLAMA, {}, {"cp": 2, "dp": 4}, "layout.cp_kind", "ulysses"),
    (LLAMA, {}, {"tp": 2, "dp": 4}, "layout.tp_overlap", True),
    (QWEN, {}, {"ep": 8}, "layout.recompute", ("norm", "mlp_activation")),
    (LLAMA, {}, {}, "layout.recompute", ("full",)),
]  # fmt: skip


def priced(model, workload, layout, setting=None, value=None):
    """Return what is told of a run, and its step and peak; `setting` is laid over it."""
    section, _, name = (setting or "").partition(".")
    more = {section: {name: value}} if setting else {}
    base = {"zero": 3} if workload.get("framework") == "torchtitan" else {}
    work = Workload(**BATCH, **workload, **more.get("training", {}))
    where = Layout(**{"dp": 8, **base, **layout, **more.get("layout", {})})
    found = estimate(model, H100, work, where)
    return idle_settings(model, H100, work, where), (found.step_s, found.peak_bytes)


@pytest.mark.parametrize(("model", "workload", "layout", "setting", "value", "words"), IDLE)
def test_a_setting_without_effect_is_told_and_has_none(model, workload, layout, setting, value, words):
    (before, plain), (told, with_it) = priced(model, workload, layout), priced(model, workload, layout, setting, value)
    assert before == []
    assert len(told) == 1
    assert words in told[0]
    assert told[0].startswith(setting) or setting == "layout.recompute"
    assert with_it == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize(("model", "workload", "layout", "setting", "value"), BUSY)
def test_a_setting_with_an_effect_is_not_told(model, workload, layout, setting, value):
    (_, plain), (told, with_it) = priced(model, workload, layout), priced(model, workload, layout, setting, value)
    assert told == []
    assert with_it != pytest.approx(plain, rel=1e-6)


def test_what_is_no_setting_is_not_told():
    assert idle_settings(LLAMA, H100, Workload(**BATCH), Layout(dp=8)) == []
    assert (
        idle_settings(QWEN, H100, Workload(**BATCH, precision="fp8", fp8_attention=True), Layout(dp=8, recompute=("full",))) == []
    )


def test_of_a_layout_that_is_refused_nothing_is_told():
    titan = Workload(**BATCH, framework="torchtitan")
    assert idle_settings(LLAMA, H100, titan, Layout(dp=8, zero=3, recompute=("norm",), cp_kind="allgather")) == []


def test_more_first_layers_than_bf16_layers_are_all_of_them():
    told, price = priced(LLAMA, FP8 | {"bf16_layers": 2}, {}, "training.bf16_layers_at_start", 5)
    assert told == ["training.bf16_layers_at_start = 5 are more than training.bf16_layers: all 2 are at the start"]
    assert price == priced(LLAMA, FP8 | {"bf16_layers": 2}, {}, "training.bf16_layers_at_start", 2)[1]


def test_more_than_there_is_means_all():
    told = idle_settings(LLAMA, H100, Workload(precision="fp8", bf16_layers=99), Layout(recompute=("full",), recompute_layers=16))
    assert told == [
        "training.bf16_layers = 99 are all 16 layers of the model",
        "layout.recompute_layers = 16 are all layers of a chunk, which has 16 at most",
    ]
