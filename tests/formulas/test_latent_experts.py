"""What a latent changes for the experts, against layers written out with their own sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import latent_experts as latent
from parlay.formulas.flops import matmul_flops

few = settings(max_examples=50, deadline=None)


def test_the_ratio_that_elango_2026_rounds_to_two():
    assert latent.latent_exchange_to_compute(1536, 2000e12, 900e9) == pytest.approx(1.808, abs=0.0005)
    assert latent.latent_exchange_to_compute(1536, 2000e12, 450e9, 2.5, [1, 3]) == pytest.approx([3.6, 1.2], abs=0.02)


@few
@given(t=st.integers(1, 999), d=st.integers(1, 9999), m=st.integers(1, 9999), b=st.floats(0.5, 4), y=st.integers(1, 3))
def test_the_ratio_is_of_exchange_and_products(t, d, m, b, y):
    F, W = 1e15, 4e11
    exchange, products = b * t * d / W, y * matmul_flops(t, m, d) / F
    assert latent.latent_exchange_to_compute(m, F, W, b, y) == pytest.approx(exchange / products)


@few
@given(
    K=st.integers(1, 8), N=st.integers(1, 16), m=st.integers(1, 8), d=st.sampled_from([8, 16, 32]), a=st.sampled_from([1, 2, 4])
)
def test_sizes_equal_those_of_layers_written_out(K, N, m, d, a):
    weights = [np.empty((d // a, m)) for _ in range(N * a)]
    assert latent.latent_expert_weights(N, d, m, a) == sum(w.size for w in weights) == N * d * m
    copies = [np.empty(d // a) for _ in range(K * a)]
    assert latent.latent_dispatched_elements(K, d, a) == sum(c.size for c in copies) == K * d
    K = min(K, N)
    assert latent.latent_routed_width(K, m, a) == sum(w.shape[1] for w in weights[: K * a])


def test_alpha_of_four():  # N = 128, K = 8, d = 4096, m = 1536
    for same, args in ((latent.latent_dispatched_elements, (8, 4096)), (latent.latent_expert_weights, (128, 4096, 1536))):
        assert same(*args, 4) / same(*args, 1) == 1
    assert latent.latent_routed_width(8, 1536, 4) / latent.latent_routed_width(8, 1536, 1) == 4
