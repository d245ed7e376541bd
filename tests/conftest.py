"""What tests of several rooms share."""

import time

import pytest


@pytest.fixture
def processor_seconds():
    """Return a function that gives the least processor time of some calls.

    Only ratios of two of them are held to anything, since machines differ; seconds are in docs/benchmarks.md.
    """

    def least(call, times=3):
        taken = []
        for _ in range(times):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
        return min(taken)

    return least
