"""The parts of README.md that are computed: a real answer, the commands, and the errors against published runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from parlay.cli.main import COMMANDS

if TYPE_CHECKING:
    from parlay.validation.predict import Validation

WIDTH = 80  # characters of the sample


def sample_command(readme: str) -> list[str]:
    """Return the arguments of the first `parlay plan` command of the README."""
    found = re.search(r"\bparlay (plan .+)$", readme, re.M)
    if found is None:
        raise ValueError("README.md has no `parlay plan` command")
    return shlex.split(found.group(1))


def refreshed(readme: str, validation: Validation) -> str:
    """Return the README with every computed part computed again."""
    makers: dict[str, Callable[[], str]] = {
        "sample": lambda: _sample(sample_command(readme)),
        "commands": _commands,
        "accuracy": lambda: _accuracy(validation),
    }
    out = readme
    for name, make in makers.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if readme.count(start) != 1 or readme.count(end) != 1:
            raise ValueError(f"README.md must hold {start.strip()} and {end} once each")
        out = out[: out.index(start) + len(start)] + make() + out[out.index(end) :]
    return out


def _sample(arguments: list[str]) -> str:
    """Return the answer at 80 columns, without the seconds that the search took, which differ from run to run."""
    from parlay.cli.question import ask
    from parlay.report.plan import plan_lines
    from parlay.report.table import Page
    from parlay.search.plan import plan

    given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    training = {"seq_len": int(given.pop("--seq-len")), "global_batch": int(given.pop("--global-batch"))}
    q = ask(arguments[1], on=given.pop("--on"), gpus=int(given.pop("--gpus")), training=training)
    if given:
        raise ValueError(f"the README's plan has options that its sample does not know: {', '.join(given)}")
    lines = plan_lines(plan(q.model, q.cluster, q.workload, q.gpus), Page(WIDTH), q.gpu_hour_usd)
    text = re.sub(r" in \d+\.\d+ s,", ",", "\n".join(lines))
    return f"```text\n{text}\n```\n"


def _commands() -> str:
    rows = "".join(f"| `parlay {name}` | {summary} |\n" for name, summary in COMMANDS.items())
    return f"| command | what it does |\n|---|---|\n{rows}"


def _accuracy(v: Validation) -> str:
    from parlay.report.validate import percent
    from parlay.report.validate_page import markdown_table
    from parlay.validation import tables

    meaning = {"A": "complete layout printed", "B": "recompute not known for sure", "C": "layout or batch incomplete"}
    errors = {e.group: e for e in tables.by(tables.timed(v), tables.BREAKDOWNS["tier"])}
    rows = [
        [f"{tier}: {what}", f"{e.count:,}", f"{percent(e.median)} %", f"{percent(e.p90)} %"]
        for tier, what in meaning.items()
        if (e := errors.get(tier))
    ]
    return markdown_table(("published runs of tier", "runs", "median error of the step time", "90th percentile"), rows) + "\n"
