"""The time of a step: its parts, its limits, and what each choice of a layout does to it."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from parlay.estimate.counts import parameters
from parlay.estimate.estimate import estimate, price
from parlay.estimate.traits import HOST_FACTOR, HOST_OPERATOR_S, SENDS, STEP_OPERATORS
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.vocabulary import RECOMPUTE, SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run
from parlay.rates.choose import rates_for
from parlay.rates.datasheet import FABRIC_SHARE, HOST_ADAM_SHARE
from parlay.rates.interface import Group

CLUSTER = load_cluster("dgx-h100")
TCP_CLUSTER = load_cluster("aws-p5-tcp")
RATES = rates_for(CLUSTER)
LLAMA_8B, LLAMA_70B = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
MIXTRAL, V3 = load_model("mixtral-8x7b"), load_model("deepseek-v3")
EQUAL = ModelSpec(  # a head and an embedding so small that stages are equal
    id="m", name="m", hidden=4096, vocab=8,
    kinds={"k": LayerKind(mixer=GroupedAttention(heads=32, kv_heads=8, head_dim=128), mlp=DenseMlp(width=14336))},
    layers=(Run(kinds=("k",), count=32),), final_norm=False,
)  # fmt: skip


def timed(model, *layouts, cluster=CLUSTER, **workload):
    """Return the step of each layout, alone in its arrays."""
    work = Workload(**({"seq_len": 4096, "global_batch": 256} | workload))
    return [price(model, cluster, work, Layouts.of(Layout(**x)), rates_for(cluster), every=True).time for x in layouts]


def term(time, key):
    return time.tree().find(key).value[0]


SHAPES = [
    (LLAMA_8B, {"dp": 8}, {}),
    (LLAMA_8B, {"tp": 2, "cp": 2, "pp": 2, "dp": 8}, {}),
    (LLAMA_70B, {"tp": 8, "pp": 4, "dp": 2, "vpp": 5}, {}),
    (LLAMA_70B, {"tp": 8, "pp": 4, "dp": 2, "recompute": ("full",), "recompute_layers": 3}, {}),
    (LLAMA_70B, {"dp": 64, "zero": 3, "recompute": ("selective_ops",)}, {"framework": "torchtitan"}),
    (LLAMA_70B, {"tp": 4, "cp": 4, "dp": 4, "zero": 3, "shard": 4}, {"framework": "torchtitan", "seq_len": 65536}),
    (LLAMA_8B, {"cp": 8, "dp": 2, "cp_kind": "ulysses"}, {"seq_len": 131072, "overlap_grad_reduce": True}),
    (LLAMA_8B, {"cp": 8, "dp": 2, "cp_kind": "usp", "ulysses": 4}, {"seq_len": 131072}),
    (LLAMA_8B, {"cp": 8, "dp": 2, "cp_kind": "allgather"}, {"seq_len": 131072}),
    (MIXTRAL, {"tp": 2, "pp": 2, "dp": 16, "ep": 8}, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    (MIXTRAL, {"tp": 4, "pp": 2, "dp": 8, "ep": 4, "etp": 2, "ep_overlap": True}, {"moe_imbalance": 1.5}),
    (V3, {"pp": 16, "vpp": 2, "dp": 64, "ep": 64, "recompute": ("mla_up", "norm")}, {"global_batch": 1024}),
    (V3, {"pp": 8, "dp": 16, "ep": 16, "schedule": "dualpipe"}, {"global_batch": 1024}),
    (LLAMA_70B, {"pp": 4, "dp": 16, "schedule": "zb-v", "vpp": 2, "zero": 0}, {"framework": "torchtitan"}),
    (LLAMA_8B, {"dp": 8, "zero": 2, "offload_optimizer": 1.0}, {"framework": "deepspeed"}),
]


@pytest.mark.parametrize(("model", "layout", "workload"), SHAPES)
def test_the_parts_sum_to_the_step_and_none_is_negative(model, layout, workload):
    (time,) = timed(model, layout, **workload)
    tree = time.tree()
    assert tree.value[0] == pytest.approx(time.step[0], rel=1e-9)
    for node in tree.walk():
        assert np.isfinite(node.value).all()
        assert (node.value >= 0).all(), node.key
        if node.parts:
            assert node.value[0] == pytest.approx(sum(p.value[0] for p in node.parts), rel=1e-12)
    keys = [n.key for n in tree.walk()]
    assert len(keys) == len(set(keys))
    assert all((n.value >= 0).all() for n in time.hidden().walk())
    assert tree.find("step.compute").value[0] > 0.05 * time.step[0]


@pytest.mark.parametrize(("model", "layout", "workload"), SHAPES)
def test_a_step_is_never_faster_than_the_peak_allows(model, layout, workload):
    from parlay.estimate.counts import flops_per_token

    work = Workload(**({"seq_len": 4096, "global_batch": 256} | workload))
    (time,) = timed(model, layout, **workload)
    gpus = Layout(**layout).gpus
    useful = flops_per_token(model, work.seq_len, convention="megatron") * work.global_batch * work.seq_len / gpus
    assert 0.02 < useful / time.step[0] / 989e12 < 0.9


def test_full_recompute_adds_one_forward_and_layers_interpolate():
    rows = [
        {"tp": 8, "pp": 4, "recompute": r, "recompute_layers": n}
        for r, n in [((), 0), *[(("full",), n) for n in (5, 10, 20, 99)], (("full",), 0)]
    ]
    none, five, ten, twenty, many, full = timed(LLAMA_70B, *rows, cuda_graphs=True)  # launches do not add up, work does
    again = [term(t, "step.recompute") for t in (none, five, ten, twenty, many, full)]
    assert again[0] == 0
    assert again[1:] == pytest.approx([again[5] * x for x in (0.25, 0.5, 1, 1, 1)])
    assert many.step[0] == full.step[0] == twenty.step[0]
    assert none.step[0] < five.step[0] < ten.step[0] < full.step[0]
    m = full.micro_batches[0]
    layers = full.weights["layer:block"] if "layer:block" in full.weights else next(iter(full.weights.values()))
    (kind,) = [k for k in full.blocks if k.startswith("layer:")]
    forward = sum(full.blocks[kind].forward.values())[0] - full.blocks[kind].forward["launch gaps"][0]
    exposed = sum(full.blocks[kind].exposed_forward.values())[0]
    assert again[5] <= m * layers[0, full.slowest[0]] * (forward + exposed) * (1 + 1e-9)
    assert again[5] >= m * layers[0, full.slowest[0]] * forward * (1 - 1e-9)


def test_recomputed_modules_cost_less_than_everything():
    rows = [{"tp": 2, "dp": 8, "recompute": r} for r in ((), ("core_attention",), ("mlp",), ("mlp", "core_attention"), ("full",))]
    none, core, mlp, both, full = (term(t, "step.recompute") for t in timed(LLAMA_8B, *rows))
    assert 0 == none < core < mlp < full
    assert both == pytest.approx(mlp + core)
    assert both < full


@pytest.mark.parametrize("module", [m for m in RECOMPUTE if m not in ("none", "full", "selective_ops")])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_what_runs_again_frees_what_it_makes(name, module):
    """A module that a model has not, or that is fused with the product beside it, costs nothing and frees nothing."""
    model = load_model(name)
    none, again = (
        price(model, CLUSTER, Workload(global_batch=64), Layouts.of(Layout(dp=8, ep=1, recompute=r)), RATES)
        for r in ((), (module,))
    )
    freed = none.memory.allocated.max() - again.memory.allocated.max()
    assert (term(again.time, "step.recompute") > 0) == (freed > 0)


@pytest.mark.parametrize("m", [4, 8, 16, 64])
def test_one_forward_one_backward_is_the_closed_form_on_equal_stages(m):
    """(m + p - 1) (f + b), what each micro-batch sends included: p - 1 of m + p - 1 is the bubble."""
    p = 4
    (time,) = timed(EQUAL, {"pp": p}, global_batch=m, cuda_graphs=True)
    each = time.forward[0] + time.backward[0] + time.sends[0]
    assert each.max() == pytest.approx(each.min(), rel=5e-3)  # the tiny head's own kernels
    assert time.bubble[0] == pytest.approx(each.sum() - each.max(), rel=1e-9)
    pipeline = time.step[0] - time.data.exposed[0] - time.data.optimizer.value[0] - time.end[0]
    assert time.bubble[0] / pipeline == pytest.approx((p - 1) / (m + p - 1), rel=5e-3)


def test_the_end_of_a_step_costs_the_host_an_operator_a_tensor():
    """Two layers of 4 weights and 2 norms, a table, a head and the final norm; experts count one by one."""
    each = HOST_OPERATOR_S["megatron-core"] * HOST_FACTOR["hopper"]
    (time,) = timed(EQUAL, {"pp": 1}, global_batch=8)
    tensors = 6 * EQUAL.layer_count + 3
    assert time.end[0] == pytest.approx((STEP_OPERATORS["megatron-core"] + tensors) * each, rel=1e-9)
    assert term(time, "step.host") == time.end[0]
    (titan,) = timed(EQUAL, {"pp": 1}, global_batch=8, framework="torchtitan")
    assert titan.end[0] == 0.0
    for state in ({"master_dtype": "fp16"}, {"moment_dtype": "bf16"}):  # the optimizer's kernel reads and writes these itself
        (aware,) = timed(EQUAL, {"pp": 1}, global_batch=8, **state)
        assert aware.end[0] == pytest.approx((STEP_OPERATORS["megatron-core"] + tensors / 2) * each, rel=1e-9)
    wide, narrow = timed(load_model("mixtral-8x7b"), {"dp": 8}, {"dp": 8, "ep": 8}, global_batch=8)
    assert wide.end[0] - narrow.end[0] == pytest.approx(
        32 * 2 * (8 - 1) * each, rel=1e-9
    )  # two products an expert, 8 and 1 a rank


def test_more_micro_batches_make_the_bubble_smaller():
    shares = [
        term(t, "step.bubble") / t.step[0] for m in (4, 8, 16, 64) for t in timed(LLAMA_70B, {"tp": 8, "pp": 4}, global_batch=m)
    ]
    assert all(a > b for a, b in pairwise(shares))


def test_virtual_stages_divide_the_bubble():
    plain, two, eight = timed(EQUAL, *({"pp": 4, "vpp": v} for v in (1, 2, 8)), global_batch=16, cuda_graphs=True)
    busy = (plain.forward[0, :3] + plain.backward[0, :3]).mean()
    hop = two.bubble[0] - 3 * busy / 2
    assert 0 < hop < 0.05 * busy  # the hops of fill and drain
    assert eight.bubble[0] == pytest.approx(3 * busy / 8 + hop, rel=1e-3)
    assert eight.bubble[0] < two.bubble[0] < plain.bubble[0]


def test_schedules_wait_in_the_order_their_papers_say():
    """GPipe and 1F1B alike; ZB-H1 less; ZB-V and DualPipe least (Qi 2023, DeepSeek-V3 report)."""
    names = ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
    rows = [{"pp": 8, "schedule": n, "vpp": 2 if n == "zb-v" else 1} for n in names]
    bubble = {n: t.bubble[0] for n, t in zip(names, timed(EQUAL, *rows, global_batch=32, cuda_graphs=True), strict=True)}
    assert bubble["gpipe"] == pytest.approx(bubble["1f1b"], rel=1e-3)  # but for the sends of its first and last stage
    assert bubble["zb-h1"] < 0.5 * bubble["1f1b"]
    assert bubble["zb-h2"] < bubble["zb-h1"]
    assert bubble["zb-v"] < bubble["zb-h1"]
    assert bubble["dualpipe"] < 0.5 * bubble["1f1b"]


def test_the_slowest_stage_sets_the_pace():
    """Gemma's head weighs five layers: the last stage is the slowest, and a lighter one makes the step shorter."""
    model = load_model("gemma-3-27b")
    rows = [{"tp": 8, "pp": 4}, {"tp": 8, "pp": 4, "last_layers": 11}]
    even, lighter = timed(model, *rows, global_batch=64)
    assert even.slowest[0] == 3
    assert lighter.step[0] < even.step[0]


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_twice_the_batch_takes_twice_the_work(nodes):
    one, two = (timed(LLAMA_8B, {"dp": 8 * nodes}, global_batch=b * nodes)[0] for b in (64, 128))
    for key in ("step.compute", "step.exposed.tp"):
        assert term(two, key) == pytest.approx(2 * term(one, key))
    assert term(two, "step.optimizer") == term(one, "step.optimizer")
    assert two.step[0] < 2 * one.step[0]


