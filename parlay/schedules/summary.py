"""What people ask of a schedule, in one row: step, bubble, memory, weights."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.schedules.memory import Held, held, versions
from parlay.schedules.timeline import Timeline


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """One schedule in numbers; stages are taken as equal p-ths of the model for the counts in flight.

    Attributes
    ----------
    step_s, busy_s
        Length of the step, and compute time of each stage in it. [s]
    bubble_share
        Mean share of the step in which a stage does not compute. [-]
    gaps_share
        The same between each stage's own first and last operation, of that span: what stays where steps follow each
        other without a common synchronisation. [-]
    in_flight
        Peak on each stage, in activations of one micro-batch on a p-th of the model, until the input gradient has run. [-]
    in_flight_kept
        The same where the weight gradient still needs all of them. [-]
    peak_operation
        The operation at which each stage first reaches `in_flight`.
    weights
        Copies of a p-th of the weights on the fullest stage: both directions of DualPipe, versions of PipeDream. [-]
    staleness
        Updates that the weights of a micro-batch are behind, at most. [-]
    """

    name: str
    stages: int
    chunks_per_stage: int
    micro_batches: int
    operations: int
    step_s: float
    busy_s: tuple[float, ...]
    bubble_share: float
    gaps_share: float
    in_flight: tuple[float, ...]
    in_flight_kept: tuple[float, ...]
    peak_operation: tuple[str, ...]
    weights: float
    staleness: int


def summarise(timeline: Timeline) -> Summary:
    """Return the row of one timeline.

    Examples
    --------
    >>> from parlay.schedules import build, simulate
    >>> s = summarise(simulate(build("1f1b", 4, 8)))
    >>> s.step_s, round(s.bubble_share, 4), s.in_flight, s.peak_operation[0]
    (33.0, 0.2727, (4.0, 3.0, 2.0, 1.0), 'F3')
    """
    s = timeline.schedule
    part = s.stages / s.chunks  # of a p-th of the model, one chunk
    freed, kept = held(s, part, weight_share=0.0), held(s, part)
    span = timeline.gaps_s + timeline.busy_s
    per_stage = [len(s.chunks_of(r)) for r in range(s.stages)]
    v = versions(s)
    return Summary(
        name=s.name,
        stages=s.stages,
        chunks_per_stage=max(per_stage),
        micro_batches=s.micro_batches,
        operations=len(s),
        step_s=timeline.step_s,
        busy_s=tuple(timeline.busy_s.tolist()),
        bubble_share=timeline.bubble_share,
        gaps_share=_mean_share(timeline.gaps_s, span),
        in_flight=tuple(freed.peak.tolist()),
        in_flight_kept=tuple(kept.peak.tolist()),
        peak_operation=_places(freed),
        weights=max(n * part * k for n, k in zip(per_stage, v.kept.tolist(), strict=True)),
        staleness=int(v.staleness.max(initial=0)),
    )


def _mean_share(some: NDArray[np.float64], of: NDArray[np.float64]) -> float:
    return float(np.divide(some, of, out=np.zeros_like(some), where=of > 0).mean())


def _places(h: Held) -> tuple[str, ...]:
    return tuple(h.schedule.label(int(i)) for i in h.peak_at)
