"""Cases that practitioners reported: each is tested, here or where its subject is, or the reason why it cannot hold is given.

tests/data/field-cases.jsonl holds them with their sources. `WHERE` maps a case to its tests; a test keeps it complete.
"""

import ast
import json
from pathlib import Path

import pytest

from parlay.estimate.answers import differences
from parlay.estimate.counts import flops_per_token, kv_bytes
from parlay.estimate.estimate import Estimate, _estimate, price_memory
from parlay.formulas import optimizer_state
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.split import chunk_sizes
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run
from parlay.rates.choose import rates_for
from parlay.units import show_bytes

HERE = Path(__file__).parent
KINDS = ("memory", "flops", "bytes", "validation", "usability", "calibration")
GIB = 2**30

OPTIMIZER, RULES, COUNTS = "formulas/test_optimizer_state.py", "layouts/test_rules.py", "estimate/test_counts.py"
CASES, PLAN, FACTS, HERE_FILE = (
    "estimate/test_memory_cases.py",
    "search/test_plan.py",
    "hardware/test_facts.py",
    "test_field_cases.py",
)
SERVING, LOGITS, STAGES = "formulas/test_serving.py", "formulas/test_logits.py", "estimate/test_stages.py"

WHERE: dict[str, list[str]] = {
    "memo-001": [f"{OPTIMIZER}::test_megatron_estimator"],
    "memo-002": [f"{OPTIMIZER}::test_bf16_gradients_save_two_bytes", f"{HERE_FILE}::test_the_main_gradients_dtype_is_an_input"],
    "memo-003": ["estimate/test_memory_ci.py::test_a_7b_model_on_one_node"],
    "memo-005": [f"{OPTIMIZER}::test_an_estimator_that_printed_mebibytes"],
    "memo-007": [f"{OPTIMIZER}::test_deepspeed_estimators"],
    "memo-008": [f"{OPTIMIZER}::test_deepspeed_estimators", f"{HERE_FILE}::test_zero_2_as_its_estimators_had_it"],
    "memo-009": [f"{HERE_FILE}::test_every_zero_stage_in_every_precision"],
    "memo-010": [f"{HERE_FILE}::test_the_recipe_behind_a_number_of_bytes"],
    "memo-011": [f"{OPTIMIZER}::test_fp32_main_weights_that_are_the_weights"],
    "memo-013": [f"{CASES}::test_qwen3_30b_does_not_train_on_one_node", f"{PLAN}::test_qwen3_30b_on_one_node_keeps_one_copy_of_each_expert"],
    "memo-014": [f"{PLAN}::test_qwen3_235b_does_not_fit_on_32_gpus"],
    "memo-015": [f"{PLAN}::test_qwen3_235b_does_not_fit_on_32_gpus", f"{PLAN}::test_deepseek_v3_fits_on_96_gpus_with_its_optimizer_on_the_host"],
    "memo-016": [f"{OPTIMIZER}::test_mixed_precision_holds_more_than_fp32", f"{HERE_FILE}::test_every_zero_stage_in_every_precision"],
    "memo-018": [f"{HERE_FILE}::test_what_zero_2_and_3_keep"],
    "memo-021": [f"{CASES}::test_torchtitan_reserved_memory", f"{CASES}::test_torchtitan_sharding_slope"],
    "memo-022": [f"{HERE_FILE}::test_interleaved_stages_can_hold_less"],
    "memo-023": [f"{CASES}::test_context_parallelism_keeps_memory_as_the_sequence_grows"],
    "memo-026": [f"{HERE_FILE}::test_what_nvidia_smi_shows"],
    "memo-027": [f"{CASES}::test_unfused_attention_adds_the_square"],
    "memo-028": ["formulas/test_activations.py::test_a_reported_attention_block_of_flash_attention"],
    "memo-029": [f"{CASES}::test_recomputing_fused_attention_saves_its_statistics_alone"],
    "memo-030": [f"{CASES}::test_recomputing_fused_attention_saves_its_statistics_alone"],
    "memo-032": [f"{LOGITS}::test_measured_losses_of_long_sequences"],
    "memo-034": [f"{HERE_FILE}::test_logits_of_every_position_are_in_the_peak"],
    "memo-035": [f"{STAGES}::test_interleaved_warm_up_of_megatron"],
    "memo-038": [f"{HERE_FILE}::test_uneven_stages_are_sized_by_the_heaviest"],
    "memo-040": [f"{CASES}::test_expert_parallelism_does_not_shrink_routed_activations", "formulas/test_activations_moe.py::test_rows_as_a_megatron_contributor_derived_them"],
    "memo-041": [f"{HERE_FILE}::test_each_kind_of_layer_is_priced_by_itself"],
    "memo-042": [f"{HERE_FILE}::test_a_busy_expert_rank_holds_more", "estimate/test_time.py::test_the_busiest_expert_rank_sets_the_pace"],
    "memo-043": [f"{COUNTS}::test_kv_heads_are_copied_beyond_their_number", f"{SERVING}::test_ranks_beyond_the_key_value_heads_save_nothing"],
    "memo-045": [f"{COUNTS}::test_cache_of_one_page_size_and_of_windows", f"{SERVING}::test_caches_of_windowed_models_as_reported"],
    "memo-046": [f"{COUNTS}::test_cache_of_sliding_layers", f"{SERVING}::test_caches_of_windowed_models_as_reported"],
    "memo-050": [f"{SERVING}::test_weights_alone_overstate_the_room_of_an_engine"],
    "memo-051": [f"{HERE_FILE}::test_a_windowed_cache_does_not_grow_with_its_first_token"],
    "memo-053": [f"{FACTS}::test_visible_memory_is_what_the_driver_prints"],
    "memo-054": [f"{FACTS}::test_h100_memory_is_neither_80e9_bytes_nor_74_gib"],
    "usab-055": [f"{HERE_FILE}::test_bytes_are_printed_in_gib"],
    "usab-059": [f"{PLAN}::test_no_fit_names_a_number_of_gpus_that_is_enough"],
    "memo-065": [f"{STAGES}::test_a_tied_table_stands_on_both_ends"],
    "memo-069": [f"{CASES}::test_mixtral_8x22b_state_of_the_last_stage"],
    "memo-071": [f"{CASES}::test_every_stage_is_listed_and_the_fullest_decides"],
    "vali-075": [f"{RULES}::test_layers_that_do_not_divide_get_uneven_stages"],
    "vali-076": [f"{RULES}::test_layers_that_do_not_divide_get_uneven_stages"],
    "vali-078": [f"{RULES}::test_layers_with_embedding_head_and_prediction_module_as_units"],
    "vali-080": [f"{RULES}::test_sixty_four_heads_do_not_go_on_three_gpus"],
    "vali-082": [f"{RULES}::test_two_key_value_heads_are_copied_over_eight_ulysses_ranks", "formulas/test_ulysses.py::test_copied_heads_travel_once_a_copy"],
    "vali-083": [f"{RULES}::test_a_zigzag_ring_needs_a_multiple_of_twice_its_ranks"],
    "vali-084": [f"{RULES}::test_a_vocabulary_is_padded_and_never_a_reason_to_refuse"],
    "byte-086": [f"{RULES}::test_padding_depends_on_tensor_parallelism"],
    "vali-087": [f"{RULES}::test_any_vocabulary_multiple_is_taken"],
    "vali-088": [f"{RULES}::test_expert_parallelism_does_not_multiply_gpus"],
    "vali-089": [f"{RULES}::test_expert_tensor_parallelism_is_one_unless_set"],
    "vali-091": [f"{RULES}::test_sixty_experts_on_eight_ranks"],
    "vali-093": [f"{RULES}::test_too_few_micro_batches_for_virtual_stages"],
    "flop-096": [f"{COUNTS}::test_torchtitan_count_of_an_expert_model"],
    "flop-097": [f"{COUNTS}::test_maxtext_table"],
    "flop-099": [f"{COUNTS}::test_latent_attention_scores"],
    "flop-102": [f"{HERE_FILE}::test_flops_of_a_published_qwen3_run"],
    "flop-104": [f"{COUNTS}::test_prediction_modules_count_only_where_a_convention_says_so"],
    "flop-106": [f"{COUNTS}::test_total_parameters_mislead_for_experts"],
    "flop-112": [f"{COUNTS}::test_mfu_is_of_the_dense_peak"],
    "flop-116": [f"{FACTS}::test_dense_peak"],
    "usab-127": ["report/test_validate.py::test_text_has_every_table", "validation/test_predict.py::test_rankings_are_of_one_model_and_batch"],
    "cali-119": ["calibrate/test_cases.py::test_a_cold_first_product_does_not_count"],
    "cali-120": ["calibrate/test_cases.py::test_a_burst_and_a_held_rate_are_both_kept_and_training_takes_the_held_one"],
    "cali-121": ["calibrate/test_cases.py::test_a_power_cap_is_recorded_and_warned_of"],
    "cali-124": ["calibrate/test_cases.py::test_uncalibrated_rates_lie_below_the_roofline_and_say_what_they_are"],
    "byte-128": [f"{FACTS}::test_achieved_rate_is_kept_beside_the_nominal_one"],
    "byte-129": [f"{FACTS}::test_achieved_rate_is_kept_beside_the_nominal_one", f"{FACTS}::test_h800_and_h20_do_not_share_a_link"],
    "byte-133": ["formulas/test_collectives.py::test_the_size_of_an_all_gather_is_that_of_the_gathered_array"],
    "byte-137": ["rates/test_network.py::test_one_400_gbit_nic_delivers_48_to_49_gbytes_per_s"],
    "byte-140": ["formulas/test_ring_attention.py::test_ring_bytes_of_llama_3_8b", "formulas/test_ulysses.py::test_llama_3_8b_over_eight_ranks"],
    "usab-186": [f"{PLAN}::test_no_fit_names_a_number_of_gpus_that_is_enough"],
    "usab-188": [f"{PLAN}::test_a_beginner_gets_three_ranked_layouts_with_reasons"],
    "usab-189": [f"{HERE_FILE}::test_what_grows_with_the_sequence_is_named"],
}  # fmt: skip

