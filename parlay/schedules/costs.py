"""What operations and transfers cost: seconds of every chunk, on stages and links that may differ."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parlay.errors import UsageError
from parlay.schedules.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule

Seconds = NDArray[np.float64]
Sharing = Literal["none", "direction", "pair", "all"]
SHARING: tuple[Sharing, ...] = get_args(Sharing)


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one micro-batch on each chunk, and of the transfers between chunks.

    Attributes
    ----------
    forward_s, backward_s, weight_s
        Forward, whole backward, and the part of the backward that computes weight gradients; shape (chunks,). [s]
    transfer_s
        Activations or gradients across each cut of the model; shape (chunks - 1,). Free between chunks of one stage. [s]
    slowdown
        Factor on the time of every operation of a stage, shape (stages,); 1 = as planned. [-]
    overlapped
        Time of an overlapped forward and backward over the sum of both. [-]
    blocking
        True where a stage sends before it computes on; False where transfers run beside the compute. [-]
    sharing
        Which transfers queue behind one another: none; those of one direction between two stages; both directions; all. [-]
    """

    forward_s: Seconds
    backward_s: Seconds
    weight_s: Seconds
    transfer_s: Seconds
    slowdown: Seconds
    overlapped: float = 1.0
    blocking: bool = False
    sharing: Sharing = "none"

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        forward_s: ArrayLike = 1.0,
        backward_s: ArrayLike = 2.0,
        weight_s: ArrayLike | None = None,
        transfer_s: ArrayLike = 0.0,
        *,
        slowdown: ArrayLike = 1.0,
        recompute: ArrayLike = 0.0,
        overlapped: float = 1.0,
        blocking: bool = False,
        sharing: Sharing = "none",
    ) -> Costs:
        """Return costs per chunk; every array is broadcast to the chunks of `schedule` (slowdown: to its stages).

        `recompute` is the share of the forward that the backward of a chunk runs again; it adds to the backward, not to
        the weight gradient. Without `weight_s`, half of the backward is the weight gradient.
        """
        n = schedule.chunks
        if sharing not in SHARING:
            raise UsageError(f"links are shared by {', '.join(SHARING)}, not '{sharing}'", where="costs")

        def spread(name: str, value: ArrayLike, size: int) -> Seconds:
            x = np.asarray(value, dtype=np.float64)
            if x.shape not in ((), (1,), (size,)):
                raise UsageError(f"{name} has {x.size} values for {size}", where="costs")
            if not (np.isfinite(x) & (x >= 0)).all():
                raise UsageError(
                    f"{name} must be finite and zero or more, got {x[~(np.isfinite(x) & (x >= 0))].flat[0]:g}", where="costs"
                )
            return np.array(np.broadcast_to(x, (size,)))

        forward = spread("forward", forward_s, n)
        backward = spread("backward", backward_s, n)
        weight = backward / 2 if weight_s is None else spread("weight", weight_s, n)
        over = np.nonzero(weight > backward)[0]
        if over.size:
            raise UsageError(
                f"the weight gradient of chunk {over[0]} takes {weight[over[0]]:g} s, more than its whole backward of {backward[over[0]]:g} s",
                where="costs",
            )
        return cls(
            forward,
            backward + spread("recompute", recompute, n) * forward,
            weight,
            spread("transfer", transfer_s, max(n - 1, 0)),
            spread("slowdown", slowdown, schedule.stages),
            overlapped,
            blocking,
            sharing,
        )

    @classmethod
    def per_stage(
        cls,
        schedule: Schedule,
        forward_s: float,
        backward_s: float,
        weight_s: float | None = None,
        transfer_s: float = 0.0,
        *,
        slowdown: ArrayLike = 1.0,
        overlapped: float = 1.0,
        blocking: bool = False,
        sharing: Sharing = "none",
    ) -> Costs:
        """Return equal chunks from the time of one micro-batch on a p-th of the model, as the closed forms take it."""
        share = schedule.stages / schedule.chunks
        weight = None if weight_s is None else weight_s * share
        return cls.of(
            schedule, forward_s * share, backward_s * share, weight, transfer_s,
            slowdown=slowdown, overlapped=overlapped, blocking=blocking, sharing=sharing,
        )  # fmt: skip

    def with_ends(
        self, *, first: tuple[float, float, float] = (0.0, 0.0, 0.0), last: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> Costs:
        """Return costs with forward, whole backward and weight gradient added to the first chunk (embedding) and last (head)."""
        f, b, w = self.forward_s.copy(), self.backward_s.copy(), self.weight_s.copy()
        for place, (extra_f, extra_b, extra_w) in ((0, first), (-1, last)):
            f[place] += extra_f
            b[place] += extra_b
            w[place] += extra_w
        return dataclasses.replace(self, forward_s=f, backward_s=b, weight_s=w)

    def of_operations(self, schedule: Schedule) -> Seconds:
        """Return the seconds that every operation takes on its own."""
        by_kind = np.empty((4, schedule.chunks))
        by_kind[FORWARD], by_kind[BACKWARD] = self.forward_s, self.backward_s
        by_kind[INPUT], by_kind[WEIGHT] = self.backward_s - self.weight_s, self.weight_s
        return np.asarray(by_kind[schedule.kind, schedule.chunk] * self.slowdown[schedule.stage])

    def of_transfers(self, schedule: Schedule, waits_for: NDArray[np.int64]) -> Seconds:
        """Return the seconds of the transfer that brings each operation its input; 0 within a stage."""
        stage = schedule.stage
        out = np.zeros(len(schedule))
        at = np.nonzero(waits_for >= 0)[0]
        sender = waits_for[at]
        cut = np.minimum(schedule.chunk[at], schedule.chunk[sender])
        out[at] = np.where(stage[at] != stage[sender], self.transfer_s[cut], 0.0)
        return out

    def links(self, stages: int) -> NDArray[np.int64]:
        """Return which link carries a transfer from stage a to stage b, shape (stages, stages)."""
        a, b = np.meshgrid(np.arange(stages), np.arange(stages), indexing="ij")
        if self.sharing == "all":
            return np.zeros((stages, stages), dtype=np.int64)
        if self.sharing == "pair":
            a, b = np.minimum(a, b), np.maximum(a, b)
        return np.asarray(a * stages + b)
