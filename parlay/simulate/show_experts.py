"""What a skewed router does to experts and to the ranks that hold them, as data: load, dropped copies, waiting ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parlay.errors import UsageError
from parlay.simulate.collectives import even_sizes
from parlay.simulate.routing import capacity_rows, route, skewed_logits, top_experts


@dataclass(frozen=True)
class ExpertLoad:
    """Loads in (token, expert) copies: by expert wanted, computed and dropped; by rank computed, waiting for the busiest, and sent.

    `waiting_share` is the part of the layer's time, set by the busiest rank, that the ranks wait on average.
    """

    rank_of: list[int]
    wanted: list[int]
    computed: list[int]
    dropped: list[int]
    capacity: int | None
    rank_load: list[int]
    rank_waiting: list[int]
    rank_sent: list[int]
    busiest_over_mean: float
    waiting_share: float
    dropped_share: float


def expert_load(
    experts: int,
    ranks: int,
    tokens_per_rank: int,
    top_k: int,
    *,
    skew: float = 0.0,
    capacity_factor: float | None = None,
    seed: int = 0,
) -> ExpertLoad:
    """Return one draw of a router: where the copies of all tokens go, which are dropped, and which ranks wait.

    Parameters
    ----------
    experts : int
        Experts E, in runs over the ranks. [-]
    ranks : int
        Expert-parallel ranks. [-]
    tokens_per_rank : int
        Tokens that each rank routes. [token]
    top_k : int
        Experts a token visits. [-]
    skew : float, default 0
        Expert i has odds (i + 1) ** -skew; 0 is a uniform router. [-]
    capacity_factor : float, optional
        Copies an expert takes over the mean load of all ranks' tokens together; no limit where it is left out. [-]
    seed : int, default 0
        Seed of the draw. [-]

    Returns
    -------
    ExpertLoad
        Loads by expert and by rank.

    Raises
    ------
    UsageError
        If a number is out of its range.

    Notes
    -----
    All tokens count against one capacity, first those of rank 0. Copies that are dropped are not sent.

    Examples
    --------
    >>> shown = expert_load(8, 4, 100, 2, skew=1.0, capacity_factor=1.25)
    >>> shown.capacity, max(shown.computed), sum(shown.wanted), sum(shown.computed) + sum(shown.dropped)
    (125, 125, 800, 800)
    """
    if min(experts, ranks, tokens_per_rank, top_k) < 1 or top_k > experts or ranks > experts:
        raise UsageError(
            f"top-{top_k} of {experts} experts on {ranks} ranks with {tokens_per_rank} tokens each cannot be routed",
            hint="at least one expert a rank, one token, and 1 <= top-k <= experts",
        )
    if skew < 0 or (capacity_factor is not None and capacity_factor <= 0):
        raise UsageError(f"skew must be >= 0 and the capacity factor > 0, got {skew:g} and {capacity_factor}")
    tokens = ranks * tokens_per_rank
    logits = skewed_logits(tokens, experts, skew, np.random.default_rng(seed))
    chosen = top_experts(logits, top_k)
    capacity = None if capacity_factor is None else capacity_rows(tokens, top_k, experts, capacity_factor)
    wanted, routing = route(logits, chosen).load(experts), route(logits, chosen, capacity=capacity)
    computed = routing.load(experts)
    rank_of = np.repeat(np.arange(ranks), even_sizes(experts, ranks))
    load = np.bincount(rank_of, weights=computed, minlength=ranks).astype(np.int64)
    source = np.arange(tokens)[:, None] // tokens_per_rank
    far = routing.kept & (rank_of[chosen] != source)
    busiest = int(load.max())
    return ExpertLoad(
        rank_of=rank_of.tolist(),
        wanted=wanted.tolist(),
        computed=computed.tolist(),
        dropped=(wanted - computed).tolist(),
        capacity=capacity,
        rank_load=load.tolist(),
        rank_waiting=(busiest - load).tolist(),
        rank_sent=far.reshape(ranks, -1).sum(1).tolist(),
        busiest_over_mean=busiest / float(load.mean()),
        waiting_share=1 - float(load.mean()) / busiest,
        dropped_share=float((wanted - computed).sum() / wanted.sum()),
    )
