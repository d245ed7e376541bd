"""What a rule is, what it judges against, and the words that rules share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.vocabulary import CP_KINDS, SCHEDULES, CpKind, Schedule
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, LatentAttention, ModelSpec, MoeMlp

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Question:
    """What the rules judge against."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    gpus: int

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Return the distinct query-head counts of the model's softmax attentions."""
        return tuple(
            sorted({k.mixer.heads for k in self.model.kinds.values() if isinstance(k.mixer, GroupedAttention | LatentAttention)})
        )

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """Return the distinct key/value-head counts (MLA has as many as query heads once it is expanded)."""
        found = set()
        for kind in self.model.kinds.values():
            if isinstance(kind.mixer, GroupedAttention):
                found.add(kind.mixer.kv_heads)
            elif isinstance(kind.mixer, LatentAttention):
                found.add(kind.mixer.heads)
        return tuple(sorted(found))

    @cached_property
    def experts(self) -> tuple[MoeMlp, ...]:
        """Return the distinct mixtures of experts of the model."""
        return tuple({k.mlp for k in self.model.kinds.values() if isinstance(k.mlp, MoeMlp)})


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, the reason it exists, the mask of rows that break it, and the message for one row."""

    name: str
    reason: str
    broken: Callable[[Layouts, Question], Mask]
    message: Callable[[Layout, Question], tuple[str, str]]  # what is wrong, what is allowed


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of one layout."""

    rule: str
    message: str
    hint: str
    reason: str


def divisors(n: int, *, most: int = 24) -> list[int]:
    """Return the divisors of n, ascending, at most `most` of them.

    Examples
    --------
    >>> divisors(60)
    [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]
    """
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})[:most]


def listed(values: list[int]) -> str:
    """Return the values as a message lists them."""
    return ", ".join(str(v) for v in values)


def scheduled(x: Layouts, names: Iterable[Schedule]) -> Mask:
    """Return where a layout runs one of these schedules."""
    return _among(tuple(names))[x.schedule]


def split_as(x: Layouts, kinds: Iterable[CpKind]) -> Mask:
    """Return where a layout splits the sequence in one of these ways."""
    return _kinds_among(tuple(kinds))[x.cp_kind]


@lru_cache(maxsize=64)
def _among(names: tuple[Schedule, ...]) -> Mask:
    return np.array([name in names for name in SCHEDULES])


@lru_cache(maxsize=64)
def _kinds_among(kinds: tuple[CpKind, ...]) -> Mask:
    return np.array([kind in kinds for kind in CP_KINDS])


def any_of(x: Layouts, masks: Iterable[Mask]) -> Mask:
    """Return where at least one of the masks holds."""
    found = np.zeros(len(x), bool)
    for mask in masks:
        found |= mask
    return found


def schedule_of(x: Layout) -> Schedule:
    """Return the schedule of a layout that may leave it open."""
    return x.schedule or ("interleaved" if x.vpp > 1 else "1f1b")
