"""Closed forms of pipeline schedules against printed values and a small simulation that knows only the order of operations.

The simulation runs each device's list of operations as soon as what they need is there. Times are small whole numbers, so
sums are exact. The schedules of parlay.schedules are compared with the same forms in tests/schedules/test_closed_forms.py.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import in_flight as flight
from parlay.formulas import pipeline
from parlay.formulas._check import FormulaDomainError

few = settings(max_examples=40, deadline=None)
stages, times = st.integers(1, 6), st.integers(1, 5)


def run(lists, seconds, chunks):
    """Return each device's idle seconds; operations are (kind, micro-batch, chunk), chunks counted through the whole model."""
    done, clock, at = {}, [0] * len(lists), [0] * len(lists)
    while any(i < len(todo) for i, todo in zip(at, lists)):
        before = sum(at)
        for device, todo in enumerate(lists):
            while at[device] < len(todo):
                kind, m, c = todo[at[device]]
                needs = {
                    "F": [("F", m, c - 1)] if c else [],
                    "B": [("B", m, c + 1)] if c < chunks - 1 else [("F", m, c)],
                    "W": [],
                }
                if any(n not in done for n in needs[kind]):
                    break
                clock[device] = max([clock[device], *(done[n] for n in needs[kind])]) + seconds[kind]
                done[kind, m, c] = clock[device]
                at[device] += 1
        assert sum(at) > before, "the lists wait for each other"
    end = max(clock)
    return [end - sum(seconds[kind] for kind, _, _ in todo) for todo in lists]


def in_flight(todo):
    """Return the most forwards of a device that wait for their backward."""
    held, most = Counter(), 0
    for kind, m, c in todo:
        held[m, c] += {"F": 1, "B": -1, "W": 0}[kind]
        most = max(most, held.total())
    return most


def gpipe(p, m):
    return [[("F", i, r) for i in range(m)] + [("B", i, r) for i in reversed(range(m))] for r in range(p)]


def one_f_one_b(p, m, *, warmup=None):
    """p - 1 - r forwards ahead, or `warmup(r)`, then a forward and a backward in turn."""
    lists = []
    for r in range(p):
        ahead = min(m, p - 1 - r if warmup is None else warmup(r))
        order = [("F", i, r) for i in range(ahead)]
        for i in range(m):
            order += [("F", ahead + i, r)] if ahead + i < m else []
            order += [("B", i, r)]
        lists.append(order)
    return lists


def interleaved(p, m, v):
    """Megatron's order: forwards by groups of p micro-batches, chunk by chunk; 2 (p - r - 1) + (v - 1) p forwards ahead."""
    forward = [(i, c) for g in range(0, m, p) for c in range(v) for i in range(g, g + p)]
    backward = [(i, v - 1 - c) for i, c in forward]
    lists = []
    for r in range(p):
        ahead = min(m * v, 2 * (p - r - 1) + (v - 1) * p)
        order = [("F", i, c * p + r) for i, c in forward[:ahead]]
        for n in range(m * v):
            order += [("F", forward[ahead + n][0], forward[ahead + n][1] * p + r)] if ahead + n < m * v else []
            order += [("B", backward[n][0], backward[n][1] * p + r)]
        lists.append(order)
    return lists


def zb_h1(p, m):
    """1F1B with the backward split: stage r delays its weight gradients by r micro-batches (arXiv:2401.10241, figure 3)."""
    lists = []
    for r, order in enumerate(one_f_one_b(p, m)):
        split, ready = [], 0
        for kind, i, c in order:
            split.append((kind, i, c))
            if kind == "B" and i >= r:
                split.append(("W", ready, c))
                ready += 1
        lists.append(split + [("W", i, r) for i in range(ready, m)])
    return lists


@few
@given(p=stages, m=st.integers(1, 12), f=times, b=times)
def test_gpipe_and_1f1b_idle_as_the_form_says(p, m, f, b):
    idle = float(pipeline.one_f_one_b_bubble_s(p, f, b))
    for lists in (gpipe(p, m), one_f_one_b(p, m)):
        assert run(lists, {"F": f, "B": b}, p) == [idle] * p


@few
@given(p=stages, v=st.integers(1, 4), rounds=st.integers(1, 3), f=times, b=times)
def test_interleaved_idles_as_the_form_says(p, v, rounds, f, b):
    # One chunk takes f and b, a whole stage v times that.
    idle = float(pipeline.interleaved_bubble_s(p, v, v * f, v * b))
    assert run(interleaved(p, rounds * p, v), {"F": f, "B": b}, p * v) == pytest.approx([idle] * p)


@few
@given(p=stages, more=st.integers(0, 6), t=times)
def test_zb_h1_leaves_a_third_of_the_bubble_where_all_parts_are_equal(p, more, t):
    idle = run(zb_h1(p, p + more), {"F": t, "B": t, "W": t}, p)
    assert max(idle) == pipeline.zb_h1_bubble_s(p, t, 2 * t, t)
    assert 3 * max(idle) == pipeline.one_f_one_b_bubble_s(p, t, 2 * t)


