"""Write down the action tables of torch.distributed.pipelining, to compare Parlay's schedules with action for action.

Run with an interpreter that has torch (2.13.0 made the file in tests/schedules/data); Parlay itself does not need it:

    python scripts/freeze_torch_schedules.py tests/schedules/data/torch_actions.json

The generators are methods of the schedule classes; they read counts alone, so they run here on bare instances without
stages or process groups. Bubbles (None) and gradient reductions are left out: only the order of compute is compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

COMPUTE = set("FBIW")
CASES = [  # our name, torch's class, stages, chunks per stage, micro-batches
    *[("gpipe", "ScheduleGPipe", p, 1, m) for p, m in [(1, 3), (2, 4), (4, 8), (5, 7)]],
    *[("1f1b", "Schedule1F1B", p, 1, m) for p, m in [(1, 3), (2, 2), (4, 4), (4, 9), (8, 16)]],
    *[
        ("interleaved", "ScheduleInterleaved1F1B", p, v, m)
        for p, v, m in [(2, 2, 4), (4, 2, 8), (4, 3, 12), (4, 2, 10), (3, 4, 9)]
    ],
    *[("bfs", "ScheduleLoopedBFS", p, v, m) for p, v, m in [(2, 2, 4), (4, 2, 8), (3, 4, 5)]],
    *[("zb-h1", "ScheduleInterleavedZeroBubble", p, v, m) for p, v, m in [(2, 2, 4), (4, 2, 8), (4, 3, 16), (3, 2, 8)]],
    *[("zb-v", "ScheduleZBVZeroBubble", p, 2, m) for p, m in [(1, 3), (2, 2), (2, 4), (4, 4), (4, 12), (5, 9), (8, 16)]],
    *[
        ("dualpipev", "ScheduleDualPipeV", p, 2, m)
        for p, m in [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (5, 10), (8, 20)]
    ],
]


def actions(class_name: str, p: int, v: int, m: int) -> list[list[str]]:
    """Return the compute actions of every rank, as torch prints them."""
    kind = getattr(schedules, class_name)
    made = object.__new__(kind)
    stages = [SimpleNamespace(stage_index=i) for i in range(v)]
    rounds = max(1, m // p)
    fields = {
        "_n_microbatches": m, "pp_group_size": p, "n_local_stages": v, "_stages": stages, "_num_stages": p * v,
        "num_stages": p * v, "number_of_rounds": rounds, "microbatches_per_round": m // rounds, "scale_grads": True,
    }  # fmt: skip
    for name, value in fields.items():
        setattr(made, name, value)
    if issubclass(kind, schedules.PipelineScheduleSingle):
        return [_executed(made, p, r, m) for r in range(p)]
    assert generate_rank_to_stage_mapping(p, p * v)[0][0] == 0
    return [_compute(made._calculate_single_rank_operations(r)) for r in range(p)]


def _recorder(stages: int, rank: int) -> MagicMock:
    """Return a stage that sends and receives nothing and writes down what it is told to compute."""
    stage = MagicMock(num_stages=stages, stage_index=rank, is_last=False, has_backward=True, actions=[])
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    stage.forward_one_chunk.side_effect = lambda mb, *_, **__: stage.actions.append(f"{rank}F{mb}")
    stage.backward_one_chunk.side_effect = lambda mb, *_, **__: stage.actions.append(f"{rank}B{mb}")
    return stage


def _executed(schedule: object, p: int, rank: int, m: int) -> list[str]:
    """Return what a single-stage schedule really runs on `rank`.

    Its own printed order is not used: that of Schedule1F1B names micro-batches 1 to m on the last rank, not 0 to m - 1.
    """
    stage = _recorder(p, rank)
    schedule._stage, schedule._num_stages = stage, p
    schedule._check_inputs = lambda args, kwargs, *_: (args, kwargs)
    for name in ("_initialize_stage", "_maybe_compute_loss", "_update_losses"):
        setattr(schedule, name, lambda *_, **__: None)
    schedule._maybe_get_loss = lambda *_: None
    schedule._internal_losses = []
    schedule._stage_forward_initialized = schedule._stage_backward_initialized = True
    schedule._has_backward = True
    schedule._step_microbatches([()] * m, [{}] * m)
    return stage.actions


def _compute(row: list[object]) -> list[str]:
    return [str(a) for a in row if a is not None and (a.sub_actions or a.computation_type.value in COMPUTE)]


def main(path: Path) -> None:
    """Write every case."""
    cases = [
        {"schedule": ours, "torch": theirs, "stages": p, "virtual": v, "micro_batches": m, "ranks": [" ".join(r) for r in actions(theirs, p, v, m)]}
        for ours, theirs, p, v, m in CASES
    ]  # fmt: skip
    document = {"source": f"torch {torch.__version__.split('+')[0]}, torch.distributed.pipelining.schedules", "cases": cases}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
