"""What holds for every layout: sums, order, shapes, and one row priced alone or among many."""

import importlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate.memory import memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
    NoMixer,
    NoMlp,
    Run,
)

CLUSTER = load_cluster("dgx-h100")
LATENT = LatentAttention(heads=16, q_rank=384, kv_rank=128, nope_dim=64, rope_dim=32, v_dim=64)
GROUPED = GroupedAttention(heads=16, kv_heads=4, head_dim=64, qk_norm="head", output_gate=True)
EXPERTS = MoeMlp(experts=16, top_k=4, width=512, shared_width=512)
KINDS = {
    "dense": LayerKind(mixer=LATENT, mlp=DenseMlp(width=4096)),
    "moe": LayerKind(mixer=LATENT, mlp=EXPERTS),
    "grouped": LayerKind(mixer=GROUPED, mlp=DenseMlp(width=4096, gated=False), norms=4),
    "parallel": LayerKind(mixer=GROUPED, mlp=DenseMlp(width=4096), norms=1),
    "latent moe": LayerKind(mixer=NoMixer(), mlp=MoeMlp(experts=16, top_k=4, width=512, latent_width=256), norms=1),
    "mamba2": LayerKind(mixer=Mamba2(heads=32, head_dim=64, groups=8, state=64), mlp=NoMlp(), norms=1),
    "mamba1": LayerKind(mixer=Mamba1(inner=2048, state=16, dt_rank=64), mlp=DenseMlp(width=4096)),
    "delta": LayerKind(mixer=GatedDelta(key_heads=8, value_heads=16, key_dim=64, value_dim=64), mlp=DenseMlp(width=4096)),
}
HYBRID = ModelSpec(
    id="m", name="m", hidden=1024, vocab=32000, kinds=KINDS, layers=(Run(kinds=tuple(KINDS), count=16),), mtp_layers=1,
    mtp_kind="moe",
)  # fmt: skip
DENSE = ModelSpec(
    id="d", name="d", hidden=1024, vocab=32000, layers=(Run(kinds=("grouped",), count=16),), kinds={"grouped": KINDS["grouped"]}
)  # fmt: skip


def priced(model, layouts, *, every=True, cluster=CLUSTER, **workload):
    work = Workload(**{"seq_len": 2048, "global_batch": 64} | workload)
    return memory(model, cluster, work, layouts, stages_of(model, layouts, work.global_batch, every=every))


def one(model, layout, **workload):
    return priced(model, Layouts.of(Layout(**layout)), **workload)


LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "cp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 4, 16]),
        "zero": st.integers(0, 3),
        "micro_batch": st.sampled_from([1, 2]),
        "cp_kind": st.sampled_from(["ring", "zigzag", "allgather", "ulysses"]),
        "recompute": st.sampled_from(
            [(), ("core_attention", "norm"), ("mla_up", "moe"), ("mlp", "mlp_activation"), ("full",), ("selective_ops",)]
        ),
        "recompute_layers": st.sampled_from([0, 1]),
        "offload_optimizer": st.sampled_from([0.0, 0.5]),
        "offload_activations": st.sampled_from([0.0, 0.5]),
        "tp_overlap": st.booleans(),
    }
)
WORK = st.fixed_dictionaries(
    {
        "framework": st.sampled_from(["megatron-core", "torchtitan", "deepspeed", "nanotron", "hai-llm"]),
        "precision": st.sampled_from(["bf16", "fp32", "fp8", "mxfp8"]),
        "optimizer": st.sampled_from(["adamw", "adamw-8bit", "adafactor", "muon", "sgd"]),
        "flash_attention": st.booleans(),
        "cross_entropy": st.sampled_from([None, "unfused", "fused", "te", "chunked"]),
        "dropout": st.sampled_from([0.0, 0.1]),
        "compiled": st.sampled_from([None, True]),
    }
)


