"""The schemas of the JSON documents that scripts and continuous integration read."""

from __future__ import annotations

import json

from parlay.report.budget import CheckReport
from parlay.report.document import Document
from parlay.report.documents import CompareReport, EstimateReport, PlanReport, VerifyReport
from parlay.report.ladder import LadderReport
from parlay.report.sweep import SweepReport
from parlay.report.validate_document import ValidateReport

REPORTS: dict[str, type[Document]] = {
    "plan": PlanReport,
    "estimate": EstimateReport,
    "compare": CompareReport,
    "check": CheckReport,
    "verify": VerifyReport,
    "validate": ValidateReport,
    "ladder": LadderReport,
    "sweep": SweepReport,
}


def schemas() -> dict[str, str]:
    """Return the JSON schema of each report as text, one file each."""
    return {
        f"{name}.json": json.dumps(kind.model_json_schema(), indent=2, sort_keys=True) + "\n" for name, kind in REPORTS.items()
    }
