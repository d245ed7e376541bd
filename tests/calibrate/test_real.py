"""Calibrate real machines: hosts with a link of known rate, this CPU, and what goes wrong on the way.

Network hosts are namespaces on one kernel, ranks are real processes of torch with gloo. Skipped, with the reason, where torch
or root is missing. The machine may be busy with other work: rates are judged by minima, steps by medians, and where two
measurements of the same step disagree by more than a prediction may be off, the test says that the machine was too busy.
A calibration serves every test that can be held against it: one of two hosts at 1 Gbit/s, one at 200 Mbit/s that is killed and
taken up again.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from parlay.calibrate.fits import link_bytes_per_s
from parlay.errors import UsageError
from parlay.rates.calibration_file import load_calibration

PAYLOAD = 1448 / 1514 / 8  # payload bytes of a bit on the wire, at an MTU of 1500 bytes
LLAMA = Path(__file__).parent / "llama_step.py"
MOST_OFF = 0.15
MOST_LINK_OFF = 0.05
MOST_SCATTER = 0.25
SEQ, BATCH = 512, 2

MODEL = """
id = "small-llama"
name = "Small Llama"
family = "llama"
hidden = 512
vocab = 4096
tied_embeddings = false
[kinds.dense.mixer]
kind = "gqa"
heads = 8
kv_heads = 4
head_dim = 64
[kinds.dense.mlp]
kind = "dense"
width = 1536
[[layers]]
kinds = ["dense"]
count = 4
"""

CLUSTER = """
id = "cpu-hosts"
name = "CPU hosts"
[device]
id = "this-cpu"
name = "{name}"
vendor = "cpu"
architecture = "x86"
memory = {{ marketed = "8 GiB", allocatable = "8 GiB" }}
hbm_bytes_per_s = "100 GB/s"
host_link_bytes_per_s = "10 GB/s"
[device.flops_per_s]
bf16 = "10 TFLOP/s"
[gpus_per_node]
value = 1
[scale_up_gpus]
value = 1
[nics_per_node]
value = 1
[scale_up_link]
id = "memory"
name = "shared memory"
kind = "pcie"
bytes_per_s = "1 GB/s"
per = "gpu"
latency_s = "10 us"
[nic_link]
id = "gbe"
name = "1 Gbit/s Ethernet"
kind = "ethernet"
bytes_per_s = "1 Gbit/s"
per = "nic"
latency_s = "100 us"
"""

COMPUTE = ["--seq-len", SEQ, "--micro-batch", BATCH, "--optimizer-dtype", "bf16", "--gemm-side", 512]
COMPUTE += ["--min-bytes", "64KiB", "--max-bytes", "8MiB", "--timeout", 60, "--budget", "240s"]
LINKS = ["--parts", "links", "--min-bytes", "64KiB", "--timeout", 15]


def alone(*arguments, environment=None, limit_s=400):
    """Run one Python process with one thread of torch."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
        capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Measured:
    """A calibration, and the steps that ran on the same machine before and after it."""

    path: Path
    ran: list[dict[str, float]]
    again: Callable[[], dict[str, float]]

    def quiet(self, key, most=4):
        """Return the time of a step that two measurements agree on; the prediction has no part in the choice.

        Other work on the machine only ever adds time, so the fastest median counts once another comes within a tenth of it.
        The two runs on either side of the calibration must be as fast, or it was measured on a slower machine.
        """
        while True:
            fastest, *others = sorted(one[key] for one in self.ran)
            if others and others[0] <= 1.1 * fastest:
                step = (fastest + others[0]) / 2
                slowest = max(one[key] for one in self.ran[:2])
                if slowest > (1 + MOST_OFF) * step:
                    pytest.skip(
                        f"the machine was too busy to judge by: a step took {slowest:.3f} s beside it, {step:.3f} s later"
                    )
                return step
            if len(self.ran) >= most:
                shown = ", ".join(f"{one[key]:.3f}" for one in self.ran)
                pytest.skip(f"the machine is too busy to judge by: a step took {shown} s")
            self.ran.append(self.again())


def check_quiet(c):
    """Skip where the calibration itself was disturbed: the samples of most products scatter."""
    spread = statistics.median(p.seconds.spread for p in c.compute)
    if spread > MOST_SCATTER:
        pytest.skip(f"the machine is too busy to judge by: the samples of half the products scatter by {spread:.0%} and more")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("calibration")
    (made / "model.toml").write_text(MODEL)
    return made


