"""`python -m parlay` is `parlay`."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def run() -> None:
    """Run the program; Ctrl-C while it is still being loaded ends it like any other."""
    try:
        from parlay.cli import main

        code = main.main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:  # Python itself dies by the signal where one came during an import, handled or not
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
