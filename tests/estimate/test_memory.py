"""Measured peaks of Megatron-core ranks, to the megabyte.

MooreThreads/SimuMax 4dcaae51, docs/b200/b200_release_v1.2_summary.json: max allocated GiB of each pipeline stage on one
8 x B200 node. Megatron-LM 23e00ed0, TransformerEngine 2.11, bf16, micro-batch 1, 4 micro-batches, sequence parallelism,
distributed optimizer, TransformerEngine cross entropy, a tokenizer that adds one id. Llama-70B has 12 layers, "405B" 4
layers and 16 key/value heads, the DeepSeek models 4 layers of which the first is dense, capacity factor 1, padded.
"""

import numpy as np
import pytest

from parlay.estimate.estimate import price
from parlay.estimate.frameworks import resolve
from parlay.estimate.memory import memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LatentAttention, LayerKind, ModelSpec, MoeMlp, Run
from parlay.rates.choose import rates_for

GIB = 2**30


def dense(hidden, heads, kv, width, layers):
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=kv, head_dim=128), mlp=DenseMlp(width=width))
    return ModelSpec(
        id="m", name="m", hidden=hidden, vocab=128257, kinds={"block": kind}, layers=(Run(kinds=("block",), count=layers),)
    )


def deepseek(hidden, width, expert_width, shared_width, experts, top_k, vocab):
    mixer = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    routed = MoeMlp(experts=experts, top_k=top_k, width=expert_width, shared_width=shared_width)
    kinds = {"dense": LayerKind(mixer=mixer, mlp=DenseMlp(width=width)), "moe": LayerKind(mixer=mixer, mlp=routed)}
    runs = (Run(kinds=("dense",), count=1), Run(kinds=("moe",), count=3))
    return ModelSpec(id="m", name="m", hidden=hidden, vocab=vocab, kinds=kinds, layers=runs)


MODELS = {
    "llama-70b": dense(8192, 64, 8, 28672, 12),
    "llama-405b": dense(16384, 128, 16, 53248, 4),
    "deepseek-v2": deepseek(5120, 12288, 1536, 3072, 160, 6, 102401),
    "deepseek-v3": deepseek(7168, 18432, 2048, 2048, 256, 8, 129281),
}
MEASURED = [  # model, layout, sequence length, GiB of each stage
    ("llama-70b", {"pp": 2, "dp": 4}, 4096, [66.552, 62.967]),
    ("llama-70b", {"tp": 2, "dp": 4}, 4096, [60.680]),
    ("llama-70b", {"tp": 4, "dp": 2}, 4096, [39.072]),
    ("llama-70b", {"tp": 8}, 4096, [28.286]),
    ("llama-70b", {"tp": 2, "cp": 4}, 32768, [68.428]),
    ("llama-70b", {"tp": 2, "cp": 4}, 131072, [112.668]),
    ("llama-70b", {"cp": 8}, 32768, [104.506]),
    ("llama-70b", {"cp": 8}, 131072, [147.987]),
    ("llama-405b", {"pp": 2, "dp": 4}, 4096, [86.610, 87.083]),
    ("llama-405b", {"tp": 2, "dp": 4}, 4096, [81.591]),
    ("llama-405b", {"tp": 4, "dp": 2}, 4096, [52.889]),
    ("llama-405b", {"tp": 8}, 4096, [38.574]),
    ("llama-405b", {"tp": 2, "cp": 4}, 32768, [87.025]),
    ("llama-405b", {"tp": 2, "cp": 4}, 131072, [118.127]),
    ("llama-405b", {"cp": 8}, 32768, [139.216]),
    ("deepseek-v2", {"ep": 8, "dp": 8}, 4096, [45.631]),
    ("deepseek-v2", {"ep": 4, "pp": 2, "dp": 4}, 4096, [31.585, 44.703]),
    ("deepseek-v3", {"ep": 8, "dp": 8}, 4096, [104.298]),
    ("deepseek-v3", {"ep": 4, "pp": 2, "dp": 4}, 4096, [71.239, 114.001]),
]


