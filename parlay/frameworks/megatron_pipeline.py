"""Which layers Megatron-LM's arguments put on which pipeline stage: a layout string, the layers of the ends, or a way of counting."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.given import Given
from parlay.frameworks.megatron_model import hybrid_pattern, pattern_layers
from parlay.layouts.layout import Layout
from parlay.layouts.split import chunk_sizes
from parlay.schedules.megatron import EMBEDDING, LAYER, LOSS, MTP, parse_layout_string

LAYOUT = "--pipeline-model-parallel-layout"
EMBEDDING_COUNTS, LOSS_COUNTS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
NAMES = {"embedding": EMBEDDING, "decoder": LAYER, "mtp": MTP, "loss": LOSS}  # Megatron's LayerType

Ends = tuple[int | None, int | None]
RULE: Ends = (None, None)


def virtual_stages(args: Given, pp: int) -> int:
    """Return the chunks of a pipeline stage, from whichever of Megatron's ways says it."""
    stages = args.whole("--num-virtual-stages-per-pipeline-rank", least=1)
    size = args.whole("--num-layers-per-virtual-pipeline-stage", least=1)
    layers = args.whole("--num-layers", least=1) or 0
    chunks = layout_chunks(args, pp)
    pattern = hybrid_pattern(args) or ""
    said = stages or (max(1, layers // pp // size) if size else None)
    if chunks and said and said * pp != len(chunks):
        raise UsageError(
            f"has {len(chunks)} chunks, but {said} virtual stages on each of {pp} ranks are {said * pp}", where=f"{args.where}: {LAYOUT}",
            hint="leave out the number of virtual stages: the layout tells it",
        )  # fmt: skip
    if chunks:
        return len(chunks) // pp
    return said or (max(1, (pattern.split("/")[0].count("|") + 1) // pp) if "|" in pattern else 1)


def layout_chunks(args: Given, pp: int) -> tuple[str, ...] | None:
    """Return the chunks of the layout string, None without one; raise UsageError for one that Megatron refuses."""
    given = args.take(LAYOUT)
    written = _letters(given) if isinstance(given, list) else args.text(LAYOUT)
    if written is None:
        return None
    where = f"{args.where}: {LAYOUT}"
    try:
        chunks = parse_layout_string(written, stages=pp)
    except UsageError as error:
        raise UsageError(error.message, where=where, hint=error.hint) from None
    letters = "".join(chunks)
    layers, ahead = layers_of(args), args.whole("--mtp-num-layers")
    holders = [i for i, chunk in enumerate(chunks) if MTP in chunk]
    if layers is not None and letters.count(LAYER) != layers:
        raise UsageError(f"holds {letters.count(LAYER)} layers t, but the model has {layers}", where=where)
    if letters.count(MTP) != (ahead or 0) and (
        ahead is not None or layers is not None
    ):  # without either the model is told elsewhere
        raise UsageError(
            f"holds {letters.count(MTP)} multi-token-prediction layers m, but --mtp-num-layers is {ahead or 0}", where=where
        )
    if len(holders) > 1 or (holders and holders[0] < len(chunks) - pp):
        raise UsageError("all multi-token-prediction layers m must be in one chunk, the last of its rank", where=where)
    return chunks


def _letters(chunks: list[Any]) -> str:
    """Return the string of a layout that YAML writes as a list of the names or letters of each chunk.

    >>> _letters([["embedding", "decoder"], ["decoder", "loss"]]), _letters(["Et|", "tL"])
    ('Et|tL', 'Et|tL')
    """
    if not all(isinstance(chunk, list) for chunk in chunks):
        return "".join(map(str, chunks))
    return "|".join("".join(NAMES.get(str(layer), str(layer)) for layer in chunk) for chunk in chunks)


def layers_of(args: Given) -> int | None:
    """Return the model's layers, None where nothing tells them."""
    pattern = hybrid_pattern(args)
    return args.whole("--num-layers", least=1) or (len(pattern_layers(pattern)) if pattern else None)


def ends_of(args: Given, pp: int, vpp: int, notes: list[str]) -> Ends:
    """Return the layers of the first and last stage, None where the split rule decides, and note what these cannot hold."""
    first, last = args.whole("--decoder-first-pipeline-num-layers"), args.whole("--decoder-last-pipeline-num-layers")
    chunks = layout_chunks(args, pp)
    counted = _counted(args, pp * vpp, notes)
    if chunks and pp > 1:
        holder = next((i for i, chunk in enumerate(chunks) if MTP in chunk), len(chunks) - 1)
        if holder < len(chunks) - 1:
            notes.append(f"{LAYOUT} has the multi-token-prediction layers on stage {holder % pp}: priced on the last stage")
        return held([chunk.count(LAYER) for chunk in chunks], pp, vpp, 1 + "".join(chunks).count(MTP), notes)
    tail = 1 + (args.whole("--mtp-num-layers") or 0)
    if counted and pp > 1 and (first, last) == RULE:
        return RULE if counted == chunk_sizes(sum(counted), pp, vpp, tail=tail) else held(counted, pp, vpp, tail, notes)
    return first, last


def _counted(args: Given, chunks: int, notes: list[str]) -> list[int] | None:
    """Return the layers of each chunk where embedding or loss count as a layer; None where neither does, or Megatron refuses."""
    embedding, loss, layers = args.on(EMBEDDING_COUNTS), args.on(LOSS_COUNTS), layers_of(args)
    if not (embedding or loss) or layers is None:
        return None
    size, left = divmod(layers + embedding + loss, chunks)
    if left or size < embedding + loss * (chunks == 1):
        what = " and ".join(["embedding"] * embedding + ["loss"] * loss)
        notes.append(
            f"{layers} layers with {what} counted do not divide over {chunks} chunks, as Megatron asks: the split rule decides"
        )
        return None
    sizes = [size] * chunks
    sizes[0] -= embedding
    sizes[-1] -= loss
    return sizes


def held(chunks: list[int], pp: int, vpp: int, tail: int, notes: list[str]) -> Ends:
    """Return the ends of a Layout that make these chunks or, with a note, the nearest that a Layout can hold.

    Examples
    --------
    >>> said = []
    >>> held([8, 20, 4, 0], 4, 1, 1, said), said
    ((8, 0), ['stages hold 8, 20, 4, 0 layers: priced as 8, 12, 12, 0'])
    >>> held([16, 0, 0, 16], 4, 1, 1, []), held([7, 8, 8, 7], 4, 1, 1, [])
    ((None, None), (7, 7))
    """
    first, last = sum(chunks[0::pp]), sum(chunks[pp - 1 :: pp])
    tries: list[Ends] = [(first, last), (first, None), (None, last), RULE]
    able = [ends for ends in tries if _leaves_layers(sum(chunks), pp, vpp, ends)]
    splits = {
        ends: chunk_sizes(sum(chunks), pp, vpp, *Layout(first_layers=ends[0], last_layers=ends[1]).ends, tail) for ends in able
    }
    exact = next((ends for ends in able if splits[ends] == chunks), None)
    if exact is not None:
        return exact
    best = able[0] if (first, last) in able else RULE
    stages, priced = ([sum(x[r::pp]) for r in range(pp)] for x in (chunks, splits[best]))
    if stages != priced:
        notes.append(f"stages hold {_listed(stages)} layers: priced as {_listed(priced)}")
    else:
        notes.append(f"chunks hold {_listed(chunks)} layers: priced as {_listed(splits[best])}")
    return best


def _leaves_layers(layers: int, pp: int, vpp: int, ends: Ends) -> bool:
    """Return whether a Layout may have such ends: every chunk of a stage that holds any layer, and of the others, holds one."""
    told = [e for e in ends if e is not None]
    left, others = layers - sum(told), (pp - len(told)) * vpp
    return not told or (left >= others and (others > 0 or left == 0) and all(e == 0 or e >= vpp for e in told))


def _listed(sizes: list[int]) -> str:
    """Return numbers with equal neighbours in one.

    >>> _listed([7, 8, 8, 8, 8, 7])
    '7, 4 x 8, 7'
    """
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    return ", ".join(f"{count} x {size}" if count > 3 else ", ".join([str(size)] * count) for size, count in runs)