def test_more_tensor_parallelism_moves_more_and_computes_less_a_rank():
    times = timed(LLAMA_70B, *({"tp": t, "pp": 8 // t, "dp": 8} for t in (1, 2, 4, 8)), global_batch=64)
    tp = [term(t, "step.exposed.tp") for t in times]
    assert tp[0] == 0
    assert tp[1] > 0
    per_layer = [t.blocks[next(iter(t.blocks))] for t in times]
    compute = [sum(c.forward.values())[0] for c in per_layer]
    assert compute[0] > compute[1] > compute[2] > compute[3] > compute[0] / 8 * 0.999


@pytest.mark.parametrize(("flag", "model", "layout"), [
    ("tp_overlap", LLAMA_70B, {"tp": 8, "dp": 8}),
    ("ep_overlap", MIXTRAL, {"dp": 64, "ep": 8}),
    ("ep_overlap", V3, {"pp": 16, "dp": 64, "ep": 64}),
])  # fmt: skip
def test_overlapped_layer_transfers_show_less(flag, model, layout):
    off, on = timed(model, layout, layout | {flag: True}, global_batch=1024)
    axis = flag[:2]
    shown_off, shown_on = term(off, f"step.exposed.{axis}"), term(on, f"step.exposed.{axis}")
    assert 0 <= shown_on < shown_off
    assert on.hidden().find(f"hidden.{axis}").value[0] > off.hidden().find(f"hidden.{axis}").value[0]


@pytest.mark.parametrize("zero", [0, 1])  # ZeRO-2 of Megatron overlaps by layer, as its ZeRO-3 does
@pytest.mark.parametrize(
    "layout", [{"dp": 64}, {"tp": 8, "dp": 8}, {"tp": 8, "pp": 4, "dp": 2}, {"tp": 8, "dp": 8, "micro_batch": 4}]
)
def test_overlapped_gradients_and_weights_show_less_and_all_time_is_counted(zero, layout):
    flags = [(False, False), (True, False), (False, True), (True, True)]
    times = [timed(LLAMA_70B, layout | {"zero": zero}, overlap_grad_reduce=a, overlap_param_gather=b)[0].data for a, b in flags]
    none, reduce, gather, both = (t.exposed[0] for t in times)
    assert 0 < both <= min(reduce, gather) <= max(reduce, gather) <= none
    totals = [t.exposed[0] + t.hidden[0] for t in times]
    if "pp" not in layout:  # with stages another one may be the last to end
        # Megatron cuts gradients into buckets only to overlap their reduction; each bucket costs a collective's latency.
        assert totals[::2] == pytest.approx([totals[0]] * 2)
        assert totals[1::2] == pytest.approx([totals[1]] * 2)
        assert totals[0] < totals[1] < 1.4 * totals[0]
        assert times[0].hidden[0] == pytest.approx(0, abs=1e-12)
    if zero:
        assert both < none


def test_sharded_weights_move_more_than_a_sharded_optimizer():
    """ZeRO-3 gathers each weight twice a micro-batch: more traffic at one micro-batch, though buckets cost ZeRO-1 some, and far more with more."""
    given = {"framework": "torchtitan"}
    for m, least in ((1, 1.05), (4, 4.0)):
        one, three = timed(LLAMA_8B, *({"dp": 64, "zero": z} for z in (1, 3)), global_batch=64 * m, **given)
        moved = [t.data.exposed[0] + t.data.hidden[0] - term(t, "step.exposed.dp_copies") for t in (one, three)]
        assert moved[1] > least * moved[0]
        assert three.data.exposed[0] < moved[1]


def test_a_shard_within_the_node_gathers_weights_over_its_links():
    """Hybrid sharding (HSDP): weights come over NVLink; the copies' gradients still cross the network."""
    full, hybrid = timed(LLAMA_8B, {"dp": 256, "zero": 3}, {"dp": 256, "zero": 3, "shard": 8}, framework="torchtitan")
    assert term(hybrid, "step.exposed.dp_gather") < term(full, "step.exposed.dp_gather")
    assert term(hybrid, "step.exposed.dp_reduce") > 0


def test_an_offloaded_optimizer_waits_for_the_host_link():
    on, half, off = timed(LLAMA_8B, *({"dp": 8, "offload_optimizer": x} for x in (0.0, 0.5, 1.0)))
    assert on.data.optimizer.value[0] < half.data.optimizer.value[0] < off.data.optimizer.value[0]


def test_an_offloaded_optimizer_is_updated_over_the_memory_that_the_gpus_of_a_node_share():
    """30 bytes of each of the parameters that lie on a host, at the share of its memory's peak that Adam on CPUs reaches."""

    def told(**layout):
        return timed(LLAMA_8B, layout | {"offload_optimizer": 1.0})[0].data.optimizer

    off = told(dp=16)
    a_node = 30 * float(parameters(LLAMA_8B).total) / 2
    seconds = {name: float(off.inputs[f"{name}_seconds"][0]) for name in ("device", "copy", "host")}
    assert seconds["host"] == pytest.approx(a_node / (HOST_ADAM_SHARE * 614.4e9), rel=1e-9)
    assert seconds["device"] == 0 < seconds["copy"] < seconds["host"]
    assert off.value[0] == pytest.approx(sum(seconds.values()))
    at = [float(told(dp=n, zero=0).inputs["host_seconds"][0]) for n in (8, 1)]
    assert at[0] == pytest.approx(8 * at[1], rel=1e-9)  # without ZeRO every GPU has all of it on the host


def test_the_busiest_expert_rank_sets_the_pace():
    even, skewed = (timed(MIXTRAL, {"dp": 64, "ep": 8}, moe_imbalance=x)[0] for x in (1.0, 2.0))
    assert term(skewed, "step.compute.experts") > 1.5 * term(even, "step.compute.experts")
    assert term(skewed, "step.compute.attention_core") == term(even, "step.compute.attention_core")
    assert term(skewed, "step.exposed.ep") > term(even, "step.exposed.ep")


def test_experts_that_leave_the_node_wait_on_the_network():
    inside, outside = timed(V3, *({"dp": 256, "pp": 4, "ep": e} for e in (8, 64)), global_batch=1024)
    assert term(outside, "step.exposed.ep") > 1.5 * term(inside, "step.exposed.ep")


LONG = {"seq_len": 131072}
KV = 2 * 8 * 128  # K and V of Llama 3.1 8B: 8 heads of 128


# bf16: two bytes an element; a rank of cp 8 holds 16,384 tokens
@pytest.mark.parametrize(
    ("model", "layout", "workload", "axis", "ranks", "nbytes"),
    [
        (LLAMA_8B, {"tp": 2, "dp": 4, "micro_batch": 4}, {}, "tp", 2, 2 * 4 * 4096 * 4096),
        (LLAMA_8B, {"tp": 2, "cp": 4}, {}, "tp", 2, 2 * 1024 * 4096),
        (LLAMA_8B, {"cp": 8}, LONG, "cp", 8, 2 * 16384 * KV),
        (LLAMA_8B, {"cp": 8, "cp_kind": "usp", "ulysses": 4}, LONG, "cp", 2, 2 * 16384 * KV),
        (LLAMA_8B, {"cp": 8, "cp_kind": "ulysses"}, LONG, "cp", 8, 2 * 16384 * (4096 + KV)),
        (LLAMA_8B, {"cp": 8, "cp_kind": "allgather"}, LONG, "cp", 8, 2 * 131072 * KV),
        (MIXTRAL, {"dp": 8, "ep": 8}, {}, "ep", 8, 2 * 4096 * 2 * 4096),  # two experts a token
        (LLAMA_8B, {"dp": 8}, {}, "tp", 1, 0),
    ],
)
def test_a_term_tells_what_its_transfers_carry(model, layout, workload, axis, ranks, nbytes):
    found = collectives(timed(model, layout, **workload)[0].tree().at(0), f"step.exposed.{axis}")
    assert [c for c in found if (c.inputs["ranks"], c.inputs["bytes"]) == (ranks, nbytes)] or ranks == 1
    assert bool(found) == (ranks > 1)


def collectives(tree, key):
    """Return the collectives that a term is made of, those that a forward or a backward has."""
    below = [c for piece in tree.find(key).pieces() for c in piece.pieces()]
    return [c for c in below if c.value and (c.inputs["forward"] or c.inputs["backward"])]


def test_transfers_of_a_term_are_so_many_of_each():
    """Sequence parallelism: an all-gather and a reduce-scatter around attention and around the MLP, 32 layers."""
    tree = timed(LLAMA_8B, {"tp": 8})[0].tree().at(0)
    term, found = tree.find("step.exposed.tp"), collectives(tree, "step.exposed.tp")
    assert [(c.inputs["forward"], c.inputs["backward"]) for c in found] == [(1, 2), (1, 1)] * 2
    told = term.inputs
    assert told["forward_s"] == pytest.approx(32 * sum(c.value for c in found))
    assert told["backward_s"] + told["hidden_s"] == pytest.approx(32 * sum(c.value * c.inputs["backward"] for c in found))


def test_dispatch_and_combine_are_told_each_with_its_own_bytes_and_seconds():
    """HAI-LLM dispatches in fp8 and combines in bf16: 1 byte and a scale of 4 for every 128 against 2 bytes an element."""
    qwen, h800 = load_model("qwen3-30b-a3b"), load_cluster("hgx-h800")
    work = {"framework": "hai-llm", "precision": "fp8-blockwise", "global_batch": 512, "cluster": h800}
    tree = timed(qwen, {"dp": 64, "ep": 64}, **work)[0].tree().at(0)
    names = ["dispatch between domains", "dispatch inside a domain", "combine between domains", "combine inside a domain"]
    found = collectives(tree, "step.exposed.ep")
    assert [c.label.split(", ")[1] for c in found] == names
    for narrow, wide in zip(found[:2], found[2:], strict=True):
        assert wide.inputs["bytes"] / narrow.inputs["bytes"] == pytest.approx(2 / (1 + 4 / 128))
        assert wide.value > narrow.value
    both = [max(found[0].value, found[1].value), max(found[2].value, found[3].value)]
    assert tree.find("step.exposed.ep").inputs["forward_s"] == pytest.approx(48 * sum(both))
    for c in found:
        x = c.inputs
        assert c.value == pytest.approx(x["latency_s"] + x["sent_bytes"] / x["bytes_per_s"])
        assert x["sent_bytes"] == pytest.approx(x["bytes"] * (x["ranks"] - 1) / x["ranks"])


def test_where_a_group_lies_decides_the_link_not_how_large_it_is():
    """llm-analysis issue 27: eight data-parallel ranks, one node apart behind tp 8, side by side without it."""
    near = timed(LLAMA_8B, {"dp": 8})[0].data
    far = timed(LLAMA_8B, {"tp": 8, "dp": 8})[0].data
    nbytes = [1.0, 1 / 8]
    assert far.exposed[0] / nbytes[1] > 3 * near.exposed[0] / nbytes[0]
    inner = timed(LLAMA_8B, {"tp": 8, "dp": 8, "order": ("dp", "cp", "tp", "pp")})[0].data
    assert inner.exposed[0] < far.exposed[0]


def test_cuda_graphs_close_the_gaps_between_short_kernels():
    small = load_model("llama-3.2-1b")
    plain, captured = (timed(small, {"tp": 8}, seq_len=512, cuda_graphs=x)[0] for x in (False, True))
    assert term(plain, "step.compute.launch_gaps") > 0
    assert term(captured, "step.compute.launch_gaps") == 0
    assert captured.step[0] < plain.step[0]


def test_the_same_question_gets_the_same_answer():
    rows = [timed(V3, {"pp": 16, "dp": 64, "ep": 64}, global_batch=1024)[0].step[0] for _ in range(3)]
    assert rows[0] == rows[1] == rows[2]


drawn = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 4, 8]),
    ep=st.sampled_from([1, 2, 8]),
    vpp=st.sampled_from([1, 2]),
    sp=st.sampled_from([None, False]),
    cp_kind=st.sampled_from(["zigzag", "ring", "allgather", "ulysses", "usp"]),
    ulysses=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2, 3]),
    micro_batch=st.sampled_from([1, 2]),
    recompute=st.sampled_from([(), ("full",), ("norm", "mlp_activation"), ("core_attention",)]),
    recompute_layers=st.sampled_from([0, 0, 1]),
    first_layers=st.sampled_from([None, None, 0, 3]),
    tp_overlap=st.booleans(),
    ep_overlap=st.booleans(),
    offload_optimizer=st.sampled_from([0.0, 0.5]),
    offload_activations=st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(
    st.lists(drawn, min_size=8, max_size=16),
    st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gemma-3-27b"]),
    st.sampled_from(["megatron-core", "torchtitan", "deepspeed", "nanotron", "hai-llm"]),
    st.booleans(),
)
def test_many_layouts_at_once_are_priced_as_each_alone(rows, name, framework, overlap):
    model = load_model(name)
    work = Workload(seq_len=8192, global_batch=64, framework=framework, overlap_grad_reduce=overlap, overlap_param_gather=overlap)
    rows = [r for r in rows if not check(r, model, CLUSTER, work)]
    if not rows:
        return
    together = price(model, CLUSTER, work, Layouts.of(rows), RATES)
    listed = price(model, CLUSTER, work, Layouts.of(rows), RATES, every=True)
    for i, row in enumerate(rows):
        alone = price(model, CLUSTER, work, Layouts.of(row), RATES)
        for many in (together, listed):
            np.testing.assert_allclose(many.memory.peak[i], alone.memory.peak[0], rtol=1e-12)
            np.testing.assert_allclose(many.time.step[i], alone.time.step[0], rtol=1e-12)
        left = {t.key: t.value for t in together.time.tree().at(i).walk()}
        right = {t.key: t.value for t in alone.time.tree().at(0).walk()}
        assert left == pytest.approx(right, rel=1e-9, abs=1e-12)


