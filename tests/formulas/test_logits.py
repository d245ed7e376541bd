"""Vocabulary padding and what the loss holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import logits
from parlay.formulas._check import FormulaDomainError
from parlay.formulas.parameters import padded_vocabulary


@pytest.mark.parametrize(
    ("vocab", "tensor", "padded"),
    [(50257, 1, 50304), (50257, 2, 50432), (131073, 4, 131584), (128257, 1, 128384), (129281, 1, 129408)],
)
def test_padding_as_megatron_prints_it(vocab, tensor, padded):
    assert padded_vocabulary(vocab, tensor_parallel=tensor) == padded


@settings(max_examples=50)
@given(v=st.integers(1, 300_000), m=st.sampled_from([1, 64, 128]), t=st.sampled_from([1, 2, 8]))
def test_padding_is_the_smallest_multiple(v, m, t):
    p = padded_vocabulary(v, multiple=m, tensor_parallel=t)
    assert p % (m * t) == 0
    assert 0 <= p - v < m * t


# SkyRL pull request 1841: 62,080 logits a rank, 131,072 tokens, GiB printed to one digit
@pytest.mark.parametrize(("bytes_per_logit", "printed"), [(6, 46.2), (10, 76.5)])
def test_measured_losses_of_long_sequences(bytes_per_logit, printed):
    assert logits.logits_held(131072, 62080, bytes_per_logit) / 2**30 == pytest.approx(printed, rel=0.02)


@given(c=st.integers(1, 64), t=st.sampled_from([1, 2, 8]))
def test_chunks_and_ranks_divide(c, t):
    assert logits.logits_held(4096, 128256, 6, tensor=t, chunks=c) * c * t == pytest.approx(4096 * 128256 * 6)


def test_the_gradient_has_its_shard_beside_it_with_sequence_parallelism_only():
    got = logits.output_layer_gradient(64, 128, tensor=[1, 4, 4], sequence_parallel=[1, 0, 1])
    assert got.tolist() == [64 * 128 * 2, 64 * 128 * 2, 64 * 128 * 2.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: padded_vocabulary(1, multiple=1.5), "`multiple` must be a whole number"),
        (lambda: padded_vocabulary(1, tensor_parallel=0), "`tensor_parallel`"),
        (lambda: logits.logits_held(1, 1, 1, chunks=0), "`chunks`"),
        (lambda: logits.output_layer_gradient(1, -1), "`hidden`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


def test_the_shard_beside_the_gradient_from_two_ranks_on():
    got = logits.output_layer_gradient(64, 128, tensor=[1, 2, 3], sequence_parallel=1, element_bytes=6)
    assert got.tolist() == [64 * 128 * 6, 64 * 128 * 9, 64 * 128 * 8]
