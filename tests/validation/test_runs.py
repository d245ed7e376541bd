"""Reading files of runs: three formats, and every kind of bad file."""

import pytest

from parlay.errors import UsageError
from parlay.validation.runs import DATA, GIB, PACKAGED, packaged_runs, read_runs

HEADER = "id,framework,model,hardware,num_gpus,precision,seq_len,micro_batch,global_batch,tp,pp,dp,step_time_s\n"
ROW = "a-001,NeMo,Llama3-8B,h100-sxm,8,bf16,8192,1,128,1,1,8,12.5\n"


def write(folder, text, name="runs.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs():
    return {run.id: run for run in packaged_runs()}


def test_everything_that_is_shipped_is_read_and_ids_are_unique(runs):
    lines = sum(len((DATA / name).read_text().splitlines()) - 1 for name in PACKAGED)
    assert len(runs) == lines == 782 + 73 + 720 + 464
    assert not [run.id for run in runs.values() if run.problems]


def test_a_published_row_with_its_settings(runs):
    run = runs["bridge-2608-006"]
    assert (run.source, run.model, run.hardware, run.gpus, run.ep, run.vpp) == (
        "bridge-2608",
        "GPT OSS 120B",
        "gb200",
        64,
        64,
        None,
    )
    assert run.tokens_per_s_per_gpu == 28672
    assert run.flops_per_s_per_gpu == 934e12
    assert run.setting("moe_dispatcher") == "HybridEP (flex)"
    assert run.setting("model") == "GPT OSS 120B"  # a column of the run itself
    assert run.setting("nothing") == ""


def test_a_vtrain_row(runs):
    run = runs["vtrain-multi-node-001"]
    assert (run.gpus, run.global_batch, run.micro_batch, run.tp, run.dp, run.pp) == (64, 512, 8, 1, 64, 1)
    assert run.step_s == pytest.approx(3.5665)
    assert run.arch == {"hidden": 3072, "heads": 32, "layers": 30}


def test_a_megatron_row_has_memory_of_the_last_rank(runs):
    run = runs["bert_mcore_tp1_pp4_vp2/dev_dgx_h100"]
    assert [(m.meaning, m.rank, m.nbytes) for m in run.memory] == [
        ("after_step", "last", 2090120192),
        ("allocated", "last", 5293919744),
    ]
    assert (run.tier, run.step_s) == ("ci", 0.54247)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ("simumax-005", [("allocated", 45.63 * GIB), ("reserved", 48.79 * GIB)]),
        ("nanotron-001", [("allocated", 43.002 * GIB), ("reserved", 44472 * 2**20)]),
        ("titan-001", [("reserved", 82.4 * GIB)]),
        ("bridge-skill-001", [("allocated", 36.618e9)]),  # its log counts 10^9 bytes
        ("bridge-skill-017", [("allocated", 62.166e9)]),
        ("bloom-003", [("nvidia-smi", 39 * GIB)]),
        ("flagperf-014", [("nvidia-smi", 62 * GIB)]),
        ("bridge-2608-006", []),
    ],
)
def test_what_a_memory_figure_means(runs, run, found):
    assert [(m.meaning, pytest.approx(m.nbytes)) for m in runs[run].memory] == found


def test_unknown_columns_are_kept_and_missing_cells_are_not_zero(tmp_path):
    path = write(tmp_path, HEADER.replace("\n", ",colour\n") + ROW.replace("\n", ",red\n").replace(",1,128,", ",,128,"))
    (run,) = read_runs(path)
    assert run.columns["colour"] == "red"
    assert run.micro_batch is None
    assert not run.problems


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("nan", "global_batch is nan, not a number above 0"),
        ("inf", "global_batch is inf, not a number above 0"),
        ("-4", "global_batch is -4, not a number above 0"),
        ("0", "global_batch is 0, not a number above 0"),
        ("many", "global_batch is 'many', not a number"),
        ("12.5", "global_batch is 12.5, not a whole number"),
        ("1e300", "global_batch is 1e300, more than 1,099,511,627,776"),
        ("999999999999999", "global_batch is 999999999999999, more than 1,099,511,627,776"),
    ],
)
def test_a_bad_cell_is_a_problem_of_its_row_alone(tmp_path, cell, problem):
    path = write(tmp_path, HEADER + ROW.replace(",128,", f",{cell},") + ROW.replace("a-001", "a-002"))
    bad, good = read_runs(path)
    assert bad.problems == (problem,)
    assert not good.problems


