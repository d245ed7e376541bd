"""Writing a model specification as TOML, so that an imported model can be kept, edited and loaded again."""

from __future__ import annotations

from typing import Any

import tomlkit
from pydantic import BaseModel

from parlay.models.spec import ModelSpec

HEADER = "A model specification of Parlay: sizes in elements, layers in runs of the kinds named below."


def to_toml(spec: ModelSpec) -> str:
    """Return a specification as TOML that load_model reads back as an equal one; values equal to the default are left out.

    Parameters
    ----------
    spec : ModelSpec
        The model. [-]

    Returns
    -------
    str
        The text of a TOML file, its last line ended. [-]

    Examples
    --------
    >>> from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, Run
    >>> kind = LayerKind(mixer=GroupedAttention(heads=8, kv_heads=2, head_dim=64), mlp=DenseMlp(width=2048))
    >>> spec = ModelSpec(id="small", name="Small", hidden=512, vocab=32000, kinds={"block": kind},
    ...                  layers=(Run(kinds=("block",), count=4),))
    >>> print(to_toml(spec).splitlines()[1])
    id = "small"
    """
    document = tomlkit.document()
    document.add(tomlkit.comment(HEADER))
    values = plain(spec)
    for key, value in values.items():  # plain values first: in TOML, what follows a table belongs to it
        if not isinstance(value, dict) and not _tables(value):
            document.add(key, tomlkit.item(value))
    for key, value in values.items():
        if isinstance(value, dict) or _tables(value):
            document.add(key, tomlkit.item(value))
    return tomlkit.dumps(document).rstrip("\n") + "\n"


def plain(model: BaseModel) -> dict[str, Any]:
    """Return a specification as plain values, without those that equal their default; `kind` stays, it tells parts apart."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value is not None and (name == "kind" or field.is_required() or value != field.get_default(call_default_factory=True)):
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return plain(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
