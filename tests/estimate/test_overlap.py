"""What a calibration's slow-downs do to a step: more where compute and transfers run at once, nothing elsewhere."""

import pytest

from parlay.estimate.estimate import price
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.calibrated import calibrated_rates
from parlay.rates.calibration_file import Calibration, MeasuredDevice, Overlap
from parlay.rates.choose import rates_for

CLUSTER = load_cluster("dgx-h100")
LLAMA_8B, MIXTRAL = load_model("llama-3.1-8b"), load_model("mixtral-8x7b")
H100 = MeasuredDevice(name="NVIDIA H100 80GB HBM3", vendor="nvidia")

# What runs beside compute, by how: gradients and weights, ZeRO-3's layers, tensor-parallel backward with and without sequence
# parallelism, userbuffers, rings, experts, pipeline transfers of interleaved stages.
OVERLAPPING = [
    (LLAMA_8B, {"dp": 8, "zero": 1}, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    (LLAMA_8B, {"dp": 8, "zero": 3}, {"framework": "torchtitan"}),
    (LLAMA_8B, {"tp": 4}, {}),
    (LLAMA_8B, {"tp": 4, "sp": True}, {}),
    (LLAMA_8B, {"tp": 4, "sp": True, "tp_overlap": True}, {}),
    (LLAMA_8B, {"cp": 4, "dp": 2}, {"seq_len": 65536}),  # shorter blocks wait for the host, which hides what is lost
    (MIXTRAL, {"dp": 8, "ep": 8, "ep_overlap": True}, {}),
    (LLAMA_8B, {"pp": 4, "vpp": 2}, {}),
]
ALONE = [
    (LLAMA_8B, {}, {}),
    (LLAMA_8B, {"dp": 8, "zero": 1}, {"overlap_grad_reduce": False, "overlap_param_gather": False}),
    (LLAMA_8B, {"pp": 4}, {}),
]


def timed(case, *factors):
    """Return the time of a step with a file that holds these slow-downs, or with no file."""
    model, layout, settings = case
    rates = rates_for(CLUSTER)
    if factors:
        measured = Overlap(compute="gemm", comm="all_reduce", slow_compute=factors[0], slow_comm=factors[1])
        file = Calibration(created="2026-11-29", tool={}, device=H100, complete=True, overlap=(measured,))
        rates = calibrated_rates(file, CLUSTER, rates)
    work = Workload(**({"seq_len": 4096, "global_batch": 64} | settings))
    return price(model, CLUSTER, work, Layouts.of(Layout(**layout)), rates, every=True).time


def lost(time):
    return time.tree().find("step.exposed.overlap")


@pytest.mark.parametrize("case", OVERLAPPING, ids=lambda c: str(c[1]))
def test_a_larger_slow_down_raises_the_step_of_what_overlaps(case):
    plain, some, more = timed(case, 1.0, 1.0), timed(case, 1.2, 1.1), timed(case, 1.5, 1.4)
    assert lost(plain).value[0] == pytest.approx(0, abs=1e-12)
    assert plain.step[0] < some.step[0] < more.step[0]
    assert lost(some).value[0] < lost(more).value[0]
    assert lost(some).source == "calibrated"
    for time in (some, more):
        tree = time.tree()
        assert tree.value[0] == pytest.approx(time.step[0], rel=1e-9)
        # A pipeline waits for its slowest stage, so fill and drain grow too; beside them nothing else of the step changes.
        waits = [t.find("step.bubble").value[0] for t in (tree, plain.tree())]
        gaps = [t.find("step.compute.launch_gaps").value[0] for t in (tree, plain.tree())]
        grown = lost(time).value[0] + waits[0] - waits[1] + gaps[0] - gaps[1]
        assert time.step[0] - plain.step[0] == pytest.approx(grown, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", ALONE, ids=lambda c: f"{c[1]} {c[2]}")
def test_what_does_not_overlap_takes_as_long(case):
    plain, more = timed(case), timed(case, 1.5, 1.4)
    assert more.step[0] == plain.step[0]
    assert lost(more).value[0] == 0


def test_the_loss_is_at_most_what_runs_beside_compute_slowed():
    """Of products that take 1.5 times as long beside a hidden transfer that takes 1.4 times as long, a third is lost."""
    case = OVERLAPPING[0]
    plain, more = timed(case), timed(case, 1.5, 1.4)
    hidden = plain.data.hidden[0]
    assert lost(more).value[0] == pytest.approx(hidden * 1.4 * (1 - 1 / 1.5), rel=1e-6)


def test_factors_below_one_are_noise():
    assert timed(OVERLAPPING[0], 0.9, 0.95).step[0] == timed(OVERLAPPING[0], 1.0, 1.0).step[0]


@pytest.mark.parametrize("case", OVERLAPPING, ids=lambda c: str(c[1]))
def test_without_a_file_the_published_mean_holds(case):
    """Compute takes 1.189 times as long beside a transfer on average (arXiv:2507.03114), which the term calls a default."""
    usual = timed(case)
    assert usual.step[0] == pytest.approx(timed(case, 1.189, 1.0).step[0], rel=1e-12)
    assert lost(usual).source == "default"
    assert 0 < lost(usual).value[0] < 0.189 / 1.189 * usual.step[0]