def test_every_schedule_is_priced():
    for name in SCHEDULES:
        vpp = 2 if name in ("interleaved", "bfs", "zb-v", "dualpipev") else 1
        (time,) = timed(EQUAL, {"pp": 4, "vpp": vpp, "schedule": name}, global_batch=16)
        assert time.step[0] > 0


def test_an_estimate_repeats_what_the_arrays_say():
    work = Workload(seq_len=8192, global_batch=512)
    layout = Layout(tp=8, pp=4, dp=2)
    e = estimate(LLAMA_70B, CLUSTER, work, layout)
    prices = price(LLAMA_70B, CLUSTER, work, Layouts.of(layout), RATES)
    assert e.step_s == pytest.approx(prices.time.step[0], rel=1e-12)
    assert e.peak_bytes == pytest.approx(prices.memory.peak[0], rel=1e-12)
    assert e.tokens_per_s_per_gpu == pytest.approx(512 * 8192 / e.step_s / 64)
    assert e.mfu == pytest.approx(e.tokens_per_s_per_gpu * e.flops_per_token / 989e12, rel=1e-3)
    assert dataclasses.replace(e) == e


@pytest.mark.parametrize(
    ("layout", "slow"),
    [
        ({"pp": 4, "dp": 2}, []),
        ({"tp": 2, "pp": 4}, []),
        ({"pp": 4, "dp": 4}, [2]),  # 16 GPUs: the border in the middle leaves the node
        ({"tp": 8, "pp": 3}, [1, 2]),
    ],
)
def test_nanotron_moves_one_tensor_at_a_time(layout, slow):
    """An activation and a gradient over each border of a stage, at its engine's rate, or TCP's where that leaves the node."""
    fast, tcp = (timed(EQUAL, layout, cluster=c, framework="nanotron", global_batch=48)[0] for c in (CLUSTER, TCP_CLUSTER))
    sent = 2 * 4096 * EQUAL.hidden / layout.get("tp", 1)
    inside, port = sent / SENDS["nanotron"], sent / (TCP_CLUSTER.nic_bytes_per_s_per_gpu * FABRIC_SHARE["tcp"])
    across = rates_for(TCP_CLUSTER).collective("send_recv", sent, Group(np.array(2.0), np.array(1.0))).seconds
    assert port < across < 1.2 * port
    for time, border in ((fast, inside), (tcp, across)):
        borders = [border if b in slow else inside for b in range(1, layout["pp"])]
        by_hand = [2 * sum(borders[max(s - 1, 0) : s + 1]) for s in range(layout["pp"])]
        assert time.by_pipe.sends[0] == pytest.approx(by_hand, rel=1e-12)
        assert time.tree().find("step.exposed.pp").source == ("default" if slow and border == across else "profile")


