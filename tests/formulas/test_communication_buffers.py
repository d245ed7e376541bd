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


def test_one_buffer_for_each_peer():
    assert buffers.ring_communicator(channels=2, peers=5) == 5 * buffers.ring_communicator(channels=2, peers=1)
    sizes = {"simple_bytes": 3, "ll_bytes": 5, "ll128_bytes": 7}
    assert buffers.ring_communicator(channels=4, peers=2, **sizes) == 4 * 2 * (3 + 5 + 7)


def test_tokens_of_other_nodes_by_counting_queues():
    """A sending and a receiving queue for each node, the last one counted whole; none inside one node."""
    given = {"nvlink_tokens": 3, "network_tokens": 5, "metadata_bytes": 1, "workspace_bytes": 0, "channels": 1, "nvlink_ranks": 4}
    got = [float(buffers.deepep_buffers(n, 1, element_bytes=1, **given)) / 2 for n in (2, 4, 6, 8, 9)]
    assert got == [2 * 3, 4 * 3, 4 * 3 + 2 * 2 * 5, 4 * 3 + 2 * 2 * 5, 4 * 3 + 2 * 3 * 5]
