"""Which cluster of the catalog a run was measured on: the one its source describes, else the usual one of its device."""

from __future__ import annotations

import re
from functools import lru_cache

from parlay.errors import ParlayError
from parlay.hardware.driver_names import device_key
from parlay.hardware.load import load_cluster, load_device
from parlay.hardware.spec import Cluster, Sourced
from parlay.rates.choose import rates_for
from parlay.rates.interface import Rates
from parlay.validation.runs import Run

# (hardware, words in framework, notes or citation, cluster, what is assumed); the first that matches wins.
CLUSTERS: tuple[tuple[str, str, str, str], ...] = (
    (r"a100(-sxm)?-40gb", r"llm-foundry", "mosaicml-a100-40gb", ""),
    (r"a100(-sxm)?-40gb", r"", "dgx-a100-40gb", "8 x 200 Gb/s a node"),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"llm-foundry", "mosaicml-a100-80gb", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"vtrain", "vtrain-a100", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"bigscience|jean zay", "jean-zay-a100", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"narayanan|korthikanti|megatron-lm \(202[12]\)|selene", "selene", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"internevo|internlm", "internlm-a100", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"azure", "azure-ndm-a100-v4", ""),
    (r"a100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"", "dgx-a100", "8 x 200 Gb/s a node"),
    (r"a800", r"", "hgx-a800", ""),
    (r"h800", r"", "hgx-h800", ""),
    (r"h100-sxm-96gb", r"", "grand-teton-h100-96gb", ""),
    (r"h100-sxm", r"grand teton|96gb hbm2e", "grand-teton-h100-96gb", ""),
    (r"h100-sxm", r"a3mega", "gcp-a3-mega", ""),
    (r"h100-sxm", r"nanotron", "aws-p5-tcp", "Hugging Face's H100 cluster taken as p5 instances whose NCCL did not find EFA"),
    (r"h100(-80gb|-sxm|-80gb-sxm|-sxm-80gb)?$", r"", "dgx-h100", "8 x 400 Gb/s a node"),
    (r"h200", r"a3ultra", "gcp-a3-ultra", ""),
    (r"h200", r"", "dgx-h200", "8 x 400 Gb/s a node"),
    (r"b200", r"\ba4\b", "gcp-a4", ""),
    (r"b200", r"", "dgx-b200", "8 x 400 Gb/s a node"),
    (r"b300", r"", "dgx-b300", "8 x 800 Gb/s a node"),
    (r"gb200", r"", "gb200-nvl72", ""),
    (r"gb300", r"", "gb300-nvl72", ""),
    (r"mi300x", r"", "mi300x-8", ""),
    (r"mi325x", r"", "mi325x-8", ""),
    (r"mi355x", r"", "mi355x-8", ""),
    (r"h20", r"", "hgx-h20", ""),
    (r"v100", r"", "jean-zay-v100", "Jean Zay's, 4 x 100 Gb/s a node"),
    (r"mi250x", r"", "frontier", "Frontier's, 4 x 200 Gb/s a node"),
    (r"gh200", r"", "alps", "Alps', 4 x 200 Gb/s a node"),
)

# Cards of the catalog that are sold for PCIe slots: taken as eight in a server, like the catalog's server of L40S.
CARDS = (
    "a100-pcie",
    "a100-pcie-40gb",
    "h100-pcie",
    "h100-nvl",
    "h200-nvl",
    "a10g",
    "l4",
    "rtx-4090",
    "rtx-6000-ada",
    "rtx-pro-6000",
)
CARD_SERVER = "8x-"
NODES_OF = "@"  # dgx-h100@4: with nodes of four GPUs


def cluster_of(run: Run) -> tuple[Cluster | None, str]:
    """Return the cluster of a run and what is assumed of its network and nodes; None where no catalog entry has the device."""
    usual, said = _usual(run)
    if usual is None:
        return None, ""
    cluster, nodes = _with_nodes(usual, run)
    multi = run.gpus is not None and run.gpus > cluster.scale_up_gpus.value
    network = f"network of the usual node of this device ({said})" if said and multi else ""
    if usual.id.startswith(CARD_SERVER):
        network = said
    return cluster, "; ".join(filter(None, (network, nodes)))


