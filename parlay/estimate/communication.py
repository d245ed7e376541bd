"""What one layer sends per micro-batch, and how much of it the compute beside it hides.

Hidden and exposed parts are kept apart: hidden + exposed = the collective's own seconds. What a transfer and the compute
beside it lose to each other comes on top, where it was measured (`lost_forward`, `lost_backward`). The overlaps are those that
Megatron-core has without further flags (core/tensor_parallel/layers.py, transformer/moe/token_dispatcher.py,
TransformerEngine's context_parallel.py); `tp_overlap` and `ep_overlap` turn the optional ones on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import RECIPES
from parlay.estimate.operators import permutations, permutes_beside, routed_rows
from parlay.estimate.pricer import ELEMENT, Operator, Pricer
from parlay.layouts.adapters import Linear, adapted
from parlay.layouts.vocabulary import CP_KINDS
from parlay.models.spec import GroupedAttention, LatentAttention, LayerKind, MoeMlp
from parlay.rates.interface import Collective, Group

Array = NDArray[np.float64]

TP_OVERLAP_CHUNKS = 4.0  # TransformerEngine userbuffers: pipelined reduce-scatter in 4 splits, one of them exposed
OF_NODES = "of a dispatch or combine the part inside a domain runs beside the part between domains, and the longer counts"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A collective of a transfer, for `explain`: what it moves between whom, and how many a layer's forward and backward have."""

    name: str
    op: Collective
    nbytes: Array
    group: Group
    forward: NDArray[Any] | float
    backward: NDArray[Any] | float


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A transfer and the compute beside it, for `explain`: the seconds of each alone, and how often a micro-batch has them."""

    name: str
    transfer: Array
    compute: Array
    times: NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of transfer of a layer: exposed and hidden seconds, forward and backward, and what is lost to overlap."""

    name: str
    axis: str  # tp, cp, ep
    forward: Array
    backward: Array
    hidden: Array
    modules: frozenset[str]
    source: str
    lost_forward: Array | float = 0.0  # seconds that compute and transfer take longer because they run at once
    lost_backward: Array | float = 0.0
    messages: tuple[Message, ...] = ()
    pairs: tuple[Pair, ...] = ()
    copied: Array | float = 0.0  # seconds that its copies on the device take of all these, both directions
    note: str = ""  # how its collectives make these seconds, where they are not their sum


def layer_transfers(p: Pricer, kind: LayerKind, operators: Sequence[Operator]) -> list[Transfer]:
    """Return the transfers of one layer of `kind`, given what it computes meanwhile."""
    found: list[Transfer] = []
    by_name = {o.name: o for o in operators}
    if kind.mixer.kind != "none":
        pair = (
            ("qkv projection", "output projection") if "qkv projection" in by_name else ("q up-projection", "output projection")
        )
        pair = pair if pair[0] in by_name else ("mixer input projection", "mixer output projection")
        found.append(_tensor(p, "attention", by_name[pair[0]], by_name[pair[1]], frozenset()))
    if kind.mlp.kind == "dense":
        found.append(_tensor(p, "mlp", by_name["mlp up-projection"], by_name["mlp down-projection"], frozenset({"mlp"})))
    if isinstance(kind.mlp, MoeMlp):
        found += _experts(p, kind.mlp, by_name)
    if isinstance(kind.mixer, GroupedAttention | LatentAttention):
        found += _context(p, kind.mixer, by_name["attention"])
    return found + [_adapter(p, one) for one in adapted(kind, p.model.hidden, p.workload) if one.split]


