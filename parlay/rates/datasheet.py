"""Rates from datasheet peaks and default efficiencies: what holds for a device that nobody measured for us.

Every default is a named constant with where it comes from. "aiconfigurator" is ai-dynamo/aiconfigurator 095f58a51
(measured tables, Apache-2.0), "ml-engineering" stas00/ml-engineering 744d01e18, "Azure" Azure/AI-benchmarking-guide,
"SimuMax" MooreThreads/SimuMax 4dcaae513, "NCCL" the constants of nccl/src/graph/tuning.cc.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from parlay.errors import UsageError
from parlay.hardware.spec import Cluster, Device, Sourced
from parlay.rates.interface import Beside, Collective, Group, HostDirection, Priced, Stream
from parlay.rates.kernels import ELEMENT_BYTES, Attention, AttentionShape, GroupedProduct, Product, Streams, real
from parlay.rates.network import Domain, Fabric, Network

# Share of the dense peak that large products of a model hold. Best shapes reach 0.72-0.87 (ml-engineering's MAMF table:
# A100 0.87, H100 0.80, B200 0.78, GB200 0.73), a model's own shapes 0.70-0.77 (aiconfigurator tables, fitted). AMD's best
# shapes: MI300X 0.51, MI325X 0.60, MI355X 0.62. Gaudi 3: 0.74 at its best shape.
GEMM_EFFICIENCY: Mapping[str, float] = {"nvidia": 0.72, "amd": 0.55, "other": 0.60}
# Narrow types fall further behind their peak: fp8 best shapes 0.71-0.78 against 0.78-0.80 of bf16 on the same devices
# (ml-engineering), 8192 cubed 0.65 on H100 and H200 (Azure).
NARROW_FACTOR: Mapping[str, float] = {"fp8": 0.90, "int8": 0.90, "fp6": 0.90, "fp4": 0.75}
GEMM_EXPONENT = 2.0  # soft maximum of compute and byte time; fits of measured tables lie between 1.3 and 3
GEMM_FIXED_S = 4e-6  # prologue and epilogue of a product; fits give 2-6 us
GEMM_BYTES_SHARE = 0.80  # of the memory's peak: aiconfigurator's own constant; BabelStream triad 0.83-0.89 (Azure)

GROUPED_FLOPS_SHARE = 0.85  # grouped kernels against one large product: SimuMax's B200 rows with 600+ rows a group
GROUPED_PADDING_ROWS = 64.0  # half of a 128-row tile is wasted for each group
GROUP_S = 1e-5  # a group launched on its own: fitted from 72 grouped products of Transformer Engine on B200 (SimuMax)

# Flash attention, share of peak by head size, long sequences: H100 530 TFLOP/s of 989 at 16k and d = 128, 17-26 % less at
# d = 64 (aiconfigurator); A100 0.58 at d = 64 (Azure).
ATTENTION_EFFICIENCY: Mapping[float, float] = {64: 0.50, 128: 0.62, 256: 0.62}
# Over that, on AMD: fits of 40 forward kernels of AITER each, heads of 128, reach 0.46 of the peak on MI300X and 0.59 on MI355X (ROCm/aiter
# 0403bcdfd, op_tests/cpp/mha/README.md), off by 8 % in the mean. Older ones and other vendors as their products.
ATTENTION_ON: Mapping[str, float] = {"cdna3": 0.74, "cdna4": 0.95}
ATTENTION_HALF_LENGTH = 64.0  # keys; half of a 128-key tile is computed in vain at the edge of a mask
ATTENTION_HALF_ROWS = 17_000.0  # 132 SMs x 128 rows a tile; fits give 6,000 (L40S) to 43,000 (B200)
ATTENTION_ROWS_EXPONENT = 1.0  # fits: 1.0-1.7
ATTENTION_FIXED_S = 1.2e-5  # fits: 6-16 us
# Of the forward FLOP/s. Ampere: FlashAttention-2 reaches 63 % of the peak backward, 73 % forward (arXiv:2307.08691, section 1);
# Hopper and later: flash attention's own tables, 0.7-0.8; SimuMax's B200 rows agree. AMD: 0.35 of 0.46 on MI300X, 0.34 of 0.59 on MI355X, the
# gradient of queries summed in fp32 (the same tables of AITER, `BWD-a32`; summed in 16 bits it is 0.39 and 0.48).
ATTENTION_BACKWARD_SHARE = {"ampere": 0.86, "cdna3": 0.76, "cdna4": 0.58, "other": 0.75}
ATTENTION_BYTES_SHARE = 0.70

# Compute beside a collective takes 1.189 times its time alone: the mean over overlapped training steps on A100, H100, MI210
# and MI250 (arXiv:2507.03114). The collective's kernels hold multiprocessors and memory's bandwidth.
SLOW_COMPUTE = 1.189

# Share of the memory's peak that each kind of stream reaches. Copy, cast: BabelStream copy A100 0.79, H100 0.87, H200 0.84;
# residual: add 0.83-0.89 (Azure). Default 0.666, permutation 0.50, loss 0.28-0.32: SimuMax on B200. An embedding gathers
# rows as a permutation does. The optimizer streams like an add over many tensors.
STREAM_SHARES: Mapping[str, float] = {
    "norm": 0.666, "rope": 0.666, "activation": 0.70, "residual": 0.83, "softmax": 0.666, "cross_entropy": 0.32,
    "optimizer": 0.80, "permute": 0.50, "cast": 0.80, "copy": 0.83, "embedding": 0.50,
}  # fmt: skip
STREAM_FIXED_S = 3e-6  # aiconfigurator's constant beside 0.8 of peak

# A ring reaches this part of a scale-up port: A100 0.78, H100/H200 0.80-0.82, B200 0.76, MI300X 0.70 at 1 GiB and more
# (ml-engineering); two L40S over PCIe 0.63, more of them far less (aiconfigurator). The soft knee below makes the constant about
# 1.05 times the value at 1 GiB.
RING_SHARE: Mapping[str, float] = {"nvlink": 0.83, "xgmi": 0.73, "pcie": 0.63, "c2c": 0.80}
# One GPU to another: 380 of 450 GB/s (nccl issue 1264), 396 of 450 and 746 of 900 (ml-engineering).
PAIR_SHARE = 0.84
KNEE_EXPONENT = 0.61  # median of 24 fitted curves, H100 and B200 (aiconfigurator)
DOMAIN_BASE_S = 5e-6  # 512-byte all-gather of two ranks: 5.3 us on H100, 8.8 on B200, 9.0 on A100 (aiconfigurator)
DOMAIN_HOP_S = 1.7e-6  # 512-byte all-reduce on H100: 6.2, 9.5 and 15.6 us for 2, 4 and 8 ranks (aiconfigurator)
# In-switch all-reduce (NVLS): 480 against 367 GB/s on 8 x H200, 838 against 682 on 8 x B200, from five ranks (ml-engineering).
SWITCH_GAIN: Mapping[int, float] = {9: 1.29, 10: 1.23}
SWITCH_RANKS = 5.0
ALL_TO_ALL_SHARE = 0.90  # SimuMax on B200: 0.597 against 0.673 of the link

# 400 Gbit/s ports deliver 48-49 of 50 GB/s (nccl-tests issue 267); 32 x B200 over EFA 382 of 400 GB/s a node at 16 GiB
# (ml-engineering), all-to-all kernels 43 of 50 (DeepEP). RoCE and Ethernet without tuning reach less; Omni-Path 135 of 400 Gbit/s a
# node of Jean Zay (ml-engineering).
FABRIC_SHARE: Mapping[str, float] = {
    "infiniband": 0.95,
    "efa": 0.95,
    "slingshot": 0.90,
    "roce": 0.90,
    "omnipath": 0.34,
    "ethernet": 0.80,
    "tcp": 0.95,
}
# NCCL's TCP sockets over 100 Gbit/s: one communicator moves 4.7 GB/s between two p3dn with a GPU each (nccl issue 398), 4-6 at best on
# another network (issue 450, which falls to 1.1-1.5 beyond 32 MB). nanotron's gradients on 16 GPUs take what 4.7 says, and four
# communicators of one node at once what the port can carry.
TCP_RING_BYTES_PER_S = 4.7e9
FABRIC_ALL_TO_ALL = 0.86
FABRIC_RING_HOP_S = 4e-6  # NCCL net_ring_ll128
# The hops of the same ring that stay inside a domain: NCCL's ring_ll128 over NVLink and over PCIe.
LOCAL_RING_HOP_S: Mapping[str, float] = {"nvlink": 1.9e-6, "pcie": 2.5e-6}
FABRIC_TREE_HOP_S = 12e-6  # 68 us for 32 KiB over 4 nodes of 8 (ml-engineering) less the base, over 4 hops
# EFA takes longer: 32 x B200 need 358-391 us for 0.5-2 MiB (ml-engineering), 85-90 us a hop. The ring's
# step is the latency of one message, recalled, not measured.
EFA_TREE_HOP_S = 85e-6
EFA_RING_HOP_S = 15e-6
FABRIC_BASE_S = 8.4e-6  # NCCL base_ring_simple
FABRIC_EXPONENT = 0.85  # how slowly 32 x B200 over EFA approach their plateau, 16 MiB to 2 GiB (ml-engineering)

HOST_SHARE: Mapping[str, float] = {"pcie": 0.85, "c2c": 0.80}  # 26.3 of 31, 51-55 of 63 (Azure, ml-engineering); 359 of 450
HOST_FIXED_S = 10e-6
# Where a device's file has its own measured copies, these count. Not where they exceed the link that it states: GB300's 359 GB/s are
# of a station with one GPU a Grace, while a rack's two share a link of 450.
HOST_KEYS: Mapping[HostDirection, str] = {"to_device": "host_to_device_bytes_per_s", "to_host": "device_to_host_bytes_per_s"}
C2C_BYTES_PER_S = 200e9  # a host link faster than this is a chip-to-chip one
# Memory of a node's CPUs where its file does not say: two sockets with eight channels of DDR4-3200 (204.8 GB/s each), as a DGX A100
# has; nodes of later devices have more.
HOST_MEMORY_BYTES_PER_S = 409.6e9
# Share of that peak which Adam on CPUs reaches: 1 to 10 billion parameters took 0.22 to 2.57 s on a DGX-2, 0.39 to 0.53 of its 256
# GB/s (arXiv:2101.06840, tables 3 and 4). Megatron-Bridge tells CPU Adam, not copies, to be what an offloaded optimizer waits for.
HOST_ADAM_SHARE = 0.45
LAUNCH_S = 5e-6  # 4.0 us of dispatch an operator (PyTorch 2.13, eager, measured on a host alone) and about 1 us of driver


def gemm_efficiency(device: Device, dtype: str) -> float:
    """Return the default share of the dense peak that large products hold."""
    vendor = device.vendor.lower()
    return GEMM_EFFICIENCY.get(vendor, GEMM_EFFICIENCY["other"]) * NARROW_FACTOR.get(dtype, 1.0)


def default_products(device: Device) -> dict[str, Product]:
    """Return the constants of a product for each dtype that the device has a peak for."""
    W = device.hbm_bytes_per_s.value * GEMM_BYTES_SHARE
    return {
        dtype: Product(
            peak_flops_per_s=peak.value,
            flops_per_s=peak.value * gemm_efficiency(device, dtype),
            bytes_per_s=W,
            exponent=GEMM_EXPONENT,
            fixed_s=GEMM_FIXED_S,
            element_bytes=ELEMENT_BYTES[dtype],
        )
        for dtype, peak in device.flops_per_s.items()
    }


def backward_share(device: Device) -> float:
    """Return the FLOP/s of fused attention backward over those forward."""
    return ATTENTION_BACKWARD_SHARE.get(device.architecture.lower(), ATTENTION_BACKWARD_SHARE["other"])


def _measured_copy(device: Device, direction: HostDirection) -> Sourced | None:
    """Return what the device's file has measured of copies in a direction, if its link allows it."""
    found, link = device.achieved.get(HOST_KEYS[direction]), device.host_link_bytes_per_s
    return found if found is not None and link is not None and found.value <= link.value else None


