"""`parlay show` from the outside: the worked examples of the lesson "Sequence, context and expert parallelism", as it prints them."""

import re

import pytest

# Worked example (c): by round, by rank: K/V held, pairs and their count.
ZIGZAG = [
    ["{0,7} (0,0) (7,0) (7,7) = 3", "{1,6} (1,1) (6,1) (6,6) = 3", "{2,5} (2,2) (5,2) (5,5) = 3", "{3,4} (3,3) (4,3) (4,4) = 3"],
    ["{3,4} (7,3) (7,4) = 2", "{0,7} (1,0) (6,0) = 2", "{1,6} (2,1) (5,1) = 2", "{2,5} (3,2) (4,2) = 2"],
    ["{2,5} (7,2) (7,5) = 2", "{3,4} (6,3) (6,4) = 2", "{0,7} (2,0) (5,0) = 2", "{1,6} (3,1) (4,1) = 2"],
    ["{1,6} (7,1) (7,6) = 2", "{2,5} (6,2) (6,5) = 2", "{3,4} (5,3) (5,4) = 2", "{0,7} (3,0) (4,0) = 2"],
]


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_ring_zigzag_is_the_table_of_the_lesson(parlay):
    ran = parlay("show", "ring", "--ranks", 4, "--seq", 8, "--layout", "zigzag")
    assert (ran.code, ran.err) == (0, "")
    lines = words(ran.out)
    rows = [re.search(r"(\{\d,\d\} )(\{.* = \d)", line).group(2) for line in lines if " = " in line and line.count("{") == 2]
    assert rows == [cell for row in ZIGZAG for cell in row]
    assert lines[lines.index("round rank 0 rank 1 rank 2 rank 3 round time") + 1 :][:5] == [
        "0 3 3 3 3 3", "1 2 2 2 2 2", "2 2 2 2 2 2", "3 2 2 2 2 2", "total 9 9 9 9 9",
    ]  # fmt: skip
    assert "36 pairs; the ring takes 9 pair-times, at best 36 / 4 = 9; ranks idle 0.0% of it" in lines
    assert all(len(line) <= 80 for line in ran.out.splitlines()[:-1])


def test_ring_contiguous_and_without_a_mask(parlay):
    lines = words(parlay("show", "ring", "--layout", "contiguous").out)
    assert lines[-7:-2] == ["0 3 3 3 3 3", "1 0 4 4 4 4", "2 0 0 4 4 4", "3 0 0 0 4 4", "total 3 7 11 15 15"]
    assert lines[-1] == "36 pairs; the ring takes 15 pair-times, at best 36 / 4 = 9; ranks idle 40.0% of it"
    whole = parlay("show", "ring", "--layout", "striped", "--no-causal", "--json").document["ring"]
    assert (whole["work"], whole["time"], whole["idle_share"]) == ([16] * 4, 16, 0)


def test_a_long_ring_counts_only(parlay):
    shown = parlay("show", "ring", "--ranks", 3, "--seq", 100, "--layout", "striped").out
    assert "{1,4,7,...,97}" in shown
    assert "at best 5,050 / 3 = 1,683.3" in shown
    assert "(0,0)" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "--layout", "spiral"], "unknown layout 'spiral'"),
        (["ring", "--ranks", "9", "--seq", "8"], "8 tokens over 9 ranks leave a rank without tokens"),
        (["ring", "--ranks", "0"], "--ranks"),
        (["rings"], "no such command 'rings'"),
    ],
)
def test_asked_wrongly(parlay, arguments, message):
    ran = parlay("show", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
