import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate import timeline
from parlay.estimate.estimate import estimate, price
from parlay.estimate.timeline import settled_pace_s, with_timeline
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import Run
from parlay.rates.choose import rates_for
from parlay.schedules.build import build
from parlay.schedules.costs import Costs
from parlay.schedules.timeline import simulate

CLUSTER = load_cluster("dgx-h100")


def both(name, layout, batch=256, model=None):
    model = model or load_model(name)
    workload = Workload(seq_len=4096, global_batch=batch, cuda_graphs=True)
    time = price(model, CLUSTER, workload, Layouts.of(layout), rates_for(CLUSTER), every=True).time
    return time, with_timeline(time, model, layout)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=8, pp=4, dp=2),
        Layout(tp=8, pp=4, dp=2, vpp=5),
        Layout(tp=8, pp=8, dp=1, vpp=2, recompute=("full",)),
        Layout(tp=8, pp=4, dp=2, schedule="zb-h1"),
        Layout(tp=8, pp=4, dp=2, vpp=2, schedule="zb-v"),
        Layout(tp=8, pp=4, dp=2, schedule="gpipe"),
    ],
)
def test_the_exact_step_lies_near_the_closed_form_and_never_below_the_slowest_stage(layout):
    closed, exact = both("llama-3.1-70b", layout)
    busy = (closed.forward + closed.backward + closed.sends).max() * closed.micro_batches[0]
    assert exact.step[0] - exact.data.exposed[0] - exact.data.optimizer.value[0] >= busy * (1 - 1e-9)
    assert exact.step[0] == pytest.approx(closed.step[0], rel=0.03)
    assert exact.tree().value[0] == pytest.approx(exact.step[0])


def test_equal_stages_give_the_closed_form_exactly():
    # A model whose every stage is the same but for the small embedding: head and table of one row.
    model = load_model("llama-3.1-70b").model_copy(update={"vocab": 8, "layers": (Run(kinds=("block",), count=16),)})
    kinds = next(iter(load_model("llama-3.1-70b").kinds.values()))
    model = model.model_copy(update={"kinds": {"block": kinds}})
    closed, exact = both("", Layout(tp=8, pp=4, dp=2), model=model)
    assert exact.bubble[0] == pytest.approx(closed.bubble[0], rel=0.02)


def test_long_steps_are_extended_at_the_pace_of_the_slowest_stage():
    layout = Layout(tp=8, pp=4, dp=1)
    _, whole = both("llama-3.1-70b", layout, batch=512)
    before = timeline.MOST_OPERATIONS
    try:
        timeline.MOST_OPERATIONS = 256
        _, part = both("llama-3.1-70b", layout, batch=512)
    finally:
        timeline.MOST_OPERATIONS = before
    assert part.step[0] == pytest.approx(whole.step[0], rel=1e-6)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(1.8, 2.4)), min_size=2, max_size=8),
    st.floats(0, 0.5), st.integers(2, 24), st.integers(1, 60),
)  # fmt: skip
def test_what_1f1b_has_settled_to_goes_on(chunks, transfer, beyond, more):
    """Stages that differ by little settle late: where a pace is given, every longer step follows from it."""
    p, costs = len(chunks), np.array(chunks).T

    def timed(m):
        schedule = build("1f1b", p, m)
        return simulate(schedule, Costs.of(schedule, costs[0], costs[1], transfer_s=transfer))

    short = timed(p + beyond)
    pace = settled_pace_s(short)
    if pace is not None:
        assert timed(p + beyond + more).step_s == pytest.approx(short.step_s + more * pace, rel=1e-9)


def test_1f1b_that_has_not_settled_gives_no_pace():
    """A slow first stage fills the others' room first; transfers beside compute make micro-batches follow each other unevenly."""

    def pace(m, first=1.0, transfer=0.0):
        schedule = build("1f1b", 4, m)
        return settled_pace_s(simulate(schedule, Costs.of(schedule, [first, 1, 1, 1], [2 * first, 2, 2, 2], transfer_s=transfer)))

    assert pace(7) == 3.0
    assert (pace(8, first=1.1), pace(9, first=1.1)) == (None, pytest.approx(3.3))
    assert pace(30, transfer=0.3) is None
    assert pace(5) is None  # too short to tell


def test_an_estimate_shows_the_exact_step():
    model, layout = load_model("llama-3.1-405b"), Layout(tp=8, pp=16, dp=1)
    workload = Workload(seq_len=4096, global_batch=32)
    shown = estimate(model, CLUSTER, workload, layout)
    closed = price(model, CLUSTER, workload, Layouts.of(layout), rates_for(CLUSTER), every=True).time
    assert shown.step_s == pytest.approx(float(with_timeline(closed, model, layout).step[0]))
    assert not np.isclose(shown.step_s, closed.step[0], rtol=1e-12)


EVERY_SCHEDULE = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 5), ("bfs", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2),
    ("dualpipe", 1), ("dualpipev", 2),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "vpp"), EVERY_SCHEDULE)
def test_the_chunks_of_a_stage_take_as_long_as_the_stage(schedule, vpp):
    """Also where stages differ: the first recomputes some of its layers, the last holds the head and sends nothing on."""
    layout = Layout(tp=8, pp=4, dp=2, vpp=vpp, schedule=schedule, recompute=("full",), recompute_layers=3)
    time, _ = both("deepseek-v3", layout)
    made = build(schedule, 4, 32, virtual=vpp if schedule in ("interleaved", "bfs") else 1)
    forward, backward, weight = timeline._chunk_costs(time, load_model("deepseek-v3"), layout, made)
    assert (weight <= backward).all()
    whole = (time.forward + time.backward + time.sends)[0]
    if schedule == "dualpipe":  # half of the micro-batches pass each of a stage's two chunks
        ends = (forward + backward)[made.device].reshape(2, -1)
        assert ends.mean(axis=0) == pytest.approx(whole, rel=1e-3)  # its sends are those of one direction
    else:
        assert np.bincount(made.device[0], forward + backward) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("operations", [100_000, 256])
@pytest.mark.parametrize(("schedule", "vpp"), EVERY_SCHEDULE)
def test_every_layout_that_keeps_the_rules_is_timed_operation_by_operation(schedule, vpp, operations, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_OPERATIONS", operations)
    timed = []
    real = timeline.simulate
    monkeypatch.setattr(timeline, "simulate", lambda s, c: timed.append(s) or real(s, c))
    model, tried = load_model("llama-3.1-70b"), 0
    for pp in (2, 3, 4, 6, 8):
        for micro_batches in (1, 2, 3, 7, 8, 12, 16, 30, 60):
            framework = "torchtitan" if schedule in ("bfs", "zb-v", "dualpipev", "gpipe") else "megatron-core"
            workload = Workload(seq_len=4096, global_batch=micro_batches, framework=framework)
            layout = Layout(tp=8, pp=pp, dp=1, vpp=vpp, schedule=schedule)
            rules = {v.rule for v in check(layout, model, CLUSTER, workload, None)} - {"framework"}
            if rules:
                continue
            tried += 1
            time = price(model, CLUSTER, workload, Layouts.of(layout), rates_for(CLUSTER), every=True).time
            exact = with_timeline(time, model, layout)
            assert exact.step[0] > 0
            assert len(timed) == tried
    assert tried > 5
