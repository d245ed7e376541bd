"""Which cluster of the catalog a run was measured on: the one its source describes, else the usual one of its device."""

from __future__ import annotations

import re
from functools import lru_cache

from parlay.errors import ParlayError
from parlay.hardware.driver_names import device_key
from parlay.hardware.load import load_cluster
from parlay.hardware.spec import Cluster
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
    (r"h100-sxm", r"grand teton|96gb hbm2e", "grand-teton-h100-96gb", ""),
    (r"h100-sxm", r"a3mega", "gcp-a3-mega", ""),
    (r"h100-sxm", r"nanotron", "aws-p5", "Hugging Face's H100 cluster taken as p5 instances"),
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
)


def cluster_of(run: Run) -> tuple[Cluster | None, str]:
    """Return the cluster of a run and what is assumed of its network; None where no catalog entry has the device."""
    words = f"{run.framework} {run.notes} {run.citation} {run.source}".lower()
    given = device_key(run.hardware) or run.hardware.lower()
    for hardware, pattern, name, said in CLUSTERS:
        if re.match(hardware, given) and re.search(pattern, words):
            cluster = cluster_named(name)
            multi = run.gpus is not None and run.gpus > cluster.scale_up_gpus.value
            return cluster, f"network of the usual node of this device ({said})" if said and multi else ""
    try:
        return cluster_named(given), ""
    except ParlayError:
        return None, ""


@lru_cache(maxsize=64)
def cluster_named(name: str) -> Cluster:
    """Return a cluster of the catalog, read once."""
    return load_cluster(name)


@lru_cache(maxsize=64)
def rates_named(name: str) -> Rates:
    """Return the shipped rates of a cluster of the catalog, read once."""
    return rates_for(cluster_named(name))
