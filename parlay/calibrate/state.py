"""What rank 0 holds while it measures: the file so far, written after each point, and taken up again by --resume."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.calibrate.file import save_calibration, summarise
from parlay.calibrate.fits import fitted
from parlay.calibrate.gates import flag_order, point_flags, refuse_compute, refuse_host, refuse_link, refuse_stream
from parlay.calibrate.tasks import STREAM_CONVENTIONS, Task, gemm_flops, stream_bytes
from parlay.errors import UsageError
from parlay.rates.calibration_file import (
    AttentionPoint,
    Calibration,
    Gemm,
    GroupedGemm,
    HostCopy,
    Link,
    LinkPoint,
    Note,
    Overlap,
    Stream,
    load_calibration,
)
from parlay.rates.network import wire_factor
from parlay.rates.points import attention_shape


@dataclasses.dataclass
class State:
    """The calibration so far and where it goes. Only rank 0 writes."""

    calibration: Calibration
    path: Path

    def save(self) -> None:
        """Write the file."""
        self.calibration = save_calibration(self.calibration, self.path)

    def change(self, **fields: Any) -> None:
        """Replace fields of the calibration."""
        self.calibration = self.calibration.model_copy(update=fields)

    def note(self, where: str, what: str, why: str) -> None:
        """Add to `skipped` or `errors`, once."""
        entry = Note(what=what, why=why[:300])
        known = getattr(self.calibration, where)
        if entry not in known:
            self.change(**{where: (*known, entry)})

    def finish(self, *, complete: bool, warnings: tuple[str, ...]) -> None:
        """Fit, and say whether everything that was asked is there."""
        links = tuple(x.model_copy(update={"points": flag_order(x.points)}) for x in self.calibration.links)
        self.change(links=links, complete=complete, warnings=warnings)
        self.calibration = fitted(self.calibration)

    def add(self, task: Task, samples: list[float], backend: str) -> str | None:
        """Add a measured point, or return why it cannot be true."""
        if task.kind == "link":
            return self._link(task, samples, backend)
        if task.kind == "stream":
            return self._stream(task, samples)
        if task.kind == "host_copy":
            return self._host(task, samples)
        return self._compute(task, samples)

    def _compute(self, task: Task, samples: list[float]) -> str | None:
        f: Mapping[str, Any] = task.fields
        times = summarise(samples)
        common: dict[str, Any] = {
            "dtype": f["dtype"], "seconds": times, "samples_s": tuple(samples), "flags": point_flags(times.spread, times.n),
        }  # fmt: skip
        point: Gemm | GroupedGemm | AttentionPoint
        if task.kind == "gemm":
            point = Gemm(m=f["m"], n=f["n"], k=f["k"], layout=f["layout"], flops=gemm_flops(task), **common)
        elif task.kind == "grouped_gemm":
            flops = 2.0 * f["rows"] * f["n"] * f["k"]
            point = GroupedGemm(rows=f["rows"], groups=f["groups"], n=f["n"], k=f["k"], flops=flops, **common)
        else:
            point = AttentionPoint(
                batch=f["batch"], queries=f["seq"], keys=f["seq"], heads=f["heads"], kv_heads=f["kv_heads"], qk_dim=f["qk_dim"],
                v_dim=f["v_dim"], causal=f["causal"], backward=f["backward"], flops=1.0, **common,
            )  # fmt: skip
            shape = attention_shape([point])
            flops = float((shape.backward_flops if f["backward"] else shape.forward_flops)[0])
            point = point.model_copy(update={"flops": flops})
        refused = refuse_compute(point, self.calibration.device.datasheet)
        if refused is None:
            self.change(compute=(*self.calibration.compute, point))
        return refused

    def _stream(self, task: Task, samples: list[float]) -> str | None:
        f: Mapping[str, Any] = task.fields
        times, dtype = summarise(samples), str(f.get("dtype", "bf16"))
        convention = (
            STREAM_CONVENTIONS[f["op"]][2]
            if f["op"] in STREAM_CONVENTIONS
            else "gradient read; weight, two moments read and written"
        )
        point = Stream(
            op=f["op"], direction=f["direction"], dtype=dtype, bytes=stream_bytes(f["op"], f["direction"], f["elements"], dtype),
            bytes_convention=convention, seconds=times, samples_s=tuple(samples), flags=point_flags(times.spread, times.n),
        )  # fmt: skip
        refused = refuse_stream(point, self.calibration.device.datasheet)
        if refused is None:
            self.change(memory=(*self.calibration.memory, point))
        return refused

    def _host(self, task: Task, samples: list[float]) -> str | None:
        f: Mapping[str, Any] = task.fields
        times = summarise(samples)
        point = HostCopy(
            direction=f["direction"], bytes=f["bytes"], seconds=times, samples_s=tuple(samples), flags=point_flags(times.spread, times.n),
        )  # fmt: skip
        refused = refuse_host(point, self.calibration.device.datasheet)
        if refused is None:
            self.change(host_copies=(*self.calibration.host_copies, point))
        return refused

    def _link(self, task: Task, samples: list[float], backend: str) -> str | None:
        f: Mapping[str, Any] = task.fields
        if f["op"] == "send_recv":  # there and back again
            samples = [s / 2 for s in samples]
        times = summarise(samples)
        factor = float(wire_factor(f["op"], f["n"]))
        point = LinkPoint(
            bytes=f["bytes"], seconds=times, samples_s=tuple(samples), algbw=f["bytes"] / times.median,
            busbw=f["bytes"] * factor / times.median, flags=point_flags(times.spread, times.n),
        )  # fmt: skip
        link = Link(op=f["op"], backend=backend, level=f["level"], n=f["n"], local=f["local"], groups_active=f["active"])
        refused = refuse_link(link, point, self.calibration.device.datasheet)
        if refused is not None:
            return refused
        links = list(self.calibration.links)
        at = next((i for i, x in enumerate(links) if x.model_copy(update={"points": ()}) == link), None)
        if at is None:
            links.append(link.model_copy(update={"points": (point,)}))
        else:
            both = sorted((*links[at].points, point), key=lambda p: p.bytes)
            links[at] = links[at].model_copy(update={"points": tuple(both)})
        self.change(links=tuple(links))
        return None

    def add_overlap(self, found: Overlap) -> None:
        """Add the slow-down of a product and a collective beside one another."""
        self.change(overlap=(*self.calibration.overlap, found))


KEPT = ("compute", "memory", "host_copies", "links", "overlap", "sustained", "launch_s", "notes")  # by a run that resumes


def begin(fresh: Calibration, path: Path, *, resume: bool) -> State:
    """Return the state to start from: a new file, or an earlier one of the same machine and job.

    An earlier file of another machine, another number of ranks or another torch is renamed to FILE.old, not mixed in.
    """
    if not path.exists():
        return State(fresh, path)
    if not resume:
        raise UsageError("is there already", where=str(path), hint="--resume goes on with it; or choose another name with -o")
    before = load_calibration(path)
    if _same(before, fresh):
        kept = {"created": before.created, "resumed": True, "complete": False, "warnings": (), "errors": ()}
        held = {name: getattr(before, name) for name in KEPT}
        return State(fresh.model_copy(update=held | kept), path)
    os.replace(path, path.with_name(path.name + ".old"))
    return State(fresh, path)


def _same(a: Calibration, b: Calibration) -> bool:
    def who(c: Calibration) -> tuple[Any, ...]:
        t = c.topology
        return (c.device.name, c.device.driver, c.software.torch, c.software.nccl, t.hosts, t.ranks_per_host, t.rank_to_host)

    return who(a) == who(b)
