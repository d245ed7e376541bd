"""Axes kept at values that a user gives as text, such as tp=8 or schedule=zb-v,dualpipev."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parlay.errors import UsageError, nearest
from parlay.layouts.layout import Layout
from parlay.layouts.split import BY_RULE
from parlay.layouts.unless_told import in_its_words
from parlay.layouts.vocabulary import DEFAULT_ORDER, Framework
from parlay.search.constraints import SHORT, Bound
from parlay.search.space import ALL, HOW, NODE, Space
from parlay.specfile import validate

SWITCHES = ("sp", "tp_overlap", "ep_overlap")
WORDS = {  # of axes that otherwise take numbers
    "shard": {"all": ALL, "node": NODE},
    "recompute_layers": {"all": 0},
    "first_layers": {"rule": BY_RULE},
    "last_layers": {"rule": BY_RULE},
}
OPEN = tuple(f.name for f in dataclasses.fields(Space) if f.default == () or f.name in WORDS)  # axes that may take any value


def fixed(
    space: Space,
    texts: list[str],
    layout: Layout | None = None,
    layout_from: Mapping[str, str] | None = None,
    framework: Framework | None = None,
) -> Space:
    """Return `space` with axes kept at the values of "tp=8" or "pp=4,8", and at what a partial layout sets.

    `layout_from` says who set a field of the layout, where that was not a run file; `framework` whose words are used.
    Raises UsageError for an unknown axis, one that is given twice, or a value of the wrong kind.
    """
    kept: dict[str, Any] = {}
    names = {f.name for f in dataclasses.fields(space)} - HOW
    if layout is not None:
        kept = {
            n: (getattr(layout, n),)
            for n in Layout.model_fields
            if n in layout.model_fields_set & names and getattr(layout, n) is not None
        }
    given: set[str] = set()
    said = {n: f"{n}={_word(v[0])} ({(layout_from or {}).get(n, 'run file')})" for n, v in kept.items()}
    for text in texts:
        axis, sign, values = text.partition("=")
        axis = SHORT.get(axis.strip(), axis.strip())
        if axis not in names:
            near = nearest(axis, names)
            hint = f"did you mean {' or '.join(near)}?" if near else f"axes: {', '.join(sorted(names))}"
            raise UsageError(f"unknown axis '{axis[:40]}'", where=f"--fix {text[:60]}", hint=hint)
        if not sign or not values.strip():
            raise UsageError(f"'{text[:60]}' gives no value", where="--fix", hint="write --fix tp=8 or --fix pp=4,8")
        if axis in given:
            raise UsageError(f"'{axis}' is fixed twice", where=f"--fix {text[:60]}", hint=f"several values: --fix {axis}=A,B")
        given.add(axis)
        said[axis] = f"{axis}={values.strip()}"
        kept[axis] = (
            ()
            if _any(axis, values)
            else tuple(dict.fromkeys(_value(axis, v.strip(), text, framework) for v in values.split(",")))
        )
    # Whoever names a schedule wants a pipeline, whoever names a shard wants ZeRO-3, and whoever names an inner degree wants usp.
    meant = [Bound("pp", ">=", 2)] if "schedule" in given else []
    if "shard" in given and "zero" not in kept and not any(b.axis == "zero" for b in space.asked.bounds):
        meant.append(Bound("zero", ">=", 3))
        kept["zero"] = (3,)
    if kept.get("ulysses", (1,)) != (1,):
        kept.setdefault("cp_kind", ("usp",))
        if "usp" not in kept["cp_kind"]:
            hint = "leave cp_kind out, or --fix cp_kind=usp"
            raise UsageError(
                "ulysses is the inner degree of usp alone", where=f"--fix cp_kind={','.join(kept['cp_kind'])}", hint=hint
            )
        meant.append(Bound("cp", ">=", 2))
    # Where no value divides a rank's batch, a search falls back to one sequence, which is not what was fixed.
    implied = [Bound("micro_batch", ">=", min(kept["micro_batch"]))] if kept.get("micro_batch") else []
    if meant or said:
        kept["asked"] = dataclasses.replace(
            space.asked,
            bounds=(*space.asked.bounds, *meant),
            fixed=(*space.asked.fixed, *said.values()),
            implied=(*space.asked.implied, *implied),
        )
    refine = space.refine and not {"recompute", "recompute_layers"} & set(kept)
    if_it_fits = space.overlap_if_it_fits and "tp_overlap" not in kept
    return dataclasses.replace(space, **kept, refine=refine, overlap_if_it_fits=if_it_fits)


def _word(value: Any) -> str:
    """Return a value of an axis as --fix takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ("-" if value and value[0] in DEFAULT_ORDER else "+").join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _any(axis: str, values: str) -> bool:
    return values.strip().lower() == "any" and axis in OPEN


def _value(axis: str, text: str, whole: str, framework: Framework | None) -> Any:
    """Return one value of an axis, checked by Layout's own rules."""
    given: Any = text
    where = f"--fix {whole[:60]}"
    if text.lower() in WORDS.get(axis, {}):
        return WORDS[axis][text.lower()]
    if axis in SWITCHES:
        given = {"on": True, "true": True, "off": False, "false": False}.get(text.lower())
        if given is None:
            raise UsageError(f"'{text[:40]}' is neither on nor off", where=where, hint=f"write --fix {axis}=on,off for both")
    elif axis == "recompute" and not text:
        raise UsageError("an empty value", where=where, hint="write none for no recompute, and join modules with +")
    elif text.lstrip("-").isdecimal():
        given = int(text)
    return getattr(validate(Layout, in_its_words(framework, {axis: given}), where), axis)
