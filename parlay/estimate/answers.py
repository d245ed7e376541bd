"""What follows from estimates: how long a whole run takes and costs, and where two layouts differ."""

from __future__ import annotations

import dataclasses
from collections import Counter

from parlay.errors import UnknownNameError
from parlay.estimate.adapters import trained_adapters
from parlay.estimate.counts import parameters
from parlay.estimate.estimate import Estimate
from parlay.estimate.frameworks import resolve
from parlay.estimate.memory_weights import elements_of
from parlay.estimate.shard import Shard
from parlay.estimate.terms import Term
from parlay.formulas import optimizer_state
from parlay.layouts.layout import Layout, Layouts


@dataclasses.dataclass(frozen=True, slots=True)
class RunLength:
    """Seconds, GPU-hours and cost of a whole training run; None where tokens or price are not known."""

    run_s: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None


def run_length(e: Estimate, gpu_hour_usd: float | None) -> RunLength:
    """Return how long `workload.total_tokens` take at this estimate's speed, without restarts or failures."""
    tokens = e.workload.total_tokens
    if not tokens:
        return RunLength()
    seconds = tokens / (e.tokens_per_s_per_gpu * e.gpus)
    hours = seconds * e.gpus / 3600
    return RunLength(seconds, hours, hours * gpu_hour_usd if gpu_hour_usd else None)


def checkpoint_bytes(e: Estimate) -> float:
    """Return the bytes of a checkpoint that the training can go on from; with LoRA it holds the adapters alone. [B]"""
    settings, counts = resolve(e.workload, e.cluster.device), parameters(e.model)
    adapters = trained_adapters(e.model, e.workload)
    trained = counts.total + (counts.mtp if e.model.mtp_layers else 0) if adapters is None else adapters
    bytes_each = {"weight_bytes": settings.weight_bytes, "master_bytes": settings.master_bytes}
    whole = float(optimizer_state.checkpoint_bytes(trained, moments_bytes=settings.states_bytes, **bytes_each))
    if settings.optimizer == "muon":  # one momentum of matrices of layers, two moments of all else, as memory has it
        whole += (trained - _layer_matrices(e)) * (settings.moments_bytes - settings.states_bytes)
    return whole


def _layer_matrices(e: Estimate) -> float:
    """Return the elements of all layers' weight matrices, those of multi-token prediction included: what muon orthogonalises."""
    whole = Shard.of(Layouts.of(Layout()), e.workload, e.cluster)
    names = [*e.model.layer_names(), *[e.model.mtp_kind] * e.model.mtp_modules]
    return sum(float(elements_of(e.model.kinds[name], e.model.hidden, whole, linear_only=True)[0]) for name in names if name)


def differences(first: Estimate, second: Estimate) -> list[tuple[str, str, str, float | None, float | None]]:
    """Return (key, label, unit, first, second) of every leaf of the time tree and of the worst stages' memory trees."""
    rows: list[tuple[str, str, str, float | None, float | None]] = []
    for a, b in ((first.step, second.step), (first.memory[first.worst_stage], second.memory[second.worst_stage])):
        left, right = _leaves(a), _leaves(b)
        both = right | left
        labels = Counter(term.label for term, _ in both.values())
        for key in dict.fromkeys([*left, *right]):
            one, whole = both[key]
            x = float(left[key][0].value) if key in left else 0.0
            y = float(right[key][0].value) if key in right else 0.0
            if x or y:  # layers of two kinds keep tensors of one name
                label = one.label if labels[one.label] == 1 else f"{one.label}, {whole}"
                rows.append((key, label, one.unit, x, y))
    return rows


def _leaves(tree: Term) -> dict[str, tuple[Term, str]]:
    """Return the terms without parts by key, each with the label of what it is a part of."""
    found: dict[str, tuple[Term, str]] = {}
    for whole in tree.walk():
        found |= {part.key: (part, whole.label) for part in whole.parts if not part.parts}
    return found


def find_term(e: Estimate, name: str) -> tuple[Term, Term]:
    """Return the term of `e` with that key (or label), and the tree it stands in; memory is that of the worst stage.

    Raises UnknownNameError with the nearest keys.
    """
    trees = (e.step, e.memory[e.worst_stage], e.hidden)
    for tree in trees:
        found = tree.find(name) or next((t for t in tree.walk() if t.label == name), None)
        if found is not None:
            return found, tree
    hint = "`parlay explain step MODEL ...` and `parlay explain memory MODEL ...` show all terms"
    raise UnknownNameError("term", name, [t.key for tree in trees for t in tree.walk()], hint=hint)
