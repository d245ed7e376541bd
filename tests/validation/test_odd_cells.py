"""Cells as people write them: what they mean, what is not understood and says so, and that no row takes the others with it."""

import csv

import pytest

from parlay.errors import UsageError
from parlay.report.table import Page
from parlay.report.validate import validation_lines
from parlay.validation.clusters import cluster_of
from parlay.validation.mapping import Case, Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.predict import validate_runs
from parlay.validation.runs import read_runs

ROW = {
    "id": "row-001", "framework": "torchtitan", "framework_version": "2025-01", "model": "Llama3-8B", "hardware": "h100-sxm",
    "num_gpus": "8", "precision": "bf16", "gpus_per_node": "", "seq_len": "8192", "micro_batch": "1", "global_batch": "128", "tp": "1", "cp": "1",
    "pp": "1", "vpp": "", "ep": "", "etp": "", "dp": "8", "fsdp_or_zero": "", "recompute": "", "offload": "", "arch_json": "",
    "step_time_s": "10", "peak_memory_gb": "60", "tokens_per_s_per_gpu": "", "tflops_per_gpu": "", "notes": "", "tier": "A",
}  # fmt: skip


@pytest.fixture
def file_of(tmp_path):
    def write(*rows, settings=None):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROW))
            writer.writeheader()
            writer.writerows(rows)
        if settings is None:
            return path, None
        beside = tmp_path / "settings.csv"
        table = {"id": ROW["id"], "recompute": ""} | settings
        with beside.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table))
            writer.writeheader()
            writer.writerow(table)
        return path, beside

    return write


@pytest.fixture
def mapped(file_of):
    def one(settings=None, **cells):
        return map_run(read_runs(*file_of(ROW | cells, settings=settings))[0])

    return one


def case(found):
    assert isinstance(found, Case), found.reason
    return found


@pytest.mark.parametrize(("notes", "batch"), [
    ("HFU=55.0; grad_accum=4", 32), ("gradient accumulation 4", 32), ("GAS 4", 32), ("GA=4", 32), ("accumulate=4", 32),
    ("global batch 512K tokens", 64), ("global batch 1M tokens", 128), ("local batch 2", 16), ("", 8),
])  # fmt: skip
def test_a_batch_that_only_the_notes_tell(mapped, notes, batch):
    assert case(mapped(global_batch="", notes=notes)).workload.global_batch == batch


@pytest.mark.parametrize(("text", "modules", "layers"), [
    ("full, uniform, 1 layers", ("full",), 0), ("full:block, 5 layers", ("full",), 5), ("selective (every 2nd layer)", ("full",), 16),
    ("selective (2)", ("full",), 16), ("gradient checkpointing", ("full",), 0), ("true", ("full",), 0), ("no", (), 0), ("off", (), 0),
    ("selective", ("selective_ops",), 0),
])  # fmt: skip
def test_recompute_in_the_words_of_sources(mapped, text, modules, layers):
    layout = case(mapped(recompute=text)).layout
    assert (layout.recompute, layout.recompute_layers) == (modules, layers)


@pytest.mark.parametrize(("text", "zero"), [
    ("ddp", 0), ("off", 0), ("distributed optimizer", 1), ("sharding stage2", 2), ("FULL_SHARD", 3), ("Megatron FSDP", 3),
    ("fsdp (SHARD_GRAD_OP)", 3), ("zero3", 3),
])  # fmt: skip
def test_sharding_in_the_words_of_sources(mapped, text, zero):
    found = case(mapped(fsdp_or_zero=text, framework="Megatron-LM"))
    assert found.layout.zero == zero
    assert not any("ZeRO" in said for said in found.assumptions)
    assert (found.workload.reshard_after_forward is False) == ("GRAD_OP" in text)


def test_a_shard_over_fewer_ranks(mapped):
    found = case(mapped(fsdp_or_zero="fsdp (HSDP, shard 8 x replicate 2)", num_gpus="16", dp="16"))
    assert found.layout.shard == 8


@pytest.mark.parametrize(("column", "text"), [("recompute", "a new mode"), ("fsdp_or_zero", "sliced somehow")])
def test_words_that_are_not_understood_are_told(mapped, column, text):
    found = case(mapped(**{column: text}))
    assert any(f"'{text}' is not understood" in said for said in found.assumptions)


