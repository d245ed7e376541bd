"""The expected range: it holds what it says it holds, for models that the record does not know."""

import collections
import dataclasses

import numpy as np
import pytest

from parlay.estimate import record
from parlay.estimate.record import FAR, LEAST_SPREAD, expected


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
