"""All-gather context parallelism: every rank gathers all keys and values, then computes attention for its own queries at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parlay.simulate.attention import Partial, attend, attend_backward, grouped
from parlay.simulate.collectives import all_gather, reduce_scatter
from parlay.simulate.placement import Positions
from parlay.simulate.world import Array, World

GATHER_FORWARD, GATHER_BACKWARD, GRADIENTS = "K/V gather forward", "K/V gather backward", "dK/dV reduce-scatter"


def gathered_attention(
    world: World, q: Sequence[Array], k: Sequence[Array], v: Sequence[Array], positions: Sequence[Positions], *, causal: bool
) -> list[Partial]:
    """Return the attention of every rank's queries over all keys, gathered before."""
    heads, keys_at = grouped(len(q[0]), len(k[0])), np.concatenate(positions)
    all_k = all_gather(world, k, axis=1, operation=GATHER_FORWARD)
    all_v = all_gather(world, v, axis=1, operation=GATHER_FORWARD)
    return [attend(world, r, q[r], all_k[r], all_v[r], positions[r], keys_at, heads, causal) for r in range(world.ranks)]


def gathered_attention_backward(
    world: World,
    q: Sequence[Array],
    k: Sequence[Array],
    v: Sequence[Array],
    results: Sequence[Partial],
    d_output: Sequence[Array],
    positions: Sequence[Positions],
    *,
    causal: bool,
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return the gradients of q, k and v on the ranks that own them.

    Only the own K/V shard was kept, so the gather runs again; the gradients of all keys are summed and scattered to their owners.
    """
    heads, keys_at = grouped(len(q[0]), len(k[0])), np.concatenate(positions)
    all_k = all_gather(world, k, axis=1, operation=GATHER_BACKWARD)
    all_v = all_gather(world, v, axis=1, operation=GATHER_BACKWARD)
    parts = [
        attend_backward(world, r, q[r], all_k[r], all_v[r], positions[r], keys_at, heads, causal, results[r], d_output[r])
        for r in range(world.ranks)
    ]
    sizes = [len(p) for p in positions]
    d_k = reduce_scatter(world, [part[1] for part in parts], axis=1, sizes=sizes, operation=GRADIENTS)
    d_v = reduce_scatter(world, [part[2] for part in parts], axis=1, sizes=sizes, operation=GRADIENTS)
    return [part[0] for part in parts], d_k, d_v
