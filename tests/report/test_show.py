"""The texts of `parlay show` fit a terminal and cut nothing."""

import pytest

from parlay.report import show as report
from parlay.report.table import Page
from parlay.simulate import show
from parlay.simulate.show_experts import expert_load
from parlay.simulate.show_layers import layer_memory
from parlay.simulate.show_rates import block_sizes, expert_exchange, layer_traffic

NARROW = Page(80)
REGIONS = [show.layer_regions(131072, 16384, tensor=8, sequence=on) for on in (False, True)]
BLOCKS = block_sizes([8192, 16384, 32768], flops_per_s=989e12, link_bytes_per_s=50e9, query_width=4096)
EVEN = expert_exchange(8, 8192, 2, hidden=4096, expert_width=14336, flops_per_s=989e12, link_bytes_per_s=50e9)
TEXTS = {
    "ring": lambda page: report.ring_lines(show.ring_rounds(4, 8), page),
    "ring of many": lambda page: report.ring_lines(show.ring_rounds(16, 131072, list_pairs=False), page),
    "ulysses": lambda page: report.ulysses_lines(show.ulysses_grids(4, 8, 8, kv_heads=2), page),
    "ulysses below": lambda page: report.ulysses_lines(show.ulysses_grids(4, 8, 16), page),
    "ulysses of many": lambda page: report.ulysses_lines(show.ulysses_grids(4, 8, 64), page),
    "sp": lambda page: report.sequence_parallel_lines(show.sequence_parallel([[1, 2, 3, 4], [10, 20, 30, 40]]), page, 2),
    "layer": lambda page: report.layer_lines(REGIONS, layer_memory(131072, 16384, tensor=8, layers=126), 8, page),
    "experts": lambda page: report.experts_lines(
        expert_load(16, 8, 8192, 2, skew=1, capacity_factor=1.25), [("ib-ndr", EVEN)], 8192, page
    ),
    "block-size": lambda page: report.block_size_lines(BLOCKS, "ring", layer_traffic(8, 131072, query_width=4096), 16384, page),
}


@pytest.mark.parametrize("name", TEXTS)
def test_fits_80_columns(name):
    lines = TEXTS[name](NARROW)
    assert [line for line in lines if len(line) > 80] == []
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("name", TEXTS)
def test_a_styled_page_says_the_same(name):
    styled = [line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in TEXTS[name](Page(80, True))]
    assert styled == TEXTS[name](NARROW)


def test_a_grid_that_does_not_fit_is_not_drawn():
    assert any("too many to draw" in line for line in TEXTS["ulysses of many"](NARROW))
    assert not any("too many to draw" in line for line in TEXTS["ulysses below"](NARROW))


@pytest.mark.parametrize(
    ("held", "shown"),
    [([], "{}"), ([5], "{5}"), ([0, 1], "{0,1}"), ([0, 1, 2, 9], "{0-2,9}"), (range(0, 12, 2), "{0,2,4,6,8,10}"),
     (range(0, 14, 2), "{0,2,4,...,12}")],
)  # fmt: skip
def test_tokens(held, shown):
    assert report.tokens(held) == shown


def test_documents_are_plain_data():
    found = report.document("sp", collectives=show.sequence_parallel([[1, 2], [3, 4]]), regions=REGIONS[0], even=[{"x": EVEN}])
    assert found["even"][0]["x"]["copies"] == 16384
    assert found["schema_name"] == "parlay/show-sp"
    assert found["collectives"]["tensor"][0]["after"] == [[4.0, 6.0], [4.0, 6.0]]
    assert found["regions"][0]["cut_by"] == "nothing"