def test_settings_are_joined_by_id(tmp_path):
    runs = write(tmp_path, HEADER + ROW)
    settings = write(tmp_path, "id,recompute\na-001,full\nother,none\n", "settings.csv")
    (run,) = read_runs(runs, settings)
    assert run.setting("recompute") == "full"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "has a header but no rows"),
        (HEADER.replace("precision,", "") + ROW.replace("bf16,", ""), "has no column 'precision'"),
        (HEADER.replace("tp,pp,dp", "t,p,d") + ROW, "has no column 'tp' (and 2 more: pp, dp)"),
        ("id,model,hardware,num_gpus,seq_len,global_batch,pp,dp\n" + ROW, "'framework' (and 3 more: precision, micro_batch, tp)"),
        (HEADER.replace("dp,", "dp,tp,") + ROW, "has a column twice: 'tp'"),
        (HEADER.replace("dp,", "dp,x,y, x ,y,") + ROW, "has a column twice: 'x', 'y'"),
        ("name,price\napple,1\n", "is not a file of runs"),
        (HEADER + "x\0y\n", "holds zero bytes"),
        (HEADER + '"' + "x" * 200_000 + '"\n', "is not a CSV file"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_runs(path)
    assert message in caught.value.message
    assert caught.value.where == str(path)


def test_a_missing_column_suggests_a_near_one(tmp_path):
    with pytest.raises(UsageError) as caught:
        read_runs(write(tmp_path, HEADER.replace("seq_len", "seq_length") + ROW))
    assert caught.value.message == "has no column 'seq_len'"
    assert "seq_length" in caught.value.hint


def test_a_column_that_is_known_is_not_another_one_misspelt(tmp_path):
    header = HEADER.replace("micro_batch,", "").replace("tp,", "etp,")
    with pytest.raises(UsageError) as caught:
        read_runs(write(tmp_path, header + ROW))
    assert caught.value.message == "has no column 'micro_batch' (and 1 more: tp)"
    assert caught.value.hint is None
    with pytest.raises(UsageError) as caught:
        read_runs(write(tmp_path, header.replace("num_gpus", "numgpus").replace("etp", "microbatch") + ROW))
    assert caught.value.hint == "did you mean numgpus for num_gpus? did you mean microbatch for micro_batch?"


def test_a_missing_file_a_folder_and_a_binary(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_runs(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="cannot be read"):
        read_runs(tmp_path)
    (tmp_path / "b.csv").write_bytes(bytes(range(128, 256)) * 10)
    with pytest.raises(UsageError, match="UTF-8"):
        read_runs(tmp_path / "b.csv")


def test_a_file_with_too_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("parlay.validation.runs.MOST_ROWS", 3)
    text = HEADER + "".join(ROW.replace("a-001", f"a-{i}") for i in range(5))
    with pytest.raises(UsageError, match="more than 3 rows"):
        read_runs(write(tmp_path, text))


def test_settings_without_an_id(tmp_path):
    with pytest.raises(UsageError, match="has no column 'id'"):
        read_runs(write(tmp_path, HEADER + ROW), write(tmp_path, "run,recompute\na,full\n", "s.csv"))


def test_short_and_long_rows_are_read(tmp_path):
    (short, long) = read_runs(
        write(tmp_path, HEADER + "a-001,NeMo,Llama3-8B,h100-sxm\n" + ROW.replace("a-001", "a-002").strip() + ",1,2,3\n")
    )
    assert short.gpus is None
    assert long.step_s == 12.5
