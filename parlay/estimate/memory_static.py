"""Weights, gradients and optimizer state of every stage, dense and expert parameters apart."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.local import LocalParameters
from parlay.estimate.memory_tables import Tables
from parlay.estimate.placement import copies_of_a_stage, shards_of
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, total
from parlay.formulas import optimizer_state as state
from parlay.layouts.layout import Layouts
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Static:
    """What stays from step to step (`term`), what the optimizer step holds on top, and what of that is left until the next
    step begins (bytes by layout and stage)."""

    term: Term
    step: Array
    left: Array


def static_state(
    model: ModelSpec, settings: Settings, layouts: Layouts, stages: Stages, tables: Tables, local: LocalParameters
) -> Static:
    """Return the state of every stage as a term with its parts."""
    zero = layouts.zero[:, None]
    gradient = np.where(zero >= 3, settings.sharded_gradient_bytes, settings.gradient_bytes)
    on_device = 1.0 - layouts.offload_optimizer[:, None]
    needed = settings.recipe is not None or settings.optimizer == "muon"
    nothing = {"dense": np.zeros((1, 1)), "expert": np.zeros((1, 1))}
    linear = _over_layers(stages, model, tables, "linear") if needed else nothing
    narrow = _over_layers(stages, model, tables, "linear", narrow=True) if settings.recipe else nothing
    parts: dict[str, list[Term]] = {"weights": [], "gradients": [], "optimizer": []}
    step: Array = np.zeros(stages.index.shape)
    scaled: Array = np.zeros(stages.index.shape)  # of one optimizer at a time
    left: Array = np.zeros(stages.index.shape)
    of_dense, of_expert = shards_of(layouts)
    groups = [("dense", local.dense, of_dense), ("expert", local.expert, of_expert)]
    if local.adapters is not None:
        groups.append(("adapter", local.adapters, of_dense))
    for which, parameters, shards in groups:
        if not parameters.any():
            continue
        frozen = settings.frozen_bytes is not None and which != "adapter"
        weight = settings.frozen_bytes if settings.frozen_bytes is not None and frozen else settings.weight_bytes
        owners = shards * copies_of_a_stage(layouts)[:, None]
        stored = {2: np.where(zero >= 2, shards, 1.0), 3: np.where(zero >= 3, shards, 1.0), 1: np.where(zero >= 1, owners, 1.0)}
        mine = linear.get(which, np.zeros((1, 1)))
        quantised = narrow.get(which, np.zeros((1, 1)))
        count = parameters - quantised if settings.quantised_only else parameters
        parts["weights"].append(_bytes(f"memory.weights.{which}", f"{which} weights", count, weight, stored[3]))
        if settings.recipe and settings.weight_copies and quantised.any():
            parts["weights"].append(_copies(settings, which, quantised, stored[3]))
        if frozen:
            continue
        parts["gradients"].append(_bytes(f"memory.gradients.{which}", f"{which} gradients", parameters, gradient, stored[2]))
        parts["optimizer"] += _optimizer(model, settings, which, parameters, mine, stored[1], on_device, stages, tables)
        step = step + np.where(zero >= 3, settings.sharded_step_bytes, settings.step_bytes) * parameters / stored[1]
        scaled = np.maximum(scaled, settings.scaled_bytes * parameters / stored[1])
        left = left + np.where(zero >= 3, settings.sharded_left_bytes, settings.left_bytes) * parameters / stored[1]
    labels = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}
    terms = tuple(total(f"memory.{k}", labels[k], tuple(v)) for k, v in parts.items())
    return Static(total("memory.static", "weights, gradients, optimizer", terms), (step + scaled) * on_device, left * on_device)


def _bytes(key: str, label: str, parameters: Array, bytes_each: float | Array, shards: Array) -> Term:
    value = state.sharded_bytes(parameters, bytes_each, shards=shards)
    inputs = {"parameters": parameters, "bytes_each": bytes_each, "shards": shards}
    return Term(key, label, value, formula="optimizer_state.sharded_bytes", inputs=inputs)


def _copies(settings: Settings, which: str, linear: Array, shards: Array) -> Term:
    """Return the quantised copies that stay for the whole step; a sharded weight is quantised when it is gathered."""
    recipe = settings.recipe
    assert recipe is not None
    kept = linear / shards
    how = {"copies": settings.weight_copies, "block": recipe.weight_block, "element_bytes": recipe.element_bytes,
           "scale_bytes": recipe.scale_bytes}  # fmt: skip
    value = state.quantised_copies(kept, **how)
    key, label = f"memory.weights.{which}.quantised", f"{which} quantised copies"
    return Term(key, label, value, formula="optimizer_state.quantised_copies", inputs={"parameters": kept, **how})


def _optimizer(
    model: ModelSpec, settings: Settings, which: str, parameters: Array, matrices: Array, shards: Array, on_device: Array,
    stages: Stages, tables: Tables,
) -> list[Term]:  # fmt: skip
    """Return main weights and moments on the device for one group of parameters."""
    key, out = f"memory.optimizer.{which}", []
    here = parameters * on_device
    if settings.master_bytes:
        out.append(_bytes(f"{key}.main", f"{which} main weights", here, settings.master_bytes, shards))
    if settings.optimizer == "adamw":
        out.append(_bytes(f"{key}.moments", f"{which} moments", here, settings.moments_bytes, shards))
    elif settings.optimizer == "sgd":
        out.append(_bytes(f"{key}.moments", f"{which} momentum", here, settings.moment_bytes, shards))
    elif settings.optimizer == "adamw-8bit":
        value = state.blockwise_moments(here, shards=shards)
        out.append(Term(f"{key}.moments", f"{which} 8-bit moments", value, formula="optimizer_state.blockwise_moments",
                        inputs={"parameters": here, "shards": shards}))  # fmt: skip
    elif settings.optimizer == "muon":  # one momentum for matrices of layers, two Adam moments for all else
        inner = np.minimum(matrices, parameters) * on_device
        out.append(_bytes(f"{key}.momentum", f"{which} momentum of matrices", inner, settings.moment_bytes, shards))
        out.append(_bytes(f"{key}.moments", f"{which} moments of the rest", here - inner, settings.moments_bytes, shards))
    else:
        edges = _over_layers(stages, model, tables, "edges")[which] * on_device
        if which == "dense":
            table = (tables.row(tables.vocab / tables.shard.tp) + model.hidden) * on_device
            edges = edges + table * (1.0 * stages.embedding + stages.head)
        out.append(_bytes(f"{key}.moments", f"{which} factored moments", edges, 4.0, shards))
    return out


def _over_layers(stages: Stages, model: ModelSpec, tables: Tables, what: str, *, narrow: bool = False) -> dict[str, Array]:
    """Return elements ("linear") or rows + columns ("edges") of all layer matrices of each stage, dense and expert; of `narrow` layers
    those that do not stay in bf16."""
    out: dict[str, Array] = {"dense": np.zeros(stages.index.shape), "expert": np.zeros(stages.index.shape)}
    for kind, found in tables.matrices.items():
        if narrow and model.kinds[kind].bf16:
            continue
        layers = stages.layers[kind] + (np.minimum(stages.mtp, model.mtp_modules) if kind == model.mtp_kind else 0.0)
        for which in out:
            chosen = [m for m in found if m.grouped == (which == "expert") and m.linear]
            each = sum(
                (m.count * (m.elements if what == "linear" else m.rows + m.columns) for m in chosen),
                start=np.zeros_like(tables.vocab),
            )
            out[which] = out[which] + layers * tables.row(np.asarray(each))
    return out
