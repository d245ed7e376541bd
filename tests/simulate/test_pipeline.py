"""Pipelines that pass real activations: the numbers of the whole network, bytes per boundary, idle time and chunks in flight."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import activations, flops, pipeline_steps
from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline as formulas
from parlay.simulate import pipeline, tape
from parlay.simulate.world import World

few = settings(max_examples=25, deadline=None)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1.0, np.abs(other).max()))


def run(p, m, schedule, v=1, *, layers=None, h=3, rows=2, seed=0, **options):
    rng, world = np.random.default_rng(seed), World(p)
    weights = [rng.standard_normal((h, h)) for _ in range(layers or p * v)]
    x, d_out = ([rng.standard_normal((rows, h)) for _ in range(m)] for _ in range(2))
    result = pipeline.run_step(world, weights, x, d_out, schedule=schedule, virtual=v, **options)

    start, leaves = tape.Value(np.concatenate(x)), [tape.Value(w) for w in weights]
    out = start
    for leaf in leaves:
        out = (out @ leaf).apply(np.tanh, lambda u: 1 - np.tanh(u) ** 2)
    out.backward(np.concatenate(d_out))
    close(np.concatenate(result.outputs), out.array)
    close(np.concatenate(result.d_inputs), start.gradient)
    for mine, leaf in zip(result.gradients, leaves):
        close(mine, leaf.gradient)
    work = flops.training_flops(len(weights) * h * h) * m * rows
    assert world.ledger.flops_done(pipeline.FORWARD, pipeline.BACKWARD).sum() == work
    return world.ledger, result


times = {"forward_s": st.sampled_from([1.0, 1.5]), "backward_s": st.sampled_from([1.5, 2.0, 3.25])}


@few
@given(p=st.integers(1, 5), m=st.integers(1, 7), schedule=st.sampled_from(["gpipe", "1f1b"]), seed=st.integers(0, 99), **times)
def test_gpipe_and_1f1b(p, m, schedule, seed, forward_s, backward_s):
    ledger, result = run(p, m, schedule, seed=seed, forward_s=forward_s, backward_s=backward_s)
    held = {"gpipe": np.full(p, flight.gpipe_in_flight(m)), "1f1b": flight.one_f_one_b_in_flight(p, np.arange(p), m)}
    assert result.peak_in_flight == held[schedule].tolist()
    assert result.idle_s() == pytest.approx([formulas.one_f_one_b_bubble_s(p, forward_s, backward_s)] * p)
    shares = [idle / result.step_s for idle in result.idle_s()]
    assert shares == pytest.approx([pipeline_steps.bubble_share(p, m)] * p)
    block = 2 * 3 * 8
    onward = [m * block] * (p - 1)
    assert ledger.sent_bytes(pipeline.ACTIVATIONS).tolist() == [*onward, 0]
    assert ledger.sent_bytes(pipeline.GRADIENTS).tolist() == [0, *onward]


@few
@given(p=st.integers(2, 4), groups=st.integers(1, 3), v=st.integers(2, 3), **times)
def test_interleaved(p, groups, v, forward_s, backward_s):
    m = groups * p
    ledger, result = run(p, m, "interleaved", v, forward_s=forward_s, backward_s=backward_s)
    assert result.peak_in_flight == flight.interleaved_in_flight_chunks(p, np.arange(p), v, m).tolist()
    assert result.idle_s() == pytest.approx([formulas.interleaved_bubble_s(p, v, forward_s, backward_s)] * p)
    assert [idle / result.step_s for idle in result.idle_s()] == pytest.approx([pipeline_steps.bubble_share(p, m, v)] * p)
    block = 2 * 3 * 8
    assert ledger.sent_bytes(pipeline.ACTIVATIONS).tolist() == [v * m * block] * (p - 1) + [(v - 1) * m * block]
    assert ledger.sent_bytes(pipeline.GRADIENTS).tolist() == [(v - 1) * m * block] + [v * m * block] * (p - 1)


@few
@given(p=st.integers(2, 4), more=st.integers(0, 3), groups=st.integers(1, 3), v=st.integers(2, 3))
def test_interleaved_in_larger_groups(p, more, groups, v):
    g = p + more
    _, result = run(p, groups * g, "interleaved", v, group=g)
    held = pipeline_steps.interleaved_group_in_flight_chunks(p, np.arange(p), v, g, groups * g)
    assert result.peak_in_flight == held.tolist()


@few
@given(
    times=st.lists(st.integers(1, 9), min_size=1, max_size=5), m=st.integers(1, 8), schedule=st.sampled_from(["gpipe", "1f1b"])
)
def test_stages_of_unequal_time(times, m, schedule):
    def step_s(stages):
        _, result = run(len(stages), m, schedule, forward_s=[float(t) for t in stages], backward_s=[2.0 * t for t in stages])
        return result.step_s

    total = pipeline_steps.uneven_pipeline_s(3 * sum(times), 3 * max(times), m)
    assert step_s(times) <= total
    assert step_s(sorted(times)) == total  # the last stage is the slowest


@few
@given(
    p=st.integers(1, 4),
    m=st.integers(1, 6),
    each=st.integers(1, 3),
    rows=st.integers(1, 3),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
def test_computing_again_keeps_inputs_only(p, m, each, rows, schedule):
    ledger, result = run(p, m, schedule, layers=p * each, rows=rows, recompute=True)
    _, plain = run(p, m, schedule, layers=p * each, rows=rows)
    block = activations.token_tensors(rows, 3, element_bytes=8)
    assert plain.peak_bytes == [held * (each + 1) * block for held in plain.peak_in_flight]
    assert result.peak_bytes == [(held + each) * block for held in result.peak_in_flight]
    if schedule == "gpipe":
        assert result.peak_bytes == [pipeline_steps.rematerialised_bytes(p, m, p * each, m * block)] * p
    done = ledger.flops_done(pipeline.FORWARD, pipeline.BACKWARD, pipeline.RECOMPUTE)
    assert done.tolist() == flops.recompute_flops(ledger.flops_done(pipeline.FORWARD), 1).tolist()


@few
@given(
    p=st.integers(1, 4),
    m=st.integers(1, 5),
    layers=st.integers(1, 9),
    rows=st.integers(1, 3),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
def test_uneven_stages_compute_the_same(p, m, layers, rows, schedule):
    run(p, m, schedule, layers=layers, rows=rows)


def test_refuses_what_has_no_order():
    with pytest.raises(ValueError, match="`schedule` must be one of gpipe, 1f1b, interleaved, got 'zigzag'"):
        pipeline.tasks_of("zigzag", 2, 0, 2)
    with pytest.raises(
        ValueError, match="interleaving 2 stages needs groups of at least 2 that divide the micro-batches, got 2 and 3"
    ):
        pipeline.tasks_of("interleaved", 2, 0, 3, 2)
    with pytest.raises(ValueError, match="1f1b has one chunk a stage, got 2"):
        pipeline.tasks_of("1f1b", 2, 0, 3, 2)
