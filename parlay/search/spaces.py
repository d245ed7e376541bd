"""The spaces that are searched unless a user asks for others: what a framework's users tune, and everything it can run."""

from __future__ import annotations

from typing import Any

from parlay.layouts.rules_stages import RUNS, overlaps_tensor
from parlay.layouts.vocabulary import DEFAULT_ORDER, CpKind, Recompute
from parlay.layouts.workload import Workload
from parlay.search.space import ALL, NODE, Space

NONE: tuple[Recompute, ...] = ()
FULL: tuple[Recompute, ...] = ("full",)
OVERLAP: dict[str, Any] = {"tp_overlap": (True,), "overlap_if_it_fits": True, "ep_overlap": (False, True)}
FINE: tuple[Recompute, ...] = ("mlp_activation", "norm", "mla_up")


def default_space(workload: Workload) -> Space:
    """Return the axes that the framework's users tune."""
    overlap = (False, True) if overlaps_tensor(workload) else (False,)
    if workload.framework == "torchtitan":
        kinds: tuple[CpKind, ...] = ("allgather", "zigzag")  # its own default first
        return Space(zero=(3,), shard=(ALL, NODE), cp_kind=kinds, recompute=(NONE, ("selective_ops",), FULL), tp_overlap=overlap)
    if workload.framework == "deepspeed":
        return Space(zero=(1, 2, 3), cp_kind=("ulysses",), recompute=(NONE, FULL), vpp=(1,))
    if workload.framework == "nanotron":
        return Space(cp=(1,), vpp=(1,), recompute=(NONE, FULL))
    if workload.framework == "hai-llm":
        return Space(cp=(1,), vpp=(1,), schedule=("1f1b", "dualpipe"), **OVERLAP, refine=True)
    return Space(**OVERLAP, refine=True)


def wide_space(workload: Workload) -> Space:
    """Return every value of every axis that the framework can run, but for what is never better where it is priced.

    Left out are sequence parallelism off, which saves neither time nor memory here, and the unbalanced ring. Tensor-parallel
    traffic beside compute is shorter than in front of it, so without it is priced what does not fit with its buffers alone.
    """
    third = (0.0, 0.5, 1.0)
    overlap = (False, True) if overlaps_tensor(workload) else (False,)
    if workload.framework == "torchtitan":
        return Space(
            zero=(3,), shard=(), etp=(1, 2, 4, 8), micro_batch=(1, 2, 4, 8, 16), cp_kind=("zigzag", "allgather"),
            recompute=(NONE, ("selective_ops",), FULL), tp_overlap=overlap, schedule=RUNS["torchtitan"],
            offload_optimizer=(0.0, 1.0), wide=True,
        )  # fmt: skip
    if workload.framework == "deepspeed":
        return Space(
            zero=(0, 1, 2, 3), shard=(ALL, NODE), etp=(1, 2, 4, 8), micro_batch=(1, 2, 4, 8, 16), cp_kind=("ulysses",), vpp=(1,),
            recompute=(NONE, FULL), recompute_layers=(), offload_optimizer=third, offload_activations=(0.0, 1.0), wide=True,
        )  # fmt: skip
    if workload.framework == "nanotron":
        return Space(
            zero=(0, 1), cp=(1,), micro_batch=(1, 2, 4, 8, 16), vpp=(1,), recompute=(NONE, FULL), schedule=RUNS["nanotron"], wide=True,
        )  # fmt: skip
    modules: tuple[tuple[Recompute, ...], ...] = (NONE, ("mlp_activation",), ("mla_up",), FINE, ("mlp",), ("moe",), FULL)
    if workload.framework == "hai-llm":
        return Space(
            zero=(0, 1), cp=(1,), vpp=(1,), micro_batch=(1, 2, 4, 8, 16), recompute=modules, recompute_layers=(),
            **OVERLAP, schedule=RUNS["hai-llm"], wide=True,
        )  # fmt: skip
    return Space(
        zero=(0, 1, 2, 3), shard=(ALL, NODE), etp=(1, 2, 4, 8), micro_batch=(1, 2, 4, 8, 16),
        cp_kind=("zigzag", "allgather", "ulysses", "usp"),
        recompute=modules, recompute_layers=(),
        **OVERLAP, offload_optimizer=third, offload_activations=third,
        order=(DEFAULT_ORDER, ("tp", "cp", "pp", "dp")), schedule=RUNS["megatron-core"], wide=True,
    )  # fmt: skip
