"""Reading TOML files into frozen specifications, with errors that name file, key and what is allowed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from parlay.errors import UsageError, nearest

MAX_FILE_BYTES = 1 << 20  # a specification is a page of text; a larger file is something else


class Spec(BaseModel):
    """A frozen specification that refuses unknown keys, NaN and infinity."""

    # Parts of a specification are checked by the whole's own validator: building one for each as well would take longer.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=20_000, defer_build=True)


S = TypeVar("S", bound=Spec)


def read_text(path: Path, *, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a small UTF-8 file, or raise UsageError: missing, a directory, too large, not text."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        near = nearest(path.name, [p.name for p in path.parent.glob("*" + path.suffix)]) if path.parent.is_dir() else []
        found = " or ".join(str(path.with_name(name)) for name in near)
        hint = f"did you mean {found}?" if near else "give the path of a file that exists, from the folder you are in"
        raise UsageError("no such file", where=str(path), hint=hint) from None
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path)) from None
    if len(data) > most_bytes:
        raise UsageError(f"is larger than {most_bytes:,} bytes, so it is not a specification", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", where=str(path)) from None


def read_standard_input(most_bytes: int) -> bytes:
    """Return at most one byte more than `most_bytes` of standard input, or raise UsageError: closed, not readable."""
    if sys.stdin is None:
        raise UsageError("is closed", where="standard input", hint="pipe the text in, or name a file instead of -")
    try:
        return sys.stdin.buffer.read(most_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror or error})", where="standard input") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file, or raise UsageError naming file, line and what is wrong."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}", where=str(path)) from None
    except RecursionError:
        raise UsageError("not valid TOML: nested too deeply", where=str(path)) from None


# pydantic's complaints that speak of its own types rather than of what a person may write
IN_OUR_WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    "less_than_equal": "must be at most {le:,.15g}",
    "greater_than_equal": "must be at least {ge:,.15g}",
    "less_than": "must be less than {lt:,.15g}",
    "greater_than": "must be greater than {gt:,.15g}",
}


def validate(kind: type[S], data: Mapping[str, Any], where: str) -> S:
    """Return `data` as a `kind`, or raise UsageError that names the first wrong key and what is allowed there."""
    for key, value in data.items():  # pydantic would take true for 1
        if isinstance(value, bool) and _is_number(kind, str(key)):
            raise UsageError(f"must be a number, got {str(value).lower()}", where=f"{where}: {key}")
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise as_usage_error(error, kind, where) from None


@lru_cache(maxsize=1024)
def _is_number(kind: type[BaseModel], key: str) -> bool:
    """Return whether a key takes numbers, and neither true nor false."""
    field = kind.model_fields.get(key)
    inner = _parts(field.annotation) if field else set()
    return bool(inner & {int, float}) and bool not in inner


def _parts(annotation: Any) -> set[Any]:
    """Return a type and those that it is made of."""
    return {annotation}.union(*map(_parts, get_args(annotation)))


def as_usage_error(error: ValidationError, kind: type[BaseModel], where: str) -> UsageError:
    """Return the first of pydantic's complaints in our words, with the number of further ones."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    hint = None
    given = repr(first.get("input"))
    given = given if len(given) <= 60 else given[:57] + "..."
    if first["type"] == "extra_forbidden":
        message = f"unknown key '{first['loc'][-1]}'"
        known = _known_keys(kind, first["loc"])
        near = nearest(str(first["loc"][-1]), known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known keys: {', '.join(sorted(known))}" if known else None
    elif first["type"] == "missing":
        message = "is missing"
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
    elif first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"must be a table, got {given}"
        required, others = _keys_of(kind, first["loc"])
        hint = (
            f"its keys: {', '.join([*required, *(f'{name} (may be left out)' for name in others)])}"
            if required or others
            else None
        )
    else:
        words = IN_OUR_WORDS.get(first["type"])
        said = words.format(**first.get("ctx", {})) if words else first["msg"][0].lower() + first["msg"][1:]
        message = f"{said}, got {given}"
    if len(complaints) > 1:
        more = len(complaints) - 1
        message += f" ({more} more problem{'s' if more > 1 else ''})"
    return UsageError(message, where=f"{where}: {key}", hint=hint)


def _keys_of(kind: type[BaseModel], path: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """Return the keys that the table at `path` must have, and those that it may have."""
    names = _known_keys(kind, (*path, ""))
    model = _model_at(kind, path)
    must = [name for name in names if model is not None and model.model_fields[name].is_required()]
    return must, [name for name in names if name not in must]


def _known_keys(kind: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the keys allowed beside the last element of `path`, following nested models where that is simple."""
    return list(getattr(_model_at(kind, path[:-1]), "model_fields", {}))


def _model_at(kind: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model that stands at `path`, None where that cannot be told."""
    current: Any = kind
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        annotation = getattr(field, "annotation", None)
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not models:
            return None
        current = models[0]
    return current  # type: ignore[no-any-return]
