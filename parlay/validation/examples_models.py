"""Worked examples on whole models and meshes, from the catalog."""

from __future__ import annotations

from typing import Any

from parlay.estimate.counts import parameters
from parlay.estimate.placement import axis_strides
from parlay.formulas.optimizer_state import sharded_bytes
from parlay.layouts.layout import Layout, Layouts
from parlay.models.load import load_model


def billions(model: str) -> dict[str, Any]:
    """Total and active parameters."""
    counts = parameters(load_model(model))
    return {"total_B": counts.total / 1e9, "active_B": counts.active / 1e9}


def weights(model: str, bytes: int) -> dict[str, Any]:
    """Bytes of a model's weights, not sharded."""
    return {"GB": sharded_bytes(parameters(load_model(model)).total, bytes) / 1e9}


def mesh(tp: int, cp: int, pp: int, dp: int) -> dict[str, Any]:
    """GPUs of a layout, and its axes by how far apart their neighbours lie."""
    layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp, order=("tp", "cp", "pp", "dp"))
    strides = axis_strides(Layouts.of(layout))
    return {"gpus": layout.gpus, "order": sorted(strides, key=lambda axis: float(strides[axis][0]))}


EXAMPLES = {
    "moe-params-mixtral": billions,
    "moe-params-deepseek-v3": billions,
    "gpt3-weights": weights,
    "llama3-405b-mesh": mesh,
}
