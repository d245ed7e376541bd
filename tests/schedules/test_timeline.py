"""The timeline keeps every rule of a pipeline, and obeys the bounds that hold for any schedule and any times."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.schedules import NAMES, Costs, build, simulate
from parlay.schedules.build import WITH_CHUNKS
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from parlay.schedules.validate import validate

TOLERANCE = 1e-9


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(NAMES))
    p = draw(st.integers(1, 6))
    m = draw(st.integers(1, 4)) * p * 2
    if name == "dualpipe":
        p += p % 2
        m = 2 * p + 2 * draw(st.integers(0, 4))
    v = draw(st.integers(1, 3)) if name in WITH_CHUNKS else 1
    return build(name, p, m, virtual=v)


@st.composite
def cases(draw, sharing=("none", "direction", "pair", "all")):
    s = draw(schedules())
    times = st.floats(0.05, 10)

    def many(n, of=times):
        return np.array(draw(st.lists(of, min_size=n, max_size=n)))

    backward = many(s.chunks)
    return s, Costs.of(
        s,
        many(s.chunks),
        backward,
        backward * draw(st.floats(0, 1)),
        many(s.chunks - 1, st.floats(0, 3)),
        slowdown=many(s.stages, st.floats(1, 2)),
        recompute=draw(st.sampled_from([0, 0.5, 1])),
        overlapped=draw(st.sampled_from([1.0, 0.8])),
        blocking=draw(st.booleans()),
        sharing=draw(st.sampled_from(sharing)),
    )


@settings(max_examples=100, deadline=None)
@given(cases())
def test_rules_of_a_pipeline(case):
    s, costs = case
    validate(s)
    t = simulate(s, costs)
    second = np.concatenate([[False], s.together[:-1]])
    for r in range(s.stages):
        here = s.operations(r)
        lead = ~second[here]
        start, end = t.start_s[here][lead], t.end_s[here][lead]
        assert (start[1:] >= end[:-1] - TOLERANCE).all()  # one operation at a time
    waits = s.waits_for()
    at = np.nonzero(waits >= 0)[0]
    assert (t.start_s[at] >= t.end_s[waits[at]] - TOLERANCE).all()
    remote = t.sender >= 0
    assert (t.sent_s[remote] >= t.end_s[t.sender[remote]] - TOLERANCE).all()
    assert (t.start_s[remote] >= t.arrived_s[remote] - TOLERANCE).all()
    index = s.index_of()
    gradient = np.maximum(index[BACKWARD], index[INPUT])
    assert (t.start_s[gradient] >= t.end_s[index[FORWARD]] - TOLERANCE).all()
    split = index[WEIGHT] >= 0
    assert (t.start_s[index[WEIGHT][split]] >= t.end_s[index[INPUT][split]] - TOLERANCE).all()


@settings(max_examples=100, deadline=None)
@given(cases())
def test_bounds_that_hold_for_any_schedule(case):
    s, costs = case
    t = simulate(s, costs)
    took = costs.of_operations(s)
    work = np.bincount(s.stage, took)
    if costs.overlapped == 1:
        np.testing.assert_allclose(t.busy_s, work, rtol=1e-12)  # work is conserved
    assert t.step_s >= t.busy_s.max() - TOLERANCE
    chain = costs.forward_s * costs.slowdown[s.device] + (costs.backward_s - costs.weight_s) * costs.slowdown[s.device]
    between = np.where(s.device[:, 1:] != s.device[:, :-1], costs.transfer_s, 0).sum(axis=1)
    if costs.overlapped == 1:
        assert t.step_s >= (chain.sum(axis=1) + 2 * between).min() - TOLERANCE  # one micro-batch, there and back
    assert t.step_s <= took.sum() + 2 * s.micro_batches * costs.transfer_s.sum() + TOLERANCE  # everything one by one
    assert (t.idle_s >= -TOLERANCE).all()
    assert (t.gaps_s <= t.idle_s + TOLERANCE).all()


@settings(max_examples=60, deadline=None)
@given(cases(sharing=("none",)))
def test_the_critical_path_accounts_for_the_whole_step(case):
    s, costs = case
    t = simulate(s, costs)
    path = t.critical_path()
    assert t.start_s[path[0]] == 0
    assert t.end_s[path[-1]] == t.step_s
    waits = s.waits_for()
    for before, behind in itertools.pairwise(path):
        gap = t.start_s[behind] - t.end_s[before]
        partner = [behind, behind + 1] if s.together[behind] else [behind, behind - 1] if s.together[behind - 1] else [behind]
        arrivals = [t.arrived_s[k] - t.end_s[before] for k in partner if waits[k] == before and t.sender[k] >= 0]
        sends = [t.arrived_s[k] - t.end_s[before] for k in np.nonzero(t.sender == before)[0]] if costs.blocking else []
        allowed = [0.0, *arrivals, *sends]
        if s.together[before - 1] or s.together[before]:
            allowed += [gap] if costs.blocking else []
        assert min(abs(gap - a) for a in allowed) <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(cases(sharing=("none",)), st.floats(1, 3))
def test_longer_operations_never_shorten_the_step(case, factor):
    s, costs = case
    slower = Costs.of(s, costs.forward_s * factor, costs.backward_s, costs.weight_s, costs.transfer_s, slowdown=costs.slowdown)
    same = Costs.of(s, costs.forward_s, costs.backward_s, costs.weight_s, costs.transfer_s, slowdown=costs.slowdown)
    assert simulate(s, slower).step_s >= simulate(s, same).step_s - TOLERANCE


@settings(max_examples=40, deadline=None)
@given(cases(sharing=("none",)))
def test_twice_the_times_make_twice_the_step(case):
    s, costs = case
    times = [costs.forward_s, costs.backward_s, costs.weight_s, costs.transfer_s]
    once, twice = (simulate(s, Costs.of(s, *(k * x for x in times), blocking=costs.blocking)) for k in (1, 2))
    assert twice.step_s == 2 * once.step_s


@settings(max_examples=60, deadline=None)
@given(cases(sharing=("none",)))
def test_both_loops_agree_where_links_never_queue(case):
    s, costs = case
    free = Costs.of(
        s, costs.forward_s, costs.backward_s, costs.weight_s, 0.0, slowdown=costs.slowdown, overlapped=costs.overlapped
    )
    one = simulate(s, free)
    for sharing in ("direction", "pair", "all"):
        other = simulate(s, Costs(**{f: getattr(free, f) for f in Costs.__slots__ if f != "sharing"}, sharing=sharing))
        assert np.array_equal(one.start_s, other.start_s)
        assert np.array_equal(one.end_s, other.end_s)


@settings(max_examples=60, deadline=None)
@given(cases(sharing=("direction", "pair", "all")))
def test_transfers_on_one_link_do_not_overlap(case):
    s, costs = case
    t = simulate(s, costs)
    link = costs.links(s.stages)
    at = np.nonzero((t.sender >= 0) & (t.arrived_s > t.sent_s))[0]
    wire = link[s.stage[t.sender[at]], s.stage[at]]
    for w in np.unique(wire):
        order = at[wire == w][np.argsort(t.sent_s[at[wire == w]], kind="stable")]
        assert (t.sent_s[order][1:] >= t.arrived_s[order][:-1] - TOLERANCE).all()


def test_two_transfers_that_share_a_link_by_hand():
    """Two stages, two micro-batches, transfers of 2 beside forwards of 1: the second queues behind the first."""
    s = build("gpipe", 2, 2)
    for sharing, starts in [("none", [3, 4]), ("direction", [3, 5])]:
        t = simulate(s, Costs.of(s, 1, 2, 1, 2, sharing=sharing))
        assert t.start_s[s.operations(1)][:2].tolist() == starts


def test_a_transfer_hidden_or_blocking_by_hand():
    """1F1B on two stages: a send of 1/2 costs a stage nothing where it overlaps, and 1/2 an operation where it blocks."""
    s = build("1f1b", 2, 4)
    hidden = simulate(s, Costs.of(s, 1, 2, 1, 0.5))
    blocking = simulate(s, Costs.of(s, 1, 2, 1, 0.5, blocking=True))
    assert hidden.start_s[s.operations(0)][:2].tolist() == [0, 1]
    assert blocking.start_s[s.operations(0)][:2].tolist() == [0, 1.5]
    assert blocking.step_s > hidden.step_s > simulate(s, Costs.of(s, 1, 2, 1)).step_s


def test_embedding_head_recompute_and_a_slow_stage_by_hand():
    s = build("1f1b", 2, 1)
    ends = Costs.of(s, 1, 2, 1).with_ends(first=(0.25, 0.5, 0.5), last=(1, 2, 1))
    assert simulate(s, ends).step_s == 1.25 + 2 + 4 + 2.5
    again = Costs.of(s, 1, 2, 1, recompute=[1, 0])
    assert simulate(s, again).step_s == 1 + 1 + 2 + 3
    slow = Costs.of(s, 1, 2, 1, slowdown=[1, 1.5])
    assert simulate(s, slow).step_s == 1 + 1.5 + 3 + 2


def test_the_slowest_stage_sets_the_pace_of_a_long_step():
    s = build("1f1b", 4, 64)
    costs = Costs.of(s, [1, 1, 1.5, 1], [2, 2, 3, 2])
    t = simulate(s, costs)
    assert t.busy_s[2] == 64 * 4.5
    # All its work, the two stages before it, and the wait for the one behind, in which it runs one forward of its own.
    assert t.step_s == 64 * 4.5 + 2 * 3 + (3 - 1.5)


def test_an_overlapped_pair_starts_and_ends_together():
    s = build("dualpipe", 4, 8)
    t = simulate(s, Costs.of(s, 1, 2, 1, overlapped=0.9))
    at = np.nonzero(s.together)[0]
    assert len(at)
    assert np.array_equal(t.start_s[at], t.start_s[at + 1])
    assert np.array_equal(t.end_s[at], t.end_s[at + 1])
    np.testing.assert_allclose(t.end_s[at] - t.start_s[at], 2.7)
    assert t.step_s < simulate(s, Costs.of(s, 1, 2, 1)).step_s


BAD = [
    (("interleaved", 4, 10), {}, r"interleaved needs micro-batches to be a multiple of the 4 stages, got 10"),
    (("interleaved", 4, 8), {"group": 3}, "needs groups of 4"),
    (("interleaved", 4, 8), {"group": 5}, "last group of 3"),
    (("dualpipe", 3, 8), {}, "even number of stages"),
    (("dualpipe", 4, 6), {}, "at least twice the stages"),
    (("dualpipev", 4, 7), {}, "at least twice as many micro-batches as stages"),
    (("1f1b", 4, 8), {"virtual": 2}, "1f1b holds one chunk per stage"),
    (("zb-v", 4, 8), {"virtual": 2}, "zb-v always holds two chunks"),
    (("1f1b", 4, 8), {"group": 4}, "1f1b has no groups"),
    (("pipedream-2bw", 4, 8), {"group": 2}, "at least as many micro-batches per update as stages"),
    (("1f1b", 0, 8), {}, "stages must be 1 or more, got 0"),
    (("1f1b", 4, -1), {}, "micro-batches must be 1 or more, got -1"),
    (("1f1b", 1000, 10**6), {}, "more than the 4,000,000"),
    (("1f1", 4, 8), {}, "unknown schedule '1f1'"),
]


@pytest.mark.parametrize(("counts", "options", "says"), BAD)
def test_bad_input(counts, options, says):
    with pytest.raises(UsageError, match=says):
        build(*counts, **options)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ({"forward_s": -1}, "forward must be finite and zero or more, got -1"),
        ({"transfer_s": float("nan")}, "transfer must be finite"),
        ({"forward_s": [1, 2]}, "forward has 2 values for 4"),
        ({"backward_s": 1, "weight_s": 2}, "the weight gradient of chunk 0 takes 2 s, more than its whole backward of 1 s"),
    ],
)
def test_bad_times(times, says):
    with pytest.raises(UsageError, match=says):
        Costs.of(build("1f1b", 4, 8), **times)


def test_one_stage_never_waits():
    for name in NAMES:
        if name == "dualpipe":
            continue
        assert simulate(build(name, 1, 4)).idle_s.tolist() == [0]
