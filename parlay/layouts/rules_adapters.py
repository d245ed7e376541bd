"""Rules on LoRA: which frameworks train adapters, of which optimizers their state is known, and how a rank is split."""

from __future__ import annotations

import numpy as np

from parlay.layouts.adapters import adapted, linears
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rule import Mask, Question, Rule, divisors, listed
from parlay.layouts.vocabulary import Framework, Optimizer

# With Megatron-Bridge, NeMo Automodel and Hugging Face PEFT.
OFFER: tuple[Framework, ...] = ("megatron-core", "torchtitan", "deepspeed")
OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "adamw-8bit", "sgd")


def _adapters(x: Layouts, q: Question) -> Mask:
    w = q.workload
    if w.lora_rank is None:
        return np.zeros(len(x), bool)
    if w.framework not in OFFER or w.optimizer not in OPTIMIZERS or not _stand(q):
        return np.ones(len(x), bool)
    return np.asarray(w.lora_rank % x.tp != 0) if w.framework == "megatron-core" else np.zeros(len(x), bool)


def _stand(q: Question) -> bool:
    """Return whether any layer of the model has a module that the workload adapts."""
    return any(adapted(kind, q.model.hidden, q.workload) for kind in q.model.kinds.values())


def _adapters_message(x: Layout, q: Question) -> tuple[str, str]:
    w = q.workload
    if w.framework not in OFFER:
        return f"{w.framework} does not train LoRA adapters", f"the framework may be {', '.join(OFFER)}"
    if w.optimizer not in OPTIMIZERS:
        return f"LoRA is not priced with {w.optimizer}", f"the optimizer may be {', '.join(OPTIMIZERS)}"
    if not _stand(q):
        have = sorted({one.module for kind in q.model.kinds.values() for one in linears(kind, q.model.hidden)})
        asked = ", ".join(w.lora_modules)
        return f"{q.model.name} has no {asked} that LoRA could adapt (routed experts stay frozen)", (
            f"set training.lora_modules to some of {', '.join(have)}"
        )
    return (
        f"tp={x.tp} does not divide the LoRA rank of {w.lora_rank}, which Megatron splits",
        f"tp may be {listed(divisors(w.lora_rank or 1))} with this rank",
    )


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule(
        "adapters",
        "LoRA needs a framework and an optimizer that train adapters, and a rank that tensor parallelism splits evenly",
        _adapters,
        _adapters_message,
    ),
)
