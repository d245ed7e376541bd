"""The closed forms of parlay.formulas.pipeline equal the exact timeline on a grid, for every schedule that has one.

Times are small whole numbers or binary fractions, so sums are exact and equality means equality.
"""

import numpy as np
import pytest

from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline
from parlay.schedules import Costs, build, simulate
from parlay.schedules.memory import held

STAGES = [*range(1, 17)]
TIMES = [
    (1, 2, 1),
    (1, 3, 1),
    (2, 3, 1),
    (4, 5, 1),
    (1, 3, 2),
    (2, 3, 2),
    (0.25, 3, 1),
    (0.5, 2, 1.5),
]  # forward, whole backward, its weight gradient


def counts(p, *, least=None, most=8):
    """Micro-batches from p to 8p: both corners, and a few between that are no multiple of p."""
    least = p if least is None else least
    return sorted({m for m in (p, p + 1, 2 * p - 1, 2 * p, 3 * p + 1, most * p) if m >= least})


def timed(name, p, m, times, **options):
    s = build(name, p, m, **options)
    return simulate(s, Costs.per_stage(s, *times))


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b(name, p):
    for m in counts(p):
        for f, b, w in TIMES:
            t = timed(name, p, m, (f, b, w))
            assert (t.idle_s == pipeline.one_f_one_b_bubble_s(p, f, b)).all()
            assert t.step_s == (m + p - 1) * (f + b)


@pytest.mark.parametrize("v", [1, 2, 4, 8])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 16])
def test_interleaved_and_breadth_first(p, v):
    for m in {p, 2 * p, 8 * p} if p * v <= 64 else {p, 2 * p}:
        for name in ("interleaved", "bfs"):
            t = timed(name, p, m, (1, 2, 1), virtual=v)
            assert (t.idle_s == pipeline.interleaved_bubble_s(p, v, 1, 2)).all(), (name, m)


@pytest.mark.parametrize("v", [3, 5, 6, 7])
def test_chunk_times_that_no_float_holds_exactly(v):
    for p in (2, 7, 16):
        t = timed("interleaved", p, 2 * p, (1, 2, 1), virtual=v)
        np.testing.assert_allclose(t.idle_s, pipeline.interleaved_bubble_s(p, v, 1, 2), rtol=1e-12)


@pytest.mark.parametrize("group", [4, 5, 8, 16])
def test_a_larger_group_leaves_the_bubble_as_it_is(group):
    t = timed("interleaved", 4, 16 if group != 5 else 20, (1, 2, 1), virtual=2, group=group)
    assert (t.idle_s == pipeline.interleaved_bubble_s(4, 2, 1, 2)).all()


@pytest.mark.parametrize("p", STAGES)
def test_zero_bubble_h1(p):
    for m in counts(p):
        for f, b, w in TIMES:
            assert (timed("zb-h1", p, m, (f, b, w)).idle_s == pipeline.zb_h1_bubble_s(p, f, b, w)).all()


@pytest.mark.parametrize("p", STAGES)
def test_zero_bubble_h2_within_each_stage(p):
    for m in counts(p, least=2 * p - 1):
        for f, b, w in TIMES:
            assert timed("zb-h2", p, m, (f, b, w)).gaps_s.max() == pipeline.zb_h2_bubble_s(p, f, b, w)


@pytest.mark.parametrize("p", STAGES)
def test_zero_bubble_v_within_each_stage(p):
    for m in counts(p, least=2 * p - 1):
        assert timed("zb-v", p, m, (1, 2, 1)).gaps_s.max() == pipeline.zb_v_bubble_s(p, 1, 2, 1) == 0
        for times in TIMES:
            assert timed("zb-v", p, m, times).gaps_s.max() >= pipeline.zb_v_bubble_s(p, *times) - 1e-12


@pytest.mark.parametrize("p", [2, 4, 6, 8, 12, 16])
def test_dualpipe(p):
    for m in (2 * p, 2 * p + 2, 4 * p, 8 * p):
        for times in [t for t in TIMES if t[0] >= t[1] - t[2]]:
            assert (timed("dualpipe", p, m, times).idle_s == pipeline.dualpipe_bubble_s(p, *times)).all()


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 16])
def test_dualpipe_v_is_dualpipe_of_twice_the_stages(p):
    for m in (2 * p, 2 * p + 1, 4 * p, 8 * p):
        assert (timed("dualpipev", p, m, (1, 2, 1)).idle_s == pipeline.dualpipe_bubble_s(2 * p, 0.5, 1, 0.5)).all()


@pytest.mark.parametrize("p", STAGES)
def test_in_flight(p):
    stage = np.arange(p)
    for m in counts(p):
        assert (held(build("1f1b", p, m)).peak == flight.one_f_one_b_in_flight(p, stage, m)).all()
        assert (held(build("gpipe", p, m)).peak == flight.gpipe_in_flight(m)).all()
        assert (held(build("zb-h1", p, m), weight_share=0).peak == flight.one_f_one_b_in_flight(p, stage, m)).all()
        assert (held(build("zb-h2", p, m), weight_share=0).peak == flight.zb_h2_in_flight(p, stage, m)).all()
        v = held(build("zb-v", p, m)).peak
        assert v.max() == 2 * flight.zb_v_in_flight(p, m)
        assert m < 2 * p - 1 or (v == 2 * p).all()
    for m in (2 * p, 8 * p):
        assert (held(build("dualpipev", p, m)).peak == np.minimum(2 * m, flight.dualpipe_in_flight(2 * p, 2 * m))).all()
        if p % 2 == 0:
            assert (held(build("dualpipe", p, m)).peak == flight.dualpipe_in_flight(p, m)).all()


@pytest.mark.parametrize("v", [1, 2, 3, 8])
@pytest.mark.parametrize("p", [1, 2, 5, 16])
def test_chunks_in_flight(p, v):
    for m in (p, 2 * p, 8 * p):
        want = flight.interleaved_in_flight_chunks(p, np.arange(p), v, m)
        assert (held(build("interleaved", p, m, virtual=v)).peak == want).all()
        assert (held(build("bfs", p, m, virtual=v)).peak == m * v).all()


@pytest.mark.parametrize("p", [2, 4, 8])
def test_deferred_weight_gradients_keep_every_stage_as_full_as_the_first(p):
    m = 4 * p
    assert (held(build("zb-h1", p, m)).peak == p).all()
    assert (held(build("zb-h2", p, m)).peak == 2 * p - 1).all()
