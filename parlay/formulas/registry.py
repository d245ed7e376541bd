"""Every formula of this package as data, read from the docstrings: equation, parameters, units, notes, example, source.

A formula is a public function of a public module here. Its name is "module.function". Nothing is imported before the
first question, and what is missing in a docstring is an error that names the function.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

import parlay.formulas
from parlay.errors import UnknownNameError

HELPERS = ("registry",)  # public modules of this package that hold no formulas
SECTIONS = ("Parameters", "Returns", "Raises", "Notes", "Examples", "References")


class FormulaDocumentationError(Exception):
    """A formula's docstring lacks what explains it. This is a bug of ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: its type as written, what it is, its unit, and its default (None where it has to be given)."""

    name: str
    type: str
    description: str
    unit: str
    default: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Formula:
    """A function and everything its docstring says."""

    name: str
    function: Callable[..., Any]
    summary: str
    derivation: str
    equation: str
    parameters: tuple[Parameter, ...]
    returns: str
    unit: str
    raises: str
    notes: str
    example: str
    references: str
    symbols: str

    @property
    def module(self) -> str:
        """Return the name of the file without its folder."""
        return self.name.partition(".")[0]


@cache
def formulas() -> MappingProxyType[str, Formula]:
    """Return every formula by its name, module by module."""
    found: dict[str, Formula] = {}
    for info in pkgutil.iter_modules(parlay.formulas.__path__):
        if info.name.startswith("_") or info.name in HELPERS:
            continue
        module = import_module(f"parlay.formulas.{info.name}")
        for function in _public_functions(module):
            formula = describe(function, symbols=_legend(module))
            found[formula.name] = formula
    return MappingProxyType(found)


def find_formula(name: str) -> Formula:
    """Return the formula called `name`: "module.function", or "function" where one module alone has it.

    Case, "-" and "_" make no difference. Raises UnknownNameError with the nearest names.
    """
    known = formulas()
    folded = _folded(name)
    exact = [f for f in known.values() if _folded(f.name) == folded]
    short = exact or [f for f in known.values() if _folded(f.name.partition(".")[2]) == folded]
    if len(short) == 1:
        return short[0]
    if short:
        both = " or ".join(f.name for f in short)
        raise UnknownNameError("formula", name, [f.name for f in short], hint=f"several files have it: write {both}")
    candidates = {**{f.partition(".")[2]: f for f in known}, **{f: f for f in known}}
    raise UnknownNameError("formula", name, candidates, hint="`parlay explain` lists all")


def describe(function: Callable[..., Any], *, symbols: str = "") -> Formula:
    """Return what the docstring of `function` says, or raise FormulaDocumentationError naming what it lacks."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    head, sections = _split(name, inspect.getdoc(function) or "")
    equation = re.search(r"\$\$(.+?)\$\$", head, re.S)
    if not equation:
        raise FormulaDocumentationError(f"{name}: no equation between $$ and $$")
    summary, _, rest = head.partition("\n\n")
    prose = re.sub(r"\$\$.+?\$\$", " ", rest, flags=re.S)
    returns, unit = _described(name, "Returns", sections["Returns"].partition("\n")[2])
    return Formula(
        name=name,
        function=function,
        summary=_flat(summary),
        derivation=_flat(prose).rstrip(":"),
        equation=_flat(equation.group(1)),
        parameters=_parameters(name, function, sections["Parameters"]),
        returns=returns,
        unit=unit,
        raises=_flat(sections["Raises"]),
        notes=_flat(sections["Notes"]),
        example=sections["Examples"].strip(),
        references=_flat(sections["References"]),
        symbols=symbols,
    )


def _public_functions(module: ModuleType) -> list[Callable[..., Any]]:
    own = [f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and n[0] != "_"]
    return sorted(own, key=lambda f: f.__code__.co_firstlineno)


def _legend(module: ModuleType) -> str:
    """Return the symbols that the head of a file explains."""
    found = re.search(r"^Symbols: (.+?)(?=\n\n|\n[A-Z]|\Z)", inspect.getdoc(module) or "", re.S | re.M)
    return _flat(found.group(1)) if found else ""


def _split(name: str, doc: str) -> tuple[str, dict[str, str]]:
    """Return what stands before the first section, and each section's text."""
    parts = re.split(r"^([A-Z]\w+)\n-{3,}\n", doc, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2]))
    missing = [s for s in SECTIONS if not sections.get(s, "").strip()]
    if missing:
        raise FormulaDocumentationError(f"{name}: no section {', '.join(missing)}")
    return parts[0].strip(), sections


def _parameters(name: str, function: Callable[..., Any], text: str) -> tuple[Parameter, ...]:
    entries = re.findall(r"^(\w+) : ([^\n]+)\n((?:[ ]+[^\n]*\n?|\n)+)", text, re.M)
    documented = {key: (kind, body) for key, kind, body in entries}
    signature = inspect.signature(function).parameters
    if list(documented) != list(signature):
        raise FormulaDocumentationError(f"{name}: parameters {list(signature)} are documented as {list(documented)}")
    out = []
    for key, argument in signature.items():
        kind, body = documented[key]
        description, unit = _described(name, key, body)
        default = None if argument.default is inspect.Parameter.empty else float(argument.default)
        out.append(Parameter(key, kind, description, unit, default))
    return tuple(out)


def _described(name: str, part: str, body: str) -> tuple[str, str]:
    """Return a description and the unit that ends it."""
    found = re.fullmatch(r"(.*?)\s*\[([^\[\]]+)\]", _flat(body))
    if not found:
        raise FormulaDocumentationError(f"{name}: {part} does not end in a unit such as [B]")
    return found.group(1), found.group(2)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _folded(name: str) -> str:
    return name.strip().lower().replace("-", "_")
