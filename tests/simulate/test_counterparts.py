"""Every formula is compared with the simulation, or is on the list of those that have no counterpart."""

import re
from pathlib import Path

from parlay.formulas.registry import formulas
from parlay.simulate.counterparts import compared, without_counterpart


def test_both_lists_together_name_every_formula_once():
    assert not set(compared()) & set(without_counterpart())
    named = set(compared()) | set(without_counterpart())
    assert set(formulas()) - named == set(), (
        "a new formula: compare it with the room, or say in counterparts.py why that cannot be"
    )
    assert named - set(formulas()) == set(), "counterparts.py names formulas that are gone"


def test_the_tests_named_call_the_formulas():
    for name, file in compared().items():
        module, _, function = name.partition(".")
        text = (Path(__file__).parent / file).read_text()
        assert re.search(rf"\b{function}\b", text), f"{file} does not use {name}"
        assert re.search(rf"\b{module}\b", text), f"{file} does not import parlay.formulas.{module}"


def test_reasons_are_sentences():
    assert all(len(reason.split()) >= 5 for reason in without_counterpart().values())
