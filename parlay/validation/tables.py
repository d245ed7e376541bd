"""Error tables of a validation: by tier, source, device, precision and parallelism; rankings; the naive predictor."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterable

from parlay.estimate.counts import flops_per_token
from parlay.layouts.layout import Layout
from parlay.validation.predict import MemoryPrediction, Prediction, Validation
from parlay.validation.runs import Run
from parlay.validation.statistics import Errors, errors_of, naive_seconds, regret, spearman

SIMULATED = "vtrain-single-node"  # parlay/validation/data/SOURCES.md
LEAST_RANKED = 3  # layouts of one model and batch that make a ranking


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """Errors of a group by ours and by the naive predictor."""

    ours: Errors
    naive: Errors


@dataclasses.dataclass(frozen=True, slots=True)
class Ranking:
    """Layouts of one model, batch and GPU count: whether ours orders them as they were measured."""

    source: str
    model: str
    gpus: int
    global_batch: int
    layouts: int
    correlation: float
    regret: float
    picked: str
    fastest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ranked:
    """The rankings of one source together."""

    source: str
    groups: int
    layouts: int
    correlation: float  # median
    mean_regret: float
    worst_regret: float


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Whether runs that trained are predicted to fit, as they must."""

    source: str
    runs: int
    fit: int
    median: float  # predicted bytes of the fullest device over what it can give
    fullest: float


@dataclasses.dataclass(frozen=True, slots=True)
class Aim:
    """A group of runs that this project holds itself to."""

    name: str
    keep: Callable[[Prediction], bool]


def _tier(letter: str) -> Callable[[Prediction], bool]:
    return lambda p: p.run.tier == letter


AIMS: tuple[Aim, ...] = (
    Aim("step time, tier A", _tier("A")),
    Aim("step time, tier B", _tier("B")),
    Aim("vTrain multi-node, tp <= 8", lambda p: p.run.source == "vtrain-multi-node" and p.case.layout.tp <= 8),
    Aim("vTrain single-node", lambda p: p.run.source == "vtrain-single-node"),
    Aim("SimuMax, B200", lambda p: p.run.source == "simumax"),
    Aim("Korthikanti et al.", lambda p: p.run.source == "korthikanti"),
)


def timed(validation: Validation) -> list[Prediction]:
    """Return the predictions of runs whose speed was measured."""
    return [p for p in validation.predictions if p.error is not None]


def by(predictions: Iterable[Prediction], key: Callable[[Prediction], str]) -> list[Errors]:
    """Return the time errors of each group, groups by name."""
    groups: dict[str, list[float]] = {}
    for p in predictions:
        if p.error is not None:
            groups.setdefault(key(p), []).append(p.error)
    return [errors_of(name, values) for name, values in sorted(groups.items())]


def parallelism(p: Prediction) -> str:
    """Return which kinds of parallelism a layout uses, as tp+pp+dp; fsdp is ZeRO stage 3."""
    x = p.case.layout
    names = [n for n, on in (("tp", x.tp > 1), ("cp", x.cp > 1), ("pp", x.pp > 1), ("ep", x.ep > 1)) if on]
    names += ["fsdp"] if x.zero == 3 and x.dp * x.cp > 1 else ["dp"] if x.dp > 1 else []
    return "+".join(names) or "one GPU"


BREAKDOWNS: dict[str, Callable[[Prediction], str]] = {
    "tier": lambda p: p.run.tier or "-",
    "source": lambda p: p.run.source,
    "device": lambda p: p.case.cluster.device.id,
    "precision": lambda p: p.case.workload.precision,
    "parallelism": parallelism,
}


def aims(validation: Validation) -> list[Errors]:
    """Return the errors of the groups that this project holds itself to, where they have runs."""
    runs = timed(validation)
    found = []
    for aim in AIMS:
        errors = [p.error for p in runs if aim.keep(p) and p.error is not None]
        if errors:
            found.append(errors_of(aim.name, errors))
    return found


def memory_errors(validation: Validation) -> list[Errors]:
    """Return the memory errors by source and meaning."""
    groups: dict[str, list[float]] = {}
    for p, m in memory_rows(validation):
        groups.setdefault(f"{p.run.source}, {m.measured.meaning.replace('_', ' ')}", []).append(m.error)
    return [errors_of(name, values) for name, values in sorted(groups.items())]


def memory_rows(validation: Validation) -> list[tuple[Prediction, MemoryPrediction]]:
    """Return every memory figure with its run."""
    return [(p, m) for p in validation.predictions for m in p.memory]


def trained(validation: Validation) -> list[Prediction]:
    """Return the runs that must have fitted: all with a measured speed but vTrain's one-node rows, which a program without memory made."""
    return [p for p in timed(validation) if p.run.source != SIMULATED]


