"""What each kind of row becomes, checked by hand against the printed cells and the settings beside them."""

import dataclasses

import pytest

from parlay.estimate.counts import parameters
from parlay.validation.architectures import UnknownArchitecture, architecture
from parlay.validation.habits import era_of, habit_of, keeps_remainder
from parlay.validation.mapping import Case, Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.runs import packaged_runs, read_runs


@pytest.fixture(scope="module")
def runs():
    return {run.id: run for run in packaged_runs()}


# id -> (cluster, model, layout fields, workload fields), each read off the row and its settings
BY_HAND = {
    "bridge-2606-005": (
        "gb200-nvl72", "llama-3.1-405b",
        {"tp": 4, "pp": 16, "vpp": 8, "dp": 4, "zero": 1, "micro_batch": 1, "tp_overlap": True, "recompute": ()},
        {"precision": "mxfp8", "global_batch": 1536, "gradient_dtype": "bf16", "master_dtype": "fp32", "cross_entropy": "te",
         "overlap_p2p": True, "vocab_multiple": 1, "framework_date": "2026-06-30", "cuda_graphs": False},
    ),
    "bridge-260401-004": (
        "gb200-nvl72", "llama-3-70b",
        {"tp": 1, "pp": 1, "dp": 64, "zero": 3, "micro_batch": 2, "offload_activations": 0.5, "tp_overlap": False},
        {"precision": "fp8", "global_batch": 256, "framework_date": "2026-04-30", "framework": "megatron-core"},
    ),
    "bridge-2511-021": (
        "dgx-b200", "llama-3.1-405b",
        {"tp": 4, "cp": 2, "pp": 8, "vpp": 8, "dp": 2, "cp_kind": "zigzag", "sp": True},
        {"overlap_param_gather": True, "framework_date": "2025-11-30", "attention_kernel": "cudnn"},
    ),
    "bridge-2509-012": (
        "gb200-nvl72", "qwen3-235b-a22b",
        {"tp": 2, "dp": 32, "ep": 64, "etp": 1, "tp_overlap": False, "ep_overlap": False},
        {"moe_capacity_factor": 1.0, "moe_dispatcher": "alltoall", "cuda_graphs": True, "precision": "mxfp8"},
    ),
    "bridge-2608-006": (
        "gb200-nvl72", "gpt-oss-120b",
        {"ep": 64, "dp": 64, "ep_overlap": True, "micro_batch": 4},
        {"moe_dispatcher": "hybridep", "cuda_graphs": True, "fp8_attention": True, "moe_capacity_factor": None},
    ),
    "bridge-skill-003": ("dgx-h100", "moonlight-16b-a3b", {"tp": 2, "ep": 8, "etp": 1, "recompute": ("mla_up",)}, {"global_batch": 4}),
    "megatron-dsv3-001": (
        "gb200-nvl72", "deepseek-v3",
        {"pp": 8, "vpp": 4, "ep": 32, "first_layers": 7, "last_layers": 6, "recompute": ("mla_up", "mlp")},
        {"moment_dtype": "bf16", "gradient_dtype": "fp32", "attention_kernel": "cudnn", "moe_dispatcher": "alltoall"},
    ),
    "narayanan-005": (
        "selene", "gpt-39.1b",
        {"tp": 8, "pp": 2, "dp": 32, "zero": 0, "sp": False, "recompute": ("full",), "micro_batch": 4},
        {"flash_attention": False, "gradient_dtype": "fp16", "overlap_grad_reduce": False, "precision": "fp16", "dropout": 0.1},
    ),
    "narayanan-t2-001": ("selene", "gpt-174.6b", {"tp": 1, "pp": 1, "dp": 384, "zero": 3}, {"framework": "deepspeed"}),
    "korthikanti-002": ("selene", "gpt-22b", {"tp": 8, "sp": True, "recompute": ("core_attention",)}, {"flash_attention": False}),
    "titan-004": (
        "grand-teton-h100-96gb", "llama-3-8b",
        {"dp": 128, "zero": 3, "recompute": ("selective_ops",), "micro_batch": 2},
        {"compiled": False, "reshard_after_forward": True, "attention_kernel": "flash-2", "cross_entropy": "unfused",
         "gradient_dtype": "fp32", "framework_date": "2024-12-31"},
    ),
    "titan-014": (
        "grand-teton-h100-96gb", "llama-3.1-405b",
        {"tp": 8, "pp": 8, "vpp": 2, "dp": 8, "micro_batch": 4, "tp_overlap": True, "recompute": ("full",)},
        {"precision": "fp8", "compiled": True, "reshard_after_forward": False},
    ),
    "titan-008": ("grand-teton-h100-96gb", "llama-3-8b", {"cp": 2, "dp": 4, "cp_kind": "allgather"}, {"seq_len": 65536, "global_batch": 4}),
    "foundry-154": ("mosaicml-a100-40gb", "mpt-7b", {"dp": 8, "zero": 3, "micro_batch": 6, "recompute": ("full",)}, {"global_batch": 192}),
    "foundry-001": ("dgx-h100", "mpt-70b", {"dp": 512, "micro_batch": 8}, {"global_batch": 4096, "vocab_multiple": 1}),
    "simumax-027": (
        "dgx-b200", "llama3-405b-4-layers",
        {"tp": 4, "dp": 2, "sp": True, "zero": 1, "tp_overlap": False},
        {"overlap_grad_reduce": False, "overlap_param_gather": False, "cross_entropy": "te", "gradient_dtype": "fp32"},
    ),
    "dgxc-llama405b-011": (
        "dgx-h100", "llama-3.1-405b",
        {"tp": 8, "cp": 2, "pp": 9, "vpp": 7, "dp": 8},
        {"cross_entropy": "fused", "vocab_multiple": 1, "framework_date": "2024-09-30", "precision": "fp8"},
    ),
    "dgxc-grok1-007": (
        "dgx-h100", "grok-1", {"tp": 4, "cp": 2, "pp": 8, "vpp": 8, "ep": 8, "etp": 4, "dp": 8},
        {"moe_capacity_factor": 1.0, "moe_grouped": False, "framework_date": "2024-09-30"},
    ),
    "dgxc-grok25-gb200-001": ("gb200-nvl72", "grok-1", {"tp": 4, "ep": 8, "etp": 4, "dp": 32}, {}),
    "dgxc-maxtext70b-002": ("dgx-h100", "llama-2-70b", {"dp": 128, "shard": 128, "zero": 3, "recompute": ("core_attention", "norm", "mlp")}, {"compiled": True}),
    "dgxc-nemotron25-gb200-001": ("gb200-nvl72", "nemotron-4-340b", {"tp": 8, "pp": 4, "vpp": 12}, {"cuda_graphs": True, "master_dtype": "fp16"}),
    "dgxc-dsv3-003": ("gb200-nvl72", "deepseek-v3", {"tp": 2, "pp": 4, "ep": 32, "etp": 1, "first_layers": 15, "last_layers": 14}, {"moe_capacity_factor": 1.0}),
    "automodel-007": (
        "dgx-h100", "qwen3-30b-a3b", {"ep": 8, "zero": 3, "recompute": ("full",)},
        {"reshard_after_forward": False, "master_dtype": "bf16", "moe_dispatcher": "deepep", "framework": "torchtitan"},
    ),
    "bloom-092": ("jean-zay-a100", "bloom-dev-gpt-181b", {"tp": 4, "pp": 24, "dp": 4, "zero": 1, "sp": False}, {"framework": "deepspeed"}),
    "vtrain-multi-node-001": (
        "vtrain-a100", "gpt-30x3072", {"tp": 1, "dp": 64, "zero": 0, "recompute": ("full",), "micro_batch": 8},
        {"gradient_dtype": "fp16", "flash_attention": False, "overlap_grad_reduce": False, "vocab_multiple": 1},
    ),
    "dgxc-lora70b-001": (
        "dgx-h100", "llama-3-70b", {"tp": 2, "pp": 4, "vpp": 20, "dp": 1},
        {"lora_rank": 16, "lora_modules": ("qkv",), "document_len": 200, "framework": "megatron-core"},
    ),
    "bridge-2606-039": ("gb200-nvl72", "llama-3-70b", {"pp": 2, "vpp": 20}, {"lora_modules": ("qkv",), "document_len": 200}),
    "automodel-013": (
        "dgx-h100", "llama-3-70b", {"tp": 2, "dp": 4, "recompute": ("full",)},
        {"lora_rank": 16, "lora_modules": ("qkv", "out", "up", "down"), "document_len": None},
    ),
    "automodel-010": ("dgx-h100", "llama-3-70b", {"cp": 2, "dp": 32}, {"attention_kernel": "cudnn"}),  # PyTorch's own choice there
    "automodel-008": ("dgx-h100", "gpt-oss-20b", {"dp": 8, "ep": 1}, {"attention_kernel": None}),  # FlexAttention
    "dgxc-sft70b-001": ("dgx-h100", "llama-3-70b", {"tp": 4, "pp": 4}, {"lora_rank": None, "document_len": 200}),
    "bridge-2606-034": ("gb200-nvl72", "llama-3-70b", {"pp": 8, "vpp": 10}, {"lora_rank": None, "document_len": 200}),
    "bridge-2608-017": ("gb300-nvl72", "nemotron-3-ultra-550b-a55b", {"ep": 64, "dp": 256, "zero": 3}, {}),
    "dgxc-dsv3-004": ("gb200-nvl72", "deepseek-v3", {"tp": 2, "pp": 4, "ep": 64}, {"flash_attention": False, "framework_date": "2025-04-30"}),
    "dgxc-dsv3-001": ("dgx-h100", "deepseek-v3", {"tp": 2, "pp": 8, "ep": 64}, {"flash_attention": True}),
    "megatron-dsv3-011": ("gb200-nvl72", "deepseek-v3", {"pp": 8, "vpp": 4, "ep": 32}, {"flash_attention": True}),  # names cuDNN's
    "bridge-2604-044": ("gb300-nvl72", "kimi-k2", {"pp": 4, "ep": 64}, {"flash_attention": True}),  # of 2026
    "gpurecipes-002": ("gcp-a3-ultra", "llama-3-70b", {"tp": 2, "pp": 4, "vpp": 20, "dp": 32}, {"precision": "fp8"}),
    "easycontext-002": ("dgx-a100", "llama-2-7b", {"cp": 8, "cp_kind": "zigzag", "offload_optimizer": 1.0}, {"seq_len": 65536}),
    "gpt3_7b_tp4_pp1_memory_speed/dev_dgx_h100": (
        "dgx-h100", "megatron-ci", {"tp": 4, "dp": 2, "micro_batch": 2, "zero": 1},
        {"framework_date": "2026-05-30"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(runs, name):
    cluster, model, layout, workload = BY_HAND[name]
    case = map_run(runs[name])
    assert isinstance(case, Case), case
    assert (case.cluster.id, case.model.id) == (cluster, model)
    assert {key: getattr(case.layout, key) for key in layout} == layout
    assert {key: getattr(case.workload, key) for key in workload} == workload
    assert case.layout.gpus == runs[name].gpus


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom-003", "shape of 'BLOOM-dev GPT 194B' is not known"),
        ("paddlenlp-001", "neither the global batch nor the micro-batch"),
        ("megascale-001", "layout is not printed"),
        ("torchtune-002", "no cluster of the catalog has the device 'a6000'"),
        ("bert_mcore_tp1_pp4_vp2/dev_dgx_h100", "an encoder, not a decoder-only"),
        ("gpt3_15b_8t_release_sm_gb200/dev_dgx_gb200", "GPU count of this multi-node test is not known"),
    ],
)
def test_what_cannot_be_mapped_says_why(runs, name, reason):
    found = map_run(runs[name])
    assert isinstance(found, Unmapped)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("notes", "settings", "rank", "modules"),
    [
        ("LoRA fine-tuning", {}, 16, ("qkv",)),
        ("LoRA, rank 64, all linear layers", {}, 64, ("qkv", "out", "up", "down")),
        ("LoRA r=8", {}, 8, ("qkv",)),
        ("LoRA", {"lora_rank": "32"}, 32, ("qkv",)),
        ("full fine-tuning, no LoRA", {}, None, None),
        ("trained without lora", {}, None, None),
    ],
)
def test_adapters_as_a_row_tells_them(runs, notes, settings, rank, modules):
    row = runs["dgxc-sft70b-001"]
    case = map_run(dataclasses.replace(row, notes=notes, columns=row.columns | settings))
    assert isinstance(case, Case), case
    assert case.workload.lora_rank == rank
    assert modules is None or case.workload.lora_modules == modules


