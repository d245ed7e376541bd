"""What recurrent mixers keep."""

import numpy as np
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


@pytest.mark.parametrize(("key_heads", "value_heads", "key_dim", "value_dim"), [(2, 4, 8, 16), (16, 32, 128, 128), (3, 3, 5, 7)])
def test_gated_delta_by_listing_its_tensors(key_heads, value_heads, key_dim, value_dim):
    n, chunk, half, single = 192, 64, np.float16, np.float32
    keys, values = (n, key_heads, key_dim), (n, value_heads, value_dim)
    convolution = [np.empty(shape, half) for shape in (keys, keys, values) for _ in ("in", "out")]
    wide = [np.empty(values, half) for _ in ("gate z", "output of the scan", "output of the gated norm")]
    gates = [np.empty((n, value_heads), single) for _ in ("decay", "beta")]
    states = [np.empty((value_heads, key_dim, value_dim), half) for _ in range(n // chunk)]
    kept = sum(each.nbytes for each in [*convolution, *wide, *gates, *states])
    given = (key_heads * key_dim, value_heads * value_dim, value_heads, key_dim)
    assert recurrent.gated_delta_kept(n, *given, chunk=chunk) == kept


@pytest.mark.parametrize(("heads", "head_dim", "groups", "state"), [(4, 8, 2, 16), (128, 64, 8, 128), (3, 5, 3, 7)])
def test_mamba2_by_listing_its_tensors(heads, head_dim, groups, state):
    n, chunk, half, single = 192, 64, np.float16, np.float32
    inner = (n, heads, head_dim)
    projected = [
        np.empty(shape, half) for shape in (inner, inner, (n, groups, state), (n, groups, state), (n, heads))
    ]  # z x B C dt
    wide = [np.empty(inner, half) for _ in ("output of the scan", "output of the gated norm")]
    states = [np.empty((heads, head_dim, state), single) for _ in range(n // chunk)]
    kept = sum(each.nbytes for each in [*projected, *wide, *states])
    assert recurrent.mamba2_kept(n, heads * head_dim, groups, state, heads, chunk=chunk) == kept
