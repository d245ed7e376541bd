"""Text, document and page of a validation."""

import json

import pytest

from parlay.report.table import Page
from parlay.report.validate import validation_lines
from parlay.report.validate_document import validation_report
from parlay.report.validate_page import markdown_table, validation_page
from parlay.validation.predict import validate_runs
from parlay.validation.runs import packaged_runs


@pytest.fixture(scope="module")
def some():
    return validate_runs(
        packaged_runs(), where="source=simumax or source=korthikanti or source=vtrain-multi-node or source=paddlenlp"
    )


def test_text_has_every_table(some):
    text = "\n".join(validation_lines(some, Page(), worst=3))
    assert text.startswith("runs 116: 111 predicted (111 with a measured speed, 59 memory figures), 5 not")
    for title in (
        "step time by source",
        "step time by parallelism",
        "memory by source and meaning",
        "worst runs",
        "not predicted, because",
    ):
        assert title in text
    assert "neither the global batch nor the micro-batch" in text
    assert "nan" not in text.lower()


def test_a_narrow_page_cuts_no_cell(some):
    lines = validation_lines(some, Page(100), worst=3)
    assert any("left out for width" in line for line in lines)
    assert not any(line.rstrip().endswith("…") for line in lines)


def test_no_line_is_wider_than_a_terminal(some):
    lines = validation_lines(some, Page(72), worst=3)
    assert lines[0].startswith("runs 116: 111 predicted")
    assert max(len(line) for line in lines) <= 72


def test_without_the_worst_rows(some):
    assert "worst runs" not in "\n".join(validation_lines(some, Page(), worst=0))


def test_document(some):
    document = json.loads(validation_report(some, worst=2).model_dump_json())
    assert (document["schema_name"], document["schema_version"]) == ("parlay/validate", 1)
    assert (document["runs"], document["predicted"]) == (116, 111)
    assert len(document["predictions"]) == 111
    assert len(document["worst"]) == 2
    one = document["predictions"][0]
    assert one["error"] == pytest.approx(one["predicted_s"] / one["measured_s"] - 1)
    assert {u["reason"] for u in document["unpredicted"]} == {"neither the global batch nor the micro-batch is printed"}
    assert {a["group"] for a in document["aims"]} >= {"SimuMax, B200", "Korthikanti et al."}


def test_page_is_markdown_with_whole_tables(some):
    page = validation_page(some)
    assert page.startswith("# Validation\n")
    assert page.endswith("\n")
    for block in page.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1
    assert "naive" in page


def test_markdown_escapes_bars():
    assert markdown_table(("a", "b"), [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_nothing_predicted_still_prints():
    none = validate_runs(packaged_runs(), where="source=bloom and model~194B")
    assert "\n".join(validation_lines(none, Page(), worst=20)).startswith("runs 4: 0 predicted")
    assert validation_report(none, worst=5).step_time["tier"] == []
    assert "Every run is predicted" not in validation_page(none)
