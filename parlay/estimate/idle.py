"""Settings that were asked for and change nothing here: what a user should hear of, since an answer shows no trace of them."""

from __future__ import annotations

from collections.abc import Iterator

from parlay.estimate.frameworks import RECIPES, resolve
from parlay.estimate.memory_layers import kept_tensors
from parlay.estimate.shard import Shard
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

OF_EXPERTS = ("moe_imbalance", "moe_capacity_factor", "moe_dispatcher", "moe_grouped")
OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")


def idle_settings(model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout | None) -> list[str]:
    """Return a sentence for each setting that was given and changes neither time nor memory, or less than its name says.

    Examples
    --------
    >>> from parlay.hardware.load import load_cluster
    >>> from parlay.models.load import load_model
    >>> idle_settings(load_model("llama-3.2-1b"), load_cluster("dgx-h100"), Workload(bf16_layers=2), Layout(cp_kind="ulysses"))
    ['training.bf16_layers changes nothing: under bf16 no product is narrower', 'layout.cp_kind changes nothing at cp=1']
    """
    found = [*_of_training(model, workload)]
    if layout is not None:
        if workload.moe_imbalance != 1 and layout.ep == 1 and _has_experts(model):
            found.append("training.moe_imbalance changes nothing at ep=1: every rank has all experts")
        found += [*_of_layout(model, layout), *_of_recompute(model, cluster, workload, layout)]
    return found


def _of_training(model: ModelSpec, w: Workload) -> Iterator[str]:
    given = {name for name in w.model_fields_set if getattr(w, name) != type(w).model_fields[name].default}
    if w.precision not in RECIPES:
        for name in ("bf16_layers", "fp8_attention"):
            if name in given:
                yield f"training.{name} changes nothing: under {w.precision} no product is narrower"
    elif w.bf16_layers >= model.layer_count:
        yield f"training.bf16_layers = {w.bf16_layers:,} are all {model.layer_count} layers of the model"
    if not _has_experts(model):
        for name in OF_EXPERTS:
            if name in given:
                yield f"training.{name} changes nothing: the model has no experts"
    if w.framework == "torchtitan":
        for name in OVERLAPS:
            if name in given:
                yield f"training.{name} changes nothing: FSDP2 and DDP always run such traffic beside compute"
    if w.deterministic:
        yield "training.deterministic changes workspaces alone: how much slower deterministic kernels are is not priced"


def _of_layout(model: ModelSpec, x: Layout) -> Iterator[str]:
    if "cp_kind" in x.model_fields_set and x.cp == 1 and x.cp_kind != Layout.model_fields["cp_kind"].default:
        yield "layout.cp_kind changes nothing at cp=1"
    if x.cp_kind == "usp" and x.cp > 1 and x.ulysses == 1:
        yield "layout.cp_kind = usp is a zig-zag ring alone at ulysses=1"
    if x.tp_overlap and x.tp == 1:
        yield "layout.tp_overlap changes nothing at tp=1"
    if x.ep_overlap and (x.ep == 1 or not _has_experts(model)):
        yield f"layout.ep_overlap changes nothing {'at ep=1' if _has_experts(model) else 'without experts'}"
    each = -(-model.layer_count // (x.pp * x.vpp))
    if x.recompute_layers >= each:
        yield f"layout.recompute_layers = {x.recompute_layers:,} are all layers of a chunk, which has {each} at most"


def _of_recompute(model: ModelSpec, cluster: Cluster, w: Workload, x: Layout) -> Iterator[str]:
    """Say which recomputed modules drop no tensor of any layer."""
    modules = [m for m in x.recompute if m not in ("none", "full", "selective_ops")]
    if not modules:
        return
    settings, shard = resolve(w, cluster.device), Shard.of(Layouts.of(x), w, cluster)
    drops = {m for kind in model.kinds.values() for t in kept_tensors(kind, model, w, settings, shard) for m in t.dropped_by}
    for module in modules:
        if module not in drops:
            yield f"recompute {module} frees nothing here: {w.framework} keeps no tensor of this model for it alone"


def _has_experts(model: ModelSpec) -> bool:
    return any(kind.mlp.kind == "moe" for kind in model.kinds.values())
