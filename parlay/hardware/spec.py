"""What a cluster is made of: devices, links, and how they are put together. One TOML file each, every value sourced.

SI base units inside (bytes, bytes/s of ONE direction, FLOP/s dense, seconds, watts). A file may write either a
bare quantity ("400 Gbit/s") or a table { value = "400 Gbit/s", source = "...", kind = "datasheet" }.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from parlay.specfile import Spec
from parlay.units import parse_quantity

Kind = Literal["datasheet", "derived", "measured", "recalled", "user"]
Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8"]
LinkKind = Literal["nvlink", "xgmi", "pcie", "c2c", "infiniband", "roce", "efa", "ethernet", "slingshot", "omnipath"]


class Sourced(Spec):
    """A number with where it comes from; `value` is in SI base units."""

    value: float = Field(gt=0)
    source: str = "user"
    kind: Kind = "user"
    date: str | None = None
    note: str = ""


def _sourced(dimension: str) -> BeforeValidator:
    def parse(given: Any) -> Any:
        if isinstance(given, Sourced):
            return given
        table = dict(given) if isinstance(given, dict) else {"value": given}
        if "value" in table:
            try:
                table["value"] = parse_quantity(table["value"], dimension)
            except Exception as error:  # pydantic needs a ValueError to report the key
                raise ValueError(str(error)) from None
        return table

    return BeforeValidator(parse)


Bytes = Annotated[Sourced, _sourced("bytes")]
BytesPerSecond = Annotated[Sourced, _sourced("bytes/s")]
FlopsPerSecond = Annotated[Sourced, _sourced("FLOP/s")]
Seconds = Annotated[Sourced, _sourced("s")]
Watts = Annotated[Sourced, _sourced("W")]
Count = Annotated[Sourced, _sourced("count")]


class Memory(Spec):
    """The three meanings of a device's memory. Only `allocatable` decides whether a layout fits."""

    marketed: Bytes  # the number on the box
    visible: Bytes | None = None  # what nvidia-smi or rocm-smi prints
    allocatable: Bytes  # torch total_memory: what an allocator can reach before the context


class Device(Spec):
    """One accelerator as one rank sees it (a GCD where a card holds two)."""

    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str | None = None
    aliases: tuple[str, ...] = ()
    memory: Memory
    hbm_bytes_per_s: BytesPerSecond
    flops_per_s: dict[Dtype, FlopsPerSecond]  # dense peaks
    l2_bytes: Bytes | None = None
    compute_units: Count | None = None  # SMs or CUs
    boost_clock_hz: Count | None = None
    power_w: Watts | None = None
    host_link_bytes_per_s: BytesPerSecond | None = None  # to the host's memory, one direction
    achieved: dict[str, Sourced] = Field(default_factory=dict)  # what others measured; information, never a default
    notes: str = ""


class Link(Spec):
    """A link; `bytes_per_s` counts one direction, per what `per` says."""

    id: str
    name: str
    kind: LinkKind
    bytes_per_s: BytesPerSecond
    per: Literal["gpu", "nic"]
    latency_s: Seconds
    aliases: tuple[str, ...] = ()
    achieved: dict[str, Sourced] = Field(default_factory=dict)
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
    max_nodes: Count | None = None
    oversubscription: Annotated[Sourced, _sourced("count")] | None = None  # 1 = full bisection, 7 = 7:1 above a pod
    host_memory_bytes: Bytes | None = None  # per node
    gpu_hour_usd: Annotated[Sourced, _sourced("count")] | None = None
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        if self.scale_up_gpus.value < 1 or self.gpus_per_node.value < 1:
            raise ValueError("gpus_per_node and scale_up_gpus must be 1 or more")
        return self

    @property
    def nic_bytes_per_s_per_gpu(self) -> float:
        """Network bytes/s of one direction that each GPU has when all GPUs of a node send at once."""
        return self.nic_link.bytes_per_s.value * self.nics_per_node.value / self.gpus_per_node.value
