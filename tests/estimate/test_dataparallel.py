"""The end of a step and ZeRO-3's traffic inside it: what moves, over which group, and how much of it shows."""

import numpy as np
import pytest

from parlay.estimate.estimate import price
from parlay.estimate.placement import axis_group, axis_strides, data_groups
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.rates.interface import Group

CLUSTER = load_cluster("dgx-h100")
RATES = rates_for(CLUSTER)
LLAMA_70B, LLAMA_8B, V3, MIXTRAL = (load_model(name) for name in ("llama-3.1-70b", "llama-3.1-8b", "deepseek-v3", "mixtral-8x7b"))


def data(model, layout, **workload):
    work = Workload(**({"seq_len": 4096, "global_batch": 256} | workload))
    return price(model, CLUSTER, work, Layouts.of(Layout(**layout)), RATES, every=True).time.data


def moved(model, layout, **workload):
    found = data(model, layout, **workload)
    return found.exposed[0] + found.hidden[0]


def test_strides_follow_the_order_of_the_axes():
    x = Layouts.of(Layout(tp=8, cp=2, dp=4, pp=16))
    assert {k: v[0] for k, v in axis_strides(x).items()} == {"tp": 1, "cp": 8, "dp": 16, "pp": 64}
    y = Layouts.of(Layout(tp=8, cp=2, dp=4, pp=16, order=("tp", "pp", "cp", "dp")))
    assert {k: v[0] for k, v in axis_strides(y).items()} == {"tp": 1, "pp": 8, "cp": 128, "dp": 256}


def test_layouts_of_different_orders_stand_beside_each_other():
    rows = [Layout(tp=8, cp=2, dp=4, pp=16), Layout(tp=8, cp=2, dp=4, pp=16, order=("tp", "cp", "pp", "dp"))]
    strides = axis_strides(Layouts.of(rows))
    assert strides["pp"].tolist() == [64, 16]
    assert strides["dp"].tolist() == [16, 256]
    assert strides["cp"].tolist() == [8, 8]


@pytest.mark.parametrize(
    ("layout", "dense", "expert"),
    [
        # Megatron's --use-tp-pp-dp-mapping: the stages lie between the copies, of experts as well.
        ({"tp": 2, "pp": 2, "dp": 4, "ep": 2, "order": ("tp", "cp", "pp", "dp")}, (4, 2), (4, 2)),
        ({"tp": 2, "pp": 4, "dp": 4, "ep": 2, "order": ("tp", "cp", "pp", "dp")}, (4, 1), (4, 1)),
        ({"dp": 8}, (8, 8), (8, 8)),
        ({"dp": 64}, (64, 8), (64, 8)),
        ({"tp": 8, "dp": 8}, (8, 1), (64, 8)),
        ({"tp": 2, "cp": 2, "dp": 16}, (32, 4), (64, 8)),
        ({"dp": 64, "ep": 8}, (64, 8), (8, 1)),
        ({"dp": 64, "ep": 4}, (64, 8), (16, 2)),
        # DualPipe holds every stage twice, at opposite places of the pipeline.
        ({"pp": 4, "dp": 64, "ep": 8, "schedule": "dualpipe"}, (128, 8), (16, 1)),
        ({"pp": 4, "dp": 64, "ep": 64, "schedule": "dualpipe"}, (128, 8), (2, 1)),
        ({"tp": 4, "dp": 16, "ep": 8, "etp": 4}, (16, 2), (2, 1)),
        ({"pp": 8, "dp": 64, "ep": 64}, (64, 8), (1, 1)),
    ],
)
def test_gradients_reduce_over_the_ranks_that_hold_the_same(layout, dense, expert):
    """(ranks, of them in one domain of 8) of the dense and of the experts' groups."""
    groups = data_groups(Layouts.of(Layout(**layout)), 8.0)
    assert [(int(g.size[0]), int(g.local[0])) for g in groups] == [dense, expert]


def test_context_parallel_ranks_reduce_gradients_with_the_others():
    assert moved(LLAMA_70B, {"tp": 8, "cp": 4, "dp": 2}) == pytest.approx(moved(LLAMA_70B, {"tp": 8, "dp": 8}), rel=1e-6)
    group = axis_group(Layouts.of(Layout(tp=2, cp=4, dp=2)), "cp", 8.0)
    assert (group.size[0], group.local[0]) == (4, 4)


