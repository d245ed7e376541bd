"""Defaults of each framework, by date, and what is said about them."""

import re
from datetime import date
from pathlib import Path

import pytest

from parlay.estimate import frameworks, loss, traits
from parlay.estimate.frameworks import resolve
from parlay.estimate.loss import COMPILED, DELETED, EAGER, FUSED, TE_IN_PLACE, VOCAB_PARALLEL
from parlay.formulas.optimizer_step import step_traffic_bytes
from parlay.hardware.load import load_device
from parlay.layouts.workload import Workload

H100, B200, MI300 = "h100-sxm", "b200", "mi300x"


def settings(device=H100, **given):
    return resolve(Workload(**given), load_device(device))


def test_megatron_counts_six_and_twelve_bytes():
    s = settings()
    assert (s.weight_bytes, s.gradient_bytes, s.master_bytes, s.moments_bytes) == (2, 4, 4, 8)
    assert s.vocab_multiple == 128
    assert s.loss == VOCAB_PARALLEL
    assert s.caches == (True, True, True)
    assert not s.overlap_grad_reduce


def test_torchtitan_updates_the_weights_it_shards():
    s = settings(framework="torchtitan")
    assert (s.weight_bytes, s.gradient_bytes, s.master_bytes, s.moments_bytes) == (4, 4, 0, 8)
    assert s.vocab_multiple == 1
    assert s.caches == (False, False, False)
    assert s.loss == DELETED
    assert settings(framework="deepspeed").loss == EAGER
    assert settings(framework="torchtitan", compiled=True).loss == COMPILED


def test_deepspeed_keeps_bf16_gradients_and_copies_them_for_the_step():
    s = settings(framework="deepspeed")
    assert (s.weight_bytes, s.gradient_bytes, s.master_bytes, s.step_bytes) == (2, 2, 4, 4)
    assert s.bucket_elements_of([8]).tolist() == [5e8]
    summed = settings(framework="deepspeed", gradient_dtype="fp32")  # BF16_Optimizer: fp32 sums beside the bf16 gradients
    assert (summed.gradient_bytes, summed.step_bytes) == (6, 0)


@pytest.mark.parametrize(
    ("day", "caches"),
    [
        ("2025-05-01", (False,) * 3),
        ("2025-06-01", (True, False, False)),
        ("2025-08-15", (True, False, True)),
        ("2025-11-01", (True,) * 3),
    ],
)
def test_cached_gradients_by_date(day, caches):
    assert settings(framework_date=day).caches == caches


def test_losses_by_name_and_date():
    assert settings(cross_entropy="te", framework_date="2026-07-08").loss == TE_IN_PLACE
    assert settings(cross_entropy="te", framework_date="2026-07-09").loss == VOCAB_PARALLEL
    assert settings(cross_entropy="fused").loss == FUSED
    assert settings(framework="torchtitan", cross_entropy="chunked").loss.chunks == 8


def test_bf16_gradients_are_copied_for_the_step_unless_the_optimizer_reads_them():
    assert settings(gradient_dtype="bf16").step_bytes == 4
    assert settings(gradient_dtype="bf16", moment_dtype="bf16").step_bytes == 0
    assert settings().step_bytes == 0
    assert settings().sharded_step_bytes == settings().sharded_left_bytes == 4  # Megatron-FSDP's gradients are bf16 by default
    assert settings(gradient_dtype="fp32").sharded_step_bytes == 0


def test_moments_of_less_than_fp32_are_copied_for_the_step():
    """Both in fp32, 8 bytes; TransformerEngine 2.13 reads bf16 moments as they are."""
    assert settings(moment_dtype="fp8").scaled_bytes == settings(moment_dtype="fp16").scaled_bytes == 8
    days = ("2026-03-17", "2026-03-18")
    assert [settings(moment_dtype="bf16", framework_date=day).scaled_bytes for day in days] == [8, 0]
    assert settings(framework_date=days[0]).scaled_bytes == settings(moment_dtype="bf16").scaled_bytes == 0
    assert settings(framework="torchtitan", moment_dtype="bf16", framework_date=days[0]).scaled_bytes == 0


@pytest.mark.parametrize(("framework", "each"), [("megatron-core", 2), ("torchtitan", 4), ("deepspeed", 2)])
def test_what_zero_3_reduces_in(framework, each):
    """Megatron-FSDP in its gradients' format (grad_comm_dtype None), torchtitan in mixed_precision_reduce, fp32."""
    assert settings(framework=framework).reduce_bytes == each
    assert settings(framework="megatron-core", gradient_dtype="fp32").reduce_bytes == 4


