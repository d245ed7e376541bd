"""The text and the document of `parlay ladder`: what fits rung by rung, and what can be served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from parlay import __version__
from parlay.estimate.memory_buffers import CONTEXT_BYTES
from parlay.estimate.terms import Term
from parlay.report.document import Document
from parlay.report.table import Column, Page, render, wrap
from parlay.search.ladder import Ladder, Step
from parlay.search.node_counts import COUNTS
from parlay.search.serving import Serving, Split
from parlay.units import GIB, MIB, show_bytes, show_count

BAR = 30  # characters of the longest bar
TERMS = {
    "weights": "memory.weights",
    "gradients": "memory.gradients",
    "optimizer": "memory.optimizer",
    "activations": "memory.activations",
}


def memory_by_term(memory: Term) -> dict[str, float]:
    """Return bytes of weights, gradients, optimizer state and activations, and of all the rest together."""
    parts = {name: (found.value if (found := memory.find(key)) else 0.0) for name, key in TERMS.items()}
    return {**parts, "rest": memory.value - sum(parts.values())}


def ladder_lines(ladders: Sequence[Ladder], page: Page) -> list[str]:
    """Return the lines of every ladder: a bar and a row of sizes for each rung."""
    out: list[str] = []
    for found in ladders:
        out += ["", *_one(found, page)] if out else _one(found, page)
    return out


def _one(found: Ladder, page: Page) -> list[str]:
    w = found.workload
    what = "largest of the " + found.family + " shapes" if found.growing else found.family
    head = (
        f"{found.gpus:,} x {found.cluster.device.name} ({found.cluster.name}), {show_bytes(found.limit_bytes)} allocatable each"
    )
    out = wrap(page.bold(head), page)
    lora = f", LoRA of rank {w.lora_rank}" if w.lora_rank else ""
    out += wrap(
        f"{what}; {w.seq_len:,} tokens x {w.global_batch:,} sequences, {w.precision}, {w.optimizer}, {w.framework}{lora}", page
    )
    out += wrap(batch_note(found), page) if batch_note(found) else []
    if found.why:
        return [*out, "", *wrap(found.why, page)]
    out += ["", *_bars(found, page), "", *_table(found, page)]
    if found.growing:
        out += wrap(
            "Every rung allows what the rungs above it allow, and one thing more; layouts are the fastest that fit.", page
        )
    else:
        out += wrap(
            f"Fewest GPUs are of {COUNTS}; the batch grows where it has fewer sequences than ranks. Layouts are the fastest on {found.gpus:,} "
            "GPUs, and contexts the longest.",
            page,
        )
    if found.positions is not None and any((s.longest_context or 0) > found.positions for s in found.steps):
        out += wrap(
            f"Contexts are what memory holds. {found.context_of} was made for {found.positions:,} positions: longer contexts need them "
            "extended.",
            page,
        )
    return out


def batch_note(found: Ladder) -> str:
    """Return why the batch is not the one that was asked for, nothing where it is."""
    asked, taken = found.asked_batch, found.workload.global_batch
    if asked in (0, taken):
        return ""
    why = (
        f"is less than a sequence for each of {found.gpus:,} GPUs"
        if asked < found.gpus
        else f"is no multiple of {found.gpus:,} GPUs"
    )
    return f"note: a global batch of {asked:,} {why}, which data parallelism alone would need; {taken:,} is taken"


def _bars(found: Ladder, page: Page) -> list[str]:
    """Return one bar a rung: parameters, or with a given model the longest sequence."""
    size = [s.parameters if found.growing else (s.longest_context or 0) for s in found.steps]
    most = max([1, *size])
    unit = "parameters" if found.growing else "tokens"
    rows = []
    for step, value in zip(found.steps, size, strict=True):
        text = "nothing fits" if not value else show_count(value) if found.growing else f"{value:,}"
        rows.append([step.rung, text, "#" * max(round(BAR * value / most), 1 if value else 0)])
    return render([Column("rung", right=False), Column(unit), Column("", right=False)], rows, page)


def _table(found: Ladder, page: Page) -> list[str]:
    columns = [Column("rung", right=False), *([Column("layers"), Column("hidden")] if found.growing else [Column("fewest GPUs")])]
    columns += [Column("layout" if found.growing else f"layout on {found.gpus:,} GPUs", right=False), Column("tok/s/GPU", drop=1)]
    columns += [Column(f"{name} GiB", drop=3) for name in (*TERMS, "rest")]
    columns += [Column("all GiB", drop=2)]
    contexts = any(s.longest_context is not None for s in found.steps)
    columns += (
        [Column(f"longest context{' of ' + found.context_of if found.growing else ''}")] if contexts or not found.growing else []
    )
    return render(columns, [_row(found, s)[: len(columns)] for s in found.steps], page)


def _row(found: Ladder, s: Step) -> list[str]:
    if found.growing:
        cells = [str(s.model.layer_count), f"{s.model.hidden:,}"] if s.model else ["-", "-"]
    else:
        cells = [f"{s.fewest_gpus:,}" if s.fewest_gpus else "-"]
    if s.memory is None or s.layout is None:
        body = ["-"] * (len(TERMS) + 4)
    else:
        values = [f"{v / GIB:.1f}" for v in memory_by_term(s.memory).values()]
        body = [str(s.layout), f"{s.tokens_per_s_per_gpu:,.0f}", *values, f"{s.memory.value / GIB:.1f}"]
    return [s.rung, *cells, *body, f"{s.longest_context:,}" if s.longest_context else "-"]


def serving_lines(found: Serving, page: Page) -> list[str]:
    """Return the lines of what can be served: one row a split."""
    head = (
        f"{found.gpus:,} x {found.cluster.device.name} ({found.cluster.name}), {show_bytes(found.limit_bytes)} allocatable each"
    )
    out = wrap(page.bold(head), page)
    out += wrap(
        f"{found.title}; {found.context:,} tokens of context; weights {found.weight_dtype}, K/V cache {found.cache_dtype}", page
    )
    if found.why:
        return [*out, "", *wrap(found.why, page)]
    stateful = any(s.state_bytes for s in found.splits)
    columns = [
        Column("tp"), Column("pp"), Column("ep"), Column("copies", drop=4), *([Column("largest", right=False)] if found.growing else []),
        Column("weights GiB", drop=2), Column("activations GiB", drop=3), Column("cache GiB", drop=2), Column("KiB a token", drop=1),
        *([Column("MiB a sequence", drop=1)] if stateful else []), Column("batch"),
        Column("batch x context"), Column("longest context"), Column("ms a token, alone"), Column("ms a token, full", drop=1),
    ]  # fmt: skip
    rows = []
    for s in found.splits:
        size = [show_count(s.parameters) if s.parameters else "nothing fits"] if found.growing else []
        sequence = [f"{s.state_bytes / MIB:.1f}"] if stateful else []
        answer = [f"{s.batch:,}", f"{s.batch * found.context:,}"] if s.fits else ["-", "-"]
        times = [f"{1e3 * s.alone_s:.2f}", f"{1e3 * s.full_s:.2f}"] if s.fits else ["-", "-"]
        rows.append([
            str(s.tp), str(s.pp), str(s.ep), str(s.copies), *size, f"{s.weight_bytes / GIB:.1f}", f"{s.activation_bytes / GIB:.1f}",
            f"{s.cache_bytes / GIB:.1f}" if s.fits else "-", f"{s.token_bytes / 1024:.1f}", *sequence, *answer, _longest(found, s), *times,
        ])  # fmt: skip
    out += ["", *render(columns, rows, page), ""]
    for text in found.assumptions:
        out += wrap(f"- {text}", page, hang="  ")
    if any(_beyond_the_model(found, s) for s in found.splits):
        out += wrap("- (model): the positions that the model was made for; memory would hold more", page, hang="  ")
    return out


def _beyond_the_model(found: Serving, s: Split) -> bool:
    """Return whether memory holds a longer context than the model was made for."""
    return found.positions is not None and (s.longest_context is None or s.longest_context > found.positions)


def _longest(found: Serving, s: Split) -> str:
    """Return the longest context, and what limits it where that is not memory."""
    if _beyond_the_model(found, s):
        return f"{found.positions:,} (model)"
    if s.longest_context is None:
        return "no limit in memory"
    return f"{s.longest_context:,}" if s.longest_context else "-"


def interrupted_lines(ladders: Sequence[Ladder], served: Sequence[Serving], asked: int, page: Page) -> list[str]:
    """Return what is missing from answers that were interrupted: rungs of the last one, and the rest of the `asked`."""
    cut, done = any(x.interrupted for x in ladders), len(ladders) + len(served)
    last = "the last one lacks further rungs" if cut else ""
    rest = f"{asked - done} of {asked} answers are missing" if asked > done else ""
    return wrap(f"Interrupted: {' and '.join(filter(None, (last, rest)))}.", page)


class StepDocument(Document):
    """One rung; without a layout nothing fits there."""

    rung: str
    parameters: int
    layers: int | None
    hidden: int | None
    layout_short: str | None
    layout: dict[str, Any] | None
    memory_bytes: dict[str, float]
    tokens_per_s_per_gpu: float
    longest_context_tokens: int | None
    fewest_gpus: int | None


class LadderDocument(Document):
    """One ladder."""

    cluster: str
    gpus: int
    family: str
    growing: bool
    seq_len: int
    global_batch_sequences: int
    memory_limit_bytes: float
    steps: list[StepDocument]
    asked_batch_sequences: int  # what was asked for; another one is taken where the GPUs cannot share it
    note: str = ""  # why the batch is another one
    why: str = ""  # why there are no steps: the cluster has not the precision
    model_context_tokens: int | None = None  # the longest that the model asked about was made for; memory may hold longer ones


class SplitDocument(Document):
    """One split of what can be served; all per GPU, except `batch_sequences`, which is of one copy of the model."""

    tp: int
    pp: int
    ep: int
    copies: int
    parameters: int
    weight_bytes: float
    activation_bytes: float
    token_bytes: float
    state_bytes: float  # of a sequence, however long
    cache_bytes: float  # of the whole batch
    fits: bool
    batch_sequences: int
    longest_context_tokens: int | None  # that memory holds and the model was made for; None: neither sets a limit
    memory_context_tokens: int | None  # that memory alone holds; None: no limit in memory
    token_alone_s: float | None
    token_full_s: float | None


class ServingDocument(Document):
    """What can be served on one number of GPUs."""

    cluster: str
    gpus: int
    title: str
    context_tokens: int
    weight_dtype: str
    cache_dtype: str
    memory_limit_bytes: float
    usable_bytes: float
    device_context_bytes: float  # context and kernels
    model_context_tokens: int | None  # the longest context that the model was made for
    splits: list[SplitDocument]
    assumptions: list[str]
    why: str = ""  # why there are no splits: the cluster has not the precision


class LadderReport(Document):
    """The document of `parlay ladder --json`."""

    schema_name: Literal["parlay/ladder"] = "parlay/ladder"
    schema_version: Literal[1] = 1
    parlay_version: str = __version__
    ladders: list[LadderDocument]
    serving: list[ServingDocument]
    interrupted: bool = False


def ladder_report(ladders: Sequence[Ladder], served: Sequence[Serving] = (), *, interrupted: bool = False) -> LadderReport:
    """Return the whole document of ladders and of what can be served."""
    each, split = [_ladder_document(x) for x in ladders], [_serving_document(x) for x in served]
    return LadderReport(ladders=each, serving=split, interrupted=interrupted)


def _ladder_document(x: Ladder) -> LadderDocument:
    steps = [
        StepDocument(
            rung=s.rung, parameters=s.parameters, layers=s.model.layer_count if s.model else None, hidden=s.model.hidden if s.model else None,
            layout_short=str(s.layout) if s.layout else None, layout=s.layout.model_dump(mode="json") if s.layout else None,
            memory_bytes=memory_by_term(s.memory) if s.memory else {}, tokens_per_s_per_gpu=s.tokens_per_s_per_gpu,
            longest_context_tokens=s.longest_context, fewest_gpus=s.fewest_gpus,
        )
        for s in x.steps
    ]  # fmt: skip
    return LadderDocument(
        cluster=x.cluster.id, gpus=x.gpus, family=x.family, growing=x.growing, seq_len=x.workload.seq_len,
        global_batch_sequences=x.workload.global_batch, memory_limit_bytes=x.limit_bytes, steps=steps,
        asked_batch_sequences=x.asked_batch or x.workload.global_batch, note=batch_note(x), why=x.why,
        model_context_tokens=x.positions,
    )  # fmt: skip


def _serving_document(x: Serving) -> ServingDocument:
    splits = [
        SplitDocument(
            tp=s.tp, pp=s.pp, ep=s.ep, copies=s.copies, parameters=s.parameters, weight_bytes=s.weight_bytes,
            activation_bytes=s.activation_bytes, token_bytes=s.token_bytes, state_bytes=s.state_bytes, cache_bytes=s.cache_bytes,
            fits=s.fits, batch_sequences=s.batch,
            longest_context_tokens=x.positions if _beyond_the_model(x, s) else s.longest_context, memory_context_tokens=s.longest_context,
            token_alone_s=s.alone_s if s.fits else None, token_full_s=s.full_s if s.fits else None,
        )
        for s in x.splits
    ]  # fmt: skip
    return ServingDocument(
        cluster=x.cluster.id, gpus=x.gpus, title=x.title, context_tokens=x.context, weight_dtype=x.weight_dtype, cache_dtype=x.cache_dtype,
        memory_limit_bytes=x.limit_bytes, usable_bytes=x.usable_bytes, device_context_bytes=CONTEXT_BYTES, model_context_tokens=x.positions,
        splits=splits, assumptions=list(x.assumptions), why=x.why,
    )  # fmt: skip
