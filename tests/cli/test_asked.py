"""How a question may be asked: --set over flags over files, units, words, and what a framework takes unless told."""

import json

import pytest


def test_set_wins_over_flags_everywhere(parlay):
    asked = (
        "estimate",
        "llama-3.1-70b",
        "--on",
        "dgx-h100",
        "--layout",
        "tp4.pp4.dp4.mb2",
        "--seq-len",
        "8192",
        "--global-batch",
        "512",
    )
    for more, key, value in (
        (("--zero", "1", "--set", "layout.zero=0"), "zero", 0),
        (("--recompute", "full", "--set", "layout.recompute_layers=3"), "recompute_layers", 3),
        (("--set", "layout.dp=8"), "dp", 8),
    ):
        assert parlay(*asked, *more, "--json").document["estimate"]["layout"][key] == value
    precision = parlay(*asked, "--precision", "fp8", "--set", "training.precision=bf16", "--json")
    assert precision.document["question"]["precision"] == "bf16"
    slower = parlay(*asked, "--set", "cluster.nics_per_node=1", "--json").document["estimate"]
    assert slower["step_s"] > parlay(*asked, "--json").document["estimate"]["step_s"]
    refused = parlay(*asked, "--set", "cluster.foo=0")
    assert refused.code == 2
    assert "foo" in refused.err
    selective = parlay(*asked, "--recompute", "selective", "--set", "layout.recompute_layers=1")
    assert selective.code == 2
    assert "recompute_layers" in selective.err


def test_a_question_about_the_users_own_files(parlay, tmp_path):
    cluster = tmp_path / "mine.toml"
    cluster.write_text('extends = "dgx-h100"\nid = "mine"\nname = "Mine"\nnics_per_node = 4\n', encoding="utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = parlay("plan", tmp_path / "config.json", "--on", cluster, "--gpus", "8", "--json")
    assert ran.code == 0
    assert ran.document["question"]["cluster"] == "mine"
    assert ran.document["question"]["parameters_total"] == 1_235_814_400


def test_torchtitan_shards_with_fsdp_unless_told_otherwise(parlay):
    words = ("estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp1.pp1.dp8", "--global-batch", "64", "--json")
    assert parlay(*words, "--framework", "torchtitan").document["estimate"]["layout"]["zero"] == 3
    assert parlay(*words, "--framework", "torchtitan", "--zero", "0").document["estimate"]["layout"]["zero"] == 0
    assert parlay(*words).document["estimate"]["layout"]["zero"] == 1


def test_hai_llm_takes_what_runs_where_nothing_is_said(parlay):
    asked = ("estimate", "deepseek-v2-lite", "--on", "hgx-h800", "--framework", "hai-llm", "--json")
    for layout, batch, recompute, schedule, overlap in (
        ("pp4.dp16.ep8", 512, "none", "dualpipe", True),
        ("pp4.dp16.ep8", 496, "none", "1f1b", False),  # 31 micro-batches are odd
        ("pp4.dp16.ep8", 512, "full", "dualpipe", False),
        ("pp3.dp16.ep8", 512, "none", "1f1b", False),
    ):
        found = parlay(*asked, "--layout", layout, "--global-batch", str(batch), "--recompute", recompute)
        kept = found.document["estimate"]["layout"]
        assert (kept["schedule"], kept["ep_overlap"]) == (schedule, overlap), layout


@pytest.mark.parametrize(
    "given", ["recompute=5", "recompute=[{a=1}]", "recompute=[[1]]", "pp=x", "dp=[1]", "ep={}", "schedule=[1]", "vpp={}"]
)
def test_a_layout_of_the_wrong_kinds_is_refused_under_every_framework(parlay, given):
    for framework in ("hai-llm", "torchtitan"):
        ran = parlay(
            "estimate",
            "deepseek-v2-lite",
            "--on",
            "hgx-h800",
            "--framework",
            framework,
            "--layout",
            "pp4.dp16.ep8",
            "--set",
            f"layout.{given}",
        )
        assert ran.code == 2, (framework, given)
        assert "layout" in ran.err


@pytest.mark.parametrize("given", ["2025-01-01", "'2025-01-01'"])
def test_a_date_may_be_written_as_toml_writes_dates(parlay, given):
    ran = parlay(
        "estimate", "llama-3.2-1b", "--on", "dgx-h100", "--layout", "dp8", "--set", f"training.framework_date={given}", "--json"
    )
    assert ran.code == 0


def test_hai_llm_runs_dualpipe_unless_told_otherwise(parlay):
    asked = ("qwen3-30b-a3b", "--on", "hgx-h800", "--global-batch", "64", "--json")
    words = ("estimate", *asked, "--layout", "tp1.pp4.dp8.ep8")
    assert parlay(*words).document["estimate"]["layout"]["schedule"] is None
    for more, schedule, overlap in ((), "dualpipe", True), (("--set", "layout.schedule=zb-h1"), "zb-h1", False):
        found = parlay(*words, "--framework", "hai-llm", *more).document["estimate"]["layout"]
        assert (found["schedule"], found["ep_overlap"]) == (schedule, overlap)
    for fixed in ("1f1b", "dualpipe"):  # and the command that a plan offers prices the same layout
        plain = ("plan", *asked[:-1], "--framework", "hai-llm", "--gpus", "32", "--fix", f"schedule={fixed}")
        row = parlay(*plain, "--json").document["rows"][0]["estimate"]
        command = parlay(*plain).out.strip().splitlines()[-1].split()
        again = parlay(*command[1:], "--json").document["estimate"]
        left_open = ("sp", "shard")
        assert {k: v for k, v in again["layout"].items() if k not in left_open} == {
            k: v for k, v in row["layout"].items() if k not in left_open
        }
        assert again["step_s"] == row["step_s"]


def test_counts_times_and_bytes_may_have_units(parlay):
    """`docs/nomenclature.md` says that quantities are written with units on the command line: --gpus, --headroom, --forward."""
    plan = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--json", "--top", "1"]
    assert parlay(*plan, "--gpus", "1k", "--global-batch", "1000").document["question"]["gpus"] == 1000
    assert parlay(*plan, "--gpus", "8", "--headroom", "4GiB").document["headroom_bytes"] == 4 * 2**30
    assert parlay(*plan, "--gpus", "8", "--headroom", "4").document["headroom_bytes"] == 4 * 2**30
    assert "training FLOPs per token at 8,000 tokens" in parlay("models", "show", "llama-3.1-8b", "--seq-len", "8k").out
    schedule = ["schedule", "1f1b", "--stages", "2", "--micro-batches", "4", "--json"]
    units = ["--forward", "5ms", "--backward", "10 ms", "--weight", "4ms", "--transfer", "500us"]
    bare = ["--forward", "0.005", "--backward", "0.01", "--weight", "0.004", "--transfer", "0.0005"]
    assert parlay(*schedule, *units).out == parlay(*schedule, *bare).out


def test_a_fixed_inner_degree_means_usp(parlay):
    plan = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "16", "--json", "--fix", "ulysses=2"]
    rows = parlay(*plan).document["rows"]
    assert rows
    assert {(r["estimate"]["layout"]["cp_kind"], r["estimate"]["layout"]["ulysses"]) for r in rows} == {("usp", 2)}


