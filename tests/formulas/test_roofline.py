"""The roofline against printed numbers, and against the products it is made of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import roofline

few = settings(max_examples=50, deadline=None)
rates = st.floats(1e9, 1e16)
sizes = st.integers(1, 10**5)


def test_the_balance_of_an_h200_as_elango_2026_prints_it():
    assert roofline.machine_balance(2000e12, 4.8e12) == pytest.approx(400, rel=0.05)  # printed rounded down from 417


def test_the_tokens_an_expert_needs_by_the_papers_own_expressions():
    # d = 4096, m = 1536, one byte an element, one matrix, 400 FLOP/B: 2 t d m / (d m + t (d + m)) = 400 solved by bisection.
    d, m, target = 4096.0, 1536.0, 400.0
    low, high = 1.0, 1e6
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if 2 * t * d * m / (d * m + t * (d + m)) < target else (low, t)
    assert roofline.compute_bound_rows(target, d, m, element_bytes=1) == pytest.approx(low)
    assert low == pytest.approx(243.6, abs=0.05)


@few
@given(F=rates, H=rates, scale=st.floats(0.01, 100))
def test_below_the_ridge_memory_decides_and_above_it_compute(F, H, scale):
    ridge = roofline.machine_balance(F, H)
    assert roofline.attainable_flops_per_s(ridge * scale, F, H) == pytest.approx(F * min(scale, 1))


@few
@given(F=rates, H=rates, w=st.floats(1, 1e18), n=st.floats(1, 1e15))
def test_time_is_work_over_the_attainable_rate(F, H, w, n):
    assert roofline.roofline_s(w, n, F, H) == pytest.approx(w / roofline.attainable_flops_per_s(w / n, F, H))


@few
@given(m=sizes, k=sizes, c=sizes, e=st.sampled_from([0.5, 1, 2, 4]))
def test_intensity_is_flops_over_the_three_matrices(m, k, c, e):
    moved = sum(np.prod(shape, dtype=float) * e for shape in ((m, k), (k, c), (m, c)))
    assert roofline.matmul_intensity(m, k, c, element_bytes=e) == pytest.approx(2.0 * m * k * c / moved)


@few
@given(i=st.floats(0.1, 1000), k=sizes, c=sizes, e=st.sampled_from([0.5, 1, 2, 4]))
def test_the_fewest_rows_reach_the_intensity_exactly(i, k, c, e):
    rows = roofline.compute_bound_rows(i, k, c, element_bytes=e)
    if np.isfinite(rows):
        assert roofline.matmul_intensity(rows, k, c, element_bytes=e) == pytest.approx(i, rel=1e-6)
    else:
        assert roofline.matmul_intensity(1e15, k, c, element_bytes=e) <= i * (1 + 1e-6)


def test_where_inputs_and_outputs_alone_keep_memory_busy_no_number_of_rows_suffices():
    assert roofline.compute_bound_rows(400, 512, 128, element_bytes=1) == np.inf  # 400 (1/512 + 1/128) > 2


def test_where_they_just_do_no_number_suffices_either():
    assert roofline.compute_bound_rows(1, 1, 1, element_bytes=1) == np.inf


def test_moving_without_arithmetic_takes_the_memory_time():
    assert roofline.roofline_s(0, 1e9, 1e15, 4e12) == 2.5e-4