def _usual(run: Run) -> tuple[Cluster | None, str]:
    """Return the catalog's cluster of a run, with nodes as they are there, and what is assumed of its network."""
    words = f"{run.framework} {run.notes} {run.citation} {run.source}".lower()
    given = device_key(run.hardware) or device_as_written(run.hardware)
    if given in CARDS:
        return cluster_named(CARD_SERVER + given), "eight cards over PCIe in a server, one 200 Gb/s port each"
    for hardware, pattern, name, said in CLUSTERS:
        if re.match(hardware, given) and re.search(pattern, words):
            return cluster_named(name), said
    try:
        return cluster_named(given), ""
    except ParlayError:
        return None, ""


def _with_nodes(usual: Cluster, run: Run) -> tuple[Cluster, str]:
    """Return a cluster with nodes as small as the run's, and what is assumed; racks, and nodes of several domains, stay as they are."""
    node, given = int(usual.gpus_per_node.value), run.node_gpus
    if given is None or given == node:
        return usual, ""
    if given > node or usual.scale_up_gpus.value != node:
        return usual, f"gpus_per_node={given} is not what {usual.id} has ({node}): priced on its nodes"
    return cluster_named(
        f"{usual.id}{NODES_OF}{given}"
    ), f"nodes of {usual.id} with {given} of its {node} GPUs, each with its network"


def device_as_written(name: str) -> str:
    """Return a device as the patterns of CLUSTERS have it: without makers, generations of sockets and kinds of memory.

    Examples
    --------
    >>> device_as_written("NVIDIA H100 SXM5"), device_as_written("A100-SXM4-40GB"), device_as_written("a100-80gb-pcie")
    ('h100-sxm', 'a100-sxm-40gb', 'a100-pcie')
    """
    words = [
        word for word in re.split(r"[\s_-]+", name.strip().lower()) if word not in ("nvidia", "amd", "instinct", "tesla", "intel")
    ]
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in words if not re.fullmatch(r"hbm\de?", word)]
    if "pcie" in words:
        size = [word for word in words if word == "40gb"]
        words = [words[0], "pcie", *size]
    return "-".join(words)


@lru_cache(maxsize=64)
def cluster_named(name: str) -> Cluster:
    """Return a cluster of the catalog, a server of eight PCIe cards ("8x-h100-pcie"), or either with smaller nodes ("dgx-h100@4")."""
    whole, smaller, gpus = name.rpartition(NODES_OF)
    if smaller:
        return _smaller(cluster_named(whole), name, int(gpus))
    card = name.removeprefix(CARD_SERVER)
    if card == name:
        return load_cluster(name)
    server = load_cluster("l40s-pcie-8")
    return server.model_copy(update={"id": name, "name": f"8x {card} in a PCIe server", "device": load_device(card)})


def _smaller(cluster: Cluster, name: str, gpus: int) -> Cluster:
    """Return a cluster with `gpus` in a node, which is its domain: each GPU keeps its share of ports and of the host."""
    share = gpus / cluster.gpus_per_node.value

    def part(given: Sourced | None) -> Sourced | None:
        return given and given.model_copy(update={"value": given.value * share})

    fields = ("gpus_per_node", "scale_up_gpus", "nics_per_node", "host_memory_bytes", "host_memory_bytes_per_s")
    update = {field: part(getattr(cluster, field)) for field in fields}
    return cluster.model_copy(
        update=update | {"id": name, "name": f"{cluster.name}, nodes of {gpus} GPUs", "max_nodes": None, "aliases": ()}
    )


@lru_cache(maxsize=64)
def rates_named(name: str) -> Rates:
    """Return the shipped rates of such a cluster, read once."""
    return rates_for(cluster_named(name))
