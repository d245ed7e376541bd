"""Buffers of attention over a split sequence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations_context as ctx
from parlay.formulas._check import FormulaDomainError


@settings(max_examples=50)
@given(c=st.integers(1, 64), n=st.integers(1, 1000))
def test_the_forward_ring_ends_with_the_keys_and_values_of_the_whole_sequence(c, n):
    """All received blocks are kept until the end, so without queries it equals what all-gather holds."""
    ring = ctx.ring_forward_held(n, 0, 8, 128, ring=c)
    assert ring == pytest.approx(ctx.gathered_keys_values(n, 8, 128, 128, ranks=c))


@given(c=st.integers(1, 64), r=st.integers(0, 63))
def test_outputs_of_every_step_are_counted_by_summing_them(c, r):
    """Steps up to the rank's own attend with all queries, later ones with half of them."""
    r = min(r, c - 1)
    steps = sum(1.0 if step <= r else 0.5 for step in range(c))
    assert ctx.ring_forward_held(1, 4, 0, 16, ring=c, rank=r, tensor=4) - 2 * 2 * 16 * c == pytest.approx(2 * 16 * steps)


def test_no_ring_no_backward_buffers():
    assert ctx.ring_backward_held(4096, 32, 8, 128, ring=[1, 2]).tolist() == [0.0, 2 * 128 * 4096 * (8 * 8 + 32)]


def test_llama_3_gathers_a_head_a_rank():
    """Llama 3 405B at 131,072 tokens, cp 16, tp 8: one key/value head, 64 MiB a layer for K and V."""
    assert ctx.gathered_keys_values(8192, 8, 128, 128, ranks=16, tensor=8) == 2 * 131072 * 2 * 128


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ctx.ring_forward_held(1, 1, 1, 1, ring=0), "`ring` must be >= 1"),
        (lambda: ctx.ring_forward_held(1, 1, 1, 1, ring=1, rank=-1), "`rank`"),
        (lambda: ctx.ring_backward_held(1, 1, 1, 1, ring=1, tensor=0), "`tensor`"),
        (lambda: ctx.gathered_keys_values(1, 1, 1, 1, ranks=[2, 0]), r"`ranks` must be >= 1, got 0 at index \(1,\)"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


@settings(max_examples=50)
@given(c=st.integers(2, 16), t=st.integers(1, 8), a=st.integers(1, 8), k=st.integers(1, 8), n=st.integers(1, 99))
def test_splitting_heads_is_the_same_as_having_fewer(c, t, a, k, n):
    """Over t ranks each has a / t query heads, and at least one K/V head."""
    kv = max(k, t) / t
    for held in (ctx.ring_forward_held, ctx.ring_backward_held):
        assert held(n, a * t, k, 64, ring=c, tensor=t) == pytest.approx(held(n, a, kv, 64, ring=c))
    assert ctx.gathered_keys_values(n, k, 64, 32, ranks=c, tensor=t) == pytest.approx(2 * c * n * kv * (64 + 32))


def test_backward_buffers_by_counting():
    """Two blocks each of K and V and of their gradients, in pairs, and one of the queries' size; none of no tokens or no bytes."""
    blocks = 2 * 2 * 2
    assert ctx.ring_backward_held(10, 6, 3, 16, ring=4, tensor=2, element_bytes=1) == 10 * 16 * (blocks * 1.5 + 3)
    assert ctx.ring_backward_held(0, 6, 3, 16, ring=[1, 2]).tolist() == [0.0, 0.0]
    assert ctx.ring_backward_held(10, 6, 3, 16, ring=[1, 2], element_bytes=0).tolist() == [0.0, 0.0]


def test_no_rank_holds_more_than_the_last():
    last, beyond = (ctx.ring_forward_held(10, 4, 2, 16, ring=4, rank=r) for r in (3, 9))
    assert last == beyond