@pytest.mark.parametrize(
    ("layout", "leaving"),
    [
        ({"pp": 4, "dp": 2}, [0] * 4),  # eight GPUs
        ({"pp": 4, "dp": 4}, [0, 1, 1, 0]),  # the border in the middle leaves the node
        ({"tp": 4, "pp": 4}, [0, 1, 1, 0]),
        ({"pp": 2, "dp": 8}, [1, 1]),
        ({"tp": 8, "pp": 4}, [1, 2, 2, 1]),
        ({"tp": 2, "pp": 8, "dp": 2}, [0, *[1] * 6, 0]),
        ({"pp": 16}, [*[0] * 7, 1, 1, *[0] * 7]),  # far slower outside, so each stage has its own
        ({"pp": 2, "dp": 6}, [1, 1]),  # 12 GPUs: of the second stage's ranks some are in the first node, as those of their group
        ({"pp": 4, "dp": 6}, [1, 2, 2, 1]),
        ({"pp": 4, "dp": 4, "vpp": 2}, [2] * 4),  # the last stage sends to the first as well
    ],
)
def test_a_border_between_stages_may_leave_the_node(layout, leaving):
    """One exchange a micro-batch over each border of a stage, here plain and on TCP."""
    given = {"seq_len": 4096, "global_batch": 48 * layout.get("dp", 1), "overlap_p2p": False}
    (time,) = timed(EQUAL, layout, cluster=TCP_CLUSTER, **given)
    sent, chunks = 2 * 4096 * EQUAL.hidden / layout.get("tp", 1), layout.get("vpp", 1)
    inside, across = (
        float(rates_for(TCP_CLUSTER).collective("send_recv", sent, Group(np.array(2.0), np.array(local))).seconds)
        for local in (2.0, 1.0)
    )
    borders = [2 if chunks > 1 or 0 < s < layout["pp"] - 1 else 1 for s in range(layout["pp"])]
    by_hand = [chunks * (n * across + (of - n) * inside) for n, of in zip(leaving, borders, strict=True)]
    assert time.by_pipe.sends[0] == pytest.approx(by_hand, rel=1e-12)
    searched = price(EQUAL, TCP_CLUSTER, Workload(**given), Layouts.of(Layout(**layout)), rates_for(TCP_CLUSTER)).time
    assert searched.step[0] == pytest.approx(time.step[0], rel=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 4, 32])
