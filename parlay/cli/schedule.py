"""`parlay schedule`: draws pipeline schedules, times them exactly, compares them, and writes traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from parlay.schedules import Schedule, Timeline
    from parlay.schedules.costs import Sharing
    from parlay.schedules.memory import Room

Names = Annotated[list[str], typer.Argument(metavar="SCHEDULE...", help="A schedule's name, or a file of your own (TOML, JSON).")]


def schedule(
    names: Names,
    stages: Annotated[int, typer.Option("--stages", metavar="P", help="Pipeline stages.")] = 4,
    micro_batches: Annotated[int, typer.Option("--micro-batches", metavar="M", help="Micro-batches per step.")] = 8,
    virtual: Annotated[
        int | None,
        typer.Option("--virtual", metavar="V", help="Chunks per stage of interleaved, bfs and zb-h1. [default: 2, zb-h1: 1]"),
    ] = None,
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Micro-batches per group (interleaved) or update (pipedream-2bw).")
    ] = None,
    forward: Annotated[
        str,
        typer.Option("--forward", metavar="S", help="Forward of one micro-batch on one stage, in seconds or with a unit (5ms)."),
    ] = "1",
    backward: Annotated[
        str | None, typer.Option("--backward", metavar="S", help="Its whole backward. [default: twice the forward]")
    ] = None,
    weight: Annotated[
        str | None, typer.Option("--weight", metavar="S", help="The weight-gradient part of it. [default: half]")
    ] = None,
    transfer: Annotated[str, typer.Option("--transfer", metavar="S", help="A transfer between two stages.")] = "0",
    slow: Annotated[
        list[str] | None,
        typer.Option("--slow", metavar="STAGE=FACTOR", help="A stage that is slower, such as 2=1.1. May be repeated."),
    ] = None,
    blocking: Annotated[bool, typer.Option("--blocking", help="Stages wait while they send.")] = False,
    share_links: Annotated[
        str, typer.Option("--share-links", metavar="HOW", help="Transfers that queue: none, direction, pair or all.")
    ] = "none",
    activations: Annotated[
        str | None,
        typer.Option("--activations", metavar="BYTES", help="Activations of one micro-batch on one stage, such as 2GiB."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="BYTES", help="What a stage may hold of them; exit 1 if a schedule needs more."),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a trace (.json) or drawing (.svg). May be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a FILE that exists.")] = False,
    json: flags.Json = False,
) -> None:
    """Draw and time pipeline schedules.

    Schedules: gpipe, 1f1b, interleaved, bfs, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, pipedream, pipedream-2bw.

    Example: parlay schedule 1f1b zb-h1 --stages 4 --micro-batches 8 -o trace.json
    """
    from parlay.schedules.summary import summarise

    found = [_load(name, stages, micro_batches, virtual, group) for name in names]
    times = _seconds(forward, backward, weight, transfer)
    timelines = [_time(s, times, slow, blocking, share_links) for s in found]
    room = _room(found, activations, memory)
    summaries = [summarise(t) for t in timelines]
    for path in out or []:
        _write(path, timelines, force)

    from parlay.report.schedule import schedule_document, schedule_lines

    if json:
        output.say_json(schedule_document(timelines, summaries, room))
    else:
        output.say(schedule_lines(timelines, summaries, output.page(), room))
    if room and not room.fits:
        raise typer.Exit(1)


def _seconds(forward: str, backward: str | None, weight: str | None, transfer: str) -> tuple[float, float, float, float]:
    """Return the seconds of forward, whole backward, its weight gradient and a transfer."""
    from parlay.errors import UsageError
    from parlay.units import parse_quantity

    def read(text: str, option: str) -> float:
        return parse_quantity(text, "s", where=option, positive=False)

    f = read(forward, "--forward")
    b = 2 * f if backward is None else read(backward, "--backward")
    if f + b == 0:
        message = "forward and backward both take no time, so there is nothing to draw"
        raise UsageError(message, where=f"--forward {forward[:40]}", hint="one of them must be above 0, such as --forward 1")
    w = b / 2 if weight is None else read(weight, "--weight")
    if w > b:
        raise UsageError(
            f"the weight gradient takes {w:g} s, more than the whole backward of {b:g} s, which it is a part of", where="--weight",
            hint=f"give at most {b:g}, or a longer --backward",
        )  # fmt: skip
    return f, b, w, read(transfer, "--transfer")


def _load(name: str, stages: int, micro_batches: int, virtual: int | None, group: int | None) -> Schedule:
    from parlay.schedules.build import TAKE_GROUPS, WITH_CHUNKS, build

    if name.endswith((".toml", ".json")):
        from parlay.schedules.readfile import read_schedule

        return read_schedule(Path(name))
    usual = 2 if name in ("interleaved", "bfs") else 1
    chunks = (usual if virtual is None else virtual) if name in WITH_CHUNKS else 1
    return build(name, stages, micro_batches, virtual=chunks, group=group if name in TAKE_GROUPS else None)


def _time(
    s: Schedule, times: tuple[float, float, float, float], slow: list[str] | None, blocking: bool, share_links: str
) -> Timeline:
    from parlay.schedules import Costs, simulate

    slowdown = [1.0] * s.stages
    for text in slow or []:
        stage, factor = _slow(text, s.stages)
        slowdown[stage] = factor
    return simulate(s, Costs.per_stage(s, *times, slowdown=slowdown, blocking=blocking, sharing=cast("Sharing", share_links)))


def _slow(text: str, stages: int) -> tuple[int, float]:
    from parlay.errors import UsageError

    stage, _, factor = text.partition("=")
    try:
        found = int(stage), float(factor)
    except ValueError:
        raise UsageError(f"'{text[:40]}' is not STAGE=FACTOR", where="--slow", hint="write it like 2=1.1") from None
    if not 0 <= found[0] < stages:
        raise UsageError(f"there is no stage {found[0]}, only 0 to {stages - 1}", where="--slow")
    if not 0 < found[1] < float("inf"):
        hint = "above 1 is slower, 1.1 takes a tenth longer; below 1 is faster"
        raise UsageError(
            f"a factor must be above 0 and finite, got {text.partition('=')[2][:20]}", where=f"--slow {text[:40]}", hint=hint
        )
    return found


def _room(found: list[Schedule], activations: str | None, memory: str | None) -> Room | None:
    """Return the activations that every schedule holds beside what a stage may hold; None where that was not asked."""
    from parlay.errors import UsageError
    from parlay.schedules.memory import Room, held
    from parlay.units import parse_quantity

    if not (activations or memory):
        return None
    if not (activations and memory):
        raise UsageError("--activations and --memory belong together", where="schedule")
    each = parse_quantity(activations, "bytes", where="--activations")
    limit = parse_quantity(memory, "bytes", where="--memory")
    return Room(tuple(held(s, each * s.stages / s.chunks) for s in found), limit)


def _write(path: Path, timelines: list[Timeline], force: bool) -> None:
    from json import dumps

    from parlay.errors import UsageError
    from parlay.report.schedule_files import svg, trace_events

    if path.suffix not in (".json", ".svg"):
        raise UsageError(f"'{path.suffix}' is neither .json (a trace) nor .svg (a drawing)", where=f"--out {path}")
    text = svg(timelines) if path.suffix == ".svg" else dumps(trace_events(timelines), allow_nan=False)
    output.write_file(path, text, replace=force)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("schedule")(schedule)
