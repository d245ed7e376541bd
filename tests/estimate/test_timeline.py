import numpy as np
import pytest

from parlay.estimate.estimate import estimate, price
from parlay.estimate.timeline import with_timeline
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import Run
from parlay.rates.choose import rates_for

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
    from parlay.estimate import timeline

    layout = Layout(tp=8, pp=4, dp=1)
    _, whole = both("llama-3.1-70b", layout, batch=512)
    before = timeline.MOST_OPERATIONS
    try:
        timeline.MOST_OPERATIONS = 256
        _, part = both("llama-3.1-70b", layout, batch=512)
    finally:
        timeline.MOST_OPERATIONS = before
    assert part.step[0] == pytest.approx(whole.step[0], rel=1e-6)


def test_an_estimate_shows_the_exact_step():
    model, layout = load_model("llama-3.1-405b"), Layout(tp=8, pp=16, dp=1)
    workload = Workload(seq_len=4096, global_batch=32)
    shown = estimate(model, CLUSTER, workload, layout)
    closed = price(model, CLUSTER, workload, Layouts.of(layout), rates_for(CLUSTER), every=True).time
    assert shown.step_s == pytest.approx(float(with_timeline(closed, model, layout).step[0]))
    assert not np.isclose(shown.step_s, closed.step[0], rtol=1e-12)
