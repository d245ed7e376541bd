"""Compute beside a transfer: Galvatron's own case, a clock that runs both in small steps, and what has to hold of any pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas.contention import overlapped_s

few = settings(max_examples=50, deadline=None)
times = st.floats(1e-6, 1e3)
factors = st.floats(1.0, 4.0)


def clock(compute, transfer, a, b, ticks=20_000):
    """Run both down tick by tick, each slowed while the other has work left."""
    tick = (compute + transfer) * max(a, b) / ticks
    now, work = 0.0, [compute, transfer]
    while max(work) > 0:
        both = min(work) > 0
        work = [left - tick / (slow if both else 1.0) for left, slow in zip(work, (a, b))]
        now += tick
    return now


@pytest.mark.parametrize(("compute", "transfer", "a", "b"), [(1.0, 0.5, 1.25, 1.1), (0.3, 2.0, 1.24, 1.11), (1.0, 1.0, 3.0, 2.5), (2.0, 0.0, 2.0, 2.0)])  # fmt: skip
def test_a_clock_takes_as_long(compute, transfer, a, b):
    assert overlapped_s(compute, transfer, a, b) == pytest.approx(clock(compute, transfer, a, b), rel=1e-3)


@few
@given(c=times, t=times)
def test_without_contention_the_longer_hides_the_shorter(c, t):
    assert overlapped_s(c, t) == pytest.approx(max(c, t))


@few
@given(c=times, t=times, a=factors, b=factors)
def test_swapping_compute_and_transfer_changes_nothing(c, t, a, b):
    assert overlapped_s(c, t, a, b) == pytest.approx(overlapped_s(t, c, b, a))


@few
@given(c=times, t=times, a=factors, b=factors, more=st.floats(1.0, 2.0))
def test_it_lies_between_the_longer_alone_and_both_slowed_and_grows_with_either_factor(c, t, a, b, more):
    found = overlapped_s(c, t, a, b)
    assert max(c, t) * (1 - 1e-12) <= found <= max(a * c, b * t) * (1 + 1e-12)
    assert overlapped_s(c, t, a * more, b) >= found * (1 - 1e-12)
    assert overlapped_s(c, t, a, b * more) >= found * (1 - 1e-12)


def test_at_factors_of_two_nothing_is_won():
    assert overlapped_s(3.0, [1.0, 3.0], 2.0, 2.0).tolist() == [4.0, 6.0]
    assert np.all(overlapped_s(3.0, [1.0, 3.0], 3.0, 3.0) > [4.0, 6.0])
