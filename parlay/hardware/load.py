"""Finding and reading devices, links and clusters: by name in the catalogs, or from a user's own file.

A name is an id or an alias; case, `_`, `-` and spaces do not matter. A file may start from another with
`extends = "dgx-h100"` (a catalog name, or a file beside it) and state only what differs. Only the files that a
cluster needs are parsed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from parlay.catalog import Summary, find, fold, is_path, names, read_table, summaries
from parlay.errors import UnknownNameError, UsageError
from parlay.hardware.driver_names import device_key
from parlay.hardware.spec import Cluster, Device, Link, Sourced
from parlay.specfile import validate

Kind = Literal["device", "link", "cluster"]
S = TypeVar("S", Device, Link, Cluster)

CATALOG = Path(__file__).parent / "catalog"
MOST_EXTENDS = 8  # a longer chain is a mistake, or an attack
# What the measured rates of a device depend on; capacity, names and what is known of its host link change none of them.
RATED = ("vendor", "architecture", "compute_capability", "hbm_bytes_per_s", "flops_per_s", "l2_bytes", "compute_units",
         "boost_clock_hz", "power_w")  # fmt: skip
# What was measured of a device's host link, which another link makes void.
HOST_COPIES = ("host_to_device_bytes_per_s", "device_to_host_bytes_per_s")
_PARTS: Mapping[str, Kind] = {"device": "device", "scale_up_link": "link", "nic_link": "link"}


def user_catalog_directory() -> Path:
    """Return where a user keeps own devices/, links/ and clusters/ (the loaders look there only if told to)."""
    import platformdirs

    return platformdirs.user_config_path("parlay") / "hardware"


def list_devices(user_directory: Path | None = None) -> tuple[Summary, ...]:
    """Return a summary of each device of the catalog, and of the user's catalog if given, by id."""
    return _list("device", user_directory)


def list_links(user_directory: Path | None = None) -> tuple[Summary, ...]:
    """Return a summary of each link of the catalog, and of the user's catalog if given, by id."""
    return _list("link", user_directory)


def list_clusters(user_directory: Path | None = None) -> tuple[Summary, ...]:
    """Return a summary of each cluster of the catalog, and of the user's catalog if given, by id."""
    return _list("cluster", user_directory)


def load_device(name: str | Path, user_directory: Path | None = None) -> Device:
    """Return the device of that name or file.

    Parameters
    ----------
    name : str or Path
        A catalog name, or a file: a Path, or a text that ends in .toml or holds a slash [-].
    user_directory : Path, optional
        A catalog to look in besides the built-in one, with devices/, links/ and clusters/ in it [-].

    Returns
    -------
    Device
        The validated specification, in SI base units.

    Raises
    ------
    UnknownNameError
        No catalog holds the name; the message suggests near ones.
    UsageError
        The file cannot be read, or a value is wrong; the message names file, key and what is allowed.

    Examples
    --------
    >>> load_device("H100").memory.visible.value / 2**20
    81559.0
    """
    return _load(Device, "device", name, user_directory)


def load_link(name: str | Path, user_directory: Path | None = None) -> Link:
    """Return the link of that name or file; raises as `load_device` does.

    Examples
    --------
    >>> load_link("nvlink4").bytes_per_s.value
    450000000000.0
    """
    return _load(Link, "link", name, user_directory)


def load_cluster(name: str | Path, user_directory: Path | None = None) -> Cluster:
    """Return the cluster of that name or file; raises as `load_device` does.

    Examples
    --------
    >>> load_cluster("dgx_h100").device.id
    'h100-sxm'
    """
    return _load(Cluster, "cluster", name, user_directory)


def cluster_of(table: Mapping[str, Any], where: str, user_directory: Path | None = None) -> Cluster:
    """Return the cluster of an inline table, which may start from another with `extends`; raises as `load_device` does."""
    data = dict(table)
    base = data.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f"expected a name or a file, got {type(base).__name__}", where=f"{where}.extends")
        data = _merge(_read("cluster", _locate("cluster", base, user_directory, f"{where}.extends"), user_directory, ()), data)
    return _build(Cluster, "cluster", data, where, user_directory)


def _load(spec: type[S], kind: Kind, name: str | Path, user_directory: Path | None) -> S:
    path = _locate(kind, name, user_directory)
    return _build(spec, kind, _read(kind, path, user_directory, ()), str(path), user_directory)


