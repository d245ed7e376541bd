"""How long a search takes. Not collected by default: `pytest benchmarks/test_search.py --benchmark-only`.

Goals, a core: 500,000 layouts/s priced in arrays; llama-3.1-405b on 16,384 GPUs over the joint space in under 2 s from the
shell and 500 MB; a plan of deepseek-v3 on 2,048 GPUs in under 1 s from the shell; deepseek-v3 on 131,072 GPUs in under 10 s
and 1 GB; one estimate (step time, peak memory, MFU, fits) under 2 ms, of a layout not priced before. Each benchmark also states
the layouts per second and its ratio to pricing the same layouts one by one, or to a plain Python loop (`extra_info`).
"""

import itertools
import resource
import subprocess
import sys
import time

import pytest

from parlay.estimate.estimate import estimate, price, price_memory, price_time
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import Question
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.search.plan import plan
from parlay.search.space import Counted, Space, layouts_of

BOTH = (False, True)
JOINT = {
    "llama-3.1-405b": (
        "meta-24k", 16_384, Workload(seq_len=8192, global_batch=2048),
        Space(zero=(0, 1, 2, 3), cp_kind=("zigzag", "allgather", "ring", "ulysses"), tp_overlap=BOTH, offload_optimizer=(0.0, 1.0),
              recompute=((), ("core_attention",), ("mlp", "norm"), ("full",))),
    ),
    "deepseek-v3": (
        "hgx-h800", 131_072, Workload(seq_len=4096, global_batch=131_072),
        Space(zero=(0, 1, 2, 3), cp_kind=("zigzag", "allgather"), tp_overlap=BOTH, ep_overlap=BOTH, offload_optimizer=(0.0, 1.0),
              recompute=((), ("mlp_activation", "norm", "mla_up"), ("full",))),
    ),
}  # fmt: skip
FROM_THE_SHELL = {
    "joint space": "plan llama-3.1-405b --on meta-24k --gpus 16384 --seq-len 8192 --global-batch 2048 --fix zero=0,1,2,3"
    " --fix cp_kind=zigzag,allgather,ring,ulysses --fix offload_optimizer=0,1 --fix tp_overlap=off,on",
    "deepseek-v3": "plan deepseek-v3 --on hgx-h800 --gpus 2048 --seq-len 8192 --global-batch 7680",
    "qwen3-235b-a22b": "plan qwen3-235b-a22b --on dgx-h100 --gpus 256 --seq-len 4096 --global-batch 1024",
}
ALONE = 20  # layouts that are priced one by one for the ratio


def plain_loop_s(n):
    """Seconds of a Python loop that adds n pairs of numbers: the unit of the ratios."""
    numbers = [0.5] * n
    start = time.perf_counter()
    total = 0.0
    for x in numbers:
        total = total + x if total > x else x + total
    return time.perf_counter() - start


