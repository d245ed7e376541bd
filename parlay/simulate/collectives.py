"""Collectives as rings of point-to-point messages. Shards may be uneven: chunk i belongs to rank i of the group.

Every function takes one entry a rank, in the order of the group, and returns one entry a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parlay.simulate.world import Array, World


def even_sizes(items: int, parts: int) -> list[int]:
    """Return the sizes of `parts` parts of `items` items, as even as they can be, the larger ones first.

    Examples
    --------
    >>> even_sizes(7, 3)
    [3, 2, 2]
    """
    return [items // parts + (i < items % parts) for i in range(parts)]


def split(array: Array, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Return `array` cut along `axis` into parts of the given sizes."""
    if sum(sizes) != array.shape[axis]:
        raise ValueError(f"parts of {list(sizes)} do not make up axis {axis} of shape {array.shape}")
    return [part.copy() for part in np.split(array, np.cumsum(sizes)[:-1], axis=axis)]


def ring_shift(
    world: World, shards: Sequence[Array], *, operation: str = "point-to-point", ranks: Sequence[int] | None = None, by: int = 1
) -> list[Array]:
    """Return what each rank holds after every rank has sent its shard `by` places on around the ring."""
    group = world.everyone(ranks)
    N = len(group)
    return [world.send(group[(i - by) % N], group[i], shards[(i - by) % N], operation) for i in range(N)]


def all_gather(
    world: World, shards: Sequence[Array], *, axis: int = 0, operation: str = "all-gather", ranks: Sequence[int] | None = None
) -> list[Array]:
    """Return on every rank all shards, in the order of the ranks.

    In step k rank r passes on the shard of rank r - k: after N - 1 steps it has sent all shards but that of rank r + 1.
    """
    group = world.everyone(ranks)
    N = len(group)
    held: list[dict[int, Array]] = [{i: shards[i]} for i in range(N)]
    moving = [shard.copy() for shard in shards]
    for k in range(1, N):
        moving = ring_shift(world, moving, operation=operation, ranks=group)
        for i in range(N):
            held[i][(i - k) % N] = moving[i]
    return [np.concatenate([held[i][j] for j in range(N)], axis=axis) for i in range(N)]


def reduce_scatter(
    world: World,
    arrays: Sequence[Array],
    *,
    axis: int = 0,
    sizes: Sequence[int] | None = None,
    operation: str = "reduce-scatter",
    ranks: Sequence[int] | None = None,
) -> list[Array]:
    """Return on rank i chunk i of the sum of all arrays.

    A chunk starts its way one rank after its owner; each rank on the way adds its own part: rank r sends all chunks but its own.
    """
    group = world.everyone(ranks)
    N = len(group)
    sizes = even_sizes(arrays[0].shape[axis], N) if sizes is None else sizes
    own = [split(array, sizes, axis) for array in arrays]
    moving = [own[i][(i - 1) % N] for i in range(N)]
    for k in range(1, N):
        moving = ring_shift(world, moving, operation=operation, ranks=group)
        moving = [world.add(group[i], moving[i], own[i][(i - 1 - k) % N], operation) for i in range(N)]
    return moving


def all_reduce(
    world: World, arrays: Sequence[Array], *, operation: str = "all-reduce", ranks: Sequence[int] | None = None
) -> list[Array]:
    """Return on every rank the sum of all arrays: a reduce-scatter, then an all-gather, of the flat arrays."""
    flat = [array.reshape(-1) for array in arrays]
    chunks = reduce_scatter(world, flat, operation=operation, ranks=ranks)
    whole = all_gather(world, chunks, operation=operation, ranks=ranks)
    return [total.reshape(arrays[0].shape) for total in whole]


def all_to_all(
    world: World, blocks: Sequence[Sequence[Array]], *, operation: str = "all-to-all", ranks: Sequence[int] | None = None
) -> list[list[Array]]:
    """Return the transposed grid of blocks: `blocks[i][j]` goes from rank i to rank j, the block (i, i) stays."""
    group = world.everyone(ranks)
    N = len(group)
    return [[world.send(group[i], group[j], blocks[i][j], operation) for i in range(N)] for j in range(N)]


