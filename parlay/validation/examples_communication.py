"""Worked examples on tensor and sequence parallelism and on links.

Symbols: t tensor-parallel degree · n elements · s tokens · h hidden width · e bytes of an element
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parlay.formulas.activations import token_tensors
from parlay.formulas.collectives import all_gather_sent_bytes, all_reduce_sent_bytes, reduce_scatter_sent_bytes
from parlay.formulas.optimizer_state import sharded_bytes
from parlay.formulas.parameters import mlp_parameters
from parlay.hardware.load import load_link
from parlay.simulate.collectives import reduce_scatter
from parlay.simulate.tensor import Shape, backward, forward, shard_weights
from parlay.simulate.world import World

PCIE_LINE_CODE = 128 / 130  # PCI Express 3.0 to 5.0 send 130 bits for 128, PCI Express Base Specification 5.0, section 4.2.2


def toy(t: int, n: int, gpu0: list[float], gpu1: list[float]) -> dict[str, Any]:
    """Elements sent by formula (one byte each), and what a reduce-scatter leaves on both ranks."""
    left = reduce_scatter(World(t), [np.asarray(gpu0, dtype=float), np.asarray(gpu1, dtype=float)])
    return {
        "tp_sent_elements": all_reduce_sent_bytes(t, n),
        "tp_sp_sent_elements": reduce_scatter_sent_bytes(t, n) + all_gather_sent_bytes(t, n),
        "gpu0_after": left[0],
        "gpu1_after": left[1],
    }


def same_bytes(t: int, s: int, h: int, e: int) -> dict[str, Any]:
    """An all-reduce beside its two halves."""
    n = token_tensors(s, h, element_bytes=e)
    halves = reduce_scatter_sent_bytes(t, n) + all_gather_sent_bytes(t, n)
    return {"all_reduce_bytes": all_reduce_sent_bytes(t, n), "reduce_scatter_plus_all_gather_bytes": halves}


def layer_collectives() -> dict[str, Any]:
    """Whole activations that a simulated layer moves, forward and backward; a collective's bytes tell which one it is.

    The layer gathers a norm's output once more for the weight gradients, which the document leaves out.
    """
    alone, split = (_layer_sent(sequence_parallel) for sequence_parallel in (False, True))
    reduce, gather = float(all_reduce_sent_bytes(2, alone[1])), float(all_gather_sent_bytes(2, alone[1]))
    pairs = split[0] / (2 * gather)
    return {"tp_all_reduce": alone[0] / reduce, "tp_sp_all_gather": pairs, "tp_sp_reduce_scatter": pairs}


def _layer_sent(sequence_parallel: bool) -> tuple[float, float]:
    """Return the bytes that rank 0 sends in the forward and backward pass of one layer, and the bytes of an activation."""
    tokens, hidden, heads, inner, ranks = 8, 16, 4, 32, 2
    rng = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("gain_1", "bias_1", "bo", "gain_2", "bias_2", "b_down"), (hidden,))
    sizes |= {"bq": (hidden,), "bk": (hidden,), "bv": (hidden,), "b_up": (inner,)}
    sizes |= dict.fromkeys(("wq", "wk", "wv", "wo"), (hidden, hidden))
    sizes |= {"w_up": (hidden, inner), "w_down": (inner, hidden)}
    shape = Shape(heads, heads, hidden // heads, ranks, sequence_parallel)
    weights = shard_weights({name: rng.standard_normal(size) for name, size in sizes.items()}, shape)
    rows = tokens // ranks if sequence_parallel else tokens
    x = [rng.standard_normal((rows, hidden)) for _ in range(ranks)]
    masks = [{name: np.ones((rows, hidden), dtype=np.bool_) for name in ("mask 1", "mask 2")} for _ in range(ranks)]
    world = World(ranks)
    saved = forward(world, x, weights, masks, shape)
    backward(world, x, saved, weights, shape)
    sent = world.ledger.sent_bytes("layer forward", "layer backward")
    return float(sent[0]), float(tokens * hidden * x[0].itemsize)


def sequence_parallel_bytes(t: int, s: int, h: int, e: int) -> dict[str, Any]:
    """Forward pass: two all-gathers and two reduce-scatters."""
    n = token_tensors(s, h, element_bytes=e)
    return {"bytes": 2 * all_gather_sent_bytes(t, n) + 2 * reduce_scatter_sent_bytes(t, n)}


def two_matrices(d_in: int, d_ff: int, d_out: int, bytes: int, tp: int) -> dict[str, Any]:
    """Weights of two matrices of different widths, whole and per rank."""
    weights = mlp_parameters(d_in, d_ff, 1) + mlp_parameters(d_out, d_ff, 1)
    whole, part = sharded_bytes(weights, bytes), sharded_bytes(weights, bytes, shards=tp)
    return {"total_bytes": whole, "total_GB": whole / 1e9, "per_gpu_GB": part / 1e9}


def split_products() -> dict[str, Any]:
    """Split a weight by columns and by rows; see whether parts side by side or their sum give the whole product."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4)), rng.standard_normal((4, 6))
    column = [x @ part for part in np.split(w, 2, axis=1)]
    row = [left @ part for left, part in zip(np.split(x, 2, axis=1), np.split(w, 2, axis=0), strict=True)]
    return {"column": _completes(column, x @ w), "row": _completes(row, x @ w)}


def _completes(parts: list[Any], whole: Any) -> str:
    gathered, added = np.concatenate(parts, axis=1), sum(parts)
    if gathered.shape == whole.shape and np.allclose(gathered, whole):
        return "all-gather"
    return "all-reduce" if np.allclose(added, whole) else "neither"


def link_speeds() -> dict[str, Any]:
    """One direction, from the catalog, which counts PCIe behind its line code; the document counts the line itself."""
    nvlink = load_link("nvlink4").bytes_per_s.value / 1e9
    pcie = load_link("pcie5-x16").bytes_per_s.value / 1e9
    return {
        "nvlink_GBps": nvlink,
        "pcie_GBps": pcie,
        "nvlink4_one_way_GBps": nvlink,
        "pcie_gen5_x16_one_way_GBps": round(pcie / PCIE_LINE_CODE),
    }


def output_bytes(tokens: int, d_out: int, bytes: int, t: int) -> dict[str, Any]:
    """What an all-reduce of a block's output sends."""
    sent = all_reduce_sent_bytes(t, token_tensors(tokens, d_out, element_bytes=bytes))
    return {"bytes": sent, "GB": sent / 1e9}


EXAMPLES = {
    "sp-toy-two-gpus": toy,
    "sp-same-bytes-code": same_bytes,
    "sp-collective-count": layer_collectives,
    "megatron-sp-bytes": sequence_parallel_bytes,
    "tp-ffn-memory": two_matrices,
    "tp-linear-collectives": split_products,
    "link-speeds": link_speeds,
    "tp-output-bytes": output_bytes,
}
