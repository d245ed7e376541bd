"""Every worked example comes out as its status promises, and none of them would pass on a wrong formula."""

import json
from decimal import Decimal
from importlib import import_module
from types import FunctionType

import pytest

from parlay.cli.main import main
from parlay.validation.worked_examples import SUBJECTS, Example, computations, examples, outcome, verify

ENTRIES, ERRATA = 56, 6
MODULES = [import_module(f"parlay.validation.examples_{subject}") for subject in SUBJECTS]


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.id)
def test_comes_out_as_promised(example):
    found = outcome(example, computations()[example.id])
    assert found.passed, found.problem


def test_none_is_missing():
    ids = [e.id for e in examples()]
    assert len(ids) == len(set(ids)) == ENTRIES
    assert sum(e.status == "erratum" for e in examples()) == ERRATA
    assert set(ids) == set(computations())
    assert all(e.why for e in examples() if e.status == "erratum")


def used_formulas():
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__.startswith("parlay.formulas"):
                yield pytest.param(module, name, id=f"{module.__name__.rpartition('_')[2]}-{name}")


@pytest.mark.parametrize(("module", "name"), list(used_formulas()))
@pytest.mark.parametrize("factor", [0.5, 1.1])
def test_a_broken_formula_fails(module, name, factor, monkeypatch):
    right = getattr(module, name)
    late = 1.0 if name == "ring_exposed_s" else 0.0  # only whether it is zero is asked
    monkeypatch.setattr(module, name, lambda *a, **k: factor * right(*a, **k) + late)
    failed = [o.example.id for o in verify(list(module.EXAMPLES)) if not o.passed]
    still_needs_copies = name == "kv_head_copies" and factor > 1  # only whether any are needed is asked
    assert bool(failed) is not still_needs_copies


def test_a_broken_formula_makes_the_command_fail(monkeypatch, capsys):
    module = import_module("parlay.validation.examples_activations")
    right = module.korthikanti_layer
    monkeypatch.setattr(module, "korthikanti_layer", lambda *a, **k: 1.01 * right(*a, **k))
    assert main(["verify"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  act-none-7b" in out
    assert "problem   bytes is 1.152259e+09, not 1140850688" in out


def test_the_command_passes_and_reports_the_errata(capsys):
    assert main(["verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["failed"]) == (ENTRIES, 0)
    errata = [r for r in found["rows"] if r["status"] == "erratum"]
    assert len(errata) == ERRATA
    assert all(r["said"] and r["computed"] and r["why"] for r in errata)


def test_an_unknown_example_is_suggested(capsys):
    assert main(["verify", "moe-capasity"]) == 2
    assert "did you mean moe-capacity" in capsys.readouterr().err


def example(said, value=None, *, status="agrees", rel_tol=0.0):
    return Example("x", "d", "s", "c", {}, said, value or {}, rel_tol, status, "why")


@pytest.mark.parametrize(
    ("said", "rel_tol", "computed", "passes"),
    [
        (Decimal("18.3"), 0.005, 18.36, True),
        (Decimal("4.6"), 0.005, 4.5634, True),  # 0.8 % off, and still what 4.5634 is when printed with one decimal
        (Decimal("4.60"), 0.005, 4.5634, False),
        (584, 0.005, 587.5, False),
        (2560, 0.0, 2560.0, True),
        (2560, 0.0, 2560.001, False),
        (Decimal("0.01"), 1e-12, 0.0102, False),
        ([9, 9], 0.0, [9, 9], True),
        ([9, 9], 0.0, [9, 8], False),
        (True, 0.01, True, True),
        (True, 0.01, False, False),
        ("about the same", 0.0, 0.8, True),
        ("about the same", 0.0, 0.7, False),
    ],
)
def test_tolerance_follows_from_what_is_printed(said, rel_tol, computed, passes):
    assert outcome(example({"k": said}, rel_tol=rel_tol), lambda: {"k": computed}).passed is passes


def test_an_exact_value_has_no_slack():
    loose = example({"GB": Decimal("18.3")}, {"bytes": 18253611008}, rel_tol=0.005)
    assert outcome(loose, lambda: {"GB": 18.25, "bytes": 18253611008.0}).passed
    found = outcome(loose, lambda: {"GB": 18.25, "bytes": 18253611009.0})
    assert not found.passed
    assert "bytes is" in found.problem


def test_an_erratum_must_differ_from_what_is_printed_and_give_the_right_value():
    entry = example({"tokens": 450}, {"tokens": Decimal("243.6")}, status="erratum", rel_tol=0.005)
    assert outcome(entry, lambda: {"tokens": 243.62}).passed
    assert not outcome(entry, lambda: {"tokens": 450.0}).passed
    no_error = example({"tokens": 450}, {"tokens": 450}, status="erratum")
    assert "no erratum" in outcome(no_error, lambda: {"tokens": 450}).problem


def test_a_result_that_is_missing_fails():
    assert not outcome(example({"GB": 1}), dict).passed


def test_a_formula_that_refuses_its_input_fails_its_example():
    def refuses():
        raise ValueError("`x` must be > 0")

    assert "must be > 0" in outcome(example({"GB": 1}), refuses).problem


def test_only_the_named_ones_run():
    assert [o.example.id for o in verify(["moe-capacity"])] == ["moe-capacity"]
