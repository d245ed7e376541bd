r"""Routing: how far tokens go and how uneven the load is.

Symbols: M nodes [-] · P experts of a node [-] · K experts a token chooses [-] · l most nodes of a token [-] · z nodes it goes to [-]
         T tokens of a rank [token] · h width [-] · e bytes per element [B] · E experts [-] · u loads [-] · f shares, p gate means, a factor [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def nodes_reached(nodes: ArrayLike, experts_per_node: ArrayLike, top_k: ArrayLike, most_nodes: ArrayLike) -> Real:
    r"""Return to how many nodes a token goes on average.

    The router keeps l nodes and draws K of their l P experts; a node is left out with the odds that all K fall elsewhere:

    $$ l\left(1 - \prod_{i<K} \frac{(l - 1) P - i}{l P - i}\right) $$

    Parameters
    ----------
    nodes : array_like
        Nodes M over which the experts are shared out evenly. [-]
    experts_per_node : array_like
        Experts P of one node. [-]
    top_k : array_like
        Experts K that a token chooses, at most M P. [-]
    most_nodes : array_like
        Most nodes whose experts a token may choose; M for no limit. [-]

    Returns
    -------
    float or ndarray
        Nodes, the token's own included where it is among them. [-]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Uniform routing without repetition; K above l P counts as l P, l above M as M. The l nodes are drawn blindly: a
    router that keeps the nodes of its best experts, as DeepSeek-V3's does, leaves a kept node out less often (3.97 of
    4 nodes for random scores).

    Examples
    --------
    DeepSeek-V3: 8 nodes of 32 experts, 8 of them, at most 4 nodes:

    >>> nodes_reached(8, 32, 8, [4, 8]).round(3)
    array([3.629, 5.295])

    >>> float(nodes_reached(2, 1, 2, 2))
    2.0

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, sections 2.1.2 and 3.2.2.
    """
    M = _check.whole("nodes", nodes, low=1)
    P = _check.whole("experts_per_node", experts_per_node, low=1)
    K = _check.whole("top_k", top_k, low=0)
    most = _check.whole("most_nodes", most_nodes, low=1)
    z = np.minimum(most, M)
    K = np.minimum(K, z * P)
    missed = np.ones(np.broadcast_shapes(np.shape(z), np.shape(K), np.shape(P)))
    for i in range(int(np.max(K, initial=0.0))):
        missed = missed * np.where(i < K, np.maximum((z - 1) * P - i, 0.0) / np.maximum(z * P - i, 1.0), 1.0)
    return (z * (1 - missed))[()]


def node_dispatch_sent_bytes(
    nodes: ArrayLike, reached: ArrayLike, tokens: ArrayLike, width: ArrayLike, dispatch_element_bytes: ArrayLike = 2
) -> Real:
    r"""Return the bytes that each rank sends over the network when a token crosses once per node.

    A token goes to z nodes, of which the M-th part is its own; peers there hand it on over NVLink:

    $$ \frac{M - 1}{M} z T h e $$

    Parameters
    ----------
    nodes : array_like
        Nodes M over which the experts are shared out evenly. [-]
    reached : array_like
        Nodes z that a token goes to on average, see `nodes_reached`. [-]
    tokens : array_like
        Tokens T of a rank. [token]
    width : array_like
        Width h of a dispatched token, the latent one where experts work on it. [-]
    dispatch_element_bytes : array_like, default 2
        Bytes of an element on its way to the experts: 2 for bf16, 1 for fp8. [B]

    Returns
    -------
    float or ndarray
        Bytes sent per rank to other nodes. [B]

    Raises
    ------
    FormulaDomainError
        If a count is not a whole number in its range, or another argument is negative.

    Notes
    -----
    Uniform routing. The copies inside the node come on top, over the faster link.

    Examples
    --------
    >>> float(node_dispatch_sent_bytes(8, 4, 4096, 7168, 1))
    102760448.0

    >>> node_dispatch_sent_bytes([1, 2], 2, 4096, 7168)
    array([       0., 58720256.])

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, sections 2.1.2 and 3.2.2.
    """
    M = _check.whole("nodes", nodes, low=1)
    z = _check.real("reached", reached, low=0)
    T = _check.real("tokens", tokens, low=0)
    h = _check.real("width", width, low=0)
    e = _check.real("dispatch_element_bytes", dispatch_element_bytes, low=0)
    return (M - 1) / M * z * T * h * e


def busiest_over_mean(loads: ArrayLike) -> Real:
    r"""Return how many times longer a layer takes than with even loads.

    Everybody waits for the busiest:

    $$ \frac{\max_i u_i}{\frac{1}{n}\sum_i u_i} $$

    Parameters
    ----------
    loads : array_like
        Load u_i of each of n experts, ranks or links, along the last axis. [-]

    Returns
    -------
    float or ndarray
        Slowdown, at least 1; 1 where there is no load. [-]

    Raises
    ------
    FormulaDomainError
        If a load is negative.

    Notes
    -----
    Time proportional to load. The loads that count are those of ranks: balance between nodes does not help inside
    one.

    Examples
    --------
    Eight GPUs, one with twice the mean:

    >>> float(busiest_over_mean([2, 1, 1, 1, 1, 1, 1, 0]))
    2.0

    >>> busiest_over_mean([[1, 1], [3, 1]])
    array([1. , 1.5])

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard", arXiv:2006.16668.
    .. [2] deepseek-ai/DeepEP issue 343 (a skew inside a node doubles dispatch).
    """
    u = _check.real("loads", loads, low=0)
    mean = np.asarray(u).mean(axis=-1)
    return np.where(mean > 0, np.max(u, axis=-1) / np.where(mean > 0, mean, 1.0), 1.0)[()]


def load_balancing_loss(strength: ArrayLike, routed_shares: ArrayLike, gate_means: ArrayLike) -> Real:
    r"""Return the auxiliary loss that pushes a router to even loads.

    Smallest, a, when both are 1 / E for all E experts:

    $$ a E \sum_i f_i p_i $$

    Parameters
    ----------
    strength : array_like
        Factor a of the loss. [-]
    routed_shares : array_like
        Share f_i of the tokens that went to each expert, along the last axis. [-]
    gate_means : array_like
        Mean gate probability p_i of each expert, along the last axis. [-]

    Returns
    -------
    float or ndarray
        Loss added to that of the model. [-]

    Raises
    ------
    FormulaDomainError
        If an argument is negative.

    Notes
    -----
    With top-k routing the shares count all K choices and sum to 1 after division by K.

    Examples
    --------
    Uniform over eight experts:

    >>> float(load_balancing_loss(0.01, [0.125] * 8, [0.125] * 8).round(12))
    0.01

    >>> load_balancing_loss([1.0, 2.0], [1.0, 0.0], [0.5, 0.5])
    array([1., 2.])

    References
    ----------
    .. [1] W. Fedus, B. Zoph, N. Shazeer, "Switch Transformers", arXiv:2101.03961, section 2.2.
    """
    a = _check.real("strength", strength, low=0)
    f = _check.real("routed_shares", routed_shares, low=0)
    p = _check.real("gate_means", gate_means, low=0)
    total: Real = np.sum(np.multiply(f, p), axis=-1, dtype=np.float64)
    experts: int = np.asarray(f).shape[-1]
    return a * experts * total
