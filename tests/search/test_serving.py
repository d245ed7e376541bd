"""What can be served: cache sizes as published, room that an engine reported, and what every split must keep."""

import itertools
import json

import pytest

from parlay.cli.main import main
from parlay.estimate.counts import kv_bytes, parameters, state_bytes
from parlay.estimate.memory_buffers import CONTEXT_BYTES
from parlay.hardware.load import load_cluster
from parlay.models.load import load_model
from parlay.search.ladder import family
from parlay.search.serving import UTILIZATION, activation_bytes, batch_tokens, layer_cache_bytes, serve, splits

H100, A100 = load_cluster("dgx-h100"), load_cluster("dgx-a100-40gb")


def split_of(found, tp, pp, ep=1):
    return next(s for s in found.splits if (s.tp, s.pp, s.ep) == (tp, pp, ep))


@pytest.mark.parametrize(
    ("name", "context"), [("llama-3.1-8b", 8192), ("gpt-oss-20b", 8192), ("gemma-3-27b", 32768), ("deepseek-v3", 4096)]
)
def test_the_cache_of_all_layers_is_the_models(name, context):
    """GQA, windows in some layers, MLA: layer by layer the same as counted for the whole model."""
    model = load_model(name)
    each = sum(layer_cache_bytes(model.kinds[n], context, 1, 2.0) for n in model.layer_names())
    assert each == pytest.approx(kv_bytes(model, context), rel=1e-12)


def test_llama_8b_takes_128_kib_a_token_and_70_b_320():
    for name, kib in (("llama-3.1-8b", 128), ("llama-3.1-70b", 320)):
        assert split_of(serve(H100, 8, 4096, model=load_model(name)), 1, 1).token_bytes == kib * 1024


def test_latent_cache_is_not_cut_by_tensor_parallelism():
    found = serve(load_cluster("dgx-h200"), 16, 8192, model=load_model("deepseek-v3"))
    assert split_of(found, 8, 1, 16).token_bytes == split_of(found, 1, 1, 16).token_bytes == 61 * 576 * 2
    grouped = serve(H100, 8, 8192, model=load_model("llama-3.1-70b"))
    assert split_of(grouped, 8, 1).token_bytes == split_of(grouped, 1, 1).token_bytes / 8


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("llama-3.1-70b", "dgx-h100"), ("mixtral-8x7b", "dgx-h100"), ("gpt-oss-20b", "dgx-h100"), ("deepseek-v3", "dgx-h200")],
)
def test_what_fits_fits_and_one_more_does_not(name, cluster):
    model, context = load_model(name), 8192
    found = serve(load_cluster(cluster), 16, context, model=model)
    budget = UTILIZATION * found.limit_bytes
    fitting = [s for s in found.splits if s.batch]
    assert fitting
    for s in fitting:
        assert s.weight_bytes + s.activation_bytes + s.batch * s.token_bytes * context < budget
        assert s.cache_bytes == pytest.approx(s.batch * s.token_bytes * context)
        assert s.longest_context is None or s.longest_context >= context
        assert s.alone_s <= s.full_s
        assert s.copies * s.tp * s.pp == 16
    for s in found.splits:
        if not s.batch:
            assert s.weight_bytes + s.activation_bytes + s.token_bytes * context + 0.75e9 > budget


def test_wider_tensor_parallelism_serves_more_and_faster():
    found = serve(H100, 8, 8192, model=load_model("llama-3.1-8b"))
    rows = [split_of(found, tp, 1) for tp in (1, 2, 4, 8)]
    assert all(b.batch > 2 * a.batch and b.alone_s < a.alone_s for a, b in itertools.pairwise(rows))


def test_one_sequence_reads_the_chosen_experts_only():
    model = load_model("mixtral-8x7b")
    alone = split_of(serve(H100, 8, 1024, model=model), 8, 1).alone_s
    hbm = H100.device.hbm_bytes_per_s.value
    active = 2 * parameters(model).active_without_embedding / 8 / hbm
    assert alone == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "jamba-v0.1"])
