"""What --rates names: a calibration file, laid over the rates that the cluster has without it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from parlay.cli import output

if TYPE_CHECKING:
    from parlay.hardware.spec import Cluster
    from parlay.rates.interface import Rates


def rates_of(path: Path | None, cluster: Cluster) -> Rates | None:
    """Return the rates of a calibration file on `cluster`, None where no file is given; warnings go to stderr."""
    if path is None:
        return None
    from parlay.calibrate.fits import fitted
    from parlay.rates.calibrated import calibrated_rates
    from parlay.rates.calibration_check import check_file
    from parlay.rates.calibration_file import FITS_VERSION, load_calibration
    from parlay.rates.choose import rates_for

    found = load_calibration(path)
    today = datetime.datetime.now(datetime.UTC).date()
    for text in check_file(found, cluster, where=str(path), today=today):
        output.tell(f"warning: {path}: {text}")
    if not found.fits or found.fits_version != FITS_VERSION:  # a run that was cut short has samples and no fits yet
        found = fitted(found)
    return calibrated_rates(found, cluster, rates_for(cluster))
