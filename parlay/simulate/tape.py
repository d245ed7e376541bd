"""A small reverse-mode tape: gradients of whole computations on one rank, from the derivatives of a few simple steps.

The sharded backward passes are written by hand; what they are compared with comes from here and shares no code with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from parlay.simulate.world import Array

Rule: TypeAlias = Callable[[Array], Array]


class Value:
    """An array, and how the gradient of a sum of its elements flows back to the values it was made from."""

    def __init__(self, array: ArrayLike, sources: Sequence[tuple[Value, Rule]] = ()) -> None:
        self.array: Array = np.asarray(array, dtype=np.float64)
        self.sources = list(sources)
        self.gradient: Array = np.zeros_like(self.array)

    def __add__(self, other: Value) -> Value:
        shapes = self.array.shape, other.array.shape
        return Value(self.array + other.array, [(self, lambda g: _fit(g, shapes[0])), (other, lambda g: _fit(g, shapes[1]))])

    def __mul__(self, other: Value) -> Value:
        a, b = self.array, other.array
        return Value(a * b, [(self, lambda g: _fit(g * b, a.shape)), (other, lambda g: _fit(g * a, b.shape))])

    def __matmul__(self, other: Value) -> Value:
        a, b = self.array, other.array
        return Value(a @ b, [(self, lambda g: g @ b.swapaxes(-1, -2)), (other, lambda g: a.swapaxes(-1, -2) @ g)])

    def apply(self, function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Value:
        """Return `function` of every element, given its derivative."""
        x = self.array
        return Value(function(x), [(self, lambda g: g * slope(x))])

    def power(self, exponent: float) -> Value:
        """Return every element to a power."""
        return self.apply(lambda x: x**exponent, lambda x: exponent * x ** (exponent - 1))

    def mean(self) -> Value:
        """Return the mean over the last axis, kept as an axis of one."""
        shape = self.array.shape
        return Value(self.array.mean(-1, keepdims=True), [(self, lambda g: np.broadcast_to(g / shape[-1], shape))])

    def sum(self) -> Value:
        """Return the sum over the last axis, kept as an axis of one."""
        shape = self.array.shape
        return Value(self.array.sum(-1, keepdims=True), [(self, lambda g: np.broadcast_to(g, shape))])

    def reshape(self, *shape: int) -> Value:
        """Return the same elements in another shape."""
        old = self.array.shape
        return Value(self.array.reshape(shape), [(self, lambda g: g.reshape(old))])

    def swap(self, one: int, other: int) -> Value:
        """Return the array with two axes exchanged."""
        return Value(self.array.swapaxes(one, other), [(self, lambda g: g.swapaxes(one, other))])

    def take(self, indices: ArrayLike) -> Value:
        """Return some entries of the first axis, each as often as it is named."""
        rows, shape = np.asarray(indices), self.array.shape

        def back(g: Array) -> Array:
            out = np.zeros(shape)
            np.add.at(out, rows, g)
            return out

        return Value(self.array[rows], [(self, back)])

    def backward(self, gradient: ArrayLike) -> None:
        """Fill `gradient` of every value that this one was made from, given this one's own."""
        order: list[Value] = []
        _visit(self, order, set())
        self.gradient = np.asarray(gradient, dtype=np.float64)
        for value in reversed(order):
            for source, rule in value.sources:
                source.gradient = source.gradient + rule(value.gradient)


def softmax(scores: Value) -> Value:
    """Return the softmax over the last axis."""
    shifted = scores + Value(-scores.array.max(-1, keepdims=True))
    e = shifted.apply(np.exp, np.exp)
    return e * e.sum().power(-1)


def layer_norm(x: Value, gain: Value, bias: Value, epsilon: float = 1e-5) -> Value:
    """Return each row with mean 0 and variance 1, times a gain, plus a bias."""
    centred = x + x.mean() * Value(-1.0)
    return centred * ((centred * centred).mean() + Value(epsilon)).power(-0.5) * gain + bias


def gelu(x: Value) -> Value:
    """Return the tanh form of the Gaussian error linear unit."""
    inner = (x + x.power(3) * Value(0.044715)) * Value(np.sqrt(2 / np.pi))
    return x * (inner.apply(np.tanh, lambda u: 1 - np.tanh(u) ** 2) + Value(1.0)) * Value(0.5)


def attention(q: Value, k: Value, v: Value, *, causal: bool) -> Value:
    """Return softmax(q k^T / sqrt(d)) v, (heads, tokens, head size); groups of query heads share a K/V head."""
    group = np.arange(len(q.array)) // (len(q.array) // len(k.array))
    scores = q @ k.take(group).swap(-1, -2) * Value(q.array.shape[-1] ** -0.5)
    if causal:
        scores = scores + Value(np.where(np.tril(np.ones(scores.array.shape[-2:])) > 0, 0.0, -1e30))
    return softmax(scores) @ v.take(group)


def _fit(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient summed over the axes along which an array of `shape` was broadcast."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    along = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=along, keepdims=True) if along else gradient


def _visit(value: Value, order: list[Value], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    for source, _ in value.sources:
        _visit(source, order, seen)
    order.append(value)
