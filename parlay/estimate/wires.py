"""What one collective moves and how fast, so that its seconds can be worked out again: latency and bytes over a rate."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.terms import Term
from parlay.hardware.spec import Cluster
from parlay.rates.datasheet import lone_bytes_per_s
from parlay.rates.interface import Collective, Group, Rates
from parlay.rates.network import wire_factor

Array = NDArray[np.float64]

TRANSFER = "collective_times.transfer_s"
LATENCY_BYTES = 1.0  # of the message whose time is told as the latency
OF_RATE = (
    "bytes_per_s is what the rates' curve reaches at this size, share_of_link its share of the scale-up link, or of the network of"
    " the GPUs that a group has in one domain where it leaves it"
)


@dataclasses.dataclass(frozen=True)
class Wires:
    """The rates of collectives beside the links that they run over."""

    rates: Rates
    scale_up: float  # bytes/s of one GPU
    network: float  # bytes/s of one GPU
    alone: float  # bytes/s of one GPU while no other of its node sends

    @classmethod
    def of(cls, cluster: Cluster, rates: Rates) -> Wires:
        """Return those of a cluster."""
        return cls(rates, cluster.scale_up_link.bytes_per_s.value, cluster.nic_bytes_per_s_per_gpu, lone_bytes_per_s(cluster))

    def told(self, op: Collective, nbytes: Array, group: Group, count: Array | float = 1.0) -> dict[str, Array]:
        """Return the ranks, bytes, latency and rate of `count` collectives of `nbytes` each, and the seconds of all of them.

        seconds = collectives x latency_s + sent_bytes / bytes_per_s, of which sent_bytes counts what a rank sends in all.
        """
        one = self.rates.collective(op, nbytes, group).seconds
        size, local, each, times = np.broadcast_arrays(group.size, group.local, one, count)
        sent = times * wire_factor(op, size) * nbytes
        idle = self.rates.collective(op, np.full(np.shape(one), LATENCY_BYTES), group).seconds
        idle = np.where(idle < each, idle, 0.0)
        moving = times * (each - idle)
        rate = np.divide(sent, moving, out=np.zeros(np.shape(one)), where=moving > 0)
        alone = np.clip(self.network / np.asarray(group.senders), self.network, max(self.alone, self.network))
        link = np.where(size > local, np.minimum(self.scale_up, alone * np.maximum(local, 1.0)), self.scale_up)
        return {
            "ranks": size, "ranks_in_a_domain": local, "bytes": times * nbytes, "collectives": times, "sent_bytes": sent,
            "latency_s": idle, "bytes_per_s": rate, "share_of_link": rate / link, "seconds": times * each,
        }  # fmt: skip

    def term(self, key: str, label: str, op: Collective, nbytes: Array, group: Group, **more: Array | float) -> Term:
        """Return one collective as a piece for `explain`; `more` are further inputs of it."""
        told = self.told(op, nbytes, group)
        value = told.pop("seconds")
        del told["collectives"]
        return Term(key, label, value, "s", TRANSFER, {**more, **told})
