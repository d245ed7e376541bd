"""Which layers go to which stage: contiguous splits that balance the pipeline, timed exactly, as frameworks can say them.

The units are what cannot be cut: embedding, layers of any kinds, multi-token-prediction layers, loss with the head.
First the split with the smallest largest chunk (dynamic programming, so no contiguous split has a smaller one), beside
the splits that frameworks make on their own; the timeline then chooses, and single layers move while that helps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.errors import UsageError
from parlay.layouts.split import chunk_sizes
from parlay.schedules.build import TWO_CHUNKS, build
from parlay.schedules.costs import Costs
from parlay.schedules.megatron import EMBEDDING, LAYER, LOSS, MTP, SYMBOLS, torchtitan_sizes
from parlay.schedules.schedule import Schedule
from parlay.schedules.timeline import simulate

Array = NDArray[np.float64]
ROUNDING = 1e-9  # two sums of the same layers in another order differ by less
MOST_OPERATIONS_TIMED = 600_000  # about half a second of timelines for one plan


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a model that stays whole.

    Attributes
    ----------
    symbol
        E embedding, t decoder layer, m multi-token-prediction layer, L loss and output head. [-]
    forward_s, backward_s, weight_s
        Forward, whole backward and its weight-gradient part, of one micro-batch. [s]
    """

    symbol: str
    forward_s: float
    backward_s: float
    weight_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward_s + self.backward_s


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A planned split of a model over the chunks of a pipeline.

    Attributes
    ----------
    sizes
        Units of each chunk, in model order. [-]
    chunks
        The same as letters, see parlay.schedules.megatron. [-]
    stages
        Pipeline stages. [-]
    step_s
        Exact time of a step of `micro_batches`. [s]
    busiest_s
        Compute time of the busiest stage for one micro-batch. [s]
    origin
        Where the split comes from: "balanced", "even", "torchtitan", with " + moves" where layers were moved on.
    tried
        Splits that were timed. [-]
    """

    sizes: tuple[int, ...]
    chunks: tuple[str, ...]
    stages: int
    micro_batches: int
    step_s: float
    busiest_s: float
    origin: str
    tried: int

    @property
    def layers(self) -> list[int]:
        """Decoder layers of each chunk."""
        return [c.count(LAYER) for c in self.chunks]


def units_of(
    layers: Sequence[Unit] | int,
    *,
    embedding: tuple[float, float, float] = (0.0, 0.0, 0.0),
    loss: tuple[float, float, float] = (0.0, 0.0, 0.0),
    mtp: Sequence[Unit] = (),
    layer: tuple[float, float, float] = (1.0, 2.0, 1.0),
) -> list[Unit]:
    """Return embedding, layers, multi-token-prediction layers and loss as units, from (forward, backward, weight) seconds."""
    middle = [Unit(LAYER, *layer)] * layers if isinstance(layers, int) else list(layers)
    return [Unit(EMBEDDING, *embedding), *middle, *mtp, Unit(LOSS, *loss)]


def balanced_sizes(seconds: ArrayLike, chunks: int) -> list[int]:
    """Return the contiguous split whose largest chunk is smallest; among those, the one whose chunks differ least.

    Parameters
    ----------
    seconds : array_like
        Time of every unit, in model order. [s]
    chunks : int
        Pieces to make, each of at least one unit. [-]

    Returns
    -------
    list of int
        Units of every chunk. [-]

    Raises
    ------
    UsageError
        If there are fewer units than chunks.

    Examples
    --------
    >>> balanced_sizes([2, 1, 1, 1, 3], 3)
    [1, 3, 1]
    """
    w = np.asarray(seconds, dtype=np.float64)
    n = len(w)
    if n < chunks:
        raise UsageError(f"{n} units do not fill {chunks} chunks", where="split", hint="fewer stages or virtual stages")
    before = np.concatenate([[0.0], np.cumsum(w)])
    size = before[None, :] - before[:, None]  # size[i, j]: units i .. j - 1
    size[np.arange(n + 1)[:, None] >= np.arange(n + 1)[None, :]] = np.inf
    largest = np.where(np.arange(n + 1) == 0, 0.0, np.inf)
    for _ in range(chunks):
        largest = np.maximum(largest[:, None], size).min(axis=0)
    allowed = size <= largest[n] * (1 + ROUNDING)
    with np.errstate(invalid="ignore"):
        square = np.where(allowed, np.square(size), np.inf)
    spread = np.where(np.arange(n + 1) == 0, 0.0, np.inf)
    cuts = []
    for _ in range(chunks):
        every = spread[:, None] + square
        cuts.append(every.argmin(axis=0))
        spread = every.min(axis=0)
    sizes, end = [], n
    for cut in reversed(cuts):
        sizes.append(end - int(cut[end]))
        end = int(cut[end])
    return sizes[::-1]


def plan_split(
    units: Sequence[Unit],
    schedule: str,
    stages: int,
    micro_batches: int,
    *,
    virtual: int = 1,
    group: int | None = None,
    transfer_s: float = 0.0,
    slowdown: ArrayLike = 1.0,
) -> Split:
    """Return the split of `units` over the chunks of a schedule with the shortest step that was found.

    Parameters
    ----------
    units : sequence of Unit
        The model in order. [-]
    schedule : str
        Name of the schedule, see parlay.schedules.build. [-]
    stages, micro_batches, virtual, group
        As for parlay.schedules.build. [-]
    transfer_s : float, default 0
        Transfer between two chunks on different stages. [s]
    slowdown : array_like, default 1
        Factor on the time of each stage. [-]

    Returns
    -------
    Split
        The split, its exact step time, and where it comes from. [s]

    Notes
    -----
    The balanced split is optimal in its largest chunk. The moves that follow are a local search on the exact step time
    and stop after about half a second of timelines, so a better split may exist; none of the frameworks' own is better.

    Examples
    --------
    Llama 3 405B: 126 layers over 16 stages, embedding and head each worth about one layer, come out as Meta trained it:

    >>> s = plan_split(units_of(126, embedding=(1, 2, 1), loss=(1, 2, 1)), "1f1b", 16, 64)
    >>> s.layers == [7] + [8] * 14 + [7], s.step_s
    (True, 1896.0)
    """
    _check_units(units)
    timer = _Timer(units, build(schedule, stages, micro_batches, virtual=virtual, group=group), transfer_s, slowdown)
    best: tuple[float, tuple[int, ...], str] | None = None
    for origin, sizes in _candidates(units, timer.schedule, 2 if schedule in TWO_CHUNKS else virtual):
        found = (timer.step_s(sizes), tuple(sizes), origin)
        best = found if best is None or found[0] < best[0] * (1 - ROUNDING) else best
    assert best is not None
    step, chosen, origin = _improved(timer, best)
    letters = "".join(u.symbol for u in units)
    ends = np.cumsum(chosen)
    chunks = tuple(letters[e - n : e] for e, n in zip(ends, chosen, strict=True))
    return Split(chosen, chunks, stages, micro_batches, step, timer.busiest_s(chosen), origin, timer.tried)


def split_costs(units: Sequence[Unit], sizes: Sequence[int], schedule: Schedule, **options: ArrayLike) -> Costs:
    """Return the costs of a split, for parlay.schedules.simulate; `options` as for Costs.of."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    f, b, w = (np.add.reduceat([getattr(u, name) for u in units], starts) for name in ("forward_s", "backward_s", "weight_s"))
    return Costs.of(schedule, f, b, w, **options)  # type: ignore[arg-type]


