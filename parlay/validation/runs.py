"""Published training runs as their authors printed them, read from CSV files of three known formats.

A file is told by its header: published runs (joined by id with a file of settings), vTrain's tables, or the golden
values of Megatron-LM's functional tests. A file that cannot be read is one clear error; a row that does not say what
it must is kept, with its reason, and counted.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from parlay.errors import UsageError, nearest
from parlay.specfile import read_text

Format = Literal["published", "vtrain", "megatron-ci"]

DATA = Path(__file__).parent / "data"
PACKAGED = ("published-runs.csv", "vtrain-multi-node.csv", "vtrain-single-node.csv", "megatron-ci.csv")
PACKAGED_SETTINGS = DATA / "run-settings.csv"
MOST_BYTES = 64 << 20  # of a file of runs
MOST_ROWS = 200_000
MOST = 1 << 40  # of a count
LONGEST_NAME = 32  # characters of a source that is a name, not a citation

PUBLISHED = (
    "id", "framework", "model", "hardware", "num_gpus", "precision", "seq_len", "micro_batch", "global_batch", "tp", "pp", "dp",
)  # fmt: skip
OTHERS = (  # columns of published runs that a file may lack
    "source", "provenance", "framework_version", "arch_json", "gpus_per_node", "sp", "cp", "vpp", "ep", "etp", "fsdp_or_zero",
    "recompute", "offload", "overlap_notes", "tokens_per_s_per_gpu", "tflops_per_gpu", "flops_convention", "mfu", "step_time_s",
    "peak_memory_gb", "notes", "tier",
)  # fmt: skip
SETTINGS = ("id", "recompute")
VTRAIN = (
    "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
    "tensor parallelism", "data parallelism", "pipeline parallelism", "iteration time (ms)",
)  # fmt: skip
MEGATRON_CI = ("test", "golden", "kind", "hardware", "gpus", "layers", "hidden", "heads", "seq", "tp", "pp", "dp", "mbs", "gbs")
HEADERS: dict[Format, tuple[str, ...]] = {"published": PUBLISHED, "vtrain": VTRAIN, "megatron-ci": MEGATRON_CI}

# What vTrain's README says of all its runs: full recompute, 1F1B, no sharded optimizer, a padded GPT-2 vocabulary
# (its single-node rows, which its simulator computed, recompute nothing: data/SOURCES.md).
VTRAIN_SETTINGS = {"recompute": "full", "fsdp_or_zero": "none", "grad_dtype": "fp16", "vocab": "51200", "dp_overlap_grad": "off"}
GIB = float(1 << 30)
GB = 1e9
# Megatron-Bridge's log divides torch.cuda.memory_stats() by 1.0e9 and keeps five digits (src/megatron/bridge/training/utils/
# train_utils.py, report_memory, "mem-max-allocated-gigabytes"), which its tables copy, some with GiB behind it.
DECIMAL_LOGS = r"megatron-bridge"
THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?"  # a comma parts thousands or it is not understood: 60,5 may be 60.5
NUMBER = rf"(?<![\d.,])({THOUSANDS}|\d+(?:\.\d+)?)(?!,?\d)"  # in a sentence, where a full stop may follow
# What sources write into a cell that has no value.
NOTHING = frozenset(("", "-", "--", "n/a", "na", "none", "null", "unknown", "not stated", "not printed", "?"))
# Units that a cell may repeat, in the column's own; GB of these sources are GiB, and lengths of so many k are powers of two.
UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "gib": 1.0, "gb": 1.0, "k": 1024.0, "ki": 1024.0}
BEYOND = "(beyond the header)"  # what a row has in more cells than the header: any of its cells may be another column's
SILENT = ("unknown", "not stated", "not printed")  # settings that say no more than an empty cell


def number_of(text: str) -> float:
    """Return a number that NUMBER matched.

    Examples
    --------
    >>> number_of("19,561.5")
    19561.5
    """
    return float(text.replace(",", ""))


def written_number(text: str) -> tuple[float, float]:
    """Return a number as cells and filters write it, and the scale of its unit; raises ValueError with what is wrong.

    Examples
    --------
    >>> written_number("8k"), written_number("12,300 ms"), written_number("1e3")
    ((8192.0, 1024.0), (12.3, 0.001), (1000.0, 1.0))
    """
    number, unit = re.fullmatch(r"(.*?) ?([a-zA-Z]*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    scale = UNITS.get(unit.lower(), 0.0) if number else 0.0
    if "," in number and not re.fullmatch(THOUSANDS, number):
        raise ValueError("not understood: a comma parts groups of three digits, as in 12,345.6")
    try:
        return (float(number.replace(",", "")) * scale, scale) if scale else (float(text.replace(",", "")), 1.0)
    except ValueError:
        raise ValueError("not a number") from None


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """A memory figure as printed: its bytes, what it counts, and on which rank."""

    nbytes: float
    meaning: Literal["allocated", "reserved", "nvidia-smi", "after_step", "unstated"]
    rank: Literal["largest", "first", "last"] = "largest"


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One measured run. None is what the source does not say; `problems` are cells that could not be understood."""

    id: str
    source: str  # the group of runs of one table: the id without its number
    format: Format
    citation: str
    framework: str
    version: str
    model: str
    arch: Mapping[str, Any]
    hardware: str
    precision: str
    tier: str
    gpus: int | None = None
    node_gpus: int | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    sp: bool | None = None
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    flops_per_s_per_gpu: float | None = None
    flops_convention: str = ""
    memory: tuple[Memory, ...] = ()
    notes: str = ""
    readings: tuple[str, ...] = ()  # how cells were read that may mean two things
    columns: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # every cell of the row, and of its settings as settings.NAME
    problems: tuple[str, ...] = ()

    def setting(self, name: str) -> str:
        """Return a column of the settings file for this run, or the run's own column of that name; "" if neither says."""
        found = (self.columns.get(f"settings.{name}", "").strip(), self.columns.get(name, "").strip())
        return next((text for text in found if text and not text.lower().startswith(SILENT)), "")


