"""Write the generated pages of the documentation, or check that they are current: `python -m parlay.cli.docs [--check]`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from parlay.cli.main import COMMANDS

FOLDER = Path(__file__).resolve().parents[2] / "docs"
README = "../README.md"
MIXED = (
    "guides/model-kinds.md",
    "guides/what-fits.md",
    "reference/cli.md",
    "validation.md",
    README,
)  # pages in folders that also hold pages written by hand


def cli_page() -> str:
    """Return the page of all commands with their options, as their --help has them."""
    from parlay.report.docs import GENERATED

    parts = [
        GENERATED
        + "# Commands\n\nExit codes: 0 done; 1 done, and the answer is no; 2 asked wrongly; 101 a bug of Parlay; 130 interrupted.\n"
    ]
    for name, summary in COMMANDS.items():
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.callback()(lambda: None)
        import_module(f"parlay.cli.{name}").register(app)
        command: Any = typer.main.get_command(app)
        parts.append(_command(f"parlay {name}", command.commands[name], summary))
    return "\n".join(parts)


def _command(path: str, command: Any, summary: str = "") -> str:
    """Return the section of a command, and those of its subcommands."""
    from parlay.report.docs import table

    subcommands = getattr(command, "commands", {})
    text = (command.help or summary).strip()
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    out = f"## {path}\n\n" + "\n\n".join(_example(p) for p in paragraphs) + "\n\n"
    if subcommands:
        return out + "\n".join(_command(f"{path} {name}", inner) for name, inner in subcommands.items())
    rows = [[f"`{_spelled(p)}`", p.help or ""] for p in command.params]
    return out + table(["argument or option", "meaning"], rows)


def _example(paragraph: str) -> str:
    found = paragraph.removeprefix("Example: ")
    return f"    {found}" if found != paragraph else paragraph


def _spelled(parameter: Any) -> str:
    shown = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        return str(shown or parameter.name.upper())
    return " ".join(x for x in (", ".join(parameter.opts), shown) if x)


def main(arguments: list[str]) -> int:
    """Write or check the pages; return 1 if one is not current."""
    from parlay.cli.readme import refreshed
    from parlay.report.docs import GENERATED, pages
    from parlay.report.validate_page import validation_page
    from parlay.validation.predict import validate_runs
    from parlay.validation.runs import packaged_runs

    validation = validate_runs(packaged_runs())
    readme = (FOLDER / README).read_text(encoding="utf-8")
    found = {
        **pages(),
        "reference/cli.md": cli_page(),
        "validation.md": GENERATED + validation_page(validation),
        README: refreshed(readme, validation),
    }
    stale = [p for p, text in found.items() if not (FOLDER / p).is_file() or (FOLDER / p).read_text(encoding="utf-8") != text]
    folders = {(FOLDER / p).parent for p in found if p not in MIXED} - {FOLDER / "reference"}
    left = [
        str(f.relative_to(FOLDER)) for folder in folders for f in folder.glob("*.*") if str(f.relative_to(FOLDER)) not in found
    ]
    if "--check" in arguments:
        for path in [*stale, *left]:
            sys.stderr.write(f"docs/{path} is not current\n")
        sys.stderr.write("hint: python -m parlay.cli.docs\n" if stale or left else "")
        return 1 if stale or left else 0
    for path in stale:
        target = FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(found[path], encoding="utf-8")
    for path in left:
        (FOLDER / path).unlink()
    sys.stdout.write(f"{len(found)} pages, {len(stale)} written, {len(left)} removed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
