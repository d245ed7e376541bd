"""How long schedules take. Not collected by default: `pytest benchmarks/test_schedules.py --benchmark-only`.

Goals: 16 stages x 8 chunks x 512 micro-batches (131,072 operations) built and timed in under one second; a million
closed-form evaluations in under 50 ms. Each benchmark also states its ratio to a plain Python loop over the same work
(`extra_info`), which depends less on the machine.
"""

import time

import numpy as np
import pytest

from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline
from parlay.schedules import Costs, build, simulate
from parlay.schedules.memory import held
from parlay.schedules.plan import plan_split, units_of

LAYOUTS = 1_000_000


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