class Cells:
    """The cells of one row, as numbers; what is no number is remembered as a problem of the row."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.problems: list[str] = []
        self.readings: list[str] = []
        if BEYOND in row:
            self.problems.append(beyond_header(row))

    def text(self, name: str) -> str:
        """Return a cell as text."""
        return self.row.get(name, "").strip()

    def real(self, name: str) -> float | None:
        """Return a cell as a finite number above 0, None if it says nothing."""
        text = self.text(name).removeprefix("~").strip()
        if text.lower() in NOTHING:
            return None
        try:
            value, scale = written_number(text)
        except ValueError as error:
            self.problems.append(f"{name} is '{text[:40]}', {error}")
            return None
        if not math.isfinite(value) or value <= 0:
            self.problems.append(f"{name} is {text[:40]}, not a number above 0")
            return None
        if scale == UNITS["k"]:
            self.readings.append(
                f"{name} of {text[:40]} read as {value:,.12g}: k is 1,024 in a file of runs, as its sources mean it"
            )
        return value

    def degree(self, name: str) -> int | None:
        """Return a cell as the degree of something that 0 leaves out: a whole number above 0, None if it says nothing or 0."""
        return None if re.fullmatch(r"0(\.0*)?", self.text(name)) else self.whole(name)

    def whole(self, name: str) -> int | None:
        """Return a cell as a whole number above 0, None if empty."""
        value = self.real(name)
        if value is None:
            return None
        if value > MOST:
            self.problems.append(f"{name} is {self.text(name)[:40]}, more than {MOST:,}")
            return None
        if value != int(value):
            self.problems.append(f"{name} is {value:g}, not a whole number")
            return None
        return int(value)

    def figure(self, name: str) -> float | None:
        """Return a cell as a number above 0, None if it is none: a figure that nothing else rests on ("OOM" as memory)."""
        before = len(self.problems)
        value = self.real(name)
        self.readings += [f"{problem}: left out" for problem in self.problems[before:]]
        del self.problems[before:]
        return value

    def flag(self, name: str) -> bool | None:
        """Return a cell as true or false, None if empty."""
        text = self.text(name).lower()
        if text in ("true", "yes", "1", "on"):
            return True
        if text in ("false", "no", "0", "off"):
            return False
        return None


def read_runs(path: Path, settings: Path | None = None) -> list[Run]:
    """Return the runs of a file.

    Parameters
    ----------
    path : Path
        A CSV file in the format of published-runs.csv, of vtrain-*.csv or of megatron-ci.csv; the header tells. [-]
    settings : Path, optional
        A CSV file with settings by run id, for a file of published runs. [-]

    Returns
    -------
    list of Run
        One a row, in the file's order. [-]

    Raises
    ------
    UsageError
        The file is missing, empty, too large, not CSV, or lacks a column: the message names file and column.
    """
    header, rows = read_table(path)
    kind = format_of(header, path)
    if kind == "vtrain":
        return [vtrain_run(row, path.stem, number) for number, row in enumerate(rows, start=1)]
    if kind == "megatron-ci":
        return [ci_run(row) for row in rows]
    joined, unclear = settings_by_id(settings) if settings else ({}, {})
    runs: list[Run] = []
    first: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        given = row["id"].strip()
        run = published_run(row | {"id": given or f"row-{number}"}, joined.get(given, {}))
        if not given:
            run = dataclasses.replace(run, readings=(*run.readings, f"row {number} has no id: it is called row-{number}"))
        problem = unclear.get(given)
        if run.id in first:
            problem = f"its id is that of row {first[run.id]} too"
        first.setdefault(run.id, number)
        runs.append(dataclasses.replace(run, problems=(problem, *run.problems)) if problem else run)
    return runs


def packaged_runs() -> list[Run]:
    """Return the runs that Parlay ships: published runs with their settings, vTrain's tables, Megatron-LM's tests."""
    return [run for name in PACKAGED for run in read_runs(DATA / name, PACKAGED_SETTINGS)]


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return header and rows of a CSV file; raises UsageError as `read_runs` does."""
    text = read_text(path, most_bytes=MOST_BYTES)
    if "\0" in text:
        raise UsageError("holds zero bytes, so it is not a CSV file", where=str(path))
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), restkey=BEYOND, restval="")
        header = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = header
        twice = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
        if twice:
            named = ", ".join(f"'{name[:40]}'" for name in twice[:10])
            raise UsageError(
                f"has a column twice: {named}", where=str(path), hint="which one counts cannot be told: keep one of each"
            )
        rows = []
        for row in reader:
            cells = {k: v for k, v in row.items() if isinstance(v, str)}
            beyond = [cell.strip() for v in row.values() if isinstance(v, list) for cell in v if cell.strip()]
            if not any(cell.strip() for cell in cells.values()) and not beyond:
                continue  # a spreadsheet's empty line
            if beyond:
                cells[BEYOND] = ", ".join(beyond)
            rows.append(cells)
            if len(rows) > MOST_ROWS:
                raise UsageError(f"has more than {MOST_ROWS:,} rows", where=str(path))
    except csv.Error as error:
        raise UsageError(f"is not a CSV file: {error}", where=str(path)) from None
    if not header:
        raise UsageError("is empty", where=str(path), hint="expected a CSV file with a header")
    if not rows:
        raise UsageError("has a header but no rows", where=str(path))
    return header, rows


