"""FSDP2's peaks against real `fully_shard` over fake tensors.

Recorded from scripts/simulate_fsdp.py with PyTorch 2.13.0+cpu: step 1, GB allocated at the peak, and reserved by the rules of
the caching allocator with a pool for each stream.
"""

import numpy as np
import pytest

from parlay.estimate.memory import POOLS_SHARE, memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run


def llama(hidden, layers, heads, width):
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=8, head_dim=128), mlp=DenseMlp(width=width))
    runs = (Run(kinds=("block",), count=layers),)
    return ModelSpec(id="m", name="m", hidden=hidden, vocab=128256, kinds={"block": kind}, layers=runs)


MODELS = {8: llama(4096, 32, 32, 14336), 70: llama(8192, 80, 64, 28672), 20: llama(8192, 20, 64, 28672)}
FULL, OPERATORS = ("full",), ("selective_ops",)
SIMULATED = [
    (70, 1024, 2048, 1, FULL, 13.31, 22.28),
    (70, 1024, 4096, 1, FULL, 16.62, 28.11),
    (70, 1024, 8192, 1, FULL, 26.96, 44.10),
    (70, 1024, 22528, 1, FULL, 68.99, 90.66),
    (70, 64, 2048, 1, FULL, 26.94, 39.47),
    (70, 64, 8192, 1, FULL, 39.35, 61.28),
    (20, 256, 2048, 1, OPERATORS, 15.63, 25.13),  # a 70B cut to 20 layers
    (20, 256, 8192, 1, OPERATORS, 36.79, 53.73),
    (8, 64, 2048, 1, FULL, 6.33, 12.59),
    (8, 64, 8192, 1, FULL, 17.65, 24.48),
    (8, 64, 32768, 1, FULL, 62.92, 77.69),
    (8, 64, 2048, 1, OPERATORS, 9.96, 16.35),
    (8, 64, 8192, 1, OPERATORS, 32.18, 39.17),
    (8, 64, 2048, 1, (), 20.03, 26.09),
    (8, 64, 4096, 1, (), 37.50, 44.06),
    (8, 64, 8192, 1, (), 72.44, 78.03),
    (8, 8, 2048, 2, FULL, 20.64, 31.70),
    (8, 8, 8192, 2, FULL, 43.28, 56.13),
    (20, 8, 512, 1, FULL, 46.54, 55.19),  # these five came after the formulas
    (20, 8, 2048, 1, FULL, 46.89, 58.36),
    (20, 8, 4096, 1, (), 73.23, 94.54),
    (8, 8, 1024, 1, FULL, 19.21, 25.67),
    (8, 1024, 512, 1, FULL, 3.84, 8.14),
]

# The same with norms of one kernel, as CUDA has them since PyTorch 2.9; above, as the CPU has them and CUDA had them before.
KERNELS = [
    (70, 64, 8192, 1, FULL, 38.94, 61.28),
    (8, 64, 8192, 1, FULL, 17.45, 24.44),
    (8, 64, 32768, 1, FULL, 62.12, 78.76),
    (8, 8, 2048, 2, FULL, 20.54, 31.58),
    (20, 256, 8192, 1, OPERATORS, 36.39, 53.93),
    (8, 64, 2048, 1, OPERATORS, 9.91, 16.41),
    (8, 64, 8192, 1, OPERATORS, 31.98, 39.24),
    (8, 64, 2048, 1, (), 16.76, 22.82),
    (8, 64, 4096, 1, (), 30.96, 37.68),
    (8, 64, 8192, 1, (), 59.36, 64.88),
    (8, 8, 8192, 1, (), 69.90, 79.20),
    (20, 8, 4096, 1, (), 65.18, 86.39),
]
BEFORE = "2025-10-14"


def priced(model, layout, **workload):
    layouts, work = Layouts.of(Layout(**layout)), Workload(framework="torchtitan", **workload)
    return memory(model, load_cluster("dgx-h100"), work, layouts, stages_of(model, layouts, work.global_batch))


