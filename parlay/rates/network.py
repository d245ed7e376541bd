"""Seconds of collectives, inside a scale-up domain and across domains.

Legend: n ranks of the group, l of them in each domain, d = n / l domains; S bytes of the whole buffer; W bytes/s that a
rank's scale-up port reaches; w bytes/s of the network that each GPU has while all GPUs of its node send; a latency.

Across domains the ring of every channel leaves a domain once, each through another NIC, so a group with l ranks in a
domain moves S over l x w, and the scale-up part runs behind it. An all-to-all sends (n - l) / n of each rank's bytes
through that rank's own share of the NICs: it cannot lend NICs from its neighbours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from parlay.rates.interface import Array, Collective, Group
from parlay.rates.kernels import real, soft_maximum


def wire_factor(op: Collective, ranks: ArrayLike) -> Array:
    """Return the bytes a rank sends per byte of the buffer: what nccl-tests calls busbw / algbw."""
    n = np.maximum(real(ranks), 1.0)
    if op in ("broadcast", "send_recv"):
        return real(np.where(n > 1, 1.0, 0.0))
    return real((2.0 if op == "all_reduce" else 1.0) * (n - 1.0) / n)


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """Constants of collectives inside a scale-up domain."""

    bytes_per_s: float  # W of a ring
    pair_bytes_per_s: float  # one peer to another, one direction
    mesh: bool  # no switch: n ranks use (n - 1) / (whole - 1) of a GPU's links
    whole: float  # GPUs of a domain
    base_s: float
    hop_s: float
    exponent: float
    switch_gain: float  # W of an all-reduce that the switch reduces, over W of a ring; 1 = the switch cannot
    switch_ranks: float  # fewest ranks for which the library picks it
    all_to_all_share: float  # W of an all-to-all over W of a ring

    def latency(self, op: Collective, ranks: ArrayLike) -> Array:
        """Return the seconds of a collective of no bytes: a ring of few ranks, a tree of many."""
        n = np.maximum(real(ranks), 1.0)
        hops = np.minimum(n - 1.0, 4.0 * np.log2(n))
        return real(self.base_s + self.hop_s * np.where(op == "send_recv", np.minimum(n - 1.0, 1.0), hops))

    def bandwidth(self, op: Collective, ranks: ArrayLike) -> Array:
        """Return the bytes/s behind `wire_factor` bytes."""
        n = real(ranks)
        if op == "send_recv":
            return np.full(n.shape, self.pair_bytes_per_s / (max(self.whole - 1.0, 1.0) if self.mesh else 1.0))
        W = np.full(n.shape, self.bytes_per_s)
        if self.mesh:
            W = W * np.clip((n - 1.0) / max(self.whole - 1.0, 1.0), 1.0 / max(self.whole - 1.0, 1.0), 1.0)
        if op == "all_to_all":
            W = W * self.all_to_all_share
        if op == "all_reduce":
            W = W * np.where(n >= self.switch_ranks, self.switch_gain, 1.0)
        return real(W)

    def seconds(self, op: Collective, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
        """Return the seconds of a collective whose ranks all sit in one domain."""
        n = real(ranks)
        bytes_s = wire_factor(op, n) * real(nbytes) / self.bandwidth(op, n)
        return soft_maximum(np.where(n > 1, self.latency(op, n), 0.0), bytes_s, self.exponent)


@dataclasses.dataclass(frozen=True, slots=True)
class Fabric:
    """Constants of the network between domains, one direction."""

    bytes_per_s: float  # w of one GPU, line rate
    shares: Mapping[str, float]  # part of w that each collective reaches
    ring_hop_s: float
    local_hop_s: float  # of the same ring, from one rank of a domain to the next
    tree_hop_s: float
    base_s: float
    exponent: float
    port_bytes_per_s: float = 0.0  # line rate of a GPU whose node's others do not send, where that is more
    ring_limit: float = math.inf  # bytes/s that one communicator moves out of a domain, however many NICs it has

    def latency(self, op: Collective, group: Group) -> Array:
        """Return the seconds that a collective of no bytes takes across domains: rings for gather and scatter, trees for the rest.

        A ring passes every rank: n - 1 hops, of which d - 1 cross the network and the others stay inside a domain.
        """
        n, local = real(group.size), np.maximum(real(group.local), 1.0)
        d = np.maximum(n / local, 1.0)
        if op == "send_recv":
            return np.full(d.shape, self.base_s + self.tree_hop_s)
        tree = np.ceil(np.log2(d)) * self.tree_hop_s
        if op == "all_reduce":
            return real(self.base_s + 2.0 * tree)
        if op == "all_to_all":
            return real(self.base_s + self.tree_hop_s + (d - 1.0) * self.ring_hop_s / 2.0)  # sends overlap two by two
        return real(self.base_s + (d - 1.0) * self.ring_hop_s + np.maximum(n - d, 0.0) * self.local_hop_s)

    def alone(self, senders: ArrayLike) -> Array:
        """Return the line rate of one GPU that sends while a share `senders` of its domain's GPUs does: at most that of a lone one."""
        return real(np.clip(self.bytes_per_s / real(senders), self.bytes_per_s, max(self.port_bytes_per_s, self.bytes_per_s)))

    def seconds(self, op: Collective, nbytes: ArrayLike, group: Group) -> Array:
        """Return the seconds of the part of a collective that leaves the domain."""
        n, local, S = real(group.size), np.maximum(real(group.local), 1.0), real(nbytes)
        w = self.bytes_per_s * self.shares[op]
        if op == "all_to_all":
            bytes_s = S * np.maximum(n - local, 0.0) / np.maximum(n, 1.0) / np.minimum(w, self.ring_limit / local)
        elif op == "send_recv":
            bytes_s = S / np.minimum(self.alone(group.senders) * self.shares[op], self.ring_limit)
        else:
            bytes_s = S * wire_factor(op, n) / np.minimum(local * w, self.ring_limit)
        return soft_maximum(self.latency(op, group), bytes_s, self.exponent)


