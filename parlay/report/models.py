"""The text and the documents of `parlay models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parlay import __version__
from parlay.estimate.counts import CONVENTIONS, flops_per_token, kv_bytes, kv_bytes_per_token, parameters, state_bytes
from parlay.models.spec import GroupedAttention, LatentAttention, LayerKind, ModelSpec, MoeMlp
from parlay.report.table import Column, Page, fields, render, wrap
from parlay.units import show_bytes, show_count, show_number, show_rate

if TYPE_CHECKING:
    from parlay.models.huggingface import Imported

GROUPS = {
    "mixer": "attention and other mixers",
    "dense": "dense feed-forward",
    "routed": "routed experts",
    "shared": "shared experts",
    "router": "routers",
    "norm": "norms",
    "other": "other",
}


def model_list_lines(specs: Sequence[ModelSpec], page: Page) -> list[str]:
    """Return one row a model."""
    rows = []
    for spec in specs:
        counts = parameters(spec)
        active = show_count(counts.active) if counts.active != counts.total else ""
        rows.append(
            [spec.id, show_count(counts.total), active, str(spec.layer_count), f"{spec.hidden:,}", f"{spec.vocab:,}", spec.name]
        )
    columns = [
        Column("model", right=False), Column("parameters"), Column("active"), Column("layers", drop=1), Column("hidden", drop=2),
        Column("vocabulary", drop=3), Column("name", right=False, drop=4),
    ]  # fmt: skip
    return render(columns, rows, page)


def model_list_document(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    """Return the document of `parlay models list --json`."""
    rows = []
    for spec in specs:
        counts = parameters(spec)
        rows.append({"id": spec.id, "name": spec.name, "family": spec.family, "aliases": list(spec.aliases),
                     "parameters_total": counts.total, "parameters_active": counts.active})  # fmt: skip
    return {"schema_name": "parlay/models", "schema_version": 1, "parlay_version": __version__, "models": rows}


def model_lines(spec: ModelSpec, seq_len: int, page: Page) -> list[str]:
    """Return shapes, parameters by part, FLOPs by convention and cache sizes."""
    counts = parameters(spec)
    out = fields(
        [
            ("name", f"{spec.name} ({spec.id})" + (f", also {', '.join(spec.aliases)}" if spec.aliases else "")),
            ("shape", f"{spec.layer_count} layers, hidden {spec.hidden:,}, vocabulary {spec.vocab:,}"
             + (", tied embeddings" if spec.tied_embeddings else "")
             + (f", {spec.mtp_layers} multi-token-prediction layer" if spec.mtp_layers else "")),
            *[(f"layer '{name}'", f"{_times(spec, name)}{_kind(kind)}") for name, kind in spec.kinds.items()],
            ("source", spec.source or "not stated"),
            *([("published", spec.published.note.removeprefix("published "))] if spec.published.note else []),
            *([("notes", spec.notes)] if spec.notes else []),
        ],
        page,
    )  # fmt: skip
    rows = [["input embedding", f"{counts.embedding:,}", _share(counts.embedding, counts.total)]]
    rows += [[GROUPS[g], f"{n:,}", _share(n, counts.total)] for g, n in counts.groups.items() if n]
    outside = {
        "position table": counts.positions, "embedding norm": counts.embedding_norm, "final norm": counts.final_norm,
        "LM head": counts.head, "other, outside layers": counts.other, "vision tower and projector": counts.vision,
    }  # fmt: skip
    rows += [[name, f"{n:,}", _share(n, counts.total)] for name, n in outside.items() if n]
    rows.append(["total", f"{counts.total:,}", ""])
    if counts.active != counts.total:
        rows.append(["active per token", f"{counts.active:,}", _share(counts.active, counts.total)])
        if counts.vision:
            rows.append(["  of a token of text, past the vision tower", f"{counts.active - counts.vision:,}", ""])
        if counts.active_without_embedding != counts.active:
            rows.append(["  without input embedding", f"{counts.active_without_embedding:,}", ""])
    if counts.mtp:
        rows.append(["multi-token prediction (not in total)", f"{counts.mtp:,}", ""])
    out += ["", *render([Column("parameters of", right=False), Column("count"), Column("share", drop=1)], rows, page)]
    flops = [[name, show_rate(flops_per_token(spec, seq_len, convention=name), "FLOP"), *_means(name)] for name in CONVENTIONS]
    columns = [
        Column(f"training FLOPs per token at {show_number(seq_len, 'token')}", right=False),
        Column("forward + backward"),
        Column("scores", right=False),
    ]
    out += ["", *render(columns, flops, page), ""]
    cache = kv_bytes(spec, seq_len)
    reserved = kv_bytes(spec, seq_len, unified_pages=True)
    more = f" ({show_bytes(reserved)} where every layer reserves the whole context)" if reserved != cache else ""
    each = f"{kv_bytes_per_token(spec):,.0f} B a token"
    if cache < kv_bytes_per_token(spec) * seq_len:
        each += " where all layers keep it whole"
    out += wrap(f"K/V cache in bf16: {each}; {show_bytes(cache)} at {show_number(seq_len, 'token')}{more}", page)
    state = _state(spec)
    if state:
        out += wrap(f"state of recurrent layers, as vLLM keeps it: {show_bytes(state)} a sequence, however long", page)
    return out


def _state(spec: ModelSpec) -> float:
    """Return what a sequence keeps in recurrent layers."""
    return sum(state_bytes(spec.kinds[name]) for name in spec.layer_names())


def _means(name: str) -> list[str]:
    return ["causal half" if CONVENTIONS[name].causal_half else "all pairs"]


def model_document(spec: ModelSpec, seq_len: int) -> dict[str, Any]:
    """Return the document of `parlay models show --json`."""
    counts = parameters(spec)
    return {
        "schema_name": "parlay/model",
        "schema_version": 1,
        "parlay_version": __version__,
        "model": spec.model_dump(mode="json"),
        "parameters": {
            "total": counts.total, "active": counts.active, "active_without_embedding": counts.active_without_embedding,
            "mtp": counts.mtp, "embedding": counts.embedding, "head": counts.head, **counts.groups,
        },
        "seq_len": seq_len,
        "flops_per_token": {name: flops_per_token(spec, seq_len, convention=name) for name in CONVENTIONS},
        "kv_bytes_per_token": kv_bytes_per_token(spec),
        "kv_cache_bytes": kv_bytes(spec, seq_len),
        "recurrent_state_bytes": _state(spec),
    }  # fmt: skip


def import_document(found: Imported) -> dict[str, Any]:
    """Return the document of `parlay models import --json`."""
    return {
        "schema_name": "parlay/model-import",
        "schema_version": 1,
        "parlay_version": __version__,
        "model": found.spec.model_dump(mode="json"),
        "parameters_total": parameters(found.spec).total,
        "dtype": found.dtype,
        "quantization": found.quantization or None,
        "assumed": list(found.assumed),
        "ignored": list(found.ignored),
    }


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"


def _times(spec: ModelSpec, name: str) -> str:
    """Return how often a kind of layer stands in the model; one that stands in none is of its prediction modules."""
    count = spec.layer_names().count(name)
    return f"{count} x " if count else "of multi-token prediction: "


def _kind(kind: LayerKind) -> str:
    m, f = kind.mixer, kind.mlp
    if isinstance(m, GroupedAttention):
        mixer = f"attention {m.heads} heads, {m.kv_heads} K/V heads, size {m.head_dim}" + (
            f", window {m.window:,}" if m.window else ""
        )
    elif isinstance(m, LatentAttention):
        size = f"{m.nope_dim}+{m.rope_dim}" if m.nope_dim else f"{m.rope_dim}"
        mixer = f"latent attention {m.heads} heads of {size}, ranks {m.q_rank or 'full'}/{m.kv_rank}"
        mixer += f", output through {m.out_groups} x {m.out_rank:,}" if m.out_rank else ""
        mixer += "" if m.up_projection else ", keys and values the latent itself"
        mixer += f", window {m.window:,}" if m.window else ""
        if m.compress_rate:
            mixer += f" and {f'{m.compress_top:,}' if m.compress_top else 'all'} entries of {m.compress_rate} tokens"
    else:
        mixer = "" if m.kind == "none" else m.kind
    if isinstance(f, MoeMlp):
        mlp = f"{f.experts} experts of {f.width:,}, {f.top_k} a token"
        mlp += f", on tokens of width {f.latent_width:,}" if f.latent_width else ""
        mlp += f", shared {f.shared_width:,}" if f.shared_width else ""
    elif f.kind == "dense":
        mlp = f"MLP {f.width:,}" + (", gated" if f.gated else "")
    else:
        mlp = ""
    return "; ".join(part for part in (mixer, mlp) if part)