def _adapter(p: Pricer, one: Linear) -> Transfer:
    """Return the collectives of one adapter, which nothing hides (Megatron-Bridge peft/utils.py, ParallelLinearAdapter).

    Beside a column-parallel layer every rank gathers A's output; its gradient is summed, and without sequence parallelism,
    which sums it with the layer's own, the input's gradient as well. Beside a row-parallel layer A's output is summed and B's
    gathered whole, of all tokens and as wide as the layer's own: as much traffic as that layer's. Under Megatron's sequence parallelism it is
    then cut by tokens, whose backward gathers the gradient again (scatter_to_sequence_parallel_region).
    """
    s, rank = p.shard, float(p.workload.lora_rank or 0)
    on = 1.0 * (s.tp > 1)
    thin = ELEMENT * s.tokens * rank
    summed = p.rates.collective("all_reduce", thin, s.tp_group)
    gather, _, reduce = p.across_tensor
    wide = ELEMENT * s.tokens * p.model.hidden
    whole = on * (one.module in ("qkv", "up"))  # beside a column-parallel layer
    cut = 1.0 * s.sp * (p.workload.framework == "megatron-core")  # B's whole output, by tokens
    messages = (
        Message("all-gather of A's output", "all_gather", thin, s.tp_group, whole, 0.0),
        Message("all-reduce of A's output or gradient", "all_reduce", thin, s.tp_group, on - whole, 1.0 * on),
        Message("all-gather of B's output", "all_gather", wide, s.tp_group, on - whole, 0.0),
        Message("all-reduce of the input's gradient", "all_reduce", wide, s.tp_group, 0.0, whole * ~s.sp),
        Message("all-gather of B's gradient", "all_gather", wide, s.tp_group, 0.0, (on - whole) * cut),
    )
    if one.module in ("qkv", "up"):
        forward = p.rates.collective("all_gather", thin, s.tp_group).seconds
        backward = summed.seconds + np.where(s.sp, 0.0, reduce.seconds)
    else:
        forward, backward = summed.seconds + gather.seconds, summed.seconds + cut * gather.seconds
    nothing = np.zeros_like(s.tp)
    modules = frozenset({"mlp", "shared_experts"} if one.module in ("up", "down") else ())
    there, back = np.where(on > 0, forward, 0.0), np.where(on > 0, backward, 0.0)
    return Transfer(f"{one.module} adapter", "tp", there, back, nothing, modules, summed.source, messages=messages)


def _tensor(p: Pricer, name: str, up: Operator, down: Operator, modules: frozenset[str]) -> Transfer:
    """Return the collectives around one column-parallel and one row-parallel matmul.

    Forward, with sequence parallelism: all-gather before `up`, reduce-scatter after `down`; without: one all-reduce.
    Backward: the all-gather of the output's gradient is exposed; the input's second all-gather runs beside the
    dgrad of `up`, its reduce-scatter beside the wgrad (asynchronous in Megatron since sequence parallelism exists).
    torchtitan's DTensors hide none of them (`_redistributed`).
    """
    s = p.shard
    gather, scatter, reduce = p.across_tensor
    on = s.tp > 1
    forward_sp = gather.seconds + scatter.seconds
    backward_sp = gather.seconds + np.maximum(0.0, gather.seconds - up.dgrad) + np.maximum(0.0, scatter.seconds - up.wgrad)
    whole_sp = forward_sp + 2 * gather.seconds + scatter.seconds
    lost_sp = p.lost_s(gather.seconds, up.dgrad) + p.lost_s(scatter.seconds, up.wgrad)
    copied, gathers, hides = np.zeros_like(gather.seconds), 2.0 * np.ones_like(gather.seconds), True
    if p.workload.framework == "torchtitan" and not p.workload.shards_in_place:
        forward_sp, backward_sp, copied, gathers = _redistributed(p, gather.seconds, scatter.seconds)
        whole_sp, lost_sp, hides = forward_sp + backward_sp, np.zeros_like(forward_sp), False
    forward = np.where(s.sp, forward_sp, reduce.seconds)
    beside = up.wgrad if p.traits.async_reduce else np.zeros_like(up.wgrad)
    backward = np.where(s.sp, backward_sp, np.maximum(0.0, reduce.seconds - beside))
    whole = np.where(s.sp, whole_sp, 2 * reduce.seconds)
    lost_b = np.where(s.sp, lost_sp, p.lost_s(reduce.seconds, beside))
    # With userbuffers each collective is cut in pieces that run beside its GEMM; one piece stays in front of it.
    beside_f, beside_b = (x * (1 - 1 / TP_OVERLAP_CHUNKS) for x in (forward, backward))
    work_f, work_b = up.forward + down.forward, up.dgrad + down.dgrad
    piece_f = forward / TP_OVERLAP_CHUNKS + np.maximum(0.0, beside_f - work_f)
    piece_b = backward / TP_OVERLAP_CHUNKS + np.maximum(0.0, beside_b - work_b)
    lost_f = np.where(on & s.tp_overlap, p.lost_s(beside_f, work_f), 0.0)
    lost_b = np.where(on, lost_b + np.where(s.tp_overlap, p.lost_s(beside_b, work_b), 0.0), 0.0)
    forward = np.where(on, np.where(s.tp_overlap, piece_f, forward), 0.0)
    backward = np.where(on, np.where(s.tp_overlap, piece_b, backward), 0.0)
    hidden = np.where(on, whole, 0.0) - forward - backward
    nbytes = ELEMENT * s.tokens * p.model.hidden
    return Transfer(
        f"{name} tensor parallel", "tp", forward, backward, np.maximum(hidden, 0.0), modules, gather.source, lost_f, lost_b,
        (
            Message("all-gather", "all_gather", nbytes, s.tp_group, 1.0 * (on & s.sp), gathers * (on & s.sp)),
            Message("reduce-scatter", "reduce_scatter", nbytes, s.tp_group, 1.0 * (on & s.sp), 1.0 * (on & s.sp)),
            Message("all-reduce", "all_reduce", nbytes, s.tp_group, 1.0 * (on & ~s.sp), 1.0 * (on & ~s.sp)),
        ),
        (
            Pair("all-gather beside the input gradient", gather.seconds, up.dgrad, 1.0 * (on & s.sp & hides)),
            Pair("reduce-scatter beside the weight gradient", scatter.seconds, up.wgrad, 1.0 * (on & s.sp & hides)),
            Pair("all-reduce beside the weight gradient", reduce.seconds, beside, 1.0 * (on & ~s.sp)),
            Pair("pieces beside the forward's products", beside_f, work_f, 1.0 * (on & s.tp_overlap)),
            Pair("pieces beside the input gradients", beside_b, work_b, 1.0 * (on & s.tp_overlap)),
        ),
        np.where(on & s.sp, copied, 0.0),
    )  # fmt: skip


