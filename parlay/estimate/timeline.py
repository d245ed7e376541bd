"""The exact time of one layout's pipeline: its own chunks through parlay.schedules, in place of the closed form.

The search uses closed forms, which are exact for equal stages; the layouts that are shown are timed operation by
operation, so that embedding, head, uneven splits and mixed layer kinds count where they stand.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.time import StepTime
from parlay.layouts.layout import Layout
from parlay.layouts.split import V_SHAPED, chunk_count, chunk_sizes
from parlay.models.spec import ModelSpec
from parlay.schedules.build import build
from parlay.schedules.costs import Costs
from parlay.schedules.schedule import Schedule
from parlay.schedules.timeline import simulate

Array = NDArray[np.float64]

MOST_OPERATIONS = 100_000  # a longer step is timed up to here; after that each micro-batch takes the slowest stage's time
STEADY = 4  # rounds of p micro-batches after which a pipeline runs at the pace of its slowest stage


def with_timeline(time: StepTime, model: ModelSpec, layout: Layout) -> StepTime:
    """Return the step of one layout with the bubble of its exact timeline; unchanged without a pipeline.

    `time` holds one layout that keeps the rules, with every stage listed.
    """
    name = layout.schedule or ("interleaved" if layout.vpp > 1 else "1f1b")
    if layout.pp < 2:
        return time
    m = int(time.micro_batches[0])
    busy = float((time.forward + time.backward + time.sends)[0, time.slowest[0]])
    chunks = chunk_count(layout.pp, layout.vpp, name)
    per_micro_batch = 2 * chunks
    shown = m
    if m * per_micro_batch > MOST_OPERATIONS:
        rounds = max(STEADY, MOST_OPERATIONS // (per_micro_batch * layout.pp))
        shown = min(m, rounds * layout.pp + m % layout.pp)
    schedule = _built(name, layout.pp, shown, 1 if name in V_SHAPED else layout.vpp)  # these have two by definition
    costs = _chunk_costs(time, model, layout, schedule)
    each_way = float(time.hops[0]) / (2 * (layout.pp - 1))
    exact = simulate(schedule, Costs.of(schedule, *costs, each_way)).step_s + (m - shown) * busy
    bubble = np.array([max(exact - m * busy, 0.0)])
    return dataclasses.replace(time, step=time.step - time.bubble + bubble, bubble=bubble)


@lru_cache(maxsize=8)
def _built(name: str, stages: int, micro_batches: int, virtual: int) -> Schedule:
    """Return the schedule of that name; its order does not depend on what its operations take."""
    return build(name, stages, micro_batches, virtual=virtual)


def _chunk_costs(time: StepTime, model: ModelSpec, layout: Layout, schedule: Schedule) -> tuple[Array, Array, Array]:
    """Return forward, whole backward and weight-gradient seconds of every chunk, in model order."""
    chunks, stage_of = schedule.chunks, schedule.device[0]  # DualPipe holds each chunk a second time, at the other end
    virtual = chunks // layout.pp
    sizes = chunk_sizes(model.layer_count, layout.pp, virtual, layout.first_layers, layout.last_layers, 1 + model.mtp_layers)
    names, edges = model.layer_names(), np.concatenate([[0], np.cumsum(sizes)])
    forward, backward, weight = np.zeros(chunks), np.zeros(chunks), np.zeros(chunks)

    def add(chunk: int, block: str, count: float) -> None:
        cost, row = time.blocks[block], time.pipes.shard.row_of[0]
        rerun = float(time.by_pipe.rerun[0, stage_of[chunk]]) if block.startswith("layer:") else 1.0
        forward[chunk] += count * cost.forward_s[row]
        backward[chunk] += count * (cost.backward_s[row] - (1.0 - rerun) * cost.recompute[row])
        weight[chunk] += count * cost.weight[row]

    for chunk in range(chunks):
        held = names[edges[chunk] : edges[chunk + 1]]
        for kind in model.kinds:
            count = held.count(kind)
            if count:
                add(chunk, f"layer:{kind}", count)
    add(0, "embedding", 1)
    add(chunks - 1, "head", 1 + model.mtp_layers)
    if model.mtp_layers and model.mtp_kind:
        add(chunks - 1, f"layer:{model.mtp_kind}", model.mtp_layers)
    sends = time.sends[0, stage_of] / (2 * virtual)
    return forward + sends, backward + sends, np.minimum(weight, backward + sends)