def test_an_unsharded_optimizer_reduces_everything_everywhere_and_gathers_nothing():
    found = data(LLAMA_70B, {"tp": 8, "dp": 8, "zero": 0})
    reduce, gather = (t.value[0] for t in found.explain()[:2])
    assert gather == 0
    each = float(RATES.collective("all_reduce", 4 * 70.55e9 / 8, Group.of(8.0, 8.0, 8.0)).seconds)
    assert reduce == pytest.approx(each, rel=0.02)


def test_a_sharded_optimizer_scatters_gradients_and_gathers_weights():
    reduce, gather = (t.value[0] for t in data(LLAMA_70B, {"tp": 8, "dp": 8}).explain()[:2])
    group = Group.of(8.0, 8.0, 8.0)
    assert reduce == pytest.approx(float(RATES.collective("reduce_scatter", 4 * 70.55e9 / 8, group).seconds), rel=0.02)
    assert gather == pytest.approx(float(RATES.collective("all_gather", 2 * 70.55e9 / 8, group).seconds), rel=0.02)
    half = [t.value[0] for t in data(LLAMA_70B, {"tp": 8, "dp": 8}, gradient_dtype="bf16").explain()]
    assert half[0] == pytest.approx(reduce / 2, rel=0.02)
    assert half[1] == gather


def test_sharded_gradients_are_reduced_every_micro_batch():
    one, two = (moved(LLAMA_70B, {"dp": 64, "zero": z}, framework="deepspeed") for z in (1, 2))
    m = 256 / 64
    assert two > (m - 1) * one / 2


def test_experts_with_one_copy_reduce_nothing():
    """An ep of the whole stage leaves one copy of each expert: only the dense part moves."""
    alone = moved(MIXTRAL, {"dp": 8, "ep": 8})
    copies = moved(MIXTRAL, {"dp": 8, "ep": 1})
    dense = 1.6e9 * (4 + 2)  # bytes of the attention, norms, table and head
    assert alone < 0.15 * copies
    assert alone > 0.5 * dense / 450e9


@pytest.mark.parametrize("layout", [{"dp": 64}, {"dp": 64, "shard": 8}, {"tp": 8, "dp": 8}, {"pp": 4, "dp": 16}])
@pytest.mark.parametrize("reshard", [None, True, False])
def test_fully_sharded_traffic_is_all_counted(layout, reshard):
    """Exposed and hidden together are the same with any compute beside: a longer sequence hides more of the same traffic."""
    work = {"framework": "torchtitan", "reshard_after_forward": reshard, "global_batch": 64}
    short, long = (data(LLAMA_70B, layout | {"zero": 3}, seq_len=s, **work) for s in (512, 16384))
    assert short.exposed[0] > long.exposed[0] > 0
    assert short.exposed[0] + short.hidden[0] == pytest.approx(long.exposed[0] + long.hidden[0], rel=0.05)


def test_weights_that_stay_gathered_from_forward_to_backward_move_once_less():
    """bf16 weights twice and fp32 gradients once a micro-batch, or the weights once: 6 of 8 bytes."""
    free, kept = (moved(LLAMA_70B, {"dp": 64, "zero": 3}, framework="torchtitan", reshard_after_forward=x) for x in (True, False))
    assert kept / free == pytest.approx(6 / 8, rel=0.03)


def test_a_pipeline_gathers_and_reduces_once_a_step():
    """torchtitan's default: the weights of a stage stay gathered, its gradients are reduced after the last micro-batch."""
    few, many = (moved(LLAMA_70B, {"pp": 4, "dp": 16, "zero": 3}, framework="torchtitan", global_batch=b) for b in (64, 256))
    assert many == pytest.approx(few)
    alone = [moved(LLAMA_70B, {"dp": 64, "zero": 3}, framework="torchtitan", global_batch=b) for b in (64, 256)]
    assert alone[1] == pytest.approx(4 * alone[0])


def test_the_optimizer_step_is_shared_by_the_ranks_that_shard_it():
    whole, eighth = (data(LLAMA_70B, {"tp": 8, "dp": 8, "zero": z}).optimizer for z in (0, 1))
    assert whole.inputs["parameters_owned"][0] == pytest.approx(8 * eighth.inputs["parameters_owned"][0], rel=0.01)
    assert whole.value[0] > 6 * eighth.value[0]


