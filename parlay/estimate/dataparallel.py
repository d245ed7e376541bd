"""The end of a step: gradients reduced, the optimizer's own step, weights gathered; and ZeRO-3's traffic inside it.

Symbols: P dense, X expert parameters on the rank · D data-parallel ranks (dp x cp) · g, e bytes of a gradient, a weight
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.communication import Pair
from parlay.estimate.frameworks import Settings, resolve
from parlay.estimate.kept import Kept
from parlay.estimate.local import LocalParameters
from parlay.estimate.optimizer import optimizer_step
from parlay.estimate.overlap import lost_s
from parlay.estimate.pipes import Owned, Pipes
from parlay.estimate.placement import data_groups, domains, inner_group, shards_of
from parlay.estimate.shard import agreeing, distinct
from parlay.estimate.stages import Stages
from parlay.estimate.terms import Term, spread
from parlay.estimate.tied import tied_gradient
from parlay.estimate.wires import OF_RATE, Wires
from parlay.formulas.buffers import shard_copy_bytes
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Collective, Group, Rates

Array = NDArray[np.float64]

OF_STAGE = (
    "seconds of a kind of parameters = collectives x latency_s + sent_bytes / bytes_per_s, all of the stage that shows most;"
    f" {OF_RATE}"
)
OF_END = (
    "value = rounds x (last_share x s + max(0, (1 - last_share) x s - beside_s)): s seconds of all kinds, last_share that of the last"
    f" bucket, 1 where nothing overlaps; {OF_STAGE}"
)
OF_REDUCED = (
    "value = rounds x (s + [1] max(0, s - b) + [n - 2] x (max(0, g + s - b) - max(0, g - b))): n layers, a bracket at least 0 and [1] 0 of"
    f" one layer; s, g and b a layer's reduce_s, gather_again_s and backward_s; reduce_s = seconds of all kinds / layers; {OF_STAGE}"
)
OF_GATHERED = (
    "value = rounds x (g + [n - 1] x (max(0, g - f) + max(0, a - b)) + max(0, a - f)) + o + [n - 1] x max(0, o - f): n layers, a bracket at"
    " least 0; g, a, o, f and b a layer's gather_s, gather_again_s, gather_once_s, forward_s and backward_s; gather_s or gather_once_s ="
    " seconds of all kinds / layers;"
    f" {OF_STAGE}"
)
OF_COPIES = "rounds x bytes / bytes_per_s; bytes are the formula's of the parameters on the stage that shows most"
ROUNDING = 1e-9  # of the traffic: what is hidden beyond this is more than the residue of a difference


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Seconds at the end of the step (layouts,): exposed and hidden data-parallel traffic, the optimizer's step, and what the
    traffic and the compute beside it lose to each other."""

    exposed: Array
    hidden: Array
    lost: Array
    explain: Callable[[], tuple[Term, ...]]  # the exposed traffic, term by term
    explain_hidden: Callable[[], Term]
    pairs: Callable[[], tuple[Pair, ...]]  # transfers and the compute beside them, one value a layout
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
    domain = domains(cluster, layouts)
    first, end_of = distinct([pipes.row_of, layouts.zero, layouts.shard])
    seconds, sources, copy_source = np.zeros((5, len(first))), [], "exact"
    parts: list[tuple[NDArray[np.intp], _Traffic]] = []
    # Each of the two is priced only for the layouts that it belongs to.
    by_layer = _by_layer(settings, layouts)
    for fully in (False, True):
        rows = np.flatnonzero(by_layer[first] == fully)
        if not len(rows):
            continue
        mine, pipe = first[rows], pipes.row_of[first[rows]]
        few, held, local = layouts.take(mine), stages.take(mine), pipes.local(pipe)
        f, b, m = forward[pipe], backward[pipe], micro_batches[pipe]
        movers = _Movers.of(few, held, local, domain[mine])
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
        parts.append((rows, found))
    reduce, gather, copies, hidden, lost = seconds[:, end_of]
    fully = layouts.zero == 3
    around_gather, around_reduction = settings.shard_copies
    around = {
        "around_gather": np.where(fully, around_gather, 0.0),
        "around_reduction": np.where(
            _by_layer(settings, layouts), around_reduction, _reduction_passes(settings, layouts) * settings.gradient_bytes
        ),
    }

    def shown(which: int) -> dict[str, Array]:
        """Return what a transfer's exposed seconds follow from, of all layouts; not a number where it is not of one."""
        told: dict[str, Array] = {}
        for rows, found in parts:
            for key, value in found.shown()[which].items():
                told.setdefault(key, np.full(len(first), np.nan))[rows] = value
        return {key: value[end_of] for key, value in told.items()}

    def explain() -> tuple[Term, ...]:
        worst = np.zeros(len(first), dtype=np.int64)
        for rows, found in parts:
            worst[rows] = found.worst
        reduced, gathered = _moved(settings, Wires.of(cluster, rates), layouts, stages, pipes, domain, worst[end_of])
        transfer, source = "collective_times.transfer_s", sources[0]
        notes = (OF_END, OF_END) if not by_layer.any() else (OF_REDUCED, OF_GATHERED)
        copied = shown(2)
        copied["share_of_memory"] = copied["bytes_per_s"] / cluster.device.hbm_bytes_per_s.value
        return (
            Term("step.exposed.dp_reduce", "gradient reduction", reduce, "s", transfer, shown(0) | reduced, source, note=notes[0]),
            Term("step.exposed.dp_gather", "weight gathering", gather, "s", transfer, shown(1) | gathered, source, note=notes[1]),
            Term(
                "step.exposed.dp_copies", "data-parallel copies", copies, "s", "buffers.shard_copy_bytes", around | copied, copy_source,
                note=OF_COPIES,
            ),
            *((tied,) if tied else ()),
        )  # fmt: skip

    def explain_hidden() -> Term:
        inputs = {"all_s": hidden + reduce + gather, "exposed_s": reduce + gather}
        note = "all_s less exposed_s: reductions and gatherings of a step, and what shows of them (step.exposed.dp_reduce, dp_gather)"
        return Term("hidden.dp", "data parallel", hidden, "s", None, inputs, sources[0], note=note)

    def pairs() -> tuple[Pair, ...]:
        out = []
        for rows, found in parts:
            for p in found.pairs():
                each = np.zeros((3, len(first)))
                for one, value in zip(each, (p.transfer, p.compute, p.times), strict=True):
                    one[rows] = value
                out.append(Pair(p.name, *each[:, end_of]))
        return tuple(out)

    owned = Owned.of(layouts, stages, pipes)
    optimizer = _STEPS.of_columns(question, owned.columns, lambda: optimizer_step(*question, settings, owned), stages.listed)
    optimizer = spread(optimizer, owned.rows, owned.row_of)
    tied = tied_gradient(model, cluster, workload, settings, layouts, stages, rates)
    exposed = reduce + gather + copies + (tied.value if tied else 0.0)
    return DataParallel(exposed, hidden, lost, explain, explain_hidden, pairs, optimizer, sources[0])


