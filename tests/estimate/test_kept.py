"""What is kept between layouts must not depend on what was priced before, nor change what comes out."""

import random

import numpy as np
import pytest

from parlay.estimate.estimate import price
from parlay.estimate.kept import MOST_ENTRIES, MOST_ROWS, Kept
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for

CLUSTER = load_cluster("hgx-h800")
RATES = rates_for(CLUSTER)
AXES = {
    "tp": (1, 2, 8), "pp": (1, 2, 4), "dp": (4, 8), "vpp": (1, 2), "first_layers": (0, 0, 3), "micro_batch": (1, 2),
    "zero": (0, 1, 2, 3), "recompute": ((), ("full",)), "offload_optimizer": (0.0, 0.0, 1.0), "tp_overlap": (False, True),
}  # fmt: skip


def layouts_of(model, work, count):
    draw = random.Random(1)
    drawn = (Layout(**{name: draw.choice(values) for name, values in AXES.items()}) for _ in range(100 * count))
    return [x for x in drawn if not check(x, model, CLUSTER, work)][:count]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_question_that_is_new_gets_the_same_answers(name, optimizer):
    model, work = load_model(name), Workload(global_batch=64, optimizer=optimizer)
    rows, draw = layouts_of(model, work, 40), random.Random(2)
    for _ in range(40):  # few at once, padded to the longest pipeline among them, every stage or one of each content
        some, every = Layouts.of(draw.choices(rows, k=draw.randint(1, 4))), draw.random() < 0.5
        kept = price(model, CLUSTER, work, some, RATES, every=every)
        new = price(model.model_copy(), CLUSTER, work, some, RATES, every=every)
        assert np.array_equal(kept.memory.total, new.memory.total)
        assert np.array_equal(kept.time.step, new.time.step)


def test_values_are_told_apart_by_question_and_by_all_columns():
    kept, one, other = Kept(), object(), object()
    columns = [np.array([1, 2]), np.array([3, 4])]
    assert kept.of_columns((one,), columns, lambda: "first") == "first"
    assert kept.of_columns((one,), [c.copy() for c in columns], lambda: "second") == "first"
    assert kept.of_columns((other,), columns, lambda: "second") == "second"
    assert kept.of_columns((one,), columns, lambda: "third", True) == "third"
    assert kept.of_columns((one,), columns[::-1], lambda: "fourth") == "fourth"


def test_many_rows_are_not_kept_and_the_oldest_values_go():
    kept, question = Kept(), (object(),)
    many = [np.arange(MOST_ROWS + 1)]
    assert [kept.of_columns(question, many, lambda i=i: i) for i in range(2)] == [0, 1]
    for i in range(MOST_ENTRIES + 1):
        kept.get(question, lambda i=i: i, i)
    assert kept.get(question, lambda: "again", MOST_ENTRIES) == MOST_ENTRIES
    assert kept.get(question, lambda: "again", 0) == "again"
