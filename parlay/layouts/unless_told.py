"""What a framework makes of a layout's fields unless told otherwise, and of words that it has a meaning of its own for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parlay.layouts.workload import Workload


def unless_told(workload: Workload, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from a `Layout`'s own defaults: FSDP under torchtitan, under HAI-LLM DualPipe where it runs.

    DualPipe hides expert traffic, but not where whole layers or experts are recomputed.

    Examples
    --------
    >>> unless_told(Workload(framework="torchtitan"), {"tp": 8}), unless_told(Workload(), {})
    ({'zero': 3}, {})
    >>> hai = Workload(framework="hai-llm", global_batch=512)
    >>> unless_told(hai, {"pp": 16, "dp": 8, "ep": 8}), unless_told(hai, {"pp": 15})
    ({'schedule': 'dualpipe', 'ep_overlap': True}, {'schedule': '1f1b', 'ep_overlap': False})
    """
    if workload.framework == "torchtitan":
        return {"zero": 3}
    pp, dp, micro_batch, ep = (fields.get(axis, 1) for axis in ("pp", "dp", "micro_batch", "ep"))
    whole = all(isinstance(x, int) and x > 0 for x in (pp, dp, micro_batch))
    if workload.framework != "hai-llm" or not whole or pp == 1:
        return {}
    rounds, rest = divmod(workload.global_batch, dp * micro_batch)
    runs = pp % 2 == 0 and not rest and rounds % 2 == 0 and rounds >= 2 * pp and fields.get("vpp", 1) == 1
    schedule = fields.get("schedule") or ("dualpipe" if runs else "1f1b")
    again = fields.get("recompute")  # not checked yet: text, a list, or what will be refused
    words = re.split("[,+]", again) if isinstance(again, str) else again if isinstance(again, list | tuple) else ()
    rerun = any(word in ("full", "moe") for word in words)
    return {"schedule": schedule, "ep_overlap": schedule == "dualpipe" and ep != 1 and not rerun}


def in_its_words(framework: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with `selective` as the framework means it: torchtitan's is by operation, others' is the attention core.

    Examples
    --------
    >>> in_its_words("torchtitan", {"recompute": "selective"}), in_its_words("torchtitan", {"recompute": ["full"]})
    ({'recompute': ['selective_ops']}, {'recompute': ['full']})
    >>> in_its_words("megatron-core", {"recompute": "selective"})
    {'recompute': 'selective'}
    """
    given = fields.get("recompute")
    words = re.split(r"[,+\s]+", given) if isinstance(given, str) else given if isinstance(given, list | tuple) else ()
    if framework != "torchtitan" or "selective" not in words:
        return dict(fields)
    return {**fields, "recompute": ["selective_ops" if word == "selective" else word for word in words]}
