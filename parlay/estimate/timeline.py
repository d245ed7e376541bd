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
from parlay.schedules.timeline import Timeline, simulate

Array = NDArray[np.float64]

MOST_OPERATIONS = 100_000  # a longer step is timed up to here; after that every round takes as long as the last one timed
# Micro-batches beyond fill and drain after which 1F1B is looked at for the first time, and 4 times that for the second.
SETTLING = 4
SETTLED = 1e-9  # relative: micro-batches that follow each other this evenly do so for good
STEADY = 4  # rounds of p micro-batches after which every round takes as long as the one before


def with_timeline(time: StepTime, model: ModelSpec, layout: Layout) -> StepTime:
    """Return the step of one layout with the bubble of its exact timeline; unchanged without a pipeline.

    `time` holds one layout that keeps the rules, with every stage listed.
    """
    if layout.pp < 2:
        return time
    bubble = np.array([exact_bubble_s(time, model, layout)])
    return dataclasses.replace(time, step=time.step - time.bubble + bubble, bubble=bubble, timed=True)


def exact_bubble_s(
    time: StepTime, model: ModelSpec, layout: Layout, *, row: int = 0, most: int = MOST_OPERATIONS, rounds: int = STEADY
) -> float:
    """Return the seconds a step of `layout`, row `row` of `time`, waits beyond its slowest stage's work.

    Plain 1F1B is timed until it repeats itself. Of the others, and of it where transfers run beside compute, up to about `most`
    operations are timed, at least `rounds` (3 or more) of p micro-batches. Every stage is listed in `time`.
    """
    name = layout.schedule or ("interleaved" if layout.vpp > 1 else "1f1b")
    m, pp = int(time.micro_batches[row]), layout.pp
    one, at = time.by_pipe, (time.pipes.row_of[row], time.slowest[row])
    busy = float(one.forward[at] + one.backward[at] + one.sends[at])
    of_round = 2 * chunk_count(pp, layout.vpp, name) * pp
    shown = min(m, max(rounds, most // of_round) * pp + m % pp) if m * of_round > most * pp else m
    virtual = 1 if name in V_SHAPED else layout.vpp  # these have two by definition
    each_way = float(time.hops[row]) / (2 * (pp - 1))
    costs: tuple[Array, Array, Array] | None = None
    for count in (2 * pp + SETTLING, 4 * pp + 4 * SETTLING) if name == "1f1b" and not each_way else ():
        if count < m:
            schedule = _built(name, pp, count, virtual)
            costs = costs or _chunk_costs(time, model, layout, schedule, row)
            timed = simulate(schedule, Costs.of(schedule, *costs, each_way))
            pace = settled_pace_s(timed)
            if pace is not None:
                return max(timed.step_s + (m - count) * pace - m * busy, 0.0)
    timelines = []
    for count in (shown, shown - pp) if shown < m and name != "interleaved" else (shown,):
        schedule = _built(name, pp, count, virtual)
        costs = costs or _chunk_costs(time, model, layout, schedule, row)
        timelines.append(simulate(schedule, Costs.of(schedule, *costs, each_way)))
    whole = timelines[0].step_s
    if shown == m:
        pace = busy
    elif name == "interleaved":
        pace = max(round_pace_s(timelines[0], virtual), busy)
    else:
        pace = max((whole - timelines[1].step_s) / pp, busy)
    return max(whole + (m - shown) * pace - m * busy, 0.0)


def round_pace_s(timeline: Timeline, virtual: int) -> float:
    """Return the seconds a micro-batch of the last round of interleaved 1F1B: of its last stage, which drains last of all.

    That stage has warmed up after (v - 1) p forwards of chunks; a round is v p of them, each with a backward behind it.
    """
    schedule = timeline.schedule
    p, turn = schedule.stages, virtual * schedule.stages
    first = schedule.offset[p - 1] + (virtual - 1) * p  # of the pairs of a forward and a backward
    last = first + 2 * (virtual * schedule.micro_batches - (virtual - 1) * p - 1)
    return float(timeline.start_s[last] - timeline.start_s[last - 2 * turn]) / p


def settled_pace_s(timeline: Timeline) -> float | None:
    """Return the seconds from one micro-batch to the next for good, once plain 1F1B repeats itself; None if it does not yet.

    After its fill, stage r runs iterations: the forward of micro-batch i + p - 1 - r, then the backward of i. Both start when the
    operation before them on the stage and one of another stage are over: the forward's input comes from iteration i - 1 of
    stage r - 1, the backward's from iteration i of stage r + 1, where the last stage has it from its own forward. So where
    every operation of one iteration, on all stages, starts the same time after its counterpart of the iteration before, those
    of the next iteration do too, and by induction all that a longer step adds before its drain, which is then only later.
    The last iteration that all stages have, and the one before, are compared, each with its predecessor.
    """
    schedule = timeline.schedule
    p, start = schedule.stages, timeline.start_s
    last = schedule.micro_batches - p  # of stage 0, whose fill is the longest
    if last < 2:
        return None
    forward = schedule.offset[:-1] + (p - 1 - np.arange(p)) + 2 * last
    steps = np.stack([start[i] - start[i - 2] for i in (forward, forward + 1, forward - 2, forward - 1)])
    return float(steps.mean()) if np.ptp(steps) <= SETTLED * steps.max() else None


@lru_cache(maxsize=8)
def _built(name: str, stages: int, micro_batches: int, virtual: int) -> Schedule:
    """Return the schedule of that name; its order does not depend on what its operations take."""
    return build(name, stages, micro_batches, virtual=virtual)


def _chunk_costs(
    time: StepTime, model: ModelSpec, layout: Layout, schedule: Schedule, row: int = 0
) -> tuple[Array, Array, Array]:
    """Return forward, whole backward and weight-gradient seconds of every chunk, in model order."""
    chunks, stage_of = schedule.chunks, schedule.device[0]  # DualPipe holds each chunk a second time, at the other end
    virtual = chunks // layout.pp
    one, pipe = time.by_pipe, time.pipes.row_of[row]
    sizes = chunk_sizes(model.layer_count, layout.pp, virtual, *layout.ends, tail=1 + model.mtp_layers)
    names, edges = model.layer_names(), np.concatenate([[0], np.cumsum(sizes)])
    forward, backward, weight = np.zeros(chunks), np.zeros(chunks), np.zeros(chunks)

    def add(chunk: int, block: str, count: float) -> None:
        cost, of = time.blocks[block], time.pipes.shard.row_of[pipe]
        rerun = float(one.rerun[pipe, stage_of[chunk]]) if block.startswith("layer:") else 1.0
        forward[chunk] += count * cost.forward_s[of]
        backward[chunk] += count * (cost.backward_s[of] - (1.0 - rerun) * cost.recompute[of])
        weight[chunk] += count * cost.weight[of]

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
    sends = one.sends[pipe, stage_of] / (2 * virtual)
    forward += sends + one.host.forward[pipe, stage_of] / virtual
    backward += sends + one.host.backward[pipe, stage_of] / virtual
    return forward, backward, np.minimum(weight, backward)
