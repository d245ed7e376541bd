"""A lighter last stage: only where the head weighs much, and then the step gets shorter."""

import pytest

from parlay.estimate.estimate import price
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.search.balance import lighter_last


@pytest.mark.parametrize(("name", "stages"), [("llama-2-70b", 8), ("llama-3.1-405b", 16), ("gpt3-175b", 8), ("llama-3.1-8b", 1)])
def test_a_light_head_needs_no_split_of_its_own(name, stages):
    assert lighter_last(load_model(name), 4096, stages) is None


@pytest.mark.parametrize(
    ("name", "layout", "cluster"),
    [
        ("deepseek-v3", {"pp": 16, "dp": 64, "ep": 64}, "hgx-h800"),
        ("gemma-3-27b", {"tp": 4, "pp": 4, "dp": 4}, "dgx-h100"),
        ("llama-3.1-8b", {"pp": 8, "dp": 8}, "dgx-h100"),
    ],
)
def test_a_heavy_head_gets_a_lighter_stage_and_a_shorter_step(name, layout, cluster):
    where, model, work = load_cluster(cluster), load_model(name), Workload(global_batch=1024)
    last = lighter_last(model, work.seq_len, layout["pp"])
    assert last is not None
    rows = [Layout(**layout), Layout(**layout, last_layers=last)]
    assert check(rows[1], model, where, work) == []
    rule, lighter = price(model, where, work, Layouts.of(rows), rates_for(where), every=True).time.step
    assert lighter < 0.98 * rule
