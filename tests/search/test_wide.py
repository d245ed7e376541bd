"""The wide space: what is left out could not be shown, and everything else is priced."""

import dataclasses
import itertools

import numpy as np
import pytest

from parlay.cli.main import main
from parlay.estimate.estimate import price_time
from parlay.estimate.least import least_steps
from parlay.hardware.load import load_cluster
from parlay.layouts.rules import Question
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.search.constraints import Bound, Constraints
from parlay.search.explore import Savings, bare, on_device, without_traffic
from parlay.search.fixing import fixed
from parlay.search.plan import plan
from parlay.search.shortlist import GRID, TIE, Timelines, exact_steps
from parlay.search.space import Counted, join, layouts_of
from parlay.search.spaces import wide_space

H100, A100 = load_cluster("dgx-h100"), load_cluster("dgx-a100-40gb")
CASES = [
    ("llama-3.1-8b", A100, 8, Workload(seq_len=8192, global_batch=32), ["cp_kind=zigzag,ulysses", "micro_batch=1,2"]),
    ("gpt-oss-20b", A100, 16, Workload(seq_len=4096, global_batch=32), ["zero=1,3", "micro_batch=1,2", "etp=1", "order=tp-cp-dp-pp"]),
    ("llama-3.1-8b", H100, 16, Workload(seq_len=16384, global_batch=32, framework="torchtitan"), ["micro_batch=1,2"]),
    ("llama-3.1-8b", A100, 8, Workload(seq_len=4096, global_batch=32, framework="deepspeed"), ["micro_batch=1,4"]),
    ("llama-3.1-8b", A100, 8, Workload(seq_len=4096, global_batch=32), ["recompute=full", "micro_batch=1", "cp_kind=zigzag"]),
    # Half of what is kept must go to the host: recompute leaves less to copy, so the least recompute is not the fastest.
    ("mixtral-8x7b", H100, 64, Workload(seq_len=8192, global_batch=512),
     ["offload_activations=0.5", "tp=1,2", "cp=1", "pp=1,2", "ep=8", "etp=1", "micro_batch=1", "zero=1", "order=tp-cp-dp-pp"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cluster", "gpus", "work", "fix"), CASES)
def test_what_is_left_out_is_not_among_the_best(name, cluster, gpus, work, fix):
    model, space = load_model(name), fixed(wide_space(work), fix)
    pruned = plan(model, cluster, work, gpus, space=space, top=5)
    whole = plan(model, cluster, work, gpus, space=dataclasses.replace(space, wide=False), top=5)
    assert 0 < pruned.priced <= whole.priced
    for a, b in zip(pruned.rows, whole.rows, strict=True):
        assert a.estimate.step_s == pytest.approx(b.estimate.step_s, rel=2 * TIE)
    assert pruned.rows[0].estimate.step_s <= whole.rows[0].estimate.step_s * (1 + 1e-9)
    assert pruned.considered == sum(pruned.rejected.values()) + pruned.fitting
    if "slower" not in pruned.rejected:
        assert pruned.priced == whole.priced


@pytest.mark.parametrize(("name", "cluster", "gpus", "work", "fix"), CASES[:4] + CASES[5:])
def test_saving_memory_makes_no_step_shorter(name, cluster, gpus, work, fix):
    """The bound that leaves out rests on this: recompute and offload only add to a step, but for less than a tie."""
    model, space, rates = load_model(name), fixed(wide_space(work), fix), rates_for(cluster)
    question = Question(model, cluster, work, gpus)
    savings = Savings.of(question, space)
    seen = 0
    for x in layouts_of(question, bare(space), Counted(), chunk=500):
        some = x.take(np.arange(0, len(x), 1 + len(x) // 40))
        many = savings.on(some)
        assert len(many) > 3 * len(some)
        bare_time = price_time(model, cluster, work, on_device(some), rates)
        least = without_traffic(bare_time.step, bare_time, some)
        step = price_time(model, cluster, work, many, rates).step
        columns = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "zero", "shard", "cp_kind", "ulysses", "order", "schedule",
                   "tp_overlap", "ep_overlap", "first_layers", "last_layers")  # fmt: skip

        def key(layouts, i, names=columns):
            return tuple(int(getattr(layouts, n)[i]) for n in names)

        bound = {key(some, i): least[i] for i in range(len(some))}
        for i in range(len(many)):
            assert step[i] >= bound[key(many, i)] * (1 - TIE)
        seen += len(many)
    assert seen > 100


def test_what_was_timed_says_what_can_still_be_shown():
    """Rows are dropped by the best of their grid, and by the slowest grid that is shown; what is near was timed."""
    model, work = load_model("llama-3.1-70b"), Workload(seq_len=4096, global_batch=512)
    question, rates = Question(model, H100, work, 256), rates_for(H100)
    space = fixed(wide_space(work), ["pp=2,4,8", "micro_batch=1,2", "recompute=none", "recompute_layers=0", "zero=1"])
    x = join(list(layouts_of(question, bare(space), Counted())))
    x = x.take(np.sort(np.random.default_rng(7).choice(len(x), size=400, replace=False)))
    least, exact = least_steps(price_time(model, H100, work, x, rates)), exact_steps(model, H100, work, x, rates)
    timelines = Timelines(model, H100, work, rates, top=5)
    assert timelines.limit_s == np.inf
    assert len(timelines.near(x, least)) == len(x)
    timelines.look_at(x, least)
    best = sorted(_of_grids(x, exact))
    assert timelines.limit_s == pytest.approx(best[4], rel=1e-9)
    near = timelines.near(x, least)
    assert 5 <= len(near) < len(x) / 4
    assert len(timelines.bubbles) < len(x) / 2
    could = np.flatnonzero(exact <= best[4] * (1 + TIE))
    of_its_grid = [exact[i] <= min(exact[j] for j in range(len(x)) if _grid(x, j) == _grid(x, i)) * (1 + TIE) for i in could]
    assert set(could[of_its_grid]) <= set(near.tolist())
    shown = timelines.ranked(x.take(near))
    assert exact[near][shown] == pytest.approx(best[:5], rel=TIE)


def _grid(x, i):
    return tuple(int(getattr(x, name)[i]) for name in GRID)


def _of_grids(x, step):
    best = {}
    for i, s in enumerate(step.tolist()):
        best[_grid(x, i)] = min(best.get(_grid(x, i), s), s)
    return list(best.values())


def test_savings_are_every_combination_once():
    work = Workload(global_batch=16)
    space = fixed(wide_space(work), ["recompute=none,full", "offload_optimizer=0,1"])
    question = Question(load_model("llama-3.1-8b"), H100, work, 8)
    x = next(layouts_of(question, dataclasses.replace(bare(space), pp=(4,), tp=(2,), vpp=(2,)), Counted()))
    many = Savings.of(question, space).on(x)
    # chunks of at most ceil(34 / 8) layers: none, or full on all or 1 to 4 of them; optimizer 2, activations 3; but for the least
    assert len(many) == len(x) * ((1 + 5) * 2 * 3 - 1)
    rows = set(zip(*(getattr(many, f.name).tolist() for f in dataclasses.fields(many)), strict=True))
    assert len(rows) == len(many)


@pytest.mark.parametrize(
    "bound", [Bound("recompute_layers", ">=", 1), Bound("offload_activations", ">=", 0.5), Bound("shard", "<=", 4)]
)
def test_bounds_hold_in_the_wide_space(bound):
    work = Workload(global_batch=16)
    space = wide_space(work).open(Constraints((bound,)))
    found = plan(load_model("llama-3.1-8b"), A100, work, 8, space=fixed(space, ["micro_batch=1", "cp=1", "zero=1,3"]))
    assert found.rows
    assert all(bound.allows(getattr(r.estimate.layout, bound.axis)) for r in found.rows)


def test_wide_finds_what_the_tuned_space_does_not(capsys):
    """8 GPUs of 40 GB: activations on the host or recompute of some layers beat what is tuned by default."""
    asked = [
        "plan",
        "llama-3.1-8b",
        "--on",
        "dgx-a100-40gb",
        "--gpus",
        "8",
        "--seq-len",
        "16384",
        "--global-batch",
        "32",
        "--json",
    ]
    import json

    assert main(asked) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert main([*asked, "--wide", "--fix", "micro_batch=1"]) == 0
    wide = json.loads(capsys.readouterr().out)
    steps = [doc["rows"][0]["estimate"]["step_s"] for doc in (tuned, wide)]
    assert steps[1] < steps[0]


def test_frameworks_run_what_their_wide_space_lists():
    """A space that lists what rules then refuse everywhere would look at layouts for nothing."""
    for framework, (name, value) in itertools.product(
        ("torchtitan",), (("schedule", "zb-v"), ("schedule", "dualpipev"), ("shard", 2))
    ):
        work = Workload(global_batch=64, framework=framework)
        found = plan(
            load_model("llama-3.2-1b"),
            H100,
            work,
            8,
            space=fixed(wide_space(work), [f"{name}={value}", "pp=4" if name == "schedule" else "pp=1"]),
        )
        assert found.rows
        assert all(getattr(r.estimate.layout, name) == value for r in found.rows)