def test_settings_that_do_not_know_leave_what_the_run_prints(mapped):
    found = case(mapped(recompute="full", settings={"recompute": "unknown"}))
    assert found.layout.recompute == ("full",)


@pytest.mark.parametrize(("text", "precision"), [
    ("bfloat16", "bf16"), ("half", "fp16"), ("fp8_mx", "mxfp8"), ("mx-fp8", "mxfp8"), ("fp8-sc", "fp8-blockwise"), ("bf16 (no fp8)", "bf16"),
])  # fmt: skip
def test_precisions_as_written(mapped, text, precision):
    assert case(mapped(precision=text, framework="Megatron-LM")).workload.precision == precision


def test_a_precision_that_is_not_known_is_quoted(mapped):
    found = mapped(precision="int8")
    assert isinstance(found, Unmapped)
    assert "'int8'" in found.reason


@pytest.mark.parametrize(("cells", "layout"), [
    ({"dp": "N/A", "ep": "-", "vpp": "0", "etp": "none"}, {"dp": 8, "ep": 1, "vpp": 1}),
    ({"tp": "", "pp": ""}, {"tp": 1, "pp": 1, "dp": 8}),
    ({"tp": "", "dp": "2"}, {"tp": 4, "pp": 1, "dp": 2}),
    ({"cp": "2", "dp": "8"}, {"cp": 2, "dp": 4}),  # the column counts context-parallel ranks too
])  # fmt: skip
def test_degrees_that_follow_from_the_others(mapped, cells, layout):
    found = case(mapped(**cells)).layout
    assert {name: getattr(found, name) for name in layout} == layout


def test_degrees_that_contradict_the_gpus_are_refused(mapped):
    assert "is not the 8 GPUs printed" in mapped(dp="3").reason
    assert mapped(tp="", pp="", dp="4").reason == "tp or pp is not printed"


@pytest.mark.parametrize(("notes", "rank"), [
    ("LoRA of rank 8", 8), ("PEFT fine-tuning", 16), ("DoRA", 16), ("LoRA; memory of rank 0", 16), ("w/o LoRA", None), ("non-LoRA", None), ("LoRA disabled", None),
    ("LoRA is not used", None), ("full finetune; LoRA rows elsewhere", None),
])  # fmt: skip
def test_adapters_and_their_denial(mapped, notes, rank):
    assert case(mapped(notes=notes, framework="Megatron-Bridge")).workload.lora_rank == rank


def test_what_cannot_be_priced_is_not_taken_for_something_else(mapped):
    assert "four bits" in mapped(notes="QLoRA fine-tuning").reason
    grok = {"model": "Grok-1-314B", "tp": "4", "cp": "2", "dp": "8", "num_gpus": "64", "ep": "8", "framework": "NeMo"}
    notes = "layers reduced below 512 GPUs (proxy)"
    assert "number is not printed" in mapped(notes=notes, **grok).reason
    assert case(mapped(notes=notes, arch_json='{"layers": 8}', **grok)).model.layer_count == 8
    assert case(mapped(notes=notes, **grok | {"num_gpus": "512", "dp": "64"})).model.layer_count == 64


@pytest.mark.parametrize(("text", "optimizer", "activations", "told"), [
    ("optimizer", 1.0, 0.0, False), ("optimizer (50%)", 0.5, 0.0, False), ("optimizer to CPU (fraction 0.5)", 0.5, 0.0, False),
    ("activations to CPU", 0.0, 1.0, False), ("none", 0.0, 0.0, False),
    ("fine-grained activation offload: moe_act", 0.0, 0.0, True),
])  # fmt: skip
def test_what_goes_to_the_host(mapped, text, optimizer, activations, told):
    found = case(mapped(offload=text, framework="Megatron-LM"))
    assert (found.layout.offload_optimizer, found.layout.offload_activations) == (optimizer, activations)
    assert any("is not modelled" in said for said in found.assumptions) == told


def test_a_split_that_is_not_understood_is_told(mapped):
    cells = {"pp": "2", "dp": "4", "framework": "Megatron-LM"}
    odd = case(mapped(settings={"pipeline_layout": "Et|tttt|L"}, **cells))
    assert any("'Et|tttt|L' is not understood" in said for said in odd.assumptions)
    even = case(mapped(settings={"pipeline_layout": "uniform, 16 layers per virtual stage"}, **cells))
    assert not any("pipeline_layout" in said for said in even.assumptions)


