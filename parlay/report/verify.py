"""The text and the document of `parlay verify`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from parlay.report.documents import VerifyReport, VerifyRow
from parlay.report.table import Column, Page, fields, render, wrap
from parlay.units import significant
from parlay.validation.worked_examples import Outcome

LEAST_DIGIT = 6  # decimals up to which a printed number is shown digit by digit


def verify_lines(outcomes: list[Outcome], page: Page, *, everything: bool) -> list[str]:
    """Return one row an example, then the errata, then what failed, and the count."""
    rows = [
        ["pass" if o.passed else "FAIL", o.example.id, o.example.status, o.example.computes if everything else o.example.section]
        for o in outcomes
    ]
    last = "computes" if everything else "where"
    columns = [
        Column("", right=False),
        Column("example", right=False),
        Column("expected", right=False),
        Column(last, right=False, drop=1),
    ]
    if everything:
        out: list[str] = []
        for o in outcomes:
            out += [*_details(o, page), ""]
    else:
        out = [*render(columns, rows, page), ""]
        for o in outcomes:
            if o.example.status == "erratum" or not o.passed:
                out += [*_details(o, page), ""]
    failed = sum(not o.passed for o in outcomes)
    errata = sum(o.example.status == "erratum" and o.passed for o in outcomes)
    agree = sum(o.example.status == "agrees" and o.passed for o in outcomes)
    verdict = f"{len(outcomes)} worked examples: {agree} agree, {errata} errata reported" + (f", {failed} FAIL" if failed else "")
    return [*out, *wrap(verdict, page)]


def _details(o: Outcome, page: Page) -> list[str]:
    """Return what an example prints and what the formulas give."""
    e = o.example
    status = e.status if o.passed else f"{e.status}: FAIL"
    pairs = [("example", f"{e.id} ({status})"), ("from", f"{e.document}; {e.section}"), ("computes", e.computes)]
    pairs += [("inputs", values_text(e.inputs))] if e.inputs else []
    pairs += [("printed", values_text(e.said)), ("computed", values_text(o.computed))]
    pairs += [("expected", values_text(e.value))] if e.value and not o.passed else []
    pairs += [("why", e.why)] if e.why else []
    pairs += [("problem", o.problem)] if o.problem else []
    return fields(pairs, page)


def values_text(table: Any) -> str:
    """Return named values in one line."""
    return ", ".join(f"{k} = {_shown(v)}" for k, v in table.items())


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_shown(v) for v in value) + "]"
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, Decimal) and -LEAST_DIGIT <= int(value.as_tuple().exponent) <= 0:
        return f"{value:,}"  # as it is printed
    number = float(value)
    if number == int(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    return significant(number, 5)


def verify_report(outcomes: list[Outcome]) -> VerifyReport:
    """Return the document of `parlay verify --json`."""
    rows = [
        VerifyRow(
            id=o.example.id,
            source=o.example.document,
            where=o.example.section,
            formula=o.example.computes,
            status=o.example.status,
            passed=o.passed,
            said={k: _json(v) for k, v in o.example.said.items()},
            value={k: _json(v) for k, v in o.example.value.items()},
            computed={k: _json(v) for k, v in o.computed.items()},
            why=o.example.why,
            problem=o.problem,
        )
        for o in outcomes
    ]
    failed = sum(not o.passed for o in outcomes)
    return VerifyReport(passed=len(rows) - failed, failed=failed, rows=rows)


def _json(value: Any) -> Any:
    if isinstance(value, list):
        return [_json(v) for v in value]
    return float(value) if isinstance(value, Decimal) else value
