"""A user's own schedule: read, checked, and refused with stage and operation named."""

import json

import numpy as np
import pytest

from parlay.errors import UsageError
from parlay.schedules import NAMES, build, simulate
from parlay.schedules.readfile import parse_schedule, read_schedule

GOOD = {
    "name": "mine",
    "micro_batches": 2,
    "stage": [{"operations": "F0 F1 B0 B1"}, {"operations": "F0 B0 F1 B1"}],
}


def changed(stage, operations, **keys):
    stages = [dict(s) for s in GOOD["stage"]]
    stages[stage]["operations"] = operations
    return GOOD | {"stage": stages} | keys


def written(s):
    """A schedule as its file."""
    stages = []
    for r in range(s.stages):
        here = range(s.offset[r], s.offset[r + 1])
        text, join = "", False
        for i in here:
            text += ("+" if join else " ") + s.label(i)
            join = bool(s.together[i])
        stages.append({"operations": text.strip(), "chunks": s.chunks_of(r)})
    return {"name": s.name, "micro_batches": s.micro_batches, "stage": stages}


def test_toml_and_json(tmp_path):
    toml, js = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text(
        'name = "mine"\nmicro_batches = 2\n[[stage]]\noperations = "F0 F1 B0 B1"\n[[stage]]\noperations = "F0 B0 F1 B1"\n'
    )
    js.write_text(json.dumps(GOOD))
    one, other = read_schedule(toml), read_schedule(js)
    assert one.name == "mine"
    for s in (one, other):
        assert np.array_equal(s.kind, build("1f1b", 2, 2).kind)
        assert simulate(s).step_s == simulate(build("1f1b", 2, 2)).step_s


@pytest.mark.parametrize("name", [n for n in NAMES if n != "dualpipe"])
def test_every_schedule_survives_being_written_and_read(name):
    s = build(name, 4, 8, virtual=2 if name in ("interleaved", "bfs") else 1)
    again = parse_schedule(written(s))
    for field in ("kind", "micro_batch", "chunk", "together", "offset"):
        assert np.array_equal(getattr(s, field), getattr(again, field)), field


def test_a_backward_whose_weight_gradient_stands_apart_is_the_input_gradient():
    s = parse_schedule(changed(0, "F0 F1 B0 W0 B1 W1"))
    assert [s.label(i) for i in range(6)] == ["F0", "F1", "I0", "W0", "I1", "W1"]


def test_v_shaped_placement():
    data = {
        "micro_batches": 1,
        "placement": "v",
        "stage": [{"operations": "F0 F0.1 B0.1 B0"}, {"operations": "F0 F0.1 B0.1 B0"}],
    }
    s = parse_schedule(data)
    assert s.chunks_of(0) == [0, 3]
    assert simulate(s).step_s == 12


WRONG = [
    (changed(1, "F0 B0 F1"), "stage 1: B1 is missing"),
    (changed(0, "F0 F1 B0 B1 B1"), r"stage 0, operation 5 \(B1\): it is there twice"),
    (changed(0, "F0 F1 B0 B2"), "stage 0: B2 is wrong, there are micro-batches 0 to 1"),
    (changed(0, "F0 F1 B0 X1"), "stage 0: 'X1' is not an operation"),
    (changed(0, "F0 F1 B0 B1.3"), r"stage 0: F0\.1 is missing \(and 11 more like it\)"),
    (changed(1, "B0 F0 F1 B1"), r"stage 1, operation 1 \(B0\): it comes before its forward F0"),
    (changed(0, "F0 F1 W0 B0 B1"), r"operation 3 \(W0\): it comes before its input gradient I0"),
    (changed(0, "F0 F1 I0 B1"), "stage 0: W0 is missing: the backward is split"),
    (changed(0, "F0 F1 I0 W0 B0 B1"), "stage 0: I0|it is there twice"),
    (changed(0, "F0 B0 F1 B1") | {"micro_batches": 0}, "micro_batches"),
    (GOOD | {"stage": []}, "stage"),
    (GOOD | {"colour": 1}, "unknown key 'colour'"),
    (changed(0, "F0+F1+B0 B1"), "is not an operation"),
]


@pytest.mark.parametrize(("data", "says"), WRONG)
def test_wrong_schedules(data, says):
    with pytest.raises(UsageError, match=says):
        parse_schedule(data)


def test_a_circle_names_stages_and_operations():
    circle = changed(0, "F0 B0 F1 B1") | {"stage": [{"operations": "F0 B0 F1 B1"}, {"operations": "F0 F1 B0 B1"}]}
    with pytest.raises(UsageError) as caught:
        parse_schedule(circle, where="mine.toml")
    text = str(caught.value)
    assert "wait for each other in a circle" in text
    assert "stage 0 stands at B0, which waits for B0 on stage 1" in text
    assert "stage 1 stands at F1, which waits for F1 on stage 0" in text


def test_chunks_held_twice():
    data = {"micro_batches": 1, "stage": [{"operations": "F0 B0", "chunks": [0]}, {"operations": "F0 B0", "chunks": [0]}]}
    with pytest.raises(UsageError, match="chunks must be 0, 1, 2"):
        parse_schedule(data)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100000, '{"micro_batches": 1e99}'])
def test_broken_json(tmp_path, text):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_schedule(path)


def test_a_file_that_would_not_fit_in_memory():
    with pytest.raises(UsageError, match="more than the 4,000,000"):
        parse_schedule(GOOD | {"micro_batches": 10**9})