def test_torchtitan_checkpoints_selectively_unless_it_says_otherwise(mapped):
    found = case(mapped(recompute=""))
    assert found.layout.recompute == ("selective_ops",)
    assert "recompute selective_ops (not printed)" in found.assumptions


def test_a_v_of_two_chunks(mapped):
    layout = case(mapped(notes="PP schedule ZB-V", pp="2", dp="4")).layout
    assert (layout.schedule, layout.vpp) == ("zb-v", 2)


def test_a_schedule_that_is_denied(mapped):
    cells = {"pp": "2", "dp": "4", "framework": "Megatron-LM"}
    assert case(mapped(notes="DualPipe not used", **cells)).layout.schedule != "dualpipe"
    assert case(mapped(notes="zero bubble ZB-H1", **cells)).layout.schedule == "zb-h1"


@pytest.mark.parametrize(("notes", "seconds"), [
    ("19,561.5 samples/s cluster total.", 128 / 19561.5), ("10,240 tokens/s total", 128 * 8192 / 10240),
    ("cluster total 116632 tokens/s as printed", 128 * 8192 / 116632),
])  # fmt: skip
def test_speeds_in_notes(mapped, notes, seconds):
    assert measured_step(case(mapped(notes=notes, step_time_s=""))).step_s == pytest.approx(seconds)


def test_an_mfu_alone_is_said_to_be_one(file_of):
    path, _ = file_of(ROW | {"step_time_s": "", "peak_memory_gb": "OOM", "notes": ""})
    with path.open() as file:
        lines = file.read().splitlines()
    path.write_text(f"{lines[0]},mfu\n{lines[1]},42\n")
    found = validate_runs(read_runs(path))
    assert found.unpredicted[0].reason.endswith("an MFU alone")


@pytest.mark.parametrize(("column", "text", "name", "value"), [
    ("step_time_s", "12.3 s", "step_s", 12.3), ("step_time_s", "12300 ms", "step_s", 12.3), ("step_time_s", "~12.3", "step_s", 12.3),
    ("seq_len", "8k", "seq_len", 8192), ("num_gpus", "1,024", "gpus", 1024),
])  # fmt: skip
def test_numbers_with_the_unit_of_their_column(file_of, column, text, name, value):
    run = read_runs(file_of(ROW | {column: text})[0])[0]
    assert getattr(run, name) == pytest.approx(value)
    assert not run.problems


def test_memory_that_is_no_number_leaves_the_speed(file_of):
    found = validate_runs(read_runs(file_of(ROW | {"peak_memory_gb": "OOM"})[0]))
    assert found.predictions[0].memory == ()


def test_a_local_batch_of_automodel_is_a_pipeline_of_its_own(mapped):
    cells = {"framework": "NeMo Automodel", "pp": "2", "dp": "4", "micro_batch": "8", "global_batch": "128"}
    found = case(mapped(**cells))
    assert (found.layout.micro_batch, found.workload.global_batch, found.scale) == (1, 32, 4.0)


@pytest.mark.parametrize(("framework", "who"), [
    ("NeMo-Automodel", "torchtitan"), ("Primus (torchtitan)", "torchtitan"), ("Primus", "megatron-core"), ("Megatron Core", "megatron-core"),
    ("LLM Foundry", "torchtitan"), ("PyTorch FSDP", "torchtitan"), ("JAX", "torchtitan"), ("HF Accelerate", "torchtitan"),
])  # fmt: skip
def test_frameworks_as_written(mapped, framework, who):
    assert case(mapped(framework=framework)).workload.framework == who


@pytest.mark.parametrize(("hardware", "cluster"), [
    ("h100-sxm5", "dgx-h100"), ("H100 80GB", "dgx-h100"), ("A100-SXM4-40GB", "dgx-a100-40gb"), ("h100-sxm-96gb", "grand-teton-h100-96gb"),
    ("v100-32gb", "jean-zay-v100"), ("mi250x", "frontier"), ("a100-80gb-pcie", "8x-a100-pcie"), ("H100 NVL", "8x-h100-nvl"),
])  # fmt: skip
def test_devices_as_written(file_of, hardware, cluster):
    found, _ = cluster_of(read_runs(file_of(ROW | {"hardware": hardware})[0])[0])
    assert found is not None
    assert found.id == cluster


