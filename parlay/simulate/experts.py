"""A mixture-of-experts layer over N ranks: route, dispatch, expert compute, combine; and the same backward.

Every rank holds its own tokens, the router, the shared expert if there is one, and a run of the experts. One copy of a token's
vector travels for each (token, expert) pair (`forward`, `backward`), or one for each node and in it one for each rank
(`forward_by_node`, for routers that visit few nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parlay.simulate.collectives import all_reduce, all_to_all, even_sizes, split
from parlay.simulate.routing import Routing
from parlay.simulate.world import Array, World

COUNTS, DISPATCH, COMBINE = "rows per expert", "dispatch", "combine"
BACK_DISPATCH, BACK_COMBINE, REPLICATED = "dispatch backward", "combine backward", "replicated gradients"
EXPERTS, EXPERTS_BACKWARD, SHARED, SHARED_BACKWARD = "experts", "experts backward", "shared expert", "shared expert backward"


@dataclass(frozen=True)
class Expert:
    """The matrices of an expert: (hidden, width), (width, hidden), and (hidden, width) of the gate branch if it has one."""

    up: Array
    down: Array
    gate: Array | None = None


@dataclass(frozen=True)
class Layer:
    """The experts of the whole layer, in order, and the one that every token visits, if any."""

    experts: list[Expert]
    shared: Expert | None = None

    def owned_by(self, rank: int, ranks: int) -> range:
        """Return the numbers of the experts that lie on a rank."""
        sizes = even_sizes(len(self.experts), ranks)
        return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


@dataclass(frozen=True)
class Forward:
    """Outputs by rank, and what the backward pass needs: rows by expert and source, expert outputs by source and expert."""

    outputs: list[Array]
    rows: list[list[Array]]
    returned: list[list[Array]]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the tokens and of the gates by rank, of the experts in order, and of the shared expert, summed over the ranks."""

    tokens: list[Array]
    gates: list[Array]
    experts: list[Expert]
    shared: Expert | None


def run_expert(world: World, rank: int, rows: Array, expert: Expert, operation: str) -> Array:
    """Return down(SiLU(gate(rows)) x up(rows)), or down(SiLU(up(rows))) without a gate."""
    up = world.matmul(rank, rows, expert.up, operation)
    inner = _silu(up) if expert.gate is None else _silu(world.matmul(rank, rows, expert.gate, operation)) * up
    return world.matmul(rank, inner, expert.down, operation)


def run_expert_backward(
    world: World, rank: int, rows: Array, expert: Expert, d_out: Array, operation: str
) -> tuple[Array, Expert]:
    """Return the gradients of the rows and of the matrices; what the forward pass did not keep is computed again, uncounted."""
    up = rows @ expert.up
    branch = up if expert.gate is None else rows @ expert.gate
    inner = _silu(up) if expert.gate is None else _silu(branch) * up
    d_inner = world.matmul(rank, d_out, expert.down.T, operation)
    d_down = world.matmul(rank, inner.T, d_out, operation)
    d_branch = d_inner * _silu_slope(branch) * (1 if expert.gate is None else up)
    d_up = d_branch if expert.gate is None else d_inner * _silu(branch)
    d_rows = world.matmul(rank, d_up, expert.up.T, operation)
    gradient = world.matmul(rank, rows.T, d_up, operation)
    if expert.gate is None:
        return d_rows, Expert(gradient, d_down)
    d_rows = d_rows + world.matmul(rank, d_branch, expert.gate.T, operation)
    return d_rows, Expert(gradient, d_down, world.matmul(rank, rows.T, d_branch, operation))


