"""The sizes that a source prints of a model: cells with remarks, other spellings of keys, and what is no size."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from parlay.errors import UsageError

# Spelling of Hugging Face, Megatron and others -> the key of an arch_json.
KEYS = {
    "hidden_size": "hidden", "d_model": "hidden", "dim": "hidden",
    "num_layers": "layers", "n_layers": "layers", "num_hidden_layers": "layers",
    "num_heads": "heads", "n_heads": "heads", "num_attention_heads": "heads",
    "n_kv_heads": "kv_heads", "num_kv_heads": "kv_heads", "num_query_groups": "kv_heads", "num_key_value_heads": "kv_heads",
    "ffn_hidden": "ffn", "ffn_hidden_size": "ffn", "intermediate_size": "ffn",
    "vocab_size": "vocab", "kv_channels": "head_dim", "tie_word_embeddings": "tied_embeddings",
    "num_experts": "experts", "num_moe_experts": "experts", "n_routed_experts": "experts",
    "top_k": "topk", "num_experts_per_tok": "topk", "moe_router_topk": "topk",
    "moe_ffn": "expert_ffn", "moe_ffn_hidden_size": "expert_ffn", "moe_intermediate_size": "expert_ffn",
    "n_shared_experts": "shared_experts", "first_k_dense_replace": "dense_layers",
    "q_lora_rank": "q_lora", "kv_lora_rank": "kv_lora", "qk_nope_head_dim": "qk_nope", "qk_rope_head_dim": "qk_rope",
    "v_head_dim": "v",
}  # fmt: skip
MOST_LAYERS = 10_000
MAY_BE_NONE = {  # 0 of these is none of them
    "q_lora", "shared_ffn", "shared_experts", "dense_layers", "mamba_layers", "mlp_layers", "attn_layers", "experts", "topk", "expert_ffn",
}  # fmt: skip
WORDS = {
    "heads": "number of heads",
    "layers": "number of layers",
    "hidden": "hidden size",
    "ffn": "MLP width",
    "vocab": "vocabulary",
}
NOT_PRINTED = {"", "-", "?", "n/a", "na", "none", "null", "unknown", "not stated", "not printed"}
SIZE = re.compile(r"[~≈=]?\s*(\d{1,3}(?:[,_]\d{3})+|\d{1,15})(?:\.0*)?(?![\d.]|\s*[a-z]\b|\s*/|-\d)")
TIMES_HIDDEN = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*[x*·]?\s*(?:h|hidden)\b")
YES, NO = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


class UnknownArchitecture(UsageError):
    """No catalog entry and no published shape: the run cannot be predicted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The cells of an arch_json as numbers; None is what the source does not print."""

    name: str
    cells: Mapping[str, Any]
    latent: Mapping[str, Any]  # the cells of "mla"

    @classmethod
    def of(cls, name: str, arch: Mapping[str, Any], hidden: int | None = None) -> Sizes:
        """Return the sizes of a row; a number of layers may stand in the name alone, `hidden` is that of the known model."""
        cells = _ours(arch)
        inner = cells.get("mla")
        sizes = cls(name, cells, _ours(inner) if isinstance(inner, Mapping) else {})
        if sizes.get("layers") is None and (layers := layers_in_name(name)) is not None:
            cells["layers"] = layers
        if sizes.get("hidden") is None and hidden:
            cells["hidden"] = hidden
        return sizes

    def get(self, key: str) -> int | None:
        """Return a size, None where it is not printed; raises UnknownArchitecture for what is no size."""
        cells = self.latent if key in self.latent else self.cells
        found = self._read(key, cells.get(key))
        if found == 0 and key not in MAY_BE_NONE:
            raise UnknownArchitecture(f"{key} of '{self.name[:80]}' is 0, which is no size")
        if found is not None and key.endswith("layers") and found > MOST_LAYERS:
            raise UnknownArchitecture(f"{key} of '{self.name[:80]}' is {found}, more than any model has")
        return found

    def need(self, key: str, known: int | None = None) -> int:
        """Return a size, or `known` where it is not printed; raises UnknownArchitecture where both are missing."""
        found = self.get(key)
        found = known if found is None else found
        if found is None:
            raise UnknownArchitecture(f"the source prints no {WORDS.get(key, key)} for '{self.name[:80]}'")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Return a cell that says yes or no."""
        value = self.cells.get(key)
        text = str(value).strip().lower()
        if value is None or text in NOT_PRINTED:
            return default
        if text in YES | NO:
            return text in YES
        raise UnknownArchitecture(f"{key} of '{self.name[:80]}' is '{text[:40]}', neither true nor false")

    def _read(self, key: str, value: Any) -> int | None:
        if value is None or (isinstance(value, str) and value.strip().lower() in NOT_PRINTED):
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value % 1 == 0:
            return int(value)
        if isinstance(value, str):
            text = value.strip().lower()
            if key != "hidden" and (found := TIMES_HIDDEN.match(text)):
                return round(float(found[1]) * self.need("hidden"))
            if key == "vocab" and (found := re.match(r"(\d{1,4})k\b", text)):
                return int(found[1]) * 1000
            if found := SIZE.match(text):
                return int(re.sub("[,_]", "", found[1]))
        raise UnknownArchitecture(f"{key} of '{self.name[:80]}' is '{str(value)[:40]}', not a size")


def _ours(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return cells under our keys; a cell under its own key goes before one under another spelling."""
    return {KEYS[key]: value for key, value in cells.items() if key in KEYS} | {k: v for k, v in cells.items() if k not in KEYS}


def layers_in_name(name: str) -> str | None:
    """Return the number of layers that a name tells, as it tells it: a part such as 1/8 is no number.

    Examples
    --------
    >>> layers_in_name("DeepSeek-V3 (4 layers)"), layers_in_name("DeepSeek-V3 12L"), layers_in_name("Llama3-8B, 4 of 32 layers")
    ('4', '12', '4')
    """
    found = re.search(r"(?<![\w.])(\d{1,6}(?:/\d+)?)(?: of \d+)?[ -]?(?:layers?|l)\b", name.lower().replace("_", " "))
    return found[1] if found else None
