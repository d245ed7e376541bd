"""Which model a name means: the catalog's, or one of those that only the sources of runs train.

Names of sources differ in case, dashes and what they add. A name means the longest known one that it starts with, if what
it adds names no other model and the sizes in it are those of the model; else the reason is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from parlay.estimate.counts import parameters
from parlay.models.load import list_models, load_model
from parlay.models.spec import ModelSpec, MoeMlp
from parlay.validation.own_models import ALIASES, OWN
from parlay.validation.shapes import fold

NEAR = 0.15  # a size in a name may be off by this share: "GPT-OSS 120B" has 116.8B, nanotron's 1B 1.11B
UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
SIZE = re.compile(r"(?<![a-z0-9.])(a?)(\d+(?:\.\d+)?)([bmt])(?:x\d+e)?(-active)?(?![a-z0-9]|-(?:tok|param))")
LEAST = 10e6  # "Llama3-8B-1M" speaks of the context

# Spelling of a folded name -> ours, in this order.
REWRITES: tuple[tuple[str, str], ...] = (
    (r"^megatron-?(lm)?-?(?=\d)", "gpt-"),
    (
        r"^(nvidia|meta|megatron-lm|megatron|nemo|mcore|google|microsoft|alibaba|mistralai|facebook|openai|pretrain|hf|bigscience)-",
        "",
    ),
    (r"^bloomz", "bloom"),
    (r"\bds-?v?(?=\d)", "deepseek-v"),
    (r"nemotron-?v?(?=\d)", "nemotron-"),
    (r"nemotron-?h-?(?=\d)", "nemotron-h-"),
    (r"^(llama|qwen)-?(\d)-?(\d)(?=-(\d|next|vl|moe|lightning)|$)", r"\1\2.\3"),
    (r"^(nemotron-\d)-(\d)(?=-(\d|lightning))", r"\1.\2"),
)
NEUTRAL = {
    "instruct", "chat", "base", "hf", "text", "math", "coder", "moe", "dense", "chinese", "like", "model", "proxy", "thinking",
}  # fmt: skip
# Words that name another model where they follow a known name
OTHERS = {
    "lite", "mini", "distill", "distilled", "multimodal", "vision", "vl", "omni", "audio", "flash", "nano", "super", "ultra",
    "lightning", "scout", "maverick", "next", "linear", "dev", "air", "eagle", "draft", "embedding", "reranker", "pruned",
}  # fmt: skip
NEXT_TO_NAME = {"small", "medium", "large", "tiny", "xl", "xxl", "plus", "pro", "r"}  # elsewhere they may speak of the run


@lru_cache(maxsize=1024)
def find(name: str) -> tuple[ModelSpec | None, str]:
    """Return the model that a name means and "", or None and why there is none."""
    reason = f"the shape of '{name[:200]}' is neither in the catalog nor printed by the source"
    known = _known()
    objections: list[str] = []
    for words, kept in _starts(rewritten(name)):
        entry = known.get(squash(words[:kept]))
        if entry is None:
            continue
        model = OWN[entry]() if entry in OWN else load_model(entry)
        rest = [word for word in words[kept:] if word not in entry.split("-")]
        objection = _objection(name, squash(words[:kept]), rest, model)
        if not objection:
            return model, ""
        objections.append(objection)
    return None, objections[0] if objections else reason


def rewritten(name: str) -> str:
    """Return a folded name in our spelling.

    Examples
    --------
    >>> rewritten("DSV3"), rewritten("Qwen3_5_397B"), rewritten("llama32_1b"), rewritten("Meta-Llama-3.1-8B")
    ('deepseek-v3', 'qwen3.5-397b', 'llama3.2-1b', 'llama-3.1-8b')
    """
    folded = fold(name.replace("+", " plus"))
    for pattern, ours in REWRITES:
        folded = re.sub(pattern, ours, folded)
    return folded


def squash(words: list[str]) -> str:
    """Return words without what joins them, but for a dash between two digits.

    Examples
    --------
    >>> squash(["llama", "3", "8b"]), squash(["kimi", "k2"])
    ('llama3-8b', 'kimik2')
    """
    return re.sub(r"(?<!\d)-|-(?!\d)", "", "-".join(words))


def _starts(folded: str) -> Iterator[tuple[list[str], int]]:
    """Yield the words of a name and how many of them to look up, most first, with and without words of no weight."""
    every = folded.split("-")[:40]
    weighty = [word for word in every if word not in NEUTRAL]
    for kept in range(len(every), 0, -1):
        for words in (every, weighty):
            if kept <= len(words):
                yield words, kept


@lru_cache(maxsize=1)
def _known() -> dict[str, str]:
    """Return squashed name -> catalog id or own name; our own tables go before the catalog."""
    names = {name: summary.id for summary in list_models() for name in summary.names}
    short = {re.sub(r"-a[\d.]+[bm]$", "", name): entry for name, entry in names.items()}  # qwen3-30b for qwen3-30b-a3b
    found: dict[str, str] = {}
    for table in (short, names, dict(zip(OWN, OWN, strict=True)), ALIASES):
        found |= {squash(fold(name).split("-")): entry for name, entry in table.items()}
    return found


def _objection(name: str, key: str, rest: list[str], model: ModelSpec) -> str:
    """Return why a model that a name starts with is not what the name means, "" if it is."""
    routed = any(isinstance(kind.mlp, MoeMlp) for kind in model.kinds.values())
    other = next((word for word in rest if word in OTHERS), None) or next((w for w in rest[:1] if w in NEXT_TO_NAME), None)
    if other is None and not routed and "moe" in fold(name).split("-") and "moe" not in key:
        other = "moe"
    if other:
        return f"the shape of '{name[:80]}' is not known: it says '{other}', so it is not {model.name}"
    counts = parameters(model)
    experts = re.search(r"\d+e\b", fold(name)) is not None  # "17b-128e" is the active size
    for before, number, unit, after in SIZE.findall(rewritten(name)):
        size, active = float(number) * UNITS[unit], before or after
        allowed = [counts.active] if active else [counts.total, counts.active] if experts else [counts.total]
        if size >= LEAST and f"{number}{unit}" not in key and all(abs(size / count - 1) > NEAR for count in allowed):
            said = f"{'active ' if active else ''}{number}{unit.upper()}"
            return (
                f"'{name[:80]}' says {said}, but {model.name} has {allowed[0] / 1e9:.3g}B parameters{' active' if active else ''}"
            )
    return ""
