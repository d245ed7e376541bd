"""What vTrain's single-node rows are: not measured, as their file says, but computed by vTrain's own simulator.

Source of the simulator: VIA-Research/vTrain f8dda84, src/predictor.py.
"""

import itertools
from collections import defaultdict

import pytest

from parlay.validation.runs import packaged_runs

VOCABULARY = 50257  # src/config.py


@pytest.fixture(scope="module")
def seconds():
    """Seconds by source, model (hidden, layers), layout (tp, pp, dp), micro-batch and their count."""
    found = defaultdict(dict)
    for run in packaged_runs():
        if run.format == "vtrain" and run.step_s is not None:
            model, layout = (run.arch["hidden"], run.arch["layers"]), (run.tp, run.pp, run.dp)
            found[run.source][model, layout, run.micro_batch, run.global_batch // (run.dp * run.micro_batch)] = run.step_s
    return found


def each_micro_batch(rows):
    """Seconds of one micro-batch more, by model, tp, pp and micro-batch: one of each pair of counts and each dp."""
    slopes = defaultdict(list)
    for ((model, layout, size, few), low), ((other, at, same, many), high) in itertools.combinations(sorted(rows.items()), 2):
        if (model, layout, size) == (other, at, same):
            slopes[model, layout[:2], size].append((high - low) / (many - few))
    return {key: found for key, found in slopes.items() if len(found) > 1}


def test_a_micro_batch_more_takes_the_same_to_the_nanosecond(seconds):
    """On 2, 4 and 8 GPUs, at 2 to 16 micro-batches: nothing that is measured repeats like that."""
    slopes = each_micro_batch(seconds["vtrain-single-node"])
    assert (len(slopes), sum(map(len, slopes.values()))) == (96, 708)
    assert max((max(s) - min(s)) / min(s) for s in slopes.values()) < 1e-6


def gradient_bytes(hidden, layers, tp):
    """fp16 gradients of a rank without pipeline stages: src/predictor.py, model_params."""
    layer = 6 * hidden + (12 * hidden**2 + 7 * hidden) // tp
    return 2 * (layers * layer + 2 * (VOCABULARY // tp) * hidden + 1024 * hidden)


def test_gradients_beyond_a_gibibyte_are_reduced_as_the_simulator_has_it(seconds):
    """src/predictor.py, compute_comm_time: bytes over nccl-tests' bus bandwidth, its 2 (n - 1) / n forgotten, so four ranks take
    less time than two. What one layout says of the two bandwidths tells the others to a microsecond."""
    rows = seconds["vtrain-single-node"]

    def more(layers, tp, ranks, count=2):
        """Seconds that `ranks` take beyond half as many, at micro-batch 1."""
        return rows[(2048, layers), (tp, 1, ranks), 1, count] - rows[(2048, layers), (tp, 1, ranks // 2), 1, count]

    known = more(24, 2, 4) / gradient_bytes(2048, 24, 2)
    assert known < 0
    for layers in (16, 24):
        size = gradient_bytes(2048, layers, 1)
        assert size > 2**30
        assert more(layers, 1, 4) == pytest.approx(known * size, abs=2e-6)
    assert gradient_bytes(2048, 16, 2) < 2**30
    assert more(16, 2, 4) > 0  # from a table of measured all-reduces


def test_the_single_node_rows_run_no_forward_twice(seconds):
    """A layer costs an earlier stage what it costs the last stage, which the simulator never lets recompute (create_layer_graph).

    At micro-batch 4 and two stages, 24 layers beside 16 are four more on each. The last stage is the slower one: it takes its time
    once a micro-batch, the first stage's is spent once a step, with the optimizer. What four layers cost the optimizer is half of what
    eight cost it without stages, at two data-parallel ranks less their reduction.
    """
    rows = seconds["vtrain-single-node"]

    def split(layers, pp, dp):
        """Seconds of a micro-batch on the last stage, and all else of a step."""
        few, many = (rows[(2048, layers), (1, pp, dp), 4, count] for count in (2, 4))
        return (many - few) / 2, 2 * few - many

    (short, short_rest), (long, long_rest) = split(16, 2, 1), split(24, 2, 1)
    layer = (long - short) / 4
    reduced = rows[(2048, 24), (2, 1, 2), 4, 2] - rows[(2048, 24), (2, 1, 1), 4, 2]
    reduced *= (gradient_bytes(2048, 24, 1) - gradient_bytes(2048, 16, 1)) / gradient_bytes(2048, 24, 2)
    optimizer = (split(24, 1, 2)[1] - split(16, 1, 2)[1] - reduced) / 2
    assert (long_rest - short_rest - optimizer) / 4 == pytest.approx(layer, rel=0.01)
    assert layer == pytest.approx(8.784e-3, abs=1e-6)  # 152 TFLOP/s; were the forward run again, 203
