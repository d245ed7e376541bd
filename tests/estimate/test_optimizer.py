"""Muon's step: what a rank orthogonalises, shared or not, whole or in blocks, and what of it `explain` can show."""

import numpy as np
import pytest

from parlay.estimate.estimate import estimate, price
from parlay.estimate.optimizer import MUON
from parlay.formulas.optimizer_step import newton_schulz_flops
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for

CLUSTER = load_cluster("dgx-h100")
RATES = rates_for(CLUSTER)
LLAMA_70B, LLAMA_8B, QWEN, V3 = (load_model(name) for name in ("llama-3.1-70b", "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"))


def step_of(model, layout, **workload):
    work = Workload(**({"seq_len": 4096, "global_batch": 64, "optimizer": "muon"} | workload))
    return price(model, CLUSTER, work, Layouts.of(Layout(**layout)), RATES, every=True).time.data.optimizer.at(0)


def test_muon_takes_longer_than_adam_and_moves_less():
    layout = {"tp": 8, "pp": 4, "dp": 2}
    muon, adam = (step_of(LLAMA_70B, layout, optimizer=o) for o in ("muon", "adamw"))
    assert muon.value > 10 * adam.value
    update, iterations = muon.parts
    assert update.value < adam.value
    assert muon.value == pytest.approx(update.value + iterations.value)


@pytest.mark.parametrize(("tp", "blocks"), [(1, 1), (8, 8)])
def test_megatron_orthogonalises_blocks_with_queries_keys_and_values_apart(tp, blocks):
    """The matrices of Llama 3 8B by hand: 32 layers, h 4096, f 14336 twice, 32 query and 8 key heads of 128, over one GPU or eight."""
    found = step_of(LLAMA_8B, {"tp": tp, "dp": 1, "zero": 0}).find("step.optimizer.orthogonalise")
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (2 * 14336, 4096)]
    by_columns = [(4096, 4096), (4096, 14336)]
    one = sum(newton_schulz_flops(r / blocks, c) for r, c in shapes) + sum(
        newton_schulz_flops(r, c / blocks) for r, c in by_columns
    )
    assert found.inputs["flops"] == pytest.approx(32 * one)
    assert found.value == pytest.approx(found.inputs["flops"] / found.inputs["flops_per_s"])
    assert 0.4 < found.inputs["share_of_bf16_peak"] < 0.75


def test_gate_and_up_are_matrices_of_their_own_outside_megatron():
    megatron, titan = (
        step_of(LLAMA_8B, {"tp": 1, "dp": 1, "zero": 0}, framework=f).find("step.optimizer.orthogonalise")
        for f in ("megatron-core", "torchtitan")
    )
    fused, halves = newton_schulz_flops(2 * 14336, 4096), 2 * newton_schulz_flops(14336, 4096)
    assert titan.inputs["flops"] - megatron.inputs["flops"] == pytest.approx(32 * (halves - fused))
    assert halves != fused


def test_ranks_that_share_the_state_share_the_matrices_but_cut_none():
    alone, few = (step_of(LLAMA_8B, {"dp": d, "zero": 1}).find("step.optimizer.orthogonalise") for d in (1, 8))
    assert few.value == pytest.approx(alone.value / 8)
    each = step_of(LLAMA_8B, {"dp": 8, "zero": 0}).find("step.optimizer.orthogonalise")
    assert each.value == pytest.approx(alone.value)  # without ZeRO every rank does all of them
    # 512 ranks have 2 matrices of this size each only by fractions: the busiest has one whole.
    many = step_of(LLAMA_8B, {"dp": 512, "zero": 1}, global_batch=512).find("step.optimizer.orthogonalise")
    assert many.inputs["flops"] == newton_schulz_flops(2 * 14336, 4096)
    assert many.value > alone.value / 512


def test_every_expert_is_a_matrix_of_its_own():
    """128 experts of width 768 and h 2048 in 48 layers, 16 of them on each of 8 ranks: two matrices an expert under Megatron."""
    one, eight = (
        step_of(QWEN, {"dp": 8, "ep": ep, "zero": 0}, global_batch=8).find("step.optimizer.orthogonalise").inputs["flops"]
        for ep in (1, 8)
    )
    expert = newton_schulz_flops(2 * 768, 2048) + newton_schulz_flops(768, 2048)
    assert one - eight == pytest.approx(48 * (128 - 16) * expert)


