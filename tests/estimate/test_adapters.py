"""LoRA: what is trained, what frozen weights save in memory and in time, and what adapters cost."""

import pathlib

import numpy as np
import pytest

from parlay.estimate.adapters import trained_adapters
from parlay.estimate.costs import layer_costs
from parlay.estimate.counts import parameters
from parlay.estimate.estimate import estimate, price
from parlay.estimate.pricer import Pricer
from parlay.estimate.shard import Shard
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for

H100 = load_cluster("dgx-h100")
RATES = rates_for(H100)
LLAMA, V3, MIXTRAL = load_model("llama-3.1-8b"), load_model("deepseek-v3"), load_model("mixtral-8x7b")
ALL = ("qkv", "out", "up", "down")


def workload(rank=16, modules=ALL, **more):
    return Workload(**{"global_batch": 64, "lora_rank": rank, "lora_modules": modules} | more)


def held(model, layout, work):
    return price(model, H100, work, Layouts.of(layout), RATES, every=True).memory


def parts(memory, stage=0):
    return {t.key: float(np.asarray(t.value).sum()) for t in memory.tree.at(0, stage).walk()}


@pytest.mark.parametrize(
    ("name", "rank", "modules", "printed"),
    [
        ("llama-2-7b", 16, ALL, 39_976_960),  # printed by PEFT for QLoRA's runs: all linear layers of Llama-2-7B
        ("llama-2-7b", 8, ALL, 19_988_480),
        ("llama-2-13b", 16, ALL, 62_586_880),
    ],
)
def test_what_peft_prints(name, rank, modules, printed):
    assert trained_adapters(load_model(name), workload(rank, modules, framework="deepspeed")) == printed


def test_a_fused_layer_has_one_adapter():
    """Megatron's linear_qkv of Llama 8B: A of 16 x 4096 and B of 6144 x 16, where three layers have three A."""
    fused = trained_adapters(LLAMA, workload(16, ("qkv",)))
    assert fused == 32 * 16 * (4096 + 6144)
    assert trained_adapters(LLAMA, workload(16, ("qkv",), framework="torchtitan")) - fused == 32 * 16 * 2 * 4096


def test_without_a_rank_everything_is_trained():
    assert trained_adapters(LLAMA, Workload()) is None


def test_routed_experts_stay_frozen():
    assert trained_adapters(MIXTRAL, workload(16, ("qkv", "out"))) == trained_adapters(MIXTRAL, workload(16, ALL))


def test_latent_attention_has_an_adapter_at_each_of_its_projections():
    v3, h, heads = workload(8, ("qkv", "out")), 7168, 128
    each = (h + 1536) + (1536 + heads * 192) + (h + 576) + (512 + heads * 256) + (heads * 128 + h)
    assert trained_adapters(V3, v3) == 61 * 8 * each


@pytest.mark.parametrize("zero", [0, 1])
def test_state_by_hand(zero):
    """Two bytes a frozen parameter; 2 + 4 a trained one, and 12 over the ranks that share the optimizer."""
    state = parts(held(LLAMA, Layout(dp=8, zero=zero), workload()))
    trained = trained_adapters(LLAMA, workload())
    frozen = parameters(LLAMA).total
    assert state["memory.weights"] == pytest.approx(2 * (frozen + trained))
    assert state["memory.gradients"] == pytest.approx(4 * trained)
    assert state["memory.optimizer"] == pytest.approx(12 * trained / (8 if zero else 1))


def test_fsdp_shards_the_frozen_weights_in_bf16():
    state = parts(held(LLAMA, Layout(dp=8, zero=3), workload(framework="torchtitan")))
    assert state["memory.weights.dense"] == pytest.approx(2 * parameters(LLAMA).total / 8)
    assert state["memory.weights.adapter"] == pytest.approx(4 * trained_adapters(LLAMA, workload(framework="torchtitan")) / 8)


