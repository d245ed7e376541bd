"""What is measured: shapes of a model, levels of a topology, keys that a resumed run finds again."""

import pytest

from parlay.calibrate.links import groups_of
from parlay.calibrate.machine import state_warnings, throttle_reasons
from parlay.calibrate.shapes import shapes_of
from parlay.calibrate.state import State, begin
from parlay.calibrate.tasks import (
    anchors,
    done_keys,
    gemm_tasks,
    host_tasks,
    link_tasks,
    places,
    sizes,
    stream_bytes,
    stream_tasks,
    task,
)
from parlay.errors import UsageError
from parlay.models.load import load_model
from parlay.rates.calibration_file import Calibration, MeasuredDevice, Software, Topology, load_calibration


def fresh(**fields):
    given = {"created": "2026-11-29T12:00:00Z", "tool": {"name": "parlay"}, "device": MeasuredDevice(name="cpu", vendor="cpu")}
    return Calibration(**(given | fields))


def test_shapes_of_llama_3_8b():
    """h = 4096, 32 query and 8 key/value heads of 128, width 14336: forward, input gradient and weight gradient of each."""
    found = shapes_of(load_model("llama-3.1-8b"), 4096, 1, (1,))
    s = 4096
    wanted = set()
    for out, inner in ((6144, 4096), (4096, 4096), (2 * 14336, 4096), (4096, 14336), (128256, 4096)):
        wanted |= {(s, out, inner, "TN"), (s, inner, out, "NN"), (inner, out, s, "NT")}
    assert set(found.products) == wanted
    assert found.cores == ((1, s, s, 32, 8, 128, 128),)
    assert found.grouped == ()


def test_tensor_parallel_shapes_and_experts():
    eight = shapes_of(load_model("llama-3.1-8b"), 4096, 1, (8,))
    assert (4096, 768, 4096, "TN") in eight.products
    assert eight.cores == ((1, 4096, 4096, 4, 1, 128, 128),)
    assert shapes_of(load_model("mixtral-8x7b"), 4096, 1, (1,)).grouped[0][:2] == (8192, 8)
    assert shapes_of(load_model("llama-3.1-8b"), 4096, 1, (3,)) == shapes_of(load_model("llama-3.1-8b"), 4096, 1, (1,))


def test_levels_of_a_topology():
    assert [p.level for p in places(1, 1)] == []
    assert [(p.level, p.n, p.active) for p in places(1, 8)] == [("intra", 8, 1), ("intra", 4, 2), ("intra", 2, 4)]
    assert [(p.level, p.n, p.local, p.active) for p in places(4, 1)] == [("inter", 4, 1, 1)]
    assert ("rails", 4, 1, 8) in [(p.level, p.n, p.local, p.active) for p in places(4, 8)]
    hosts, per_host, groups = groups_of(["a", "b", "a", "b"])
    assert (hosts, per_host) == (2, 2)
    assert groups["intra", 2] == [[0, 2], [1, 3]]
    assert groups["rails", 2] == [[0, 1], [2, 3]]
    assert groups["inter pair", 2] == [[0, 1]]
    assert groups_of(["a", "a", "b"])[2] == {}  # uneven hosts have no levels


def test_every_size_is_measured_once_and_the_ends_are_in():
    assert sizes()[0] == 1024
    assert sizes()[-1] == 1 << 30
    assert len(set(sizes())) == len(sizes()) == 15


def test_a_measured_point_is_not_measured_again(tmp_path):
    tasks = [
        *gemm_tasks(anchors(2048), "bf16"), *stream_tasks((1 << 18, 1 << 20), "bf16"),
        *host_tasks(), *link_tasks(2, 2, ("all_reduce", "send_recv"), 1024, 1 << 20),
        task("attention", dtype="bf16", batch=1, seq=256, heads=8, kv_heads=4, qk_dim=64, v_dim=64, causal=True, backward=True),
        task("grouped_gemm", dtype="bf16", rows=1024, groups=8, n=64, k=64),
    ]  # fmt: skip
    assert len({t.key for t in tasks}) == len(tasks)
    state = State(fresh(), tmp_path / "c.json")
    for t in tasks:
        assert state.add(t, [1e-3, 1.1e-3], "gloo") is None
    state.save()
    assert done_keys(load_calibration(tmp_path / "c.json")) == {t.key for t in tasks}


def test_bytes_are_counted_as_the_estimate_counts_them():
    assert stream_bytes("norm", "forward", 1000) == 4000
    assert stream_bytes("norm", "backward", 1000) == 6000
    assert stream_bytes("optimizer", "step", 1000, "fp32") == 28000


def test_copies_to_the_host_go_both_ways_from_latency_to_bandwidth():
    found = host_tasks()
    assert {t["direction"] for t in found} == {"to_host", "to_device"}
    assert {t["bytes"] for t in found} == {1 << 16, 1 << 20, 1 << 24, 1 << 28}


def test_a_message_there_and_back_counts_half(tmp_path):
    state = State(fresh(), tmp_path / "c.json")
    t = link_tasks(2, 1, ("send_recv",), 1 << 20, 1 << 20)[0]
    state.add(t, [2e-3], "gloo")
    assert state.calibration.links[0].points[0].seconds.median == 1e-3


def test_resume_takes_up_the_same_machine_only(tmp_path):
    path = tmp_path / "c.json"
    state = begin(fresh(), path, resume=False)
    state.add(gemm_tasks([(64, 64, 64, "TN")], "bf16")[0], [1e-3], "gloo")
    state.save()
    with pytest.raises(UsageError, match="is there already") as caught:
        begin(fresh(), path, resume=False)
    assert "--resume" in caught.value.hint
    again = begin(fresh(), path, resume=True)
    assert len(again.calibration.compute) == 1
    assert again.calibration.resumed
    for other in (fresh(software=Software(torch="3.0")), fresh(topology=Topology(hosts=2, rank_to_host=(0, 1)))):
        again.save()
        assert begin(other, path, resume=True).calibration.compute == ()
        assert len(load_calibration(tmp_path / "c.json.old").compute) == 1
        assert not path.exists()


def test_the_state_of_a_device():
    slow = MeasuredDevice(name="x", vendor="nvidia", clocks_mhz={"sm_before": 1965, "sm_after": 1580})
    assert "1965 to 1580 MHz" in state_warnings(slow, Topology())[0]
    fine = slow.model_copy(update={"clocks_mhz": {"sm_before": 1965, "sm_after": 1900}})
    assert state_warnings(fine, Topology()) == []
    sockets = state_warnings(fine, Topology(transport="Socket", nics=("mlx5_0:400 Gb/sec",)))
    assert "NCCL_IB_HCA" in sockets[0]
    assert throttle_reasons("not a mask") == ()