def broadcast(
    world: World,
    array: Array,
    *,
    root: int = 0,
    pieces: int = 1,
    operation: str = "broadcast",
    ranks: Sequence[int] | None = None,
) -> list[Array]:
    """Return on every rank the array of the `root`-th one: `pieces` pieces pass one after the other along the chain of ranks.

    Every rank but the last of the chain sends the whole array once.
    """
    group = world.everyone(ranks)
    N = len(group)
    flat = split(array.reshape(-1), even_sizes(array.size, pieces))
    held: list[list[Array]] = [[] for _ in range(N)]
    for piece in flat:
        here = piece
        for hop in range(N):
            i = (root + hop) % N
            if hop:
                here = world.send(group[(i - 1) % N], group[i], here, operation)
            held[i].append(here)
    return [np.concatenate(parts).reshape(array.shape) for parts in held]


def tree_all_reduce(
    world: World, arrays: Sequence[Array], *, operation: str = "tree all-reduce", ranks: Sequence[int] | None = None
) -> tuple[list[Array], int]:
    """Return on every rank the sum of all arrays, and the steps it took: up a binary tree to rank 0 and down again.

    The parent of a rank is the rank with its lowest set bit moved up by one, or cleared where that rank does not exist (the tree that
    NCCL builds, src/graph/trees.cc); a rank sends on when all its children have sent.
    """
    group = world.everyone(ranks)
    N = len(group)
    parent = [_parent(i, N) for i in range(N)]
    deepest_first = sorted(range(1, N), key=lambda i: -_depth(i, parent))
    total, step_up = [array.copy() for array in arrays], [0] * N
    for i in deepest_first:
        arrived = world.send(group[i], group[parent[i]], total[i], operation)
        total[parent[i]] = world.add(group[parent[i]], total[parent[i]], arrived, operation)
        step_up[parent[i]] = max(step_up[parent[i]], step_up[i] + 1)
    step_down = [step_up[0]] * N
    for i in reversed(deepest_first):
        total[i] = world.send(group[parent[i]], group[i], total[parent[i]], operation)
        step_down[i] = step_down[parent[i]] + 1
    return total, max(step_down)


def _parent(i: int, N: int) -> int:
    bit = i & -i
    up = (i ^ bit) | (bit << 1)
    return up if up < N else i ^ bit


def _depth(i: int, parent: Sequence[int]) -> int:
    return 0 if i == 0 else 1 + _depth(parent[i], parent)


def switch_all_reduce(world: World, arrays: Sequence[Array], *, operation: str = "switch all-reduce") -> list[Array]:
    """Return on every rank but the last one, which is the switch, the sum of their arrays.

    For each slice the switch reads the copy of every rank and adds them; the slice's owner gets the sum, sends it once, and the
    switch multiplies it.
    """
    N = world.ranks - 1
    sizes, switch = even_sizes(arrays[0].size, N), N
    slices = [split(array.reshape(-1), sizes) for array in arrays]
    out: list[list[Array]] = [[] for _ in range(N)]
    for owner in range(N):
        summed = world.send(0, switch, slices[0][owner], operation)
        for r in range(1, N):
            summed = world.add(switch, summed, world.send(r, switch, slices[r][owner], operation), operation)
        back = world.send(owner, switch, world.send(switch, owner, summed, operation), operation)
        for r in range(N):
            out[r].append(world.send(switch, r, back, operation))
    return [np.concatenate(parts).reshape(arrays[0].shape) for parts in out]


def switch_all_gather(world: World, shards: Sequence[Array], *, operation: str = "switch all-gather") -> list[Array]:
    """Return on every rank but the last one, which is the switch, all shards: each is sent once and multiplied."""
    N = world.ranks - 1
    inside = [world.send(r, N, shards[r], operation) for r in range(N)]
    return [np.concatenate([world.send(N, r, shard, operation) for shard in inside]) for r in range(N)]


def hierarchical_all_gather(
    world: World, shards: Sequence[Array], *, between: str = "all-gather between nodes", within: str = "all-gather in nodes"
) -> list[Array]:
    """Return on every rank all shards: ranks of the same place gather across nodes, then the ranks of a node exchange what they have."""
    size = world.ranks_per_node
    held: list[Array] = list(shards)
    for place in range(size):
        peers = list(range(place, world.ranks, size))
        for rank, array in zip(peers, all_gather(world, [shards[r] for r in peers], operation=between, ranks=peers)):
            held[rank] = array
    out: list[Array] = []
    nodes, each = world.ranks // size, len(shards[0])
    for node in range(nodes):
        members = list(range(node * size, (node + 1) * size))
        for whole in all_gather(world, [held[r] for r in members], operation=within, ranks=members):
            # Rows come by place, then node; put them back into the order of the ranks.
            by_place = whole.reshape(size, nodes, each, *whole.shape[1:])
            out.append(by_place.swapaxes(0, 1).reshape(whole.shape))
    return out