def test_stages_that_finish_early_hide_their_reduction_in_the_drain():
    given = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    shown = [data(LLAMA_70B, {"tp": 8, "pp": p, "dp": 8}, **given).exposed[0] for p in (1, 4)]
    assert shown[1] < shown[0]
    assert np.isfinite(shown).all()


def copies(framework, date=None, model=LLAMA_70B, layout=None, **workload):
    """Bytes that data-parallel copies move, from their seconds at the stream's own rate."""
    found = data(model, {"dp": 64, "zero": 3} | (layout or {}), framework=framework, framework_date=date, **workload)
    return float(np.atleast_1d(found.explain()[2].value)[0])


def test_shard_copies_are_what_each_framework_moves_around_its_transfers():
    """FSDP2: 4 bytes a parameter out of each of two gatherings, 2 + 4 into a reduction in fp32; FSDP1: 4 + 6 + 8 around it."""
    micro_batches = 256 / 64
    parameters = 70_553_706_496
    W = RATES.stream(1e12, "copy").seconds / 1e12
    fsdp2, fsdp1, stage3 = copies("torchtitan"), copies("torchtitan", "2023-10-31"), copies("deepspeed")
    assert fsdp2 == pytest.approx(14 * parameters * micro_batches * W, rel=1e-3)
    assert fsdp1 == pytest.approx(18 * parameters * micro_batches * W, rel=1e-3)
    assert stage3 == pytest.approx(20 * parameters * micro_batches * W, rel=1e-3)
    assert copies("megatron-core") == 0
    assert copies("torchtitan", shards_in_place=True) == 0


def test_a_pipeline_copies_once_a_step_and_gathers_once():
    """With stages the weights stay gathered and gradients are reduced once: no micro-batches, one gathering."""
    parameters = 70_553_706_496 / 4
    W = RATES.stream(1e12, "copy").seconds / 1e12
    largest = copies("torchtitan", layout={"dp": 16, "pp": 4})
    assert largest == pytest.approx(10 * parameters * W, rel=0.15)  # the ends hold the vocabulary as well


@pytest.mark.parametrize(("framework", "zero", "bytes_each"), [
    ("megatron-core", 0, 2 * 4), ("megatron-core", 1, 2 * 4),  # divided in place, in fp32
    ("deepspeed", 0, 6 * 2), ("deepspeed", 1, 4 * 2),  # flattened, divided and copied back; copied into a bucket and divided
    ("nanotron", 1, 0),
])  # fmt: skip
def test_gradients_are_gone_over_around_a_plain_reduction(framework, zero, bytes_each):
    W = RATES.stream(1e12, "copy").seconds / 1e12
    layout = {"tp": 8, "dp": 8, "zero": zero}
    assert copies(framework, layout=layout) == pytest.approx(bytes_each * 70_553_706_496 / 8 * W, rel=0.01)
    assert copies(framework, layout={"tp": 8, "dp": 1, "zero": zero}) == 0


def test_a_shard_of_one_rank_copies_nothing():
    assert copies("torchtitan", layout={"tp": 8, "dp": 1}) == 0
    assert copies("deepspeed", layout={"tp": 8, "dp": 1}) == 0


def test_fp32_sends_whole_weights_and_gradients():
    """Twice the bytes of bf16, in gathering, reduction and the copies around them."""
    for framework, stage in (("megatron-core", 1), ("deepspeed", 1), ("torchtitan", 3)):
        narrow, wide = (
            {t.key: t for t in data(LLAMA_8B, {"dp": 16, "zero": stage}, framework=framework, precision=p).explain()}
            for p in ("bf16", "fp32")
        )
        gathered = (x["step.exposed.dp_gather"].inputs["dense_bytes"][0] for x in (wide, narrow))
        assert next(gathered) == 2 * next(gathered)
        if framework == "deepspeed":
            reduced = (x["step.exposed.dp_reduce"].inputs["dense_bytes"][0] for x in (wide, narrow))
            assert next(reduced) == 2 * next(reduced)


