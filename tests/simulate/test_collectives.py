"""The ring collectives: the same arrays as without a ring, and the bytes of the closed forms, uneven chunks included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import collective_domains, collective_times
from parlay.formulas import collectives as formulas
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


@few
@given(N=ranks, per_rank=st.integers(0, 5))
def test_even_collectives_send_what_the_formulas_say(N, per_rank):
    """One array of N x `per_rank` elements on every rank, all collectives; the arrays' own numbers are checked above."""
    n, arrays = N * per_rank * 8, [np.ones(N * per_rank)] * N
    cases = {
        "all-gather": (formulas.all_gather_sent_bytes(N, n), collective_times.ring_all_gather_steps(N)),
        "reduce-scatter": (formulas.reduce_scatter_sent_bytes(N, n), collective_times.ring_all_gather_steps(N)),
        "all-reduce": (formulas.all_reduce_sent_bytes(N, n), collective_times.ring_all_reduce_steps(N)),
        "all-to-all": (formulas.all_to_all_sent_bytes(N, n), N - 1),
    }
    world = World(N)
    collectives.all_gather(world, [np.ones(per_rank)] * N)
    collectives.reduce_scatter(world, arrays)
    collectives.all_reduce(world, arrays)
    collectives.all_to_all(world, [collectives.split(array, [per_rank] * N) for array in arrays])
    for name, (sent, steps) in cases.items():
        assert world.ledger.sent_bytes(name).tolist() == pytest.approx([sent] * N, rel=1e-15)
        assert world.ledger.messages_sent(name).tolist() == [steps] * N
    # Bus bandwidth is what a link carries a second when n bytes take two.
    for name in ("all-gather", "reduce-scatter", "all-to-all"):
        bus = collective_times.gather_bus_bytes_per_s(N, n / 2)
        assert world.ledger.sent_bytes(name) / 2 == pytest.approx(bus)
    assert world.ledger.sent_bytes("all-reduce") / 2 == pytest.approx(collective_times.all_reduce_bus_bytes_per_s(N, n / 2))
    collectives.broadcast(world, arrays[0], pieces=3)
    assert world.ledger.sent_bytes("broadcast").max() == formulas.broadcast_sent_bytes(N, n)


@few
@given(N=st.integers(2, 7), per_rank=st.integers(1, 4), seed=seeds)
def test_switch(N, per_rank, seed):
    world, arrays = World(N + 1), list(draw(seed, N, N * per_rank))
    n = N * per_rank * 8
    for total in collectives.switch_all_reduce(world, arrays):
        np.testing.assert_allclose(total, sum(arrays), rtol=1e-12, atol=1e-12)
    gathered = collectives.switch_all_gather(world, collectives.split(arrays[0], [per_rank] * N))
    assert all(np.array_equal(each, arrays[0]) for each in gathered)
    reduced, copied = (world.ledger.sent_bytes(f"switch {name}")[:N].tolist() for name in ("all-reduce", "all-gather"))
    assert reduced == pytest.approx([formulas.switch_all_reduce_sent_bytes(N, n)] * N)
    assert copied == [formulas.switch_all_gather_sent_bytes(N, n)] * N


@few
@given(N=st.integers(1, 20), elements=st.integers(1, 5), seed=seeds)
def test_tree(N, elements, seed):
    world, arrays = World(N), list(draw(seed, N, elements))
    summed, steps = collectives.tree_all_reduce(world, arrays)
    for total in summed:
        np.testing.assert_allclose(total, sum(arrays), rtol=1e-12, atol=1e-12)
    assert steps == collective_times.tree_all_reduce_steps(N)
    # As many bytes in all as a ring: every edge of the tree carries the array up and down.
    assert world.ledger.sent_bytes().sum() == pytest.approx(N * formulas.all_reduce_sent_bytes(N, elements * 8))
    assert world.ledger.sent_bytes().sum() == 2 * (N - 1) * elements * 8


@few
@given(nodes=st.integers(1, 4), size=st.integers(1, 4), per_rank=st.integers(1, 3), seed=seeds)
def test_across_nodes(nodes, size, per_rank, seed):
    N, whole = nodes * size, draw(seed, nodes * size * per_rank, 2)
    n, world = whole.nbytes, World(nodes * size, ranks_per_node=size)
    shards = collectives.split(whole, [per_rank] * N)
    assert all(np.array_equal(each, whole) for each in collectives.hierarchical_all_gather(world, shards))
    # With one kind of link at one byte a second and the other one free, the formula's seconds are bytes.
    far = collective_domains.hierarchical_all_gather_s(N, size, n, np.inf, 1)
    near = collective_domains.hierarchical_all_gather_s(N, size, n, 1, np.inf)
    assert world.between_nodes_bytes().tolist() == pytest.approx([far] * N)
    assert world.ledger.sent_bytes("all-gather in nodes").tolist() == pytest.approx([near] * N)

    collectives.all_to_all(world, [[np.ones((per_rank, 2))] * N] * N)
    far = world.between_nodes_bytes("all-to-all")
    near = world.ledger.sent_bytes("all-to-all") - far
    assert far.tolist() == pytest.approx([n * collective_domains.remote_share(N, size)] * N)
    assert far.tolist() == pytest.approx([collective_domains.spanning_all_to_all_s(N, size, n, np.inf, 1)] * N)
    assert near.tolist() == pytest.approx([collective_domains.spanning_all_to_all_s(N, size, n, 1, np.inf)] * N)
