"""What Ulysses sends, against ranks that exchange heads for tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import ulysses as formulas
from parlay.simulate import ulysses
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def sent(U: int, per_rank: int, kv: int, group: int, d: int, R: int = 1) -> World:
    """Return the world after a forward pass of U ranks inside a ring of R."""
    tokens = U * R * per_rank
    by, world = ulysses.plan(tokens, kv * group, kv, ulysses=U, ring=R, layout="contiguous", causal=False), World(U * R)
    rng = np.random.default_rng(0)
    arrays = (rng.standard_normal((heads, tokens, d)) for heads in (kv * group, kv, kv))
    ulysses.ulysses_attention(world, *([x[:, p] for p in by.positions] for x in arrays), by)
    return world


@few
@given(U=st.integers(1, 4), per_rank=st.integers(1, 3), each=st.integers(1, 2), group=st.integers(1, 3), d=st.integers(1, 3))
def test_bytes_equal_those_that_ranks_send(U, per_rank, each, group, d):
    kv = U * each
    world = sent(U, per_rank, kv, group, d)
    formula = formulas.ulysses_sent_bytes(U, per_rank, kv * group * d, kv * d, 8)
    assert world.ledger.sent_bytes() == pytest.approx(formula)


@few
@given(kv=st.integers(1, 3), copies=st.integers(2, 3), per_rank=st.integers(1, 3), d=st.integers(1, 3))
def test_copied_heads_travel_once_a_copy(kv, copies, per_rank, d):
    U = kv * copies
    world = sent(U, per_rank, kv, copies, d)
    assert formulas.kv_head_copies(U, kv) == copies
    formula = formulas.ulysses_sent_bytes(U, per_rank, kv * copies * d, kv * d, 8, copies)
    assert world.ledger.sent_bytes() == pytest.approx(formula)


def test_llama_3_8b_over_eight_ranks():  # deepspeedai/DeepSpeed issue 6808
    assert formulas.ulysses_sent_bytes(8, 65536 // 8, 4096, 1024) == 146_800_640


def test_the_lesson_numbers():
    assert formulas.ulysses_sent_bytes(8, 16384, 4096, 4096) / 1e6 == pytest.approx(470, abs=0.5)
    assert formulas.largest_degree(32, 8) == 8
    assert formulas.kv_head_copies(8, 2) == 4  # PrimeIntellect-ai/prime-rl pull request 3042


@given(a=st.integers(1, 64), k=st.integers(1, 64), copies=st.integers(1, 8))
def test_no_larger_degree_gives_every_rank_a_head(a, k, copies):
    a = max(a, k)
    degrees = [n for n in range(1, a + 1) if formulas.kv_head_copies(n, k) <= copies]
    assert formulas.largest_degree(a, k, copies) == max(degrees)
