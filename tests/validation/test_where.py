"""The filter language of --where."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import ParlayError, UnknownNameError, UsageError
from parlay.validation.runs import packaged_runs
from parlay.validation.where import choose, parse

KNOWN = {"hardware", "tier", "gpus", "model", "id"}


@pytest.fixture(scope="module")
def runs():
    return packaged_runs()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("tier=A", 487),
        ("tier=a", 487),
        ("hardware=h100-sxm and tier=A", 175),
        ("source=korthikanti or source=narayanan", 12),
        ("source=korthikanti or source=narayanan and gpus>=3000", 7),
        ("(source=korthikanti or source=narayanan) and gpus>=3000", 1),
        ("source = 'vtrain-multi-node' and tp <= 8", 68),
        ('model="GPT OSS 120B"', 18),
        ("model~moonlight", 6),
        ("tier!=A and format=published", 295),
        ("settings.recompute=full and source=foundry", 56),
        ("seq_len>=262144 and format=published", 6),
        ("hardware=a100-80gb-sxm and source=korthikanti", 6),  # printed as a100-80gb
        ("hardware='NVIDIA A100-SXM4-80GB' and source=korthikanti", 6),
        ("precision=mxfp8 and hardware=gb300", 19),
        ("", 2039),
    ],
)
def test_filters(runs, text, count):
    assert len(choose(runs, text)) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tier", "ends where one of"),
        ("tier=", "ends where a value"),
        ("tier=A and", "ends where a column"),
        ("tier=A tier=B", "unexpected 'tier'"),
        ("(tier=A", "parenthesis is not closed"),
        ("tier=A)", "unexpected ')'"),
        ("= tier A", "is not a comparison"),
        ("tier == A", "is not a comparison"),
        ("tier='A", "cannot be read"),
        ("gpus>=8q", "gpus >= '8q' compares with no number"),
        ("gpus<6,0", "gpus < '6,0' compares with no number"),
        ("(" * 60 + "tier=A" + ")" * 60, "more than 50 parentheses"),
        ("tier=A or " * 400, "longer than 2000"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(UsageError) as caught:
        parse(text, KNOWN)
    assert message in caught.value.message
    assert caught.value.where == "--where"


def test_an_unknown_column_suggests(runs):
    with pytest.raises(UnknownNameError) as caught:
        choose(runs, "hardwear=h100")
    assert "hardware" in caught.value.hint


def test_numbers_compare_as_numbers_and_text_without_case(runs):
    assert {run.gpus for run in choose(runs, "gpus=8.0 and format=published")} == {8}
    assert not choose(runs, "model<5 and format=published and source=titan")  # text is not smaller than a number
    assert {run.precision for run in choose(runs, "precision=BF16 and format=published")} == {"bf16", "bf16 (amp)"}


@pytest.mark.parametrize("text", ["seq_len>=8k", "seq_len>=8,192", "seq_len >= 8Ki"])
def test_a_filter_reads_numbers_as_cells_are_read(runs, text):
    long = [run for run in runs if run.seq_len is not None and run.seq_len >= 8192]
    assert choose(runs, text) == long


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(text):
    with contextlib.suppress(ParlayError):
        parse(text, KNOWN)