def _redistributed(p: Pricer, gather: Array, scatter: Array) -> tuple[Array, Array, Array, Array]:
    """Return the seconds of DTensor's collectives around two products with sequence parallelism, forward and backward, those of their
    copies, and how many gathers a backward has.

    The input is gathered and the output scattered where they are used, and the gradients the other way round, each waited for at
    once. Both lie along the second dimension, so what was gathered is concatenated and what will be scattered is cut into a copy:
    read and written once more (torch/distributed/_functional_collectives.py: all_gather_tensor, reduce_scatter_tensor). Gathered
    inputs are kept, but gathered again where torchtitan's selective checkpoints keep scattered outputs alone
    (distributed/activation_checkpoint.py). Async TP pipelines the collectives with their products and needs no copies.
    """
    s = p.shard
    copy = np.where(s.tp_overlap, 0.0, p.rates.stream(2 * ELEMENT * s.tokens * p.model.hidden, "copy").seconds)
    again = s.recomputes(frozenset({"selective_ops"})) & ~s.recomputes(frozenset())
    forward = gather + scatter + 2 * copy
    return forward, forward + np.where(again, gather + copy, 0.0), copy * (4.0 + again), np.where(again, 2.0, 1.0)


def _experts(p: Pricer, m: MoeMlp, by_name: dict[str, Operator]) -> list[Transfer]:
    """Return dispatch and combine (all-to-all), the expert tensor-parallel gather, and the shared experts' TP pair."""
    s = p.shard
    width = float(m.latent_width or p.model.hidden)
    rows = routed_rows(p, m) / s.etp
    dispatch_bytes = rows * width * ELEMENT
    a2a = p.rates.collective("all_to_all", dispatch_bytes, s.ep_group)
    on = s.ep > 1
    there = back = np.where(on, a2a.seconds, 0.0)
    both = 1.0 * on
    messages: tuple[Message, ...] = (
        Message("dispatch or combine", "all_to_all", dispatch_bytes, s.ep_group, 2 * both, 2 * both),
    )
    note = ""
    if p.workload.dispatcher in ("deepep", "hybridep"):
        note = OF_NODES
        sent = RECIPES[p.workload.precision].activation_bytes if p.workload.dispatches_fp8 else ELEMENT
        ways = [(name, _node_deduplicated(p, m, width * each)) for name, each in (("dispatch", sent), ("combine", ELEMENT))]
        there, back = (np.where(on, _slower(p, way), 0.0) for _, way in ways)
        places = ("between domains", "inside a domain")
        messages = tuple(
            Message(f"{name} {place}", "all_to_all", nbytes, group, both, both)
            for name, way in ways
            for place, (nbytes, group) in zip(places, way, strict=True)
        )
    moved = [np.where(permutes_beside(p), x, 0.0) for o in permutations(p, m) for x in (o.forward, o.dgrad)]
    forward, backward = there + back + moved[0] + moved[2], there + back + moved[1] + moved[3]
    # 1F1B overlap of one micro-batch's all-to-all with another's compute hides it behind attention and experts.
    beside = sum((o.forward + o.dgrad + o.wgrad for o in by_name.values()), start=np.zeros_like(there))
    left = np.maximum(0.0, forward + backward - beside)
    exposed_f = np.where(s.ep_overlap, left / 2, forward)
    exposed_b = np.where(s.ep_overlap, left / 2, backward)
    hidden = forward + backward - exposed_f - exposed_b
    lost = np.where(s.ep_overlap, p.lost_s(forward + backward, beside), 0.0) / 2
    pair = Pair("all-to-alls beside another micro-batch's layer", forward + backward, np.asarray(beside), both * s.ep_overlap)
    found = [
        Transfer(
            "expert all-to-all",
            "ep",
            exposed_f,
            exposed_b,
            hidden,
            frozenset({"moe"}),
            a2a.source,
            lost,
            lost,
            messages,
            (pair,),
            np.asarray(sum(moved)),
            note,
        )
    ]
    gathered = ELEMENT * routed_rows(p, m) * width
    gather = p.rates.collective("all_gather", gathered, s.etp_group)
    scatter = p.rates.collective("reduce_scatter", gathered, s.etp_group)
    etp = np.where(s.etp > 1, gather.seconds + scatter.seconds, 0.0)
    grid = 1.0 * (s.etp > 1)
    messages = (
        Message("all-gather of rows", "all_gather", gathered, s.etp_group, grid, grid),
        Message("reduce-scatter of rows", "reduce_scatter", gathered, s.etp_group, grid, grid),
    )
    found.append(
        Transfer(
            "expert tensor parallel", "tp", etp, etp, np.zeros_like(etp), frozenset({"moe"}), gather.source, messages=messages
        )
    )
    if m.shared_width:
        up, down = by_name["shared expert up-projection"], by_name["shared expert down-projection"]
        found.append(_tensor(p, "shared expert", up, down, frozenset({"moe", "shared_experts"})))
    return found