def test_explain_takes_gpus_and_precision(parlay):
    command = ["explain", "step.exposed.tp", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.dp4", "--json"]
    bf16, fp8 = (parlay(*command, "--gpus", "8", "--precision", p) for p in ("bf16", "fp8"))
    assert (bf16.code, fp8.code) == (0, 0)
    assert bf16.document["question"]["precision"] == "bf16"
    assert fp8.document["question"]["precision"] == "fp8"


def test_an_optimizer_with_moments_of_its_own_takes_no_other_format(parlay, run_file):
    path = run_file("model = 'llama-3.1-8b'\ncluster = 'dgx-h100'\n[training]\nmoment_dtype = 'bf16'\n[layout]\ntp = 2\ndp = 4\n")
    assert "keeps its moments in fp32 alone" in parlay("estimate", path, "--optimizer", "adafactor").err
    assert parlay("estimate", path, "--optimizer", "adafactor", "--set", "training.moment_dtype=null").code == 0
    assert parlay("estimate", path, "--optimizer", "muon").code == 0


def test_what_is_fixed_is_said(parlay, run_file):
    asked = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--top", "1"]
    assert (
        "asked     tp=2, recompute=none,full, dp>=2\n"
        in parlay(*asked, "--fix", "tp=2", "--fix", "recompute=none,full", "--min", "dp=2").out
    )
    path = run_file(
        "model = 'llama-3.1-8b'\ncluster = 'dgx-h100'\ngpus = 8\n[layout]\ntp = 2\nsp = true\nrecompute = ['norm', 'mlp']\n"
    )
    said = ["tp=2 (run file)", "sp=on (run file)", "recompute=norm+mlp (run file)"]
    assert sorted(parlay("plan", path, "--top", "1", "--json").document["asked"]) == sorted(said)
    assert "tp=4" in parlay("plan", path, "--top", "1", "--fix", "tp=4", "--json").document["asked"]
    changed = ["--set", "layout.tp=4", "--set", "layout.sp=true", "--set", "training.framework=torchtitan"]
    said = ["tp=4 (--set)", "sp=on (run file)", "recompute=norm+mlp (run file)", "zero=3 (torchtitan's default)"]
    assert sorted(parlay("plan", path, "--top", "1", *changed, "--json").document["asked"]) == sorted(said)
    assert parlay(*asked, "--set", "layout={pp = 2}", "--json").document["asked"] == ["pp=2 (--set)"]


@pytest.mark.parametrize("value", ["null", "rule"])
def test_a_value_of_a_file_is_taken_back(parlay, run_file, value):
    path = run_file(
        "model = 'llama-3.1-70b'\ncluster = 'dgx-h100'\n[training]\nmoment_dtype = 'bf16'\n"
        "[layout]\ntp = 8\npp = 4\ndp = 2\nfirst_layers = 15\nlast_layers = 10\n"
    )
    ends = [f"--set=layout.first_layers={value}", f"--set=layout.last_layers={value}", "--set=training.moment_dtype=null"]
    plain = parlay("estimate", "llama-3.1-70b", "--on", "dgx-h100", "--layout", "tp8.pp4.dp2", "--json").document["estimate"]
    taken = parlay("estimate", path, *ends, "--json").document["estimate"]
    assert taken["layout"] == plain["layout"]
    assert taken["memory_peak_bytes"] == plain["memory_peak_bytes"]
    assert parlay("estimate", path, "--json").document["estimate"]["memory_peak_bytes"] != plain["memory_peak_bytes"]


def test_null_takes_back_what_the_catalog_says_of_a_model(parlay):
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp8", "--json"]
    assert parlay(*asked, "--set", "model.max_positions=null").code == parlay(*asked).code == 0


def test_a_precision_may_be_in_any_case(parlay):
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp8", "--json"]
    assert parlay(*asked, "--precision", "FP16").out == parlay(*asked, "--precision", "fp16").out


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        (["estimate", "llama-3.1-8b", "--layout", "tp8", "--seq-len", "4k"], 1),
        (["compare", "llama-3.1-8b", "--layout", "tp8", "--layout", "tp4.dp2", "--seq-len", "4k"], 1),
        (["sweep", "llama-3.2-1b", "--gpus", "1,2", "--global-batch", "8", "--seq-len", "4k,4Ki"], 1),
        (["estimate", "llama-3.1-8b", "--layout", "tp8", "--seq-len", "4Ki"], 0),
        (["estimate", "llama-3.1-8b", "--layout", "tp8", "--seq-len", "4000"], 0),
        (
            ["estimate", "llama-3.1-8b", "--layout", "tp8", "--seq-len", "48k"],
            0,
        ),  # a multiple of 128, and no power of two is near
    ],
)
def test_thousands_of_tokens_that_are_hardly_meant_are_noted_once(parlay, arguments, times):
    ran = parlay(*arguments, "--on", "dgx-h100")
    assert ran.code == 0
    assert ran.err.count("note: a --seq-len of 4k is 4,000 tokens; 4,096 is 4Ki or 4096\n") == ran.err.count("Ki or") == times


