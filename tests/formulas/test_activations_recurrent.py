"""What recurrent mixers keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.formulas import activations_recurrent as recurrent
from parlay.formulas._check import FormulaDomainError


@given(t=st.sampled_from([1, 2, 4, 8]))
def test_recurrent_mixers_split_by_heads(t):
    assert recurrent.mamba2_kept(4096, 8192, 8, 128, 128, tensor=t) * t == pytest.approx(
        recurrent.mamba2_kept(4096, 8192, 8, 128, 128)
    )
    assert recurrent.gated_delta_kept(64, 2048, 4096, 32, 128, tensor=t) * t == pytest.approx(
        recurrent.gated_delta_kept(64, 2048, 4096, 32, 128)
    )


def test_states_vanish_with_ever_longer_chunks():
    short, long = recurrent.mamba2_kept(1, 64, 1, 128, 2, chunk=64), recurrent.mamba2_kept(1, 64, 1, 128, 2, chunk=1e12)
    assert short - long == pytest.approx(4 * 64 * 128 / 64)
    assert long == pytest.approx(2 * (4 * 64 + 2 * 128 + 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recurrent.mamba2_kept(1, 1, 1, 1, 1, chunk=0), "`chunk`"),
        (lambda: recurrent.gated_delta_kept(1, 1, 1, 1, 1, chunk=[4, 0]), r"`chunk` must be >= 1, got 0 at index \(1,\)"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()