def _check_units(units: Sequence[Unit]) -> None:
    for i, u in enumerate(units):
        if len(u.symbol) != 1 or u.symbol not in SYMBOLS:
            raise UsageError(f"unit {i} is '{u.symbol[:20]}', not one of E, t, m, L", where="split")
        if not (np.isfinite([u.forward_s, u.backward_s, u.weight_s]).all() and min(u.forward_s, u.backward_s, u.weight_s) >= 0):
            raise UsageError(f"unit {i} ({u.symbol}) has a time that is not finite and zero or more", where="split")


class _Timer:
    """Times splits under one schedule, and counts how many."""

    def __init__(self, units: Sequence[Unit], schedule: Schedule, transfer_s: float, slowdown: ArrayLike) -> None:
        self.units, self.schedule = units, schedule
        self.options: dict[str, ArrayLike] = {"transfer_s": transfer_s, "slowdown": slowdown}
        self.tried = 0

    def step_s(self, sizes: Sequence[int]) -> float:
        self.tried += 1
        return simulate(self.schedule, split_costs(self.units, sizes, self.schedule, **self.options)).step_s

    def busiest_s(self, sizes: Sequence[int]) -> float:
        costs = split_costs(self.units, sizes, self.schedule, **self.options)
        whole = np.zeros(self.schedule.stages)
        for row in self.schedule.device:
            whole += np.bincount(row, costs.forward_s + costs.backward_s, minlength=self.schedule.stages)
        return float((whole * costs.slowdown / len(self.schedule.device)).max())

    @property
    def spent(self) -> bool:
        return (self.tried + 1) * len(self.schedule) > MOST_OPERATIONS_TIMED


def _candidates(units: Sequence[Unit], schedule: Schedule, virtual: int) -> list[tuple[str, list[int]]]:
    """Return the splits to time: the balanced one, and those that frameworks make from layer counts."""
    found = [("balanced", balanced_sizes([u.seconds for u in units], schedule.chunks))]
    symbols = [u.symbol for u in units]
    layers, extra = symbols.count(LAYER), symbols.count(MTP)
    plain = symbols == [EMBEDDING] + [LAYER] * layers + [MTP] * extra + [LOSS]
    if not plain or layers < schedule.chunks:
        return found
    for origin, sizes in (
        ("even", chunk_sizes(layers, schedule.chunks // virtual, virtual, tail=1 + extra)),
        ("torchtitan", torchtitan_sizes(layers, schedule.chunks)),
    ):
        if min(sizes) >= 0 and len(sizes) == schedule.chunks:
            sizes = list(sizes)
            sizes[0] += 1
            sizes[-1] += 1 + extra
            if min(sizes) > 0:
                found.append((origin, sizes))
    return found


def _improved(timer: _Timer, best: tuple[float, tuple[int, ...], str]) -> tuple[float, tuple[int, ...], str]:
    """Return the split after moving single units between neighbours while the exact step gets shorter."""
    step, sizes, origin = best
    moved = True
    while moved and not timer.spent:
        moved = False
        for cut in range(len(sizes) - 1):
            for change in (1, -1):
                if timer.spent:
                    break
                trial = list(sizes)
                trial[cut] += change
                trial[cut + 1] -= change
                if min(trial) < 1:
                    continue
                seconds = timer.step_s(trial)
                if seconds < step * (1 - ROUNDING):
                    step, sizes, moved = seconds, tuple(trial), True
    return step, sizes, origin if sizes == best[1] else f"{origin} + moves"
