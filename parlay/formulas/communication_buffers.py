r"""Buffers of communication libraries, outside the framework's allocator.

Symbols: C channels [-] · N ranks [-] · h hidden width [-] · e bytes of one element [B]
File and line numbers are of NCCL 5067397c (2.30.7), DeepEP dd758caf and Megatron-LM d98e8a64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def ring_communicator(
    *,
    channels: ArrayLike = 24,
    peers: ArrayLike = 1,
    simple_bytes: ArrayLike = 4194304,
    ll_bytes: ArrayLike = 524288,
    ll128_bytes: ArrayLike = 4915200,
) -> Real:
    r"""Return NCCL's buffers of one communicator: three protocols for each channel and connection.

    $$ A = C\, p \left( b_{simple} + b_{LL} + b_{LL128} \right) = 9.19\ \text{MiB} \cdot C p $$

    Parameters
    ----------
    channels : array_like, default 24
        Channels C: 16 to 24 are usual, 64 the most. [-]
    peers : array_like, default 1
        Connections p a channel: 1 for a ring, up to 3 more for trees. [-]
    simple_bytes : array_like, default 4194304
        Buffer b_simple of the Simple protocol. [B]
    ll_bytes : array_like, default 524288
        Buffer b_LL of the LL protocol. [B]
    ll128_bytes : array_like, default 4915200
        Buffer b_LL128 of the LL128 protocol. [B]

    Returns
    -------
    float or ndarray
        Bytes outside the torch allocator. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    Buffers exist only for algorithms in use since NCCL connects at run time.

    Examples
    --------
    >>> float(ring_communicator(channels=16) / 2**20)
    147.0

    References
    ----------
    .. [1] NCCL, src/init.cc:61,810-813,1552, src/include/device.h:97-116.
    """
    c = _check.real("channels", channels, low=0)
    p = _check.real("peers", peers, low=0)
    total = sum(
        _check.real(k, v, low=0)
        for k, v in (("simple_bytes", simple_bytes), ("ll_bytes", ll_bytes), ("ll128_bytes", ll128_bytes))
    )
    return np.asarray(c * p * total)[()]


def switch_communicator(
    *,
    channels: ArrayLike = 16,
    heads: ArrayLike = 8,
    chunk_bytes: ArrayLike = 131072,
    steps: ArrayLike = 8,
    directions: ArrayLike = 2,
) -> Real:
    r"""Return NCCL's NVLS buffers of one communicator that spans an NVLink switch.

    $$ A = 2\, C\, H\, q\, b $$

    Parameters
    ----------
    channels : array_like, default 16
        Channels C: 16 on sm90, 24 or 32 on sm100. [-]
    heads : array_like, default 8
        Ranks H that share the reduction. [-]
    chunk_bytes : array_like, default 131072
        Bytes b of one chunk. [B]
    steps : array_like, default 8
        Chunks q in flight. [-]
    directions : array_like, default 2
        Reduce and broadcast. [-]

    Returns
    -------
    float or ndarray
        Bytes outside the torch allocator. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative.

    Notes
    -----
    None with NCCL_NVLS_ENABLE=0 or without a switch.

    Examples
    --------
    >>> switch_communicator(channels=[16, 24, 32]) / 2**20
    array([256., 384., 512.])

    References
    ----------
    .. [1] NCCL, src/transport/nvls.cc:150-152,414-434.
    """
    c = _check.real("channels", channels, low=0)
    h = _check.real("heads", heads, low=0)
    b = _check.real("chunk_bytes", chunk_bytes, low=0)
    q = _check.real("steps", steps, low=0)
    d = _check.real("directions", directions, low=0)
    return c * h * b * q * d


def deepep_buffers(
    ranks: ArrayLike,
    hidden: ArrayLike,
    *,
    channels: ArrayLike = 10,
    nvlink_ranks: ArrayLike = 8,
    nvlink_tokens: ArrayLike = 288,
    network_tokens: ArrayLike = 128,
    element_bytes: ArrayLike = 2,
    metadata_bytes: ArrayLike = 2056,
    workspace_bytes: ArrayLike = 33554432,
) -> Real:
    r"""Return DeepEP's buffers for high-throughput dispatch and combine: receive queues over NVLink and network.

    $$ A = C (h e + e_m) \left( g\, T_{nv} + [N > g]\, 2 \tfrac{N}{g} T_{net} \right) + w $$

    Parameters
    ----------
    ranks : array_like
        Expert-parallel ranks N. [-]
    hidden : array_like
        Hidden width. [-]
    channels : array_like, default 10
        Half the SMs DeepEP uses (20). [-]
    nvlink_ranks : array_like, default 8
        Ranks g of one NVLink domain as DeepEP sees it. [-]
    nvlink_tokens : array_like, default 288
        Tokens T_nv of one NVLink queue: 256 to 8 ranks, 288 to 64, 560 at 128. [-]
    network_tokens : array_like, default 128
        Tokens T_net of one network queue. [-]
    element_bytes : array_like, default 2
        Bytes of an element of a dispatched row. [B]
    metadata_bytes : array_like, default 2056
        Bytes e_m of source, indices, weights and scales beside a row. [B]
    workspace_bytes : array_like, default 33554432
        Size w of the workspace. [B]

    Returns
    -------
    float or ndarray
        Bytes outside the torch allocator. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative or a rank count < 1.

    Notes
    -----
    Megatron takes the larger of the dispatch and combine hints.

    Examples
    --------
    h = 7168: 320 MiB over NVLink with 8 ranks; 360 and 320 over the network with 64; and 32 MiB of workspace.

    >>> np.round(deepep_buffers([8, 64], 7168, nvlink_tokens=[256, 288]) / 2**20)
    array([352., 712.])

    References
    ----------
    .. [1] DeepEP, csrc/legacy/config.hpp:52-96, deep_ep/buffers/legacy.py:245-258; Megatron-LM,
       core/transformer/moe/fused_a2a.py:36-69.
    """
    n = _check.real("ranks", ranks, low=1)
    h = _check.real("hidden", hidden, low=0)
    c = _check.real("channels", channels, low=0)
    g = _check.real("nvlink_ranks", nvlink_ranks, low=1)
    near = _check.real("nvlink_tokens", nvlink_tokens, low=0)
    far = _check.real("network_tokens", network_tokens, low=0)
    e = _check.real("element_bytes", element_bytes, low=0)
    meta = _check.real("metadata_bytes", metadata_bytes, low=0)
    w = _check.real("workspace_bytes", workspace_bytes, low=0)
    row = h * e + meta
    network = np.where(n > g, 2 * np.ceil(n / g) * far, 0.0)
    return c * row * (np.minimum(n, g) * near + network) + w
