"""One layout as a person writes it (Layout), and many as arrays (Layouts): one code path prices both."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from parlay.errors import UsageError
from parlay.layouts.split import BY_RULE
from parlay.layouts.vocabulary import (
    CP_KINDS,
    DEFAULT_ORDER,
    ORDERS,
    RECOMPUTE,
    SCHEDULES,
    Axis,
    CpKind,
    Schedule,
    recompute_bits,
    recompute_modules,
)
from parlay.specfile import Spec, validate

Degree = Annotated[int, Field(ge=1, le=1 << 24)]
Ints = NDArray[np.int64]


class Layout(Spec):
    """How one job is split. GPUs = tp x cp x pp x dp; experts share the same GPUs: etp x ep divides tp x cp x dp."""

    tp: Degree = 1
    cp: Degree = 1
    pp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    etp: Degree = 1
    vpp: Degree = 1
    sp: bool | None = None  # Megatron sequence parallelism; None = on where tp > 1
    cp_kind: CpKind = "zigzag"
    ulysses: Degree = 1  # inner degree of usp
    schedule: Schedule | None = None  # None = 1f1b, interleaved where vpp > 1
    zero: Annotated[int, Field(ge=0, le=3)] = 1
    shard: Degree | None = None  # GPUs a ZeRO-3/FSDP shard spans (HSDP); None = all of dp x cp
    micro_batch: Degree = 1
    recompute: tuple[str, ...] = ()
    recompute_layers: Annotated[int, Field(ge=0)] = 0  # with full: layers per stage and chunk; 0 = all
    first_layers: Annotated[int, Field(ge=0)] | None = None  # layers of the first and last stage; None = by the split rule
    last_layers: Annotated[int, Field(ge=0)] | None = None
    tp_overlap: bool = False
    ep_overlap: bool = False
    offload_optimizer: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of the optimizer state on the host
    offload_activations: Annotated[float, Field(ge=0, le=1)] = 0.0
    order: tuple[Axis, ...] = DEFAULT_ORDER

    @field_validator("recompute", mode="before")
    @classmethod
    def _modules(cls, given: Any) -> Any:
        if isinstance(given, str) and given and not re.search(r"[^,+\s]", given):
            raise ValueError(f"'{given[:20]}' names no module; write none, full, or modules joined by +: {', '.join(RECOMPUTE)}")
        if not isinstance(given, str | list | tuple):
            raise ValueError(
                f"'{str(given)[:20]}' names no module; write none, full, or modules joined by +: {', '.join(RECOMPUTE)}"
            )
        names = re.split(r"[,+\s]+", given) if isinstance(given, str) else list(given)
        if "none" in names and set(names) - {"none", ""}:
            raise ValueError("recompute 'none' stands alone; it recomputes nothing")
        names = ["core_attention" if n in ("selective", "core_attn") else n for n in names if n not in ("none", "")]
        for name in names:
            if name not in RECOMPUTE:
                raise ValueError(f"unknown recompute module '{name}'; allowed: {', '.join(RECOMPUTE)}, selective")
        if "full" in names and len(set(names)) > 1:
            raise ValueError("recompute 'full' stands alone; it already recomputes every module")
        return tuple(sorted(set(names), key=RECOMPUTE.index))

    @field_validator("order", mode="before")
    @classmethod
    def _named(cls, order: Any) -> Any:
        return tuple(part.strip() for part in order.split("-")) if isinstance(order, str) else order

    @field_validator("order", mode="after")
    @classmethod
    def _order(cls, order: tuple[Axis, ...]) -> tuple[Axis, ...]:
        if sorted(order) != sorted(DEFAULT_ORDER):
            raise ValueError("order must name tp, cp, dp and pp once each, inner to outer")
        return order

    @property
    def gpus(self) -> int:
        """GPUs the layout uses. Expert parallelism shares them, so ep and etp do not multiply in."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def ends(self) -> tuple[int, int]:
        """Layers of the first and of the last stage, split.BY_RULE where the split rule decides."""
        first, last = self.first_layers, self.last_layers
        return BY_RULE if first is None else first, BY_RULE if last is None else last

    def __str__(self) -> str:
        """Return the short form: tp8.cp2.pp16.dp8 and then only what differs from the defaults."""
        axes = [("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep), ("etp", self.etp)]
        always = {"tp", "pp", "dp"}
        parts = [f"{name}{degree}" for name, degree in axes if degree > 1 or name in always]
        parts += [f"vpp{self.vpp}"] if self.vpp > 1 else []
        parts.append(f"mb{self.micro_batch}")
        return ".".join(parts)


_KEYS = {"tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mb", "zero", "ulysses", "shard"}


def parse_layout(text: str, *, where: str = "layout") -> Layout:
    """Return the Layout of `text` such as tp8.cp2.pp16.dp8.vpp2.mb1.zero1 (any order, '.', ',' or spaces between)."""
    fields: dict[str, int] = {}
    for part in re.split(r"[.,\s]+", text.strip()):
        match = re.fullmatch(r"([a-z]+)=?(\d{1,8})", part.lower())
        if not match or match.group(1) not in _KEYS:
            raise UsageError(
                f"'{part[:40]}' is not part of a layout",
                where=where,
                hint=f"write it like tp8.pp4.dp2; axes: {', '.join(sorted(_KEYS))}",
            )
        key = {"mb": "micro_batch"}.get(match.group(1), match.group(1))
        if key in fields:
            raise UsageError(f"'{match.group(1)}' is given twice in '{text[:60]}'", where=where, hint="give every axis once")
        fields[key] = int(match.group(2))
        if not fields[key] and key != "zero":
            raise UsageError(
                f"{match.group(1)} must be at least 1, got 0", where=where, hint="1 is what leaving it out means too"
            )
    return validate(Layout, fields, where)


def takes_all(index: Any, count: int) -> bool:
    """Return whether `index` takes all of `count` rows as they stand."""
    if isinstance(index, slice) or len(index) != count or index.dtype == bool:
        return False
    return int(index[0]) == 0 if count == 1 else bool((index == np.arange(count)).all())


@dataclasses.dataclass(frozen=True, slots=True)
class Layouts:
    """Many layouts as a struct of equally long arrays, one row a layout. Names are codes: see vocabulary.py."""

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    sp: NDArray[np.bool_]
    cp_kind: Ints
    ulysses: Ints
    schedule: Ints
    zero: Ints
    shard: Ints  # GPUs a shard spans, always filled in
    micro_batch: Ints
    recompute: Ints  # bits, see vocabulary.recompute_bits
    recompute_layers: Ints
    first_layers: Ints  # split.BY_RULE where the rule decides
    last_layers: Ints
    tp_overlap: NDArray[np.bool_]
    ep_overlap: NDArray[np.bool_]
    offload_optimizer: NDArray[np.float64]
    offload_activations: NDArray[np.float64]
    order: Ints  # position in vocabulary.ORDERS

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def gpus(self) -> Ints:
        """GPUs of each layout."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def edp(self) -> Ints:
        """Copies of each expert shard: the expert data-parallel degree, tp x cp x dp / (etp x ep)."""
        return (self.tp * self.cp * self.dp) // (self.etp * self.ep)

    def recomputes(self, module: str) -> NDArray[np.bool_]:
        """Return where `module` is in the recompute set."""
        return (self.recompute >> RECOMPUTE.index(module) & 1).astype(bool)

    def micro_batches(self, global_batch: int) -> Ints:
        """Micro-batches per step and data-parallel rank (rounded down; the batch rule rejects remainders)."""
        return global_batch // (self.dp * self.micro_batch)

    def take(self, index: Any) -> Layouts:
        """Return the rows of `index` (integers or a mask)."""
        if takes_all(index, len(self)):
            return self
        return Layouts(**{f.name: getattr(self, f.name)[index] for f in dataclasses.fields(self)})

    def one(self, row: int) -> Layout:
        """Return row `row` as a Layout."""
        value = {f.name: getattr(self, f.name)[row].item() for f in dataclasses.fields(self)}
        value["cp_kind"] = CP_KINDS[value["cp_kind"]]
        value["schedule"] = SCHEDULES[value["schedule"]]
        for end in ("first_layers", "last_layers"):
            value[end] = None if value[end] == BY_RULE else value[end]
        value["recompute"] = recompute_modules(value["recompute"])
        value["order"] = ORDERS[value["order"]]
        return Layout(**value)

    @classmethod
    def of(cls, layouts: Sequence[Layout] | Layout) -> Layouts:
        """Return layouts as arrays, with what was left open filled in."""
        rows = [layouts] if isinstance(layouts, Layout) else list(layouts)
        columns: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            fill = FILLED.get(field.name)
            columns[field.name] = np.asarray([fill(row) if fill else getattr(row, field.name) for row in rows])
        return cls(**columns)

    @classmethod
    def grid(cls, **columns: Any) -> Layouts:
        """Return layouts from broadcastable columns; what is not given takes Layout's default."""
        given = {name: np.asarray(column) for name, column in columns.items()}
        shape = np.broadcast_shapes((1,), *(c.shape for c in given.values()))
        out = {}
        for name, default in _defaults().items():
            value = given.get(name, default)
            if value.size == 1:
                out[name] = np.full(math.prod(shape), value.item(), dtype=default.dtype)
            else:
                out[name] = np.array(np.broadcast_to(value, shape), dtype=default.dtype, order="C").ravel()
        if "sp" not in given:
            out["sp"] = out["tp"] > 1
        if "shard" not in given:
            out["shard"] = out["dp"] * out["cp"]
        if "schedule" not in given:
            out["schedule"] = np.where(out["vpp"] > 1, SCHEDULES.index("interleaved"), SCHEDULES.index("1f1b"))
        return cls(**out)


@lru_cache(maxsize=1)
def _defaults() -> dict[str, NDArray[Any]]:
    """Return the columns of one layout with nothing set."""
    base = Layouts.of(Layout())
    return {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}


# Columns of Layouts that a Layout leaves open or names: how they are filled in.
FILLED: dict[str, Callable[[Layout], int]] = {
    "sp": lambda x: x.tp > 1 if x.sp is None else x.sp,
    "cp_kind": lambda x: CP_KINDS.index(x.cp_kind),
    "schedule": lambda x: SCHEDULES.index(x.schedule or ("interleaved" if x.vpp > 1 else "1f1b")),
    "shard": lambda x: x.shard or x.dp * x.cp,
    "first_layers": lambda x: x.ends[0],
    "last_layers": lambda x: x.ends[1],
    "order": lambda x: ORDERS.index(x.order),
    "recompute": lambda x: recompute_bits(x.recompute),
}
