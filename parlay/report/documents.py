"""The JSON documents: pydantic models in SI base units with the unit in each key, and their schemas.

Keys are only ever added to a schema version; a change of meaning raises `schema_version`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from pydantic import Field

from parlay import __version__
from parlay.estimate.answers import checkpoint_bytes, differences, run_length
from parlay.estimate.estimate import Estimate
from parlay.estimate.terms import Term
from parlay.frameworks.given import Imported
from parlay.layouts.layout import Layout
from parlay.report.document import Document
from parlay.report.question import where_adapters_stand
from parlay.search.plan import Plan
from parlay.search.sensitivity import Change


class TermDocument(Document):
    """A term and its parts; `value` is in `unit`."""

    key: str
    label: str
    value: float | None
    unit: str
    source: str
    formula: str | None = None
    inputs: dict[str, Any] = Field(default={})
    note: str = ""
    parts: list[TermDocument] = Field(default=[])

    @classmethod
    def of(cls, term: Term) -> TermDocument:
        """Return the document of one layout's term."""
        return cls(
            key=term.key,
            label=term.label,
            value=_finite(term.value),
            unit=term.unit,
            source=term.source,
            formula=term.formula,
            inputs={k: _finite(v) for k, v in term.inputs.items()},
            note=term.note,
            parts=[cls.of(p) for p in term.parts],
        )


class QuestionDocument(Document):
    """What was asked."""

    model: str
    parameters_total: int
    parameters_active: int
    cluster: str
    device: str
    gpus: int
    seq_len: int
    global_batch_sequences: int
    precision: str
    optimizer: str
    framework: str
    document_len: int | None
    lora_rank: int | None
    lora_modules: list[str]
    parameters_trained: int  # all of the model's, or the adapters' where only these are trained


class ExpectedDocument(Document):
    """The range of step seconds that the nearest measured runs suggest, and how like the case the nearest is."""

    step_low_s: float
    step_high_s: float
    runs: int
    nearest: str
    distance: float
    far_from_any_run: bool
    framework_measured: bool  # whether any of these runs was under the framework of the case
    host_use_measured: bool  # whether any of them keeps something on the host, or nothing, as this layout does


class EstimateDocument(Document):
    """One layout, priced."""

    layout: dict[str, Any]
    layout_short: str
    fits: bool
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    flops_per_token: float
    flops_convention: str
    mfu: float
    mfu_peak_flops_per_s: float
    memory_peak_bytes: float
    memory_limit_bytes: float
    memory_worst_stage: int
    time: TermDocument
    hidden: TermDocument
    memory: list[TermDocument]
    stage_layers: list[list[int]]  # of each chunk of each stage
    host_memory_bytes: float  # offloaded to the fullest host
    host_memory_limit_bytes: float | None
    checkpoint_bytes: float  # of weights and optimizer state, or of the adapters
    assumptions: list[str]
    expected: ExpectedDocument | None = None
    run_s: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None


class ImportedDocument(Document):
    """How a framework's configuration file (--from) was read."""

    framework: str
    understood: tuple[str, ...]
    ignored: tuple[str, ...]
    not_understood: tuple[str, ...]
    notes: tuple[str, ...]


class EstimateReport(Document):
    """The document of `parlay estimate --json`."""

    schema_name: Literal["parlay/estimate"] = "parlay/estimate"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    question: QuestionDocument
    estimate: EstimateDocument
    imported: ImportedDocument | None = None  # only with --from


class ChangeDocument(Document):
    """The single change of a layout that saves most of the step; `over_bytes` is memory that it lacks."""

    words: str
    layout_short: str
    layout: dict[str, Any]
    gain: float
    over_bytes: float


class PlanRowDocument(Document):
    """One recommended layout."""

    rank: int
    limited_by: str
    why_not_first: str
    estimate: EstimateDocument
    help: ChangeDocument | None = None  # only with --sensitivity


class PointDocument(Document):
    """A layout on the front of speed against memory."""

    layout_short: str
    layout: dict[str, Any]
    step_s: float
    memory_peak_bytes: float


