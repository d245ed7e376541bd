"""`parlay schedule` from the outside."""

import json

import pytest

from parlay.cli.main import main


def run(capsys, *arguments):
    code = main(["schedule", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_text(capsys):
    code, out, err = run(capsys, "1f1b", "--stages", "4", "--micro-batches", "8")
    assert (code, err) == (0, "")
    assert "stage 0 |F0-F1-F2-F3-" in out
    assert "33.00" in out
    assert "\x1b" not in out


def test_side_by_side_and_json(capsys):
    code, out, _ = run(capsys, "1f1b", "interleaved", "zb-v", "--json", "--forward", "2", "--backward", "4", "--weight", "2")
    document = json.loads(out)
    assert code == 0
    assert (document["schema_name"], document["schema_version"]) == ("parlay/schedule", 1)
    assert [s["name"] for s in document["schedules"]] == ["1f1b", "interleaved", "zb-v"]
    assert document["schedules"][0]["step_s"] == 66
    assert document["schedules"][0]["in_flight_micro_batches"] == [4, 3, 2, 1]
    assert document["schedules"][1]["chunks_per_stage"] == 2
    assert document["schedules"][2]["within_stage_share"] == 0


def test_files(capsys, tmp_path):
    trace, drawing = tmp_path / "trace.json", tmp_path / "s.svg"
    assert run(capsys, "1f1b", "-o", str(trace), "-o", str(drawing))[0] == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert drawing.read_text().startswith("<svg")


def test_own_file_slow_stage_and_links(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('micro_batches = 2\n[[stage]]\noperations = "F0 F1 B0 B1"\n[[stage]]\noperations = "F0 B0 F1 B1"\n')
    steps = []
    for extra in ([], ["--slow", "1=2"], ["--transfer", "1"], ["--transfer", "1", "--blocking"]):
        code, out, _ = run(capsys, str(path), "--json", *extra)
        assert code == 0
        steps.append(json.loads(out)["schedules"][0]["step_s"])
    assert steps[0] == 9
    assert steps[1] == 15
    assert steps[3] > steps[2] > steps[0]


def test_more_memory_than_there_is_is_a_no_and_the_answer_is_shown(capsys):
    asked = ["1f1b", "gpipe", "--activations", "10 GiB", "--memory", "40 GiB"]
    code, out, err = run(capsys, *asked)
    assert (code, err) == (1, "")
    assert out.count("stage 0 |") == 2
    fits, over = (line for line in out.splitlines() if "GiB  40.0 GiB" in line)
    assert fits.startswith("1f1b")
    assert fits.endswith("40.0 GiB  40.0 GiB      fits")
    assert over.startswith("gpipe")
    assert over.endswith("80.0 GiB  40.0 GiB  TOO MUCH")
    assert "gpipe holds more than there is: stage 0 passes 40.0 GiB at F4 and reaches 80.0 GiB at F7; less: 1f1b" in out
    assert "1f1b holds" not in out
    assert run(capsys, "1f1b", "--activations", "10 GiB", "--memory", "40 GiB")[0] == 0


def test_the_document_says_what_fits(capsys):
    code, out, _ = run(capsys, "1f1b", "gpipe", "--activations", "10 GiB", "--memory", "40 GiB", "--json")
    document = json.loads(out)
    assert (code, document["fits"], document["memory_limit_bytes"]) == (1, False, 40 * 2**30)
    assert [s["fits"] for s in document["schedules"]] == [True, False]
    assert document["schedules"][0]["held_bytes"] == [40 * 2**30, 30 * 2**30, 20 * 2**30, 10 * 2**30]
    unasked = json.loads(run(capsys, "1f1b", "--json")[1])
    assert (unasked["fits"], unasked["schedules"][0]["held_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["interleaved", "--micro-batches", "9"], "needs micro-batches to be a multiple of the 4 stages, got 9"),
        (["1f1b", "--slow", "x"], "is not STAGE=FACTOR"),
        (["1f1b", "--slow", "9=2"], "there is no stage 9"),
        (["1f2b"], "did you mean 1f1b?"),
        (["1f1b", "-o", "a.txt"], "neither .json (a trace) nor .svg"),
        (["1f1b", "-o", "/no/such/folder/a.svg"], "cannot be written"),
        (["1f1b", "--share-links", "some"], "links are shared by none, direction, pair, all"),
        (["1f1b", "--forward", "-1"], "--forward: '-1' must be finite and zero or more"),
        (["1f1b", "--forward", "0"], "--forward 0: forward and backward both take no time"),
        (["1f1b", "--forward", "nan"], "--forward: 'nan' is not a quantity in s"),
        (["1f1b", "--slow", "1=0"], "a factor must be above 0 and finite, got 0"),
        (["1f1b", "--slow", "1=-2"], "a factor must be above 0"),
        (["1f1b", "--slow", "1=nan"], "a factor must be above 0"),
        (["1f1b", "--stages", "0"], "stages must be 1 or more"),
        (["1f1b", "--stages", "99999", "--micro-batches", "99999"], "more than the 4,000,000"),
        (["1f1b", "--memory", "40 GiB"], "belong together"),
        (["none.toml"], "no such file"),
        ([], "missing argument"),
    ],
)
def test_asked_wrongly(capsys, arguments, says):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert not out
    assert says in err
    assert err.startswith("error: ")


def test_a_forward_that_is_free_is_drawn_beside_a_backward_that_is_not(capsys):
    code, out, _ = run(capsys, "gpipe", "--stages", "1", "--micro-batches", "2", "--forward", "0", "--backward", "1")
    assert code == 0
    assert "stage 0 |B0=B1=|" in out


def test_a_circle_in_a_file_names_stage_and_operation(capsys, tmp_path):
    path = tmp_path / "circle.toml"
    path.write_text('micro_batches = 2\n[[stage]]\noperations = "F0 B0 F1 B1"\n[[stage]]\noperations = "F0 F1 B0 B1"\n')
    code, _, err = run(capsys, str(path))
    assert code == 2
    assert "stage 0 stands at B0, which waits for B0 on stage 1" in err