CANNOT_HOLD = {  # wholly or in the part that is named
    "memo-018": "the peaks (52.4 and 56.1 GB) rest on a length and a model that are not given, and ZeRO-3's holds nearly all "
    "weights gathered at once, far beyond stage3_max_live_parameters; what stays resident is tested",
    "memo-038": "the toy model behind 6,792 and 9,952 parameters is not given; the split and the heaviest stage are tested",
    "memo-068": "the number of GPUs is not published, and stages of named layers (a layout string) are not an input of an estimate",
    "cali-124": "the throughput of a serving engine is not an output; that the default rates carry efficiencies and their label is tested",
    "vali-084": "GLM-4.7 itself breaks another rule on 6 ranks (8 key/value heads); its vocabulary and head count are tested",
}


def field_cases():
    rows = [json.loads(line) for line in (HERE / "data" / "field-cases.jsonl").read_text().splitlines()]
    return {r["id"]: r for r in rows if "id" in r}


def test_every_case_has_a_test_or_a_reason():
    wanted = {i for i, row in field_cases().items() if row["kind"] in KINDS}
    assert wanted == set(WHERE) | set(CANNOT_HOLD)
    assert len(wanted) == 76


def test_every_named_test_exists():
    names: dict[str, set[str]] = {}
    for nodes in WHERE.values():
        for node in nodes:
            path, _, name = node.partition("::")
            if path not in names:
                tree = ast.parse((HERE / path).read_text())
                names[path] = {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
            assert name in names[path], node


def held(model, layout, cluster="dgx-h100", **workload):
    given = {"seq_len": 4096, "global_batch": 8} | workload
    return price_memory(model, load_cluster(cluster), Workload(**given), Layouts.of(Layout(**layout)))


def priced(model, layout, cluster="dgx-h100", **workload) -> Estimate:
    where = load_cluster(cluster)
    return _estimate(model, where, Workload(**workload), Layout(**layout), rates_for(where))


def plain(layers=32, hidden=4096, width=14336, heads=32, kv=8, vocab=128256):
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=kv, head_dim=128), mlp=DenseMlp(width=width))
    return ModelSpec(id="m", name="m", hidden=hidden, vocab=vocab, kinds={"k": kind}, layers=(Run(kinds=("k",), count=layers),))


