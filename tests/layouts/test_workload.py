"""Workload: dates as people and TOML write them."""

import tomllib
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from parlay.layouts.workload import Workload


@pytest.mark.parametrize("given", [
    "2024-07-31T00:00:00", "2024-07-31 23:59", "2024-07-31T10:00:00Z", "20240731T100000", datetime(2024, 7, 31, 10),
    datetime(2024, 7, 31, 23, tzinfo=UTC), *tomllib.loads("days = [2024-07-31, 2024-07-31T10:00:00Z, 2024-07-31T10:00:00]")["days"],
])  # fmt: skip
def test_a_date_with_a_time_is_its_day(given):
    assert Workload(framework_date=given).framework_date == "2024-07-31"


@pytest.mark.parametrize("given", ["2024-07-31T25:00:00", "2024-07-31T", "10:00:00", "2024", ""])
def test_what_is_no_date_is_refused(given):
    with pytest.raises(ValidationError, match=f"'{given}' is not a date; write it like 2025-11-30"):
        Workload(framework_date=given)
