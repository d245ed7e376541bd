"""Options that narrow a search, and the search they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from parlay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlay.cli.question import Question
    from parlay.rates.interface import Rates
    from parlay.search.constraints import Constraints
    from parlay.search.plan import Plan
    from parlay.search.space import Space

GIB = 2.0**30
MOST_GIB = 1_000_000  # of a device; more is a mistake

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
Headroom = Annotated[
    str, typer.Option("--headroom", metavar="GIB", help="Device memory to keep free, in GiB or with a unit, such as 4GiB.")
]
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
    most: list[str] | None, least: list[str] | None, require: list[str] | None, headroom: str, micro_batches: int
) -> Constraints:
    """Return what the options ask beside the rules."""
    from parlay.search.constraints import Constraints, parse_bound

    bounds = [parse_bound(t, sign="<=", where="--max") for t in most or []]
    bounds += [parse_bound(t, sign=">=", where="--min") for t in least or []]
    bounds += [parse_bound(t) for t in require or []]
    return Constraints(tuple(bounds), _headroom(headroom), micro_batches)


def _headroom(text: str) -> float:
    """Return bytes of a number of GiB, or of a quantity with its unit."""
    from parlay.units import parse_quantity

    try:
        nbytes = float(text) * GIB
    except ValueError:
        nbytes = parse_quantity(text, "bytes", where="--headroom", positive=False)
    if not 0 <= nbytes < MOST_GIB * GIB:
        raise UsageError(f"must be from 0 to {MOST_GIB:,} GiB, got {text[:40]}", where="--headroom", hint="such as 4, or 4GiB")
    return nbytes


def space_of(q: Question, fix: list[str] | None, asked: Constraints, *, wide: bool = False) -> Space:
    """Return what the framework's users tune, or all it can run, within what the options and the run file fix and ask."""
    from parlay.layouts.rules_stages import RUNS
    from parlay.search.fixing import fixed
    from parlay.search.spaces import default_space, wide_space

    limit = q.cluster.device.memory.allocatable.value
    if asked.headroom_bytes >= limit:
        raise UsageError(f"{asked.headroom_bytes / GIB:g} GiB is all of the {limit / GIB:.1f} GiB of a GPU", where="--headroom")
    space = fixed(
        (wide_space if wide else default_space)(q.workload).open(asked), fix or [], q.layout, q.layout_from, q.workload.framework
    )
    _refuse_experts(q, fix or [])
    framework = q.workload.framework
    if not set(space.schedule) & set(RUNS[framework]):
        others = "; ".join(f"{name}: {', '.join(runs)}" for name, runs in RUNS.items() if name != framework)
        raise UsageError(
            f"{framework} does not offer the pipeline schedule {' or '.join(space.schedule)}",
            where=f"--fix schedule={','.join(space.schedule)}",
            hint=f"schedule may be {', '.join(RUNS[framework])} ({others})",
        )
    return space


def _refuse_experts(q: Question, fix: list[str]) -> None:
    """Raise UsageError where --fix or the run file splits the experts of a model that has none."""
    if q.model_has_experts:
        return
    asked = [(text.partition("=")[0].strip(), text.partition("=")[2], f"--fix {text[:60]}") for text in fix]
    if q.layout is not None:
        asked += [(axis, str(getattr(q.layout, axis)), f"layout.{axis}") for axis in ("ep", "etp")]
    for axis, values, where in asked:
        if axis in ("ep", "etp") and values.strip() not in ("1", "any"):
            raise UsageError(f"{q.model.id} has no experts to spread, so {axis} stays 1", where=where, hint=f"leave out {axis}")


