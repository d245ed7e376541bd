"""A pipeline schedule as data: for every stage the ordered operations it runs.

A model is cut into chunks, counted in model order. `device[direction, chunk]` says which stage holds a chunk: one
direction for all schedules but DualPipe, where micro-batches enter from both ends. Sends and receives are implied: an
operation on another stage than the one it waits for receives what that one sends (see Schedule.waits_for).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parlay.errors import UsageError
from parlay.schedules.turns import Turns, turns_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FORWARD, BACKWARD, INPUT, WEIGHT = 0, 1, 2, 3  # BACKWARD is both gradients at once; INPUT and WEIGHT are its two parts
LETTERS = "FBIW"
MOST_OPERATIONS = 4_000_000  # a guard against typing errors; one operation takes about 100 bytes while it is timed


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The operations of every stage in the order the stage runs them, as flat arrays cut by `offset`.

    Attributes
    ----------
    name
        The schedule's name.
    micro_batches
        Micro-batches per step.
    device
        Stage that holds each chunk, shape (directions, chunks).
    direction
        Which row of `device` each micro-batch takes, shape (micro_batches,).
    kind, micro_batch, chunk
        FORWARD, BACKWARD, INPUT or WEIGHT; micro-batch; chunk in model order. One entry an operation.
    together
        True where an operation runs at the same time as the next one (DualPipe's overlapped forward and backward).
    offset
        Operations of stage s are offset[s]:offset[s + 1].
    update_every
        Micro-batches between two updates of the weights; 0 = once, when the pipeline is empty.
    double_buffered
        True where micro-batches read the weights of one update before the newest (PipeDream-2BW).
    """

    name: str
    micro_batches: int
    device: Ints
    direction: Ints
    kind: NDArray[np.int8]
    micro_batch: Ints
    chunk: Ints
    together: Bools
    offset: Ints
    update_every: int = 0
    double_buffered: bool = False

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def stages(self) -> int:
        """Pipeline stages (devices)."""
        return len(self.offset) - 1

    @property
    def chunks(self) -> int:
        """Pieces the model is cut into."""
        return int(self.device.shape[1])

    @cached_property
    def stage(self) -> Ints:
        """The stage that runs each operation."""
        return np.repeat(np.arange(self.stages), np.diff(self.offset))

    def operations(self, stage: int) -> slice:
        """Return where the operations of `stage` lie in the flat arrays."""
        return slice(int(self.offset[stage]), int(self.offset[stage + 1]))

    def chunks_of(self, stage: int) -> list[int]:
        """Return the chunks that `stage` holds, in model order."""
        return sorted({int(c) for c in np.nonzero(self.device == stage)[1]})

    def label(self, index: int) -> str:
        """Return operation `index` as people write it: F3, or F3.1 with the stage's second chunk."""
        stage = int(np.searchsorted(self.offset, index, side="right")) - 1
        return operation_name(int(self.kind[index]), int(self.micro_batch[index]), int(self.chunk[index]), self.chunks_of(stage))

    def index_of(self) -> Ints:
        """Return where each operation lies, shape (kinds, micro_batches, chunks); -1 where there is none."""
        table = np.full((4, self.micro_batches, self.chunks), -1, dtype=np.int64)
        table[self.kind, self.micro_batch, self.chunk] = np.arange(len(self))
        return table

    def waits_for(self) -> Ints:
        """Return the operation each one receives its input from, or -1: the forward of the chunk before, the backward
        of the chunk behind. The first forward, the last chunk's backward and weight gradients need only their own stage.
        """
        return self._waits

    @cached_property
    def _waits(self) -> Ints:
        table = self.index_of()
        gradient = np.where(table[INPUT] >= 0, table[INPUT], table[BACKWARD])
        out = np.full(len(self), -1, dtype=np.int64)
        forward = (self.kind == FORWARD) & (self.chunk > 0)
        out[forward] = table[FORWARD, self.micro_batch[forward], self.chunk[forward] - 1]
        backward = ((self.kind == BACKWARD) | (self.kind == INPUT)) & (self.chunk < self.chunks - 1)
        out[backward] = gradient[self.micro_batch[backward], self.chunk[backward] + 1]
        return out

    @cached_property
    def turns(self) -> Turns:
        """The order in which operations can be timed."""
        return turns_of(self._waits, self.together, self.offset)


def operation_name(kind: int, micro_batch: int, chunk: int, held: Sequence[int]) -> str:
    """Return F3, or F3.1 where the stage holds several chunks and this is its second."""
    part = f".{list(held).index(chunk)}" if len(held) > 1 and chunk in held else ""
    return f"{LETTERS[kind]}{micro_batch}{part}"


class Stage:
    """Collects the operations of one stage while a schedule is written down."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.micro_batch: list[int] = []
        self.chunk: list[int] = []
        self.together: list[bool] = []

    def add(self, kind: int, micro_batch: int, chunk: int, together: bool = False) -> None:
        """Append one operation."""
        self.kind.append(kind)
        self.micro_batch.append(micro_batch)
        self.chunk.append(chunk)
        self.together.append(together)


Columns = tuple[Ints, Ints, Ints, Bools]  # kind, micro_batch, chunk, together of one stage


def assemble(
    name: str,
    micro_batches: int,
    device: Ints,
    stages: Iterable[Stage | Columns],
    *,
    direction: Ints | None = None,
    update_every: int = 0,
    double_buffered: bool = False,
) -> Schedule:
    """Return the schedule made of each stage's operations."""
    columns = [(s.kind, s.micro_batch, s.chunk, s.together) if isinstance(s, Stage) else s for s in stages]
    sizes = [len(c[0]) for c in columns]

    def flat(i: int) -> Ints:
        return np.concatenate([np.asarray(c[i], dtype=np.int64) for c in columns])

    return Schedule(
        name=name,
        micro_batches=micro_batches,
        device=np.atleast_2d(device),
        direction=np.zeros(micro_batches, dtype=np.int64) if direction is None else direction,
        kind=flat(0).astype(np.int8),
        micro_batch=flat(1),
        chunk=flat(2),
        together=flat(3).astype(np.bool_),
        offset=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        update_every=update_every,
        double_buffered=double_buffered,
    )  # fmt: skip


def looped(stages: int, virtual: int = 1) -> Ints:
    """Return the placement of interleaved schedules: chunk c on stage c mod p."""
    return np.arange(stages * virtual, dtype=np.int64) % stages


def v_shaped(stages: int) -> Ints:
    """Return the placement of V-shaped schedules: down the stages and back up."""
    down = np.arange(stages, dtype=np.int64)
    return np.concatenate([down, down[::-1]])


def check_size(stages: int, micro_batches: int, virtual: int = 1, *, where: str = "schedule") -> None:
    """Raise UsageError for counts below one, or so large that the answer would not fit in memory."""
    for key, value in (("stages", stages), ("micro-batches", micro_batches), ("virtual", virtual)):
        if value < 1:
            raise UsageError(f"{key} must be 1 or more, got {value}", where=where)
    operations = 2 * stages * micro_batches * virtual
    if operations > MOST_OPERATIONS:
        raise UsageError(
            f"{stages} stages x {virtual} chunks x {micro_batches} micro-batches make over {operations:,} operations, "
            f"more than the {MOST_OPERATIONS:,} that are timed",
            where=where,
            hint="the closed forms of parlay.formulas.pipeline have no such limit",
        )