def host_rate(device: Device, direction: HostDirection) -> tuple[float, str]:
    """Return the bytes/s of large copies between a GPU and its host, and where that comes from; UsageError without a link."""
    link = device.host_link_bytes_per_s
    if link is None:
        raise UsageError(f"{device.name} has no host_link_bytes_per_s", hint="add it to the device's file")
    measured = _measured_copy(device, direction)
    if measured is not None:
        return measured.value, "profile"
    return link.value * HOST_SHARE["c2c" if link.value > C2C_BYTES_PER_S else "pcie"], "default"


def default_attention(device: Device, peak_flops_per_s: float, dtype: str, *, backward: bool) -> Attention:
    """Return the constants of fused attention in one direction."""
    as_products = GEMM_EFFICIENCY.get(device.vendor.lower(), GEMM_EFFICIENCY["other"]) / GEMM_EFFICIENCY["nvidia"]
    share = (
        ATTENTION_ON.get(device.architecture.lower(), as_products)
        * NARROW_FACTOR.get(dtype, 1.0)
        * (backward_share(device) if backward else 1.0)
    )
    return Attention(
        peak_flops_per_s=peak_flops_per_s,
        head_dims=tuple(ATTENTION_EFFICIENCY),
        flops_per_s=tuple(peak_flops_per_s * share * eff for eff in ATTENTION_EFFICIENCY.values()),
        half_length=ATTENTION_HALF_LENGTH,
        half_rows=ATTENTION_HALF_ROWS,
        rows_exponent=ATTENTION_ROWS_EXPONENT,
        bytes_per_s=device.hbm_bytes_per_s.value * ATTENTION_BYTES_SHARE,
        fixed_s=ATTENTION_FIXED_S,
        element_bytes=ELEMENT_BYTES[dtype],
    )


