"""Our schedules against torch.distributed.pipelining's generators, action for action (scripts/freeze_torch_schedules.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

from parlay.schedules import build
from parlay.schedules.schedule import LETTERS, Schedule

FROZEN = json.loads((Path(__file__).parent / "data" / "torch_actions.json").read_text(encoding="utf-8"))


def as_torch_prints(schedule: Schedule, stage: int) -> str:
    here = schedule.operations(stage)
    single = [
        f"{c}{LETTERS[k]}{m}"
        for k, m, c in zip(schedule.kind[here], schedule.micro_batch[here], schedule.chunk[here], strict=True)
    ]
    together = schedule.together[here]
    out = []
    for i, name in enumerate(single):
        if together[i]:
            out.append(f"({name};{single[i + 1]})OVERLAP_F_B")
        elif i == 0 or not together[i - 1]:
            out.append(name)
    return " ".join(out)


@pytest.mark.parametrize(
    "case", FROZEN["cases"], ids=lambda c: f"{c['schedule']}-p{c['stages']}-v{c['virtual']}-m{c['micro_batches']}"
)
def test_every_action_is_the_one_torch_schedules(case):
    name, p, v, m = case["schedule"], case["stages"], case["virtual"], case["micro_batches"]
    takes_chunks = name in ("interleaved", "bfs", "zb-h1")
    group = m // max(1, m // p) if name in ("interleaved", "zb-h1") else None
    ours = build(name, p, m, virtual=v if takes_chunks else 1, group=group)
    assert [as_torch_prints(ours, r) for r in range(p)] == case["ranks"]


def test_the_frozen_tables_cover_every_schedule_both_define():
    assert {c["schedule"] for c in FROZEN["cases"]} == {"gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-v", "dualpipev"}
    assert sum(len(r.split()) for c in FROZEN["cases"] for r in c["ranks"]) > 2000


def test_one_swapped_action_would_be_seen():
    case = next(c for c in FROZEN["cases"] if c["schedule"] == "1f1b" and c["stages"] == 4)
    s = build("1f1b", 4, case["micro_batches"])
    swapped = np.array(s.micro_batch)
    swapped[[0, 1]] = swapped[[1, 0]]
    object.__setattr__(s, "micro_batch", swapped)
    assert as_torch_prints(s, 0) != case["ranks"][0]
