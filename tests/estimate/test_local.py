"""Parameters on one rank: what each kind of parallelism divides, and what every rank repeats."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.estimate.counts import layer_parts, parameters
from parlay.estimate.local import layer_on_rank, local_parameters, table_on_rank
from parlay.estimate.stages import stages_of
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

MODELS = ["llama-3.1-70b", "deepseek-v3", "mixtral-8x7b", "gemma-3-27b", "qwen3-next-80b-a3b", "gpt3-175b", "gpt-oss-20b"]


def on_rank(model, **layout):
    layouts = Layouts.of(Layout(**layout))
    return local_parameters(model, Workload(framework="torchtitan"), layouts, stages_of(model, layouts, 64))


def test_llama_70b_over_eight_ranks():
    """80 layers: q and o 2 x 8192^2, k and v 2 x 8192 x 1024, MLP 3 x 8192 x 28672, all cut; two norms and the last one not."""
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    tables = 2 * 128256 * 8192
    norms = (2 * 80 + 1) * 8192
    assert on_rank(load_model("llama-3.1-70b"), tp=8).dense[0, 0] == (80 * layer + tables) / 8 + norms


def test_key_value_heads_are_copied_beyond_their_number():
    """tp 16 on 8 heads: each rank holds one whole K and one whole V head of 128 x 8192, not half of each."""
    model = load_model("llama-3.1-70b")
    eight, sixteen = (on_rank(model, tp=t).dense[0, 0] for t in (8, 16))
    norms, kv = (2 * 80 + 1) * 8192, 80 * 2 * 128 * 8192
    assert eight - norms - kv == 2 * (sixteen - norms - kv)


def test_latent_attention_repeats_its_down_projections():
    """DeepSeek-V3: 7168 x (1536 + 512 + 64) and their norms on every rank."""
    model = load_model("deepseek-v3")
    kind = next(k for k in model.kinds.values() if k.mlp.kind == "dense")
    one, eight = (layer_on_rank(model, kind, Layouts.of(Layout(tp=t)))[0][0] for t in (1, 8))
    repeated = (8 * eight - one) / 7
    assert repeated == 7168 * (1536 + 512 + 64) + 1536 + 512 + 2 * 7168


@pytest.mark.parametrize(("ep", "etp", "parts"), [(1, 1, 1), (8, 1, 8), (4, 2, 8), (2, 4, 8), (8, 8, 64)])
def test_experts_divide_over_their_own_grid_and_not_over_tp(ep, etp, parts):
    model = load_model("mixtral-8x7b")
    experts = 32 * 8 * 3 * 4096 * 14336
    local = on_rank(model, tp=8, dp=8, ep=ep, etp=etp)
    assert local.expert[0, 0] == experts / parts
    assert np.array_equal(local.dense, on_rank(model, tp=8, dp=8).dense)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_a_rank_holds_at_least_its_share_and_at_most_the_whole(name, tp, ep, pp):
    model = load_model(name)
    ep = ep if any(k.mlp.kind == "moe" for k in model.kinds.values()) else 1
    one, cut = on_rank(model, pp=pp), on_rank(model, tp=tp, dp=ep, ep=ep, pp=pp)
    assert np.all(cut.dense <= one.dense)
    assert np.all(cut.dense * tp >= one.dense * (1 - 1e-9))
    assert np.allclose(cut.expert * ep, one.expert, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_holds_a_layers_parts(name):
    model = load_model(name)
    for kind in model.kinds.values():
        dense, expert = layer_on_rank(model, kind, Layouts.of(Layout()))
        assert dense[0] + expert[0] == sum(p.count for p in layer_parts(model, kind))


def test_a_learned_position_table_is_on_the_first_stage_alone_and_whole():
    model = load_model("gpt3-175b")
    assert model.position_embeddings > 0
    local = on_rank(model, tp=8, pp=2)
    table = table_on_rank(model, Workload(framework="torchtitan"), Layouts.of(Layout(tp=8)))[0]
    first, last = local.dense[0]
    final = 2 * model.hidden if model.tied_embeddings else 0
    assert first - last == pytest.approx(model.position_embeddings * model.hidden - final)
    assert table == 50264 * model.hidden / 8  # 50,257 rows, the largest shard of eight


def test_prediction_modules_are_on_the_last_stage():
    model = load_model("deepseek-v3")
    bare = model.model_copy(update={"mtp_layers": 0, "mtp_kind": None})
    layouts = Layouts.of(Layout(pp=4, last_layers=13))
    both = [local_parameters(m, Workload(), layouts, stages_of(m, layouts, 64)) for m in (model, bare)]
    more = [(a - b)[0] for a, b in zip((both[0].dense, both[0].expert), (both[1].dense, both[1].expert), strict=True)]
    assert np.all(more[0][:3] == 0)
    assert np.all(more[1][:3] == 0)
    module, table = 11_507_286_016 + 2 * 7168**2 + 3 * 7168, 129_280 * 7168
    assert more[0][3] + more[1][3] == pytest.approx(module + table, rel=1e-6)


def test_prediction_modules_share_a_table_that_is_on_their_stage():
    """On one stage the first table serves; a module that runs again brings no weights of its own."""
    model = load_model("deepseek-v3")
    once, twice, again = (
        model.model_copy(update={"mtp_layers": depth, "mtp_shared": shared})
        for depth, shared in ((1, False), (2, False), (2, True))
    )
    layouts = Layouts.of(Layout())
    held = [local_parameters(m, Workload(), layouts, stages_of(m, layouts, 64)) for m in (once, twice, again)]
    total = [float((x.dense + x.expert)[0, 0]) for x in held]
    assert total[0] == total[2] == pytest.approx(parameters(once).total + parameters(once).mtp, rel=1e-12)
    assert total[1] - total[0] == pytest.approx(parameters(once).mtp, rel=1e-12)
    assert parameters(again).mtp == parameters(once).mtp
