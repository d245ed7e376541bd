"""Folders of named specification files: what a list shows of them, and which file a name means."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parlay.errors import UsageError
from parlay.specfile import read_toml

MOST_NAME = 100  # letters of an id
MOST_NESTING = 8  # tables in tables; a cluster with an inline device needs four
_HEAD_BYTES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a list shows of a catalog entry, read from the head of its file alone."""

    id: str
    name: str
    aliases: tuple[str, ...]
    path: Path
    detail: str  # a device's architecture, a link's kind, a cluster's device

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that finds this entry."""
        return (self.id, *self.aliases)


def read_table(path: Path) -> dict[str, Any]:
    """Return the table of one file, or raise UsageError: not a file, empty, nested too deeply, not TOML."""
    try:
        if path.is_dir():
            raise UsageError("is a directory, not a file", where=str(path))
        if path.exists() and not path.is_file():
            raise UsageError("is not a regular file", where=str(path))
        data = read_toml(path)
    except UsageError:
        raise
    except OSError as error:  # a name that is too long
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path)[:200]) from None
    except ValueError as error:  # a number of thousands of digits, a zero byte in the name
        raise UsageError(f"not valid: {error}", where=str(path)[:200].replace("\0", "?")) from None
    if not data:
        raise UsageError(
            "is empty", where=str(path),
            hint='a file may start from an entry of the catalog: extends = "NAME", and then the keys that differ',
        )  # fmt: skip
    layer: list[Any] = [data]
    for _ in range(MOST_NESTING):
        layer = [x for item in layer for x in (item.values() if isinstance(item, dict) else item) if isinstance(x, (dict, list))]
        if not layer:
            return data
    raise UsageError(f"nests tables more than {MOST_NESTING} deep, so it is not a specification", where=str(path))


def is_path(name: str | Path) -> bool:
    """Return whether `name` means a file rather than a catalog entry."""
    return isinstance(name, Path) or name.lower().endswith(".toml") or "/" in name or os.sep in name


def find(wanted: str, folder: Path, listing: Callable[[], tuple[Summary, ...]]) -> Path | None:
    """Return the file that the folded name `wanted` means in `folder`, or None."""
    if (
        len(wanted) <= MOST_NAME and wanted.replace("-", "").isalnum()
    ):  # a plain id is the name of its file, so no other file need be opened
        direct = folder / f"{wanted}.toml"
        if direct.is_file():
            return direct
    return names(listing()).get(wanted)


def summaries(folder: Path) -> tuple[Summary, ...]:
    """Return the summary of every TOML file of `folder`."""
    return tuple(_summary(path) for path in sorted(folder.glob("*.toml"))) if folder.is_dir() else ()


def _summary(path: Path) -> Summary:
    """Return the summary of a file from its head (the keys above the first table), or from all of it."""
    try:
        with path.open("rb") as file:
            text = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="ignore")
        head = tomllib.loads(text.partition("\n[")[0])
    except (OSError, ValueError, RecursionError):
        head = read_table(path)
    aliases = head.get("aliases", ())
    if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
        raise UsageError("expected a list of names", where=f"{path}: aliases")
    detail = next((head[key] for key in ("device", "architecture", "kind", "family") if isinstance(head.get(key), str)), "")
    return Summary(str(head.get("id", path.stem)), str(head.get("name", path.stem)), tuple(aliases), path, detail)


def names(entries: tuple[Summary, ...]) -> dict[str, Path]:
    """Return the file of each folded name, or raise UsageError for a name that two files have."""
    paths: dict[str, Path] = {}
    for summary in entries:
        for name in dict.fromkeys(map(fold, summary.names)):
            if name in paths:
                raise UsageError(f"the name '{name}' is also in {paths[name]}", where=str(summary.path), hint="give it another")
            paths[name] = summary.path
    return paths


def fold(name: str) -> str:
    """Return a name with case, underscores and spaces made equal."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")
