"""Pairs by rank and round, counted one by one from the positions of the tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import ring_placement as placement
from parlay.simulate.placement import token_positions, visible

few = settings(max_examples=50, deadline=None)
LAYOUTS = ("contiguous", "zigzag", "striped")


def counted(layout: str, N: int, c: int) -> np.ndarray:
    """Return the visible pairs of each rank (rows) and round (columns)."""
    at = token_positions(N * c, N, layout)
    return np.array([[visible(at[r], at[(r - j) % N], causal=True).sum() for j in range(N)] for r in range(N)])


@few
@given(layout=st.sampled_from(LAYOUTS), N=st.integers(1, 6), half=st.integers(1, 4))
def test_pairs_equal_a_count(layout, N, half):
    c = 2 * half
    formula = getattr(placement, f"{layout}_round_pairs")(N, np.arange(N)[:, None], np.arange(N), c)
    assert formula.tolist() == counted(layout, N, c).tolist()
    assert formula.sum() == N * c * (N * c + 1) / 2


@few
@given(layout=st.sampled_from(LAYOUTS), N=st.integers(1, 6), half=st.integers(1, 4))
def test_the_ring_waits_for_the_slowest_of_each_round(layout, N, half):
    formula = getattr(placement, f"{layout}_ring_pairs")(N, 2 * half)
    assert formula == counted(layout, N, 2 * half).max(axis=0).sum()


def test_the_lesson_table():  # four ranks, eight tokens
    ranks, rounds = np.arange(4)[:, None], np.arange(4)
    zigzag = placement.zigzag_round_pairs(4, ranks, rounds, 2)
    contiguous = placement.contiguous_round_pairs(4, ranks, rounds, 2)
    assert zigzag.sum(axis=1).tolist() == [9, 9, 9, 9]
    assert zigzag.max(axis=0).tolist() == [3, 2, 2, 2]
    assert contiguous.sum(axis=1).tolist() == [3, 7, 11, 15]
    assert contiguous.max(axis=0).tolist() == [3, 4, 4, 4]
    assert (placement.contiguous_ring_pairs(4, 2), placement.zigzag_ring_pairs(4, 2)) == (15, 9)


def test_long_blocks():
    assert placement.contiguous_busy_share(4) == pytest.approx(0.57, abs=0.005)
    assert 1 / placement.contiguous_busy_share(4) == pytest.approx(1.75)
    c = 2**20
    assert placement.contiguous_ring_pairs(4, c) / placement.zigzag_ring_pairs(4, c) == pytest.approx(1.75, rel=1e-5)


@given(N=st.integers(1, 50))
def test_the_busy_share_is_work_over_waiting(N):
    c = 2.0**24
    work = N * c * (N * c + 1) / 2 / N
    assert placement.contiguous_busy_share(N) == pytest.approx(work / placement.contiguous_ring_pairs(N, c), rel=1e-6)


@few
@given(N=st.integers(1, 9), j=st.integers(0, 40), c=st.integers(1, 8))
def test_a_second_turn_of_the_ring_is_as_the_first(N, j, c):
    for form in (placement.zigzag_round_pairs, placement.striped_round_pairs, placement.contiguous_round_pairs):
        for rank in range(N):
            assert form(N, rank, j, 2 * c) == form(N, rank, j % N, 2 * c)
