"""Predicting every run from its published settings, and setting what was measured beside it.

Runs that share model, cluster and workload are priced in one call; the search prices its layouts in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from parlay.errors import ParlayError
from parlay.estimate.estimate import Prices, price
from parlay.estimate.terms import Term
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.rules import Question, broken_rules, check
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.rates.interface import Rates
from parlay.validation.clusters import rates_named
from parlay.validation.mapping import ODD, Case, Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.runs import Memory, Run
from parlay.validation.where import choose

RatesOf = Callable[[Cluster], Rates]
Key = tuple[ModelSpec, str, Workload]
# Rules without which a price means nothing: such a row has a wrong cell. Megatron-LM's own tests did run what they say, some of them
# with groups of micro-batches that no rule of ours allows (--microbatch-group-size-per-virtual-pipeline-stage).
MEANT = ("gpus", "batch", "layers", "ends", "schedule")


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """A printed memory figure and ours for the same meaning, in bytes."""

    measured: Memory
    predicted_bytes: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_bytes / self.measured.nbytes - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """One run, predicted. `measured_s` is None where only memory was printed."""

    case: Case
    predicted_s: float
    measured_s: float | None
    measured_how: str
    terms: tuple[tuple[str, float], ...]  # leaves of the step, label and seconds, largest first
    memory: tuple[MemoryPrediction, ...]
    fullness: float  # predicted bytes of the fullest device over what a device can give; at most 1 if the run is predicted to fit
    broken: tuple[str, ...]  # rules of parlay.layouts.rules that the run's layout breaks, although it ran
    notes: tuple[str, ...] = ()  # what is odd in the row itself: cells of two meanings, figures that contradict each other

    @property
    def run(self) -> Run:
        """The run."""
        return self.case.run

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, less one; None where no speed was printed."""
        return None if self.measured_s is None else self.predicted_s / self.measured_s - 1

    @property
    def dominant(self) -> str:
        """The largest term of the predicted step and its share."""
        label, seconds = self.terms[0]
        return f"{label} {100 * seconds * self.case.scale / self.predicted_s:.0f} %"


@dataclasses.dataclass(frozen=True)
class Validation:
    """All runs of a validation: predicted ones, and those that could not be, with reasons. None is lost."""

    predictions: tuple[Prediction, ...]
    unpredicted: tuple[Unmapped, ...]

    @property
    def count(self) -> int:
        """Runs in all."""
        return len(self.predictions) + len(self.unpredicted)


def validate_runs(runs: Sequence[Run], *, where: str | None = None, rates: RatesOf | None = None) -> Validation:
    """Return every run predicted, or its reason.

    Parameters
    ----------
    runs : sequence of Run
        Measured runs. [-]
    where : str, optional
        A filter such as 'hardware=h100-sxm and tier=A'; see parlay.validation.where. [-]
    rates : callable, optional
        Rates of a cluster; the shipped ones unless given. [-]

    Returns
    -------
    Validation
        In the order of the runs. [-]

    Raises
    ------
    UsageError
        The filter cannot be read.
    """
    rates_of = rates or (lambda cluster: rates_named(cluster.id))
    mapped = [_possible(map_run(run)) for run in choose(runs, where)]
    groups: dict[Key, list[Case]] = {}
    for case in mapped:
        if isinstance(case, Case):
            groups.setdefault((case.model, case.cluster.id, case.workload), []).append(case)
    priced: dict[int, Prediction | Unmapped] = {}
    for cases in groups.values():
        for case, result in zip(cases, _priced(cases, rates_of), strict=True):
            priced[id(case)] = result
    ordered = [case if isinstance(case, Unmapped) else priced[id(case)] for case in mapped]
    return Validation(
        tuple(p for p in ordered if isinstance(p, Prediction)), tuple(u for u in ordered if isinstance(u, Unmapped))
    )


def _possible(case: Case | Unmapped) -> Case | Unmapped:
    """Return a case, or Unmapped where its layout cannot have run its batch, in the words in which an estimate refuses it."""
    if isinstance(case, Unmapped) or case.run.format == "megatron-ci":
        return case
    found = check(case.layout, case.model, case.cluster, case.workload)
    reason = next((broken.message for broken in found if broken.rule in MEANT), None)
    return case if reason is None else Unmapped(case.run, reason)


def _priced(cases: list[Case], rates_of: RatesOf) -> Iterable[Prediction | Unmapped]:
    """Return the predictions of cases that share a price call; if it fails, each on its own says why."""
    first = cases[0]
    layouts = Layouts.of([case.layout for case in cases])
    try:
        with np.errstate(all="ignore"):
            prices = price(
                first.model,
                first.cluster,
                first.workload,
                layouts,
                rates_of(first.cluster),
                every=any(c.run.memory for c in cases),
            )
    except (ParlayError, *ODD) as error:  # an argument outside a formula's domain, or a row that no check foresaw
        if len(cases) > 1:
            return [result for case in cases for result in _priced([case], rates_of)]
        return [Unmapped(first.run, f"cannot be priced: {error}")]
    assert prices.time is not None
    gpus = np.unique(layouts.gpus)
    broken = [broken_rules(layouts, Question(first.model, first.cluster, first.workload, int(n))) for n in gpus]
    leaves = [t for t in prices.time.tree().walk() if not t.parts]
    table = np.stack([np.broadcast_to(np.asarray(t.value, dtype=np.float64), (len(cases),)) for t in leaves])
    return [
        _prediction(case, row, prices, leaves, table[:, row], broken[int(np.searchsorted(gpus, case.layout.gpus))])
        for row, case in enumerate(cases)
    ]


def _prediction(
    case: Case, row: int, prices: Prices, leaves: list[Term], seconds: NDArray[np.float64],
    broken: dict[str, NDArray[np.bool_]],
) -> Prediction | Unmapped:  # fmt: skip
    assert prices.time is not None
    step = float(prices.time.step[row]) * case.scale
    if not np.isfinite(step) or step <= 0:
        return Unmapped(case.run, "cannot be priced: the step is not a finite time")
    measured = measured_step(case)
    memory = tuple(MemoryPrediction(m, _bytes(m, prices, row, case)) for m in case.run.memory)
    if measured.step_s is None and not memory:
        return Unmapped(case.run, measured.how)
    order = np.argsort(-seconds)
    terms = tuple((leaves[i].label, float(seconds[i])) for i in order if seconds[i] > 0)
    names = tuple(name for name, mask in broken.items() if bool(mask[row]))
    notes = (*case.run.readings, *([measured.against] if measured.against else []))
    held = prices.memory
    fullness = float(held.peak[row]) / held.limit_bytes
    return Prediction(case, step, measured.step_s, measured.how, terms or (("step", step),), memory, fullness, names, notes)


def _bytes(measured: Memory, prices: Prices, row: int, case: Case) -> float:
    """Return our figure of the same meaning, on the rank that was measured."""
    held = prices.memory
    table = {
        "allocated": held.allocated,
        "unstated": held.allocated,
        "reserved": held.reserved,
        "nvidia-smi": held.total,
        "after_step": held.after_step,
    }[measured.meaning]
    stages = np.broadcast_to(table, held.allocated.shape)[row]
    stage = {"first": 0, "last": case.layout.pp - 1, "largest": int(stages.argmax())}[measured.rank]
    return float(stages[stage])
