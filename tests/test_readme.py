"""The README's commands are what CI runs, its texts lead somewhere, and no file tells where or how it was made."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parlay.cli.main import COMMANDS
from parlay.cli.readme import refreshed, sample_command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TESTED = "python -m pytest -n auto"
MAIN_JOB = "parlay plan llama-3.1-70b --on dgx-h100 --gpus 64 --seq-len 8192 --global-batch 512"


def commands(text):
    """Return the lines of the README's bash blocks."""
    return [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.strip().splitlines()]


def test_two_commands_set_everything_up():
    main_job, tests = commands(README)
    for line in (main_job, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install ")
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
    assert main_job.endswith(f".venv/bin/{MAIN_JOB}")
    assert tests.endswith(f".venv/bin/{TESTED}")
    assert sample_command(README) == MAIN_JOB.split()[1:]


def test_the_sample_says_what_it_leaves_out():
    """The command prints the seconds of its search; the sample cannot, and the README says so."""
    assert "how many seconds the search took, which differ from run to run" in README
    assert not re.search(r"priced in \d", README)


def test_ci_takes_both_commands_from_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part, name in ((TESTED, "tests"), ("parlay plan", "plan")):
        assert f"{name}=$(readme '{part}')" in script
        assert f'bash -euc "${name}"' in script
        picked = subprocess.run(
            ["bash", "-c", f"grep -E '^python3 -m venv ' README.md | grep -F -- '{part}'"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        assert picked == [line for line in commands(README) if part in line]
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False).returncode == 0


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert len(targets) > 5
    assert [t for t in targets if not (ROOT / t).is_file()] == []


def test_every_command_is_listed():
    assert all(f"| `parlay {name}` | {summary} |" in README for name, summary in COMMANDS.items())


def test_a_part_that_is_missing_is_said():
    with pytest.raises(ValueError, match="sample"):
        refreshed(README.replace("<!-- end of sample -->", ""), validation=None)


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert [p for p in pages if p not in listed and not p.startswith("reference/formulas/")] == []


# Spelled in pieces, so that this file does not hold what it looks for.
PLACES = ["/wo" + "rk/", "/ro" + "ot/", "files.python" + "hosted", "pypi" + ".org", "reg" + "istry.npmjs", "bash_" + "jobs"]
WORK = [
    r"\bCE" + r"O\b",
    r"\bthe bri" + r"ef\b",
    r"\.\./sha" + "red",
    r"\bsub-?ag" + "ent",
    "help" + "er session",
    r"\bissue \d+ " + "of",
]


def test_no_tracked_file_tells_where_or_how_it_was_made():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    wanted = re.compile("|".join([*map(re.escape, PLACES), *WORK]))
    wrong = []
    for path in (ROOT / name for name in listed.split("\0") if name):
        data = path.read_bytes() if path.is_file() else b"\0"
        text = "" if b"\0" in data else data.decode("utf-8")
        wrong += [f"{path.relative_to(ROOT)}: {match.group()}" for match in wanted.finditer(text)]
    assert wrong == []


def test_no_lock_file_records_where_packages_came_from():
    names = {"uv.lock", "poetry.lock", "Pipfile.lock", "package-lock.json"}
    assert [name for name in names if (ROOT / name).exists()] == []


def test_the_package_needs_what_it_imports_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {"pyyaml": "yaml"}  # imported under another name than installed
    needed = {named.get(n, n) for n in (re.split(r"[<>=!~\[]", entry)[0] for entry in project["dependencies"])}
    imported = set()
    for path in (ROOT / "parlay").rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.M))
    outside = imported - set(sys.stdlib_module_names) - {"parlay", "__future__"}
    assert outside - needed == set(), "imported but not among the dependencies"
    assert needed - outside == set(), "among the dependencies but not imported"
