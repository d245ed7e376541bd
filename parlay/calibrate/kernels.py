"""What is timed on one device: products, attention, byte-bound kernels, the optimizer's step, launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from parlay.calibrate.engine import CPU_ROTATION_BYTES, Engine, PointError
from parlay.calibrate.tasks import Task, task
from parlay.rates.calibration_file import Sustained

ROW = 4096  # elements of a row of the byte-bound kernels: a model's width
HEAD = 128
VOCABULARY = 32768
LAUNCHES = 1000
MOST_COPIES = 8
FP8_SCALE = 1.0
SUSTAINED_SIDE = {"cuda": 8192, "cpu": 1024}
# A B200's clock falls from 1965 to 1580 MHz about 5 ms into a load (flashinfer pull 2899).
BURST_S, SUSTAINED_S, REST_S = 5e-3, 2.0, 1.0

NO_HOST_LINK = "not measurable: a CPU computes in its host's own memory, so there is no host link (needs a GPU)"

Call = Callable[[], Any]


def _copies(engine: Engine, nbytes: int) -> int:
    """Return how many copies of the operands to run through; a GPU's cache is flushed instead."""
    return 1 if engine.cuda else max(1, min(MOST_COPIES, CPU_ROTATION_BYTES // max(nbytes, 1)))


def gemm_calls(engine: Engine, task: Task) -> list[Call]:
    """Return calls of one product: TN as a forward, NN as an input gradient, NT as a weight gradient."""
    m, n, k, dtype, layout = int(task["m"]), int(task["n"]), int(task["k"]), str(task["dtype"]), str(task["layout"])
    torch = engine.torch
    if dtype == "fp8":
        return [_fp8(engine, m, n, k)]
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"

    def call() -> Call:
        if layout == "NT":  # out x tokens by tokens x in, as autograd forms a weight gradient
            first, second = engine.random(k, n, dtype=dtype).t(), engine.random(k, m, dtype=dtype)
        elif layout == "NN":
            first, second = engine.random(m, k, dtype=dtype), engine.random(k, n, dtype=dtype)
        else:
            first, second = engine.random(m, k, dtype=dtype), engine.random(n, k, dtype=dtype).t()
        if not engine.cuda:  # a step on a CPU pays for fresh pages of every output; a GPU's allocator keeps them
            return lambda: torch.mm(first, second)
        out = torch.empty(first.shape[0], second.shape[1], dtype=first.dtype, device=engine.device)
        return lambda: torch.mm(first, second, out=out)

    return [call() for _ in range(_copies(engine, 2 * (m * k + k * n + m * n)))]


def _fp8(engine: Engine, m: int, n: int, k: int) -> Call:
    torch = engine.torch
    if not engine.cuda or torch.cuda.get_device_capability() < (8, 9):
        raise PointError("fp8 products need a GPU of compute capability 8.9 or more")
    first, second = engine.random(m, k, dtype="fp8"), engine.random(n, k, dtype="fp8").t()
    scale = torch.tensor(FP8_SCALE, device=engine.device)
    return lambda: torch._scaled_mm(first, second, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def grouped_calls(engine: Engine, task: Task) -> list[Call]:
    """Return a call of a grouped product whose groups have equal rows."""
    torch, rows, groups = engine.torch, int(task["rows"]), int(task["groups"])
    n, k, dtype = int(task["n"]), int(task["k"]), str(task["dtype"])
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if grouped is None or not engine.cuda:
        raise PointError("torch has no grouped product for this device")
    x = engine.random(rows, k, dtype=dtype)
    weight = engine.random(groups, n, k, dtype=dtype).transpose(-2, -1)
    ends = torch.arange(1, groups + 1, device=engine.device, dtype=torch.int32) * (rows // groups)
    return [lambda: grouped(x, weight, offs=ends)]


def attention_calls(engine: Engine, task: Task) -> list[Call]:
    """Return calls of fused attention, forward or backward alone."""
    torch, F = engine.torch, engine.torch.nn.functional
    batch, seq, heads, kv = (int(task[x]) for x in ("batch", "seq", "heads", "kv_heads"))
    qk, v_dim, causal = int(task["qk_dim"]), int(task["v_dim"]), bool(task["causal"])

    def inputs(grad: bool) -> list[Any]:
        sizes = ((heads, qk), (kv, qk), (kv, v_dim))
        out = [engine.random(batch, seq, h, d, dtype=str(task["dtype"])).transpose(1, 2) for h, d in sizes]
        return [x.detach().requires_grad_() for x in out] if grad else out

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv)

    if not task["backward"]:
        q, k, v = inputs(False)
        return [lambda: attend(q, k, v)]
    q, k, v = inputs(True)
    out = attend(q, k, v)
    gradient = torch.randn_like(out)
    return [lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)]


def stream_calls(engine: Engine, task: Task) -> list[Call]:
    """Return calls of a byte-bound kernel, forward, backward alone, or an optimizer's step."""
    kind, n, direction = str(task["op"]), int(task["elements"]), str(task["direction"])
    if kind == "optimizer":
        return [_optimizer(engine, n, str(task["dtype"]))]
    made = [_stream(engine, kind, n, grad=direction == "backward") for _ in range(_copies(engine, 6 * n))]
    if direction == "forward":
        return [forward for forward, _ in made]
    if kind == "residual":  # autograd passes the sum's gradient on; where branches meet again, two gradients are added
        a, b = engine.random(n), engine.random(n)
        return [lambda: a + b]
    torch = engine.torch

    def backward(forward: Call, inputs: list[Any]) -> Call:
        out = forward()
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    return [backward(forward, inputs) for forward, inputs in made]


def _stream(engine: Engine, kind: str, n: int, *, grad: bool) -> tuple[Call, list[Any]]:
    """Return the forward of a kernel over `n` elements, and what its gradient is taken of.

    What several PyTorch operations make up is compiled to one kernel on a GPU: the bytes that a point counts are those of
    a fused kernel, and what a framework that does not fuse moves more is counted by the estimate.
    """
    torch, F = engine.torch, engine.torch.nn.functional
    rows = max(1, n // ROW)
    x = engine.random(rows, ROW, grad=grad)
    if kind == "norm":
        weight = engine.random(ROW, grad=grad)
        if not hasattr(F, "rms_norm"):
            raise PointError("this torch has no rms_norm")
        norm = engine.fused("norm", lambda x, weight: F.rms_norm(x, (ROW,), weight))
        return (lambda: norm(x, weight)), [x, weight] if grad else []
    if kind == "rope":
        return _rope(engine, rows, grad=grad)
    if kind == "activation":
        up = engine.random(rows, ROW, grad=grad)
        gate = engine.fused("activation", lambda x, up: F.silu(x) * up)
        return (lambda: gate(x, up)), [x, up]
    if kind == "residual":
        y = engine.random(rows, ROW)
        return (lambda: x + y), [x]
    if kind == "softmax":
        softmax = engine.fused("softmax", lambda x: F.softmax(x, dim=-1))
        return (lambda: softmax(x)), [x]
    if kind == "cross_entropy":
        tokens = max(1, n // VOCABULARY)
        logits = engine.random(tokens, VOCABULARY, grad=grad)
        target = torch.randint(VOCABULARY, (tokens,), device=engine.device)
        loss = engine.fused("cross_entropy", lambda logits, target: F.cross_entropy(logits.float(), target))
        return (lambda: loss(logits, target)), [logits]
    if kind in ("embedding", "permute"):
        index = (
            torch.randint(rows, (rows,), device=engine.device) if kind == "embedding" else torch.randperm(rows).to(engine.device)
        )
        if kind == "permute":
            return (lambda: x.index_select(0, index)), [x]
        return (lambda: F.embedding(index, x)), [x]
    if kind == "cast":
        wide = engine.random(rows, ROW, dtype="fp32")
        narrow = torch.empty(rows, ROW, dtype=torch.bfloat16, device=engine.device)
        return (lambda: narrow.copy_(wide)), []
    target = torch.empty_like(x)
    return (lambda: target.copy_(x)), []


def _rope(engine: Engine, rows: int, *, grad: bool) -> tuple[Call, list[Any]]:
    """Return a rotary embedding of heads: halves turned against each other by angles of their own."""
    torch = engine.torch
    x = engine.random(rows, ROW // HEAD, HEAD, grad=grad)
    cos, sin = engine.random(rows, 1, HEAD), engine.random(rows, 1, HEAD)

    def turn(x: Any, cos: Any, sin: Any) -> Any:
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    fused = engine.fused("rope", turn)
    return (lambda: fused(x, cos, sin)), [x]


def _optimizer(engine: Engine, n: int, dtype: str) -> Call:
    """Return a step of AdamW over matrices of `n` elements in all."""
    torch = engine.torch
    rows = max(1, n // ROW)
    parts = [engine.random(max(1, rows // 8), ROW, dtype=dtype, grad=True) for _ in range(min(8, rows))]
    for p in parts:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parts, lr=1e-6, fused=True)
    return lambda: optimizer.step()


def host_calls(engine: Engine, task: Task) -> list[Call]:
    """Return a copy between the device and pinned memory of its host, queued without waiting, as offloading does it."""
    if not engine.cuda:
        raise PointError(NO_HOST_LINK)
    torch, n = engine.torch, int(task["bytes"])
    host = torch.randint(256, (n,), dtype=torch.uint8).pin_memory()
    device = host.to(engine.device)
    source, target = (device, host) if task["direction"] == "to_host" else (host, device)
    return [lambda: target.copy_(source, non_blocking=True)]


def sustained(engine: Engine, dtype: str) -> Sustained:
    """Return the rate of one large product over and over: at first, and after SUSTAINED_S, on the slowest rank."""
    torch, side = engine.torch, SUSTAINED_SIDE[engine.kind]
    (call, *_) = gemm_calls(engine, task("gemm", dtype=dtype, m=side, n=side, k=side, layout="TN"))
    for _ in range(3):
        call()
    engine.synchronize()
    time.sleep(REST_S)  # the first products should find a cool and idle device
    spans: list[tuple[float, float]] = []  # since the start, seconds of a batch of products
    start = time.perf_counter()
    while (since := time.perf_counter() - start) < SUSTAINED_S:
        if engine.cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            spans.append((since, begin.elapsed_time(end) * 1e-3))
        else:
            call()
            spans.append((since, time.perf_counter() - start - since))
    early = [t for at, t in spans if at <= BURST_S] or [spans[0][1]]
    late = [t for at, t in spans if at >= SUSTAINED_S / 2] or [spans[-1][1]]
    flops = 2.0 * side**3
    burst, held = (engine.slowest([statistics.median(times)])[0] for times in (early, late))
    return Sustained(dtype=dtype, burst_flops_per_s=flops / burst, held_flops_per_s=flops / held)


def launch_gaps(engine: Engine) -> dict[str, float | None]:
    """Return the seconds between kernels that the host launches one by one, and between those of a replayed graph."""
    torch = engine.torch
    x = torch.zeros(1, device=engine.device)

    def gap(run: Call, times: int) -> float:
        for _ in range(3):
            run()
        engine.synchronize()
        best = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            engine.synchronize()
            best.append((time.perf_counter() - start) / times)
        return sorted(best)[2]

    def eager() -> None:
        for _ in range(LAUNCHES):
            x.add_(1.0)

    found: dict[str, float | None] = {"eager": gap(eager, LAUNCHES), "graph": None}
    if engine.cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()
        found["graph"] = gap(graph.replay, LAUNCHES)
    return found
