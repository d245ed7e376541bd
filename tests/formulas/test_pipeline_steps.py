"""Whole pipeline steps, against a clock that runs every forward and backward in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline, pipeline_steps

few = settings(max_examples=60, deadline=None)


def step_s(forward: list[float], backward: list[float], m: int) -> float:
    """Return when the last operation of a 1F1B step ends: each starts after its stage's previous and its neighbour's result."""
    p = len(forward)
    orders = []
    for r in range(p):
        warm = min(m, p - r - 1)
        steady = [op for i in range(m - warm) for op in (("F", warm + i), ("B", i))]
        orders.append([("F", i) for i in range(warm)] + steady + [("B", i) for i in range(m - warm, m)])
    ends: dict[tuple[str, int, int], float] = {}
    clock, done = [0.0] * p, [0] * p
    while sum(done) < 2 * m * p:
        for r in range(p):
            while done[r] < 2 * m:
                kind, i = orders[r][done[r]]
                before = ("F", i, r - 1) if r else None
                after = ("B", i, r + 1) if r < p - 1 else ("F", i, r)
                needs = before if kind == "F" else after
                if needs and needs not in ends:
                    break
                start = max(clock[r], ends[needs] if needs else 0.0)
                clock[r] = ends[kind, i, r] = start + (forward[r] if kind == "F" else backward[r])
                done[r] += 1
    return max(clock)


times = st.lists(st.integers(1, 6), min_size=1, max_size=5)
batches = st.integers(1, 10)


@few
@given(p=st.integers(1, 6), m=batches, f=st.integers(1, 4), b=st.integers(1, 8))
def test_equal_stages_are_exact(p, m, f, b):
    step = step_s([f] * p, [b] * p, m)
    assert pipeline_steps.uneven_pipeline_s(p * (f + b), f + b, m) == step
    idle = step - m * (f + b)
    if m >= p:  # every stage then waits as long as the first
        assert pipeline_steps.bubble_share(p, m) == pytest.approx(idle / step)


@few
@given(forward=times, m=batches, ratio=st.sampled_from([1, 2, 3]))
def test_stages_of_one_ratio_stay_within_the_formula(forward, m, ratio):
    total = [(1 + ratio) * f for f in forward]
    step = step_s(forward, [ratio * f for f in forward], m)
    assert step <= pipeline_steps.uneven_pipeline_s(sum(total), max(total), m)
    assert step >= m * max(total)


@few
@given(forward=times, m=batches, data=st.data())
def test_a_slow_last_stage_is_exact_whatever_the_ratios(forward, m, data):
    backward = data.draw(st.lists(st.integers(1, 9), min_size=len(forward), max_size=len(forward)))
    slowest = max(f + b for f, b in zip(forward, backward))
    backward[-1] = slowest - forward[-1] if slowest > forward[-1] else backward[-1]
    total = [f + b for f, b in zip(forward, backward)]
    assert step_s(forward, backward, m) == pipeline_steps.uneven_pipeline_s(sum(total), max(total), m)


def test_printed_shares():
    assert pipeline_steps.bubble_share(4, 1) == 0.75  # one micro-batch
    assert pipeline_steps.bubble_share(8, 32) == pytest.approx(0.179487, abs=5e-7)  # m = 4 p: under a fifth


@few
@given(p=st.integers(1, 32), m=st.integers(1, 256), v=st.integers(1, 8), f=st.floats(0.1, 10), b=st.floats(0.1, 10))
def test_the_share_is_idle_time_over_all_time(p, m, v, f, b):
    idle = pipeline.interleaved_bubble_s(p, v, f, b)
    assert pipeline_steps.bubble_share(p, m, v) == pytest.approx(idle / (idle + m * (f + b)))


def test_groups_of_megatrons_size():
    assert pipeline_steps.interleaved_group_in_flight_chunks(4, 0, 8, 4, 64) / 8 == 4.375  # NVIDIA/Megatron-LM issue 169
    assert pipeline_steps.interleaved_group_in_flight_chunks(4, 3, 8, 4, 64) == 29


@few
@given(p=st.integers(1, 16), v=st.integers(1, 8), m=st.integers(1, 64), data=st.data())
def test_the_default_group_is_the_number_of_stages(p, v, m, data):
    r = data.draw(st.integers(0, p - 1))
    whole = flight.interleaved_in_flight_chunks(p, r, v, m)
    assert pipeline_steps.interleaved_group_in_flight_chunks(p, r, v, p, m) == whole


def versions_held(p: int, r: int) -> int:
    """Return the most weight versions at once on stage r of asynchronous 1F1B, where every backward is followed by an update."""
    newest, in_flight, most = 0, [], 1
    for micro_batch in range(4 * p):
        in_flight.append(newest)
        most = max(most, len({newest, *in_flight}))
        if micro_batch >= p - r - 1:  # the warm-up is over: the oldest comes back
            in_flight.pop(0)
            newest += 1
    return most


def test_versions_equal_those_of_a_stage_that_stashes_them():
    for p in range(1, 9):
        assert pipeline_steps.pipedream_weight_versions(p, range(p)).tolist() == [versions_held(p, r) for r in range(p)]
        assert pipeline_steps.double_buffered_weight_versions(p) == min(2, versions_held(p, 0))


def test_eight_stages():
    assert pipeline_steps.pipedream_weight_versions(8, 0) == 8
    assert pipeline_steps.double_buffered_weight_versions(8) == 2
    assert flight.one_f_one_b_in_flight(8, 0, 64) == 8  # synchronous: one version


def test_gpipe_of_llama_3_8b():
    layer = 128 * 4096 * 4096 * 2
    peak = pipeline_steps.rematerialised_bytes(8, 16, 32, layer)
    assert peak == 5_368_709_120
    assert 32 * layer / peak == pytest.approx(25.6)
    # summed tensor by tensor: the stage's input of all samples, and four layers of the eight samples of a micro-batch
    assert peak == sum(4096 * 4096 * 2 for _ in range(128)) + sum(4096 * 4096 * 2 for _ in range(4 * 8))


def test_a_stage_beyond_the_last_has_one_version_as_the_last_one_has():
    assert pipeline_steps.pipedream_weight_versions(4, [3, 4, 9]).tolist() == [1.0, 1.0, 1.0]