def lone_bytes_per_s(cluster: Cluster) -> float:
    """Return the line rate that one GPU sends at while no other GPU of its node does: that of a NIC, if that is more than its share.

    Not over TCP: the pipelines of nanotron, of whose nodes one to four GPUs send, move 0.3 to 2.2 GB/s each over a port of 12.5.
    """
    share = cluster.nic_bytes_per_s_per_gpu
    return share if cluster.nic_link.kind == "tcp" else max(cluster.port_bytes_per_s, share)


def default_network(cluster: Cluster) -> Network:
    """Return the constants of both levels of a cluster's links."""
    link, nic = cluster.scale_up_link, cluster.nic_link
    nvidia = cluster.device.vendor.lower() == "nvidia"
    major = int(float(cluster.device.compute_capability or 0)) if nvidia else 0
    switched = link.kind == "nvlink"
    share = FABRIC_SHARE.get(nic.kind, FABRIC_SHARE["ethernet"])
    ops = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "send_recv")
    domain = Domain(
        bytes_per_s=link.bytes_per_s.value * RING_SHARE.get(link.kind, RING_SHARE["pcie"]),
        pair_bytes_per_s=link.bytes_per_s.value * PAIR_SHARE,
        mesh=link.kind == "xgmi",
        whole=cluster.scale_up_gpus.value,
        base_s=DOMAIN_BASE_S,
        hop_s=max(DOMAIN_HOP_S, link.latency_s.value),
        exponent=KNEE_EXPONENT,
        switch_gain=SWITCH_GAIN.get(min(major, 10), 1.0) if switched else 1.0,
        switch_ranks=SWITCH_RANKS,
        all_to_all_share=ALL_TO_ALL_SHARE,
    )
    fabric = Fabric(
        bytes_per_s=cluster.nic_bytes_per_s_per_gpu,
        port_bytes_per_s=lone_bytes_per_s(cluster),
        shares={**dict.fromkeys(ops, share), "all_to_all": min(share, FABRIC_ALL_TO_ALL)},
        ring_hop_s=max(EFA_RING_HOP_S if nic.kind == "efa" else FABRIC_RING_HOP_S, nic.latency_s.value),
        local_hop_s=LOCAL_RING_HOP_S.get(link.kind, LOCAL_RING_HOP_S["nvlink"]),
        tree_hop_s=max(EFA_TREE_HOP_S if nic.kind == "efa" else FABRIC_TREE_HOP_S, nic.latency_s.value),
        base_s=FABRIC_BASE_S,
        exponent=FABRIC_EXPONENT,
        ring_limit=TCP_RING_BYTES_PER_S if nic.kind == "tcp" else math.inf,
    )
    return Network(domain, domain, fabric)


