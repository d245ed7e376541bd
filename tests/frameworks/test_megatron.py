from pathlib import Path

import pytest
import yaml

from parlay.errors import UsageError
from parlay.estimate.counts import parameters
from parlay.frameworks.megatron import read_script, read_yaml
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.models.spec import ModelSpec

DATA = Path(__file__).parent / "data"
SIZES = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 2"


def script(text, gpus=8):
    return read_script(text, "run.sh", "run", gpus)


def test_a_script_of_llama_3_8b():
    found = read_script((DATA / "llama3-8b-fp8.sh").read_text(), "l.sh", "llama")
    model = ModelSpec(**found.table["model"])
    assert parameters(model).total == parameters(load_model("llama-3.1-8b")).total + 2 * 4096  # NullTokenizer's end of document
    assert found.table["gpus"] == 16
    layout = Layout(**found.table["layout"])
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.sp, layout.zero) == (2, 1, 1, 8, True, 1)
    assert layout.recompute == ("core_attention", "mlp")
    work = Workload(**found.table["training"])
    assert (work.seq_len, work.global_batch, work.precision, work.fp8_weights) == (8192, 128, "fp8", True)
    assert (work.gradient_dtype, work.cross_entropy, work.overlap_grad_reduce) == ("bf16", "fused", True)
    assert work.total_tokens == 8192 * 1_000_000
    assert found.not_understood == ("--no-rope-fusion", "--window-attn-skip-freq $SKIP")
    assert {"--lr", "--save", "--node-rank", "--mock-data"} <= set(found.ignored)


def test_a_yaml_of_a_mixture_of_experts():
    table = yaml.safe_load((DATA / "mixture.yaml").read_text())
    found = read_yaml(table, "m.yaml", "m", 128)
    assert "vocab" not in found.table["model"]  # only the tokenizer's file would tell
    model = ModelSpec(**found.table["model"], vocab=256_000)
    assert [(run.kinds[0], run.count) for run in model.layers] == [("dense", 3), ("experts", 11)]
    assert (model.kinds["experts"].mixer.kind, model.mtp_layers, model.mtp_kind) == ("mla", 1, "experts")
    assert (model.kinds["experts"].mlp.experts, model.kinds["experts"].mlp.shared_width) == (64, 2048)
    layout = Layout(**found.table["layout"])
    assert (layout.tp, layout.pp, layout.vpp, layout.dp, layout.ep, layout.etp) == (2, 4, 2, 16, 16, 1)
    assert (layout.first_layers, layout.last_layers, layout.recompute) == (4, 3, ("norm", "mlp_activation", "mla_up"))
    work = Workload(**found.table["training"])
    assert (work.moe_dispatcher, work.moe_grouped, work.cross_entropy, work.vocab_multiple) == ("hybridep", True, "te", 3232)
    assert found.not_understood == ("--tokenizer-model ${DATA_PATH}/some.model", "--moe-permute-fusion")


