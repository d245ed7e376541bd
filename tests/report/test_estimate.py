"""Printed trees and tables: rows add up, and lines keep to the width of the terminal."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parlay.estimate.estimate import estimate
from parlay.formulas.registry import formulas
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import parse_layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.estimate import compare_lines, estimate_lines
from parlay.report.explain import formula_lines, list_lines, term_lines
from parlay.report.plan import plan_lines
from parlay.report.table import Page, apportion
from parlay.report.verify import verify_lines
from parlay.search.plan import plan
from parlay.validation.worked_examples import verify

UNBREAKABLE = 130  # a command to copy, a path or a name stays whole where it is longer than the page


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
@example([0.005])
@example([0.015])
@settings(max_examples=100, deadline=None)
def test_apportioned_rows_add_up_and_stay_near(values):
    whole = sum(values)
    shown = apportion(values, whole, 0.01)
    assert sum(shown) == pytest.approx(round(whole, 2), abs=1e-6 + 1e-12 * whole)
    assert all(abs(a - b) <= 0.0101 for a, b in zip(shown, values, strict=True))


@pytest.fixture(scope="module")
def mixtral():
    cluster, model = load_cluster("dgx-h100"), load_model("mixtral-8x7b")
    return estimate(model, cluster, Workload(seq_len=8192, global_batch=256), parse_layout("tp2.pp4.dp8.ep8"))


@pytest.fixture(scope="module")
def planned():
    cluster, model = load_cluster("dgx-h100"), load_model("llama-3.1-70b")
    return plan(model, cluster, Workload(seq_len=8192, global_batch=512, total_tokens=10**12), 64)


@pytest.mark.parametrize("width", [80, 160])
def test_lines_fit_the_terminal(mixtral, planned, width):
    page = Page(width)
    lines = estimate_lines(mixtral, page) + compare_lines(mixtral, mixtral, page)
    lines += [line for line in plan_lines(planned, page, 2.0) if not line.lstrip().startswith(("--", "parlay"))]
    lines += verify_lines(verify(), page, everything=False) + list_lines(list(formulas().values()), page)
    lines += term_lines(mixtral, mixtral.step, mixtral.step, page)
    assert [line for line in lines if len(line) > width] == []


def test_a_comparison_says_what_either_side_assumes(mixtral):
    other = estimate(
        mixtral.model, mixtral.cluster, Workload(seq_len=8192, global_batch=256, gradient_dtype="bf16"), mixtral.layout
    )
    lines = compare_lines(mixtral, other, Page())
    both, first = (lines.index(f"assumed in {x}:") for x in ("both, since nothing else was said", "A alone"))
    assert "  - main weights in fp32" in lines[both:first]
    assert lines[first + 1].startswith("  - gradients accumulate in fp32")
    assert "assumed in B alone:" not in lines
    assert "assumed in A alone:" not in compare_lines(mixtral, mixtral, Page())


def test_a_wide_terminal_shows_more_columns(planned):
    narrow, wide = (next(x for x in plan_lines(planned, Page(w), 2.0) if x.startswith("#")) for w in (60, 200))
    assert len(wide.split()) > len(narrow.split())


def test_piped_text_has_no_styles_and_a_terminal_bold_headers(planned):
    assert "\x1b" not in "\n".join(plan_lines(planned, Page()))
    assert "\x1b[1m" in "\n".join(plan_lines(planned, Page(80, styled=True)))


@pytest.mark.parametrize("formula", formulas().values(), ids=lambda f: f.name)
def test_every_formula_can_be_shown(formula):
    lines = formula_lines(formula, Page(80), {}, None)
    assert lines[0] == formula.name
    assert all(any(p.name in line for line in lines) for p in formula.parameters)
    assert any(line.startswith("source:") for line in lines)


def test_every_formula_that_a_term_names_is_known(mixtral, planned):
    trees = [*mixtral.memory, mixtral.step, mixtral.hidden, *planned.rows[0].estimate.memory]
    named = {t.formula for tree in trees for t in tree.walk() if t.formula}
    assert named
    assert named <= set(formulas())