@settings(max_examples=60, deadline=None)
@given(layout=LAYOUTS, work=WORK, model=st.sampled_from([HYBRID, DENSE]))
def test_every_term_is_the_sum_of_its_parts(layout, work, model):
    held = one(model, layout, **work)
    for stage in range(layout["pp"]):
        for term in held.tree.at(0, stage).walk():
            assert np.isfinite(term.value)
            assert term.value >= -1e-3
            if term.parts:
                assert sum(p.value for p in term.parts) == pytest.approx(term.value, rel=1e-9, abs=1e-3), term.key
    assert held.tree.value[0].tolist() == held.total[0].tolist()


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(LAYOUTS, min_size=2, max_size=5), work=WORK)
def test_a_row_alone_and_among_many_is_the_same(rows, work):
    many = priced(HYBRID, Layouts.of([Layout(**r) for r in rows]), **work)
    for i, row in enumerate(rows):
        alone = one(HYBRID, row, **work)
        width = row["pp"]
        assert many.total[i, :width] == pytest.approx(alone.total[0])
        assert (many.total[i, width:] == 0).all()


@settings(max_examples=30, deadline=None)
@given(layout=LAYOUTS, work=WORK)
def test_the_representative_stages_hold_the_peak(layout, work):
    layouts = Layouts.of(Layout(**layout))
    whole, some = (priced(DENSE, layouts, every=e, **work) for e in (True, False))
    assert some.peak == pytest.approx(whole.peak)


@settings(max_examples=30, deadline=None)
@given(layout=LAYOUTS)
def test_recompute_never_keeps_more(layout):
    plain = one(HYBRID, layout | {"recompute": ()}).tree.find("memory.activations").value
    for modules in (("norm",), ("mla_up", "mlp"), ("moe",), ("full",)):
        again = one(HYBRID, layout | {"recompute": modules}).tree.find("memory.activations").value
        assert (again <= plain + 1e-3).all()


def test_zero_stages_shard_more_and_more():
    held = [one(DENSE, {"dp": 8, "zero": z}, gradient_dtype="fp32").static[0, 0] for z in range(4)]
    assert held == sorted(held, reverse=True)
    assert held[0] / 18 == pytest.approx(held[1] / (6 + 12 / 8), rel=1e-9)
    assert held[3] == pytest.approx(held[0] / 8)


def test_a_shard_of_fewer_ranks_is_hsdp():
    wide, narrow, eight = (
        one(DENSE, layout, framework="torchtitan").static[0, 0]
        for layout in ({"dp": 64, "zero": 3}, {"dp": 64, "zero": 3, "shard": 8}, {"dp": 8, "zero": 3})
    )
    assert narrow == eight == pytest.approx(8 * wide)


def test_experts_shard_over_their_own_ranks():
    """16 ranks, ep 8: expert state over two copies, the rest over sixteen."""
    held = one(HYBRID, {"dp": 16, "ep": 8}).tree
    dense, expert = (held.find(f"memory.optimizer.{w}.moments").inputs["shards"] for w in ("dense", "expert"))
    assert (dense.item(), expert.item()) == (16, 2)


def test_low_precision_weights():
    """Hopper keeps two quantised copies of linear weights beside bf16; with fp8 weights alone the bf16 ones go."""
    plain, beside, alone = (
        one(DENSE, {"dp": 8}, **w).tree.find("memory.weights").value[0, 0]
        for w in ({}, {"precision": "fp8"}, {"precision": "fp8", "fp8_weights": True})
    )
    linear = 16 * (1024 * (2 * 1024 + 512) + 1024 * 1024 + 2 * 1024 * 4096)
    assert beside - plain == 2 * linear
    assert plain == pytest.approx(alone)  # two copies of one byte


def test_optimizers_in_order_of_their_state():
    held = {
        o: one(DENSE, {}, optimizer=o).tree.find("memory.optimizer").value[0, 0]
        for o in ("adamw", "muon", "sgd", "adamw-8bit", "adafactor")
    }
    assert list(held) == sorted(held, key=held.__getitem__, reverse=True)


def test_offload_moves_its_share():
    plain, half = (one(DENSE, {"dp": 4, "offload_optimizer": s}).tree.find("memory.optimizer").value[0, 0] for s in (0.0, 0.5))
    assert half == plain / 2
    kept, moved = (
        one(DENSE, {"dp": 4, "offload_activations": s}).tree.find("memory.activations").value[0, 0] for s in (0.0, 1.0)
    )
    assert moved == pytest.approx(kept * 2 / 16)  # two layers on their way


