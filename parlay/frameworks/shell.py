"""The arguments that a launch script passes, without running it: variables, arrays, defaults, sums, simple conditions.

Nothing is executed. A script is split into statements; assignments are remembered, `if` is followed where its test compares
known text, and the command (or the variable) with the most `--flags` is the launch. What depends on something
unknown keeps its `$NAME`, so that the reader can say so.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from parlay.errors import UsageError

MOST_TOKENS = 20_000  # of one expanded command
MOST_EXPANSIONS = 8  # variables that name variables
MOST_CHARACTERS = 4_000_000  # that variables put in, over a whole script
_ASSIGN = re.compile(r"(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?|readonly\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|\$\{(\w+)(:?[-=])([^{}]*)\}")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_TEST = re.compile(r"\[\[?\s+(.*?)\s+\]\]?", re.DOTALL)


def launch_arguments(text: str, where: str) -> tuple[list[str], list[str]]:
    """Return the words of the launch in a script or a plain list of flags, and what of the script was not followed.

    Examples
    --------
    >>> launch_arguments('TP=8\\nARGS=(--tp $TP)\\ntorchrun train.py ${ARGS[@]} --pp ${PP:-2}', "run.sh")[0]
    ['torchrun', 'train.py', '--tp', '8', '--pp', '2']
    """
    script = _Script(where)
    for number, statement in _statements(text):
        script.run(number, statement)
    return script.launch(), script.unfollowed


class _Script:
    """The variables of a script and the commands that it would run."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.variables: dict[str, str] = {}
        self.commands: list[str] = []
        self.listed: list[str] = []  # lines that are flags only
        self.branches: list[tuple[bool | None, bool]] = []  # of each open `if`: taken now (None: unknown), taken before
        self.unfollowed: list[str] = []
        self.put_in = 0  # characters

    def run(self, number: int, statement: str) -> None:
        words = statement.split(None, 1)
        head = words[0] if words else ""
        if head in ("if", "elif", "else", "fi"):
            self._branch(number, head, statement)
            return
        if head == "case":
            self.unfollowed.append(f"line {number}: {statement.splitlines()[0][:80]}")
            self.branches.append((None, True))
        elif head == "esac" and self.branches:
            self.branches.pop()
        if head == "then":
            statement = words[1] if len(words) > 1 else ""
        if not statement or any(taken is not True for taken, _ in self.branches):
            return
        found = _ASSIGN.fullmatch(statement)
        if found and (found[3][:1] in "(\"'" or not re.search(r"\s", found[3])):
            self._assign(found[1], bool(found[2]), found[3])
        elif statement.startswith("--"):
            self.listed.append(statement)
        else:
            self.commands.append(statement)

    def _branch(self, number: int, head: str, statement: str) -> None:
        if head == "if":
            outside = all(taken is True for taken, _ in self.branches)
            taken = self._holds(statement[2:]) if outside else False
            if taken is None:
                self.unfollowed.append(f"line {number}: {statement[:80]}")
            self.branches.append((taken, taken is not False))
            return
        if not self.branches:
            return
        _, before = self.branches.pop()
        if head == "fi":
            return
        taken = False if before else True if head == "else" else self._holds(statement[4:])
        self.branches.append((taken, before or taken is not False))

    def _holds(self, text: str) -> bool | None:
        """Return whether a test holds, None where that depends on something unknown."""
        result: bool | None = None
        for joiner, part in re.findall(
            r"(^|\|\||&&)((?:(?!\|\||&&).)*)", text.strip().removesuffix("then").strip(" ;"), re.DOTALL
        ):
            one = self._compare(part)
            if joiner == "||":
                result = True if True in (result, one) else None if None in (result, one) else False
            elif joiner == "&&":
                result = False if False in (result, one) else None if None in (result, one) else True
            else:
                result = one
        return result

    def _compare(self, text: str) -> bool | None:
        found = _TEST.fullmatch(text.strip())
        words = _split(self.expanded(found[1])) if found else []
        turned = words[:1] == ["!"]
        words = words[1:] if turned else words
        if any("$" in w for w in words):
            return None
        result: bool | None = None
        if len(words) == 2 and words[0] in ("-z", "-n"):
            result = (words[1] == "") == (words[0] == "-z")
        elif len(words) == 3 and words[1] in ("=", "==", "!="):
            result = (words[0] == words[2]) == (words[1] != "!=")
        elif len(words) == 3 and words[1] in _ORDER and words[0].isdecimal() and words[2].isdecimal():
            difference = int(words[0][:18]) - int(words[2][:18])
            result = _ORDER[words[1]](difference)
        return None if result is None else result != turned

    def _assign(self, name: str, adds: bool, value: str) -> None:
        value = value.strip()
        if len(value) > 1 and (value[0], value[-1]) in (("(", ")"), ('"', '"'), ("'", "'")):
            value = value[1:-1]
        value = self.expanded(value).strip()
        self.variables[name] = f"{self.variables.get(name, '')} {value}".strip() if adds else value

    def expanded(self, text: str) -> str:
        """Return text with known variables, defaults and sums put in; what is unknown stays."""
        for _ in range(MOST_EXPANSIONS):
            new = _SUM.sub(self._sum, _PLAIN.sub(self._value, text))
            if new == text:
                break
            text = new
        return text

    def _value(self, found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[3]
        if name in self.variables and (self.variables[name] or not found[3]):
            value = self.variables[name]
        else:
            value = found[5].strip("\"'") if found[3] else found[0]
        self.put_in += len(value)
        if self.put_in > MOST_CHARACTERS:
            raise UsageError("its variables grow beyond any launch script", where=self.where)
        return value

    def _sum(self, found: re.Match[str]) -> str:
        text = re.sub(r"\$?\b([A-Za-z_]\w*)", lambda m: self.variables.get(m[1], m[0]), found[1])
        value = _whole(text)
        return found[0] if value is None else str(value)

    def launch(self) -> list[str]:
        """Return the words of the command, list or variable that holds the most flags; of equals the last command."""
        candidates = [*self.variables.values(), "\n".join(self.listed), *self.commands]
        best: list[str] = []
        for text in candidates:
            words = _resplit(_split(self.expanded(text)))
            if len(words) > MOST_TOKENS:
                raise UsageError(f"passes more than {MOST_TOKENS:,} words, so it is not a launch script", where=self.where)
            if _flags(words) >= max(_flags(best), 1):
                best = words
        return best


_ORDER: dict[str, Any] = {
    "-eq": lambda d: d == 0, "-ne": lambda d: d != 0, "-gt": lambda d: d > 0, "-ge": lambda d: d >= 0,
    "-lt": lambda d: d < 0, "-le": lambda d: d <= 0,
}  # fmt: skip


def _statements(text: str) -> list[tuple[int, str]]:
    """Return logical statements with the line that each starts on: comments off, continued lines and open brackets joined."""
    found: list[tuple[int, str]] = []
    parts: list[str] = []
    start = quote = depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        line, quote, depth = _scan(line, quote, depth, bool(parts))
        if not parts:
            start = number
        more = line.endswith("\\")
        parts.append(line[:-1] if more else line)
        if more or quote or depth > 0:
            continue
        statement = "\n".join(parts).strip()
        parts, depth = [], 0
        found += [(start, one) for one in _at_semicolons(statement)]
    if parts:
        found.append((start, "\n".join(parts).strip()))
    return found


def _scan(line: str, quote: int, depth: int, inside: bool) -> tuple[str, int, int]:
    """Return the line without its comment, the open quote (0: none, else its character), and open brackets."""
    out = []
    escaped = False
    for i, c in enumerate(line):
        if escaped:
            escaped = False
        elif c == "\\" and quote != ord("'"):
            escaped = True
        elif quote:
            quote = 0 if ord(c) == quote else quote
        elif c in "\"'":
            quote = ord(c)
        elif c == "#" and (i == 0 or line[i - 1].isspace()):
            break
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        out.append(c)
    shown = "".join(out)
    return (shown if quote else shown.rstrip()), quote, depth


def _at_semicolons(statement: str) -> list[str]:
    """Return the parts of `if [ a = b ]; then X=1; fi`: cut at semicolons outside quotes and brackets, and after then, else, do."""
    parts: list[str] = []
    start = depth = 0
    quote = ""
    for i, c in enumerate(statement):
        if quote:
            quote = "" if c == quote and statement[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif c == ";" and depth <= 0:
            parts.append(statement[start:i])
            start = i + 1
    out: list[str] = []
    for part in (*parts, statement[start:]):
        head = re.match(r"(then|else|do)\s+(.+)", part.strip(), re.DOTALL)
        out += [head[1], head[2]] if head else [part.strip()] if part.strip() else []
    return out


def _split(text: str) -> list[str]:
    """Return the words of a command as a shell would, or at whitespace where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _resplit(words: list[str]) -> list[str]:
    """Return words with those that hold flags and their values in one string ("--fp8-format hybrid") taken apart."""
    out: list[str] = []
    for word in words:
        inner = re.search(r"(^|\s)--\w", word) and " " in word.strip()
        out += _split(word) if inner else [word]
    return out


def _flags(words: list[str]) -> int:
    return sum(1 for w in words if w.startswith("--"))


def _whole(text: str) -> int | None:
    """Return a sum of whole numbers with + - * / and nothing else; None for anything else."""
    if not re.fullmatch(r"[\d\s+*/-]{1,60}", text) or "**" in text:
        return None
    total: int | None = None
    for sign, term in re.findall(r"([+-]?)\s*([\d\s*/]+)", text):
        factors = re.findall(r"([*/]?)\s*(\d{1,12})", term)
        value = 1
        for operation, digits in factors:
            if operation == "/" and int(digits) == 0:
                return None
            value = value // int(digits) if operation == "/" else value * int(digits)
        total = (total or 0) + (-value if sign == "-" else value)
    return total