LLAMA_2_7B = 6_738_415_616


def test_the_main_gradients_dtype_is_an_input():
    model = load_model("llama-2-7b")
    for dtype, each in (("fp32", 7.5), ("bf16", 5.5), (None, 7.5)):
        memory = held(model, {"dp": 8}, gradient_dtype=dtype, vocab_multiple=1)
        assert memory.static[0, 0] == pytest.approx(each * LLAMA_2_7B, rel=1e-6)
        assert any("gradients accumulate in" in a for a in memory.assumptions) == (dtype is None)


def test_zero_2_as_its_estimators_had_it():
    """DeepSpeed issue 4076: 4P + 16P/N = 42e9 bytes charges a whole gradient; partitioned, 2P + 18P/N = 29.75e9."""
    whole = optimizer_state.zero_state(7e9, stage=0, shards=8, master_bytes=0, moments_bytes=0) + optimizer_state.sharded_bytes(
        7e9, 16, shards=8
    )
    assert whole == 42_000_000_000
    model = load_model("llama-2-7b")
    memory = held(model, {"dp": 8, "zero": 2}, framework="deepspeed")
    floor = memory.static[0, 0]
    assert floor == pytest.approx((2 + 14 / 8) * LLAMA_2_7B, rel=0.01)
    assert memory.allocated[0, 0] > floor


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_zero_stage_in_every_precision(zero):
    """DeepSpeed issue 5102 and Megatron-LM issue 1349: fp32 is 16 bytes a parameter, mixed 18, pure bf16 its own."""
    model = load_model("llama-2-7b")
    kinds = {
        "fp32": {"precision": "fp32"},
        "mixed": {"precision": "bf16"},
        "pure": {"precision": "bf16", "master_dtype": "bf16", "moment_dtype": "bf16", "gradient_dtype": "bf16"},
    }
    each = {k: held(model, {"dp": 8, "zero": zero}, vocab_multiple=1, **w).static[0, 0] / LLAMA_2_7B for k, w in kinds.items()}
    assert each["pure"] < each["mixed"]
    if zero == 0:
        assert each == pytest.approx({"fp32": 16, "mixed": 18, "pure": 8}, rel=1e-6)
    if zero == 1:
        assert each == pytest.approx({"fp32": 8 + 8 / 8, "mixed": 6 + 12 / 8, "pure": 4 + 4 / 8}, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "gradient", "extra", "each"), [("ZeRO-Offload", 2, 0, 16), ("ZeRO-Infinity", 2, 4, 20), ("Megatron", 4, 0, 18)]
)
def test_the_recipe_behind_a_number_of_bytes(name, gradient, extra, each):
    """accelerate issue 2659: 16, 20 and 18 bytes a parameter are bf16 gradients, these and fp32 ones, or fp32 ones alone."""
    got = optimizer_state.zero_state(1, stage=0, shards=1, gradient_bytes=gradient, step_gradient_bytes=extra)
    assert got == each


