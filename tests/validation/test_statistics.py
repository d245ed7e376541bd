"""Statistics against small tables computed by hand."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parlay.validation.statistics import errors_of, naive_seconds, regret, spearman

TIMES = st.lists(st.floats(0.1, 100), min_size=3, max_size=12, unique=True)


def test_errors_by_hand():
    e = errors_of("x", [-0.4, -0.1, 0.0, 0.1, 0.2])
    assert (e.count, e.median, e.bias, e.worst) == (5, 0.1, 0.0, -0.4)
    assert e.mean == pytest.approx(0.16)
    assert e.p90 == pytest.approx(0.2 + 0.6 * 0.2)  # 3.6 of the way along 0, .1, .1, .2, .4


def test_no_errors_is_an_error():
    with pytest.raises(ValueError, match="no errors"):
        errors_of("x", [])


def test_spearman_by_hand():
    # ranks 0 1 2 3 and 1 0 2 3: 1 - 6 (1 + 1) / (4 x 15) = 0.8
    assert spearman([1, 2, 3, 4], [20, 10, 30, 40]) == pytest.approx(0.8)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)  # ties share their mean rank
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def test_regret_by_hand():
    assert regret([3.0, 1.0, 2.0], [10.0, 12.0, 11.0]) == pytest.approx(0.2)
    assert regret([1.0, 2.0], [5.0, 6.0]) == 0


def test_naive_by_hand():
    # group a: 10/1/1 = 10, 20/2/2 = 5, 30/1/1 = 30 FLOP/s and GPU, median 10; group b stands alone
    assert naive_seconds([10, 20, 30, 8], [1, 2, 1, 2], [1, 2, 1, 4], ["a", "a", "a", "b"]) == [1.0, 1.0, 3.0, 4.0]


@settings(max_examples=50, deadline=None)
@given(TIMES)
def test_a_perfect_prediction_has_no_regret_and_rank_one(times):
    assert regret(times, times) == 0
    assert spearman(times, times) == pytest.approx(1)
    assert spearman([-t for t in times], times) == pytest.approx(-1)


@settings(max_examples=50, deadline=None)
@given(TIMES, st.floats(0.5, 2))
def test_ranks_do_not_see_a_common_factor(times, factor):
    shifted = [t * factor for t in times]
    assume(len(set(shifted)) == len(set(times)))  # two times a rounding apart may become one
    assert spearman(times, shifted) == pytest.approx(1)
    assert errors_of("x", [s / t - 1 for s, t in zip(shifted, times, strict=True)]).mean == pytest.approx(abs(factor - 1))
