"""Names, own files, `extends`, and the user's catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.errors import UnknownNameError, UsageError
from parlay.hardware.load import (
    find_any,
    list_clusters,
    list_devices,
    load_cluster,
    load_device,
    load_link,
    user_catalog_directory,
)
from parlay.hardware.spec import Device


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["h100-sxm", "H100_SXM", "h100", " H100 ", "h100 sxm", "H100-SXM-80GB"])
def test_a_device_has_many_names(name):
    assert load_device(name).id == "h100-sxm"


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("h100", "dgx-h100"),
        ("A100", "dgx-a100"),
        ("b200", "dgx-b200"),
        ("gb200", "gb200-nvl72"),
        ("mi300x", "mi300x-8"),
        ("h800", "hgx-h800"),
    ],
)
def test_a_device_name_finds_its_usual_cluster(name, cluster):
    assert load_cluster(name).id == cluster


def test_an_unknown_name_suggests():
    with pytest.raises(UnknownNameError) as caught:
        load_cluster("dgx-h10")
    assert "dgx-h100" in caught.value.suggestions
    with pytest.raises(UnknownNameError) as caught:
        load_link("nvlink-4")
    assert "nvlink4" in caught.value.suggestions


def test_a_device_without_its_own_cluster_name_lists_clusters_of_it():
    with pytest.raises(UnknownNameError) as caught:
        load_cluster("gh200")
    assert "alps" in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        load_cluster("rtx-4090")
    assert "write a file" in caught.value.hint


def test_extends_changes_only_what_is_stated(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "dgx-h100"\nnics_per_node = 4\n')
    mine, base = load_cluster(str(path)), load_cluster("dgx-h100")
    assert mine.id == "mine"
    assert mine.nics_per_node.value == 4
    assert (mine.nics_per_node.source, mine.nics_per_node.kind) == ("user", "user")
    assert mine.device == base.device
    assert mine.host_memory_bytes == base.host_memory_bytes
    assert mine.aliases == ()


def test_a_new_value_does_not_keep_the_old_source(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "h100-sxm"\n[hbm_bytes_per_s]\nvalue = "3 TB/s"\n')
    device = load_device(path)
    assert device.hbm_bytes_per_s.value == 3e12
    assert (device.hbm_bytes_per_s.source, device.hbm_bytes_per_s.note) == ("user", "")
    assert device.memory == load_device("h100-sxm").memory


def test_a_part_can_be_changed_in_place(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "dgx-h100"\n[device.memory]\nallocatable = "70 GiB"\n')
    mine = load_cluster(path)
    assert mine.device.memory.allocatable.value == 70 * 2**30
    assert mine.device.memory.visible == load_device("h100").memory.visible
    assert mine.device.flops_per_s == load_device("h100").flops_per_s
    assert mine.device.id != "h100-sxm"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ('name = "Ours"', True),
        ('[memory]\nallocatable = "70 GiB"', True),
        ('hbm_bytes_per_s = "3350 GB/s"', True),  # the same, said otherwise
        ('hbm_bytes_per_s = "3 TB/s"', False),
        ('flops_per_s = { bf16 = "800 TFLOP/s" }', False),
        ("power_w = 500", False),
    ],
)
def test_measured_rates_stay_while_nothing_changes_that_they_depend_on(tmp_path, change, kept):
    device = load_device(write(tmp_path, "mine.toml", f'extends = "h100-sxm"\n{change}\n'))
    assert device.rated_as == ("h100-sxm" if kept else "mine")
    again = load_device(write(tmp_path, "again.toml", 'extends = "mine.toml"\n'))
    assert again.rated_as == ("h100-sxm" if kept else "again")


def test_another_host_link_takes_the_copies_that_were_measured_over_the_old_one(tmp_path):
    faster = load_device(write(tmp_path, "mine.toml", 'extends = "h100-sxm"\nhost_link_bytes_per_s = "120 GB/s"\n'))
    assert not [key for key in faster.achieved if "host" in key]
    assert "gemm_bf16_flops_per_s" in faster.achieved
    text = 'extends = "h100-sxm"\nhost_link_bytes_per_s = "120 GB/s"\nachieved = { host_to_device_bytes_per_s = "100 GB/s" }\n'
    own = load_device(write(tmp_path, "own.toml", text))
    assert [key for key in own.achieved if "host" in key] == ["host_to_device_bytes_per_s"]
    cluster = load_cluster(write(tmp_path, "c.toml", 'extends = "dgx-h100"\n[device]\nhost_link_bytes_per_s = "120 GB/s"\n'))
    assert not [key for key in cluster.device.achieved if "host" in key]
    assert "host_to_device_bytes_per_s" in load_device(write(tmp_path, "same.toml", 'extends = "h100-sxm"\n')).achieved


def test_a_rate_in_gigabits(tmp_path):
    path = write(tmp_path, "mine.toml", 'extends = "dgx-h100"\n[nic_link]\nextends = "roce-400"\nbytes_per_s = "400 Gb/s"\n')
    assert load_cluster(path).nic_link.bytes_per_s.value == 50e9
    assert load_cluster(path).nic_link.kind == "roce"


def test_a_part_can_be_a_whole_table_or_a_file(tmp_path):
    write(tmp_path, "parts/card.toml", 'extends = "../base.toml"\nname = "Card"\n')
    write(tmp_path, "base.toml", 'extends = "h100"\nhbm_bytes_per_s = "3.2 TB/s"\n')
    text = """
