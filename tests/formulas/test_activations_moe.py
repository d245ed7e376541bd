"""Rows, kept tensors and moments of expert layers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations_moe as moe
from parlay.formulas._check import FormulaDomainError


def test_rows_as_a_megatron_contributor_derived_them():
    """Megatron-LM pull request 6782: top-8, 4096 tokens: 32768 rows, 128 MiB at h = 2048, whatever the expert parallelism."""
    rows = moe.expert_rows(4096, 8)
    assert rows == 32768
    assert moe.expert_input(rows, 2048, probability_bytes=0) == 134217728


@settings(max_examples=50)
@given(n=st.integers(1, 8192), k=st.integers(1, 8), t=st.sampled_from([1, 2, 4]), u=st.sampled_from([1, 2, 4]))
def test_all_ranks_together_receive_every_token_of_every_choice(n, k, t, u):
    """t ranks send n/t tokens each; u of them share an expert's rows, so a row is received u times."""
    assert moe.expert_rows(n, k, tensor=t, expert_tensor=u) * t == pytest.approx(n * k * u)


@given(n=st.integers(1, 8192), experts=st.sampled_from([8, 64, 160]), phi=st.sampled_from([1.0, 1.25, 2.0]))
def test_padding_never_holds_fewer_rows_and_wastes_less_than_one_a_expert(n, experts, phi):
    exact = 6 * n * phi
    padded = moe.expert_rows(n, 6, experts=experts, capacity_factor=phi)
    assert exact - 1e-6 <= padded < exact + experts + 1e-6


def test_the_busiest_rank_scales_dropless_rows_only():
    assert moe.expert_rows(100, 2, imbalance=1.5) == 300
    assert moe.expert_rows(128, 2, imbalance=1.5, experts=8, capacity_factor=1) == 256


def test_the_sum_of_a_kept_expert_layer():
    """R (2h + 6m + 8) for gated experts, 17 E a token for the router."""
    from parlay.formulas.activations import feed_forward

    rows, h, m = 1000.0, 7168, 2048
    total = moe.expert_input(rows, h) + feed_forward(rows, m, branches=2) + feed_forward(rows, m, branches=1)
    assert total == rows * (2 * h + 6 * m + 8)
    assert moe.router_kept(1, 256) == 17 * 256
    assert moe.row_map_kept(1, 256) == 4 * 513


def test_combine_holds_four_row_tensors_and_two_outputs():
    assert moe.combine_held(32768, 7168, 4096) == 4 * 2 * 7168 * 32768 + 2 * 2 * 7168 * 4096
    assert moe.combine_held(10, 8, 5, copies=3, outputs=1) == 2 * 8 * (30 + 5)


def test_broadcast():
    assert moe.combine_held(np.array([1, 2]), 4, np.array([[1], [3]])).shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: moe.expert_rows(1, 1, imbalance=0.5), "`imbalance` must be >= 1"),
        (lambda: moe.expert_rows(1, 1, tensor=0), "`tensor`"),
        (lambda: moe.router_kept(-1, 1), "`tokens`"),
        (lambda: moe.row_map_kept(1, -1), "`experts`"),
        (lambda: moe.expert_input(-1, 1), "`rows`"),
        (lambda: moe.combine_held(1, -1, 1), "`width`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


def test_what_floating_point_adds_to_a_full_row_is_not_a_row():
    """A ten-billionth is noise, a billionth is not."""
    rows = moe.expert_rows(1, 1, experts=1, capacity_factor=[1 + 3e-10, 1 + 2e-9])
    assert rows.tolist() == [1.0, 2.0]
