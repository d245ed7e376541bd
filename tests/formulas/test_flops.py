"""FLOPs formulas against printed numbers, and against what is counted product by product."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import flops
from parlay.formulas._check import FormulaDomainError

few = settings(max_examples=50)
size = st.integers(1, 4096)


def test_ring_attention_round():  # 4 c^2 h FLOP for a block of 16,384 tokens at width 4,096
    c, h = 16384, 4096
    scores = flops.matmul_flops(c, c, h) + flops.matmul_flops(c, h, c)
    assert scores == 4_398_046_511_104
    assert c * flops.attention_flops(c, 32, 128, 128) == scores


def test_swiglu_copy_of_an_expert():  # 6 h f FLOP: 352,321,536 for 4,096 x 14,336
    h, f = 4096, 14336
    assert 3 * flops.matmul_flops(1, f, h) == 352_321_536


def test_maxtext_before_and_after_the_causal_mask():
    """AI-Hypercomputer/maxtext#1988: Llama 2 7B, 32,768 tokens in sequences of 8,192: 422.21 and 211.11 TFLOP."""
    per_token = 3 * 32 * flops.attention_flops(np.array([8192, 4096]), 32, 128, 128)
    assert 32768 * per_token / 1e12 == pytest.approx([422.21, 211.11], abs=0.005)


def test_deepseek_attention_counts_both_head_sizes():
    """verl-project/verl#4959: 3 (192 + 128) a pair and not 12 x 192; 61 layers, 128 heads, 4,096 tokens, causal."""
    assert 3 * 61 * flops.attention_flops(2048, 128, 192, 128) == 30_702_305_280


def test_narayanan_closed_form():
    """arXiv:2104.04473, section 3: 96 B s l h^2 (1 + s/6h + V/16lh), full recompute of the layers."""
    h, layers, s, V = 12288, 80, 2048, 51200
    a = h // 128
    forward = layers * (2 * 12 * h**2 + flops.attention_flops(s, a, 128, 128))
    ours = flops.recompute_flops(forward, 1) + flops.recompute_flops(2 * h * V, 0)
    assert ours == pytest.approx(96 * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h)), rel=1e-12)


@few
@given(s=st.integers(1, 300), w=st.integers(1, 300))
def test_window_context_counts_positions(s, w):
    w = min(w, s)
    seen = [min(i + 1, w) for i in range(s)]
    assert flops.window_context(w, s) == pytest.approx(sum(seen) / s)


@few
@given(m=size, n=size, k=size)
def test_matmul_counts_terms_and_splits(m, n, k):
    assert flops.matmul_flops(m, n, k) == 2 * m * n * k
    assert flops.matmul_flops(2 * m, n, k) == flops.matmul_flops(m, n, k) + flops.matmul_flops(m, n, k)


@few
@given(P=st.integers(0, 10**12), S=st.floats(0, 1e12))
def test_training_is_one_forward_and_two_gradients(P, S):
    forward = 2 * P + S
    assert flops.training_flops(P, S) == pytest.approx(flops.recompute_flops(forward, 0))
    assert flops.recompute_flops(forward, 1) == pytest.approx(forward * 4)


@few
@given(i=size, n=st.integers(1, 256))
def test_state_update_and_read_out(i, n):
    decay, update, read = i * n, 2 * i * n, 2 * i * n  # the recurrence itself; the convention of 7 adds the gate of the input
    assert decay + update + read < flops.state_flops(i, n) == 7 * i * n
    assert flops.state_flops(i, n, 8) - flops.state_flops(i, n, 7) == i * n


def test_broadcast_equals_a_loop():
    s = np.array([[1024.0], [4096.0]])
    heads = np.array([8, 16, 32])
    grid = flops.attention_flops(s, heads, 128, 64)
    assert grid.tolist() == [[float(flops.attention_flops(x, int(a), 128, 64)) for a in heads] for x in s[:, 0]]


def test_a_window_longer_than_the_sequence_is_refused():
    with pytest.raises(FormulaDomainError, match="window"):
        flops.window_context(4096, 1024)
    with pytest.raises(FormulaDomainError, match=r"`recomputed_share` must be >= 0 and <= 1, got 1.5"):
        flops.recompute_flops(1.0, 1.5)
    with pytest.raises(FormulaDomainError, match="`context`"):
        flops.attention_flops(-1, 32, 128, 128)


def test_adapters_beside_frozen_weights_count_product_by_product():
    """One frozen layer and one adapter of rank r: the layer's output and input gradient, the adapter's four gradients."""
    k, d, r = 4096, 14336, 16
    frozen = flops.matmul_flops(1, d, k) + flops.matmul_flops(1, k, d)
    forward = flops.matmul_flops(1, r, k) + flops.matmul_flops(1, d, r)
    inputs = flops.matmul_flops(1, r, d) + flops.matmul_flops(1, k, r)
    weights = flops.matmul_flops(r, k, 1) + flops.matmul_flops(d, r, 1)
    assert flops.adapter_training_flops(k * d, r * (k + d)) == frozen + forward + inputs + weights


@few
@given(P=st.integers(0, 10**12), S=st.floats(0, 1e12))
def test_frozen_weights_save_the_weight_gradient(P, S):
    assert flops.training_flops(P, S) - flops.adapter_training_flops(P, 0, S) == pytest.approx(flops.matmul_flops(1, P, 1))


def test_adapter_flops_refuse_what_means_nothing():
    with pytest.raises(FormulaDomainError, match="adapter_weights"):
        flops.adapter_training_flops(1e9, -1)


def test_compressed_entries_position_by_position():
    """Entries of r tokens, of which a query reads at most k: the integral is the mean over positions, to half an entry."""
    for s, r, k in ((4096, 4, 512), (4096, 128, 10**9), (65536, 4, 512), (1000, 7, 40)):
        counted = np.minimum(k, np.arange(1, s + 1) / r).mean()
        assert flops.compressed_context(s, r, k) == pytest.approx(counted, abs=0.5 / r + 1e-9)


@few
@given(s=st.integers(1, 10**6), r=st.integers(1, 256), k=st.integers(1, 4096))
def test_compressed_entries_are_never_more_than_there_are(s, r, k):
    found = flops.compressed_context(s, r, k)
    assert 0 < found <= min(k, s / r)
    assert found <= flops.compressed_context(s, r)


def test_compressed_entries_refuse_no_rate():
    with pytest.raises(FormulaDomainError, match="rate"):
        flops.compressed_context(4096, 0)
