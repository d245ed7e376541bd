"""The moments at which a stage can reach its peak, and the largest of them.

A forward pass of the last layer (experts combining, attention over a split sequence), a layer's backward pass, the output
layer's backward pass with its logits, the optimizer's step, and the backward pass of the embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.memory_gathered import OF_GATHERED, Apart, Gathered, gathered_inputs
from parlay.estimate.memory_tables import Tables
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, total
from parlay.formulas import activations as act
from parlay.formulas import logits
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

Array = NDArray[np.float64]

EVENTS = ("forward pass of a layer", "backward pass of a layer", "backward pass of the output layer", "optimizer step",
          "backward pass of the embedding")  # fmt: skip
FORWARD, BACKWARD, OUTPUT, STEP, EMBEDDING = range(5)


ELSE = "0 where another moment is larger, else "
OF_MOMENTS = f"{ELSE}the inputs' sum; layer_bytes are the largest of the moments below, each a sum of its own"
OF_PEAK = (
    "of these moments the largest counts, whose logits and loss stand apart, with the weights and gradients that are unsharded or absent at that"
    " moment; all others are 0"
)
OF_LOGITS = (
    f"{ELSE}the formula's at the backward pass of the loss, and other_bytes: logits of other micro-batches and of multi-token prediction, or"
    " what more the loss's forward pass or the final norm holds where that is the peak"
)
OF_OUTPUT = (
    f"{ELSE}the inputs' sum: the final norm's tensors and what the output layer gathers, its input's gradient, and of others the gradient"
    " of its weight and those that wait"
)


@dataclasses.dataclass(frozen=True)
class Peak:
    """Activations and temporaries at the largest moment, and which moment that is (index into EVENTS)."""

    event: NDArray[np.int64]
    held: Array  # both together
    pooled: Array  # the same with all that the pools of FSDP2's streams keep; where its moments lie apart
    explain: Callable[[], tuple[Array, Term]]  # activations, and the temporaries term by term


def checkpointed_share(layouts: Layouts, stages: Stages) -> Array | None:
    """Return the part of each stage's layers that keeps its input alone (None where nothing is fully recomputed)."""
    full = layouts.recomputes("full")
    if not full.any():
        return None
    asked = layouts.recompute_layers[:, None] * stages.chunks
    whole = np.maximum(stages.layer_total, 1.0)
    part = np.where(layouts.recompute_layers[:, None] > 0, np.minimum(asked, whole) / whole, 1.0)
    return np.where(full[:, None], part, 0.0)


def kept_by_stage(model: ModelSpec, stages: Stages, tables: Tables, share: Array | None) -> tuple[Array, dict[str, Array]]:
    """Return what the layers of each stage keep for one micro-batch, in all and by layer kind."""
    by_kind = {}
    for kind, layer in tables.layers.items():
        count = stages.kept_layers[kind]
        each = tables.row(layer.kept)
        if share is not None:
            each = each + share * tables.row(layer.checkpoint - layer.everything)
        if kind == model.mtp_kind and model.mtp_layers:
            by_kind["mtp"] = stages.kept_mtp * (each + tables.row(tables.bytes.mtp))
        by_kind[kind] = count * each
    return np.asarray(sum(by_kind.values())), by_kind


