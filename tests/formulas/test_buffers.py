"""Buffers: sizes that their sources print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.formulas import buffers
from parlay.formulas._check import FormulaDomainError

MIB = 2**20


def llama_70b_shapes(tensor):
    h, f, qkv = 8192, 28672, 10240
    return (qkv * h + h * h + 2 * f * h + h * f) / tensor, 128384 * h / tensor


@pytest.mark.parametrize(("tensor", "printed"), [(1, 3.55), (2, 1.78), (4, 0.89), (8, 0.45)])
def test_cached_weight_gradients_of_llama_70b(tensor, printed):
    """Layers and output layer together, GiB, at tensor parallel 1, 2, 4, 8."""
    layer, head = llama_70b_shapes(tensor)
    assert buffers.weight_gradient_cache(layer + head) / 2**30 == pytest.approx(printed, abs=0.006)


def test_workspaces_seen_on_blackwell():
    assert buffers.matmul_workspaces() / MIB == 48.25
    assert buffers.matmul_workspaces(te_streams=5) - buffers.matmul_workspaces() == 128 * MIB


@given(shards=st.integers(1, 512))
def test_gathered_blocks(shards):
    unit = 218_112_000
    assert buffers.unsharded_forward(unit, shards=shards) == pytest.approx(6 * unit + 2 * unit / shards)
    assert buffers.unsharded_backward(unit) == 10 * unit


def test_a_bucket_is_never_larger_than_the_model():
    assert buffers.bucket_bytes([1e8, 1e9]).tolist() == [2e8, 1e9]


def test_reserve_is_a_share():
    assert buffers.allocator_reserve(100.0) == pytest.approx(3.8)
    assert buffers.allocator_reserve(100.0, share=0) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: buffers.weight_gradient_cache(-1), "`elements`"),
        (lambda: buffers.matmul_workspaces(te_streams=-1), "`te_streams`"),
        (lambda: buffers.unsharded_forward(1, shards=[1, 0]), r"`shards` must be >= 1, got 0 at index \(1,\)"),
        (lambda: buffers.unsharded_backward(-1), "`unit`"),
        (lambda: buffers.bucket_bytes(1, buckets=-1), "`buckets`"),
        (lambda: buffers.allocator_reserve(1, share=-0.1), "`share`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


def test_shard_copies_of_published_collectives():
    """FSDP2 (_fsdp_collectives.py): 2 + 2 bytes out of each of two gatherings, 2 + 4 into the reduction: 14 a parameter."""
    assert buffers.shard_copy_bytes(1.0) == 14
    assert buffers.shard_copy_bytes(1.0, gathers=1) == 10


def test_copies_of_blocks_add_up():
    """Two blocks move what both move, and a second gathering what a first one does; nothing moves where buffers are the tensors."""
    a, b = 218_112_000.0, 524_288_000.0
    assert buffers.shard_copy_bytes(a + b) == buffers.shard_copy_bytes(a) + buffers.shard_copy_bytes(b)
    once, twice, thrice = (float(buffers.shard_copy_bytes(a, gathers=n)) for n in (1, 2, 3))
    assert twice - once == thrice - twice == 4 * a
    assert buffers.shard_copy_bytes(a, around_gather=0, around_reduction=0) == 0
