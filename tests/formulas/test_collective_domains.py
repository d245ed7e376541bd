"""What crosses the border of a domain, counted between simulated nodes, and the time over both kinds of link."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import collective_domains as domains
from parlay.simulate import collectives as simulated
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


@few
@given(nodes=st.integers(1, 4), local=st.integers(1, 4))
def test_an_all_to_all_is_as_slow_as_its_slower_kind_of_link(nodes, local):
    world = World(nodes * local, ranks_per_node=local)
    blocks = [[np.ones(3)] * world.ranks] * world.ranks
    simulated.all_to_all(world, blocks, operation="swap")
    held = 24.0 * world.ranks
    far = world.between_nodes_bytes("swap")
    near = world.ledger.sent_bytes("swap") - far
    assert far == pytest.approx(held * domains.remote_share(world.ranks, local))
    for W, V in ((400.0, 50.0), (50.0, 400.0)):
        time = np.maximum(near / W, far / V)
        assert time == pytest.approx(domains.spanning_all_to_all_s(world.ranks, local, held, W, V))


@few
@given(nodes=st.integers(1, 4), local=st.integers(1, 4))
def test_a_gather_in_two_levels_moves_what_the_formula_prices(nodes, local):
    world = World(nodes * local, ranks_per_node=local)
    shards = [np.full(2, r) for r in range(world.ranks)]
    halves: list[np.ndarray] = [np.empty(0)] * world.ranks
    for i in range(local):  # across: the i-th rank of each node
        rail = list(range(i, world.ranks, local))
        for rank, got in zip(rail, simulated.all_gather(world, [shards[r] for r in rail], ranks=rail, operation="far")):
            halves[rank] = got
    for node in range(nodes):
        group = list(range(node * local, (node + 1) * local))
        simulated.all_gather(world, [halves[r] for r in group], ranks=group, operation="near")
    n = 16.0 * world.ranks
    time = world.ledger.sent_bytes("far") / 50 + world.ledger.sent_bytes("near") / 400
    assert time == pytest.approx(domains.hierarchical_all_gather_s(world.ranks, local, n, 400.0, 50.0))


@given(nodes=st.integers(1, 64), local=st.integers(1, 72), W=st.floats(1, 1e3), V=st.floats(1, 1e3))
def test_links_at_once_are_never_slower_than_one_after_the_other(nodes, local, W, V):
    N = nodes * local
    at_once = domains.spanning_all_gather_s(N, local, 1.0, W, V)
    lacking = (N - local) / N / local / V  # the domain's NICs bring in what it lacks
    assert at_once >= lacking * (1 - 1e-12)
    assert at_once == pytest.approx(max(lacking, (N - 1) / N / W))
    if nodes == 1:
        assert at_once == pytest.approx(domains.hierarchical_all_gather_s(N, local, 1.0, W, V))


def test_two_nodes_of_eight_with_their_own_nics():
    assert domains.remote_share(16, 8) == 0.5
    lone = domains.spanning_all_gather_s(2, 1, 1e9, 400e9, 50e9)  # one rank a node: one NIC carries it
    assert lone == pytest.approx(0.5e9 / 50e9)
