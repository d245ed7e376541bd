"""The lines that say what was asked."""

from __future__ import annotations

from parlay.estimate.adapters import trained_adapters
from parlay.estimate.counts import parameters
from parlay.estimate.estimate import Estimate
from parlay.layouts.adapters import adapted
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.report.table import Page, fields
from parlay.search.plan import Plan
from parlay.units import show_bytes, show_count, show_number, show_rate


def question_lines(e: Estimate | Plan, page: Page, *more: tuple[str, str]) -> list[str]:
    """Return model, cluster, links and workload, one line each, and `more` names with values below them."""
    return fields([*question_pairs(e), *more], page)


def both_questions(first: Estimate, second: Estimate, page: Page) -> list[str]:
    """Return the same lines for two estimates: one where they agree, one of A and one of B where they differ."""
    pairs = []
    for (name, a), (_, b) in zip(question_pairs(first), question_pairs(second), strict=True):
        pairs += [(name, a)] if a == b else [(f"{name} A", a), (f"{name} B", b)]
    return fields(pairs, page)


def adapters_in_words(model: ModelSpec, workload: Workload) -> str:
    """Return what LoRA trains, as the end of a line on the training; nothing where everything is trained."""
    trained = trained_adapters(model, workload)
    if trained is None:
        return ""
    return f"; LoRA of rank {workload.lora_rank} on {', '.join(where_adapters_stand(model, workload))} trains {show_count(trained)} parameters"


def where_adapters_stand(model: ModelSpec, workload: Workload) -> list[str]:
    """Return the modules that are adapted and that the model has: a mixture without shared experts has no MLP of them."""
    have = {one.module for kind in model.kinds.values() for one in adapted(kind, model.hidden, workload)}
    return [module for module in workload.lora_modules if module in have]


def question_notes(model: ModelSpec, workload: Workload) -> list[str]:
    """Return what is odd in a question although it can be answered: a context that the model was not made for, less than one step."""
    said = []
    reach, positions = min(workload.document_len or workload.seq_len, workload.seq_len), model.max_positions
    if positions is not None and reach > positions:
        said.append(
            f"a context of {reach:,} tokens is longer than the {positions:,} positions that {model.name} was made for: they must be extended"
        )
    step = workload.global_batch * workload.seq_len
    if workload.total_tokens is not None and workload.total_tokens < step:
        said.append(
            f"the run of {show_number(workload.total_tokens, 'token')} is less than one step of {step:,}: its time and cost are of that part of a step"
        )
    return said


def question_pairs(e: Estimate | Plan) -> list[tuple[str, str]]:
    """Return model, cluster, links and workload in words, each with its name."""
    counts, w, c = parameters(e.model), e.workload, e.cluster
    active = f", {show_count(counts.active)} active" if counts.active != counts.total else ""
    device = c.device
    limit = show_bytes(device.memory.allocatable.value)
    nodes = e.gpus / c.gpus_per_node.value
    where = f"{e.gpus:,} x {device.name}" + (f" on {nodes:,.{int(nodes != int(nodes))}f} nodes" if nodes > 1 else "")
    links = f"{show_rate(c.scale_up_link.bytes_per_s.value, 'B/s')} {c.scale_up_link.name}"
    network = f"{show_rate(c.nic_bytes_per_s_per_gpu, 'B/s')} network a GPU"
    return [
        ("model", f"{e.model.name}: {show_count(counts.total)} parameters{active}"),
        ("cluster", f"{c.name}: {where}, {limit} allocatable"),
        ("links", f"one way: {links}; {network}"),
        (
            "training",
            f"{show_number(w.seq_len, 'token')} x {show_number(w.global_batch, 'sequence')}, {w.precision}, {w.optimizer}, {w.framework}"
            + _documents(w)
            + adapters_in_words(e.model, w),
        ),
    ]


def _documents(w: Workload) -> str:
    """Return in words how long packed documents are; one longer than a sequence is cut, so nothing is packed."""
    if w.document_len is None:
        return ""
    return f"; documents of {show_number(w.document_len, 'token')} " + (
        "packed" if w.document_len < w.seq_len else "cut at the sequence"
    )
