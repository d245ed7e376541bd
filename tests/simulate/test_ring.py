"""Ring attention equals attention over the whole sequence, and sends and computes what the closed forms say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import flops, ring_attention
from parlay.simulate import attention, ring, unsharded
from parlay.simulate.placement import LAYOUTS, token_positions, visible
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)
case = {
    "N": st.integers(1, 5),
    "seq": st.integers(1, 23),
    "groups": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "dims": st.tuples(st.integers(1, 5), st.integers(1, 5)),
    "layout": st.sampled_from(LAYOUTS),
    "causal": st.booleans(),
    "seed": st.integers(0, 1000),
}


def arrays(seed, seq, groups, dims):
    rng = np.random.default_rng(seed)
    kv, heads = groups[0], groups[0] * groups[1]
    shapes = ((heads, seq, dims[0]), (kv, seq, dims[0]), (kv, seq, dims[1]), (heads, seq, dims[1]))
    return [rng.standard_normal(shape) for shape in shapes]


def shard(array, positions):
    return [array[:, p] for p in positions]


def whole(shards, positions):
    return np.concatenate(shards, axis=1)[:, np.argsort(np.concatenate(positions))]


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@few
@given(**case)
def test_forward_and_backward(N, seq, groups, dims, layout, causal, seed):
    q, k, v, d_out = arrays(seed, seq, groups, dims)
    at, world = token_positions(seq, N, layout), World(N)
    forward = ring.ring_attention(world, shard(q, at), shard(k, at), shard(v, at), at, causal=causal)
    close(whole([part.output for part in forward.results], at), unsharded.attention(q, k, v, causal=causal))
    gradients = ring.ring_attention_backward(world, shard(q, at), forward, shard(d_out, at), at, causal=causal)
    for mine, right in zip(gradients, unsharded.attention_backward(q, k, v, d_out, causal=causal)):
        close(whole(mine, at), right)

    pairs = seq * (seq + 1) // 2 if causal else seq * seq
    assert world.ledger.flops_done(attention.FORWARD).sum() == 2 * len(q) * pairs * (dims[0] + dims[1])
    assert world.ledger.flops_done(attention.BACKWARD).sum() == 2 * len(q) * pairs * (3 * dims[0] + 2 * dims[1])
    block = 8 * len(k) * (dims[0] + dims[1])
    others = [(seq - len(at[(r + 1) % N])) * block if N > 1 else 0 for r in range(N)]
    assert world.ledger.sent_bytes(ring.KV_FORWARD).tolist() == others
    if N > 1:  # the block that a rank holds last is its own
        back = world.ledger.sent_bytes(ring.KV_BACKWARD)
        assert back.tolist() == [(seq - len(at[r])) * block for r in range(N)]
        assert world.ledger.sent_bytes(ring.GRADIENTS).tolist() == [(seq - len(at[r])) * block for r in range(N)]


@few
@given(N=st.integers(1, 5), half=st.integers(1, 3), groups=case["groups"], d=st.integers(1, 4), layout=case["layout"])
def test_even_blocks_send_hold_and_do_what_the_formulas_say(N, half, groups, d, layout):
    c = 2 * half
    q, k, v, d_out = arrays(0, N * c, groups, (d, d))
    at, world, causal = token_positions(N * c, N, layout), World(N), World(N)
    run = [shard(each, at) for each in (q, k, v)]
    forward = ring.ring_attention(world, *run, at, causal=False)
    ring.ring_attention_backward(world, run[0], forward, shard(d_out, at), at, causal=False)
    ring.ring_attention(causal, *run, at, causal=True)
    query_width, kv_width = len(q) * d, len(k) * d
    sent = ring_attention.ring_sent_bytes(N, c, kv_width, 8)
    assert world.ledger.sent_bytes(ring.KV_FORWARD).tolist() == [sent] * N
    assert world.ledger.sent_bytes(ring.KV_BACKWARD, ring.GRADIENTS).tolist() == [2 * sent] * N
    assert sent == (N - 1) * ring_attention.round_bytes(c, kv_width, 8)
    assert world.ledger.flops_done(attention.FORWARD).tolist() == [N * ring_attention.round_flops(c, query_width)] * N
    assert world.ledger.flops_done(attention.BACKWARD).tolist() == [2.5 * N * ring_attention.round_flops(c, query_width)] * N
    # At rates that make a round's counted FLOPs and bytes take equally long, this block is the smallest that hides its transfer.
    for work, sent_all, least in (
        (attention.FORWARD, (ring.KV_FORWARD,), ring_attention.ring_block_min),
        (attention.BACKWARD, (ring.KV_BACKWARD, ring.GRADIENTS), ring_attention.ring_block_min_backward),
    ):
        if N > 1:
            a_round = world.ledger.flops_done(work)[0] / N, world.ledger.sent_bytes(*sent_all)[0] / (N - 1)
            assert least(*a_round, queries_per_kv=groups[1], kv_element_bytes=8) == pytest.approx(c)
    mean_context = (N * c + 1) / 2
    assert causal.ledger.flops_done().sum() == N * c * flops.attention_flops(mean_context, len(q), d, d)
    if N > 1:
        assert forward.held_bytes == [ring_attention.ring_held_bytes(c, query_width, kv_width, 8)] * N


@few
@given(N=st.integers(1, 6), chunk=st.integers(1, 4), causal=st.booleans())
def test_zigzag_gives_every_rank_the_same_work(N, chunk, causal):
    at = token_positions(2 * N * chunk, N, "zigzag")
    pairs = {int(sum(visible(mine, other, causal=causal).sum() for other in at)) for mine in at}
    assert len(pairs) == 1


@few
@given(N=st.integers(2, 6), chunk=st.integers(1, 4))
def test_zigzag_is_even_in_every_round(N, chunk):
    at = token_positions(2 * N * chunk, N, "zigzag")
    for n in range(N):
        assert len({int(visible(at[r], at[(r - n) % N], causal=True).sum()) for r in range(N)}) == 1


@few
@given(seq=st.integers(1, 30), window=st.integers(1, 40))
def test_a_window_leaves_so_many_keys(seq, window):
    window = min(window, seq)
    seen = visible(np.arange(seq), np.arange(seq), causal=True, window=window)
    assert seen.sum() / seq == pytest.approx(flops.window_context(window, seq))


@few
@given(seq=st.integers(0, 40), N=st.integers(1, 7), layout=st.sampled_from(LAYOUTS))
def test_every_token_lies_on_one_rank(seq, N, layout):
    assert sorted(np.concatenate(token_positions(seq, N, layout)).tolist()) == list(range(seq))


@few
@given(seed=st.integers(0, 1000), cuts=st.permutations([0, 0, 1, 1, 1, 2, 3]))
def test_the_merge_does_not_mind_the_order(seed, cuts):
    q, k, v, _ = arrays(seed, 7, (1, 2), (3, 2))
    world, at, heads = World(1), np.arange(7), attention.grouped(2, 1)
    result = attention.nothing_yet(q, 2)
    for key_set in dict.fromkeys(cuts):
        keys = np.flatnonzero(np.array(cuts) == key_set)
        result = attention.merge(result, attention.attend(world, 0, q, k[:, keys], v[:, keys], at, keys, heads, True))
    close(result.output, unsharded.attention(q, k, v, causal=True))


def test_the_gradient_is_the_slope():
    q, k, v, d_out = arrays(3, 5, (2, 2), (3, 4))
    for which, gradient in enumerate(unsharded.attention_backward(q, k, v, d_out, causal=True)):
        for step in np.ndindex(gradient.shape[0], 2, 2):
            at = (step[0], 2 * step[1], step[2])
            ends = []
            for sign in (1e-5, -1e-5):
                moved = [q.copy(), k.copy(), v.copy()]
                moved[which][at] += sign
                ends.append((unsharded.attention(*moved, causal=True) * d_out).sum())
            assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_refuses_what_has_no_meaning():
    with pytest.raises(ValueError, match="`layout` must be one of contiguous, zigzag, striped, got 'spiral'"):
        token_positions(8, 2, "spiral")
    with pytest.raises(ValueError, match="3 query heads do not divide into groups of 2 K/V heads"):
        attention.grouped(3, 2)
