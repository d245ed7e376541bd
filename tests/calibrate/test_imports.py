"""Files of nccl-tests, SimuMax and all_reduce_bench.py, in their own formats, through the same gates as measured points."""

import json

import pytest

from parlay.calibrate.imports import import_file
from parlay.errors import UsageError
from parlay.hardware.load import load_cluster

NOW = "2026-11-29T12:00:00Z"


def nccl(ranks=8, hosts=1, program="/opt/nccl-tests/build/all_reduce_perf", per_iter=False):
    """The layout that util.cu of nccl-tests writes (JSON version 2); strings have their slashes escaped."""
    rows = []
    for size in (1 << 20, 1 << 24, 1 << 28):
        t = 30.0 + size * 1.75 / 400e9 * 1e6
        row = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        row["out_of_place"] = {"time": t, "alg_bw": size / t / 1e3, "bus_bw": size * 1.75 / t / 1e3, "nwrong": 0.0}
        if per_iter:
            row["out_of_place_per_iter"] = {"times_us": [t, t * 1.01, t * 1.3], "p50_us": t * 1.01}
        row["in_place"] = {"time": t * 2, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": None}
        rows.append(row)
    devices = [
        {"rank": r, "group": 0, "pid": 100 + r, "hostname": f"node{r * hosts // ranks}", "device": r, "device_hex": "00:1b:00", "device_info": "NVIDIA H100 80GB HBM3"}
        for r in range(ranks)
    ]  # fmt: skip
    return {
        "version": 2, "start_time": "2026-11-01 10:00:00", "args": [program, "-b", "1M"], "env": ["A=1"], "nccl_version": 22902,
        "config": {"nthreads": 1, "ngpus": 8, "devices": devices}, "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"}, "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"}, "end_time": "x",
    }  # fmt: skip


def written(tmp_path, data):
    path = tmp_path / "in.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_nccl_tests(tmp_path):
    c = import_file(written(tmp_path, nccl()), NOW, cluster=load_cluster("dgx-h100"))
    (link,) = c.links
    assert (link.op, link.level, link.n, link.local) == ("all_reduce", "intra", 8, 8)
    assert [p.bytes for p in link.points] == [1 << 20, 1 << 24, 1 << 28]
    assert link.points[-1].seconds.median == pytest.approx(30e-6 + 2**28 * 1.75 / 400e9)
    assert c.software.nccl == (2, 29, 2)
    assert c.device.name == "NVIDIA H100 80GB HBM3"
    assert (c.created, c.provenance, c.complete) == ("2026-11-01T10:00:00", "imported", True)
    assert link.points[0].flags == ("single value",)
    assert c.fits[0].params["bytes_per_s"] == pytest.approx(400e9, rel=0.02)


def test_nccl_tests_with_every_iteration_and_two_hosts(tmp_path):
    c = import_file(written(tmp_path, nccl(16, 2, "all_gather_perf", per_iter=True)), NOW)
    (link,) = c.links
    assert (link.op, link.level, link.n, link.local) == ("all_gather", "world", 16, 8)
    assert len(link.points[0].samples_s) == 3
    assert link.points[0].flags == ("spread",)
    assert c.topology.hosts == 2


def test_nccl_tests_built_without_mpi_measured_nothing(tmp_path):
    """Reported often: n separate runs of one rank each, bus bandwidth 0.00 and a huge algorithm bandwidth."""
    with pytest.raises(UsageError, match="one rank") as caught:
        import_file(written(tmp_path, nccl(1)), NOW)
    assert "MPI=1" in caught.value.hint
    assert "node0" in caught.value.hint


