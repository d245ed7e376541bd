"""The load that a router puts on experts and ranks, against the simulated layer and against what the odds expect."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.formulas.routing import busiest_over_mean
from parlay.simulate import experts, routing, show_experts
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


@few
@given(
    N=st.integers(1, 4),
    E=st.integers(4, 9),
    T=st.integers(1, 20),
    k=st.integers(1, 4),
    skew=st.sampled_from([0.0, 0.7, 2.0]),
    factor=st.sampled_from([None, 0.5, 1.0, 2.0]),
    seed=st.integers(0, 99),
)
def test_the_load_is_that_of_the_layer(N, E, T, k, skew, factor, seed):
    shown = show_experts.expert_load(E, N, T, k, skew=skew, capacity_factor=factor, seed=seed)
    logits = routing.skewed_logits(N * T, E, skew, np.random.default_rng(seed))
    whole = routing.route(logits, routing.top_experts(logits, k), capacity=shown.capacity)
    parts = [slice(r * T, (r + 1) * T) for r in range(N)]
    routes = [routing.Routing(whole.experts[p], whole.gates[p], whole.kept[p]) for p in parts]
    layer, world = experts.Layer([experts.Expert(np.ones((1, 1)), np.ones((1, 1)))] * E), World(N)
    experts.forward(world, [np.ones((T, 1))] * N, layer, routes)
    assert world.ledger.flops_done(experts.EXPERTS).tolist() == [4 * load for load in shown.rank_load]
    assert world.ledger.sent_bytes(experts.DISPATCH).tolist() == [8 * copies for copies in shown.rank_sent]
    assert sum(shown.wanted) == N * T * k
    if factor is not None:
        assert shown.computed == np.minimum(shown.wanted, shown.capacity).tolist()
    assert [a - b for a, b in zip(shown.wanted, shown.dropped)] == shown.computed
    assert shown.busiest_over_mean == pytest.approx(busiest_over_mean(shown.rank_load))
    assert {load + wait for load, wait in zip(shown.rank_load, shown.rank_waiting)} == {max(shown.rank_load)}


def test_a_uniform_router_is_nearly_even_and_a_skewed_one_is_not():
    even, skewed = (show_experts.expert_load(8, 8, 2000, 2, skew=skew) for skew in (0.0, 1.0))
    mean, spread = 4000, np.sqrt(16000 * (2 / 8) * (6 / 8))  # each expert is one of a token's two with odds 2 / 8
    assert np.abs(np.array(even.wanted) - mean).max() <= 3 * spread
    assert even.busiest_over_mean < 1.05 < 2 < skewed.busiest_over_mean
    assert skewed.waiting_share == pytest.approx(1 - 1 / skewed.busiest_over_mean)
    assert even.dropped_share == skewed.dropped_share == 0


def test_twice_the_mean_load_sets_the_time():
    """The lesson's quick check: with one expert a rank, the rank of the expert with twice the mean load sets the time."""
    shown = show_experts.expert_load(8, 8, 1000, 1, skew=1.0)
    assert shown.rank_load == shown.computed
    assert shown.rank_waiting[int(np.argmax(shown.wanted))] == 0


def test_refuses_what_cannot_be_routed():
    with pytest.raises(UsageError, match="top-9 of 8 experts on 4 ranks with 10 tokens each cannot be routed"):
        show_experts.expert_load(8, 4, 10, 9)
    with pytest.raises(UsageError, match="skew must be >= 0 and the capacity factor > 0, got -1 and None"):
        show_experts.expert_load(8, 4, 10, 2, skew=-1)
