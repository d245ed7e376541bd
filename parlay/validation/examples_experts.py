"""Worked examples on mixtures of experts.

Symbols: k experts a token chooses · T tokens of a rank · h hidden width · Ne ranks · E experts · d_ff, m expert width
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parlay.formulas.experts import (
    exchange_sent_bytes,
    exchange_to_compute,
    expert_capacity,
    expert_copies,
    expert_flops,
    experts_per_rank,
)
from parlay.formulas.latent_experts import (
    latent_dispatched_elements,
    latent_exchange_to_compute,
    latent_expert_weights,
    latent_routed_width,
)
from parlay.formulas.roofline import compute_bound_rows, machine_balance
from parlay.formulas.routing import busiest_over_mean, load_balancing_loss
from parlay.layouts.layout import Layout

SEED = 0
DRAWN_BEFORE = (4, 8, 16)  # normal draws that the document's program takes from the same generator before it routes


def exchange(k: int, T: int, h: int, e: int, Ne: int, W_nvlink: float, W_infiniband: float) -> dict[str, Any]:
    """Dispatch and combine, and their time."""
    sent = exchange_sent_bytes(Ne, k, T, h, dispatch_element_bytes=e, combine_element_bytes=e)
    return {"bytes": sent, "MB": sent / 1e6, "nvlink_ms": sent / W_nvlink * 1e3, "infiniband_ms": sent / W_infiniband * 1e3}


def exchange_bytes(k: int, T: int, h: int, e: int, Ne: int) -> dict[str, Any]:
    """Dispatch and combine."""
    return {"bytes": exchange_sent_bytes(Ne, k, T, h, dispatch_element_bytes=e, combine_element_bytes=e)}


def compute(k: int, T: int, h: int, d_ff: int, F: float) -> dict[str, Any]:
    """Gated experts on the tokens of one rank."""
    one, every = expert_flops(1, 1, h, d_ff), expert_flops(k, T, h, d_ff)
    return {"copies": every / one, "FLOP_per_copy": one, "MFLOP_per_copy": one / 1e6, "FLOP": every, "ms": every / F * 1e3}


def exchange_ratio(F: float, W_nvlink: float, W_infiniband: float, Ne: int, d_ff: int) -> dict[str, Any]:
    """Communication over compute of gated experts."""
    return {"nvlink": exchange_to_compute(Ne, d_ff, F, W_nvlink), "infiniband": exchange_to_compute(Ne, d_ff, F, W_infiniband)}


def exchange_ratio_narrow(F: float, W: float, Ne: int, d_ff: int) -> dict[str, Any]:
    """The same for two and three matrices; the document's statement has to hold for the smaller of the two."""
    two, gated = (exchange_to_compute(Ne, d_ff, F, W, matrices=n) for n in (2, 3))
    return {"two_matrix": two, "swiglu": gated, "far_larger_than": min(two, gated)}


def drawn_routing(Ne: int, E: int, k: int, T: int, h: int, e: int) -> dict[str, Any]:
    """Draw the document's routing again and count what leaves each rank; the formula is its expectation."""
    draw = np.random.default_rng(SEED)
    draw.standard_normal(DRAWN_BEFORE)
    held = int(experts_per_rank(E, Ne))
    leaving = []
    for rank in range(Ne):
        chosen = np.argsort(draw.random((T, E)), axis=1)[:, :k]
        leaving.append(np.count_nonzero(chosen // held != rank) * h * e)
    expected = exchange_sent_bytes(Ne, k, T, h, dispatch_element_bytes=e, combine_element_bytes=e)
    return {"simulated_MB": 2 * np.mean(leaving) / 1e6, "formula_MB": expected / 1e6}


def busiest(gpus: int, hot_expert_load: float) -> dict[str, Any]:
    """One rank gets `hot_expert_load` times the mean, the others share the rest."""
    rest = (gpus - hot_expert_load) / (gpus - 1)
    return {"slowdown": busiest_over_mean([hot_expert_load] + [rest] * (gpus - 1))}


def capacity(CF: float, k: int, N: int, E: int) -> dict[str, Any]:
    """Rows that an expert takes."""
    return {"tokens": expert_capacity(CF, k, N, E)}


def balanced_loss(alpha: float, E: int) -> dict[str, Any]:
    """Every expert gets its even share."""
    even = np.full(E, 1 / E)
    return {"loss": load_balancing_loss(alpha, even, even)}


def active_ratio(total: float, active: float) -> dict[str, Any]:
    """Active over total parameters."""
    return {"ratio": active / total}


def expert_grid(E: int, D: int) -> dict[str, Any]:
    """One expert a rank, the group of E ranks held D times."""
    layout = Layout(dp=E * D, ep=E)
    return {"gpus": layout.gpus, "copies_of_each_expert": expert_copies(layout.gpus, layout.ep)}


def balance(F: float, hbm: float, N: int, EP: int) -> dict[str, Any]:
    """Machine balance, and the experts a rank holds."""
    return {"FLOP_per_byte": machine_balance(F, hbm), "experts_per_gpu": experts_per_rank(N, EP)}


def tokens_needed(d: int, m: int, I: float) -> dict[str, Any]:  # noqa: E741 - the document's letter
    """Tokens at which an expert's product is bound by compute; the document counts one byte an element."""
    return {"tokens": compute_bound_rows(I, d, m, element_bytes=1)}


def latent_ratio(F: float, m: int, BW: float) -> dict[str, Any]:
    """Exchange over one matrix of an expert."""
    return {"ratio": latent_exchange_to_compute(m, F, BW)}


def latent(N: int, K: int, d: int, m: int, alpha: float) -> dict[str, Any]:
    """After the change over before it."""
    return {
        "bytes_ratio": latent_dispatched_elements(K, d, alpha) / (K * d),
        "weights_ratio": latent_expert_weights(N, d, m, alpha) / (N * d * m),
        "width_ratio": latent_routed_width(K, m, alpha) / (K * m),
    }


EXAMPLES = {
    "moe-a2a-mixtral-like": exchange,
    "moe-expert-flops": compute,
    "moe-a2a-ratio": exchange_ratio,
    "moe-a2a-ratio-deepseek-v3": exchange_ratio_narrow,
    "moe-a2a-top1": exchange_bytes,
    "moe-a2a-simulated": drawn_routing,
    "moe-busiest-gpu": busiest,
    "moe-capacity": capacity,
    "moe-load-balancing-loss": balanced_loss,
    "moe-active-ratio-v4": active_ratio,
    "ep-dp-gpus": expert_grid,
    "latent-moe-machine-balance": balance,
    "latent-moe-tokens-per-expert": tokens_needed,
    "latent-moe-comm-ratio": latent_ratio,
    "latent-moe-alpha": latent,
}
