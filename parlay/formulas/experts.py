r"""Expert parallelism: what is sent to the experts and back, and what they compute.

Symbols: x expert-parallel ranks [-] · K experts a token chooses [-] · E experts [-] · T tokens of a rank [token] · h width [-]
         f inner width of an expert [-] · y matrices of an expert [-] · e, b bytes per element there and back [B]
         F matmul rate [FLOP/s] · W one-way link rate [B/s] · C capacity factor [-] · N devices [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def dispatch_sent_bytes(
    ranks: ArrayLike, top_k: ArrayLike, tokens: ArrayLike, width: ArrayLike, dispatch_element_bytes: ArrayLike = 2
) -> Real:
    r"""Return the bytes that each rank sends to the experts of one layer.

    Each token goes to K experts, of which the x-th part is at home:

    $$ \frac{x - 1}{x} K T h e $$

    Parameters
    ----------
    ranks : array_like
        Expert-parallel ranks x. [-]
    top_k : array_like
        Experts K that a token chooses. [-]
    tokens : array_like
        Tokens T of a rank. [token]
    width : array_like
        Width h of a dispatched token, the latent one where experts work on it. [-]
    dispatch_element_bytes : array_like, default 2
        Bytes of an element on its way to the experts: 2 for bf16, 1 for fp8. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank; the combine sends as many elements back. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Uniform routing, one copy per chosen expert; two experts on one rank could share a copy (`deduplicated`
    dispatchers do). Scales and indices come on top.

    Examples
    --------
    58 layers of DeepSeek-V3 send from each rank, were all experts elsewhere, 4,096 x 8 x 7,168 x 2 bytes = 470 MB; of 64 ranks:

    >>> float(dispatch_sent_bytes(64, 8, 4096, 7168))
    462422016.0

    >>> dispatch_sent_bytes([1, 8], 2, 8192, 4096)
    array([0.00000000e+00, 1.17440512e+08])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    .. [2] lm-sys/lm-sys.github.io pull request 394 (two all-to-alls per layer and direction).
    """
    x = _check.whole("ranks", ranks, low=1)
    K = _check.whole("top_k", top_k, low=0)
    T = _check.real("tokens", tokens, low=0)
    h = _check.real("width", width, low=0)
    e = _check.real("dispatch_element_bytes", dispatch_element_bytes, low=0)
    return (x - 1) / x * K * T * h * e


def exchange_sent_bytes(
    ranks: ArrayLike,
    top_k: ArrayLike,
    tokens: ArrayLike,
    width: ArrayLike,
    dispatch_element_bytes: ArrayLike = 2,
    combine_element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the bytes that each rank sends in the forward pass of one mixture layer.

    Dispatch and combine:

    $$ \frac{x - 1}{x} K T h (e + b) $$

    Parameters
    ----------
    ranks : array_like
        Expert-parallel ranks x. [-]
    top_k : array_like
        Experts K that a token chooses. [-]
    tokens : array_like
        Tokens T of a rank. [token]
    width : array_like
        Width h of a dispatched token, the latent one where experts work on it. [-]
    dispatch_element_bytes : array_like, default 2
        Bytes of an element on its way to the experts: 2 for bf16, 1 for fp8. [B]
    combine_element_bytes : array_like, default 2
        Bytes of an element on its way back. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Uniform routing. The backward sends the same elements the other way round.

    Examples
    --------
    Mixtral-like: 235 MB.

    >>> float(exchange_sent_bytes(8, 2, 8192, 4096))
    234881024.0

    >>> exchange_sent_bytes(4, 1, 1024, 2048, [2, 1])
    array([6291456., 4718592.])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    """
    x = _check.whole("ranks", ranks, low=1)
    K = _check.whole("top_k", top_k, low=0)
    T = _check.real("tokens", tokens, low=0)
    h = _check.real("width", width, low=0)
    e = _check.real("dispatch_element_bytes", dispatch_element_bytes, low=0)
    b = _check.real("combine_element_bytes", combine_element_bytes, low=0)
    return (x - 1) / x * K * T * h * (e + b)


def expert_flops(top_k: ArrayLike, tokens: ArrayLike, width: ArrayLike, expert_width: ArrayLike, matrices: ArrayLike = 3) -> Real:
    r"""Return the FLOPs of the experts for the tokens of one rank.

    K copies of each token pass all matrices of an expert:

    $$ 2 y K T h f $$

    Parameters
    ----------
    top_k : array_like
        Experts K that a token chooses. [-]
    tokens : array_like
        Tokens T of a rank. [token]
    width : array_like
        Width h of a dispatched token, the latent one where experts work on it. [-]
    expert_width : array_like
        Inner width f of an expert. [-]
    matrices : array_like, default 3
        Matrices of an expert: 3 with a gate, 2 without. [-]

    Returns
    -------
    float or ndarray
        FLOPs, forward. [FLOP]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Routed experts; shared ones add their own width for every token.

    Examples
    --------
    Mixtral-like: 16,384 copies of 352 MFLOP.

    >>> float(expert_flops(2, 8192, 4096, 14336))
    5772436045824.0

    >>> expert_flops(1, 1, 4096, 14336, [2, 3])
    array([2.34881024e+08, 3.52321536e+08])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    """
    K = _check.whole("top_k", top_k, low=0)
    T = _check.real("tokens", tokens, low=0)
    h = _check.real("width", width, low=0)
    f = _check.real("expert_width", expert_width, low=0)
    y = _check.whole("matrices", matrices, low=0)
    return 2 * y * K * T * h * f


