"""Which layouts a search prices, in which order: the whole space, and what is worth trying around the best of it.

A tuned space is priced whole, and then full recompute on some layers is tried on the best grids. A wide space has too
many combinations: first everything that costs no time to save memory, then recompute and offload on those of them
that could still be among the best, the most promising first. Saving memory never makes a step shorter, so what is
left out cannot be among the rows shown (tests/search/test_wide.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from parlay.layouts.layout import Layouts
from parlay.layouts.rules import Question
from parlay.layouts.vocabulary import Recompute
from parlay.rates.interface import Rates
from parlay.search.combine import useful
from parlay.search.shortlist import GRID
from parlay.search.space import Counted, Space, join, layouts_of

Best = Callable[[], tuple[Layouts, NDArray[np.float64]] | None]  # the best rows so far with their steps, if there are any

FULL: tuple[Recompute, ...] = ("full",)


def explored(question: Question, space: Space, counted: Counted, best: Best, rates: Rates, top: int) -> Iterator[Layouts]:
    """Yield the layouts to price; `best` tells what has been found by then."""
    yield from layouts_of(question, space, counted)
    yield from _on_some_layers(question, space, counted, best)


def _on_some_layers(question: Question, space: Space, counted: Counted, best: Best) -> Iterator[Layouts]:
    """Yield full recompute on some layers for each grid of the best rows, where the space leaves this open."""
    found = best()
    if not space.refine or found is None or FULL not in space.recompute or len(useful(question, space.recompute)) < 2:
        return
    grids = np.unique(np.stack([getattr(found[0], name) for name in GRID], axis=1), axis=0)
    blocks = []
    ep_overlap = (False,) if False in space.ep_overlap else space.ep_overlap
    some = dataclasses.replace(space, recompute=(FULL,), recompute_layers=(), ep_overlap=ep_overlap)
    for tp, cp, pp, dp, ep, etp, zero in grids.tolist():
        few = dataclasses.replace(some, tp=(tp,), cp=(cp,), pp=(pp,), dp=(dp,), ep=(ep,), etp=(etp,), zero=(zero,))
        for x in layouts_of(question, few, counted):
            new = x.recompute_layers > 0
            counted.considered -= int((~new).sum())
            blocks.append(x.take(new))
    blocks = [b for b in blocks if len(b)]
    if blocks:
        yield join(blocks)