def test_the_total_is_its_parts_where_less_than_a_micro_batch_is_left():
    """A wide table makes the embedding's backward pass the peak, when the one micro-batch that is left is partly on the host."""
    wide = DENSE.model_copy(update={"vocab": 8 * DENSE.vocab})
    held = one(wide, {"pp": 4, "offload_activations": 1.0})
    assert held.events[held.event[0, 0]] == "backward pass of the embedding"
    assert sum(part.value for part in held.tree.parts)[0] == pytest.approx(held.total[0])
    assert held.tree.find("memory.allocated").value[0] == pytest.approx(held.allocated[0])


def test_overlapped_experts_keep_one_more_layer():
    """A forward layer beside a whole micro-batch whose backward pass frees as much; never more than there are."""
    plain, paired, alone = (
        one(HYBRID, {"dp": 8, "ep": 8, "ep_overlap": o}, global_batch=b).tree.find("memory.activations").value[0, 0]
        for o, b in ((False, 64), (True, 64), (True, 8))
    )
    assert paired == pytest.approx(plain * (1 + 1 / HYBRID.layer_count))
    assert alone == plain


def test_key_value_heads_are_copied_beyond_their_number():
    four, eight = (
        one(DENSE, {"tp": t}, framework_date="2025-01-01").tree.find("memory.activations.grouped").parts for t in (4, 8)
    )
    kv = [next(p for p in parts if p.label == "queries, keys, values").value[0, 0] for parts in (four, eight)]
    token = 16 * 2048 * 2 * 64
    assert kv == [token * (16 / 4 + 2 * 1), token * (16 / 8 + 2 * 1)]


def test_every_formula_named_exists_and_static_terms_follow_from_their_inputs():
    held = one(HYBRID, {"tp": 2, "pp": 2, "dp": 8, "ep": 4, "zero": 1}, precision="fp8").tree.at(0, 1)
    for term in held.walk():
        if term.formula:
            room, name = term.formula.split(".")
            formula = getattr(importlib.import_module(f"parlay.formulas.{room}"), name)
            if term.key.startswith("memory.static") or term.key.split(".")[1] in ("weights", "gradients", "optimizer"):
                assert float(formula(**term.inputs)) == pytest.approx(term.value), term.key


def test_inputs_of_a_kept_tensor_belong_to_its_own_layout():
    rows = [Layout(tp=t, dp=2) for t in (1, 2, 4, 2)]
    held = priced(DENSE, Layouts.of(rows)).tree
    for i, row in enumerate(rows):
        term = next(t for t in held.at(i, 0).walk() if t.label == "queries, keys, values")
        assert term.inputs["tensor"] == row.tp


def test_the_three_meanings_are_kept_apart():
    held = one(DENSE, {"dp": 8})
    assert held.allocated < held.reserved < held.total
    assert held.reserved[0, 0] / held.allocated[0, 0] == pytest.approx(1.038)
    assert held.limit_bytes == CLUSTER.device.memory.allocatable.value
    assert held.fits.tolist() == [True]


def test_assumptions_are_said():
    said = " | ".join(one(HYBRID, {"dp": 8}).assumptions)
    for words in ("gradients accumulate in fp32", "dropless", "allocator reserves 3.8%", "context"):
        assert words in said


def test_a_hundred_thousand_layouts_take_well_under_a_second():
    n = 100_000
    draw = np.random.default_rng(0)
    layouts = Layouts.grid(
        tp=2 ** draw.integers(0, 4, n), cp=2 ** draw.integers(0, 3, n),
        pp=2 ** draw.integers(0, 3, n), dp=2 ** draw.integers(3, 8, n),
        micro_batch=2 ** draw.integers(0, 3, n), recompute=512 * draw.integers(0, 2, n), zero=draw.integers(0, 4, n),
    )  # fmt: skip
    work = Workload(seq_len=2048, global_batch=4096)
    stages = stages_of(DENSE, layouts, work.global_batch, every=False)
    memory(DENSE, CLUSTER, work, layouts, stages)
    start = time.process_time()
    held = memory(DENSE, CLUSTER, work, layouts, stages)
    assert time.process_time() - start < 1.0  # 0.15 s measured; the margin is for slow machines
    assert held.total.shape == stages.index.shape
