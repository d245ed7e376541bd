"""What --launch writes: read back it has the price of the layout, or a note names each field that it lost."""

import re

import pytest

from parlay.cli.main import main
from parlay.estimate.estimate import estimate, price
from parlay.estimate.launch import launch, read_back
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.rates.choose import rates_for
from parlay.search.fixing import fixed
from parlay.search.plan import plan
from parlay.search.spaces import wide_space

H100, A100 = load_cluster("dgx-h100"), load_cluster("dgx-a100-40gb")
NAMED = re.compile(r"(layout|training)\.(\w+)=")
WIDE = [
    ("llama-3.1-8b", A100, 16, {}, ["cp_kind=zigzag,ulysses", "micro_batch=1,2"]),
    ("llama-3.1-8b", A100, 8, {"document_len": 512, "lora_rank": 16, "moment_dtype": "bf16"}, ["micro_batch=1"]),
    ("llama-3.1-8b", A100, 16, {"optimizer": "adafactor"}, ["offload_activations=0.5", "pp=1,2", "micro_batch=1"]),
    ("qwen3-30b-a3b", H100, 16, {"moe_imbalance": 1.5, "moe_dispatcher": "deepep"}, ["micro_batch=1", "cp=1", "etp=1"]),
    ("llama-3-8b", H100, 16, {"framework": "torchtitan"}, ["micro_batch=1,2", "cp=1,2"]),
    ("llama-3-8b", H100, 16, {"framework": "torchtitan", "cross_entropy": "chunked", "seq_len": 16384}, ["recompute=selective_ops", "micro_batch=1"]),
    ("llama-3.1-8b", A100, 16, {"framework": "deepspeed"}, ["micro_batch=1,2"]),
    ("llama-3.1-8b", A100, 16, {"framework": "deepspeed", "seq_len": 2048}, ["pp=2,4", "micro_batch=1", "recompute=full,none"]),
]  # fmt: skip


def prices_the_same(e, rates):
    """Assert that what is read back has the price of `e` once the named fields are put back; return their names."""
    settings = launch(e, rates)
    named = [part for note in settings.notes if note.startswith("not in these settings") for part in NAMED.findall(note)]
    work, layout = read_back(e.model, e.workload, e.layout, settings.text)
    work = work.model_copy(update={n: getattr(e.workload, n) for section, n in named if section == "training"})
    layout = layout.model_copy(update={n: getattr(e.layout, n) for section, n in named if section == "layout"})
    got, asked = (price(e.model, e.cluster, w, Layouts.of(x), rates) for w, x in ((work, layout), (e.workload, e.layout)))
    assert float(got.time.step[0]) == pytest.approx(float(asked.time.step[0]), rel=1e-9), (str(e.layout), named)
    assert float(got.memory.peak[0]) == pytest.approx(float(asked.memory.peak[0]), rel=1e-9), (str(e.layout), named)
    return {n for _, n in named}


@pytest.mark.parametrize(("name", "cluster", "gpus", "more", "fix"), WIDE)
def test_rows_of_a_wide_plan_read_back_or_are_told(name, cluster, gpus, more, fix):
    model, work, rates = load_model(name), Workload(**{"seq_len": 4096, "global_batch": 64} | more), rates_for(cluster)
    found = plan(model, cluster, work, gpus, space=fixed(wide_space(work), fix), top=20, levers=False)
    assert len(found.rows) >= 3
    for row in found.rows:
        prices_the_same(row.estimate, rates)


@pytest.mark.parametrize(
    ("work", "layout", "lost"),
    [
        ({}, {"tp": 2, "pp": 2, "dp": 4, "last_layers": 15}, set()),
        ({}, {"tp": 2, "dp": 4, "offload_activations": 0.5}, set()),
        ({}, {"tp": 2, "dp": 4, "offload_activations": 1.0}, set()),
        ({}, {"tp": 2, "dp": 4, "offload_activations": 0.51}, {"offload_activations"}),  # 16 of 32 layers
        ({}, {"tp": 2, "pp": 2, "dp": 4, "offload_activations": 0.5}, {"offload_activations"}),
        ({}, {"tp": 2, "dp": 4, "recompute": ("norm",), "offload_activations": 0.5}, {"offload_activations"}),
        ({"document_len": 512, "compiled": True}, {"dp": 8}, {"document_len"}),
        ({"total_tokens": 10**12}, {"dp": 8}, set()),
        ({"framework": "deepspeed"}, {"tp": 2, "pp": 2, "dp": 4, "last_layers": 15}, {"last_layers"}),
        ({"framework": "deepspeed", "total_tokens": 10**12}, {"dp": 8, "zero": 3}, {"total_tokens"}),
        ({"framework": "deepspeed", "seq_len": 8192}, {"dp": 8, "recompute": ("core_attention",)}, {"seq_len", "recompute"}),
        ({"framework": "torchtitan", "precision": "fp8", "bf16_layers": 5}, {"tp": 2, "dp": 4, "zero": 3}, {"bf16_layers"}),
        ({"precision": "fp8", "bf16_layers": 5, "bf16_layers_at_start": 1}, {"tp": 2, "pp": 2, "dp": 2}, set()),
        ({"framework": "torchtitan"}, {"dp": 8, "zero": 3, "recompute": ("full",), "recompute_layers": 5}, set()),
        ({"framework": "torchtitan"}, {"dp": 8, "zero": 3, "offload_activations": 0.5}, {"offload_activations"}),
    ],
)
def test_what_a_writer_cannot_say_is_named(work, layout, lost):
    x = Layout(**layout)
    e = estimate(load_model("llama-3.1-8b"), H100, Workload(**{"global_batch": 64} | work), x)
    assert prices_the_same(e, rates_for(H100)) == lost


def test_what_is_lost_stands_in_the_output_itself(capsys, tmp_path):
    """As the last line of a script and of TOML, whose comments --from skips; JSON has none."""
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.pp2.dp4", "--global-batch", "64", "--launch"]
    more = {
        "megatron-core": "layout.offload_activations=0.5",
        "torchtitan": "layout.offload_activations=0.5",
        "deepspeed": "layout.last_layers=15",
    }
    for framework, text in more.items():
        assert main([*asked, "--framework", framework, "--set", text]) == 0
        out, err = capsys.readouterr()
        said = f"not in these settings: {text} (read back as "
        assert f"note: {said}" in err
        assert (out.splitlines()[-1].startswith(f"# {said}")) == (framework != "deepspeed")
        path = tmp_path / {"megatron-core": "a.sh", "torchtitan": "a.toml", "deepspeed": "a.json"}[framework]
        path.write_text(out)
        assert main(["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--from", str(path), "--gpus", "16"]) == 0
        assert "not understood" not in capsys.readouterr().err


def test_offloaded_layers_are_read_beside_their_model(capsys, tmp_path):
    path = tmp_path / "args.sh"
    flags = "--tensor-model-parallel-size 2 --use-distributed-optimizer --bf16"
    path.write_text(f"{flags} --global-batch-size 64 --cpu-offloading --cpu-offloading-num-layers 8\n")
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--from", str(path), "--gpus", "8"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "activations 25% on host" in out
    assert "not understood" not in err
    path.write_text(f"{flags} --fine-grained-activation-offloading --offload-modules core_attn moe_act\n")
    assert main([*asked, "--global-batch", "64"]) in (0, 1)
    assert "activations of core_attn moe_act on the host" in capsys.readouterr().err
