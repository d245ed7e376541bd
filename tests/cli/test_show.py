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


def test_ulysses_grids_and_copies(parlay):
    lines = words(parlay("show", "ulysses", "--ranks", 4, "--heads", 8, "--kv-heads", 4, "--seq", 8).out)
    assert "0 0 0 0 0 0 0 0 0 0 0 1* 1* 2* 2* 3* 3*" in lines  # token 0: all its heads on rank 0, then two of them
    assert "7 3 3 3 3 3 3 3 3 0* 0* 1* 1* 2* 2* 3 3" in lines
    assert "3 6,7 3 12 12" in lines  # rank 3: query heads 6 and 7, K/V head 3
    assert "no K/V head is copied; without copies at most 4 ranks." in " ".join(lines)
    copied = parlay("show", "ulysses", "--ranks", 4, "--kv-heads", 2)
    assert "one lies on up to 2 ranks; without copies at most 2 ranks" in " ".join(words(copied.out))
    # The lesson's quick check: 32 query heads and 8 K/V heads on 16 ranks need copies.
    shown = parlay("show", "ulysses", "--ranks", 16, "--heads", 32, "--kv-heads", 8, "--seq", 16, "--json").document["ulysses"]
    assert (shown["kv_copies"], shown["largest_without_copies"]) == (2, 8)


def test_sp_is_example_a_and_b(parlay):
    out = parlay("show", "sp").out
    lines = words(out)
    alone, both = lines.index("tensor parallelism alone"), lines.index("tensor + sequence parallelism")
    assert lines[alone + 2 : alone + 4] == [
        "all-reduce 0 (1, 2, 3, 4) (11, 22, 33, 44) 4",
        "1 (10, 20, 30, 40) (11, 22, 33, 44) 4",
    ]
    assert lines[both + 2 : both + 4] == ["reduce-scatter 0 (1, 2, 3, 4) (11, 22) 2", "1 (10, 20, 30, 40) (33, 44) 2"]
    assert lines[both + 4 : both + 6] == ["all-gather 0 (11, 22) (11, 22, 33, 44) 2", "1 (33, 44) (11, 22, 33, 44) 2"]
    assert "of 4 tokens and keeps them; it sends 4 elements, 8 B" in lines[alone + 4]
    assert "of 2 tokens and keeps them; it sends 4 elements, 8 B" in lines[both + 6]
    # (b), which prints 1.14 GB, 436 MB, 14.0 GB, 143 MB, 4.6 GB, 77 % and 3.1
    kept = next(i for i, line in enumerate(lines) if line.startswith("kept for backward"))
    assert lines[kept + 1 : kept + 4] == ["nothing split 1.14 GB 36.5 GB", "TP 436 MB 14.0 GB", "TP + SP 143 MB 4.56 GB"]
    memory = parlay("show", "sp", "--json").document["memory"]
    assert f"{memory['all_tensor_and_sequence_bytes'] / 1e9:.1f} GB" == "4.6 GB"
    assert (f"{memory['replicated_share']:.0%}", f"{memory['saving']:.1f}") == ("77%", "3.1")


def test_sp_of_check_yourself_2(parlay):
    """The lesson: width 5,120, 4,096 tokens, four GPUs: 336 and 178 MB."""
    lines = words(parlay("show", "sp", "--tp", 4, "--hidden", 5120, "--seq", 4096, "--layers", 1).out)
    assert "TP 336 MB 336 MB" in lines
    assert "TP + SP 178 MB 178 MB" in lines
    assert "attention 4,096 x 1,280 heads 4,096 x 1,280 heads" in lines
    assert "norm 4,096 x 5,120 nothing 1,024 x 5,120 tokens" in lines


def test_block_size_is_example_d(parlay):
    """Prints 4.40e12 FLOP, 4.45 ms, 268 MB, 0.60 ms hidden; 5.37 ms not hidden; 67 MB, 1.34 ms hidden; 1.88 GB and 470 MB."""
    found = {}
    for name, extra in {"nvlink4": (), "ib-ndr": (), "gqa": ("--queries-per-kv", 4)}.items():
        ran = parlay("show", "block-size", "--link", "nvlink4" if name == "nvlink4" else "ib-ndr", *extra)
        found[name] = words(ran.out)
    assert "* 16,384 4.40e12 4.45 268 MB 0.60 hidden" in found["nvlink4"]
    assert "* 16,384 4.40e12 4.45 268 MB 5.37 exposed" in found["ib-ndr"]
    assert "* 16,384 4.40e12 4.45 67.1 MB 1.34 hidden" in found["gqa"]
    for name, crossing in (("nvlink4", "2,198"), ("ib-ndr", "19,780"), ("gqa", "4,945")):
        lines = found[name]
        mark = lines.index(f"-> {crossing} as long")
        assert lines[mark - 1].endswith("exposed")
        assert lines[mark + 1].endswith("hidden")
    whole = " ".join(found["ib-ndr"])
    assert "the ring sends 1.88 GB a GPU, Ulysses 470 MB, which nothing hides (ring / Ulysses = 4)" in whole


