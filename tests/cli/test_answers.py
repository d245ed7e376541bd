"""What the commands answer: exit codes, documents that keep to their schemas, and text that fits where it goes."""

import re
import shlex

import pytest

from parlay.report.schemas import REPORTS

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
    assert kept("check", ran.document)["kept"] is True
    broken = parlay("check", path, "--set", "budget.memory_gib=20", "--json")
    assert broken.code == 1
    assert {x["name"]: x["kept"] for x in broken.document["limits"]} == {"device_memory_gib": True, "memory_gib": False}
    text = parlay("check", path, "--set", "budget.memory_gib=20", "--set", "budget.step_s=1e9")
    assert text.code == 1
    assert "BROKEN" in text.out
    assert "1 of 3 limits broken" in text.out


def test_check_says_that_there_is_no_budget(parlay, run_file):
    ran = parlay("check", run_file(RUN.partition("[budget]")[0]))
    assert ran.code == 0
    assert "it fits; no limit of a [budget] is checked" in ran.out
    assert "all limits are kept" not in ran.out
    assert "all limits are kept" in parlay("check", run_file(RUN)).out


def test_limits_are_read_as_quantities(parlay, run_file):
    path = run_file(RUN.partition("[budget]")[0])
    said = {
        "memory_gib": ("76GiB", 76),
        "step_s": ("2 min", 120),
        "cost_usd": ("5M", 5e6),
        "gpu_hours": ("1e6", 1e6),
        "mfu": ("0.1", 0.1),
    }
    sets = [x for name, (text, _) in said.items() for x in ("--set", f"budget.{name}='{text}'")]
    limits = {
        x["name"]: x["limit"]
        for x in parlay("check", path, *sets, "--set", "training.total_tokens='1T'", "--json").document["limits"]
    }
    assert {name: limits[name] for name in said} == {name: value for name, (_, value) in said.items()}
    assert "'76 GB/s' is not a quantity in bytes" in parlay("check", path, "--set", "budget.memory_gib='76 GB/s'").err


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


def test_gpus_that_fill_no_whole_number_of_nodes_say_so(parlay):
    asked = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--top", "1", "--global-batch", "504"]
    for gpus, where in (
        (63, "63 x NVIDIA H100 SXM5 80GB on 7.9 nodes,"),
        (16, "80GB on 2 nodes,"),
        (7, "7 x NVIDIA H100 SXM5 80GB, 79.2"),
    ):
        assert where in parlay(*asked, "--gpus", str(gpus)).out


def test_a_vision_tower_is_no_part_of_what_a_token_of_text_passes(parlay):
    """17.17B of Llama 4 Scout's text model: what `active` has beyond it is the tower and its projector."""
    out = parlay("models", "show", "llama-4-scout").out
    assert re.search(r"of a token of text, past the vision tower +17,172,894,720", out)
    assert "vision tower and projector" in out
    assert "past the vision tower" not in parlay("models", "show", "mixtral-8x7b").out


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


def test_a_plan_without_a_layout_quotes_the_rules(parlay):
    ran = parlay("plan", "deepseek-v2-lite", "--on", "hgx-h800", "--gpus", "64", "--framework", "hai-llm", "--fix", "cp=2")
    assert ran.code == 1
    assert "no context parallelism" in ran.out
    assert "use cp=1" in ran.out


def test_a_first_row_that_barely_fits_says_how_to_leave_room(parlay):
    question = ("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--seq-len", "8192", "--global-batch", "64")
    said = parlay(*question).out
    assert "row 1 leaves 0.45 GiB free, and memory may be off by 5%: --headroom 4 keeps 4 GiB free" in said
    assert "MiB" not in said  # beside a table in GiB
    assert "--headroom 4 keeps" not in parlay(*question, "--headroom", "4").out
    assert "keeps" not in parlay(*question, "--fix", "pp=1").out


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


def test_rates_of_a_list_keep_their_digits(parlay):
    """AWS's 400 Gbit/s for eight GPUs are 6.25 GB/s each, not 6.2."""
    lines = parlay("hardware", "list").out.splitlines()
    assert next(line for line in lines if line.startswith("aws-p4d ")).split()[4:6] == ["300", "6.25"]


@pytest.mark.parametrize(
    ("stages", "micro_batches", "title"),
    [("1", "1", "1f1b: 1 stage, 1 micro-batch"), ("2", "4", "1f1b: 2 stages, 4 micro-batches")],
)
def test_one_stage_is_one(parlay, tmp_path, stages, micro_batches, title):
    path = tmp_path / "x.svg"
    ran = parlay("schedule", "1f1b", "--stages", stages, "--micro-batches", micro_batches, "-o", path)
    assert ran.out.startswith(f"{title}\n")
    assert f"{title}, step" in path.read_text()


def test_two_models_are_compared_term_by_term(parlay, tmp_path):
    """Each tensor that a layer keeps stands once, not under two names of the kind of layer."""
    for name in ("llama-3.1-70b", "llama-3.1-8b"):
        (tmp_path / f"{name}.toml").write_text(f"model = '{name}'\ncluster = 'dgx-h100'\n[layout]\ntp = 8\npp = 4\n")
    ran = parlay("compare", tmp_path / "llama-3.1-70b.toml", tmp_path / "llama-3.1-8b.toml")
    assert ran.code == 0
    assert ran.out.count("\nlayer input ") == 1
