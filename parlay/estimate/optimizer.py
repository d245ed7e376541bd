"""The optimizer's own step at the end of a training step: what it moves, what Muon computes, and what a host does of it.

Symbols: P parameters whose state the rank owns · k, n iterations and shorter side of a matrix, as optimizer_step has them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.memory_weights import Matrix, orthogonalised
from parlay.estimate.pipes import Owned
from parlay.estimate.placement import copies_of_a_stage, data_groups, domains, inner_group, shards_of
from parlay.estimate.shard import Shard
from parlay.estimate.terms import Term, total, weakest
from parlay.formulas.optimizer_step import host_step_s, newton_schulz_flops, step_traffic_bytes
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import FUSED_LAYERS
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.datasheet import HOST_ADAM_SHARE, HOST_MEMORY_BYTES_PER_S
from parlay.rates.interface import Group, Rates

Array = NDArray[np.float64]

TRAFFIC = "optimizer_step.step_traffic_bytes"
SCHULZ = "optimizer_step.newton_schulz_flops"
OF_UPDATE = "value = bytes / bytes_per_s, bytes the formula's of parameters_owned"
OF_HOST = (
    "seconds of the stage that takes longest: on the GPU (bytes / bytes_per_s), of copies (gradients to the host, weights back, bytes_each"
    " of parameters_on_host) and of the host, as optimizer_step.host_step_s has it, behind one another"
)
# Newton-Schulz iterations of a step: Megatron-core muon_num_ns_steps (optimizer_config.py), torchtitan's DistributedMuon (ns_steps)
# and DeepSpeed's muon_update (ns_steps) all have 5.
ITERATIONS = 5.0
OF_SCHULZ = (
    "flops are those of the rank with most: its part of all layers' matrices on the stage, or the longest of them, which stays whole;"
    " flops_per_s is what these products reach, each as its shape has it"
)
MUON: dict[str, str] = {
    "megatron-core": "in blocks of what tensor parallelism leaves on a rank, queries, keys and values apart (muon_tp_mode blockwise,"
    " muon_split_qkv); with ZeRO each matrix whole on one data-parallel rank (layer-wise optimizer), else on all",
    "torchtitan": "by one rank of those that shard it, which an all-to-all brings it to and back (DistributedMuon), of what tensor"
    " parallelism leaves; without FSDP on all",
    "deepspeed": "of what tensor parallelism leaves on a rank; with ZeRO each by one data-parallel rank, under ZeRO-3 between"
    " two all-gathers, else on all; its Gram form, a later default, takes less",
}
MUON_ELSEWHERE = "as Megatron-core does: this framework has no Muon of its own"


def muon_assumption(settings: Settings) -> str:
    """Return in words what is orthogonalised where."""
    how = MUON.get(settings.framework, MUON_ELSEWHERE)
    return f"muon orthogonalises layers' matrices, one an expert, in {ITERATIONS:g} Newton-Schulz iterations in bf16, {how}"


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The matrices of one shape in the layers of a kind, arrays (layouts, 1) or (layouts, stages)."""

    label: str
    rows: Array
    columns: Array
    count: Array  # of the rank in one layer
    layers: Array
    ranks: Array  # that share them
    flops: Array  # of one
    seconds: Array
    grouped: bool

    def term(self, of_worst: Callable[[Array], Array]) -> Term:
        """Return these matrices of the stage that takes longest, as a piece for `explain`."""
        inputs = {
            "rows": self.rows, "columns": self.columns, "in_a_layer": self.count, "layers": self.layers, "ranks": self.ranks,
            "flops_each": self.flops, "seconds_each": self.seconds,
        }  # fmt: skip
        value = of_worst(self.count * self.layers * self.seconds / self.ranks)
        key = f"step.optimizer.orthogonalise.{self.label.replace(' ', '_').replace(':', '')}"
        return Term(key, self.label, value, "s", SCHULZ, {k: of_worst(v) for k, v in inputs.items()})


@dataclasses.dataclass(frozen=True)
class _Schulz:
    """What Muon computes and exchanges on the busiest rank, (layouts, stages): seconds and FLOP, seconds and bytes; `matrices` are the
    elements that it keeps one momentum of."""

    matrices: Array
    seconds: Array
    flops: Array
    exchange: Array
    exchange_bytes: Array
    source: str
    exchange_source: str
    shapes: tuple[_Shape, ...]