def test_the_smallest_block_is_rounded_up(parlay):
    """989e12 / 470e9 = 2,104.26: 2,104 tokens compute for less long than their transfer takes, 2,105 hide it."""
    ran = parlay("show", "block-size", "--link", "470GB/s").out
    assert "-> 2,105 " in ran
    assert "hides: 2,105 tokens, in the backward pass 1,684" in ran
    found = parlay("show", "block-size", "--link", "470GB/s", "--json").document["block_sizes"]
    assert 2104 < found["crossing_tokens"] < 2105
    for tokens, hidden in ((2104, False), (2105, True)):
        row = parlay("show", "block-size", "--link", "470GB/s", "--ranks", 2, "--seq", 2 * tokens, "--json").document
        assert next(b["hidden"] for b in row["block_sizes"]["blocks"] if b["tokens"] == tokens) is hidden


def test_block_size_of_the_quick_check(parlay):
    """The lesson: causal, g = 4, 50 GB/s and 500 TFLOP/s: 5,000 tokens."""
    ran = parlay(
        "show", "block-size", "--link", "50GB/s", "--queries-per-kv", 4, "--causal", "--flops-per-s", "500TFLOP/s", "--json"
    )
    assert ran.document["block_sizes"]["crossing_tokens"] == 5000
    assert parlay("show", "block-size", "--hidden", 64, "--json").document["block_sizes"]["crossing_tokens"] == pytest.approx(
        2197.78, abs=0.01
    )


def test_experts_is_example_e(parlay):
    """Prints 235 MB, 0.52 and 4.70 ms; 5.77e12 FLOP, 5.84 ms; ratios 0.09 and 0.80."""
    lines = words(parlay("show", "experts").out)
    assert "nvlink4 235 MB 0.52 5.77e12 5.84 0.09" in lines
    assert "ib-ndr 235 MB 4.70 5.77e12 5.84 0.80" in lines


def test_experts_drop_and_wait(parlay):
    ran = parlay("show", "experts", "--gpus", 8, "--experts", 8, "--skew", 1, "--capacity", 1.25, "--tokens", 1000, "--json")
    load = ran.document["load"]
    assert load["capacity"] == 1.25 * 2 * 8000 / 8
    assert max(load["computed"]) == load["capacity"] < max(load["wanted"])
    assert sum(load["computed"]) + sum(load["dropped"]) == sum(load["wanted"]) == 16000
    free = words(parlay("show", "experts", "--skew", 1, "--tokens", 1000).out)
    assert free[0] == "8 experts on 8 GPUs, 1,000 tokens a GPU, no capacity limit"
    assert any(line.endswith("0.0% of the copies are dropped") for line in free)
    assert parlay("show", "experts", "--seed", 1, "--json").out != parlay("show", "experts", "--json").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "--layout", "spiral"], "unknown layout 'spiral'"),
        (["ring", "--ranks", "9", "--seq", "8"], "8 tokens over 9 ranks leave a rank without tokens"),
        (["ring", "--ranks", "0"], "--ranks"),
        (["ulysses", "--ranks", "9"], "Ulysses over 9 ranks needs at least 9 query heads, got 8"),
        (["sp", "--partial", "1,x"], "'1,x' is not a list of numbers"),
        (["sp", "--partial", "1,nan"], "'1,nan' is not a list of numbers"),
        (["sp", "--partial", "1,2", "--partial", "1"], "every GPU holds a partial sum of the same tokens"),
        (["experts", "--capacity", "0"], "the capacity factor > 0"),
        (["experts", "--top-k", "9"], "top-9 of 8 experts"),
        (["experts", "--experts", "4096", "--tokens", "1000000"], "are more than the"),
        (["ring", "--ranks", "1000", "--seq", "4000000"], "are more than the"),
        (["block-size", "--link", "nvlnk4"], "nvlink4"),
        (["block-size", "--link", "50GB"], "not a quantity in bytes/s"),
        (["block-size", "--flops-per-s", "0"], "must be finite and greater than zero"),
        (["block-size", "--queries-per-kv", "3"], "does not divide into groups of 3"),
        (["block-size", "--ranks", "8", "--seq", "7"], "leave a rank without tokens"),
        (["rings"], "no such command 'rings'"),
    ],
)
def test_asked_wrongly(parlay, arguments, message):
    ran = parlay("show", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
