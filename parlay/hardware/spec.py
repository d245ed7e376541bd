"""What a cluster is made of: devices, links, and how they are put together. One TOML file each, every value sourced.

SI base units inside (bytes, bytes/s of ONE direction, FLOP/s dense, seconds, watts). A file may write either a
bare quantity ("400 Gbit/s") or a table { value = "400 Gbit/s", source = "...", kind = "datasheet" }. Each quantity
has plausible bounds, wide enough for any machine of the next decade and narrow enough to catch a missing prefix. A CPU
(vendor "cpu") and the Ethernet between CPUs may be slower than any accelerator, so theirs reach further down.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from parlay.errors import UsageError
from parlay.specfile import Spec
from parlay.units import GIB, parse_quantity, show_bytes, show_rate

Kind = Literal["datasheet", "derived", "measured", "recalled", "user"]
Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8"]
CPU = "cpu"  # the vendor of a device that is a processor, as a calibration without a GPU writes it
LinkKind = Literal["nvlink", "xgmi", "pcie", "c2c", "infiniband", "roce", "efa", "ethernet", "slingshot", "omnipath", "tcp"]


class Sourced(Spec):
    """A number with where it comes from; `value` is in SI base units (zero only where the quantity allows it)."""

    value: float = Field(ge=0)
    source: str = "user"
    kind: Kind = "user"
    date: str | None = None
    note: str = ""


def _shown(value: float, dimension: str) -> str:
    """Return a bound or a value as a person reads it, without zeros that say nothing."""
    if dimension == "bytes":
        text = show_bytes(value)
    elif dimension in ("bytes/s", "FLOP/s"):
        text = show_rate(value, "B/s" if dimension == "bytes/s" else dimension)
    elif dimension == "count":
        text = f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    else:
        text = f"{value:g} {dimension}"
    return re.sub(r"(\.\d*?)0+(?= |$)", r"\1", text).replace(". ", " ")


def _quantity(given: Any, dimension: str, low: float, high: float, *, whole: bool) -> float:
    """Return `given` in SI base units, or raise ValueError saying what is allowed: unit, range, whole number."""
    bounds = f"between {_shown(low, dimension)} and {_shown(high, dimension)}"
    try:
        value = parse_quantity(given, dimension, positive=low > 0)
    except UsageError as error:  # pydantic needs a ValueError to report the key
        number = "write a whole number" if whole else "write a number"  # a count here is small: no examples with K, M, T
        how = number if dimension == "count" else f"{error.hint},"
        raise ValueError(f"{error.message}; {how} {bounds}") from None
    except OverflowError:
        raise ValueError("the number is too large for any quantity") from None
    if not low <= value <= high:
        unit = "" if isinstance(given, str) or dimension == "count" else " (a bare number is in SI base units)"
        raise ValueError(f"'{str(given)[:60]}'{unit} is {_shown(value, dimension)}, and must be {bounds}")
    if whole and value != int(value):
        raise ValueError(f"'{str(given)[:60]}' must be a whole number {bounds}")
    return value


def _reader(dimension: str, low: float, high: float, *, whole: bool = False) -> Callable[[Any], Any]:
    """Return what turns "3.35 TB/s" or a table with a `value` into the table of a Sourced in SI base units."""

    def parse(given: Any) -> Any:
        if isinstance(given, Sourced):
            return given
        table = dict(given) if isinstance(given, dict) else {"value": given}
        if "value" in table:
            table["value"] = _quantity(table["value"], dimension, low, high, whole=whole)
        return table

    return parse


def _rate(dimension: str, low: float, high: float, *, slow: float, key: str, slow_kind: str) -> Callable[..., Any]:
    """Return a reader whose lowest bound is `slow` where the table's own `key`, read before, says `slow_kind`."""
    plain, slower = _reader(dimension, low, high), _reader(dimension, slow, high)

    def parse(given: Any, info: ValidationInfo) -> Any:
        return (slower if str(info.data.get(key)).lower() == slow_kind else plain)(given)

    return parse


