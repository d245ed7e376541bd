"""How long schedules take. Not collected by default: `pytest benchmarks/test_schedules.py --benchmark-only`.

Goals: 16 stages x 8 chunks x 512 micro-batches (131,072 operations) built and timed in under one second; a million
closed-form evaluations in under 50 ms. Each benchmark also states its ratio to a plain Python loop over the same work
(`extra_info`), which depends less on the machine.
"""

import time

import numpy as np
import pytest

from parlay.estimate.estimate import price_time
from parlay.estimate.least import least_steps
from parlay.estimate.stages import stages_of
from parlay.estimate.timeline import exact_bubble_s
from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.split import V_SHAPED
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.schedules import Costs, build, simulate
from parlay.schedules.memory import held
from parlay.schedules.plan import plan_split, units_of
from parlay.search.balance import lighter_last
from parlay.search.shortlist import OPERATIONS, ROUNDS

LAYOUTS = 1_000_000
CLUSTER = load_cluster("hgx-h800")
MODELS = [load_model(n) for n in ("deepseek-v3", "llama-3.1-70b", "llama-3.1-8b", "gemma-3-27b", "mixtral-8x7b")]


def plain_loop_s(n):
    """Seconds of a Python loop that adds n pairs of numbers: the unit of the ratios."""
    numbers = [0.5] * n
    start = time.perf_counter()
    total = 0.0
    for x in numbers:
        total = total + x if total > x else x + total
    return time.perf_counter() - start


def test_build_and_time_131072_operations(benchmark):
    """The goal is one second."""

    def run():
        s = build("interleaved", 16, 512, virtual=8)
        return simulate(s, Costs.per_stage(s, 1.0, 2.0, 1.0, 0.01))

    t = benchmark(run)
    assert len(t.schedule) == 131_072
    benchmark.extra_info["ratio_to_plain_loop"] = benchmark.stats.stats.median / plain_loop_s(len(t.schedule))


def test_time_131072_operations_on_shared_links(benchmark):
    """The loop that keeps queues."""
    s = build("interleaved", 16, 512, virtual=8)
    costs = Costs.per_stage(s, 1.0, 2.0, 1.0, 0.01, sharing="direction")
    benchmark(simulate, s, costs)
    benchmark.extra_info["ratio_to_plain_loop"] = benchmark.stats.stats.median / plain_loop_s(len(s))


def test_memory_of_131072_operations(benchmark):
    """Peaks follow from the order alone."""
    s = build("interleaved", 16, 512, virtual=8)
    assert benchmark(held, s, 1.0).peak[0] == 15 * 2 + 7 * 16 + 1


CLOSED_FORMS = {
    "one_f_one_b_bubble_s": lambda p, f, b, w, m: pipeline.one_f_one_b_bubble_s(p, f, b),
    "interleaved_bubble_s": lambda p, f, b, w, m: pipeline.interleaved_bubble_s(p, 2, f, b),
    "zb_h1_bubble_s": lambda p, f, b, w, m: pipeline.zb_h1_bubble_s(p, f, b, w),
    "dualpipe_bubble_s": lambda p, f, b, w, m: pipeline.dualpipe_bubble_s(p, f, b, w),
    "one_f_one_b_in_flight": lambda p, f, b, w, m: flight.one_f_one_b_in_flight(p, 0, m),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_million_closed_forms(benchmark, name):
    """The goal is 50 ms."""
    random = np.random.default_rng(0)
    p, m = random.integers(1, 17, LAYOUTS), random.integers(1, 513, LAYOUTS)
    f = random.uniform(0.5, 2, LAYOUTS)
    benchmark(CLOSED_FORMS[name], p, f, 2 * f, f, m)


def test_plan_of_126_layers(benchmark):
    """Dynamic programming and a few timelines."""
    units = units_of(126, embedding=(1, 2, 1), loss=(1, 2, 1))
    assert benchmark(plan_split, units, "1f1b", 16, 64).layers == [7] + [8] * 14 + [7]


def layouts_by_schedule(model, count=400, seed=1):
    """Random layouts of each schedule that its rules allow, with the batch each runs at."""
    rng = np.random.default_rng(seed)
    chunks = {"interleaved": (2, 3, 4, 6), "bfs": (2, 4), "zb-v": (2,), "dualpipev": (2,)}
    for _ in range(count):
        name = str(rng.choice(SCHEDULES))
        pp, vpp = int(rng.choice((2, 4, 8, 16))), int(rng.choice(chunks.get(name, (1,))))
        batch = pp * int(rng.choice((2, 4, 8, 16)))
        lighter = lighter_last(model, 4096, pp) if name not in V_SHAPED else None
        last = lighter if (lighter or 0) >= vpp and rng.random() < 0.5 else None
        layout = Layout(pp=pp, vpp=vpp, schedule=name, last_layers=last)
        workload = Workload(global_batch=batch)
        if all(v.rule == "framework" for v in check(layout, model, CLUSTER, workload)):
            yield layout, workload


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_closed_forms_against_timelines(benchmark, schedule):
    """How far closed form and lower bound, by which a search drops layouts, lie from the step by the whole timeline, which ranks."""
    rates = rates_for(CLUSTER)

    def measure():
        apart, error, bound = [], [], []
        for model in MODELS:
            for layout, workload in layouts_by_schedule(model):
                if layout.schedule != schedule:
                    continue
                rows = Layouts.of(layout)
                time = price_time(model, CLUSTER, workload, rows, rates, stages=stages_of(model, rows, workload.global_batch))
                busy = float(time.step[0] - time.bubble[0])
                whole, short = (
                    busy + exact_bubble_s(time, model, layout, **cut)
                    for cut in ({"most": 10**9}, {"most": OPERATIONS, "rounds": ROUNDS})
                )
                apart.append(whole / float(time.step[0]) - 1)
                error.append(abs(short / whole - 1))
                listed = stages_of(model, rows, workload.global_batch, every=False)
                bound.append(float(least_steps(price_time(model, CLUSTER, workload, rows, rates, stages=listed))[0]) / whole - 1)
        return np.array(apart), max(error), np.array(bound)

    apart, cut, bound = benchmark.pedantic(measure, rounds=1)
    low, middle, high = np.percentile(apart, (0, 50, 100))
    benchmark.extra_info |= {"layouts": len(apart), "least": low, "median": middle, "most": high, "cut_short_error": cut}
    benchmark.extra_info |= dict(
        zip(("bound_least", "bound_tenth", "bound_median", "bound_most"), np.percentile(bound, (0, 10, 50, 100)), strict=True)
    )
    assert cut < 5e-3
    assert bound.max() < 1e-9