def test_adapters_are_cut_as_the_layers_they_stand_at():
    whole, halves = (parts(held(LLAMA, Layout(tp=t, dp=8), workload()))["memory.weights.adapter"] for t in (1, 2))
    assert halves == pytest.approx(whole / 2)


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_only_inputs_that_an_adapter_reads_are_kept(framework):
    """Frozen, a layer's input is kept for no weight gradient: each module that is adapted brings its own back."""
    work = {"framework": framework, "overlap_grad_reduce": False}
    qkv, down = (held(LLAMA, Layout(dp=8), workload(16, (m,), **work)).allocated[0, 0] for m in ("qkv", "down"))
    both = held(LLAMA, Layout(dp=8), workload(16, ("qkv", "down"), **work)).allocated[0, 0]
    everything = held(LLAMA, Layout(dp=8), Workload(global_batch=64, **work)).allocated[0, 0]
    assert max(qkv, down) < both < everything
    hidden = 32 * 2 * 4096 * LLAMA.kinds[next(iter(LLAMA.kinds))].mlp.width  # 32 layers, bf16, 4,096 tokens
    assert both - qkv == pytest.approx(hidden, rel=0.03)  # and the adapters' own state


def costs(work, layout=None):
    layout = layout or Layout(tp=2)
    shard = Shard.of(Layouts.of(layout), work, H100)
    return next(iter(layer_costs(Pricer(RATES, work, shard, LLAMA)).values()))


def test_frozen_weights_have_no_gradient_of_their_own():
    """One module adapted: the other products take their forward and their input's gradient, and nothing else."""
    full, lora = costs(Workload(cuda_graphs=True)), costs(workload(1, ("out",), cuda_graphs=True))
    for group in ("mlp", "attention core", "norms and elementwise"):
        assert lora.forward[group] == pytest.approx(full.forward[group])
    assert lora.backward["mlp"][0] == pytest.approx(full.backward["mlp"][0] / 2, rel=0.05)
    assert lora.backward["attention core"] == pytest.approx(full.backward["attention core"])
    assert 0 < lora.weight[0] < 0.1 * full.weight[0]


def test_a_larger_rank_takes_longer():
    seconds = [costs(workload(r, cuda_graphs=True)).forward_s[0] for r in (8, 64, 512)]
    assert seconds == sorted(set(seconds))


def test_adapters_exchange_over_the_tensor_parallel_ranks():
    alone, pair = (costs(workload(cuda_graphs=True), Layout(tp=t)).exposed_forward["tp"][0] for t in (1, 2))
    full = costs(Workload(cuda_graphs=True), Layout(tp=2)).exposed_forward["tp"][0]
    assert alone == 0
    assert pair > full


def test_an_adapter_beside_a_row_parallel_layer_sends_what_that_layer_sends():
    """Megatron-Bridge's ParallelLinearAdapter gathers B's whole output, and under sequence parallelism its gradient too."""

    def exposed(modules, sp, framework="megatron-core"):
        found = costs(workload(16, modules, cuda_graphs=True, framework=framework), Layout(tp=4, sp=sp))
        return np.array([found.exposed_forward["tp"][0], found.exposed_backward["tp"][0]])

    none = exposed(("qkv",), True)
    wide = exposed(("qkv", "out"), True) - none
    assert wide[0] == pytest.approx(wide[1], rel=1e-6)  # a sum of the rank's width and one gathering, each way
    without = exposed(("qkv", "out"), False) - exposed(("qkv",), False)
    assert without[0] == pytest.approx(wide[0], rel=1e-6)
    assert without[1] < 0.2 * wide[1]


@pytest.mark.parametrize(
    ("name", "layout", "trained_s", "lora_s"),
    [
        ("llama-3.1-8b", {"dp": 8}, 6.53, 5.42),
        ("llama-3.1-8b", {"tp": 4, "dp": 2}, 7.74, 8.42),
        ("llama-3.1-70b", {"pp": 8, "dp": 4}, 19.4, 14.8),
        ("llama-3.1-70b", {"tp": 8, "pp": 4}, 18.0, 18.9),
    ],
)
def test_the_guide_tells_what_lora_saves(name, layout, trained_s, lora_s):
    """docs/guides/fine-tuning.md: these numbers and no others stand in its table."""
    x = Layout(**layout)
    steps = [
        estimate(load_model(name), load_cluster("dgx-h100"), Workload(seq_len=8192, global_batch=64, lora_rank=r), x).step_s
        for r in (None, 16)
    ]
    assert steps == pytest.approx([trained_s, lora_s], rel=0.005)
    said = f"| {trained_s:#.3g} s | {lora_s:#.3g} s | {100 * (steps[1] / steps[0] - 1):+.0f} % |"
    assert said in (pathlib.Path(__file__).parents[2] / "docs/guides/fine-tuning.md").read_text()