def test_hardware_as_its_driver_names_it(runs):
    row = dataclasses.replace(runs["dgxc-sft70b-001"], hardware="NVIDIA H100 80GB HBM3")
    assert map_run(row).cluster == map_run(runs["dgxc-sft70b-001"]).cluster


def test_models_have_the_parameters_that_their_sources_print(runs):
    """llm-foundry prints the exact count of every model."""
    seen = 0
    for run in runs.values():
        counted = run.arch.get("num_params")
        if counted:
            case = map_run(run)
            assert parameters(case.model).total == pytest.approx(counted, rel=3e-4)
            seen += 1
    assert seen == 131


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Nemotron_3_Super", 120.7e9, 12.8e9),
        ("Llama4-Maverick-400B", 400.7e9, 17.2e9),
        ("Moonlight-16B-A3B", 15.96e9, None),
        ("Nemotron-H-56B", 56e9, None),
        ("llama-1B (nanotron bench)", 1.11e9, None),
        ("GPT3-20B", 20.2e9, None),
        ("Qwen1.5-MoE-A2.7B", 14.3e9, 2.7e9),
    ],
)
def test_models_built_here_have_their_published_size(runs, name, total, active):
    run = next(run for run in runs.values() if run.model == name)
    counts = parameters(map_run(run).model)
    assert counts.total == pytest.approx(total, rel=0.02)
    assert active is None or counts.active == pytest.approx(active, rel=0.02)