def test_cards_in_a_server_are_priced(file_of):
    found = validate_runs(read_runs(file_of(ROW | {"hardware": "h100-pcie"})[0]))
    assert found.predictions[0].case.cluster.device.id == "h100-pcie"
    assert found.predictions[0].predicted_s > 0


@pytest.mark.parametrize("cells", [
    {"arch_json": '{"hidden": "wide", "layers": 3, "heads": 2}', "model": "nobody's"},
    {"arch_json": '{"hidden": 4096, "layers": 32, "heads": 32, "mla": true}', "model": "nobody's"},
    {"pp": "2", "dp": "4", "pipeline_layout": "30 layers in first, 20 in last"},
])  # fmt: skip
def test_an_odd_row_leaves_the_others(file_of, cells):
    settings = {"pipeline_layout": cells.pop("pipeline_layout")} if "pipeline_layout" in cells else None
    path, beside = file_of(ROW | cells, ROW | {"id": "row-002"}, settings=settings)
    found = validate_runs(read_runs(path, beside))
    assert [p.run.id for p in found.predictions] == ["row-002"]
    assert [u.run.id for u in found.unpredicted] == ["row-001"]
    assert found.unpredicted[0].reason


def test_rows_of_one_name_keep_their_own_figures(tmp_path):
    """Megatron-LM's golden values may hold a test twice: no prediction stands in for another."""
    from parlay.validation.runs import DATA

    with (DATA / "megatron-ci.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["test"] == "gpt3_7b_tp1_pp4_memory_speed"][:1]
    rows = [rows[0] | {"iter_time_median_s": seconds} for seconds in ("1.0", "9.0")]
    path = tmp_path / "ci.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert [p.measured_s for p in validate_runs(read_runs(path)).predictions] == [1.0, 9.0]


def test_empty_lines_of_a_spreadsheet_are_no_runs(file_of):
    blank = dict.fromkeys(ROW, "")
    assert len(read_runs(file_of(ROW, blank, blank)[0])) == 1


def test_ids_that_are_missing_or_twice_are_told_and_leave_the_other_rows(file_of):
    found = validate_runs(read_runs(file_of(ROW, ROW | {"id": "b-2"}, ROW, ROW | {"id": " "})[0]))
    assert [p.run.id for p in found.predictions] == ["row-001", "b-2", "row-4"]
    assert [(u.run.id, u.reason) for u in found.unpredicted] == [("row-001", "its id is that of row 1 too")]
    assert found.predictions[2].notes == ("row 4 has no id: it is called row-4",)


def test_settings_that_an_id_has_twice_leave_the_other_rows(file_of, tmp_path):
    path, _ = file_of(ROW, ROW | {"id": "b-2"})
    beside = tmp_path / "settings.csv"
    beside.write_text("id,recompute\nb-2,full\nrow-001,none\nb-2,none\n")
    found = validate_runs(read_runs(path, beside))
    assert [p.run.id for p in found.predictions] == ["row-001"]
    assert found.unpredicted[0].reason == "the settings file has its id in rows 1 and 3"
    beside.write_text("id,recompute\n,full\n")
    with pytest.raises(UsageError, match="row 1 has no id"):
        read_runs(path, beside)


@pytest.mark.parametrize(("cells", "reason"), [
    ({"model": "Llama3-70B", "num_gpus": "64", "tp": "4", "cp": "2", "pp": "4", "dp": "2", "vpp": "5", "global_batch": "7"},
     "dp=2 x micro-batch 1 = 2 does not divide the global batch of 7 sequences"),
    ({"model": "Llama3-70B", "num_gpus": "64", "tp": "4", "cp": "2", "pp": "4", "dp": "2", "vpp": "5", "global_batch": "12"},
     "interleaved 1F1B needs a multiple of pp=4 micro-batches, at least 4; there are 6"),
    ({"num_gpus": "64", "pp": "64", "dp": "1"}, "pp=64 x vpp=1 = 64 chunks is more than the model's 32 layers, embedding and head"),
    ({"framework": "NeMo Automodel", "pp": "2", "dp": "4", "micro_batch": "8", "global_batch": "100"},
     "local batches of 8 on dp=4 ranks do not divide the global batch of 100 sequences"),
])  # fmt: skip
def test_a_batch_that_its_layout_cannot_run_is_not_predicted(file_of, cells, reason):
    found = validate_runs(read_runs(file_of(ROW | {"framework": "Megatron-LM"} | cells, ROW | {"id": "b-2"})[0]))
    assert [p.run.id for p in found.predictions] == ["b-2"]
    assert [u.reason for u in found.unpredicted] == [reason]


def test_thousands_of_a_file_are_said_to_be_powers_of_two(file_of):
    (found,) = validate_runs(read_runs(file_of(ROW | {"seq_len": "8k"})[0])).predictions
    said = "seq_len of 8k read as 8,192: k is 1,024 in a file of runs, as its sources mean it"
    assert found.notes == (said,)
    assert found.case.assumptions.count(said) == 1


@pytest.mark.parametrize(("speed", "told"), [("13107.2", False), ("13500", False), ("2000", True)])
def test_a_step_and_a_speed_that_contradict_each_other(file_of, speed, told):
    """128 sequences of 8,192 tokens on 8 GPUs in 10 s are 13,107.2 tokens/s per GPU."""
    (found,) = validate_runs(read_runs(file_of(ROW | {"tokens_per_s_per_gpu": speed})[0])).predictions
    assert found.measured_s == 10
    assert found.notes == (("the step of 10 s is compared, though 2,000 tokens/s per GPU make it 65.54 s",) if told else ())


@pytest.mark.parametrize("text", ["60,5", "14,56", "9.000,5", "9,00,0", "0,500", "1,0000", ",5", "12,34 s", "-1,024"])
def test_a_comma_that_parts_no_thousands_is_not_understood(file_of, text):
    """60,5 may be 60.5, and was read as 605."""
    cells = ({"step_time_s": text}, {"peak_memory_gb": text})
    step, memory = read_runs(file_of(*(ROW | {"id": name} | more for name, more in zip("ab", cells, strict=True)))[0])
    assert map_run(step).reason.startswith(f"step_time_s is '{text}', not understood: a comma parts groups of three digits")
    assert case(map_run(memory)).run.memory == ()
    assert any(f"peak_memory_gb is '{text}'" in said and said.endswith("left out") for said in memory.readings)


@pytest.mark.parametrize(("text", "value"), [("9,000", 9000), ("1,234,567.8", 1234567.8), ("~1,024 ms", 1.024), ("12.5", 12.5)])
def test_a_comma_that_parts_thousands(file_of, text, value):
    run = read_runs(file_of(ROW | {"step_time_s": text})[0])[0]
    assert run.step_s == pytest.approx(value)
    assert not run.problems


@pytest.mark.parametrize("notes", ["60,5 samples/s cluster total", "1,0000 tokens/s total"])
def test_a_speed_in_notes_with_another_comma_is_none(mapped, notes):
    assert measured_step(case(mapped(notes=notes, step_time_s=""))).step_s is None


TWO_NODES = {"num_gpus": "16", "framework": "Megatron-LM", "model": "Llama3-8B", "tp": "8", "dp": "2"}


def test_smaller_nodes_take_tensor_parallelism_over_the_network(file_of):
    rows = [ROW | TWO_NODES | {"id": f"n-{n}", "gpus_per_node": n} for n in ("", "8", "4", "2", "1")]
    found = validate_runs(read_runs(file_of(*rows)[0])).predictions
    seconds = [p.predicted_s for p in found]
    assert seconds[0] == seconds[1]
    assert 1.2 * seconds[1] < seconds[2] < seconds[3] < seconds[4]
    cluster = found[2].case.cluster
    assert (cluster.id, cluster.gpus_per_node.value, cluster.scale_up_gpus.value) == ("dgx-h100@4", 4, 4)
    assert cluster.nic_bytes_per_s_per_gpu == found[1].case.cluster.nic_bytes_per_s_per_gpu
    assert any("nodes of dgx-h100 with 4 of its 8 GPUs" in said for said in found[2].case.assumptions)
    assert not any("nodes of" in said for said in found[1].case.assumptions)


@pytest.mark.parametrize(("hardware", "given", "cluster"), [("h100-sxm", "16", "dgx-h100"), ("gb200", "2", "gb200-nvl72")])
def test_racks_and_larger_nodes_stay_and_say_so(mapped, hardware, given, cluster):
    found = case(mapped(hardware=hardware, gpus_per_node=given))
    assert found.cluster.id == cluster
    assert any(f"gpus_per_node={given} is not what {cluster} has" in said for said in found.assumptions)


def test_cards_of_a_smaller_server(file_of):
    (found,) = validate_runs(read_runs(file_of(ROW | {"hardware": "h100-pcie", "gpus_per_node": "4"})[0])).predictions
    assert (found.case.cluster.id, found.case.cluster.device.id) == ("8x-h100-pcie@4", "h100-pcie")


@pytest.mark.parametrize("text", ["0", "-3", "abc", "2.5"])
def test_a_node_of_no_whole_number_of_gpus_is_refused(mapped, text):
    assert mapped(gpus_per_node=text).reason.startswith("gpus_per_node is ")


@pytest.mark.parametrize("name", ["tp", "cp", "pp", "dp", "ep", "etp"])
def test_a_degree_of_nought_is_not_one(mapped, name):
    found = mapped(**{name: "0"})
    assert isinstance(found, Unmapped)
    assert found.reason.startswith(f"{name} is 0")


def test_more_cells_than_the_header_are_refused(file_of, tmp_path):
    """An unquoted 1,024 moves every cell behind it by one; empty cells at the end are a spreadsheet's."""
    path, _ = file_of(ROW, ROW | {"id": "row-002"}, ROW | {"id": "row-003"})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], f"{lines[2]},,", f"{lines[3]},x y,z"]) + "\n")
    plain, empty, more = (map_run(run) for run in read_runs(path))
    assert isinstance(plain, Case)
    assert isinstance(empty, Case)
    assert more.reason.startswith("the row has more cells than the header: 'x y, z' is in none of its columns")
    beside = tmp_path / "settings.csv"
    beside.write_text("id,recompute\nrow-001,full,x\n")
    assert map_run(read_runs(path, beside)[0]).reason.startswith("in the settings file, the row has more cells")


