"""Printed values of the sources, identities between formulas, and what lies outside their domain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations as act
from parlay.formulas._check import FormulaDomainError

sizes = st.integers(1, 4096)
degrees = st.sampled_from([1, 2, 4, 8])

# What lecture notes on sequence parallelism print: tokens, hidden, tensor, sequence parallel, bytes, half of the last digit
PRINTED = [
    (131072, 4096, 1, 0, 18.3e9, 0.05e9),
    (8192, 4096, 1, 0, 1.14e9, 0.005e9),
    (8192, 4096, 8, 0, 436e6, 0.5e6),
    (8192, 4096, 8, 1, 143e6, 0.5e6),
    (4096, 5120, 4, 0, 336e6, 0.5e6),
    (4096, 5120, 4, 1, 178e6, 0.5e6),
]


@pytest.mark.parametrize(("tokens", "hidden", "tensor", "sp", "printed", "slack"), PRINTED)
def test_the_classic_count_as_printed(tokens, hidden, tensor, sp, printed, slack):
    assert act.korthikanti_layer(tokens, hidden, tensor=tensor, sequence_parallel=sp) == pytest.approx(printed, abs=slack)


def test_replicated_share_and_saving_of_sequence_parallelism():
    plain = act.korthikanti_layer(1, 4096, tensor=8)
    assert 10 * 4096 / plain == pytest.approx(0.76923, abs=5e-6)
    assert plain / act.korthikanti_layer(1, 4096, tensor=8, sequence_parallel=1) == pytest.approx(3.0588, abs=5e-5)


def test_unfused_scores_are_five_bytes_a_score_with_dropout_and_two_without():
    assert act.unfused_scores(7, 11, 3) == 5 * 3 * 7 * 11
    assert act.unfused_scores(7, 11, 3, dropout=0) == 2 * 3 * 7 * 11


@settings(max_examples=50)
@given(n=sizes, heads=st.sampled_from([8, 16, 64]), t=degrees, sp=st.booleans())
def test_the_classic_count_is_the_sum_of_its_tensors(n, heads, t, sp):
    """A GPT layer: two norms in and out, q, k, v, output, 4h GeLU in and out, two one-byte masks: 34 n h at t = 1."""
    d, sp = 64, float(sp)
    h = heads * d
    rows = {"tensor": t, "sequence_parallel": sp}
    parts = (
        act.token_tensors(n, h, tensors=4, **rows)
        + act.token_tensors(n, h, tensors=2, element_bytes=1, **rows)
        + act.queries_keys_values(n, heads, heads, d, d, tensor=t)
        + act.attention_output(n, heads, d, tensor=t)
        + act.feed_forward(n, 4 * h, branches=1, tensor=t) * 2
    )
    assert parts == pytest.approx(act.korthikanti_layer(n, h, tensor=t, sequence_parallel=sp))


def test_llama_3_1_8b_keeps_139_kilobytes_a_token_and_layer():
    h, a, k, d, f = 4096, 32, 8, 128, 14336
    total = (
        act.token_tensors(1, h, tensors=4)
        + act.queries_keys_values(1, a, k, d, d)
        + act.attention_output(1, a, d)
        + act.log_sum_exp(1, a)
        + act.feed_forward(1, f, branches=2)
        + act.feed_forward(1, f, branches=1)
    )
    assert total / 1e3 == pytest.approx(139, abs=0.5)


def test_a_reported_attention_block_of_flash_attention():
    """flash-attention issue 899: 12 s b h bytes and 4 s b a; input, q, k, v, out at s = 4096, h = 8192, d = 256."""
    total = (
        act.token_tensors(4096, 8192, tensors=2)
        + act.queries_keys_values(4096, 32, 32, 256, 256)
        + act.attention_output(4096, 32, 256)
        + act.log_sum_exp(4096, 32)
    )
    assert total == pytest.approx(403177472, rel=0.1)


@given(t=degrees)
def test_key_value_heads_stop_dividing_at_one_a_rank(t):
    k = 2
    held = act.queries_keys_values(1, 0, k, 128, 128, tensor=t)
    assert held == max(k / t, 1) * 2 * 128 * 2


@given(u=degrees)
def test_ulysses_keeps_a_whole_head_a_rank(u):
    assert act.queries_keys_values(1, 0, 2, 1, 1, ulysses=u) == 4 * max(2, u)


def test_broadcast_equals_a_loop():
    n, t = np.array([[1024], [4096]]), np.array([1, 2, 8])
    got = act.feed_forward(n, 14336, tensor=t)
    assert got.tolist() == [[float(act.feed_forward(int(a), 14336, tensor=int(b))) for b in t] for a in n[:, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: act.korthikanti_layer(1, -1), "`hidden` must be >= 0, got -1"),
        (lambda: act.token_tensors(1, 1, tensor=[1, 0]), r"`tensor` must be >= 1, got 0 at index \(1,\)"),
        (lambda: act.token_tensors(1, 1, sequence_parallel=2), "`sequence_parallel`"),
        (lambda: act.unfused_scores(1, 1, 1, dropout=1.5), "`dropout`"),
        (lambda: act.queries_keys_values(1, 1, 1, 1, 1, ulysses=0), "`ulysses`"),
        (lambda: act.log_sum_exp(-1, 1), "`tokens`"),
        (lambda: act.attention_output(1, 1, 1, copies=-1), "`copies`"),
        (lambda: act.feed_forward(1, float("nan")), "`width`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


@pytest.mark.parametrize("t", [2, 3, 8])
def test_scores_are_split_by_heads(t):
    whole = act.unfused_scores(64, 128, 24, dropout=[0, 1])
    assert (t * act.unfused_scores(64, 128, 24, tensor=t, dropout=[0, 1])).tolist() == pytest.approx(whole.tolist())
