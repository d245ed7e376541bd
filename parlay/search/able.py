"""Which of several clusters can run what is asked of all of them."""

from __future__ import annotations

from collections.abc import Iterable

from parlay.errors import UsageError
from parlay.estimate.precision import check_precision
from parlay.hardware.spec import Cluster
from parlay.layouts.vocabulary import Precision


def refusals(clusters: Iterable[Cluster], precision: Precision, use: str = "train") -> dict[str, str]:
    """Return, by id, why clusters cannot `use` a precision; raise UsageError where none of them can."""
    known = {c.id: c for c in clusters}
    found: dict[str, UsageError] = {}
    for name, cluster in known.items():
        try:
            check_precision(cluster.device, precision, use)
        except UsageError as error:
            found[name] = error
    if found and len(found) == len(known):
        raise next(iter(found.values()))
    return {name: error.message for name, error in found.items()}
