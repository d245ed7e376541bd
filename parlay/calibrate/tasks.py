"""What to measure, in order of worth: a list that every rank can build alike and that a budget may cut short.

Everything here is arithmetic on shapes; nothing imports torch. A task has a key that names its point in the file, so that a
resumed run knows what is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from parlay.rates.calibration_file import AttentionPoint, Calibration, Gemm
from parlay.units import show_bytes

# Bytes that the forward of each kind of kernel moves for one element of its main tensor in two-byte numbers, and its backward
# over that: the counts of parlay.estimate.operators, so that rate x count gives the measured time back.
STREAM_CONVENTIONS: dict[str, tuple[float, float | None, str]] = {
    "norm": (4.0, 1.5, "read x, write y; backward 1.5 times that"),
    "rope": (4.0, 1.0, "read x, write y; backward as much"),
    "activation": (6.0, 1.5, "read gate and up, write their product; backward 1.5 times that"),
    "residual": (6.0, 0.67, "read x and y, write their sum; backward 0.67 of that (two gradients meet)"),
    "softmax": (4.0, 1.5, "read x, write y; backward 1.5 times that"),
    "cross_entropy": (8.0, 1.0, "two passes over 2-byte logits and one 4-byte result; backward as much"),
    "embedding": (4.0, 2.0, "read rows, write them; backward twice that"),
    "permute": (4.0, None, "read rows, write them in another order"),
    "cast": (6.0, None, "read 4 bytes, write 2"),
    "copy": (4.0, None, "read x, write y"),
}
OPTIMIZER_BYTES = {"fp32": 28.0, "bf16": 14.0}  # gradient read; weight and two moments read and written
ANCHORS_M = (128, 512, 2048, 4096, 16384)
ANCHORS_NK = (
    (512, 512),
    (512, 2048),
    (2048, 512),
    (2048, 2048),
    (4096, 4096),
    (8192, 8192),
    (14336, 4096),
    (4096, 14336),
    (1024, 8192),
    (8192, 1024),
)
SMALLEST_BYTES, LARGEST_BYTES = 1 << 10, 1 << 30
DENSE_BYTES = (1 << 20, 1 << 28)  # here sizes are two apart, elsewhere four
HOST_BYTES = tuple(1 << i for i in (16, 20, 24, 28))  # of copies between device and host: latency to bandwidth
HOST_DIRECTIONS = ("to_host", "to_device")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@dataclasses.dataclass(frozen=True)
class Task:
    """One point to measure."""

    kind: str  # launch, gemm, grouped_gemm, sustained, attention, stream, host_copy, link, overlap
    key: str
    shape: tuple[tuple[str, int | str | bool], ...]

    def __getitem__(self, name: str) -> int | str | bool:
        return dict(self.shape)[name]

    @property
    def fields(self) -> dict[str, int | str | bool]:
        """The task's shape by name."""
        return dict(self.shape)


def task(kind: str, **shape: int | str | bool) -> Task:
    """Return a task whose key follows from its shape."""
    return Task(kind, f"{kind} " + " ".join(f"{k}={v}" for k, v in sorted(shape.items())), tuple(sorted(shape.items())))


def words(t: Task) -> str:
    """Return a task as a person names it.

    Examples
    --------
    >>> words(task("gemm", dtype="bf16", m=512, n=4096, k=2048, layout="TN"))
    'product 512 x 2048 x 4096 TN in bf16'
    >>> words(task("link", op="all_reduce", level="intra", n=8, local=8, active=1, bytes=1 << 20))
    'all_reduce intra over 8, 1.00 MiB'
    """
    f = t.fields
    if t.kind == "gemm":
        return f"product {f['m']} x {f['k']} x {f['n']} {f['layout']} in {f['dtype']}"
    if t.kind == "grouped_gemm":
        return f"{f['groups']} products of {f['rows']} rows, {f['k']} x {f['n']}, in {f['dtype']}"
    if t.kind == "attention":
        return f"attention {'backward' if f['backward'] else 'forward'}, {f['seq']} tokens, {f['heads']} heads of {f['qk_dim']}"
    if t.kind == "stream":
        return f"{f['op']} {f['direction']}, {int(f['elements']):,} elements"
    if t.kind == "host_copy":
        return f"copy {str(f['direction']).replace('_', ' ')}, {show_bytes(int(f['bytes']))}"
    if t.kind == "link":
        return f"{f['op']} {f['level']} over {f['n']}, {show_bytes(int(f['bytes']))}"
    if t.kind == "sustained":
        return f"products in {f['dtype']} over and over"
    return {"launch": "gaps between launches", "overlap": f"products beside {f.get('comm')}"}[t.kind]


@dataclasses.dataclass(frozen=True)
class Place:
    """A kind of group: `n` ranks, `local` on each host, `active` such groups at once."""

    level: str
    n: int
    local: int
    active: int


