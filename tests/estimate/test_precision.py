"""Which precisions a device can train in, against what Transformer Engine and AMD's libraries take, and what they run in."""

from typing import get_args

import pytest

from parlay.cli.main import main
from parlay.errors import UsageError
from parlay.estimate.counts import parameters
from parlay.estimate.estimate import estimate, peak_flops
from parlay.estimate.precision import MATMUL_DTYPES, check_precision, precisions_of, with_bf16_ends
from parlay.hardware.load import load_cluster, load_device
from parlay.layouts.layout import Layout
from parlay.layouts.vocabulary import Precision
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run

H100, A100, V100 = load_cluster("dgx-h100"), load_cluster("dgx-a100"), load_cluster("jean-zay-v100")
SMALL = load_model("llama-3.2-1b")
WIDE = ("fp32", "fp16", "bf16")


def test_every_precision_has_a_peak_or_a_reason():
    assert set(MATMUL_DTYPES) == set(get_args(Precision))
    assert peak_flops(H100, Workload()) == pytest.approx(989e12, rel=1e-3)
    with pytest.raises(UsageError, match="no fp8 matmul rate") as caught:
        peak_flops(A100, Workload(precision="fp8"))
    assert caught.value.hint == "precision may be fp32, fp16, bf16"
    with pytest.raises(UsageError, match="no fp4"):
        peak_flops(H100, Workload(precision="nvfp4"))


@pytest.mark.parametrize(
    ("device", "allowed"),
    [
        ("v100-sxm", ("fp32", "fp16")),
        ("a100-sxm", WIDE),
        ("l40s", (*WIDE, "fp8")),  # 8.9: fp8, no block scales
        ("h100-sxm", (*WIDE, "fp8", "fp8-blockwise")),
        ("b200", (*WIDE, "fp8", "fp8-blockwise", "mxfp8", "nvfp4")),
        ("gb300", (*WIDE, "fp8", "fp8-blockwise", "mxfp8", "nvfp4")),
        ("rtx-pro-6000", (*WIDE, "fp8", "fp8-blockwise", "nvfp4")),  # 12.0: "not supported on 12.0+ architectures yet"
        ("mi300x", (*WIDE, "fp8", "fp8-blockwise")),
        ("mi355x", (*WIDE, "fp8", "fp8-blockwise", "mxfp8")),  # MXFP4, not NVFP4
    ],
)
def test_what_devices_can_train_in(device, allowed):
    assert precisions_of(load_device(device)) == allowed


@pytest.mark.parametrize(
    ("device", "precision", "why"),
    [
        ("h100-sxm", "mxfp8", "has compute capability 9.0, and mxfp8 needs from 10.0 to below 12.0"),
        ("l40s", "fp8-blockwise", "has compute capability 8.9, and fp8-blockwise needs 9.0 or higher"),
        ("mi300x", "mxfp8", "is gfx942, and mxfp8 needs gfx950 or higher"),
        ("mi355x", "nvfp4", "is no NVIDIA device, and nvfp4 runs on theirs alone"),
    ],
)
def test_a_refusal_says_what_is_missing_and_what_is_allowed(device, precision, why):
    found = load_device(device)
    with pytest.raises(UsageError, match=why) as caught:
        check_precision(found, precision)
    assert caught.value.hint == f"precision may be {', '.join(precisions_of(found))}"
    assert precision not in caught.value.hint.split(", ")


def test_a_device_of_ones_own_without_a_capability_is_taken_at_its_rates():
    own = load_device("h100-sxm").model_copy(update={"compute_capability": None})
    assert "mxfp8" in precisions_of(own)