@pytest.fixture(scope="module")
def b200():
    return load_cluster("dgx-b200")


def priced(cluster, name, layout, seq_len, **more):
    lay = Layouts.of(Layout(cp_kind="ulysses", **layout))
    given = {"seq_len": seq_len, "global_batch": 4 * layout.get("dp", 1), "cross_entropy": "te", "framework_date": "2025-11-30"}
    if name.startswith("deepseek"):
        given["moe_capacity_factor"] = 1.0
    work = Workload(**given | more)
    return memory(MODELS[name], cluster, work, lay, stages_of(MODELS[name], lay, work.global_batch))


@pytest.mark.parametrize(("name", "layout", "seq_len", "gib"), MEASURED)
def test_allocated_peak_of_every_measured_stage(b200, name, layout, seq_len, gib):
    got = priced(b200, name, layout, seq_len).allocated[0] / GIB
    assert got.tolist() == pytest.approx(gib, rel=5e-4)


def test_mean_error_over_all_measured_stages(b200):
    errors = [
        abs(value / GIB / measured - 1)
        for name, layout, seq_len, gib in MEASURED
        for value, measured in zip(priced(b200, name, layout, seq_len).allocated[0], gib, strict=True)
    ]
    assert len(errors) == 23
    assert np.mean(errors) < 1e-4


def test_which_moment_is_the_peak(b200):
    """Logits on last stages, the last layer's backward on first ones, combining experts in mixture-of-experts layers."""
    first, last = (priced(b200, "llama-70b", {"pp": 2, "dp": 4}, 4096).event[0]).tolist()
    held = priced(b200, "deepseek-v3", {"ep": 8, "dp": 8}, 4096)
    names = held.events
    assert (names[first], names[last]) == ("backward pass of a layer", "backward pass of the output layer")
    assert names[held.event[0, 0]] == "forward pass of a layer"


def test_stand_in_gradients_appear_with_their_versions(b200):
    """Linear layers May 2025, output layer August 2025; grouped ones October 2025."""
    at = {
        day: priced(b200, "llama-70b", {"tp": 1}, 4096, framework_date=day).after_step[0, 0] / GIB
        for day in ("2025-01-01", "2025-06-01", "2025-09-01")
    }
    assert at["2025-06-01"] - at["2025-01-01"] == pytest.approx(1.59, abs=0.005)
    assert at["2025-09-01"] - at["2025-06-01"] == pytest.approx(1.96, abs=0.005)
    before, after = (
        priced(b200, "deepseek-v3", {"ep": 8, "dp": 8}, 4096, framework_date=d).after_step[0, 0]
        for d in ("2025-10-01", "2025-11-01")
    )
    # grouped fc1 has the shape of the shared expert's and is cached already; fc2 likewise
    assert before == after
    before, after = (
        priced(b200, "deepseek-v2", {"ep": 8, "dp": 8}, 4096, framework_date=d).after_step[0, 0]
        for d in ("2025-10-01", "2025-11-01")
    )
    assert after - before == 2 * 3 * 1536 * 5120


def test_the_fused_loss_got_a_gradient_of_its_own_in_2026(b200):
    old, new = (
        priced(b200, "llama-70b", {"tp": 8}, 4096, framework_date=d).allocated[0, 0] for d in ("2026-07-01", "2026-08-01")
    )
    assert new - old == 4096 * (129024 / 8) * 4