def test_fsdp_shows_no_more_traffic_than_there_is(layers):
    """Over TCP one block's traffic takes far longer than its compute: what shows is all of it less the compute beside it."""
    model = LLAMA_8B.model_copy(update={"layers": (LLAMA_8B.layers[0].model_copy(update={"count": layers}),)})
    work = Workload(seq_len=4096, global_batch=32, framework="torchtitan")
    (step,) = (
        price(model, TCP_CLUSTER, work, Layouts.of(Layout(dp=16, zero=3)), rates_for(TCP_CLUSTER), every=True).time.tree()
        for _ in (0,)
    )
    gather, reduce = (step.find(f"step.exposed.dp_{name}") for name in ("gather", "reduce"))
    x = {k: np.ravel(v)[0] for k, v in gather.inputs.items()} | {"reduce_s": np.ravel(reduce.inputs["reduce_s"])[0]}
    assert x["gather_s"] > x["backward_s"]
    all_s = x["rounds"] * layers * (2 * x["gather_s"] + x["reduce_s"])
    hidden_s = x["rounds"] * layers * (x["forward_s"] + x["backward_s"])
    if layers == 1:  # its backward has nothing beside it, its forward its own second gathering
        hidden_s = x["rounds"] * x["forward_s"]
    assert gather.value[0] + reduce.value[0] == pytest.approx(all_s - hidden_s, rel=1e-9)