def forward(world: World, x: Sequence[Array], layer: Layer, routing: Sequence[Routing], *, pad_to: int | None = None) -> Forward:
    """Return the layer's output for every rank's tokens.

    Parameters
    ----------
    world : World
        The ranks and their ledger.
    x : sequence of ndarray
        Tokens (T, hidden) of every rank. [-]
    layer : Layer
        The experts.
    routing : sequence of Routing
        The routing of every rank's tokens.
    pad_to : int, optional
        Rows that each rank sends to each expert, filled up with zeros; as many as there are where it is left out. [token]

    Returns
    -------
    Forward
        The weighted sums of the expert outputs, dropped visits left out, plus the shared expert's output.
    """
    E, ranks = len(layer.experts), range(world.ranks)
    picked = [[_padded(x[i][routing[i].rows_of(e)[0]], pad_to) for e in range(E)] for i in ranks]
    _exchange_counts(world, picked, layer)
    rows = _to_experts(world, picked, layer, DISPATCH)
    outputs = [[np.empty((0, x[0].shape[1]))] * world.ranks for _ in range(E)]
    for j in ranks:
        for e in layer.owned_by(j, world.ranks):
            together = run_expert(world, j, np.concatenate(rows[e]), layer.experts[e], EXPERTS)
            outputs[e] = split(together, [len(part) for part in rows[e]])
    returned = _to_sources(world, outputs, layer, COMBINE)
    y = []
    for i in ranks:
        total = np.zeros_like(x[i]) if layer.shared is None else run_expert(world, i, x[i], layer.shared, SHARED)
        for e in range(E):
            tokens, slots = routing[i].rows_of(e)
            total[tokens] += routing[i].gates[tokens, slots, None] * returned[i][e][: len(tokens)]
        y.append(total)
    return Forward(y, rows, returned)


def backward(
    world: World,
    x: Sequence[Array],
    layer: Layer,
    routing: Sequence[Routing],
    saved: Forward,
    d_outputs: Sequence[Array],
    *,
    pad_to: int | None = None,
) -> Gradients:
    """Return all gradients: those of the outputs travel to the experts, those of the rows travel back."""
    E, ranks = len(layer.experts), range(world.ranks)
    d_gates = [np.zeros_like(each.gates) for each in routing]
    picked = []
    for i in ranks:
        mine = []
        for e in range(E):
            tokens, slots = routing[i].rows_of(e)
            d_gates[i][tokens, slots] = (d_outputs[i][tokens] * saved.returned[i][e][: len(tokens)]).sum(1)
            mine.append(_padded(routing[i].gates[tokens, slots, None] * d_outputs[i][tokens], pad_to))
        picked.append(mine)
    d_out = _to_experts(world, picked, layer, BACK_DISPATCH)
    d_rows: list[list[Array]] = [[] for _ in range(E)]
    experts: list[Expert] = []
    for j in ranks:
        for e in layer.owned_by(j, world.ranks):
            whole, d_whole = np.concatenate(saved.rows[e]), np.concatenate(d_out[e])
            together, gradient = run_expert_backward(world, j, whole, layer.experts[e], d_whole, EXPERTS_BACKWARD)
            d_rows[e] = split(together, [len(part) for part in d_out[e]])
            experts.append(gradient)
    returned = _to_sources(world, d_rows, layer, BACK_COMBINE)
    d_x, shared = [], []
    for i in ranks:
        total = np.zeros_like(x[i])
        if layer.shared is not None:
            total, gradient = run_expert_backward(world, i, x[i], layer.shared, d_outputs[i], SHARED_BACKWARD)
            shared.append(gradient)
        for e in range(E):
            tokens, _ = routing[i].rows_of(e)
            total[tokens] += returned[i][e][: len(tokens)]
        d_x.append(total)
    return Gradients(d_x, d_gates, experts, _summed(world, shared) if shared else None)


