"""Settings that were asked for and change nothing here: what a user should hear of, since an answer shows no trace of them."""

from __future__ import annotations

from collections.abc import Iterator

from parlay.estimate.frameworks import RECIPES, resolve
from parlay.estimate.memory_layers import kept_tensors
from parlay.estimate.shard import Shard
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.vocabulary import DEFAULT_ORDER, FUSED_LAYERS, Axis
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec

OF_EXPERTS = ("moe_imbalance", "moe_capacity_factor", "moe_dispatcher", "moe_grouped")
OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
WITHOUT_DROPOUT = ("torchtitan", "deepspeed", "nanotron")  # whose layers keep no mask; attention's scores have one, if kept
OF_NARROW = ("bf16_layers", "bf16_layers_at_start", "fp8_attention", "fp8_weights")
BOTH_WAYS = ("dualpipe", "dualpipev")  # schedules of which every rank holds the layers of two stages


def idle_settings(model: ModelSpec, cluster: Cluster, workload: Workload, layout: Layout | None) -> list[str]:
    """Return a sentence for each setting that was given and changes neither time nor memory, or less than its name says.

    Without a layout these are the settings of training that change nothing in any layout; one that breaks a rule is refused, and
    nothing else is said of it.

    Examples
    --------
    >>> from parlay.hardware.load import load_cluster
    >>> from parlay.models.load import load_model
    >>> idle_settings(load_model("llama-3.2-1b"), load_cluster("dgx-h100"), Workload(bf16_layers=2), Layout(cp_kind="ulysses"))
    ['training.bf16_layers changes nothing: under bf16 no product is narrower', 'layout.cp_kind changes nothing at cp=1']
    """
    found = idle_in_training(model, workload)
    if layout is not None and not check(layout, model, cluster, workload):
        if workload.moe_imbalance != 1 and layout.ep == 1 and _has_experts(model):
            found.append("training.moe_imbalance changes nothing at ep=1: every rank has all experts")
        found += [*_of_traffic(model, workload, layout), *_of_layout(model, workload, layout)]
        found += _of_recompute(model, cluster, workload, layout)
    return found


def idle_in_training(model: ModelSpec, workload: Workload) -> list[str]:
    """Return a sentence for each setting of training that was given and changes nothing, whatever the layout and the cluster."""
    return [*_of_precision(model, workload), *_of_training(model, workload)]


def _given(spec: Workload | Layout) -> set[str]:
    return {name for name in spec.model_fields_set if getattr(spec, name) != type(spec).model_fields[name].default}


def _of_precision(model: ModelSpec, w: Workload) -> Iterator[str]:
    given = _given(w)
    if w.precision not in RECIPES:
        for name in OF_NARROW:
            if name in given:
                yield f"training.{name} changes nothing: under {w.precision} no product is narrower"
        return
    if w.bf16_layers >= model.layer_count:
        yield f"training.bf16_layers = {w.bf16_layers:,} are all {model.layer_count} layers of the model"
    at_start = w.bf16_layers_at_start
    if at_start is not None and not w.bf16_layers:
        yield "training.bf16_layers_at_start changes nothing without training.bf16_layers, of which these are"
    elif at_start is not None and at_start > w.bf16_layers:
        yield f"training.bf16_layers_at_start = {at_start:,} are more than training.bf16_layers: all {w.bf16_layers:,} are at the start"
    if "fp8_attention" in given and not w.flash_attention:
        yield "training.fp8_attention changes nothing: without flash_attention the products of attention are not in fp8"


def _of_training(model: ModelSpec, w: Workload) -> Iterator[str]:
    given = _given(w)
    if not _has_experts(model):
        for name in OF_EXPERTS:
            if name in given:
                yield f"training.{name} changes nothing: the model has no experts"
    if w.framework == "torchtitan" and "overlap_param_gather" in given:
        yield "training.overlap_param_gather changes nothing: FSDP2 always gathers beside compute, and DDP gathers nothing"
    if w.framework not in FUSED_LAYERS and "gradient_accumulation_fusion" in given:
        yield f"training.gradient_accumulation_fusion changes nothing: no product of {w.framework} adds into a main gradient"
    if w.dropout and w.framework in WITHOUT_DROPOUT and w.flash_attention:
        yield f"training.dropout changes nothing: models of {w.framework} are priced without dropout"
    if w.deterministic:
        yield "training.deterministic changes workspaces alone: how much slower deterministic kernels are is not priced"


def _of_traffic(model: ModelSpec, w: Workload, x: Layout) -> Iterator[str]:
    """Say which settings of gradients, weights and sends change nothing in a layout."""
    given = _given(w)
    if w.framework == "torchtitan":
        given.discard("overlap_param_gather")  # told already
    sharded = x.zero == 3 or (x.zero == 2 and w.framework == "megatron-core")  # Megatron-FSDP, by layer from ZeRO-2 on
    alone = _alone(model, x)
    for name in (*OVERLAPS, "bucket_elements"):
        if name not in given:
            continue
        if alone:
            yield f"training.{name} changes nothing: no other rank holds the same weights"
        elif sharded:
            yield f"training.{name} changes nothing: ZeRO-{x.zero} runs such traffic layer by layer, beside compute"
        elif name == "overlap_param_gather" and x.zero == 0:
            yield f"training.{name} changes nothing: no weights are gathered at zero=0"
    if "reshard_after_forward" in given and (x.zero < 2 or (x.zero == 2 and not (sharded and x.pp > 1))):
        yield "training.reshard_after_forward changes nothing below ZeRO-3: weights are not sharded"
    if x.pp == 1:
        for name in ("overlap_p2p", "deferred_head_gradients"):
            if name in given:
                yield f"training.{name} changes nothing at pp=1"


def _alone(model: ModelSpec, x: Layout) -> bool:
    """Return whether every weight lies on one rank of a stage alone: neither gradients nor weights travel."""
    copies = x.dp * x.cp * (2 if x.schedule in BOTH_WAYS else 1)
    experts = x.tp * x.cp * x.dp // (x.etp * x.ep) if _has_experts(model) else 1
    return copies == 1 and experts == 1


def _of_layout(model: ModelSpec, w: Workload, x: Layout) -> Iterator[str]:
    given = _given(x)
    if "sp" in given and x.tp == 1:
        yield "layout.sp changes nothing at tp=1"
    if "order" in given and _placed(x, x.order) == _placed(x, DEFAULT_ORDER):
        yield f"layout.order changes nothing: {'-'.join(_placed(x, x.order)) or 'one GPU'} lies as by default"
    only = w.framework == "deepspeed" and x.cp_kind == "ulysses"  # as which its files are read
    if "cp_kind" in given and x.cp == 1 and not only:
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


def _placed(x: Layout, order: tuple[Axis, ...]) -> list[str]:
    """Return the axes that split anything, in the order given."""
    return [axis for axis in order if getattr(x, axis) > 1]


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
