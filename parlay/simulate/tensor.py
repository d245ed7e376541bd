"""A transformer layer cut by tensor parallelism, with or without sequence parallelism, forward and backward.

x -> norm -> Q, K, V (column) -> attention by heads -> output (row) -> dropout -> + x -> norm -> up (column) -> GeLU -> down (row)
-> dropout -> + . One sequence, (tokens, hidden). A rank holds whole K/V heads with their query heads, and a run of the
feed-forward columns. Between a row and the next column product the rows live whole on every rank (TP, one all-reduce) or as a run
of tokens (TP + SP: a reduce-scatter, later an all-gather).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.attention import Partial, attend, attend_backward, grouped
from parlay.simulate.collectives import all_gather, all_reduce, even_sizes, reduce_scatter, split
from parlay.simulate.world import Array, World

FORWARD, BACKWARD, GATHER_AGAIN, REPLICATED = "layer forward", "layer backward", "norm output again", "replicated gradients"
COLUMN = ("wq", "bq", "wk", "bk", "wv", "bv", "w_up", "b_up")
ROW = ("wo", "w_down")
WHOLE = ("gain_1", "bias_1", "bo", "gain_2", "bias_2", "b_down")
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Shape:
    """Sizes of the layer: query heads, K/V heads, head size; how the ranks cut them; whether sequence parallelism is on."""

    heads: int
    kv_heads: int
    head_dim: int
    ranks: int
    sequence_parallel: bool
    causal: bool = True

    def __post_init__(self) -> None:
        if self.ranks > self.kv_heads:
            raise ValueError(f"tensor parallelism over {self.ranks} ranks needs as many K/V heads, got {self.kv_heads}")
        grouped(self.heads, self.kv_heads)


@dataclass(frozen=True)
class Forward:
    """What the forward pass returns on each rank (`outputs`) and what each rank keeps for the backward pass (`kept`)."""

    outputs: list[Array]
    kept: list[dict[str, Array]]
    masks: list[dict[str, NDArray[np.bool_]]]

    def kept_bytes(self) -> list[int]:
        """Return the bytes that each rank keeps, dropout masks (one byte an element) included. [B]"""
        return [sum(a.nbytes for a in (*mine.values(), *mask.values())) for mine, mask in zip(self.kept, self.masks)]


def shard_weights(weights: Weights, shape: Shape) -> list[dict[str, Array]]:
    """Return the weights of each rank: columns and their biases, rows, and whole copies of norms and row biases."""
    t, d = shape.ranks, shape.head_dim
    kv = even_sizes(shape.kv_heads, t)
    group = shape.heads // shape.kv_heads
    by_name = {"wk": [n * d for n in kv], "wv": [n * d for n in kv], "bk": [n * d for n in kv], "bv": [n * d for n in kv]}
    for name in ("wq", "bq", "wo"):
        by_name[name] = [n * group * d for n in kv]
    for name in ("w_up", "b_up", "w_down"):
        by_name[name] = even_sizes(weights["b_up"].size, t)
    cut = {name: split(weights[name], sizes, axis=0 if name in ROW else -1) for name, sizes in by_name.items()}
    return [{**{n: parts[r] for n, parts in cut.items()}, **{n: weights[n].copy() for n in WHOLE}} for r in range(t)]


def join_weights(shards: Sequence[Weights]) -> dict[str, Array]:
    """Return the whole weights (or gradients) from those of the ranks; whole copies are taken from rank 0."""
    out = {name: np.concatenate([mine[name] for mine in shards], axis=-1) for name in COLUMN}
    out |= {name: np.concatenate([mine[name] for mine in shards], axis=0) for name in ROW}
    return out | {name: shards[0][name] for name in WHOLE}


def norm(x: Array, gain: Array, bias: Array) -> Array:
    """Return each row with mean 0 and variance 1, times a gain, plus a bias."""
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias)


def norm_backward(x: Array, gain: Array, d_y: Array) -> tuple[Array, Array, Array]:
    """Return the gradients of the rows, the gain and the bias; the statistics are computed again from the rows."""
    root = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    hat = (x - x.mean(-1, keepdims=True)) / root
    d_hat = d_y * gain
    d_x = (d_hat - d_hat.mean(-1, keepdims=True) - hat * (d_hat * hat).mean(-1, keepdims=True)) / root
    return d_x, (d_y * hat).sum(0), d_y.sum(0)


def gelu(x: Array) -> Array:
    """Return the tanh form of the Gaussian error linear unit."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def gelu_slope(x: Array) -> Array:
    """Return the derivative of `gelu`."""
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2))


