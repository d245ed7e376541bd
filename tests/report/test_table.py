"""Tables fit the page they are given, and no cell is cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.report.table import Column, Page, broken, fields, render, wrap

COLUMNS = [
    Column("layout", right=False),
    Column("tokens a second"),
    Column("MFU %", drop=2),
    Column("because", right=False, text=True),
]
ROWS = [["tp8.pp2.dp4", "1,026", "44.9", "the worst stage must stay within what the device can allocate"]]


def test_without_a_width_every_column_stands_in_one_line():
    assert render(COLUMNS, ROWS, Page()) == [
        "layout       tokens a second  MFU %  because",
        "tp8.pp2.dp4            1,026   44.9  the worst stage must stay within what the device can allocate",
    ]


def test_headers_and_texts_are_broken_before_a_column_goes():
    lines = render(COLUMNS, ROWS, Page(60))
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["layout", "tokens", "MFU", "because"]
    assert "left out" not in " ".join(lines)
    assert " ".join(" ".join(lines).split()).count("44.9") == 1


def test_what_is_left_out_is_named():
    lines = render(COLUMNS, ROWS, Page(46))
    assert lines[-1] == "(left out for width: MFU %)"
    assert max(map(len, lines)) <= 46


@given(st.text(alphabet="ab /_-.", max_size=60), st.integers(3, 40))
@settings(max_examples=100, deadline=None)
def test_breaking_keeps_every_letter(text, width):
    lines = broken(text, width)
    assert all(len(line) <= width for line in lines) or lines == [text]
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_command_lines_continue_with_a_backslash():
    lines = wrap("parlay estimate llama-3.1-70b --on dgx-h100", Page(24), hang="  ", end=" \\")
    assert all(len(line) <= 24 for line in lines)
    assert [line.endswith(" \\") for line in lines] == [True] * (len(lines) - 1) + [False]
    assert "".join(lines).replace(" \\", "").split() == ["parlay", "estimate", "llama-3.1-70b", "--on", "dgx-h100"]


def test_fields_hang_under_their_value():
    assert fields([("name", "one two three four five six"), ("id", "x")], Page(26)) == [
        "name  one two three four",
        "      five six",
        "id    x",
    ]


def test_styles_only_where_they_are_allowed():
    assert render(COLUMNS[:1], [["x"]], Page(80, styled=True))[0] == "\x1b[1mlayout\x1b[0m"
    assert "\x1b" not in "".join(render(COLUMNS, ROWS, Page(30)))