def test_a_last_stage_may_hold_the_head_alone():
    rows = [{"pp": 4, "dp": 2, "first_layers": 11, "last_layers": 0}, {"pp": 4, "dp": 2, "first_layers": 11}]
    alone, shared = timed(EQUAL, *rows, global_batch=64)
    layers = [t.by_pipe.weights["layer:k"][0].tolist() for t in (alone, shared)]
    assert layers == [[11, 10, 11, 0], [11, 7, 7, 7]]
    assert alone.by_pipe.forward[0, 3] < 0.05 * shared.by_pipe.forward[0, 3]


@pytest.mark.parametrize("pp", [2, 4])
def test_gpipe_waits_for_each_way_on_its_own(pp):
    """What the schedule's own blocking timeline says: two transfers a micro-batch on any stage, where 1F1B's ends wait for one."""
    gpipe, plain = (timed(EQUAL, {"pp": pp, "dp": 2, "schedule": s}, global_batch=64)[0] for s in ("gpipe", "1f1b"))
    one = plain.by_pipe.sends[0][0]
    assert gpipe.by_pipe.sends[0] == pytest.approx([2 * one] * pp, rel=1e-12)
    assert plain.by_pipe.sends[0] == pytest.approx([one, *[2 * one] * (pp - 2), one], rel=1e-12)
