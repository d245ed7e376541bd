"""The calibration file: versioned JSON that holds what was measured, on what, how, and the samples behind every number.

SI base units throughout: seconds, bytes, bytes/s, FLOP/s. Fits can be derived again from the samples, so they carry a
version of their own. parlay.calibrate writes such files; parlay.rates.calibrated turns one into rates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from parlay.errors import UsageError
from parlay.specfile import Spec, as_usage_error, read_text

SCHEMA_VERSION = 1
FITS_VERSION = 1
SHIPPED = Path(__file__).with_name("calibrations")
MAX_CALIBRATION_BYTES = 64 << 20  # raw samples of a large sweep are a few MB

Second = Annotated[float, Field(gt=0, le=1e6)]
Positive = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(gt=0, le=1 << 50)]
Op = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv"]
Level = Literal["intra", "inter", "rails", "world"]
HostDirection = Literal["to_host", "to_device"]
Samples = tuple[Second, ...]


class Times(Spec):
    """Seconds of one point over its samples: median, minimum, 90th percentile, median deviation.

    Of a collective each sample is the slowest rank's; of compute they are those of the rank with the largest median.
    """

    median: Second
    min: Second
    p90: Second
    mad: Annotated[float, Field(ge=0)]
    n: Annotated[int, Field(ge=1)]

    @property
    def spread(self) -> float:
        """How far the 90th percentile lies above the median, as a share of it."""
        return self.p90 / self.median - 1.0


class Gemm(Spec):
    """A product m x k by k x n in `dtype`; layout TN is a forward, NN an input gradient, NT a weight gradient."""

    op: Literal["gemm"] = "gemm"
    dtype: str
    m: Size
    n: Size
    k: Size
    layout: Literal["TN", "NN", "NT"] = "TN"
    accumulate: bool = False
    flops: Positive
    seconds: Times
    samples_s: Samples = ()
    flags: tuple[str, ...] = ()


class GroupedGemm(Spec):
    """`groups` products of rows/groups x k by k x n."""

    op: Literal["grouped_gemm"] = "grouped_gemm"
    dtype: str
    rows: Size
    groups: Size
    n: Size
    k: Size
    fused: bool = True
    flops: Positive
    seconds: Times
    samples_s: Samples = ()
    flags: tuple[str, ...] = ()


class AttentionPoint(Spec):
    """Fused attention in one direction. FLOPs count the scores that the mask lets through; backward 2.5 forwards."""

    op: Literal["attention"] = "attention"
    dtype: str
    batch: Size
    queries: Size
    keys: Size
    heads: Size
    kv_heads: Size
    qk_dim: Size
    v_dim: Size
    causal: bool = True
    backward: bool = False
    flops: Positive
    seconds: Times
    samples_s: Samples = ()
    flags: tuple[str, ...] = ()


Compute = Annotated[Gemm | GroupedGemm | AttentionPoint, Field(discriminator="op")]


class Stream(Spec):
    """A byte-bound kernel; `bytes` by the stated convention."""

    op: str
    direction: Literal["forward", "backward", "step"] = "forward"
    dtype: str = "bf16"
    bytes: Size
    bytes_convention: str
    seconds: Times
    samples_s: Samples = ()
    flags: tuple[str, ...] = ()


class HostCopy(Spec):
    """A copy of one size between a device and pinned memory of its host, one direction, on all ranks at once."""

    direction: HostDirection
    bytes: Size
    pinned: bool = True
    seconds: Times
    samples_s: Samples = ()
    flags: tuple[str, ...] = ()


class LinkPoint(Spec):
    """One message size of a collective; `bytes` is the whole buffer. algbw = bytes / median, busbw = algbw x wire factor."""

    bytes: Size
    seconds: Times
    samples_s: Samples = ()
    algbw: Annotated[float, Field(ge=0)]
    busbw: Annotated[float, Field(ge=0)]
    flags: tuple[str, ...] = ()


class Link(Spec):
    """A size sweep of one collective on one group: n ranks, `local` of them on each host, `groups_active` at once."""

    op: Op
    backend: str
    level: Level
    n: Annotated[int, Field(ge=2, le=1 << 20)]
    local: Annotated[int, Field(ge=1)] = 1
    groups_active: Annotated[int, Field(ge=1)] = 1
    dtype: str = "bf16"
    algo: str | None = None
    size_convention: Literal["total"] = "total"
    points: tuple[LinkPoint, ...] = ()


class Overlap(Spec):
    """How much slower a product and a collective get when they run at once: two factors, each at least about 1."""

    compute: str
    comm: str
    slow_compute: Positive
    slow_comm: Positive


class Sustained(Spec):
    """FLOP/s of one product over and over: in the first milliseconds, and after a second, when power and heat hold the clock."""

    dtype: str
    burst_flops_per_s: Positive
    held_flops_per_s: Positive

    @property
    def share(self) -> float:
        """What is left of a burst's rate under load, at most 1."""
        return min(1.0, self.held_flops_per_s / self.burst_flops_per_s)


class Fit(Spec):
    """A fitted curve: its form, parameters, range of sizes or FLOPs, and how far it lies from its own points."""

    target: str
    form: str
    params: dict[str, float]
    plateau: float | None = None
    range: tuple[float, float]
    residual: dict[str, float]  # median_pct, max_pct, n
    spread_pct: float = 0.0
    estimator: str = ""


