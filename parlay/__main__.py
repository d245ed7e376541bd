"""`python -m parlay` is `parlay`."""

from parlay.cli.main import run

run()
