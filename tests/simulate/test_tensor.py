"""A layer cut by tensor and sequence parallelism: the same output and gradients as on one rank, and what it sends, does and keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations, flops, parameters, serving, tensor_parallel
from parlay.simulate import attention, collectives, tape, tensor
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)
# Rows are at least six wide: a norm of two numbers that happen to be close multiplies their rounding by hundreds.


def close(one, other):
    # 1e-12 of the largest element: a gradient that cancels to zero (that of the K bias) keeps the rounding of its parts.
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1.0, np.abs(other).max()))


def layer(seed, h, a, k, d, f):
    rng = np.random.default_rng(seed)
    sizes = {
        "gain_1": h,
        "bias_1": h,
        "gain_2": h,
        "bias_2": h,
        "bo": h,
        "b_down": h,
        "b_up": f,
        "bq": a * d,
        "bk": k * d,
        "bv": k * d,
    }
    sizes |= {"wq": (h, a * d), "wk": (h, k * d), "wv": (h, k * d), "wo": (a * d, h), "w_up": (h, f), "w_down": (f, h)}
    # Matrices with rows of length about one: the softmax stays away from 0 and 1, where its slope is all rounding.
    scale = {name: size[0] ** -0.5 if isinstance(size, tuple) else 1.0 for name, size in sizes.items()}
    return {name: rng.standard_normal(size) * scale[name] for name, size in sizes.items()}


def on_one_rank(x, weights, masks, a, k, causal):
    v = {name: tape.Value(array) for name, array in weights.items()}
    start = tape.Value(x)
    rows = tape.layer_norm(start, v["gain_1"], v["bias_1"])
    q, key, value = (
        (rows @ v["w" + n] + v["b" + n]).reshape(len(x), m, -1).swap(0, 1) for n, m in (("q", a), ("k", k), ("v", k))
    )
    heads = tape.attention(q, key, value, causal=causal).swap(0, 1).reshape(len(x), -1)
    middle = start + (heads @ v["wo"] + v["bo"]) * tape.Value(masks["mask 1"])
    rows = tape.layer_norm(middle, v["gain_2"], v["bias_2"])
    inner = tape.gelu(rows @ v["w_up"] + v["b_up"])
    return start, v, middle + (inner @ v["w_down"] + v["b_down"]) * tape.Value(masks["mask 2"])


def run(seed, s, a, k, d, f, t, sp, causal=True, h=None):
    h = h or a * d
    rng = np.random.default_rng(seed)
    weights, x, d_out = layer(seed, h, a, k, d, f), rng.standard_normal((s, h)), rng.standard_normal((s, h))
    masks = {name: rng.random((s, h)) > 0.2 for name in ("mask 1", "mask 2")}
    shape, world = tensor.Shape(a, k, d, t, sp, causal), World(t)

    def cut(array):
        return collectives.split(array, collectives.even_sizes(s, t)) if sp else [array.copy() for _ in range(t)]

    cut_masks = [dict(zip(masks, pair)) for pair in zip(*(cut(mask) for mask in masks.values()))]
    shards = tensor.shard_weights(weights, shape)
    saved = tensor.forward(world, cut(x), shards, cut_masks, shape)
    d_x, gradients = tensor.backward(world, cut(d_out), saved, shards, shape)

    start, values, right = on_one_rank(x, weights, masks, a, k, causal)
    right.backward(d_out)
    for mine, whole in ((saved.outputs, right.array), (d_x, start.gradient)):
        if sp:
            close(np.concatenate(mine), whole)
        else:
            for copy in mine:
                close(copy, whole)
    for name, gradient in tensor.join_weights(gradients).items():
        close(gradient, values[name].gradient)
    for name in tensor.WHOLE:
        assert all(np.allclose(each[name], gradients[0][name], rtol=1e-12, atol=1e-12) for each in gradients)
    return world.ledger, saved, shards


@few
@given(
    seed=st.integers(0, 1000),
    s=st.integers(1, 9),
    k=st.integers(1, 4),
    group=st.integers(1, 2),
    d=st.integers(1, 3),
    f=st.integers(4, 11),
    h=st.integers(6, 13),
    t=st.integers(1, 4),
    sp=st.booleans(),
    causal=st.booleans(),
)
def test_any_sizes_give_the_same_numbers(seed, s, k, group, d, f, h, t, sp, causal):
    run(seed, s, k * group, k, d, f, min(t, k), sp, causal, h)


even = given(
    t=st.integers(1, 4),
    per_rank=st.integers(1, 3),
    kv_each=st.integers(1, 2),
    group=st.integers(1, 2),
    d=st.integers(6, 8),
    f_each=st.integers(1, 4),
)


@few
@even
def test_bytes_of_tp_and_of_sp(t, per_rank, kv_each, group, d, f_each):
    s, k = t * per_rank, t * kv_each
    a = k * group
    h = a * d
    plain, _, _ = run(0, s, a, k, d, f_each * t, t, sp=False)
    split, _, _ = run(0, s, a, k, d, f_each * t, t, sp=True)
    sent = tensor_parallel.layer_sent_bytes(t, s, h, 8)
    for name in (tensor.FORWARD, tensor.BACKWARD):
        names = tensor.collectives_of(name)
        assert split.sent_bytes(*names).tolist() == pytest.approx([sent] * t)
        # All-reduces cut the flat array, which t divides here too.
        assert plain.sent_bytes(*names).tolist() == pytest.approx([sent] * t)
    # Half of a pass gathered again for the weight gradients of the two column products, but for the two reduce-scatters.
    assert split.sent_bytes(*tensor.collectives_of(tensor.GATHER_AGAIN)).tolist() == pytest.approx([sent / 2] * t)
    assert plain.sent_bytes(*tensor.collectives_of(tensor.GATHER_AGAIN), tensor.REPLICATED).sum() == 0
    assert split.sent_bytes(tensor.REPLICATED).sum() == 2 * (t - 1) * 6 * h * 8


@few
@given(t=st.integers(2, 4), sp=st.booleans())
def test_collectives_of_a_layer(t, sp):
    ledger, _, _ = run(0, t, t, t, 2, t, t, sp)
    names = [tensor.collectives_of(name) for name in (tensor.FORWARD, tensor.BACKWARD, tensor.GATHER_AGAIN)]
    gathers, scatters, reduces = (ledger.messages_sent(*each)[0] // (t - 1) for each in zip(*names))
    if sp:
        assert gathers == tensor_parallel.sequence_parallel_gathers(1, gathered_again=2)
        assert (scatters, reduces) == (tensor_parallel.sequence_parallel_scatters(1), 0)
    else:
        assert (gathers, scatters, reduces) == (0, 0, 2 * tensor_parallel.all_reduces(1))


@few
@given(t=st.integers(1, 4), rows=st.integers(1, 4), inner=st.integers(1, 3), outer=st.integers(1, 3), seed=st.integers(0, 99))
def test_column_and_row_products(t, rows, inner, outer, seed):
    rng, world = np.random.default_rng(seed), World(t)
    x, w = rng.standard_normal((rows, inner * t)), rng.standard_normal((inner * t, outer * t))
    by_columns, by_rows = collectives.split(w, [outer] * t, axis=1), collectives.split(w, [inner] * t)
    for out in tensor.column_product(world, x, by_columns) + tensor.row_product(world, x, by_rows):
        close(out, x @ w)
    n = rows * outer * t * 8
    assert world.ledger.sent_bytes("column output").tolist() == pytest.approx(
        [tensor_parallel.column_output_sent_bytes(t, n)] * t
    )
    assert world.ledger.sent_bytes("row output").tolist() == pytest.approx([tensor_parallel.row_output_sent_bytes(t, n)] * t)
    assert {mine.nbytes for mine in by_columns + by_rows} == {tensor_parallel.shard_bytes(t, inner * t, outer * t, 8)}
    assert world.ledger.flops_done(tensor.FORWARD).tolist() == [2 * flops.matmul_flops(rows, outer * t, inner * t) / t] * t


@few
@even
def test_flops_and_parameters(t, per_rank, kv_each, group, d, f_each):
    s, k, f = t * per_rank, t * kv_each, f_each * t
    a = k * group
    h = a * d
    ledger, _, shards = run(0, s, a, k, d, f, t, sp=True)
    matrices = parameters.attention_parameters(h, a, k, d) + parameters.mlp_parameters(h, f, 2)
    assert sum(w.size for mine in shards for name, w in mine.items() if w.ndim == 2) == matrices
    score = flops.attention_flops((s + 1) / 2, a, d, d)  # a causal query sees (s + 1) / 2 keys on average
    names = (tensor.FORWARD, tensor.BACKWARD, attention.FORWARD, attention.BACKWARD)
    forward, backward, look, look_back = (ledger.flops_done(name) for name in names)
    assert forward.tolist() == [flops.matmul_flops(s, 1, matrices) / t] * t
    assert backward.tolist() == [2 * flops.matmul_flops(s, 1, matrices) / t] * t
    assert (ledger.flops_done(*names).sum()) == s * flops.training_flops(
        matrices, score
    ) + 0.5 * s * score  # scores again: 2.5, not 2
    assert look.tolist() == [s * score / t] * t
    assert look_back.tolist() == [2.5 * s * score / t] * t


@few
@given(t=st.integers(1, 4), per_rank=st.integers(1, 3), heads_each=st.integers(1, 2), d=st.integers(6, 8), sp=st.booleans())
def test_what_a_gpt_layer_keeps(t, per_rank, heads_each, d, sp):
    s, a = t * per_rank, t * heads_each
    _, saved, _ = run(0, s, a, a, d, 4 * a * d, t, sp)
    kept = activations.korthikanti_layer(s, a * d, tensor=t, sequence_parallel=int(sp), element_bytes=8)
    kept += activations.log_sum_exp(s, a, tensor=t, statistic_bytes=8)
    assert saved.kept_bytes() == pytest.approx([kept] * t, rel=1e-15)


@few
@even
def test_what_each_part_keeps(t, per_rank, kv_each, group, d, f_each):
    s, k, f = t * per_rank, t * kv_each, f_each * t
    a = k * group
    _, saved, _ = run(0, s, a, k, d, f, t, sp=True)
    for kept in saved.kept:
        sizes = {name: array.nbytes for name, array in kept.items()}
        assert sizes["q"] + sizes["k"] + sizes["v"] == activations.queries_keys_values(s, a, k, d, d, tensor=t, element_bytes=8)
        assert sizes["k"] + sizes["v"] == serving.grouped_kv_bytes(s, k, d, 1, tensor=t, element_bytes=8)
        assert sizes["attention"] == activations.attention_output(s, a, d, tensor=t, element_bytes=8)
        assert sizes["up"] == activations.feed_forward(s, f, branches=1, tensor=t, element_bytes=8)
        assert sizes["activation"] == activations.feed_forward(s, f, branches=1, tensor=t, element_bytes=8)
        norms = [sizes[f"norm {side} {which}"] for side in ("input", "output") for which in "12"]
        each = activations.token_tensors(s, a * d, tensors=1, tensor=t, sequence_parallel=1, element_bytes=8)
        assert norms == [each] * 4


def test_refuses_more_ranks_than_heads():
    with pytest.raises(ValueError, match="tensor parallelism over 4 ranks needs as many K/V heads, got 2"):
        tensor.Shape(4, 2, 3, 4, sequence_parallel=True)
