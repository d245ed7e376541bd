"""A progress bar on stderr: only where that is a terminal, and only after a second."""

from __future__ import annotations

import os
import sys
import time

WAIT_S = 1.0
EVERY_S = 0.1
WIDTH, LEAST = 30, 10  # characters of the bar


def line(priced: int, best_s: float | None, share: float, width: int) -> str:
    """Return what is drawn, at most `width` characters: the bar shrinks first, then what Ctrl-C does is left out.

    >>> line(1234, 1.5, 0.5, 74)
    '[#######       ]  50%  1,234 layouts, best step 1.5 s; Ctrl-C: best so far'
    >>> line(1234, None, 1.0, 100)
    '[##############################] 100%  1,234 layouts, none fits yet; Ctrl-C: best so far'
    """
    best = f", best step {best_s:.3g} s" if best_s is not None else ", none fits yet"
    said = f" {share:4.0%}  {priced:,} layouts{best}"
    more = "; Ctrl-C: best so far"
    said += more if len(said) + len(more) + LEAST + 2 <= width else ""
    size = min(WIDTH, max(LEAST, width - len(said) - 2))
    filled = round(size * share)
    return f"[{'#' * filled}{' ' * (size - filled)}]{said}"[: max(width, 0)]


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


class ProgressBar:
    """Call it with what `search.plan.plan` tells; `close` removes the bar."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = self._start + WAIT_S - EVERY_S
        self._shown = 0
        self._on = sys.stderr.isatty()

    def __call__(self, priced: int, best_s: float | None, share: float) -> None:
        """Draw the bar anew, at most every tenth of a second."""
        now = time.monotonic()
        if not self._on or now - self._last < EVERY_S:
            return
        self._last = now
        text = line(priced, best_s, share, _columns() - 1)  # a full line would wrap, and leave its start behind
        sys.stderr.write("\r" + text.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(text)

    def close(self) -> None:
        """Remove the bar, if one was drawn."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
