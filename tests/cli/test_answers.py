"""What the commands answer: exit codes, documents that keep to their schemas, and text that fits where it goes."""

import json
import re
import shlex

import pytest

from parlay.report.documents import REPORTS

QUESTION = ["llama-3.1-70b", "--on", "dgx-h100", "--seq-len", "8192", "--global-batch", "512"]
LAYOUT = ["--layout", "tp8.pp2.dp4"]
RUN = """
model = "llama-3.1-70b"
cluster = "dgx-h100"
gpu_hour_usd = 2.0

[training]
seq_len = 8192
global_batch = 512
total_tokens = "1T"

[layout]
tp = 8
pp = 2
dp = 4

[budget]
memory_gib = 79
"""


def kept(name, document):
    """Validate a document by its own model and return it."""
    REPORTS[name].model_validate(document)
    assert document["schema_name"] == f"parlay/{name}"
    assert document["schema_version"] == 1
    return document


def test_plan(parlay):
    ran = parlay("plan", *QUESTION, "--gpus", "64", "--tokens", "1T", "--gpu-hour-usd", "2", "--json")
    assert ran.code == 0
    found = kept("plan", ran.document)
    assert len(found["rows"]) == 5
    steps = [r["estimate"]["step_s"] for r in found["rows"]]
    assert steps == sorted(steps)
    assert all(r["estimate"]["fits"] for r in found["rows"])
    first = found["rows"][0]["estimate"]
    tokens_per_s = 8192 * 512 / first["step_s"]
    assert first["tokens_per_s"] == pytest.approx(tokens_per_s)
    assert first["run_s"] == pytest.approx(1e12 / tokens_per_s)
    assert first["gpu_hours"] == pytest.approx(1e12 / tokens_per_s * 64 / 3600)
    assert first["cost_usd"] == pytest.approx(2 * first["gpu_hours"])
    assert found["considered"] >= found["priced"] >= found["fitting"] > 0
    assert sum(found["rejected"].values()) >= found["priced"] - found["fitting"]


def test_plan_in_text(parlay):
    ran = parlay("plan", *QUESTION, "--gpus", "64", "--top", "3", "--tokens", "1T")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    for words in (
        "tok/s/GPU",
        "MFU %",
        "GiB",
        "days",
        "GPU-hours",
        "against 1:",
        "assumed",
        "step time from",
        "MFU:",
        "parlay estimate",
    ):
        assert words in ran.out
    assert "USD" not in ran.out or "gpu-hour" in ran.out.lower()


def test_the_next_command_gives_the_same_estimate(parlay):
    first = parlay("plan", *QUESTION, "--gpus", "64", "--json").document["rows"][0]["estimate"]
    text = parlay("plan", *QUESTION, "--gpus", "64").out
    command = text[text.rindex("parlay estimate") :].replace("\\\n", " ").split()
    again = parlay(*command[1:], "--json").document["estimate"]
    assert again["step_s"] == first["step_s"]
    assert again["memory_peak_bytes"] == first["memory_peak_bytes"]


def test_fixing_axes(parlay):
    ran = parlay("plan", *QUESTION, "--gpus", "64", "--fix", "tp=8", "--fix", "pp=2,4", "--json")
    layouts = [r["estimate"]["layout"] for r in ran.document["rows"]]
    assert layouts
    assert {x["tp"] for x in layouts} == {8}
    assert {x["pp"] for x in layouts} <= {2, 4}


def test_nothing_fits(parlay):
    ran = parlay("plan", "llama-3.1-405b", "--on", "dgx-h100", "--gpus", "16", "--json")
    assert ran.code == 1
    found = kept("plan", ran.document)
    assert found["rows"] == []
    assert found["fits"] is False
    assert found["nearest_miss"]["over_bytes"] > 0
    assert found["cheapest_lever"]
    assert found["rejected"]["memory"] == found["priced"] > 0
    text = parlay("plan", "llama-3.1-405b", "--on", "dgx-h100", "--gpus", "16")
    assert text.code == 1
    assert "Nothing fits" in text.out
    assert "nearest:" in text.out
    assert "cheapest lever:" in text.out


