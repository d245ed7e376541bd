"""The errors a user can cause. Each says what is wrong, where, what is allowed, and what to try next.

Exit codes (see docs/architecture.md): 1 = the answer is no, 2 = asked wrongly, 101 = a bug of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class ParlayError(Exception):
    """An error with a message for a person, an optional place (`file:key`), and a hint for the next step."""

    code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return place + self.message


class UsageError(ParlayError):
    """The question was asked wrongly: an unknown name, a wrong unit, a value out of range, a bad file."""


class UnknownNameError(UsageError):
    """A name that no catalog holds; the message suggests the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str | None = None, hint: str | None = None):
        names = sorted(known)
        near = nearest(name, names)
        if near:
            advice = f"did you mean {' or '.join(near)}?"
        elif 0 < len(names) <= 12:
            advice = f"known: {', '.join(names)}"
        else:
            advice = None
        super().__init__(f"unknown {kind} '{name[:80]}'", where=where, hint=" ".join(x for x in (advice, hint) if x) or None)
        self.suggestions = near


class AnswerIsNoError(ParlayError):
    """The question was sound and the answer is no: nothing fits, a gate failed, an example disagrees."""

    code = 1


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Return up to `most` known names that look like `name`, nearest first."""
    by_folded = {_folded(k): k for k in known}
    hits = get_close_matches(_folded(name[:80]), by_folded, n=most, cutoff=0.55)
    return [by_folded[h] for h in hits]


def _folded(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-").replace("/", "-")


def visible(text: str) -> str:
    r"""Return `text` with what would steer a terminal spelt out: control characters, and marks that turn its direction.

    >>> print(visible("a\x1b[31mb"), visible("naïve 8 × 2"))
    a\x1b[31mb naïve 8 × 2
    """
    return STEERING.sub(lambda mark: mark[0].encode("unicode_escape").decode(), text)
