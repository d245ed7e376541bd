"""Which experts a token visits: top-k, limited to a few nodes, skewed; and which visits a capacity drops.

Symbols: T tokens of a rank [token] · E experts, k of them a token [-] · C rows an expert takes from one rank [token]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parlay.simulate.world import Array

Choices = NDArray[np.int64]


@dataclass(frozen=True)
class Routing:
    """The experts of each token (T, k), the weight of each in the sum (T, k), and which visits the capacity keeps (T, k)."""

    experts: Choices
    gates: Array
    kept: NDArray[np.bool_]

    def rows_of(self, expert: int) -> tuple[Choices, Choices]:
        """Return token and slot of every kept visit to an expert, in the order of the tokens."""
        tokens, slots = np.nonzero(self.kept & (self.experts == expert))
        return tokens, slots

    def load(self, experts: int) -> NDArray[np.int64]:
        """Return how many kept visits each expert gets. [token]"""
        return np.bincount(self.experts[self.kept], minlength=experts).astype(np.int64)


def top_experts(logits: Array, top_k: int) -> Choices:
    """Return the k experts of highest logit for each token, the highest first; of equals the one with the lower number."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :top_k]


def top_experts_of_nodes(logits: Array, top_k: int, nodes: int, most_nodes: int, *, node_scores: Array | None = None) -> Choices:
    """Return the k best experts of each token that lie on at most `most_nodes` nodes, those of highest score.

    Where no `node_scores` (T, nodes) are given, a node counts as much as the sum of the sigmoids of its best ceil(k / `most_nodes`)
    experts, as in DeepSeek-V3 (arXiv:2412.19437, section 2.1.2); experts lie on the nodes in order, equally many on each. A node
    kept for its experts is then visited more often than one that was drawn.
    """
    T, E = logits.shape
    if E % nodes or top_k > most_nodes * (E // nodes):
        raise ValueError(f"{top_k} of {E} experts do not fit on {most_nodes} of {nodes} nodes")
    if node_scores is None:
        best_first = -np.sort(-1 / (1 + np.exp(-logits.reshape(T, nodes, E // nodes))), axis=2)
        node_scores = best_first[:, :, : math.ceil(top_k / most_nodes)].sum(2)
    chosen = np.argsort(-node_scores, axis=1, kind="stable")[:, :most_nodes]
    allowed = np.zeros((T, nodes), bool)
    np.put_along_axis(allowed, chosen, True, axis=1)
    return top_experts(np.where(np.repeat(allowed, E // nodes, axis=1), logits, -np.inf), top_k)


def skewed_logits(tokens: int, experts: int, skew: float, rng: np.random.Generator) -> Array:
    r"""Return logits whose top-k draws k different experts, expert i with odds $(i + 1)^{-\mathrm{skew}}$; 0 is uniform.

    The log of the odds plus Gumbel noise: the order of the sums is a draw without replacement.
    """
    return -skew * np.log(np.arange(1, experts + 1)) + rng.gumbel(size=(tokens, experts))


def capacity_rows(tokens: int, top_k: int, experts: int, capacity_factor: float) -> int:
    """Return the rows C that an expert takes: the capacity factor times the mean load k T / E, rounded up.

    Examples
    --------
    >>> capacity_rows(10, 2, 8, 1.0)
    3
    """
    return math.ceil(round(capacity_factor * top_k * tokens / experts, 9))  # 1.1 x 10 is 11, not 11.000000000000002


def route(logits: Array, chosen: Choices, *, capacity: int | None = None) -> Routing:
    """Return the routing of one rank's tokens: gates are the softmax of the chosen logits.

    Parameters
    ----------
    logits : ndarray
        Router output (T, E). [-]
    chosen : ndarray
        Experts of each token (T, k). [-]
    capacity : int, optional
        Rows an expert takes from this rank, the first in the order of the tokens; no limit where it is left out. [token]
    """
    picked = np.take_along_axis(logits, chosen, axis=1)
    gates = np.exp(picked - picked.max(1, keepdims=True))
    kept = np.ones(chosen.shape, bool)
    if capacity is not None:
        for expert in range(logits.shape[1]):
            tokens, slots = np.nonzero(chosen == expert)
            kept[tokens[capacity:], slots[capacity:]] = False
    return Routing(chosen, gates / gates.sum(1, keepdims=True), kept)
