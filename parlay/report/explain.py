"""The text and the documents of `parlay explain`."""

from __future__ import annotations

import math
from typing import Any

from parlay import __version__
from parlay.errors import UnknownNameError
from parlay.estimate.estimate import Estimate
from parlay.estimate.terms import Term
from parlay.formulas.registry import Formula, find_formula
from parlay.report.latex import plain, prose
from parlay.report.sources import MEANING, MEANING_OF_BYTES
from parlay.report.table import Column, Page, fields, render, wrap
from parlay.units import show_bytes, show_rate, show_seconds, significant

INPUT_DIGITS = 6  # two more than a value has, so that it can be worked out again from them


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, scaled to be read: 71.3 GiB, 12.4 ms, 989 TFLOP/s."""
    if unit in ("B", "bytes"):
        return show_bytes(value, 4)
    if unit == "s":
        return show_seconds(value, 4)
    if unit in ("B/s", "FLOP/s", "FLOP", "bytes/s"):
        return show_rate(value, unit.replace("bytes", "B"), 4)
    shown = f"{value:,.0f}" if _is_whole(value) else significant(value, 4) if math.isfinite(value) else str(value)
    return shown if unit == "-" else f"{shown} {unit}"


def list_lines(known: list[Formula], page: Page) -> list[str]:
    """Return one line a formula, file by file."""
    out: list[str] = []
    for module in dict.fromkeys(f.module for f in known):
        rows = [[f.name, _sentence(f)] for f in known if f.module == module]
        out += ["", page.bold(module), *fields([(name, text) for name, text in rows], page, indent="  ")]
    return [*out[1:], "", *wrap(f"{len(known)} formulas; `parlay explain NAME` shows one in full", page)]


def _sentence(f: Formula) -> str:
    """Return the summary without its "Return ..." and full stop, as a list entry reads."""
    return f.summary.removeprefix("Return ").rstrip(".")


def formula_lines(f: Formula, page: Page, values: dict[str, Any], result: Any) -> list[str]:
    """Return everything that is known of a formula, and its result where numbers were put in."""
    out = [page.bold(f.name), *wrap(plain_text(f.summary), page), ""]
    out += [*wrap(plain_text(f.derivation), page), ""] if f.derivation else []
    out += _equation(f, page)
    out += ["", *wrap(f"symbols: {plain_text(f.symbols)}", page, hang="  ")] if f.symbols else []
    rows = [[p.name, p.unit, "" if p.default is None else quantity(p.default, "-")] for p in f.parameters]
    columns = [Column("argument", right=False), Column("unit", right=False), Column("default")]
    out += ["", *render(columns, rows, page), ""]
    out += fields(
        [*((p.name, plain_text(p.description)) for p in f.parameters), ("returns", f"{plain_text(f.returns)} [{f.unit}]")], page
    )
    if result is not None:
        out += ["", *_with_numbers(f, page, values, result)]
    out += ["", *wrap(f"notes: {plain_text(f.notes)}", page, hang="  "), "", "example:"]
    out += [f"  {line}" for line in f.example.splitlines()]
    return [*out, "", *wrap(f"source: {plain_text(f.references)}", page, hang="  ")]


def _equation(f: Formula, page: Page) -> list[str]:
    return [part for line in plain(f.equation) for part in wrap(line, page, indent="  ", hang="  ")]


def plain_text(text: str) -> str:
    """Return a docstring's prose without its markup."""
    return prose(text).replace("``", "").replace("`", "").replace(".. [", "[").replace("]_", "]")


def _with_numbers(f: Formula, page: Page, values: dict[str, Any], result: Any) -> list[str]:
    units = {p.name: p.unit for p in f.parameters}
    given = ", ".join(f"{k} = {_each(v, units[k])}" for k, v in values.items())
    return wrap(f"with {given}: {page.bold(_each(result, f.unit))}", page, hang="  ")


def _each(value: Any, unit: str) -> str:
    plain_value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain_value, list):
        return "[" + ", ".join(_each(v, unit) for v in plain_value) + "]"
    return quantity(float(plain_value), unit)