def test_what_zero_2_and_3_keep():
    """DeepSpeed issue 3734: a 13B model on 8 A100: 45.46 and 25.31 GB stay allocated."""
    model = load_model("llama-2-13b")
    two, three = (held(model, {"dp": 8, "zero": z}, "dgx-a100", framework="deepspeed").static[0, 0] for z in (2, 3))
    assert two == pytest.approx(45.46e9, rel=0.08)
    assert three == pytest.approx(25.31e9, rel=0.04)


def test_interleaved_stages_can_hold_less():
    """torchtitan, Llama 3.1 405B on 512 GPUs, tp 8, pp 8, FSDP 8, full recompute: 82.5 GiB under 1F1B, 72.7 interleaved.

    torchtitan cuts a local batch of 32 into as many micro-batches as there are stages (its default of
    pipeline_parallel_microbatches): four sequences each over 8 stages, two over 16.
    """
    plain_, interleaved = (
        held(
            load_model("llama-3.1-405b"),
            {"tp": 8, "pp": 8, "dp": 8, "zero": 3, "schedule": s, "vpp": v, "recompute": ("full",), "micro_batch": mb},
            "grand-teton-h100-96gb", framework="torchtitan", seq_len=8192, global_batch=256, precision="fp8",
        ).reserved.max()
        / 2**30
        for s, v, mb in (("1f1b", 1, 4), ("interleaved", 2, 2))
    )  # fmt: skip
    assert interleaved < plain_
    assert plain_ == pytest.approx(82.5, rel=0.16)
    assert interleaved == pytest.approx(72.7, rel=0.16)


def test_what_nvidia_smi_shows():
    """aicb pull request 36: a 7B GPT at tp 8, 32 GPUs, no sharded optimizer: nvidia-smi shows 21 GB."""
    memory = held(plain(width=10880, kv=32, vocab=50257), {"tp": 8, "dp": 4, "zero": 0}, "dgx-a100", global_batch=32)
    assert memory.total[0, 0] == pytest.approx(21e9, rel=0.15)
    assert memory.allocated[0, 0] < memory.reserved[0, 0] < memory.total[0, 0]


def test_logits_of_every_position_are_in_the_peak():
    """NeMo Automodel issue 3907: batch x length x vocabulary in bf16 and fp32, and the gradient."""
    model = load_model("gpt-oss-20b")
    one, four = (
        held(model, {"dp": 8, "ep": 8, "micro_batch": b}, "dgx-b200", global_batch=8 * b)
        .tree.find("memory.peak.logits")
        .value[0, 0]
        for b in (1, 4)
    )
    assert one >= 6 * 4096 * 201088
    assert four == pytest.approx(4 * one)


