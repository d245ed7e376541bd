"""The feed-forward part of every layer of a mixture-of-experts model: which layers route, over how many experts.

Each rule takes the keys and the number of layers and returns one FeedForward per layer. The rules differ in the names of
the keys, in which layers stay dense, and in what every token visits besides its experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlay.models.huggingface.reader import MISSING, Keys
from parlay.models.huggingface.shapes import activation, dense
from parlay.models.spec import FeedForward, MoeMlp

Experts = Callable[[Keys, int], list[FeedForward]]


def moe(keys: Keys, experts: int, width: int, **more: Any) -> MoeMlp:
    """Return a mixture of experts, with its top_k checked and the router's groups read where the file has them."""
    top_k = more.pop("top_k", None) or keys.integer("num_experts_per_tok")
    if top_k > experts:
        raise keys.error("num_experts_per_tok", f"cannot exceed the number of experts ({experts}), got {top_k}")
    groups = keys.optional("n_group") or 1
    top_groups = keys.optional("topk_group") if groups > 1 else None
    more.setdefault("activation", activation(keys))
    return MoeMlp(experts=experts, top_k=top_k, width=width, groups=groups, top_groups=top_groups, **more)


def all_routed(keys: Keys, count: int) -> list[FeedForward]:
    """Every layer routes over `num_local_experts` of width `intermediate_size` (Mixtral, Phi-3.5-MoE, OLMoE, Granite-MoE)."""
    return [moe(keys, keys.integer("num_local_experts"), keys.integer("intermediate_size"))] * count


def gpt_oss(keys: Keys, count: int) -> list[FeedForward]:
    """Every layer routes; experts and router have biases (gpt-oss)."""
    experts = moe(keys, keys.integer("num_local_experts"), keys.integer("intermediate_size"), bias=True, router_bias=True)
    return [experts] * count


def minimax_m2(keys: Keys, count: int) -> list[FeedForward]:
    """Every layer routes, corrected by a value per expert that is no parameter (MiniMax-M2)."""
    experts = moe(keys, keys.integer("num_local_experts"), keys.integer("intermediate_size"), score_correction=True)
    return [experts] * count


def granite_shared(keys: Keys, count: int) -> list[FeedForward]:
    """Every layer routes (none if the number of experts is 0) beside a shared expert of its own width (Granite-MoE)."""
    shared = keys.optional("shared_intermediate_size", low=0) or 0
    experts = keys.integer("num_local_experts", low=0)
    if not experts:
        if not shared:
            raise keys.error("shared_intermediate_size", "must be at least 1 in a model without experts")
        return [dense(keys, shared)] * count
    return [moe(keys, experts, keys.integer("intermediate_size"), shared_width=shared)] * count


def qwen(keys: Keys, count: int) -> list[FeedForward]:
    """Layers route every `decoder_sparse_step` except those of `mlp_only_layers` (Qwen2-MoE, Qwen3-MoE, Qwen3-Next)."""
    step = keys.optional("decoder_sparse_step") or 1
    only = set(keys.integers("mlp_only_layers") or ())
    number = keys.optional("num_experts", low=0) or 0
    routes = [number > 0 and i not in only and (i + 1) % step == 0 for i in range(count)]
    listed = keys.words("mlp_layer_types", count)
    if listed is not None:
        routes = [number > 0 and kind == "sparse" for kind in listed]
    plain = None if all(routes) else dense(keys)
    keys.find("intermediate_size")  # present in files whose layers all route, and unused there
    if not any(routes):
        return [plain or dense(keys)] * count
    width = keys.integer("moe_intermediate_size")
    has_shared = (
        keys.find("shared_expert_intermediate_size")[1] is not MISSING or "shared_expert_intermediate_size" in keys.defaults
    )
    shared = keys.integer("shared_expert_intermediate_size", low=0) if has_shared else 0
    routed = moe(keys, number, width, shared_width=shared, shared_gate=shared > 0)
    return [routed if yes else plain or routed for yes in routes]


def deepseek(keys: Keys, count: int, *, correction: bool = True, first_dense: int | None = None) -> list[FeedForward]:
    """The first `first_k_dense_replace` layers are dense, the others route beside shared experts (DeepSeek, GLM-4.5, Kimi).

    `first_dense` is how many are dense if the class fixes it; `correction` whether its router has a value per expert that
    is learned by rule.
    """
    number = keys.optional("n_routed_experts", low=0) or 0
    routes = _deepseek_layers(keys, count, first_dense) if number else [False] * count
    plain = None if all(routes) else dense(keys)
    keys.find("intermediate_size")
    if not any(routes):
        return [plain or dense(keys)] * count
    width = keys.integer("moe_intermediate_size")
    shared = keys.optional("n_shared_experts", low=0) or 0
    correction = correction and keys.text("topk_method") in (None, "noaux_tc")
    routed = moe(keys, number, width, shared_width=shared * width, score_correction=correction)
    return [routed if yes else plain or routed for yes in routes]


