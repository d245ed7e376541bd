"""Worked examples on activation memory.

Symbols: s sequence length · b sequences · h hidden width · t tensor-parallel degree · L tokens
"""

from __future__ import annotations

from typing import Any

from parlay.formulas.activations import korthikanti_layer, token_tensors
from parlay.formulas.parameters import attention_parameters

HEADS_PLAIN = 32  # the document's model: as many key/value heads as query heads


def one_layer_whole(s: int, b: int, h: int) -> dict[str, Any]:
    """One layer, nothing split."""
    kept = korthikanti_layer(s * b, h)
    return {"bytes": kept, "GB": kept / 1e9}


def many_layers_then_split(s: int, b: int, h: int, layers: int, t: int) -> dict[str, Any]:
    """All layers, whole and split by tensor and sequence parallelism."""
    whole = layers * korthikanti_layer(s * b, h)
    split = layers * korthikanti_layer(s * b, h, tensor=t, sequence_parallel=1)
    return {"all_layers_GB": whole / 1e9, "per_gpu_GB": split / 1e9}


def replicated() -> dict[str, Any]:
    """What tensor parallelism leaves whole: the limit of a very large degree."""
    endless = 2.0**60
    norms = korthikanti_layer(1, 1, tensor=endless, mask_bytes=0)
    both = korthikanti_layer(1, 1, tensor=endless)
    inputs = token_tensors(1, 1, tensors=2)
    return {
        "norm_inputs_sbh": inputs,
        "norm_outputs_sbh": norms - inputs,
        "dropout_masks_sbh": both - norms,
        "total_sbh": both,
    }


def tensor_parallel(s: int, b: int, h: int, t: int, layers: int) -> dict[str, Any]:
    """Tensor parallelism alone."""
    kept = korthikanti_layer(s * b, h, tensor=t)
    return {"layer_bytes": kept, "layer_MB": kept / 1e6, "layers_GB": layers * kept / 1e9}


def tensor_and_sequence_parallel(s: int, b: int, h: int, t: int, layers: int) -> dict[str, Any]:
    """Tensor and sequence parallelism."""
    kept = korthikanti_layer(s * b, h, tensor=t, sequence_parallel=1)
    return {"layer_bytes": kept, "layer_MB": kept / 1e6, "layers_GB": layers * kept / 1e9}


def saving(t: int) -> dict[str, Any]:
    """What sequence parallelism saves."""
    alone = korthikanti_layer(1, 1, tensor=t)
    both = korthikanti_layer(1, 1, tensor=t, sequence_parallel=1)
    never_split = replicated()["total_sbh"]
    return {"replicated_share": never_split / alone, "saving": alone / both}


def both_ways(s: int, b: int, h: int, t: int) -> dict[str, Any]:
    """One layer, without and with sequence parallelism."""
    alone = korthikanti_layer(s * b, h, tensor=t)
    both = korthikanti_layer(s * b, h, tensor=t, sequence_parallel=1)
    return {"tp_bytes": alone, "tp_sp_bytes": both, "tp_MB": alone / 1e6, "tp_sp_MB": both / 1e6}


def attention_block(h: int, B: int, L_short: int, L_long: int) -> dict[str, Any]:
    """Input, Q, K, V and output in bf16, and the weights of the three input projections."""
    head = h // HEADS_PLAIN
    all_four = attention_parameters(h, HEADS_PLAIN, HEADS_PLAIN, head)
    weights = token_tensors(all_four - h * h, 1)  # the output projection is left out
    short, long = (weights + token_tensors(B * L, h, tensors=5) for L in (L_short, L_long))
    return {"L_short_bytes": short, "L_long_bytes": long, "L_short_GB": short / 1e9, "L_long_GB": long / 1e9}


def split_sequence(B: int, L: int, H: int, TP: int) -> dict[str, Any]:
    """A norm's input, whole over the part that a rank holds."""
    return {"ratio": token_tensors(B * L, H) / token_tensors(B * L, H, tensor=TP, sequence_parallel=1)}


EXAMPLES = {
    "act-flash-131k-layer": one_layer_whole,
    "act-flash-131k-32-layers": many_layers_then_split,
    "act-replicated-10sbh": replicated,
    "act-none-7b": one_layer_whole,
    "act-tp-7b": tensor_parallel,
    "act-tp-sp-7b": tensor_and_sequence_parallel,
    "act-sp-saving-7b": saving,
    "act-check-yourself-2": both_ways,
    "attention-memory-llama31-8b": attention_block,
    "sp-activation-scaling": split_sequence,
}