@dataclasses.dataclass(frozen=True, slots=True)
class DatasheetRates:
    """Rates from datasheet peaks and the defaults of this file; build it with `datasheet_rates`."""

    name: str
    device: Device
    products: Mapping[str, Product]
    streams: Streams
    network: Network

    def product(self, dtype: str) -> Product:
        """Return the constants of `dtype`, or raise naming the dtypes that the device has."""
        if dtype not in self.products:
            raise UsageError(
                f"{self.device.name} has no {dtype} peak", hint=f"it has {', '.join(sorted(self.products))}; choose one of them"
            )
        return self.products[dtype]

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, accumulate: bool = False) -> Priced:
        """Seconds of one m x k by k x n product."""
        return Priced(self.product(dtype).seconds(m, n, k, accumulate=accumulate), "default")

    def grouped_gemm(
        self,
        rows: ArrayLike,
        groups: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        *,
        fused: bool = True,
        weight_gradient: bool = False,
    ) -> Priced:
        """Seconds of `groups` products of rows/groups x k by k x n in one kernel."""
        grouped = GroupedProduct(self.product(dtype), GROUPED_FLOPS_SHARE, GROUPED_PADDING_ROWS, 0.0 if fused else GROUP_S)
        return Priced(grouped.seconds(rows, groups, n, k, weight_gradient=weight_gradient), "default")

    def attention(
        self,
        queries: ArrayLike,
        keys: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        qk_dim: ArrayLike,
        v_dim: ArrayLike,
        *,
        score_share: ArrayLike,
        batch: ArrayLike = 1,
        backward: bool = False,
        dtype: str = "bf16",
    ) -> Priced:
        """Seconds of fused attention in one direction."""
        shape = AttentionShape.of(queries, keys, heads, kv_heads, qk_dim, v_dim, score_share, batch)
        kernel = default_attention(self.device, self.product(dtype).peak_flops_per_s, dtype, backward=backward)
        flops = shape.backward_flops if backward else shape.forward_flops
        elements = shape.backward_elements if backward else shape.forward_elements
        nbytes = elements * kernel.element_bytes
        return Priced(kernel.seconds(flops, nbytes, shape.mean_dim, shape.length, shape.rows), "default")

    def stream(self, nbytes: ArrayLike, kind: Stream) -> Priced:
        """Seconds of a bandwidth-bound kernel that reads and writes `nbytes` in all."""
        return Priced(self.streams.seconds(nbytes, kind), "default")

    def collective(self, op: Collective, nbytes: ArrayLike, group: Group) -> Priced:
        """Seconds of a collective over `group`."""
        return Priced(self.network.seconds(op, nbytes, group), "default")

    def host_copy(self, nbytes: ArrayLike, direction: HostDirection) -> Priced:
        """Seconds of a copy between one GPU and its host: as measured on this device, else at a share of the link."""
        rate, source, size = *host_rate(self.device, direction), real(nbytes)
        return Priced(real(np.where(size > 0, size / rate + HOST_FIXED_S, 0.0)), source)

    def launch(self) -> Priced:
        """Seconds between two short kernels that the host launches one after the other."""
        return Priced(real(LAUNCH_S), "default")

    def beside(self) -> Beside | None:
        """Return how much a collective's kernels slow the compute beside them, on any device."""
        return Beside(SLOW_COMPUTE, 1.0, "default")

    def describe(self) -> dict[str, str]:
        """Return where each rate comes from, one line a kind of work."""
        parts = ("gemm", "grouped_gemm", "attention", "attention backward", "stream", "collective", "host_copy", "launch")
        found = dict.fromkeys(parts, "default: datasheet peak x default efficiency (parlay.rates.datasheet)")
        measured = [
            f"{direction.replace('_', ' ')} {x.value / 1e9:.4g} GB/s, {x.source}"
            for direction in HOST_KEYS
            if (x := _measured_copy(self.device, direction))
        ]
        return found | ({"host_copy": f"measured on this device: {'; '.join(measured)}"} if measured else {})


def datasheet_rates(cluster: Cluster) -> DatasheetRates:
    """Return rates for `cluster` from its datasheet peaks and default efficiencies."""
    device = cluster.device
    return DatasheetRates(
        name=f"datasheet:{device.id}",
        device=device,
        products=default_products(device),
        streams=Streams(device.hbm_bytes_per_s.value, STREAM_SHARES, STREAM_FIXED_S),
        network=default_network(cluster),
    )