def peak(
    model: ModelSpec, workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, tables: Tables,
    per_micro_batch: Array, step: Array, gathered: Gathered,
) -> Peak:  # fmt: skip
    """Return the largest moment of every stage."""
    s = tables.shard
    piped = (layouts.pp > 1)[:, None]
    stream = tables.row(tables.bytes.stream)
    kept = per_micro_batch * in_flight_of(workload, layouts, stages)
    kept = kept - on_host(kept, per_micro_batch, layouts, stages)
    table_gradient = tables.row(tables.bytes.table_gradient)
    linear_cached, _, head_cached = settings.caches
    frozen = settings.frozen_bytes is not None
    transient = 0.0 if linear_cached or frozen else 2.0 * tables.look(tables.largest_matrix)
    # In a pipeline the gradient that came in last is still named while the next forward pass runs (schedules.py:2436).
    forward = tables.look(tables.forward_extra) + np.where(piped, stream, 0.0)
    backward = tables.look(tables.backward_extra)
    loss_forward, loss, rest = _output_layer(settings, layouts, stages, tables)
    at_loss = np.maximum(loss_forward, loss + tables.row(tables.bytes.before_head))
    at_output = rest
    rest = rest + (0.0 if head_cached or frozen else table_gradient)
    early = loss_forward > loss + rest  # the loss itself is the peak, before any gradient exists
    loss, rest = np.where(early, loss_forward, loss), np.where(early, 0.0, rest)
    fsdp, moving, absent, pooled = gathered.apart, gathered.backward, np.zeros((1, 1)), np.zeros((1, 1))
    gone = absent  # of kept tensors, where a layer's backward pass peaks with the last layer to run
    if fsdp is not None:
        loss, rest, moving = _output_apart(fsdp, at_loss, at_output, (loss, rest, moving))
        absent, gone = fsdp.absent, np.maximum(kept - per_micro_batch / np.maximum(stages.layer_total, 1.0), 0.0)
        gone = np.where(fsdp.here & (gone < absent), gone, 0.0)
        transient = np.where(fsdp.here, 0.0, transient)  # gradients are counted with what is gathered
        pooled = kept + _pooled(tables, stages, at_loss, backward + gathered.backward, fsdp)
    at_end = gone > 0
    rest = rest + _deferred(model, workload, layouts, tables)
    backward = backward + transient
    output = np.where(stages.head, loss + rest + moving - absent, 0.0)
    embedding = table_gradient + stream + gathered.embedding
    event, largest = _largest((
        forward + gathered.forward - absent,
        backward + gathered.backward - np.where(at_end, gone, absent),
        output,
        step - kept,
        np.where(stages.embedding & (not frozen), embedding - per_micro_batch, -kept),
    ))  # fmt: skip

    def explain() -> tuple[Array, Term]:
        at = [event == i for i in range(len(EVENTS))]
        left = np.where(at[STEP], 0.0, np.where(at[EMBEDDING], np.maximum(kept - per_micro_batch, 0.0), kept))
        left = left - np.where(at[BACKWARD], gone, 0.0)
        missing = np.where(at[FORWARD] | at[OUTPUT] | at[BACKWARD] & ~at_end, 0.0 - absent, 0.0)
        whole = (gathered.forward, gathered.backward, moving, np.zeros((1, 1)), gathered.embedding)
        before, gradient = tables.row(tables.bytes.before_head), tables.row(tables.bytes.head_gradient)
        waiting = loss - tables.row(tables.bytes.logits_backward)
        others = np.where(rest >= before + gradient, rest - before - gradient, np.nan)
        named = {"layer_bytes": tables.look(tables.forward_extra), "received_gradient_bytes": np.where(piped, stream, 0.0)}
        own = {"layer_bytes": tables.look(tables.backward_extra), "weight_gradient_bytes": transient}

        def then(moment: int, inputs: dict[str, Any]) -> dict[str, Any]:
            """Return what goes into a moment where it is the largest; elsewhere its term is 0 and follows from nothing."""
            return {name: np.where(at[moment], value, np.nan) for name, value in inputs.items()}

        parts = (
            Term("memory.peak.forward", EVENTS[FORWARD], np.where(at[FORWARD], forward, 0.0), inputs=then(FORWARD, named), note=OF_MOMENTS,
                 pieces=lambda: _moments(model, stages, tables, "forward", at[FORWARD])),
            Term("memory.peak.backward", EVENTS[BACKWARD], np.where(at[BACKWARD], backward, 0.0), inputs=then(BACKWARD, own), note=OF_MOMENTS,
                 pieces=lambda: _moments(model, stages, tables, "backward", at[BACKWARD])),
            Term("memory.peak.logits", "logits and loss", np.where(at[OUTPUT], loss, 0.0), formula="logits.logits_held",
                 inputs=then(OUTPUT, {"bytes_per_logit": settings.loss.backward, "chunks": settings.loss.chunks,
                         "vocab": tables.row(tables.vocab), "tensor": layouts.tp[:, None], "tokens": tables.row(s.tokens),
                         "other_bytes": waiting}), note=OF_LOGITS),
            Term("memory.peak.output", EVENTS[OUTPUT], np.where(at[OUTPUT], rest, 0.0), formula="logits.output_layer_gradient",
                 inputs=then(OUTPUT, {"norm_and_gathered_bytes": np.where(others >= 0, before, np.nan), "other_bytes": others,
                         "input_gradient_bytes": np.where(others >= 0, gradient, np.nan)}), note=OF_OUTPUT),
            Term("memory.peak.step", EVENTS[STEP], np.where(at[STEP], step, 0.0), formula="optimizer_state.sharded_bytes",
                 inputs=then(STEP, {"held_bytes": step}), note="gradients in another format or main weights' copies, while the optimizer steps"),
            Term("memory.peak.embedding", EVENTS[EMBEDDING], np.where(at[EMBEDDING], table_gradient + stream, 0.0),
                 formula="buffers.weight_gradient_cache",
                 inputs=then(EMBEDDING, {"table_gradient_bytes": table_gradient, "stream_bytes": stream})),
            Term("memory.peak.gathered", "gathered weights and unreduced gradients", np.select(at, whole),
                 formula="buffers.unsharded_backward", inputs=gathered_inputs(settings, tables), note=OF_GATHERED),
            Term("memory.peak.absent", "gradients that only come later", missing, formula="optimizer_state.sharded_bytes"),
        )  # fmt: skip
        return left, total("memory.peak", "held at the peak", parts, note=OF_PEAK)

    # Less than one micro-batch may be left on the device where activations go to the host: then nothing is kept at that moment.
    left = np.where(event == EMBEDDING, np.maximum(kept, per_micro_batch), kept)
    return Peak(event, left + largest, pooled, explain)