name = "Whole"
device = "parts/card.toml"
gpus_per_node = 8
scale_up_gpus = 8
nics_per_node = 8
nic_link = "ib-ndr"
[scale_up_link]
id = "own"
name = "Own link"
kind = "nvlink"
bytes_per_s = "400 GB/s"
per = "gpu"
latency_s = 0
[scale_up_link.achieved]
p2p_bytes_per_s = "350 GB/s"
"""
    cluster = load_cluster(write(tmp_path, "whole.toml", text))
    assert cluster.device.name == "Card"
    assert cluster.device.hbm_bytes_per_s.value == 3.2e12
    assert cluster.scale_up_link.latency_s.value == 0
    assert cluster.scale_up_link.achieved["p2p_bytes_per_s"].value == 350e9


def test_extends_finds_files_from_where_they_are_named(tmp_path):
    write(tmp_path, "site/node.toml", 'extends = "dgx-h100"\ndevice = "card.toml"\n')
    write(tmp_path, "site/card.toml", 'extends = "h100-sxm"\npower_w = "500 W"\n')
    cluster = load_cluster(write(tmp_path, "mine.toml", 'extends = "site/node.toml"\nmax_nodes = 3\n'))
    assert cluster.device.power_w.value == 500
    assert cluster.max_nodes.value == 3


def test_the_catalog_of_a_user(tmp_path):
    write(tmp_path, "clusters/lab.toml", 'aliases = ["Our-Lab"]\nextends = "dgx-h100"\ndevice = "lab-card"\n')
    write(tmp_path, "devices/lab-card.toml", 'id = "lab-card"\nextends = "h100"\npower_w = 600\n')
    for name in ("lab", "our_lab"):
        assert load_cluster(name, tmp_path).device.power_w.value == 600
    assert load_cluster("dgx-h100", tmp_path) == load_cluster("dgx-h100")
    assert {c.id for c in list_clusters(tmp_path)} - {c.id for c in list_clusters()} == {"lab"}
    with pytest.raises(UnknownNameError):
        load_cluster("lab")


def test_a_users_name_may_not_hide_a_catalog_name(tmp_path):
    write(tmp_path, "clusters/dgx-h100.toml", 'extends = "dgx-a100"\n')
    with pytest.raises(UsageError, match="also in the built-in catalog"):
        load_cluster("dgx-h100", tmp_path)
    write(tmp_path, "devices/other.toml", 'id = "other"\naliases = ["h100"]\nextends = "a100"\n')
    with pytest.raises(UsageError, match="'h100' is also in"):
        list_devices(tmp_path)


def test_a_missing_user_catalog_is_an_empty_one(tmp_path):
    assert list_devices(tmp_path / "nowhere") == list_devices()
    assert user_catalog_directory().name == "hardware"


SLOW = """
id = "two-boards"
name = "Two boards"
[device]
id = "small-cpu"
name = "Small CPU"
vendor = "CPU"
architecture = "x86"
memory = { marketed = "8 GiB", allocatable = "8 GiB" }
hbm_bytes_per_s = "0.6 GB/s"
[device.flops_per_s]
fp32 = "208 GFLOP/s"
bf16 = "853 GFLOP/s"
[gpus_per_node]
value = 1
[scale_up_gpus]
value = 1
[nics_per_node]
value = 1
[scale_up_link]
id = "memory"
name = "shared memory"
kind = "pcie"
bytes_per_s = "1 GB/s"
per = "gpu"
latency_s = "10 us"
[nic_link]
id = "fast-ethernet"
name = "100 Mbit/s Ethernet"
kind = "ethernet"
bytes_per_s = "100 Mbit/s"
per = "nic"
latency_s = "100 us"
"""


def test_processors_and_their_ethernet_may_be_slow(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text(SLOW, encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.device.flops_per_s["fp32"].value == 208e9
    assert cluster.device.hbm_bytes_per_s.value == 0.6e9
    assert cluster.nic_link.bytes_per_s.value == 12.5e6
    path.write_text(SLOW.replace('vendor = "CPU"', 'vendor = "nvidia"'), encoding="utf-8")
    with pytest.raises(UsageError, match="hbm_bytes_per_s"):
        load_cluster(path)
    fast = SLOW.replace("0.6 GB/s", "600 GB/s").replace("GFLOP/s", "TFLOP/s").replace('vendor = "CPU"', 'vendor = "nvidia"')
    path.write_text(fast, encoding="utf-8")
    with pytest.raises(UsageError, match="bit or byte"):
        load_cluster(path)


def test_a_device_goes_by_the_name_that_its_driver_prints():
    assert load_device("NVIDIA H100 80GB HBM3").id == "h100-sxm"
    assert find_any("nvidia a100-sxm4-40gb").id == "a100-sxm-40gb"
    assert isinstance(find_any("NVIDIA B200"), Device)  # "b200" alone is the usual cluster of it
    assert load_cluster("NVIDIA H100 80GB HBM3") == load_cluster("h100")
    with pytest.raises(UnknownNameError) as caught:
        load_cluster("Tesla V100-SXM2-32GB")
    assert caught.value.hint == "'v100-sxm' is a device; clusters of it: jean-zay-v100"
