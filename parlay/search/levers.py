"""What would make a model fit where nothing does: a milder choice on the same GPUs, and how many GPUs are enough."""

from __future__ import annotations

import dataclasses

from parlay.estimate.estimate import price_memory
from parlay.hardware.spec import Cluster
from parlay.layouts.rules import Question
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.search.combine import runs
from parlay.search.node_counts import FINE, fewest_gpus
from parlay.search.space import Counted, Space, layouts_of

DOUBLINGS = 12


def cheapest_lever(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, space: Space) -> str:
    """Return the mildest change that makes some layout fit on these GPUs, and the fewest more that do."""
    vpp = next((v for v in (1, 2) if any(runs(schedule, v) for schedule in space.schedule)), 1)
    small = dataclasses.replace(
        space, micro_batch=(1,), vpp=(vpp,), recompute=(("full",),), recompute_layers=(0,), tp_overlap=(False,), ep_overlap=(False,),
        dp=(), order=space.order[:1],
    )  # fmt: skip
    levers = [
        text for text in (_choice(model, cluster, workload, gpus, small), _more(model, cluster, workload, gpus, small)) if text
    ]
    if levers:
        more = "" if space.wide else "; --wide searches offload and finer recompute for a faster way"
        return "; or ".join(levers) + more
    return f"no number of GPUs up to {2**DOUBLINGS:,} times as many helps; use a smaller model or a shorter sequence"


def _fits(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, space: Space) -> bool:
    question = Question(model, cluster, workload, gpus)
    held = (price_memory(model, cluster, workload, x) for x in layouts_of(question, space, Counted()))
    return any((m.peak <= m.limit_bytes - space.asked.headroom_bytes).any() for m in held)


def _choice(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, small: Space) -> str | None:
    """Return the first choice, mildest first, that fits on the same GPUs."""
    if 3 not in small.zero and _fits(model, cluster, workload, gpus, dataclasses.replace(small, zero=(3,))):
        return "shard weights and gradients as well (ZeRO-3 or FSDP, --fix zero=3)"
    halved = workload.model_copy(update={"moment_dtype": "bf16", "gradient_dtype": "bf16"})
    if _fits(model, cluster, halved, gpus, small):
        return (
            "keep gradients and optimizer moments in bf16 (--set training.gradient_dtype=bf16 --set training.moment_dtype=bf16)"
        )
    if _fits(model, cluster, workload, gpus, dataclasses.replace(small, offload_optimizer=(1.0,))):
        return "move the optimizer state to host memory (--fix offload_optimizer=1)"
    both = dataclasses.replace(small, offload_optimizer=(1.0,), offload_activations=(1.0,), recompute=(("full",), ()))
    if _fits(model, cluster, workload, gpus, both):
        return "move optimizer state and activations to host memory (--fix offload_optimizer=1 --fix offload_activations=1)"
    return None


def _more(model: ModelSpec, cluster: Cluster, workload: Workload, gpus: int, small: Space) -> str | None:
    """Return the fewest GPUs above those given that fit; the batch grows where it has fewer sequences than ranks."""

    def grown(n: int) -> Workload:
        if workload.global_batch % n == 0:
            return workload
        return workload.model_copy(update={"global_batch": max(workload.global_batch, n)})

    n = fewest_gpus(cluster, lambda n: _fits(model, cluster, grown(n), n, small), above=gpus, most=gpus * 2**DOUBLINGS)
    if n is None:
        return None
    larger = grown(n).global_batch
    batch = f" at a global batch of {larger:,}" if larger != workload.global_batch else ""
    node = int(cluster.gpus_per_node.value)
    nodes = n // node
    what = "that divide a node" if n < node else "in whole nodes" if nodes <= 2 * FINE else f"of those tried, {nodes:,} nodes"
    return f"use {n:,} GPUs, the fewest {what} that fit{batch}"
