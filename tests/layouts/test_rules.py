"""Every rule alone: a layout that breaks it, one that keeps it, what the message says, and whether its advice is true."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parlay.estimate.local import padded_vocabulary
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import RULES, Question, broken_rules, check
from parlay.layouts.split import chunk_sizes
from parlay.layouts.vocabulary import CP_KINDS, RECOMPUTE, SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GatedDelta, GroupedAttention, LayerKind, Mamba2, ModelSpec, MoeMlp, Run


def dense(heads=32, kv=8, layers=32, width=14336, hidden=4096, vocab=128256):
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=kv, head_dim=128), mlp=DenseMlp(width=width))
    return ModelSpec(id="m", name="m", hidden=hidden, vocab=vocab, kinds={"k": kind}, layers=(Run(kinds=("k",), count=layers),))


def mixture(experts=64, width=1536, shared=0):
    mixer = GroupedAttention(heads=32, kv_heads=8, head_dim=128)
    kind = LayerKind(mixer=mixer, mlp=MoeMlp(experts=experts, top_k=4, width=width, shared_width=shared))
    return ModelSpec(id="m", name="m", hidden=4096, vocab=32000, kinds={"k": kind}, layers=(Run(kinds=("k",), count=32),))


def two_mixers():
    kinds = {
        "a": LayerKind(mixer=GroupedAttention(heads=24, kv_heads=24, head_dim=64), mlp=DenseMlp(width=4608)),
        "b": LayerKind(mixer=GroupedAttention(heads=16, kv_heads=16, head_dim=64), mlp=DenseMlp(width=4096)),
    }
    return ModelSpec(id="m", name="m", hidden=1536, vocab=32000, kinds=kinds, layers=(Run(kinds=("a", "b"), count=32),))


def recurrent():
    kinds = {
        "m": LayerKind(mixer=Mamba2(heads=64, head_dim=64, groups=4, state=128), mlp=DenseMlp(width=8192)),
        "d": LayerKind(mixer=GatedDelta(key_heads=16, value_heads=32, key_dim=128, value_dim=128), mlp=DenseMlp(width=8192)),
    }
    return ModelSpec(id="m", name="m", hidden=2048, vocab=32000, kinds=kinds, layers=(Run(kinds=("m", "d"), count=32),))


MEGATRON, TITAN, DEEPSPEED, NANOTRON, HAI = "megatron-core", "torchtitan", "deepspeed", "nanotron", "hai-llm"

# rule, model, workload, layout that breaks the rule alone, what to change so that it keeps it, words of message and hint
CASES = [
    ("gpus", dense(), {}, {"tp": 2, "dp": 8}, {"dp": 4}, ["16 GPUs, but there are 8", "dp must be 4"]),
    ("gpus", dense(), {}, {"tp": 2, "pp": 8}, {"tp": 1}, ["16 GPUs", "1, 2, 4, 8"]),
    ("heads", dense(heads=30, kv=1), {}, {"tp": 4, "dp": 2}, {"tp": 2, "dp": 4}, ["tp=4", "30 attention heads", "tp may be 1, 2 (8 GPUs", "pp or dp"]),
    ("kv_heads", dense(heads=24, kv=6), {}, {"tp": 4, "dp": 2}, {"tp": 2, "dp": 4}, ["tp=4", "6 key/value heads", "tp may be 1, 2 (8 GPUs share", "above 6"]),
    ("kv_copies", dense(kv=4), {"framework": TITAN}, {"zero": 3, "tp": 8}, {"tp": 4, "dp": 2}, ["4 key/value heads", "torchtitan", "1, 2, 4"]),
    ("width", dense(width=14340), {}, {"tp": 8}, {"tp": 4, "dp": 2}, ["tp=8", "MLP width 14,340", "tp may be 1, 2, 4 (8 GPUs"]),
    ("width", mixture(shared=1532), {}, {"tp": 8}, {"tp": 4, "dp": 2}, ["shared experts' width 1,532", "tp may be 1, 2, 4 (8 GPUs"]),
    ("width", mixture(width=1532), {}, {"tp": 8, "etp": 8}, {"etp": 4}, ["etp=8", "expert width 1,532", "1, 2, 4, 383"]),
    ("width", recurrent(), {}, {"tp": 8}, {"tp": 4, "dp": 2}, ["tp=8", "Mamba groups 4", "1, 2, 4"]),
    ("scale_up", dense(), {}, {"tp": 16}, {"tp": 8, "pp": 2}, ["tp=16", "8 GPUs", "up to 8"]),
    ("batch", dense(), {"global_batch": 12}, {"dp": 8}, {"dp": 4, "pp": 2}, ["8 does not divide", "12 sequences", "8, 16"]),
    ("sequence", dense(), {"seq_len": 2999}, {"cp": 4, "dp": 2}, {"cp": 1, "dp": 8}, ["2,999", "multiple of 8", "2 x cp=4", "3,000 and 3,008"]),
    ("sequence", dense(), {"seq_len": 4092}, {"tp": 8}, {"sp": False}, ["multiple of 8", "tp=8, sequence parallel", "4,096"]),
    ("ulysses", dense(heads=28, kv=4), {}, {"cp": 8, "cp_kind": "ulysses"}, {"cp": 4, "dp": 2}, ["28 query heads and 4 K/V heads", "cp may be 1, 2, 4, 28;", "usp"]),
    ("ulysses", dense(), {}, {"cp": 8, "cp_kind": "usp", "ulysses": 3}, {"ulysses": 4}, ["inner Ulysses degree 3", "1, 2, 4, 8"]),
    ("experts", mixture(experts=60), {}, {"dp": 8, "ep": 8}, {"ep": 4}, ["ep=8", "60 experts", "1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"]),
    ("experts", dense(), {}, {"dp": 8, "ep": 8}, {"ep": 1}, ["model without experts", "leave ep and etp at 1"]),
    ("expert_grid", mixture(), {}, {"tp": 4, "ep": 4, "etp": 4}, {"etp": 1}, ["etp4 x ep4 = 16", "4 GPUs", "1, 2, 4", "etp is 1 unless you set it"]),
    ("layers", dense(layers=4), {}, {"pp": 8}, {"pp": 4, "dp": 2}, ["8 chunks", "4 layers, embedding and head", "up to 6"]),
    ("ends", dense(layers=8), {}, {"pp": 4, "dp": 2, "first_layers": 6}, {"first_layers": 5}, ["2 of 8 layers for the other 3 chunks", "first_layers may be 0 to 5"]),
    ("ends", dense(), {}, {"dp": 8, "last_layers": 2}, {"last_layers": None}, ["no meaning with pp=1", "leave"]),
    ("adapters", dense(), {"lora_rank": 12}, {"tp": 8}, {"tp": 4, "dp": 2}, ["tp=8", "LoRA rank of 12", "tp may be 1, 2, 3, 4, 6, 12"]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"tp": 8, "tp_overlap": True}, {"tp_overlap": False}, ["in pieces", "leave tp_overlap off"]),
    ("framework", dense(), {"framework": TITAN, "compiled": False}, {"zero": 3, "tp": 8, "tp_overlap": True}, {"tp_overlap": False}, ["torch.compile", "compiled = true"]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"dp": 8, "zero": 1, "offload_optimizer": 0.5}, {"offload_optimizer": 1.0}, ["whole or not at all below ZeRO-3", "offload_optimizer=1"]),
    ("framework", dense(), {"framework": TITAN}, {"dp": 8, "zero": 3, "offload_optimizer": 0.5}, {"offload_optimizer": 0.0}, ["torchtitan offloads the optimizer whole", "or 0"]),
    ("framework", dense(), {"framework": TITAN}, {"dp": 8, "zero": 3, "recompute": ("norm",)}, {"recompute": ("selective_ops",)}, ["torchtitan does not recompute norm", "none, selective_ops, full"]),
    ("framework", dense(), {"framework": NANOTRON}, {"dp": 8, "recompute": ("mlp",)}, {"recompute": ("full",)}, ["nanotron does not recompute mlp", "none, core_attention, full"]),
    ("shard", dense(), {}, {"dp": 8, "zero": 3, "shard": 1}, {"zero": 0, "shard": None}, ["one GPU shards nothing", "zero=0", "2, 4, 8"]),
    ("framework", dense(), {"framework": TITAN}, {"dp": 8, "zero": 1}, {"zero": 3}, ["torchtitan has no ZeRO-1", "zero=3", "or zero=0"]),
    ("framework", dense(), {"framework": TITAN}, {"dp": 8, "zero": 2}, {"zero": 0}, ["torchtitan has no ZeRO-2", "zero=3", "or zero=0"]),
    ("framework", dense(), {"framework": NANOTRON}, {"cp": 8}, {"cp": 1, "dp": 8}, ["without context parallelism", "cp=1"]),
    ("uneven", dense(layers=32), {"framework": TITAN}, {"zero": 3, "pp": 4, "dp": 2, "vpp": 3}, {"vpp": 4}, ["12 chunks", "vpp may be 1, 2, 4, 8", "megatron-core also"]),
    ("schedule", dense(), {"global_batch": 3}, {"pp": 6, "vpp": 2}, {"vpp": 1}, ["at least 6", "there are 3", "global batch to 6", "pp may be 3", "vpp=1"]),
    ("schedule", dense(), {}, {"pp": 8, "schedule": "1f1b", "vpp": 2}, {"vpp": 1}, ["1f1b", "vpp=2", "1f1b needs vpp=1"]),
    ("schedule", dense(), {"framework": TITAN}, {"zero": 3, "pp": 8, "schedule": "zb-v", "vpp": 1}, {"vpp": 2}, ["zb-v needs vpp=2"]),
    ("schedule", dense(), {"framework": TITAN, "global_batch": 8}, {"zero": 3, "pp": 8, "schedule": "dualpipev", "vpp": 2}, {"pp": 4}, ["at least 16", "16 or more"]),
    ("shard", dense(), {}, {"dp": 8, "zero": 3, "shard": 3}, {"shard": 4}, ["shard of 3", "2, 4, 8"]),
    ("framework", dense(), {}, {"pp": 8, "schedule": "gpipe"}, {"schedule": "1f1b"}, ["megatron-core does not offer", "gpipe", "1f1b, interleaved (", "torchtitan: gpipe"]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"pp": 2, "dp": 4, "zero": 2}, {"zero": 1}, ["ZeRO 0 or 1"]),
    ("framework", dense(), {"framework": NANOTRON}, {"dp": 8, "zero": 2}, {"zero": 1}, ["optimizer state only"]),
    ("framework", dense(), {"framework": HAI}, {"dp": 8, "zero": 2}, {"zero": 1}, ["ZeRO-1 alone"]),
    ("framework", dense(), {}, {"dp": 8, "offload_activations": 0.5, "recompute": ("full",)}, {"recompute": ("norm",)}, ["recomputes whole", "norm"]),
    ("framework", dense(), {"cuda_graphs": True}, {"dp": 8, "offload_activations": 0.5}, {"offload_activations": 0.0}, ["CUDA graphs capture", "cuda_graphs = false"]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"cp": 4, "tp": 2, "cp_kind": "ulysses"}, {"tp": 1, "dp": 2}, ["Ulysses", "tp=2", "tp=1 and pp=1"]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"cp": 4, "pp": 2, "cp_kind": "ulysses"}, {"pp": 1, "dp": 2}, ["Ulysses", "pp=2", "cp=1"]),
    ("framework", dense(), {"framework": NANOTRON}, {"dp": 8, "offload_activations": 0.5}, {"offload_activations": 0.0}, ["nor activations on the host"]),
    ("framework", dense(), {"framework": HAI}, {"dp": 8, "offload_optimizer": 1.0}, {"offload_optimizer": 0.0}, ["neither optimizer state"]),
    ("framework", dense(), {"framework": HAI}, {"cp": 8}, {"cp": 1, "dp": 8}, ["no context parallelism"]),
    ("framework", dense(), {"framework": HAI}, {"pp": 8, "schedule": "gpipe"}, {"schedule": "zb-h1"}, ["hai-llm does not offer", "dualpipe ("]),
    ("framework", dense(), {"framework": DEEPSPEED}, {"cp": 8}, {"cp_kind": "ulysses"}, ["Ulysses only"]),
    ("shard", dense(), {"framework": TITAN}, {"dp": 2, "cp": 4, "zero": 3, "shard": 2}, {"shard": 4}, ["whole context-parallel groups of cp=4", "4, 8"]),
    ("sp", dense(), {}, {"tp": 8, "sp": False, "tp_overlap": True}, {"tp_overlap": False}, ["--tp-comm-overlap", "tp=8", "turn tp_overlap off"]),
    ("sp", mixture(), {}, {"tp": 8, "sp": False}, {"sp": True}, ["mixture of experts", "leave sp on, or use tp=1"]),
    ("ep_overlap", mixture(), {}, {"pp": 2, "dp": 4, "ep": 4, "ep_overlap": True}, {"vpp": 2}, ["pp=2", "set vpp to 2"]),
    ("ep_overlap", mixture(), {}, {"dp": 8, "ep": 4, "ep_overlap": True, "recompute": ("full",)}, {"recompute": ("norm",)}, ["recomputes whole layers", "turn ep_overlap off"]),
    ("ep_overlap", mixture(), {"framework": TITAN}, {"pp": 2, "vpp": 2, "dp": 4, "ep": 4, "zero": 3, "ep_overlap": True}, {"schedule": "dualpipev"}, ["but under DualPipeV", "schedule=dualpipev"]),
    ("ep_overlap", mixture(), {"framework": DEEPSPEED}, {"dp": 8, "ep": 4, "ep_overlap": True}, {"ep_overlap": False}, ["deepspeed does not overlap expert traffic", "turn ep_overlap off"]),
    ("dispatcher", mixture(), {"moe_dispatcher": "deepep"}, {"dp": 8}, {"ep": 8}, ["deepep carries tokens between ranks", "tp x ep is 1", "raise ep"]),
    ("dispatcher", mixture(), {"moe_dispatcher": "hybridep", "framework": TITAN}, {"dp": 8, "zero": 3}, {"ep": 2}, ["and ep is 1"]),
    ("framework", dense(), {"optimizer": "muon"}, {"dp": 8, "zero": 3}, {"zero": 1}, ["muon with a sharded optimizer alone", "zero=1, or zero=0"]),
    ("ep_overlap", mixture(), {"framework": HAI}, {"pp": 2, "dp": 4, "ep": 4, "ep_overlap": True}, {"schedule": "dualpipe"}, ["only under DualPipe"]),
    ("ep_overlap", mixture(), {"framework": HAI}, {"dp": 8, "ep": 4, "ep_overlap": True}, {"ep_overlap": False}, ["only under DualPipe"]),
    ("overlap", dense(), {"overlap_param_gather": True}, {"dp": 8}, {"zero": 3}, ["without overlap_grad_reduce", "overlap_grad_reduce=true"]),
    ("overlap", dense(), {"overlap_param_gather": True, "overlap_grad_reduce": False}, {"dp": 8, "zero": 3}, {"zero": 0}, ["refuses"]),
    ("order", dense(), {}, {"tp": 2, "pp": 2, "dp": 2, "order": ("pp", "tp", "cp", "dp")}, {"order": ("tp", "cp", "pp", "dp")}, ["pp-tp-cp-dp", "tp-cp-pp-dp"]),
    ("order", dense(), {"framework": TITAN}, {"zero": 3, "pp": 2, "dp": 4, "order": ("tp", "cp", "pp", "dp")}, {"pp": 1, "dp": 8}, ["torchtitan does not place", "tp-cp-dp-pp"]),
    ("order", mixture(), {}, {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "order": ("tp", "cp", "pp", "dp")}, {"ep": 2}, ["copies of experts (2)", "rest (4)", "etp x ep = tp x cp = 2"]),
    ("recompute_layers", dense(), {}, {"dp": 8, "recompute_layers": 2}, {"recompute": ("full",)}, ["without recompute = 'full'", "0"]),
]  # fmt: skip


def judged(model, layout, gpus=None, cluster="dgx-h100", **workload):
    given_batch = {"global_batch": 16, "seq_len": 4096} | workload
    return check(Layout(**layout), model, load_cluster(cluster), Workload(**given_batch), gpus)


@pytest.mark.parametrize(("rule", "model", "workload", "layout", "change", "words"), CASES)
def test_a_layout_breaks_one_rule_alone_and_the_change_keeps_it(rule, model, workload, layout, change, words):
    found = judged(model, layout, 8 if rule == "gpus" else None, **workload)
    assert [v.rule for v in found] == [rule]
    said = f"{found[0].message} | {found[0].hint}"
    for word in words:
        assert word in said
    assert judged(model, layout | change, 8 if rule == "gpus" else None, **workload) == []


def test_every_rule_has_a_case_and_a_reason():
    assert {c[0] for c in CASES} == {r.name for r in RULES}
    assert all(len(r.reason) > 20 for r in RULES)


def advised(hint):
    """Return the (field, values) that a hint offers: 'tp may be 1, 2, 4', 'dp must be 4', 'first_layers may be 0 to 5'."""
    for field, values in re.findall(r"(?<! [x+] )\b([a-z_]+) (?:may|must) be (\d+\b(?:, \d+\b| to \d+)*)", hint):
        yield field, [int(v) for v in re.findall(r"\d+", values)]


@pytest.mark.parametrize(("rule", "model", "workload", "layout", "change", "words"), CASES)
def test_each_value_that_a_hint_offers_keeps_the_rule(rule, model, workload, layout, change, words):
    gpus = 8 if rule == "gpus" else None
    hint = judged(model, layout, gpus, **workload)[0].hint
    for field, values in advised(hint):
        if field not in Layout.model_fields:
            continue
        for value in values:
            again = judged(model, layout | {field: value}, gpus, **workload)
            assert rule not in [v.rule for v in again], f"{field}={value} of '{hint}'"


def test_hints_name_values_where_there_are_any():
    offered = {
        c[0] for c in CASES if any(True for _ in advised(judged(c[1], c[3], 8 if c[0] == "gpus" else None, **c[2])[0].hint))
    }
    assert offered >= {
        "gpus",
        "heads",
        "kv_heads",
        "kv_copies",
        "width",
        "ulysses",
        "experts",
        "ends",
        "uneven",
        "schedule",
        "shard",
    }


def test_a_hint_holds_for_every_kind_of_layer():
    """24 and 16 heads in one model: 3 divides the first only, so the advice is the divisors of 8."""
    (found,) = judged(two_mixers(), {"tp": 3, "dp": 16})[:1]
    assert found.rule == "heads"
    assert "tp may be 1, 2, 4, 8 (8 GPUs share" in found.hint


layouts = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    cp=st.sampled_from([1, 2, 3, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 4, 8, 40]),
    dp=st.sampled_from([1, 2, 3, 8]),
    ep=st.sampled_from([1, 2, 3, 8, 64]),
    etp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2, 3]),
    sp=st.sampled_from([None, True, False]),
    cp_kind=st.sampled_from(CP_KINDS),
    ulysses=st.sampled_from([1, 2, 3, 8]),
    schedule=st.sampled_from([None, *SCHEDULES]),
    zero=st.integers(0, 3),
    shard=st.sampled_from([None, 2, 3]),
    micro_batch=st.sampled_from([1, 2, 3]),
    recompute=st.sampled_from([(), ("full",), *[(m,) for m in RECOMPUTE[1:3]]]),
    recompute_layers=st.integers(0, 2),
    first_layers=st.sampled_from([None, None, 0, 1, 5, 40]),
    last_layers=st.sampled_from([None, None, 0, 1, 5]),
)
workloads = st.builds(
    Workload,
    seq_len=st.sampled_from([4096, 2999, 4100]),
    global_batch=st.sampled_from([1, 6, 16, 48]),
    framework=st.sampled_from([MEGATRON, TITAN, DEEPSPEED, NANOTRON]),
    causal=st.booleans(),
)
MODELS = [dense(), dense(heads=28, kv=4), mixture(shared=1532), two_mixers(), recurrent()]


@settings(max_examples=100, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=8), workloads, st.sampled_from(MODELS))
def test_the_mask_of_many_layouts_is_the_check_of_each(rows, workload, model):
    """And every broken rule has a message, whatever else is broken; its offers keep the rule."""
    cluster = load_cluster("dgx-h100")
    masks = broken_rules(Layouts.of(rows), Question(model, cluster, workload, 16))
    for i, row in enumerate(rows):
        found = check(row, model, cluster, workload, 16)
        assert [v.rule for v in found] == [name for name, mask in masks.items() if mask[i]]
        for v in found:
            assert v.message
            assert v.hint
            for field, values in advised(v.hint):
                if field in Layout.model_fields:
                    for value in values:
                        changed = row.model_copy(update={field: value})
                        assert v.rule not in [w.rule for w in check(changed, model, cluster, workload, 16)], (v, field, value)


likely = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 3, 4]),
    dp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 1, 2]),
    cp_kind=st.sampled_from(CP_KINDS),
    micro_batch=st.sampled_from([1, 2, 3]),
    first_layers=st.sampled_from([None, None, 0, 1, 5]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(likely, st.builds(Workload, global_batch=st.sampled_from([16, 48])), st.sampled_from(MODELS))
def test_a_kept_layout_can_be_cut(layout, workload, model):
    """What the rules allow divides: heads, batch, sequence, experts, and no middle chunk is empty."""
    assume(not check(layout, model, load_cluster("dgx-h100"), workload))
    assert workload.global_batch % (layout.dp * layout.micro_batch) == 0
    assert workload.seq_len % layout.cp == 0
    for kind in model.kinds.values():
        if isinstance(kind.mixer, GroupedAttention):
            assert kind.mixer.heads % layout.tp == 0
        if isinstance(kind.mlp, MoeMlp):
            assert kind.mlp.experts % layout.ep == 0
            assert (layout.tp * layout.cp * layout.dp) % (layout.ep * layout.etp) == 0
    sizes = chunk_sizes(model.layer_count, layout.pp, layout.vpp, *layout.ends)
    assert sum(sizes) == model.layer_count
    assert min(sizes[1:-1], default=1) >= 1


# Cases that practitioners reported; the projects' issues are named.


def test_sixty_four_heads_do_not_go_on_three_gpus():
    """vllm pull request 52535: rule, reason, valid sizes and the alternative."""
    found = judged(dense(heads=64), {"tp": 3})[0]
    assert "tp may be 1, 2, 4, 8 (8 GPUs share" in found.hint
    assert found.hint.endswith("; to use more GPUs, raise pp or dp instead")


def test_a_hint_on_tp_offers_what_the_other_rules_allow_too():
    """Sixteen would suit the heads, but tp16 is wider than a node and is refused next; on an NVL72 rack it is offered."""
    for cluster, offered in (("dgx-h100", "1, 2, 4, 8 (8 GPUs"), ("gb200-nvl72", "1, 2, 4, 8, 16, 32, 64 (72 GPUs")):
        assert f"tp may be {offered} share" in judged(dense(heads=64, width=28672), {"tp": 12}, cluster=cluster)[0].hint


def test_seventy_one_heads_run_on_one_rank_of_a_node_of_eight():
    model = load_model("falcon-7b")
    found = {v.rule: v for v in judged(model, {"tp": 2})}
    assert "tp may be 1 (8 GPUs" in found["heads"].hint


def test_a_zigzag_ring_needs_a_multiple_of_twice_its_ranks():
    """EasyContext pull request 57: 2999 tokens on 4 ranks, 3000 is the next that works; all-gather is balanced as well."""
    for kind in ("zigzag", "allgather"):
        (found,) = judged(dense(), {"cp": 4, "cp_kind": kind}, seq_len=2999)
        assert "3,000" in found.hint
        assert judged(dense(), {"cp": 4, "cp_kind": kind}, seq_len=3000) == []
    assert judged(dense(), {"cp": 4, "cp_kind": "ring"}, seq_len=2996) == []
    assert judged(dense(), {"cp": 4}, seq_len=2996, causal=False) == []


def test_sixty_experts_on_eight_ranks():
    """torchtitan pull request 4258."""
    (found,) = judged(mixture(experts=60), {"dp": 8, "ep": 8})
    assert found.hint == "ep may be 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60"


def test_expert_parallelism_does_not_multiply_gpus():
    """piper pull request 32: tp1 pp1 cp1 dp8 ep8 is 8 GPUs."""
    layout = {"dp": 8, "ep": 8}
    assert Layout(**layout).gpus == 8
    assert Layouts.of(Layout(**layout)).gpus.tolist() == [8]
    assert judged(mixture(), layout, gpus=8) == []
    (found,) = judged(mixture(), layout, gpus=64)
    assert "ep and etp share these GPUs" in found.hint


def test_expert_tensor_parallelism_is_one_unless_set():
    """Megatron-Bridge issue 546: tp4 ep4 on 4 GPUs is a grid of 4 with etp 1; with etp = tp it would be 16."""
    assert Layout(tp=4, ep=4).etp == 1
    assert judged(mixture(), {"tp": 4, "ep": 4}, gpus=4) == []
    (found,) = judged(mixture(), {"tp": 4, "ep": 4, "etp": 4}, gpus=4)
    assert "etp4 x ep4 = 16 does not divide the 4 GPUs" in found.message


def test_too_few_micro_batches_for_virtual_stages():
    """NeMo Speech issue 14288: pp 6 with 3 micro-batches."""
    (found,) = judged(dense(layers=48), {"pp": 6, "vpp": 2}, global_batch=3)
    assert "at least 6; there are 3" in found.message
    assert "raise the global batch to 6, or pp may be 3, or use vpp=1" in found.hint


def test_copies_of_key_value_heads():
    """tp 16 on 8 key/value heads: Megatron-core copies them, torchtitan does not, and 16 is beyond an 8-GPU domain."""
    model = dense(heads=64)
    assert judged(model, {"tp": 16}, cluster="gb200-nvl72") == []
    assert [v.rule for v in judged(model, {"tp": 16, "zero": 3}, cluster="gb200-nvl72", framework=TITAN)] == ["kv_copies"]
    assert [v.rule for v in judged(model, {"tp": 16})] == ["scale_up"]


def test_two_key_value_heads_are_copied_over_eight_ulysses_ranks():
    """prime-rl pull request 3042: allowed, each K/V head on cp / kv = 4 ranks."""
    assert judged(dense(heads=16, kv=2), {"cp": 8, "cp_kind": "ulysses"}) == []


def test_layers_that_do_not_divide_get_uneven_stages():
    """ms-swift issues 5737 and 6476: 46 layers over 4 stages run, and 94 with 22 on the last are 24, 24, 24, 22."""
    assert judged(dense(layers=46), {"pp": 4}) == []
    assert sorted(chunk_sizes(46, 4, 1)) == [11, 11, 12, 12]
    assert judged(dense(layers=94), {"pp": 4, "last_layers": 22}) == []
    assert chunk_sizes(94, 4, 1, last=22) == [24, 24, 24, 22]


@pytest.mark.parametrize("layers", [43, 61, 78])
@pytest.mark.parametrize("pp", [4, 8, 16])
def test_layers_with_embedding_head_and_prediction_module_as_units(layers, pp):
    """Layouts over the units embedding, layers, prediction module and loss: at most one unit more than the mean, rounded up."""
    sizes = chunk_sizes(layers, pp, 1, tail=2)
    assert sum(sizes) == layers
    units = [sizes[0] + 1, *sizes[1:-1], sizes[-1] + 2]
    assert max(units) <= -(-(layers + 3) // pp) + 1
    assert min(sizes) >= 1


def test_llama_405b_fills_128_chunks_with_126_layers():
    """Llama 3 report, 3.3.2: one layer less on the first and last stage; with single-layer chunks these ends are empty."""
    assert judged(load_model("llama-3.1-405b"), {"tp": 8, "pp": 16, "vpp": 8}, global_batch=16) == []


def test_a_vocabulary_is_padded_and_never_a_reason_to_refuse():
    """vllm issue 31474: GLM-4.7's vocabulary, 96 heads, 6 GPUs: 151,552 % 6 = 4 is padded to 152,064, 512 rows more.

    GLM-4.7 itself has 8 key/value heads, which 6 neither divides nor is a multiple of: that is the only rule it breaks.
    """
    wide = {"hidden": 5120, "heads": 96, "width": 12288, "vocab": 151552}
    assert judged(dense(kv=6, **wide), {"tp": 6}, seq_len=4098) == []
    assert [v.rule for v in judged(dense(kv=8, **wide), {"tp": 6}, seq_len=4098)] == ["kv_heads"]
    assert padded_vocabulary(151552, 6, Workload()) == 152064


@pytest.mark.parametrize(("tp", "padded"), [(1, 50304), (2, 50432), (4, 50688), (8, 51200)])
def test_padding_depends_on_tensor_parallelism(tp, padded):
    assert padded_vocabulary(50257, tp, Workload()) == padded


def test_any_vocabulary_multiple_is_taken():
    """Megatron-LM's deepseek proxies: --make-vocab-size-divisible-by 3232."""
    assert padded_vocabulary(129280, 2, Workload(vocab_multiple=3232)) == 129280
    assert padded_vocabulary(129281, 2, Workload(vocab_multiple=3232)) == 129280 + 6464
    assert np.all(padded_vocabulary(32000, np.array([1, 2]), Workload(framework=TITAN)) == 32000)