def test_an_id_of_two_lines_stands_on_one(file_of):
    path, _ = file_of(ROW | {"id": "one\ntwo"}, ROW | {"id": "three\r\nfour", "tp": "0"})
    lines = validation_lines(validate_runs(read_runs(path)), Page(), worst=5)
    assert any(line.startswith("one two ") for line in lines)
    assert any(line.endswith("  three four") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_would_steer_a_terminal_is_spelt_out(file_of):
    path, _ = file_of(
        ROW | {"id": "\x1b[31mred\x07"}, ROW | {"id": "\x9b2J", "tp": "0"}, ROW | {"id": "x", "framework": "\x1b]0;t"}
    )
    lines = validation_lines(validate_runs(read_runs(path)), Page(), worst=5)
    assert all(line.isprintable() for line in lines)
    for name in ("\\x1b[31mred\\x07", "\\x9b2J", "the framework '\\x1b]0;t' is not known"):
        assert any(name in line for line in lines)


def test_a_row_that_is_not_predicted_is_named_on_a_narrow_page(file_of):
    names = ("a-1", "a-rather-long-name-of-a-run-on-our-own-cluster-1")
    path, _ = file_of(*(ROW | {"id": name, "framework": f"own {name}"} for name in names))
    lines = validation_lines(validate_runs(read_runs(path)), Page(80), worst=5)
    assert max(map(len, lines)) <= 80
    assert not any("left out" in line for line in lines)
    head = next(i for i, line in enumerate(lines) if "because" in line)
    assert lines[head].split() == ["runs", "not", "predicted,", "because", "such", "as"]
    assert lines[head + 1].endswith("  a-1")


def test_a_speed_that_cannot_be_compared_is_told(file_of):
    silent = {"step_time_s": "", "tflops_per_gpu": "400"}
    path, _ = file_of(ROW | silent, *(ROW | silent | {"id": f"b-{i}"} for i in range(6)), ROW | {"id": "c-1", "step_time_s": ""})
    lines = validation_lines(validate_runs(read_runs(path)), Page(), worst=5)
    (row,) = (line for line in lines if "a convention that is not known" in line)
    assert row.split()[0] == "7"
    assert row.endswith("  row-001, b-0, b-1, b-2, b-3, ...")
    assert any(line.split()[1:5] == ["no", "speed", "to", "compare,"] for line in lines)