def simumax():
    gemm = {"b=1, m=4096, k=8192, n=10240, layout=TN, accumulate=False, out_dtype=bf16": 0.6451614102335537, "b=1, m=10240, k=4096, n=8192, layout=NT, accumulate=True, out_dtype=fp32": 0.5979461534906494}  # fmt: skip
    core = {"batch=1, seq_len=4096, head_num=128, kv_head_num=16, qk_head_dim=128, v_head_dim=128, qkv_contiguous=True": 0.9966548277237911, "batch=1, seq_len=4096, head_num=128, kv_head_num=16, qk_head_dim=128, v_head_dim=128, qkv_contiguous=False": 0.94}  # fmt: skip
    ops = {
        "all_reduce": {"scale": 2, "offset": -1, "efficient_factor": 0.7424, "latency_us": 5.5183, "fixed_latency_us": 22.2316},
        "p2p": {"scale": 1, "offset": 0, "efficient_factor": 1.4517, "latency_us": 16.0668},
    }
    return {
        "sys_name": "b200_bf16_ceperm", "num_per_node": 8,
        "accelerator": {"backend": "cuda", "mem_gbs": 80, "op": {"matmul": {"tflops": 2250.0, "accurate_efficient_factor": gemm}, "sdp_fwd": {"tflops": 2250.0, "accurate_efficient_factor": core}}},
        "networks": {"high_intra_node": {"bandwidth": {"gbps": 900.0}, "op": ops}, "inter_node": {"bandwidth": {"gbps": 200}, "op": {"all_reduce": {"scale": 2, "offset": -1}}}},
    }  # fmt: skip


def test_simumax(tmp_path):
    """Values of its b200_bf16_ceperm.json; its send to itself is the one that the gate must catch."""
    c = import_file(written(tmp_path, simumax()), NOW, cluster=load_cluster("dgx-b200"))
    plain, added = c.gemms
    assert plain.seconds.median == pytest.approx(2.0 * 4096 * 8192 * 10240 / (0.6451614 * 2250e12))
    assert (added.layout, added.accumulate, added.m, added.n, added.k) == ("NT", True, 10240, 8192, 4096)
    (core,) = c.attentions  # counted causal, half of its square: within the datasheet although its own share is 0.997
    assert core.flops == pytest.approx(2.0 * 128 * 4096**2 * 0.5 * 256)
    assert core.seconds.median == pytest.approx(2.0 * 128 * 4096**2 * 256 / (0.9966548 * 2250e12))
    assert [link.op for link in c.links] == ["all_reduce"]
    assert all("send_recv" in e.what for e in c.errors)
    assert c.errors
    assert c.links[0].points[-1].busbw == pytest.approx(0.7424 * 900 * 2**30, rel=0.02)
    assert "without samples" in c.warnings[0]


BENCH = """
Environment:
- software: torch=2.8.0+cu128, cuda=12.8, nccl=(2, 27, 3)
- hardware: _CudaDeviceProperties(name='NVIDIA H200', major=9, minor=0, total_memory=143166MB, multi_processor_count=132)

The average bandwidth of all_reduce over 16 ranks (5 warmups / 20 trials, up to 10 queued calls per trial):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.94GBps |   0.50GBps |
|    1MiB |  18.75GBps |  10.00GBps |
|    1GiB | 375.00GBps | 200.00GBps |
"""


def test_all_reduce_bench(tmp_path):
    c = import_file(written(tmp_path, BENCH), NOW, ranks_per_host=8)
    (link,) = c.links
    assert (link.op, link.level, link.n, link.local) == ("all_reduce", "world", 16, 8)
    assert [p.bytes for p in link.points] == [32 << 10, 1 << 20, 1 << 30]
    assert link.points[-1].seconds.median == pytest.approx(2**30 / 200e9)
    assert link.points[-1].busbw == pytest.approx(375e9, rel=1e-3)
    assert c.device.name == "NVIDIA H200"
    assert c.software.nccl == (2, 27, 3)
    assert any("--ranks-per-host" in w for w in import_file(written(tmp_path, BENCH), NOW).warnings)


@pytest.mark.parametrize(
    "data",
    ["hello", {"a": 1}, [], {"results": [], "config": {}, "args": ["latency_perf"]}, {"results": [{}], "config": {"devices": [{}, {}]}, "args": ["all_reduce_perf"]}, {"accelerator": {}, "networks": {}}],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, data):
    with pytest.raises(UsageError):
        import_file(written(tmp_path, data), NOW)
