import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.layouts.layout import Layout, Layouts, parse_layout
from parlay.layouts.vocabulary import CP_KINDS, RECOMPUTE, SCHEDULES, recompute_bits, recompute_modules
from parlay.specfile import validate

layouts = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 8]),
    cp=st.integers(1, 4),
    pp=st.integers(1, 9),
    dp=st.integers(1, 100),
    ep=st.integers(1, 8),
    vpp=st.integers(1, 4),
    cp_kind=st.sampled_from(CP_KINDS),
    schedule=st.sampled_from(SCHEDULES),
    zero=st.integers(0, 3),
    micro_batch=st.integers(1, 4),
    recompute=st.sampled_from([(), ("full",), ("core_attention", "norm")]),
    tp_overlap=st.booleans(),
)


@given(st.lists(layouts, min_size=1, max_size=5))
def test_arrays_give_back_every_layout(rows):
    arrays = Layouts.of(rows)
    assert len(arrays) == len(rows)
    for i, row in enumerate(rows):
        back = arrays.one(i)
        filled = row.model_copy(update={"sp": row.tp > 1, "shard": row.dp * row.cp})
        assert back == filled
        assert arrays.gpus[i] == row.gpus


def test_a_grid_broadcasts_and_fills_in_defaults():
    grid = Layouts.grid(tp=[1, 2, 4], pp=[[1], [2]], dp=2)
    assert grid.gpus.tolist() == [2, 4, 8, 4, 8, 16]
    assert grid.sp.tolist() == [False, True, True] * 2
    assert (grid.shard == 2).all()
    assert grid.take(np.array([0, 5])).one(1) == Layout(tp=4, pp=2, dp=2, sp=True, shard=2, schedule="1f1b")


def test_the_short_form_is_read_back():
    layout = parse_layout("tp8.cp2.pp16.dp8.mb1")
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.gpus) == (8, 2, 16, 8, 2048)
    assert parse_layout(str(layout)) == layout
    assert parse_layout("pp4, tp=2 dp3") == Layout(pp=4, tp=2, dp=3)


def test_llama3_405b_mesh():  # Llama 3 report, Table 4: 131,072 tokens
    assert parse_layout("tp8.cp16.pp16.dp8").gpus == 16384


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp8.qq2", "'qq2' is not part of a layout"),
        ("tp8.tp2", "'tp' is given twice"),
        ("", "is not part of a layout"),
        ("tp0", "must be at least 1, got 0"),
        ("tp99999999", "must be at most 16,777,216, got 99999999"),
        ("tp-8", "is not part of a layout"),
        ("tp8.5", "'5' is not part of a layout"),
    ],
)
def test_a_wrong_layout_is_one_clear_message(text, says):
    with pytest.raises(UsageError, match="layout") as caught:
        parse_layout(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"tpp": 8}, "unknown key 'tpp'"),
        ({"recompute": "ful"}, "unknown recompute module 'ful'"),
        ({"recompute": ["full", "norm"]}, "stands alone"),
        ({"order": ["tp", "cp", "dp", "dp"]}, "once each"),
        ({"schedule": "1f2b"}, "schedule"),
        ({"offload_optimizer": float("nan")}, "finite"),
        ({"tp": 2.5}, "whole number"),
    ],
)
def test_a_wrong_field_names_key_and_allowed_values(data, says):
    with pytest.raises(UsageError) as caught:
        validate(Layout, data, "run.toml")
    assert says in str(caught.value) + str(caught.value.hint)
    assert str(caught.value).startswith("run.toml: ")


@given(st.sets(st.sampled_from([m for m in RECOMPUTE if m != "none"])))
def test_recompute_bits_hold_a_set(modules):
    assert set(recompute_modules(recompute_bits(tuple(modules)))) == modules


def test_selective_means_core_attention():
    assert Layout(recompute="selective").recompute == ("core_attention",)