def held(validation: Validation) -> list[Held]:
    """Return by source whether the runs whose speed was measured, which therefore fitted, are predicted to fit."""
    groups: dict[str, list[float]] = {}
    for p in trained(validation):
        groups.setdefault(p.run.source, []).append(p.fullness)
    return [
        Held(source, len(full), sum(x <= 1.0 for x in full), statistics.median(full), max(full))
        for source, full in sorted(groups.items())
    ]


def worst(validation: Validation, count: int) -> list[Prediction]:
    """Return the runs with the largest time errors, largest first."""
    return sorted(timed(validation), key=lambda p: -abs(p.error or 0.0))[:count]


def worst_memory(validation: Validation, count: int) -> list[tuple[Prediction, MemoryPrediction]]:
    """Return the memory figures with the largest errors, largest first."""
    return sorted(memory_rows(validation), key=lambda row: -abs(row[1].error))[:count]


def reasons(validation: Validation) -> list[tuple[str, int, Run]]:
    """Return why runs could not be predicted: reason, count, and one of the runs; most frequent first."""
    count = Counter(u.reason for u in validation.unpredicted)
    first = {u.reason: u.run for u in reversed(validation.unpredicted)}
    return [(reason, n, first[reason]) for reason, n in count.most_common()]


def share_predicted(validation: Validation, tiers: tuple[str, ...]) -> float | None:
    """Return the share of the runs of `tiers` that could be predicted; None without such runs."""
    done = sum(p.run.tier in tiers for p in validation.predictions)
    lost = sum(u.run.tier in tiers for u in validation.unpredicted)
    return done / (done + lost) if done + lost else None


def naive(validation: Validation, key: Callable[[Prediction], str]) -> list[Compared]:
    """Return our errors beside the naive predictor's: one FLOP/s per device and precision, its runs' median."""
    runs = timed(validation)
    flops = [
        flops_per_token(p.case.model, p.case.workload.seq_len) * p.case.workload.seq_len * p.case.workload.global_batch * p.case.scale
        for p in runs
    ]  # fmt: skip
    gpus = [float(p.case.layout.gpus) for p in runs]
    measured = [p.measured_s or 0.0 for p in runs]
    # Files apart: tests of tiny models would drag a device's median down for everybody else.
    groups = [f"{p.run.format} {p.case.cluster.device.id} {p.case.workload.precision}" for p in runs]
    guesses = naive_seconds(flops, gpus, measured, groups)
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for p, guess, seconds in zip(runs, guesses, measured, strict=True):
        ours.setdefault(key(p), []).append(p.error or 0.0)
        theirs.setdefault(key(p), []).append(guess / seconds - 1)
    return [Compared(errors_of(name, ours[name]), errors_of(name, theirs[name])) for name in sorted(ours)]


def rankings(validation: Validation) -> list[Ranking]:
    """Return, for each model, batch, GPU count and precision of a source with several layouts, how ours ranks them."""
    groups: dict[tuple[str, str, int, int, int, str, str], list[Prediction]] = {}
    for p in timed(validation):
        if p.run.format == "megatron-ci":  # tests of features, not of layouts
            continue
        w = p.case.workload
        batch = round(w.global_batch * p.case.scale)
        key = (p.run.source, p.case.model.id, p.case.layout.gpus, batch, w.seq_len, w.precision, p.run.hardware)
        groups.setdefault(key, []).append(p)
    found = []
    for (source, model, gpus, batch, *_), members in groups.items():
        best: dict[Layout, list[Prediction]] = {}  # one layout measured several times counts once, by its median
        for p in members:
            best.setdefault(p.case.layout, []).append(p)
        if len(best) < LEAST_RANKED:
            continue
        predicted = [statistics.median(p.predicted_s for p in ps) for ps in best.values()]
        measured = [statistics.median(p.measured_s or 0.0 for p in ps) for ps in best.values()]
        names = [str(layout) for layout in best]
        found.append(
            Ranking(
                source=source,
                model=model,
                gpus=gpus,
                global_batch=batch,
                layouts=len(best),
                correlation=spearman(predicted, measured),
                regret=regret(predicted, measured),
                picked=names[predicted.index(min(predicted))],
                fastest=names[measured.index(min(measured))],
            )
        )
    return sorted(found, key=lambda r: (r.source, -r.regret))


def ranked(rankings_: Iterable[Ranking]) -> list[Ranked]:
    """Return the rankings of each source together, sources by name."""
    groups: dict[str, list[Ranking]] = {}
    for one in rankings_:
        groups.setdefault(one.source, []).append(one)
    return [
        Ranked(
            source=source,
            groups=len(members),
            layouts=sum(r.layouts for r in members),
            correlation=statistics.median(r.correlation for r in members),
            mean_regret=statistics.fmean(r.regret for r in members),
            worst_regret=max(r.regret for r in members),
        )
        for source, members in sorted(groups.items())
    ]