def _slower(p: Pricer, way: tuple[tuple[Array, Group], tuple[Array, Group]]) -> Array:
    """Return the seconds of an exchange whose parts between and inside domains run at once: those of the slower one."""
    outside, inside = (p.rates.collective("all_to_all", nbytes, group).seconds for nbytes, group in way)
    return np.asarray(np.maximum(np.where(way[0][1].size > 1, outside, 0.0), inside))


def _node_deduplicated(p: Pricer, m: MoeMlp, token_bytes: float) -> tuple[tuple[Array, Group], tuple[Array, Group]]:
    """Return what one dispatch moves between domains and inside them, and between whom: a token goes once to each domain, and
    there once to each rank, that needs it.

    Of D places a token with K experts meets D (1 - (1 - 1/D)^K) on average, of domains no more than the router's groups
    allow; the network carries it once to each, and the scale-up links spread it there (DeepEP's and HybridEP's kernels).
    """
    s = p.shard
    ranks, local = s.ep_group.size, np.minimum(s.ep_group.local, s.ep_group.size)
    domains = np.maximum(ranks / local, 1.0)
    met = _distinct(domains, m.top_k)
    if m.top_groups is not None:
        met = np.minimum(met, float(m.top_groups))
    tokens = s.local_tokens * token_bytes
    # An all-to-all over one rank of each domain carries what leaves; the spread inside a domain is one of its own, one
    # copy a rank: experts that share a rank share the copy.
    outside = (tokens * met, Group(domains, np.ones_like(domains)))
    return outside, (tokens * _distinct(ranks, m.top_k), Group(local, local))


def _distinct(places: Array, draws: int) -> Array:
    """Return how many of `places` equally likely places `draws` draws meet on average."""
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** draws))


