"""The generated page of worked examples by kind of layer: what is not a plain Llama is priced by formulas of its own.

Each section takes a real model, writes its formula with the numbers put in, and sets beside it what the same model would
cost if the layer were counted as plain attention or a plain feed-forward part.
"""

from __future__ import annotations

import dataclasses

from parlay.estimate.counts import flops_per_token, kv_bytes, kv_bytes_per_token, parameters, state_bytes
from parlay.estimate.estimate import Estimate, estimate
from parlay.formulas.experts import dispatch_sent_bytes, expert_flops
from parlay.formulas.flops import attention_flops, state_flops, window_context
from parlay.formulas.latent_experts import latent_expert_weights
from parlay.formulas.parameters import latent_attention_parameters, mlp_parameters
from parlay.formulas.parameters_state import mamba2_parameters
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import parse_layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import GroupedAttention, LatentAttention, LayerKind, Mamba2, ModelSpec, MoeMlp
from parlay.report.docs import table
from parlay.units import show_bytes, show_count, significant

SUPER = "nemotron-3-super-120b-a12b"
LONG = 32_768  # tokens, where windows and states differ most from plain attention
CACHE = 131_072
MAMBA_OPERATIONS = 7  # of a state element and token: parlay.estimate.counts
INTRO = """# Kinds of layers, worked out

A model that is not a plain Llama is not priced as one. Each section below takes a published model, puts its numbers into the
formula that Parlay uses for the layer, and shows what the same model would cost if the layer were counted as plain attention or
as a plain feed-forward part. `parlay models show NAME` prints the counts of any model, `parlay explain FORMULA` any formula.

"""


def model_kinds_page() -> str:
    """Return the page without its first line, which says that it is generated."""
    parts = (windows(), latent_attention(), shared_experts(), prediction(), hybrid(), latent_experts(), whole_steps())
    return INTRO + "\n".join(parts)


def _link(module: str, name: str) -> str:
    return f"[`{name}`](../reference/formulas/{module}.md#{name})"


def _mega(value: float) -> str:
    return f"{value / 1e6:,.2f}"


def windows() -> str:
    """Return the section of sliding windows."""
    model = load_model("gemma-3-27b")
    local, full = model.kinds["sliding_dense"].mixer, model.kinds["attention_dense"].mixer
    assert isinstance(local, GroupedAttention)
    assert isinstance(full, GroupedAttention)
    w = local.window or 0
    keys, all_keys = float(window_context(w, LONG)), LONG / 2
    cost = [float(attention_flops(k, local.heads, local.head_dim, local.head_dim)) for k in (keys, all_keys)]
    names = model.layer_names()
    count = names.count("sliding_dense")
    plain = without_windows(model)
    rows = [
        ["keys a query meets, sliding layer", f"{keys:,.1f}", f"{all_keys:,.0f}"],
        ["score MFLOPs of a token and layer, forward", _mega(cost[0]), _mega(cost[1])],
        ["training GFLOPs of a token, whole model", *(f"{flops_per_token(m, LONG) / 1e9:,.1f}" for m in (model, plain))],
        [
            f"K/V cache of one sequence of {CACHE:,} tokens",
            show_bytes(kv_bytes(model, CACHE)),
            show_bytes(kv_bytes(plain, CACHE)),
        ],
    ]
    return (
        f"## Sliding windows: {model.name}\n\n"
        f"{count} of {model.layer_count} layers let a query see {w:,} tokens, the other {len(names) - count} all of them. "
        f"{_link('flops', 'window_context')}: the first w queries see fewer than w keys, so the mean is w - w(w - 1)/2s = "
        f"{w:,} - {w:,} x {w - 1:,} / (2 x {LONG:,}) = {keys:,.1f} keys at {LONG:,} tokens, against s/2 = {all_keys:,.0f} under a "
        f"plain causal mask. {_link('flops', 'attention_flops')} turns keys into FLOPs: 2 x {keys:,.1f} x {local.heads} x "
        f"({local.head_dim} + {local.head_dim}) = {_mega(cost[0])} MFLOPs a token and layer.\n\n"
        + table([f"at {LONG:,} tokens", "its windows", "as if every layer saw all"], rows)
    )