def leaves(term):
    return [x for part in term["parts"] for x in leaves(part)] if term["parts"] else [term]


def test_estimate(parlay):
    ran = parlay("estimate", *QUESTION, *LAYOUT, "--json")
    assert ran.code == 0
    found = kept("estimate", ran.document)["estimate"]
    assert found["time"]["unit"] == "s"
    assert sum(t["value"] for t in leaves(found["time"])) == pytest.approx(found["step_s"])
    assert len(found["memory"]) == 2
    totals = [sum(t["value"] for t in leaves(stage)) for stage in found["memory"]]
    assert max(totals) == pytest.approx(found["memory_peak_bytes"])
    assert totals[found["memory_worst_stage"]] == max(totals)
    assert found["assumptions"]


def test_estimate_that_does_not_fit(parlay):
    ran = parlay("estimate", "llama-3.1-70b", "--on", "dgx-h100", "--layout", "tp1.pp1.dp8")
    assert ran.code == 1
    assert "DOES NOT FIT" in ran.out


def test_rows_of_a_printed_tree_add_up(parlay):
    lines = parlay("estimate", *QUESTION, *LAYOUT).out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("memory of stage"))
    shown = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        depth = (len(line) - len(line.lstrip())) // 2
        figure = next(word for word in line.split() if word.replace(",", "").replace(".", "").isdigit() and "." in word)
        shown.append((depth, float(figure.replace(",", ""))))
    for i, (depth, figure) in enumerate(shown):
        below = []
        for d, f in shown[i + 1 :]:
            if d <= depth:
                break
            if d == depth + 1:
                below.append(f)
        assert not below or sum(below) == pytest.approx(figure, abs=1e-9)
    assert len(shown) > 10


def test_a_run_file_and_a_variant_of_it(parlay, run_file):
    path = run_file(RUN)
    base = parlay("estimate", path, "--json").document
    flags = parlay("estimate", *QUESTION, *LAYOUT, "--json").document
    assert base["estimate"]["step_s"] == flags["estimate"]["step_s"]
    assert base["estimate"]["cost_usd"] == pytest.approx(2 * base["estimate"]["gpu_hours"])
    longer = parlay("estimate", path, "--set", "training.seq_len=16384", "--json").document
    assert longer["question"]["seq_len"] == 16384
    flag = parlay("estimate", path, "--seq-len", "4096", "--json").document
    assert flag["question"]["seq_len"] == 4096
    both = parlay("estimate", path, "--seq-len", "4096", "--set", "training.seq_len=16384", "--json").document
    assert both["question"]["seq_len"] == 16384


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


@pytest.mark.parametrize(
    "question",
    [
        # its first row recomputes some layers in full
        ("qwen3-235b-a22b", "--on", "hgx-h800", "--gpus", "72", "--global-batch", "960", "--precision", "fp8-blockwise", "--framework", "hai-llm"),
        ("llama-3.1-70b", "--on", "dgx-a100-40gb", "--gpus", "64", "--global-batch", "256", "--seq-len", "8192"),
        ("llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--set", "cluster.nics_per_node=2", "--set", "model.vocab=64000"),
    ],
)  # fmt: skip
def test_the_command_that_a_plan_offers_prices_its_first_row(parlay, question):
    row = parlay("plan", *question, "--json").document["rows"][0]["estimate"]
    command = shlex.split(parlay("plan", *question).out.strip().splitlines()[-1])
    again = parlay(*command[1:], "--json").document["estimate"]
    assert again["step_s"] == row["step_s"]
    assert again["memory_peak_bytes"] == row["memory_peak_bytes"]


def test_check(parlay, run_file):
    path = run_file(RUN)
    ran = parlay("check", path, "--json")
    assert ran.code == 0
    assert ran.document["kept"] is True
    broken = parlay("check", path, "--set", "budget.memory_gib=20", "--json")
    assert broken.code == 1
    assert {x["name"]: x["kept"] for x in broken.document["limits"]} == {"device_memory_gib": True, "memory_gib": False}
    text = parlay("check", path, "--set", "budget.memory_gib=20", "--set", "budget.step_s=1e9")
    assert text.code == 1
    assert "BROKEN" in text.out
    assert "1 of 3 limits broken" in text.out


