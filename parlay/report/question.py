"""The lines that say what was asked."""

from __future__ import annotations

from parlay.estimate.counts import parameters
from parlay.estimate.estimate import Estimate
from parlay.report.table import Page, fields
from parlay.search.plan import Plan
from parlay.units import show_bytes, show_count, show_rate


def question_lines(e: Estimate | Plan, page: Page, *more: tuple[str, str]) -> list[str]:
    """Return model, cluster, links and workload, one line each, and `more` names with values below them."""
    counts, w, c = parameters(e.model), e.workload, e.cluster
    active = f", {show_count(counts.active)} active" if counts.active != counts.total else ""
    device = c.device
    limit = show_bytes(device.memory.allocatable.value)
    nodes = e.gpus / c.gpus_per_node.value
    where = f"{e.gpus:,} x {device.name}" + (f" on {nodes:,.0f} nodes" if nodes > 1 and nodes == int(nodes) else "")
    links = f"{show_rate(c.scale_up_link.bytes_per_s.value, 'B/s')} {c.scale_up_link.name}"
    network = f"{show_rate(c.nic_bytes_per_s_per_gpu, 'B/s')} network a GPU"
    return fields(
        [
            ("model", f"{e.model.name}: {show_count(counts.total)} parameters{active}"),
            ("cluster", f"{c.name}: {where}, {limit} allocatable"),
            ("links", f"one way: {links}; {network}"),
            ("training", f"{w.seq_len:,} tokens x {w.global_batch:,} sequences, {w.precision}, {w.optimizer}, {w.framework}"),
            *more,
        ],
        page,
    )
