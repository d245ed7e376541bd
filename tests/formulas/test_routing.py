"""How far tokens go and how uneven loads are, against an enumeration of all choices and against drawn ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import routing
from parlay.simulate.routing import top_experts_of_nodes

few = settings(max_examples=50, deadline=None)


@few
@given(M=st.integers(1, 4), P=st.integers(1, 3), K=st.integers(1, 4))
def test_nodes_equal_the_mean_over_all_choices(M, P, K):
    K = min(K, M * P)
    reached = [len({e // P for e in chosen}) for chosen in itertools.combinations(range(M * P), K)]
    assert routing.nodes_reached(M, P, K, M) == pytest.approx(np.mean(reached))
    assert routing.nodes_reached(M, P, K, M + 3) == pytest.approx(np.mean(reached))  # no more nodes than there are


@few
@given(M=st.integers(2, 4), P=st.integers(1, 3), K=st.integers(1, 4), most=st.integers(1, 3))
def test_a_limit_is_the_same_as_fewer_nodes(M, P, K, most):
    K, most = min(K, min(most, M) * P), min(most, M)
    assert routing.nodes_reached(M, P, K, most) == pytest.approx(routing.nodes_reached(most, P, K, most))
    assert routing.nodes_reached(M, P, K, most) <= min(most, K) + 1e-12


def test_a_limited_router_reaches_at_most_what_is_allowed_and_close_to_the_formula():
    rng = np.random.default_rng(0)
    chosen = top_experts_of_nodes(rng.standard_normal((4000, 64)), 8, 8, 4)
    reached = np.array([len(set(row // 8)) for row in chosen])
    assert reached.max() <= 4
    # The router prefers nodes with high scores, so its choices spread a little differently than uniform ones.
    assert reached.mean() == pytest.approx(float(routing.nodes_reached(8, 8, 8, 4)), rel=0.1)


@few
@given(M=st.integers(1, 8), T=st.integers(1, 100), h=st.integers(1, 100), e=st.sampled_from([1, 2]))
def test_a_token_that_goes_everywhere_crosses_to_all_other_nodes(M, T, h, e):
    assert routing.node_dispatch_sent_bytes(M, M, T, h, e) == pytest.approx((M - 1) * T * h * e)


def test_the_busiest_of_eight():  # the lesson: one GPU with twice the mean load
    assert routing.busiest_over_mean([2, 1, 1, 1, 1, 1, 1, 0]) == 2
    assert routing.busiest_over_mean([0.0, 0.0]) == 1


@few
@given(loads=st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_waiting_for_the_busiest_costs_its_share_of_everybody(loads):
    u = np.array(loads)
    idle = sum(u.max() - each for each in loads)
    assert routing.busiest_over_mean(u) == pytest.approx((u.sum() + idle) / u.sum())


def test_the_loss_of_uniform_routing_is_its_factor():
    assert routing.load_balancing_loss(0.01, [1 / 8] * 8, [1 / 8] * 8) == pytest.approx(0.01, rel=1e-12)


@few
@given(E=st.integers(1, 16), seed=st.integers(0, 100))
def test_the_loss_grows_by_the_covariance_of_load_and_gate(E, seed):
    rng = np.random.default_rng(seed)
    f, p = (x / x.sum() for x in rng.random((2, E)) + 1e-3)
    covariance = np.mean((f - f.mean()) * (p - p.mean()))
    assert routing.load_balancing_loss(1.0, f, p) == pytest.approx(1 + E * E * covariance)


def test_several_losses_at_once():
    f, p = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]), np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
    got = routing.load_balancing_loss([1.0, 2.0], f, p)
    assert got == pytest.approx([3 * (0.1 + 0.075 + 0.125), 2 * 3 * 0.6])


def test_the_busiest_of_several_layers():
    assert routing.busiest_over_mean([[1, 1, 4], [3, 0, 0]]).tolist() == [2.0, 3.0]
