"""Parameters on one rank of every stage: what tensor, expert and pipeline parallelism leave of the model."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.estimate.adapters import adapter_parameters
from parlay.estimate.counts import Part, layer_parts, mtp_extra, norm_parameters
from parlay.estimate.kept import Kept
from parlay.estimate.stages import Stages
from parlay.formulas import parameters as formula
from parlay.layouts.layout import Layouts, takes_all
from parlay.layouts.workload import Workload
from parlay.models.spec import GroupedAttention, LayerKind, ModelSpec

Array = NDArray[np.float64]

VOCAB_MULTIPLE = {
    "megatron-core": 128,
    "torchtitan": 1,
    "deepspeed": 1,
    "nanotron": 1,
    "hai-llm": 128,
}  # frameworks.py says where from


@dataclasses.dataclass(frozen=True)
class LocalParameters:
    """Parameters on a rank, (layouts, stages): dense ones reduce over cp x dp, expert ones over their own copies.

    With adapters these alone are trained, and the others are frozen; None: everything is trained.
    """

    dense: Array
    expert: Array
    adapters: Array | None = None

    @property
    def trained(self) -> LocalParameters:
        """Those that have a gradient and optimizer state."""
        return self if self.adapters is None else LocalParameters(self.adapters, np.zeros_like(self.expert))

    @property
    def total(self) -> Array:
        """All of them together."""
        whole = self.dense + self.expert
        return whole if self.adapters is None else whole + self.adapters

    def take(self, rows: NDArray[np.int64]) -> LocalParameters:
        """Return those of some rows."""
        if takes_all(rows, len(self.dense)):
            return self
        adapters = None if self.adapters is None else self.adapters[rows]
        return LocalParameters(self.dense[rows], self.expert[rows], adapters)


def padded_vocabulary(vocab: int, tensor_parallel: ArrayLike, workload: Workload) -> Array:
    """Return the padded vocabulary of the whole model for each tensor-parallel degree."""
    multiple = workload.vocab_multiple or VOCAB_MULTIPLE[workload.framework]
    return np.asarray(formula.padded_vocabulary(vocab, multiple, tensor_parallel))


_PARTS: Kept[tuple[Part, ...]] = Kept()


def layer_on_rank(model: ModelSpec, kind: LayerKind, layouts: Layouts) -> tuple[Array, Array]:
    """Return (dense, expert) parameters of one layer of `kind` on a rank, shape (layouts,)."""
    tp = layouts.tp.astype(np.float64)
    grid = (layouts.ep * layouts.etp).astype(np.float64)
    dense, expert = np.zeros(len(layouts)), np.zeros(len(layouts))
    for part in _PARTS.get((model, kind), lambda: layer_parts(model, kind)):
        if part.rule == "expert":
            expert = expert + part.count / grid
        elif part.rule == "kv" and isinstance(kind.mixer, GroupedAttention):
            heads = np.maximum(kind.mixer.kv_heads / tp, 1.0)
            dense = dense + part.count * heads / kind.mixer.kv_heads
        else:
            dense = dense + part.count / (tp if part.rule == "tp" else 1.0)
    return dense, expert


def local_parameters(model: ModelSpec, workload: Workload, layouts: Layouts, stages: Stages) -> LocalParameters:
    """Return the parameters on one rank of every stage.

    A tied table stands on the first and on the last stage, both with gradients and optimizer state; modules that predict
    further tokens embed them, so their stage has the token table too (Megatron-LM gpt_model.py: pre_process or mtp_process).
    """
    per_kind = {name: layer_on_rank(model, kind, layouts) for name, kind in model.kinds.items()}
    dense, expert = np.zeros_like(stages.share), np.zeros_like(stages.share)
    for name, (d, x) in per_kind.items():
        dense = dense + stages.layers[name] * d[:, None]
        expert = expert + stages.layers[name] * x[:, None]
    if model.mtp_layers and model.mtp_kind:
        d, x = per_kind[model.mtp_kind]
        modules = np.minimum(stages.mtp, model.mtp_modules)
        dense = dense + modules * (d + mtp_extra(model))[:, None]
        expert = expert + modules * x[:, None]
    table = table_on_rank(model, workload, layouts)[:, None]
    first = stages.embedding * (table + _beside_embedding(model))
    if model.mtp_layers and not model.tied_embeddings:
        first = first + (stages.mtp > 0) * ~stages.embedding * table
    tied_here = stages.embedding & stages.head if model.tied_embeddings else np.zeros_like(stages.head)
    head = np.where(tied_here, 0.0, table) + (table / model.hidden if model.head_bias else 0.0)
    last = stages.head * (head + (norm_parameters(model, model.hidden) if model.final_norm else 0))
    return LocalParameters(dense + first + last, expert, _adapters(model, workload, layouts, stages))


def _adapters(model: ModelSpec, workload: Workload, layouts: Layouts, stages: Stages) -> Array | None:
    """Return the parameters of LoRA's adapters on one rank of every stage; modules that predict further tokens have none."""
    if workload.lora_rank is None:
        return None
    tp = layouts.tp.astype(np.float64)
    each = {name: adapter_parameters(kind, model.hidden, workload, tp)[:, None] for name, kind in model.kinds.items()}
    return np.asarray(sum((stages.layers[name] * one for name, one in each.items()), start=np.zeros_like(stages.share)))


def table_on_rank(model: ModelSpec, workload: Workload, layouts: Layouts) -> Array:
    """Return the parameters of the token table (or of the LM head) on one rank, shape (layouts,)."""
    tp = layouts.tp.astype(np.float64)
    return np.asarray(padded_vocabulary(model.vocab, tp, workload) / tp * (model.embedding_projection or model.hidden))


def _beside_embedding(model: ModelSpec) -> float:
    positions = model.position_embeddings * model.hidden
    return float(positions + (norm_parameters(model, model.hidden) if model.embedding_norm else 0) + model.extra_parameters)