def test_chunks_leave_their_last_input_and_its_gradient():
    """NVIDIA/Megatron-LM @d98e8a64, gpt3_7b_tp1_pp4_memory_speed (A100, 8 chunks a stage): 23,375.5 MiB after a step."""
    kind = LayerKind(
        mixer=GroupedAttention(heads=32, kv_heads=8, head_dim=128, qkv_bias=True, out_bias=True, rope=False),
        mlp=DenseMlp(width=16384, gated=False, bias=True),
    )
    model = ModelSpec(
        id="m", name="m", hidden=4096, vocab=131074, norm="layernorm", position_embeddings=8192,
        kinds={"block": kind}, layers=(Run(kinds=("block",), count=32),),
    )  # fmt: skip
    cluster, work = load_cluster("dgx-a100"), Workload(
        seq_len=8192, global_batch=8, gradient_accumulation_fusion=False, overlap_grad_reduce=True, deterministic=True
    )  # fmt: skip
    after = {}
    for vpp in (1, 8):
        lay = Layouts.of(Layout(pp=4, dp=2, vpp=vpp))
        after[vpp] = memory(model, cluster, work, lay, stages_of(model, lay, 8)).after_step[0]
    stream = 8192 * 4096 * 2
    assert (after[8] - after[1]).tolist() == [14 * stream] * 4
    assert after[8][-1] / 2**20 == pytest.approx(23375.5, rel=1e-3)


def test_overlapped_products_have_three_workspaces_of_their_own():
    held = []
    for overlap in (False, True):
        lay = Layouts.of(Layout(tp=2, sp=True, tp_overlap=overlap))
        model = MODELS["llama-70b"]
        held.append(memory(model, load_cluster("dgx-h100"), Workload(), lay, stages_of(model, lay, 512)).after_step[0, 0])
    assert held[1] - held[0] == 3 * 32 * 2**20


def test_a_prediction_module_embeds_on_its_own_stage():
    """gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph's 0.11 GiB: 18 bytes of a table of 50,688 / 4 rows."""
    kind = LayerKind(mixer=GroupedAttention(heads=8, kv_heads=8, head_dim=64), mlp=DenseMlp(width=2048))
    runs = (Run(kinds=("block",), count=12),)
    after = []
    for depth in (0, 1):
        model = ModelSpec(
            id="m", name="m", hidden=512, vocab=50257, kinds={"block": kind}, layers=runs, mtp_layers=depth, mtp_kind="block"
        )
        lay = Layouts.of(Layout(tp=4, pp=2, sp=True))
        held = memory(model, load_cluster("gb200-nvl72"), Workload(), lay, stages_of(model, lay, 32))
        after.append(held.static[0])
    layer, extra = (4 * 512 * 512 + 3 * 512 * 2048) / 4 + 2 * 512, 2 * 512 * 512 + 3 * 512
    assert (after[1] - after[0]).tolist() == pytest.approx([0, 18 * (50688 / 4 * 512 + layer + extra)], rel=1e-6)


def test_one_optimizer_at_a_time_copies_its_bf16_moments():
    """Until TransformerEngine 2.13: 8 bytes of 8 experts in 26 layers of 3 x 2048 x 1408, while dense weights' copies are gone."""
    model, lay = load_model("moonlight-16b-a3b"), Layouts.of(Layout(tp=2, dp=4, ep=8, sp=True, zero=1))
    peaks = []
    for day in ("2026-03-17", "2026-03-18"):
        work = Workload(
            seq_len=4096, global_batch=4, gradient_dtype="bf16", master_dtype="fp16", moment_dtype="bf16", cross_entropy="te",
            framework_date=day,
        )  # fmt: skip
        held = memory(model, load_cluster("dgx-h100"), work, lay, stages_of(model, lay, 4))
        peaks.append((held.events[int(held.event[0, 0])], held.allocated[0, 0] - held.after_step[0, 0]))
    assert peaks[0] == ("optimizer step", pytest.approx(8 * 8 * 26 * 3 * 2048 * 1408, rel=1e-12))
    assert peaks[1][0] == "backward pass of the output layer"


