"""Finding and reading models: by name in the catalog, from a TOML file, or from a Hugging Face config.json."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from parlay.catalog import Summary, find, fold, is_path, names, read_table, summaries
from parlay.errors import UnknownNameError, UsageError, nearest
from parlay.models.spec import ModelSpec
from parlay.specfile import validate

CATALOG = Path(__file__).parent / "catalog"
MOST_EXTENDS = 8  # a longer chain is a mistake, or an attack


def list_models() -> tuple[Summary, ...]:
    """Return a summary of each model of the catalog, by id; `detail` is its family."""
    return _catalog()


def load_model(name: str | Path) -> ModelSpec:
    """Return the model of that name or file.

    Parameters
    ----------
    name : str or Path
        A catalog name; a TOML file (which may start from another with `extends`); a Hugging Face config.json, a
        directory that holds one, or "-" to read one from standard input. [-]

    Returns
    -------
    ModelSpec
        The validated specification. [-]

    Raises
    ------
    UnknownNameError
        The catalog does not hold the name; the message suggests near ones.
    UsageError
        The file cannot be read, or a value is wrong; the message names file, key and what is allowed.

    Examples
    --------
    >>> load_model("Llama-3.1-8B").layer_count
    32
    """
    if is_config(name):
        from parlay.models.huggingface import load_config

        return load_config(name)
    path = _locate(name)
    table = _read(path, ())
    _refuse_run_file(table, path)
    return validate(ModelSpec, table, str(path))


def _refuse_run_file(table: dict[str, Any], path: Path) -> None:
    """Raise UsageError where a table is that of a run file, which names a model but is none."""
    if {"hidden", "kinds"} & set(table) or not {"model", "cluster", "training", "layout"} & set(table):
        return
    model = table.get("model")
    name = f": {model[:80]}" if isinstance(model, str) else ""
    raise UsageError("is a run file of Parlay, not a model", where=str(path), hint=f"give its model instead{name}")


def is_config(name: str | Path) -> bool:
    """Return whether a name stands for a Hugging Face config.json: a .json file, a directory, or "-"."""
    text = str(name)
    return text == "-" or text.endswith(".json") or ((is_path(name) or text in (".", "..")) and os.path.isdir(text))


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return the table of a file with what it extends merged in, key by key at the top level and by layer kind."""
    resolved = Path(os.path.abspath(path))
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise UsageError(f"extends itself: {chain}", where=f"{seen[0]}: extends")
    if len(seen) >= MOST_EXTENDS:
        raise UsageError(f"is a chain of more than {MOST_EXTENDS} files", where=f"{seen[0]}: extends")
    data = read_table(path)
    base = data.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f"expected a name or a file, got {type(base).__name__}", where=f"{path}: extends")
        inherited = _read(_locate(path.parent / base if is_path(base) else base, f"{path}: extends"), (*seen, resolved))
        for key in ("id", "name", "aliases", "published"):
            inherited.pop(key, None)
        data = merge(inherited, data)
        data.setdefault("name", f"{path.stem} (from {Path(base).stem})"[:200])
    data.setdefault("id", path.stem)
    return data


def merge_over(table: dict[str, Any]) -> dict[str, Any]:
    """Return an inline model table with what it `extends` (a catalog name or a file) merged in."""
    data = dict(table)
    base = data.pop("extends", None)
    if base is None:
        return data
    inherited = _read(_locate(str(base), "model.extends"), ())
    return merge(inherited, data)


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` laid over it, table by table; a part that names another `kind` replaces the old one."""
    merged = dict(base)
    for key, new in change.items():
        old = merged.get(key)
        same = isinstance(old, dict) and isinstance(new, dict) and new.get("kind", old.get("kind")) == old.get("kind")
        merged[key] = merge(old, new) if same and isinstance(old, dict) else new
    return merged


def _locate(name: str | Path, where: str | None = None) -> Path:
    if is_path(name):
        if where is not None and not os.path.isfile(name):
            raise UsageError(f"'{name}' is not a file", where=where)
        _refuse_repository(str(name))
        return Path(name)
    found = find(fold(str(name)), CATALOG, _catalog)
    if found:
        return found
    if os.path.isfile(os.path.join(str(name), "config.json")):
        raise UsageError(
            f"unknown model '{str(name)[:80]}'", where=where, hint=f"for the config.json of that folder write ./{str(name)[:80]}"
        )
    if os.path.isdir(str(name)):
        raise UsageError(
            "is a folder without a config.json", where=str(name)[:80], hint="name a config.json or a model's TOML file"
        )
    known = [n for summary in _catalog() for n in summary.names]
    raise UnknownNameError("model", str(name), known, where=where, hint="`parlay models list` shows all; a config.json works too")


def _refuse_repository(name: str) -> None:
    """Raise UsageError where a path that leads nowhere looks like a repository of Hugging Face: its owner and its name."""
    last = name.rsplit("/", 1)[-1]
    if name.count("/") != 1 or os.path.exists(name) or name.endswith(".toml"):
        return
    found = find(fold(last), CATALOG, _catalog)
    near = found.stem if found else next(iter(nearest(last, [summary.id for summary in _catalog()], most=1)), None)
    hint = f"the catalog has {near}, without an owner" if near else "download its config.json and name that file"
    raise UsageError("no such file, and nothing is fetched from Hugging Face", where=name[:80], hint=hint)


@lru_cache(maxsize=1)
def _catalog() -> tuple[Summary, ...]:
    found = tuple(sorted(summaries(CATALOG), key=lambda summary: summary.id))
    names(found)
    return found