class Inside(Protocol):
    """Prices collectives inside a domain: constants (Domain) or measured curves."""

    def seconds(self, op: Collective, nbytes: ArrayLike, ranks: ArrayLike) -> Array:
        """Return the seconds of a collective whose ranks all sit in one domain."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """Both levels together."""

    domain: Inside
    default_domain: Domain
    fabric: Fabric

    def seconds(self, op: Collective, nbytes: ArrayLike, group: Group) -> Array:
        """Return the seconds of a collective over `group`: the slower level, softly; nothing for one rank."""
        n, local, S = real(group.size), real(group.local), real(nbytes)
        if not ((n > 1) & (S > 0)).any():  # nobody to send to, or nothing
            return np.zeros(np.broadcast(n, local, S).shape)
        inside = self.inside(op, S, n, local)
        crosses = n > local
        if not crosses.any():
            return real(np.where((n > 1) & (S > 0), inside, 0.0))
        outside = self.fabric.seconds(op, S, Group(n, local, group.senders))
        both = soft_maximum(outside, np.where(local > 1, inside, 0.0), LEVEL_EXPONENT)
        if op == "send_recv":  # one message, one way
            both = outside
        return real(np.where((n > 1) & (S > 0), np.where(crosses, both, inside), 0.0))

    def inside(self, op: Collective, nbytes: Array, ranks: Array, local: Array) -> Array:
        """Return the seconds of the scale-up part: all of it, or the local share of a group that spans domains."""
        if op == "all_to_all":
            share = local / np.maximum(ranks, 1.0)  # bytes for peers of the same domain
            return self.domain.seconds(op, nbytes * share, local)
        return self.domain.seconds(op, nbytes, local)


# The two levels of a collective run behind one another in chunks: nearly the larger of the two. 2 GiB over 32 x B200 took
# 11.2 ms (ml-engineering) where the network alone needs 11.0 and the scale-up part 5.4.
LEVEL_EXPONENT = 6.0
