"""`parlay calibrate run` on one rank: measure what the plan lists, agree with the others, and let rank 0 write it down."""

from __future__ import annotations

import dataclasses
import datetime
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parlay import __version__
from parlay.calibrate import kernels, machine
from parlay.calibrate.engine import L2_FLUSH_BYTES, MOST_SAMPLES, WARM_CALLS, Engine, PointError
from parlay.calibrate.launch import Job
from parlay.calibrate.links import groups_of, link_call, overlap
from parlay.calibrate.shapes import shapes_of
from parlay.calibrate.state import State, begin
from parlay.calibrate.tasks import Task, anchors, done_keys, gemm_tasks, host_tasks, link_tasks, stream_tasks, task, words
from parlay.errors import AnswerIsNoError, ParlayError, UsageError
from parlay.hardware.spec import Cluster
from parlay.models.spec import ModelSpec
from parlay.rates.calibration_file import Calibration, Method

PARTS = ("launch", "gemm", "attention", "memory", "host", "links", "overlap")
POINT_S = 0.4  # seconds of samples a point, where no budget says less
OVERHEAD = 0.5  # share of a budget that samples may take; the rest goes to operands, warm-up and agreement
LARGEST_SIDE = {"cuda": 16384, "cpu": 2048}  # of an anchor product
LARGEST_MESSAGE = {"nccl": 1 << 30, "gloo": 1 << 25}
STREAM_ELEMENTS = {"cuda": tuple(1 << i for i in (20, 22, 24, 26, 28)), "cpu": tuple(1 << i for i in (18, 20, 22, 24))}
ATTENTION_ANCHORS = {"cuda": (1024, 2048, 4096, 8192, 16384), "cpu": (256, 512, 1024)}
SILENCE_FACTOR, SILENCE_S = 2.0, 60.0  # a rank that has heard nothing for this long gives up, whatever its library waits for