def test_uneven_stages_are_sized_by_the_heaviest():
    """Megatron-Bridge pull request 5077: 8 layers over stages of 1, 2, 2 and 3, not 8 / 4 on each."""
    assert chunk_sizes(8, 4, 1, first=1, last=3) == [1, 2, 2, 3]
    e = priced(plain(layers=8), {"pp": 4, "dp": 2, "first_layers": 1, "last_layers": 3}, global_batch=16)
    assert len(e.memory) == 4
    assert e.worst_stage == 3
    assert e.peak_bytes == e.memory[3].value == max(m.value for m in e.memory)
    assert e.peak_bytes > 1.2 * sum(m.value for m in e.memory) / 4


def test_each_kind_of_layer_is_priced_by_itself():
    """Megatron-LM issue 1784: dense and expert layers and prediction modules keep different amounts."""
    model = load_model("deepseek-v3")
    memory = held(model, {"dp": 64, "ep": 64}, "dgx-b200", global_batch=64)
    parts = {p.key: float(p.value[0, 0]) for p in memory.tree.find("memory.activations").parts}
    counts = {k: model.layer_names().count(k) for k in model.kinds}
    per_layer = {k: parts[f"memory.activations.{k}"] / n for k, n in counts.items()}
    assert len(per_layer) == 2
    assert len({round(v) for v in per_layer.values()}) == 2
    assert any(key.split(".")[-1] not in counts and value > 0 for key, value in parts.items())


def test_a_busy_expert_rank_holds_more():
    """LoongForge issue 28: the routed part alone grows with the busiest rank's load."""
    model = load_model("mixtral-8x7b")
    even, skewed, double = (
        held(model, {"dp": 8, "ep": 8}, moe_imbalance=x).tree.find("memory.activations").value[0, 0] for x in (1.0, 1.5, 2.0)
    )
    assert skewed - even == pytest.approx((double - even) / 2, rel=1e-6)
    assert even < double < 2 * even


def test_a_windowed_cache_does_not_grow_with_its_first_token():
    """aiconfigurator pull request 1201: the capacity of a windowed model is not that of one token times its length."""
    model = load_model("gemma-3-27b")
    short, long = kv_bytes(model, 512), kv_bytes(model, 131072)
    assert kv_bytes(model, 1024) == 2 * short
    assert long < 0.3 * 256 * short


def test_bytes_are_printed_in_gib():
    """torchtitan issue 94: 83e9 bytes are 77.3 GiB, with the unit."""
    assert show_bytes(83e9) == "77.3 GiB"


def test_flops_of_a_published_qwen3_run():
    """Megatron-Bridge's archive: 208 TFLOP/s at 9,058 tokens/s a GPU; 23.08e9 FLOP a token."""
    flops = flops_per_token(load_model("qwen3-30b-a3b"), 4096)
    assert flops == pytest.approx(23.083e9, rel=0.01)
    assert flops == pytest.approx(208e12 / 9058, rel=0.01)


def test_what_grows_with_the_sequence_is_named():
    """ms-swift issue 7119: a 235B model beyond 32K tokens on 64 H800: activations and logits grow; cp and recompute help."""
    model, base = load_model("qwen3-235b-a22b"), {"tp": 8, "pp": 4, "dp": 2, "ep": 16}
    short, long = (priced(model, base, "hgx-h800", seq_len=s, global_batch=16) for s in (32768, 65536))
    grown = {key: b - a for key, _, unit, a, b in differences(short, long) if unit == "bytes" and b > a}
    most = max(grown, key=lambda key: grown[key])
    assert most.startswith("memory.activations")
    logits = [e.memory[-1].find("memory.peak.logits").value for e in (short, long)]
    assert logits[1] == pytest.approx(2 * logits[0])
    half = priced(model, base | {"cp": 2, "dp": 1}, "hgx-h800", seq_len=65536, global_batch=16)
    again = priced(model, base | {"recompute": ("full",)}, "hgx-h800", seq_len=65536, global_batch=16)
    kept = [e.memory[0].find("memory.activations").value for e in (short, long, half, again)]
    assert kept[1] == pytest.approx(2 * kept[0], rel=0.01)
    assert kept[2] == pytest.approx(kept[0], rel=0.01)
    assert kept[3] < 0.1 * kept[1]