def latent_attention() -> str:
    """Return the section of multi-head latent attention."""
    model = load_model("deepseek-v3")
    a = next(k.mixer for k in model.kinds.values())
    assert isinstance(a, LatentAttention)
    h, qk = model.hidden, a.nope_dim + a.rope_dim
    weights = int(latent_attention_parameters(h, a.heads, a.q_rank or 0, a.kv_rank, a.nope_dim, a.rope_dim, a.v_dim))
    plain = with_plain_attention(model)
    score = float(attention_flops(2048, a.heads, qk, a.v_dim))
    rows = [
        ["weights of one attention layer", f"{weights:,}", f"{4 * h * a.heads * a.v_dim:,}"],
        [
            "score MFLOPs of a token and layer at 4,096 tokens, forward",
            _mega(score),
            _mega(float(attention_flops(2048, a.heads, 128, 128))),
        ],
        ["K/V cache of a token, all layers", *(f"{kv_bytes_per_token(m):,.0f} B" for m in (model, plain))],
    ]
    return (
        f"## Multi-head latent attention: {model.name}\n\n"
        f"Queries go through rank {a.q_rank:,}, keys and values through one latent of rank {a.kv_rank} and a rotary key of "
        f"{a.rope_dim}; {_link('parameters', 'latent_attention_parameters')}: {h:,} x {a.q_rank:,} + {a.q_rank:,} x {a.heads} x {qk} + "
        f"{h:,} x ({a.kv_rank} + {a.rope_dim}) + {a.kv_rank} x {a.heads} x ({a.nope_dim} + {a.v_dim}) + {a.heads} x {a.v_dim} x {h:,} + "
        f"two norms = {weights:,}. Scores cost {qk} products a key for queries and keys and {a.v_dim} for values: 2 x 2,048 x "
        f"{a.heads} x ({qk} + {a.v_dim}) = {_mega(score)} MFLOPs. The cache keeps {a.kv_rank} + {a.rope_dim} = {a.kv_rank + a.rope_dim} "
        f"elements a token and layer for all heads together, and every tensor-parallel rank keeps all of them "
        f"({_link('serving', 'latent_kv_bytes')}).\n\n"
        + table(["", "latent attention", f"as if {a.heads} plain heads of 128"], rows)
    )


def shared_experts() -> str:
    """Return the section of shared experts."""
    model = load_model("deepseek-v3")
    m = next(k.mlp for k in model.kinds.values() if isinstance(k.mlp, MoeMlp))
    h, ranks = model.hidden, 64
    shared = int(mlp_parameters(h, m.shared_width))
    routed = float(expert_flops(m.top_k, 1, h, m.width))
    sent = [float(dispatch_sent_bytes(ranks, k, 4096, h)) for k in (m.top_k, m.top_k + 1)]
    counts, other = parameters(model), parameters(with_shared_routed(model))
    rows = [
        [
            "feed-forward MFLOPs of a token and layer, forward",
            _mega(routed + 2 * shared),
            _mega(float(expert_flops(m.top_k + 1, 1, h, m.width))),
        ],
        [f"sent by a rank to dispatch 4,096 tokens over {ranks} ranks", show_bytes(sent[0]), show_bytes(sent[1])],
        ["active parameters", f"{counts.active:,}", f"{other.active:,}"],
    ]
    return (
        f"## Shared experts: {model.name}\n\n"
        f"Beside {m.top_k} of {m.experts} routed experts every token meets a shared one of width {m.shared_width:,}: "
        f"{_link('parameters', 'mlp_parameters')} = 3 x {h:,} x {m.shared_width:,} = {shared:,} weights a layer, split by tensor "
        f"parallelism like a dense layer and copied to every expert-parallel rank. It costs FLOPs as one more expert would, but no "
        f"token travels to it: {_link('experts', 'dispatch_sent_bytes')} counts {m.top_k} copies of a token, not {m.top_k + 1}.\n\n"
        + table(["", "shared", "as if it were routed"], rows)
    )


def prediction() -> str:
    """Return the section of multi-token prediction."""
    model = load_model("deepseek-v3")
    counts = parameters(model)
    one = counts.layers[model.mtp_kind or ""][1]
    h = model.hidden
    flops = [flops_per_token(model, 4096, mtp=on) / 1e9 for on in (True, False)]
    logits = 6 * h * model.vocab / 1e9
    rows = [
        ["parameters trained", f"{counts.total + counts.mtp:,}", f"{counts.total:,}"],
        ["training GFLOPs of a token at 4,096 tokens", f"{flops[0]:,.1f}", f"{flops[1]:,.1f}"],
    ]
    return (
        f"## Multi-token prediction: {model.name}\n\n"
        f"A module is one more layer of {one:,} parameters, a projection of 2h to h and three norms: {one:,} + 2 x {h:,}^2 + 3 x "
        f"{h:,} = {counts.mtp:,}. It shares embedding and head, but runs the head again: 6 x {h:,} x {model.vocab:,} = "
        f"{logits:,.2f} GFLOPs of a token for its logits alone. All of it lies on the last pipeline stage, which the split of "
        f"layers and the memory of that stage see.\n\n" + table(["", "with its module", "as if there were none"], rows)
    )


