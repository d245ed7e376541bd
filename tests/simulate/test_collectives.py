"""The ring collectives: the same arrays as without a ring, and the bytes of the closed forms, uneven chunks included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.simulate import collectives
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)
ranks = st.integers(1, 7)
sizes_of = st.lists(st.integers(0, 9), min_size=1, max_size=7)
seeds = st.integers(0, 1000)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@few
@given(sizes=sizes_of, width=st.integers(1, 3), seed=seeds)
def test_all_gather(sizes, width, seed):
    N, whole, world = len(sizes), draw(seed, sum(sizes), width), World(len(sizes))
    gathered = collectives.all_gather(world, collectives.split(whole, sizes))
    assert all(np.array_equal(each, whole) for each in gathered)
    expected = [(sum(sizes) - sizes[(r + 1) % N]) * width * 8 if N > 1 else 0 for r in range(N)]
    assert world.ledger.sent_bytes().tolist() == expected
    assert world.ledger.messages_sent().tolist() == [N - 1] * N


@few
@given(sizes=sizes_of, width=st.integers(1, 3), seed=seeds)
def test_reduce_scatter(sizes, width, seed):
    N, world = len(sizes), World(len(sizes))
    arrays = list(draw(seed, N, sum(sizes), width))
    chunks = collectives.reduce_scatter(world, arrays, sizes=sizes)
    for chunk, right in zip(chunks, collectives.split(sum(arrays), sizes)):
        np.testing.assert_allclose(chunk, right, rtol=1e-12, atol=1e-12)
    assert world.ledger.sent_bytes().tolist() == [(sum(sizes) - sizes[r]) * width * 8 for r in range(N)]
    # Each chunk takes N - 1 additions, the last of them on its owner.
    assert world.ledger.flops_done().sum() == (N - 1) * sum(sizes) * width


@few
@given(N=ranks, per_rank=st.integers(1, 6), seed=seeds)
def test_all_reduce_sends_twice_the_share_of_the_others(N, per_rank, seed):
    world, arrays = World(N), list(draw(seed, N, N * per_rank))
    for total in collectives.all_reduce(world, arrays):
        np.testing.assert_allclose(total, sum(arrays), rtol=1e-12, atol=1e-12)
    assert world.ledger.sent_bytes().tolist() == [2 * (N - 1) * per_rank * 8] * N
    assert world.ledger.messages_sent().tolist() == [2 * (N - 1)] * N


@few
@given(N=ranks, elements=st.integers(0, 30), seed=seeds)
def test_all_reduce_of_any_size_sends_that_in_total(N, elements, seed):
    world, arrays = World(N), list(draw(seed, N, elements))
    for total in collectives.all_reduce(world, arrays):
        np.testing.assert_allclose(total, sum(arrays), rtol=1e-12, atol=1e-12)
    assert world.ledger.sent_bytes().sum() == 2 * (N - 1) * elements * 8


@few
@given(N=ranks, seed=seeds, data=st.data())
def test_all_to_all_transposes(N, seed, data):
    sizes = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=N, max_size=N), min_size=N, max_size=N))
    blocks = [[draw(seed + i * N + j, sizes[i][j]) for j in range(N)] for i in range(N)]
    world = World(N)
    out = collectives.all_to_all(world, blocks)
    assert all(np.array_equal(out[j][i], blocks[i][j]) for i in range(N) for j in range(N))
    expected = 8 * np.array(sizes) * (1 - np.eye(N, dtype=int))
    assert np.array_equal(world.ledger.traffic_bytes(), expected)


@few
@given(N=ranks, elements=st.integers(1, 20), pieces=st.integers(1, 5), root=st.integers(0, 6), seed=seeds)
def test_broadcast_sends_the_array_once_but_for_the_last(N, elements, pieces, root, seed):
    world, array, root = World(N), draw(seed, elements), root % N
    assert all(np.array_equal(each, array) for each in collectives.broadcast(world, array, root=root, pieces=pieces))
    expected = [0 if r == (root - 1) % N else array.nbytes for r in range(N)]
    assert world.ledger.sent_bytes().tolist() == expected


def test_a_group_inside_a_world_leaves_the_others_alone():
    world = World(6, ranks_per_node=3)
    total = collectives.all_reduce(world, [np.ones(4), np.full(4, 2.0)], ranks=[1, 4])
    assert total[0].tolist() == [3.0] * 4
    assert world.ledger.sent_bytes().tolist() == [0, 32, 0, 0, 32, 0]
    assert world.between_nodes_bytes().tolist() == [0, 32, 0, 0, 32, 0]


def test_ring_shift_moves_each_shard_on():
    world = World(3)
    out = collectives.ring_shift(world, [np.full(r + 1, float(r)) for r in range(3)])
    assert [each.tolist() for each in out] == [[2.0] * 3, [0.0], [1.0] * 2]
    assert world.ledger.sent_bytes().tolist() == [8, 16, 24]


def test_what_arrives_is_a_copy():
    world, array = World(2), np.zeros(2)
    received = world.send(0, 1, array, "x")
    array += 1
    assert received.tolist() == [0.0, 0.0]


def test_refuses_what_is_not_there():
    with pytest.raises(ValueError, match="no rank 2 in a world of 2"):
        World(2).send(0, 2, np.zeros(1), "x")
    with pytest.raises(ValueError, match="do not make up axis 0"):
        collectives.split(np.zeros(3), [1, 1])
    with pytest.raises(ValueError, match="`ranks` must be >= 1, got 0"):
        World(0)
    with pytest.raises(ValueError, match="`ranks_per_node` must be >= 1, got 0"):
        World(1, ranks_per_node=0)