def _moved(
    settings: Settings, wires: Wires, layouts: Layouts, stages: Stages, pipes: Pipes, domain: Array, worst: NDArray[np.int64]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what one reduction and one gathering of everything move for the stage `worst`: bytes, among how many ranks, in how
    many collectives, at which rate, and their seconds with nothing hidden."""
    local, fully, zero0 = pipes.local(pipes.row_of), layouts.zero == 3, layouts.zero == 0
    at, by_layer = worst[:, None], _by_layer(settings, layouts)
    layers = np.maximum(stages.layer_total, 1.0)
    kinds = tuple(zip(("dense", "expert"), data_groups(layouts, domain), shards_of(layouts), strict=True))

    def moved(op: Collective, held: LocalParameters, bytes_each: Array | float) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for kind, group, shards in kinds:
            parameters = np.asarray(getattr(held, kind))
            if kind != "dense" and not parameters.any():
                continue
            pieces = np.where(by_layer[:, None], layers, _buckets(settings, layouts, parameters))
            amount, pieces = (np.take_along_axis(each, at, axis=1)[:, 0] for each in (parameters, pieces))
            one = inner_group(group, np.where(by_layer, shards[:, 0], group.size))
            size = one.size
            each = bytes_each * amount / pieces
            told = wires.told(op, each, one, pieces)
            if op == "reduce_scatter" and zero0.any():
                whole = wires.told("all_reduce", each, one, pieces)
                told = {key: np.where(zero0, whole[key], value) for key, value in told.items()}
            if op == "all_gather":
                told = {key: np.where(zero0, np.nan, value) for key, value in told.items()}
            found |= {f"{kind}_{key}": value for key, value in told.items()}
            copies = Group(group.size / size, np.maximum(np.floor(group.local / size), 1.0))
            if op == "reduce_scatter" and (copies.size > 1).any():  # HSDP: summed over the copies as well
                told = wires.told("all_reduce", each / size, copies, pieces)
                found |= {f"{kind}_copies_{key}": np.where(copies.size > 1, value, np.nan) for key, value in told.items()}
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
    domain: Array
    row_of: NDArray[np.int64]

    @property
    def columns(self) -> list[NDArray[np.int64]]:
        """What tells them apart."""
        return [getattr(self.layouts, name) for name in _MOVES]

    @classmethod
    def of(cls, layouts: Layouts, stages: Stages, local: LocalParameters, domain: Array) -> _Movers:
        """Return the distinct rows. Equal rows hold equal stages, because a split follows from what is compared."""
        first, row_of = agreeing(layouts, len(layouts), _MOVES)
        return cls(layouts.take(first), local.take(first), np.maximum(stages.layer_total[first], 1.0), domain[first], row_of)

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
    copies: Array | float  # copies around the transfers
    copy_source: str
    worst: NDArray[np.int64]  # the stage that shows most
    shown: Callable[[], tuple[dict[str, Array], ...]]  # what reduction, gathering and copies follow from, of that stage
    pairs: Callable[[], tuple[Pair, ...]]


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
    at = (rows, worst)

    def shown() -> tuple[dict[str, Array], ...]:
        one = np.ones(len(layouts))
        ends = [
            {"rounds": count, "last_share": last[at] if on else one, "beside_s": beside_s[at] if on else 0.0 * one}
            for count, on, beside_s in (
                (times[:, 0], settings.overlap_grad_reduce, room_b), (one, settings.overlap_param_gather, room_f)
            )
        ]  # fmt: skip
        nbytes = (passes * settings.gradient_bytes * local.trained.total)[at]
        return *ends, _copied(times[:, 0], nbytes, moved.seconds[at])

    def pairs() -> tuple[Pair, ...]:
        first = 1.0 * (stages.index == 0)[at]
        out = []
        if settings.overlap_grad_reduce:
            out.append(
                Pair("gradient reduction beside a backward", (scatter * (1 - last))[at], backward[at], first * times[:, 0])
            )
        if settings.overlap_param_gather:
            out.append(Pair("weight gathering beside a forward", (gather * (1 - last))[at], forward[at], first))
        return tuple(out)

    return _Traffic(reduce, gathered, hidden, lost[at], transfers.source, copies[at], moved.source, worst, shown, pairs)


def _copied(rounds: Array, nbytes: Array, seconds: Array) -> dict[str, Array]:
    """Return what the copies around transfers move, and how fast."""
    rate = np.divide(nbytes, seconds, out=np.zeros_like(nbytes), where=seconds > 0)
    return {"rounds": rounds, "bytes": nbytes, "bytes_per_s": rate}


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

    One block is fetched while the one before it computes, so a block's exposed time is what its transfer exceeds that
    compute by; nothing hides the first gathering and the last reduction. The forward of n blocks hides n - 1 gatherings and the first
    of the backward; the backward's first block hides a gathering, its last one a reduction, each between them both. Weights may stay gathered over a pipeline's step (`Settings.reshards`). Megatron's ZeRO-2 scatters gradients
    so as well, and gathers weights once, beside the first forward.
    """
    layers = movers.layers[movers.row_of]
    scatter, sharded = transfers.reduce, (layouts.zero == 3)[:, None]
    gather, once = np.where(sharded, transfers.gather, 0.0), np.where(sharded, 0.0, transfers.gather)
    reshard = settings.reshards(layouts.pp)[:, None]
    m = micro_batches[:, None]
    f, b = forward / layers, backward / layers
    back_gather = np.where(reshard, gather, 0.0)
    others, between = np.maximum(layers - 1.0, 0.0), np.maximum(layers - 2.0, 0.0)
    left_f, again_f, left_b = np.maximum(0.0, gather - f), np.maximum(0.0, back_gather - f), np.maximum(0.0, back_gather - b)
    both_b, reduced_b = np.maximum(0.0, back_gather + scatter - b), np.maximum(0.0, scatter - b)
    # The backward frees gathered weights and reduces in any case; only a pipeline holds both off until its last one.
    rounds = np.where((layouts.pp > 1)[:, None] & ~reshard, 1.0, m)
    gathers = (gather + others * (left_f + left_b) + again_f) * rounds + once + others * np.maximum(0.0, once - f)
    reduces = (scatter + np.minimum(others, 1.0) * reduced_b + between * (both_b - left_b)) * rounds
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
    at, every = (rows, worst), np.broadcast_to(rounds, gather.shape)

    def shown() -> tuple[dict[str, Array], ...]:
        of_layer = {
            "rounds": every[at],
            "layers": layers[at],
            "forward_s": f[at],
            "backward_s": b[at],
            "gather_again_s": back_gather[at],
        }
        gathered = of_layer | {"gather_s": gather[at], "gather_once_s": once[at]}
        return of_layer | {"reduce_s": scatter[at]}, gathered, _copied(every[at], nbytes[at], copied.seconds[at])

    def pairs() -> tuple[Pair, ...]:
        times = (layers * every)[at]
        return (
            Pair("a layer's gathering beside a forward", gather[at], f[at], times),
            Pair("a layer's gathering and reduction beside a backward", (back_gather + scatter)[at], b[at], times),
        )

    return _Traffic(reduces[at], gathers[at], hidden, lost[at], transfers.source, copies, copied.source, worst, shown, pairs)


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
        inner = inner_group(Group(size, local), shards)
        gather = gather + rates.collective("all_gather", settings.wire_bytes * parameters / movers.layers, inner).seconds
        each = learning / movers.layers
        reduced = rates.collective("reduce_scatter", sent * each, inner)
        copies = Group(size / inner.size, np.maximum(np.floor(local / inner.size), 1.0))
        again = rates.collective("all_reduce", sent * each / inner.size, copies).seconds
        scatter = scatter + reduced.seconds + np.where(copies.size > 1, again, 0.0)
        source = reduced.source
    return _Transfers(scatter, gather, source)
