"""What tensor and sequence parallelism send, against a layer that is really cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import tensor_parallel as formulas
from parlay.simulate import collectives
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


@few
@given(t=st.integers(1, 4), rows=st.integers(1, 3), inner=st.integers(1, 3), out=st.integers(1, 3))
def test_column_then_row_split_products(t, rows, inner, out):
    rng = np.random.default_rng(0)
    rows, inner, out = rows * t, inner * t, out * t  # shards of one size
    x, up, down = rng.standard_normal((rows, 5)), rng.standard_normal((5, inner)), rng.standard_normal((inner, out))
    world = World(t)
    columns = [x @ w for w in np.split(up, t, axis=1)]
    whole = collectives.all_gather(world, columns, axis=1, operation="columns")
    np.testing.assert_allclose(whole[0], x @ up)
    sums = collectives.all_reduce(world, [c @ w for c, w in zip(columns, np.split(down, t))], operation="rows")
    np.testing.assert_allclose(sums[0], x @ up @ down)
    assert world.ledger.sent_bytes("columns") == pytest.approx(formulas.column_output_sent_bytes(t, whole[0].nbytes))
    assert world.ledger.sent_bytes("rows") == pytest.approx(formulas.row_output_sent_bytes(t, sums[0].nbytes))
    assert formulas.shard_bytes(t, 5, inner, 8) == np.split(up, t, axis=1)[0].nbytes


@few
@given(t=st.integers(1, 5), rows=st.integers(1, 3), h=st.integers(1, 4), split=st.booleans())
def test_a_layer_sends_the_same_with_and_without_sequence_parallelism(t, rows, h, split):
    world, T = World(t), rows * t
    for _ in ("attention", "mlp"):
        partial = [np.ones((T, h)) for _ in range(t)]
        if split:
            collectives.all_gather(world, collectives.reduce_scatter(world, partial))
        else:
            collectives.all_reduce(world, [p.reshape(t, -1) for p in partial])
    assert world.ledger.sent_bytes().sum() == pytest.approx(t * formulas.layer_sent_bytes(t, T, h, 8))


def test_collectives_of_a_layer():  # the lesson, check yourself 1
    assert formulas.all_reduces(1) == 4
    assert formulas.sequence_parallel_gathers(1) == formulas.sequence_parallel_scatters(1) == 4
    assert formulas.sequence_parallel_gathers(1, 2) == 6  # Megatron gathers both saved inputs again


def test_the_documents_numbers():
    assert formulas.layer_sent_bytes(8, 8192, 4096) == 234_881_024
    assert formulas.row_output_sent_bytes(4, 4096 * 1024 * 4) == 25_165_824
    mlp = formulas.shard_bytes([1, 4], 8192, 32768, 4) + formulas.shard_bytes([1, 4], 32768, 1024, 4)
    assert mlp / 1e9 == pytest.approx([1.2, 0.3], rel=0.01)