def test_every_power_of_two_of_thousands_has_its_note(parlay):
    """32,000 and 128,000 tokens are multiples of 128, but 32,768 and 131,072 are what lengths written so mostly are."""
    ran = parlay("sweep", "llama-3.2-1b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--seq-len", "16k,32k,128k")
    said = [f"{n}k is {n},000 tokens; {1024 * n:,} is {n}Ki or {1024 * n}" for n in (16, 32, 128)]
    assert [line for line in ran.err.splitlines() if "Ki or" in line] == [f"note: a --seq-len of {text}" for text in said]


def test_hints_name_what_can_be_typed(parlay, tmp_path):
    (tmp_path / "run.toml").write_text("model = 'llama-3.1-8b'\n")
    assert f"did you mean {tmp_path / 'run.toml'}?" in parlay("plan", tmp_path / "rum.toml", "--on", "dgx-h100").err
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "dp8"]
    assert "did you mean layout.cp_kind?" in parlay(*asked, "--set", "cp_kind=ulysses").err
    assert "did you mean training.seq_len?" in parlay(*asked, "--set", "seq_len=1").err


def test_mfu_by_the_convention_asked_for(parlay):
    """The step stays; torchtitan counts the whole of a causal attention, Megatron half of it."""
    asked = ("estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.pp1.dp4", "--global-batch", "64")
    mine = parlay(*asked, "--json").document["estimate"]
    theirs = parlay(*asked, "--set", "training.flops_convention=torchtitan", "--json").document["estimate"]
    assert (mine["flops_convention"], theirs["flops_convention"]) == ("megatron", "torchtitan")
    assert mine["step_s"] == theirs["step_s"]
    more = theirs["flops_per_token"] / mine["flops_per_token"]
    assert theirs["mfu"] / mine["mfu"] == pytest.approx(more, rel=1e-12)
    assert more > 1
    text = parlay(*asked, "--set", "training.flops_convention=torchtitan").out
    assert "attention counted in full" in text
    assert "(torchtitan)" in text
    refused = parlay(*asked, "--set", "training.flops_convention=flops")
    assert refused.code == 2
    assert "'palm'" in refused.err