def test_megatron_fsdp_keeps_no_gathered_weight_between_two_steps():
    """NVIDIA/Megatron-LM @d98e8a64, gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor (H100): 235.6 MiB after a step."""
    kind = LayerKind(
        mixer=GroupedAttention(heads=8, kv_heads=8, head_dim=64, qkv_bias=True, out_bias=True, rope=False),
        mlp=DenseMlp(width=2048, gated=False, bias=True),
    )
    model = ModelSpec(
        id="m", name="m", hidden=512, vocab=50257, norm="layernorm", tied_embeddings=True, position_embeddings=1024,
        kinds={"block": kind}, layers=(Run(kinds=("block",), count=12),),
    )  # fmt: skip
    lay = Layouts.of(Layout(tp=2, dp=4, sp=False, zero=3, micro_batch=4))
    work = Workload(seq_len=1024, global_batch=32, gradient_dtype="fp32", gradient_accumulation_fusion=False)
    held = memory(model, load_cluster("dgx-h100"), work, lay, stages_of(model, lay, 32))
    assert held.after_step[0, 0] / 2**20 == pytest.approx(235.6, rel=5e-3)


def test_megatrons_own_attention_keeps_a_buffer_of_scores():
    """b a s^2 / t scores of two bytes, in the buffer that also takes the output layer's gathered input."""
    kind = LayerKind(mixer=GroupedAttention(heads=8, kv_heads=8, head_dim=64), mlp=DenseMlp(width=2048))
    model = ModelSpec(id="m", name="m", hidden=512, vocab=50257, kinds={"block": kind}, layers=(Run(kinds=("block",), count=12),))
    lay = Layouts.of(Layout(tp=2, pp=2, sp=True, micro_batch=4))
    after = []
    for local in (False, True):
        work = Workload(seq_len=1024, global_batch=32, flash_attention=False, local_layers=local)
        after.append(memory(model, load_cluster("dgx-h100"), work, lay, stages_of(model, lay, 32)).after_step[0])
    scores, gathered = 4 * 4 * 1024**2 * 2, 4 * 1024 * 512 * 2
    assert (after[1] - after[0]).tolist() == [scores, scores - gathered]


def test_head_gradients_that_wait():
    """Two micro-batches' bf16 logit gradients and inputs on the last stage; all eight without a limit; none without a pipeline."""
    model, cluster = MODELS["llama-70b"], load_cluster("dgx-b200")

    def peaks(pp, limit):
        lay = Layouts.of(Layout(pp=pp))
        work = Workload(global_batch=8, deferred_head_gradients=limit)
        return memory(model, cluster, work, lay, stages_of(model, lay, 8)).allocated[0]

    each = 4096 * (128384 + 8192) * 2
    assert (peaks(2, 2) - peaks(2, None)).tolist() == [0, 2 * each]
    assert (peaks(2, 0) - peaks(2, None)).tolist() == [0, 8 * each]
    assert peaks(1, 2).tolist() == peaks(1, None).tolist()


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "deepspeed"])
def test_a_default_that_is_stated_changes_nothing(framework, zero):
    """What holds fp32 copies of gradients follows from the format that is in force at that ZeRO stage, given or not."""
    model, cluster = dense(8192, 64, 8, 28672, 80), load_cluster("dgx-h200")
    layout = Layout(tp=8, dp=2, zero=zero)
    left_open = Workload(framework=framework, seq_len=4096, global_batch=16)
    settings = resolve(left_open, cluster.device)
    size = settings.sharded_gradient_bytes if zero == 3 else settings.gradient_bytes
    stated = left_open.model_copy(update={"gradient_dtype": {2.0: "bf16", 4.0: "fp32"}[size]})
    found = [price(model, cluster, w, Layouts.of(layout), rates_for(cluster), every=True) for w in (left_open, stated)]
    assert found[0].memory.total[0, 0] == found[1].memory.total[0, 0]
    # A token table's gradient is timed in the format below ZeRO-3, whatever the stage: 1 ms of its passes, most of them hidden.
    assert found[0].time.step[0] == pytest.approx(found[1].time.step[0], rel=1e-4 if zero == 3 else 1e-12)