def test_at_least_95_percent_of_tiers_a_and_b_are_mapped(runs):
    graded = [map_run(run) for run in runs.values() if run.tier in ("A", "B")]
    assert len(graded) == 574
    assert sum(isinstance(case, Case) for case in graded) / len(graded) >= 0.95


def test_nothing_measured_reaches_the_mapping(runs, tmp_path):
    """The same row without its measurements maps to the same case."""
    text = (
        "id,framework,model,hardware,num_gpus,precision,seq_len,micro_batch,global_batch,tp,pp,dp,step_time_s,peak_memory_gb\n"
        "a-1,NeMo,Llama3-8B,h100-sxm,8,bf16,8192,1,128,1,1,8,{}\n"
    )
    cases = []
    for number, cells in enumerate(("1.5,70", "99,5", ",")):
        path = tmp_path / f"{number}.csv"
        path.write_text(text.format(cells))
        cases.append(map_run(read_runs(path)[0]))
    assert len({(c.workload, c.layout, c.assumptions) for c in cases}) == 1


def test_assumptions_are_recorded(runs):
    said = map_run(runs["nanotron-002"]).assumptions
    assert any("ZeRO stage 1 (not printed)" in text for text in said)
    assert any("recompute none (not printed)" in text for text in said)
    assert any("p5 instances" in text for text in map_run(runs["nanotron-012"]).assumptions)


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("bridge-260401-004", "2026-04-30"),
        ("dgxc-llama405b-001", "2024-09-30"),
        ("dgxc-nemotronh-001", "2025-04-30"),
        ("titan-025", "2025-06-30"),
        ("narayanan-004", "2021-04-30"),
        ("paddlenlp-001", "2023-11-30"),
    ],
)
def test_era(runs, name, date):
    assert era_of(runs[name], habit_of(runs[name])) == date


