"""Steps, bus bandwidth and time of collectives on links of one kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.formulas import collective_times as times
from parlay.formulas import collectives
from parlay.simulate import collectives as simulated
from parlay.simulate.world import World


@given(ranks=st.integers(1, 8))
def test_steps_equal_the_messages_that_ranks_send(ranks):
    world = World(ranks)
    simulated.all_gather(world, [np.ones(2)] * ranks, operation="gather")
    simulated.all_reduce(world, [np.ones(2 * ranks)] * ranks, operation="reduce")
    assert (world.ledger.messages_sent("gather") == times.ring_all_gather_steps(ranks)).all()
    assert (world.ledger.messages_sent("reduce") == times.ring_all_reduce_steps(ranks)).all()


@given(ranks=st.integers(1, 300))
def test_a_tree_is_as_deep_as_doubling_takes(ranks):
    reached = depth = 1
    while reached < ranks:
        reached *= 2
        depth += 1
    assert times.tree_all_reduce_steps(ranks) == 2 * (depth - 1)


@given(ranks=st.integers(2, 512), n=st.floats(1, 1e12), seconds=st.floats(1e-6, 10))
def test_bus_bandwidth_is_what_a_rank_sends_over_time(ranks, n, seconds):
    sent = collectives.all_gather_sent_bytes(ranks, n)
    assert times.gather_bus_bytes_per_s(ranks, n / seconds) * seconds == pytest.approx(sent)
    sent = collectives.all_reduce_sent_bytes(ranks, n)
    assert times.all_reduce_bus_bytes_per_s(ranks, n / seconds) * seconds == pytest.approx(sent)


def test_time_adds_up_hop_by_hop():
    hops = 14
    assert times.transfer_s(1.75e9, 450e9, 5e-6, hops) == pytest.approx(sum(5e-6 + 1.75e9 / hops / 450e9 for _ in range(hops)))


def test_the_lesson_times():  # 268 MB over NVLink and over the network: 0.60 and 5.37 ms
    assert times.transfer_s(268435456, [450e9, 50e9], 0) * 1e3 == pytest.approx([0.60, 5.37], abs=0.005)