def format_of(header: list[str], path: Path) -> Format:
    """Return which format a header has, or raise UsageError that names the first missing column."""
    have = set(header)
    shared = {kind: len(have & set(columns)) / len(columns) for kind, columns in HEADERS.items()}
    kind = max(shared, key=lambda k: shared[k])
    if shared[kind] < 0.4:
        raise UsageError(
            "is not a file of runs: its header has the columns of no known format",
            where=str(path),
            hint=f"published runs have {', '.join(PUBLISHED[:6])} and others; see docs/validation.md",
        )
    _has_columns(header, HEADERS[kind], path)
    return kind


def settings_by_id(path: Path) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the rows of a settings file by run id, and why those of some ids cannot be used; raises UsageError as `read_runs` does."""
    header, rows = read_table(path)
    _has_columns(header, SETTINGS, path)
    found: dict[str, dict[str, str]] = {}
    places: dict[str, list[int]] = {}
    for number, row in enumerate(rows, start=1):
        given = row["id"].strip()
        if not given:
            raise UsageError(f"row {number} has no id", where=str(path), hint="settings are joined by id: give every row one")
        places.setdefault(given, []).append(number)
        found[given] = row
    unclear = {given: f"in the settings file, {beyond_header(row)}" for given, row in found.items() if BEYOND in row}
    unclear |= {
        given: f"the settings file has its id in rows {' and '.join(map(str, at))}" for given, at in places.items() if len(at) > 1
    }
    return found, unclear


def beyond_header(row: Mapping[str, str]) -> str:
    """Return what is wrong with a row that has more cells than its header."""
    return f"the row has more cells than the header: '{row[BEYOND][:40]}' is in none of its columns (quote what holds a comma)"


def _has_columns(header: list[str], needed: tuple[str, ...], path: Path) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        unknown = [name for name in header if name not in (*needed, *OTHERS)]  # a known column is not another one misspelt
        near = {name: " or ".join(nearest(name, unknown)) for name in missing}
        hints = [f"did you mean {found}{f' for {name}' if len(missing) > 1 else ''}?" for name, found in near.items() if found]
        more = f" (and {len(missing) - 1} more: {', '.join(missing[1:])})" if len(missing) > 1 else ""
        raise UsageError(f"has no column '{missing[0]}'{more}", where=str(path), hint=" ".join(hints) or None)


def published_run(row: Mapping[str, str], settings: Mapping[str, str]) -> Run:
    """Return one row of a file of published runs."""
    cells = Cells(row)
    arch: dict[str, Any] = {}
    if cells.text("arch_json"):
        try:
            found = json.loads(cells.text("arch_json"))
            arch = found if isinstance(found, dict) else {}
        except ValueError:
            cells.problems.append("arch_json is not JSON")
    teraflops = cells.real("tflops_per_gpu")
    columns = {k: v.strip() for k, v in row.items()}
    columns |= {f"settings.{k}": v.strip() for k, v in settings.items() if k != "id"}
    return Run(
        id=cells.text("id"), source=source_of(cells.text("id"), cells.text("source")), format="published", citation=cells.text("source"),
        framework=cells.text("framework"), version=cells.text("framework_version"), model=cells.text("model"),
        arch=MappingProxyType(arch), hardware=cells.text("hardware"), precision=cells.text("precision"), tier=cells.text("tier"),
        gpus=cells.whole("num_gpus"), node_gpus=cells.whole("gpus_per_node"), seq_len=cells.whole("seq_len"), micro_batch=cells.whole("micro_batch"),
        global_batch=cells.whole("global_batch"), tp=cells.whole("tp"), cp=cells.whole("cp"), pp=cells.whole("pp"),
        vpp=cells.degree("vpp"), ep=cells.whole("ep"), etp=cells.whole("etp"), dp=cells.whole("dp"), sp=cells.flag("sp"),
        step_s=cells.real("step_time_s"), tokens_per_s_per_gpu=cells.real("tokens_per_s_per_gpu"),
        flops_per_s_per_gpu=None if teraflops is None else teraflops * 1e12, flops_convention=cells.text("flops_convention"),
        memory=_published_memory(cells), notes=cells.text("notes"), columns=MappingProxyType(columns),
        problems=tuple(cells.problems), readings=tuple(cells.readings),
    )  # fmt: skip


def group_of(run_id: str) -> str:
    """Return the table that a run belongs to: its id without the number at the end.

    Examples
    --------
    >>> group_of("bridge-2608-006"), group_of("alone")
    ('bridge-2608', 'alone')
    """
    return re.sub(r"-\d+$", "", run_id)


def source_of(run_id: str, column: str) -> str:
    """Return what a run is grouped by: the table that its id numbers it in, else what its file calls its source, if that is a name.

    Examples
    --------
    >>> source_of("bridge-2608-006", "NVIDIA-NeMo/Megatron-Bridge docs"), source_of("run1", "our cluster"), source_of("run1", "")
    ('bridge-2608', 'our cluster', 'run1')
    """
    table = group_of(run_id)
    return column if table == run_id and 0 < len(column) <= LONGEST_NAME else table


def _published_memory(cells: Cells) -> tuple[Memory, ...]:
    """Return the printed peak, and a reserved figure that the notes give beside it. GB of these sources are GiB, but for
    frameworks whose own log counts 10^9 bytes, whatever the table that copies it calls them."""
    value = cells.figure("peak_memory_gb")
    if value is None:
        return ()
    notes = f"{cells.text('notes')} {cells.text('source')}".lower()
    about = notes.replace("mib reserved", "").replace("; reserved ", "; ")
    meaning: Literal["allocated", "reserved", "nvidia-smi", "unstated"] = "unstated"
    if "nvidia-smi" in about:
        meaning = "nvidia-smi"
    elif "allocated" in about:
        meaning = "allocated"
    elif "reserved" in about:
        meaning = "reserved"
    elif "torchtitan" in cells.text("framework").lower():
        meaning = "reserved"  # torchtitan's metrics print the peak reserved bytes
    # nanotron logs the memory of global rank 0, which is of the first stage (logging/base.py, log_memory)
    rank: Literal["largest", "first"] = "first" if "nanotron" in cells.text("framework").lower() else "largest"
    unit = GB if re.search(DECIMAL_LOGS, cells.text("framework").lower()) else GIB
    found = [Memory(value * unit, meaning, rank)]
    beside = re.search(rf"reserved {NUMBER}\.? gib", notes)
    in_mib = re.search(rf"/ {NUMBER} mib reserved", notes)
    if meaning == "allocated" and beside:
        found.append(Memory(number_of(beside[1]) * unit, "reserved"))
    elif meaning == "allocated" and in_mib:
        found.append(Memory(number_of(in_mib[1]) * 2**20, "reserved", rank))
    return tuple(found)


def vtrain_run(row: Mapping[str, str], name: str, number: int) -> Run:
    """Return one row of vTrain's tables: a GPT model under Megatron-DeepSpeed on A100."""
    cells = Cells(row)
    milliseconds = cells.real("iteration time (ms)")
    arch = {"hidden": cells.whole("hidden size"), "heads": cells.whole("attention heads"), "layers": cells.whole("# layers")}
    gpus = cells.whole("# GPUs")
    return Run(
        id=f"{name}-{number:03d}", source=name, format="vtrain", citation="VIA-Research/vTrain, validation tables",
        framework="Megatron-DeepSpeed", version="2022", model=f"GPT-{arch['layers']}x{arch['hidden']}",
        arch=MappingProxyType(arch), hardware="a100-80gb-sxm", precision="fp16", tier="vtrain", gpus=gpus,
        seq_len=cells.whole("sequence length"), micro_batch=cells.whole("micro batch"), global_batch=cells.whole("global batch"),
        tp=cells.whole("tensor parallelism"), cp=1, pp=cells.whole("pipeline parallelism"), dp=cells.whole("data parallelism"),
        step_s=None if milliseconds is None else milliseconds / 1e3, columns=MappingProxyType({**row, **VTRAIN_SETTINGS}),
        problems=tuple(cells.problems), readings=tuple(cells.readings),
    )  # fmt: skip


