"""Equations read as plain text, and every formula's equation is understood."""

import re

import pytest

from parlay.formulas.registry import formulas
from parlay.report.latex import plain


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        (r"2 m n k", ["2 m n k"]),
        (r"\frac{N - 1}{N} n", ["((N - 1) / N) n"]),
        (r"c \ge \frac{e F}{2 m g W}", ["c >= e F / (2 m g W)"]),
        (r"S = \frac{P b}{D}", ["S = P b / D"]),
        (r"\left(\frac{a}{t} d_{qk} + 1\right)", ["((a / t) d_qk + 1)"]),
        (r"t_\mathrm{idle} = (p - 1)(f + B)", ["t_idle = (p - 1)(f + B)"]),
        (r"\left\lceil N / k \right\rceil", ["ceil(N / k)"]),
        (r"\max\!\left(\frac{k}{t}, u\right)", ["max(k / t, u)"]),
        (r"D_{\ge 3}", ["D_(>= 3)"]),
        (r"a \\ b", ["a", "b"]),
        ("", []),
        ("\\", []),
        (r"\frac{a", ["a / ()"]),
    ],
)
def test_plain(equation, text):
    assert plain(equation) == text


@pytest.mark.parametrize("formula", formulas().values(), ids=lambda f: f.name)
def test_every_equation_is_understood(formula):
    lines = plain(formula.equation)
    assert lines
    assert not re.search(r"[\\$]", " ".join(lines))
    assert not COMMANDS & set(re.findall(r"[A-Za-z]+", " ".join(lines)))


COMMANDS = {"frac", "tfrac", "left", "right", "mathrm", "text", "quad", "lceil", "rceil", "lfloor", "rfloor", "ge", "le", "cdot"}
