"""One layout in full: what an estimate holds, refuses and says about itself."""

import numpy as np
import pytest

from parlay.errors import UsageError
from parlay.estimate.estimate import estimate, price, price_memory, price_time
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for

LLAMA = load_model("llama-3.1-8b")
H100 = load_cluster("dgx-h100")
WORK = Workload(seq_len=8192, global_batch=64)


def test_a_broken_layout_names_every_rule():
    with pytest.raises(UsageError) as caught:
        estimate(LLAMA, H100, Workload(global_batch=6), Layout(tp=3, dp=4))
    said = str(caught.value)
    assert said.startswith("layout tp3.pp1.dp4.mb1: tp=3 does not divide the 32 attention heads")
    assert "also: " in said
    assert "does not divide the global batch of 6" in said
    assert "tp may be" in caught.value.hint


def test_a_layout_that_does_not_use_all_gpus_is_refused():
    with pytest.raises(UsageError, match="8 GPUs, but there are 16") as caught:
        estimate(LLAMA, H100, WORK, Layout(dp=8), gpus=16)
    assert "dp must be 16" in caught.value.hint


def test_the_parts_of_an_estimate_agree():
    e = estimate(LLAMA, H100, WORK, Layout(tp=2, pp=2, dp=2))
    assert len(e.memory) == 2
    assert e.peak_bytes == max(m.value for m in e.memory) == e.memory[e.worst_stage].value
    assert e.fits == (e.peak_bytes <= e.memory_limit_bytes)
    assert e.gpus == 8
    assert e.step.value == e.step_s
    assert e.mfu_convention == "megatron"
    assert e.mfu == pytest.approx(e.flops_per_token * e.tokens_per_s_per_gpu / e.mfu_peak_flops_per_s)
    assert set(e.sources) == {t.key for t in e.step.walk() if not t.parts}
    assert e.assumptions
    assert e.violations == ()
    for tree in (*e.memory, e.step, e.hidden):
        for node in tree.walk():
            assert isinstance(node.value, float)
            assert np.isfinite(node.value)
            assert not node.parts or node.value == pytest.approx(sum(p.value for p in node.parts), rel=1e-9, abs=1e-9)


def test_too_large_a_layout_is_priced_and_does_not_fit():
    e = estimate(load_model("llama-3.1-70b"), H100, WORK, Layout(dp=8))
    assert not e.fits
    assert e.peak_bytes > 5 * e.memory_limit_bytes


def test_time_and_memory_apart_are_time_and_memory_together():
    rates, layouts = rates_for(H100), Layouts.of([Layout(dp=8), Layout(tp=2, pp=2, dp=2)])
    both = price(LLAMA, H100, WORK, layouts, rates)
    assert np.array_equal(both.memory.total, price_memory(LLAMA, H100, WORK, layouts).total)
    assert np.array_equal(both.time.step, price_time(LLAMA, H100, WORK, layouts, rates).step)
    assert np.array_equal(both.fits, both.memory.fits)


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h200", "dgx-b200", "gb200-nvl72", "mi300x-8", "l40s-pcie-8", "aws-p5"])
def test_every_kind_of_cluster_is_priced(cluster):
    e = estimate(load_model("llama-3.2-1b"), load_cluster(cluster), Workload(global_batch=64), Layout(tp=2, dp=4))
    assert 0.03 < e.mfu < 0.8


def test_faster_hardware_is_faster():
    times = [estimate(LLAMA, load_cluster(c), WORK, Layout(tp=2, dp=4)).step_s for c in ("dgx-a100", "dgx-h100", "dgx-b200")]
    assert times[0] > 1.5 * times[1] > 2 * times[2]


def test_a_faster_network_never_makes_a_step_slower():
    slow, fast = load_cluster("aws-p4d"), load_cluster("dgx-a100-40gb")
    layout = Layout(tp=8, dp=8)
    assert slow.nic_bytes_per_s_per_gpu < fast.nic_bytes_per_s_per_gpu
    assert estimate(LLAMA, slow, WORK, layout).step_s > estimate(LLAMA, fast, WORK, layout).step_s
