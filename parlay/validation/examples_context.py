"""Worked examples on ring attention, Ulysses and placement of tokens.

Symbols: c tokens of a block · h width of all heads · F FLOP/s · W bytes/s of a link · g query heads per K/V head · Nc ranks
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parlay.formulas.ring_attention import (
    ring_block_min,
    ring_block_min_backward,
    ring_exposed_s,
    ring_held_bytes,
    ring_sent_bytes,
    round_bytes,
    round_flops,
)
from parlay.formulas.ring_placement import (
    contiguous_busy_share,
    contiguous_ring_pairs,
    contiguous_round_pairs,
    zigzag_ring_pairs,
    zigzag_round_pairs,
)
from parlay.formulas.ulysses import kv_head_copies, largest_degree, ulysses_sent_bytes
from parlay.hardware.load import load_device

LONG = 1e12  # tokens of a block that is long against every other size
DOCUMENT_DEVICE = "h100-sxm"  # where an example leaves the rate out, the document computes with this one


def smallest_blocks(F: float, W_nvlink: float, W_infiniband: float) -> dict[str, Any]:
    """Full attention, as many K/V heads as query heads."""
    return {"nvlink": ring_block_min(F, W_nvlink), "infiniband": ring_block_min(F, W_infiniband)}


def smallest_block_grouped(F: float, W: float, g: int) -> dict[str, Any]:
    """Grouped heads."""
    return {"tokens": ring_block_min(F, W, queries_per_kv=g)}


def smallest_block_causal(F: float, W: float, g: int) -> dict[str, Any]:
    """Grouped heads, causal mask, balanced placement."""
    return {"tokens": ring_block_min(F, W, queries_per_kv=g, score_share=0.5)}


def backward_over_forward(bytes_factor: float, flops_factor: float) -> dict[str, Any]:
    """Smallest block backward over forward; the formula must have the factors that the document names."""
    ratio = float(ring_block_min_backward(1e15, 1e11) / ring_block_min(1e15, 1e11))
    if abs(ratio - bytes_factor / flops_factor) > 1e-9:
        raise ValueError(f"the formula's factors are {ratio:g} apart, the document's {bytes_factor / flops_factor:g}")
    return {"ratio_to_forward": ratio}


def held_blocks(c: int, h: int, e: int) -> dict[str, Any]:
    """Blocks of a round."""
    held = ring_held_bytes(c, h, h, element_bytes=e)
    return {"bytes": held, "blocks": held / (c * h * e)}


def round_compute(s: int, Nc: int, h: int, F: float) -> dict[str, Any]:
    """One round on one rank."""
    flops = round_flops(s / Nc, h)
    return {"c": s // Nc, "FLOP": flops, "TFLOP": flops / 1e12, "ms": flops / F * 1e3}


def round_transfer(c: int, h: int, F: float, W_nvlink: float, W_network: float) -> dict[str, Any]:
    """One block passed on beside one round."""
    sent, compute = round_bytes(c, h), round_flops(c, h) / F
    return {
        "bytes": sent,
        "MB": sent / 1e6,
        "nvlink_ms": sent / W_nvlink * 1e3,
        "network_ms": sent / W_network * 1e3,
        "nvlink_hidden": bool(ring_exposed_s(2, compute, sent / W_nvlink) == 0),
        "network_hidden": bool(ring_exposed_s(2, compute, sent / W_network) == 0),
    }


def round_transfer_grouped(c: int, h: int, g: int, W_network: float) -> dict[str, Any]:
    """The same with narrower keys and values."""
    F = load_device(DOCUMENT_DEVICE).flops_per_s["bf16"].value
    sent, compute = round_bytes(c, h / g), round_flops(c, h) / F
    transfer = sent / W_network
    return {"bytes": sent, "MB": sent / 1e6, "ms": transfer * 1e3, "hidden": bool(ring_exposed_s(2, compute, transfer) == 0)}


def ring_beside_ulysses(s: int, Nc: int, h: int) -> dict[str, Any]:
    """Bytes of one layer's forward pass."""
    ring, ulysses = ring_sent_bytes(Nc, s / Nc, h), ulysses_sent_bytes(Nc, s / Nc, h, h)
    return {
        "ring_bytes": ring, "ulysses_bytes": ulysses, "ring_GB": ring / 1e9, "ulysses_MB": ulysses / 1e6, "ratio": ring / ulysses,
    }  # fmt: skip


def head_limit(query_heads: int, kv_heads: int, wanted: int) -> dict[str, Any]:
    """Largest degree without copies; the wanted one needs some."""
    if kv_head_copies(wanted, kv_heads) <= 1:
        raise ValueError(f"degree {wanted} needs no copies of {kv_heads} K/V heads")
    return {"largest": largest_degree(query_heads, kv_heads)}


def rounds(Nc: int, s: int) -> dict[str, Any]:
    """Pairs of every rank (rows) and round (columns)."""
    rank, index = np.arange(Nc)[:, None], np.arange(Nc)[None, :]
    c = s // Nc
    zigzag, contiguous = zigzag_round_pairs(Nc, rank, index, c), contiguous_round_pairs(Nc, rank, index, c)
    return {
        "zigzag_per_rank": zigzag.sum(axis=1),
        "zigzag_round_max": zigzag.max(axis=0),
        "zigzag_time": zigzag_ring_pairs(Nc, c),
        "contiguous_per_rank": contiguous.sum(axis=1),
        "contiguous_round_max": contiguous.max(axis=0),
        "contiguous_time": contiguous_ring_pairs(Nc, c),
        "total_pairs": zigzag.sum(),
    }


def speedup(Nc: int) -> dict[str, Any]:
    """Two tokens a rank, as in the document's picture, and long blocks."""
    return {
        "token_level": contiguous_ring_pairs(Nc, 2) / zigzag_ring_pairs(Nc, 2),
        "long_blocks": contiguous_ring_pairs(Nc, LONG) / zigzag_ring_pairs(Nc, LONG),
    }


def contiguous(Nc: int) -> dict[str, Any]:
    """Who is waited for, and how busy ranks are."""
    pairs = contiguous_round_pairs(Nc, np.arange(Nc)[:, None], np.arange(Nc)[None, :], LONG)
    return {"slowest_rank": int(np.argmax(pairs.sum(axis=1))), "busy_share": contiguous_busy_share(Nc)}


def grid_tokens(lat: int, lon: int, patch: int) -> dict[str, Any]:
    """Points of a grid, and square patches of it."""
    points = lat * lon
    return {"points": points, "points_million": points / 1e6, "tokens": points / patch**2}


EXAMPLES = {
    "ring-min-block-h100": smallest_blocks,
    "ring-min-block-gqa": smallest_block_grouped,
    "ring-min-block-causal-gqa": smallest_block_causal,
    "ring-min-block-backward": backward_over_forward,
    "ring-memory-six-blocks": held_blocks,
    "ring-128k-compute": round_compute,
    "ring-128k-transfer": round_transfer,
    "ring-128k-gqa": round_transfer_grouped,
    "ring-vs-ulysses-bytes": ring_beside_ulysses,
    "ulysses-head-limit": head_limit,
    "zigzag-rounds": rounds,
    "zigzag-speedup": speedup,
    "contiguous-efficiency": contiguous,
    "weather-tokens": grid_tokens,
}
