"""A pipeline of stages that pass each other real activations and gradients: GPipe, 1F1B and interleaved 1F1B.

Every rank is a stage and holds v chunks of a small tanh network: chunk j of stage r is part j p + r of the model. A stage runs its
list of forwards and backwards in order; each starts when the stage is free and its input has arrived (sends take no time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parlay.simulate.collectives import even_sizes
from parlay.simulate.world import Array, World

ACTIVATIONS, GRADIENTS = "activations", "activation gradients"
FORWARD, BACKWARD = "pipeline forward", "pipeline backward"
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Task:
    """One forward or backward of one micro-batch through one chunk of a stage."""

    backward: bool
    micro_batch: int
    chunk: int = 0


@dataclass
class Run:
    """What a step did: outputs, gradients by layer and of the inputs, peak of saved chunks and times by stage."""

    outputs: list[Array]
    d_inputs: list[Array]
    gradients: list[Array]
    peak_in_flight: list[int]
    busy_s: list[float]
    step_s: float

    def idle_s(self) -> list[float]:
        """Return how long each stage does nothing during the step. [s]"""
        return [self.step_s - busy for busy in self.busy_s]


@dataclass
class _Stage:
    tasks: list[Task]
    free_at: float = 0.0
    busy: float = 0.0
    saved: dict[tuple[int, int], list[Array]] = field(default_factory=dict)
    peak: int = 0


def tasks_of(schedule: str, stages: int, stage: int, micro_batches: int, virtual: int = 1) -> list[Task]:
    """Return what a stage does, in order.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b", "interleaved"}
        All forwards first; or one forward and one backward in turn after a warm-up; or the same over v chunks. [-]
    stages, stage : int
        Stages p, and the one asked for, from 0. [-]
    micro_batches : int
        Micro-batches m of the step; a multiple of p for "interleaved". [-]
    virtual : int, default 1
        Chunks v of a stage. [-]

    Examples
    --------
    >>> "".join("FB"[task.backward] + str(task.micro_batch) for task in tasks_of("1f1b", 2, 0, 3))
    'F0F1B0F2B1B2'
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"`schedule` must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if schedule != "interleaved" and virtual != 1:
        raise ValueError(f"{schedule} has one chunk a stage, got {virtual}")
    p, m, v = stages, micro_batches, virtual
    if schedule == "interleaved" and m % p:
        raise ValueError(f"interleaving needs micro-batches in multiples of {p} stages, got {m}")
    group = p if schedule == "interleaved" else m
    order = [(i, j) for start in range(0, m, group) for j in range(v) for i in range(start, start + group)]
    forwards = [Task(False, i, j) for i, j in order]
    backwards = [Task(True, i, v - 1 - j) for i, j in order]
    if schedule == "gpipe":
        return forwards + backwards[::-1]
    warm = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    warm = min(warm, m * v)
    steady = [task for pair in zip(forwards[warm:], backwards) for task in pair]
    return forwards[:warm] + steady + backwards[m * v - warm :]


def run_step(
    world: World,
    layers: Sequence[Array],
    inputs: Sequence[Array],
    d_outputs: Sequence[Array],
    *,
    schedule: str,
    virtual: int = 1,
    forward_s: float = 1.0,
    backward_s: float = 2.0,
) -> Run:
    """Return what a step of all micro-batches computes, and how long every stage waits.

    Parameters
    ----------
    world : World
        The stages and their ledger.
    layers : sequence of ndarray
        Matrices (width, width) of the network's layers, cut into p v parts as even as can be. [-]
    inputs, d_outputs : sequence of ndarray
        Rows that enter the first part, and gradients of the last part's rows, one array a micro-batch. [-]
    schedule : str
        See `tasks_of`. [-]
    virtual : int, default 1
        Chunks v of a stage. [-]
    forward_s, backward_s : float
        Time of one micro-batch through a whole stage (all its chunks). [s]
    """
    p, m, parts = world.ranks, len(inputs), world.ranks * virtual
    cuts = np.cumsum([0, *even_sizes(len(layers), parts)])
    stages = [_Stage(tasks_of(schedule, p, r, m, virtual)) for r in range(p)]
    arrived: dict[tuple[bool, int, int], tuple[Array, float]] = {}
    for i, x in enumerate(inputs):
        arrived[False, i, 0], arrived[True, i, parts - 1] = (x, 0.0), (d_outputs[i], 0.0)
    out: dict[tuple[bool, int], Array] = {}
    gradients = [np.zeros_like(layer) for layer in layers]

    def do(r: int, task: Task) -> None:
        stage, part, key = stages[r], task.chunk * p + r, (task.micro_batch, task.chunk)
        rows, ready = arrived.pop((task.backward, task.micro_batch, part))
        length = (backward_s if task.backward else forward_s) / virtual
        stage.free_at, stage.busy = max(stage.free_at, ready) + length, stage.busy + length
        mine = range(cuts[part], cuts[part + 1])
        if task.backward:
            rows = _backward(world, r, rows, layers, mine, stage.saved.pop(key), gradients)
        else:
            rows, stage.saved[key] = _forward(world, r, rows, layers, mine)
            stage.peak = max(stage.peak, len(stage.saved))
        onward = part + (-1 if task.backward else 1)
        if 0 <= onward < parts:
            name = GRADIENTS if task.backward else ACTIVATIONS
            arrived[task.backward, task.micro_batch, onward] = world.send(r, onward % p, rows, name), stage.free_at
        else:
            out[task.backward, task.micro_batch] = rows

    while any(stage.tasks for stage in stages):
        ready = [r for r, stage in enumerate(stages) if stage.tasks and _can_start(stages[r], r, p, arrived)]
        if not ready:
            raise RuntimeError("every stage waits for another one")
        for r in ready:
            do(r, stages[r].tasks.pop(0))
    step_s = max(stage.free_at for stage in stages)
    outputs, d_inputs = ([out[side, i] for i in range(m)] for side in (False, True))
    return Run(outputs, d_inputs, gradients, [stage.peak for stage in stages], [stage.busy for stage in stages], step_s)


def _can_start(stage: _Stage, r: int, p: int, arrived: dict[tuple[bool, int, int], tuple[Array, float]]) -> bool:
    task = stage.tasks[0]
    saved = not task.backward or (task.micro_batch, task.chunk) in stage.saved
    return saved and (task.backward, task.micro_batch, task.chunk * p + r) in arrived


def _forward(world: World, rank: int, rows: Array, layers: Sequence[Array], mine: Sequence[int]) -> tuple[Array, list[Array]]:
    saved = [rows]
    for n in mine:
        saved.append(np.tanh(world.matmul(rank, saved[-1], layers[n], FORWARD)))
    return saved[-1], saved


def _backward(
    world: World, rank: int, flow: Array, layers: Sequence[Array], mine: Sequence[int], saved: list[Array], gradients: list[Array]
) -> Array:
    for place, n in reversed(list(enumerate(mine))):
        flow = flow * (1 - saved[place + 1] ** 2)
        gradients[n] = gradients[n] + world.matmul(rank, saved[place].T, flow, BACKWARD)
        flow = world.matmul(rank, flow, layers[n].T, BACKWARD)
    return flow