def test_megatron_reduces_at_stage_2_as_at_stage_3_and_gathers_less():
    plain, two, three = (data(LLAMA_8B, {"tp": 4, "dp": 16, "zero": z}) for z in (1, 2, 3))
    assert two.explain()[2].value[0] == 0  # nothing moves around it
    assert two.exposed[0] + two.hidden[0] < three.exposed[0] + three.hidden[0] + plain.exposed[0]
    over_stages = data(LLAMA_8B, {"tp": 2, "pp": 2, "dp": 8, "zero": 3})
    once = data(LLAMA_8B, {"tp": 2, "pp": 2, "dp": 8, "zero": 3}, framework="torchtitan")
    assert over_stages.exposed[0] + over_stages.hidden[0] > 8 * (once.exposed[0] + once.hidden[0])  # 32 micro-batches, not one


@pytest.mark.parametrize(("shard", "inside", "copies"), [(4, 4, (4, 2)), (8, 8, (2, 1)), (2, 2, (8, 4))])
def test_copies_of_an_hsdp_shard_reduce_over_the_links_between_them(shard, inside, copies):
    """16 ranks on two nodes of 8: shards of 4 have two copies on each node, so half of their all-reduce stays on it."""
    layout = {"dp": 16, "zero": 3, "shard": shard}
    layers, micro_batches = 80, 256 // 16
    each = 70.55e9 / layers
    inner, outer = Group(np.float64(shard), np.float64(inside)), Group(*(np.float64(c) for c in copies))
    gather = float(RATES.collective("all_gather", 2 * each, inner).seconds)
    scatter = float(RATES.collective("reduce_scatter", 4 * each, inner).seconds)
    again = float(RATES.collective("all_reduce", 4 * each / shard, outer).seconds)
    expected = layers * micro_batches * (2 * gather + scatter + again)
    assert moved(LLAMA_70B, layout, framework="torchtitan", shards_in_place=True) == pytest.approx(expected, rel=0.03)


def test_experts_are_copied_with_the_rest():
    """Each of 8 expert ranks has 8 copies on 64 GPUs: a shard of 8 keeps each whole, so nothing of them is gathered."""
    whole, hybrid = (data(MIXTRAL, {"dp": 64, "ep": 8, "zero": 3, "shard": s}, framework="torchtitan") for s in (64, 8))
    assert hybrid.explain()[1].value[0] + hybrid.hidden[0] < 0.7 * (whole.explain()[1].value[0] + whole.hidden[0])


def test_layouts_that_differ_in_what_a_step_moves_are_priced_as_each_alone():
    """Micro-batches are priced once for all of these; state, its traffic and its copies to the host are not."""
    kinds = [
        {"zero": z, "offload_optimizer": o, "shard": s} for z, s in ((0, 16), (1, 16), (3, 16), (3, 4)) for o in (0.0, 0.5, 1.0)
    ]
    rows = [Layout(dp=16, **kind) for kind in kinds] + [
        Layout(tp=2, pp=2, dp=4, order=order) for order in (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
    ]
    work = Workload(seq_len=4096, global_batch=256, framework="torchtitan")
    together = price(LLAMA_70B, CLUSTER, work, Layouts.of(rows), RATES, every=True)
    alone = [price(LLAMA_70B, CLUSTER, work, Layouts.of(row), RATES, every=True) for row in rows]
    np.testing.assert_allclose(together.time.step, [a.time.step[0] for a in alone], rtol=1e-12)
    np.testing.assert_allclose(together.memory.peak, [a.memory.peak[0] for a in alone], rtol=1e-12)
    assert len(set(together.time.step)) == len(rows)


def test_the_two_copies_of_a_dualpipe_stage_share_the_optimizer_step():
    """A rank holds two stages and updates half of each: no more than the larger one under 1F1B, where two middle ones are alike."""
    layout = {"pp": 4, "dp": 16, "ep": 8}
    both, one = (data(V3, layout | {"schedule": s}, framework="hai-llm", global_batch=512) for s in ("dualpipe", "1f1b"))
    owned = [float(d.optimizer.inputs["parameters_owned"][0]) for d in (both, one)]
    assert owned[0] == pytest.approx(owned[1], rel=1e-9)


def test_nothing_is_hidden_where_nothing_overlaps():
    assert data(LLAMA_70B, {"tp": 8, "pp": 2, "dp": 4}).hidden[0] == 0.0