@pytest.mark.parametrize(
    ("flags", "where", "expected"),
    [
        ("", "layout.zero", 0),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "layout.zero", 3),
        ("--use-torch-fsdp2", "layout.zero", 3),
        ("--recompute-activations", "layout.recompute", ["core_attention"]),
        ("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-end-in-bf16 14", "training.bf16_layers", 15),
        ("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-end-in-bf16 14", "training.bf16_layers_at_start", 1),
        ("--fp8-format hybrid --first-last-layers-bf16", "training.bf16_layers", 2),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "layout.recompute_layers", 2),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "layout.recompute_layers", 0),
        ("--context-parallel-size 4 --cp-comm-type a2a", "layout.cp_kind", "ulysses"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", "layout.ulysses", 2),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", "layout.vpp", 2),
        ("--use-tp-pp-dp-mapping", "layout.order", ["tp", "cp", "pp", "dp"]),
        ("--tensor-model-parallel-size 2 --num-experts 4", "layout.etp", 2),
        ("--optimizer-cpu-offload", "layout.offload_optimizer", 1.0),
        ("", "training.global_batch", 16),
        ("--bf16 --fp8-format hybrid --fp8-recipe mxfp8", "training.precision", "mxfp8"),
        ("--fp16", "training.gradient_dtype", "fp16"),
        ("--bf16", "training.gradient_dtype", "fp32"),
        ("--num-experts 4", "training.moe_dispatcher", "allgather"),
        ("--attention-backend unfused", "training.flash_attention", False),
        ("--defer-embedding-wgrad-compute --wgrad-deferral-limit 2", "training.deferred_head_gradients", 2),
        ("--defer-embedding-wgrad-compute", "training.deferred_head_gradients", 0),
        ("--transformer-impl local", "training.local_layers", True),
        ("--activation-func-fp8-input-store", "training.fp8_activation_inputs", True),
        ("--mtp-num-layers 2 --mtp-use-repeated-layer", "model.mtp_shared", True),
        ("--cuda-graph-impl local", "training.cuda_graphs", True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", "training.cuda_graphs", False),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-modules attn mlp",
            "training.cuda_graph_modules",
            ["attention", "mlp"],
        ),
        ("--cuda-graph-impl none", "training.cuda_graphs", False),
        ("--ffn-hidden-size 100", "model.kinds.dense.mlp.width", 100),
        ("--swiglu", "model.kinds.dense.mlp.width", 1344),
        ("--num-experts 4 --moe-layer-freq 2", "model.layers.1", {"kinds": ["dense"], "count": 1}),
        ("--window-size 127,0", "model.kinds.dense.mixer.window", 128),
        ("--add-qkv-bias --disable-bias-linear", "model.kinds.dense.mixer.qkv_bias", True),
        ("--vocab-size 1000", "model.vocab", 1000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta/Llama-3.1-8B", "model.vocab", 128256),
    ],
)
def test_one_flag_at_a_time(flags, where, expected):
    value = script(f"{SIZES} {flags}").table
    for key in where.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    assert value == expected


def test_a_hybrid_of_mamba_attention_and_experts():
    found = script(f"{SIZES} --hybrid-layer-pattern M*E- --num-experts 4 --mamba-num-heads 16")
    model = ModelSpec(**found.table["model"])
    assert [run.kinds[0] for run in model.layers] == ["mamba", "attention", "experts", "mlp"]
    assert (model.kinds["mamba"].mixer.heads, model.kinds["mamba"].norms) == (16, 1)


def test_sizes_may_be_missing_and_gpus_unknown():
    found = read_script("--bf16 --tensor-model-parallel-size 4", "f", "n")
    assert "model" not in found.table
    assert "gpus" not in found.table
    assert "dp" not in found.table["layout"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no Megatron-LM arguments"),
        ("nothing to see", "no Megatron-LM arguments"),
        ("torchrun pretrain_bert.py --num-layers 2", "does not train a decoder"),
        (f"{SIZES} --tensor-model-parallel-size many", "--tensor-model-parallel-size: expected a number"),
        (f"{SIZES} --tensor-model-parallel-size --bf16", "--tensor-model-parallel-size: needs a number, but has no value"),
        (
            f"{SIZES} --tensor-model-parallel-size -2",
            "--tensor-model-parallel-size: expected a whole number of 1 or more, got '-2'",
        ),
        (f"{SIZES} --tensor-model-parallel-size 3", "does not divide 8 GPUs"),
        (f"{SIZES} --num-experts 4 --moe-layer-freq [0]*9", "does not name 4 layers"),
        (f"{SIZES} --num-experts 4 --moe-layer-freq __import__", "not a pattern of layers"),
        (f"{SIZES} --optimizer shampoo", "--optimizer"),
        ("--num-layers 999999999 --hidden-size 8 --num-attention-heads 1", "more than any model"),
        ("--num-layers 4 5 --hidden-size 8", "--num-layers: expected a number"),
    ],
)
def test_what_makes_no_sense_gets_one_message(text, message):
    with pytest.raises(UsageError) as caught:
        script(text)
    assert message in str(caught.value)


def piped(string, pp=4, layers=32, more=""):
    sizes = f"--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --num-layers {layers} {more}"
    told = f"--pipeline-model-parallel-layout '{string}'" if string is not None else ""
    return script(f"python pretrain_gpt.py {sizes} --pipeline-model-parallel-size {pp} {told}")