def exchange_to_compute(
    ranks: ArrayLike,
    expert_width: ArrayLike,
    flops_per_s: ArrayLike,
    link_bytes_per_s: ArrayLike,
    matrices: ArrayLike = 3,
    combine_element_bytes: ArrayLike = 2,
) -> Real:
    r"""Return the time of dispatch and combine over the time of the experts between them.

    Tokens, top-k and hidden width cancel:

    $$ \frac{x - 1}{x} \cdot \frac{2 e}{2 y f} \cdot \frac{F}{W} $$

    Parameters
    ----------
    ranks : array_like
        Expert-parallel ranks x. [-]
    expert_width : array_like
        Inner width f of an expert. [-]
    flops_per_s : array_like
        Matmul rate of one device. [FLOP/s]
    link_bytes_per_s : array_like
        One-way rate of a device's link to its peers. [B/s]
    matrices : array_like, default 3
        Matrices of an expert: 3 with a gate, 2 without. [-]
    combine_element_bytes : array_like, default 2
        Bytes of an element on its way back. [B]

    Returns
    -------
    float or ndarray
        Ratio; above 1 the exchange takes longer. [-]

    Raises
    ------
    FormulaDomainError
        If a rate or width is not > 0, or a count out of its range.

    Notes
    -----
    Uniform routing, both ways in elements of the same size, no overlap.

    Examples
    --------
    Mixtral-like over NVLink and over InfiniBand: 0.09 and 0.80.

    >>> exchange_to_compute(8, 14336, 989e12, [450e9, 50e9]).round(4)
    array([0.0894, 0.8049])

    DeepSeek-V3's narrow experts over InfiniBand:

    >>> float(exchange_to_compute(64, 2048, 989e12, 50e9).round(3))
    6.338

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    """
    x = _check.whole("ranks", ranks, low=1)
    f = _check.real("expert_width", expert_width, low=0, open_low=True)
    F = _check.real("flops_per_s", flops_per_s, low=0, open_low=True)
    W = _check.real("link_bytes_per_s", link_bytes_per_s, low=0, open_low=True)
    y = _check.whole("matrices", matrices, low=1)
    b = _check.real("combine_element_bytes", combine_element_bytes, low=0)
    return (x - 1) / x * b / (y * f) * F / W


def expert_capacity(capacity_factor: ArrayLike, top_k: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Real:
    r"""Return the rows that an expert takes before it drops.

    The capacity factor times the mean load, rounded up:

    $$ \lceil C K T / E \rceil $$

    Parameters
    ----------
    capacity_factor : array_like
        Capacity factor C: how many times the mean load an expert takes. [-]
    top_k : array_like
        Experts K that a token chooses. [-]
    tokens : array_like
        Tokens T of a rank. [token]
    experts : array_like
        Experts E. [-]

    Returns
    -------
    float or ndarray
        Rows of one expert. [token]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    T counts the tokens over which capacity is shared out: of a rank, or of all ranks of the group.

    Examples
    --------
    1.25 x 2 x 8,192 / 8:

    >>> float(expert_capacity(1.25, 2, 8192, 8))
    2560.0

    >>> expert_capacity(1.0, 2, [10, 12], 8)
    array([3., 3.])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    .. [2] W. Fedus, B. Zoph, N. Shazeer, "Switch Transformers", arXiv:2101.03961, section 2.2.
    """
    C = _check.real("capacity_factor", capacity_factor, low=0)
    K = _check.whole("top_k", top_k, low=0)
    T = _check.real("tokens", tokens, low=0)
    E = _check.whole("experts", experts, low=1)
    return np.ceil(np.round(C * K * T / E, 9))  # 1.1 x 10 is 11, not 11.000000000000002


def expert_copies(devices: ArrayLike, ranks: ArrayLike) -> Real:
    r"""Return how many copies of each expert there are.

    Every group of x ranks holds all experts once:

    $$ N / x $$

    Parameters
    ----------
    devices : array_like
        Devices N that hold the layer once per expert-parallel group. [-]
    ranks : array_like
        Expert-parallel ranks x. [-]

    Returns
    -------
    float or ndarray
        Copies, the ranks over which an expert's gradients are reduced. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    x divides N; each expert is whole on its rank.

    Examples
    --------
    Two experts, four devices:

    >>> float(expert_copies(4, 2))
    2.0

    >>> expert_copies(64, [8, 64])
    array([8., 1.])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    """
    N = _check.whole("devices", devices, low=1)
    x = _check.whole("ranks", ranks, low=1)
    return N / x


def experts_per_rank(experts: ArrayLike, ranks: ArrayLike) -> Real:
    r"""Return the experts of one rank.

    Shared out evenly:

    $$ E / x $$

    Parameters
    ----------
    experts : array_like
        Experts E. [-]
    ranks : array_like
        Expert-parallel ranks x. [-]

    Returns
    -------
    float or ndarray
        Experts. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    x divides E.

    Examples
    --------
    >>> float(experts_per_rank(128, 64))
    2.0

    >>> experts_per_rank(256, [8, 64])
    array([32.,  4.])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    """
    E = _check.whole("experts", experts, low=0)
    x = _check.whole("ranks", ranks, low=1)
    return E / x