def test_a_checkpoint_by_hand(parlay):
    """Llama 8B: 2 + 12 bytes a parameter under Megatron, 4 + 8 under torchtitan, which updates the weights themselves."""
    asked = ("estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.pp1.dp4", "--global-batch", "64")
    for framework, each in (("megatron-core", 14), ("torchtitan", 12), ("deepspeed", 14)):
        found = parlay(*asked, "--framework", framework, "--json").document["estimate"]["checkpoint_bytes"]
        assert found == each * 8_030_261_248
    assert "a checkpoint of weights and optimizer state holds 112 GB" in parlay(*asked).out
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)  # whose muon keeps one momentum
    muon = parlay(*asked, "--optimizer", "muon", "--json").document["estimate"]["checkpoint_bytes"]
    assert muon == 14 * 8_030_261_248 - 4 * matrices
    assert "a checkpoint of the adapters holds" in parlay(*asked, "--lora", "8").out


def test_sweep_and_ladder_take_any_field_of_training(parlay):
    asked = ("sweep", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64")
    (row,) = parlay(*asked, "--set", "training.gradient_dtype=bf16", "--json").document["rows"]
    plan = parlay("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--set",
                  "training.gradient_dtype=bf16", "--json").document["rows"][0]["estimate"]  # fmt: skip
    assert (row["precision"], row["framework"], row["settings"]) == ("bf16", "megatron-core", "gradient_dtype=bf16")
    told = parlay(*asked, "--set", "training.gradient_dtype=bf16").out
    assert "Llama 3.1 8B on DGX H100, strong scaling, bf16, adamw, megatron-core, gradient_dtype=bf16" in told
    assert row["step_s"] == plan["step_s"] != parlay(*asked, "--json").document["rows"][0]["step_s"]
    ladder = ("ladder", "--on", "dgx-h100", "--gpus", "1")
    sizes = [parlay(*ladder, *more, "--json").document["ladders"][0]["steps"][0]["parameters"]
             for more in ((), ("--set", "training.moment_dtype=bf16"))]  # fmt: skip
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("training.seq_len=8192", ["seq_len has an option of its own here", "use --seq-len"]),
        ("layout.tp=4", ["'layout' cannot be set here, only fields of training", "layouts are searched"]),
        ("training=", ["'training=' is not a setting"]),
        ("training.gradient_dtyp=bf16", ["unknown key 'gradient_dtyp'", "did you mean gradient_dtype"]),
        ("gradient_dtype=bf16", ["did you mean training.gradient_dtype?"]),
    ],
)
def test_what_a_sweep_cannot_set_is_refused(parlay, given, words):
    ran = parlay("sweep", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--set", given)
    assert ran.code == 2
    assert all(word in ran.err for word in words), ran.err


@pytest.mark.parametrize("given", ["training=", "layout=tp8", "budget=3"])
def test_a_whole_section_is_no_setting(parlay, given):
    """It would silently take back what flags say of the section; a table of fields is laid over them."""
    ran = parlay("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--seq-len", "8192", "--set", given)
    assert (ran.code, "is not a setting" in ran.err) == (2, True)
    table = parlay(
        "plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--seq-len", "8192", "--set", "training={global_batch = 64}"
    )
    assert "8,192 tokens x 64 sequences" in table.out


def test_serving_has_no_settings_of_training(parlay):
    ran = parlay("ladder", "--on", "dgx-h100", "--gpus", "8", "--serve", "--set", "training.moment_dtype=bf16")
    assert (ran.code, "--set is about training" in ran.err) == (2, True)


def test_lists_of_sweep_and_ladder_may_be_given_piece_by_piece(parlay):
    asked = ["sweep", "llama-3.2-1b", "--csv"]
    whole = parlay(*asked, "--on", "dgx-h100,dgx-a100", "--gpus", "1,2", "--global-batch", "8,16", "--seq-len", "1024,2048")
    pieces = [x for pair in (("--on", "dgx-h100", "dgx-a100"), ("--gpus", "1", "2"), ("--global-batch", "8", "16"), ("--seq-len", "1024", "2048")) for v in pair[1:] for x in (pair[0], v)]  # fmt: skip
    assert parlay(*asked, *pieces) == whole
    assert whole.code == 0
    assert len(whole.out.splitlines()) == 17
    ladder = parlay("ladder", "--on", "dgx-h100", "--on", "dgx-a100", "--gpus", "8")
    assert ladder == parlay("ladder", "--on", "dgx-h100,dgx-a100", "--gpus", "8")