def test_check_holds_a_layout_to_the_device_whatever_the_budget_allows(parlay, run_file):
    """132 GiB may be in the budget, but not in 79.2 GiB; `estimate` says no, so `check` must as well."""
    run = 'model = "llama-3.1-70b"\ncluster = "dgx-h100"\ngpus = 64\n[layout]\ncp = 8\npp = 4\ndp = 2\n'
    assert parlay("estimate", run_file(run)).code == 1
    for budget, limits in (("", 1), ("[budget]\nmemory_gib = 160\n", 2), ("[budget]\nstep_s = 1e9\n", 2)):
        ran = parlay("check", run_file(run + budget), "--json")
        assert ran.code == 1
        found = ran.document["limits"]
        assert len(found) == limits
        assert [x["name"] for x in found if not x["kept"]] == ["device_memory_gib"]


def test_a_recurrent_model_shows_its_state(parlay):
    """Mamba 2.8B: 64 layers x 5,120 channels x 19 elements of two bytes: 11.9 MiB a sequence, and no keys and values."""
    assert "state of recurrent layers, as vLLM keeps it: 11.9 MiB a sequence" in parlay("models", "show", "mamba-2.8b").out
    assert parlay("models", "show", "mamba-2.8b", "--json").document["recurrent_state_bytes"] == 64 * 5120 * 19 * 2
    assert "state of recurrent" not in parlay("models", "show", "llama-3.1-8b").out


def test_no_term_of_memory_rests_on_a_rate(parlay):
    terms = [parlay("explain", name, *QUESTION[:3], *LAYOUT).out for name in ("memory.allocated", "memory.caches.workspaces")]
    for text in terms:
        assert "source default: from default sizes of the libraries' buffers" in " ".join(text.split())
    step = parlay("explain", "step", *QUESTION[:3], *LAYOUT).out
    assert "from datasheet peaks x default efficiencies" in " ".join(step.split())


def test_compare(parlay):
    ran = parlay("compare", *QUESTION, *LAYOUT, "--layout", "tp4.pp4.dp4", "--json")
    assert ran.code == 0
    found = kept("compare", ran.document)
    one, two = found["first"]["estimate"], found["second"]["estimate"]
    rows = [d for d in found["differences"] if d["unit"] == "s"]
    assert sum(d["difference"] for d in rows) == pytest.approx(two["step_s"] - one["step_s"])
    text = parlay("compare", *QUESTION, *LAYOUT, "--layout", "tp4.pp4.dp4").out
    assert "A  tp8.pp2.dp4" in text
    assert "B  tp4.pp4.dp4" in text


def test_compare_on_different_numbers_of_gpus_says_both(parlay):
    """64 and 128 GPUs: the heading names both, and what is fair to compare is per GPU."""
    asked = ["compare", *QUESTION, *LAYOUT, "--layout", "tp4.pp4.dp8"]
    text, document = parlay(*asked).out, parlay(*asked, "--json").document
    assert "cluster A  DGX H100: 64 x NVIDIA H100" in text
    assert "cluster B  DGX H100: 128 x NVIDIA H100" in text
    one, two = document["first"]["estimate"]["step_s"], document["second"]["estimate"]["step_s"]
    (row,) = (line.split() for line in text.splitlines() if line.startswith("GPU-s a step"))
    assert row[3:5] == [f"{64 * one:,.0f}", f"{128 * two:,.0f}"]
    assert "not the same work per GPU" in text
    assert (document["same_gpus"], document["first"]["question"]["gpus"], document["second"]["question"]["gpus"]) == (
        False,
        64,
        128,
    )
    alike = ["compare", *QUESTION, *LAYOUT, "--layout", "tp4.pp4.dp4"]
    assert "cluster   DGX H100: 64 x" in parlay(*alike).out
    assert "same work" not in parlay(*alike).out
    assert parlay(*alike, "--json").document["same_gpus"] is True


