"""LoRA's adapters: what they hold on a rank, and what they compute.

An adapter of rank r beside a weight of `out` x `in` adds B A x, with A of r x in and B of out x r (arXiv:2106.09685, section 4.1).
Under tensor parallelism it is split as Megatron-Bridge splits it (peft/utils.py, ParallelLinearAdapter): beside a column-parallel
weight A by its r rows and B by `out`; beside a row-parallel one A by `in`, as its input is, and B by `out` again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.estimate.pricer import ELEMENT, Operator, Pricer
from parlay.estimate.terms import weakest
from parlay.formulas import parameters as formula
from parlay.layouts.adapters import adapted
from parlay.layouts.vocabulary import FUSED_LAYERS, LoraModule
from parlay.layouts.workload import Workload
from parlay.models.spec import LayerKind, ModelSpec

Array = NDArray[np.float64]

# Host operators of an adapter's forward: two products and two plain operations (scale, sum). Where layers are fused modules, a
# product of plain PyTorch operations is half of one, and a plain operation PLAIN_OPERATOR of it; elsewhere each is one.
FUSED_ADAPTER_OPERATORS, ADAPTER_OPERATORS = 1.2, 4.0


def trained_adapters(model: ModelSpec, workload: Workload) -> int | None:
    """Return the parameters of all adapters of a model, None where the workload has no adapters."""
    if workload.lora_rank is None:
        return None
    each = {name: float(adapter_parameters(kind, model.hidden, workload, 1.0)) for name, kind in model.kinds.items()}
    return round(sum(each[name] for name in model.layer_names()))


def adapter_parameters(kind: LayerKind, hidden: int, workload: Workload, tensor: ArrayLike) -> Array:
    """Return the parameters of the adapters of one layer on a rank of each tensor-parallel degree."""
    t = np.asarray(tensor, dtype=np.float64)
    found = np.zeros_like(t)
    for one in adapted(kind, hidden, workload):
        found = found + formula.lora_parameters(workload.lora_rank or 0, one.parts * one.inner, one.out) / (
            t if one.split else 1.0
        )
    return found


def linear(
    p: Pricer,
    name: str,
    group: str,
    rows: ArrayLike,
    out: ArrayLike,
    inner: ArrayLike,
    modules: tuple[str, ...] = (),
    *,
    at: LoraModule,
    split: bool = True,
    parts: float = 1.0,
) -> list[Operator]:
    """Return a linear layer rows x inner -> rows x out, sizes as on a rank, after its adapter where it has one.

    The adapter's two products each have both gradients; its output is added to the layer's, and its input gradient too. `parts`
    are the layers that make this one where a framework does not fuse them; each has an A of its own.
    """
    base = p.gemm(name, group, rows, out, inner, modules)
    rank = p.workload.lora_rank
    if rank is None or at not in p.workload.lora_modules:
        return [base]
    t = p.shard.tp if split else np.ones_like(p.shard.tp)
    n, wide, k = (np.asarray(size, dtype=np.float64) for size in (rows, out, inner))
    fused = p.workload.framework in FUSED_LAYERS
    each, calls = (1.0, FUSED_ADAPTER_OPERATORS) if fused else (parts, ADAPTER_OPERATORS)
    thin, mine = (each * rank / t, wide) if at in ("qkv", "up") else (each * rank, wide / t)
    a = p.product(name, group, rows, thin, inner, p.traits.wide_products)
    b = p.product(name, group, rows, mine, float(rank), p.traits.wide_products)
    there = p.rates.stream(3 * ELEMENT * n * wide, "residual")
    back = p.rates.stream(3 * ELEMENT * n * k, "residual")
    source = weakest([a.source, b.source, there.source])
    forward, dgrad = a.forward + b.forward + there.seconds, a.dgrad + b.dgrad + back.seconds
    adapter = Operator(f"{name} adapter", group, forward, dgrad, a.wgrad + b.wgrad, frozenset(modules), each * calls, source,
                       weights=2.0 * each)  # fmt: skip
    return [adapter, base]
