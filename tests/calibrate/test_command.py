"""`parlay calibrate show, diff, import, fit` and --rates, as a person meets them."""

import json
from pathlib import Path

import pytest

from parlay.calibrate.file import load_calibration, save_calibration, summarise
from parlay.calibrate.fits import fitted
from parlay.cli.main import main
from parlay.hardware.load import load_cluster
from parlay.rates.calibration_file import (
    Calibration,
    Gemm,
    HostCopy,
    Link,
    LinkPoint,
    MeasuredDevice,
    Method,
    Note,
    Overlap,
    Software,
    Stream,
)
from parlay.rates.network import wire_factor

QUESTION = ["llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.dp4", "--seq-len", "4096", "--global-batch", "64"]


def calibration(speed=1.0, **fields):
    """A file as a run on an H100 host would leave it; the times are made up from plain rates."""

    def gemm(m, n, k):
        t = 2.0 * m * n * k / (500e12 * speed) + 5e-6
        return Gemm(dtype="bf16", m=m, n=n, k=k, flops=2.0 * m * n * k, seconds=summarise([t, t * 1.01, t * 1.02]))

    def link(op, n):
        wire = float(wire_factor(op, n))
        points = []
        for size in (2**i for i in range(12, 31, 3)):
            t = 2e-5 + size * wire / 300e9
            points.append(
                LinkPoint(bytes=size, seconds=summarise([t, t * 1.3]), algbw=size / t, busbw=size * wire / t, flags=("spread",))
            )
        return Link(op=op, backend="nccl", level="intra", n=n, local=n, points=tuple(points))

    given = {
        "created": "2026-11-29T12:00:00Z", "tool": {"name": "parlay", "version": "0.1.0"}, "complete": True,
        "device": MeasuredDevice(name="NVIDIA H100 80GB HBM3", vendor="nvidia", driver="570.1", power_limit_w=700.0, count_per_host=8),
        "software": Software(torch="2.8.0", nccl=(2, 27, 3)), "method": Method(samples=20),
        "compute": tuple(gemm(m, n, 4096) for m in (1024, 4096) for n in (1024, 4096, 14336)),
        "memory": tuple(Stream(op="norm", bytes=s, bytes_convention="", seconds=summarise([s / 2e12])) for s in (10**7, 10**8)),
        "links": tuple(link(op, n) for op in ("all_reduce", "all_gather", "reduce_scatter") for n in (2, 4, 8)),
        "overlap": (Overlap(compute="gemm", comm="all_reduce", slow_compute=1.24, slow_comm=1.11),), "launch_s": {"eager": 4e-6, "graph": 1e-6},
        "skipped": (Note(what="fp8 gemm", why="not asked for"),),
    }  # fmt: skip
    return fitted(Calibration(**(given | fields)))