def enter(world: World, shards: Sequence[Array], shape: Shape, operation: str) -> list[Array]:
    """Return whole rows in front of a column product: an all-gather of token runs with SP, nothing to do without."""
    return all_gather(world, shards, operation=f"{operation} all-gather") if shape.sequence_parallel else list(shards)


def leave(world: World, partials: Sequence[Array], shape: Shape, operation: str) -> list[Array]:
    """Return the sum over the ranks behind a row product: as token runs with SP, whole on every rank without."""
    if shape.sequence_parallel:
        return reduce_scatter(world, partials, operation=f"{operation} reduce-scatter")
    return all_reduce(world, partials, operation=f"{operation} all-reduce")


def collectives_of(operation: str) -> tuple[str, str, str]:
    """Return the ledger's names of the collectives of a pass: of `FORWARD`, `BACKWARD` or `GATHER_AGAIN`."""
    return f"{operation} all-gather", f"{operation} reduce-scatter", f"{operation} all-reduce"


def column_product(world: World, rows: Array, columns: Sequence[Array]) -> list[Array]:
    """Return whole output rows on every rank: each multiplies by its run of columns, an all-gather puts the outputs side by side."""
    parts = [world.matmul(r, rows, mine, FORWARD) for r, mine in enumerate(columns)]
    return all_gather(world, parts, axis=1, operation="column output")


def row_product(world: World, rows: Array, weights: Sequence[Array]) -> list[Array]:
    """Return whole output rows on every rank: each multiplies its run of columns by its rows of the matrix, an all-reduce sums."""
    cut = split(rows, [len(mine) for mine in weights], axis=1)
    return all_reduce(world, [world.matmul(r, cut[r], w, FORWARD) for r, w in enumerate(weights)], operation="row output")


def forward(
    world: World, x: Sequence[Array], weights: Sequence[Weights], masks: Sequence[Mapping[str, NDArray[np.bool_]]], shape: Shape
) -> Forward:
    """Return the layer's output on every rank, and what it keeps. `x` and `masks` are token runs with SP, whole without."""
    kept: list[dict[str, Array]] = [{"norm input 1": mine} for mine in x]
    for r, w in enumerate(weights):
        kept[r]["norm output 1"] = norm(x[r], w["gain_1"], w["bias_1"])
    rows = enter(world, [mine["norm output 1"] for mine in kept], shape, FORWARD)
    partials = [_attention(world, r, rows[r], weights[r], kept[r], shape) for r in range(shape.ranks)]
    summed = leave(world, partials, shape, FORWARD)
    middle = [x[r] + (summed[r] + w["bo"]) * masks[r]["mask 1"] for r, w in enumerate(weights)]

    for r, w in enumerate(weights):
        kept[r]["norm input 2"] = middle[r]
        kept[r]["norm output 2"] = norm(middle[r], w["gain_2"], w["bias_2"])
    rows = enter(world, [mine["norm output 2"] for mine in kept], shape, FORWARD)
    partials = []
    for r, w in enumerate(weights):
        kept[r]["up"] = world.matmul(r, rows[r], w["w_up"], FORWARD) + w["b_up"]
        kept[r]["activation"] = gelu(kept[r]["up"])
        partials.append(world.matmul(r, kept[r]["activation"], w["w_down"], FORWARD))
    summed = leave(world, partials, shape, FORWARD)
    outputs = [middle[r] + (summed[r] + w["b_down"]) * masks[r]["mask 2"] for r, w in enumerate(weights)]
    return Forward(outputs, kept, [dict(mine) for mine in masks])


def _attention(world: World, r: int, rows: Array, w: Weights, kept: dict[str, Array], shape: Shape) -> Array:
    """Return one rank's part of the attention block's output, from whole rows and its own heads."""
    q, k, v = (_by_head(world.matmul(r, rows, w["w" + n], FORWARD) + w["b" + n], shape) for n in "qkv")
    at, heads = np.arange(len(rows)), grouped(len(q), len(k))
    result = attend(world, r, q, k, v, at, at, heads, shape.causal)
    kept |= {"q": q, "k": k, "v": v, "attention": result.output, "log-sum-exp": result.log_sum_exp}
    return world.matmul(r, _flat(result.output), w["wo"], FORWARD)


def _by_head(rows: Array, shape: Shape) -> Array:
    return np.ascontiguousarray(rows.reshape(len(rows), -1, shape.head_dim).swapaxes(0, 1))


