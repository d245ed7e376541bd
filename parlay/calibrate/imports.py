"""Calibrations from what other tools measured: nccl-tests -J, SimuMax system files, all_reduce_bench.py of ml-engineering.

Field names follow nccl-tests src/util.cu (JSON version 2), SimuMax configs/system/b200_bf16_ceperm.json, and what
all_reduce_bench.py prints. Every imported point passes the same gates as a measured one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from parlay import __version__
from parlay.calibrate.file import summarise
from parlay.calibrate.fits import fitted
from parlay.calibrate.gates import point_flags, sheet_of, sift
from parlay.errors import UsageError
from parlay.hardware.spec import Cluster
from parlay.rates.calibration_file import (
    MAX_CALIBRATION_BYTES,
    AttentionPoint,
    Calibration,
    Gemm,
    Level,
    Link,
    LinkPoint,
    MeasuredDevice,
    Method,
    Note,
    Op,
    Software,
    Times,
    Topology,
)
from parlay.rates.network import wire_factor
from parlay.rates.points import attention_shape
from parlay.specfile import read_text
from parlay.units import parse_quantity

NCCL_OPS: Mapping[str, Op] = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter", "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "broadcast": "broadcast", "sendrecv": "send_recv",
}  # fmt: skip
SIMUMAX_OPS: Mapping[str, Op] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all2all": "all_to_all", "p2p": "send_recv",
}  # fmt: skip
# SimuMax's own formula is time = bytes x (scale x (n + offset) / n) / (factor x GB/s) + latency; it divides by 1024^3.
SIMUMAX_GIB = 2.0**30
SIMUMAX_SIZES = tuple(1 << i for i in (20, 24, 28, 30))
SIMUMAX_PEAK_DTYPE = {"matmul": "bf16", "fp8_matmul": "fp8"}


def import_file(path: Path, created: str, *, cluster: Cluster | None = None, ranks_per_host: int | None = None) -> Calibration:
    """Return the calibration that another tool's file holds.

    Parameters
    ----------
    path : Path
        nccl-tests -J output, a SimuMax system file, or the text that all_reduce_bench.py prints [-].
    created : str
        When it is imported, for files that carry no date [-].
    cluster : Cluster, optional
        What it was measured on: bounds what is believed, and says how many ranks a host has [-].
    ranks_per_host : int, optional
        Ranks on each host, where the file does not say [-].

    Returns
    -------
    Calibration
        What passes the gates, fitted; what does not is named among the errors [-].

    Raises
    ------
    UsageError
        The file is none of these, or was measured on a single rank.
    """
    text = read_text(path, most_bytes=MAX_CALIBRATION_BYTES)
    where = str(path)
    per_host = ranks_per_host or (int(cluster.gpus_per_node.value) if cluster else None)
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        data = None
    if isinstance(data, dict) and "results" in data and "config" in data:
        found = _nccl_tests(data, created, per_host, where)
    elif isinstance(data, dict) and "accelerator" in data and "networks" in data:
        found = _simumax(data, created, where)
    elif data is None and "of all_reduce over" in text:
        found = _all_reduce_bench(text, created, per_host, where)
    else:
        hint = "known: nccl-tests -J FILE, SimuMax configs/system/*.json, the printed output of all_reduce_bench.py"
        raise UsageError("is no benchmark output that is known", where=where, hint=hint)
    if cluster is not None:
        sheet = sheet_of(cluster.device, cluster)
        name = cluster.device.name if found.device.name == "unknown" else found.device.name
        found = found.model_copy(update={"device": found.device.model_copy(update={"datasheet": sheet, "name": name})})
    return fitted(sift(found))


def _calibration(created: str, tool: str, device: MeasuredDevice, **fields: Any) -> Calibration:
    given = {"complete": True, "provenance": "imported", "tool": {"name": "parlay", "version": __version__, "imported": tool}}
    return Calibration(created=created, device=device, **(given | fields))


def _read(where: str, key: str, make: Callable[[], Any]) -> Any:
    """Return what `make` reads, or say that the file lacks it."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"is not as expected ({type(error).__name__}: {str(error)[:80]})", where=f"{where}: {key}") from None


def place_of(ranks: int, per_host: int | None) -> tuple[Level, int]:
    """Return the level and the ranks on each host of a job over all ranks."""
    local = min(per_host or ranks, ranks)
    level: Level = "intra" if local == ranks else "inter" if local == 1 else "world"
    return level, local


def point_of(op: Op, n: int, nbytes: int, samples: list[float]) -> LinkPoint:
    """Return a point of a sweep from its samples."""
    times = summarise(samples)
    return LinkPoint(
        bytes=nbytes, seconds=times, samples_s=tuple(samples), algbw=nbytes / times.median,
        busbw=nbytes * float(wire_factor(op, n)) / times.median, flags=point_flags(times.spread, times.n),
    )  # fmt: skip