def deepseek_plain(keys: Keys, count: int) -> list[FeedForward]:
    """As `deepseek`, and the router has no correction per expert (DeepSeek-V2)."""
    return deepseek(keys, count, correction=False)


def one_dense(keys: Keys, count: int) -> list[FeedForward]:
    """As `deepseek`, and exactly the first layer is dense unless mlp_layer_types says otherwise (GLM-4.7-Flash)."""
    return deepseek(keys, count, first_dense=1)


def _deepseek_layers(keys: Keys, count: int, first_dense: int | None) -> list[bool]:
    sparse = keys.words("mlp_layer_types", count)
    first = keys.optional("first_k_dense_replace", low=0) or 0
    if sparse is not None:
        return [kind == "sparse" for kind in sparse]
    if first_dense is not None:
        if keys.has("first_k_dense_replace") and first != first_dense:
            keys.log.ignore(f"first_k_dense_replace: the class keeps {first_dense} layer(s) dense")
        return [i >= first_dense for i in range(count)]
    if isinstance(keys.find("moe_layer_freq")[1], list):
        return [flag > 0 for flag in keys.integers("moe_layer_freq", count) or []]
    step = keys.optional("moe_layer_freq") or 1
    return [i >= first and i % step == 0 for i in range(count)]


def llama4(keys: Keys, count: int) -> list[FeedForward]:
    """Layers in `moe_layers`, or every `interleave_moe_layer_step`-th, route beside one shared expert (Llama 4)."""
    width = keys.integer("intermediate_size")
    step = keys.optional("interleave_moe_layer_step") or 1
    listed = keys.integers("moe_layers")
    routed_layers = set(range(step - 1, count, step) if listed is None else listed)
    plain = None if routed_layers >= set(range(count)) else dense(keys, keys.integer("intermediate_size_mlp"))
    keys.find("intermediate_size_mlp")
    routed = moe(keys, keys.integer("num_local_experts"), width, shared_width=width)
    return [routed if i in routed_layers else plain or routed for i in range(count)]


def ernie(keys: Keys, count: int) -> list[FeedForward]:
    """Layers from `moe_layer_start_index` to `moe_layer_end_index` route, every `moe_layer_interval`-th (ERNIE 4.5)."""
    first = keys.optional("moe_layer_start_index", low=0) or 0
    last = keys.find("moe_layer_end_index")[1]
    last = count - 1 if last in (MISSING, None, -1) else keys.integer("moe_layer_end_index", low=0)
    step = keys.optional("moe_layer_interval") or 1
    bias = keys.flag("use_bias")
    width = keys.integer("moe_intermediate_size")
    shared = keys.optional("moe_num_shared_experts", low=0) or 0
    routed = moe(keys, keys.integer("moe_num_experts"), width, top_k=keys.integer("moe_k"), shared_width=shared * width)
    plain = dense(keys, bias=bias)
    return [routed if first <= i <= last and (i + 1) % step == 0 else plain for i in range(count)]


def hunyuan(keys: Keys, count: int) -> list[FeedForward]:
    """Every layer routes beside one shared expert as wide as `intermediate_size`; numbers may differ by layer (Hunyuan)."""
    width = keys.integer("intermediate_size")
    numbers, tops = keys.per_layer("num_experts", count, low=1), keys.per_layer("moe_topk", count, low=1)
    shapes = {pair: moe(keys, pair[0], width, top_k=pair[1], shared_width=width) for pair in set(zip(numbers, tops, strict=True))}
    return [shapes[pair] for pair in zip(numbers, tops, strict=True)]


def jamba(keys: Keys, count: int) -> list[FeedForward]:
    """Layers at `expert_layer_offset` modulo `expert_layer_period` route, the others are dense (Jamba)."""
    period, offset = keys.integer("expert_layer_period"), keys.integer("expert_layer_offset", low=0)
    number = keys.integer("num_experts")
    plain = dense(keys)
    if number == 1:
        return [plain] * count
    routed = moe(keys, number, plain.width)
    return [routed if i % period == offset else plain for i in range(count)]
