"""The rules a layout must keep, one function each: where it is broken, and why in words a person understands.

A rule sees layouts as arrays and returns a mask of the rows that break it; `check` turns that into messages for one
layout. RULES lists them all: those on shapes (rules_shapes), on grid, stages and framework (rules_stages), on LoRA (rules_adapters).
"""

from __future__ import annotations

from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rule import Mask, Question, Rule, Violation, divisors
from parlay.layouts.rules_adapters import ADAPTER_RULES
from parlay.layouts.rules_shapes import SHAPE_RULES
from parlay.layouts.rules_stages import STAGE_RULES
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

__all__ = ["RULES", "Mask", "Question", "Rule", "Violation", "broken_rules", "check", "divisors"]

RULES: tuple[Rule, ...] = (*SHAPE_RULES, *STAGE_RULES, *ADAPTER_RULES)


def broken_rules(layouts: Layouts, question: Question) -> dict[str, Mask]:
    """Return, for each rule, the mask of layouts that break it."""
    return {rule.name: rule.broken(layouts, question) for rule in RULES}


def check(
    layout: Layout, model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int | None = None, *, arrays: Layouts | None = None
) -> list[Violation]:  # fmt: skip
    """Return every rule that `layout` breaks, in the order of RULES; empty if it may run. `arrays` is the layout, as arrays."""
    question = Question(model, cluster, workload, gpus or layout.gpus)
    arrays = Layouts.of(layout) if arrays is None else arrays
    found = []
    for rule in RULES:
        if bool(rule.broken(arrays, question)[0]):
            message, hint = rule.message(layout, question)
            found.append(Violation(rule.name, message, hint, rule.reason))
    return found