class Datasheet(Spec):
    """What the catalog says the device can do at most; bounds what a measurement may claim."""

    catalog_key: str
    flops: dict[str, float] = Field(default_factory=dict)
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    host_link_bytes_per_s: float | None = None


class MeasuredDevice(Spec):
    """The device and the state it was in."""

    name: str
    vendor: str
    arch: str | None = None
    count_per_host: Annotated[int, Field(ge=1)] = 1
    memory_bytes: int | None = None
    driver: str | None = None
    ecc: bool | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    clocks_mhz: dict[str, float] = Field(default_factory=dict)
    throttle_reasons: tuple[str, ...] = ()
    temperature_c: tuple[float, ...] = ()
    threads: int | None = None  # of a CPU, per rank
    datasheet: Datasheet | None = None


class Software(Spec):
    """Versions of what ran."""

    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: tuple[int, ...] | None = None
    os: str | None = None
    container: str | None = None


class Topology(Spec):
    """Hosts, ranks and the transport between them."""

    hosts: Annotated[int, Field(ge=1)] = 1
    ranks_per_host: Annotated[int, Field(ge=1)] = 1
    rank_to_host: tuple[int, ...] = (0,)
    host_names: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    transport: str | None = None
    launcher: str | None = None
    nvlink: str | None = None
    gdr: bool | None = None
    p2p: bool | None = None
    env: dict[str, str] = Field(default_factory=dict)


class Method(Spec):
    """How was measured."""

    warmup: int = 0
    samples: int = 1
    stat: str = "median"
    reduce_ranks: str = "max"
    l2_flush_bytes: int = 0
    data: str = "randn"
    mode: Literal["burst", "sustained", "mixed", "unknown"] = "unknown"
    graph: bool = False
    compiled: bool = False  # byte-bound kernels of several operations were compiled to one


class Note(Spec):
    """Something that was skipped or failed, and why."""

    what: str
    why: str


class Calibration(Spec):
    """A whole calibration file."""

    schema_version: Literal[1] = 1
    kind: Literal["calibration"] = "calibration"
    id: str = ""
    complete: bool = False
    created: str
    tool: dict[str, str]
    command: tuple[str, ...] = ()
    provenance: Literal["measured", "imported"] = "measured"
    device: MeasuredDevice
    software: Software = Software()
    topology: Topology = Topology()
    method: Method = Method()
    compute: tuple[Compute, ...] = ()
    memory: tuple[Stream, ...] = ()
    host_copies: tuple[HostCopy, ...] = ()
    links: tuple[Link, ...] = ()
    overlap: tuple[Overlap, ...] = ()
    sustained: tuple[Sustained, ...] = ()
    launch_s: dict[str, float | None] = Field(default_factory=dict)
    fits_version: int = FITS_VERSION
    fits: tuple[Fit, ...] = ()
    skipped: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    warnings: tuple[str, ...] = ()
    resumed: bool = False
    notes: str = ""

    @property
    def count(self) -> int:
        """How many points were measured."""
        return len(self.compute) + len(self.memory) + len(self.host_copies) + sum(len(x.points) for x in self.links)

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The products."""
        return tuple(c for c in self.compute if isinstance(c, Gemm))

    @property
    def attentions(self) -> tuple[AttentionPoint, ...]:
        """The attention points."""
        return tuple(c for c in self.compute if isinstance(c, AttentionPoint))

    @property
    def grouped(self) -> tuple[GroupedGemm, ...]:
        """The grouped products."""
        return tuple(c for c in self.compute if isinstance(c, GroupedGemm))


def shipped_calibrations() -> tuple[str, ...]:
    """Return the names of the calibrations that Parlay ships, each of one real machine."""
    return tuple(sorted(file.stem for file in SHIPPED.glob("*.json")))


def load_calibration(path: str | Path) -> Calibration:
    """Return the calibration of a file.

    Parameters
    ----------
    path : str or Path
        A file that `parlay calibrate` wrote, or the name of one that Parlay ships [-].

    Returns
    -------
    Calibration
        Everything in it, validated [-].

    Raises
    ------
    UsageError
        The file is missing, cut short, not JSON, of another kind, of a newer version, or has a wrong value.
    """
    where = Path(path)
    if not where.exists() and str(path) in shipped_calibrations():
        where = SHIPPED / f"{path}.json"
    text = read_text(where, most_bytes=MAX_CALIBRATION_BYTES)
    if not text.strip():
        raise UsageError(
            "is empty", where=str(path), hint="a run that could not write leaves the file before it; calibrate again"
        )
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (json.JSONDecodeError, ValueError, RecursionError) as error:
        hint = "a calibration file is what `parlay calibrate run -o FILE` writes"
        raise UsageError(f"is not valid JSON ({str(error)[:80]})", where=str(path), hint=hint) from None
    return calibration_of(data, str(path))


def calibration_of(data: Any, where: str) -> Calibration:
    """Return the calibration of a JSON document, or raise UsageError."""
    if not isinstance(data, dict) or data.get("kind") != "calibration":
        raise UsageError(
            "is not a calibration file",
            where=where,
            hint="`parlay calibrate import FILE` reads nccl-tests -J, SimuMax system.json and all_reduce_bench output",
        )
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        hint = "a newer Parlay wrote it: upgrade" if newer else "calibrate again"
        raise UsageError(f"has schema version {version!r}, this Parlay reads {SCHEMA_VERSION}", where=where, hint=hint)
    try:
        return Calibration.model_validate(data)
    except ValidationError as error:
        raise as_usage_error(error, Calibration, where) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
