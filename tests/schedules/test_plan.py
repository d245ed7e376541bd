"""Uneven splits: optimal against every split there is, the published cases, and what frameworks can express."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.schedules import build, simulate
from parlay.schedules.megatron import layout_string, megatron_options, parse_layout_string, torchtitan_modules, torchtitan_sizes
from parlay.schedules.plan import Unit, balanced_sizes, plan_split, split_costs, units_of


def every_split(n, chunks):
    for cuts in combinations(range(1, n), chunks - 1):
        ends = (0, *cuts, n)
        yield [b - a for a, b in pairwise(ends)]


def largest(seconds, sizes):
    return max(sum(part) for part in np.split(np.array(seconds), np.cumsum(sizes)[:-1]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=9), st.data())
def test_no_contiguous_split_has_a_smaller_largest_chunk(seconds, data):
    chunks = data.draw(st.integers(1, len(seconds)))
    sizes = balanced_sizes(seconds, chunks)
    assert sum(sizes) == len(seconds)
    assert min(sizes) >= 1
    assert len(sizes) == chunks
    assert largest(seconds, sizes) == min(largest(seconds, s) for s in every_split(len(seconds), chunks))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=5, max_size=7), st.integers(2, 3))
def test_a_plan_is_never_worse_than_the_balanced_split_and_near_the_best_of_all(seconds, stages):
    units = [Unit("t", x, 2 * x, x) for x in seconds]
    units[0], units[-1] = Unit("E", seconds[0], 0, 0), Unit("L", seconds[-1], seconds[-1], 0)
    m = 2 * stages
    s = build("1f1b", stages, m)

    def step(sizes):
        return simulate(s, split_costs(units, sizes, s)).step_s

    plan = plan_split(units, "1f1b", stages, m)
    assert plan.step_s == step(plan.sizes)
    assert plan.step_s <= step(balanced_sizes([u.seconds for u in units], stages)) * (1 + 1e-9)
    best = min(step(x) for x in every_split(len(units), stages))
    assert best <= plan.step_s * (1 + 1e-9)
    moves = [list(plan.sizes) for _ in range(2 * (stages - 1))]
    for i, trial in enumerate(moves):  # no single move helps
        cut, change = i // 2, 1 - 2 * (i % 2)
        trial[cut], trial[cut + 1] = trial[cut] + change, trial[cut + 1] - change
        assert min(trial) < 1 or step(trial) >= plan.step_s * (1 - 1e-9)


def test_llama_3_405b_gives_one_layer_less_to_both_ends():
    """Llama 3 report (arXiv:2407.21783) section 3.3.2: one layer less on the first and the last stage, 126 over 16."""
    for cost in [(0.5, 1, 0.5), (1, 2, 1)]:
        plan = plan_split(units_of(126, embedding=cost, loss=cost), "1f1b", 16, 64)
        assert plan.layers == [7] + [8] * 14 + [7]
        assert megatron_options(plan.chunks, 16) == {
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        }
        assert [len(x) for x in torchtitan_modules(plan.chunks)] == [8] + [8] * 14 + [9]  # norm and output are two modules


def test_126_layers_with_a_head_worth_two_layers_leave_the_last_stage_two_lighter():
    units = units_of(126, loss=(2, 4, 2))
    plan = plan_split(units, "1f1b", 16, 64)
    assert plan.layers == [8] * 15 + [6]
    assert megatron_options(plan.chunks, 16) == {"num_layers_in_last_pipeline_stage": 6}
    s = build("1f1b", 16, 64)
    both_ends = [8, *[8] * 14, 8]  # 7 layers and an end each, as if the head were worth one
    assert plan.step_s == (64 + 15) * 24 < simulate(s, split_costs(units, both_ends, s)).step_s


def test_deepseek_v3_over_16_stages():
    """61 layers, of which three are dense and lighter, one multi-token-prediction layer and the loss."""
    dense, moe = Unit("t", 0.6, 1.2, 0.6), Unit("t", 1, 2, 1)
    units = units_of([dense] * 3 + [moe] * 58, embedding=(0.1, 0.1, 0.1), mtp=[Unit("m", 1.2, 2.4, 1.2)], loss=(0.6, 1.2, 0.6))
    for schedule, virtual in (("1f1b", 1), ("interleaved", 2), ("dualpipev", 1)):
        plan = plan_split(units, schedule, 16, 64, virtual=virtual)
        assert sum(plan.layers) == 61
        assert "".join(plan.chunks).endswith("mL")
        total = sum(u.seconds for u in units)
        assert total / 16 <= plan.busiest_s <= total / 16 * 1.35
        again = parse_layout_string(layout_string(plan.chunks), stages=16)
        assert again == plan.chunks


def test_a_slow_stage_gets_fewer_layers():
    slow = np.ones(4)
    slow[2] = 1.5
    plan = plan_split(units_of(32), "1f1b", 4, 32, slowdown=slow)
    assert plan.layers[2] == min(plan.layers) < 8
    assert plan.origin.endswith("moves")


def test_a_plan_takes_about_a_second_even_where_timelines_are_long():
    plan = plan_split(units_of(128), "interleaved", 16, 128, virtual=8)
    assert plan.step_s == (128 * 8 + 15) * 3.0
    assert plan.tried < 40


MEGATRON = [  # from Megatron's own documentation and recipes
    ("Et*3|(tt|)*29,m|L", 16, [3] + [2] * 29 + [0, 0]),
    ("Et*4|(t*4|)*14tmL", 16, [4] * 15 + [1]),
    ("Ettt|tt|tt|tL", 2, [3, 2, 2, 1]),
    ("Et|(tt|t|)*2L", None, [1, 2, 1, 2, 1, 0]),
]


@pytest.mark.parametrize(("text", "stages", "layers"), MEGATRON)
def test_layout_strings(text, stages, layers):
    chunks = parse_layout_string(text, stages=stages)
    assert [c.count("t") for c in chunks] == layers
    assert parse_layout_string(layout_string(chunks)) == chunks


@given(st.lists(st.integers(1, 12), min_size=2, max_size=40))
@settings(max_examples=80, deadline=None)
def test_a_layout_string_says_what_it_was_made_from(sizes):
    chunks = ["t" * n for n in sizes]
    chunks[0], chunks[-1] = "E" + chunks[0], chunks[-1] + "L"
    assert parse_layout_string(layout_string(chunks)) == tuple(chunks)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Etx|tL", "'x' means nothing"),
        ("", "is empty"),
        ("t|tL", "embedding E must come first"),
        ("Et|t", "loss L must come last"),
        ("Etm|tL", "before multi-token-prediction"),
        ("Et*99999|(t*99999|)*99999L", "more than 100,000 letters"),
        ("(((Et", "means nothing"),
    ],
)
def test_wrong_layout_strings(text, says):
    with pytest.raises(UsageError, match=says):
        parse_layout_string(text)


def test_chunks_that_do_not_divide_over_the_stages():
    with pytest.raises(UsageError, match="3 chunks do not divide over 2 stages"):
        parse_layout_string("Et|t|tL", stages=2)


def test_options_of_megatron():
    assert megatron_options(["Ett", "tt", "tt", "ttL"], 4) == {}
    assert megatron_options(["Et", "tt", "tt", "ttL"], 4) == {"account_for_embedding_in_pipeline_split": True}
    assert megatron_options(["Ett", "tttt", "tttt", "tL"], 4) == {
        "num_layers_in_first_pipeline_stage": 2,
        "num_layers_in_last_pipeline_stage": 1,
    }
    looped = ["Ett", "t", "t", "t", "tt", "t", "t", "tL"]  # two chunks each; the first stage holds four layers
    assert megatron_options(looped, 4) == {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 2}
    assert "pipeline_model_parallel_layout" in megatron_options(["Ettt", "t", "tt", "tmL"], 4)


def test_torchtitan():
    assert torchtitan_sizes(126, 16) == [7] + [8] * 14 + [7]
    for layers in (32, 33, 61, 80):
        assert sum(torchtitan_sizes(layers, 8, 2, 1)) == layers
    with pytest.raises(UsageError, match="multi-token"):
        torchtitan_modules(["Et", "mL"])


def test_wrong_units():
    with pytest.raises(UsageError, match="unit 1 is 'q'"):
        plan_split([Unit("E", 0, 0), Unit("q", 1, 1), Unit("L", 0, 0)], "1f1b", 2, 4)
    with pytest.raises(UsageError, match="not finite"):
        plan_split([Unit("E", 0, 0), Unit("t", float("nan"), 1), Unit("L", 0, 0)], "1f1b", 2, 4)
    with pytest.raises(UsageError, match="3 units do not fill 8 chunks"):
        plan_split(units_of(1), "1f1b", 8, 8)
