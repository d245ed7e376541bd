"""The gradient of a table on two stages: who sums it, how much, and where nobody has to."""

import pytest

from parlay.estimate.estimate import estimate
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

H100 = load_cluster("dgx-h100")
GEMMA, V3, LLAMA = (load_model(name) for name in ("gemma-2-2b", "deepseek-v3", "llama-3.1-8b"))


def tied(model, layout, **workload):
    found = estimate(model, H100, Workload(global_batch=2048, **workload), Layout(**layout)).step.find("step.exposed.tied")
    return found if found is not None and found.value else None


def test_both_ends_sum_the_whole_table():
    """256,000 x 2,304 fp32 gradients are 2.36 GB: 48.6 ms over one port of 48.5 GB/s, each byte once each way for two ranks."""
    term = tied(GEMMA, {"pp": 4, "dp": 16})
    assert term.inputs["table_bytes"] == 4 * 256_000 * 2304
    assert term.value == pytest.approx(48.6e-3, rel=0.05)
    halved = tied(GEMMA, {"pp": 4, "dp": 16}, gradient_dtype="bf16")
    assert halved.value == pytest.approx(term.value / 2, rel=0.05)
    split = tied(GEMMA, {"tp": 4, "pp": 4, "dp": 4})
    assert split.inputs["table_bytes"] == term.inputs["table_bytes"] / 4


def test_within_a_node_the_scale_up_link_carries_it():
    assert tied(GEMMA, {"pp": 4, "dp": 2}).value < tied(GEMMA, {"pp": 4, "dp": 16}).value / 5


def test_a_module_that_predicts_further_reads_a_copy_of_the_embedding():
    assert tied(V3, {"pp": 16, "dp": 64, "ep": 64}).inputs["table_bytes"] == 4 * 129_280 * 7168


@pytest.mark.parametrize(("model", "layout", "workload"), [
    (GEMMA, {"dp": 16}, {}),  # one stage holds both
    (LLAMA, {"pp": 4, "dp": 4}, {}),  # nothing is tied
    (GEMMA, {"pp": 4, "dp": 4}, {"lora_rank": 8}),  # the table is frozen
    (GEMMA, {"pp": 4, "dp": 4, "zero": 3}, {"framework": "torchtitan"}),  # ties nothing
    (V3, {"pp": 16, "dp": 64, "ep": 64, "schedule": "dualpipe"}, {"framework": "hai-llm"}),  # both on one rank
])  # fmt: skip
def test_nothing_is_summed_where_one_rank_holds_the_table_or_nobody_ties(model, layout, workload):
    assert tied(model, layout, **workload) is None
