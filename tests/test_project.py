"""The project itself: generated files are current, and nothing in it speaks of one machine."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

import parlay
from parlay.cli import docs
from parlay.report.docs import pages
from parlay.report.schemas import REPORTS

ROOT = Path(__file__).resolve().parents[1]
TEXT = [
    p
    for folder in ("parlay", "tests", "docs", "scripts", ".ci")
    for p in (ROOT / folder).rglob("*")
    if p.is_file() and p.suffix in ("", ".py", ".md", ".toml", ".json", ".yml") and "__pycache__" not in p.parts
]


def test_generated_pages_and_schemas_are_current():
    # The validation page and the README's sample take longer: `python -m parlay.cli.docs --check` has them too.
    found = pages() | {"reference/cli.md": docs.cli_page()}
    here = {p: (ROOT / "docs" / p).read_text(encoding="utf-8") for p in found if (ROOT / "docs" / p).is_file()}
    assert [p for p, text in found.items() if here.get(p) != text] == [], "run python -m parlay.cli.docs"


@pytest.mark.parametrize("name", REPORTS)
def test_schemas_are_committed(name):
    schema = json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    assert schema["properties"]["schema_name"]["const"] == f"parlay/{name}"
    assert schema["properties"]["schema_version"]["const"] == 1
    assert schema["additionalProperties"] is False


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", parlay.__version__)
    assert f"## {parlay.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_has_one_command_for_each_of_its_two_jobs():
    commands = [x for x in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if x.startswith("python3 -m venv ")]
    assert sum("python -m pytest" in x for x in commands) == 1
    assert sum("parlay plan" in x for x in commands) == 1
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in ci  # CI takes them from there


def test_no_path_of_a_machine():
    private = re.compile(r"(?<![\w.])/(?:work|root|home)/[a-z]")
    assert [str(p.relative_to(ROOT)) for p in TEXT if private.search(p.read_text(encoding="utf-8", errors="ignore"))] == []


def test_the_library_neither_prints_nor_reads_the_environment():
    found = []
    for path in (ROOT / "parlay").rglob("*.py"):
        if "cli" in path.relative_to(ROOT).parts or path.name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "input"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.func.id}")
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}")
    assert found == []
