"""What one layer keeps and sends under tensor parallelism, without and with sequence parallelism, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parlay.errors import UsageError
from parlay.formulas import activations, tensor_parallel


@dataclass(frozen=True)
class LayerMemory:
    """Bytes that a GPU keeps of one layer and of all, whole, under TP alone and with SP; bytes it sends in a layer's forward pass."""

    layers: int
    whole_bytes: float
    tensor_bytes: float
    tensor_and_sequence_bytes: float
    all_tensor_bytes: float
    all_tensor_and_sequence_bytes: float
    replicated_share: float
    saving: float
    sent_bytes: float


def layer_memory(seq_len: int, hidden: int, *, tensor: int, layers: int = 1, element_bytes: float = 2) -> LayerMemory:
    """Return what the tensors kept for the backward pass weigh when nothing, the products, or all of it is split.

    Parameters
    ----------
    seq_len, hidden : int
        Tokens of one sequence and hidden width. [-]
    tensor : int
        Tensor-parallel degree t. [-]
    layers : int, default 1
        Layers that a GPU holds. [-]
    element_bytes : float, default 2
        Bytes of an element on the wire. [B]

    Returns
    -------
    LayerMemory
        Bytes of a layer and of all; the share of the bytes under TP alone that is not split, and the factor SP saves.

    Raises
    ------
    UsageError
        If a size is not positive.

    Notes
    -----
    The layer of Korthikanti et al. (arXiv:2205.05198) in half precision with fused attention, which keeps no scores.

    Examples
    --------
    >>> shown = layer_memory(8192, 4096, tensor=8, layers=32)
    >>> shown.whole_bytes, shown.tensor_bytes, shown.tensor_and_sequence_bytes
    (1140850688.0, 436207616.0, 142606336.0)
    """
    if min(seq_len, hidden, tensor, layers, element_bytes) <= 0:
        raise UsageError("sizes and counts must be > 0")
    whole, alone, both = (
        float(activations.korthikanti_layer(seq_len, hidden, tensor=t, sequence_parallel=sp))
        for t, sp in ((1, 0), (tensor, 0), (tensor, 1))
    )
    # Over endless GPUs only what is not split is left.
    kept = float(activations.korthikanti_layer(seq_len, hidden, tensor=math.inf))
    sent = float(tensor_parallel.layer_sent_bytes(tensor, seq_len, hidden, element_bytes))
    return LayerMemory(layers, whole, alone, both, layers * alone, layers * both, kept / alone, alone / both, sent)
