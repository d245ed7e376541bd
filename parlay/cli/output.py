"""Where answers go: text or JSON on stdout, sized for the terminal, plain when piped."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parlay.report.table import Page


def page() -> Page:
    """Return the page that stdout is: the terminal's width and styles, or no limit and none where it is piped."""
    from parlay.report.table import Page

    if not sys.stdout.isatty():
        return Page()
    return Page(
        max(shutil.get_terminal_size((80, 24)).columns, 40), "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )


def say(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    _write("\n".join(lines) + "\n")


def say_json(document: dict[str, Any]) -> None:
    """Write one JSON document to stdout; a NaN in it would be a bug of ours."""
    _write(json.dumps(_without_minus_zero(document), indent=2, allow_nan=False) + "\n")


def _without_minus_zero(value: Any) -> Any:
    """Return a document with 0.0 where rounding left -0.0."""
    if isinstance(value, dict):
        return {key: _without_minus_zero(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_minus_zero(one) for one in value]
    return 0.0 if isinstance(value, float) and value == 0 else value


def tell(*lines: str) -> None:
    """Write lines to stderr, each with its own; a person reads them on a terminal broken at spaces to its width.

    What a file's text would do to a terminal is spelt out.
    """
    from parlay.errors import visible

    for line in filter(None, ("\n".join(map(visible, text.split("\n"))) for text in lines)):
        if sys.stderr.isatty():
            line = textwrap.fill(line, _width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        sys.stderr.write(f"{line}\n")


def note(*lines: str) -> None:
    """Write notes to stderr, one a line."""
    tell(*(f"note: {line}" for line in lines))


def _width() -> int:
    """Return the columns of the terminal that stderr is; stdout may be piped."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):
        columns = 80
    return max(columns, 40)


def write_file(path: Path, text: str, *, replace: bool) -> None:
    """Write `text` to a file of the user's choice; one that exists is left alone unless `replace`."""
    from parlay.errors import UsageError

    if path.exists() and path.is_file() and not replace:
        raise UsageError("exists already", where=str(path), hint="choose another name, or replace it with --force")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror})", where=str(path)) from None


def _write(text: str) -> None:
    """Write `text`. If the reader has seen enough and closed the pipe, the command goes on to its own exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _close()
    except UnicodeEncodeError as error:  # a terminal or pipe that knows ASCII alone
        sys.stdout.write(text.encode(error.encoding, "replace").decode(error.encoding))
    except OSError as error:
        from parlay.errors import UsageError

        _close()
        raise UsageError(f"cannot be written ({error.strerror})", where="standard output") from None


def _close() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more when it ends
