"""Schedules that a user writes down: TOML or JSON in, a checked Schedule out.

    name = "mine"
    micro_batches = 4

    [[stage]]
    operations = "F0 F1 B0 F2 B1 F3 B2 B3"

    [[stage]]
    operations = "F0 B0 F1 B1 F2 B2 F3 B3"

F3 is the forward of micro-batch 3, B3 its backward and W3 its weight gradient; a B whose W stands elsewhere on the
stage is the input gradient alone (I3 says so outright). F3.1 is the stage's second chunk. F3+B1 run at the same time.
Chunks go round the stages (0, 1, .., p - 1, 0, 1, ..) unless `placement = "v"`, or each stage lists its own `chunks`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from parlay.errors import UsageError
from parlay.schedules.schedule import (
    BACKWARD,
    INPUT,
    LETTERS,
    WEIGHT,
    Ints,
    Schedule,
    Stage,
    assemble,
    check_size,
    looped,
    v_shaped,
)
from parlay.schedules.timeline import simulate
from parlay.schedules.validate import validate as check
from parlay.specfile import Spec, read_text, read_toml
from parlay.specfile import validate as read_spec

MOST_FILE_BYTES = 64 << 20  # 130,000 operations of seven letters are one megabyte


class StageTable(Spec):
    """One stage of a schedule file."""

    operations: str | tuple[str, ...]
    chunks: tuple[Annotated[int, Field(ge=0)], ...] | None = None


class ScheduleFile(Spec):
    """A schedule file."""

    model_config = Spec.model_config | {"str_max_length": MOST_FILE_BYTES}

    name: Annotated[str, Field(max_length=80)] = "schedule"
    micro_batches: Annotated[int, Field(ge=1)]
    placement: Literal["loop", "v"] = "loop"
    stage: Annotated[tuple[StageTable, ...], Field(min_length=1)]


def read_schedule(path: Path) -> Schedule:
    """Return the schedule of a TOML or JSON file.

    Raises
    ------
    UsageError
        If the file cannot be read, an operation is misspelled, missing, doubled or for a micro-batch that does not
        exist, or the operations wait for each other in a circle; the message names stage and operation.
    """
    if path.suffix == ".json":
        try:
            data = json.loads(read_text(path, most_bytes=MOST_FILE_BYTES))
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"not valid JSON: {error}", where=str(path), hint="correct that place, or write TOML") from None
        if not isinstance(data, dict):
            raise UsageError(f"must hold one table, got {type(data).__name__}", where=str(path))
    else:
        data = read_toml(path)
    return parse_schedule(data, where=str(path))


def parse_schedule(data: dict[str, Any], *, where: str = "schedule") -> Schedule:
    """Return the schedule of a table as read from a file; see the module's docstring for its keys."""
    given = read_spec(ScheduleFile, data, where)
    rows = [[(token, _parse(token, where, r)) for token in _tokens(s.operations)] for r, s in enumerate(given.stage)]
    turns = 1 + max((turn for row in rows for _, group in row for _, _, turn in group), default=0)
    p = len(given.stage)
    check_size(p, given.micro_batches, turns, where=where)
    held = _placement(given, p, turns, where)
    check_size(sum(len(h) for h in held), given.micro_batches, where=where)
    stages = []
    for r, row in enumerate(rows):
        stage = Stage()
        for token, group in row:
            for kind, micro, turn in group:
                if turn >= len(held[r]):
                    raise UsageError(f"stage {r}: {token} names chunk {turn} of a stage that holds {len(held[r])}", where=where)
                if micro >= given.micro_batches:
                    raise UsageError(
                        f"stage {r}: {token} is wrong, there are micro-batches 0 to {given.micro_batches - 1}", where=where
                    )
                stage.add(kind, micro, held[r][turn], together=len(group) == 2 and (kind, micro, turn) == group[0])
        stages.append(_split_where_weights_are_apart(stage))
    device = np.empty(sum(len(h) for h in held), dtype=np.int64)
    for r, chunks in enumerate(held):
        device[chunks] = r
    schedule = assemble(given.name, given.micro_batches, device, stages)
    check(schedule, where=where)
    simulate(schedule)
    return schedule


def _tokens(operations: str | tuple[str, ...]) -> list[str]:
    return operations.split() if isinstance(operations, str) else list(operations)


def _parse(token: str, where: str, stage: int) -> list[tuple[int, int, int]]:
    """Return kind, micro-batch and chunk turn of an operation, or of both of an overlapped pair."""
    parts = token.split("+")
    found = [re.fullmatch(r"([FBIW])(\d{1,7})(?:\.(\d{1,4}))?", part) for part in parts]
    if len(parts) > 2 or not all(found):
        raise UsageError(
            f"stage {stage}: '{token[:40]}' is not an operation",
            where=where,
            hint="write F3, B3, W3, F3.1 for the stage's second chunk, F3+B1 for two at the same time",
        )
    return [(LETTERS.index(x.group(1)), int(x.group(2)), int(x.group(3) or 0)) for x in found if x]


def _placement(given: ScheduleFile, p: int, turns: int, where: str) -> list[list[int]]:
    """Return the chunks of each stage, in model order."""
    own = [s.chunks for s in given.stage]
    if any(c is not None for c in own):
        held = [sorted(c or ()) for c in own]
        every = sorted(c for row in held for c in row)
        if every != list(range(len(every))):
            wrong = next((i for i, c in enumerate(every) if c != i), len(every))
            raise UsageError(
                f"the stages' chunks must be 0, 1, 2, .. once each; chunk {wrong} is not, or twice",
                where=f"{where}: stage.chunks",
            )
        return held
    if given.placement == "v" and turns > 2:
        raise UsageError("placement 'v' has two chunks per stage", where=f"{where}: placement")
    device: Ints = v_shaped(p) if given.placement == "v" else looped(p, turns)
    return [np.nonzero(device == r)[0].tolist() for r in range(p)]


def _split_where_weights_are_apart(stage: Stage) -> Stage:
    """Turn each B into an input gradient where the stage lists its weight gradient as well."""
    weights = {(m, c) for k, m, c in zip(stage.kind, stage.micro_batch, stage.chunk, strict=True) if k == WEIGHT}
    stage.kind = [
        INPUT if k == BACKWARD and (m, c) in weights else k
        for k, m, c in zip(stage.kind, stage.micro_batch, stage.chunk, strict=True)
    ]
    return stage
