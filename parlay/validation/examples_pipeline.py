"""Worked examples on pipelines.

Symbols: K stages · M micro-batches · N samples of a batch · L layers · s sequence length · d hidden width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parlay.formulas.activations import token_tensors
from parlay.formulas.pipeline_steps import (
    bubble_share,
    double_buffered_weight_versions,
    pipedream_weight_versions,
    rematerialised_bytes,
)

# The orders that the documents write, as functions of what they are orders of.
Order = Callable[..., float]
BUBBLE_ORDERS: Mapping[str, Order] = {"K/(M+K)": lambda K, M: K / (M + K), "K/M": lambda K, M: K / M}
MEMORY_ORDERS: Mapping[str, Order] = {
    "N + (L/K)(M/N)": lambda N, M, L, K: N + L / K * M / N,
    "N + (L/K)(N/M)": lambda N, M, L, K: N + L / K * N / M,
}


def idle_share(K: float, M: float) -> float:
    """Share of a step in which a stage waits."""
    return float(bubble_share(K, M))


def order_of(function: Order, orders: Mapping[str, Order], points: list[dict[str, float]]) -> str:
    """Return the order whose ratio to `function` stays the same as the arguments grow without bound."""

    def drift(order: Order) -> float:
        ratios = [function(**p) / order(**p) for p in points]
        return max(ratios) / min(ratios)

    return min(orders, key=lambda name: drift(orders[name]))


def naive(K: int) -> dict[str, Any]:
    """One micro-batch: a stage works once and waits K - 1 times."""
    return {"idle": idle_share(K, 1)}


def gpipe_idle(K: int, M: int) -> dict[str, Any]:
    """Idle share, and its order for many stages and micro-batches."""
    points = [{"K": 1e6 * K, "M": 1e6 * M * ratio} for ratio in (0.01, 1.0, 100.0)]
    return {"idle": idle_share(K, M), "order": order_of(idle_share, BUBBLE_ORDERS, points)}


def rematerialised(L: float, d: float, s: float, N: float, K: float, M: float) -> float:
    """Bytes of all samples' boundary activations and of one micro-batch's own layers of a stage."""
    return float(rematerialised_bytes(K, M, L, token_tensors(N * s, d)))


def gpipe_memory(L: int, d: int, s: int, N: int, K: int, M: int) -> dict[str, Any]:
    """Boundary activations of a batch, kept or recomputed."""
    layer = float(token_tensors(N * s, d))
    every, stage, least = L * layer, L / K * layer, rematerialised(L, d, s, N, K, M)
    return {
        "layer_bytes": layer, "none_bytes": every, "pipelined_bytes": stage, "rematerialised_bytes": least,
        "layer_GB": layer / 1e9, "none_GB": every / 1e9, "pipelined_GB": stage / 1e9, "rematerialised_GB": least / 1e9,
        "reduction": every / least,
    }  # fmt: skip


def rematerialisation_order() -> dict[str, Any]:
    """Which printed order grows as the bytes do."""
    points = [{"N": n, "M": m, "L": 1e6, "K": 8.0} for n, m in ((64.0, 8.0), (64.0, 64.0), (512.0, 8.0))]
    return {"order": order_of(lambda N, M, L, K: rematerialised(L, 1, 1, N, K, M), MEMORY_ORDERS, points)}


def weight_versions(K: int) -> dict[str, Any]:
    """Asynchronous, double-buffered, and synchronous, which drains before it updates and so needs one version."""
    return {"pipedream": pipedream_weight_versions(K, 0), "two_bw": double_buffered_weight_versions(K), "synchronous": 1}


EXAMPLES = {
    "naive-pipeline-idle": naive,
    "gpipe-bubble": gpipe_idle,
    "gpipe-llama3-8b-memory": gpipe_memory,
    "gpipe-rematerialisation-order": rematerialisation_order,
    "pipedream-weight-versions": weight_versions,
}