def hybrid() -> str:
    """Return the section of hybrid models."""
    model = load_model("nemotron-h-8b")
    names = model.layer_names()
    mamba = model.kinds["mamba2"].mixer
    attention = model.kinds["attention"].mixer
    assert isinstance(mamba, Mamba2)
    assert isinstance(attention, GroupedAttention)
    inner = mamba.heads * mamba.head_dim
    weights = int(mamba2_parameters(model.hidden, mamba.heads, mamba.head_dim, mamba.groups, mamba.state, mamba.conv))
    state = float(state_flops(inner, mamba.state, MAMBA_OPERATIONS))
    plain = with_attention_for_mamba(model)
    rows = []
    for s in (4096, LONG, CACHE):
        score = float(attention_flops(s / 2, attention.heads, attention.head_dim, attention.head_dim))
        rows.append([f"{s:,}", _mega(state), _mega(score), *(f"{flops_per_token(m, s) / 1e9:,.1f}" for m in (model, plain))])
    head = [
        "tokens",
        "MFLOPs a token: Mamba-2 layer",
        "attention layer",
        "training GFLOPs of a token",
        "as if Mamba were attention",
    ]
    return (
        f"## Hybrid layers: {model.name}\n\n"
        f"{names.count('mamba2')} layers are Mamba-2, {names.count('dense')} feed-forward and only {names.count('attention')} attention. "
        f"A Mamba-2 layer has {weights:,} weights ({_link('parameters_state', 'mamba2_parameters')}) and updates a state of "
        f"{inner:,} x {mamba.state}: {_link('flops', 'state_flops')} = {MAMBA_OPERATIONS} x {inner:,} x {mamba.state} = {_mega(state)} "
        f"MFLOPs a token, however long the sequence, where attention's scores grow with it. K/V are kept by the attention layers "
        f"alone: {kv_bytes_per_token(model):,.0f} B a token, against {kv_bytes_per_token(plain):,.0f} B. Served, the Mamba layers keep "
        f"{show_bytes(names.count('mamba2') * state_bytes(model.kinds['mamba2']))} a sequence "
        f"({_link('serving_state', 'mamba2_state_bytes')}).\n\n" + table(head, rows)
    )


def latent_experts() -> str:
    """Return the section of experts that work on a latent (LatentMoE)."""
    model = load_model(SUPER)
    m = next(k.mlp for k in model.kinds.values() if isinstance(k.mlp, MoeMlp))
    h, latent = model.hidden, m.latent_width or 0
    alpha = h / latent
    here, plain = parameters(model), parameters(without_latent(model))
    routed = float(latent_expert_weights(m.experts / alpha, h, m.width, alpha))
    sent = [float(dispatch_sent_bytes(64, m.top_k, 4096, width)) for width in (latent, h)]
    forward = [float(expert_flops(m.top_k, 1, width, m.width, 2)) for width in (latent, h)]
    rows = [
        ["weights of the routed experts, one matrix a layer", f"{routed:,.0f}", f"{m.experts * h * m.width:,}"],
        ["projections down and up, a layer", f"{2 * h * latent:,}", "0"],
        ["routed MFLOPs of a token and layer, forward", _mega(forward[0]), _mega(forward[1])],
        ["sent by a rank to dispatch 4,096 tokens over 64 ranks", show_bytes(sent[0]), show_bytes(sent[1])],
        ["parameters, active of a token", *(f"{show_count(c.total)}, {show_count(c.active)}" for c in (here, plain))],
    ]
    return (
        f"## Experts on a latent (LatentMoE): {model.name}\n\n"
        f"Tokens are projected from {h:,} to {latent:,} before they travel, {alpha:.0f} times narrower, so each of {m.experts} experts "
        f"is {alpha:.0f} times smaller and {m.top_k} of them may be chosen. {_link('latent_experts', 'latent_expert_weights')} = "
        f"{m.experts} x {latent:,} x {m.width:,} = {routed:,.0f} weights of one matrix of the experts of a layer; a token sends "
        f"{m.top_k} x {latent:,} elements, not {m.top_k} x {h:,}; the router and the shared expert still see the full width.\n\n"
        + table(["", "on the latent", "as if at full width"], rows)
    )


@dataclasses.dataclass(frozen=True)
class Step:
    """A model and its plain twin on one layout."""

    label: str
    model: ModelSpec
    twin: ModelSpec
    layout: str
    seq_len: int
    global_batch: int
    recompute: tuple[str, ...] = ()


