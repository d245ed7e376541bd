"""What a class takes for a key that the file does not hold, by model_type.

The values are facts of the classes, written by scripts/count_with_transformers.py into defaults.json; the table names the
version it was taken from. Classes that ship beside their weights are written here by hand, with their source.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from parlay.models.huggingface.reader import Keys, Log, printable

BY_HAND: dict[str, dict[str, Any]] = {
    # tiiuae and mosaicml files carry all sizes; these classes default to untied embeddings unless noted.
    "kimi_vl": {"tie_word_embeddings": False},
    "grok-1": {"tie_word_embeddings": True},  # one table for input and output in the released code (xai-org/grok-1 model.py)
    "internlm": {"bias": True},
    "internlm2": {"bias": True},
    "chatglm": {"add_bias_linear": False, "add_qkv_bias": True, "multi_query_attention": True, "rmsnorm": True},
    "deepseek": {"first_k_dense_replace": 0, "moe_layer_freq": 1, "attention_bias": False},
}
SAME_AS = {  # a model_type whose class takes another's defaults
    "kimi_k2": "deepseek_v3",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "gpt_sw3": "gpt2",
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "phi4_multimodal": "phi3",
    "code_llama": "llama",
}


@functools.cache
def table() -> Mapping[str, Any]:
    """Return the classes' defaults and the names that their keys go by."""
    text = files("parlay.models.huggingface").joinpath("defaults.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def known(kind: str) -> bool:
    """Return whether the defaults of a model_type are known."""
    return SAME_AS.get(kind, kind) in table()["classes"] or kind in BY_HAND


def keys_for(kind: str, data: Mapping[str, Any], where: str, log: Log, *, path: str = "") -> Keys:
    """Return the keys of a table that the class of `kind` reads."""
    entry = table()["classes"].get(SAME_AS.get(kind, kind), {})
    defaults = {**entry.get("defaults", {}), **BY_HAND.get(kind, {})}
    reader = f"the {printable(kind)} class" if kind else "this model"
    return Keys(data, where, log, reader=reader, defaults=defaults, names=entry.get("names", {}), path=path)
