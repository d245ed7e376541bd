"""A small language to choose runs: hardware=h100-sxm and tier=A or gpus>=64.

Comparisons are = != < <= > >= and ~ (holds the text); `and` binds stronger than `or`; parentheses group. A value with spaces
stands in quotes, and 8k is 8,192 as in the cells of a file. Fields are a run's own and every column of its file (of its settings as settings.NAME).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from parlay.errors import ParlayError, UnknownNameError, UsageError
from parlay.hardware.load import load_device
from parlay.layouts.vocabulary import Framework
from parlay.validation.clusters import cluster_of
from parlay.validation.habits import habit_of
from parlay.validation.runs import Run, written_number
from parlay.validation.settings import precision_of

Predicate = Callable[[Run], bool]

TOKEN = re.compile(r"""\s*(?:(?P<mark>!=|<=|>=|[=<>~()])|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[^\s=<>!~()"']+))""")
MOST_CHARACTERS = 2000
OWN = (
    "id", "source", "format", "framework", "version", "model", "hardware", "precision", "tier", "gpus", "seq_len",
    "micro_batch", "global_batch", "tp", "cp", "pp", "vpp", "ep", "etp", "dp",
)  # fmt: skip
NUMBERS = (
    "gpus", "num_gpus", "gpus_per_node", "seq_len", "micro_batch", "global_batch", "tp", "cp", "pp", "vpp", "ep", "etp", "dp",
    "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_gb",
)  # fmt: skip
LISTED = ("framework", "hardware", "precision", "tier", "source")  # columns whose values a message lists
WHERE = "--where"


def choose(runs: Sequence[Run], text: str | None) -> list[Run]:
    """Return the runs that a filter keeps; all without a filter.

    Raises
    ------
    UsageError
        The filter cannot be read, or names a column that no run has (with near names).
    """
    if text is None or not text.strip():
        return list(runs)
    known = {name for run in runs for name in run.columns} | set(OWN)
    test = parse(text, known, {run.framework.lower() for run in runs})
    return [run for run in runs if test(run)]


def values_of(runs: Iterable[Run], text: str) -> str:
    """Return which values there are of the columns of names that a filter compares."""
    there = {name: dict.fromkeys(value_of(run, name) for run in runs) for name in LISTED if re.search(rf"\b{name}\b", text)}
    ours = ", or one of Parlay's own: " + ", ".join(get_args(Framework))
    return "; ".join(
        f"{name} may be {', '.join(sorted(filter(None, values)))}{ours if name == 'framework' else ''}"
        for name, values in there.items()
    )


def parse(text: str, known: Iterable[str], frameworks: Iterable[str] = ()) -> Predicate:
    """Return the test that a filter stands for; raises UsageError as `choose` does. `frameworks` are those that runs name, in lower case."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"is longer than {MOST_CHARACTERS} characters", where=WHERE)
    return _Parser(_tokens(text), set(known), frozenset(frameworks)).parse()


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # mark or word
    text: str
    quoted: bool = False


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while text[place:].strip():
        match = TOKEN.match(text, place)
        if not match:
            raise UsageError(f"cannot be read from '{text[place:].strip()[:30]}' on", where=WHERE, hint=EXAMPLE)
        place = match.end()
        quoted = match["double"] if match["double"] is not None else match["single"]
        if match["mark"]:
            found.append(_Token("mark", match["mark"]))
        else:
            found.append(_Token("word", match["word"] if quoted is None else quoted, quoted is not None))
    return found


EXAMPLE = "write it like: hardware=h100-sxm and tier=A"


class _Parser:
    def __init__(self, tokens: list[_Token], known: set[str], frameworks: frozenset[str]) -> None:
        self.tokens = tokens
        self.known = known
        self.frameworks = frameworks
        self.place = 0
        self.depth = 0

    def parse(self) -> Predicate:
        test = self._either()
        if self.place < len(self.tokens):
            raise UsageError(f"unexpected '{self.tokens[self.place].text[:30]}'", where=WHERE, hint=EXAMPLE)
        return test

    def _is(self, text: str) -> bool:
        if self.place >= len(self.tokens):
            return False
        token = self.tokens[self.place]
        return not token.quoted and token.text.lower() == text

    def _either(self) -> Predicate:
        tests = [self._both()]
        while self._is("or"):
            self.place += 1
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda run: any(test(run) for test in tests)

    def _both(self) -> Predicate:
        tests = [self._one()]
        while self._is("and"):
            self.place += 1
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda run: all(test(run) for test in tests)

    def _one(self) -> Predicate:
        if self._is("("):
            self.depth += 1
            if self.depth > 50:
                raise UsageError("nests more than 50 parentheses", where=WHERE)
            self.place += 1
            test = self._either()
            if not self._is(")"):
                raise UsageError("a parenthesis is not closed", where=WHERE, hint=EXAMPLE)
            self.place += 1
            self.depth -= 1
            return test
        name, mark, value = (self._take(part) for part in ("a column", "one of = != < <= > >= ~", "a value"))
        if name.kind != "word" or mark.kind != "mark" or mark.text in "()" or value.kind != "word":
            raise UsageError(f"'{name.text} {mark.text} {value.text}' is not a comparison"[:120], where=WHERE, hint=EXAMPLE)
        if name.text not in self.known:
            raise UnknownNameError(
                "column", name.text, self.known, where=WHERE, hint="such as hardware, model, source, tier, precision or gpus"
            )
        if name.text in NUMBERS and mark.text[0] in "<>" and _number(value.text.strip()) is None:
            raise UsageError(
                f"{name.text} {mark.text} '{value.text[:40]}' compares with no number", where=WHERE,
                hint="a number may be written 8192, 8,192 or 8k (8,192)",
            )  # fmt: skip
        ours = name.text == "framework" and value.text.lower() not in self.frameworks
        return comparison(name.text, mark.text, value.text, of_ours=ours)

    def _take(self, what: str) -> _Token:
        if self.place >= len(self.tokens):
            raise UsageError(f"ends where {what} should stand", where=WHERE, hint=EXAMPLE)
        self.place += 1
        return self.tokens[self.place - 1]


def value_of(run: Run, name: str) -> str:
    """Return a run's own field, or a column of its file, as text; "" where it has none."""
    if name in OWN:
        own = getattr(run, name)
        if own is not None and own != "":
            return str(own)
    return run.columns.get(name, "").strip()


def comparison(name: str, mark: str, value: str, *, of_ours: bool = False) -> Predicate:
    """Return the test of one comparison: as numbers where both sides are, else as text without case.

    With `of_ours` the value is a name that no run has: Parlay's own name of the framework whose accounting applies to a run.
    """
    wanted, number = value.strip().lower(), _number(value)
    ours, named = CATALOGUED.get(name, (None, None))
    own = named(wanted) if named else ""

    def test(run: Run) -> bool:
        have = _ours(run) if of_ours and mark in ("=", "!=") else value_of(run, name).lower()
        if ours and own and mark in ("=", "!=") and ours(run) == own:
            have = wanted
        if mark == "~":
            return wanted in have
        given = _number(have)
        if given is not None and number is not None:
            return ORDER[mark]((given > number) - (given < number))
        if mark in ("=", "!="):
            return (have == wanted) == (mark == "=")
        return bool(have) and number is None and ORDER[mark]((have > wanted) - (have < wanted))

    return test


def _device(run: Run) -> str:
    cluster, _ = cluster_of(run)
    return cluster.device.id if cluster else ""


def _device_named(name: str) -> str:
    try:
        return load_device(name).id
    except ParlayError:
        return ""


def _precision_named(name: str) -> str:
    return precision_of(name) or ""


# Columns whose words of a source have a name of Parlay's own: that of a run, and that of what a filter says. Any of a device's names
# finds the runs on it.
CATALOGUED: dict[str, tuple[Callable[[Run], str], Callable[[str], str]]] = {
    "hardware": (_device, _device_named),
    "precision": (lambda run: _precision_named(run.precision), _precision_named),
}


def _ours(run: Run) -> str:
    habit = habit_of(run)
    return habit.framework if habit else ""


ORDER: dict[str, Callable[[int], bool]] = {
    "=": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
}


def _number(text: str) -> float | None:
    try:
        return written_number(text)[0]
    except ValueError:
        return None