def optimizer_step(
    model: ModelSpec, cluster: Cluster, workload: Workload, rates: Rates, settings: Settings, owned: Owned
) -> Term:
    """Return the optimizer's step of the stage that takes longest.

    It reads gradient and states once and writes states and weight once. Muon orthogonalises the momentum of layers' matrices in
    between, on the GPU wherever its state lies.
    """
    layouts, stages, local = owned.layouts, owned.stages, owned.local.trained
    dense, expert = _owners(layouts)
    mine = local.dense / dense + local.expert / expert
    on_device = mine * (1.0 - layouts.offload_optimizer[:, None])
    fully = layouts.zero == 3
    below, above = settings.step_of(sharded=False), settings.step_of(sharded=True)
    moved = {name: np.where(fully, above[name], value)[:, None] for name, value in below.items()}
    muon = _schulz(model, cluster, workload, rates, settings, owned) if settings.optimizer == "muon" else None
    if muon is not None:  # what is no matrix of a layer has Adam's two moments
        others = 1.0 - np.divide(muon.matrices, mine, out=np.ones_like(mine), where=mine > 0)
        moved["moments_bytes"] = moved["moments_bytes"] * (1.0 + np.maximum(others, 0.0))
    nbytes = on_device * np.asarray(step_traffic_bytes(1.0, **moved))
    stream = rates.stream(nbytes, "optimizer")
    inputs = {"parameters_owned": mine.max(axis=1), **{name: value[:, 0] for name, value in moved.items()}}
    inputs |= _rate(cluster, nbytes, stream.seconds)
    if not layouts.offload_optimizer.any() and muon is None:
        seconds = np.where(stages.exists, stream.seconds, 0.0).max(axis=1)
        return Term("step.optimizer", "optimizer", seconds, "s", TRAFFIC, inputs, stream.source, note=OF_UPDATE)
    whole, update, copies = stream.seconds, np.zeros_like(mine), np.zeros_like(mine)
    source, note, hosted = stream.source, OF_UPDATE, mine * layouts.offload_optimizer[:, None]
    of_copies: dict[str, Array | float] = {}
    memory = cluster.host_memory_bytes_per_s
    rate = HOST_MEMORY_BYTES_PER_S if memory is None else memory.value
    # The share of the peak was taken on Adam alone.
    kernel = ("gradient_bytes", "master_bytes", "moments_bytes", "weight_bytes")
    each = np.asarray(step_traffic_bytes(1.0, **{name: moved[name] for name in kernel}))
    gpus = np.minimum(layouts.gpus, cluster.gpus_per_node.value)[:, None]
    if layouts.offload_optimizer.any():
        down = rates.host_copy(hosted * settings.gradient_bytes, "to_host")
        up = rates.host_copy(hosted * settings.wire_bytes, "to_device")
        update = np.asarray(host_step_s(hosted, gpus=gpus, bytes_each=each, memory_bytes_per_s=rate, share=HOST_ADAM_SHARE))
        for way, width, copied in (("to_host", settings.gradient_bytes, down), ("to_device", settings.wire_bytes, up)):
            reached = np.divide(hosted * width, copied.seconds, out=np.zeros_like(hosted), where=hosted > 0)
            of_copies |= {f"{way}_bytes_each": width, f"{way}_bytes_per_s": reached}
        copies, whole = down.seconds + up.seconds, stream.seconds + down.seconds + up.seconds + update
        source, note = weakest([down.source, up.source, "default"]), OF_HOST
    worst = np.where(stages.exists, whole + (muon.seconds + muon.exchange if muon else 0.0), 0.0).argmax(axis=1)[:, None]

    def of_worst(value: Array) -> Array:
        return np.take_along_axis(np.broadcast_to(value, whole.shape), worst, axis=1)[:, 0]

    if note == OF_HOST:
        inputs |= {
            "parameters_on_host": of_worst(hosted), "device_seconds": of_worst(stream.seconds),
            "copy_seconds": of_worst(copies), "host_seconds": of_worst(update), "host_gpus": gpus[:, 0],
            "host_bytes_each": of_worst(each), "host_memory_bytes_per_s": rate, "host_share": HOST_ADAM_SHARE,
        } | {name: of_worst(np.asarray(value)) for name, value in of_copies.items()}  # fmt: skip
    if muon is None:
        return Term("step.optimizer", "optimizer", of_worst(whole), "s", TRAFFIC, inputs, source, note=note)
    inputs |= {"parameters_owned": of_worst(mine), "moments_bytes": of_worst(moved["moments_bytes"])}
    moves = Term(
        "step.optimizer.update", "gradients, states and weights", of_worst(whole), "s", TRAFFIC, inputs, source, note=note
    )
    return total("step.optimizer", "optimizer", (moves, *_muon_terms(muon, cluster, of_worst)), unit="s")


