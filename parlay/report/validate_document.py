"""The document of `parlay validate`: errors as shares, seconds, bytes."""

from __future__ import annotations

from typing import Literal

from parlay import __version__
from parlay.report.document import Document
from parlay.validation import tables
from parlay.validation.predict import Prediction, Validation
from parlay.validation.statistics import Errors


class ErrorsDocument(Document):
    """Errors of a group of runs as shares (0.1 is 10 %): of their sizes; `bias` is the median and `worst` the largest with sign."""

    group: str
    runs: int
    median: float
    mean: float
    p90: float
    bias: float
    worst: float


class NaiveDocument(Document):
    """A naive predictor's errors beside ours."""

    group: str
    naive: ErrorsDocument
    ours: ErrorsDocument


class RankingDocument(Document):
    """Several layouts of one model and batch; `regret` is how much slower the picked one was measured than the fastest."""

    source: str
    model: str
    gpus: int
    global_batch_sequences: int
    layouts: int
    rank_correlation: float
    regret: float
    picked: str
    fastest: str


class TermSeconds(Document):
    """One of the largest parts of a step."""

    label: str
    seconds: float


class MemoryDocument(Document):
    """A printed figure of memory, in the source's own meaning and of the rank that it tells."""

    meaning: str
    rank: str
    predicted_bytes: float
    measured_bytes: float
    error: float


class HeldDocument(Document):
    """Runs that trained, so fitted: how many are predicted to, and the predicted bytes of a device over what it can give."""

    source: str
    runs: int
    fitting: int
    median: float
    fullest: float


class PredictionDocument(Document):
    """One run. `measured_s` and `error` are null where only memory was printed."""

    id: str
    source: str
    tier: str
    model: str
    cluster: str
    layout: str
    predicted_s: float
    measured_s: float | None
    measured_from: str
    error: float | None
    terms_s: list[TermSeconds]
    memory: list[MemoryDocument]
    fullness: float  # predicted bytes of the fullest device over what it can give
    assumptions: list[str]
    rules_broken: list[str]


class UnpredictedDocument(Document):
    """A run that could not be predicted, and why."""

    id: str
    source: str
    tier: str
    reason: str


class ValidateReport(Document):
    """The document of `parlay validate --json`."""

    schema_name: Literal["parlay/validate"] = "parlay/validate"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    runs: int
    predicted: int
    step_time: dict[str, list[ErrorsDocument]]  # by tier, source, device, precision, parallelism
    aims: list[ErrorsDocument]
    naive: list[NaiveDocument]
    memory: list[ErrorsDocument]
    held: list[HeldDocument]
    rankings: list[RankingDocument]
    worst: list[str]  # ids
    predictions: list[PredictionDocument]
    unpredicted: list[UnpredictedDocument]


def validation_report(v: Validation, *, worst: int) -> ValidateReport:
    """Return the document of a validation, with the ids of its `worst` runs."""
    runs = tables.timed(v)
    return ValidateReport(
        runs=v.count,
        predicted=len(v.predictions),
        step_time={title: [_errors(e) for e in tables.by(runs, key)] for title, key in tables.BREAKDOWNS.items()},
        aims=[_errors(e) for e in tables.aims(v)],
        naive=[
            NaiveDocument(group=c.naive.group, naive=_errors(c.naive), ours=_errors(c.ours))
            for c in (tables.naive(v, tables.BREAKDOWNS["tier"]) if runs else [])
        ],
        memory=[_errors(e) for e in tables.memory_errors(v)],
        held=[
            HeldDocument(source=h.source, runs=h.runs, fitting=h.fit, median=h.median, fullest=h.fullest) for h in tables.held(v)
        ],
        rankings=[
            RankingDocument(
                source=r.source, model=r.model, gpus=r.gpus, global_batch_sequences=r.global_batch, layouts=r.layouts,
                rank_correlation=r.correlation, regret=r.regret, picked=r.picked, fastest=r.fastest,
            )
            for r in tables.rankings(v)
        ],
        worst=[p.run.id for p in tables.worst(v, worst)],
        predictions=[_prediction(p) for p in v.predictions],
        unpredicted=[
            UnpredictedDocument(id=u.run.id, source=u.run.source, tier=u.run.tier, reason=u.reason) for u in v.unpredicted
        ],
    )  # fmt: skip


def _errors(e: Errors) -> ErrorsDocument:
    return ErrorsDocument(group=e.group, runs=e.count, median=e.median, mean=e.mean, p90=e.p90, bias=e.bias, worst=e.worst)


def _prediction(p: Prediction) -> PredictionDocument:
    return PredictionDocument(
        id=p.run.id, source=p.run.source, tier=p.run.tier, model=p.case.model.id, cluster=p.case.cluster.id, layout=str(p.case.layout),
        predicted_s=p.predicted_s, measured_s=p.measured_s, measured_from=p.measured_how, error=p.error,
        terms_s=[TermSeconds(label=label, seconds=seconds * p.case.scale) for label, seconds in p.terms[:8]],
        memory=[
            MemoryDocument(
                meaning=m.measured.meaning, rank=m.measured.rank, predicted_bytes=m.predicted_bytes, measured_bytes=m.measured.nbytes,
                error=m.error,
            )
            for m in p.memory
        ],
        fullness=p.fullness, assumptions=list(dict.fromkeys((*p.case.assumptions, *p.notes))), rules_broken=list(p.broken),
    )  # fmt: skip