def test_copies_that_share_no_experts_do_not_slow_each_other(name):
    """tp ranks of one copy hold its experts: more such copies serve more, and each token as fast as on one of them."""
    model = load_model(name)
    rows = [next(s for s in serve(H100, n, 1024, model=model).splits if (s.tp, s.pp, s.ep) == (4, 1, 4)) for n in (4, 8, 16)]
    assert [s.copies for s in rows] == [1, 2, 4]
    assert len({(s.alone_s, s.full_s, s.batch) for s in rows}) == 1


def test_a_token_looks_up_its_embedding():
    """Llama 3.1 8B reads all weights but the token table; Gemma's tied table is read as the head, and looked up where it is a copy."""
    hbm = H100.device.hbm_bytes_per_s.value
    for name, pp, tables in (("llama-3.1-8b", 1, 1), ("llama-3.1-8b", 2, 1), ("gemma-3-1b", 1, 0), ("gemma-3-1b", 2, 0)):
        model = load_model(name)
        s = split_of(serve(H100, pp, 1, model=model), 1, pp)
        read = 2 * (parameters(model).total - tables * model.vocab * model.hidden)
        assert s.alone_s == pytest.approx(read / hbm, rel=1e-3), (name, pp)


def test_a_context_beyond_the_models_positions_is_said():
    model, said = load_model("llama-3.1-8b"), "longer than the 131,072 positions"
    for context, beyond in ((131_072, False), (1_000_000, True)):
        assert any(said in line for line in serve(H100, 8, context, model=model).assumptions) == beyond


def test_weights_in_fp8_leave_more_room():
    model = load_model("llama-3.1-70b")
    wide, narrow = (split_of(serve(H100, 8, 8192, model=model, weight_dtype=d), 4, 1) for d in ("bf16", "fp8"))
    assert narrow.weight_bytes == wide.weight_bytes / 2
    assert narrow.batch > wide.batch


@pytest.mark.parametrize("experts", [False, True])
def test_the_largest_shape_that_can_be_served(experts):
    found = serve(A100, 8, 8192, experts=experts)
    sizes = [parameters(s).total for s in family(experts)]
    assert found.growing
    for s in found.splits:
        assert s.batch >= 1
        assert s.parameters in sizes
        assert s.weight_bytes < UTILIZATION * found.limit_bytes
    assert split_of(found, 8, 1, 8 if experts else 1).parameters > 4 * split_of(found, 1, 1).parameters


def test_the_room_of_a_24_gib_card_is_near_what_an_engine_reported():
    """LLMServingSim pull request 59: Llama-3.1-8B at 0.9 of 24 GiB: room for 41,408 tokens, with 1.59 GiB kept by the engine."""
    model = load_model("llama-3.1-8b")
    device = H100.device
    limit = device.memory.allocatable.model_copy(update={"value": 24 * 2.0**30})
    small = device.model_copy(update={"memory": device.memory.model_copy(update={"allocatable": limit})})
    found = serve(H100.model_copy(update={"device": small}), 1, 4096, model=model)
    assert batch_tokens(H100.model_copy(update={"device": small})) == 2048
    assert found.splits[0].longest_context == pytest.approx(41408, rel=0.2)


def test_activations_shrink_with_the_split_and_grow_with_tokens():
    model = load_model("llama-3.1-70b")
    assert activation_bytes(model, 4096, 1, 1) == 2 * activation_bytes(model, 2048, 1, 1)
    assert activation_bytes(model, 4096, 8, 1) < activation_bytes(model, 4096, 1, 1)