@pytest.mark.parametrize(
    ("name", "master"),
    [
        ("bridge-skill-017", None),  # flat recipes leave the precision-aware optimizer off: an fp32 copy
        ("bridge-skill-007", None),
        ("bridge-skill-001", "fp16"),  # Moonlight's turns it on: the 16-bit remainder
        ("bridge-2604-019", "fp16"),  # told by its settings
    ],
)
def test_the_main_weights_of_a_bf16_run_of_megatron_bridge(runs, name, master):
    assert map_run(runs[name]).workload.master_dtype == master


def test_megatron_bridge_turned_the_precision_aware_optimizer_on_until_its_recipes_were_flat(runs):
    habit = habit_of(runs["bridge-skill-017"])
    days = ("2026-06-23", "2026-06-24")
    assert [keeps_remainder(habit, day, "qwen3-30b-a3b") for day in days] == [True, False]
    assert [keeps_remainder(habit, day, "moonlight-16b-a3b") for day in days] == [True, True]
    assert not keeps_remainder(habit_of(runs["dgxc-nemotronh-001"]), days[0], "qwen3-30b-a3b")


# By hand: seconds = tokens of a step / (tokens/s/GPU x GPUs), or FLOPs of the source's formula / (FLOP/s x GPUs)
@pytest.mark.parametrize(
    ("name", "seconds", "how"),
    [
        ("dgxc-llama8b-001", 12.91, "printed"),
        ("bridge-2606-005", 1536 * 8192 / (783 * 256), "tokens/s per GPU"),
        ("easycontext-002", 65536 / 7816, "tokens/s of the cluster"),
        ("bloom-final-001", 2048 / 19.561, "samples/s of the cluster"),
        # 96 B s l h^2 (1 + s/6h + V/16lh) with B=1536 s=2048 l=48 h=8192 V=51200
        (
            "narayanan-005",
            96 * 1536 * 2048 * 48 * 8192**2 * (1 + 2048 / 6 / 8192 + 51200 / 16 / 48 / 8192) / (138e12 * 512),
            "FLOP/s, narayanan convention",
        ),
    ],
)
def test_measured_seconds(runs, name, seconds, how):
    found = measured_step(map_run(runs[name]))
    assert found.step_s == pytest.approx(seconds, rel=1e-6)
    assert found.how == how


