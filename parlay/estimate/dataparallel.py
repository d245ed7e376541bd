"""The end of a step: gradients reduced, the optimizer's own step, weights gathered; and ZeRO-3's traffic inside it.

Symbols: P dense, X expert parameters on the rank · D data-parallel ranks (dp x cp) · g, e bytes of a gradient, a weight
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings, resolve
from parlay.estimate.kept import Kept
from parlay.estimate.local import LocalParameters
from parlay.estimate.optimizer import optimizer_step
from parlay.estimate.overlap import lost_s
from parlay.estimate.pipes import Owned, Pipes
from parlay.estimate.placement import data_groups, shards_of
from parlay.estimate.shard import agreeing, distinct
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, spread
from parlay.estimate.tied import tied_gradient
from parlay.formulas.buffers import shard_copy_bytes
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Collective, Group, Rates

Array = NDArray[np.float64]

OF_LARGEST = "inputs of the stage that holds most, one round of it; the value leaves out what overlaps"
ROUNDING = 1e-9  # of the traffic: what is hidden beyond this is more than the residue of a difference


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Seconds at the end of the step (layouts,): exposed and hidden data-parallel traffic, the optimizer's step, and what the
    traffic and the compute beside it lose to each other."""

    exposed: Array
    hidden: Array
    lost: Array
    explain: Callable[[], tuple[Term, ...]]  # the exposed traffic, term by term
    optimizer: Term
    source: str


def data_parallel(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    stages: Stages,
    rates: Rates,
    pipes: Pipes,
    forward: Array,
    backward: Array,
    micro_batches: Array,
) -> DataParallel:
    """Return the exposed gradient and weight traffic and the optimizer's step of the stage that ends last.

    `forward`, `backward` and `micro_batches` are those of the pipes.
    """
    settings, question = resolve(workload, cluster.device), (model, cluster, workload, rates)
    domain = float(cluster.scale_up_gpus.value)
    first, end_of = distinct([pipes.row_of, layouts.zero, layouts.shard])
    seconds, sources, copy_source = np.zeros((5, len(first))), [], "exact"
    # Each of the two is priced only for the layouts that it belongs to.
    by_layer = _by_layer(settings, layouts)
    for fully in (False, True):
        rows = np.flatnonzero(by_layer[first] == fully)
        if not len(rows):
            continue
        mine, pipe = first[rows], pipes.row_of[first[rows]]
        few, held, local = layouts.take(mine), stages.take(mine), pipes.local(pipe)
        f, b, m = forward[pipe], backward[pipe], micro_batches[pipe]
        movers = _Movers.of(few, held, local, domain)
        price = partial(_layer_transfers if fully else _plain_transfers, settings, rates, movers)
        transfers = movers.all_of(_TRANSFERS.of_columns(question, movers.columns, price, stages.listed))
        if fully:
            found = _zero3(settings, few, held, rates, transfers, movers, f, b, m)
        else:
            found = _end_of_step(workload, settings, few, held, rates, transfers, local, f, b)
        for kind, each in zip(seconds, (found.reduce, found.gather, found.copies, found.hidden, found.lost), strict=True):
            kind[rows] = each
        sources.append(found.source)
        copy_source = found.copy_source
    reduce, gather, copies, hidden, lost = seconds[:, end_of]
    fully = layouts.zero == 3
    around_gather, around_reduction = settings.shard_copies
    around = {
        "around_gather": np.where(fully, around_gather, 0.0),
        "around_reduction": np.where(
            _by_layer(settings, layouts), around_reduction, _reduction_passes(settings, layouts) * settings.gradient_bytes
        ),
    }

    def explain() -> tuple[Term, ...]:
        reduced, gathered = _moved(settings, rates, layouts, stages, pipes, domain)
        transfer, source = "collective_times.transfer_s", sources[0]
        return (
            Term("step.exposed.dp_reduce", "gradient reduction", reduce, "s", transfer, reduced, source, note=OF_LARGEST),
            Term("step.exposed.dp_gather", "weight gathering", gather, "s", transfer, gathered, source, note=OF_LARGEST),
            Term("step.exposed.dp_copies", "data-parallel copies", copies, "s", "buffers.shard_copy_bytes", around, copy_source),
            *((tied,) if tied else ()),
        )

    owned = Owned.of(layouts, stages, pipes)
    optimizer = _STEPS.of_columns(question, owned.columns, lambda: optimizer_step(*question, settings, owned), stages.listed)
    optimizer = spread(optimizer, owned.rows, owned.row_of)
    tied = tied_gradient(model, cluster, workload, settings, layouts, stages, rates)
    exposed = reduce + gather + copies + (tied.value if tied else 0.0)
    return DataParallel(exposed, hidden, lost, explain, optimizer, sources[0])


