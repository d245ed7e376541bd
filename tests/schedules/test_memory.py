"""Memory over time: what is held, where the peak falls, weight versions, and schedules that hold too much."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.schedules import NAMES, build, simulate
from parlay.schedules.memory import held, versions
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from parlay.units import GIB


def by_hand(s, size, share, kept):
    """The same by a walk over the operations, one stage at a time."""
    peaks = []
    for r in range(s.stages):
        now, most, here = 0.0, 0.0, range(s.offset[r], s.offset[r + 1])
        skip = -1
        for i in here:
            if i == skip:
                continue
            members = [i, i + 1] if s.together[i] else [i]
            skip = i + 1 if s.together[i] else -1
            for k in members:
                now += size[s.chunk[k]] * (s.kind[k] == FORWARD) + kept[s.chunk[k]] * (s.kind[k] == INPUT)
            most = max(most, now)
            for k in members:
                c = s.chunk[k]
                now -= {BACKWARD: size[c], INPUT: (1 - share[c]) * size[c], WEIGHT: share[c] * size[c] + kept[c]}.get(
                    s.kind[k], 0
                )
        assert now == pytest.approx(0, abs=1e-9)  # everything is freed in the end
        peaks.append(most)
    return peaks


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([2, 4]), st.integers(2, 4), st.data())
def test_peaks_are_those_of_a_walk_over_the_operations(name, p, k, data):
    s = build(name, p, k * p)
    numbers = st.floats(0, 5)

    def many(of):
        return np.array(data.draw(st.lists(of, min_size=s.chunks, max_size=s.chunks)))

    size, share, kept = many(numbers), many(st.floats(0, 1)), many(numbers)
    np.testing.assert_allclose(
        held(s, size, weight_share=share, gradient_bytes=kept).peak, by_hand(s, size, share, kept), atol=1e-9
    )


def test_the_peak_falls_at_the_last_forward_before_the_first_backward():
    h = held(build("1f1b", 4, 8), 10.0)
    assert [h.schedule.label(int(i)) for i in h.peak_at] == ["F3", "F2", "F1", "F0"]


def test_over_time():
    s = build("1f1b", 2, 3)
    h, t = held(s, 1.0), simulate(s)
    times, bytes_ = h.over_time(t, 0)
    assert times.tolist() == [0, 1, 4, 6, 7, 10]
    assert bytes_.tolist() == [1, 2, 2, 2, 2, 1]


def test_deferred_weight_gradients_hold_what_they_need():
    s = build("zb-h1", 4, 16)
    assert held(s, weight_share=0).peak.tolist() == [4, 3, 2, 1]
    assert held(s, weight_share=1).peak.tolist() == [4, 4, 4, 4]
    assert held(s, weight_share=0.5).peak.tolist() == [4, 3.5, 3, 2.5]
    assert held(s, weight_share=0, gradient_bytes=0.25).peak[3] == 1 + (3 + 1) * 0.25  # three wait, one is being made


def test_too_much_memory_names_stage_and_operation():
    h = held(build("gpipe", 4, 8), 10 * GIB)
    said = h.too_much(40 * GIB)
    assert "stage 0 passes 40.0 GiB at F4 and reaches 80.0 GiB at F7" in said
    assert said.endswith("less: 1f1b, recompute, or smaller micro-batches")
    assert h.too_much(80 * GIB) == ""


def test_one_stage_with_less_memory():
    h = held(build("1f1b", 4, 8))
    said = h.too_much([4, 3, 1, 1])
    assert "stage 2 passes 1 B at F1" in said
    assert said.endswith("less: recompute, or smaller micro-batches")  # not 1f1b, which it is


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_weight_versions(p):
    m = 6 * p
    v = versions(build("pipedream", p, m))
    assert v.kept.tolist() == [p - r for r in range(p)]
    steady = v.staleness[:, 2 * p :]
    assert (steady == np.arange(p - 1, -1, -1)[:, None]).all()  # stage r computes p - 1 - r updates behind
    w = versions(build("pipedream-2bw", p, m))
    assert w.kept.max() == 2
    assert set(w.staleness[:, p:].ravel().tolist()) == {1}  # one update behind, on every stage
    assert versions(build("1f1b", p, m)).kept.tolist() == [1] * p
    assert not versions(build("1f1b", p, m)).staleness.any()


def test_the_forward_and_backward_of_2bw_read_a_version_that_exists():
    """A group reads the version before the newest; all backwards that make it must have run on that stage by then."""
    p, g = 4, 6
    s = build("pipedream-2bw", p, 5 * g, group=g)
    used = versions(s).used
    for r in range(p):
        here = s.operations(r)
        done = 0
        for kind, m in zip(s.kind[here], s.micro_batch[here], strict=True):
            if kind == FORWARD:
                assert used[r, m] <= done // g
            done += kind == BACKWARD