def ci_run(row: Mapping[str, str]) -> Run:
    """Return one row of Megatron-LM's golden values: memory of the last rank, and the median step."""
    cells = Cells(row)
    after, peak = cells.real("mem_alloc_max"), cells.real("mem_max_last")
    memory = [Memory(after, "after_step", "last")] if after else []
    memory += [Memory(peak, "allocated", "last")] if peak else []
    known = cells.text("gpus_source") == "recipe" and cells.text("golden_date") >= cells.text("config_date")
    hardware = cells.text("hardware").split("(")[0].lower()
    source = f"megatron-ci {'exact' if known else 'loose'}"
    return Run(
        id=f"{cells.text('test')}/{cells.text('golden').removeprefix('golden_values_').removesuffix('.json')}",
        source=source, format="megatron-ci",
        citation=f"NVIDIA/Megatron-LM tests/functional_tests {cells.text('golden_commit')}", framework="Megatron-LM",
        version=cells.text("golden_date"), model=cells.text("group"), arch=MappingProxyType({}), hardware=hardware,
        precision=cells.text("precision"), tier="ci" if known else "ci-loose", gpus=cells.whole("gpus"),
        seq_len=cells.whole("seq"), micro_batch=cells.whole("mbs"), global_batch=cells.whole("gbs"), tp=cells.whole("tp"),
        cp=cells.whole("cp"), pp=cells.whole("pp"), ep=cells.whole("ep"), etp=cells.whole("etp"), sp=cells.flag("sp"),
        step_s=cells.real("iter_time_median_s"), memory=tuple(memory), columns=MappingProxyType(dict(row)),
        problems=tuple(cells.problems), readings=tuple(cells.readings),
    )  # fmt: skip
