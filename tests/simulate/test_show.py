"""What is shown reproduces the lesson's worked examples, digit for digit, and the simulated runs behind it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.simulate import attention, placement, ring, show, tensor
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)

# Worked example (c) of the lesson "Sequence, context and expert parallelism": by round, by rank the pairs (query, key).
ZIGZAG = [
    ["(0,0) (7,0) (7,7)", "(1,1) (6,1) (6,6)", "(2,2) (5,2) (5,5)", "(3,3) (4,3) (4,4)"],
    ["(7,3) (7,4)", "(1,0) (6,0)", "(2,1) (5,1)", "(3,2) (4,2)"],
    ["(7,2) (7,5)", "(6,3) (6,4)", "(2,0) (5,0)", "(3,1) (4,1)"],
    ["(7,1) (7,6)", "(6,2) (6,5)", "(5,3) (5,4)", "(3,0) (4,0)"],
]
BLOCKS = [
    [[0, 7], [1, 6], [2, 5], [3, 4]],
    [[3, 4], [0, 7], [1, 6], [2, 5]],
    [[2, 5], [3, 4], [0, 7], [1, 6]],
    [[1, 6], [2, 5], [3, 4], [0, 7]],
]


def test_example_c_zigzag():
    shown = show.ring_rounds(4, 8, layout="zigzag")
    assert [[" ".join(f"({q},{k})" for q, k in pairs) for pairs in each.pairs] for each in shown.rounds] == ZIGZAG
    assert [each.key_tokens for each in shown.rounds] == BLOCKS
    assert [each.time for each in shown.rounds] == [3, 2, 2, 2]
    assert (shown.work, shown.time, shown.best_time, shown.idle_share) == ([9] * 4, 9, 9.0, 0.0)


def test_example_c_contiguous():
    shown = show.ring_rounds(4, 8, layout="contiguous")
    assert (shown.work, [each.time for each in shown.rounds], shown.time) == ([3, 7, 11, 15], [3, 4, 4, 4], 15)
    assert sum(shown.work) == 36
    assert shown.idle_share == 1 - 36 / 60
    assert [each.idle for each in shown.rounds] == [[0, 0, 0, 0], [4, 0, 0, 0], [4, 4, 0, 0], [4, 4, 4, 0]]


def test_long_contiguous_blocks_take_n_minus_one_half():
    shown, other = (show.ring_rounds(4, 4 * 4096, layout=name, list_pairs=False) for name in ("contiguous", "zigzag"))
    assert shown.time / other.time == pytest.approx(1.75, rel=1e-3)


@few
@given(N=st.integers(1, 5), extra=st.integers(0, 9), layout=st.sampled_from(placement.LAYOUTS), causal=st.booleans())
def test_the_rounds_are_those_of_the_ring(N, extra, layout, causal):
    seq, world, rng = N + extra, World(N), np.random.default_rng(0)
    shown, at = show.ring_rounds(N, seq, layout=layout, causal=causal), placement.token_positions(seq, N, layout)
    shards = [rng.standard_normal((1, len(mine), 1)) for mine in at]
    ring.ring_attention(world, shards, shards, shards, at, causal=causal)
    assert world.ledger.flops_done(attention.FORWARD).tolist() == [4 * work for work in shown.work]
    assert all([len(pairs) for pairs in each.pairs] == each.work for each in shown.rounds)
    every = [pair for each in shown.rounds for pairs in each.pairs for pair in pairs]
    assert sorted(every) == [(q, k) for q in range(seq) for k in range(q + 1 if causal else seq)]


def test_ulysses_with_copied_heads():
    shown = show.ulysses_grids(4, 8, 8, kv_heads=2)
    assert shown.before == [[token // 2] * 8 for token in range(8)]
    assert shown.after == [[0, 0, 1, 1, 2, 2, 3, 3]] * 8
    assert shown.kv_heads_of == [[0], [0], [1], [1]]
    assert (shown.kv_copies, shown.largest_without_copies) == (2, 2)
    assert sum(row.count(True) for row in shown.arrived) == 48  # each rank keeps one block of four
    assert (shown.query_cells_sent, shown.kv_cells_sent) == ([12] * 4, [12] * 4)


def test_example_a():
    shown = show.sequence_parallel([[1, 2, 3, 4], [10, 20, 30, 40]])
    (reduced,), (scattered, gathered) = shown.tensor, shown.tensor_and_sequence
    assert reduced.after == [[11, 22, 33, 44]] * 2
    assert reduced.sent_elements == [4, 4]
    assert scattered.after == [[11, 22], [33, 44]]
    assert (scattered.sent_elements, gathered.sent_elements) == ([2, 2], [2, 2])
    assert gathered.after == [[11, 22, 33, 44]] * 2
    assert shown.tokens_kept == ([4, 4], [2, 2])


@few
@given(t=st.integers(1, 3), per_rank=st.integers(1, 3), d=st.integers(1, 3), sequence=st.booleans())
def test_regions_are_what_rank_0_keeps(t, per_rank, d, sequence):
    s, h, f = t * per_rank, t * d, 4 * t * d
    rng, shape, world = np.random.default_rng(0), tensor.Shape(t, t, d, t, sequence), World(t)
    sizes = {"wq": (h, h), "wk": (h, h), "wv": (h, h), "wo": (h, h), "w_up": (h, f), "w_down": (f, h)}
    sizes |= {"b_up": (f,)} | dict.fromkeys(("bq", "bk", "bv", *tensor.WHOLE), (h,))
    shards = tensor.shard_weights({name: rng.standard_normal(size) for name, size in sizes.items()}, shape)
    rows = per_rank if sequence else s
    masks = [{"mask 1": np.ones((rows, h), bool), "mask 2": np.ones((rows, h), bool)} for _ in range(t)]
    saved = tensor.forward(world, [rng.standard_normal((rows, h)) for _ in range(t)], shards, masks, shape)
    kept, regions = saved.kept[0], show.layer_regions(s, h, tensor=t, sequence=sequence)
    heads, tokens, width = kept["attention"].shape
    shapes = [
        kept["norm output 1"].shape,
        (tokens, heads * width),
        kept["norm output 2"].shape,
        kept["up"].shape,
        saved.outputs[0].shape,
    ]
    assert [(each.tokens, each.width) for each in regions] == shapes
    if t > 1:
        ran = [each.collective_after for each in regions if each.collective_after]
        assert ran == (["all-gather", "reduce-scatter"] * 2 if sequence else ["all-reduce"] * 2)
        ring_steps = sum({"all-reduce": 2}.get(name, 1) for name in ran) * (t - 1)
        assert world.ledger.messages_sent(*tensor.collectives_of(tensor.FORWARD)).tolist() == [ring_steps] * t


def test_refuses_what_cannot_be_shown():
    with pytest.raises(UsageError, match="unknown layout 'spiral'"):
        show.ring_rounds(2, 4, layout="spiral")
    for call in (lambda: show.ring_rounds(4, 3), lambda: show.ulysses_grids(4, 3, 4)):
        with pytest.raises(UsageError, match="3 tokens over 4 ranks leave a rank without tokens"):
            call()
    with pytest.raises(UsageError, match="Ulysses over 4 ranks needs at least 4 query heads, got 2"):
        show.ulysses_grids(4, 8, 2)
    with pytest.raises(UsageError, match="4 query heads do not divide into 3 K/V heads"):
        show.ulysses_grids(2, 8, 4, kv_heads=3)
    with pytest.raises(UsageError, match="every GPU holds a partial sum of the same tokens"):
        show.sequence_parallel([[1, 2], [1]])
