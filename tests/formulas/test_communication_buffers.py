"""Sizes of communication buffers that their sources print."""

import numpy as np
import pytest

from parlay.formulas import communication_buffers as buffers
from parlay.formulas._check import FormulaDomainError

MIB = 2**20


def test_nccl_and_switch_buffers():
    assert buffers.ring_communicator(channels=1) / MIB == pytest.approx(9.19, abs=0.005)
    assert (buffers.switch_communicator(channels=np.array([16, 24, 32])) / MIB).tolist() == [256, 384, 512]


# DeepEP's buffer hints at h = 7168, bf16, 20 SMs: ranks, tokens of an NVLink queue, MiB over NVLink, MiB over the network
DEEPEP = [(8, 256, 320, 0), (16, 288, 360, 80), (32, 288, 360, 160), (64, 288, 360, 320), (128, 560, 700, 641)]


@pytest.mark.parametrize(("ranks", "queue", "near", "far"), DEEPEP)
def test_deepep_buffer_hints(ranks, queue, near, far):
    got = buffers.deepep_buffers(ranks, 7168, nvlink_tokens=queue, workspace_bytes=0) / MIB
    assert got == pytest.approx(near + far, abs=1.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: buffers.ring_communicator(channels=-1), "`channels`"),
        (lambda: buffers.switch_communicator(heads=-1), "`heads`"),
        (lambda: buffers.deepep_buffers(0, 1), "`ranks` must be >= 1"),
        (lambda: buffers.deepep_buffers([8, 16], -1), "`hidden`"),
    ],
)
def test_outside_the_domain(call, message):
    with pytest.raises(FormulaDomainError, match=message):
        call()