def _context(p: Pricer, mixer: GroupedAttention | LatentAttention, core: Operator) -> list[Transfer]:
    """Return context parallelism's transfers: ring steps beside attention, gathers and all-to-alls before it."""
    s = p.shard
    if isinstance(mixer, GroupedAttention):
        heads, kv = mixer.heads / s.tp, np.maximum(mixer.kv_heads / s.tp, 1.0)
        q_width, kv_width = heads * mixer.head_dim, 2 * kv * mixer.head_dim
        out_width, kv_heads = q_width, kv
    else:
        heads = mixer.heads / s.tp
        q_width = heads * (mixer.nope_dim + mixer.rope_dim)
        out_width = heads * mixer.v_dim
        kv_width, kv_heads = q_width + out_width, heads
    n = s.tokens  # tokens this rank holds
    # Ring: N - 1 steps; in each the K and V of s/ring tokens move to the next rank while attention runs on the last.
    block = ELEMENT * n * s.ulysses * kv_width / s.ulysses
    step = p.rates.collective("send_recv", block, s.ring_group)
    ring_on = s.ring > 1
    steps = s.ring - 1
    work_f, work_b = core.forward / s.ring, core.dgrad / s.ring
    exposed_f = np.where(ring_on, steps * np.maximum(0.0, step.seconds - work_f), 0.0)
    back = p.rates.collective("send_recv", 2 * block, s.ring_group)  # dK and dV travel with K and V
    exposed_b = np.where(ring_on, steps * np.maximum(0.0, back.seconds - work_b), 0.0)
    hidden = np.where(ring_on, steps * (step.seconds + back.seconds), 0.0) - exposed_f - exposed_b
    lost_f, lost_b = (np.where(ring_on, steps * p.lost_s(x.seconds, work), 0.0) for x, work in ((step, work_f), (back, work_b)))
    ring = Transfer(
        "ring attention", "cp", exposed_f, exposed_b, hidden, frozenset({"core_attention"}), step.source, lost_f, lost_b,
        (
            Message("keys and values to the next rank", "send_recv", block, s.ring_group, ring_on * steps, 0.0),
            Message("keys, values and their gradients", "send_recv", 2 * block, s.ring_group, 0.0, ring_on * steps),
        ),
        (
            Pair("a ring step beside attention", step.seconds, work_f, ring_on * steps),
            Pair("a ring step beside attention's backward", back.seconds, work_b, ring_on * steps),
        ),
    )  # fmt: skip
    found = [ring]
    # Ulysses: Q, K, V before and the output after attention, K/V heads copied where there are too few.
    copies = np.maximum(s.ulysses / np.maximum(kv_heads, 1.0), 1.0)
    qkv_bytes = ELEMENT * n * (q_width + kv_width * copies)
    qkv = p.rates.collective("all_to_all", qkv_bytes, s.ulysses_group)
    out = p.rates.collective("all_to_all", ELEMENT * n * out_width, s.ulysses_group)
    each = np.where(s.ulysses > 1, qkv.seconds + out.seconds, 0.0)
    inner = 1.0 * (s.ulysses > 1)
    messages = (
        Message("queries, keys and values", "all_to_all", qkv_bytes, s.ulysses_group, inner, inner),
        Message("attention output", "all_to_all", ELEMENT * n * out_width, s.ulysses_group, inner, inner),
    )
    found.append(
        Transfer("Ulysses all-to-all", "cp", each, each, np.zeros_like(each), frozenset(), qkv.source, messages=messages)
    )
    # All-gather CP (Llama 3): K and V of the whole sequence before attention, their gradients scattered after it.
    gathered_on = (s.cp_kind == CP_KINDS.index("allgather")) & (s.cp > 1)
    group = Group.of(s.cp, s.tp, s.domain)
    whole = ELEMENT * n * s.cp * kv_width
    gather = p.rates.collective("all_gather", whole, group)
    scatter = p.rates.collective("reduce_scatter", whole, group)
    f = np.where(gathered_on, gather.seconds, 0.0)
    b = np.where(gathered_on, gather.seconds + scatter.seconds, 0.0)
    messages = (
        Message("all-gather of keys and values", "all_gather", whole, group, 1.0 * gathered_on, 1.0 * gathered_on),
        Message("reduce-scatter of their gradients", "reduce_scatter", whole, group, 0.0, 1.0 * gathered_on),
    )
    modules = frozenset({"core_attention"})
    found.append(Transfer("K/V all-gather", "cp", f, b, np.zeros_like(f), modules, gather.source, messages=messages))
    return found