def nothing_left(q: Question, space: Space) -> UsageError:
    """Return why no layout at all lies within what was fixed and asked: usually one axis, else their product."""
    from parlay.layouts.rule import divisors

    experts = max((k.mlp.experts for k in q.model.kinds.values() if k.mlp.kind == "moe"), default=1)

    said = " and ".join(space.asked.words())
    for axis, whole, of in (*((a, q.gpus, "GPUs") for a in ("tp", "cp", "pp", "dp")), ("ep", experts, "experts")):
        most = int(q.cluster.scale_up_gpus.value) if axis == "tp" else whole
        every = [d for d in divisors(whole, most=1 << 20) if d <= most]
        listed = getattr(space, axis) or tuple(every)
        kept = space.asked.allowed(axis, listed)
        if not kept:
            if axis == "ep" and experts == 1:
                return UsageError(f"{q.model.id} has no experts, so {axis} stays 1", where=said, hint=f"leave out {axis}")
            several = "; loosen one of them" if " and " in said else ""
            return UsageError(f"leave no value of {axis}", where=said, hint=f"{axis} can be {_few(every)}{several}")
        if not set(kept) & set(every):
            hint = f"{axis} can be {_few(every)}"
            return UsageError(f"{axis}={','.join(map(str, kept))} does not divide {whole:,} {of}", where=said, hint=hint)
    return _other_axis(q, space, said) or _batch_left(q, space, said) or UsageError(
        f"no layout of {q.gpus:,} GPUs is within this", where=said or "the search",
        hint=f"tp, cp, pp and dp must multiply to {q.gpus:,}, and ep divide the experts and tp x cp x dp"
        + (f"; or loosen one of {said}" if " and " in said else ""),
    )  # fmt: skip


def _few(values: Sequence[float]) -> str:
    """Return the first dozen of some values."""
    return ", ".join(f"{v:g}" for v in values[:12])


def _other_axis(q: Question, space: Space, said: str) -> UsageError | None:
    """Return why a bound on an axis that does not multiply to the GPU count leaves nothing of it."""
    from parlay.layouts.rule import divisors
    from parlay.search.space import WIDER

    layers = q.model.layer_count
    offered: dict[str, Sequence[float]] = {
        **WIDER, "vpp": range(1, layers + 3), "shard": divisors(q.gpus, most=1 << 20), "recompute_layers": range(layers + 1),
        "first_layers": range(layers + 1), "last_layers": range(layers + 1),
    }  # fmt: skip
    for axis, values in offered.items():
        if not space.asked.allowed(axis, getattr(space, axis) or values):
            few = f"{values[0]} to {values[-1]}" if isinstance(values, range) else _few(values)
            return UsageError(f"leave no value of {axis}", where=said, hint=f"{axis} can be {few}")
    if not q.model_has_experts and not space.asked.allowed("etp", [1]):
        return UsageError(f"{q.model.id} has no experts, so etp stays 1", where=said, hint="leave out etp")
    return None


def _batch_left(q: Question, space: Space, said: str) -> UsageError | None:
    """Return why the batch has no such micro-batches: none of their sizes divides it, or it has fewer than were asked for."""
    from parlay.layouts.rule import divisors

    batch = q.workload.global_batch
    ranks = space.asked.allowed("dp", space.dp or divisors(q.gpus, most=1 << 20))
    sizes = space.asked.allowed("micro_batch", space.micro_batch)
    counts = {batch // (dp * size): (dp, size) for dp in ranks for size in sizes if batch % (dp * size) == 0}
    if not counts and ranks and sizes:
        hint = f"dp x micro_batch can be {_few(divisors(batch))}"
        each = f"dp={_few(ranks)} x micro-batches of {_few(sizes)}"
        return UsageError(f"{each} do not divide the batch of {batch:,} sequences", where=said, hint=hint)
    if not counts or space.asked.min_micro_batches <= max(counts):
        return None
    dp, size = counts[max(counts)]
    hint = f"a batch of {batch:,} sequences allows at most {max(counts):,}, with dp={dp} and micro_batch={size}; raise --global-batch"
    return UsageError("more than the batch has", where=said, hint=hint)


def search(q: Question, space: Space, top: int, *, explain: bool, rates: Rates | None = None) -> Plan:
    """Return the plan, with a progress bar on a terminal while it is made."""
    from parlay.cli.progress import ProgressBar
    from parlay.search.plan import plan

    bar = ProgressBar()
    try:
        return plan(q.model, q.cluster, q.workload, q.gpus, top=top, space=space, rates=rates, progress=bar, explain=explain)
    finally:
        bar.close()
