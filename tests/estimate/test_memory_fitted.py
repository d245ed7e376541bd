"""Published runs that ran on the devices they name must fit by our accounting."""

import numpy as np
import pytest

from parlay.estimate.memory import memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model

GIB = 2**30


def held(name, cluster, layout, **work):
    model, layouts, asked = load_model(name), Layouts.of(Layout(**layout)), Workload(**work)
    return memory(model, load_cluster(cluster), asked, layouts, stages_of(model, layouts, asked.global_batch))


def test_llama_405b_fitted_without_recompute():
    """Meta, arXiv:2407.21783, 3.3.2 and table 4: 16,384 H100 of 80 GB, tp8 pp16 dp128 at 8,192 tokens, 16 M tokens a step.
    Optimizer state and gradients are sharded and weights are not resharded after the forward pass; nothing is recomputed."""
    layout = {"tp": 8, "pp": 16, "dp": 128, "sp": True, "micro_batch": 1}
    work = {"seq_len": 8192, "global_batch": 2048, "gradient_dtype": "fp32"}
    sharded = held("llama-3.1-405b", "meta-24k", layout | {"zero": 2}, **work)
    assert sharded.fits[0]
    whole = held("llama-3.1-405b", "meta-24k", layout | {"zero": 1}, **work)
    assert not whole.fits[0]  # whole fp32 gradients are what they could not afford


def deepseek(schedule="dualpipe", **work):
    layout = {"pp": 16, "dp": 128, "ep": 64, "micro_batch": 1, "recompute": ("norm", "mla_up", "mlp_activation")}
    given = {
        "seq_len": 4096, "global_batch": 15360, "precision": "fp8-blockwise", "moment_dtype": "bf16", "gradient_dtype": "fp32",
        "moe_dispatcher": "deepep", "fp8_weights": True, "fp8_activation_inputs": True,
    }  # fmt: skip
    return held("deepseek-v3", "hgx-h800", layout | {"schedule": schedule}, **given | work)


def test_deepseek_v3_fitted():
    """arXiv:2412.19437, 3.2 and 3.3: 2,048 H800 of 80 GB, pp16 ep64 under DualPipe, ZeRO-1; norms, latent up-projections and
    SwiGLU run again, their inputs in fp8 as the dispatched rows are; bf16 moments; averaged weights on the host."""
    run = deepseek()
    assert run.fits[0]
    assert not deepseek(fp8_activation_inputs=False, fp8_weights=False).fits[0]


def test_hai_llm_stores_what_its_report_says():
    """With nothing else said, the framework's own defaults are the report's choices; each is said, and can be overruled."""
    layout = {"pp": 16, "dp": 128, "ep": 64, "recompute": ("norm", "mla_up", "mlp_activation"), "schedule": "dualpipe"}
    run = {"seq_len": 4096, "global_batch": 15360, "precision": "fp8-blockwise", "framework": "hai-llm"}
    said = " ".join(held("deepseek-v3", "hgx-h800", layout, **run).assumptions)
    for words in (
        "moments in bf16",
        "weights kept in fp8 alone",
        "inputs of activation functions kept in fp8",
        "DeepEP dispatcher",
    ):
        assert words in said
    assert held("deepseek-v3", "hgx-h800", layout, **run).fits[0]
    other = {"fp8_weights": False, "fp8_activation_inputs": False, "moment_dtype": "fp32"}
    assert not held("deepseek-v3", "hgx-h800", layout, **run, **other).fits[0]
    for name in ("stores_fp8_weights", "stores_fp8_inputs"):
        assert getattr(Workload(framework="hai-llm", precision="fp8-blockwise"), name)
        assert not getattr(Workload(framework="hai-llm"), name)
        assert not getattr(Workload(precision="fp8-blockwise"), name)


