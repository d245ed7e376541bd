"""Stages: they hold the whole model, and one stage of each distinct content decides as well as all of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate.counts import parameters
from parlay.estimate.estimate import estimate, price
from parlay.estimate.inflight import in_flight
from parlay.estimate.local import local_parameters, padded_vocabulary
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import Question, broken_rules
from parlay.layouts.split import BY_RULE, chunk_sizes
from parlay.layouts.vocabulary import SCHEDULES
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.schedules.build import build
from parlay.schedules.memory import held

MODELS = ["llama-3.2-3b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b", "llama-3.1-405b"]
V_SHAPED = ("zb-v", "dualpipev")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 4, 7, 16])
def test_stages_hold_every_layer_the_embedding_and_the_head(name, schedule, pp):
    model = load_model(name)
    vpp = 2 if schedule in ("interleaved", "bfs", *V_SHAPED) else 1
    if pp * vpp > model.layer_count:
        pytest.skip("more chunks than layers")
    copies = 2 if schedule == "dualpipe" else 1  # DualPipe keeps each chunk on two stages
    if copies == 2 and pp % 2:
        pytest.skip("DualPipe needs an even number of stages")
    s = stages_of(model, Layouts.of(Layout(pp=pp, vpp=vpp, schedule=schedule)), 64)
    assert s.exists.shape == (1, pp)
    names = model.layer_names()
    for kind in model.kinds:
        assert s.layers[kind].sum() == copies * names.count(kind)
    assert s.embedding.sum() == s.head.sum() == copies
    assert s.mtp.sum() == copies * model.mtp_layers
    assert np.array_equal(s.index[0], np.arange(pp))
    ends = {"embedding": {0, pp - 1} if copies == 2 else {0}, "head": {0} if schedule in V_SHAPED else {pp - 1}}
    assert set(np.flatnonzero(s.embedding[0])) == ends["embedding"]
    if copies == 1:
        assert set(np.flatnonzero(s.head[0])) == ends["head"]
    some = stages_of(model, Layouts.of(Layout(pp=pp, vpp=vpp, schedule=schedule)), 64, every=False)
    assert some.count.sum() == pp
    assert (some.layer_total * some.count).sum() == s.layer_total.sum()


def test_dense_first_layers_lie_on_the_first_stage():
    model = load_model("deepseek-v3")
    s = stages_of(model, Layouts.of(Layout(pp=16)), 64)
    (dense,) = [k for k, v in model.kinds.items() if v.mlp.kind == "dense"]
    assert s.layers[dense][0].tolist() == [3.0] + [0.0] * 15


def test_the_prediction_module_makes_the_last_stage_shorter():
    """DeepSeek-V3: 61 layers, embedding, one prediction module and head are 64 units over 16 or 8 stages."""
    model = load_model("deepseek-v3")
    for pp, sizes in ((16, [3, *[4] * 14, 2]), (8, [7, *[8] * 6, 6])):
        assert stages_of(model, Layouts.of(Layout(pp=pp)), 64).layer_total[0].tolist() == sizes


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(2, 32), st.integers(1, 8), st.integers(1, 96))
def test_micro_batches_in_flight_never_grow_along_the_pipeline(schedule, pp, vpp, m):
    """What lets the earliest of equal stages stand for the others, and what is held is never more than what is run."""
    if schedule == "dualpipe":
        pp += pp % 2
    v = vpp if schedule in ("interleaved", "bfs") else 2 if schedule in V_SHAPED else 1
    if schedule in ("interleaved", "dualpipe", "dualpipev"):
        m = max(m // pp, 2) * pp * (2 if schedule.startswith("dual") else 1)
    held = in_flight(SCHEDULES.index(schedule), pp, v, m, np.arange(pp))
    assert np.all(np.diff(held) <= 0)
    assert np.all(held >= 0.5)
    assert np.all(held <= m)


def test_interleaved_warm_up_of_megatron():
    """Megatron-LM issue 169: p 4, v 8, first rank: 34 chunks of warm-up, 35 in flight, 4.375 micro-batches, 9.375 % more."""
    held = in_flight(SCHEDULES.index("interleaved"), 4, 8, 64, 0)
    assert float(held) == 35 / 8 == 4.375
    assert float(held) / float(in_flight(SCHEDULES.index("1f1b"), 4, 1, 64, 0)) == 1.09375


def test_a_tied_table_stands_on_both_ends():
    """Megatron-LM issue 299: Llama-3.2-3B on two stages: 3,606,752,256 parameters in all, 394,002,432 more than the model."""
    model = load_model("llama-3.2-3b")
    layouts = Layouts.of([Layout(pp=2), Layout(pp=1)])
    local = local_parameters(model, Workload(), layouts, stages_of(model, layouts, 8))
    both, alone = local.dense.sum(axis=1)
    assert both == 3_606_752_256
    assert alone == parameters(model).total == 3_212_749_824
    assert both - alone == 394_002_432


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_ranks_hold_the_model_together(name, tp, pp, vpp, ep, shard_experts):
    """Parameters on one rank times the ranks that differ, less what every rank repeats, are the model's own."""
    model = load_model(name)
    moe = any(k.mlp.kind == "moe" for k in model.kinds.values())
    layout = Layout(tp=tp, pp=pp, vpp=vpp if pp > 1 else 1, dp=ep, ep=ep if moe and shard_experts else 1)
    layouts = Layouts.of([layout, layout.model_copy(update={"tp": 1, "ep": 1})])
    work = Workload(framework="torchtitan")  # pads nothing
    local = local_parameters(model, work, layouts, stages_of(model, layouts, 64))
    expert = local.expert.sum(axis=1) * layouts.ep * layouts.etp
    assert expert[0] == pytest.approx(expert[1], rel=1e-12)
    whole = (local.dense + local.expert).sum(axis=1)[1]
    copy = model.vocab * model.hidden if (model.tied_embeddings or model.mtp_layers) and pp > 1 else 0
    counted = parameters(model)
    assert whole == pytest.approx(counted.total - counted.vision + counted.mtp + copy, rel=1e-12)
    assert local.dense.sum(axis=1)[0] * tp >= local.dense.sum(axis=1)[1] * (1 - 1e-12)


