"""What a layer keeps: the split parts and the whole ones together, and the same bytes on the wire as the collectives send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.formulas.collectives import all_reduce_sent_bytes
from parlay.simulate.show_layers import layer_memory

few = settings(max_examples=40, deadline=None)


@few
@given(s=st.integers(1, 9999), h=st.integers(1, 9999), t=st.integers(1, 64), layers=st.integers(1, 99))
def test_parts_and_whole(s, h, t, layers):
    shown = layer_memory(s, h, tensor=t, layers=layers)
    assert shown.tensor_and_sequence_bytes * t == pytest.approx(shown.whole_bytes)
    replicated = shown.replicated_share * shown.tensor_bytes
    assert replicated + t * (shown.tensor_bytes - replicated) == pytest.approx(shown.whole_bytes)
    assert replicated == pytest.approx(10 * s * h)
    assert shown.saving * shown.tensor_and_sequence_bytes == pytest.approx(shown.tensor_bytes)
    assert shown.all_tensor_bytes == pytest.approx(layers * shown.tensor_bytes)
    assert shown.sent_bytes == pytest.approx(float(2 * all_reduce_sent_bytes(t, 2 * s * h)))


def test_refuses_what_has_no_size():
    with pytest.raises(UsageError, match="sizes and counts must be > 0"):
        layer_memory(0, 1, tensor=1)
