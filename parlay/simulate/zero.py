"""Data parallelism with ZeRO stages 0 to 3: a small tanh network and Adam, the state of each rank really cut.

Every layer is one flat vector (its matrix and its bias); shard r of it belongs to rank r, uneven where D does not divide it.
Stage 0 all-reduces gradients. Stage 1 sums them to the owners of the shards, which update them and hand out the new weights. Stage 2
does so layer by layer in the backward pass of every micro-batch, and keeps no whole gradient. Stage 3 keeps no whole weights either:
every layer is gathered for the forward and again for the backward pass of every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parlay.simulate.collectives import all_gather, all_reduce, even_sizes, reduce_scatter, split
from parlay.simulate.world import Array, World

GRADIENTS, WEIGHTS_FORWARD, WEIGHTS_BACKWARD, WEIGHTS_UPDATED = (
    "gradients",
    "weights forward",
    "weights backward",
    "weights after the step",
)
FORWARD, BACKWARD = "network forward", "network backward"
BETA_1, BETA_2, EPSILON = 0.9, 0.95, 1e-8  # Adam's constants; any others show the same
Batch = tuple[Array, Array]


@dataclass
class Rank:
    """What one rank holds: by layer its weights, accumulated gradients and two moments, each whole or its own shard."""

    weights: list[Array]
    first: list[Array]
    second: list[Array]
    gradients: list[Array] = field(default_factory=list)

    def held_bytes(self) -> int:
        """Return the bytes of weights, gradients and moments. [B]"""
        return sum(a.nbytes for kind in (self.weights, self.gradients, self.first, self.second) for a in kind)


class Trainer:
    """D ranks that train one network.

    Parameters
    ----------
    world : World
        The ranks and their ledger.
    layers : sequence of ndarray
        Matrices (inputs + 1, outputs) of the layers; the last row is the bias. [-]
    stage : int
        ZeRO stage, 0 to 3. [-]
    rate : float, default 0.01
        Adam's learning rate. [-]
    """

    def __init__(self, world: World, layers: Sequence[Array], stage: int, rate: float = 0.01) -> None:
        if stage not in (0, 1, 2, 3):
            raise ValueError(f"`stage` must be 0, 1, 2 or 3, got {stage}")
        self.world, self.stage, self.rate, self.steps = world, stage, rate, 0
        self.shapes = [layer.shape for layer in layers]
        self.sizes = [even_sizes(layer.size, world.ranks) for layer in layers]
        self.ranks = []
        for r in range(world.ranks):
            shards = [split(layer.reshape(-1), sizes)[r] for layer, sizes in zip(layers, self.sizes)]
            whole = [layer.reshape(-1).copy() for layer in layers]
            state = whole if stage == 0 else shards
            self.ranks.append(
                Rank(shards if stage == 3 else whole, [np.zeros_like(s) for s in state], [np.zeros_like(s) for s in state])
            )

    def step(self, batches: Sequence[Sequence[Batch]]) -> None:
        """Train one step: `batches[r]` lists the micro-batches (inputs, targets) of rank r, as many on each rank."""
        self.steps += 1
        examples = sum(len(x) for mine in batches for x, _ in mine)
        for mine in self.ranks:
            kept = mine.weights if self.stage < 2 else mine.first
            mine.gradients = [np.zeros_like(a) for a in kept]
        for micro in range(len(batches[0])):
            self._pass([mine[micro] for mine in batches], examples)
        if self.stage < 2:
            self._reduce_at_the_end()
        for r, mine in enumerate(self.ranks):
            self._adam(r, mine)
        if self.stage in (1, 2):
            self._hand_out()

    def weights(self) -> list[Array]:
        """Return the whole matrices, put together from the shards where they are cut."""
        if self.stage < 3:
            return [w.reshape(shape) for w, shape in zip(self.ranks[0].weights, self.shapes)]
        layers = range(len(self.shapes))
        return [np.concatenate([mine.weights[n] for mine in self.ranks]).reshape(self.shapes[n]) for n in layers]

    def _pass(self, batches: Sequence[Batch], examples: int) -> None:
        """Run one micro-batch forward and backward on every rank, layer by layer."""
        D, last = self.world.ranks, len(self.shapes) - 1
        inputs: list[list[Array]] = [[_with_one(x)] for x, _ in batches]
        for n in range(last + 1):
            layer = self._layer(n, WEIGHTS_FORWARD)
            for r in range(D):
                inputs[r].append(_with_one(np.tanh(self.world.matmul(r, inputs[r][n], layer[r], FORWARD))))
        flow = [(inputs[r][-1][:, :-1] - target) / examples for r, (_, target) in enumerate(batches)]
        for n in range(last, -1, -1):
            layer, gradients = self._layer(n, WEIGHTS_BACKWARD), []
            for r in range(D):
                d_inner = flow[r] * (1 - inputs[r][n + 1][:, :-1] ** 2)
                gradients.append(self.world.matmul(r, inputs[r][n].T, d_inner, BACKWARD).reshape(-1))
                flow[r] = self.world.matmul(r, d_inner, layer[r].T, BACKWARD)[:, :-1]
            if self.stage >= 2:
                gradients = reduce_scatter(self.world, gradients, sizes=self.sizes[n], operation=GRADIENTS)
            for mine, gradient in zip(self.ranks, gradients):
                mine.gradients[n] = mine.gradients[n] + gradient

    def _layer(self, n: int, operation: str) -> list[Array]:
        """Return the matrix of layer n on every rank, gathered for a moment at stage 3."""
        held = [mine.weights[n] for mine in self.ranks]
        whole = all_gather(self.world, held, operation=operation) if self.stage == 3 else held
        return [w.reshape(self.shapes[n]) for w in whole]

    def _reduce_at_the_end(self) -> None:
        for n, sizes in enumerate(self.sizes):
            held = [mine.gradients[n] for mine in self.ranks]
            if self.stage == 0:
                summed = all_reduce(self.world, held, operation=GRADIENTS)
            else:
                own = reduce_scatter(self.world, held, sizes=sizes, operation=GRADIENTS)
                summed = [_in_place(whole, sizes, r, own[r]) for r, whole in enumerate(held)]
            for mine, gradient in zip(self.ranks, summed):
                mine.gradients[n] = gradient

    def _adam(self, r: int, mine: Rank) -> None:
        for n, sizes in enumerate(self.sizes):
            own = slice(None) if self.stage == 0 else slice(sum(sizes[:r]), sum(sizes[: r + 1]))
            g = mine.gradients[n][own] if self.stage == 1 else mine.gradients[n]
            mine.first[n] = BETA_1 * mine.first[n] + (1 - BETA_1) * g
            mine.second[n] = BETA_2 * mine.second[n] + (1 - BETA_2) * g**2
            m, v = mine.first[n] / (1 - BETA_1**self.steps), mine.second[n] / (1 - BETA_2**self.steps)
            update = self.rate * m / (np.sqrt(v) + EPSILON)
            if self.stage == 3:
                mine.weights[n] = mine.weights[n] - update
            else:
                mine.weights[n] = _in_place(mine.weights[n], sizes, r, mine.weights[n][own] - update, own)

    def _hand_out(self) -> None:
        for n, sizes in enumerate(self.sizes):
            shards = [split(mine.weights[n], sizes)[r] for r, mine in enumerate(self.ranks)]
            for mine, whole in zip(self.ranks, all_gather(self.world, shards, operation=WEIGHTS_UPDATED)):
                mine.weights[n] = whole


def _with_one(rows: Array) -> Array:
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def _in_place(whole: Array, sizes: Sequence[int], rank: int, part: Array, where: slice | None = None) -> Array:
    """Return the vector with one rank's shard replaced."""
    out = whole.copy()
    out[slice(sum(sizes[:rank]), sum(sizes[: rank + 1])) if where is None else where] = part
    return out
