"""What recurrent mixers keep of a sequence, against shapes that vLLM prints and tensors listed one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.formulas import serving_state as state
from parlay.formulas._check import FormulaDomainError

HALF, SINGLE = np.float16, np.float32


def test_a_layer_of_qwen_3_5_as_vllm_allocates_it():
    """conv_state_shape (3, 8192) and temporal_state_shape (32, 128, 128): 2 MiB in fp32 and 48 KiB, 61.4 MiB in 30 layers."""
    assert state.delta_state_bytes(16, 32, 128, 128, 4, 1, state_bytes=4) == 2 * 2**20 + 48 * 2**10
    assert state.delta_state_bytes(16, 32, 128, 128, 4, 30, state_bytes=4) / 2**20 == pytest.approx(61.4, abs=0.05)


def test_mamba_2_8b_counted_by_hand():
    """64 layers x 5,120 channels x (16 of the state + 3 inputs of a convolution of 4), two bytes each."""
    assert state.mamba1_state_bytes(5120, 16, 4, 64) == 64 * 5120 * (16 + 3) * 2


def test_the_shape_that_vllm_names_for_mamba_2():
    """mamba_utils.py: "e.g., (h_heads, head_dim, state_size) = (128, 64, 128)": a MiB of elements."""
    assert state.mamba2_state_bytes(128, 64, 8, 128, 1, 1, state_bytes=1) == 2**20


@pytest.mark.parametrize(("heads", "dim", "groups", "size", "conv"), [(4, 8, 2, 16, 4), (128, 64, 8, 128, 4), (6, 5, 3, 7, 2)])
def test_mamba_2_by_listing_its_tensors(heads, dim, groups, size, conv):
    kept = [np.empty((heads, dim, size), SINGLE)]
    kept += [np.empty((conv - 1, width), HALF) for width in (heads * dim, groups * size, groups * size)]  # x, B, C
    assert state.mamba2_state_bytes(heads, dim, groups, size, conv, 1, state_bytes=4) == sum(x.nbytes for x in kept)


@pytest.mark.parametrize(("keys", "values", "key", "value", "conv"), [(2, 4, 8, 16, 4), (16, 32, 128, 128, 4), (3, 3, 5, 7, 2)])
def test_gated_delta_by_listing_its_tensors(keys, values, key, value, conv):
    kept = [np.empty((values, value, key), SINGLE)]
    kept += [np.empty((conv - 1, width), HALF) for width in (keys * key, keys * key, values * value)]  # q, k, v
    assert state.delta_state_bytes(keys, values, key, value, conv, 1, state_bytes=4) == sum(x.nbytes for x in kept)


@given(t=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_heads_and_channels(t):
    for call, shape in (
        (state.mamba1_state_bytes, (5120, 16, 4, 64)),
        (state.mamba2_state_bytes, (128, 64, 8, 128, 4, 24)),
        (state.delta_state_bytes, (16, 32, 128, 128, 4, 36)),
    ):
        assert t * call(*shape, tensor=t) == pytest.approx(call(*shape))


def test_beyond_groups_and_key_heads_a_rank_keeps_a_whole_one():
    assert state.mamba2_state_bytes(0, 64, 2, 128, 4, 1, tensor=[1, 2, 4]).tolist() == [3072, 1536, 1536]
    assert state.delta_state_bytes(2, 0, 128, 128, 4, 1, tensor=[1, 2, 8]).tolist() == [3072, 1536, 1536]


def test_a_convolution_of_one_keeps_nothing():
    assert state.mamba1_state_bytes(64, 0, 1, 1) == 0
    assert state.delta_state_bytes(1, 2, 3, 4, 1, 1) == 2 * 3 * 4 * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state.mamba1_state_bytes(-1, 16, 4, 1), "`inner`"),
        (lambda: state.mamba1_state_bytes(1, 16, 0, 1), "`conv`"),
        (lambda: state.mamba2_state_bytes(1, 1, [1, 0], 1, 4, 1), r"`groups` must be .* at index \(1,\)"),
        (lambda: state.delta_state_bytes(0, 1, 1, 1, 4, 1), "`key_heads`"),
        (lambda: state.delta_state_bytes(1, 1, 1, 1, 4, 1, tensor=1.5), "`tensor`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()