def _build(spec: type[S], kind: Kind, data: dict[str, Any], where: str, user_directory: Path | None) -> S:
    """Return the validated spec of a table whose `extends` is already merged, its parts built first."""
    if kind == "cluster":
        data = dict(data)
        for key, part_kind in _PARTS.items():
            if key in data:
                data[key] = _part(key, part_kind, data[key], data, where, user_directory)
    built = validate(spec, data, where)
    if isinstance(built, Device) and built.measured_as is not None and not _rated_alike(built):
        return built.model_copy(update={"measured_as": None})
    return built


def _rated_alike(device: Device) -> bool:
    """Return whether a device has all that the rates of the one it starts from depend on."""
    base = load_device(str(device.measured_as))
    return all(_numbers(getattr(device, name)) == _numbers(getattr(base, name)) for name in RATED)


def _numbers(value: Any) -> Any:
    """Return a value without what is said of its source."""
    if isinstance(value, Sourced):
        return value.value
    return {key: _numbers(one) for key, one in value.items()} if isinstance(value, dict) else value


def _part(key: str, kind: Kind, given: Any, parent: Mapping[str, Any], where: str, user_directory: Path | None) -> Any:
    """Return the device or link that a cluster names, or gives as a table."""
    spec: Any = Device if kind == "device" else Link
    here = f"{where}: {key}"
    if isinstance(given, str):
        path = _locate(kind, given, user_directory, here)
        return _build(spec, kind, _read(kind, path, user_directory, ()), str(path), user_directory)
    if not isinstance(given, dict):
        raise UsageError(
            f"expected a {kind}, got {type(given).__name__}", where=here, hint=f"a catalog name, a file or a [{key}] table"
        )
    table = dict(given)
    base = table.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f"expected a name or a file, got {type(base).__name__}", where=f"{here}.extends")
        table = _changed(_inherited(kind, _locate(kind, base, user_directory, f"{here}.extends"), user_directory, ()), table)
    owner = str(parent.get("id", "cluster"))
    table.setdefault("id", f"{owner}-{key.replace('_', '-')}")
    table.setdefault("name", f"{base or key} of {parent.get('name', owner)}"[:200])
    return _build(spec, kind, table, here, user_directory)