def _nccl_tests(data: dict[str, Any], created: str, per_host: int | None, where: str) -> Calibration:
    devices = _read(where, "config.devices", lambda: [dict(d) for d in data["config"].get("devices", data.get("devices"))])
    program = str(next(iter(data.get("args", [])), "")).replace("\\", "").split("/")[-1].removesuffix("_perf")
    op = NCCL_OPS.get(program)
    if op is None:
        raise UsageError(
            f"'{program[:40]}' is no collective that is known",
            where=f"{where}: args",
            hint=f"known: {', '.join(sorted(set(NCCL_OPS)))}",
        )
    groups = {d.get("group", 0) for d in devices}
    ranks = len(devices) // max(len(groups), 1)
    hosts = list(dict.fromkeys(str(d.get("hostname", "?")) for d in devices))
    if ranks < 2:
        raise UsageError(
            "was measured on one rank, so its bandwidth is that of a copy inside a GPU",
            where=where,
            hint=f"build nccl-tests with MPI=1 and start it with mpirun; hosts seen: {', '.join(hosts)}",
        )
    local = per_host or max(Counter(str(d.get("hostname")) for d in devices if d.get("group", 0) == min(groups)).values())
    level, own = place_of(ranks, local)
    points = tuple(_nccl_point(op, ranks, row, where) for row in _read(where, "results", lambda: list(data["results"])))
    kinds = list(dict.fromkeys(str(r.get("type", "float")) for r in data["results"]))
    link = Link(op=op, backend="nccl", level=level, n=ranks, local=own, groups_active=len(groups), dtype=kinds[0], points=points)
    version = int(data.get("nccl_version", 0))
    return _calibration(
        str(data.get("start_time", created)).replace(" ", "T"), "nccl-tests",
        MeasuredDevice(name=str(devices[0].get("device_info", "unknown")) or "unknown", vendor="nvidia", count_per_host=local),
        links=(link,), topology=Topology(hosts=len(hosts), ranks_per_host=local, host_names=tuple(hosts), rank_to_host=tuple(hosts.index(str(d.get("hostname", "?"))) for d in devices)),
        software=Software(nccl=(version // 10000, version // 100 % 100, version % 100) if version else None),
        command=tuple(str(a).replace("\\/", "/") for a in data.get("args", [])),
    )  # fmt: skip


def _nccl_point(op: Op, ranks: int, row: Any, where: str) -> LinkPoint:
    """Return one size: every iteration where it was reported, else the mean; out of place where there is one."""
    side = "out_of_place" if row.get("out_of_place") else "in_place"
    detail = row.get(f"{side}_per_iter") or {}
    mean = _read(where, f"results.{side}.time", lambda: float(row[side]["time"]))
    samples = [float(t) * 1e-6 for t in detail.get("times_us", [])] or [mean * 1e-6]
    return point_of(op, ranks, _read(where, "results.size", lambda: int(row["size"])), [max(s, 1e-9) for s in samples])


def _simumax(data: dict[str, Any], created: str, where: str) -> Calibration:
    """Return the shapes that a SimuMax file holds efficiencies of, and its collectives over one node from its formula."""
    ops = _read(where, "accelerator.op", lambda: dict(data["accelerator"]["op"]))
    compute: list[Gemm | AttentionPoint] = []
    for name, dtype in SIMUMAX_PEAK_DTYPE.items():
        for key, share in ops.get(name, {}).get("accurate_efficient_factor", {}).items():
            compute.append(
                _read(
                    where,
                    key,
                    partial(_simumax_gemm, key, share, ops[name]["tflops"], dtype),
                )
            )
    for name in ("sdp_fwd", "sdp_bwd"):
        for key, share in ops.get(name, {}).get("accurate_efficient_factor", {}).items():
            if "qkv_contiguous=False" in key:
                continue
            compute.append(
                _read(
                    where,
                    key,
                    partial(_simumax_core, key, share, ops[name]["tflops"], name == "sdp_bwd"),
                )
            )
    n = int(data.get("num_per_node", 8))
    links = [x for x in (_simumax_link(op, theirs, data, n, where) for theirs, op in SIMUMAX_OPS.items()) if x]
    return _calibration(
        created, f"SimuMax {data.get('sys_name', '')}".strip(), MeasuredDevice(name="unknown", vendor="unknown", count_per_host=n),
        compute=tuple(dict.fromkeys(compute)), links=tuple(links), topology=Topology(hosts=1, ranks_per_host=n, rank_to_host=(0,) * n),
        skipped=(Note(what="bandwidth.*, inter_node", why="defaults of the tool, not measurements of a size"),),
        warnings=("a SimuMax file holds efficiencies without samples, date or driver: nothing is known of their spread",),
        method=Method(samples=1, stat="mean"),
    )  # fmt: skip


def _numbers(key: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=([\w.]+)", key))


def _one(seconds: float) -> Times:
    return summarise([seconds])


def _simumax_gemm(key: str, share: float, tflops: float, dtype: str) -> Gemm:
    f = _numbers(key)
    m, n, k, batch = int(f["m"]), int(f["n"]), int(f["k"]), int(f["b"])
    if batch != 1 or f["layout"] not in ("TN", "NN", "NT"):
        raise ValueError(f"a batched product or layout {f['layout']}")
    flops = 2.0 * m * n * k
    layout: Literal["TN", "NN", "NT"] = "TN" if f["layout"] == "TN" else "NN" if f["layout"] == "NN" else "NT"
    return Gemm(
        dtype=dtype, m=m, n=n, k=k, layout=layout, accumulate=f["accumulate"] == "True", flops=flops,
        seconds=_one(flops / (float(share) * float(tflops) * 1e12)), flags=point_flags(0.0, 1),
    )  # fmt: skip


def _simumax_core(key: str, share: float, tflops: float, backward: bool) -> AttentionPoint:
    """Return one attention point. SimuMax counts the whole square although the kernel is causal, so its shares pass 1."""
    f = _numbers(key)
    b, s, heads, kv, qk, v = (int(f[x]) for x in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim"))
    counted = 2.0 * b * s * s * heads * (qk + v) * (2.5 if backward else 1.0)
    seconds = counted / (float(share) * float(tflops) * 1e12)
    point = AttentionPoint(
        dtype="bf16", batch=b, queries=s, keys=s, heads=heads, kv_heads=kv, qk_dim=qk, v_dim=v, backward=backward, flops=1.0,
        seconds=_one(seconds), flags=point_flags(0.0, 1),
    )  # fmt: skip
    shape = attention_shape([point])
    return point.model_copy(update={"flops": float((shape.backward_flops if backward else shape.forward_flops)[0])})


def _simumax_link(op: Op, theirs: str, data: dict[str, Any], n: int, where: str) -> Link | None:
    table = data["networks"].get("high_intra_node", {})
    entry = table.get("op", {}).get(theirs)
    if not entry or "efficient_factor" not in entry:
        return None
    rate = _read(where, "networks.high_intra_node.bandwidth", lambda: float(table["bandwidth"]["gbps"])) * SIMUMAX_GIB
    size = 2 if op == "send_recv" else n
    factor = entry["scale"] * (size + entry["offset"]) / size
    latency = (entry.get("latency_us", 0.0) + entry.get("fixed_latency_us", 0.0)) * 1e-6
    points = tuple(
        point_of(op, size, nbytes, [nbytes * factor / (rate * entry["efficient_factor"]) + latency]) for nbytes in SIMUMAX_SIZES
    )
    return Link(op=op, backend="nccl", level="intra", n=size, local=size, points=points)


def _all_reduce_bench(text: str, created: str, per_host: int | None, where: str) -> Calibration:
    header = re.search(r"bandwidth of all_reduce over (\d+) ranks", text)
    rows = re.findall(r"^\|\s*(\d+)([KMGT]?iB)\s*\|\s*([\d.]+)GBps\s*\|\s*([\d.]+)GBps\s*\|", text, re.M)
    if header is None or not rows:
        raise UsageError(
            "holds no table of payload, busbw and algbw", where=where, hint="keep the whole output of all_reduce_bench.py"
        )
    ranks = int(header.group(1))
    if ranks < 2:
        raise UsageError("was measured on one rank", where=where, hint="start all_reduce_bench.py with torch.distributed.run")
    level, local = place_of(ranks, per_host)
    warnings = [] if per_host or ranks <= 8 else [f"taken as one host of {ranks} ranks; --ranks-per-host says otherwise"]
    points = []
    for count, unit, _, alg in rows:
        nbytes = int(parse_quantity(f"{count} {unit}", "bytes", where=where))
        if float(alg) > 0:
            points.append(point_of("all_reduce", ranks, nbytes, [nbytes / (float(alg) * 1e9)]))
    name = re.search(r"_CudaDeviceProperties\(name='([^']+)'", text)
    versions = re.search(r"software: torch=(\S+), cuda=(\S+), nccl=\((\d+), (\d+), (\d+)\)", text)
    software = Software()
    if versions:
        torch, cuda, *nccl = versions.groups()
        software = Software(torch=torch.rstrip(","), cuda=cuda.rstrip(","), nccl=tuple(int(x) for x in nccl))
    link = Link(op="all_reduce", backend="nccl", level=level, n=ranks, local=local, dtype="fp32", points=tuple(points))
    hosts = ranks // local
    return _calibration(
        created, "all_reduce_bench.py", MeasuredDevice(name=name.group(1) if name else "unknown", vendor="unknown", count_per_host=local),
        links=(link,), software=software, topology=Topology(hosts=hosts, ranks_per_host=local, rank_to_host=tuple(r // local for r in range(ranks))),
        warnings=tuple(warnings), method=Method(samples=1, stat="mean", reduce_ranks="mean"),
    )  # fmt: skip