def test_only_adapters_are_reduced_and_stepped():
    full, lora = (estimate(LLAMA, H100, w, Layout(dp=8), rates=RATES) for w in (Workload(global_batch=64), workload()))
    told = {t.key: t for e in (lora,) for t in e.step.walk()}
    trained = trained_adapters(LLAMA, workload())
    assert told["step.exposed.dp_reduce"].inputs["dense_bytes"] == pytest.approx(4 * trained)
    assert told["step.exposed.dp_gather"].inputs["dense_bytes"] == pytest.approx(2 * trained)
    assert told["step.optimizer"].inputs["parameters_owned"] == pytest.approx(trained / 8)
    assert lora.step_s < full.step_s
    assert lora.flops_per_token < full.flops_per_token


def test_fsdp_gathers_frozen_weights_too():
    work = workload(framework="torchtitan")
    told = {t.key: t for t in estimate(LLAMA, H100, work, Layout(dp=8, zero=3), rates=RATES).step.walk()}
    trained = trained_adapters(LLAMA, work)
    assert told["step.exposed.dp_gather"].inputs["dense_bytes"] == pytest.approx(2 * (parameters(LLAMA).total + trained))
    assert told["step.exposed.dp_reduce"].inputs["dense_bytes"] == pytest.approx(4 * trained)


def test_the_host_holds_the_adapters_states_alone():
    found = estimate(LLAMA, H100, workload(), Layout(dp=8, offload_optimizer=1.0), rates=RATES)
    assert found.host_bytes == pytest.approx(12 * trained_adapters(LLAMA, workload()))


def test_flops_are_two_thirds_and_the_adapters():
    full, lora = (
        estimate(LLAMA, H100, w, Layout(dp=8), rates=RATES).flops_per_token for w in (Workload(global_batch=64), workload())
    )
    scores = 3 * 32 * 2 * 2048 * 32 * 256
    assert lora == pytest.approx((full - scores) * 2 / 3 + scores + 6 * trained_adapters(LLAMA, workload()))


def test_packed_documents_attend_to_themselves_alone():
    """8,192 tokens of 512 each: a thirteenth of the scores (tiles of 128 more), of which the tensors' traffic is no part; the same
    memory, the same everything else."""
    plain, packed = (
        estimate(LLAMA, H100, Workload(seq_len=8192, global_batch=64, document_len=d), Layout(tp=2, dp=4), rates=RATES)
        for d in (None, 512)
    )
    steps = [{t.key: float(t.value) for t in e.step.walk()} for e in (plain, packed)]
    assert (512 + 128) / 8192 < steps[1]["step.compute.attention_core"] / steps[0]["step.compute.attention_core"] < 0.2
    assert steps[1]["step.compute.mlp"] == steps[0]["step.compute.mlp"]
    assert packed.peak_bytes == plain.peak_bytes
    assert packed.flops_per_token < plain.flops_per_token


def test_documents_as_long_as_the_sequence_change_nothing():
    plain, packed = (
        estimate(LLAMA, H100, Workload(global_batch=64, document_len=d), Layout(tp=2, dp=4), rates=RATES) for d in (None, 4096)
    )
    assert packed.step_s == plain.step_s
    assert packed.flops_per_token == plain.flops_per_token


def test_a_frozen_layer_leaves_the_host_one_product_of_two():
    """So small a layer waits for the host: with adapters at the output alone, a backward pass is shorter than with all trained."""
    small = {"seq_len": 128, "global_batch": 64}
    full, lora = costs(Workload(**small)), costs(workload(8, ("out",), **small))
    assert lora.backward_s[0] < full.backward_s[0]
    assert lora.forward_s[0] > full.forward_s[0]


def test_frozen_norms_keep_no_normalised_copy():
    work = {"framework": "torchtitan", "compiled": False}
    lora = parts(held(LLAMA, Layout(dp=8), workload(16, ("out",), **work)))
    full = parts(held(LLAMA, Layout(dp=8), Workload(global_batch=64, **work)))
    key = next(
        k for k in lora if k.startswith("memory.activations.") and lora[k] and full.get(k) and abs(full[k] / lora[k] - 1.5) < 1e-9
    )
    assert key