def test_every_command_refuses_alike(capsys):
    for command in (
        ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8"],
        ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp8"],
        ["ladder", "--on", "dgx-h100", "--gpus", "8"],
        ["ladder", "--on", "dgx-h100", "--gpus", "8", "--model", "llama-3.1-8b"],
        ["sweep", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8"],
    ):
        assert main([*command, "--precision", "mxfp8"]) == 2, command
        assert "hint: precision may be fp32, fp16, bf16, fp8, fp8-blockwise\n" in capsys.readouterr().err


def test_fp32_runs_in_tf32_where_there_is_tf32():
    """A100: products at 156 TFLOP/s, not 19.5, and the MFU against the same; V100 has no tf32 and takes its 15.7 TFLOP/s."""
    work = Workload(precision="fp32", global_batch=64)
    for cluster, peak in ((A100, 156e12), (V100, 15.7e12)):
        e = estimate(SMALL, cluster, work, Layout(dp=8, micro_batch=1))
        assert e.mfu_peak_flops_per_s == pytest.approx(peak)
        assert 0.4 < e.mfu < 0.8


@pytest.mark.parametrize("model", ["llama-3.2-1b", "mixtral-8x7b", "nemotron-h-8b"])
def test_a_device_without_bf16_trains_in_fp16(model):
    e = estimate(load_model(model), V100, Workload(precision="fp16", global_batch=64), Layout(tp=4, pp=2))
    assert 0.05 < e.mfu < 0.8


KIND = LayerKind(mixer=GroupedAttention(heads=32, kv_heads=8, head_dim=128), mlp=DenseMlp(width=14336))
PLAIN = ModelSpec(
    id="m", name="m", hidden=4096, vocab=8, kinds={"k": KIND}, layers=(Run(kinds=("k",), count=16),), final_norm=False
)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"bf16_layers": 2}, ["k_bf16"] + ["k"] * 14 + ["k_bf16"]),
        ({"bf16_layers": 3}, ["k_bf16"] * 2 + ["k"] * 13 + ["k_bf16"]),
        ({"bf16_layers": 4, "bf16_layers_at_start": 0}, ["k"] * 12 + ["k_bf16"] * 4),
        ({"bf16_layers": 40}, ["k_bf16"] * 16),
        ({"bf16_layers": 2, "precision": "bf16"}, ["k"] * 16),
        ({}, ["k"] * 16),
    ],
)
def test_ends_that_stay_in_bf16_are_a_kind_of_their_own(fields, names):
    work = Workload(**{"precision": "fp8", **fields})
    found = with_bf16_ends(PLAIN, work)
    assert found.layer_names() == names
    assert set(found.kinds) == set(names)
    assert with_bf16_ends(found, work) is found
    assert parameters(found).total == parameters(PLAIN).total


def test_ends_that_stay_in_bf16_are_priced_where_they_lie():
    """All layers: bf16's step and memory. Two of 16 on two stages: each end stage keeps 1 / 8 of its copies less, and is the slower
    by one layer; all four at the end: the first stage is fp8's own."""
    where = load_cluster("dgx-h100")

    def priced(**fields):
        return estimate(PLAIN, where, Workload(global_batch=64, cuda_graphs=True, **fields), Layout(pp=2, dp=4, micro_batch=1))

    wide, narrow = priced(), priced(precision="fp8")
    every = priced(precision="fp8", bf16_layers=16)
    assert every.step_s == pytest.approx(wide.step_s, rel=1e-9)
    assert every.peak_bytes == pytest.approx(wide.peak_bytes, rel=1e-9)
    copies = [t.find("memory.weights.dense.quantised").value for t in narrow.memory]
    ends, last = priced(precision="fp8", bf16_layers=2), priced(precision="fp8", bf16_layers=4, bf16_layers_at_start=0)
    assert [t.find("memory.weights.dense.quantised").value for t in ends.memory] == pytest.approx([c * 7 / 8 for c in copies])
    assert [t.find("memory.weights.dense.quantised").value for t in last.memory] == pytest.approx([copies[0], copies[1] / 2])
    assert narrow.step_s < ends.step_s < last.step_s < wide.step_s
    assert ends.step_s - narrow.step_s == pytest.approx((wide.step_s - narrow.step_s) / 8, rel=0.02)
    assert last.step_s - narrow.step_s == pytest.approx((wide.step_s - narrow.step_s) / 2, rel=0.06)