Progress = Callable[[int, int, str, float], None]  # points done, points in all, what is next, seconds left


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure and where to write it."""

    output: Path
    model: ModelSpec | None = None
    seq_len: int = 4096
    micro_batch: int = 1
    dtypes: tuple[str, ...] = ("bf16",)
    parts: tuple[str, ...] = PARTS
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    least_bytes: int = 1 << 10
    most_bytes: int | None = None
    largest_side: int | None = None
    optimizer_dtype: str = "fp32"
    budget_s: float | None = None
    timeout_s: float = 120.0
    backend: str | None = None
    cluster: Cluster | None = None
    resume: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: tuple[str, ...] = ()
    nccl_log: Callable[[], str] = lambda: ""


def calibrate(settings: Settings, job: Job, progress: Progress | None = None) -> Calibration:
    """Measure on every rank of a job and return what rank 0 wrote.

    Parameters
    ----------
    settings : Settings
        What to measure and where to write it [-].
    job : Job
        Which rank this process is [-].
    progress : callable, optional
        Called before each point with points done, points in all, the next point and the seconds left [-].

    Returns
    -------
    Calibration
        The file's content; on other ranks than 0 what they know of it [-].

    Raises
    ------
    UsageError
        The file cannot be written or is in the way, or torch is missing.
    AnswerIsNoError
        A rank was lost or a link went silent; the file holds every point before that and says so.
    """
    engine = Engine(job, settings.backend, settings.timeout_s)
    run = _Run(settings, engine, progress)
    stop = _watch(run)
    try:
        run.prepare()
        return run.measure()
    except ParlayError:
        raise
    except RuntimeError as error:  # what torch raises when a peer is gone or silent
        raise run.lost(error) from None
    finally:
        stop.set()
        if not run.broken or engine.backend == "gloo":  # taking NCCL down after a loss can wait for the lost rank for ever
            engine.close()


class _Run:
    """One run on one rank."""

    def __init__(self, settings: Settings, engine: Engine, progress: Progress | None) -> None:
        self.settings, self.engine, self.progress = settings, engine, progress
        self.start = time.monotonic()
        self.state: State | None = None  # on rank 0
        self.tasks: list[Task] = []
        self.broken = False
        self.before: Mapping[str, str] = {}

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.engine.job.rank == 0

    def prepare(self) -> None:
        """Build the groups, agree on the plan, and open the file on rank 0."""
        engine = self.engine
        hosts, per_host, groups = groups_of(engine.hosts)
        if engine.job.world > 1 and groups:
            engine.make_groups(groups)
        self.before = machine.smi(engine.device.index) if engine.cuda else {}
        plan, skipped = self._plan(hosts, per_host, bool(groups))
        problem, left = None, plan
        if self.first:
            try:
                self.state = begin(self._fresh(per_host), self.settings.output, resume=self.settings.resume)
                for what, why in skipped:
                    self.state.note("skipped", what, why)
                self.state.save()
                held = done_keys(self.state.calibration)
                left = [t for t in plan if t.key not in held]
            except ParlayError as error:
                problem = error
        problem, self.tasks = engine.from_first((_pack(problem), left))
        if problem is not None:
            raise UsageError(problem[0], where=problem[1], hint=problem[2])

    def _plan(self, hosts: int, per_host: int, even: bool) -> tuple[list[Task], list[tuple[str, str]]]:
        s, e, skipped = self.settings, self.engine, []
        kind, out = e.kind, []
        degrees = tuple(d for d in (1, 2, 4, 8) if d <= max(per_host, 1))
        shapes = shapes_of(s.model, s.seq_len, s.micro_batch, degrees) if s.model else None
        if "launch" in s.parts:
            out.append(task("launch"))
        if "gemm" in s.parts:
            side = s.largest_side or LARGEST_SIDE[kind]
            for dtype in s.dtypes:
                out += gemm_tasks([*(shapes.products if shapes else ()), *anchors(side)], dtype)
            for rows, groups, n, k in shapes.grouped if shapes else ():
                out.append(task("grouped_gemm", dtype="bf16", rows=rows, groups=groups, n=n, k=k))
            skipped.append(
                ("gemm that accumulates in fp32", "needs the fused kernel of apex or Transformer Engine, which torch lacks")
            )
            out += [task("sustained", dtype=dtype) for dtype in s.dtypes]
        if "attention" in s.parts:
            out += _attention(shapes.cores if shapes else (), kind)
        if "memory" in s.parts:
            out += stream_tasks(STREAM_ELEMENTS[kind], s.optimizer_dtype)
        if "host" in s.parts and e.cuda:
            out += host_tasks()
        elif "host" in s.parts:
            skipped.append(("host copies", kernels.NO_HOST_LINK))
        world = e.job.world
        if world == 1:
            skipped.append(("links and overlap", "one rank: start one a GPU with torchrun, srun or mpirun"))
        elif not even:
            skipped.append(("links by level", f"hosts hold different numbers of ranks: {sorted(e.hosts)}"))
        elif "links" in s.parts:
            out += link_tasks(hosts, per_host, s.ops, s.least_bytes, s.most_bytes or LARGEST_MESSAGE.get(e.backend, 1 << 28))
        if world > 1 and "overlap" in s.parts:
            out.append(task("overlap", comm="all_reduce"))
        unasked = [p for p in PARTS if p not in s.parts]
        skipped += [(", ".join(unasked), "not asked for")] if unasked else []
        return out, skipped

    def _fresh(self, per_host: int) -> Calibration:
        s, e = self.settings, self.engine
        return Calibration(
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            tool={"name": "parlay", "version": __version__},
            command=s.command,
            device=machine.device_of(e, self.before, s.cluster, per_host),
            software=machine.software_of(e),
            topology=machine.topology_of(e, s.environment, per_host, ""),
            method=Method(
                warmup=WARM_CALLS[e.kind], samples=MOST_SAMPLES, l2_flush_bytes=L2_FLUSH_BYTES if e.cuda else 0,
                mode="burst" if e.cuda else "sustained", compiled=e.compiles,
            ),
        )  # fmt: skip

    def measure(self) -> Calibration:
        """Measure point after point until the list or the budget ends."""
        budget = self.settings.budget_s
        each = POINT_S if budget is None else min(POINT_S, OVERHEAD * budget / max(len(self.tasks), 1))
        complete = True
        for i, t in enumerate(self.tasks):
            spent = self.engine.largest([time.monotonic() - self.start])[0]
            if budget is not None and spent > budget:
                complete = False
                left = f"{len(self.tasks) - i} point{'s' * (i < len(self.tasks) - 1)}"
                self._note("skipped", left, f"the budget of {budget:.0f} s was spent; --resume goes on")
                break
            if self.progress and self.first:
                guess = spent / i * (len(self.tasks) - i) if i else each * len(self.tasks)
                self.progress(i, len(self.tasks), words(t), min(guess, budget - spent) if budget is not None else guess)
            self._point(t, each)
            self._save()
        return self._finish(complete)

    def _point(self, t: Task, seconds: float) -> None:
        """Measure one point; what one rank cannot do, all leave out alike."""
        e = self.engine
        if t.kind == "overlap":
            found = overlap(e, str(t["comm"]))
            if self.state:
                self.state.add_overlap(found)
            return
        made: Any = None
        why = ""
        try:
            with e.point():
                made = self._calls(t)
                if t.kind not in ("launch", "link", "sustained"):
                    made[0]()
                    e.synchronize()
        except PointError as error:
            why = str(error) or "failed"
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(e.gather(why)) if text]
        if failed:
            unsupported = "needs" in failed[0] or "has no" in failed[0]
            self._note("skipped" if unsupported else "errors", words(t), failed[0])
            return
        if t.kind == "launch":
            if self.state:
                self.state.change(launch_s=made)
            return
        if t.kind == "sustained":
            held = kernels.sustained(e, str(t["dtype"]))
            if self.state:
                self.state.change(sustained=(*self.state.calibration.sustained, held))
            return
        samples = e.time_together(made, seconds) if t.kind == "link" else e.time_compute(made, seconds)
        if self.state:
            refused = self.state.add(t, samples, e.backend)
            if refused:
                self.state.note("errors", words(t), refused)

    def _calls(self, t: Task) -> Any:
        """Return what is timed; the launch gap is measured at once."""
        if t.kind == "launch":
            return kernels.launch_gaps(self.engine)
        if t.kind == "sustained":
            return kernels.gemm_calls(self.engine, task("gemm", dtype=t["dtype"], m=128, n=128, k=128, layout="TN"))[0]()
        makers = {
            "gemm": kernels.gemm_calls, "grouped_gemm": kernels.grouped_calls, "attention": kernels.attention_calls,
            "stream": kernels.stream_calls, "host_copy": kernels.host_calls, "link": link_call,
        }  # fmt: skip
        return makers[t.kind](self.engine, t)

    def _note(self, where: str, what: str, why: str) -> None:
        if self.state:
            self.state.note(where, what, why)

    def _save(self) -> None:
        """Write the file on rank 0; where it cannot, every rank stops."""
        problem = None
        if self.state:
            try:
                self.state.save()
            except ParlayError as error:
                problem = error
        told = self.engine.from_first(_pack(problem))
        if told is not None:
            raise UsageError(told[0], where=told[1], hint=told[2])

    def _finish(self, complete: bool) -> Calibration:
        e, s = self.engine, self.settings
        per_host = groups_of(e.hosts)[1]
        log = s.nccl_log() if self.first else ""
        device = machine.device_of(e, self.before, s.cluster, per_host)
        if not self.state:
            self._save()
            return self._fresh(per_host)
        topology = machine.topology_of(e, s.environment, per_host, log)
        self.state.change(device=device, topology=topology)
        self.state.finish(complete=complete, warnings=tuple(machine.state_warnings(device, topology)))
        self._save()
        return self.state.calibration

    def lost(self, error: Exception) -> AnswerIsNoError:
        """Write down that a rank was lost, and return the error to raise."""
        self.broken = True  # the process group cannot be taken down in order any more
        text = str(error).strip().split("\n")[0][:200]
        if self.state:
            self.state.note("errors", "the job", f"a rank was lost or a link is silent: {text}")
            self.state.finish(complete=False, warnings=())
            self.state.save()
        kept = f"{self.settings.output} holds every point before that" if self.first else "rank 0 keeps every point before that"
        return AnswerIsNoError(
            f"a rank was lost or a link is silent: {text}", where="calibrate run", hint=f"{kept}; --resume goes on"
        )


def _pack(error: ParlayError | None) -> tuple[str, str | None, str | None] | None:
    return None if error is None else (error.message, error.where, error.hint)


def _attention(cores: tuple[tuple[int, ...], ...], kind: str) -> list[Task]:
    """Return the model's own attention cores and some by length and head size, each forward and backward."""
    own = [(batch, q, heads, kv, qk, v) for batch, q, _, heads, kv, qk, v in cores]
    more = [(1, length, 8, 8, d, d) for d in (64, 128) for length in ATTENTION_ANCHORS[kind]]
    return [
        task("attention", dtype="bf16", batch=b, seq=s, heads=h, kv_heads=g, qk_dim=qk, v_dim=v, causal=True, backward=back)
        for b, s, h, g, qk, v in dict.fromkeys([*own, *more])
        for back in (False, True)
    ]


def _watch(run: _Run) -> threading.Event:
    """Start a clock that ends a rank which hears nothing any more: a first collective can hang outside any timeout."""
    done = threading.Event()
    limit = SILENCE_FACTOR * run.settings.timeout_s + SILENCE_S

    def look() -> None:
        while not done.wait(1.0):
            if run.engine.job.world > 1 and time.monotonic() - run.engine.alive > limit:
                if run.state:
                    run.state.note("errors", "the job", f"nothing was heard for {limit:.0f} s: a link or a rank is silent")
                    run.state.save()
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()
    return done