@few
@given(p=stages, more=st.integers(0, 6), f=times, b=times, w=times)
def test_zb_h1_idles_as_the_form_says(p, more, f, b, w):  # b and w are the two parts of the backward
    idle = run(zb_h1(p, p + more), {"F": f, "B": b, "W": w}, p)
    assert max(idle) == pipeline.zb_h1_bubble_s(p, f, b + w, w)


@few
@given(p=stages, m=st.integers(1, 16), v=st.integers(1, 4))
def test_micro_batches_in_flight(p, m, v):
    for r in range(p):
        assert in_flight(gpipe(p, m)[r]) == flight.gpipe_in_flight(m)
        assert in_flight(one_f_one_b(p, m)[r]) == flight.one_f_one_b_in_flight(p, r, m)
        assert in_flight(zb_h1(p, m)[r]) == flight.one_f_one_b_in_flight(p, r, m)
        twice = one_f_one_b(p, m, warmup=lambda r: 2 * (p - r) - 2)
        assert in_flight(twice[r]) == flight.zb_h2_in_flight(p, r, m)
        chunks = in_flight(interleaved(p, m * p, v)[r])
        assert chunks == flight.interleaved_in_flight_chunks(p, r, v, m * p)


# arXiv:2401.10241, Table 1, with forward, input gradient and weight gradient of one unit each: (p - 1) times 3, 1 and 0.
@pytest.mark.parametrize("p", [2, 8])
def test_bubbles_of_qi_2023(p):
    assert pipeline.one_f_one_b_bubble_s(p, 1, 2) == 3 * (p - 1)
    assert pipeline.zb_h1_bubble_s(p, 1, 2, 1) == p - 1
    assert pipeline.zb_h2_bubble_s(p, 1, 2, 1) == 0
    assert pipeline.zb_v_bubble_s(p, 1, 2, 1) == 0


@few
@given(p=stages, f=times, b=times, w=times)
def test_zb_h2_is_what_the_paper_prints_where_weight_gradients_are_short(p, f, b, w):  # Table 1: (p - 1)(f + b - 2 w)
    printed = (p - 1) * (f + b - 2 * w)
    found = pipeline.zb_h2_bubble_s(p, f, b + w, w)
    assert found == max(printed, 0) if w <= f else found >= max(printed, 0)
    half = pipeline.zb_v_bubble_s(p, f, b + w, w)  # half the chunks: half the printed form
    assert half == max(printed, 0) / 2


def test_bubbles_of_the_dualpipe_readme():  # (PP/2 - 1)(F&B + B - 3W) with F&B = F + B, PP + 1 activations
    f, b, w, p = 2.0, 4.0, 2.0, 8
    assert pipeline.dualpipe_bubble_s(p, f, b, w) == (p / 2 - 1) * ((f + b) + b - 3 * w)
    assert flight.dualpipe_in_flight(p, 64) == p + 1
    assert flight.dualpipe_in_flight(p, 3) == 3


@pytest.mark.parametrize(
    ("p", "f", "b", "w", "idle"),
    [  # seconds of the exact timeline, parlay schedule dualpipe: two, four and eight stages, unequal parts
        (2, 3, 2, 1, 0),
        (4, 2, 2, 1, 5),
        (4, 3, 2, 1, 7),
        (8, 3, 2, 1, 21),
        (8, 2, 2, 1, 15),
    ],
)
def test_dualpipe_with_unequal_parts(p, f, b, w, idle):
    assert pipeline.dualpipe_bubble_s(p, f, b + w, w) == idle


def test_warm_up_of_megatron():  # p = 4, v = 8: 34 chunks ahead on the first rank
    assert flight.interleaved_in_flight_chunks(4, 0, 8, 64) == 34 + 1
    assert flight.zb_v_in_flight(8, 64) == 8


def test_the_idle_share_of_gpipe():  # arXiv:1811.06965, section 2.3: (K-1)/(M+K-1)
    K, M = 8, 32
    idle = float(pipeline.one_f_one_b_bubble_s(K, 1, 2))
    assert idle / (idle + M * 3) == pytest.approx((K - 1) / (M + K - 1))


def test_half_a_stage_is_refused():
    with pytest.raises(FormulaDomainError, match=r"`stages` must be a whole number, got 2.5 at index \(1,\)"):
        pipeline.one_f_one_b_bubble_s([2, 2.5], 1, 2)


@pytest.mark.parametrize(
    ("p", "f", "b", "w", "exact"),
    [(4, 1, 4, 1, 7), (8, 1, 4, 1, 23), (4, 1, 2, 1, 3), (8, 2, 3, 1, 19), (8, 1, 3, 2, 14)],  # seconds of the exact timeline
)
def test_dualpipe_with_a_short_forward_is_off_by_one_forward(p, f, b, w, exact):
    assert 0 <= pipeline.dualpipe_bubble_s(p, f, b + w, w) - exact <= f


def test_a_stage_beyond_the_last_holds_what_the_last_one_does():
    for form in (flight.one_f_one_b_in_flight, flight.zb_h2_in_flight):
        assert form(4, [3, 4, 9], 8).tolist() == [1.0, 1.0, 1.0]
