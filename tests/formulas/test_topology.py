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


@settings(max_examples=100, deadline=None)
@given(q=st.integers(1, 24), s=st.integers(1, 6), per=st.integers(1, 6))
def test_a_group_that_starts_at_a_domain_spans_what_an_enumeration_counts(q, s, per):
    domain = s * per  # the stride divides the domain, the group need not
    where = np.arange(q) * s // domain
    assert topology.ranks_in_domain(q, s, domain) == np.bincount(where)[0]
    assert topology.domains_spanned(q, s, domain) == len(set(where.tolist()))


@settings(max_examples=100, deadline=None)
@given(q=st.integers(1, 24), s=st.integers(1, 12), domain=st.integers(1, 24), offset=st.integers(0, 11))
def test_where_the_stride_does_not_divide_the_domain_no_group_spans_more(q, s, domain, offset):
    where = (min(offset, s - 1) + np.arange(q) * s) // domain
    assert len(set(where.tolist())) <= topology.domains_spanned(q, s, domain)
    inside = np.bincount(where)[1:-1]  # domains that the group goes through, from end to end
    assert inside.size == 0 or s > domain or inside.min() >= topology.ranks_in_domain(q, s, domain)


def test_the_fewest_ranks_that_a_domain_in_the_middle_holds():
    """A stride of 16 in domains of 72: 0, 16, ... 64 | 80 ... 128 | 144 ... 208 | ...: five, four, five."""
    where = np.arange(20) * 16 // 72
    assert np.bincount(where)[:3].tolist() == [5, 4, 5]
    assert topology.ranks_in_domain(20, 16, 72) == 4