def test_the_next_command_keeps_tokens_and_price(parlay):
    out = parlay("plan", *QUESTION, "--gpus", "64", "--tokens", "1234567890", "--gpu-hour-usd", "2.5").out
    assert "--tokens 1234567890 --gpu-hour-usd 2.5" in out[out.index("next:") :]
    out = parlay("plan", *QUESTION, "--gpus", "64", "--gpu-hour-usd", "2.5").out  # a price alone gives no cost
    assert "--gpu-hour-usd" not in out[out.index("next:") :]
    assert "--tokens" not in out[out.index("next:") :]


def test_compare_two_run_files(parlay, tmp_path):
    for name, pp in (("a", 2), ("b", 4)):
        (tmp_path / f"{name}.toml").write_text(RUN.replace("pp = 2", f"pp = {pp}"), encoding="utf-8")
    ran = parlay("compare", tmp_path / "a.toml", tmp_path / "b.toml", "--json")
    assert ran.code == 0
    assert [ran.document[k]["question"]["gpus"] for k in ("first", "second")] == [64, 128]


def test_explain_lists_shows_and_computes(parlay):
    listed = parlay("explain", "--json").document["formulas"]
    assert "pipeline.one_f_one_b_bubble_s" in {f["name"] for f in listed}
    ran = parlay(
        "explain", "pipeline.one_f_one_b_bubble_s", "--set", "stages=[1, 8]", "--set", "forward_s=2 ms", "--set", "backward_s=4ms"
    )
    assert ran.code == 0
    for words in ("t_idle = (p - 1)(f + B)", "stages", "arXiv:1811.06965", "[0 us, 42.00 ms]"):
        assert words in ran.out
    found = parlay(
        "explain",
        "roofline.machine_balance",
        "--set",
        "flops_per_s=989 TFLOP/s",
        "--set",
        "memory_bytes_per_s=3.35 TB/s",
        "--json",
    )
    assert found.document["result"] == pytest.approx(989 / 3.35)


def test_explain_a_term(parlay):
    ran = parlay("explain", "memory.optimizer.dense.moments", *QUESTION[:3], *LAYOUT, "--json")
    found = ran.document
    assert found["term"]["formula"] == "optimizer_state.sharded_bytes"
    inputs = found["term"]["inputs"]
    assert found["term"]["value"] == pytest.approx(inputs["parameters"] * inputs["bytes_each"] / inputs["shards"])
    text = parlay("explain", "step.exposed", *QUESTION[:3], *LAYOUT).out
    assert "step.exposed.tp" in text
    assert "S = P b / D" in parlay("explain", "memory.optimizer.dense.moments", *QUESTION[:3], *LAYOUT).out


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "list"],
        ["hardware", "list"],
        ["models", "show", "deepseek-v3"],
        ["hardware", "show", "dgx-h100"],
        ["hardware", "show", "h100-sxm"],
    ],
)
def test_catalogs(parlay, arguments):
    text, document = parlay(*arguments), parlay(*arguments, "--json")
    assert (text.code, document.code) == (0, 0)
    assert "\x1b" not in text.out
    assert document.document["schema_version"] == 1


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


def test_a_plan_without_a_layout_quotes_the_rules(parlay):
    ran = parlay("plan", "deepseek-v2-lite", "--on", "hgx-h800", "--gpus", "64", "--framework", "hai-llm", "--fix", "cp=2")
    assert ran.code == 1
    assert "no context parallelism" in ran.out
    assert "use cp=1" in ran.out


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


def test_a_first_row_that_barely_fits_says_how_to_leave_room(parlay):
    question = ("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--seq-len", "8192", "--global-batch", "64")
    assert "memory may be off by 5%: --headroom 4 keeps 4 GiB free" in " ".join(parlay(*question).out.split())
    assert "--headroom 4 keeps" not in parlay(*question, "--headroom", "4").out
    assert "keeps" not in parlay(*question, "--fix", "pp=1").out


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


