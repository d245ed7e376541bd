"""Where the ranks of each axis sit: strides from the axis order, and the groups over which gradients are reduced."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import DEFAULT_ORDER, ORDERS, SCHEDULES, Axis
from parlay.rates.interface import Group

Array = NDArray[np.float64]


def axis_strides(layouts: Layouts) -> dict[Axis, Array]:
    """Return, for each axis, how many GPUs apart its neighbouring ranks sit: the product of the axes inside it."""
    strides = _strides(layouts, DEFAULT_ORDER)
    for code in np.flatnonzero(np.bincount(layouts.order)[1:]) + 1:
        other, mine = _strides(layouts, ORDERS[code]), layouts.order == code
        strides = {axis: np.where(mine, other[axis], apart) for axis, apart in strides.items()}
    return strides


def _strides(layouts: Layouts, order: tuple[Axis, ...]) -> dict[Axis, Array]:
    strides: dict[Axis, Array] = {}
    inside = np.ones(len(layouts), dtype=np.float64)
    for axis in order:
        strides[axis] = inside
        inside = inside * getattr(layouts, axis)
    return strides


def domains(cluster: Cluster, layouts: Layouts) -> Array:
    """Return how many GPUs share a scale-up link in each layout's job: (layouts,).

    A job inside one domain is all there is. Domains of many nodes (racks) are filled evenly, by half or more, where the job divides over
    equal whole nodes of them that hold whole tensor-parallel groups, as schedulers place it (Slurm's --segment): 64 of NVL72's 72 GPUs
    where it is a power of two. Else they are filled one after the other.
    """
    gpus = (layouts.tp * layouts.cp * layouts.pp * layouts.dp).astype(np.int64)
    jobs, row_of = np.unique(np.stack([gpus, layouts.tp.astype(np.int64)]), axis=1, return_inverse=True)
    sizes = int(cluster.scale_up_gpus.value), int(cluster.gpus_per_node.value)
    return np.array([_filled(int(n), int(tp), *sizes) for n, tp in jobs.T], dtype=np.float64)[np.ravel(row_of)]


def _filled(gpus: int, tp: int, domain: int, node: int) -> int:
    if gpus <= domain:
        return gpus
    even = (u for u in range(domain - domain % node, (domain - 1) // 2, -node) if gpus % u == 0 and u % tp == 0)
    return next(even, domain) if domain > node else domain


def axis_group(layouts: Layouts, axis: Axis, domain: ArrayLike) -> Group:
    """Return the communicator of one axis."""
    return Group.of(getattr(layouts, axis), axis_strides(layouts)[axis], domain)


def data_groups(layouts: Layouts, domain: ArrayLike) -> tuple[Group, Group]:
    """Return the groups that reduce dense gradients (cp x dp) and expert gradients (edp).

    cp ranks hold the same weights, so dense gradients reduce over both axes. Experts of one etp x ep grid are
    distinct; their copies lie etp x ep GPUs apart inside a pipeline stage, and its stages in between where the axis
    order puts pp inside dp. DualPipe's second copy of a stage takes part in both.
    """
    strides = axis_strides(layouts)
    cp, dp = (Group.of(getattr(layouts, axis), strides[axis], domain) for axis in ("cp", "dp"))
    together = Group.of(layouts.cp * layouts.dp, strides["cp"], domain)  # where nothing lies between the two axes
    local = np.where(strides["dp"] == strides["cp"] * layouts.cp, together.local, np.minimum(cp.local * dp.local, domain))
    copies = copies_of_a_stage(layouts)
    dense = Group(together.size * copies, np.maximum(local, 1.0))
    between = np.where(strides["pp"] < strides["dp"], layouts.pp, 1)
    stride = (layouts.etp * layouts.ep * between).astype(np.float64)
    experts = Group.of(layouts.edp.astype(np.float64), stride, domain)
    return dense, Group(experts.size * copies, experts.local)


def shards_of(layouts: Layouts) -> tuple[Array, Array]:
    """Return the ranks that share one copy of dense and of expert state, as columns; ZeRO-3 may shard over fewer (HSDP)."""
    ranks = (layouts.dp * layouts.cp).astype(np.float64)
    inner = np.minimum(layouts.shard, ranks)
    experts = np.maximum(layouts.edp * inner / ranks, 1.0)
    return inner[:, None], experts[:, None]


def inner_group(whole: Group, ranks: ArrayLike) -> Group:
    """Return the innermost `ranks` of a group that follow each other (HSDP's shards): those shards straddle domains as well.

    They start at every multiple of gcd(ranks, those of the whole group in a domain).
    """
    size = np.minimum(whole.size, ranks)
    count, local = np.rint(size).astype(np.int64), np.rint(whole.local).astype(np.int64)
    return Group(size, np.where(size < whole.size, np.maximum(np.gcd(count, local), 1), whole.local).astype(np.float64))


def copies_of_a_stage(layouts: Layouts) -> Array:
    """Return the ranks of a pipeline that hold the same stage: two under DualPipe, whose copies are replicas.

    Their gradients are summed like those of data-parallel ranks (DeepSeek-V3 report, 3.2.1), so optimizer state shards over
    both where it shards at all. They sit at opposite places of the pipeline, so in different domains.
    """
    return np.where(layouts.schedule == SCHEDULES.index("dualpipe"), 2.0, 1.0)
