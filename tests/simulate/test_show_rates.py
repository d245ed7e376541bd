"""Worked examples (b), (d) and (e) of the lesson "Sequence, context and expert parallelism", to the digits that it prints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.formulas import activations
from parlay.simulate.show_rates import block_sizes, expert_exchange, layer_traffic

H100, NVLINK, INFINIBAND = 989e12, 450e9, 50e9


def test_example_b():
    kept = [activations.korthikanti_layer(8192, 4096, tensor=t, sequence_parallel=sp) for t, sp in ((1, 0), (8, 0), (8, 1))]
    assert [f"{kept[0] / 1e9:.2f} GB", f"{kept[1] / 1e6:.0f} MB", f"{kept[2] / 1e6:.0f} MB"] == ["1.14 GB", "436 MB", "143 MB"]
    assert [f"{32 * each / 1e9:.1f} GB" for each in kept[1:]] == ["14.0 GB", "4.6 GB"]
    assert (f"{10 / 13:.0%}", f"{kept[1] / kept[2]:.1f}") == ("77%", "3.1")


@pytest.mark.parametrize(
    ("link", "group", "megabytes", "milliseconds", "hidden"),
    [(NVLINK, 1, "268", "0.60", True), (INFINIBAND, 1, "268", "5.37", False), (INFINIBAND, 4, "67", "1.34", True)],
)
def test_example_d(link, group, megabytes, milliseconds, hidden):
    (block,) = block_sizes([16384], flops_per_s=H100, link_bytes_per_s=link, query_width=4096, queries_per_kv=group).blocks
    assert (f"{block.flops:.2e}", f"{block.compute_s * 1e3:.2f}") == ("4.40e+12", "4.45")
    assert (f"{block.transfer_bytes / 1e6:.0f}", f"{block.transfer_s * 1e3:.2f}", block.hidden) == (
        megabytes,
        milliseconds,
        hidden,
    )


def test_example_d_per_layer():
    traffic = layer_traffic(8, 131072, query_width=4096)
    assert (f"{traffic.ring_bytes / 1e9:.2f} GB", f"{traffic.ulysses_bytes / 1e6:.0f} MB") == ("1.88 GB", "470 MB")
    assert traffic.ring_over_ulysses == 4


def test_example_e():
    shown = [
        expert_exchange(8, 8192, 2, hidden=4096, expert_width=14336, flops_per_s=H100, link_bytes_per_s=link)
        for link in (NVLINK, INFINIBAND)
    ]
    assert [f"{each.sent_bytes / 1e6:.0f} MB" for each in shown] == ["235 MB"] * 2
    assert [f"{each.exchange_s * 1e3:.2f} ms" for each in shown] == ["0.52 ms", "4.70 ms"]
    assert (shown[0].copies, f"{shown[0].expert_flops / shown[0].copies / 1e6:.0f}") == (16384, "352")
    assert (f"{shown[0].expert_flops:.2e}", f"{shown[0].expert_s * 1e3:.2f} ms") == ("5.77e+12", "5.84 ms")
    assert [f"{each.exchange_over_compute:.2f}" for each in shown] == ["0.09", "0.80"]
    assert [each.exchange_s / each.expert_s for each in shown] == pytest.approx([each.exchange_over_compute for each in shown])


def test_minimum_blocks_of_the_lesson():
    """Its code prints 2198 and 19780, its quick check 5,000 (causal, g = 4, 500 TFLOP/s), its answer about 4,900 (4,945)."""
    nvlink, infiniband = (
        block_sizes([1], flops_per_s=H100, link_bytes_per_s=link, query_width=64) for link in (NVLINK, INFINIBAND)
    )
    assert (round(nvlink.crossing_tokens), round(infiniband.crossing_tokens)) == (2198, 19780)
    check = block_sizes([1], flops_per_s=500e12, link_bytes_per_s=INFINIBAND, query_width=64, queries_per_kv=4, causal=True)
    assert check.crossing_tokens == 5000
    grouped = block_sizes([1], flops_per_s=H100, link_bytes_per_s=INFINIBAND, query_width=64, queries_per_kv=4)
    assert grouped.crossing_tokens == 4945
    assert grouped.crossing_backward_tokens == pytest.approx(0.8 * 4945)


@settings(max_examples=25, deadline=None)
@given(crossing=st.integers(2, 10**5), g=st.sampled_from([1, 2, 8]), causal=st.booleans(), width=st.sampled_from([64, 4096]))
def test_a_block_is_hidden_from_the_crossing_on(crossing, g, causal, width):
    rate = crossing * g * (0.5 if causal else 1) * 1e9
    given_ = {"flops_per_s": rate, "link_bytes_per_s": 1e9, "query_width": width, "queries_per_kv": g, "causal": causal}
    shown = block_sizes([crossing - 1, crossing + 1], **given_)
    assert [each.hidden for each in shown.blocks] == [False, True]
    assert shown.crossing_tokens == pytest.approx(crossing)


def test_refuses_what_has_no_time():
    with pytest.raises(UsageError, match="block sizes, widths and rates must be > 0"):
        block_sizes([0], flops_per_s=1, link_bytes_per_s=1, query_width=1)
    with pytest.raises(UsageError, match="a width of 6 does not divide into groups of 4 query heads"):
        block_sizes([1], flops_per_s=1, link_bytes_per_s=1, query_width=6, queries_per_kv=4)
    with pytest.raises(UsageError, match="at least two ranks, and sizes > 0"):
        layer_traffic(1, 8, query_width=4)
    with pytest.raises(UsageError, match="counts, sizes and rates must be > 0"):
        expert_exchange(8, 0, 2, hidden=1, expert_width=1, flops_per_s=1, link_bytes_per_s=1)