def _rate(cluster: Cluster, nbytes: Array, seconds: Array) -> dict[str, Array]:
    """Return the memory rate of the stage whose GPU takes longest, and its share of the peak."""
    at = np.arange(len(nbytes)), seconds.argmax(axis=1)
    rate = np.divide(nbytes[at], seconds[at], out=np.zeros(len(nbytes)), where=seconds[at] > 0)
    return {"bytes": nbytes[at], "bytes_per_s": rate, "share_of_memory": rate / cluster.device.hbm_bytes_per_s.value}


def _owners(layouts: Layouts) -> tuple[Array, Array]:
    """Return the ranks over which ZeRO spreads what a rank holds of dense and of expert state, as columns; 1 without it."""
    split = (layouts.zero >= 1)[:, None]
    dense, expert = (np.where(split, shards * copies_of_a_stage(layouts)[:, None], 1.0) for shards in shards_of(layouts))
    return dense, expert


def _schulz(model: ModelSpec, cluster: Cluster, workload: Workload, rates: Rates, settings: Settings, owned: Owned) -> _Schulz:
    """Return what Muon computes on the busiest rank of each stage.

    Ranks that share the state share the matrices, each of which stays whole: the busiest has its part of them, or the longest one
    (Megatron-core's LayerWiseDistributedOptimizer and torchtitan's DistributedMuon balance them so).
    """
    layouts, stages = owned.layouts, owned.stages
    shard = Shard.of(layouts, workload, cluster)
    dtype = "bf16" if "bf16" in cluster.device.flops_per_s else "fp32"
    owners = dict(zip((False, True), _owners(layouts), strict=True))
    shapes, source = list[_Shape](), "exact"
    for name, kind in model.kinds.items():
        layers = stages.layers[name] + (np.minimum(stages.mtp, model.mtp_modules) if name == model.mtp_kind else 0.0)
        if not layers.any():
            continue
        for m in orthogonalised(kind, model.hidden, shard, fused=settings.framework in FUSED_LAYERS):
            seconds, priced = _seconds(rates, m, dtype)
            flops = np.asarray(newton_schulz_flops(m.rows, m.columns, iterations=ITERATIONS))
            rows, columns, count, each_f, each_s = (
                x[shard.row_of][:, None] for x in (m.rows, m.columns, m.count, flops, seconds)
            )
            label = f"{name} layer: {m.name}" if len(model.kinds) > 1 else m.name
            shapes.append(_Shape(label, rows, columns, count, layers, owners[m.grouped], each_f, each_s, m.grouped))
            source = weakest([source, priced])
    nothing: Array = np.zeros(stages.index.shape)
    taken, done, elements = nothing, nothing, {False: nothing, True: nothing}
    for grouped in (False, True):
        all_s, all_f, longest, most = nothing, nothing, nothing, nothing
        for one in (x for x in shapes if x.grouped == grouped):
            count = one.count * one.layers
            longer = np.where(count > 0, one.seconds, 0.0) > longest
            longest, most = np.where(longer, one.seconds, longest), np.where(longer, one.flops, most)
            all_s, all_f = all_s + count * one.seconds, all_f + count * one.flops
            elements[grouped] = elements[grouped] + count * one.rows * one.columns
        evenly = all_s / owners[grouped] >= longest
        taken = taken + np.where(evenly, all_s / owners[grouped], longest)
        done = done + np.where(evenly, all_f / owners[grouped], most)
    sent, exchange, moved = _exchange(rates, settings, layouts, elements, domains(cluster, layouts))
    matrices = elements[False] / owners[False] + elements[True] / owners[True]
    return _Schulz(matrices, taken, done, exchange, sent, source, moved, tuple(shapes))


