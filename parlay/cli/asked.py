"""Options that narrow a search, and the search they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from parlay.errors import UsageError

if TYPE_CHECKING:
    from parlay.cli.question import Question
    from parlay.rates.interface import Rates
    from parlay.search.constraints import Constraints
    from parlay.search.plan import Plan
    from parlay.search.space import Space

GIB = 2.0**30

Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="AXIS=VALUES", help="Keep an axis at a value, such as tp=8 or pp=4,8. Repeatable."),
]
Most = Annotated[
    list[str] | None, typer.Option("--max", metavar="AXIS=VALUE", help="At most this much of an axis, such as pp=8. Repeatable.")
]
Least = Annotated[
    list[str] | None, typer.Option("--min", metavar="AXIS=VALUE", help="At least this much of an axis, such as dp=2. Repeatable.")
]
Require = Annotated[
    list[str] | None, typer.Option("--require", metavar="BOUND", help="Any bound on an axis, such as 'zero>=1'. Repeatable.")
]
Headroom = Annotated[float, typer.Option("--headroom", metavar="GIB", help="Device memory to keep free, in GiB.")]
MinMicroBatches = Annotated[
    int, typer.Option("--min-micro-batches", metavar="N", min=1, help="At least this many micro-batches a step.")
]
Wide = Annotated[
    bool,
    typer.Option(
        "--wide", help="Search the whole joint space that the framework can run, not just what is mostly tuned. Slower."
    ),
]
Pareto = Annotated[bool, typer.Option("--pareto", help="Add the layouts that trade speed for memory best.")]
Sensitivity = Annotated[
    bool, typer.Option("--sensitivity", help="Add what would help each layout most, and what faster hardware would bring.")
]


def constraints(
    most: list[str] | None, least: list[str] | None, require: list[str] | None, headroom: float, micro_batches: int
) -> Constraints:
    """Return what the options ask beside the rules."""
    from parlay.search.constraints import Constraints, parse_bound

    bounds = [parse_bound(t, sign="<=", where="--max") for t in most or []]
    bounds += [parse_bound(t, sign=">=", where="--min") for t in least or []]
    bounds += [parse_bound(t) for t in require or []]
    if not 0 <= headroom < 1e6:
        raise UsageError(f"must be 0 or more GiB, got {headroom:g}", where="--headroom")
    return Constraints(tuple(bounds), headroom * GIB, micro_batches)


def space_of(q: Question, fix: list[str] | None, asked: Constraints, *, wide: bool = False) -> Space:
    """Return what the framework's users tune, or all it can run, within what the options and the run file fix and ask."""
    from parlay.layouts.rules_stages import RUNS
    from parlay.search.fixing import fixed
    from parlay.search.spaces import default_space, wide_space

    limit = q.cluster.device.memory.allocatable.value
    if asked.headroom_bytes >= limit:
        raise UsageError(f"{asked.headroom_bytes / GIB:g} GiB is all of the {limit / GIB:.1f} GiB of a GPU", where="--headroom")
    space = fixed((wide_space if wide else default_space)(q.workload).open(asked), fix or [], q.layout)
    framework = q.workload.framework
    if not set(space.schedule) & set(RUNS[framework]):
        others = "; ".join(f"{name}: {', '.join(runs)}" for name, runs in RUNS.items() if name != framework)
        raise UsageError(
            f"{framework} does not offer the pipeline schedule {' or '.join(space.schedule)}",
            where=f"--fix schedule={','.join(space.schedule)}",
            hint=f"schedule may be {', '.join(RUNS[framework])} ({others})",
        )
    return space


def nothing_left(q: Question, space: Space) -> UsageError:
    """Return why no layout at all lies within what was fixed and asked: usually one axis, else their product."""
    from parlay.layouts.rule import divisors

    experts = max((k.mlp.experts for k in q.model.kinds.values() if k.mlp.kind == "moe"), default=1)
    from parlay.search.spaces import default_space

    usual = default_space(q.workload)  # what a framework keeps by itself, nobody asked for
    words = [
        f"{a}={','.join(map(str, getattr(space, a)))}"
        for a in ("tp", "cp", "pp", "dp", "ep")
        if getattr(space, a) and getattr(space, a) != getattr(usual, a)
    ]
    said = " and ".join([*words, *space.asked.words()])
    for axis, whole, of in (*((a, q.gpus, "GPUs") for a in ("tp", "cp", "pp", "dp")), ("ep", experts, "experts")):
        every = divisors(whole, most=1 << 20)
        listed = getattr(space, axis) or tuple(every)
        kept = space.asked.allowed(axis, listed)
        if not kept:
            return UsageError(f"leave no value of {axis}", where=f"{said}", hint="loosen one of them")
        if not set(kept) & set(every):
            hint = f"{axis} can be {', '.join(map(str, every[:12]))}"
            return UsageError(f"{axis}={','.join(map(str, kept))} does not divide {whole:,} {of}", where=said, hint=hint)
    return UsageError(
        f"no layout of {q.gpus:,} GPUs is within this", where=said or "the search",
        hint=f"tp, cp, pp and dp must multiply to {q.gpus:,}, and ep divide the experts and tp x cp x dp",
    )  # fmt: skip


def search(q: Question, space: Space, top: int, *, explain: bool, rates: Rates | None = None) -> Plan:
    """Return the plan, with a progress bar on a terminal while it is made."""
    from parlay.cli.progress import ProgressBar
    from parlay.search.plan import plan

    bar = ProgressBar()
    try:
        return plan(q.model, q.cluster, q.workload, q.gpus, top=top, space=space, rates=rates, progress=bar, explain=explain)
    finally:
        bar.close()
