"""All-gather context parallelism and Ulysses inside a ring, against ranks that exchange arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import context
from parlay.simulate import gathered, ulysses
from parlay.simulate.placement import token_positions
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def shards(positions, kv, group, d):
    rng = np.random.default_rng(0)
    tokens = sum(len(p) for p in positions)
    arrays = (rng.standard_normal((heads, tokens, d)) for heads in (kv * group, kv, kv))
    return [[x[:, p] for p in positions] for x in arrays]


@few
@given(N=st.integers(1, 5), c=st.integers(1, 3), kv=st.integers(1, 3), group=st.integers(1, 3), d=st.integers(1, 3))
def test_gathering_sends_and_holds_what_ranks_do(N, c, kv, group, d):
    at, world = token_positions(N * c, N, "contiguous"), World(N)
    q, k, v = shards(at, kv, group, d)
    gathered.gathered_attention(world, q, k, v, at, causal=True)
    assert (world.ledger.sent_bytes(gathered.GATHER_FORWARD) == context.gathered_kv_sent_bytes(N, c, kv * d, 8)).all()
    assert context.gathered_kv_bytes(N, c, kv * d, 8) == sum(x.nbytes for x in (*k, *v))


@few
@given(
    U=st.integers(1, 3),
    R=st.integers(1, 3),
    c=st.integers(1, 2),
    each=st.integers(1, 2),
    group=st.integers(1, 2),
    d=st.integers(1, 3),
)
def test_ulysses_in_a_ring_sends_what_ranks_do(U, R, c, each, group, d):
    kv, tokens = U * each, U * R * c
    by, world = ulysses.plan(tokens, kv * group, kv, ulysses=U, ring=R, layout="contiguous", causal=False), World(U * R)
    ulysses.ulysses_attention(world, *shards(by.positions, kv, group, d), by)
    assert world.ledger.sent_bytes() == pytest.approx(context.hybrid_sent_bytes(U, R, c, kv * group * d, kv * d, 8))


@given(N=st.integers(0, 8), k=st.integers(0, 5))
def test_ulysses_and_its_ring_use_all_ranks(N, k):
    ranks, heads = 2**N, 2**k
    assert context.outer_ring_ranks(ranks, heads) * min(ranks, heads) == ranks


def test_sixteen_ranks_of_a_model_with_eight_heads():  # the lesson: Ulysses reaches 8, so a ring of 2 goes around it
    assert context.outer_ring_ranks(16, 8) == 2
    assert context.gathered_kv_sent_bytes(8, 8192, 1024) == 234_881_024


@given(N=st.integers(1, 64), k=st.integers(1, 64))
def test_the_outer_ring_is_the_shortest_that_uses_all_ranks(N, k):
    assert context.outer_ring_ranks(N, k) == next(R for R in range(1, N + 1) if R * min(N, k) >= N)
