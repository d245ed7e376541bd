"""Torch behind one small face: devices, processes, clocks. The only module that imports torch, and only when it is used.

Every rank runs the same measurements in the same order. Counts of calls are agreed, because unequal counts of a collective
hang; a failure on one rank is told to all before the next point.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import importlib.util
import math
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from parlay.calibrate.launch import Job
from parlay.errors import UsageError

MOST_SAMPLES = 20
LEAST_SAMPLES = 5
LEAST_LINK_SAMPLES = 10  # the least of several is what finds the wire's own rate on a busy host
L2_FLUSH_BYTES = 256 << 20  # twice the largest L2 there is, so that every call starts from memory
CPU_ROTATION_BYTES = 192 << 20  # copies of the operands that a CPU runs through, more than a last-level cache holds
AHEAD_CYCLES = 1 << 20  # about 0.5 ms of a clock near 2 GHz
RANDOM_BLOCK = 1 << 20  # elements drawn of an operand
WARM_CALLS = {"cuda": 20, "cpu": 2}
LEAST_SAMPLE_S = {"cuda": 0.0, "cpu": 2e-3}  # a CPU sample of shorter calls repeats them, above the clock's noise
LINK_SAMPLE_S = 5e-3


class PointError(Exception):
    """A point that this machine cannot run: out of memory, an unsupported type. The sweep goes on without it."""


def load_torch() -> Any:
    """Return torch, or say how to get it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(
            f"needs PyTorch ({error})",
            where="calibrate run",
            hint="pip install 'parlay[calibrate]', or install Parlay into the environment that trains",
        ) from None


