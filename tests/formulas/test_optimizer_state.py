"""State bytes against what the frameworks' own estimators print."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.formulas import optimizer_state as state
from parlay.formulas._check import FormulaDomainError

LLAMA_2_7B = 6_738_415_616


def test_megatron_estimator():
    """Megatron-LM issue 654: 18 bytes a parameter, 7.5 with the distributed optimizer over 8 ranks."""
    got = state.zero_state(LLAMA_2_7B, stage=[0, 1], shards=8, gradient_bytes=4)
    assert got.tolist() == [121_291_481_088, 50_538_117_120]


def test_bf16_gradients_save_two_bytes():
    """Megatron-LM pull request 1345."""
    assert state.zero_state(1, stage=1, shards=8, gradient_bytes=2) == 5.5


def test_an_estimator_that_printed_mebibytes():
    """FlagScale pull request 454: 4105.5M parameters on a rank, two data-parallel ranks: 46983.7 MiB."""
    assert state.zero_state(4_105_500_000, stage=1, shards=2, gradient_bytes=4) / 2**20 == pytest.approx(46983.7, rel=1e-3)


def test_deepspeed_estimators():
    """DeepSpeed pull request 965 (ZeRO-3, 6.09 GiB) and patch 5099 (ZeRO-2: 2P + 18P/D)."""
    assert state.zero_infinity_estimate(2851e6, 32e6, shards=8) / 2**30 == pytest.approx(6.09, abs=0.005)
    assert state.zero_state(7e9, stage=2, shards=8, step_gradient_bytes=4) == 29_750_000_000


def test_megatron_deepspeed_and_fsdp_tables():
    d = 64.0
    assert state.zero_state(1, stage=1, shards=d) == 4 + 12 / d
    assert state.zero_state(1, stage=2, shards=d) == 2 + 14 / d
    assert state.zero_state(1, stage=3, shards=d) == 16 / d
    assert state.zero_state(1, stage=3, shards=d, weight_bytes=4, gradient_bytes=4, master_bytes=0) == 16 / d


def test_fp32_main_weights_that_are_the_weights():
    """Megatron-LM pull request 157 (fork): a 16,777,216-element shard: 12 bytes with a separate main copy, 8 of moments and 4."""
    n = 16_777_216
    assert state.sharded_bytes(n, 4 + 8) == 201_326_592
    assert state.sharded_bytes(n, 8) == 134_217_728


def test_mixed_precision_holds_more_than_fp32():
    """Megatron-LM issue 1349: 16 against 18 bytes."""
    assert state.zero_state(1, stage=0, shards=1, weight_bytes=4, gradient_bytes=4, master_bytes=0) == 16
    assert state.zero_state(1, stage=0, shards=1, gradient_bytes=4) == 18


@settings(max_examples=50)
@given(p=st.integers(1, 10**12), d=st.integers(1, 1024), z=st.integers(0, 3))
def test_a_higher_stage_never_holds_more_and_one_shard_is_no_sharding(p, d, z):
    held = state.zero_state(p, stage=np.arange(4), shards=d)
    assert (np.diff(held) <= 1e-6 * held[0]).all()
    assert state.zero_state(p, stage=z, shards=1) == state.zero_state(p, stage=0, shards=1)


@given(d=st.integers(1, 1024))
def test_zero_state_is_the_sum_of_its_kinds(d):
    whole = state.zero_state(1e9, stage=1, shards=d, gradient_bytes=4)
    assert whole == pytest.approx(
        state.sharded_bytes(1e9, 2)
        + state.sharded_bytes(1e9, 4)
        + state.sharded_bytes(1e9, 4, shards=d)
        + state.sharded_bytes(1e9, 8, shards=d)
    )


def test_low_precision_moments():
    assert state.blockwise_moments(256) == 2 * (256 + 4)
    assert state.factored_moments(28672, 8192, matrices=3) == 3 * (28672 + 8192) * 4


def test_quantised_copies():
    """Hopper keeps both directions; mxfp8 both everywhere: 2.0625 bytes; nvfp4 packs two a byte."""
    assert state.quantised_copies(1024) == 2048
    assert state.quantised_copies(1024, block=32, scale_bytes=1) == 2112
    assert state.quantised_copies(1024, copies=1, block=16, element_bytes=0.5, scale_bytes=1) == 576


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state.zero_state(1, stage=4, shards=1), "`stage` must be >= 0 and <= 3, got 4"),
        (lambda: state.zero_state(1, stage=[1, 1.5], shards=1), r"`stage` must be a whole number, got 1.5 at index \(1,\)"),
        (lambda: state.sharded_bytes(1, 1, shards=0), "`shards`"),
        (lambda: state.blockwise_moments(1, block=0), "`block`"),
        (lambda: state.factored_moments(-1, 1), "`rows`"),
        (lambda: state.quantised_copies(1, block=0.5), "`block`"),
        (lambda: state.zero_infinity_estimate(1, -1, shards=1), "`largest_layer`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()


@pytest.mark.parametrize("D", [2, 3, 64])
def test_shards_share_the_state_out(D):
    assert D * state.blockwise_moments(999, shards=D, block=32) == pytest.approx(float(state.blockwise_moments(999, block=32)))
    assert D * state.factored_moments(64, 48, matrices=7, shards=D) == pytest.approx(
        float(state.factored_moments(64, 48, matrices=7))
    )


def test_bloom_checkpoint_as_printed():
    """The model card of BLOOM: bf16 weights 329 GB, full checkpoint with optimizer states 2.3 TB, both powers of two."""
    P = 176_247_271_424
    assert state.checkpoint_bytes(P, master_bytes=0, moments_bytes=0) / 2**30 == pytest.approx(329, rel=0.003)
    assert state.checkpoint_bytes(P) / 2**40 == pytest.approx(2.3, rel=0.03)


def test_a_checkpoint_is_the_state_without_gradients():
    """ZeRO's own count of 16 bytes a parameter under mixed precision has 2 of a bf16 gradient, which is not saved."""
    assert state.zero_state(1e9, shards=1, stage=0) - state.checkpoint_bytes(1e9) == 2e9
    with pytest.raises(FormulaDomainError, match="moments_bytes"):
        state.checkpoint_bytes(1, moments_bytes=-1)