def test_activation_inputs_in_fp8_are_half_as_large():
    plain, small = (deepseek("1f1b", fp8_activation_inputs=on).tree for on in (False, True))

    def kept(tree):
        inputs = [t for t in tree.walk() if t.label.endswith("activation input")]
        assert len(inputs) == 3  # dense, expert, shared
        return [np.asarray(t.value) for t in inputs]

    for before, after in zip(kept(plain), kept(small), strict=True):
        assert np.allclose(after * 2, before)
        assert before.max() > 0


def test_the_two_copies_of_a_stage_share_its_optimizer_state():
    """DualPipe holds two stages a rank: twice the weights and gradients, the same optimizer state in all."""
    both, one = (deepseek(schedule).tree for schedule in ("dualpipe", "1f1b"))
    for key, times in (("memory.gradients", 2), ("memory.optimizer", 1)):  # ends differ in the tables they hold
        assert np.sum(both.find(key).value[0, 2:14]) == pytest.approx(times * np.sum(one.find(key).value[0, 2:14])), key


@pytest.mark.parametrize("ends", [{}, {"first_layers": 3, "last_layers": 2}, {"first_layers": 4, "last_layers": 1}])
def test_a_rank_of_dualpipe_keeps_what_its_two_stages_keep_under_1f1b(ends):
    """Each chunk fills as a stage of its own pipeline does: 16 micro-batches of the first stage and 1 of the last on both ends."""
    layout = {"pp": 16, "dp": 128, "ep": 64, "recompute": ("norm", "mla_up", "mlp_activation")} | ends
    work = {"seq_len": 4096, "global_batch": 15360, "precision": "fp8-blockwise", "framework": "hai-llm"}
    both, one = (
        held("deepseek-v3", "hgx-h800", layout | {"schedule": schedule}, **work).tree.find("memory.activations").value[0]
        for schedule in ("dualpipe", "1f1b")
    )
    assert both == pytest.approx(one + one[::-1], rel=1e-8)
    overlapped = layout | {"schedule": "dualpipe", "ep_overlap": True}  # the pair that runs at once is counted already
    assert held("deepseek-v3", "hgx-h800", overlapped, **work).tree.find("memory.activations").value[0] == pytest.approx(both)


def test_hai_llm_recomputes_every_norm_and_every_swiglu():
    """arXiv:2412.19437, 3.2.3: "all RMSNorm operations"; 3.3.3 of SwiGLU. Megatron's norm and moe_act leave some."""
    layout = {"pp": 16, "dp": 128, "ep": 64, "recompute": ("norm", "mla_up", "mlp_activation")}
    work = {"seq_len": 4096, "global_batch": 15360, "precision": "fp8-blockwise"}
    left = ("mlp norm output", "mlp activation output", "shared activation output")
    for framework, kept in (("hai-llm", False), ("megatron-core", True)):
        tree = held("deepseek-v3", "hgx-h800", layout, framework=framework, **work).tree
        found = {t.label: np.max(t.value) for t in tree.find("memory.activations").walk() if t.label in left}
        assert {name for name, size in found.items() if size > 0} == (set(left) if kept else set())
    scaled, cast = (
        held("deepseek-v3", "hgx-h800", layout, framework=f, fp8_activation_inputs=True, **work).tree
        for f in ("hai-llm", "megatron-core")
    )
    label = "expert activation input"
    a, b = (next(np.max(t.value) for t in tree.walk() if t.label == label) for tree in (scaled, cast))
    assert a / b == pytest.approx(1 + 4 / 128)  # a scale for each 128 elements


def test_deepep_holds_buffers_outside_the_allocator():
    layout, work = {"pp": 16, "dp": 128, "ep": 64}, {"seq_len": 4096, "global_batch": 15360}
    for dispatcher, mebibytes in (("deepep", 712), ("alltoall", 0)):
        tree = held("deepseek-v3", "hgx-h800", layout, moe_dispatcher=dispatcher, **work).tree
        assert np.max(tree.find("memory.outside.deepep").value) / 2**20 == pytest.approx(mebibytes, rel=0.002)
