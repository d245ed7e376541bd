"""Ulysses, alone and inside a ring, and all-gather context parallelism: the whole sequence's attention, and the bytes of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.simulate import attention, gathered, ring, ulysses, unsharded
from parlay.simulate.placement import LAYOUTS, token_positions
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def arrays(seed, seq, kv, group, d):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((heads, seq, d)) for heads in (kv * group, kv, kv, kv * group)]


def shard(array, positions):
    return [array[:, p] for p in positions]


def whole(shards, positions):
    return np.concatenate(shards, axis=1)[:, np.argsort(np.concatenate(positions))]


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def run(seed, seq, kv, group, d, *, U, R, layout, causal):
    q, k, v, d_out = arrays(seed, seq, kv, group, d)
    by, world = ulysses.plan(seq, kv * group, kv, ulysses=U, ring=R, layout=layout, causal=causal), World(U * R)
    at = by.positions
    forward = ulysses.ulysses_attention(world, shard(q, at), shard(k, at), shard(v, at), by)
    close(whole(forward.outputs, at), unsharded.attention(q, k, v, causal=causal))
    gradients = ulysses.ulysses_attention_backward(world, forward, shard(d_out, at), by, kv)
    for mine, right in zip(gradients, unsharded.attention_backward(q, k, v, d_out, causal=causal)):
        close(whole(mine, at), right)
    pairs = seq * (seq + 1) // 2 if causal else seq * seq
    assert world.ledger.flops_done(attention.FORWARD).sum() == 4 * kv * group * pairs * d
    assert world.ledger.flops_done(attention.BACKWARD).sum() == 10 * kv * group * pairs * d
    return world.ledger, by


@few
@given(
    seed=st.integers(0, 1000),
    seq=st.integers(1, 21),
    kv=st.integers(1, 3),
    group=st.integers(1, 3),
    d=st.integers(1, 4),
    U=st.integers(1, 4),
    R=st.integers(1, 3),
    layout=st.sampled_from(LAYOUTS),
    causal=st.booleans(),
)
def test_any_sizes(seed, seq, kv, group, d, U, R, layout, causal):
    U = min(U, kv * group)
    ledger, by = run(seed, seq, kv, group, d, U=U, R=R, layout=layout, causal=causal)
    sent = np.zeros(U * R, int)
    for rank in range(U * R):  # a rank sends its own tokens, all heads but those it serves
        sent[rank] = 8 * d * len(by.positions[rank]) * (kv * group - len(by.query_heads[rank % U]))
    assert ledger.sent_bytes(ulysses.QUERIES).tolist() == sent.tolist()
    assert ledger.sent_bytes(ulysses.D_OUTPUT).tolist() == sent.tolist()
    assert ledger.received_bytes(ulysses.OUTPUT).tolist() == sent.tolist()
    assert ledger.received_bytes(ulysses.D_QUERIES).tolist() == sent.tolist()
    assert np.array_equal(ledger.traffic_bytes(ulysses.KEYS_VALUES), ledger.traffic_bytes(ulysses.D_KEYS_VALUES).T)


@few
@given(
    U=st.integers(1, 4),
    R=st.integers(1, 3),
    per_rank=st.integers(1, 3),
    heads_each=st.integers(1, 2),
    group=st.integers(1, 2),
    d=st.integers(1, 3),
)
def test_even_sizes_send_the_same_from_every_rank(U, R, per_rank, heads_each, group, d):
    kv, tokens = U * heads_each, 2 * R * U * per_rank
    ledger, by = run(0, tokens, kv, group, d, U=U, R=R, layout="zigzag", causal=True)
    own = tokens // (U * R)
    assert (ledger.sent_bytes(ulysses.QUERIES, ulysses.OUTPUT) * U == 2 * (U - 1) * own * kv * group * d * 8).all()
    assert (ledger.sent_bytes(ulysses.KEYS_VALUES) * U == 2 * (U - 1) * own * kv * d * 8).all()
    # In the ring each rank passes on the K/V of its heads for a whole group's tokens.
    assert (ledger.sent_bytes(ring.KV_FORWARD) == (R - 1) * 2 * own * U * (kv // U) * d * 8).all()
    assert by.positions[0].size == own


@few
@given(kv=st.integers(1, 3), copies=st.integers(2, 3), per_rank=st.integers(1, 3), d=st.integers(1, 3))
def test_copied_heads_send_one_head_to_every_other_rank(kv, copies, per_rank, d):
    U = kv * copies
    ledger, _ = run(1, U * per_rank, kv, copies, d, U=U, R=1, layout="contiguous", causal=True)
    assert ledger.sent_bytes(ulysses.KEYS_VALUES).tolist() == [2 * (U - 1) * per_rank * d * 8] * U


@few
@given(
    seed=st.integers(0, 1000),
    seq=st.integers(1, 21),
    kv=st.integers(1, 3),
    group=st.integers(1, 3),
    d=st.integers(1, 4),
    N=st.integers(1, 5),
    layout=st.sampled_from(LAYOUTS),
    causal=st.booleans(),
)
def test_gathered(seed, seq, kv, group, d, N, layout, causal):
    q, k, v, d_out = arrays(seed, seq, kv, group, d)
    at, world = token_positions(seq, N, layout), World(N)
    qs, ks, vs = (shard(each, at) for each in (q, k, v))
    results = gathered.gathered_attention(world, qs, ks, vs, at, causal=causal)
    close(whole([part.output for part in results], at), unsharded.attention(q, k, v, causal=causal))
    gradients = gathered.gathered_attention_backward(world, qs, ks, vs, results, shard(d_out, at), at, causal=causal)
    for mine, right in zip(gradients, unsharded.attention_backward(q, k, v, d_out, causal=causal)):
        close(whole(mine, at), right)
    block = 2 * 8 * kv * d
    for gather in (gathered.GATHER_FORWARD, gathered.GATHER_BACKWARD):
        assert world.ledger.sent_bytes(gather).tolist() == [
            (seq - len(at[(r + 1) % N])) * block if N > 1 else 0 for r in range(N)
        ]
    assert world.ledger.sent_bytes(gathered.GRADIENTS).tolist() == [(seq - len(at[r])) * block for r in range(N)]


def test_refuses_more_ranks_than_heads():
    with pytest.raises(ValueError, match="Ulysses over 5 ranks needs as many query heads, got 4"):
        ulysses.plan(8, 4, 2, ulysses=5)
