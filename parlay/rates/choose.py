"""Which rates a cluster gets: a calibration, a shipped profile, a relative's profile scaled, or datasheet defaults."""

from __future__ import annotations

from parlay.hardware.spec import Cluster
from parlay.rates.datasheet import datasheet_rates
from parlay.rates.in_step import Factors
from parlay.rates.interface import Rates
from parlay.rates.profile import profile_rates


def rates_for(
    cluster: Cluster,
    *,
    calibration: Rates | None = None,
    profiles: bool = True,
    sustained: bool = True,
    in_step: Factors | None = None,
) -> Rates:
    """Return the best rates known for `cluster`.

    Parameters
    ----------
    cluster : Cluster
        What to price.
    calibration : Rates
        Rates of a calibration file; they replace everything else.
    profiles : bool
        Whether shipped profiles may be used; else datasheet peaks x default efficiencies.
    sustained : bool
        Whether profiles count the clocks that a device holds under a training load instead of those of short bursts.
    in_step : mapping
        Factors that replace the shipped ones of parlay.rates.in_step.
    """
    if calibration is not None:
        return calibration
    found = profile_rates(cluster, sustained=sustained, in_step=in_step) if profiles else None
    return found if found is not None else datasheet_rates(cluster)
