r"""Equations for a terminal: the small part of LaTeX that docstrings use, as plain text with every product signed.

>>> plain(r"c \ge \frac{e F}{2 m g W}")
['c >= e * F / (2 * m * g * W)']
"""

from __future__ import annotations

import re

_ALONE = "\0"  # beside a word that is no factor, until products have their signs
_WORDS = {
    "alpha": "alpha", "beta": "beta", "gamma": "gamma", "delta": "delta", "mu": "mu", "nu": "nu", "kappa": "kappa", "phi": "phi",
    "rho": "rho", "sigma": "sigma", "eta": "eta", "tau": "tau", "lambda": "lambda", "theta": "theta", "epsilon": "epsilon",
    "cdot": "*", "times": "*", "ge": ">=", "geq": ">=", "le": "<=", "leq": "<=", "ne": "!=", "neq": "!=", "approx": "~", "to": "->",
    "sum": "sum", "prod": "product", "max": "max", "min": "min", "log": "log", "ln": "ln", "exp": "exp", "infty": "infinity",
    "lceil": f"ceil{_ALONE}(", "rceil": ")", "lfloor": f"floor{_ALONE}(", "rfloor": ")", "pm": "+-", "top": "T",
    "in": f"{_ALONE}in{_ALONE}", "bmod": f"{_ALONE}mod{_ALONE}",
    "Rightarrow": "=>", "Longrightarrow": "=>", "Longleftrightarrow": "<=>", "iff": "<=>", "dots": "...", "ldots": "...",
    "cdots": "...", "mid": "|", "quad": "  ", "qquad": "  ", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "",
    "Bigl": "", "Bigr": "", "displaystyle": "", "ell": "l", "propto": "~", "gg": ">>", "ll": "<<", "lvert": "|", "rvert": "|",
}  # fmt: skip
_SPACES = {",": " ", ";": " ", ":": " ", "!": "", " ": " ", "{": "{", "}": "}", "%": "%", "_": "_", "\\": "\n", "&": "&"}
_FRACTIONS = ("frac", "tfrac", "dfrac")
_APPLIED = ("sum", "prod", "max", "min", "log", "ln", "exp")  # what follows is their argument
_FACTOR_FOLLOWS = re.compile(
    r"(?:\s|\\[,;! ])*(?:[\w(\[]|\\(?:left|[td]?frac|alpha|beta|cdot|times|lceil|mathrm|sum|prod|max|min))"
)
_PRODUCT = re.compile(r"([A-Za-z]\w*+'?(?<!_)|\b\d[\d.]*+|[)\]]) ?(?=[\w(\[])")  # two factors side by side: the first
_TEXTS = ("mathrm", "text", "operatorname", "mathit", "textrm", "textstyle", "mathbf")


def plain(equation: str) -> list[str]:
    """Return the lines of an equation as plain text; commands that are not known keep their name."""
    text, _ = _read(equation.replace("&=", "=").replace(r"\begin{aligned}", "").replace(r"\end{aligned}", ""), 0, "")
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return [_PRODUCT.sub(r"\1 * ", _tidy(line)).replace(_ALONE, "") for line in lines if line]


def prose(text: str, quote: str = "") -> str:
    r"""Return text with the equations between dollar signs as plain text, between `quote` signs.

    >>> prose(r"costs $\frac{a}{b}$ FLOP", "`")
    'costs `a / b` FLOP'
    """
    return re.sub(r"\$([^$]+)\$", lambda m: quote + " ".join(plain(m.group(1))) + quote, text)


def _tidy(line: str) -> str:
    line = re.sub(r"([(\[]) ", r"\1", line)
    return re.sub(r" ([),\]_^])", r"\1", re.sub(rf"\b(max|min|log|ln|exp){_ALONE} \(", rf"\1{_ALONE}(", line))


def _read(text: str, at: int, until: str) -> tuple[str, int]:
    """Return the plain text up to `until` (or the end), and where reading stopped."""
    out: list[str] = []
    while at < len(text):
        if until and text[at] == until:
            return "".join(out), at + 1
        piece, at = _piece(text, at)
        out.append(piece)
    return "".join(out), at


def _piece(text: str, at: int) -> tuple[str, int]:
    """Return the plain text of one character, group or command."""
    char = text[at]
    if char == "{":
        return _read(text, at + 1, "}")
    if char in "_^":
        inner, at = _argument(text, at + 1)
        return char + (inner if re.fullmatch(r"\w+|\W", inner) else f"({inner})"), at
    if char == "~":
        return " ", at + 1
    if char != "\\":
        return char, at + 1
    name = re.compile(r"[A-Za-z]+|.", re.S).match(text, at + 1)
    if name is None:
        return "", at + 1
    return _command(name.group(), text, name.end())


def _command(name: str, text: str, at: int) -> tuple[str, int]:
    if name in _FRACTIONS:
        above, at = _argument(text, at)
        below, at = _argument(text, at)
        ratio = f"{_bracketed(above, product=True)} / {_bracketed(below, product=False)}"
        return (f"({ratio})" if _FACTOR_FOLLOWS.match(text, at) else ratio), at
    if name in _TEXTS:
        inner, at = _argument(text, at)
        return (_ALONE + inner.replace(" ", f"{_ALONE} ") + _ALONE if name == "text" else inner), at
    if name == "sqrt":
        inner, at = _argument(text, at)
        return f"sqrt{_ALONE}({inner})", at
    if len(name) == 1 and not name.isalpha():
        return _SPACES.get(name, name), at
    word = _WORDS.get(name, name)
    if name in _APPLIED:
        below, at = _piece(text, at) if text[at : at + 1] == "_" else ("", at)
        return f" {word}{below}{_ALONE} ", at
    return (f" {word} " if word and word.strip("(") and word not in (")",) else word), at


def _argument(text: str, at: int) -> tuple[str, int]:
    """Return the plain text of the next group or single piece."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text):
        return "", at
    piece, at = _piece(text, at)
    return " ".join(piece.split()), at


def _bracketed(text: str, *, product: bool) -> str:
    """Return `text` in brackets where a fraction needs them: sums always, products below the line."""
    if re.fullmatch(r"[\w.]+|\([^()]*\)", text):
        return text
    return text if product and not re.search(r"[-+,=<>]", text) else f"({text})"