@pytest.fixture
def ran(capsys):
    def run(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def file(tmp_path):
    def write(name="c.json", **fields):
        save_calibration(calibration(**fields), tmp_path / name)
        return tmp_path / name

    return write


def test_show_puts_flags_first(ran, file):
    code, out, _ = ran("calibrate", "show", file(complete=False, warnings=("throttled: sw_power_cap",)))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("! incomplete")
    assert lines[1] == "! throttled: sw_power_cap"
    assert "63 points with 'spread'" in lines[2]
    assert lines[3].startswith("- skipped: fp8 gemm")
    for words in ("NVIDIA H100 80GB HBM3 (driver 570.1, 700 W)", "NCCL 2.27.3", "gemm bf16", "300 GB/s", "products x1.24"):
        assert words in out


def test_show_in_json_is_the_file(ran, file):
    path = file()
    _, out, _ = ran("calibrate", "show", path, "--json")
    document = json.loads(out)
    assert document["schema_name"] == "parlay/calibration"
    assert document["calibration"] == json.loads(path.read_text())


def test_diff_names_what_moved(ran, file):
    code, out, _ = ran("calibrate", "diff", file("a.json"), file("b.json", speed=0.8))
    assert code == 0
    assert "71 points in both, 6 moved beyond their spread" in out
    assert "gemm bf16 4096 x 4096 x 14336" in out
    assert "all_reduce" not in out
    _, out, _ = ran("calibrate", "diff", file("a.json"), file("b.json", speed=0.8), "--json")
    points = json.loads(out)["points"]
    assert sum(p["beyond_spread"] for p in points) == 6


def copies(rate):
    sizes = (1 << 20, 1 << 24, 1 << 28)
    return tuple(
        HostCopy(direction=way, bytes=s, seconds=summarise([1e-5 + s / rate])) for way in ("to_host", "to_device") for s in sizes
    )


def test_copies_to_the_host_are_shown_compared_and_used(ran, file):
    fast, slow = file("fast.json", host_copies=copies(50e9)), file("slow.json", host_copies=copies(25e9))
    out = ran("calibrate", "show", fast)[1]
    (row,) = [line for line in out.splitlines() if line.startswith("to host")]
    assert row.split()[2:6] == ["3", "49.9", "GB/s", "256"]
    out = ran("calibrate", "diff", fast, slow)[1]
    assert "77 points in both, 6 moved beyond their spread" in out
    assert f"host copy to device {1 << 28} bytes" in out

    def optimizer(path):
        asked = [*QUESTION, "--set", "layout.offload_optimizer=1", "--rates", path, "--json"]
        return json.loads(ran("explain", "step.optimizer", *asked)[1])["term"]["inputs"]

    assert optimizer(slow)["copy_seconds"] == pytest.approx(2 * optimizer(fast)["copy_seconds"], rel=0.01)
    assert optimizer(slow)["host_seconds"] == optimizer(fast)["host_seconds"]


def test_overlap_is_used_and_named(ran, file):
    def step(**overlap):
        measured = (Overlap(compute="gemm", comm="all_reduce", **overlap),)
        answer = ran("estimate", *QUESTION, "--rates", file(f"{overlap}.json", overlap=measured), "--json")[1]
        return json.loads(answer)["estimate"]

    none, more = step(slow_compute=1.0, slow_comm=1.0), step(slow_compute=1.5, slow_comm=1.3)
    assert more["step_s"] > none["step_s"]
    exposed = next(p for p in more["time"]["parts"] if p["key"] == "step.exposed")
    lost = next(p for p in exposed["parts"] if p["key"] == "step.exposed.overlap")
    assert lost["source"] == "calibrated"
    code, out, _ = ran("explain", "step.exposed.overlap", *QUESTION[:5], "--rates", file())
    assert code == 0
    assert "1.24" in out


def test_fit_again_from_samples_alone(ran, file):
    path = file()
    bare = load_calibration(path).model_copy(update={"fits": ()})
    save_calibration(bare, path)
    code, out, _ = ran("calibrate", "fit", path)
    assert code == 0
    assert load_calibration(path).fits == calibration().fits
    assert "gemm bf16" in out


def test_fit_writes_no_copy_of_a_shipped_calibration(ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = ran("calibrate", "fit", "h200-one-gpu")
    assert code == 2
    assert "ships with parlay" in err
    assert not list(tmp_path.iterdir())


def test_import_writes_once(ran, tmp_path):
    source = tmp_path / "out.txt"
    source.write_text(
        "The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):\n\n| 1MiB | 18.75GBps | 10.00GBps |\n| 1GiB | 375.00GBps | 214.00GBps |\n"
    )
    code, out, _ = ran("calibrate", "import", source, "-o", tmp_path / "c.json", "--on", "dgx-h100")
    assert code == 0
    assert "2 points, complete" in out
    assert load_calibration(tmp_path / "c.json").device.datasheet.catalog_key == "h100-sxm"
    code, _, err = ran("calibrate", "import", source, "-o", tmp_path / "c.json")
    assert code == 2
    assert "is there already" in err


def test_import_and_run_have_a_document(ran, tmp_path, monkeypatch):
    there = tmp_path / "c.json"
    source = tmp_path / "out.txt"
    source.write_text(
        "The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):\n\n| 1MiB | 18.75GBps | 10.00GBps |\n"
    )
    code, out, _ = ran("calibrate", "import", source, "-o", tmp_path / "c.json", "--on", "dgx-h100", "--json")
    assert code == 0
    assert json.loads(out) == json.loads(ran("calibrate", "show", tmp_path / "c.json", "--json")[1])
    monkeypatch.setattr("parlay.calibrate.worker.calibrate", lambda *_: load_calibration(there))  # without the measuring
    code, out, _ = ran("calibrate", "run", "-o", tmp_path / "d.json", "--json")
    assert code == 0
    assert json.loads(out) == json.loads(ran("calibrate", "show", there, "--json")[1])


def test_estimate_with_rates_prices_by_them_and_says_so(ran, file):
    _, out, _ = ran("estimate", *QUESTION, "--json")
    plain = json.loads(out)["estimate"]
    code, out, err = ran("estimate", *QUESTION, "--rates", file(), "--json")
    assert code == 0
    assert err == ""
    measured = json.loads(out)["estimate"]
    assert measured["step_s"] > plain["step_s"]  # 500 TFLOP/s is slower than what the shipped profile holds
    text = ran("estimate", *QUESTION, "--rates", file("d.json"))[1]
    assert "interpolation between measurements on this machine" in text
    assert "step time from:" in text
    half = json.loads(ran("estimate", *QUESTION, "--rates", file("slow.json", speed=0.5), "--json")[1])["estimate"]
    assert half["step_s"] > 1.3 * measured["step_s"]


@pytest.mark.parametrize("command", ["plan", "estimate", "compare", "check", "sweep", "ladder", "explain"])
def test_every_command_takes_rates(ran, file, tmp_path, command):
    path = file("short.json", complete=False)
    run = tmp_path / "run.toml"
    run.write_text(
        'model = "llama-3.1-8b"\ncluster = "dgx-h100"\n[training]\nglobal_batch = 64\n[layout]\ntp = 2\ndp = 4\n[budget]\nstep_s = 1000\n'
    )
    arguments = {
        "plan": ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64"],
        "estimate": ["estimate", *QUESTION], "compare": ["compare", *QUESTION, "--layout", "dp8.mb1"], "check": ["check", str(run)],
        "sweep": ["sweep", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8,16", "--global-batch", "64"],
        "ladder": ["ladder", "--on", "dgx-h100", "--gpus", "8"], "explain": ["explain", "step.compute", *QUESTION[:5]],
    }[command]  # fmt: skip
    code, out, err = ran(*arguments, "--rates", path)
    assert code == 0, err
    assert err.startswith(f"warning: {path}: is incomplete")
    assert err.count("warning:") == 1
    assert out != ran(*arguments)[1]


def test_the_next_command_of_a_plan_keeps_the_rates(ran, file):
    path = file()
    _, out, _ = ran("plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--rates", path)
    assert f"--on dgx-h100 --rates {path} --layout" in out


def test_rates_of_another_device_or_no_file_are_refused(ran, file, tmp_path):
    code, out, err = ran("estimate", *QUESTION[:2], "dgx-a100", *QUESTION[3:], "--rates", file())
    assert (code, out) == (2, "")
    assert "was measured on NVIDIA H100 80GB HBM3 (h100-sxm), and DGX A100" in err
    code, _, err = ran("estimate", *QUESTION, "--rates", tmp_path / "none.json")
    assert code == 2
    assert "no such file" in err


def test_run_says_what_it_cannot_take(ran, tmp_path):
    for arguments, words in (
        (["--parts", "gems"], "did you mean gemm"), (["--dtypes", "int3"], "unknown name 'int3'"), (["--backend", "mpi"], "neither nccl nor gloo"),
        (["--optimizer-dtype", "fp8"], "neither fp32 nor bf16"), (["--budget", "soon"], "--budget"), (["--max-bytes", "1 GPU"], "--max-bytes"),
    ):  # fmt: skip
        code, _, err = ran("calibrate", "run", "-o", tmp_path / "c.json", *arguments)
        assert code == 2
        assert words in err


def test_the_guides_own_device_with_more_memory(tmp_path):
    guide = (Path(__file__).parents[2] / "docs/guides/calibrate.md").read_text()
    path = tmp_path / "more.toml"
    path.write_text(next(text for text in guide.split("```toml\n")[1:] if "[device.memory]" in text).split("```")[0])
    assert load_cluster(path).device.memory.allocatable.value == 158.4 * 2**30


def test_the_guides_own_hardware_file_takes_a_calibration_of_that_machine(ran, file, tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "calibrate.md").read_text()
    hosts = tmp_path / "my-hosts.toml"
    hosts.write_text(guide.split("```toml\n")[1].split("```")[0])
    command = next(line for line in guide.splitlines() if "my-hosts.toml" in line).split()[1:]
    mine = file("my-machine.json", device=MeasuredDevice(name="AMD EPYC", vendor="cpu"))
    given = [{"my-hosts.toml": hosts, "my-machine.json": mine}.get(word, word) for word in command]
    code, out, err = ran(*given)
    assert (code in (0, 1), err) == (True, ""), err  # whether it fits in the memory of the example is not the question
    assert "step time from:" in out