def test_splits_keep_the_rules():
    assert {s[:2] for s in splits(load_model("llama-3.1-8b"), H100, 16)} == {
        (1, 1),
        (1, 2),
        (1, 4),
        (1, 8),
        (1, 16),
        (2, 1),
        (2, 2),
        (2, 4),
        (2, 8),
        (4, 1),
        (4, 2),
        (4, 4),
        (8, 1),
        (8, 2),
    }
    assert all(128 % ep == 0 for *_, ep in splits(load_model("qwen3-30b-a3b"), H100, 16))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("mamba-2.8b", 64 * 5120 * (16 + 3) * 2),
        ("jamba-v0.1", 28 * 8192 * (16 + 3) * 2),
        ("nemotron-h-8b", 24 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 8 * 128)) * 2),
        ("qwen3-next-80b-a3b", 36 * (32 * 128 * 128 + 3 * (2 * 16 + 32) * 128) * 2),
        # these files ask for fp32 states (mamba_ssm_cache_dtype, mamba_ssm_dtype), and vLLM keeps Kimi's in fp32 always
        ("nemotron-3-nano-30b-a3b", 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)),
        ("qwen3.5-27b", 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2)),
        ("kimi-linear-48b-a3b", 20 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)),
        ("llama-3.1-8b", 0),
    ],
)
def test_a_sequence_keeps_the_state_of_recurrent_layers(name, state):
    model = load_model(name)
    assert sum(state_bytes(model.kinds[n]) for n in model.layer_names()) == state
    whole = split_of(serve(load_cluster("dgx-b200"), 1, 4096, model=model), 1, 1)
    assert whole.state_bytes == state