def test_buckets_grow_with_ranks_where_reductions_overlap():
    assert settings().bucket_elements_of([8])[0] > 1e15
    assert settings(overlap_grad_reduce=True).bucket_elements_of([8, 64]).tolist() == [40e6, 64e6]
    assert settings(bucket_elements=7).bucket_elements_of([8]).tolist() == [7]


def test_quantised_weights_need_both_directions_on_hopper_only():
    assert settings(precision="fp8").weight_copies == 2
    assert settings(B200, precision="fp8").weight_copies == 1
    assert settings(B200, precision="mxfp8").weight_copies == 2
    assert settings().weight_copies == 0


def test_workspaces_follow_the_device():
    mib = 2**20
    assert (settings().te_workspace_bytes, settings().torch_workspace_bytes) == (32 * mib, 32 * mib)
    assert settings(B200).te_workspace_bytes == 32 * mib
    assert settings("a100-sxm").te_workspace_bytes == 4 * mib
    assert settings(MI300).torch_workspace_bytes == 8.125 * mib  # no compute capability to read


def test_pytorch_gives_blackwell_a_large_workspace_since_2_12():
    mib = 2**20
    days = ("2026-05-12", "2026-05-13")
    assert [settings(B200, framework_date=day).torch_workspace_bytes / mib for day in days] == [8.125, 32]
    assert [settings("a100-sxm", framework_date=day).torch_workspace_bytes / mib for day in days] == [8.125, 8.125]
    assert settings(B200, framework_date=days[0], deterministic=True).torch_workspace_bytes == 32 * mib


def test_copies_of_bf16_gradients_are_left_after_the_step():
    """Megatron's next step frees them; DeepSpeed's, and unscaled moments, go with the step itself."""
    assert settings(gradient_dtype="bf16").left_bytes == 4
    assert settings().left_bytes == settings(moment_dtype="fp8").left_bytes == 0
    assert settings(framework="deepspeed").left_bytes == 0


def test_optimizer_traffic():
    """Megatron with Adam: 4 read, 12 read and written, 2 written."""
    kernel = settings().step_of(sharded=False)
    assert step_traffic_bytes(1, **kernel) == 4 + 24 + 2 + 4 + 4  # the norm reads gradients, the copy main weights
    assert step_traffic_bytes(1, **settings(optimizer="sgd").step_of(sharded=False)) == 4 + 16 + 2 + 4 + 4


def test_the_moments_that_are_said_are_those_that_are_priced():
    def said(optimizer):
        return next(t for t in settings(optimizer=optimizer).assumptions if "moments" in t)

    assert "8 bits" in said("adamw-8bit")
    assert "fp32 scale" in said("adamw-8bit")
    assert said("adafactor") == "factored optimizer moments in fp32"
    assert said("adamw") == "optimizer moments in fp32"


def test_a_given_field_is_not_an_assumption():
    open_, given = settings().assumptions, settings(gradient_dtype="bf16", cross_entropy="te").assumptions
    assert any("gradients accumulate in fp32" in s for s in open_)
    assert not any("gradients" in s or "cross entropy" in s for s in given)
    assert settings(gradient_dtype="bf16").gradient_bytes == 2


def test_sharded_gradients_follow_megatron_fsdp():
    assert settings().sharded_gradient_bytes == 2
    assert settings(gradient_dtype="fp32").sharded_gradient_bytes == 4


def test_a_wrong_date_says_how_to_write_one():
    with pytest.raises(ValueError, match="'soon' is not a date; write it like 2025-11-30"):
        settings(framework_date="soon")


@pytest.mark.parametrize("given", ["2025-06-30", "20250630", 20250630, "2025-W27-1", date(2025, 6, 30)])
def test_a_date_has_one_spelling(given):
    """Memory and time ask for its era in two ways."""
    assert Workload(framework_date=given).framework_date == "2025-06-30"


def test_fp16_gradients_accumulate_as_they_are():
    """megatron/training/arguments.py: only bf16 turns fp32 accumulation on by itself."""
    assert settings(precision="fp16").gradient_bytes == 2
    assert settings(precision="fp16", gradient_dtype="fp32").gradient_bytes == 4
    assert settings().gradient_bytes == 4
    assert any("fp16 (megatron-core's default)" in said for said in settings(precision="fp16").assumptions)


def test_guide_lists_every_date() -> None:
    """Each day on which a default changes stands in the guide to framework configurations, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "framework-configs.md").read_text(encoding="utf-8")
    section = page.partition("## What `framework_date` changes")[2].partition("| framework |")[2]
    known: set[str] = set()
    for module in (frameworks, traits, loss):
        for name, value in vars(module).items():
            if name.endswith(("_SINCE", "_UNTIL")):
                known |= set(value.values()) if isinstance(value, dict) else {str(value)}
    assert set(re.findall(r"20\d\d-\d\d-\d\d", section)) == known
