"""Plain tables that fit a terminal: headers and texts are broken, whole columns are left out, cells are never cut."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from parlay.errors import visible

GAP = "  "
_PARTS = re.compile(r"[^/_+.,=-]*[/_+.,=-]|[^/_+.,=-]+")  # where a word that is too long may be broken
LINE_ENDS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
LEAST_TEXT = 24  # characters; a narrower column of text is left out rather than broken into crumbs


# Headers of a column, largest unit first: from which value on, and how much one of it is.
RUN_TIMES = (("days", 2 * 86400.0, 86400.0), ("run h", 3600.0, 3600.0), ("run min", 60.0, 60.0), ("run s", 0.0, 1.0))
MONEY = (("M USD", 1e6, 1e6), ("k USD", 1e4, 1e3), ("USD", 0.0, 1.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column: its header (unit included), alignment, how early it is left out (0 = never), whether its text may be broken."""

    header: str
    right: bool = True
    drop: int = 0
    text: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Where text goes: width in characters (None = no limit, as when piped) and whether it may be styled."""

    width: int | None = None
    styled: bool = False

    def bold(self, text: str) -> str:
        """Return `text` in bold where styles are allowed."""
        return f"\x1b[1m{text}\x1b[0m" if self.styled and text.strip() else text

    def dim(self, text: str) -> str:
        """Return `text` dimmed where styles are allowed."""
        return f"\x1b[2m{text}\x1b[0m" if self.styled and text.strip() else text


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], page: Page, *, indent: str = "") -> list[str]:
    """Return the lines of a table that fits the page.

    Where it is too wide, headers are broken at spaces first, then the columns with the highest `drop` are left out, then
    texts are broken into lines; a cell's own line ends are spaces, and what else steers a terminal is spelt out. A page without a width gets one line a row.
    """
    rows = [[visible(LINE_ENDS.sub(" ", cell)) for cell in row] for row in rows]
    widths, shown = _fitted(columns, rows, page, len(indent))

    def lines(cells: Sequence[str]) -> list[str]:
        parts = {i: broken(cells[i], widths[i]) for i in shown}
        depth = max([1, *(len(p) for p in parts.values())])
        out = []
        for k in range(depth):
            texts = [(parts[i][k] if k < len(parts[i]) else "", columns[i].right, widths[i]) for i in shown]
            out.append((indent + GAP.join(t.rjust(w) if right else t.ljust(w) for t, right, w in texts)).rstrip())
        return out

    out = [page.bold(line) for line in lines([c.header for c in columns])]
    for row in rows:
        out += lines(row)
    left_out = [columns[i].header for i in range(len(columns)) if i not in shown]
    if left_out:
        out += [page.dim(line) for line in wrap(f"(left out for width: {', '.join(left_out)})", page, indent=indent)]
    return out


def _fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], page: Page, used: int) -> tuple[list[int], list[int]]:
    """Return the width of every column and the columns that are shown."""
    cells = [max([0, *(len(r[i]) for r in rows)]) for i in range(len(columns))]
    widths = [max(len(c.header), w) for c, w in zip(columns, cells, strict=True)]
    shown = list(range(len(columns)))
    if page.width is None:
        return widths, shown
    room = page.width - used

    def total(w: Sequence[int]) -> int:
        return sum(w[i] for i in shown) + len(GAP) * (len(shown) - 1)

    if total(widths) <= room:
        return widths, shown
    widths = [max(_longest_word(c.header), w) for c, w in zip(columns, cells, strict=True)]
    least = [min(w, LEAST_TEXT) if c.text else w for c, w in zip(columns, widths, strict=True)]
    while total(least) > room:
        droppable = [i for i in shown if columns[i].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda i: (columns[i].drop, i)))
    while total(widths) > room:  # take from the widest text; from any left-aligned column where there is no text left
        able = [i for i in shown if columns[i].text and widths[i] > LEAST_TEXT]
        able = able or [i for i in shown if not columns[i].right and widths[i] > LEAST_TEXT]
        if not able:
            break
        widest = max(able, key=lambda i: widths[i])
        widths[widest] = max(LEAST_TEXT, widths[widest] - (total(widths) - room))
    for i in shown:  # headers that need not be broken after all
        spare = room - total(widths)
        if spare >= len(columns[i].header) - widths[i] > 0:
            widths[i] = len(columns[i].header)
    return widths, shown


def _longest_word(text: str) -> int:
    return max([0, *(len(word) for word in text.split())])


def broken(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width`, broken at spaces, or inside a word after a sign where it is too long.

    >>> broken("a/long_name and more", 8)
    ['a/long_', 'name and', 'more']
    """
    if len(text) <= width:
        return [text]
    pieces = [x for word in text.split() for x in ([word] if len(word) <= width else _PARTS.findall(word))]
    starts = {0}  # where each word starts among the pieces
    for word in text.split():
        starts.add(max(starts) + (1 if len(word) <= width else len(_PARTS.findall(word))))
    out, current = [], ""
    for i, piece in enumerate(pieces):
        joined = f"{current} {piece}" if current and i in starts else current + piece
        if len(joined) > width and current:
            out.append(current)
            joined = piece
        while len(joined) > width:
            out.append(joined[:width])
            joined = joined[width:]
        current = joined
    return [*out, current] if current else out


def wrap(text: str, page: Page, *, indent: str = "", hang: str = "", end: str = "") -> list[str]:
    """Return `text` broken at spaces to the page's width, `end` behind every line but the last; unlimited pages keep one line."""
    if page.width is None:
        return [indent + text]
    lines, current = [], indent
    for word in text.split():
        space = "" if current in (indent, indent + hang) else " "
        if len(current) + len(space) + len(word) + len(end) > page.width and current.strip():
            lines.append(current + end)
            current, space = indent + hang, ""
        current += space + word
    return [*lines, current] if current.strip() else lines


def fields(pairs: Sequence[tuple[str, str]], page: Page, *, indent: str = "") -> list[str]:
    """Return name/value lines with the values in one column, wrapped under themselves."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    out: list[str] = []
    for name, value in pairs:
        body = wrap(value, Page(None if page.width is None else max(page.width - width - len(indent), 20)))
        for i, text in enumerate(body or [""]):
            label = name.ljust(width) if i == 0 else " " * width
            out.append(f"{indent}{page.bold(label) if i == 0 else label}{text}".rstrip())
    return out


def unit_for(largest: float, units: Sequence[tuple[str, float, float]]) -> tuple[str, float]:
    """Return the header and the size of the unit that suits the largest value of a column.

    >>> unit_for(5000.0, RUN_TIMES), unit_for(2.5e6, MONEY)
    (('run h', 3600.0), ('M USD', 1000000.0))
    """
    return next((name, size) for name, least, size in units if largest >= least)


def apportion(values: Sequence[float], whole: float, step: float) -> list[float]:
    """Return `values` rounded to multiples of `step` so that they sum to `whole` rounded alike: rows shown add up.

    The values with the largest remainders are rounded up, as many as the sum needs.

    Examples
    --------
    >>> apportion([1.004, 1.004, 1.004], 3.012, 0.01)
    [1.01, 1.0, 1.0]
    """
    units = [value / step for value in values]
    floors = [math.floor(u) for u in units]
    digits = max(0, -math.floor(math.log10(step)))
    missing = round(round(whole, digits) / step) - sum(floors)  # half a step goes where the printed total goes
    order = sorted(range(len(units)), key=lambda i: floors[i] - units[i])
    for i in order[: max(missing, 0)]:
        floors[i] += 1
    return [round(f * step, digits) for f in floors]