def test_units_follow_the_size_of_a_run(parlay):
    asked = ["plan", *QUESTION, "--gpus", "64", "--top", "1", "--gpu-hour-usd", "2"]
    small, long = (parlay(*asked, "--tokens", n).out for n in ("1M", "15T"))
    first = parlay(*asked, "--tokens", "1M", "--json").document["rows"][0]["estimate"]
    header, row = (line.split() for line in small.splitlines() if line.startswith(("#", "1 ")))
    assert header[-4:] == ["run", "s", "GPU-hours", "USD"]
    assert [float(x) for x in row[-3:]] == pytest.approx([first["run_s"], first["gpu_hours"], first["cost_usd"]], rel=5e-3)
    assert "USD: at 2.00 USD a GPU-hour" in small
    assert "days  GPU-hours  M USD" in long
    said = parlay("estimate", *QUESTION, *LAYOUT, "--tokens", "1M", "--gpu-hour-usd", "2").out
    assert re.search(r"1\.00M tokens take 1\d\.\d s, 0\.\d{3} GPU-hours, 0\.\d{3} USD at 2\.00 USD a GPU-hour", said)
    assert " run s" in parlay("sweep", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--tokens", "1M").out


def test_one_is_not_plural(parlay):
    assert (
        "training  1 token x 512 sequences"
        in parlay("estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "dp8", "--seq-len", "1").out
    )
    assert "at 1 token " in parlay("models", "show", "llama-3.1-8b", "--seq-len", "1").out


def test_check_names_the_price_behind_a_cost(parlay, run_file):
    path = run_file(RUN.partition("[budget]")[0].replace("gpu_hour_usd = 2.0\n", ""))
    asked = ["check", path, "--set", "training.total_tokens=1000000", "--set", "budget.cost_usd=1000"]
    own = parlay(*asked)
    assert own.code == 0
    assert "cost_usd: at 2.95 USD a GPU-hour, the price of DGX H100" in own.out
    assert parlay(*asked, "--json").document["gpu_hour_usd"] == 2.95
    assert "cost_usd: at 2.00 USD a GPU-hour\n" in parlay(*asked, "--set", "gpu_hour_usd=2").out
    assert "a GPU-hour" not in parlay("check", path).out


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


def test_one_figure_for_a_peak(parlay):
    assert re.search(r"flops_per_s\.fp8 +1,979 TFLOP/s", parlay("hardware", "show", "h100-sxm").out)
    assert re.search(r"^h100-sxm .* 989 +1,979 ", parlay("hardware", "list").out, re.M)


def test_a_weak_sweep_says_where_work_per_gpu_differs(parlay):
    asked = ["sweep", "llama-3.1-8b", "--on", "dgx-h100", "--weak", "--seq-len", "1024"]
    ran = parlay(*asked, "--global-batch", "7", "--gpus", "8,12")
    assert "note: batches are whole sequences" in ran.err
    assert "10 on 12 GPUs -4.8%" in ran.err
    assert "note" not in parlay(*asked, "--global-batch", "8,16", "--gpus", "8,16").err


def test_a_framework_that_nobody_measured_is_named(parlay):
    asked = ["estimate", "deepseek-v3", "--on", "hgx-h800", "--layout", "pp16.dp128.ep64", "--precision", "fp8-blockwise"]
    for framework, measured in (("hai-llm", False), ("megatron-core", True)):
        told = [*asked, "--global-batch", "15360", "--framework", framework]
        out = " ".join(parlay(*told).out.split())
        assert ("none of them ran under hai-llm" in out) != measured
        assert parlay(*told, "--json").document["estimate"]["expected"]["framework_measured"] is measured


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
        (["estimate", "llama-3.1-8b", "--layout", "tp8", "--seq-len", "16k"], 0),
    ],
)
def test_thousands_of_tokens_that_are_no_multiple_of_128_are_noted_once(parlay, arguments, times):
    ran = parlay(*arguments, "--on", "dgx-h100")
    assert ran.code == 0
    assert ran.err.count("note: a --seq-len of 4k is 4,000 tokens; 4,096 is 4Ki or 4096\n") == ran.err.count("Ki or") == times