def places(hosts: int, per_host: int) -> list[Place]:
    """Return the groups worth measuring on `hosts` hosts of `per_host` ranks: each level that differs from the others.

    Examples
    --------
    >>> [(p.level, p.n, p.local) for p in places(2, 2)]
    [('world', 4, 2), ('intra', 2, 2), ('inter', 2, 1), ('rails', 2, 1)]
    """
    out = []
    if hosts > 1 and per_host > 1:
        out.append(Place("world", hosts * per_host, per_host, 1))
    out += [
        Place("intra", n, n, hosts * (per_host // n)) for n in sorted({per_host, 4, 2}, reverse=True) if 1 < n <= per_host and per_host % n == 0
    ]  # fmt: skip
    if hosts > 1:
        out.append(Place("inter", hosts, 1, 1))
        if per_host > 1:
            out.append(Place("rails", hosts, 1, per_host))
    return out


def sizes(least: int = SMALLEST_BYTES, most: int = LARGEST_BYTES) -> list[int]:
    """Return message sizes: four apart, two apart where bandwidth takes over from latency.

    Examples
    --------
    >>> sizes(1 << 18, 1 << 22)
    [262144, 1048576, 2097152, 4194304]
    """
    out, size = [], least
    while size <= most:
        out.append(size)
        size *= 2 if DENSE_BYTES[0] <= size < DENSE_BYTES[1] else 4
    return out


def link_tasks(hosts: int, per_host: int, ops: Iterable[str], least: int, most: int) -> list[Task]:
    """Return every collective over sizes and levels, the large and the widest first, and point-to-point in pairs."""
    out = []
    for place in places(hosts, per_host):
        for op in ops:
            if op == "send_recv":
                continue
            out += [_link(op, place, size) for size in reversed(sizes(least, most))]
    if "send_recv" in ops:
        pairs = [Place("intra", 2, 2, 1)] * (per_host > 1) + [Place("inter", 2, 1, 1)] * (hosts > 1)
        out += [_link("send_recv", place, size) for place in pairs for size in reversed(sizes(least, most))]
    return out


def _link(op: str, place: Place, size: int) -> Task:
    return task("link", op=op, level=place.level, n=place.n, local=place.local, active=place.active, bytes=size)


def gemm_tasks(shapes: Iterable[tuple[int, int, int, str]], dtype: str) -> list[Task]:
    """Return a task a product; `shapes` holds m, n, k and layout."""
    return [task("gemm", dtype=dtype, m=m, n=n, k=k, layout=layout) for m, n, k, layout in dict.fromkeys(shapes)]


def anchors(largest: int) -> list[tuple[int, int, int, str]]:
    """Return products spread over sizes, up to `largest` in any, which carry the curve to shapes of other models."""
    return [(m, n, k, "TN") for n, k in ANCHORS_NK for m in ANCHORS_M if max(m, n, k) <= largest]


def stream_tasks(elements: Sequence[int], optimizer_dtype: str) -> list[Task]:
    """Return every byte-bound kernel at every size, forward and where it has one backward, and the optimizer's step."""
    out = []
    for kind, (_, backward, _) in STREAM_CONVENTIONS.items():
        for n in elements:
            out.append(task("stream", op=kind, direction="forward", elements=n))
            if backward is not None:
                out.append(task("stream", op=kind, direction="backward", elements=n))
    return out + [task("stream", op="optimizer", direction="step", elements=n, dtype=optimizer_dtype) for n in elements]


def host_tasks() -> list[Task]:
    """Return copies from the device to its host and back, the largest first."""
    return [task("host_copy", direction=d, bytes=size) for d in HOST_DIRECTIONS for size in reversed(HOST_BYTES)]


def done_keys(calibration: Calibration) -> set[str]:
    """Return the keys of the points that a file already holds, so that a resumed run leaves them out."""
    out: set[str] = set()
    for g in calibration.gemms:
        out.add(task("gemm", dtype=g.dtype, m=g.m, n=g.n, k=g.k, layout=g.layout).key)
    for a in calibration.attentions:
        out.add(attention_task(a).key)
    for x in calibration.grouped:
        out.add(task("grouped_gemm", dtype=x.dtype, rows=x.rows, groups=x.groups, n=x.n, k=x.k).key)
    for s in calibration.memory:
        out.add(stream_key(s.op, s.direction, s.bytes, s.dtype))
    out |= {task("host_copy", direction=h.direction, bytes=h.bytes).key for h in calibration.host_copies}
    for link in calibration.links:
        place = Place(link.level, link.n, link.local, link.groups_active)
        out |= {_link(link.op, place, p.bytes).key for p in link.points}
    out |= {task("overlap", comm=o.comm).key for o in calibration.overlap}
    out |= {task("sustained", dtype=x.dtype).key for x in calibration.sustained}
    if "eager" in calibration.launch_s:
        out.add(task("launch").key)
    return out


def attention_task(a: AttentionPoint) -> Task:
    """Return the task that a measured attention point answers."""
    return task(
        "attention", dtype=a.dtype, batch=a.batch, seq=a.queries, heads=a.heads, kv_heads=a.kv_heads, qk_dim=a.qk_dim,
        v_dim=a.v_dim, causal=a.causal, backward=a.backward,
    )  # fmt: skip


def stream_bytes(kind: str, direction: str, elements: int, dtype: str = "bf16") -> int:
    """Return the bytes that a kernel is counted for."""
    if kind == "optimizer":
        return round(elements * OPTIMIZER_BYTES[dtype])
    each, backward, _ = STREAM_CONVENTIONS[kind]
    return round(elements * each * ((backward or 1.0) if direction == "backward" else 1.0))


def stream_key(kind: str, direction: str, nbytes: int, dtype: str) -> str:
    """Return the key of the task that counts `nbytes`."""
    if kind == "optimizer":
        return task("stream", op=kind, direction=direction, elements=round(nbytes / OPTIMIZER_BYTES[dtype]), dtype=dtype).key
    each, backward, _ = STREAM_CONVENTIONS[kind]
    share = (backward or 1.0) if direction == "backward" else 1.0
    return task("stream", op=kind, direction=direction, elements=round(nbytes / (each * share))).key


def gemm_flops(g: Gemm | Task) -> float:
    """Return the FLOPs of a product."""
    m, n, k = (g.m, g.n, g.k) if isinstance(g, Gemm) else (int(g["m"]), int(g["n"]), int(g["k"]))
    return 2.0 * m * n * k