def sharded(model, ranks, tokens, micro_batch, recompute, rounds=1, **more):
    layout = {"dp": ranks, "zero": 3, "micro_batch": micro_batch, "recompute": recompute}
    given = {"seq_len": tokens, "global_batch": ranks * micro_batch * rounds, **more}
    return priced(model, layout, **given)


@pytest.mark.parametrize(
    ("model", "ranks", "tokens", "micro_batch", "recompute", "allocated", "reserved", "day"),
    [*((*row, BEFORE) for row in SIMULATED), *((*row, None) for row in KERNELS)],
)
def test_peaks_are_those_of_real_fsdp2(model, ranks, tokens, micro_batch, recompute, allocated, reserved, day):
    held = sharded(MODELS[model], ranks, tokens, micro_batch, recompute, framework_date=day)
    assert held.allocated[0, 0] / 1e9 == pytest.approx(allocated, rel=0.05)
    assert held.reserved[0, 0] / 1e9 / (1 + POOLS_SHARE) == pytest.approx(reserved, rel=0.065)


@pytest.mark.parametrize(
    ("norm", "framework", "day", "bytes_an_element"),
    [
        ("rmsnorm", "torchtitan", BEFORE, 6.0),
        ("rmsnorm", "torchtitan", None, 4.0 / 4096),
        ("rmsnorm", "deepspeed", None, 4.0),  # Hugging Face's modules spell it out, and cast before the weight
        ("layernorm", "torchtitan", "2023-10-31", 8.0 / 4096),
        ("layernorm", "deepspeed", None, 8.0 / 4096),
    ],
)
def test_a_norm_of_one_kernel_keeps_two_numbers_a_token(norm, framework, day, bytes_an_element):
    model = MODELS[8].model_copy(update={"norm": norm})
    layouts = Layouts.of(Layout(dp=8, zero=3))
    work = Workload(framework=framework, framework_date=day, seq_len=2048, global_batch=8)
    held = memory(model, load_cluster("dgx-h100"), work, layouts, stages_of(model, layouts, work.global_batch))
    kept = [t.value[0, 0] for t in held.tree.walk() if t.label in ("mixer norm intermediates", "mixer norm statistics")]
    assert kept == [pytest.approx(32 * 2048 * 4096 * bytes_an_element)]


def test_the_tree_adds_up_to_what_is_allocated():
    for ranks, tokens, rounds in ((8, 512, 1), (8, 8192, 1), (8, 8192, 4), (1024, 2048, 1)):
        held = sharded(MODELS[70], ranks, tokens, 1, FULL, rounds)
        assert held.tree.find("memory.allocated").value[0, 0] == pytest.approx(held.allocated[0, 0], rel=1e-12)
        assert held.tree.value[0, 0] == pytest.approx(held.total[0, 0], rel=1e-12)
        assert np.all(held.reserved >= held.allocated)


def test_a_second_micro_batch_finds_gradients_at_the_loss():
    once, twice = (sharded(MODELS[8], 8, 8192, 1, FULL, rounds) for rounds in (1, 2))
    assert once.events[once.event[0, 0]] == "backward pass of the output layer"
    made = once.tree.find("memory.gradients").value[0, 0]
    assert (twice.allocated - once.allocated)[0, 0] == pytest.approx(made)
    assert twice.reserved[0, 0] == once.reserved[0, 0]  # their pool keeps them either way


def test_state_that_outweighs_activations_peaks_at_the_last_layers_to_run():
    """Few tokens on few ranks: all gradients are there when all but one layer's kept tensors are gone."""
    held = sharded(MODELS[70], 8, 512, 1, FULL)
    assert held.events[held.event[0, 0]] != "backward pass of the output layer"
    assert held.tree.find("memory.peak.absent").value[0, 0] == 0
    assert held.allocated[0, 0] > held.static[0, 0]


def test_a_pipeline_still_names_its_logits():
    """torch.distributed.pipelining keeps a stage's output until its backward pass, so nothing of 14 bytes a logit goes."""
    layout = {"pp": 4, "dp": 2, "zero": 3}
    held = priced(MODELS[8], layout, seq_len=8192, global_batch=16)
    assert held.tree.find("memory.peak.logits").value[0, -1] == 14 * 8192 * 128256
