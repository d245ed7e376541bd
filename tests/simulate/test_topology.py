"""Where the groups of a world lie: Ulysses groups and rings by rank, members of strided groups by node."""

from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import topology
from parlay.simulate import ulysses
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


@few
@given(U=st.integers(1, 4), R=st.integers(1, 4))
def test_coordinates_in_groups_and_rings(U, R):
    by = ulysses.plan(U * R, U, U, ulysses=U, ring=R)
    for stride, size, groups in ((1, U, by.groups()), (U, R, by.rings())):
        for members in groups:
            for place, rank in enumerate(members):
                assert topology.coordinate(rank, stride, size) == place
                assert topology.first_member(rank, stride, size) == members[0]


@few
@given(stride=st.sampled_from([1, 2, 4, 8]), size=st.sampled_from([1, 2, 4, 8]), node=st.sampled_from([1, 2, 4, 8, 16]))
def test_members_in_a_node(stride, size, node):
    world = World(stride * size, ranks_per_node=node)
    nodes = [world.node_of(place * stride) for place in range(size)]
    assert {nodes.count(each) for each in nodes} == {topology.ranks_in_domain(size, stride, node)}
    assert len(set(nodes)) == topology.domains_spanned(size, stride, node)
