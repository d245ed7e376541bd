"""What a user asks of a search beside the rules: bounds on axes, memory kept free, enough micro-batches."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from parlay.errors import UsageError, nearest

AXES = (
    "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "zero", "offload_optimizer", "offload_activations", "shard",
    "recompute_layers", "first_layers", "last_layers",
)  # fmt: skip
NAMED = ("schedule", "cp_kind", "recompute", "sp", "tp_overlap", "ep_overlap", "order", "ulysses")  # --fix alone takes these
# Names that users bring from frameworks or write for short -> ours.
SHORT = {
    "mb": "micro_batch", "mbs": "micro_batch", "vp": "vpp", "hsdp": "shard", "sequence_parallel": "sp", "axis_order": "order",
    "recompute_num_layers": "recompute_layers", "activation_offload": "offload_activations", "optimizer_offload": "offload_optimizer",
}  # fmt: skip
Sign = Literal["<=", ">=", "<", ">", "=="]
_COMPARE: dict[Sign, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
_BOUND = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|==|<|>|=)\s*([0-9.]{1,12})\s*")
_NAMED = re.compile(r"\s*([A-Za-z_]+)\s*=?=\s*(\S+)\s*")
Number = TypeVar("Number", int, float)


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """One bound on one axis, such as zero >= 1."""

    axis: str
    sign: Sign
    value: float

    def allows(self, value: float) -> bool:
        """Return whether `value` of the axis keeps the bound."""
        return _COMPARE[self.sign](value, self.value)

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        return f"{self.axis}{self.sign}{self.value:g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Constraints:
    """Everything that is asked beside the rules."""

    bounds: tuple[Bound, ...] = ()
    headroom_bytes: float = 0.0  # device memory that must stay free on the fullest stage
    min_micro_batches: int = 1
    fixed: tuple[str, ...] = ()  # axes kept at values, as words: tp=8
    implied: tuple[Bound, ...] = ()  # what follows from those

    def allowed(self, axis: str, values: Iterable[Number]) -> list[Number]:
        """Return the values of `axis` that keep every bound on it.

        Examples
        --------
        >>> Constraints((Bound("tp", "<=", 4), Bound("tp", ">", 1))).allowed("tp", [1, 2, 4, 8])
        [2, 4]
        """
        mine = [b for b in (*self.bounds, *self.implied) if b.axis == axis]
        return [v for v in values if all(b.allows(v) for b in mine)]

    def words(self) -> list[str]:
        """Return what is asked, one text a constraint."""
        said = [*self.fixed, *map(str, self.bounds)]
        if self.min_micro_batches > 1:
            said.append(f"at least {self.min_micro_batches} micro-batches")
        return said


ANYTHING = Constraints()


def parse_bound(text: str, *, sign: Sign | None = None, where: str = "--require") -> Bound:
    """Return the bound of "zero>=1"; with `sign` that of "pp=8", as --max and --min write it.

    Raises UsageError for an unknown axis or anything else than one axis, one sign and one number.
    """
    match = _BOUND.fullmatch(text)
    named = _NAMED.fullmatch(text)
    if named and SHORT.get(named.group(1), named.group(1)) in NAMED:
        hint = f"write --fix {named.group(1)}={named.group(2)[:40]}"
        raise UsageError(f"{named.group(1)} has names, not sizes, so it has no bounds", where=f"{where} {text[:60]}", hint=hint)
    if not match or (sign is not None and match.group(2) != "="):
        example = "zero>=1" if sign is None else "pp=8"
        signs = " (=, <=, >=, < or >)" if sign is None else ""
        raise UsageError(f"'{text[:60]}' is not a bound", where=where, hint=f"write {where} '{example}'{signs}")
    axis = SHORT.get(match.group(1), match.group(1))
    if axis not in AXES:
        near = nearest(axis, AXES)
        hint = f"did you mean {' or '.join(near)}?" if near else f"axes: {', '.join(AXES)}"
        raise UsageError(f"unknown axis '{axis[:40]}'", where=f"{where} {text[:60]}", hint=hint)
    try:
        value = float(match.group(3))
    except ValueError:
        raise UsageError(f"'{match.group(3)}' is not a number", where=f"{where} {text[:60]}") from None
    found: Sign = sign or ("==" if match.group(2) == "=" else match.group(2))  # type: ignore[assignment]
    return Bound(axis, found, value)
