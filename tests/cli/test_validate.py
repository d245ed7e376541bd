"""`parlay validate` from the outside."""

import json

from parlay.cli.main import main
from parlay.report.schemas import REPORTS

HEADER = "id,framework,model,hardware,num_gpus,precision,seq_len,micro_batch,global_batch,tp,pp,dp,step_time_s\n"
ROW = "a-1,NeMo,Llama3-8B,h100-sxm,8,bf16,8192,1,128,1,1,8,12.5\n"


def test_a_filter_and_json(capsys):
    assert main(["validate", "--where", "source=korthikanti", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["runs"] == 6
    REPORTS["validate"].model_validate(document)
    assert not err


def test_text(capsys):
    assert main(["validate", "--where", "source=korthikanti", "--worst", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "step time by source" in out
    assert out.count("korthikanti-0") == 2
    assert "\x1b" not in out


def test_own_files(capsys, tmp_path):
    (tmp_path / "r.csv").write_text(HEADER + ROW)
    (tmp_path / "s.csv").write_text("id,recompute\na-1,full\n")
    times = []
    for extra in ([], ["--settings", str(tmp_path / "s.csv")]):
        assert main(["validate", "--runs", str(tmp_path / "r.csv"), "--json", *extra]) == 0
        times.append(json.loads(capsys.readouterr().out)["predictions"][0]["predicted_s"])
    assert times[1] > 1.2 * times[0]  # a third more FLOPs


def test_asked_wrongly(capsys, tmp_path):
    (tmp_path / "r.csv").write_text(HEADER + ROW)
    (tmp_path / "bad.csv").write_text(HEADER.replace("precision", "colour") + ROW)
    (tmp_path / "twice.csv").write_text(HEADER.replace("dp,", "dp,\x1b[1mx,\x1b[1mx,") + ROW)
    for arguments, message in (
        (["--where", "hardwear=h100-sxm"], "unknown column 'hardwear'"),
        (["--where", "tier="], "ends where a value should stand"),
        (["--where", "tier=Z"], "keeps no run"),
        (["--runs", str(tmp_path / "none.csv")], "no such file"),
        (["--runs", str(tmp_path / "bad.csv")], "has no column 'precision'"),
        (["--runs", str(tmp_path / "twice.csv")], r"has a column twice: '\x1b[1mx'"),
        (["--where", "seq_len>=8q"], "compares with no number"),
        (["--settings", str(tmp_path / "r.csv")], "needs --runs"),
        (["--worst", "-1"], "worst"),
    ):
        assert main(["validate", *arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert message in err
        assert err.startswith("error: ")


def test_frameworks_by_parlays_own_names(capsys, tmp_path):
    """A file of runs may name a framework as Parlay does, and so may a filter; what is not known is listed."""
    (tmp_path / "r.csv").write_text(HEADER + ROW.replace("NeMo", "megatron-core"))
    assert main(["validate", "--runs", str(tmp_path / "r.csv"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 1
    (tmp_path / "r.csv").write_text(HEADER + ROW + ROW.replace("a-1", "a-2").replace("NeMo", "torchtitan"))
    for name, kept in (("megatron-core", 1), ("nemo", 1), ("torchtitan", 1)):
        assert main(["validate", "--runs", str(tmp_path / "r.csv"), "--where", f"framework={name}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runs"] == kept
    assert main(["validate", "--where", "framework=megatron"]) == 2
    err = capsys.readouterr().err
    assert "Megatron-LM (2021)" in err
    assert "or one of Parlay's own: megatron-core" in err


def test_what_is_odd_in_a_row_is_told(capsys, tmp_path):
    """In text and in the document, whose assumptions say each thing once."""
    (tmp_path / "r.csv").write_text(HEADER + ROW.replace(",8192,", ",8k,"))
    assert main(["validate", "--runs", str(tmp_path / "r.csv")]) == 0
    assert "seq_len of 8k read as 8,192" in capsys.readouterr().out
    assert main(["validate", "--runs", str(tmp_path / "r.csv"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["predictions"][0]["assumptions"]
    assert sum("8k read as 8,192" in text for text in said) == 1


def test_no_run_predicted_is_a_no(capsys, tmp_path):
    (tmp_path / "r.csv").write_text(HEADER + ROW.replace("NeMo", "megatron"))
    assert main(["validate", "--runs", str(tmp_path / "r.csv")]) == 1
    out = capsys.readouterr().out
    assert "0 predicted" in out
    assert "the framework 'megatron' is not known; known are Megatron-LM, megatron-core" in " ".join(out.split())
