"""Layouts that agree in everything a stage computes and keeps for its micro-batches, as the distinct ones among many.

ZeRO, its shards and an optimizer on the host multiply the layouts of a search by eight and more, but change only state, and what
moves once a step: whatever else a stage takes is priced once a pipe, and gathered from there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.kept import Kept
from parlay.estimate.local import LocalParameters, local_parameters
from parlay.estimate.shard import Shard, agreeing, distinct
from parlay.estimate.stages import Stages
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

Ints = NDArray[np.int64]

# What decides which parameters a rank holds and over which groups they move.
_MOVES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "first_layers", "last_layers", "schedule", "order")
# What decides the work of a micro-batch beside these.
_WORK = ("sp", "cp_kind", "ulysses", "micro_batch", "recompute", "recompute_layers", "tp_overlap", "ep_overlap")


@dataclasses.dataclass(frozen=True)
class Pipes:
    """The distinct layouts as far as their micro-batches go, with their stages, their layers' rows and what a rank holds."""

    layouts: Layouts
    stages: Stages
    shard: Shard
    row_of: Ints  # for each layout, its pipe
    moves: Ints  # for each pipe, its row of what moves
    moving: LocalParameters  # parameters on a rank, one row for what agrees in _MOVES

    def local(self, pipes: Ints) -> LocalParameters:
        """Return the parameters on a rank of some pipes."""
        return self.moving.take(self.moves[pipes])

    def take(self, mask: NDArray[np.bool_]) -> Pipes:
        """Return the pipes of some of the layouts; the Shard keeps the rows of all."""
        used = np.zeros(len(self.layouts), dtype=bool)
        used[self.row_of[mask]] = True
        few = np.flatnonzero(used)
        place = np.cumsum(used) - 1
        shard = dataclasses.replace(self.shard, row_of=self.shard.row_of[few])
        return Pipes(
            self.layouts.take(few), self.stages.take(few), shard, place[self.row_of[mask]], self.moves[few], self.moving
        )  # fmt: skip

    @classmethod
    def of(cls, model: ModelSpec, cluster: Cluster, workload: Workload, layouts: Layouts, stages: Stages) -> Pipes:
        """Return the pipes of `layouts`, whose stages are `stages`."""
        # Activations on the host take time where a pass is too short to hide their copies.
        first, row_of = agreeing(layouts, len(layouts), (*_MOVES, *_WORK), codes(layouts.offload_activations))
        few, held = layouts.take(first), stages.take(first)
        one, moves = agreeing(few, len(few), _MOVES)
        mine, theirs = few.take(one), held.take(one)
        columns = [getattr(mine, name) for name in _MOVES]
        moving = _MOVING.of_columns(
            (model, workload), columns, lambda: local_parameters(model, workload, mine, theirs), held.listed
        )
        return cls(few, held, Shard.of(few, workload, cluster), row_of, moves, moving)


_MOVING: Kept[LocalParameters] = Kept()


@dataclasses.dataclass(frozen=True)
class Owned:
    """The distinct layouts as far as state goes: the parameters on a rank, how ZeRO shards them, and what the host holds."""

    layouts: Layouts
    stages: Stages
    local: LocalParameters
    rows: Ints  # the first layout of each
    row_of: Ints  # for each layout, which of them it is

    @property
    def columns(self) -> list[NDArray[Any]]:
        """What tells them apart."""
        return [getattr(self.layouts, name) for name in (*_MOVES, "zero", "shard", "offload_optimizer")]

    @classmethod
    def of(cls, layouts: Layouts, stages: Stages, pipes: Pipes) -> Owned:
        """Return the distinct ones among `layouts`, whose pipes these are."""
        own = [pipes.moves[pipes.row_of], layouts.zero, layouts.shard, codes(layouts.offload_optimizer)]
        rows, row_of = distinct(own)
        return cls(layouts.take(rows), stages.take(rows), pipes.local(pipes.row_of[rows]), rows, row_of)


def codes(values: NDArray[np.float64]) -> Ints:
    """Return a whole number for each value, equal ones for equal values."""
    if not len(values) or (values == values[0]).all():
        return np.zeros(len(values), dtype=np.int64)
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
