"""Worked examples of two documents: what they print, what our formulas give, and whether the two agree.

`worked_examples.toml` holds the examples, the files examples_*.py one small function for each of them. A result must
agree with `value` to the digits written there and with `said` within `rel_tol` or to the digits that are printed. An
erratum must agree with `value` and differ from `said`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from parlay.errors import ParlayError

FILE = Path(__file__).parent / "worked_examples.toml"
SUBJECTS = ("activations", "communication", "context", "experts", "pipeline", "models")
EXACT = 1e-12  # relative; only the rounding of floating-point arithmetic
MUCH = 5.0  # "far larger" in the documents' words
ALIKE = 1.25  # "about the same" in the documents' words

Compute = Callable[..., dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example as its document prints it. Numbers with a decimal point are Decimals, so that their digits are known."""

    id: str
    document: str
    section: str
    computes: str
    inputs: Mapping[str, Any]
    said: Mapping[str, Any]
    value: Mapping[str, Any]
    rel_tol: float
    status: Literal["agrees", "erratum"]
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """An example beside what the formulas give; `passed` tells whether that is what its status promises."""

    example: Example
    computed: Mapping[str, Any]
    passed: bool
    problem: str


@cache
def examples() -> tuple[Example, ...]:
    """Return every example, in the order of the file."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"), parse_float=Decimal)
    documents = table["documents"]
    return tuple(
        Example(
            id=e["id"],
            document=documents[e["document"]],
            section=e["section"],
            computes=e["computes"],
            inputs=e["inputs"],
            said=e["said"],
            value=e.get("value", {}),
            rel_tol=float(e.get("rel_tol", 0.0)),
            status=e["status"],
            why=e.get("why", ""),
        )
        for e in table["example"]
    )


def computations() -> dict[str, Compute]:
    """Return the function of each example by its id."""
    found: dict[str, Compute] = {}
    for subject in SUBJECTS:
        found |= import_module(f"parlay.validation.examples_{subject}").EXAMPLES
    return found


def verify(only: Sequence[str] = ()) -> list[Outcome]:
    """Return the outcome of every example, or of those whose ids are given."""
    by_id = computations()
    return [outcome(e, by_id[e.id]) for e in examples() if not only or e.id in only]


def outcome(example: Example, compute: Compute) -> Outcome:
    """Return what `compute` gives for the inputs of an example, and whether that is as its status promises."""
    given = {k: _plain(v) for k, v in example.inputs.items()}
    try:
        computed = compute(**given)
    except (ParlayError, ArithmeticError, ValueError, TypeError) as error:
        return Outcome(example, {}, False, f"cannot be computed: {error}")
    problem = _problem(example, computed)
    return Outcome(example, {k: _unboxed(v) for k, v in computed.items()}, not problem, problem)


def _problem(e: Example, computed: Mapping[str, Any]) -> str:
    """Return what keeps an outcome from passing, or an empty text."""
    for key, wanted in e.value.items():
        if key not in computed or not _same(computed[key], wanted, _digits(wanted)):
            return f"{key} is {_shown(computed.get(key))}, not {_shown(wanted)}"
    off = [k for k, said in e.said.items() if k not in computed or not _as_said(k, computed[k], said, e.rel_tol)]
    if e.status == "erratum":
        return "" if off else "it agrees with what the document prints, so it is no erratum"
    return "; ".join(f"{k} is {_shown(computed.get(k))}, the document prints {_shown(e.said[k])}" for k in off)


def _as_said(key: str, computed: Any, said: Any, rel_tol: float) -> bool:
    if key == "far_larger_than":
        return float(computed) > MUCH * float(said)
    if said == "about the same":
        return 1 / ALIKE <= float(computed) <= ALIKE
    if isinstance(said, Decimal) and rel_tol > EXACT and _same(computed, said, _digits(said)):
        return True
    if isinstance(said, bool | str | list) or isinstance(computed, bool | str):
        return bool(_unboxed(computed) == _plain(said))
    return _same(computed, said, max(rel_tol, EXACT) * abs(float(said)))


def _same(computed: Any, wanted: Any, slack: float) -> bool:
    if isinstance(wanted, bool | str | list) or isinstance(computed, bool | str):
        return bool(_unboxed(computed) == _plain(wanted))
    return abs(float(computed) - float(wanted)) <= slack


def _digits(printed: Any) -> float:
    """Return half a unit of the last digit of a Decimal; whole numbers are exact."""
    if isinstance(printed, Decimal):
        exponent = printed.as_tuple().exponent
        return 0.5 * 10.0 ** int(exponent) * (1 + 1e-9)
    return EXACT * abs(float(printed)) if isinstance(printed, int | float) else 0.0


def _plain(value: Any) -> Any:
    """Return a value of the file as float, int, text or list."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def _unboxed(value: Any) -> Any:
    """Return a NumPy scalar or array as plain numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _shown(value: Any) -> str:
    plain = _unboxed(_plain(value))
    return f"{plain:.7g}" if isinstance(plain, float) else str(plain)
