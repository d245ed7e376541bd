"""A layout in words."""

from __future__ import annotations

from parlay.layouts.layout import Layout

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
        parts[-1] += f" on {layout.recompute_layers} layers"
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
    return ", ".join(parts)