@pytest.mark.parametrize(
    ("string", "more", "says"),
    [
        ("Et*8|(t*8|)*2t*7L", "", "holds 31 layers t, but the model has 32"),
        ("Et*8|(t*8|)*2t*8mL", "", "holds 1 multi-token-prediction layers m, but --mtp-num-layers is 0"),
        ("Et*8|(t*8|)*2t*8L", "--mtp-num-layers 1", "holds 0 multi-token-prediction layers m, but --mtp-num-layers is 1"),
        ("Et*8|t*8m|t*8|t*8mL", "--mtp-num-layers 2", "decoder layers t must come before"),
        ("Et*8|(t*8|)*2t*8", "", "the loss L must come last, and once"),
        ("Et*16|t*8|t*8L", "", "3 chunks do not divide over 4 stages"),
        ("Et*8|(t*8|)*2t*8L", "--num-virtual-stages-per-pipeline-rank 2", "has 4 chunks, but 2 virtual stages on each of 4 ranks are 8"),
        ("", "", "it is empty"),
        ("xyz", "", "'x' means nothing here"),
    ],
)  # fmt: skip
def test_a_layout_string_that_megatron_refuses_is_refused(string, more, says):
    with pytest.raises(UsageError, match="pipeline-model-parallel-layout") as error:
        piped(string, more=more)
    assert says in error.value.message


@pytest.mark.parametrize(
    ("string", "pp", "ends", "note"),
    [
        ("Et*8|t*20|t*4|L", 4, (8, 0), "stages hold 8, 20, 4, 0 layers: priced as 8, 12, 12, 0"),
        ("Et*16|||t*16L", 4, (None, None), "stages hold 16, 0, 0, 16 layers: priced as 4 x 8"),
        ("Et*3|t*5|(t*4|)*5t*4L", 4, (7, 8), "stages hold 7, 9, 8, 8 layers: priced as 7, 8, 9, 8"),
        ("Et*7|t*8|t*10|t*7L", 4, (7, 7), "stages hold 7, 8, 10, 7 layers: priced as 7, 9, 9, 7"),
        ("Et*7|t*9|t*9|t*7L", 4, (7, 7), None),
        ("Et*32L", 1, (None, None), None),
    ],
)
def test_a_layout_string_sets_the_ends_and_notes_what_they_cannot_hold(string, pp, ends, note):
    found = piped(string, pp)
    layout = Layout(**found.table["layout"])
    assert (layout.first_layers, layout.last_layers) == ends
    assert [n for n in found.notes if "layers: priced as" in n] == ([note] if note else [])
    broken = check(layout, ModelSpec(**found.table["model"]), load_cluster("dgx-h100"), Workload())
    assert not [b for b in broken if b.rule == "ends"]


@pytest.mark.parametrize(
    ("layers", "embedding", "loss", "ends", "note"),
    [
        (30, True, True, (None, None), None),
        (31, True, False, (7, 8), None),
        (31, False, True, (8, 7), None),
        (32, True, False, (None, None), "32 layers with embedding counted do not divide over 4 chunks"),
    ],
)
def test_embedding_and_loss_that_count_as_layers_are_understood(layers, embedding, loss, ends, note):
    flags = ["--account-for-embedding-in-pipeline-split"] * embedding + ["--account-for-loss-in-pipeline-split"] * loss
    found = piped(None, layers=layers, more=" ".join(flags))
    layout = Layout(**found.table["layout"])
    assert (layout.first_layers, layout.last_layers) == ends
    assert not found.not_understood
    assert any(note in n for n in found.notes) if note else not any("layers" in n for n in found.notes)


def test_a_layout_that_yaml_writes_as_lists_is_that_of_the_string():
    sizes = {"num_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 1024, "pipeline_model_parallel_size": 2}
    lists = [["embedding", *["decoder"] * 4], ["decoder", "decoder", "loss"]]
    both = [read_yaml({**sizes, "pipeline_model_parallel_layout": x}, "m.yaml", "m", 8) for x in (lists, "Et*4|ttL")]
    assert both[0].table == both[1].table
    assert both[0].table["layout"]["first_layers"] == 4
