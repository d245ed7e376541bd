"""The settings of a framework's file as one flat table that remembers what was asked for, and what a reader returns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from parlay.errors import UsageError

MOST_SETTINGS = 5_000  # a training configuration has a few hundred
DEEPEST = 20  # levels of nested tables
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False}


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a framework's file says, as the table of a run file, and how much of the file that is."""

    framework: str  # as people write it: Megatron-LM, torchtitan, DeepSpeed
    table: dict[str, Any]  # model, gpus, training, layout; a key only where the file tells it
    understood: tuple[str, ...]  # settings that went into the table
    ignored: tuple[str, ...]  # settings that change neither time nor memory of a step: learning rates, paths, logging
    not_understood: tuple[str, ...]  # settings that might, with their values
    notes: tuple[str, ...]  # what was assumed or approximated


class Given:
    """Settings by name. Each typed question marks its setting as understood; a wrong type names file and setting."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        if len(values) > MOST_SETTINGS:
            raise UsageError(f"holds more than {MOST_SETTINGS:,} settings, so it is not a training configuration", where=where)
        self.values = dict(values)
        self.where = where
        self.used: dict[str, None] = {}
        self.unresolved: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def take(self, *names: str) -> Any:
        """Return the value of the first of `names` that is given, else None. A shell variable without a value is None."""
        for name in names:
            if name in self.values:
                value = self.values[name]
                if isinstance(value, str) and "$" in value:
                    self.unresolved[name] = value
                    continue
                self.used[name] = None
                return value
        return None

    def text(self, *names: str) -> str | None:
        """Return a setting as text, lists joined by spaces."""
        value = self.take(*names)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, (list, tuple)):
            return " ".join(str(x) for x in value)
        if isinstance(value, (bool, int, float)):
            return str(value)
        raise self._wrong(names, "text")

    def on(self, *names: str) -> bool:
        """Return whether a switch is on: given without a value, or true."""
        return self.switch(*names) is True

    def switch(self, *names: str) -> bool | None:
        """Return a switch, None where it is not given."""
        value = self.take(*names)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _WORDS:
            return _WORDS[value.strip().lower()]
        if value in (0, 1):
            return bool(value)
        raise self._wrong(names, "true or false")

    def number(self, *names: str) -> float | None:
        """Return a finite number."""
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, str) and len(value) <= 40 and _NUMBER.fullmatch(value.strip()):
            value = float(value.strip())  # strip() takes separators that float() refuses
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e30 < value < 1e30:
            raise self._wrong(names, "a number")
        return value

    def whole(self, *names: str, least: int = 0) -> int | None:
        """Return a whole number of at least `least`."""
        value = self.number(*names)
        if value is None:
            return None
        if not least <= value <= 1e18 or value != int(value):
            raise self._wrong(names, f"a whole number of {least} or more")
        return int(value)

    def _wrong(self, names: Iterable[str], expected: str) -> UsageError:
        """Return the error that the one of `names` that was taken is not what was expected, as the file writes it."""
        name = next(n for n in names if n in self.used)
        value, where = self.values[name], f"{self.where}: {name}"
        if value is True and name.startswith("--"):
            return UsageError(f"needs {expected}, but has no value", where=where, hint=f"such as {name} 8")
        if isinstance(value, bool):
            return UsageError(f"expected {expected}, got {str(value).lower()}", where=where)
        return UsageError(f"expected {expected}, got {str(value)[:60]!r}", where=where)

    def imported(
        self, framework: str, table: dict[str, Any], *, ignore: Iterable[str], notes: Iterable[str], also: Iterable[str] = ()
    ) -> Imported:
        """Return what was read; settings that match one of the patterns `ignore` change no estimate."""
        without_effect = re.compile("|".join(f"(?:{p})" for p in ignore))
        rest = [name for name in self.values if name not in self.used]
        ignored = tuple(n for n in rest if n not in self.unresolved and without_effect.fullmatch(n))
        unclear = tuple(shown(n, self.values[n]) for n in rest if n not in ignored)
        return Imported(framework, table, tuple(self.used), ignored, (*unclear, *also), tuple(notes))


def shown(name: str, value: Any) -> str:
    """Return a setting as a person would write it, cut to a line.

    Examples
    --------
    >>> shown("--tensor-model-parallel-size", "$TP"), shown("--swiglu", True), shown("job.print_args", False)
    ('--tensor-model-parallel-size $TP', '--swiglu', 'job.print_args = False')
    """
    if name.startswith("--"):
        words = " ".join(str(x) for x in value) if isinstance(value, (list, tuple)) else str(value)
        return name if value is True else f"{name} {words[:80]}"
    return f"{name} = {str(value)[:80]}"


def flat(table: Mapping[Any, Any], where: str, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return a nested table with dotted keys.

    Examples
    --------
    >>> flat({"zero": {"stage": 3}, "bf16": True}, "file.json")
    {'zero.stage': 3, 'bf16': True}
    """
    if depth > DEEPEST:
        raise UsageError("is nested too deeply for a training configuration", where=where)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, where, f"{name}.", depth + 1)
        else:
            found[name] = value
        if len(found) > MOST_SETTINGS:
            raise UsageError(f"holds more than {MOST_SETTINGS:,} settings, so it is not a training configuration", where=where)
    return found