def test_a_mamba_is_limited_by_its_states():
    """mamba-2.8b: 12.45 MB a sequence into what 71.3 GiB leave beside 5.2 GiB of weights: thousands, not 70 billion."""
    found = serve(H100, 8, 4096, model=load_model("mamba-2.8b"))
    s = split_of(found, 1, 1)
    room = found.usable_bytes - s.weight_bytes - s.activation_bytes - CONTEXT_BYTES
    assert s.batch == int(room // (64 * 5120 * 38))
    assert 5000 < s.batch < 6000
    assert (s.token_bytes, s.longest_context) == (0.0, None)
    reads = s.weight_bytes + s.batch * 2 * s.state_bytes  # each state is read and written
    assert s.full_s == pytest.approx(reads / H100.device.hbm_bytes_per_s.value)


@pytest.mark.parametrize("name", ["nemotron-h-8b", "jamba-v0.1", "qwen3-next-80b-a3b", "gemma-3-27b", "llama-3.1-70b"])
def test_the_columns_of_a_row_are_of_one_stage_and_add_up(name):
    found = serve(H100, 16, 8192, model=load_model(name))
    checked = 0
    for s in found.splits:
        if s.fits:
            each = s.token_bytes * 8192 + s.state_bytes
            held = s.weight_bytes + s.activation_bytes + CONTEXT_BYTES + s.cache_bytes
            assert s.cache_bytes == pytest.approx(s.batch * each)
            assert held <= found.usable_bytes < held + each  # one more sequence is too much for this very stage
            checked += 1
    assert checked > 5


@pytest.mark.parametrize(
    ("precision", "weight", "cache"),
    [("fp32", 4, "fp32"), ("bf16", 2, "bf16"), ("fp8", 1, "bf16"), ("mxfp8", 8.25 / 8, "bf16"), ("nvfp4", 4.5 / 8, "bf16")],
)
def test_weights_take_what_their_precision_says(precision, weight, cache):
    b200, model = load_cluster("dgx-b200"), load_model("llama-3.1-8b")
    found = serve(b200, 8, 8192, model=model, weight_dtype=precision)
    assert (found.weight_dtype, found.cache_dtype) == (precision, cache)
    assert split_of(found, 1, 1).weight_bytes == pytest.approx(weight * parameters(model).total)
    assert split_of(found, 1, 1).token_bytes == 131072 * (2 if cache == "fp32" else 1)


def test_serving_refuses_what_the_device_has_not(capsys):
    assert main(["ladder", "--on", "dgx-h100", "--gpus", "8", "--serve", "--precision", "nvfp4"]) == 2
    said = capsys.readouterr().err
    assert "NVIDIA H100 SXM5 80GB has no fp4 matmul rate, so it cannot serve in nvfp4" in said
    assert "hint: precision may be fp32, fp16, bf16, fp8, fp8-blockwise" in said


def ladder_of(model, capsys, *more):
    assert main(["ladder", "--on", "dgx-h100", "--gpus", "8", "--serve", "--model", model, *more]) == 0
    return capsys.readouterr().out


def test_what_limits_the_longest_context_is_said(capsys):
    assert "no limit in memory" in ladder_of("mamba-2.8b", capsys)
    mistral = ladder_of("mistral-7b-v0.1", capsys)
    assert "32,768 (model)" in mistral
    assert "- (model): the positions that the model was made for" in mistral
    both = ladder_of("llama-3.1-70b", capsys)
    assert " 21,635 " in both  # tp1 pp2: memory holds fewer than the model's 131,072
    assert "131,072 (model)" in both
    for text in (mistral, both):
        assert "134,217,728" not in text


def test_the_document_says_what_fits_and_gives_no_times_where_nothing_does(capsys):
    document = json.loads(ladder_of("llama-3.1-70b", capsys, "--json"))["serving"][0]
    assert document["model_context_tokens"] == 131072
    assert {s["fits"] for s in document["splits"]} == {True, False}
    for s in document["splits"]:
        assert s["fits"] == (s["batch_sequences"] > 0)
        assert (s["token_alone_s"] is None) == (s["token_full_s"] is None) == (not s["fits"])
        if s["fits"]:
            held = s["weight_bytes"] + s["activation_bytes"] + s["cache_bytes"] + document["device_context_bytes"]
            assert held <= document["usable_bytes"]
    mamba = json.loads(ladder_of("mamba-2.8b", capsys, "--json"))["serving"][0]
    assert {s["longest_context_tokens"] for s in mamba["splits"]} == {None}


def test_the_largest_activation_of_a_recurrent_layer_is_its_projection():
    """Mamba 2.8B: 5,120 channels twice from the projection and once from the scan."""
    model = load_model("mamba-2.8b").model_copy(update={"vocab": 1024})
    assert activation_bytes(model, 100, 1, 1) == 100 * (2 * 2560 + 3 * 5120) * 2


@pytest.mark.parametrize(("more", "kind", "use"), [(["--serve"], "serving", "serve"), ([], "ladders", "train")])
def test_a_cluster_without_the_precision_says_so_beside_the_others(more, kind, use, capsys):
    asked = ["ladder", "--on", "dgx-a100,dgx-b200", "--gpus", "1", "--precision", "mxfp8", "--model", "llama-3.2-1b", *more]
    assert main(asked) == 0
    assert capsys.readouterr().out.count(f"so it cannot {use} in mxfp8") == 1
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[kind]
    rows = "splits" if more else "steps"
    assert [(x["cluster"], bool(x[rows]), bool(x["why"])) for x in found] == [
        ("dgx-a100", False, True),
        ("dgx-b200", True, False),
    ]


def test_the_document_ends_a_context_where_the_model_does(capsys):
    document = json.loads(ladder_of("llama-3.1-70b", capsys, "--json"))["serving"][0]
    longest = {(s["tp"], s["pp"]): (s["longest_context_tokens"], s["memory_context_tokens"]) for s in document["splits"]}
    assert longest[1, 4][0] == 131072 < longest[1, 4][1]
    assert longest[1, 2] == (21635, 21635)


def test_prediction_modules_are_not_served():
    """An engine loads multi-token prediction for speculative decoding alone: 671B, not 685B of DeepSeek-V3 in fp8."""
    model = load_model("deepseek-v3")
    row = split_of(serve(load_cluster("dgx-h200"), 8, 8192, model=model, weight_dtype="fp8"), 8, 1, 8)
    alone = model.model_copy(update={"mtp_layers": 0})
    assert row == split_of(serve(load_cluster("dgx-h200"), 8, 8192, model=alone, weight_dtype="fp8"), 8, 1, 8)
    assert row.token_bytes == 61 * 576 * 2


def test_the_slowest_gpu_reads_a_whole_expert():
    """Mixtral on 8 GPUs, an expert a rank: 2.95 GB of dense weights, 1.07 GB of cache and 11.27 GB of one expert a layer at 3.35 TB/s."""
    found = serve(load_cluster("dgx-h100"), 8, 8192, model=load_model("mixtral-8x7b"))
    alone = next(s.alone_s for s in found.splits if (s.tp, s.pp, s.ep) == (1, 1, 8))
    assert alone == pytest.approx((2.95e9 + 1.07e9 + 11.27e9) / 3.35e12, rel=0.005)