@pytest.fixture(scope="module")
def measured(request, with_torch, why_no_hosts, folder):
    """Calibrate two hosts at 1 Gbit/s in every part, or this CPU alone where no hosts can be made, between two runs of Llama."""
    out = folder / "c.json"
    run = ["-m", "parlay", "calibrate", "run", "-o", out, "--model", folder / "model.toml", *COMPUTE]
    with contextlib.ExitStack() as stack:
        if why_no_hosts:

            def ranks(*arguments):
                ran = alone(*arguments)
                assert ran.returncode == 0, ran.stderr[-2000:]
                return ran.stdout
        else:
            two = stack.enter_context(contextlib.closing(request.getfixturevalue("make_hosts")("1gbit")))

            def ranks(*arguments):
                two.start(*arguments)
                ran = two.wait(400)
                assert all(code == 0 for code, _, _ in ran), "".join(stderr[-2000:] for _, _, stderr in ran)
                return ran[0][1]

        def llama():
            return json.loads(next(line for line in ranks(LLAMA).splitlines() if line.startswith("{")))

        before = llama()
        ranks(*run)
        yield Measured(out, [before, llama()], llama)


@pytest.fixture
def between(measured, why_no_hosts):
    """The calibration of two hosts."""
    if why_no_hosts:
        pytest.skip(why_no_hosts)
    return load_calibration(measured.path)


def check_rates(c, bits_per_s):
    """Check that both ways to measure a link find its rate."""
    assert c.complete
    found = {x.op: link_bytes_per_s(x) / (bits_per_s * PAYLOAD) - 1 for x in c.links if x.op in ("all_reduce", "send_recv")}
    print(f"{bits_per_s / 1e6:.0f} Mbit/s: " + ", ".join(f"{op} {off:+.1%}" for op, off in found.items()))
    assert len(found) == 2
    assert all(abs(off) < MOST_LINK_OFF for off in found.values()), found


def test_the_rate_of_a_known_link(between):
    assert (between.topology.hosts, between.topology.ranks_per_host, between.topology.launcher) == (2, 1, "torchrun")
    check_rates(between, 1e9)


def test_every_collective_works_over_a_link(between):
    assert {link.op for link in between.links} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}  # fmt: skip
    assert not between.errors
    assert between.overlap[0].slow_comm > 0.8
    assert between.overlap[0].slow_compute > 0.8


def test_a_cpu_has_no_host_link_to_measure(measured):
    c = load_calibration(measured.path)
    assert not c.host_copies
    assert any(note.what == "host copies" and "not measurable" in note.why for note in c.skipped)


def test_a_data_parallel_step_is_predicted(measured, between, folder, parlay_command):
    """The issue's own case: `parlay estimate` with the file of this cluster against the step that runs on it."""
    assert between.complete
    step = measured.quiet("step_s")
    check_quiet(between)
    (folder / "cluster.toml").write_text(CLUSTER.format(name=between.device.name))
    settings = {"compiled": "true", "gradient_dtype": "'bf16'", "master_dtype": "'bf16'", "moment_dtype": "'bf16'"}
    settings |= {"overlap_grad_reduce": "false", "vocab_multiple": "1"}
    sets = [x for key, value in settings.items() for x in ("--set", f"training.{key}={value}")]
    asked = ["--layout", f"dp2.mb{BATCH}", "--zero", 0, "--seq-len", SEQ, "--global-batch", 2 * BATCH, "--framework", "torchtitan"]  # fmt: skip
    question = ("estimate", folder / "model.toml", "--on", folder / "cluster.toml", *asked, *sets, "--rates", measured.path)
    found = parlay_command(*question)
    print(f"data-parallel step: predicted {found['step_s']:.3f} s, measured {step:.3f} s")
    assert found["step_s"] == pytest.approx(step, rel=MOST_OFF)


def test_a_block_stack_on_this_cpu_is_predicted(measured, folder):
    """Predict forward and backward of four Llama blocks, on every rank at once."""
    from parlay.estimate.costs import layer_costs
    from parlay.estimate.pricer import Pricer
    from parlay.estimate.shard import Shard
    from parlay.estimate.traits import Traits
    from parlay.hardware.load import load_cluster
    from parlay.layouts.layout import Layout, Layouts
    from parlay.layouts.workload import Workload
    from parlay.models.load import load_model
    from parlay.rates.calibrated import calibrated_rates
    from parlay.rates.datasheet import datasheet_rates

    step = measured.quiet("blocks_s")
    c = load_calibration(measured.path)
    check_quiet(c)
    (folder / "cluster.toml").write_text(CLUSTER.format(name=c.device.name))
    cluster, model = load_cluster(folder / "cluster.toml"), load_model(folder / "model.toml")
    workload, layouts = (
        Workload(seq_len=SEQ, global_batch=BATCH, framework="torchtitan", compiled=True),
        Layouts.of(Layout(micro_batch=BATCH)),
    )
    rates = calibrated_rates(c, cluster, datasheet_rates(cluster))
    cost = layer_costs(Pricer(rates, workload, Shard.of(layouts, workload, cluster), model, Traits()))["dense"]
    assert {s for group, s in cost.sources.items() if group != "launch gaps"} <= {"calibrated", "interpolated", "fitted"}
    predicted = 4 * float(cost.forward_s[0] + cost.backward_s[0])
    print(f"block stack: predicted {predicted:.3f} s, measured {step:.3f} s")
    assert predicted == pytest.approx(step, rel=MOST_OFF)


