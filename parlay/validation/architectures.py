"""The model of a run: a catalog entry, or a shape that the source prints, or the one with the sizes of the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from parlay.estimate.counts import parameters
from parlay.models.spec import ModelSpec, MoeMlp
from parlay.validation.names import find
from parlay.validation.shapes import changed, dense, experts, hybrid, latent, resized
from parlay.validation.sizes import Sizes, UnknownArchitecture

__all__ = ["UnknownArchitecture", "architecture"]

MOST_POSITIONS = 1 << 20


def architecture(name: str, arch: Mapping[str, Any]) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model of a run, and what had to be assumed about its shape.

    Parameters
    ----------
    name : str
        The model as the source calls it. [-]
    arch : Mapping
        Sizes that the source prints; may be empty or partial. [-]

    Returns
    -------
    tuple of ModelSpec and tuple of str
        The model, and assumptions in words. [-]

    Raises
    ------
    UnknownArchitecture
        Neither the catalog nor the source tells the shape, the name and the sizes in it contradict each other, or a
        printed size is none or does not fit the others.
    """
    known, reason = find(name)
    sizes = Sizes.of(name, arch, known.hidden if known else None)
    try:
        model, said = _built(sizes, known, reason)
        return _with_positions(model, sizes), said
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = str(first.get("ctx", {}).get("error", first["msg"]))
        where = ".".join(str(part) for part in first["loc"])
        raise UnknownArchitecture(f"the sizes of '{name[:80]}' do not fit: {where}{': ' if where else ''}{what[:120]}") from None


def _built(sizes: Sizes, known: ModelSpec | None, reason: str) -> tuple[ModelSpec, tuple[str, ...]]:
    routed = known is not None and any(isinstance(kind.mlp, MoeMlp) for kind in known.kinds.values())
    if sizes.get("mamba_layers") and not routed:
        return hybrid(sizes, known)
    if sizes.cells.get("mla"):
        return latent(sizes, known), ()
    if sizes.get("experts") and not routed:
        return experts(sizes, known), ()
    if known is None:
        if sizes.get("hidden") is None or sizes.get("layers") is None:
            raise UnknownArchitecture(reason)
        return dense(sizes)
    model = changed(known, sizes)
    count = sizes.get("layers") or model.layer_count
    cut = resized(model, count, sizes.get("dense_layers"))
    return cut, (f"the first {count} layers of {model.name}",) if count < model.layer_count else ()


def _with_positions(model: ModelSpec, sizes: Sizes) -> ModelSpec:
    """Return a model with learned positions as many as its printed number of parameters leaves for them."""
    counted = sizes.get("num_params")
    if counted is None or sizes.cells.get("pos") != "learned":
        return model
    bare = model.model_copy(update={"position_embeddings": 0})
    built = parameters(bare).total
    rows = (counted - built) // model.hidden
    if rows > MOST_POSITIONS or built > 1.01 * counted:
        raise UnknownArchitecture(f"num_params of '{sizes.name[:80]}' is {counted}, but its sizes make {built}")
    return model.model_copy(update={"position_embeddings": max(0, rows)})
