"""Expert exchange and compute: printed values, and experts that really run on drawn routings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import experts
from parlay.simulate.routing import capacity_rows

few = settings(max_examples=50, deadline=None)


def test_the_lesson_mixtral_like_layer():
    moved = experts.exchange_sent_bytes(8, 2, 8192, 4096)
    assert moved == 234_881_024
    assert moved / np.array([450e9, 50e9]) * 1e3 == pytest.approx([0.52, 4.70], abs=0.005)
    work = experts.expert_flops(2, 8192, 4096, 14336)
    assert work == 5_772_436_045_824
    assert work / 989e12 * 1e3 == pytest.approx(5.84, abs=0.005)
    assert experts.expert_flops(1, 1, 4096, 14336) / 1e6 == pytest.approx(352, abs=0.5)


def test_the_lesson_ratios():
    mixtral = experts.exchange_to_compute(8, 14336, 989e12, [450e9, 50e9])
    assert mixtral == pytest.approx([0.09, 0.80], abs=0.005)
    deepseek = experts.exchange_to_compute(64, 2048, 989e12, 50e9, matrices=[2, 3])
    assert deepseek == pytest.approx([9.507, 6.338], rel=1e-4)


def test_check_yourself():
    assert experts.exchange_sent_bytes(4, 1, 1024, 2048) == 6_291_456
    assert experts.expert_capacity(1.25, 2, 8192, 8) == 2560
    assert experts.expert_copies(4, 2) == experts.experts_per_rank(128, 64) == 2


def test_the_bytes_of_a_dispatch_to_experts_all_elsewhere():  # lm-sys pull request 394: 4,096 tokens, 8 of 7,168 wide in bf16
    assert experts.dispatch_sent_bytes(1e12, 8, 4096, 7168) == pytest.approx(469_762_048)


@few
@given(x=st.integers(1, 64), K=st.integers(1, 8), T=st.integers(1, 10**4), h=st.integers(1, 10**4), e=st.sampled_from([1, 2]))
def test_an_exchange_is_both_ways(x, K, T, h, e):
    there, back = experts.dispatch_sent_bytes(x, K, T, h, e), experts.dispatch_sent_bytes(x, K, T, h, 2)
    assert experts.exchange_sent_bytes(x, K, T, h, e, 2) == pytest.approx(there + back)


@few
@given(
    x=st.integers(1, 64),
    K=st.integers(1, 8),
    T=st.integers(1, 10**4),
    h=st.integers(1, 10**4),
    f=st.integers(1, 10**5),
    F=st.floats(1e12, 1e16),
    W=st.floats(1e9, 1e12),
    y=st.sampled_from([2, 3]),
)
def test_the_ratio_is_of_the_two_times(x, K, T, h, f, F, W, y):
    exchange = experts.exchange_sent_bytes(x, K, T, h, 2, 2) / W
    compute = experts.expert_flops(K, T, h, f, y) / F
    assert experts.exchange_to_compute(x, f, F, W, y, 2) == pytest.approx(exchange / compute)


def test_uniform_routing_sends_the_formula_on_average():
    x, E, K, T, h = 8, 64, 2, 4096, 16
    rng = np.random.default_rng(1)
    home = np.repeat(np.arange(x), E // x)
    chosen = np.argsort(rng.random((T, E)), axis=1)[:, :K]
    far = (home[chosen] != 0).sum(axis=1)  # copies of each token of rank 0 that leave
    error = far.std() / np.sqrt(T) * T * h * 2
    assert abs(far.sum() * h * 2 - experts.dispatch_sent_bytes(x, K, T, h)) < 3 * error


@few
@given(factor=st.sampled_from([0.5, 1.0, 1.1, 1.25, 2.0]), K=st.integers(1, 8), T=st.integers(1, 5000), E=st.integers(1, 256))
def test_capacity_equals_that_of_the_simulated_router(factor, K, T, E):
    assert experts.expert_capacity(factor, K, T, E) == capacity_rows(T, K, E, factor)


def test_what_floating_point_adds_to_a_full_row_is_not_a_row():
    """A ten-billionth is noise, a billionth is not."""
    assert experts.expert_capacity([1 + 3e-10, 1 + 2e-9], 1, 1, 1).tolist() == [1.0, 2.0]
