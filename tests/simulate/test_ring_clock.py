"""The clock of a ring gives the closed forms of its time, its waiting and its critical path."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import ring_attention, ring_placement
from parlay.simulate import show
from parlay.simulate.ring_clock import RingClock, run_ring

few = settings(max_examples=25, deadline=None)
FORMULAS = {
    "contiguous": (ring_placement.contiguous_round_pairs, ring_placement.contiguous_ring_pairs),
    "zigzag": (ring_placement.zigzag_round_pairs, ring_placement.zigzag_ring_pairs),
    "striped": (ring_placement.striped_round_pairs, ring_placement.striped_ring_pairs),
}


@few
@given(N=st.integers(1, 7), compute=st.integers(0, 40), transfer=st.integers(0, 40))
def test_equal_rounds(N, compute, transfer):
    clock = run_ring([[compute] * N] * N, transfer)
    assert clock.finished_s == [ring_attention.ring_forward_s(N, compute, transfer)] * N
    assert clock.waited_s == [ring_attention.ring_exposed_s(N, compute, transfer)] * N


@few
@given(N=st.integers(1, 6), half=st.integers(1, 9), layout=st.sampled_from(list(FORMULAS)))
def test_pairs_of_each_round_and_on_the_critical_path(N, half, layout):
    c = 2 * half
    shown = show.ring_rounds(N, N * c, layout=layout, list_pairs=False)
    each, whole_ring = FORMULAS[layout]
    for n, shown_round in enumerate(shown.rounds):
        assert shown_round.work == [each(N, r, n, c) for r in range(N)]
    longest = whole_ring(N, c)
    assert shown.time == longest
    # With free transfers nobody has to keep step: the clock's last rank takes as long as all rounds in lockstep.
    assert run_ring([each.work for each in shown.rounds], 0).ring_s == longest


@pytest.mark.parametrize("N", [1, 2, 5])
def test_busy_share_of_long_blocks(N):
    shown = show.ring_rounds(N, N * 4096, layout="contiguous", list_pairs=False)
    assert 1 - shown.idle_share == pytest.approx(ring_placement.contiguous_busy_share(N), rel=1e-3)


def test_a_slow_rank_keeps_its_neighbours_waiting():
    """Worked out by hand: rank 1 is slow in round 0, so that its buffers free and its own block leaves only at 10."""
    work = [[1, 10, 1], [1, 1, 1], [1, 1, 1]]
    assert run_ring(work, 2) == RingClock(finished_s=[5.0, 13.0, 13.0], waited_s=[2.0, 1.0, 10.0], ring_s=13.0)