# The bounds. Lowest and highest are far outside what is sold, and far inside what a lost prefix gives.
Bytes = Annotated[Sourced, BeforeValidator(_reader("bytes", 1, 2.0**60))]
MemoryBytes = Annotated[Sourced, BeforeValidator(_reader("bytes", GIB, 16 * 2.0**40))]
HostBytes = Annotated[Sourced, BeforeValidator(_reader("bytes", GIB, 2.0**50))]
CacheBytes = Annotated[Sourced, BeforeValidator(_reader("bytes", 2.0**10, 64.0 * GIB))]
LEAST_LINK, LEAST_FLOPS = 1e8, 1e12  # bytes/s and FLOP/s of what trains models: 0.1 GB/s, 1 TFLOP/s
LEAST_ETHERNET, LEAST_CPU_FLOPS, LEAST_CPU_BYTES = 1e6, 1e9, 1e8  # of CPUs: 10 Mbit/s, one slow core, memory of a small board
HostLinkBytesPerSecond = Annotated[Sourced, BeforeValidator(_reader("bytes/s", LEAST_LINK, 1e14))]
HostBytesPerSecond = Annotated[Sourced, BeforeValidator(_reader("bytes/s", 1e9, 1e14))]
LinkBytesPerSecond = Annotated[
    Sourced, BeforeValidator(_rate("bytes/s", LEAST_LINK, 1e14, slow=LEAST_ETHERNET, key="kind", slow_kind="ethernet"))
]
HbmBytesPerSecond = Annotated[
    Sourced, BeforeValidator(_rate("bytes/s", 1e9, 1e15, slow=LEAST_CPU_BYTES, key="vendor", slow_kind=CPU))
]
FlopsPerSecond = Annotated[
    Sourced, BeforeValidator(_rate("FLOP/s", LEAST_FLOPS, 1e18, slow=LEAST_CPU_FLOPS, key="vendor", slow_kind=CPU))
]
Seconds = Annotated[Sourced, BeforeValidator(_reader("s", 0, 1))]
Watts = Annotated[Sourced, BeforeValidator(_reader("W", 1, 1e5))]
Count = Annotated[Sourced, BeforeValidator(_reader("count", 1, 1e5, whole=True))]
Nodes = Annotated[Sourced, BeforeValidator(_reader("count", 1, 1e6, whole=True))]
Hertz = Annotated[Sourced, BeforeValidator(_reader("count", 1e8, 1e10))]
Ratio = Annotated[Sourced, BeforeValidator(_reader("count", 1, 1000))]
Usd = Annotated[Sourced, BeforeValidator(_reader("count", 1e-3, 1e4))]

# An entry of `achieved` is named after its unit, so the end of its key says how to read it.
_ACHIEVED_UNITS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("_bytes_per_s", _reader("bytes/s", 1e6, 1e15)),
    ("_flops_per_s", _reader("FLOP/s", 1e9, 1e18)),
    ("_share", _reader("count", 1e-4, 10)),
    ("_s", _reader("s", 0, 1)),
)