def _moments(model: ModelSpec, stages: Stages, tables: Tables, which: str, here: NDArray[np.bool_]) -> tuple[Term, ...]:
    """Return the moments of one pass of each layer kind on a stage, the largest of which counts."""
    found = []
    for kind, layer in tables.layers.items():
        there = (stages.layers[kind] > 0) | ((kind == model.mtp_kind) & (stages.mtp > 0))
        for of, label, parts in layer.moments():
            if of == which:
                inputs = {name: tables.row(np.broadcast_to(x, tables.shard.tp.shape)) for name, x in parts.items()}
                value = np.where(there & here, sum(inputs.values(), start=np.zeros((1, 1))), 0.0)
                key = f"memory.peak.{which}.{kind}.{label}".replace(" ", "_")
                found.append(Term(key, f"{kind} layer: {label}", value, inputs=inputs))
    return tuple(found)


def _output_apart(fsdp: Apart, at_loss: Array, at_output: Array, plain: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return logits and loss, all else, and what is gathered at the output layer's peak; FSDP2's is at the loss or after it."""
    first = at_loss + fsdp.loss >= at_output + fsdp.output
    here = (
        np.where(first, at_loss, 0.0),
        np.where(first, 0.0, at_output),
        np.where(first, fsdp.loss, fsdp.output),
    )
    return tuple(np.where(fsdp.here, mine, other) for mine, other in zip(here, plain, strict=True))


def _pooled(tables: Tables, stages: Stages, at_loss: Array, backward: Array, fsdp: Apart) -> Array:
    """Return what FSDP2's pools keep beyond kept activations and gradient shards, by the caching allocator's rules.

    Tensors of the size of logits or tables fit no block that a layer left. Both tables' gathered weights, the deleted logits and
    all that the loss holds get blocks of their own beside those of what a layer makes and drops, which serve the final norm; so
    does the input of the output layer's reduction where the loss left no tensor as large. The layers' backward passes use these.
    """
    one = tables.bytes
    dropped = tables.row(np.max([layer.dropped for layer in tables.layers.values()], axis=0))
    reduction = np.where(fsdp.reduction >= tables.row(one.logits_kept), fsdp.reduction, 0.0)
    before = np.where(stages.head, tables.row(one.before_head), 0.0)
    loss = np.where(stages.head, at_loss + tables.row(one.logits_output) + reduction, 0.0) - before
    return np.asarray(fsdp.pool + np.maximum(np.maximum(dropped, before) + fsdp.tables + loss, backward - fsdp.ahead))


def in_flight_of(workload: Workload, layouts: Layouts, stages: Stages) -> Array:
    """Return micro-batches in flight.

    Overlapping expert all-to-all warms up with one more forward pass (schedules.py:966-970), but then runs a forward and a
    backward pass at once, layer by layer, each backward layer freed as a forward one is made (combined_1f1b.py,
    model_chunk_schedule_plan.py, run): what is alive on top is one layer. Megatron-LM's test of it measures 1.5 of 12.
    DualPipe counts the pair that runs at once already.
    """
    on = layouts.ep_overlap & (layouts.ep > 1) & (layouts.schedule != SCHEDULES.index("dualpipe"))
    if not on.any():
        return stages.in_flight
    one = 1.0 / np.maximum(stages.layer_total, 1.0)
    more = np.minimum(stages.in_flight + one, layouts.micro_batches(workload.global_batch)[:, None])
    return np.where(on[:, None], np.maximum(more, stages.in_flight), stages.in_flight)


def _deferred(model: ModelSpec, workload: Workload, layouts: Layouts, tables: Tables) -> Array | float:
    """Return what head weight gradients that wait hold: each micro-batch's bf16 logit gradient and its input
    (Megatron-LM tensor_parallel/layers.py, grad_output_buffer and embedding_activation_buffer)."""
    limit = workload.deferred_head_gradients
    if limit is None or workload.lora_rank is not None:
        return 0.0
    s, rounds = tables.shard, layouts.micro_batches(workload.global_batch)[:, None]
    waiting = np.where((layouts.pp > 1)[:, None], np.minimum(rounds, limit or rounds), 0.0)
    gradient = logits.logits_held(s.tokens, tables.vocab, 2.0, tensor=s.tp)
    return np.asarray(waiting * tables.row(np.asarray(gradient + act.token_tensors(s.local_tokens, model.hidden))))


def _largest(moments: tuple[Array, ...]) -> tuple[NDArray[np.int64], Array]:
    """Return which of several arrays is the largest, element by element, and its value; the first of equals."""
    best = np.array(moments[0])
    event = np.zeros(best.shape, dtype=np.int64)
    for i, moment in enumerate(moments[1:], start=1):
        larger = moment > best
        np.copyto(best, moment, where=larger)
        np.copyto(event, i, where=larger)
    return event, best


def on_host(kept: Array, per_micro_batch: Array, layouts: Layouts, stages: Stages) -> Array:
    """Return the bytes of kept activations that wait on the host, if a share goes there: two layers are always on their way."""
    if not layouts.offload_activations.any():
        return np.zeros((1, 1))
    share = layouts.offload_activations[:, None]
    moving = 2.0 * per_micro_batch / np.maximum(stages.layer_total, 1.0)
    return np.asarray(share * np.maximum(kept - moving, 0.0))


def _output_layer(settings: Settings, layouts: Layouts, stages: Stages, tables: Tables) -> tuple[Array, Array, Array]:
    """Return the loss's forward peak with the final norm, and, at the output layer's backward pass, its logits and all else."""
    one = tables.bytes
    waiting = (layouts.schedule == SCHEDULES.index("gpipe")) | (layouts.schedule == SCHEDULES.index("bfs"))
    others = np.where(waiting[:, None], np.maximum(stages.in_flight - 1.0, 0.0), 0.0) + stages.mtp
    if settings.loss.chunks > 1:
        others = np.zeros((1, 1))  # a chunk's logits never outlive it
    named = np.where((layouts.pp > 1)[:, None], tables.row(one.logits_output), 0.0)
    kept, before = others * (tables.row(one.logits_kept) + named), tables.row(one.before_head)
    return (
        kept + tables.row(one.logits_forward) + before,
        kept + tables.row(one.logits_backward) + named,
        before + tables.row(one.head_gradient),
    )
