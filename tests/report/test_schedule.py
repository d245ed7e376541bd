"""Drawings and traces show what the timeline says."""

import itertools
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from parlay.report.schedule import CUT, drawing_lines, schedule_document, schedule_lines
from parlay.report.schedule_files import MOST_RECTANGLES, svg, trace_events
from parlay.report.table import Page
from parlay.schedules import NAMES, Costs, build, simulate
from parlay.schedules.summary import summarise


def timed(name, p, m, *times, **options):
    s = build(name, p, m, **options)
    return simulate(s, Costs.per_stage(s, *(times or (1.0, 2.0, 1.0))))


def rows(lines):
    return [line.split("|", 1)[1].rstrip("|") for line in lines if line.startswith("stage ")]


def test_a_small_drawing_to_the_character():
    assert drawing_lines(timed("1f1b", 2, 3), Page()) == [
        "1f1b: 2 stages, 3 micro-batches",
        "stage 0 |F0-F1-......B0====F2-B1====...B2====|",
        "stage 1 |...F0-B0====F1-B1====F2-B2====......|",
        "one column = 0.333 s",
    ]


def test_split_backwards_and_second_chunks_look_different_without_colour():
    first = rows(drawing_lines(timed("zb-v", 2, 4), Page()))[0]
    for piece in ("F0-", "f0-", "b0=", "w0~", "B0=", "W0~"):
        assert piece in first


def test_an_overlapped_pair_names_both():
    assert "F3+b5====" in rows(drawing_lines(timed("dualpipe", 4, 8), Page()))[0]


@pytest.mark.parametrize("width", [40, 80, 130])
@pytest.mark.parametrize("m", [4, 64, 512])
def test_a_drawing_fits_the_page(width, m):
    t = timed("1f1b", 4, m)
    lines = drawing_lines(t, Page(width))
    drawn = rows(lines)
    assert max(len(line) for line in lines if line.startswith("stage")) <= width
    assert len({len(r) for r in drawn}) == 1
    if m == 512:
        assert all(CUT in r for r in drawn)
        assert "left out" in lines[-1]
        assert "B511" in drawn[0]  # the end is there


def test_idle_columns_are_the_idle_time():
    t = timed("gpipe", 4, 4)
    for r, row in enumerate(rows(drawing_lines(t, Page()))):
        assert row.count(".") == 3 * t.idle_s[r]  # three columns a second


def test_several_schedules_share_a_scale():
    many = [timed("1f1b", 4, 8), timed("zb-h1", 4, 8)]
    lines = schedule_lines(many, [summarise(t) for t in many], Page())
    lengths = [len(r) for r in rows(lines)]
    assert lengths[0] / lengths[-1] == pytest.approx(many[0].step_s / many[1].step_s, rel=0.02)
    text = "\n".join(lines)
    assert "27.27" in text  # 9 of 33
    assert "11.11" in text  # 3 of 27


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_has_every_operation_once_and_arrows_for_transfers(name):
    t = timed(name, 4, 8, 1.0, 2.0, 1.0, 0.25)
    trace = json.loads(json.dumps(trace_events(t), allow_nan=False))
    events = trace["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert sum(e["name"].count("+") + 1 for e in complete) == len(t.schedule)
    for stage in range(4):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in complete if e["tid"] == stage)
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(own))  # viewers nest what overlaps
    assert max(e["ts"] + e["dur"] for e in complete) == pytest.approx(t.step_s * 1e6)
    starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == int(np.sum(t.sender >= 0))
    assert all(starts[i]["ts"] < ends[i]["ts"] and starts[i]["tid"] != ends[i]["tid"] for i in starts)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {f"stage {r}" for r in range(4)}


def test_svg_is_well_formed_and_draws_every_operation():
    t = timed("dualpipev", 4, 8)
    root = ElementTree.fromstring(svg([t, timed("1f1b", 4, 8)]))
    drawn = [e for e in root.iter() if e.tag.endswith("rect") and e.get("class") == "op" and len(e)]
    assert len(drawn) == len(t.schedule) + 64
    assert {e.get("fill") for e in root.iter() if (e.get("fill") or "").startswith("url")} == {"url(#stripes)", "url(#dots)"}


def test_a_huge_svg_is_thinned_and_says_so():
    text = svg(timed("1f1b", 16, 2048))
    assert text.count('class="op"') <= MOST_RECTANGLES + 100
    assert "operation drawn" in text


def test_the_document():
    t = timed("interleaved", 2, 4, virtual=2)
    d = schedule_document([t], [summarise(t)])["schedules"][0]
    assert d["step_s"] == t.step_s
    assert [len(x["kind"]) for x in d["operations"]] == [16, 16]
    assert d["operations"][1]["chunks"] == [1, 3]
    assert d["critical_path"][0] == {"stage": 0, "operation": "F0.0"}
    json.dumps(d, allow_nan=False)