def _parse_achieved(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    parsed = {}
    for key, entry in given.items():
        parse = next((reader for ending, reader in _ACHIEVED_UNITS if str(key).endswith(ending)), None)
        if parse is None:
            endings = ", ".join(ending for ending, _ in _ACHIEVED_UNITS)
            raise ValueError(f"'{str(key)[:60]}' must end in its unit, one of {endings}")
        try:
            parsed[key] = parse(entry)
        except ValueError as error:
            raise ValueError(f"{str(key)[:60]}: {error}") from None
    return parsed


Achieved = Annotated[dict[str, Sourced], BeforeValidator(_parse_achieved)]


class Memory(Spec):
    """The three meanings of a device's memory. Only `allocatable` decides whether a layout fits."""

    marketed: MemoryBytes  # the number on the box; "80 GB" of a GPU are 80 GiB
    visible: MemoryBytes | None = None  # what nvidia-smi or rocm-smi prints
    allocatable: MemoryBytes  # torch total_memory: what an allocator can reach before the context

    @model_validator(mode="after")
    def _ordered(self) -> Memory:
        if self.visible and self.allocatable.value > self.visible.value:
            raise ValueError(
                f"allocatable {show_bytes(self.allocatable.value, 5)} is more than visible {show_bytes(self.visible.value, 5)}"
            )
        return self


class Device(Spec):
    """One accelerator as one rank sees it (a GCD where a card holds two)."""

    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str | None = None
    aliases: tuple[str, ...] = ()
    memory: Memory
    hbm_bytes_per_s: HbmBytesPerSecond
    flops_per_s: dict[Dtype, FlopsPerSecond] = Field(min_length=1)  # dense peaks
    l2_bytes: CacheBytes | None = None
    compute_units: Count | None = None  # SMs or CUs
    boost_clock_hz: Hertz | None = None
    power_w: Watts | None = None
    host_link_bytes_per_s: HostLinkBytesPerSecond | None = None  # to the host's memory, one direction, when all devices copy
    # What others measured: information, but for the copies to and from the host, which parlay.rates.datasheet takes.
    achieved: Achieved = Field(default_factory=dict)
    notes: str = ""
    measured_as: str | None = (
        None  # the catalog's device whose measured rates are this one's: `extends` sets it where nothing differs
    )

    @property
    def rated_as(self) -> str:
        """Return the id under which rates, factors and measured runs of this device are looked up."""
        return self.measured_as or self.id


class Link(Spec):
    """A link; `bytes_per_s` counts one direction, per what `per` says."""

    id: str
    name: str
    kind: LinkKind
    bytes_per_s: LinkBytesPerSecond
    per: Literal["gpu", "nic"]
    latency_s: Seconds  # of one hop: what each step of a ring or tree adds
    base_latency_s: Seconds | None = None  # added once per collective, whatever its size
    aliases: tuple[str, ...] = ()
    achieved: Achieved = Field(default_factory=dict)  # what others measured; information, never a default
    notes: str = ""


class Cluster(Spec):
    """Nodes of equal devices. A scale-up domain is the set of GPUs that reach each other at `scale_up_link` speed."""

    id: str
    name: str
    device: Device
    gpus_per_node: Count
    scale_up_gpus: Count  # GPUs per scale-up domain: 8 in an HGX node, 72 in an NVL72 rack
    scale_up_link: Link
    nics_per_node: Count
    nic_link: Link
    max_nodes: Nodes | None = None
    oversubscription: Ratio | None = None  # 1 = full bisection, 7 = 7:1 between nodes, or between pods where pod_gpus is set
    pod_gpus: Nodes | None = None  # GPUs that the network joins at its full rate, with the oversubscription above them
    host_memory_bytes: HostBytes | None = None  # per node
    host_memory_bytes_per_s: HostBytesPerSecond | None = None  # peak of the memory of all CPUs of a node, reading and writing
    gpu_hour_usd: Usd | None = None
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        node, domain = int(self.gpus_per_node.value), int(self.scale_up_gpus.value)
        if node % domain and domain % node:
            raise ValueError(
                f"scale_up_gpus {domain} and gpus_per_node {node}: one must be a multiple of the other,"
                " because a scale-up domain is whole nodes, or a node whole domains"
            )
        for name, link in (("scale_up_link", self.scale_up_link), ("nic_link", self.nic_link)):
            if self.device.vendor.lower() != CPU and link.bytes_per_s.value < LEAST_LINK:
                raise ValueError(
                    f"{name}.bytes_per_s is {_shown(link.bytes_per_s.value, 'bytes/s')}, below"
                    f" {_shown(LEAST_LINK, 'bytes/s')}: only between CPUs (vendor = 'cpu') is a link so slow; bit or byte?"
                )
        if self.scale_up_link.per != "gpu" or self.nic_link.per != "nic":
            raise ValueError("scale_up_link must be a link that counts per = 'gpu', and nic_link one that counts per = 'nic'")
        return self

    @property
    def nic_bytes_per_s_per_gpu(self) -> float:
        """Network bytes/s of one direction that each GPU has when all GPUs send at once.

        An oversubscribed network has its share of the ports' rate. Above pods of known size the rings of one node's GPUs pass the
        border of a pod together, and share what all its GPUs have there: only small pods are slower.
        """
        slower = self.oversubscription.value if self.oversubscription else 1.0
        if self.pod_gpus is not None:
            slower = max(1.0, slower * self.gpus_per_node.value / self.pod_gpus.value)
        return self.nic_link.bytes_per_s.value * self.nics_per_node.value / self.gpus_per_node.value / slower

    @property
    def port_bytes_per_s(self) -> float:
        """Network bytes/s of one direction that one NIC has when all NICs send at once."""
        return self.nic_bytes_per_s_per_gpu * self.gpus_per_node.value / self.nics_per_node.value
