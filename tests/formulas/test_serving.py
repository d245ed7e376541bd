"""K/V caches against published and reported sizes and the catalog's own count; floors of decode and prefill by counting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate.counts import kv_bytes, kv_bytes_per_token
from parlay.formulas import serving
from parlay.formulas._check import FormulaDomainError
from parlay.models.load import load_model
from parlay.models.spec import GroupedAttention

GIB, MIB = 2**30, 2**20
few = settings(max_examples=50, deadline=None)


def cache(model, length, batch, *, unified=0):
    """Return a model's cache from the formulas, layer by layer."""
    total = 0.0
    for name in model.layer_names():
        x = model.kinds[name].mixer
        assert isinstance(x, GroupedAttention)
        kept = serving.windowed_tokens(length, x.window or np.inf, unified_pages=unified) if x.window else length
        total += float(serving.grouped_kv_bytes(batch * kept, x.kv_heads, x.head_dim, 1))
    return total


# Reported sizes: model, tokens, sequences, unified pages, and the printed size with half a unit of its last digit.
REPORTED = [
    ("gpt-oss-20b", 8192, 32, 1, 12.0 * GIB, 0.005 * GIB),  # alvarobartt/hf-mem pull request 70
    ("gpt-oss-20b", 8192, 32, 0, 6.094 * GIB, 0.0005 * GIB),
    ("gemma-3-1b", 32768, 1, 0, 139.0 * MIB, 0.5 * MIB),  # lablup/mlxcel pull request 172
    ("gemma-3-1b", 32768, 1, 1, 832.0 * MIB, 0.5 * MIB),
]


@pytest.mark.parametrize(("name", "length", "batch", "unified", "size", "slack"), REPORTED)
def test_caches_of_windowed_models_as_reported(name, length, batch, unified, size, slack):
    model = load_model(name)
    assert cache(model, length, batch, unified=unified) == pytest.approx(size, abs=slack)
    assert cache(model, length, batch, unified=unified) == kv_bytes(model, length, batch=batch, unified_pages=bool(unified))


def test_ranks_beyond_the_key_value_heads_save_nothing():  # huggingface/transformers issue 48307: 4 heads, 48 layers
    assert serving.grouped_kv_bytes(1, 4, 128, 48, tensor=[4, 8]).tolist() == [24576, 24576]


@pytest.mark.parametrize(("name", "bytes_per_token"), [("llama-3.1-8b", 131072), ("llama-3.1-70b", 327680)])
def test_bytes_per_token_of_grouped_models(name, bytes_per_token):
    model = load_model(name)
    (kind,) = model.kinds.values()
    counted = serving.grouped_kv_bytes(1, kind.mixer.kv_heads, kind.mixer.head_dim, len(model.layer_names()))
    assert counted == bytes_per_token == kv_bytes_per_token(model)


def test_a_latent_cache_is_that_of_deepseek_v3():
    assert serving.latent_kv_bytes(1, 512, 64, 61) == 70272 == kv_bytes_per_token(load_model("deepseek-v3"))


@few
@given(n=st.integers(0, 10**6), k=st.integers(1, 128), t=st.integers(1, 64), d=st.integers(1, 256))
def test_all_ranks_together_hold_each_head_at_least_once(n, k, t, d):
    together = t * serving.grouped_kv_bytes(n, k, d, 1, tensor=t)
    once = serving.grouped_kv_bytes(n, k, d, 1)
    assert together == pytest.approx(once * max(1, t / k))


@few
@given(room=st.integers(0, 10**6), token=st.integers(1, 10**6), others=st.tuples(*[st.integers(0, 10**10)] * 3))
def test_the_room_is_what_fills_memory(room, token, others):
    weights, activations, context = others
    memory = (weights + activations + context + room * token) / 0.5
    found = serving.cache_room_tokens(memory, 0.5, weights, activations, context, token)
    assert found == pytest.approx(room, rel=1e-9, abs=1e-3)
    assert serving.cache_room_tokens(memory / 4, 0.5, memory, 0, 0, token) == 0


def test_weights_alone_overstate_the_room_of_an_engine():  # casys-kaist/LLMServingSim pull request 59: 54,400 against 41,408
    naive, real = serving.cache_room_tokens(24 * GIB, 0.9, 14.96 * GIB, [0, 1.59 * GIB], 0, 131072)
    assert naive == pytest.approx(54400, rel=1e-3)
    assert real == pytest.approx(41408, rel=1e-3)


@few
@given(P=st.floats(1e6, 1e12), K=st.floats(0, 1e12), H=st.floats(1e9, 1e13))
def test_a_decode_step_reads_everything_once(P, K, H):
    assert serving.decode_floor_s(P, K, H) * H == pytest.approx(P + K)


def test_two_flops_a_parameter_and_token():
    assert serving.prefill_floor_s(100, 1e9, 0, 1e15) == pytest.approx(2e-4)
    assert serving.prefill_floor_s(100, 0, 3e12, 1e12) == pytest.approx(3.0)


def test_tokens_of_an_expert_sum_to_all_copies():
    assert 128 * serving.tokens_per_expert(1000, 8, 128) == 8000


@pytest.mark.parametrize(("n", "k", "E"), [(1, 2, 8), (5, 2, 8), (40, 8, 64)])
def test_experts_touched_is_the_mean_over_random_choices(n, k, E):
    rng = np.random.default_rng(7)
    draws = [len(np.unique(np.argsort(rng.random((n, E)), axis=1)[:, :k])) for _ in range(2000)]
    error = np.std(draws) / np.sqrt(len(draws))
    assert serving.experts_touched(n, k, E) == pytest.approx(np.mean(draws), abs=4 * error + 1e-9)


def test_more_experts_of_a_token_than_there_are_is_refused():
    with pytest.raises(FormulaDomainError, match="`top_k / experts` must be"):
        serving.experts_touched(1, 9, 8)


@pytest.mark.parametrize(
    ("formula", "given", "name"),
    [
        (serving.grouped_kv_bytes, (1, 2.5, 128, 32), "kv_heads"),
        (lambda t: serving.grouped_kv_bytes(1, 2, 128, 32, tensor=t), (2.5,), "tensor"),
        (serving.tokens_per_expert, (1, 2, 8.5), "experts"),
        (serving.experts_touched, (1, 2, 8.5), "experts"),
    ],
)
def test_half_a_head_or_expert_is_refused(formula, given, name):
    with pytest.raises(FormulaDomainError, match=f"`{name}` must be a whole number"):
        formula(*given)


def test_small_models_and_fractions_are_allowed():
    assert serving.latent_kv_bytes(0.5, 0.5, 0.5, 0.5, element_bytes=0.5) == 0.125
    assert serving.grouped_kv_bytes(0.5, 1, 0.5, 0.5, element_bytes=0.5) == 0.125
    assert serving.prefill_floor_s(0.5, 0.5, 0.5, 1.0) == 1.0
    assert serving.tokens_per_expert(0.5, 0.5, 1) == 0.25
    assert serving.experts_touched(0.5, 0.75, 1) == pytest.approx(0.5)
    assert serving.windowed_tokens(0.5, 0.25) == 0.25


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: serving.windowed_tokens(1, 1, unified_pages=1.5), "unified_pages"),
        (lambda: serving.cache_room_tokens(1, 1.5, 0, 0, 0, 1), "utilization"),
    ],
)
def test_a_share_above_one_is_refused(call, name):
    with pytest.raises(FormulaDomainError, match=f"`{name}` must be >= 0 and <= 1"):
        call()
