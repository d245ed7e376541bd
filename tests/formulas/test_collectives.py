"""What collectives send, against the field's own numbers and against ranks that exchange real arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import collectives
from parlay.simulate import collectives as simulated
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def test_the_size_of_an_all_gather_is_that_of_the_gathered_array():  # aliyun/SimAI issue 74
    assert collectives.all_gather_sent_bytes(256, 1.6e9) == 1_593_750_000
    assert collectives.all_gather_sent_bytes(256, 1.6e9 * 256) == pytest.approx(4.08e11)  # the mistake: 256 times as much


def test_four_ranks_reduce_eight_tokens_of_width_sixteen():  # the lesson's code for sequence parallelism: 384 bytes both ways
    n = 8 * 16 * 2
    split = collectives.reduce_scatter_sent_bytes(4, n) + collectives.all_gather_sent_bytes(4, n)
    assert collectives.all_reduce_sent_bytes(4, n) == 384 == split


@few
@given(ranks=st.integers(1, 8), shard=st.integers(1, 5))
def test_bytes_equal_those_that_ranks_send(ranks, shard):
    world = World(ranks)
    whole = [np.arange(float(ranks * shard)) for _ in range(ranks)]
    n = whole[0].nbytes
    simulated.all_gather(world, [np.ones(shard)] * ranks, operation="gather")
    simulated.reduce_scatter(world, whole, operation="scatter")
    simulated.all_reduce(world, whole, operation="reduce")
    simulated.all_to_all(world, [np.split(a, ranks) for a in whole], operation="swap")
    simulated.broadcast(world, whole[0], operation="cast")
    sent = world.ledger.sent_bytes
    assert sent("gather") == pytest.approx(collectives.all_gather_sent_bytes(ranks, n))
    assert sent("scatter") == pytest.approx(collectives.reduce_scatter_sent_bytes(ranks, n))
    assert sent("reduce") == pytest.approx(collectives.all_reduce_sent_bytes(ranks, n))
    assert sent("swap") == pytest.approx(collectives.all_to_all_sent_bytes(ranks, n))
    assert sent("cast").max() == pytest.approx(collectives.broadcast_sent_bytes(ranks, n))


def tree_bytes(ranks: int, n: float) -> np.ndarray:
    """Return what each rank sends when two binary trees, one the mirror of the other, reduce and spread half of n each."""
    sent = np.zeros(ranks)
    for mirror in (False, True):
        for child in range(1, ranks):  # the heap's edges: up in the reduction, down in the broadcast
            for rank in (child, (child - 1) // 2):
                sent[ranks - 1 - rank if mirror else rank] += n / 2
    return sent


@given(ranks=st.integers(2, 64))
def test_the_mean_over_two_trees_is_that_of_a_ring(ranks):
    sent = tree_bytes(ranks, 1.0)
    assert sent.mean() == pytest.approx(collectives.all_reduce_sent_bytes(ranks, 1.0))
    assert sent.max() <= 2.0 + 1e-12


@given(ranks=st.integers(2, 64))
def test_a_switch_moves_a_slice_at_a_time(ranks):
    out = np.zeros(ranks)
    for owner in range(ranks):
        out += 1 / ranks  # the switch reads the owner's slice from everybody
        out[owner] += 1 / ranks  # and the owner writes the sum once
    assert out == pytest.approx(collectives.switch_all_reduce_sent_bytes(ranks, 1.0))
    assert collectives.switch_all_gather_sent_bytes(ranks, 1.0) * ranks == pytest.approx(1.0)
    ring = collectives.all_reduce_sent_bytes(ranks, 1.0)
    assert (collectives.switch_all_reduce_sent_bytes(ranks, 1.0) < ring) == (ranks > 3)


def test_one_rank_sends_nothing():
    for name in (
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
        "broadcast",
        "switch_all_reduce",
        "switch_all_gather",
    ):
        assert getattr(collectives, f"{name}_sent_bytes")(1, 1e9) == 0
