"""A progress bar on stderr: only where that is a terminal, and only after a second."""

from __future__ import annotations

import sys
import time

WAIT_S = 1.0
EVERY_S = 0.1
WIDTH = 30


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
        filled = round(WIDTH * share)
        best = f", best step {best_s:.3g} s" if best_s is not None else ", none fits yet"
        text = f"[{'#' * filled}{' ' * (WIDTH - filled)}] {share:4.0%}  {priced:,} layouts{best}; Ctrl-C shows the best so far"
        sys.stderr.write("\r" + text.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(text)

    def close(self) -> None:
        """Remove the bar, if one was drawn."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