def one_by_one_s(model, cluster, workload, layouts, rates):
    """Seconds a layout takes when memory and time are priced for each alone."""
    rows = [Layouts.of(layouts.one(i)) for i in range(0, len(layouts), max(1, len(layouts) // ALONE))]
    start = time.perf_counter()
    for row in rows:
        price_memory(model, cluster, workload, row)
        price_time(model, cluster, workload, row, rates)
    return (time.perf_counter() - start) / len(rows)


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("what", ["memory", "memory and time"])
def test_layouts_a_second_in_arrays(benchmark, name, what):
    """One chunk of the joint space, the size that the search uses."""
    on, gpus, workload, space = JOINT[name]
    model, cluster = load_model(name), load_cluster(on)
    rates = rates_for(cluster)
    layouts = next(layouts_of(Question(model, cluster, workload, gpus), space, Counted()))

    def run():
        if what == "memory":
            return price_memory(model, cluster, workload, layouts).fits
        prices = price(model, cluster, workload, layouts, rates)
        return prices.fits, prices.time.step

    benchmark(run)
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["layouts_per_s"] = len(layouts) / seconds
    benchmark.extra_info["times_as_fast_as_one_by_one"] = (
        one_by_one_s(model, cluster, workload, layouts, rates) * len(layouts) / seconds if what != "memory" else None
    )


@pytest.mark.parametrize("name", JOINT)
def test_the_joint_space(benchmark, name):
    """The goals are 2 s and 10 s; the peak memory is the process's own, so run one benchmark at a time to read it."""
    on, gpus, workload, space = JOINT[name]
    model, cluster = load_model(name), load_cluster(on)
    found = benchmark.pedantic(plan, (model, cluster, workload, gpus), {"space": space}, rounds=3, warmup_rounds=1)
    assert found.rows
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["considered"], benchmark.extra_info["priced"], benchmark.extra_info["fit"] = (
        found.considered,
        found.priced,
        found.fitting,
    )
    benchmark.extra_info["layouts_per_s"] = found.priced / seconds
    benchmark.extra_info["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    benchmark.extra_info["ratio_to_plain_loop"] = seconds / plain_loop_s(found.priced)


def test_the_cost_grows_no_faster_than_the_layouts(benchmark):
    """Seconds a layout of a space and of one eight times as large; the larger one must not cost more a layout."""
    on, gpus, workload, space = JOINT["llama-3.1-405b"]
    model, cluster = load_model("llama-3.1-405b"), load_cluster(on)
    small = Space(zero=(1,), cp_kind=space.cp_kind, recompute=space.recompute, tp_overlap=BOTH)

    def each(s):
        start = time.perf_counter()
        found = plan(model, cluster, workload, gpus, space=s, top=1)
        return (time.perf_counter() - start) / found.priced

    few = min(each(small) for _ in range(3))
    many = benchmark.pedantic(each, (space,), rounds=3)
    benchmark.extra_info["seconds_a_layout_large_over_small"] = many / few
    assert many < 1.2 * few


@pytest.mark.parametrize("name", FROM_THE_SHELL)
def test_from_the_shell(benchmark, name):
    """The goals are 2 s for the joint space and 1 s for the others, start of the program included."""
    command = [sys.executable, "-m", "parlay", *FROM_THE_SHELL[name].split()]
    benchmark.pedantic(subprocess.run, (command,), {"check": True, "capture_output": True}, rounds=5, warmup_rounds=1)


ONE = {
    "llama-3.1-8b": (
        "dgx-h100", Workload(global_batch=64),
        {"tp": (1, 2, 4, 8), "dp": (2, 4), "pp": (1, 2), "micro_batch": (1, 2), "zero": (1, 2, 3), "recompute": ((), ("full",))},
    ),
    "llama-3.1-70b": (
        "dgx-h100", Workload(global_batch=512),
        {"tp": (4, 8), "dp": (2, 4), "pp": (2, 4, 8), "micro_batch": (1, 2), "zero": (1, 2)},
    ),
    "deepseek-v3": (
        "hgx-h800", Workload(global_batch=15360),
        {"tp": (1, 2), "dp": (64, 128), "pp": (8, 16), "ep": (16, 32, 64), "micro_batch": (1, 2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("how", ["totals", "totals of a question that is new", "with every tree"])
def test_one_estimate(benchmark, name, how):
    """Different layouts of one question in turn; the goal is 2 ms for step time, peak memory, MFU and whether it fits.

    "totals" finds the price of a layer's row, a split's stages, and what a rank owns and moves once a step where another layout
    had the same, as a loop over layouts does. A question that is new (a model that was never priced) finds nothing.
    """
    on, workload, axes = ONE[name]
    model, cluster = load_model(name), load_cluster(on)
    rates = rates_for(cluster)
    layouts = [Layout(**dict(zip(axes, values))) for values in itertools.product(*axes.values())]
    turn = itertools.cycle(layouts)

    def run(asked, layout):
        e = estimate(asked, cluster, workload, layout, rates=rates)
        said = [e.step_s, e.peak_bytes, e.mfu, e.fits]
        if how == "with every tree":
            said += [e.expected, e.sources, *(t.value for tree in (e.step, e.hidden, *e.memory) for t in tree.walk())]
        return said

    def question():
        return (model if how != "totals of a question that is new" else model.model_copy(), next(turn)), {}

    benchmark.pedantic(run, setup=question, rounds=3 * len(layouts), warmup_rounds=len(layouts))
