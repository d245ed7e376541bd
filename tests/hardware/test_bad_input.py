"""Whatever a file holds, the answer is one UsageError that names file, key and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parlay.errors import UsageError
from parlay.hardware.load import CATALOG, MOST_EXTENDS, load_cluster, load_device, load_link

BAD_DEVICE = {
    "unknown key": ("colour = 1", "colour", "unknown key"),
    "misspelt key": ("hbm_byte_per_s = '3 TB/s'", "hbm_byte_per_s", "did you mean hbm_bytes_per_s"),
    "misspelt memory key": ("[memory]\nallocatible = '70 GiB'", "memory.allocatible", "did you mean allocatable"),
    "unknown key of a quantity": ("[hbm_bytes_per_s]\nvalue = '3 TB/s'\nunit = 'x'", "hbm_bytes_per_s.unit", "unknown key"),
    "size where a rate is wanted": ("hbm_bytes_per_s = '3350 GB'", "hbm_bytes_per_s", "not a quantity in bytes/s; write it like"),
    "rate where a size is wanted": ("l2_bytes = '50 MB/s'", "l2_bytes", "not a quantity in bytes"),
    "unknown unit": ("power_w = '700 horses'", "power_w", "700 W"),
    "negative": ("power_w = -700", "power_w", "greater than zero"),
    "zero": ("hbm_bytes_per_s = '0 TB/s'", "hbm_bytes_per_s", "3.35 TB/s, between 1 GB/s and 1,000 TB/s"),
    "nan": ("hbm_bytes_per_s = nan", "hbm_bytes_per_s", "finite"),
    "infinite": ("hbm_bytes_per_s = inf", "hbm_bytes_per_s", "finite"),
    "overflowing text": ("hbm_bytes_per_s = '1e999 GB/s'", "hbm_bytes_per_s", "finite"),
    "overflowing integer": (f"hbm_bytes_per_s = {10**400}", "hbm_bytes_per_s", "too large"),
    "lost prefix": ("hbm_bytes_per_s = 3.35", "hbm_bytes_per_s", "bare number is in SI base units"),
    "absurd bandwidth": ("hbm_bytes_per_s = 1e30", "hbm_bytes_per_s", "between 1 GB/s and 1,000 TB/s"),
    "absurd memory": ("[memory]\nmarketed = '80 MB'", "memory.marketed", "between 1 GiB and 16 TiB"),
    "absurd flops": ("[flops_per_s]\nbf16 = '989 GFLOP/s'", "flops_per_s.bf16", "between 1 TFLOP/s and"),
    "CPU below a core": ("vendor = 'cpu'\n[flops_per_s]\nbf16 = '0.5 GFLOP/s'", "flops_per_s.bf16", "between 1 GFLOP/s and"),
    "slow host link of an accelerator": ("host_link_bytes_per_s = '50 MB/s'", "host_link_bytes_per_s", "between 100 MB/s and"),
    "unknown dtype": ("[flops_per_s]\nbf61 = '989 TFLOP/s'", "flops_per_s.bf61", "'bf16'"),
    "fraction of a unit": ("compute_units = 131.5", "compute_units", "whole number"),
    "boolean": ("power_w = true", "power_w", "got bool"),
    "date": ("power_w = 2024-01-01", "power_w", "got date"),
    "list": ("power_w = [700]", "power_w", "got list"),
    "number for a name": ("name = 5", "name", "string"),
    "text for a table": ("memory = '80 GB'", "memory", "marketed, allocatable"),
    "bad kind": ("[power_w]\nvalue = '700 W'\nkind = 'guess'", "power_w.kind", "'datasheet'"),
    "value of a quantity missing": ("[l2_bytes]\nvalue = []", "l2_bytes", "got list"),
    "more than is visible": ("[memory]\nallocatable = '80 GiB'", "memory", "more than visible"),
    "achieved without a unit": ("[achieved]\ngemm = 5", "achieved", "must end in its unit"),
    "achieved with a wrong unit": ("[achieved]\nhbm_bytes_per_s = '3 TB'", "achieved", "not a quantity in bytes/s"),
}
BAD_CLUSTER = {
    "unknown device": ("device = 'h1000'", "device", "unknown device 'h1000'"),
    "device of a wrong type": ("device = 5", "device", "expected a device, got int"),
    "unknown key of a part": ("[device]\nmemori = 1", "device", "unknown key 'memori'"),
    "part of a wrong unit": ("[nic_link]\nbytes_per_s = '400 GB'", "nic_link", "not a quantity in bytes/s"),
    "absurd link": ("[nic_link]\nbytes_per_s = 400", "nic_link", "between 100 MB/s and 100 TB/s"),
    "slow Ethernet between accelerators": (
        "[nic_link]\nkind = 'ethernet'\nbytes_per_s = '50 MB/s'",
        "nic_link.bytes_per_s",
        "bit or byte",
    ),
    "InfiniBand with bits of a tenth": ("[nic_link]\nbytes_per_s = '0.4 Gbit/s'", "nic_link", "between 100 MB/s and 100 TB/s"),
    "NVLink with bits of a tenth": (
        "[scale_up_link]\nbytes_per_s = '0.45 Gbit/s'",
        "scale_up_link",
        "between 100 MB/s and 100 TB/s",
    ),
    "no Ethernet at all": ("[nic_link]\nkind = 'ethernet'\nbytes_per_s = '500 kB/s'", "nic_link", "between 1 MB/s and 100 TB/s"),
    "latency in whole seconds": ("[nic_link]\nlatency_s = 5", "nic_link", "between 0 s and 1 s"),
    "negative latency": ("[nic_link]\nlatency_s = '-1 us'", "nic_link", "zero or more"),
    "unknown base of a part": ("[nic_link]\nextends = 'ib-nrd'", "nic_link.extends", "unknown link"),
    "base of a part of a wrong type": ("[nic_link]\nextends = 3", "nic_link.extends", "expected a name or a file"),
    "half a GPU": ("gpus_per_node = 7.5", "gpus_per_node", "whole number"),
    "no GPUs": ("gpus_per_node = 0", "gpus_per_node", "greater than zero; write a whole number between 1 and 100,000"),
    "a count in words": ("nics_per_node = 'four'", "nics_per_node", "not a count; write a whole number between 1 and 100,000"),
    "no oversubscription": ("oversubscription = 0", "oversubscription", "write a number between 1 and 1,000"),
    "too many GPUs": ("gpus_per_node = 1e9", "gpus_per_node", "between 1 and 100,000"),
    "domain that splits nodes": ("scale_up_gpus = 12", "(top level)", "multiple of the other"),
    "links swapped": ("scale_up_link = 'ib-ndr'", "(top level)", "per = 'gpu'"),
    "file that is missing": ("device = 'gone.toml'", "device", "gone.toml"),
}
NOT_TOML = {
    "empty": b"",
    "only a comment": b"# nothing\n",
    "truncated": b'extends = "dgx-h',
    "truncated table": b"[memory\nmarketed = 5",
    "binary": bytes(range(256)) * 40,
    "zero bytes": b"\0" * 100,
    "a JSON file": b'{"gpus": 8}',
    "twice the same key": b'extends = "dgx-h100"\nextends = "dgx-a100"\n',
    "100 MB": b"#" * (100 << 20),
    "deep arrays": b"a = " + b"[" * 5000 + b"]" * 5000,
    "deep dotted key": b"a" + b".a" * 3000 + b" = 1",
    "number of thousands of digits": b"gpus_per_node = " + b"9" * 5000,
}


def error_of(load, path: Path | str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(path)
    return caught.value


def whole(error: UsageError) -> str:
    return f"{error} {error.hint or ''}"


@pytest.mark.parametrize("case", BAD_DEVICE)
def test_device(tmp_path, case):
    text, key, allowed = BAD_DEVICE[case]
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "h100-sxm"\n{text}\n', encoding="utf-8")
    error = error_of(load_device, path)
    assert str(path) in str(error)
    assert key in str(error)
    assert allowed in whole(error)


@pytest.mark.parametrize("case", BAD_CLUSTER)
def test_cluster(tmp_path, case):
    text, key, allowed = BAD_CLUSTER[case]
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "dgx-h100"\n{text}\n', encoding="utf-8")
    error = error_of(load_cluster, path)
    assert str(path) in str(error)
    assert key in str(error)
    assert allowed in whole(error)


@pytest.mark.parametrize("case", NOT_TOML)
@pytest.mark.parametrize("load", [load_device, load_cluster])
def test_not_a_specification(tmp_path, case, load):
    path = tmp_path / "mine.toml"
    path.write_bytes(NOT_TOML[case])
    error = error_of(load, str(path))
    assert str(path) in str(error)
    assert len(str(error)) < 1000


def test_missing_keys_are_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('id = "mine"\nname = "Mine"\nvendor = "x"\narchitecture = "y"\n', encoding="utf-8")
    error = error_of(load_device, path)
    assert "memory" in str(error)
    assert "is missing" in str(error)
    assert "(2 more problems)" in str(error)


def test_no_such_file_suggests(tmp_path):
    (tmp_path / "cluster.toml").write_text('extends = "dgx-h100"\n', encoding="utf-8")
    error = error_of(load_cluster, tmp_path / "clutser.toml")
    assert "no such file" in str(error)
    assert "cluster.toml" in (error.hint or "")


STRANGE = ["", " ", "\0", "x" * 100_000, "../../etc/passwd", "%s", "a/b", "x" * 5000 + ".toml", "a\0.toml", "\N{FLOPPY DISK}"]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_strange_names(name):
    for load in (load_device, load_link, load_cluster):
        assert len(str(error_of(load, name))) < 1000


def test_a_directory(tmp_path):
    (tmp_path / "dir.toml").mkdir()
    assert "is a directory" in str(error_of(load_cluster, tmp_path / "dir.toml"))
    assert "is a directory" in str(error_of(load_cluster, tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    assert "regular file" in str(error_of(load_cluster, tmp_path / "pipe.toml"))


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_cycle_is_shown(tmp_path, names):
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        (tmp_path / f"{name}.toml").write_text(f'extends = "./{following}.toml"\n', encoding="utf-8")
    error = error_of(load_cluster, tmp_path / "a.toml")
    assert "extends itself" in str(error)
    assert " -> ".join(f"{n}.toml" for n in [*names, names[0]]) in str(error)


def test_a_cycle_through_a_part(tmp_path):
    (tmp_path / "card.toml").write_text('extends = "card.toml"\n', encoding="utf-8")
    (tmp_path / "mine.toml").write_text('extends = "dgx-h100"\ndevice = "card.toml"\n', encoding="utf-8")
    assert "extends itself" in str(error_of(load_cluster, tmp_path / "mine.toml"))


def test_a_chain_that_is_too_long(tmp_path):
    for i in range(MOST_EXTENDS + 2):
        (tmp_path / f"{i}.toml").write_text(f'extends = "{i + 1}.toml"\n', encoding="utf-8")
    (tmp_path / f"{MOST_EXTENDS + 2}.toml").write_text('extends = "dgx-h100"\n', encoding="utf-8")
    assert f"more than {MOST_EXTENDS}" in str(error_of(load_cluster, tmp_path / "0.toml"))
    assert load_cluster(tmp_path / "4.toml").device.id == "h100-sxm"


def test_extends_of_a_wrong_type(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("extends = 5\n", encoding="utf-8")
    assert "extends: expected a name or a file, got int" in str(error_of(load_cluster, path))


def test_every_prefix_of_a_catalog_file_loads_or_is_a_usage_error(tmp_path):
    text = (CATALOG / "links" / "nvlink4.toml").read_bytes()
    path = tmp_path / "mine.toml"
    loaded, refused = 0, []
    for length in range(0, len(text) + 1, 97):
        path.write_bytes(text[:length])
        try:
            load_link(path)
            loaded += 1
        except UsageError as error:
            refused.append(str(error))
    assert all(str(path) in message for message in refused)
    assert len(refused) > 20
    assert loaded >= 3  # cut after the required keys, at the end of a table
