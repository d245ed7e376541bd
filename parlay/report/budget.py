"""The text and the document of `parlay check`."""

from __future__ import annotations

from typing import Any, Literal

from parlay import __version__
from parlay.estimate.budget import DEVICE, HOST, Limit
from parlay.estimate.estimate import Estimate
from parlay.report.document import Document
from parlay.report.documents import QuestionDocument, layout_document, question_document
from parlay.report.question import question_lines
from parlay.report.table import Column, Page, render, wrap
from parlay.units import show_usd, significant


def budget_lines(e: Estimate, limits: list[Limit], page: Page, gpu_hour_usd: float | None = None) -> list[str]:
    """Return one row a limit, the price behind a cost, and the verdict."""
    rows = [
        [
            limit.name,
            f"{'at most' if limit.at_most else 'at least'} {significant(limit.limit, 4)}",
            significant(limit.value, 4),
            "kept" if limit.kept else "BROKEN",
        ]
        for limit in limits
    ]
    columns = [Column("limit", right=False), Column("allowed"), Column("estimate"), Column("", right=False)]
    broken = sum(not limit.kept for limit in limits)
    verdict = "all limits are kept" if not broken else f"{broken} of {len(limits)} limits broken"
    if not broken and all(limit.name in (DEVICE, HOST) for limit in limits):
        verdict = "it fits; no limit of a [budget] is checked, because the run file has none"
    costs = gpu_hour_usd is not None and any(limit.name == "cost_usd" for limit in limits)
    price = wrap(f"cost_usd: at {show_usd(gpu_hour_usd or 0.0)} a GPU-hour{_whose(e, gpu_hour_usd)}", page) if costs else []
    return [*question_lines(e, page, ("layout", str(e.layout))), "", *render(columns, rows, page), *price, "", verdict]


def _whose(e: Estimate, gpu_hour_usd: float | None) -> str:
    """Return that a price is the cluster's own, where it is."""
    listed = e.cluster.gpu_hour_usd
    return f", the price of {e.cluster.name}" if listed is not None and listed.value == gpu_hour_usd else ""


class LimitDocument(Document):
    """One limit; `limit` and `value` are in the unit that the name ends with."""

    name: str
    allowed: Literal["at_most", "at_least"]
    limit: float
    value: float
    kept: bool


class CheckReport(Document):
    """The document of `parlay check --json`."""

    schema_name: Literal["parlay/check"] = "parlay/check"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    question: QuestionDocument
    layout: dict[str, Any]
    gpu_hour_usd: float | None
    kept: bool
    limits: list[LimitDocument]


def check_report(e: Estimate, limits: list[Limit], gpu_hour_usd: float | None = None) -> CheckReport:
    """Return the document of `parlay check --json`."""
    return CheckReport(
        question=question_document(e), layout=layout_document(e.layout), gpu_hour_usd=gpu_hour_usd,
        kept=all(limit.kept for limit in limits),
        limits=[
            LimitDocument(name=x.name, allowed="at_most" if x.at_most else "at_least", limit=x.limit, value=x.value, kept=x.kept)
            for x in limits
        ],
    )  # fmt: skip