def _flat(by_head: Array) -> Array:
    return by_head.swapaxes(0, 1).reshape(by_head.shape[1], -1)


def backward(
    world: World, d_outputs: Sequence[Array], saved: Forward, weights: Sequence[Weights], shape: Shape
) -> tuple[list[Array], list[dict[str, Array]]]:
    """Return the gradients of the layer's input and of every rank's weights."""
    kept, masks, t = saved.kept, saved.masks, shape.ranks
    gradients: list[dict[str, Array]] = [{} for _ in range(t)]
    masked = [d_outputs[r] * masks[r]["mask 2"] for r in range(t)]
    d_rows = _leave_backward(world, masked, shape)
    rows = enter(world, [mine["norm output 2"] for mine in kept], shape, GATHER_AGAIN)
    partials = []
    for r, w in enumerate(weights):
        g = gradients[r]
        g["b_down"] = masked[r].sum(0)
        d_act, g["w_down"] = _product_backward(world, r, kept[r]["activation"], w["w_down"], d_rows[r])
        d_up = d_act * gelu_slope(kept[r]["up"])
        g["b_up"] = d_up.sum(0)
        d_in, g["w_up"] = _product_backward(world, r, rows[r], w["w_up"], d_up)
        partials.append(d_in)
    d_middle = _norm_block_backward(world, partials, saved, weights, gradients, d_outputs, shape, "2")

    masked = [d_middle[r] * masks[r]["mask 1"] for r in range(t)]
    d_rows = _leave_backward(world, masked, shape)
    rows = enter(world, [mine["norm output 1"] for mine in kept], shape, GATHER_AGAIN)
    partials = []
    for r, w in enumerate(weights):
        gradients[r]["bo"] = masked[r].sum(0)
        partials.append(_attention_backward(world, r, rows[r], d_rows[r], kept[r], w, gradients[r], shape))
    d_x = _norm_block_backward(world, partials, saved, weights, gradients, d_middle, shape, "1")
    if shape.sequence_parallel:  # every rank saw its own tokens only
        for name in WHOLE:
            for mine, total in zip(gradients, all_reduce(world, [mine[name] for mine in gradients], operation=REPLICATED)):
                mine[name] = total
    return d_x, gradients


def _leave_backward(world: World, d_rows: Sequence[Array], shape: Shape) -> list[Array]:
    return enter(world, d_rows, shape, BACKWARD)  # the sum's gradient is the same for every summand


def _product_backward(world: World, r: int, rows: Array, weight: Array, d_out: Array) -> tuple[Array, Array]:
    return world.matmul(r, d_out, weight.T, BACKWARD), world.matmul(r, rows.T, d_out, BACKWARD)


def _norm_block_backward(
    world: World,
    partials: Sequence[Array],
    saved: Forward,
    weights: Sequence[Weights],
    gradients: Sequence[dict[str, Array]],
    d_residual: Sequence[Array],
    shape: Shape,
    which: str,
) -> list[Array]:
    """Return the gradient in front of a norm: summed over the ranks, through the norm, plus that of the residual."""
    d_norm = leave(world, partials, shape, BACKWARD)
    out = []
    for r, w in enumerate(weights):
        d_x, d_gain, d_bias = norm_backward(saved.kept[r][f"norm input {which}"], w[f"gain_{which}"], d_norm[r])
        gradients[r][f"gain_{which}"], gradients[r][f"bias_{which}"] = d_gain, d_bias
        out.append(d_x + d_residual[r])
    return out


def _attention_backward(
    world: World, r: int, rows: Array, d_rows: Array, kept: Mapping[str, Array], w: Weights, g: dict[str, Array], shape: Shape
) -> Array:
    """Return one rank's part of the gradient of the attention block's input."""
    d_attention, g["wo"] = _product_backward(world, r, _flat(kept["attention"]), w["wo"], d_rows)
    at, heads = np.arange(len(rows)), grouped(len(kept["q"]), len(kept["k"]))
    result = Partial(kept["attention"], kept["log-sum-exp"])
    q, k, v = kept["q"], kept["k"], kept["v"]
    by_head = attend_backward(world, r, q, k, v, at, at, heads, shape.causal, result, _by_head(d_attention, shape))
    total = np.zeros_like(rows)
    for name, d_heads in zip("qkv", by_head):
        d_flat = _flat(d_heads)
        g["b" + name] = d_flat.sum(0)
        d_in, g["w" + name] = _product_backward(world, r, rows, w["w" + name], d_flat)
        total = total + d_in
    return total