def whole_steps() -> str:
    """Return the table of whole steps: each model, and the same counted as if it were plain."""
    deepseek, gemma, nemotron = load_model("deepseek-v3"), load_model("gemma-3-27b"), load_model("nemotron-h-8b")
    large = "pp16.dp64.ep64.mb1"
    steps = (
        Step("sliding windows", gemma, without_windows(gemma), "tp8.dp8.mb1", LONG, 64, ("full",)),
        Step("latent attention", deepseek, with_plain_attention(deepseek), large, 4096, 4096, ("full",)),
        Step("shared expert", deepseek, with_shared_routed(deepseek), large, 4096, 4096, ("full",)),
        Step("multi-token prediction", deepseek, deepseek.model_copy(update={"mtp_layers": 0}), large, 4096, 4096, ("full",)),
        Step("hybrid", nemotron, with_attention_for_mamba(nemotron), "tp8.dp8.mb1", LONG, 64, ("full",)),
        Step(
            "experts on a latent",
            load_model(SUPER),
            without_latent(load_model(SUPER)),
            "tp2.dp32.ep64.etp1.mb1",
            8192,
            512,
            ("full",),
        ),
    )
    rows = []
    for step in steps:
        own, twin = _priced(step, step.model), _priced(step, step.twin)
        each = [f"{significant(e.step_s)} s, {e.peak_bytes / 2**30:,.1f} GiB" for e in (own, twin)]
        rows.append([step.label, f"{step.model.name}, {step.layout}, {step.seq_len:,} tokens", *each])
    return (
        "## Whole steps\n\n"
        "Time of a step and memory of the fullest GPU on DGX H100, bf16, full recompute, by `parlay.estimate`. What does not fit is "
        "priced all the same.\n\n" + table(["kind", "model and layout", "by its own formulas", "as if plain"], rows)
    )


def _priced(step: Step, model: ModelSpec) -> Estimate:
    layout = parse_layout(step.layout).model_copy(update={"recompute": step.recompute})
    work = Workload(seq_len=step.seq_len, global_batch=step.global_batch)
    return estimate(model, load_cluster("dgx-h100"), work, layout)


def _with_kinds(model: ModelSpec, change: dict[str, LayerKind]) -> ModelSpec:
    return model.model_copy(update={"kinds": {**model.kinds, **change}})


def without_windows(model: ModelSpec) -> ModelSpec:
    """Return the model with every window opened."""
    change = {}
    for name, kind in model.kinds.items():
        if isinstance(kind.mixer, GroupedAttention) and kind.mixer.window:
            change[name] = kind.model_copy(update={"mixer": kind.mixer.model_copy(update={"window": None})})
    return _with_kinds(model, change)


def with_plain_attention(model: ModelSpec) -> ModelSpec:
    """Return the model with plain multi-head attention, heads of 128, in place of latent attention."""
    change = {}
    for name, kind in model.kinds.items():
        if isinstance(kind.mixer, LatentAttention):
            plain = GroupedAttention(heads=kind.mixer.heads, kv_heads=kind.mixer.heads, head_dim=128)
            change[name] = kind.model_copy(update={"mixer": plain})
    return _with_kinds(model, change)


def with_shared_routed(model: ModelSpec) -> ModelSpec:
    """Return the model with its shared expert among the routed ones: one more choice, nothing shared."""
    change = {}
    for name, kind in model.kinds.items():
        if isinstance(kind.mlp, MoeMlp) and kind.mlp.shared_width:
            change[name] = kind.model_copy(
                update={"mlp": kind.mlp.model_copy(update={"shared_width": 0, "top_k": kind.mlp.top_k + 1})}
            )
    return _with_kinds(model, change)


def with_attention_for_mamba(model: ModelSpec) -> ModelSpec:
    """Return the hybrid with its own attention wherever it has a Mamba layer."""
    attention = next(k.mixer for k in model.kinds.values() if isinstance(k.mixer, GroupedAttention))
    mambas = {n: k for n, k in model.kinds.items() if isinstance(k.mixer, Mamba2)}
    return _with_kinds(model, {n: k.model_copy(update={"mixer": attention}) for n, k in mambas.items()})


def without_latent(model: ModelSpec) -> ModelSpec:
    """Return the model with its experts at the full width of a token."""
    change = {}
    for name, kind in model.kinds.items():
        if isinstance(kind.mlp, MoeMlp) and kind.mlp.latent_width:
            change[name] = kind.model_copy(update={"mlp": kind.mlp.model_copy(update={"latent_width": None})})
    return _with_kinds(model, change)
