"""Reading the keys of a config.json: safely parsed, typed, with the class's default where the file is silent.

Nothing from the model runs and nothing is fetched. A file is refused as a whole (too large, not JSON, too deep) or
by the one key that is wrong, with the file and the key named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.errors import UsageError
from parlay.specfile import read_text

MAX_BYTES = 16 << 20  # real files hold a few kilobytes, those with a label for every token a few megabytes
MAX_VALUES = 1 << 20  # braces, brackets, colons and commas together: bounds the memory that parsing takes
MAX_SIZE = 1 << 32  # no width, count or vocabulary is larger
MAX_LAYERS = 10_000  # no model has more
MISSING = object()

# Other spellings of a key, tried in this order after the class's own name for it.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "n_embed", "model_dim", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num"),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "hidden_act": ("hidden_activation", "activation_function", "mlp_hidden_act", "activation"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_local_experts": ("num_experts",),
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_top_k", "moe_k", "num_experts_per_token", "top_k_experts", "num_selected_experts"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers"),
    "layer_types": ("layers_block_type",),
}


@dataclass
class Log:
    """What was taken from a class's default or guessed, and which keys were read, by dotted path."""

    assumed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def assume(self, text: str) -> None:
        """Note once that `text` was assumed."""
        if text not in self.assumed:
            self.assumed.append(text)

    def ignore(self, text: str) -> None:
        """Note once that `text` was not used."""
        if text not in self.ignored:
            self.ignored.append(text)


class Keys:
    """The keys of one table of the file, together with the defaults of the class that reads it."""

    def __init__(
        self,
        data: Mapping[str, Any],
        where: str,
        log: Log,
        *,
        reader: str = "",
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        path: str = "",
    ) -> None:
        self.data, self.where, self.log, self.reader = data, where, log, reader
        self.defaults, self.names, self.path = defaults or {}, names or {}, path

    def place(self, key: str) -> str:
        """Return `file: key` with the full dotted key."""
        return f"{self.where}: {self.path}{key}"

    def find(self, name: str) -> tuple[str, Any]:
        """Return the key's own spelling in this file and its value, or the name and MISSING."""
        own = self.names.get(name, name)
        for key in dict.fromkeys((own, name, *SYNONYMS.get(name, ()))):
            self.log.read.add(self.path + key)
            if key in self.data:
                return key, self.data[key]
        return own, MISSING

    def has(self, name: str) -> bool:
        """Return whether the file holds the key, under any spelling, with a value that is not null."""
        return self.find(name)[1] not in (MISSING, None)

    def default(self, name: str) -> Any:
        """Return the class's default, or MISSING if the class has none."""
        for key in (self.names.get(name, name), name, *SYNONYMS.get(name, ())):
            if key in self.defaults:
                return self.defaults[key]
        return MISSING

    def error(self, name: str, message: str, *, hint: str | None = None) -> UsageError:
        """Return the error that says what is wrong with one key."""
        return UsageError(message, where=self.place(self.find(name)[0]), hint=hint)

    def integer(self, name: str, *, low: int = 1, high: int = MAX_SIZE, fallback: int | None = None) -> int:
        """Return a whole number that must be known: from the file, the class's default, or `fallback` (noted)."""
        value = self.optional(name, low=low, high=high)
        if value is not None:
            return value
        key, given = self.find(name)
        if fallback is not None:
            self.log.assume(f"{self.path}{key} = {fallback} ({'null' if given is None else 'not'} in the file)")
            return fallback
        if given is None:
            raise self.error(name, f"is null; {self.reader or 'this model'} needs a whole number here")
        raise self.error(name, "is missing, and cannot be derived from the other keys", hint=self._spellings(name))

    def optional(self, name: str, *, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """Return a whole number, or None if it is null, or absent and without a default."""
        key, value = self.find(name)
        if value is MISSING:
            value = self.default(name)
            if value is MISSING or value is None:
                return None
            number = self._whole(key, value, low, high)
            self.log.assume(f"{self.path}{key} = {number} (not in the file; the default of {self.reader})")
            return number
        return None if value is None else self._whole(key, value, low, high)

    def real(self, name: str, *, nought: bool = False) -> float | None:
        """Return a number above 0, or 0 too with `nought`; None if it is null or absent."""
        value = self.find(name)[1]
        if value is MISSING or value is None:
            return None
        if type(value) in (int, float) and 0 <= value <= MAX_SIZE and (value > 0 or nought):
            return float(value)
        raise self.error(name, f"must be a number {'from' if nought else 'above'} 0 up to {MAX_SIZE}, got {shown(value)}")

    def flag(self, name: str, fallback: bool = False) -> bool:
        """Return a truth value; null counts as false, as it does for the class."""
        key, value = self.find(name)
        if value is MISSING:
            value = self.default(name)
            if value is MISSING:
                return fallback
            if value:
                self.log.assume(f"{self.path}{key} = true (not in the file; the default of {self.reader})")
        if value is None:
            return False
        if value is True or value is False or (type(value) is int and value in (0, 1)):
            return bool(value)
        raise self.error(name, f"must be true or false, got {shown(value)}")

    def text(self, name: str) -> str | None:
        """Return a word, or None if it is null or absent and without a default."""
        value = self.find(name)[1]
        if value is MISSING:
            value = self.default(name)
        if value is MISSING or value is None:
            return None
        if isinstance(value, str):
            return value
        raise self.error(name, f"must be a word, got {shown(value)}")

    def words(self, name: str, count: int | None = None) -> list[str] | None:
        """Return a list of words, or None if null or absent; with `count`, its length must be that."""
        value = self._sequence(name, count)
        if value is not None and not all(isinstance(item, str) for item in value):
            raise self.error(name, "must be a list of words")
        return value

    def integers(self, name: str, count: int | None = None) -> list[int] | None:
        """Return a list of whole numbers from 0, or None if null or absent; with `count`, its length must be that."""
        value = self._sequence(name, count)
        return None if value is None else [self._whole(f"{name}[{i}]", item, 0, MAX_SIZE) for i, item in enumerate(value)]

    def per_layer(self, name: str, count: int, *, low: int = 0) -> list[int]:
        """Return a number for every layer, from one number or from a list of them."""
        value = self.find(name)[1]
        if not isinstance(value, list):
            return [self.integer(name, low=low)] * count
        numbers = self.integers(name, count) or []
        if any(number < low for number in numbers):
            raise self.error(name, f"must hold numbers from {low}")
        return numbers

    def table(self, name: str) -> Keys | None:
        """Return a nested table, without defaults, or None if null or absent."""
        key, value = self.find(name)
        if value is MISSING or value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be a table, got {shown(value)}")
        return Keys(value, self.where, self.log, reader=self.reader, path=f"{self.path}{key}.")

    def unread(self) -> Iterable[str]:
        """Yield the keys of this table that nothing has asked for."""
        return (key for key in self.data if self.path + key not in self.log.read)

    def _sequence(self, name: str, count: int | None) -> list[Any] | None:
        value = self.find(name)[1]
        if value is MISSING or value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, f"must be a list, got {shown(value)}")
        if len(value) > MAX_LAYERS:
            raise self.error(name, f"has {len(value)} entries, more than any model has layers")
        if count is not None and len(value) != count:
            raise self.error(name, f"has {len(value)} entries for {count} layers")
        return value

    def _whole(self, key: str, value: Any, low: int, high: int) -> int:
        number = value
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            number = int(value)
        if type(number) is not int or not low <= number <= high:
            message = f"must be a whole number from {low} to {high}, got {shown(value)}"
            raise UsageError(message, where=self.place(key))
        return number

    def _spellings(self, name: str) -> str | None:
        others = SYNONYMS.get(name, ())
        return f"also read as: {', '.join(others)}" if others else None