def _read(kind: Kind, path: Path, user_directory: Path | None, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return the table of a file with what it extends merged in, and its references to files made absolute."""
    resolved = Path(os.path.abspath(path))
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise UsageError(f"extends itself: {chain}", where=f"{seen[0]}: extends")
    if len(seen) >= MOST_EXTENDS:
        raise UsageError(f"is a chain of more than {MOST_EXTENDS} files", where=f"{seen[0]}: extends")
    data = read_table(path)
    if kind == "cluster":
        if "model" in data:
            raise UsageError(
                "is a run file of Parlay, not a cluster", where=str(path), hint=f"give it as the model: parlay plan {path}"
            )
        for key in _PARTS:
            if key in data:
                data[key] = _absolute(data[key], path.parent)
    base = data.pop("extends", None)
    if base is not None:
        where = f"{path}: extends"
        if not isinstance(base, str):
            raise UsageError(f"expected a name or a file, got {type(base).__name__}", where=where)
        base_path = _locate(kind, _absolute(base, path.parent), user_directory, where)
        data = _changed(_inherited(kind, base_path, user_directory, (*seen, resolved)), data)
        data.setdefault("name", f"{path.stem} (from {Path(base).stem})"[:200])
    if kind == "cluster" or base is not None:
        data.setdefault("id", path.stem)
    return data


def _merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` laid over it, table by table.

    A quantity is replaced whole: a new value must not keep the source of the old one. A part given as a table over
    a part given by name starts from that name.
    """
    merged = dict(base)
    for key, new in change.items():
        old = merged.get(key)
        if isinstance(new, dict) and isinstance(old, str) and key in _PARTS:
            merged[key] = {"extends": old, **new}
        elif isinstance(new, dict) and isinstance(old, dict) and "value" not in new and "extends" not in new:
            merged[key] = _merge(old, new)
        else:
            merged[key] = new
    return merged


def _changed(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's table laid over its base's, without copies that were measured over a host link which it replaces."""
    achieved = base.get("achieved")
    if "host_link_bytes_per_s" in change and isinstance(achieved, dict):
        base = {**base, "achieved": {key: value for key, value in achieved.items() if key not in HOST_COPIES}}
    return _merge(base, change)


def _inherited(kind: Kind, path: Path, user_directory: Path | None, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return the table of a base without what belongs to it alone; a device of the catalog leaves its measured rates as well."""
    data = _read(kind, path, user_directory, seen)
    if kind == "device" and path.parent == CATALOG / "devices":
        data.setdefault("measured_as", data["id"])
    return {key: value for key, value in data.items() if key not in ("id", "name", "aliases")}


def _absolute(given: Any, folder: Path) -> Any:
    """Return a reference with a file name made absolute; catalog names and other values stay as they are."""
    if isinstance(given, str):
        return str(folder / given) if is_path(given) else given
    if isinstance(given, dict) and isinstance(given.get("extends"), str):
        return {**given, "extends": _absolute(given["extends"], folder)}
    return given


def _locate(kind: Kind, name: str | Path, user_directory: Path | None, where: str | None = None) -> Path:
    """Return the file of a name; the built-in catalog and the user's may not share names."""
    if is_path(name):
        if where is not None and not os.path.isfile(name):
            raise UsageError(f"'{name}' is not a file", where=where)
        return Path(name)
    wanted = fold(str(name))
    driver = device_key(str(name))  # a device as its driver names it
    if driver:
        wanted = driver if kind == "device" else _usual_cluster(driver)
    own = None if user_directory is None else user_directory / f"{kind}s"
    found = find(wanted, CATALOG / f"{kind}s", lambda: _catalog(kind))
    if own is not None:
        mine = find(wanted, own, lambda: summaries(own))
        if found and mine:
            raise UsageError(f"the name '{wanted}' is also in the built-in catalog", where=str(mine), hint="give it another id")
        found = found or mine
    if found:
        return found
    known = [] if driver else [n for summary in _list(kind, user_directory) for n in summary.names]
    raise UnknownNameError(
        kind,
        str(name),
        known,
        where=where,
        hint=(kind == "cluster" and _clusters_of(driver or wanted)) or "`parlay hardware list` shows all",
    )


def _usual_cluster(device: str) -> str:
    """Return the name of `device` that a cluster of the catalog goes by as well, or its own id where none does."""
    taken = names(_catalog("cluster"))
    own = next((summary.names for summary in _catalog("device") if device in summary.names), (device,))
    return next((name for name in own if name in taken), device)


def _clusters_of(device: str) -> str | None:
    """Return a hint that lists the clusters of a device, if `device` names one."""
    path = find(device, CATALOG / "devices", lambda: _catalog("device"))
    clusters = [s.id for s in _catalog("cluster") if path is not None and s.detail == path.stem]
    if path is None:
        return None
    have = f"clusters of it: {', '.join(clusters)}" if clusters else "no cluster of the catalog has it, so write a file for yours"
    return f"'{device}' is a device; {have}"


def _list(kind: Kind, user_directory: Path | None) -> tuple[Summary, ...]:
    own = () if user_directory is None else summaries(user_directory / f"{kind}s")
    everything = (*_catalog(kind), *own)
    names(everything)
    return tuple(sorted(everything, key=lambda summary: summary.id))


@lru_cache(maxsize=3)
def _catalog(kind: Kind) -> tuple[Summary, ...]:
    """Return the summaries of the built-in catalog, which does not change while the program runs."""
    return summaries(CATALOG / f"{kind}s")


def find_any(name: str, user_directory: Path | None = None) -> Cluster | Device | Link:
    """Return the cluster, device or link of that name, looked for in this order; a file is read as a cluster."""
    if is_path(name):
        return load_cluster(name, user_directory)
    if name.lower().endswith((".json", ".yaml", ".yml")):
        raise UsageError(
            "clusters, devices and links are read from TOML files alone"
            + ("" if Path(name).exists() else ", and there is no such file"),
            where=name,
            hint='give a name of `parlay hardware list`, or a .toml that starts from one with extends = "dgx-h100"',
        )
    driver = device_key(name)
    if driver:
        return load_device(driver, user_directory)
    wanted, known = fold(name), list[str]()
    for entries in (list_clusters(user_directory), list_devices(user_directory), list_links(user_directory)):
        known += [n for s in entries for n in s.names]
        path = names(entries).get(wanted)
        if path is not None:
            folder = path.parent.name
            if folder == "clusters":
                return load_cluster(path, user_directory)
            return load_device(path, user_directory) if folder == "devices" else load_link(path, user_directory)
    raise UnknownNameError("cluster, device or link", name, known, hint="`parlay hardware list` shows all")
