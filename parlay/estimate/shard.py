"""The part of a layout that decides what one layer costs on one rank, as the distinct rows among many layouts.

Millions of layouts share a few thousand of these rows, so a layer is priced once a row and gathered from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.placement import domains
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import CP_KINDS, RECOMPUTE
from parlay.layouts.workload import Workload
from parlay.rates.interface import Group

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_FIELDS = ("tp", "cp", "cp_kind", "ulysses", "ep", "etp", "micro_batch", "sp", "recompute", "tp_overlap", "ep_overlap")


_SIZES = ("tp", "cp", "cp_kind", "ring", "ulysses", "ep", "etp", "micro_batch", "sp")  # what an operator's sizes follow from


@dataclasses.dataclass(frozen=True)
class Shard:
    """Distinct rows: degrees as floats, tokens per rank, groups, and what is recomputed."""

    tp: Array
    cp: Array
    ep: Array
    etp: Array
    micro_batch: Array
    sp: Mask
    recompute: NDArray[np.int64]
    tp_overlap: Mask
    ep_overlap: Mask
    cp_kind: NDArray[np.int64]
    ring: Array  # ranks of the ring (1 without one)
    ulysses: Array  # ranks of the Ulysses all-to-all (1 without one)
    seq_len: float
    domain: Array  # (rows,) GPUs that share a scale-up link, see placement.domains
    row_of: NDArray[np.int64]  # for each layout, its row here
    key: tuple[float, bytes]  # what tells these rows from others

    @property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank before tensor or sequence parallelism cuts anything."""
        return self.micro_batch * self.seq_len / self.cp

    @property
    def local_tokens(self) -> Array:
        """Tokens in the regions that sequence parallelism shards."""
        return self.tokens / np.where(self.sp, self.tp, 1.0)

    @property
    def tp_group(self) -> Group:
        """The tensor-parallel group: innermost, neighbours."""
        return Group.of(self.tp, 1.0, self.domain)

    @property
    def ep_group(self) -> Group:
        """The expert-parallel group: outside expert tensor parallelism."""
        return Group.of(self.ep, self.etp, self.domain)

    @property
    def etp_group(self) -> Group:
        """The expert tensor-parallel group: innermost."""
        return Group.of(self.etp, 1.0, self.domain)

    @property
    def ring_group(self) -> Group:
        """The ring of context parallelism: outside tp, and outside Ulysses where both are used."""
        return Group.of(self.ring, self.tp * self.ulysses, self.domain)

    @property
    def ulysses_group(self) -> Group:
        """The all-to-all group of Ulysses: just outside tp."""
        return Group.of(self.ulysses, self.tp, self.domain)

    def recomputes(self, modules: frozenset[str]) -> Mask:
        """Return where any of `modules`, or everything, is recomputed in the backward pass."""
        return np.asarray((self.recompute & _bits(modules)) != 0)

    def sizes(self) -> tuple[Shard, NDArray[np.int64]]:
        """Return the rows that differ in more than what is recomputed and overlapped, and for each row which of them it is."""
        first, row_of = agreeing(self, len(self.tp), _SIZES)
        if len(first) == len(row_of):
            return self, row_of
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields |= {name: value[first] for name, value in fields.items() if isinstance(value, np.ndarray) and name != "row_of"}
        return Shard(**fields | {"row_of": np.arange(len(first))}), row_of

    @classmethod
    def of(cls, layouts: Layouts, workload: Workload, cluster: Cluster) -> Shard:
        """Return the distinct rows of `layouts`."""
        within = domains(cluster, layouts)
        columns = [*(getattr(layouts, name).astype(np.int64) for name in _FIELDS), within.astype(np.int64)]
        first, row_of = distinct(columns)
        rows = np.array(columns)[:, first]
        value: dict[str, Any] = dict(zip(_FIELDS, rows[:-1], strict=True))
        seq_len = float(workload.seq_len)
        kind = value["cp_kind"]
        cp = value["cp"].astype(np.float64)
        inner = np.where(kind == CP_KINDS.index("ulysses"), cp, np.where(kind == CP_KINDS.index("usp"), value["ulysses"], 1.0))
        inner = np.minimum(inner, cp)
        return cls(
            tp=value["tp"].astype(np.float64),
            cp=cp,
            ep=value["ep"].astype(np.float64),
            etp=value["etp"].astype(np.float64),
            micro_batch=value["micro_batch"].astype(np.float64),
            sp=value["sp"].astype(bool),
            recompute=value["recompute"],
            tp_overlap=value["tp_overlap"].astype(bool),
            ep_overlap=value["ep_overlap"].astype(bool),
            cp_kind=kind,
            ring=np.where(kind == CP_KINDS.index("allgather"), 1.0, cp / inner),
            ulysses=inner,
            seq_len=seq_len,
            domain=within[first],
            row_of=row_of,
            key=(seq_len, rows.tobytes()),
        )


@lru_cache(maxsize=256)
def _bits(modules: frozenset[str]) -> int:
    """Return the bits of `modules` and of everything in a recompute choice."""
    return sum(1 << RECOMPUTE.index(m) for m in {*modules, "full"})


def agreeing(
    rows: Any, count: int, names: Sequence[str], *more: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `distinct` of `count` rows as far as the named attributes and the columns `more` go."""
    return distinct([*(getattr(rows, name).astype(np.int64) for name in (names if count > 1 else names[:1])), *more])


def distinct(columns: list[NDArray[np.int64]], *, ordered: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index of the first of each distinct row, row number of every row) of equally long integer columns.

    Distinct rows are as they came where all are distinct, unless they are to be `ordered` by the columns, the first above all.
    """
    packed = np.zeros(len(columns[0]), dtype=np.int64)
    if len(packed) < 2:
        return packed, packed
    largest = 0
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        span = high - low + 1
        if largest > (2**62) // span:
            packed = np.unique(packed, return_inverse=True)[1].astype(np.int64)
            largest = int(packed.max())
        packed = packed * span + (column - low)
        largest = largest * span + span - 1
    _, first, row_of = np.unique(packed, return_index=True, return_inverse=True)
    if len(first) == len(packed) and not ordered:
        row_of = np.arange(len(packed))
        return row_of, row_of
    return first, row_of
