"""Writes calibration files: whole or not at all, so that a killed run, a full disk or a power cut leaves the file before."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parlay.errors import UsageError
from parlay.rates.calibration_file import Calibration, Times, load_calibration

__all__ = ["Calibration", "identity", "load_calibration", "save_calibration", "summarise"]


def summarise(samples_s: Sequence[float]) -> Times:
    """Return median, minimum, 90th percentile and median absolute deviation of samples.

    Parameters
    ----------
    samples_s : sequence of float
        Seconds of one point, each the slowest rank's [s].

    Returns
    -------
    Times
        The statistics [s].

    Examples
    --------
    >>> summarise([1.0, 2.0, 3.0, 4.0, 10.0]).median
    3.0
    """
    x = np.asarray(samples_s, dtype=np.float64)
    median = float(np.median(x))
    return Times(
        median=median,
        min=float(x.min()),
        p90=float(np.percentile(x, 90)),
        mad=float(np.median(np.abs(x - median))),
        n=len(x),
    )


def identity(calibration: Calibration) -> str:
    """Return the SHA-256 of everything in a calibration but its notes and the id itself."""
    body = calibration.model_dump(mode="json", exclude={"id", "notes"})
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def save_calibration(calibration: Calibration, path: str | Path) -> Calibration:
    """Write a calibration atomically and return it with its id.

    Parameters
    ----------
    calibration : Calibration
        What to write [-].
    path : str or Path
        Where; replaced at once when everything is on disk, untouched if anything fails before [-].

    Returns
    -------
    Calibration
        The calibration as written [-].

    Raises
    ------
    UsageError
        The folder is missing, not writable, or the disk is full; what was there before stays.
    """
    named = calibration.model_copy(update={"id": identity(calibration)})
    text = json.dumps(named.model_dump(mode="json"), allow_nan=False, indent=1) + "\n"
    write_atomically(text, Path(path))
    return named


def write_atomically(text: str, target: Path) -> None:
    """Replace `target` by `text` at once: a new file beside it, flushed to disk, then renamed over it."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes it readable by the owner alone
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        hint = "what was there before is untouched; free some space or choose another place with -o"
        raise UsageError(f"cannot be written ({error.strerror})", where=str(target), hint=hint) from None
