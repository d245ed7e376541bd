"""ZeRO stages 0 to 3: the weights of training on one rank, the state that each rank holds, and the bytes that each stage sends."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import flops
from parlay.formulas.optimizer_state import sharded_bytes, zero_state
from parlay.simulate import tape, zero
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)
STEPS = 2


def problem(seed, D, micro, rows, widths):
    rng = np.random.default_rng(seed)
    layers = [rng.standard_normal((i + 1, o)) / np.sqrt(i + 1) for i, o in itertools.pairwise(widths)]
    steps = [
        [
            [(rng.standard_normal((rows, widths[0])), rng.standard_normal((rows, widths[-1]))) for _ in range(micro)]
            for _ in range(D)
        ]
        for _ in range(STEPS)
    ]
    return layers, steps


def on_one_rank(layers, steps, rate=0.01):
    """Adam on the mean of all examples, gradients from the tape."""
    weights, first, second = [w.copy() for w in layers], [0.0] * len(layers), [0.0] * len(layers)
    for number, batches in enumerate(steps, 1):
        x, y = (np.concatenate([batch[side] for mine in batches for batch in mine]) for side in (0, 1))
        leaves = [(tape.Value(w[:-1]), tape.Value(w[-1:])) for w in weights]
        out = tape.Value(x)
        for matrix, bias in leaves:
            out = (out @ matrix + bias).apply(np.tanh, lambda u: 1 - np.tanh(u) ** 2)
        out.backward((out.array - y) / len(x))
        for n, (matrix, bias) in enumerate(leaves):
            g = np.concatenate([matrix.gradient, bias.gradient])
            first[n], second[n] = 0.9 * first[n] + 0.1 * g, 0.95 * second[n] + 0.05 * g * g
            weights[n] = weights[n] - rate * (first[n] / (1 - 0.9**number)) / (np.sqrt(second[n] / (1 - 0.95**number)) + 1e-8)
    return weights


def train(stage, D, layers, steps):
    world = World(D)
    trainer = zero.Trainer(world, layers, stage)
    for batches in steps:
        trainer.step(batches)
    return world.ledger, trainer


@few
@given(
    seed=st.integers(0, 1000),
    stage=st.sampled_from([0, 1, 2, 3]),
    D=st.integers(1, 5),
    micro=st.integers(1, 3),
    rows=st.integers(1, 3),
    widths=st.lists(st.integers(1, 4), min_size=2, max_size=4),
)
def test_any_sizes_train_to_the_same_weights(seed, stage, D, micro, rows, widths):
    layers, steps = problem(seed, D, micro, rows, widths)
    ledger, trainer = train(stage, D, layers, steps)
    for mine, right in zip(trainer.weights(), on_one_rank(layers, steps)):
        np.testing.assert_allclose(mine, right, rtol=0, atol=1e-12 * max(1.0, np.abs(right).max()))
    if stage < 3:
        assert all(np.array_equal(a, b) for mine in trainer.ranks for a, b in zip(mine.weights, trainer.ranks[0].weights))
    P = sum(w.size for w in layers)
    # Over all ranks one gather or scatter moves each element to D - 1 others.
    times = {0: 2, 1: 1 + 1, 2: micro + 1, 3: micro + 2 * micro}[stage]
    assert ledger.sent_bytes().sum() == STEPS * times * (D - 1) * P * 8
    work = flops.training_flops(sum(w.size for w in layers)) * D * micro * rows * STEPS
    assert ledger.flops_done(zero.FORWARD, zero.BACKWARD).sum() == work


@few
@given(
    stage=st.sampled_from([0, 1, 2, 3]), D=st.integers(1, 5), micro=st.integers(1, 3), each=st.integers(1, 3), n=st.integers(1, 3)
)
def test_even_shards_hold_and_send_the_same(stage, D, micro, each, n):
    layers, steps = problem(0, D, micro, 1, [D * each] * (n + 1))  # D divides every layer
    ledger, trainer = train(stage, D, layers, steps)
    P = sum(w.size for w in layers)
    held = zero_state(P, stage=stage, shards=D, weight_bytes=8, gradient_bytes=8, master_bytes=0, moments_bytes=16)
    assert [mine.held_bytes() for mine in trainer.ranks] == [held] * D
    moments = [sum(a.nbytes for a in (*mine.first, *mine.second)) for mine in trainer.ranks]
    assert moments == [sharded_bytes(P, 16, shards=D if stage else 1)] * D
    ring = (D - 1) * P * 8 // D * STEPS
    sends = {name: ledger.sent_bytes(name).tolist() for name in ledger.bytes}
    expected = {zero.GRADIENTS: {0: 2, 1: 1, 2: micro, 3: micro}[stage] * ring}
    if stage in (1, 2):
        expected[zero.WEIGHTS_UPDATED] = ring
    if stage == 3:
        expected |= {zero.WEIGHTS_FORWARD: micro * ring, zero.WEIGHTS_BACKWARD: micro * ring}
    assert sends == ({name: [size] * D for name, size in expected.items()} if D > 1 else {})


def test_refuses_another_stage():
    with pytest.raises(ValueError, match="`stage` must be 0, 1, 2 or 3, got 4"):
        zero.Trainer(World(1), [np.zeros((2, 2))], 4)
