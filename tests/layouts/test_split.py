import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.layouts.split import BY_RULE, chunk_count, chunk_sizes, chunks_of_stage
from parlay.layouts.vocabulary import SCHEDULES

EVEN = (BY_RULE, BY_RULE)


@pytest.mark.parametrize(
    ("layers", "stages", "virtual", "ends", "expected"),
    [
        (32, 4, 1, EVEN, [8, 8, 8, 8]),
        (126, 16, 1, EVEN, [7, *[8] * 14, 7]),  # Llama 3 405B: one layer less on the first and last stage (report, 3.3.2)
        (94, 4, 1, (BY_RULE, 22), [24, 24, 24, 22]),  # Qwen3-235B with an explicit last stage
        (46, 4, 1, EVEN, [11, 12, 12, 11]),  # GLM-4.5-Air, 46 = 2 x 23
        (24, 8, 1, (4, 0), [4, 3, 3, 3, 3, 4, 4, 0]),  # a last stage that holds the head alone
        (80, 4, 5, EVEN, [4] * 20),
        (126, 16, 8, EVEN, [0, *[1] * 126, 0]),
    ],
)
def test_splits_that_real_runs_use(layers, stages, virtual, ends, expected):
    assert chunk_sizes(layers, stages, virtual, *ends) == expected


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 8))
def test_every_layer_goes_to_one_chunk_and_no_middle_chunk_differs_by_more_than_one(layers, stages, virtual):
    sizes = chunk_sizes(layers, stages, virtual)
    assert len(sizes) == stages * virtual
    assert sum(sizes) == layers
    assert min(sizes) >= 0
    middle = sizes[1:-1]
    assert not middle or max(middle) - min(middle) <= 1
    assert max(sizes) - max(middle, default=max(sizes)) <= 1


@given(st.integers(2, 64), st.integers(1, 8), st.integers(0, 10), st.integers(0, 10))
def test_explicit_ends_are_kept(stages, virtual, first, last):
    layers = first + last + 3 * (stages - 2) * virtual
    if stages == 2:
        layers = first + last
    sizes = chunk_sizes(layers, stages, virtual, first, last)
    assert sum(sizes) == layers
    assert sum(sizes[0::stages]) == first
    assert sum(sizes[stages - 1 :: stages]) == last


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "virtual"), [(2, 2), (4, 2), (8, 2)])
def test_the_stages_hold_every_chunk(schedule, stages, virtual):
    v = 1 if schedule == "dualpipe" else virtual  # DualPipe cuts the model in one chunk a stage and keeps each twice
    held = [c for s in range(stages) for c in chunks_of_stage(s, stages, v, schedule)]
    copies = 2 if schedule == "dualpipe" else 1
    assert sorted(held) == sorted(list(range(chunk_count(stages, v, schedule))) * copies)
