"""What compute and a transfer that run at once lose to each other, beside what shows of the transfer without that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parlay.formulas.contention import overlapped_s
from parlay.rates.interface import Beside

Array = NDArray[np.float64]


def lost_s(beside: Beside | None, transfer_s: Array, compute_s: Array) -> Array:
    """Return the seconds that a transfer and the compute beside it take longer together than the longer of the two alone.

    Parameters
    ----------
    beside : Beside or None
        How much each is slowed beside the other; None where that was not measured and nothing is lost [-].
    transfer_s : ndarray
        Seconds of the transfer alone, the part of it that runs beside the compute [s].
    compute_s : ndarray
        Seconds of the compute alone [s].

    Returns
    -------
    ndarray
        Seconds lost, zero or more [s].
    """
    if beside is None:
        return np.zeros(np.broadcast(transfer_s, compute_s).shape)
    together = overlapped_s(compute_s, transfer_s, beside.compute, beside.transfer)
    return np.maximum(0.0, together - np.maximum(compute_s, transfer_s))