class MissDocument(Document):
    """The layout that comes nearest to fitting."""

    layout_short: str
    layout: dict[str, Any]
    memory_peak_bytes: float
    over_bytes: float
    on_hosts: bool  # whether both are of a host's memory: the devices have room
    largest_terms_bytes: dict[str, float]


class PlanReport(Document):
    """The document of `parlay plan --json`."""

    schema_name: Literal["parlay/plan"] = "parlay/plan"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    question: QuestionDocument
    fits: bool
    rows: list[PlanRowDocument]
    pareto: list[PointDocument]
    rejected: dict[str, int]
    reasons: dict[str, str]
    considered: int
    priced: int
    fitting: int
    memory_limit_bytes: float
    nearest_miss: MissDocument | None
    cheapest_lever: str | None
    elapsed_s: float
    imported: ImportedDocument | None = None  # only with --from
    asked: list[str] = Field(default=[])
    headroom_bytes: float = 0.0
    interrupted: bool = False
    sensitivities: dict[str, float] = Field(
        default={}
    )  # share of the first step that 10 % more of each saves; only with --sensitivity


class DifferenceDocument(Document):
    """One term in both layouts."""

    key: str
    label: str
    unit: str
    first: float | None
    second: float | None
    difference: float | None


class CompareReport(Document):
    """The document of `parlay compare --json`."""

    schema_name: Literal["parlay/compare"] = "parlay/compare"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    first: EstimateReport
    second: EstimateReport
    same_gpus: bool = True  # whether both run on as many GPUs; if not, seconds of a step are not of one amount of hardware
    differences: list[DifferenceDocument]


class VerifyRow(Document):
    """One worked example and what the formulas say."""

    id: str
    source: str
    where: str
    formula: str
    status: Literal["agrees", "erratum"]
    passed: bool
    said: dict[str, Any]
    value: dict[str, Any]
    computed: dict[str, Any]
    why: str = ""
    problem: str = ""


class VerifyReport(Document):
    """The document of `parlay verify --json`."""

    schema_name: Literal["parlay/verify"] = "parlay/verify"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    passed: int
    failed: int
    rows: list[VerifyRow]


def question_document(e: Estimate | Plan) -> QuestionDocument:
    """Return what an estimate or a plan was asked for."""
    from parlay.estimate.adapters import trained_adapters
    from parlay.estimate.counts import parameters

    counts, w = parameters(e.model), e.workload
    adapters = trained_adapters(e.model, w)
    return QuestionDocument(
        model=e.model.id, parameters_total=counts.total, parameters_active=counts.active, cluster=e.cluster.id,
        device=e.cluster.device.id, gpus=e.gpus, seq_len=w.seq_len, global_batch_sequences=w.global_batch,
        precision=w.precision, optimizer=w.optimizer, framework=w.framework, document_len=w.document_len,
        lora_rank=w.lora_rank, lora_modules=where_adapters_stand(e.model, w),
        parameters_trained=counts.total if adapters is None else adapters,
    )  # fmt: skip


def layout_document(layout: Layout) -> dict[str, Any]:
    """Return a layout as plain values that a run file accepts."""
    return layout.model_dump(mode="json")


def estimate_document(e: Estimate, gpu_hour_usd: float | None = None) -> EstimateDocument:
    """Return the document of one estimate; run time and cost where the tokens of the run are known."""
    run = dataclasses.asdict(run_length(e, gpu_hour_usd))
    return EstimateDocument(
        layout=layout_document(e.layout), layout_short=str(e.layout), fits=e.fits, step_s=e.step_s,
        tokens_per_s=e.tokens_per_s_per_gpu * e.gpus, tokens_per_s_per_gpu=e.tokens_per_s_per_gpu,
        flops_per_token=e.flops_per_token, flops_convention=e.mfu_convention, mfu=e.mfu,
        mfu_peak_flops_per_s=e.mfu_peak_flops_per_s, memory_peak_bytes=e.peak_bytes,
        memory_limit_bytes=e.memory_limit_bytes, memory_worst_stage=e.worst_stage, time=TermDocument.of(e.step),
        hidden=TermDocument.of(e.hidden), memory=[TermDocument.of(t) for t in e.memory], stage_layers=e.stage_layers,
        host_memory_bytes=e.host_bytes, host_memory_limit_bytes=e.host_limit_bytes,
        checkpoint_bytes=checkpoint_bytes(e),
        assumptions=list(e.assumptions), expected=expected_document(e), **run,
    )  # fmt: skip


