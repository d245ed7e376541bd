"""Megatron-Core's pipeline layout strings and split options, and torchtitan's, for a split of layers over chunks.

A layout string lists the chunks in model order, cut by '|': E embedding, t decoder layer, m multi-token-prediction
layer, L loss. t*3 repeats a letter, (tt|)*29 repeats a group, commas mean nothing. With v chunks per stage, chunk c
lies on stage c mod p (NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from parlay.errors import UsageError

EMBEDDING, LAYER, MTP, LOSS = "E", "t", "m", "L"
SYMBOLS = EMBEDDING + LAYER + MTP + LOSS
MOST_UNITS = 100_000
WHERE = "pipeline layout"


def parse_layout_string(text: str, *, stages: int | None = None) -> tuple[str, ...]:
    """Return the chunks of a Megatron pipeline layout string, each as its letters.

    Parameters
    ----------
    text : str
        The layout, such as Et*3|(tt|)*29,m|L. [-]
    stages : int, optional
        Pipeline stages the chunks must divide over. [-]

    Returns
    -------
    tuple of str
        One string of letters for every chunk, in model order. [-]

    Raises
    ------
    UsageError
        If the text is no layout, or breaks a rule of Megatron: embedding first, loss last, once each; decoder layers
        before multi-token-prediction layers.

    Examples
    --------
    >>> parse_layout_string("Ett|(tt|)*2,tmL")
    ('Ett', 'tt', 'tt', 'tmL')
    >>> len(parse_layout_string("Et*3|(tt|)*29,m|L", stages=16))
    32
    """
    flat = re.sub(r"[\s,]", "", text)
    flat = _unroll(flat, r"\(([^()]+)\)\*(\d{1,6})")
    flat = _unroll(flat, r"([EtmL|])\*(\d{1,6})")
    strange = re.search(f"[^{SYMBOLS}|]", flat)
    if strange or not flat:
        found = f"'{strange.group()}' means nothing here" if strange else "it is empty"
        raise UsageError(f"'{text[:60]}' is no pipeline layout: {found}", where=WHERE, hint="write it like Et*7|(t*8|)*14t*7L")
    chunks = tuple(flat.split("|"))
    _check_rules(chunks, stages)
    return chunks


def _unroll(text: str, pattern: str) -> str:
    """Return `text` with every group of `pattern` repeated as often as it says."""
    total = sum(len(x.group(1)) * int(x.group(2)) for x in re.finditer(pattern, text))
    if total > MOST_UNITS:
        raise UsageError(f"the layout has more than {MOST_UNITS:,} letters", where=WHERE)
    return re.sub(pattern, lambda x: x.group(1) * int(x.group(2)), text)


def _check_rules(chunks: Sequence[str], stages: int | None) -> None:
    letters = "".join(chunks)
    problem = None
    if not letters.startswith(EMBEDDING) or letters.count(EMBEDDING) != 1:
        problem = "the embedding E must come first, and once"
    elif not letters.endswith(LOSS) or letters.count(LOSS) != 1:
        problem = "the loss L must come last, and once"
    elif MTP in letters and LAYER in letters[letters.index(MTP) :]:
        problem = "decoder layers t must come before multi-token-prediction layers m"
    elif stages and len(chunks) % stages:
        problem = f"{len(chunks)} chunks do not divide over {stages} stages"
    if problem:
        raise UsageError(problem, where=WHERE)


def layout_string(chunks: Sequence[str]) -> str:
    """Return the shortest layout string of our form for `chunks`: equal neighbours become one group.

    Examples
    --------
    >>> layout_string(["E" + "t" * 7] + ["t" * 8] * 14 + ["t" * 7 + "L"])
    'Et*7|(t*8|)*14t*7L'
    >>> layout_string(parse_layout_string("Et*3|(tt|)*29,m|L"))
    'Ettt|(tt|)*29m|L'
    """
    out = []
    runs = [(text, len(list(same))) for text, same in groupby(chunks)]
    for i, (text, count) in enumerate(runs):
        last = i == len(runs) - 1
        short = "".join(_letters(letter, len(list(same))) for letter, same in groupby(text))
        groups = count - 1 if last else count  # the last chunk has no bar behind it
        out.append(f"({short}|)*{groups}" if groups > 1 else f"{short}|" * groups)
        out.append(short if last else "")
    return "".join(out)


def _letters(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 3 else letter * count


def megatron_options(chunks: Sequence[str], stages: int) -> dict[str, int | bool | str]:
    """Return the options of Megatron-Core's TransformerConfig that make this split, the simplest that can say it.

    Nothing beyond the sizes where layers divide evenly; account_for_embedding/loss_in_pipeline_split where each counts
    as one layer; num_layers_in_first/last_pipeline_stage where the stages between are equal; a layout string otherwise.

    Examples
    --------
    >>> megatron_options(["E" + "t" * 7] + ["t" * 8] * 14 + ["t" * 7 + "L"], 16)
    {'account_for_embedding_in_pipeline_split': True, 'account_for_loss_in_pipeline_split': True}
    >>> megatron_options(["Ettt", "tt", "tt", "tL"], 4)
    {'num_layers_in_first_pipeline_stage': 3, 'num_layers_in_last_pipeline_stage': 1}
    >>> megatron_options(["Ett", "ttt", "tt", "tL"], 4)
    {'pipeline_model_parallel_layout': 'Ett|ttt|tt|tL'}
    """
    layers = [c.count(LAYER) for c in chunks]
    usual = chunks[0] == EMBEDDING + LAYER * layers[0] and chunks[-1].strip(MTP + LOSS) == LAYER * layers[-1]
    usual = usual and all(c == LAYER * n for c, n in zip(chunks[1:-1], layers[1:-1], strict=True)) and len(chunks) > 1
    virtual = len(chunks) // stages
    if usual and len(set(layers)) == 1:
        return {}
    middle = set(layers[1:-1])
    if usual and len(middle) == 1:
        size = middle.pop()
        ends = (size - layers[0], size - layers[-1])
        if set(ends) <= {0, 1}:
            names = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
            return {name: True for name, less in zip(names, ends, strict=True) if less}
    per_stage = [sum(layers[r::stages]) for r in range(stages)]
    even = all(len(set(layers[r::stages])) == 1 for r in range(stages)) and len(set(per_stage[1:-1])) <= 1
    if usual and stages > 2 and even and per_stage[0] and per_stage[-1]:
        names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
        sizes = (per_stage[0], per_stage[-1])
        return {n: size for n, size in zip(names, sizes, strict=True) if size != per_stage[1] or virtual > 1}
    return {"pipeline_model_parallel_layout": layout_string(chunks)}


def torchtitan_modules(chunks: Sequence[str]) -> list[list[str]]:
    """Return torchtitan's module_fqns_per_model_part for this split: the modules of every chunk.

    Examples
    --------
    >>> torchtitan_modules(["Et", "tL"])
    [['tok_embeddings', 'layers.0'], ['layers.1', 'norm', 'output']]
    """
    if any(MTP in c for c in chunks):
        raise UsageError("torchtitan's module lists have no multi-token-prediction layers", where=WHERE)
    names = {EMBEDDING: ["tok_embeddings"], LOSS: ["norm", "output"]}
    out, layer = [], 0
    for chunk in chunks:
        part: list[str] = []
        for letter in chunk:
            part += names.get(letter, [f"layers.{layer}"])
            layer += letter == LAYER
        out.append(part)
    return out


def torchtitan_sizes(layers: int, chunks: int, first_less: int = 1, last_less: int = 1) -> list[int]:
    """Return the layers of every chunk under pipeline_parallel_first/last_stage_less_layers.

    Embedding and head count as that many layers; what does not divide goes to the first chunks, one each.

    Examples
    --------
    >>> torchtitan_sizes(32, 8), torchtitan_sizes(126, 16) == [7] + [8] * 14 + [7]
    ([4, 5, 4, 4, 4, 4, 4, 3], True)
    """
    base, extra = divmod(layers + first_less + last_less, chunks)
    sizes = [base + (1 if i < extra else 0) for i in range(chunks)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    return sizes
