"""What a framework makes of a layout's fields unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlay.layouts.vocabulary import Framework


def unless_told(framework: Framework, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from a `Layout`'s own defaults: FSDP under torchtitan, DualPipe under HAI-LLM.

    Examples
    --------
    >>> unless_told("torchtitan", {"tp": 8}), unless_told("hai-llm", {"pp": 16, "ep": 64}), unless_told("megatron-core", {})
    ({'zero': 3}, {'schedule': 'dualpipe', 'ep_overlap': True}, {})
    """
    if framework == "torchtitan":
        return {"zero": 3}
    if framework == "hai-llm" and fields.get("pp", 1) != 1:
        schedule = fields.get("schedule") or "dualpipe"
        return {"schedule": schedule, "ep_overlap": schedule == "dualpipe" and fields.get("ep", 1) != 1}
    return {}
