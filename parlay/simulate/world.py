"""The ranks and their ledger: what each rank sent to each other rank, and how many FLOPs each one did.

Symbols: N ranks [-] · r one rank, from 0 [-]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Ledger:
    """What the ranks of a world did: bytes and messages by operation, source and target; FLOPs by operation and rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.bytes: dict[str, Counts] = {}
        self.messages: dict[str, Counts] = {}
        self.flops: dict[str, Counts] = {}

    def record_message(self, operation: str, source: int, target: int, size: int) -> None:
        """Add one message of `size` bytes from rank `source` to rank `target`."""
        for table, amount in ((self.bytes, size), (self.messages, 1)):
            table.setdefault(operation, np.zeros((self.ranks, self.ranks), np.int64))[source, target] += amount

    def record_flops(self, operation: str, rank: int, count: int) -> None:
        """Add `count` FLOPs to rank `rank`."""
        self.flops.setdefault(operation, np.zeros(self.ranks, np.int64))[rank] += count

    def traffic_bytes(self, *operations: str) -> Counts:
        """Return the bytes sent from each rank (rows) to each rank (columns), over `operations` or over all. [B]"""
        return _total(self.bytes, operations, (self.ranks, self.ranks))

    def sent_bytes(self, *operations: str) -> Counts:
        """Return the bytes that each rank sent, over `operations` or over all. [B]"""
        return np.asarray(self.traffic_bytes(*operations).sum(axis=1))

    def received_bytes(self, *operations: str) -> Counts:
        """Return the bytes that each rank received, over `operations` or over all. [B]"""
        return np.asarray(self.traffic_bytes(*operations).sum(axis=0))

    def messages_sent(self, *operations: str) -> Counts:
        """Return how many messages each rank sent, over `operations` or over all. [-]"""
        return np.asarray(_total(self.messages, operations, (self.ranks, self.ranks)).sum(axis=1))

    def flops_done(self, *operations: str) -> Counts:
        """Return the FLOPs that each rank did, over `operations` or over all. [FLOP]"""
        return _total(self.flops, operations, (self.ranks,))


class World:
    """N ranks that can send each other arrays and multiply matrices; both leave a line in the ledger.

    Parameters
    ----------
    ranks : int
        Number of ranks N. [-]
    ranks_per_node : int, optional
        Ranks of one node, in order; all of them where it is left out. [-]

    Examples
    --------
    >>> world = World(2)
    >>> received = world.send(0, 1, np.ones(3), "hello")
    >>> world.ledger.sent_bytes("hello").tolist()
    [24, 0]
    """

    def __init__(self, ranks: int, ranks_per_node: int | None = None) -> None:
        if ranks < 1:
            raise ValueError(f"`ranks` must be >= 1, got {ranks}")
        self.ranks = ranks
        self.ranks_per_node = ranks if ranks_per_node is None else ranks_per_node
        if self.ranks_per_node < 1:
            raise ValueError(f"`ranks_per_node` must be >= 1, got {ranks_per_node}")
        self.ledger = Ledger(ranks)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank, from 0."""
        return rank // self.ranks_per_node

    def between_nodes_bytes(self, *operations: str) -> Counts:
        """Return the bytes that each rank sent to ranks of other nodes. [B]"""
        node = np.arange(self.ranks) // self.ranks_per_node
        crosses = node[:, None] != node[None, :]
        return np.asarray((self.ledger.traffic_bytes(*operations) * crosses).sum(axis=1))

    def send(self, source: int, target: int, array: Array, operation: str) -> Array:
        """Return the copy of `array` that rank `target` receives from rank `source`; a rank keeps its own for nothing."""
        for rank in (source, target):
            if not 0 <= rank < self.ranks:
                raise ValueError(f"no rank {rank} in a world of {self.ranks}")
        if source != target:
            self.ledger.record_message(operation, source, target, array.nbytes)
        return array.copy()

    def matmul(self, rank: int, left: Array, right: Array, operation: str) -> Array:
        """Return `left @ right` done by one rank: 2 m n k FLOPs for each matrix of the batch."""
        product: Array = left @ right
        self.ledger.record_flops(operation, rank, 2 * product.size * left.shape[-1])
        return product

    def add(self, rank: int, left: Array, right: Array, operation: str) -> Array:
        """Return `left + right` done by one rank: one FLOP an element."""
        total: Array = left + right
        self.ledger.record_flops(operation, rank, total.size)
        return total

    def everyone(self, ranks: Sequence[int] | None = None) -> list[int]:
        """Return the ranks of a group, or all ranks where none is given."""
        return list(range(self.ranks)) if ranks is None else list(ranks)


def _total(table: dict[str, Counts], operations: Sequence[str], shape: tuple[int, ...]) -> Counts:
    total = np.zeros(shape, np.int64)
    for name in operations or table:
        total += table.get(name, 0)
    return total
