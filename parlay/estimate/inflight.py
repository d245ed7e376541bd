"""Micro-batches in flight on each stage, by schedule, in units of everything that the stage holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.formulas import in_flight as flight
from parlay.layouts.vocabulary import SCHEDULES

Array = NDArray[np.float64]


def in_flight(schedule: ArrayLike, stages: ArrayLike, virtual: ArrayLike, micro_batches: ArrayLike, stage: ArrayLike) -> Array:
    """Return how many micro-batches' activations stage `stage` holds at its peak; every argument broadcasts.

    A stage of `virtual` chunks holds whole micro-batches in units of all its chunks: 35 chunks of 8 are 4.375. DualPipe
    stages hold two chunks, one for each direction, of which a micro-batch passes one: p + 1 of these are (p + 1) / 2.
    """
    s, p, v, m, r = np.broadcast_arrays(*(np.asarray(x) for x in (schedule, stages, virtual, micro_batches, stage)))
    out = np.ones(s.shape)
    codes = np.flatnonzero(np.bincount(np.ravel(np.asarray(schedule))))
    if len(codes) == 1:
        return _of(SCHEDULES[codes[0]], p, v, m, r)
    for code in codes:
        at = s == code
        out[at] = _of(SCHEDULES[code], p[at], v[at], m[at], r[at])
    return out


def _of(name: str, p: Array, v: Array, m: Array, r: Array) -> Array:
    if name in ("gpipe", "bfs"):
        found = flight.gpipe_in_flight(m)
    elif name == "interleaved":
        found = flight.interleaved_in_flight_chunks(p, r, v, m) / v
    elif name == "zb-h2":
        found = flight.zb_h2_in_flight(p, r, m)
    elif name in ("zb-v", "dualpipev"):
        found = flight.zb_v_in_flight(p, m) if name == "zb-v" else flight.dualpipe_in_flight(2 * p, 2 * m) / 2
    elif name == "dualpipe":
        found = flight.dualpipe_in_flight(p, m) / 2
    elif name == "zb-h1":  # a weight gradient that waits keeps its products' inputs, nearly all that is kept: p on every stage
        found = flight.one_f_one_b_in_flight(p, np.zeros_like(r), m)
    else:  # 1f1b
        found = flight.one_f_one_b_in_flight(p, r, m)
    return np.asarray(found, dtype=np.float64)
