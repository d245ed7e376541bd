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
