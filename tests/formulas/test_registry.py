"""The registry finds every formula and refuses one whose docstring does not explain it."""

import ast
import dataclasses
from pathlib import Path

import pytest

import parlay.formulas
from parlay.errors import UnknownNameError
from parlay.formulas import registry

FOLDER = Path(parlay.formulas.__file__).parent


def test_every_public_function_of_the_folder_is_a_formula():
    written = set()
    for path in FOLDER.glob("*.py"):
        if path.stem.startswith("_") or path.stem in registry.HELPERS:
            continue
        tree = ast.parse(path.read_text())
        written |= {f"{path.stem}.{n.name}" for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}
    assert set(registry.formulas()) == written


@pytest.mark.parametrize("name", registry.formulas())
def test_every_formula_explains_itself(name):
    formula = registry.find_formula(name)
    assert formula.summary.startswith("Return ")
    assert formula.equation
    assert formula.symbols
    assert ">>> " in formula.example
    assert formula.references.startswith(".. [1]")
    assert all(p.description for p in formula.parameters)


@pytest.mark.parametrize("name", ["flops.matmul_flops", "flops.matmul-flops", "matmul_flops", "Matmul-FLOPs"])
def test_a_formula_is_found_by_short_name_and_with_dashes(name):
    assert registry.find_formula(name).name == "flops.matmul_flops"


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown formula 'matmul_flop'") as error:
        registry.find_formula("matmul_flop")
    assert "matmul_flops" in (error.value.hint or "")


def test_a_short_name_of_two_files_asks_which(monkeypatch):
    one = registry.find_formula("logits.logits_held")
    two = dataclasses.replace(one, name="serving.logits_held")
    monkeypatch.setattr(registry, "formulas", lambda: {one.name: one, two.name: two})
    with pytest.raises(UnknownNameError) as error:
        registry.find_formula("logits_held")
    assert "logits.logits_held or serving.logits_held" in (error.value.hint or "")


GOOD = r"""Return twice the bytes.

Two copies:

$$ 2 n $$

Parameters
----------
n : array_like
    What is doubled,
    on two lines. [B]

Returns
-------
float
    Bytes. [B]

Raises
------
FormulaDomainError
    Never.

Notes
-----
None.

Examples
--------
>>> 1
1

References
----------
.. [1] Nobody.
"""


def documented(doc):
    def doubled(n=1.0):
        return 2 * n

    doubled.__doc__ = doc
    return doubled


def test_a_docstring_is_read_part_by_part():
    formula = registry.describe(documented(GOOD))
    assert formula.equation == "2 n"
    assert formula.derivation == "Two copies"
    (n,) = formula.parameters
    assert (n.description, n.unit, n.default) == ("What is doubled, on two lines.", "B", 1.0)
    assert (formula.returns, formula.unit) == ("Bytes.", "B")


@pytest.mark.parametrize(
    ("cut", "complaint"),
    [
        ("$$ 2 n $$", "no equation"),
        ("Notes\n-----\nNone.\n", "no section Notes"),
        ("References\n----------\n.. [1] Nobody.\n", "no section References"),
        ("on two lines. [B]", "n does not end in a unit"),
        ("Bytes. [B]", "Returns"),
    ],
)
def test_what_is_missing_is_named_with_the_function(cut, complaint):
    with pytest.raises(registry.FormulaDocumentationError, match=rf"doubled: .*{complaint}"):
        registry.describe(documented(GOOD.replace(cut, "")))


def test_a_parameter_that_is_not_documented_is_named():
    with pytest.raises(registry.FormulaDocumentationError, match=r"doubled: parameters \['n'\]"):
        registry.describe(documented(GOOD.replace("n : array_like", "other : array_like")))