def term_lines(e: Estimate, term: Term, whole: Term, page: Page) -> list[str]:
    """Return what a term of an estimate is, what it is made of, and where it comes from."""
    pairs = [("term", f"{term.key}: {term.label}"), ("layout", f"{e.layout} of {e.model.name} on {e.cluster.name}")]
    if whole.key == "memory":
        pairs.append(("stage", f"{e.worst_stage}, the fullest"))
    share = f", {term.value / whole.value:.1%} of the whole" if whole.value and term is not whole else ""
    pairs.append(("value", quantity(term.value, term.unit) + share))
    meaning = MEANING_OF_BYTES if term.unit == "bytes" else MEANING
    pairs.append(("source", f"{term.source}: from {meaning[term.source]}"))
    pairs += [("note", term.note)] if term.note else []
    out = fields(pairs, page)
    if term.parts:
        rows = [
            [p.key, p.label, quantity(p.value, p.unit), f"{p.value / term.value:.1%}" if term.value else "", p.source]
            for p in term.parts
            if p.value or not term.value
        ]
        columns = [
            Column("sum of", right=False), Column("", right=False, drop=2), Column("value"), Column("share", drop=1),
            Column("source", right=False, drop=3),
        ]  # fmt: skip
        out += ["", *render(columns, rows, page)]
        nothing = [p.key for p in term.parts if not p.value] if term.value else []
        out += [page.dim(line) for line in wrap(f"(nothing: {', '.join(nothing)})", page)] if nothing else []
    if term.inputs:
        out += ["", "inputs:", *fields([(k, _input(v)) for k, v in term.inputs.items()], page, indent="  ")]
    pieces = [p for p in term.pieces() if p.value]
    if pieces:
        out += ["", "put together from:", *_pieces(pieces, page)]
        below = [p for piece in pieces for p in piece.pieces() if _counts(p)]
        if below:
            out += ["", "collectives, of one block:", *_pieces(below, page)]
    formula = _formula_of(term)
    if formula:
        out += ["", f"formula {formula.name}:", *_equation(formula, page)]
        out += wrap(f"`parlay explain {formula.name}` shows its symbols and source", page, indent="  ")
    return out


def _counts(piece: Term) -> bool:
    """Return whether a collective is there: it takes time, and a forward or a backward has it."""
    return bool(piece.value) and any(piece.inputs.get(name, 0) for name in ("forward", "backward", "exchanges"))


def _pieces(pieces: list[Term], page: Page) -> list[str]:
    """Return one line a piece: what it is, its inputs, and its value."""
    names = list(dict.fromkeys(name for p in pieces for name in p.inputs))
    rows = [[p.label, *(_input(p.inputs[n]) if n in p.inputs else "" for n in names), quantity(p.value, p.unit)] for p in pieces]
    columns = [Column("", right=False), *(Column(n.replace("_", " "), drop=1) for n in names), Column("value")]
    return render(columns, rows, page, indent="  ")


def _input(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if _is_whole(value):
        return f"{value:,.0f}"
    text = significant(value, INPUT_DIGITS)
    return text.rstrip("0") if "." in text and "e" not in text else text


def _is_whole(value: float) -> bool:
    return abs(value) < 1e15 and value == int(value)


def _formula_of(term: Term) -> Formula | None:
    if term.formula is None:
        return None
    try:
        return find_formula(term.formula)
    except UnknownNameError:
        return None


def list_document(known: list[Formula]) -> dict[str, Any]:
    """Return the document of `parlay explain --json`."""
    return {**_head("parlay/formulas"), "formulas": [{"name": f.name, "summary": f.summary, "unit": f.unit} for f in known]}


def formula_document(f: Formula, values: dict[str, Any], result: Any) -> dict[str, Any]:
    """Return the document of `parlay explain FORMULA --json`; the equation is LaTeX."""
    return {
        **_head("parlay/formula"),
        "name": f.name,
        "summary": f.summary,
        "derivation": f.derivation,
        "equation": f.equation,
        "symbols": f.symbols,
        "parameters": [
            {"name": p.name, "unit": p.unit, "default": p.default, "description": p.description} for p in f.parameters
        ],
        "returns": f.returns,
        "unit": f.unit,
        "notes": f.notes,
        "example": f.example,
        "references": f.references,
        "given": values,
        "result": result.tolist() if hasattr(result, "tolist") else result,
    }


def term_document(e: Estimate, term: Term, whole: Term) -> dict[str, Any]:
    """Return the document of `parlay explain TERM MODEL ... --json`."""
    from parlay.report.documents import TermDocument, layout_document, question_document

    return {
        **_head("parlay/term"),
        "question": question_document(e).model_dump(),
        "layout": layout_document(e.layout),
        "memory_stage": e.worst_stage if whole.key == "memory" else None,
        "term": TermDocument.of(term).model_dump(),
        "pieces": [_piece_document(p) for p in term.pieces() if p.value],
        "share": term.value / whole.value if whole.value else None,
    }


def _piece_document(piece: Term) -> dict[str, Any]:
    """Return a piece with the collectives below it."""
    from parlay.report.documents import TermDocument

    return {
        **TermDocument.of(piece).model_dump(),
        "pieces": [TermDocument.of(p).model_dump() for p in piece.pieces() if _counts(p)],
    }


def _head(schema: str) -> dict[str, Any]:
    return {"schema_name": schema, "schema_version": 1, "parlay_version": __version__}
