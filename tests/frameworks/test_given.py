import pytest

from parlay.errors import UsageError
from parlay.frameworks.given import MOST_SETTINGS, Given, flat


def test_each_question_marks_its_setting_and_the_rest_is_listed():
    given = Given({"a": "2", "lr": 1e-4, "odd": [1, 2]}, "f")
    assert given.whole("a") == 2
    found = given.imported("X", {}, ignore=["lr"], notes=["said"])
    assert (found.understood, found.ignored, found.not_understood, found.notes) == (("a",), ("lr",), ("odd = [1, 2]",), ("said",))


def test_a_variable_without_a_value_is_not_a_value():
    given = Given({"--tp": "$TP"}, "f")
    assert given.whole("--tp") is None
    assert given.imported("X", {}, ignore=["--tp"], notes=[]).not_understood == ("--tp $TP",)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("eight", "whole"),
        (True, "whole"),
        (2.5, "whole"),
        (-1, "whole"),
        ([1], "number"),
        ("maybe", "switch"),
        ({}, "text"),
        ("9" * 50, "number"),
        (float("nan"), "whole"),
        (float("inf"), "whole"),
        (float("inf"), "number"),
        ("1e400", "number"),
    ],
)
def test_a_wrong_type_names_file_and_setting(value, kind):
    with pytest.raises(UsageError, match=r"file: n: expected "):
        getattr(Given({"n": value}, "file"), kind)("n")


def test_a_deep_or_long_table_is_refused():
    deep: dict = {}
    for _ in range(30):
        deep = {"x": deep}
    with pytest.raises(UsageError, match="too deeply"):
        flat(deep, "file")
    with pytest.raises(UsageError, match="settings"):
        flat({str(i): i for i in range(MOST_SETTINGS + 1)}, "file")
