"""The bound that a search leaves out by: never above the exact timeline, and equal to it where stages are equal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate.estimate import price_time
from parlay.estimate.least import least_steps
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.split import BOTH_WAYS, V_SHAPED
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run
from parlay.rates.choose import rates_for
from parlay.search.shortlist import exact_steps

H100 = load_cluster("dgx-h100")
RATES = rates_for(H100)
MODELS = [load_model(n) for n in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "jamba-v0.1", "qwen3-30b-a3b")]
SINGLE = ("gpipe", "1f1b", "zb-h1", "zb-h2", *BOTH_WAYS)
ROUNDING = 1e-9


def timed(model, work, x, *, every=False):
    return price_time(model, H100, work, x, RATES, stages=stages_of(model, x, work.global_batch, every=every))


@st.composite
def problems(draw):
    """A model, a workload and layouts that keep the rules, whatever framework runs their schedules.

    nanotron gets only what it runs: how it deals layers out and sends one tensor at a time is of its own schedules.
    """
    model, framework = (
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(["megatron-core", "torchtitan", "nanotron", "hai-llm"])),
    )
    pp = draw(st.sampled_from([2, 3, 4, 8, 16]))
    work = Workload(global_batch=16 * pp * draw(st.sampled_from([1, 2, 5])), framework=framework,
                    overlap_p2p=draw(st.sampled_from([None, True])), lora_rank=draw(st.sampled_from([None, None, 16])))  # fmt: skip
    given_up = ("uneven", "adapters") if framework == "nanotron" else ("framework", "uneven", "adapters")
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        schedule = draw(st.sampled_from(SCHEDULES))
        layout = Layout(
            pp=pp, tp=draw(st.sampled_from([1, 2])), dp=16, ep=draw(st.sampled_from([1, 8])), schedule=schedule,
            vpp=1 if schedule in SINGLE else 2 if schedule in V_SHAPED else draw(st.sampled_from([2, 3, 4])),
            first_layers=draw(st.sampled_from([None, None, 0, 1, 4])), last_layers=draw(st.sampled_from([None, None, 0, 2])),
            recompute=draw(st.sampled_from([(), ("full",)])), micro_batch=draw(st.sampled_from([1, 2])), zero=draw(st.sampled_from([0, 1])),
            ep_overlap=draw(st.booleans()),
        )  # fmt: skip
        if all(v.rule in given_up for v in check(layout, model, H100, work)):
            rows.append(layout)
    return model, work, rows


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0.5, 1.0, 2.0]))
def test_no_timeline_is_shorter_than_its_bound(problem, most):
    model, work, rows = problem
    if not rows:
        return
    x = Layouts.of(rows)
    exact = exact_steps(model, H100, work, x, RATES)
    time = timed(model, work, x)
    least = least_steps(time)
    assert (least <= exact * (1 + ROUNDING)).all()
    assert (least_steps(timed(model, work, x, every=True)) <= exact * (1 + ROUNDING)).all()
    assert (least >= time.step - time.bubble - ROUNDING).all()
    cut = least_steps(time, most * float(np.median(time.step)))
    assert (cut <= least * (1 + ROUNDING)).all()
    near = least <= most * float(np.median(time.step))
    assert cut[near] == pytest.approx(least[near], rel=1e-12)


EQUAL = ModelSpec(  # a head and an embedding so small that stages are equal
    id="m", name="m", hidden=4096, vocab=8,
    kinds={"k": LayerKind(mixer=GroupedAttention(heads=32, kv_heads=8, head_dim=128), mlp=DenseMlp(width=14336))},
    layers=(Run(kinds=("k",), count=48),), final_norm=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "vpp", "rounds"),
    [*[(s, 1, r) for s in ("gpipe", "1f1b") for r in (1, 2, 16)], ("interleaved", 2, 16), ("interleaved", 6, 16), ("bfs", 3, 16)],
)
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_equal_stages_take_what_the_bound_says(schedule, vpp, rounds, pp):
    """But for the transfers of virtual stages from the last stage to the first, which a short step waits for."""
    work = Workload(
        global_batch=8 * pp * rounds, framework="torchtitan" if schedule == "bfs" else "megatron-core", cuda_graphs=True
    )
    x = Layouts.of(Layout(pp=pp, dp=8, schedule=schedule, vpp=vpp))
    exact = exact_steps(EQUAL, H100, work, x, RATES)
    # A kernel of the table is on the first stage, and stages between the ends exchange over two borders, which counts in short steps.
    close = 0.01 if vpp > 1 else 2e-5 if pp == 2 else 2e-3
    assert least_steps(timed(EQUAL, work, x)) == pytest.approx(exact, rel=close)


def test_a_slow_last_stage_is_met_exactly():
    """Gemma's head weighs five layers: everything else passes before it and after it."""
    model, work = load_model("gemma-3-27b"), Workload(global_batch=256)
    x = Layouts.of([Layout(pp=p, dp=8, tp=2) for p in (2, 4, 8)])
    assert least_steps(timed(model, work, x)) == pytest.approx(exact_steps(model, H100, work, x, RATES), rel=1e-9)


def test_without_a_pipeline_the_step_is_the_bound():
    x = Layouts.of([Layout(tp=8), Layout(dp=8, micro_batch=2)])
    time = timed(MODELS[0], Workload(global_batch=64), x)
    assert least_steps(time) == pytest.approx(time.step, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.id)
def test_the_bound_holds_however_the_layers_lie(model, schedule):
    """Stages of one content need not stand together: DualPipe's mirrored ones, and patterns of kinds, do not."""
    turns = [1] if schedule in SINGLE else [2] if schedule in V_SHAPED else [2, 3, 5]
    for pp in (4, 8, 16):
        work = Workload(global_batch=3 * pp)
        ends = [(None, None)] if schedule in V_SHAPED else [(None, None), (None, 1), (None, 0), (3, None), (1, 4)]
        rows = [Layout(pp=pp, schedule=schedule, vpp=v, first_layers=a, last_layers=b) for v in turns for a, b in ends]
        rows = [x for x in rows if all(v.rule in ("framework", "uneven") for v in check(x, model, H100, work))]
        if rows:
            x = Layouts.of(rows)
            least, exact = least_steps(timed(model, work, x)), exact_steps(model, H100, work, x, RATES)
            assert (least <= exact * (1 + ROUNDING)).all()
            assert (least >= 0.6 * exact).all()
