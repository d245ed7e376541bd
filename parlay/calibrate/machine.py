"""Who is measured: device, driver, clocks, power limit, software, hosts, transport."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.calibrate.engine import Engine
from parlay.calibrate.gates import sheet_of
from parlay.hardware.driver_names import device_key
from parlay.hardware.spec import Cluster, Device
from parlay.rates.calibration_file import Datasheet, MeasuredDevice, Software, Topology

# nvidia-smi --query-gpu fields, by what they fill. clocks_event_reasons.active is a mask of bits.
SMI_FIELDS = (
    "driver_version", "ecc.mode.current", "mig.mode.current", "power.limit", "power.default_limit", "clocks.max.sm",
    "clocks.sm", "clocks.mem", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip
# Bits of NVML's nvmlClocksEventReasons that slow a device down.
THROTTLE_BITS = {
    0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake",
}  # fmt: skip
KEPT_ENVIRONMENT = re.compile(
    r"^(NCCL_|RCCL_|GLOO_|UCX_|FI_|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|TORCH_NCCL_)"
)
TRANSPORTS = (("NET/IB", "IB"), ("NET/OFI", "OFI"), ("NET/Socket", "Socket"))
CLOCK_DROP = 0.10  # a clock that falls by more than this between first and last point was throttled


def smi(index: int) -> dict[str, str]:
    """Return what nvidia-smi says of one device; nothing where there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits", f"--id={index}"]
    text = _output(command)
    values = [v.strip() for v in text.split("\n")[0].split(",")]
    return dict(zip(SMI_FIELDS, values, strict=True)) if len(values) == len(SMI_FIELDS) else {}


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def throttle_reasons(mask: str) -> tuple[str, ...]:
    """Return the names of what slows a device down.

    Examples
    --------
    >>> throttle_reasons("0x0000000000000024")
    ('sw_power_cap', 'sw_thermal_slowdown')
    """
    try:
        bits = int(mask, 16)
    except ValueError:
        return ()
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def device_of(engine: Engine, before: Mapping[str, str], cluster: Cluster | None, per_host: int) -> MeasuredDevice:
    """Return the device of this rank, with what the catalog says it can do at most."""
    after = smi(engine.device.index) if engine.cuda else {}
    reasons = {*throttle_reasons(before.get(SMI_FIELDS[-1], "")), *throttle_reasons(after.get(SMI_FIELDS[-1], ""))}
    clocks = {
        "sm_max": _real(before.get("clocks.max.sm")), "sm_before": _real(before.get("clocks.sm")),
        "sm_after": _real(after.get("clocks.sm")), "mem": _real(before.get("clocks.mem")),
    }  # fmt: skip
    temperatures = [t for t in (_real(before.get("temperature.gpu")), _real(after.get("temperature.gpu"))) if t is not None]
    common: dict[str, Any] = {"count_per_host": per_host, "datasheet": datasheet_of(engine, cluster)}
    if not engine.cuda:
        return MeasuredDevice(
            name=cpu_name(), vendor="cpu", arch=platform.machine(), threads=engine.torch.get_num_threads(), **common
        )
    properties = engine.torch.cuda.get_device_properties(engine.device)
    hip = getattr(engine.torch.version, "hip", None)
    return MeasuredDevice(
        name=engine.torch.cuda.get_device_name(engine.device),
        vendor="amd" if hip else "nvidia",
        arch=getattr(properties, "gcnArchName", None) if hip else f"sm{properties.major}{properties.minor}",
        memory_bytes=int(properties.total_memory),
        driver=before.get("driver_version"),
        ecc=_enabled(before.get("ecc.mode.current")),
        mig=_enabled(before.get("mig.mode.current")),
        power_limit_w=_real(before.get("power.limit")),
        power_default_w=_real(before.get("power.default_limit")),
        clocks_mhz={k: v for k, v in clocks.items() if v is not None},
        throttle_reasons=tuple(sorted(reasons)),
        temperature_c=tuple(temperatures),
        **common,
    )


def datasheet_of(engine: Engine, cluster: Cluster | None) -> Datasheet | None:
    """Return the catalog's peaks of the device: the given cluster's, or by the name that the driver gives."""
    device: Device | None = cluster.device if cluster else None
    if device is None and engine.cuda:
        from parlay.hardware.load import load_device

        key = device_key(engine.torch.cuda.get_device_name(engine.device))
        device = load_device(key) if key else None
    if device is None:
        return None
    return sheet_of(device, cluster)


def cpu_name() -> str:
    """Return the processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def software_of(engine: Engine) -> Software:
    """Return the versions of what runs."""
    torch = engine.torch
    cudnn = torch.backends.cudnn.version() if engine.cuda else None
    return Software(
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None),
        cudnn=str(cudnn) if cudnn else None,
        nccl=tuple(int(x) for x in torch.cuda.nccl.version()) if engine.backend == "nccl" else None,
        os=platform.platform(),
        container="container" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else None,
    )


def topology_of(engine: Engine, environment: Mapping[str, str], per_host: int, debug: str) -> Topology:
    """Return hosts, ranks, network devices and the transport; `debug` is NCCL's own log."""
    names = list(dict.fromkeys(engine.hosts))
    transport = next((name for sign, name in TRANSPORTS if sign in debug), None)
    matrix = _output(["nvidia-smi", "topo", "-m"]) if engine.cuda and shutil.which("nvidia-smi") else ""
    return Topology(
        hosts=len(names),
        ranks_per_host=per_host,
        rank_to_host=tuple(names.index(h) for h in engine.hosts),
        host_names=tuple(names),
        nics=_nics(),
        transport=transport or ("gloo-tcp" if engine.backend == "gloo" else None),
        launcher=engine.job.launcher,
        nvlink=hashlib.sha256(matrix.encode()).hexdigest()[:16] if matrix else None,
        gdr="GDRDMA" in debug if debug else None,
        p2p="P2P/" in debug if debug else None,
        env={k: v[:200] for k, v in sorted(environment.items()) if KEPT_ENVIRONMENT.match(k)},
    )


def _nics() -> tuple[str, ...]:
    """Return InfiniBand ports with their rates, as the kernel shows them."""
    out = []
    for rate in sorted(Path("/sys/class/infiniband").glob("*/ports/*/rate")):
        try:
            out.append(f"{rate.parts[4]}:{rate.read_text(encoding='utf-8').strip()}")
        except OSError:
            continue
    return tuple(out)


def state_warnings(device: MeasuredDevice, topology: Topology) -> list[str]:
    """Return what is odd about the machine: a clock that fell, a throttle, a cap, sockets where InfiniBand is."""
    out = []
    before, after = device.clocks_mhz.get("sm_before"), device.clocks_mhz.get("sm_after")
    if before and after and after < before * (1 - CLOCK_DROP):
        out.append(
            f"the SM clock fell from {before:.0f} to {after:.0f} MHz while measuring: rates are those of a throttled device"
        )
    if device.throttle_reasons:
        out.append(f"throttled: {', '.join(device.throttle_reasons)}")
    if device.mig:
        out.append("MIG is on: rates are those of a slice")
    if topology.transport == "Socket" and topology.nics:
        out.append(
            f"NCCL used TCP sockets although there is {', '.join(topology.nics[:2])}: check NCCL_IB_HCA and NCCL_SOCKET_IFNAME"
        )
    if topology.gdr is False and topology.transport == "IB":
        out.append("NCCL went through host memory to the network (no GPUDirect RDMA): check nvidia_peermem, ACS and IOMMU")
    return out


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _enabled(text: str | None) -> bool | None:
    return None if text is None or text.startswith("[") else text == "Enabled"