@pytest.mark.parametrize(
    ("model", "workload", "words"),
    [
        (dense(), {"framework": NANOTRON}, ["nanotron does not train LoRA", "megatron-core, torchtitan, deepspeed"]),
        (dense(), {"optimizer": "muon"}, ["not priced with muon", "adamw, adamw-8bit, sgd"]),
        (mixture(), {"lora_modules": ("up", "down")}, ["no up, down that LoRA could adapt", "out, qkv"]),
    ],
)
def test_lora_needs_a_framework_an_optimizer_and_a_place(model, workload, words):
    found = check(Layout(dp=8), model, load_cluster("dgx-h100"), Workload(lora_rank=16, **workload), 8)
    assert [v.rule for v in found] == ["adapters"]
    assert all(word in found[0].message + found[0].hint for word in words)


def test_any_rank_goes_on_frameworks_that_keep_adapters_whole():
    assert not check(Layout(tp=8, zero=3), dense(), load_cluster("dgx-h100"), Workload(lora_rank=12, framework=TITAN), 8)


def test_two_frameworks_have_no_fused_dispatcher():
    for framework in (DEEPSPEED, NANOTRON):
        (found,) = judged(mixture(), {"dp": 8, "ep": 8}, framework=framework, moe_dispatcher="deepep")
        assert found.rule == "dispatcher"
        assert f"{framework} does not dispatch tokens with deepep" in found.message
    assert judged(dense(), {"dp": 8}, moe_dispatcher="deepep") == []
