"""Parameter formulas against printed counts, against matrices listed one by one, and over odd shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import parameters as p
from parlay.formulas import parameters_state as ps
from parlay.formulas._check import FormulaDomainError

few = settings(max_examples=50)
small = st.integers(1, 512)

PRINTED_PADDED = [  # vocabulary, multiple, tp, rows
    (50257, 128, 1, 50304),  # NVIDIA/Megatron-LM, make-vocab-size-divisible-by 128
    (50257, 128, 2, 50432),
    (50257, 128, 4, 50688),
    (50257, 128, 8, 51200),
    (151552, 128, 6, 152064),  # GLM-4.7 on six GPUs, vllm-project/vllm#31474
    (128256, 128, 8, 129024),
    (128256, 1, 8, 128256),
]


@pytest.mark.parametrize(("vocab", "multiple", "tp", "rows"), PRINTED_PADDED)
def test_padded_vocabulary_as_printed(vocab, multiple, tp, rows):
    assert p.padded_vocabulary(vocab, multiple, tp) == rows


@few
@given(V=st.integers(1, 300_000), m=st.integers(1, 256), t=st.integers(1, 64))
def test_padding_is_the_least_that_divides(V, m, t):
    rows = p.padded_vocabulary(V, m, t)
    assert rows % (m * t) == 0
    assert 0 <= rows - V < m * t


def test_gpt3_from_its_parts():  # arXiv:2005.14165, Table 2.1: 175.0 B for a 96-layer model of width 12,288
    h = 12288
    layer = p.attention_parameters(h, 96, 96, 128) + p.mlp_parameters(h, 4 * h, 2)
    assert layer == 12 * h**2
    total = 96 * layer + p.embedding_parameters(50257, h) + 2048 * h
    assert total / 1e9 == pytest.approx(175.0, rel=0.003)  # vectors left out: 0.02 %


def test_deepseek_v3_holds_most_of_its_weights_in_experts():  # shapes of arXiv:2412.19437: 256 routed experts of width 2,048 in 58 layers
    routed = 58 * p.expert_parameters(7168, 2048, 256)
    assert routed == 653_908_770_816
    assert 58 * p.router_parameters(7168, 256) == 106_430_464


@few
@given(h=small, k=st.integers(1, 16), g=st.integers(1, 8), d=small)
def test_attention_is_the_sum_of_its_matrices(h, k, g, d):
    shapes = [(h, k * g * d), (h, k * d), (h, k * d), (k * g * d, h)]
    assert p.attention_parameters(h, k * g, k, d) == sum(r * c for r, c in shapes)


@few
@given(h=small, a=st.integers(1, 32), rq=st.integers(0, 64), rkv=small, dn=small, dr=small, dv=small)
def test_latent_attention_is_the_sum_of_its_matrices(h, a, rq, rkv, dn, dr, dv):
    queries = [(h, rq), (1, rq), (rq, a * (dn + dr))] if rq else [(h, a * (dn + dr))]
    shapes = [*queries, (h, rkv + dr), (1, rkv), (rkv, a * (dn + dv)), (a * dv, h)]
    assert p.latent_attention_parameters(h, a, rq, rkv, dn, dr, dv) == sum(r * c for r, c in shapes)


@few
@given(h=small, f=small, E=st.integers(1, 64), c=st.sampled_from([2, 3]))
def test_experts_are_as_many_mlps(h, f, E, c):
    assert p.expert_parameters(h, f, E, c) == E * p.mlp_parameters(h, f, c)


@few
@given(
    h=small,
    a=st.integers(1, 16),
    d=st.integers(1, 64),
    g=st.integers(1, 8),
    n=st.integers(1, 64),
    c=st.integers(1, 8),
    b=st.sampled_from([0, 1]),
)
def test_mamba2_is_the_sum_of_its_tensors(h, a, d, g, n, c, b):
    i = a * d
    into_conv = i + 2 * g * n
    tensors = [h * (i + into_conv + a), into_conv * c, into_conv * b, a, a, a, i, i * h]
    assert ps.mamba2_parameters(h, a, d, g, n, c, b) == sum(tensors)


@few
@given(h=small, i=small, n=st.integers(1, 64), r=st.integers(1, 64), c=st.integers(1, 8), b=st.sampled_from([0, 1]))
def test_mamba1_is_the_sum_of_its_tensors(h, i, n, r, c, b):
    tensors = [h * 2 * i, i * c, i * b, i * (r + 2 * n), r * i, i, i * n, i, i * h]
    assert ps.mamba1_parameters(h, i, n, r, c, b) == sum(tensors)


@few
@given(h=small, kh=st.integers(1, 8), g=st.integers(1, 4), dk=small, dv=small, c=st.integers(1, 8))
def test_gated_delta_is_the_sum_of_its_tensors(h, kh, g, dk, dv, c):
    a = kh * g
    K, W = kh * dk, a * dv
    tensors = [h * (2 * K + 2 * W), h * 2 * a, (2 * K + W) * c, a, a, dv, W * h]
    assert ps.gated_delta_parameters(h, K, W, a, dv, c) == sum(tensors)


def test_every_argument_broadcasts():
    h = np.array([[1024], [4096]])
    k = np.array([1, 8, 32])
    got = p.attention_parameters(h, 32, k, 128)
    assert got.shape == (2, 3)
    assert got.tolist() == [[float(p.attention_parameters(int(x), 32, int(y), 128)) for y in k] for x in h[:, 0]]
    assert p.padded_vocabulary(50257, 128, [1, 2]).shape == (2,)


def test_an_error_names_argument_value_and_place():
    with pytest.raises(FormulaDomainError, match=r"`kv_heads` must be >= 1, got 0 at index \(1,\)"):
        p.attention_parameters(4096, 32, [8, 0], 128)
    with pytest.raises(FormulaDomainError, match=r"`width` must be a whole number, got 2.5"):
        p.mlp_parameters(4096, 2.5)
    with pytest.raises(FormulaDomainError, match="`vocab`"):
        p.padded_vocabulary(float("nan"))


def test_lora_as_printed():  # E. Hu et al., arXiv:2106.09685, table 4: GPT-3 with 4.7 M and 37.7 M trainable parameters
    assert 96 * 2 * p.lora_parameters(1, 12288, 12288) / 1e6 == pytest.approx(4.7, abs=0.05)
    assert 96 * 2 * p.lora_parameters(8, 12288, 12288) / 1e6 == pytest.approx(37.7, abs=0.05)


@few
@given(r=st.integers(1, 64), k=small, d=small)
def test_an_adapter_is_the_elements_of_its_two_matrices(r, k, d):
    assert p.lora_parameters(r, k, d) == np.zeros((r, k)).size + np.zeros((d, r)).size


def test_an_adapter_has_a_rank():
    with pytest.raises(FormulaDomainError, match="rank"):
        p.lora_parameters(0, 4096, 4096)
