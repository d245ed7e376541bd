"""Allocated peaks of nanotron, rank 0: huggingface/bench_cluster, llama-1B (24 layers), 8 to 64 H100, July 2024.

Weights in bf16, fp32 gradients, ZeRO 1, reduce-scatter tensor parallelism; MiB as the logs print them.
"""

import numpy as np
import pytest

from parlay.estimate.frameworks import resolve
from parlay.estimate.memory import memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.split import sizes_by_cost
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, MoeMlp, Run


def llama(kv_heads=32, mlp=None):
    kind = LayerKind(
        mixer=GroupedAttention(heads=32, kv_heads=kv_heads, head_dim=64), mlp=mlp or DenseMlp(width=4096, gated=True)
    )
    return ModelSpec(
        id="m", name="m", hidden=2048, vocab=50272, tied_embeddings=True, kinds={"block": kind},
        layers=(Run(kinds=("block",), count=24),),
    )  # fmt: skip


LAYER, HEAD = 4 * 2048**2 + 3 * 2048 * 4096, 2048 * 50272
MEASURED = [  # tp, pp, dp, micro-batch, MiB of the first stage
    (1, 1, 16, 4, 42900.4),
    (2, 1, 4, 8, 43651.1),
    (4, 1, 2, 8, 25807.9),
    (8, 1, 1, 32, 60095.7),
    (8, 2, 1, 32, 61477.2),
    (1, 4, 2, 4, 39056.4),
    (8, 8, 1, 16, 34839.9),
    (1, 16, 1, 2, 22941.1),
]


def first_stage(model, tp, pp, dp, micro, **more):
    sizes = sizes_by_cost(24, pp, LAYER, HEAD)
    layout = Layout(
        tp=tp, pp=pp, dp=dp, sp=tp > 1, micro_batch=micro, first_layers=sizes[0] if pp > 1 else None,
        last_layers=sizes[-1] if pp > 1 else None,
    )  # fmt: skip
    work = Workload(**{"seq_len": 4096, "global_batch": 1024, "framework": "nanotron", "framework_date": "2024-07-15"} | more)
    layouts, cluster = Layouts.of(layout), load_cluster("dgx-h100")
    return memory(model, cluster, work, layouts, stages_of(model, layouts, 1024), settings=resolve(work, cluster.device))


@pytest.mark.parametrize(("tp", "pp", "dp", "micro", "mib"), MEASURED)
def test_peak_of_the_first_stage(tp, pp, dp, micro, mib):
    assert first_stage(llama(), tp, pp, dp, micro).allocated[0, 0] / 2**20 == pytest.approx(mib, rel=0.01)


WEIGHTS = 2 * (24 * (LAYER + 2 * 2048) + HEAD + 2048)  # bytes: layers with two norms each, the tied table, the final norm


@pytest.mark.parametrize(("dp", "micro", "block"), [(16, 1, WEIGHTS), (16, 2, WEIGHTS), (16, 4, None), (1, 1, None)])
def test_all_weights_are_gathered_into_one_new_block_unless_the_logits_left_one_as_large(dp, micro, block):
    """2.2 GB, and 0.8 GB of fp32 logits a sequence; where they fit, or nothing is gathered, the usual 3.8 %."""
    held = first_stage(llama(), 1, 1, dp, micro)
    beside = held.reserved[0, 0] - held.allocated[0, 0]
    assert beside == pytest.approx(block or 0.038 * held.allocated[0, 0], rel=1e-9)
    assert held.tree.find("memory.reserve").value[0, 0] == pytest.approx(beside)


@pytest.mark.parametrize(("tp", "pp", "dp", "micro", "mib"), [(1, 1, 16, 1, 18632), (1, 1, 16, 2, 27568), (2, 2, 2, 1, 9170)])
def test_reserved_where_weights_are_gathered_into_a_new_block(tp, pp, dp, micro, mib):
    assert first_stage(llama(), tp, pp, dp, micro).reserved[0, 0] / 2**20 == pytest.approx(mib, rel=0.045)


def test_what_the_gathering_holds_is_a_peak_of_its_own():
    """Beside the state: this rank's part once, every rank's, and all of them in one tensor."""
    held = first_stage(llama(), 1, 1, 16, 1, seq_len=128)
    assert held.events[int(held.event[0, 0])] == "optimizer step"
    assert held.allocated[0, 0] - held.after_step[0, 0] == pytest.approx(WEIGHTS * (2 + 1 / 16), rel=1e-9)


def test_products_gather_their_inputs_again_since_august_2024():
    """Both norms' outputs of every layer, and the final one's, no longer whole: 7/8 of three tensors' places."""
    tokens, hidden = 8 * 4096, 2048
    before, after = (first_stage(llama(), 8, 1, 1, 8, framework_date=d).allocated[0, 0] for d in ("2024-07-31", "2024-08-01"))
    assert before - after == pytest.approx((2 * 24 + 1) * 2 * tokens * hidden * 7 / 8)


def test_grouped_queries_are_a_tensor_of_their_own():
    """With as many key/value heads as heads, the queries keep the keys' and values' place alive as well."""
    kept = [first_stage(llama(kv), 1, 1, 1, 1).tree.find("memory.activations.block") for kv in (32, 16)]
    before = next(t for t in kept[0].parts if t.label == "queries, keys, values before rotary")
    queries = next(t for t in kept[1].parts if t.label == "queries")
    assert np.allclose(before.value, 3 * np.asarray(queries.value))


def test_experts_are_priced_as_eager_modules():
    labels = {t.label for t in first_stage(llama(mlp=MoeMlp(experts=4, top_k=2, width=512)), 1, 1, 1, 1).tree.walk()}
    assert "expert output" in labels
