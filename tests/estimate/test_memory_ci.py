"""Megatron-LM's own functional tests: allocated bytes after a step and at the peak, of the last rank.

data/megatron_ci.csv holds one run of each distinct setting among the golden values of NVIDIA/Megatron-LM @d98e8a64
(tests/functional_tests/test_cases/*/golden_values_*.json): training runs with Adam and TransformerEngine whose GPU count
the recipe states and whose golden is not older than the test's configuration; tests of other features are left out.
"""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from parlay.estimate.frameworks import resolve
from parlay.estimate.memory import memory
from parlay.estimate.stages import stages_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, MoeMlp, Run

MIB = 2**20
CLUSTERS = {"A100": "dgx-a100", "H100": "dgx-h100", "GB200": "gb200-nvl72"}
DETERMINISTIC_WORKSPACE = 32 * MIB  # CUBLAS_WORKSPACE_CONFIG=:4096:8, a matmul handle, on every device

with Path(__file__).with_name("data").joinpath("megatron_ci.csv").open() as file:
    ROWS = list(csv.DictReader(file))


def model_of(row):
    bias = row["bias"] == "1"
    mixer = GroupedAttention(
        heads=int(row["heads"]), kv_heads=int(row["kv_groups"]), head_dim=int(row["kv_channels"]), qkv_bias=bias, out_bias=bias,
        rope=row["pos_emb"] == "rope",
    )  # fmt: skip
    gated = row["swiglu"] == "1"
    mlp = DenseMlp(width=int(row["ffn"]), gated=gated, bias=bias)
    if row["experts"]:
        mlp = MoeMlp(experts=int(row["experts"]), top_k=int(row["topk"]), width=int(row["moe_ffn"]), gated=gated, bias=bias)
    return ModelSpec(
        id="m", name="m", hidden=int(row["hidden"]), vocab=int(row["vocab"]), norm=row["norm"],
        tied_embeddings=row["untie"] == "0", position_embeddings=int(row["positions"]),
        kinds={"block": LayerKind(mixer=mixer, mlp=mlp)},
        layers=(Run(kinds=("block",), count=int(row["layers"])),),
    )  # fmt: skip


def priced(row):
    degrees = {axis: int(row[axis]) for axis in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")}
    layouts = Layouts.of(
        Layout(**degrees, sp=row["sp"] == "1", cp_kind=row["cp_comm"], zero=int(row["dist_opt"]), micro_batch=int(row["mbs"]))
    )
    workload = Workload(
        seq_len=int(row["seq"]), global_batch=int(row["gbs"]), gradient_dtype="fp32" if row["acc_fp32"] == "1" else "bf16",
        dropout=float(row["dropout"]), gradient_accumulation_fusion=row["grad_fusion"] == "1",
        flash_attention=row["flash"] == "1", framework_date=row["golden_date"],
        cross_entropy="fused" if row["fused_loss"] == "1" else "unfused",
        vocab_multiple=int(row["vocab_div"]),
    )  # fmt: skip
    model = model_of(row)
    stages = stages_of(model, layouts, workload.global_batch)
    cluster = load_cluster(CLUSTERS[row["hardware"]])
    settings = resolve(workload, cluster.device)
    if row["deterministic"] == "1":
        settings = dataclasses.replace(settings, torch_workspace_bytes=DETERMINISTIC_WORKSPACE)
    return memory(model, cluster, workload, layouts, stages, settings=settings)


def errors(row):
    held = priced(row)
    return held.after_step[0, -1] / float(row["after_step_bytes"]) - 1, held.allocated[0, -1] / float(row["peak_bytes"]) - 1


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['test']}-{r['hardware']}")
def test_each_row_within_a_few_percent(row):
    after, peak = errors(row)
    assert abs(after) < 0.055
    # Routers of these short runs are far from balanced, which is not in the file: experts' peaks lie higher than balanced.
    assert -0.11 < peak < 0.02 if row["experts"] else abs(peak) < 0.045


def test_medians():
    found = np.abs([errors(row) for row in ROWS])
    after, peak = np.median(found, axis=0)
    assert after < 0.015
    assert peak < 0.03
    assert np.quantile(found[:, 0], 0.9) < 0.06
    assert np.quantile(found[:, 1], 0.9) < 0.12


def test_dense_runs_without_a_pipeline_are_exact_after_the_step():
    """One stage, no experts: parameters, state and workspaces are all there is."""
    rows = [r for r in ROWS if r["pp"] == "1" and not r["experts"] and r["cp"] == "1" and r["layers"] != "32"]
    assert rows
    for row in rows:
        assert abs(errors(row)[0]) * float(row["after_step_bytes"]) < 10 * MIB, row["test"]


def test_a_7b_model_on_one_node():
    """gpt3_7b_tp4_pp1_memory_speed: static within 1 %, peak within 0.5 % on H100; A100 and GB200 hold 1 GiB more than this
    accounts for (about one bf16 copy of the logits; the cause is not known)."""
    by_device = {r["hardware"]: errors(r) for r in ROWS if r["test"] == "gpt3_7b_tp4_pp1_memory_speed"}
    assert all(abs(after) < 0.01 for after, _ in by_device.values())
    assert abs(by_device["H100"][1]) < 0.005
    assert all(abs(peak) < 0.025 for _, peak in by_device.values())