def forward_by_node(world: World, x: Sequence[Array], layer: Layer, routing: Sequence[Routing]) -> list[Array]:
    """Return the same outputs where a token's vector crosses to each node once.

    It goes to the rank of the same place in that node, which passes it on to each rank that holds one of its experts. These weigh and
    sum the outputs of their experts; the first rank sums over the node and sends one vector back.
    """
    size, nodes = world.ranks_per_node, world.ranks // world.ranks_per_node
    y = [
        np.zeros_like(part) if layer.shared is None else run_expert(world, i, part, layer.shared, SHARED)
        for i, part in enumerate(x)
    ]
    for i in range(world.ranks):
        gates = np.zeros((len(x[i]), len(layer.experts)))
        np.put_along_axis(gates, routing[i].experts, routing[i].gates * routing[i].kept, axis=1)
        for node in range(nodes):
            relay = node * size + i % size
            members = range(node * size, (node + 1) * size)
            first, stop = layer.owned_by(members[0], world.ranks).start, layer.owned_by(members[-1], world.ranks).stop
            tokens = np.flatnonzero((gates[:, first:stop] > 0).any(1))
            if not tokens.size:
                continue
            here = world.send(i, relay, x[i][tokens], DISPATCH)
            weights = world.send(i, relay, gates[tokens, first:stop], COUNTS)
            summed = np.zeros_like(here)
            for j in members:
                mine = layer.owned_by(j, world.ranks)
                share = weights[:, mine.start - first : mine.stop - first]
                want = np.flatnonzero((share > 0).any(1))
                if want.size:
                    rows, share = world.send(relay, j, here[want], DISPATCH), world.send(relay, j, share[want], COUNTS)
                    summed[want] += world.send(j, relay, _weighted(world, j, rows, share, layer, mine), COMBINE)
            y[i][tokens] += world.send(relay, i, summed, COMBINE)
    return y


def _weighted(world: World, rank: int, rows: Array, gates: Array, layer: Layer, mine: Sequence[int]) -> Array:
    total = np.zeros_like(rows)
    for column, e in enumerate(mine):
        want = np.flatnonzero(gates[:, column] > 0)
        total[want] += gates[want, column, None] * run_expert(world, rank, rows[want], layer.experts[e], EXPERTS)
    return total


def _exchange_counts(world: World, picked: Sequence[Sequence[Array]], layer: Layer) -> None:
    counts = [
        [np.array([len(mine[e]) for e in layer.owned_by(j, world.ranks)], float) for j in range(world.ranks)] for mine in picked
    ]
    all_to_all(world, counts, operation=COUNTS)


def _to_experts(world: World, picked: Sequence[Sequence[Array]], layer: Layer, operation: str) -> list[list[Array]]:
    """Send rows from source and expert to expert and source: `picked[i][e]` becomes `[e][i]`."""
    ranks, out = range(world.ranks), []
    width = picked[0][0].shape[1]
    blocks = [
        [np.concatenate([np.empty((0, width)), *(mine[e] for e in layer.owned_by(j, world.ranks))]) for j in ranks]
        for mine in picked
    ]
    received = all_to_all(world, blocks, operation=operation)
    for j in ranks:
        owned = layer.owned_by(j, world.ranks)
        parts = [split(received[j][i], [len(picked[i][e]) for e in owned]) if owned else [] for i in ranks]
        out += [[parts[i][n] for i in ranks] for n in range(len(owned))]
    return out


def _to_sources(world: World, outputs: Sequence[Sequence[Array]], layer: Layer, operation: str) -> list[list[Array]]:
    """Send rows back: `outputs[e][i]` becomes `[i][e]`."""
    ranks = range(world.ranks)
    width = outputs[0][0].shape[1]
    blocks = [
        [np.concatenate([np.empty((0, width)), *(outputs[e][i] for e in layer.owned_by(j, world.ranks))]) for i in ranks]
        for j in ranks
    ]
    received = all_to_all(world, blocks, operation=operation)
    out: list[list[Array]] = [[] for _ in ranks]
    for i in ranks:
        for j in ranks:
            owned = layer.owned_by(j, world.ranks)
            out[i] += split(received[i][j], [len(outputs[e][i]) for e in owned]) if owned else []
    return out


def _padded(rows: Array, pad_to: int | None) -> Array:
    if pad_to is None:
        return rows
    return np.concatenate([rows, np.zeros((pad_to - len(rows), rows.shape[1]))])


def _summed(world: World, gradients: Sequence[Expert]) -> Expert:
    up, down = (
        all_reduce(world, [getattr(each, name) for each in gradients], operation=REPLICATED)[0] for name in ("up", "down")
    )
    gates = [each.gate for each in gradients if each.gate is not None]
    return Expert(up, down, all_reduce(world, gates, operation=REPLICATED)[0] if gates else None)


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _silu_slope(x: Array) -> Array:
    s = 1 / (1 + np.exp(-x))
    return np.asarray(s * (1 + x * (1 - s)))
