r"""Compute and a transfer that run beside one another and hold each other up.

Symbols: C time of the compute alone [s] · T time of the transfer alone [s] · a, b how much slower compute and transfer run while
         the other runs too [-] · D how long both run at once [s]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def overlapped_s(compute_s: ArrayLike, transfer_s: ArrayLike, slow_compute: ArrayLike = 1, slow_transfer: ArrayLike = 1) -> Real:
    r"""Return the time until compute and a transfer that start together have both ended.

    Both run at once until the first ends, after D = min(a C, b T), and get D/a and D/b of their own work done in that
    time. The other finishes what is left at its own pace:

    $$ C + T + D \left(1 - \frac{1}{a} - \frac{1}{b}\right), \qquad D = \min(a C,\ b T) $$

    Parameters
    ----------
    compute_s : array_like
        Time C of the compute alone. [s]
    transfer_s : array_like
        Time T of the transfer alone. [s]
    slow_compute : array_like, default 1
        Time of compute beside a transfer over its time alone, a. [-]
    slow_transfer : array_like, default 1
        Time of a transfer beside compute over its time alone, b. [-]

    Returns
    -------
    float or ndarray
        Seconds until the later of the two ends. [s]

    Raises
    ------
    FormulaDomainError
        If `compute_s` is not >= 0, or `transfer_s` is not >= 0, or `slow_compute` is not >= 1, or `slow_transfer` is not
        >= 1.

    Notes
    -----
    The factors hold for all of the time that both run. With a = b = 1 the longer hides the shorter whole, max(C, T). With
    1/a + 1/b < 1 running both at once takes longer than one after the other, C + T.

    Examples
    --------
    One second of products that get 1.25 times slower beside a transfer of half a second that gets 1.1 times slower: both run
    for 0.55 s, in which 0.44 s of the products get done, and 0.56 s are left.

    >>> float(overlapped_s(1.0, 0.5, 1.25, 1.1).round(6))
    1.11
    >>> overlapped_s(1.0, [0.5, 2.0])
    array([1., 2.])

    References
    ----------
    .. [1] X. Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism",
       arXiv:2211.13878: one factor for both; here each has its own.
    """
    C = _check.real("compute_s", compute_s, low=0)
    T = _check.real("transfer_s", transfer_s, low=0)
    a = _check.real("slow_compute", slow_compute, low=1)
    b = _check.real("slow_transfer", slow_transfer, low=1)
    D = np.minimum(a * C, b * T)
    return C + T + D * (1.0 - 1.0 / a - 1.0 / b)
