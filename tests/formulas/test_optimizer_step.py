"""The traffic of Adam's step by hand, the products of Muon's, and measured steps of CPUs."""

import numpy as np
import pytest

from parlay.formulas import optimizer_step as step
from parlay.formulas._check import FormulaDomainError


def test_step_traffic_of_adam_and_of_bf16_states():
    assert step.step_traffic_bytes(1) == 4 + 2 * 12 + 2
    assert step.step_traffic_bytes(10, gradient_bytes=2, master_bytes=2, moments_bytes=4) == 10 * (2 + 12 + 2)


@pytest.mark.parametrize(("given", "each"), [
    # Megatron-core, bf16 gradients: copied to fp32 (2 + 4), norm (4), Adam (16 + 12), weights from main weights (4 + 2)
    ({"gradient_bytes": 2, "passes": 1, "converted_bytes": 4, "copied_bytes": 4}, 6 + 4 + 28 + 6),
    # torchtitan: fp32 weights without a copy; norm and clipping (4 + 8), Adam reads four values and writes three
    ({"master_bytes": 0, "weight_bytes": 4, "passes": 3}, 12 + 16 + 12),
    # Megatron-core, fp16: unscaling reads and writes the fp32 copies besides
    ({"gradient_bytes": 2, "passes": 3, "converted_bytes": 4, "copied_bytes": 4}, 6 + 12 + 28 + 6),
    # a copy of one byte is one, too: read 4, written 1; Adam reads 1
    ({"converted_bytes": 1}, 5 + 1 + 24 + 2),
])  # fmt: skip
def test_step_traffic_of_what_comes_before_and_after_adam(given, each):
    assert step.step_traffic_bytes(1, **given) == each


@pytest.mark.parametrize(("billions", "printed"), [(1, 0.22), (2, 0.51), (4, 1.03), (8, 2.41), (10, 2.57)])
def test_adam_on_the_cpus_of_a_dgx_2(billions, printed):
    """ZeRO-Offload, table 4 (CPU-Adam), on two Xeon 8168 with six channels of DDR4-2666: 2 x 6 x 8 B x 2.666e9/s."""
    assert step.host_step_s(billions * 1e9, memory_bytes_per_s=2 * 6 * 8 * 2.666e9) == pytest.approx(printed, rel=0.2)


def test_gpus_share_the_memory_of_their_host():
    """Eight GPUs with an eighth each take what one with all takes, and half the traffic half of it."""
    one = step.host_step_s(8e9, memory_bytes_per_s=4e11)
    assert step.host_step_s(1e9, gpus=8, memory_bytes_per_s=4e11) == one
    assert step.host_step_s(8e9, bytes_each=step.step_traffic_bytes(1) / 2, memory_bytes_per_s=4e11) == one / 2


def multiplied(rows, columns, iterations):
    """Return the FLOP that the products of the iterations take, counted as they run on a small matrix, and the matrix."""
    counted = 0

    def product(a, b):
        nonlocal counted
        counted += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    x = np.random.default_rng(1).normal(size=(rows, columns))
    x = x.T if rows > columns else x
    x /= np.linalg.norm(x)
    for _ in range(iterations):  # the coefficients of K. Jordan's zeropower_via_newtonschulz5
        a = product(x, x.T)
        x = 3.4445 * x + product(-4.7750 * a + 2.0315 * product(a, a), x)
    return counted, x


@pytest.mark.parametrize("shape", [(7, 31), (31, 7), (16, 16), (1, 5)])
def test_newton_schulz_counts_what_its_products_take(shape):
    counted, x = multiplied(*shape, 5)
    assert step.newton_schulz_flops(*shape) == counted
    singular = np.linalg.svd(x, compute_uv=False)
    assert 0.4 < singular.min() <= singular.max() < 1.6  # which is what these five iterations are for


def test_newton_schulz_of_halves_and_of_a_square():
    """torchtitan's own count, and two halves of a wide matrix: their squares add up to half."""
    for short, long in ((1024, 8192), (4096, 14336)):
        assert step.newton_schulz_flops(short, long) == 2 * 5 * short * short * (2 * long + short)
    assert step.newton_schulz_flops(4096, 4096) == 5 * 3 * 2 * 4096**3
    assert 2 * step.newton_schulz_flops(512, 8192) < step.newton_schulz_flops(1024, 8192) / 1.9
    assert step.newton_schulz_flops([1024, 8192], [8192, 1024], iterations=[5, 10]).tolist() == [
        step.newton_schulz_flops(1024, 8192), 2 * step.newton_schulz_flops(1024, 8192)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step.step_traffic_bytes(1, master_bytes=-1), "`master_bytes`"),
        (lambda: step.host_step_s(1, memory_bytes_per_s=0), "`memory_bytes_per_s` must be > 0"),
        (lambda: step.host_step_s(1, memory_bytes_per_s=1, share=1.5), "`share` must be > 0 and <= 1"),
        (lambda: step.newton_schulz_flops(-1, 1), "`rows`"),
        (lambda: step.newton_schulz_flops(1, 1, iterations=0.5), "`iterations` must be a whole number"),
        (lambda: step.host_step_s(1, gpus=0, memory_bytes_per_s=1), "`gpus`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()
