"""Which rates a cluster gets: a shipped profile, a relative's profile scaled, or datasheet defaults."""

from __future__ import annotations

from parlay.hardware.spec import Cluster
from parlay.rates.datasheet import datasheet_rates
from parlay.rates.interface import Rates


def rates_for(cluster: Cluster, *, calibration: Rates | None = None, profiles: bool = True) -> Rates:
    """Return the best rates known for `cluster`."""
    return calibration or datasheet_rates(cluster)
