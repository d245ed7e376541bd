"""A layout in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parlay.estimate.estimate import Estimate
from parlay.layouts.layout import Layout
from parlay.layouts.unless_told import unless_told
from parlay.layouts.vocabulary import DEFAULT_ORDER
from parlay.layouts.workload import Workload
from parlay.units import exact_count

ZERO = {0: "no sharding", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


def options(layout: Layout) -> str:
    """Return what a layout's short form leaves out: sharding, recompute, overlaps, offload, kind of context parallelism."""
    parts = [ZERO[layout.zero] if layout.shard in (None, layout.dp * layout.cp) else f"{ZERO[layout.zero]} over {layout.shard}"]
    if layout.cp > 1:
        parts.append(
            f"cp {layout.cp_kind}" + (f" {layout.ulysses}x{layout.cp // layout.ulysses}" if layout.cp_kind == "usp" else "")
        )
    parts.append("recompute " + ("+".join(layout.recompute) or "none"))
    if layout.recompute_layers:
        parts[-1] += f" on {layout.recompute_layers} layer{'s' if layout.recompute_layers > 1 else ''} of each chunk"
    overlaps = [
        name for name, on in (("tp", layout.tp_overlap and layout.tp > 1), ("ep", layout.ep_overlap and layout.ep > 1)) if on
    ]
    if overlaps:
        parts.append("overlap " + "+".join(overlaps))
    if layout.offload_optimizer:
        parts.append(f"optimizer {layout.offload_optimizer:.0%} on host")
    if layout.offload_activations:
        parts.append(f"activations {layout.offload_activations:.0%} on host")
    if layout.schedule and layout.schedule not in ("1f1b", "interleaved"):
        parts.append(layout.schedule)
    if layout.sp is False and layout.tp > 1:
        parts.append("no sequence parallelism")
    parts += [
        f"{count or 'no'} layer{'' if count == 1 else 's'} on the {end} stage"
        for end, count in (("first", layout.first_layers), ("last", layout.last_layers))
        if count is not None
    ]
    if layout.order != DEFAULT_ORDER:
        parts.append(f"order {'-'.join(layout.order)}")
    return ", ".join(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """What a user typed that a command for the same question must say again.

    `model` and `cluster` are the words that stand for them, such as a file. `file_layout` holds what a file says of the layout:
    it stays in force beside --layout, so what differs from it is written; None if the words name no file with a layout.
    """

    model: str | None = None
    cluster: str | None = None
    file_layout: Mapping[str, Any] | None = None
    gpu_hour_usd: float | None = None


def estimate_command(e: Estimate, typed: Typed | None = None) -> str:
    """Return the `parlay estimate` command that prices this very estimate again.

    A file may set what a flag leaves at its default, so beside one every flag is written.
    """
    w, x, typed = e.workload, e.layout, typed or Typed()
    every, file = typed.file_layout is not None, typed.file_layout or {}
    parts = [
        f"parlay estimate {typed.model or e.model.id} --on {typed.cluster or e.cluster.id} --layout {x}",
        f"--seq-len {w.seq_len} --global-batch {w.global_batch}",
        *_run_flags(e, typed.gpu_hour_usd),
    ]
    default_workload, default_layout = Workload(), Layout(**unless_told(w, x.model_dump(exclude={"schedule"})))
    for flag, value, default in (
        ("precision", w.precision, default_workload.precision),
        ("optimizer", w.optimizer, default_workload.optimizer),
        ("lora", w.lora_rank, None),
        ("framework", w.framework, default_workload.framework),
        ("zero", x.zero, Layout().zero),
        ("recompute", "+".join(x.recompute) or "none", "none"),
    ):
        if value is not None and (every or value != default):
            parts.append(f"--{flag} {value}")
    told = {"seq_len", "global_batch", "precision", "optimizer", "framework", "total_tokens", "lora_rank"}
    parts += [
        _set("training", n, getattr(w, n))
        for n in type(w).model_fields
        if n not in told and getattr(w, n) != getattr(default_workload, n)
    ]
    short = {"tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "zero", "recompute"}
    schedule = default_layout.schedule or ("interleaved" if x.vpp > 1 else "1f1b")
    filled = {"sp": x.tp > 1, "shard": x.dp * x.cp, "schedule": schedule}
    for name in type(x).model_fields:
        value = getattr(x, name)
        usual = value in (getattr(default_layout, name), filled.get(name, ...))
        if name not in short and value is not None and not (usual and file.get(name, value) == value):
            parts.append(_set("layout", name, value))
    return " ".join(parts)


def _run_flags(e: Estimate, gpu_hour_usd: float | None) -> list[str]:
    """Return the flags of the whole run: its tokens, and the price where it is not the catalog's."""
    tokens, listed = e.workload.total_tokens, e.cluster.gpu_hour_usd
    if not tokens:
        return []
    known = gpu_hour_usd is None or (listed is not None and listed.value == gpu_hour_usd)
    return [f"--tokens {exact_count(tokens)}", *([] if known else [f"--gpu-hour-usd {gpu_hour_usd:.15g}"])]


def _set(section: str, name: str, value: object) -> str:
    text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    text = "-".join(value) if isinstance(value, tuple) else text
    return f"--set {section}.{name}={text}"
