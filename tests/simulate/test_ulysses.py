"""Ulysses, alone and inside a ring, and all-gather context parallelism: the whole sequence's attention, and the bytes of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations, activations_context, context
from parlay.formulas import ulysses as formulas
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
    own, q, w = tokens // (U * R), kv * group * d, kv * d
    all_to_alls = (ulysses.QUERIES, ulysses.KEYS_VALUES, ulysses.OUTPUT)
    assert ledger.sent_bytes(*all_to_alls).tolist() == pytest.approx([formulas.ulysses_sent_bytes(U, own, q, w, 8)] * U * R)
    back = (ulysses.D_QUERIES, ulysses.D_KEYS_VALUES, ulysses.D_OUTPUT)
    assert ledger.sent_bytes(*back).tolist() == ledger.sent_bytes(*all_to_alls).tolist()
    # In the ring each rank passes on the K/V of its heads for a whole group's tokens.
    forward = ledger.sent_bytes(*all_to_alls, ring.KV_FORWARD)
    assert forward.tolist() == pytest.approx([context.hybrid_sent_bytes(U, R, own, q, w, 8)] * U * R)
    assert by.positions[0].size == own


@few
@given(kv=st.integers(1, 3), copies=st.integers(2, 3), per_rank=st.integers(1, 3), d=st.integers(1, 3))
def test_copied_heads_send_one_head_to_every_other_rank(kv, copies, per_rank, d):
    U = kv * copies
    ledger, by = run(1, U * per_rank, kv, copies, d, U=U, R=1, layout="contiguous", causal=True)
    sent = ledger.sent_bytes(ulysses.QUERIES, ulysses.KEYS_VALUES, ulysses.OUTPUT)
    assert sent.tolist() == pytest.approx([formulas.ulysses_sent_bytes(U, per_rank, U * d, kv * d, 8, kv_copies=copies)] * U)
    holders = np.bincount(np.concatenate(by.kv_heads))
    assert holders.tolist() == [formulas.kv_head_copies(U, kv)] * kv


@few
@given(
    U=st.integers(1, 4), kv=st.integers(1, 4), group=st.sampled_from([1, 2, 4]), per_rank=st.integers(1, 3), d=st.integers(1, 3)
)
def test_what_ulysses_keeps(U, kv, group, per_rank, d):
    if (kv % U and U % kv) or (kv * group) % U:
        return  # heads do not come out even
    seq, rng = U * per_rank, np.random.default_rng(0)
    by, world = ulysses.plan(seq, kv * group, kv, ulysses=U), World(U)
    shards = [[rng.standard_normal((heads, per_rank, d)) for _ in range(U)] for heads in (kv * group, kv, kv)]
    forward = ulysses.ulysses_attention(world, *shards, by)
    kept = activations.queries_keys_values(per_rank, kv * group, kv, d, d, ulysses=U, element_bytes=8)
    for u in range(U):
        mine = (forward.queries[u][0], forward.rings[u].last_k[0], forward.rings[u].last_v[0])
        assert sum(array.nbytes for array in mine) == kept


@few
@given(heads=st.integers(1, 8), kv=st.integers(1, 8), N=st.integers(1, 12))
def test_the_largest_degree(heads, kv, N):
    """A plan exists up to the number of query heads; K/V heads stay uncopied up to their own number."""
    if heads % kv:
        return
    most = formulas.largest_degree(heads, kv, kv_copies=heads // kv)
    if most < N:
        with pytest.raises(ValueError, match="needs as many query heads"):
            ulysses.plan(N, heads, kv, ulysses=N)
        return
    copies = np.bincount(np.concatenate(ulysses.plan(N, heads, kv, ulysses=N).kv_heads)).max()
    if heads % N == 0 and (kv % N == 0 or N % kv == 0):
        assert (copies == 1) == (formulas.largest_degree(heads, kv) >= N)
        assert context.outer_ring_ranks(N, kv) == copies  # ranks that would copy heads can be a ring instead


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


@few
@given(N=st.integers(1, 5), c=st.integers(1, 4), kv=st.integers(1, 3), d=st.integers(1, 4))
def test_even_gathers_send_and_hold_what_the_formulas_say(N, c, kv, d):
    q, k, v, d_out = arrays(0, N * c, kv, 1, d)
    at, world = token_positions(N * c, N), World(N)
    qs, ks, vs = (shard(each, at) for each in (q, k, v))
    results = gathered.gathered_attention(world, qs, ks, vs, at, causal=True)
    gathered.gathered_attention_backward(world, qs, ks, vs, results, shard(d_out, at), at, causal=True)
    sent = context.gathered_kv_sent_bytes(N, c, kv * d, 8)
    assert world.ledger.sent_bytes(gathered.GATHER_FORWARD).tolist() == [sent] * N
    assert world.ledger.sent_bytes(gathered.GATHER_BACKWARD, gathered.GRADIENTS).tolist() == [2 * sent] * N
    held = world.ledger.received_bytes(gathered.GATHER_FORWARD) + ks[0].nbytes + vs[0].nbytes
    assert held.tolist() == [context.gathered_kv_bytes(N, c, kv * d, 8)] * N
    assert held.tolist() == [activations_context.gathered_keys_values(c, kv, d, d, ranks=N, element_bytes=8)] * N


def test_refuses_more_ranks_than_heads():
    with pytest.raises(ValueError, match="Ulysses over 5 ranks needs as many query heads, got 4"):
        ulysses.plan(8, 4, 2, ulysses=5)
