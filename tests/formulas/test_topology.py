"""Where groups lie, against an enumeration of all ranks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import topology

sizes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=4, max_size=4)


@settings(max_examples=50, deadline=None)
@given(axes=sizes, domain=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_groups_lie_where_an_enumeration_finds_them(axes, domain):
    grid = np.arange(np.prod(axes)).reshape(axes[::-1])  # the last index of an array runs fastest: the inner axis
    for i in range(4):
        stride, size = int(np.prod(axes[:i])), axes[i]
        groups = np.moveaxis(grid, 3 - i, -1).reshape(-1, size)
        for group in groups[:8]:
            assert topology.coordinate(group, stride, size).tolist() == list(range(size))
            assert (topology.first_member(group, stride, size) == group[0]).all()
            members = [len(list(g)) for _, g in itertools.groupby(group // domain)]
            assert set(members) == {int(topology.ranks_in_domain(size, stride, domain))}
            assert len(members) == topology.domains_spanned(size, stride, domain)


def test_the_stride_and_not_the_size_decides_the_link():  # cli99/llm-analysis issue 27
    assert topology.ranks_in_domain(8, 1, 8) == 8
    assert topology.ranks_in_domain(8, 8, 8) == 1


def test_llama_3_405b_places_tensor_ranks_inside_a_node():
    strides = [1, 8, 8 * 16, 8 * 16 * 16]  # tp 8, cp 16, pp 16, dp 8
    inside = topology.ranks_in_domain([8, 16, 16, 8], strides, 8)
    assert inside.tolist() == [8, 1, 1, 1]
    assert strides[-1] * 8 == pytest.approx(16384)
