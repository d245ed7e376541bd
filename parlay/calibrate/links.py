"""What is timed between ranks: collectives by level of the topology, point-to-point, and both beside a product."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from parlay.calibrate.engine import Engine, PointError
from parlay.calibrate.tasks import Task, places
from parlay.rates.calibration_file import Overlap

ELEMENT = 2  # bytes of bf16
OVERLAP_BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}
OVERLAP_SIDE = {"cuda": 8192, "cpu": 1024}
OVERLAP_S = 0.5  # seconds that a product and a collective run beside one another
MOST_OVERLAPPED = 64


def groups_of(hosts: list[str]) -> tuple[int, int, dict[tuple[str, int], list[list[int]]]]:
    """Return hosts, ranks on each, and the ranks of every group of every level; hosts must hold equally many ranks.

    Examples
    --------
    >>> groups_of(["a", "a", "b", "b"])[2]["rails", 2]
    [[0, 2], [1, 3]]
    """
    names = list(dict.fromkeys(hosts))
    by_host = [[rank for rank, host in enumerate(hosts) if host == name] for name in names]
    per_host = min(len(ranks) for ranks in by_host)
    out: dict[tuple[str, int], list[list[int]]] = {}
    if any(len(ranks) != per_host for ranks in by_host):
        return len(names), per_host, out
    for place in places(len(names), per_host):
        if place.level == "world":
            out["world", place.n] = [list(range(len(hosts)))]
        elif place.level == "intra":
            out["intra", place.n] = [r[i : i + place.n] for r in by_host for i in range(0, per_host, place.n)]
        elif place.level == "rails":
            out["rails", place.n] = [[ranks[i] for ranks in by_host] for i in range(per_host)]
        else:
            out["inter", place.n] = [[ranks[0] for ranks in by_host]]
    if per_host > 1:
        out["intra pair", 2] = [by_host[0][:2]]
    if len(names) > 1:
        out["inter pair", 2] = [[by_host[0][0], by_host[1][0]]]
    return len(names), per_host, out


def link_call(engine: Engine, task: Task) -> Callable[[], Any] | None:
    """Return this rank's part of a collective, None where it has none."""
    op, level, n = str(task["op"]), str(task["level"]), int(task["n"])
    found = engine.group(f"{level} pair" if op == "send_recv" else level, n)
    if found is None:
        return None
    group, ranks = found
    elements = max(n, int(task["bytes"]) // ELEMENT // n * n)
    return collective(engine, op, group, ranks, elements)


def collective(engine: Engine, op: str, group: Any, ranks: list[int], elements: int, *, later: bool = False) -> Callable[[], Any]:
    """Return a call of a collective over a buffer of `elements` in all; with `later` it returns at once."""
    dist, n = engine.dist, len(ranks)
    whole = engine.random(elements)
    extra = {"group": group, "async_op": True} if later else {"group": group}
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole, **extra)
    if op == "broadcast":
        return lambda: dist.broadcast(whole, ranks[0], **extra)
    if op == "send_recv":
        return _ping_pong(engine, group, ranks, whole)
    part = whole[: elements // n].clone()
    if op == "all_to_all":
        out = engine.torch.empty_like(whole)
        return lambda: dist.all_to_all_single(out, whole, **extra)
    # torch 2.13 renamed both and warns of the old names; older releases have only those.
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(whole, part, **extra)
    if op == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(part, whole, **extra)
    raise PointError(f"no operation {op}")


def _ping_pong(engine: Engine, group: Any, ranks: list[int], buffer: Any) -> Callable[[], Any]:
    """Return a message there and back; its time is two messages'."""
    dist, first = engine.dist, engine.job.rank == ranks[0]
    peer = ranks[1] if first else ranks[0]

    def run() -> None:
        if first:
            dist.send(buffer, peer, group=group)
            dist.recv(buffer, peer, group=group)
        else:
            dist.recv(buffer, peer, group=group)
            dist.send(buffer, peer, group=group)

    return run


def overlap(engine: Engine, op: str) -> Overlap:
    """Return how much slower products and a collective over all ranks get beside one another.

    The collectives are started together and products run until the last is through; both are compared with their times
    alone. Ranks agree on the number of collectives first.
    """
    torch, ranks = engine.torch, list(range(engine.job.world))
    side = OVERLAP_SIDE[engine.kind]
    a, b = engine.random(side, side), engine.random(side, side)
    n = OVERLAP_BYTES[engine.kind] // ELEMENT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which group is meant is plain here
        start_one = collective(engine, op, None, ranks, n, later=True)
    start_one().wait()
    engine.barrier()
    alone_comm = min(engine.largest([_until_done([start_one()], engine)])[0] for _ in range(3))
    product = _product_s(engine, a, b)
    count = int(engine.from_first(max(2, min(MOST_OVERLAPPED, round(OVERLAP_S / alone_comm)))))
    slow = []
    for _ in range(3):
        engine.barrier()
        start = time.perf_counter()
        works, products = [start_one() for _ in range(count)], 0
        while not all(w.is_completed() for w in works):
            torch.mm(a, b)
            if engine.cuda:
                torch.cuda.current_stream().synchronize()
            products += 1
        took = time.perf_counter() - start
        for w in works:
            w.wait()
        slow.append(engine.largest([took / count / alone_comm, took / max(products, 1) / product]))
    slow.sort()
    comm, compute = slow[1]
    return Overlap(compute="gemm", comm=op, slow_compute=max(compute, 1e-3), slow_comm=max(comm, 1e-3))


def _until_done(works: list[Any], engine: Engine) -> float:
    start = time.perf_counter()
    for w in works:
        w.wait()
    engine.synchronize()
    return max(time.perf_counter() - start, 1e-7)


def _product_s(engine: Engine, a: Any, b: Any) -> float:
    def run() -> None:
        engine.torch.mm(a, b)
        engine.synchronize()

    run()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[4]