def test_a_padded_table_is_cut_by_tensor_parallelism():
    model = load_model("llama-3.2-3b")
    layouts = Layouts.of([Layout(tp=8), Layout(tp=1)])
    local = local_parameters(model, Workload(vocab_multiple=1000), layouts, stages_of(model, layouts, 8))
    assert padded_vocabulary(model.vocab, np.array([8, 1]), Workload(vocab_multiple=1000)).tolist() == [136000, 129000]
    norms = (2 * 28 + 1) * 3072
    body = 3_212_749_824 - norms - 128256 * 3072
    assert local.dense[:, 0].tolist() == [body / 8 + norms + 136000 * 3072 / 8, body + norms + 129000 * 3072]


def grid(name, cluster, workload, gpus):
    """Return valid layouts of many shapes, explicit ends and every schedule of the framework among them."""
    model = load_model(name)
    schedules = {
        "megatron-core": ["1f1b", "interleaved"], "torchtitan": ["gpipe", "interleaved", "zb-v", "bfs"],
        "nanotron": ["1f1b", "gpipe"], "deepspeed": ["1f1b"], "hai-llm": ["1f1b", "dualpipe"],
    }[workload.framework]  # fmt: skip
    rows = []
    for schedule in schedules:
        for vpp in [1] if schedule in ("gpipe", "1f1b", "dualpipe") else [2] if schedule == "zb-v" else [2, 3]:
            mesh = np.meshgrid([1, 2, 8], [1, 2], [2, 4, 8, 16], [1, 8], [BY_RULE, 0, 3], [0, 1, 2], indexing="ij")
            tp, cp, pp, ep, first, zero = (x.ravel() for x in mesh)
            rows.append(
                Layouts.grid(
                    tp=tp, cp=cp, pp=pp, dp=np.maximum(gpus // (tp * cp * pp), 1), ep=ep, vpp=vpp, first_layers=first, zero=zero,
                    schedule=SCHEDULES.index(schedule), recompute_layers=0,
                )
            )  # fmt: skip
    kept = []
    for x in rows:
        bad = np.any(list(broken_rules(x, Question(model, cluster, workload, gpus)).values()), axis=0)
        if not bad.all():
            kept.append(x.take(~bad))
    return model, kept


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "nanotron", "deepspeed", "hai-llm"])
@pytest.mark.parametrize("name", MODELS)
def test_one_stage_of_each_content_decides_as_all_of_them(name, framework):
    cluster = load_cluster("dgx-h100")
    workload = Workload(global_batch=256, framework=framework, overlap_grad_reduce=True, overlap_param_gather=True)
    if framework != "megatron-core":
        workload = Workload(global_batch=256, framework=framework)
    model, blocks = grid(name, cluster, workload, 64)
    _, few = grid(name, cluster, workload, 16)  # some borders of stages leave the node, some do not
    rates = rates_for(cluster)
    seen = 0
    for layouts in [*blocks, *few]:
        some = price(model, cluster, workload, layouts, rates)
        every = price(model, cluster, workload, layouts, rates, every=True)
        np.testing.assert_allclose(some.memory.peak, every.memory.peak, rtol=1e-12)
        np.testing.assert_allclose(some.time.step, every.time.step, rtol=1e-12)
        np.testing.assert_allclose(some.time.bubble, every.time.bubble, rtol=1e-9, atol=1e-12)
        seen += len(layouts)
    assert seen >= 40


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize("pp", [4, 6, 8])
def test_unequal_chunks_of_the_dualpipes_are_in_flight_as_their_schedules_run_them(schedule, pp):
    model, m = load_model("deepseek-v3"), 8 * pp  # dense layers in front, expert layers behind, a heavy head
    layouts = Layouts.of(Layout(pp=pp, dp=1, schedule=schedule, vpp=2 if schedule == "dualpipev" else 1))
    stages = stages_of(model, layouts, m)
    made = build(schedule, pp, m)
    turns = 2 if schedule == "dualpipev" else 1
    edges = np.concatenate([[0], np.cumsum(chunk_sizes(model.layer_count, pp, turns, tail=1 + model.mtp_layers))])
    names = model.layer_names()
    for weights in ({"latent_dense": 1.0, "latent_experts": 0.0}, {"latent_dense": 2.5, "latent_experts": 1.0}):
        size = [sum(weights[name] for name in names[a:b]) for a, b in itertools.pairwise(edges)]
        run = held(made, size).peak
        ours = sum(w * stages.kept_layers[kind][0] for kind, w in weights.items()) * stages.in_flight[0]
        assert ours == pytest.approx(run, rel=1e-6)


def test_an_estimate_tells_the_layers_of_each_chunk():
    where, work = load_cluster("dgx-h100"), Workload(global_batch=64)
    cases = [
        ("llama-3.1-70b", {"pp": 4, "vpp": 3}, [[5, 7, 7], [7, 7, 7], [7, 7, 7], [7, 7, 5]]),
        ("llama-3.1-8b", {"pp": 4, "first_layers": 16, "last_layers": 0}, [[16], [8], [8], [0]]),
        ("llama-3.1-8b", {"dp": 8}, [[32]]),
    ]
    for name, layout, expected in cases:
        found = estimate(load_model(name), where, work, Layout(**layout))
        assert found.stage_layers == expected
        held = stages_of(found.model, Layouts.of(found.layout), 64)
        assert held.layer_total[0].tolist() == [sum(chunks) for chunks in expected]