def _moved(
    settings: Settings, rates: Rates, layouts: Layouts, stages: Stages, pipes: Pipes, domain: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what one reduction and one gathering of everything move for the largest stage: bytes, among how many ranks, in how
    many collectives, and the seconds of these with nothing hidden."""
    local, fully, zero0 = pipes.local(pipes.row_of), layouts.zero == 3, layouts.zero == 0
    layers = np.maximum(stages.layer_total, 1.0)
    kinds = tuple(zip(("dense", "expert"), data_groups(layouts, domain), shards_of(layouts), strict=True))

    def moved(op: Collective, held: LocalParameters, bytes_each: Array | float) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for kind, group, shards in kinds:
            parameters = np.asarray(getattr(held, kind))
            if kind != "dense" and not parameters.any():
                continue
            pieces = np.where(fully[:, None], layers, _buckets(settings, layouts, parameters))
            largest = np.argmax(parameters, axis=1)[:, None]
            amount, pieces = (np.take_along_axis(each, largest, axis=1)[:, 0] for each in (parameters, pieces))
            size = np.where(fully, np.minimum(group.size, shards[:, 0]), group.size)
            one = Group(size, np.minimum(group.local, size))
            each = bytes_each * amount / pieces
            seconds = rates.collective(op, each, one).seconds
            if op == "reduce_scatter":
                seconds = np.where(zero0, rates.collective("all_reduce", each, one).seconds, seconds)
            found |= {f"{kind}_bytes": bytes_each * amount, f"{kind}_ranks": size, f"{kind}_ranks_in_a_domain": one.local}
            found |= {f"{kind}_collectives": pieces, f"{kind}_seconds": pieces * seconds}
        return found

    weights = local if local.adapters is None else LocalParameters(
        np.where(fully[:, None], local.dense, 0.0) + local.adapters, np.where(fully[:, None], local.expert, 0.0)
    )  # fmt: skip
    reduced = moved("reduce_scatter", local.trained, np.where(fully, settings.reduce_bytes, settings.gradient_bytes))
    return reduced, moved("all_gather", weights, settings.wire_bytes)


# What the traffic of a step depends on beside the model: layouts that agree here move the same bytes over the same groups.
_MOVES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "zero", "shard", "first_layers", "last_layers", "schedule",
          "order")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Transfers:
    """Seconds of one reduction of gradients and of one gathering of weights, by row (or layout) and stage."""

    reduce: Array
    gather: Array
    source: str


_TRANSFERS: Kept[_Transfers] = Kept()
_STEPS: Kept[Term] = Kept()


@dataclasses.dataclass(frozen=True)
class _Movers:
    """The distinct layouts as far as their traffic goes, with what each rank holds; `all_of` gives values back to each layout."""

    layouts: Layouts
    local: LocalParameters
    layers: Array
    domain: float
    row_of: NDArray[np.int64]

    @property
    def columns(self) -> list[NDArray[np.int64]]:
        """What tells them apart."""
        return [getattr(self.layouts, name) for name in _MOVES]

    @classmethod
    def of(cls, layouts: Layouts, stages: Stages, local: LocalParameters, domain: float) -> _Movers:
        """Return the distinct rows. Equal rows hold equal stages, because a split follows from what is compared."""
        first, row_of = agreeing(layouts, len(layouts), _MOVES)
        return cls(layouts.take(first), local.take(first), np.maximum(stages.layer_total[first], 1.0), domain, row_of)

    def all_of(self, found: _Transfers) -> _Transfers:
        """Return transfers by distinct row as transfers by layout."""
        return _Transfers(found.reduce[self.row_of], found.gather[self.row_of], found.source)


@dataclasses.dataclass(frozen=True)
class _Traffic:
    reduce: Array  # exposed seconds
    gather: Array
    hidden: Array
    lost: Array
    source: str
    copies: Array | float = 0.0  # copies around the transfers
    copy_source: str = "exact"


def _by_layer(settings: Settings, layouts: Layouts) -> NDArray[np.bool_]:
    """Return where gradients are reduced layer by layer after each backward: ZeRO-3, and Megatron's ZeRO-2, the same engine."""
    return np.asarray(layouts.zero >= (2 if settings.framework == "megatron-core" else 3))


def _slack(stages: Stages, per_micro_batch: Array) -> Array:
    """Return the seconds each stage idles while the stages before it finish (or start) one micro-batch."""
    mean = (per_micro_batch * stages.count).sum(axis=1) / np.maximum(stages.count.sum(axis=1), 1.0)
    return np.asarray(stages.index * mean[:, None])


def _end_of_step(
    workload: Workload, settings: Settings, layouts: Layouts, stages: Stages, rates: Rates, transfers: _Transfers,
    local: LocalParameters, forward: Array, backward: Array,
) -> _Traffic:  # fmt: skip
    """ZeRO 0, 1 and 2: one reduction at the end of the last backward, one gathering before the next forward.

    Overlapped, the first stage hides all but the last bucket behind the last micro-batch's backward, and the later
    stages, which finish earlier, behind the bubble as well (Megatron param_and_grad_buffer.py, schedules.py).
    """
    scatter, gather = transfers.reduce, transfers.gather
    buckets = _buckets(settings, layouts, local.trained.total)
    # ZeRO-2 reduces every micro-batch's gradients, since it keeps only its own part of them.
    times = np.where((layouts.zero == 2)[:, None], layouts.micro_batches(workload.global_batch)[:, None], 1.0)
    last = 1.0 / buckets
    room_b = np.where(stages.index == 0, backward, 0.0) + _slack(stages, backward)
    room_f = np.where(stages.index == 0, forward, 0.0) + _slack(stages, forward)
    exposed_r = scatter * last + np.maximum(0.0, scatter * (1 - last) - room_b) if settings.overlap_grad_reduce else scatter
    exposed_g = gather * last + np.maximum(0.0, gather * (1 - last) - room_f) if settings.overlap_param_gather else gather
    # Only the first stage has compute beside it; the others wait in the bubble meanwhile, which nothing slows.
    beside, none = rates.beside(), np.zeros_like(scatter)
    lost_r = lost_s(beside, scatter * (1 - last), backward) * times if settings.overlap_grad_reduce else none
    lost_g = lost_s(beside, gather * (1 - last), forward) if settings.overlap_param_gather else none
    lost = np.where(stages.index == 0, lost_r + lost_g, 0.0)
    passes = _reduction_passes(settings, layouts)[:, None]
    moved = rates.stream(passes * settings.gradient_bytes * local.trained.total, "copy")
    copies = np.where(passes > 0, moved.seconds, 0.0) * times
    exposed = np.where(stages.exists, exposed_r * times + exposed_g + lost + copies, -1.0)
    rows = np.arange(len(layouts))
    worst = np.argmax(exposed, axis=1)
    reduce, gathered = (exposed_r * times)[rows, worst], exposed_g[rows, worst]
    everything = (scatter * times + gather)[rows, worst]
    hidden = everything - reduce - gathered
    hidden = np.where(hidden > ROUNDING * everything, hidden, 0.0)
    return _Traffic(reduce, gathered, hidden, lost[rows, worst], transfers.source, copies[rows, worst], moved.source)


def _reduction_passes(settings: Settings, layouts: Layouts) -> Array:
    """Return the passes over the gradients around a reduction below ZeRO stage 3, none where nothing is reduced."""
    return np.asarray(np.where(layouts.zero == 0, *settings.reduction_passes) * (layouts.dp * layouts.cp > 1))


def _buckets(settings: Settings, layouts: Layouts, parameters: Array) -> Array:
    """Return the buckets in which `parameters` (layouts, stages) are reduced and gathered: collectives one after the other."""
    bucket = np.maximum(settings.bucket_elements_of(layouts.dp * layouts.cp).astype(np.float64), 1.0)[:, None]
    return np.asarray(np.maximum(np.ceil(parameters / bucket), 1.0))


def _plain_transfers(settings: Settings, rates: Rates, movers: _Movers) -> _Transfers:
    """Return the reduction of all gradients and the gathering of all weights, bucket by bucket."""
    dense, expert = data_groups(movers.layouts, movers.domain)
    zero0 = (movers.layouts.zero == 0)[:, None]
    local, source = movers.local.trained, ""
    scatter, gather = np.zeros_like(local.dense), np.zeros_like(local.dense)
    for parameters, group in ((local.expert, expert), (local.dense, dense)):
        wide = Group(group.size[:, None], group.local[:, None])
        buckets = _buckets(settings, movers.layouts, parameters)
        each = parameters / buckets
        reduced = rates.collective("reduce_scatter", settings.gradient_bytes * each, wide)
        seconds, source = reduced.seconds, reduced.source
        if zero0.any():
            whole = rates.collective("all_reduce", settings.gradient_bytes * each, wide)
            seconds = np.where(zero0, whole.seconds, seconds)
        scatter = scatter + buckets * seconds
        gathered = rates.collective("all_gather", settings.wire_bytes * each, wide).seconds
        gather = gather + np.where(zero0, 0.0, buckets * gathered)
    return _Transfers(scatter, gather, source)


def _zero3(
    settings: Settings, layouts: Layouts, stages: Stages, rates: Rates, transfers: _Transfers, movers: _Movers,
    forward: Array, backward: Array, micro_batches: Array,
) -> _Traffic:  # fmt: skip
    """ZeRO-3 and FSDP: each block's weights are gathered before its forward and backward, gradients scattered after.

    One block is fetched while the one before it computes, so a block's exposed time is what its transfer exceeds its
    compute by. Weights may stay gathered over a pipeline's step (`Settings.reshards`). Megatron's ZeRO-2 scatters gradients
    so as well, and gathers weights once, beside the first forward.
    """
    layers = movers.layers[movers.row_of]
    scatter, sharded = transfers.reduce, (layouts.zero == 3)[:, None]
    gather, once = np.where(sharded, transfers.gather, 0.0), np.where(sharded, 0.0, transfers.gather)
    reshard = settings.reshards(layouts.pp)[:, None]
    m = micro_batches[:, None]
    f, b = forward / layers, backward / layers
    exposed_f = np.maximum(0.0, gather - f)
    back_gather = np.where(reshard, gather, 0.0)
    exposed_b = np.maximum(0.0, back_gather + scatter - b)
    exposed_g_b = np.maximum(0.0, back_gather - b)
    # The backward frees gathered weights and reduces in any case; only a pipeline holds both off until its last one.
    rounds = np.where((layouts.pp > 1)[:, None] & ~reshard, 1.0, m)
    gathers = (layers * (exposed_f + exposed_g_b) + gather) * rounds  # + the first block, which nothing hides
    gathers = gathers + layers * np.maximum(0.0, once - f) + once
    reduces = (layers * (exposed_b - exposed_g_b) + scatter) * rounds  # + the last block
    beside = rates.beside()
    lost = layers * (lost_s(beside, gather, f) + lost_s(beside, back_gather + scatter, b)) * rounds
    exposed = np.where(stages.exists, gathers + reduces + lost, -1.0)
    rows = np.arange(len(layouts))
    worst = np.argmax(exposed, axis=1)
    everything = (layers * ((gather + back_gather + scatter) * rounds + once))[rows, worst]
    hidden = everything - (gathers + reduces)[rows, worst]
    hidden = np.where(hidden > ROUNDING * everything, hidden, 0.0)
    around_gather, around_reduce = settings.shard_copies
    held, trained = movers.local.total[movers.row_of], movers.local.trained.total[movers.row_of]
    times = np.where(reshard, 2.0, 1.0)
    nbytes = shard_copy_bytes(held, gathers=times, around_gather=around_gather, around_reduction=0.0)
    nbytes = nbytes + shard_copy_bytes(trained, gathers=0.0, around_gather=0.0, around_reduction=around_reduce)
    nbytes = nbytes * (np.minimum(layouts.shard, layouts.dp * layouts.cp) > 1)[:, None]  # a whole copy is nobody's shard
    copied = rates.stream(nbytes, "copy")
    copies = (np.where(nbytes > 0, copied.seconds, 0.0) * rounds)[rows, worst]
    return _Traffic(
        reduces[rows, worst], gathers[rows, worst], hidden, lost[rows, worst], transfers.source, copies, copied.source
    )


def _layer_transfers(settings: Settings, rates: Rates, movers: _Movers) -> _Transfers:
    """Return the scattering of one layer's gradients and the gathering of its weights."""
    groups = data_groups(movers.layouts, movers.domain)[::-1]
    gather, scatter, source = np.zeros_like(movers.local.dense), np.zeros_like(movers.local.dense), ""
    held, trained = movers.local, movers.local.trained
    whole = held.dense if held.adapters is None else held.dense + held.adapters
    kinds = zip((held.expert, whole), (trained.expert, trained.dense), groups, shards_of(movers.layouts)[::-1], strict=True)
    sent = np.where(movers.layouts.zero == 3, settings.reduce_bytes, settings.gradient_bytes)[:, None]
    for parameters, learning, group, shards in kinds:
        # HSDP: the innermost ranks share one copy; its gradients are then reduced over the copies.
        size, local = group.size[:, None], group.local[:, None]
        inner = Group(np.minimum(size, shards), np.minimum(local, shards))
        gather = gather + rates.collective("all_gather", settings.wire_bytes * parameters / movers.layers, inner).seconds
        each = learning / movers.layers
        reduced = rates.collective("reduce_scatter", sent * each, inner)
        copies = Group(size / inner.size, np.maximum(local / inner.local, 1.0))
        again = rates.collective("all_reduce", sent * each / inner.size, copies).seconds
        scatter = scatter + reduced.seconds + np.where(copies.size > 1, again, 0.0)
        source = reduced.source
    return _Transfers(scatter, gather, source)
