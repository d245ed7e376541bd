r"""Experts that work on a latent: what stays and what grows when there are more of them, each narrower.

Symbols: t tokens of an expert [token] · d width of a token [-] · m inner width of an expert [-] · F matmul rate [FLOP/s]
         W exchange rate [B/s] · K experts a token chooses [-] · N experts [-] · a factor of the latent [-]
         b bytes moved per element [B] · y matrices [-]
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def latent_exchange_to_compute(
    expert_width: ArrayLike,
    flops_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    moved_bytes: ArrayLike = 2.5,
    matrices: ArrayLike = 1,
) -> Real:
    r"""Return the time of an expert's exchange over the time of its products.

    b t d bytes against 2 y t d m FLOPs; tokens and input width cancel:

    $$ \frac{b F}{2 y m W} $$

    Parameters
    ----------
    expert_width : array_like
        Inner width m of an expert. [-]
    flops_per_s : array_like
        Matmul rate of one device. [FLOP/s]
    link_bytes_per_s : array_like
        Rate at which a device exchanges tokens. [B/s]
    moved_bytes : array_like, default 2.5
        Bytes b moved per element of a token, there and back. [B]
    matrices : array_like, default 1
        Matrices y of an expert that count. [-]

    Returns
    -------
    float or ndarray
        Ratio; above 1 the exchange takes longer. [-]

    Raises
    ------
    FormulaDomainError
        If a rate or width is not > 0, or the bytes negative.

    Notes
    -----
    All tokens come from elsewhere. 2.5 bytes: half a byte there (4-bit) and two back.

    Examples
    --------
    As the source counts, one matrix; with the one-way rate; with three matrices:

    >>> latent_exchange_to_compute(1536, 2000e12, [900e9, 450e9, 450e9], 2.5, [1, 1, 3]).round(3)
    array([1.808, 3.617, 1.206])

    >>> float(latent_exchange_to_compute(1536, 1e15, 1e12, 2))
    0.6510416666666666

    References
    ----------
    .. [1] V. Elango et al., "LatentMoE", arXiv:2601.18089.
    """
    m = _check.real("expert_width", expert_width, low=0, open_low=True)
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    W = _check.real("link_bytes_per_s", link_bytes_per_s, low=0, open_low=True)
    b = _check.real("moved_bytes", moved_bytes, low=0)
    y = _check.whole("matrices", matrices, low=1)
    return b * F / (2 * y * m * W)


def latent_dispatched_elements(top_k: ArrayLike, width: ArrayLike, alpha: ArrayLike) -> Real:
    r"""Return the elements that a token dispatches when experts work on a latent.

    a times as many experts get a latent an a-th as wide:

    $$ (K a)\,(d / a) $$

    Parameters
    ----------
    top_k : array_like
        Experts K that a token chooses before the change. [-]
    width : array_like
        Width d of a token before it. [-]
    alpha : array_like
        Factor a by which experts multiply and their width shrinks. [-]

    Returns
    -------
    float or ndarray
        Elements; does not depend on a. [-]

    Raises
    ------
    FormulaDomainError
        If `alpha` is not > 0 or another argument is negative.

    Notes
    -----
    The projections into and out of the latent are shared by all experts.

    Examples
    --------
    >>> float(latent_dispatched_elements(8, 4096, 4))
    32768.0

    >>> latent_dispatched_elements(8, 4096, [1, 2])
    array([32768., 32768.])

    References
    ----------
    .. [1] V. Elango et al., "LatentMoE", arXiv:2601.18089.
    """
    K = _check.real("top_k", top_k, low=0)
    d = _check.real("width", width, low=0)
    a = _check.real("alpha", alpha, low=0, open_low=True)
    return (K * a) * (d / a)


def latent_expert_weights(experts: ArrayLike, width: ArrayLike, expert_width: ArrayLike, alpha: ArrayLike) -> Real:
    r"""Return the weights of one matrix over all experts when they work on a latent.

    a times as many experts, each an a-th as large:

    $$ (N a)\,(d / a)\,m $$

    Parameters
    ----------
    experts : array_like
        Experts N before the change. [-]
    width : array_like
        Width d of a token before it. [-]
    expert_width : array_like
        Inner width m of an expert. [-]
    alpha : array_like
        Factor a by which experts multiply and their width shrinks. [-]

    Returns
    -------
    float or ndarray
        Weights; does not depend on a. [-]

    Raises
    ------
    FormulaDomainError
        If `alpha` is not > 0 or another argument is negative.

    Notes
    -----
    Two or three such matrices an expert.

    Examples
    --------
    >>> float(latent_expert_weights(128, 4096, 1536, 4))
    805306368.0

    >>> latent_expert_weights(128, 4096, 1536, [1, 2])
    array([8.05306368e+08, 8.05306368e+08])

    References
    ----------
    .. [1] V. Elango et al., "LatentMoE", arXiv:2601.18089.
    """
    N = _check.real("experts", experts, low=0)
    d = _check.real("width", width, low=0)
    m = _check.real("expert_width", expert_width, low=0)
    a = _check.real("alpha", alpha, low=0, open_low=True)
    return (N * a) * (d / a) * m


def latent_routed_width(top_k: ArrayLike, expert_width: ArrayLike, alpha: ArrayLike) -> Real:
    r"""Return the inner width that a token meets when experts work on a latent.

    a times as many experts of the same inner width:

    $$ K m a $$

    Parameters
    ----------
    top_k : array_like
        Experts K that a token chooses before the change. [-]
    expert_width : array_like
        Inner width m of an expert. [-]
    alpha : array_like
        Factor a by which experts multiply and their width shrinks. [-]

    Returns
    -------
    float or ndarray
        Neurons a token passes. [-]

    Raises
    ------
    FormulaDomainError
        If `alpha` is not > 0 or another argument is negative.

    Notes
    -----
    The gain in quality for equal bytes and weights.

    Examples
    --------
    >>> float(latent_routed_width(8, 1536, 4))
    49152.0

    >>> latent_routed_width(8, 1536, [1, 4])
    array([12288., 49152.])

    References
    ----------
    .. [1] V. Elango et al., "LatentMoE", arXiv:2601.18089.
    """
    K = _check.real("top_k", top_k, low=0)
    m = _check.real("expert_width", expert_width, low=0)
    a = _check.real("alpha", alpha, low=0, open_low=True)
    return K * m * a
