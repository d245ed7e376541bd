"""The expected range: it holds what it says it holds, for models that the record does not know."""

import collections
import dataclasses

import numpy as np
import pytest

from parlay.estimate import record
from parlay.estimate.estimate import estimate
from parlay.estimate.record import FAR, LEAST_SPREAD, expected
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.sources import expected_lines
from parlay.report.table import Page


@pytest.fixture(scope="module")
def runs():
    return record.record()


def model_of(name):
    return name.split(" on ")[0]


def test_eight_in_ten_runs_lie_in_the_range_that_the_record_without_their_model_gives(runs, monkeypatch):
    by_model = collections.defaultdict(list)
    for run in runs:
        by_model[model_of(run[1])].append(run)
    held = collections.defaultdict(list)
    for model, own in by_model.items():
        others = tuple(run for run in runs if model_of(run[1]) != model)
        columns = record.Columns.of([features for features, _, _ in others])
        monkeypatch.setattr(record, "record", lambda others=others: others)
        monkeypatch.setattr(record, "columns", lambda columns=columns: columns)
        for features, name, ratio in own:
            range_ = expected(features)
            held[name].append(range_.low <= ratio <= range_.high)
    assert 0.78 < np.mean([np.mean(each) for each in held.values()]) < 0.85  # a benchmark of every release counts once


def test_the_range_holds_the_nearest_run_and_is_never_narrow(runs):
    for features, name, _ in runs[::20]:
        found = expected(features)
        assert found.low <= 1 - LEAST_SPREAD < 1 + LEAST_SPREAD <= found.high
        same = [r for _, other, r in runs if other == found.nearest]
        assert found.distance == 0
        assert any(found.low <= r <= found.high for r in same), name


def test_a_case_unlike_all_runs_is_far(runs):
    features = runs[0][0]
    odd = dataclasses.replace(features, device="gaudi3", architecture="gaudi", width="fp4", framework="hai-llm")
    assert not expected(features).far
    assert expected(odd).far
    assert expected(odd).distance > FAR


def test_without_a_record_nothing_is_expected(runs, monkeypatch):
    monkeypatch.setattr(record, "record", lambda: ())
    assert expected(runs[0][0]) is None


def test_a_layout_on_the_host_is_told_that_no_run_near_it_was():
    """Seven of the packaged runs keep something on the host, all of others; the nearest of a 70B on one node keep nothing."""
    model, where, work = load_model("llama-3.1-70b"), load_cluster("dgx-h100"), Workload(global_batch=8)
    plain, hosted = (estimate(model, where, work, Layout(tp=8, offload_optimizer=share)) for share in (0.0, 1.0))
    assert (plain.expected.hosted_alike, hosted.expected.hosted_alike) == (20, 0)
    assert hosted.expected.distance > plain.expected.distance
    assert "put anything on the host" in "\n".join(expected_lines(hosted, Page(300)))
    assert "on the host" not in "\n".join(expected_lines(plain, Page(300)))
