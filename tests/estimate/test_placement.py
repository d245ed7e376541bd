"""Which ranks share a node or a rack, against every rank written down."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from parlay.estimate.placement import axis_group, data_groups, domains, inner_group
from parlay.estimate.sends import Borders
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.vocabulary import DEFAULT_ORDER
from parlay.rates.interface import Group

NODES, RACKS = load_cluster("dgx-h100"), load_cluster("gb200-nvl72")
SIZES = (1, 2, 3, 4, 6, 8)
ALL = [dict(zip(("tp", "cp", "pp", "dp"), x, strict=True)) for x in product((1, 2, 4, 8), (1, 2, 3), SIZES, SIZES)]


def places(x):
    """Coordinates of every rank, the innermost axis first."""
    order = [a for a in DEFAULT_ORDER if a in ("tp", "cp", "pp", "dp")]
    ranges = [range(x[a]) for a in reversed(order)]
    return [dict(zip(reversed(order), at, strict=True)) for at in product(*ranges)]


def fewest(x, axes, domain):
    """Fewest ranks that a group over `axes` has in a domain that it touches."""
    groups: dict[tuple[int, ...], Counter[int]] = {}
    for rank, at in enumerate(places(x)):
        groups.setdefault(tuple(at[a] for a in at if a not in axes), Counter())[rank // domain] += 1
    return min(min(found.values()) for found in groups.values())


@pytest.mark.parametrize("axes", [("tp",), ("cp",), ("cp", "dp")])
def test_the_fewest_ranks_in_a_node_count(axes):
    """Jobs of whole nodes, or within one; sizes of three and six straddle nodes of eight."""
    whole = [x for x in ALL if (n := int(np.prod([*x.values()]))) <= 8 or n % 8 == 0]
    layouts = Layouts.of([Layout(**x) for x in whole])
    within = domains(NODES, layouts)
    group = data_groups(layouts, within)[0] if len(axes) > 1 else axis_group(layouts, axes[0], within)
    expected = [fewest(x, axes, int(d)) for x, d in zip(whole, within, strict=True)]
    assert len(set(expected)) > 1
    assert group.local.tolist() == expected


def test_borders_leave_where_a_rank_of_the_stage_sends_to_another_node():
    whole = [x for x in ALL if x["pp"] > 1 and (n := int(np.prod([*x.values()]))) > 8 and n % 8 == 0]
    for x in whole:
        layouts, ranks = Layouts.of(Layout(**x)), places(x)
        node = {tuple(at.values()): rank // 8 for rank, at in enumerate(ranks)}
        leave = set()
        for at in ranks:
            if at["pp"] < x["pp"] - 1 and node[tuple(at.values())] != node[tuple((at | {"pp": at["pp"] + 1}).values())]:
                leave.add(at["pp"])
        stages = Listed(np.arange(x["pp"])[None, :])
        found = Borders.of(layouts, stages, domains(NODES, layouts), each=True)
        assert found.leaving[0] == len(leave), x
        assert found.slow[0].tolist() == [(s - 1 in leave) + (s in leave) for s in range(x["pp"])]


class Listed:
    """Every stage of a pipe by its number."""

    def __init__(self, index):
        self.index, self.every = index, True


def test_shards_of_a_few_ranks_straddle_nodes_as_well():
    """24 ranks in shards of 6 over nodes of 8: {6, 7, 8, ...} has two of them in the first node."""
    whole = Group(np.array([24.0, 24.0, 64.0]), np.array([8.0, 8.0, 8.0]))
    found = inner_group(whole, np.array([6.0, 24.0, 8.0]))
    assert (found.size.tolist(), found.local.tolist()) == ([6, 24, 8], [2, 8, 8])


@pytest.mark.parametrize(
    ("gpus", "share"),
    [(4, 4), (64, 64), (72, 72), (128, 64), (144, 72), (256, 64), (96, 48), (80, 40), (288, 72), (74, 72), (76, 72), (152, 72)],
)
def test_a_job_fills_racks_evenly_where_it_can(gpus, share):
    assert domains(RACKS, Layouts.of(Layout(dp=gpus)))[0] == share


def test_racks_hold_whole_tensor_parallel_groups():
    assert domains(RACKS, Layouts.of([Layout(tp=t, dp=120 // t) for t in (1, 4, 8)])).tolist() == [60, 60, 40]


def test_a_job_fills_nodes_one_after_the_other():
    found = domains(NODES, Layouts.of([Layout(dp=n) for n in (4, 6, 8, 12, 16)]))
    assert found.tolist() == [4, 6, 8, 8, 8]