def _seconds(rates: Rates, m: Matrix, dtype: str) -> tuple[Array, str]:
    """Return what it takes to orthogonalise one matrix, by row of the Shard: X X^T, A A and B X of every iteration."""
    n, wide = np.minimum(m.rows, m.columns), np.maximum(m.rows, m.columns)
    products = [rates.gemm(n, n, wide, dtype), rates.gemm(n, n, n, dtype), rates.gemm(n, wide, n, dtype)]
    return ITERATIONS * np.asarray(sum(p.seconds for p in products)), weakest(p.source for p in products)


def _exchange(
    rates: Rates, settings: Settings, layouts: Layouts, elements: dict[bool, Array], domain: Array
) -> tuple[Array, Array, str]:
    """Return the bytes and seconds of bringing matrices together that ZeRO-3 has cut, and of their updates back.

    torchtitan's all-to-all carries fp32, the format of its weights, both ways; DeepSpeed gathers its momentum and its updates
    (runtime/zero/stage3.py). Below ZeRO-3, and under Megatron-core, whose optimizer keeps matrices whole, nothing moves.
    """
    sent, seconds, source = np.zeros_like(elements[False]), np.zeros_like(elements[False]), "exact"
    cut = (layouts.zero == 3)[:, None]
    if settings.framework not in ("torchtitan", "deepspeed") or not cut.any():
        return sent, seconds, source
    for grouped, group, shards in zip((False, True), data_groups(layouts, domain), shards_of(layouts), strict=True):
        inner = inner_group(Group(group.size[:, None], group.local[:, None]), shards)
        size = inner.size
        if settings.framework == "torchtitan":
            there = rates.collective("all_to_all", 4.0 * elements[grouped] / size, inner)
            nbytes, both = 2 * 4.0 * elements[grouped] / size, 2 * there.seconds
        else:
            formats = (settings.moment_bytes, settings.sharded_gradient_bytes)
            gathers = [rates.collective("all_gather", width * elements[grouped], inner) for width in formats]
            there, both = gathers[0], np.asarray(sum(g.seconds for g in gathers))
            nbytes = sum(formats) * elements[grouped]
        moves = cut & (size > 1) & (elements[grouped] > 0)
        sent, seconds = sent + np.where(moves, nbytes, 0.0), seconds + np.where(moves, both, 0.0)
        source = weakest([source, there.source])
    return sent, seconds, source


def _muon_terms(muon: _Schulz, cluster: Cluster, of_worst: Callable[[Array], Array]) -> list[Term]:
    """Return what Muon adds to the optimizer's step, of the stage that takes longest."""
    seconds, flops, exchange = of_worst(muon.seconds), of_worst(muon.flops), of_worst(muon.exchange)
    peak = cluster.device.flops_per_s.get("bf16")
    rate = np.divide(flops, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    inputs: dict[str, Any] = {"flops": flops, "flops_per_s": rate}
    if peak is not None:
        inputs["share_of_bf16_peak"] = rate / peak.value
    found = [
        Term("step.optimizer.orthogonalise", "Newton-Schulz iterations", seconds, "s", SCHULZ, inputs, muon.source, note=OF_SCHULZ,
             pieces=lambda: tuple(x.term(of_worst) for x in muon.shapes))
    ]  # fmt: skip
    if exchange.any():
        nbytes = of_worst(muon.exchange_bytes)
        rate = np.divide(nbytes, exchange, out=np.zeros_like(exchange), where=exchange > 0)
        inputs = {"bytes": nbytes, "bytes_per_s": rate}
        note = "matrices brought together for the iterations, and their updates back, nothing of it hidden"
        found.append(
            Term("step.optimizer.exchange", "matrices and updates", exchange, "s", None, inputs, muon.exchange_source, note=note)
        )
    return found
