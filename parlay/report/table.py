"""Plain tables that fit a terminal: whole columns are left out when space is short, cells are never cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

GAP = "  "


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column: its header (unit included), alignment, and how early it is left out (0 = never)."""

    header: str
    right: bool = True
    drop: int = 0


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
    """Return the lines of a table; columns with the highest `drop` go first when the page is too narrow."""
    shown = list(range(len(columns)))
    widths = [max([len(c.header), *(len(r[i]) for r in rows)]) for i, c in enumerate(columns)]

    def total(kept: list[int]) -> int:
        return len(indent) + sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)

    while page.width is not None and total(shown) > page.width:
        droppable = [i for i in shown if columns[i].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda i: (columns[i].drop, i)))

    def line(cells: Sequence[str]) -> str:
        parts = [cells[i].rjust(widths[i]) if columns[i].right else cells[i].ljust(widths[i]) for i in shown]
        return (indent + GAP.join(parts)).rstrip()

    head = line([c.header for c in columns])
    out = [page.bold(head), *(line(row) for row in rows)]
    left_out = [columns[i].header for i in range(len(columns)) if i not in shown]
    if left_out:
        out.append(page.dim(f"{indent}(left out for width: {', '.join(left_out)})"))
    return out


def wrap(text: str, page: Page, *, indent: str = "", hang: str = "") -> list[str]:
    """Return `text` broken at spaces to the page's width; unlimited pages keep one line."""
    if page.width is None:
        return [indent + text]
    lines, current = [], indent
    for word in text.split():
        space = "" if current in (indent, indent + hang) else " "
        if len(current) + len(space) + len(word) > page.width and current.strip():
            lines.append(current)
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
