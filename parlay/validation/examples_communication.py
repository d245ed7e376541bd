"""Worked examples on tensor and sequence parallelism and on links.

Symbols: t tensor-parallel degree · n elements · s tokens · h hidden width · e bytes of an element
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parlay.formulas.activations import token_tensors
from parlay.formulas.collectives import all_gather_sent_bytes, all_reduce_sent_bytes, reduce_scatter_sent_bytes
from parlay.formulas.tensor_parallel import (
    all_reduces,
    column_output_sent_bytes,
    layer_sent_bytes,
    row_output_sent_bytes,
    sequence_parallel_gathers,
    sequence_parallel_scatters,
    shard_bytes,
)
from parlay.hardware.load import load_link
from parlay.simulate.collectives import reduce_scatter
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
    """Collectives of one layer, forward and backward."""
    return {
        "tp_all_reduce": all_reduces(1),
        "tp_sp_all_gather": sequence_parallel_gathers(1),
        "tp_sp_reduce_scatter": sequence_parallel_scatters(1),
    }


def sequence_parallel_bytes(t: int, s: int, h: int, e: int) -> dict[str, Any]:
    """Forward pass: two all-gathers and two reduce-scatters."""
    return {"bytes": layer_sent_bytes(t, s, h, element_bytes=e)}


def two_matrices(d_in: int, d_ff: int, d_out: int, bytes: int, tp: int) -> dict[str, Any]:
    """Weights of two matrices of different widths, whole and per rank."""
    whole, part = (
        shard_bytes(t, d_in, d_ff, element_bytes=bytes) + shard_bytes(t, d_ff, d_out, element_bytes=bytes) for t in (1, tp)
    )
    return {"total_bytes": whole, "total_GB": whole / 1e9, "per_gpu_GB": part / 1e9}


def split_products() -> dict[str, Any]:
    """Which collective sends what completes a product takes."""
    return {"column": _collective(column_output_sent_bytes), "row": _collective(row_output_sent_bytes)}


def _collective(completed: Callable[[float, float], Any]) -> str:
    known = {"all-gather": all_gather_sent_bytes, "all-reduce": all_reduce_sent_bytes}
    fits = [name for name, sent in known.items() if all(completed(t, 1e9) == sent(t, 1e9) for t in (2, 4, 8))]
    return fits[0] if len(fits) == 1 else "neither"


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
