"""Where the ranks of each axis sit: strides from the axis order, and the groups over which gradients are reduced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import Axis
from parlay.rates.interface import Group

Array = NDArray[np.float64]


def axis_strides(layouts: Layouts) -> dict[Axis, Array]:
    """Return, for each axis, how many GPUs apart its neighbouring ranks sit: the product of the axes inside it."""
    strides: dict[Axis, Array] = {}
    inside = np.ones(len(layouts), dtype=np.float64)
    for axis in layouts.order:
        strides[axis] = inside
        inside = inside * getattr(layouts, axis)
    return strides


def axis_group(layouts: Layouts, axis: Axis, domain: float) -> Group:
    """Return the communicator of one axis."""
    return Group.of(getattr(layouts, axis), axis_strides(layouts)[axis], domain)


def data_groups(layouts: Layouts, domain: float) -> tuple[Group, Group]:
    """Return the groups that reduce dense gradients (cp x dp) and expert gradients (edp).

    cp ranks hold the same weights, so dense gradients reduce over both axes. Experts of one etp x ep grid are
    distinct; their copies lie etp x ep GPUs apart inside a pipeline stage.
    """
    cp, dp = axis_group(layouts, "cp", domain), axis_group(layouts, "dp", domain)
    local = np.minimum(cp.local * dp.local, domain)
    dense = Group(cp.size * dp.size, np.maximum(local, 1.0))
    stride = (layouts.etp * layouts.ep).astype(np.float64)
    return dense, Group.of(layouts.edp.astype(np.float64), stride, domain)
