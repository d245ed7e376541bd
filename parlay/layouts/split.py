"""Which layers go to which pipeline chunk: the split rule and the placement of chunks on stages."""

from __future__ import annotations

from parlay.layouts.vocabulary import Schedule

BY_RULE = -1  # in place of a stage's layers: as many as the split rule gives it
V_SHAPED: frozenset[Schedule] = frozenset({"zb-v", "dualpipev"})  # chunk 0 runs down the stages, chunk 1 back up
BOTH_WAYS: frozenset[Schedule] = frozenset({"dualpipe"})  # every device holds stage r and stage p - 1 - r


def chunk_sizes(layers: int, stages: int, virtual: int, first: int = BY_RULE, last: int = BY_RULE, tail: int = 1) -> list[int]:
    """Return how many layers each of the stages x virtual chunks holds, in model order.

    1. `first` and `last` set the layers of the first and last stage (spread over its chunks); the rest is even. A stage
       may hold none: only the embedding, or only the head.
    2. Chunks are equal where the layers divide.
    3. Otherwise embedding and head count as one layer each, as with Megatron's account-for-embedding-in-pipeline-split
       and account-for-loss-in-pipeline-split, so both ends are lighter. What still does not divide goes, one layer
       each, to the latest middle chunks, where the fewest micro-batches are in flight.

    Examples
    --------
    >>> chunk_sizes(32, 4, 1), chunk_sizes(126, 16, 1) == [7] + [8] * 14 + [7]
    ([8, 8, 8, 8], True)
    >>> chunk_sizes(94, 4, 1), chunk_sizes(94, 4, 1, last=22), chunk_sizes(46, 4, 1)
    ([23, 24, 24, 23], [24, 24, 24, 22], [11, 12, 12, 11])
    >>> chunk_sizes(24, 4, 1, first=8, last=0)
    [8, 8, 8, 0]
    """
    chunks = stages * virtual
    if first >= 0 or last >= 0:
        return _with_ends(layers, stages, virtual, first, last, tail)
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    units = layers + 1 + tail
    if chunks > 1 and units // chunks > tail:
        base, extra = divmod(units, chunks)
        sizes = [base - 1] + [base] * (chunks - 2) + [base - tail]
    else:
        base, extra = divmod(layers, chunks)
        sizes = [base] * chunks
    for position in [*range(chunks - 2, 0, -1), 0, chunks - 1][:extra]:
        sizes[position] += 1
    return sizes


def _with_ends(layers: int, stages: int, virtual: int, first: int, last: int, tail: int) -> list[int]:
    """Return the split with the ends set; what does not divide over the middle goes to its last chunks."""
    of_first, of_last = _chunks_of_end(first, virtual, 1, at=0), _chunks_of_end(last, virtual, tail, at=virtual - 1)
    ends = (first >= 0) + (last >= 0)
    middle = max(stages - ends, 0) * virtual
    rest = layers - max(first, 0) - max(last, 0)
    base, extra = divmod(max(rest, 0), middle) if middle else (0, 0)
    even = [base + (1 if middle - i <= extra else 0) for i in range(middle)]
    sizes: list[int] = []
    for chunk in range(stages * virtual):
        stage, turn = chunk % stages, chunk // stages
        if first >= 0 and stage == 0:
            sizes.append(of_first[turn])
        elif last >= 0 and stage == stages - 1:
            sizes.append(of_last[turn])
        else:
            sizes.append(even.pop(0))
    return sizes


def _chunks_of_end(layers: int, virtual: int, units: int, *, at: int) -> list[int]:
    """Return an end's layers by chunk: even ones, or such that chunk `at` with its embedding, loss and predictions, `units` layers'
    worth, is as large as the others; where neither divides, the first chunks hold one more.

    >>> _chunks_of_end(8, 4, 1, at=0), _chunks_of_end(7, 4, 1, at=0), _chunks_of_end(6, 4, 2, at=3), _chunks_of_end(6, 4, 1, at=3)
    ([2, 2, 2, 2], [1, 2, 2, 2], [2, 2, 2, 0], [2, 2, 1, 1])
    """
    size, left = divmod(layers + units, virtual)
    if layers % virtual and not left and size >= units:
        return [size - units * (turn == at) for turn in range(virtual)]
    return [layers // virtual + (turn < layers % virtual) for turn in range(virtual)]


def sizes_by_cost(layers: int, stages: int, layer_cost: float, head_cost: float) -> list[int]:
    """Return the layers of each stage where blocks are dealt out by cost: a stage is full once the cost of all blocks so far
    exceeds its share (nanotron trainer.py and models/llama.py, get_block_compute_costs).

    Examples
    --------
    >>> sizes_by_cost(24, 2, 42, 103), sizes_by_cost(24, 8, 42, 103)
    ([14, 10], [4, 3, 3, 4, 3, 3, 4, 0])
    """
    share = (layers * layer_cost + head_cost) / stages
    sizes, stage = [0] * stages, 0
    for layer in range(layers):
        sizes[stage] += 1
        if (layer + 1) * layer_cost > share * (stage + 1):
            stage += 1
    return sizes


def chunks_of_stage(stage: int, stages: int, virtual: int, schedule: Schedule) -> list[int]:
    """Return the chunks, as positions in model order, that stage `stage` holds under `schedule`."""
    if schedule in V_SHAPED:
        return [stage, 2 * stages - 1 - stage]
    if schedule in BOTH_WAYS:
        return sorted({stage, stages - 1 - stage})
    return [stage + turn * stages for turn in range(virtual)]


def layers_of_stages(
    layers: int, stages: int, virtual: int, schedule: Schedule, ends: tuple[int, int], tail: int
) -> list[list[int]]:
    """Return the layers of each chunk that a stage holds, by stage; see chunk_sizes.

    Examples
    --------
    >>> layers_of_stages(80, 4, 3, "interleaved", (BY_RULE, BY_RULE), 1)[:2]
    [[5, 7, 7], [7, 7, 7]]
    """
    turns = 2 if schedule in V_SHAPED else virtual
    sizes = chunk_sizes(layers, chunk_count(stages, virtual, schedule) // turns, turns, *ends, tail=tail)
    return [[sizes[c] for c in chunks_of_stage(stage, stages, virtual, schedule)] for stage in range(stages)]


def chunk_count(stages: int, virtual: int, schedule: Schedule) -> int:
    """Return how many chunks the model is cut into: V-shaped schedules always hold two on each stage."""
    return 2 * stages if schedule in V_SHAPED else stages * virtual