class Engine:
    """Torch on one rank of a job."""

    def __init__(self, job: Job, backend: str | None, timeout_s: float) -> None:
        self.torch = load_torch()
        self.job = job
        self.cuda = bool(self.torch.cuda.is_available()) and backend != "gloo"
        self.kind = "cuda" if self.cuda else "cpu"
        if self.cuda:
            self.torch.cuda.set_device(job.local_rank % self.torch.cuda.device_count())
        self.device = self.torch.device("cuda", self.torch.cuda.current_device()) if self.cuda else self.torch.device("cpu")
        self.backend = backend or ("nccl" if self.cuda else "gloo")
        self.timeout_s = timeout_s
        self.control: Any = None
        self.groups: dict[tuple[str, int], tuple[Any, list[int]]] = {}
        self._flush: Any = None
        self._fused: dict[str, Any] = {}
        self.alive = time.monotonic()  # when this rank last finished something
        if job.world > 1:
            self._join()
        self.hosts = self.gather(socket.gethostname())

    def _join(self) -> None:
        dist = self.dist
        if not dist.is_available():
            raise UsageError("this torch has no distributed package", where="calibrate run", hint="start one process")
        if self.backend == "nccl" and not dist.is_nccl_available():
            raise UsageError("this torch has no NCCL", where="--backend", hint="--backend gloo measures over TCP")
        limit = datetime.timedelta(seconds=self.timeout_s)
        options: dict[str, Any] = {"timeout": limit, "rank": self.job.rank, "world_size": self.job.world}
        # Binding the device makes NCCL build its communicators at once instead of inside the first timed call; releases
        # between 2.6.0 and 2.7.1 hang with it (pytorch issue 153960).
        version = tuple(int(x) for x in self.torch.__version__.split("+")[0].split(".")[:3] if x.isdigit())
        if self.backend == "nccl" and not (2, 6, 0) < version < (2, 7, 1):
            options["device_id"] = self.device
        method = "env://" if self.job.launcher == "torchrun" else f"tcp://{self.job.address}:{self.job.port}"
        dist.init_process_group(self.backend, init_method=method, **options)
        self.control = dist.new_group(backend="gloo", timeout=limit) if self.backend != "gloo" else dist.group.WORLD

    @property
    def dist(self) -> Any:
        """torch.distributed."""
        return self.torch.distributed

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, by rank."""
        if self.job.world == 1:
            return [value]
        out: list[Any] = [None] * self.job.world
        self.dist.all_gather_object(out, value, group=self.control)
        self.alive = time.monotonic()
        return out

    def from_first(self, value: Any) -> Any:
        """Return rank 0's `value`."""
        return self.gather(value)[0]

    def largest(self, values: list[float]) -> list[float]:
        """Return the largest of each value over the ranks."""
        if self.job.world == 1:
            return values
        tensor = self.torch.tensor(values, dtype=self.torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX, group=self.control)
        self.alive = time.monotonic()
        return [float(x) for x in tensor.tolist()]

    @property
    def compiles(self) -> bool:
        """Whether several operations are compiled to one kernel: on a GPU, with Triton."""
        return self.cuda and importlib.util.find_spec("triton") is not None

    def fused(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of tensors as one kernel, compiled once for all sizes, or as it is where nothing compiles."""
        if not self.compiles:
            return function
        if name not in self._fused:
            # A backward that is timed many times keeps its graph, which buffers given away would not survive.
            config: Any = importlib.import_module("torch._functorch.config")
            config.donated_buffer = False
            self._fused[name] = self.torch.compile(function, dynamic=True)
        compiled: Callable[..., Any] = self._fused[name]
        return compiled

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.job.world > 1:
            self.largest([0.0])

    def group(self, level: str, n: int) -> tuple[Any, list[int]] | None:
        """Return this rank's communicator of that level and its ranks, None where this rank has none there."""
        return self.groups.get((level, n))

    def make_groups(self, wanted: dict[tuple[str, int], list[list[int]]]) -> None:
        """Build every communicator, on all ranks in the same order, as torch asks for."""
        limit = datetime.timedelta(seconds=self.timeout_s)
        for key, members in wanted.items():
            for ranks in members:
                made = self.dist.new_group(ranks, timeout=limit, backend=self.backend)
                if self.job.rank in ranks:
                    self.groups[key] = (made, ranks)

    def dtype(self, name: str) -> Any:
        """Return torch's dtype of that name."""
        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "fp8": "float8_e4m3fn"}
        found = getattr(self.torch, names[name], None)
        if found is None:
            raise PointError(f"this torch has no {name}")
        return found

    def random(self, *shape: int, dtype: str = "bf16", grad: bool = False) -> Any:
        """Return normal numbers: zeros would run faster than any training does (15 % on A100), because they save power.

        Beyond RANDOM_BLOCK they repeat: drawing them takes a CPU longer than most measurements of them.
        """
        kind, count = self.dtype(dtype), math.prod(shape)
        drawn = self.torch.randn(min(count, RANDOM_BLOCK), device=self.device, dtype=self.torch.float32).to(kind)
        if count > RANDOM_BLOCK:
            drawn = drawn.repeat(-(-count // RANDOM_BLOCK))[:count]
        plain = drawn.view(shape)
        return plain.requires_grad_() if grad else plain

    @contextlib.contextmanager
    def point(self) -> Iterator[None]:
        """Turn what a machine cannot do at one point into PointError."""
        try:
            yield
        except PointError:
            raise
        except (RuntimeError, NotImplementedError, TypeError, ValueError, MemoryError) as error:
            text = str(error).strip().split("\n")[0][:200]
            out_of_memory = "out of memory" in text.lower() or "can't allocate" in text.lower() or isinstance(error, MemoryError)
            if self.cuda and out_of_memory:
                self.torch.cuda.empty_cache()
            raise PointError(f"{'out of memory' if out_of_memory else type(error).__name__}: {text}") from None

    def time_compute(self, calls: list[Callable[[], Any]], seconds: float) -> list[float]:
        """Return samples of one call on the slowest rank, within about `seconds`.

        `calls` do the same on different copies of the operands, so that caches are as cold as in a step.
        """
        once = self._once(calls)
        once = self.largest([once])[0]
        repeat = max(1, int(LEAST_SAMPLE_S[self.kind] / once))
        samples = int(min(MOST_SAMPLES, max(LEAST_SAMPLES, seconds / (once * repeat))))
        if self.cuda:
            return self.slowest(self._events(calls, max(samples, MOST_SAMPLES)))
        out = []
        for i in range(samples):
            start = time.perf_counter()
            for j in range(repeat):
                calls[(i * repeat + j) % len(calls)]()
            out.append((time.perf_counter() - start) / repeat)
        return self.slowest(out)

    def slowest(self, samples: list[float]) -> list[float]:
        """Return the samples of the rank with the largest median.

        Ranks compute side by side without waiting for one another, so the largest of each sample over the ranks would count
        a hiccup of any rank in every sample, which a step's sum of many calls does not.
        """
        return max(self.gather(samples), key=statistics.median)

    def _once(self, calls: list[Callable[[], Any]]) -> float:
        for i in range(WARM_CALLS[self.kind]):
            calls[i % len(calls)]()
            if not self.cuda and i:
                break
        self.synchronize()
        start = time.perf_counter()
        calls[0]()
        self.synchronize()
        return max(time.perf_counter() - start, 1e-7)

    def _events(self, calls: list[Callable[[], Any]], samples: int) -> list[float]:
        """Return device times by events, the cache flushed before each call, one wait at the end."""
        torch = self.torch
        if self._flush is None:
            self._flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device=self.device)
        pairs = []
        for i in range(samples):
            self._flush.zero_()
            # The device waits while the host queues the call, so that no event waits for the host: calls of compiled functions
            # and of autograd take it 20 to 100 us, short kernels a few.
            torch.cuda._sleep(AHEAD_CYCLES)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            calls[i % len(calls)]()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [max(begin.elapsed_time(end) * 1e-3, 1e-9) for begin, end in pairs]

    def time_together(self, call: Callable[[], Any] | None, seconds: float) -> list[float]:
        """Return samples of a collective that the ranks with a `call` run and the others wait for."""
        run = call or (lambda: None)
        for _ in range(2):
            run()
        self.synchronize()
        self.barrier()
        once = self.largest([self._wall(run, 1)])[0]
        repeat = int(min(1000, max(1, LINK_SAMPLE_S / once)))
        samples = int(min(MOST_SAMPLES, max(LEAST_LINK_SAMPLES, seconds / (once * repeat))))
        out = []
        for _ in range(samples):
            self.barrier()
            out.append(self._wall(run, repeat) / repeat)
        return self.largest(out)

    def _wall(self, run: Callable[[], Any], times: int) -> float:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            run()
        self.synchronize()
        return max(time.perf_counter() - start, 1e-7)

    def close(self) -> None:
        """Leave the job. Results are on disk by now: a teardown that hangs must not lose them."""
        self.groups.clear()  # gloo ends the program with a signal if a group outlives the process group
        self.control = None
        gc.collect()
        if self.job.world > 1 and self.dist.is_initialized():
            self.dist.destroy_process_group()