@pytest.fixture
def parlay_command():
    def command(*arguments):
        ran = alone("-m", "parlay", *arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)["estimate"]

    return command


def points(path):
    try:
        return sum(len(link.points) for link in load_calibration(path).links)
    except UsageError:
        return 0


def wait_for_points(path, count, process, limit_s=60):
    end = time.monotonic() + limit_s
    while points(path) < count:
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < end, "no points"
        time.sleep(0.05)


def sweep(out, *more):
    """A sweep long enough to be interrupted."""
    ops = ["--ops", "all_reduce,send_recv", "--max-bytes", "4MiB"]
    return ("-m", "parlay", "calibrate", "run", "-o", out, *LINKS, *ops, *more)


def kill_one(two, out, killed, least):
    """Start a sweep, kill a rank once there are `least` points, and return what the other one said."""
    started = two.start(*sweep(out), ranks_by_env=True)
    wait_for_points(out, least, started[0])
    started[killed].send_signal(signal.SIGKILL)
    code, _, stderr = two.wait(60)[1 - killed]
    assert code == 1, stderr[-2000:]
    assert "a rank was lost" in stderr
    assert "--resume" in stderr
    c = load_calibration(out)
    assert not c.complete
    assert points(out) >= least
    return c


def test_a_first_rank_that_is_killed_leaves_a_valid_file(hosts, tmp_path):
    kill_one(hosts("200mbit"), tmp_path / "c.json", 0, least=1)


def test_a_rank_that_is_killed_leaves_a_file_to_go_on_with(hosts, tmp_path):
    out, two = tmp_path / "c.json", hosts("200mbit")
    c = kill_one(two, out, 1, least=2)
    assert "a rank was lost" in c.errors[0].why
    two.start(*sweep(out, "--resume"), ranks_by_env=True)
    assert [code for code, _, _ in two.wait(120)] == [0, 0]
    whole = load_calibration(out)
    assert whole.resumed
    assert whole.links[0].points[-1] == c.links[0].points[-1]  # kept, not measured again
    assert not whole.errors
    check_rates(whole, 200e6)


def test_a_link_that_goes_silent_ends_the_run(hosts, tmp_path):
    out = tmp_path / "c.json"
    two = hosts("200mbit")
    started = two.start(*sweep(out, "--timeout", 5), ranks_by_env=True)
    wait_for_points(out, 1, started[0])
    two.cut(1)
    ran = two.wait(90)
    assert [code for code, _, _ in ran] == [1, 1], ran
    c = load_calibration(out)
    assert not c.complete
    assert "silent" in c.errors[0].why


def test_a_full_disk_leaves_the_file_before(with_torch, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", small], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        ran = alone(
            "-m", "parlay", "calibrate", "run", "-o", small / "c.json", "--parts", "gemm", "--gemm-side", 2048, "--budget", "10s"
        )
        assert ran.returncode == 2
        assert "No space left on device" in ran.stderr
        c = load_calibration(small / "c.json")
        assert not c.complete
        assert c.compute
        assert [p.name for p in small.iterdir()] == ["c.json"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_budget_stops_and_resume_goes_on(with_torch, tmp_path):
    out = tmp_path / "c.json"
    run = ("-m", "parlay", "calibrate", "run", "-o", out, "--parts", "launch,attention")
    assert alone(*run, "--budget", "1s").returncode == 0
    first = load_calibration(out)
    assert not first.complete
    assert "budget" in first.skipped[-1].why
    assert len(first.attentions) < 12
    again = alone(*run)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert alone(*run, "--resume").returncode == 0
    whole = load_calibration(out)
    assert whole.complete
    assert whole.resumed
    assert len(whole.attentions) == 12
    assert whole.compute[: len(first.compute)] == first.compute
    assert whole.fits


def test_two_ranks_under_variables_of_other_launchers(with_torch, tmp_path):
    """Only the variables are those of Open MPI and Slurm; neither program runs here."""
    out = tmp_path / "c.json"
    base = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    kinds = {"ompi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"), "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")}  # fmt: skip
    for port, (launcher, names) in zip(("29571", "29573"), kinds.items()):
        command = [
            sys.executable,
            "-m",
            "parlay",
            "calibrate",
            "run",
            "-o",
            str(out),
            "--parts",
            "links",
            "--ops",
            "all_reduce",
            "--max-bytes",
            "64KiB",
        ]
        ranks = [
            subprocess.Popen(command, env=os.environ | base | {"MASTER_PORT": port} | dict(zip(names, (str(r), "2", str(r)))), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for r in range(2)
        ]  # fmt: skip
        ended = [r.communicate(timeout=60)[1] for r in ranks]
        assert [r.returncode for r in ranks] == [0, 0], ended
        c = load_calibration(out)
        assert c.topology.launcher == launcher
        assert (c.links[0].level, c.links[0].n, c.links[0].local) == ("intra", 2, 2)
        out.unlink()
