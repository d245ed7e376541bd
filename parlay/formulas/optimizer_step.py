r"""What an optimizer's step reads, writes and computes, on the GPU and on a host, and the time that a host takes for it.

Symbols: P parameters that the step updates [-] · w, g, q, o bytes of a weight, a gradient, a main weight, all moments of a
         parameter [B] · c, d bytes of a converted gradient and of a main weight read again [B] · k passes over gradients [-] ·
         g' bytes of the gradient that the kernel reads [B] · n, m shorter and longer side of a matrix in `newton_schulz_flops` [-]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from parlay.formulas import _check
from parlay.formulas._check import Real


def step_traffic_bytes(
    parameters: ArrayLike,
    *,
    gradient_bytes: ArrayLike = 4,
    master_bytes: ArrayLike = 4,
    moments_bytes: ArrayLike = 8,
    weight_bytes: ArrayLike = 2,
    passes: ArrayLike = 0,
    converted_bytes: ArrayLike = 0,
    copied_bytes: ArrayLike = 0,
) -> Real:
    r"""Return the bytes an optimizer step reads and writes: gradient, states and weight, and what comes before and after its kernel.

    The kernel reads the gradient, reads and writes the states and writes the weight, which it reads too where no main weight
    stands beside it. Gradients may be copied first to another format of c bytes (then g' = c, else g' = g), and are gone over k
    times for their norm, to unscale and to clip them; a pass of its own may read d bytes of main weights to write the others:

    $$ T = P \left( [c > 0] (g + c) + g' (1 + k) + 2 (q + o) + w + d + [q = 0]\,w \right) $$

    Parameters
    ----------
    parameters : array_like
        Parameters whose state the GPU owns. [-]
    gradient_bytes : array_like, default 4
        Bytes of a gradient. [B]
    master_bytes : array_like, default 4
        Bytes of a main weight; 0 where the weight itself is updated. [B]
    moments_bytes : array_like, default 8
        Bytes of all moments of a parameter. [B]
    weight_bytes : array_like, default 2
        Bytes of the weight used in compute. [B]
    passes : array_like, default 0
        Times that gradients are read or written before the kernel. [-]
    converted_bytes : array_like, default 0
        Bytes of the copy that the kernel reads in place of the gradient; 0 = none. [B]
    copied_bytes : array_like, default 0
        Bytes of a main weight that a pass of its own reads to write the weight; 0 = none. [B]

    Returns
    -------
    float or ndarray
        Bytes moved to and from memory. [B]

    Raises
    ------
    FormulaDomainError
        If a size is negative, or `passes` is no whole number.

    Notes
    -----
    By default one fused kernel. A norm is one pass, unscaling or clipping in place two.

    Examples
    --------
    >>> float(step_traffic_bytes(1e9))
    30000000000.0

    Megatron-core in bf16 with fp32 gradients takes their norm and copies the main weights to the others:

    >>> float(step_traffic_bytes(1e9, passes=1, copied_bytes=4))
    38000000000.0

    References
    ----------
    .. [1] TransformerEngine d0067d0d, transformer_engine/pytorch/optimizers/fused_adam.py.
    .. [2] Megatron-LM d98e8a64, megatron/core/optimizer/optimizer.py, MixedPrecisionOptimizer.
    """
    P = _check.real("parameters", parameters, low=0)
    g = _check.real("gradient_bytes", gradient_bytes, low=0)
    q = _check.real("master_bytes", master_bytes, low=0)
    o = _check.real("moments_bytes", moments_bytes, low=0)
    w = _check.real("weight_bytes", weight_bytes, low=0)
    k = _check.whole("passes", passes, low=0)
    c = _check.real("converted_bytes", converted_bytes, low=0)
    d = _check.real("copied_bytes", copied_bytes, low=0)
    converting, read = np.where(c > 0, g + c, 0.0), np.where(c > 0, c, g)
    return P * (converting + read * (1 + k) + 2 * (q + o) + w + d + np.where(q == 0, w, 0.0))


def newton_schulz_flops(rows: ArrayLike, columns: ArrayLike, *, iterations: ArrayLike = 5) -> Real:
    r"""Return the FLOP with which Muon orthogonalises the momentum of one weight matrix.

    An iteration takes three products over the shorter side n and the longer side m of the matrix X, transposed where that makes
    it wide: A = X X^T in 2 n^2 m FLOP, B = b A + c A A in 2 n^3, and X = a X + B X in 2 n^2 m again:

    $$ F = k \left( 4 n^2 m + 2 n^3 \right), \quad n = \min(r, c), \quad m = \max(r, c) $$

    Parameters
    ----------
    rows : array_like
        Rows r of the matrix. [-]
    columns : array_like
        Columns c of the matrix. [-]
    iterations : array_like, default 5
        Iterations k. [-]

    Returns
    -------
    float or ndarray
        Floating-point operations of the products, additions left out. [FLOP]

    Raises
    ------
    FormulaDomainError
        If a size is negative or `iterations` no whole number.

    Notes
    -----
    In bf16, as the sources have it. Symmetric products are counted in full: kernels that compute one half of them are an option.
    DeepSpeed's later default works on the Gram matrix instead, which takes less where m is a few times n.

    Examples
    --------
    The first matrix of Llama 3 8B's feed-forward part, one of two halves:

    >>> float(newton_schulz_flops(14336, 4096)) / 1e12
    5.49755813888

    References
    ----------
    .. [1] K. Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), zeropower_via_newtonschulz5.
    .. [2] torchtitan 0fa8950c, components/distributed_optimizers/muon/storage_to_compute.py, _estimate_muon_compute_cost.
    .. [3] DeepSpeed 15e3bf4f, deepspeed/runtime/zero/muon/original_muon.py.
    """
    r = _check.real("rows", rows, low=0)
    c = _check.real("columns", columns, low=0)
    k = _check.whole("iterations", iterations, low=0)
    n: Real = np.minimum(r, c)
    m: Real = np.maximum(r, c)
    return k * n * n * (4 * m + 2 * n)


def host_step_s(
    parameters: ArrayLike,
    *,
    gpus: ArrayLike = 1,
    bytes_each: ArrayLike = 30,
    memory_bytes_per_s: ArrayLike,
    share: ArrayLike = 0.45,
) -> Real:
    r"""Return the seconds that the CPUs of a node take for the optimizer's step of all its GPUs.

    Every parameter whose state lies on the host is read and written there once, over a memory that the GPUs of the node share:

    $$ t = \frac{n P b}{s W} $$

    Parameters
    ----------
    parameters : array_like
        Parameters P whose state one GPU has on the host. [-]
    gpus : array_like, default 1
        GPUs n of the node. [-]
    bytes_each : array_like, default 30
        Bytes b read and written of a parameter, as of step_traffic_bytes. [B]
    memory_bytes_per_s : array_like
        Peak W of the memory of all CPUs of the node. [B/s]
    share : array_like, default 0.45
        Share s of the peak that Adam on CPUs reaches. [-]

    Returns
    -------
    float or ndarray
        Seconds of the update alone, without the copies over the host link. [s]

    Raises
    ------
    FormulaDomainError
        If a size is negative, `gpus` < 1, `memory_bytes_per_s` not positive or `share` not within (0, 1].

    Notes
    -----
    The default share is the middle of DeepSpeed's CPU-Adam on two Xeon 8168 with six channels of DDR4-2666 each (256 GB/s), 0.39 to
    0.53. PyTorch's Adam of the day, not fused, took five to six times as long.

    Examples
    --------
    Ten billion parameters on that host, for which 2.57 s are printed:

    >>> round(float(host_step_s(10e9, memory_bytes_per_s=256e9)), 2)
    2.6

    References
    ----------
    .. [1] Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv:2101.06840, tables 3 and 4.
    """
    P = _check.real("parameters", parameters, low=0)
    n = _check.real("gpus", gpus, low=1)
    b = _check.real("bytes_each", bytes_each, low=0)
    W = _check.real("memory_bytes_per_s", memory_bytes_per_s, low=0, open_low=True)
    s = _check.real("share", share, low=0, high=1, open_low=True)
    return n * P * b / (s * W)