def expected_document(e: Estimate) -> ExpectedDocument | None:
    """Return the range around an estimate, None without a track record."""
    x = e.expected
    if x is None:
        return None
    return ExpectedDocument(
        step_low_s=e.step_s * x.low, step_high_s=e.step_s * x.high, runs=x.runs, nearest=x.nearest, distance=x.distance,
        far_from_any_run=x.far, framework_measured=x.of_framework > 0, host_use_measured=x.hosted_alike > 0,
    )  # fmt: skip


def imported_document(imported: Imported | None) -> ImportedDocument | None:
    """Return how a framework's file was read; the table itself is in the question."""
    if imported is None:
        return None
    return ImportedDocument(**{name: getattr(imported, name) for name in ImportedDocument.model_fields})


def estimate_report(e: Estimate, gpu_hour_usd: float | None = None, imported: Imported | None = None) -> EstimateReport:
    """Return the whole document of an estimate."""
    document = estimate_document(e, gpu_hour_usd)
    return EstimateReport(question=question_document(e), estimate=document, imported=imported_document(imported))


def plan_report(p: Plan, gpu_hour_usd: float | None = None, imported: Imported | None = None) -> PlanReport:
    """Return the whole document of a plan."""
    miss = p.nearest_miss
    return PlanReport(
        question=question_document(p),
        fits=bool(p.rows),
        rows=[
            PlanRowDocument(
                rank=i + 1, limited_by=r.limited_by, why_not_first=r.why_not_first, estimate=estimate_document(r.estimate, gpu_hour_usd),
                help=change_document(r.help),
            )
            for i, r in enumerate(p.rows)
        ],
        pareto=[
            PointDocument(layout_short=str(x.layout), layout=layout_document(x.layout), step_s=x.step_s, memory_peak_bytes=x.peak_bytes)
            for x in p.pareto
        ],
        rejected=p.rejected,
        reasons={k: v for k, v in p.reasons.items() if k in p.rejected},
        considered=p.considered,
        priced=p.priced,
        fitting=p.fitting,
        memory_limit_bytes=p.memory_limit_bytes,
        nearest_miss=miss
        and MissDocument(
            layout_short=str(miss.layout), layout=layout_document(miss.layout), memory_peak_bytes=miss.peak_bytes,
            over_bytes=miss.over_bytes, on_hosts=miss.on_hosts, largest_terms_bytes=dict(miss.largest),
        ),
        cheapest_lever=p.cheapest_lever,
        elapsed_s=p.elapsed_s,
        imported=imported_document(imported),
        asked=list(p.asked),
        headroom_bytes=p.headroom_bytes,
        interrupted=p.interrupted,
        sensitivities={s.what: s.gain for s in p.sensitivities},
    )  # fmt: skip


def change_document(change: Change | None) -> ChangeDocument | None:
    """Return the document of a change that would help, None without one."""
    if change is None:
        return None
    return ChangeDocument(
        words=change.words, layout_short=str(change.layout), layout=layout_document(change.layout), gain=change.gain,
        over_bytes=change.over_bytes,
    )  # fmt: skip


def compare_report(first: Estimate, second: Estimate) -> CompareReport:
    """Return the document of two estimates and their differences by term."""
    rows = [
        DifferenceDocument(key=k, label=label, unit=unit, first=a, second=b, difference=None if a is None or b is None else b - a)
        for k, label, unit, a, b in differences(first, second)
    ]
    return CompareReport(
        first=estimate_report(first), second=estimate_report(second), same_gpus=first.gpus == second.gpus, differences=rows
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