@pytest.mark.parametrize(("framework", "sent"), [("torchtitan", 2 * 4 / 8), ("deepspeed", 4 + 2)])
def test_matrices_that_zero_3_has_cut_come_together_and_go_back(framework, sent):
    """An all-to-all of fp32 each way under torchtitan; all-gathers of momentum and of updates under DeepSpeed."""
    found = step_of(LLAMA_8B, {"dp": 8, "zero": 3}, framework=framework, gradient_dtype="bf16").find("step.optimizer.exchange")
    h, f = 4096, 14336
    elements = 32 * (2 * h * h + 2 * h * 1024 + 3 * h * f)
    assert found.inputs["bytes"] == pytest.approx(sent * elements)
    assert found.value == pytest.approx(found.inputs["bytes"] / found.inputs["bytes_per_s"])
    assert step_of(LLAMA_8B, {"dp": 8, "zero": 0}, framework=framework).find("step.optimizer.exchange") is None


def test_pieces_sum_to_the_iterations():
    for model, layout in ((QWEN, {"dp": 16, "ep": 8, "zero": 1}), (V3, {"pp": 8, "dp": 8, "ep": 8, "zero": 1})):
        found = step_of(model, layout).find("step.optimizer.orthogonalise")
        assert sum(p.value for p in found.pieces()) == pytest.approx(found.value)
        for p in found.pieces():
            x = p.inputs
            assert p.value == pytest.approx(x["in_a_layer"] * x["layers"] * x["seconds_each"] / x["ranks"])
            assert x["flops_each"] == newton_schulz_flops(x["rows"], x["columns"])


def test_many_layouts_are_priced_as_each_alone():
    rows = [
        Layout(tp=t, pp=p, dp=16 // t // p, ep=e, zero=z, offload_optimizer=o)
        for t in (1, 2) for p in (1, 2) for e in (1, 4) for z in (0, 1, 3) for o in (0.0, 1.0)
    ]  # fmt: skip
    work = Workload(seq_len=4096, global_batch=64, optimizer="muon", framework="deepspeed")
    together = price(QWEN, CLUSTER, work, Layouts.of(rows), RATES, every=False)
    alone = [price(QWEN, CLUSTER, work, Layouts.of(row), RATES, every=True).time.step[0] for row in rows]
    np.testing.assert_allclose(together.time.step, alone, rtol=1e-12)


def test_an_estimate_says_what_is_orthogonalised_where():
    for framework, words in MUON.items():
        work = Workload(seq_len=4096, global_batch=64, optimizer="muon", framework=framework)
        said = estimate(LLAMA_8B, CLUSTER, work, Layout(dp=8, zero=1 if framework == "megatron-core" else 3)).assumptions
        assert sum(words in line for line in said) == 1
    assert not any("muon" in line for line in estimate(LLAMA_8B, CLUSTER, Workload(global_batch=64), Layout(dp=8)).assumptions)


def test_what_is_no_matrix_of_a_layer_has_both_moments_of_adam():
    """8B, tp 2 over 8 ranks: the table and the head, 525,602,816 parameters a tp rank, read and write 8 bytes, the matrices 4."""
    update, _ = step_of(LLAMA_8B, {"tp": 2, "dp": 8}, optimizer="muon").parts
    mine = update.inputs["parameters_owned"]
    two = 525_602_816 / 8
    assert mine * update.inputs["moments_bytes"] == pytest.approx(4 * mine + 4 * two, rel=1e-3)  # norms aside
    memory = estimate(LLAMA_8B, CLUSTER, Workload(optimizer="muon", global_batch=64), Layout(tp=2, dp=8)).memory[0]
    held = sum(memory.find(f"memory.optimizer.dense.{name}").value for name in ("momentum", "moments"))
    assert mine * update.inputs["moments_bytes"] == pytest.approx(held, rel=1e-6)
