"""Activations on the host: what is copied, what of it shows, and whether the host has room."""

import numpy as np
import pytest

from parlay.estimate.estimate import estimate, price
from parlay.estimate.offload import host_has_room, hosted_activations
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.rates.datasheet import C2C_BYTES_PER_S

LLAMA, V3 = load_model("llama-3.1-8b"), load_model("deepseek-v3")
H100 = load_cluster("dgx-h100")
WORK = Workload(seq_len=8192, global_batch=64)


def with_link(bytes_per_s):
    link = H100.device.host_link_bytes_per_s
    other = {"host_link_bytes_per_s": link.model_copy(update={"value": bytes_per_s}), "achieved": {}}
    device = H100.device.model_copy(update=other)
    return H100.model_copy(update={"device": device})


def priced(cluster, share, **layout):
    rows = Layouts.of(Layout(**layout, offload_activations=share))
    return price(LLAMA, cluster, WORK, rows, rates_for(cluster), every=True)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_what_leaves_the_device_is_what_is_copied(share):
    """Without a pipeline one micro-batch is kept, and what the device holds less of it crosses the link each way."""
    rows = Layouts.of(Layout(dp=8, offload_activations=share))
    held, moved = hosted_activations(LLAMA, H100, WORK, rows, stages_of(LLAMA, rows, WORK.global_batch))
    kept, left = (priced(H100, s, dp=8).memory.tree.find("memory.activations").value[0, 0] for s in (0.0, share))
    assert moved[0, 0] == held[0, 0] == pytest.approx(kept - left, rel=1e-9)


def test_a_pipeline_has_every_micro_batch_in_flight_on_the_host():
    rows = Layouts.of(Layout(pp=4, dp=2, offload_activations=1.0))
    stages = stages_of(LLAMA, rows, WORK.global_batch)
    held, moved = hosted_activations(LLAMA, H100, WORK, rows, stages)
    assert (held[0, :3] > moved[0, :3]).all()
    layers = stages.layer_total[0]
    np.testing.assert_allclose(held[0], moved[0] * (stages.in_flight[0] - 2 / layers) / (1 - 2 / layers), rtol=1e-9)


@pytest.mark.parametrize("layout", [{"dp": 8}, {"tp": 2, "pp": 2, "dp": 2}, {"pp": 4, "dp": 2, "vpp": 2}])
def test_what_a_pass_is_too_short_to_hide_shows(layout):
    slow, fast = with_link(2e9), with_link(C2C_BYTES_PER_S)
    none, some, free = priced(slow, 0.0, **layout).time, priced(slow, 1.0, **layout).time, priced(fast, 1.0, **layout).time
    rows = Layouts.of(Layout(**layout, offload_activations=1.0))
    _, moved = hosted_activations(LLAMA, slow, WORK, rows, stages_of(LLAMA, rows, WORK.global_batch))
    seconds = rates_for(slow).host_copy(moved, "to_host").seconds
    np.testing.assert_allclose(some.host.forward, np.maximum(0, seconds - none.forward))
    np.testing.assert_allclose(some.host.backward, np.maximum(0, seconds - none.backward))
    assert (some.host.forward > 0).all()
    assert some.step[0] > none.step[0]
    assert free.step[0] == pytest.approx(none.step[0], rel=1e-6)
    hidden = free.hidden().at(0).find("hidden.host").value
    assert hidden > 0


@pytest.mark.parametrize("layout", [{"dp": 8}, {"tp": 2, "pp": 2, "dp": 2}, {"pp": 4, "dp": 2, "vpp": 2}])
def test_the_tree_and_the_timeline_hold_the_copies(layout):
    slow = with_link(2e9)
    e = estimate(LLAMA, slow, WORK, Layout(**layout, offload_activations=1.0), rates=rates_for(slow))
    without = estimate(LLAMA, slow, WORK, Layout(**layout), rates=rates_for(slow))
    copies = e.step.find("step.exposed.host").value
    assert copies > 0
    assert e.step_s == pytest.approx(sum(p.value for p in e.step.parts), rel=1e-9)
    assert e.step_s - without.step_s >= copies * (1 - 1e-9)
    if "pp" not in layout:
        assert e.step_s - without.step_s == pytest.approx(copies, rel=1e-6)


def test_the_host_must_have_room():
    rows = Layouts.of([Layout(dp=8, zero=1, offload_activations=s, offload_optimizer=o) for s in (0.0, 1.0) for o in (0.0, 1.0)])
    held = hosted_activations(LLAMA, H100, WORK, rows, stages_of(LLAMA, rows, WORK.global_batch))[0].max(axis=1) * 8
    state = 12 * 8.03e9
    needed = [0.0, state, held[2], held[3] + state]
    for room in (1e9, 0.99 * needed[2], 1.01 * max(needed[1], needed[2]), 1.01 * needed[3]):
        size = H100.host_memory_bytes.model_copy(update={"value": room})
        cluster = H100.model_copy(update={"host_memory_bytes": size})
        assert host_has_room(LLAMA, cluster, WORK, rows).tolist() == [n <= room for n in needed]
    unknown = H100.model_copy(update={"host_memory_bytes": None})
    assert host_has_room(LLAMA, unknown, WORK, rows).all()


def test_copies_of_an_hsdp_shard_each_keep_their_state_on_the_host():
    rows = Layouts.of([Layout(dp=64, zero=3, shard=s, offload_optimizer=1.0) for s in (64, 8)])
    whole = 12 * 8.03e9
    size = H100.host_memory_bytes.model_copy(update={"value": 2.0 * whole / 8})
    cluster = H100.model_copy(update={"host_memory_bytes": size})
    assert host_has_room(LLAMA, cluster, WORK, rows).tolist() == [True, False]


def test_many_rows_are_timed_as_each_alone():
    rows = [Layout(dp=8, ep=8, offload_activations=s, recompute=r) for s in (0.0, 0.5, 1.0) for r in ((), ("full",))]
    cluster = with_link(5e9)
    together = price(V3, cluster, WORK, Layouts.of(rows), rates_for(cluster)).time.step
    alone = [price(V3, cluster, WORK, Layouts.of(r), rates_for(cluster)).time.step[0] for r in rows]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
