"""Every symbol of an equation is told where the formula is shown: by a parameter, by the symbols of its file, or as the result."""

import re

import pytest

from parlay.formulas.registry import formulas

# Commands that stand for operations and layout, and for names of what everyone knows.
WORDS = (
    "max min log ln exp sqrt sum prod frac tfrac dfrac lceil rceil lfloor rfloor left right quad qquad cdot times le ge lt gt ne in"
    " ldots dots cdots mid approx infty Longleftrightarrow bmod bigl bigr Bigl Bigr text mathrm operatorname"
)
KNOWN = set(WORDS.split())
SUBSCRIPT = r"(?:_\{[^{}]*\}|_\\[a-z]+\{[^{}]*\}|_[A-Za-z0-9])?"
SYMBOL = re.compile(rf"\\mathrm\{{([a-z]+)\}}|\\([A-Za-z]+)({SUBSCRIPT})('?)|([A-Za-z])({SUBSCRIPT})('?)")


def symbols(equation):
    """Return the symbols of an equation in the order they stand, as the page writes them: nu, t_sp, g'."""
    bare = re.sub(r"\\(?:text|operatorname)\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\}", " ", equation)
    found = []
    for name, command, after, prime, letter, under, mark in SYMBOL.findall(bare):
        if name:
            found.append(name)
        elif letter or command not in KNOWN:
            found.append(re.sub(r"[{}\\ ]|mathrm", "", (letter or command) + (under or after)) + prime + mark)
    return list(dict.fromkeys(found))


def said_within(equation):
    """Return symbols that the equation itself explains: its result, what a side condition sets equal, indices of sums."""
    results = {
        s[0]
        for part in re.split(r"\\q?quad|,", equation)
        if (s := symbols(part.partition("=")[0])) and "=" in part and len(s) == 1
    }
    indices = set(re.findall(r"\\(?:sum|prod|max|min)_\{?\(?([a-z])\b", equation))
    return results | indices


def undefined(formula):
    """Return the symbols of a formula that its parameters, its file's symbols and the equation itself leave open."""
    text = " ".join([*(p.description for p in formula.parameters), formula.symbols])
    plain = re.sub(r"[{}$\\`]|mathrm", "", text)
    plain = re.sub(r"\ba(?= [a-z]{3})(?! query)", "", plain)  # the article, unless "a, k query and key heads" or "heads a of"
    words = set(re.findall(r"[A-Za-z](?:\w|')*", plain))
    return [s for s in symbols(formula.equation) if s not in words and s not in said_within(formula.equation)]


@pytest.mark.parametrize("name", list(formulas()))
def test_every_symbol_of_an_equation_is_told(name):
    assert undefined(formulas()[name]) == []


@pytest.mark.parametrize(
    ("equation", "found"),
    [
        (r"A = \frac{\nu\, n\, w\, e}{t_{sp}}", ["A", "nu", "n", "w", "e", "t_sp"]),
        (r"t_\mathrm{idle} = \max(f + B, 0)", ["t_idle", "f", "B"]),
        (r"g' (1 + k) + \mathrm{busbw} \text{ or } D_{\ge 3}", ["g'", "k", "busbw", "D_ge3"]),
    ],
)
def test_symbols_are_read_off_an_equation(equation, found):
    assert symbols(equation) == found


def test_a_symbol_that_nothing_explains_is_found():
    class Fake:
        parameters, symbols, equation = (), "n tokens", r"A = n q, \quad b = n"

    assert undefined(Fake) == ["q"]