def test_a_convention_that_is_not_known_gives_no_seconds(runs):
    import dataclasses

    run = dataclasses.replace(runs["narayanan-005"], flops_convention="somebody's own")
    assert measured_step(map_run(run)).step_s is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Llama-2-7b-hf", "llama-2-7b"),
        ("Llama3.2-1B", "llama-3.2-1b"),
        ("Qwen3_14B (pretrain)", "qwen3-14b"),
        ("Mixtral 8x22B Instruct", "mixtral-8x22b"),
        ("Gemma 2 9B", "gemma-2-9b"),
        ("DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("Kimi K2", "kimi-k2"),
        ("OLMo-2 13B", "olmo-2-13b"),
    ],
)
def test_names_of_sources_find_the_catalog(name, model):
    assert architecture(name, {})[0].id == model


@pytest.mark.parametrize("name", ["Somebody's model", "13B", "7", "", "GPT", "Llama", "x" * 500])
def test_a_name_of_nothing_is_not_guessed(name):
    with pytest.raises(UnknownArchitecture):
        architecture(name, {})


def published(runs, name, **changes):
    """Return a packaged run with some of its fields changed, as a file of one's own may have them."""
    return dataclasses.replace(runs[name], **changes)


@pytest.mark.parametrize(
    ("hardware", "device"),
    [("a100-sxm-40gb", "a100-sxm-40gb"), ("a100-40gb", "a100-sxm-40gb"), ("a100-sxm-80gb", "a100-sxm"), ("a100-80gb-sxm", "a100-sxm"),
     ("a100", "a100-sxm"), ("h100", "h100-sxm"), ("h100-sxm-80gb", "h100-sxm")],
)  # fmt: skip
def test_a_device_by_any_of_its_names(runs, hardware, device):
    assert map_run(published(runs, "dgxc-llama8b-001", hardware=hardware)).cluster.device.id == device


@pytest.mark.parametrize(
    ("name", "model"),
    [("meta-llama/Llama-2-7b-hf", "llama-2-7b"), ("Nemotron_H_56B", "nemotron-h-56b"), ("Qwen3_5_397B", "qwen3.5-397b-a17b"),
     ("Qwen3-Next-80B", "qwen3-next-80b-a3b"), ("DeepSeek_V4_Flash", "deepseek-v4-flash"), ("DSV4-Flash", "deepseek-v4-flash")],
)  # fmt: skip
def test_a_model_by_any_of_its_names(runs, name, model):
    assert map_run(published(runs, "dgxc-llama8b-001", model=name, arch={})).model.id == model


@pytest.mark.parametrize(
    ("words", "schedule"),
    [("dualpipe", "dualpipe"), ("DualPipeV", "dualpipev"), ("ZBV", "zb-v"), ("zero-bubble v", "zb-v"), ("zero bubble", "zb-h1"),
     ("ZB1P", "zb-h1"), ("zb-h2", "zb-h2"), ("GPipe", "gpipe"), ("1F1B", "1f1b")],
)  # fmt: skip
def test_schedules_that_notes_name(runs, words, schedule):
    assert map_run(published(runs, "bloom-092", notes=words)).layout.schedule in (
        schedule,
        None if schedule == "1f1b" else schedule,
    )


def test_torchtune_trains_in_bf16_alone(runs):
    work = map_run(published(runs, "torchao-004", framework="torchtune")).workload
    assert (work.master_dtype, work.moment_dtype) == ("bf16", "bf16")
