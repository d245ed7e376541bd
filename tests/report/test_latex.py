"""Equations read as plain text, and every formula's equation is understood."""

import re

import pytest

from parlay.formulas.registry import formulas
from parlay.report.latex import plain


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        (r"2 m n k", ["2 * m * n * k"]),
        (r"\frac{N - 1}{N} n", ["((N - 1) / N) * n"]),
        (r"c \ge \frac{e F}{2 m g W}", ["c >= e * F / (2 * m * g * W)"]),
        (r"S = \frac{P b}{D}", ["S = P * b / D"]),
        (r"\left(\frac{a}{t} d_{qk} + 1\right)", ["((a / t) * d_qk + 1)"]),
        (r"t_\mathrm{idle} = (p - 1)(f + B)", ["t_idle = (p - 1) * (f + B)"]),
        (r"\left\lceil N / k \right\rceil", ["ceil(N / k)"]),
        (r"\max\!\left(\frac{k}{t}, u\right)", ["max(k / t, u)"]),
        (r"D_{\ge 3}", ["D_(>= 3)"]),
        (r"D_{\ge 3} n", ["D_(>= 3) * n"]),
        (r"V' n\,[N > 1]", ["V' * n * [N > 1]"]),
        (r"\frac{1}{n}\sum_i u_i \max(2a, \log_2 b)", ["(1 / n) * sum_i u_i * max(2 * a, log_2 b)"]),
        (r"9.5\,\text{MiB} \cdot p \quad\text{for all}\quad p \in S \bmod 2", ["9.5 MiB * p for all p in S mod 2"]),
        (r"\sqrt{a b} \lceil c \rceil \alpha", ["sqrt(a * b) * ceil(c) * alpha"]),
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


WORDS = ("max", "min", "sum", "product", "log", "ceil", "floor", "in", "mod", "for", "or", "dropped", "and", "padded", "MiB")
NAMES = {"alpha", "beta", "delta", "kappa", "mu", "nu", "phi", "rho", "sigma", "busbw", "algbw"}  # factors of several letters


@pytest.mark.parametrize("formula", formulas().values(), ids=lambda f: f.name)
def test_every_product_has_its_sign(formula):
    for line in plain(formula.equation):
        text = line.replace("sum_(distinct (r, c)) ", "#").replace("product_(i<K) ", "#").replace("_(", "_")
        text = re.sub(rf"\b({'|'.join(WORDS)})(_\w+)?(?!\w) ?", "#", text)
        assert not re.search(r"[\w')\]] [\w(\[]", text), line  # side by side
        assert not re.search(r"[\w')\]][(\[]|[)\]]\w|\b\d+[A-Za-z]", text), line  # touching
        assert set(re.findall(r"\b[A-Za-z]{2,}(?=\b|_)", text)) <= NAMES, line  # two symbols written as one
