"""Every file of the catalog loads, names itself, names its sources, and finds its parts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from parlay import catalog
from parlay.hardware.load import CATALOG, list_clusters, list_devices, list_links, load_cluster, load_device, load_link
from parlay.hardware.spec import Kind

FILES = sorted(CATALOG.glob("*/*.toml"))
LOADERS = {"devices": load_device, "links": load_link, "clusters": load_cluster}
NEEDED_DEVICES = {
    "a100-sxm",
    "a100-sxm-40gb",
    "a100-pcie",
    "a800-sxm",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h800-sxm",
    "h20",
    "h200-sxm",
    "h200-nvl",
    "gh200",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "l40s",
    "rtx-4090",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "v100-sxm",
    "gaudi2",
    "gaudi3",
}
NEEDED_LINKS = {
    "nvlink3",
    "nvlink4",
    "nvlink5",
    "nvlink4-h800",
    "nvlink3-a800",
    "xgmi-mi300x",
    "pcie4-x16",
    "pcie5-x16",
    "ib-hdr",
    "ib-ndr",
    "ib-xdr",
    "roce-100",
    "roce-200",
    "roce-400",
    "efa-p4d",
    "efa-p5",
    "efa-p5en",
    "efa-p6",
    "tcp-100",
    "slingshot-11",
}
NEEDED_CLUSTERS = {
    "dgx-a100",
    "dgx-a100-40gb",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "dgx-b300",
    "gb200-nvl72",
    "gb300-nvl72",
    "hgx-h800",
    "hgx-h20",
    "mi300x-8",
    "mi325x-8",
    "mi355x-8",
    "aws-p4d",
    "aws-p5",
    "aws-p5-tcp",
    "l40s-pcie-8",
    "selene",
    "perlmutter",
    "meta-24k",
    "alps",
    "jean-zay-a100",
}


def quantities(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, entry in table.items():
        if isinstance(entry, dict):
            if "value" in entry:
                yield f"{path}{key}", entry
            else:
                yield from quantities(entry, f"{path}{key}.")


def test_the_catalog_holds_what_people_ask_for():
    assert {d.id for d in list_devices()} >= NEEDED_DEVICES
    assert {link.id for link in list_links()} >= NEEDED_LINKS
    assert {c.id for c in list_clusters()} >= NEEDED_CLUSTERS


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_file_loads_and_is_named_after_its_id(path: Path):
    spec = LOADERS[path.parent.name](path.stem)
    assert spec.id == path.stem
    assert spec == LOADERS[path.parent.name](path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_value_has_a_source_a_kind_and_a_date(path: Path):
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    found = list(quantities(table))
    assert found
    for key, entry in found:
        assert len(entry["source"]) > 10, key
        assert entry["kind"] in set(get_args(Kind)) - {"user"}, key
        assert entry["date"][:2] == "20", key
        if entry["kind"] == "recalled":
            assert "general knowledge" in entry["source"] or entry.get("note") or "docs" in entry["source"].lower(), key
    bare = [k for k, v in table.items() if isinstance(v, (int, float))]
    assert not bare, "a number without a source"


@pytest.mark.parametrize("listing", [list_devices, list_links, list_clusters])
def test_names_are_unique(listing):
    names = [name for summary in listing() for name in summary.names]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and " " not in name and "_" not in name for name in names)


@pytest.mark.parametrize("device", [d.id for d in list_devices()])
def test_memory_is_ordered_and_allocatable_is_never_the_number_on_the_box_where_a_better_one_exists(device):
    memory = load_device(device).memory
    assert memory.allocatable.value <= memory.marketed.value
    if memory.visible:
        assert memory.visible.value <= memory.marketed.value
        assert memory.allocatable.value <= memory.visible.value
        assert memory.allocatable.value > 0.95 * memory.visible.value
    assert memory.allocatable.kind in ("measured", "derived")
    if memory.allocatable.kind == "derived":
        assert memory.allocatable.note
    if not device.startswith("tpu"):
        assert memory.allocatable.value != memory.marketed.value


@pytest.mark.parametrize("device", [d.id for d in list_devices()])
def test_peaks_are_dense_and_agree_with_each_other(device):
    peaks = {dtype: peak.value for dtype, peak in load_device(device).flops_per_s.items()}
    half = peaks.get("bf16", peaks.get("fp16"))
    assert half is not None
    if "bf16" in peaks and "fp16" in peaks:
        assert peaks["bf16"] == pytest.approx(peaks["fp16"])
    if "fp8" in peaks:
        assert peaks["fp8"] / half == pytest.approx(1 if device == "gaudi3" else 2, rel=0.03)
    if "tf32" in peaks and device not in ("gaudi3",):
        assert peaks["tf32"] / half == pytest.approx(0.5, rel=0.02)


def test_clusters_hold_together():
    for summary in list_clusters():
        cluster = load_cluster(summary.id)
        assert cluster.device.host_link_bytes_per_s is not None, cluster.id
        # a GPU never has more network than scale-up link, except where the scale-up link is PCIe or one xGMI link
        assert cluster.nic_bytes_per_s_per_gpu <= cluster.scale_up_link.bytes_per_s.value, cluster.id
        assert cluster.scale_up_link.kind in ("nvlink", "xgmi", "pcie"), cluster.id
        if cluster.host_memory_bytes_per_s:
            assert 4e11 < cluster.host_memory_bytes_per_s.value < 3e12, cluster.id
        if cluster.host_memory_bytes:
            assert 1e11 < cluster.host_memory_bytes.value < 1e13, cluster.id


def test_rack_scale_domains():
    for name in ("gb200-nvl72", "gb300-nvl72"):
        rack = load_cluster(name)
        assert (rack.gpus_per_node.value, rack.scale_up_gpus.value, rack.nics_per_node.value) == (4, 72, 4)


def test_a_cluster_parses_only_its_own_files(monkeypatch):
    opened: list[str] = []
    read = catalog.read_toml
    monkeypatch.setattr(catalog, "read_toml", lambda path: opened.append(path.stem) or read(path))
    load_cluster("dgx-h100")
    assert sorted(opened) == ["dgx-h100", "h100-sxm", "ib-ndr", "nvlink4"]