def shown(value: Any) -> str:
    """Return a short form of a value for a message; never long, whatever the value."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return f"a number of {value.bit_length()} bits"
    text = json.dumps(value[:41] if isinstance(value, str) else value)
    return text if len(text) <= 44 else text[:40] + "..."


def printable(text: str, most: int = 40) -> str:
    """Return a word of the file for a message: short, and without characters that a terminal cannot show."""
    return "".join(mark if mark.isprintable() else "?" for mark in text[:most])


def parse(text: str, where: str, log: Log) -> dict[str, Any]:
    """Return the top table of a JSON text; a key given twice keeps its last value and is noted."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES >> 20} MiB, so it is not a config.json", where=where)
    if sum(text.count(mark) for mark in "{[:,") > MAX_VALUES:
        raise UsageError(f"holds more than {MAX_VALUES:,} values, so it is not a config.json", where=where)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            counts: dict[str, int] = {}
            for key, _ in pairs:
                counts[key] = counts.get(key, 0) + 1
            for key in [key for key, count in counts.items() if count > 1][:20]:
                log.assume(f"{shown(key)} is given {counts[key]} times: the last one counts")
        return table

    try:
        data = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})", where=where,
            hint="download the model's config.json again, or correct that line",
        ) from None  # fmt: skip
    except ValueError:
        raise UsageError("not valid JSON: a number with too many digits", where=where) from None
    except RecursionError:
        raise UsageError("not valid JSON: nested too deeply", where=where) from None
    if not isinstance(data, dict):
        raise UsageError(f"must be one JSON table, got {shown(data)}", where=where)
    return data


def read_file(path: Path) -> str:
    """Return the text of a config.json, reading no more than the size allowed."""
    return read_text(path, most_bytes=MAX_BYTES)
