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
FORWARD, BACKWARD, RECOMPUTE = "pipeline forward", "pipeline backward", "pipeline forward again"
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Task:
    """One forward or backward of one micro-batch through one chunk of a stage."""

    backward: bool
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Run:
    """What a step did: outputs, gradients of the inputs and by layer; by stage the peaks of saved chunks and bytes, and times."""

    outputs: list[Array]
    d_inputs: list[Array]
    gradients: list[Array]
    peak_in_flight: list[int]
    peak_bytes: list[int]
    busy_s: list[float]
    step_s: float

    def idle_s(self) -> list[float]:
        """Return how long each stage does nothing during the step. [s]"""
        return [self.step_s - busy for busy in self.busy_s]


@dataclass
class _Stage:
    tasks: list[Task]
    forward_s: float
    backward_s: float
    free_at: float = 0.0
    busy: float = 0.0
    saved: dict[tuple[int, int], list[Array]] = field(default_factory=dict)
    peak: int = 0
    peak_bytes: int = 0

    def note_peak(self, extra: Sequence[Array] = ()) -> None:
        held = sum(array.nbytes for arrays in (*self.saved.values(), extra) for array in arrays)
        self.peak, self.peak_bytes = max(self.peak, len(self.saved)), max(self.peak_bytes, held)


def tasks_of(
    schedule: str, stages: int, stage: int, micro_batches: int, virtual: int = 1, group: int | None = None
) -> list[Task]:
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
    group : int, optional
        Micro-batches that pass a chunk before the next chunk's turn, at least p; p where it is left out ("interleaved" only). [-]

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
    g = m if schedule != "interleaved" else group or p
    if schedule == "interleaved" and (m % g or g < p):
        raise ValueError(f"interleaving {p} stages needs groups of at least {p} that divide the micro-batches, got {g} and {m}")
    order = [(i, j) for start in range(0, m, g) for j in range(v) for i in range(start, start + g)]
    forwards = [Task(False, i, j) for i, j in order]
    backwards = [Task(True, i, v - 1 - j) for i, j in order]
    if schedule == "gpipe":
        return forwards + backwards[::-1]
    warm = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * g
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
    group: int | None = None,
    forward_s: float | Sequence[float] = 1.0,
    backward_s: float | Sequence[float] = 2.0,
    recompute: bool = False,
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
    schedule, virtual, group
        See `tasks_of`. [-]
    forward_s, backward_s : float or sequence of float
        Time of one micro-batch through a whole stage (all its chunks), of each stage or of all. [s]
    recompute : bool, default False
        Whether a stage keeps the input of a chunk only and computes its layers again in front of their backward.
    """
    p, m = world.ranks, len(inputs)
    times = [np.broadcast_to(t, p).tolist() for t in (forward_s, backward_s)]
    stages = [_Stage(tasks_of(schedule, p, r, m, virtual, group), times[0][r], times[1][r]) for r in range(p)]
    pipe = _Pipe(world, layers, stages, virtual, recompute)
    for i, x in enumerate(inputs):
        pipe.arrived[False, i, 0], pipe.arrived[True, i, p * virtual - 1] = (x, 0.0), (d_outputs[i], 0.0)
    while any(stage.tasks for stage in stages):
        ready = [r for r in range(p) if pipe.can_start(r)]
        if not ready:
            raise RuntimeError("every stage waits for another one")
        for r in ready:
            pipe.do(r, stages[r].tasks.pop(0))
    outputs, d_inputs = ([pipe.out[side, i] for i in range(m)] for side in (False, True))
    peaks, sizes = [stage.peak for stage in stages], [stage.peak_bytes for stage in stages]
    busy, step_s = [stage.busy for stage in stages], max(stage.free_at for stage in stages)
    return Run(outputs, d_inputs, pipe.gradients, peaks, sizes, busy, step_s)


class _Pipe:
    """The stages and what lies between them: `arrived` by direction, micro-batch and part, with the time of its arrival."""

    def __init__(self, world: World, layers: Sequence[Array], stages: list[_Stage], virtual: int, recompute: bool) -> None:
        self.world, self.layers, self.stages, self.virtual, self.recompute = world, layers, stages, virtual, recompute
        self.parts = world.ranks * virtual
        self.cuts = np.cumsum([0, *even_sizes(len(layers), self.parts)])
        self.gradients = [np.zeros_like(layer) for layer in layers]
        self.arrived: dict[tuple[bool, int, int], tuple[Array, float]] = {}
        self.out: dict[tuple[bool, int], Array] = {}

    def can_start(self, r: int) -> bool:
        stage = self.stages[r]
        if not stage.tasks:
            return False
        task = stage.tasks[0]
        saved = not task.backward or (task.micro_batch, task.chunk) in stage.saved
        return saved and (task.backward, task.micro_batch, task.chunk * self.world.ranks + r) in self.arrived

    def do(self, r: int, task: Task) -> None:
        stage, part = self.stages[r], task.chunk * self.world.ranks + r
        rows, ready = self.arrived.pop((task.backward, task.micro_batch, part))
        length = (stage.backward_s if task.backward else stage.forward_s) / self.virtual
        stage.free_at, stage.busy = max(stage.free_at, ready) + length, stage.busy + length
        mine = range(self.cuts[part], self.cuts[part + 1])
        rows = self._compute(r, rows, task, mine)
        onward = part + (-1 if task.backward else 1)
        if 0 <= onward < self.parts:
            name = GRADIENTS if task.backward else ACTIVATIONS
            sent = self.world.send(r, onward % self.world.ranks, rows, name)
            self.arrived[task.backward, task.micro_batch, onward] = sent, stage.free_at
        else:
            self.out[task.backward, task.micro_batch] = rows

    def _compute(self, r: int, rows: Array, task: Task, mine: Sequence[int]) -> Array:
        stage, key = self.stages[r], (task.micro_batch, task.chunk)
        if not task.backward:
            out, tensors = _forward(self.world, r, rows, self.layers, mine, FORWARD)
            stage.saved[key] = tensors[:1] if self.recompute else tensors
            stage.note_peak()
            return out
        tensors = stage.saved[key]
        if self.recompute:
            _, tensors = _forward(self.world, r, tensors[0], self.layers, mine, RECOMPUTE)
            stage.note_peak(tensors[1:])
        del stage.saved[key]
        return _backward(self.world, r, rows, self.layers, mine, tensors, self.gradients)


def _forward(
    world: World, rank: int, rows: Array, layers: Sequence[Array], mine: Sequence[int], operation: str
) -> tuple[Array, list[Array]]:
    saved = [rows]
    for n in mine:
        saved.append(np.tanh(world.matmul(rank, saved[-1], layers[n], operation)))
    return saved[-1], saved


def _backward(
    world: World, rank: int, flow: Array, layers: Sequence[Array], mine: Sequence[int], saved: list[Array], gradients: list[Array]
) -> Array:
    for place, n in reversed(list(enumerate(mine))):
        flow = flow * (1 - saved[place + 1] ** 2)
        gradients[n] = gradients[n] + world.matmul(rank, saved[place].T, flow, BACKWARD)
        flow = world.matmul(rank, flow, layers[n].T, BACKWARD)
    return flow
