"""`parlay calibrate`: measure what this hardware really does, and read, compare, import and refit such files."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from parlay.rates.calibration_file import Calibration

File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `parlay calibrate` wrote.")]
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")]
PROGRESS_S = 10.0  # seconds between lines of progress where there is no terminal
PARTS_HELP = "What to measure, joined by commas: launch, gemm, attention, memory, host, links, overlap. [default: all]"
OPS_HELP = "Collectives, joined by commas. [default: all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,send_recv]"


def run(
    out: Out,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Measure the products and attention of this model as well.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster this is: its datasheet bounds what is believed.")
    ] = None,
    seq_len: Annotated[str, typer.Option("--seq-len", metavar="TOKENS", help="Sequence length of the model's shapes.")] = "4096",
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", min=1, help="Sequences of a micro-batch of the model's shapes.")
    ] = 1,
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="LIST", help="Types of products: bf16, fp16, fp32, tf32, fp8.")
    ] = "bf16",
    parts: Annotated[str | None, typer.Option("--parts", metavar="LIST", help=PARTS_HELP)] = None,
    ops: Annotated[str | None, typer.Option("--ops", metavar="LIST", help=OPS_HELP)] = None,
    min_bytes: Annotated[str, typer.Option("--min-bytes", metavar="BYTES", help="Smallest message.")] = "1KiB",
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="BYTES", help="Largest message. [default: 1GiB, gloo 32MiB]")
    ] = None,
    gemm_side: Annotated[
        int | None, typer.Option("--gemm-side", metavar="N", min=128, help="Largest side of a product that is no model's own.")
    ] = None,
    optimizer_dtype: Annotated[
        str,
        typer.Option(
            "--optimizer-dtype", metavar="TYPE", help="Type of weights and states in the optimizer's step: fp32 or bf16."
        ),
    ] = "fp32",
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="Stop after this long, such as 10m or 90s; --resume goes on.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=1, help="Seconds after which a silent rank counts as lost.")
    ] = 120.0,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="nccl or gloo. [default: nccl with GPUs, else gloo]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the points that FILE lacks.")] = False,
    json: flags.Json = False,
) -> None:
    """Measure this machine, or a cluster.

    A cluster is measured by one process a GPU, started by torchrun, srun or mpirun. Rank 0 writes the file after each point. Needs PyTorch: pip install 'parlay[calibrate]'.

    Example: parlay calibrate run -o my-cluster.json --model llama-3.1-70b --budget 10m

    Example: torchrun --nnodes 4 --nproc-per-node 8 ... -m parlay calibrate run -o my-cluster.json --on dgx-h100
    """
    from parlay.calibrate.launch import job_of
    from parlay.calibrate.worker import PARTS, Settings, calibrate
    from parlay.errors import UsageError
    from parlay.hardware.load import load_cluster, user_catalog_directory
    from parlay.models.load import load_model
    from parlay.units import parse_quantity

    if optimizer_dtype not in ("fp32", "bf16"):
        raise UsageError(f"'{optimizer_dtype}' is neither fp32 nor bf16", where="--optimizer-dtype")
    if backend not in (None, "nccl", "gloo"):
        raise UsageError(f"'{backend}' is neither nccl nor gloo", where="--backend", hint="on ROCm, nccl means RCCL")
    environment = dict(os.environ)
    job = job_of(environment)
    log = _nccl_log(job.rank)
    settings = Settings(
        output=out,
        model=load_model(model) if model else None,
        seq_len=flags.token_count(seq_len),
        micro_batch=micro_batch,
        dtypes=_listed(dtypes, ("bf16", "fp16", "fp32", "tf32", "fp8"), "--dtypes"),
        parts=_listed(parts, PARTS, "--parts") if parts else PARTS,
        ops=_listed(ops, Settings.ops, "--ops") if ops else Settings.ops,
        least_bytes=_bytes(min_bytes, "--min-bytes"),
        most_bytes=_bytes(max_bytes, "--max-bytes") if max_bytes else None,
        largest_side=gemm_side,
        optimizer_dtype=optimizer_dtype,
        budget_s=parse_quantity(_seconds(budget), "s", where="--budget") if budget else None,
        timeout_s=timeout,
        backend=backend,
        cluster=load_cluster(on, user_catalog_directory()) if on else None,
        resume=resume,
        environment=environment,
        command=("parlay", *sys.argv[1:]),
        nccl_log=lambda: _read(log),
    )
    bar = _Progress()
    try:
        found = calibrate(settings, job, bar if job.rank == 0 else None)
    finally:
        bar.close()
    if job.rank == 0:
        _say_written(found, out, json)


def show(file: File, json: flags.Json = False) -> None:
    """Show a calibration, flags first.

    Then rates, curves, and how far they lie from the points.

    Example: parlay calibrate show cluster.json
    """
    from parlay.calibrate.file import load_calibration
    from parlay.report.calibrate import show_document, show_lines

    found = load_calibration(file)
    if json:
        output.say_json(show_document(found))
    else:
        output.say(show_lines(found, output.page()))


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="The earlier file.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The later file.")],
    json: flags.Json = False,
) -> None:
    """Show which rates moved from A to B.

    A rate moved if its change is larger than its samples scatter.

    Example: parlay calibrate diff before.json after.json
    """
    from parlay.calibrate.diff import differences
    from parlay.calibrate.file import load_calibration
    from parlay.report.calibrate import diff_document, diff_lines

    first, second = load_calibration(before), load_calibration(after)
    found = differences(first, second)
    if json:
        output.say_json(diff_document(first, second, found))
    else:
        output.say(diff_lines(first, second, found, output.page()))


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="nccl-tests -J output, a SimuMax system.json, or the output of all_reduce_bench.py."
        ),
    ],
    out: Out,
    ranks_per_host: Annotated[
        int | None, typer.Option("--ranks-per-host", metavar="N", min=1, help="Ranks on each host, where the file does not say.")
    ] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster it was measured on.")] = None,
    json: flags.Json = False,
) -> None:
    """Import what other tools measured.

    Example: parlay calibrate import nccl.json -o cluster.json
    """
    from parlay.calibrate.file import save_calibration
    from parlay.calibrate.imports import import_file
    from parlay.errors import UsageError
    from parlay.hardware.load import load_cluster, user_catalog_directory

    if out.exists():
        raise UsageError("is there already", where=str(out), hint="choose another name with -o")
    cluster = load_cluster(on, user_catalog_directory()) if on else None
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = save_calibration(import_file(source, now, cluster=cluster, ranks_per_host=ranks_per_host), out)
    _say_written(found, out, json)


def _say_written(found: Calibration, out: Path, json: bool) -> None:
    """Say what a file that was just written holds: the document of `calibrate show`, or a summary."""
    from parlay.report.calibrate import run_lines, show_document

    if json:
        output.say_json(show_document(found))
    else:
        output.say(run_lines(found, str(out), output.page()))


def fit(file: File, json: flags.Json = False) -> None:
    """Fit the curves again from the samples.

    FILE is written again with them; the machine is not needed.

    Example: parlay calibrate fit cluster.json
    """
    from parlay.calibrate.file import load_calibration, save_calibration
    from parlay.calibrate.fits import fitted
    from parlay.errors import UsageError
    from parlay.rates.calibration_file import shipped_calibrations
    from parlay.report.calibrate import show_document, show_lines

    if not file.exists() and str(file) in shipped_calibrations():
        raise UsageError(
            "ships with parlay and is not written again", where=str(file), hint="name a file that `parlay calibrate` wrote"
        )
    found = save_calibration(fitted(load_calibration(file)), file)
    if json:
        output.say_json(show_document(found))
    else:
        output.say(show_lines(found, output.page()))


class _Progress:
    """Says on stderr what is measured and how long it will still take: one line that changes, or one every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0
        self.terminal = sys.stderr.isatty()

    def __call__(self, done: int, total: int, name: str, left_s: float) -> None:
        now = time.monotonic()
        if now - self.last < (0.2 if self.terminal else PROGRESS_S):
            return
        self.last = now
        line = f"{done}/{total} points, about {left_s:.0f} s left, next: {name}"
        room = shutil.get_terminal_size().columns - 1  # a line that breaks could not be wiped
        sys.stderr.write(f"\r\x1b[K{line[:room]}" if self.terminal else line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Wipe the line that changes, so that what follows starts on a clean one."""
        if self.terminal and self.last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _listed(text: str, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    from parlay.errors import UnknownNameError

    names = tuple(dict.fromkeys(x.strip() for x in text.split(",") if x.strip()))
    for name in names:
        if name not in known:
            raise UnknownNameError("name", name, known, where=where)
    return names


def _bytes(text: str, where: str) -> int:
    from parlay.units import parse_quantity

    return int(parse_quantity(text, "bytes", where=where))


def _seconds(text: str) -> str:
    """Return minutes and hours as seconds: '10m' is '600 s'."""
    unit = {"m": 60, "h": 3600}.get(text.strip()[-1:].lower())
    try:
        return f"{float(text.strip()[:-1]) * unit} s" if unit else text
    except ValueError:
        return text


def _nccl_log(rank: int) -> Path | None:
    """Ask NCCL to say which transport it takes, into a file of this rank, unless the user has set up its log."""
    if rank != 0 or "NCCL_DEBUG" in os.environ:
        return None
    path = Path(tempfile.gettempdir()) / f"parlay-nccl-{os.getpid()}.log"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,P2P", NCCL_DEBUG_FILE=str(path))
    return path


def _read(path: Path | None) -> str:
    if path is None or not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    path.unlink(missing_ok=True)
    return text


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(
        help="Measure what this hardware really does.",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("run")(run)
    group.command("show")(show)
    group.command("diff")(diff)
    group.command("import")(import_)
    group.command("fit")(fit)
    app.add_typer(group, name="calibrate")
