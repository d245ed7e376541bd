"""The forms: limits, monotony, units, and the work that attention counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.rates.kernels import Attention, AttentionShape, GroupedProduct, Product, Residuals, Streams, soft_maximum

PRODUCT = Product(989e12, 700e12, 2.6e12, 2.5, 4e-6, 2.0)
sizes = st.integers(1, 65536)
times = st.floats(1e-9, 1e3)


@settings(max_examples=60)
@given(a=times, b=times, p=st.floats(0.5, 16))
def test_soft_maximum_lies_between_the_larger_and_what_its_exponent_allows(a, b, p):
    value = float(soft_maximum(a, b, p))
    assert value >= max(a, b) * (1 - 1e-12)
    assert value <= 2 ** (1 / p) * max(a, b) * (1 + 1e-9)
    assert value == pytest.approx(float(soft_maximum(b, a, p)))


def test_soft_maximum_adds_at_one_and_takes_the_larger_at_infinity():
    assert float(soft_maximum(3.0, 4.0, 1.0)) == pytest.approx(7.0)
    assert float(soft_maximum(3.0, 4.0, 2.0)) == pytest.approx(5.0)
    assert float(soft_maximum(3.0, 4.0, 200.0)) == pytest.approx(4.0)
    assert soft_maximum([0.0, 0.0], [0.0, 2.0], 0.6).tolist() == [0.0, 2.0]


@settings(max_examples=60)
@given(m=sizes, n=sizes, k=sizes)
def test_a_product_is_never_faster_than_the_peak_and_never_faster_when_larger(m, n, k):
    t = float(PRODUCT.seconds(m, n, k))
    assert t >= 2.0 * m * n * k / PRODUCT.peak_flops_per_s
    assert float(PRODUCT.seconds(2 * m, n, k)) >= t
    assert float(PRODUCT.seconds(m, 2 * n, k)) >= t
    assert float(PRODUCT.seconds(m, n, 2 * k)) >= t


def test_a_large_product_runs_at_its_rate_and_a_thin_one_at_the_memory():
    n = 65536
    assert 2.0 * n**3 / float(PRODUCT.seconds(n, n, n)) == pytest.approx(700e12, rel=0.01)
    moved = 2.0 * (8 + 8192 * 8192 + 8192 * 8)
    assert float(PRODUCT.seconds(1, 8192, 8192)) == pytest.approx(moved / 2.6e12 + 4e-6, rel=0.02)


def test_nothing_to_multiply_takes_no_time():
    assert PRODUCT.seconds([0, 1], 8, 8)[0] == 0.0


def test_more_groups_of_the_same_rows_cost_more():
    grouped = GroupedProduct(PRODUCT, 0.85, 64.0, 0.0)
    t = grouped.seconds(65536, [1, 8, 64, 512], 4096, 4096)
    assert (np.diff(t) > 0).all()


def test_groups_beyond_the_rows_are_not_read():
    grouped = GroupedProduct(PRODUCT, 1.0, 0.0, 0.0)
    assert float(grouped.seconds(16, 16, 4096, 4096)) == pytest.approx(float(grouped.seconds(16, 256, 4096, 4096)))


def test_launching_each_group_binds_small_groups_only():
    launched = GroupedProduct(PRODUCT, 1.0, 0.0, 1e-5)
    assert float(launched.seconds(256 * 16, 256, 1024, 1024)) == pytest.approx(256e-5 + PRODUCT.fixed_s)
    large = 256 * 8192
    assert launched.seconds(large, 256, 8192, 8192) == GroupedProduct(PRODUCT, 1.0, 0.0, 0.0).seconds(large, 256, 8192, 8192)


def test_attention_counts_two_products_forward_and_five_backward():
    shape = AttentionShape.of(4096, 4096, 32, 8, 128, 128, 0.5, 2)
    assert float(shape.forward_flops) == 2 * 2 * 32 * 4096**2 * 0.5 * 256
    assert float(shape.backward_flops) == 2.5 * float(shape.forward_flops)
    latent = AttentionShape.of(4096, 4096, 128, 128, 192, 128, 0.5, 1)  # three over 192, two over 128
    assert float(latent.backward_flops / latent.forward_flops) == pytest.approx((3 * 192 + 2 * 128) / 320)


ATTENTION = Attention(989e12, (64.0, 128.0), (500e12, 700e12), 64.0, 16000.0, 1.3, 1.3e12, 1e-5)


@settings(max_examples=60)
@given(s=st.integers(128, 131072), h=st.integers(1, 128), d=st.sampled_from([64, 96, 128, 256]))
def test_attention_respects_the_peak_and_grows_with_length_and_heads(s, h, d):
    def seconds(s, h):
        a = AttentionShape.of(s, s, h, h, d, d, 0.5, 1)
        return float(ATTENTION.seconds(a.forward_flops, 2 * a.forward_elements, a.mean_dim, a.length, a.rows)), a

    t, a = seconds(s, h)
    assert t >= float(a.forward_flops) / 989e12
    assert seconds(2 * s, h)[0] > t
    assert seconds(s, 2 * h)[0] >= t * (1 - 1e-12)


def test_residuals_hold_at_nodes_and_lie_between_them():
    logs = np.log(np.arange(1.0, 28.0).reshape(3, 3, 3))
    axes = ([64, 512, 4096], [128, 1024, 8192], [128, 1024, 8192])
    r = Residuals.of(*axes, logs)
    assert float(r.factor(512, 1024, 8192)) == pytest.approx(15.0)
    assert float(r.factor(1e9, 1e9, 1e9)) == pytest.approx(27.0)
    assert float(r.factor(1, 1, 1)) == pytest.approx(1.0)
    middle = float(r.factor(64, 128, np.sqrt(128 * 1024)))
    assert middle == pytest.approx(np.sqrt(1.0 * 2.0))


def test_streams_take_their_share_of_the_memory():
    streams = Streams(3e12, {"norm": 0.5}, 3e-6)
    assert streams.seconds([0, 1.5e12], "norm").tolist() == [0.0, pytest.approx(1 + 3e-6)]
