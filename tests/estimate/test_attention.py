"""What attention's core costs with products in fp8, by device, window and documents."""

import pytest

from parlay.errors import UsageError
from parlay.estimate.costs import layer_costs
from parlay.estimate.operators import layer_operators
from parlay.estimate.precision import with_bf16_ends
from parlay.estimate.pricer import Pricer
from parlay.estimate.shard import Shard
from parlay.estimate.traits import traits_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, Run
from parlay.rates.choose import rates_for

SEQ = 8192


def dense(window=None):
    """Four layers of Llama 3.1 70B's shape."""
    kind = LayerKind(mixer=GroupedAttention(heads=64, kv_heads=8, head_dim=128, window=window), mlp=DenseMlp(width=28672))
    return ModelSpec(id="m", name="m", hidden=8192, vocab=128256, kinds={"a": kind}, layers=(Run(kinds=("a",), count=4),))


def pricer_of(model, workload, cluster="dgx-h100"):
    where = load_cluster(cluster)
    shard = Shard.of(Layouts.grid(tp=[1]), workload, where)
    return Pricer(rates_for(where), workload, shard, model, traits_of(workload, where.device))


def attention_seconds(cluster, model=None, **workload):
    """Seconds of one layer's attention core, forward and backward."""
    work = Workload(**{"seq_len": SEQ, "compiled": True} | workload)
    model = model or dense()
    core = next(o for o in layer_operators(pricer_of(model, work, cluster), model.kinds["a"]) if o.name == "attention")
    return float(core.forward[0]), float(core.dgrad[0])


@pytest.mark.parametrize(
    ("cluster", "precision", "faster"),
    [
        ("gb200-nvl72", "mxfp8", (0.688 / 0.553, 2.097 / 1.860)),  # cuDNN's own at 8,192 tokens
        ("dgx-h100", "fp8", (3.357 / 2.260, 10.448 / 16.298)),
        ("dgx-h100", "bf16", (1.0, 1.0)),
    ],
)
def test_attention_in_fp8_takes_what_cudnn_measured(cluster, precision, faster):
    plain, narrow = (attention_seconds(cluster, precision=precision, fp8_attention=on) for on in (None, True))
    assert [p / n for p, n in zip(plain, narrow, strict=True)] == pytest.approx(faster, rel=0.02)


def test_attention_s_backward_in_fp8_sees_no_window_but_documents():
    """A window of 512 hides most of 8,192 tokens from the forward alone; documents are sequences of their own both ways."""
    windowed = dense(window=512)
    fp8 = {"precision": "mxfp8", "fp8_attention": True}
    seen, whole, plain = (
        attention_seconds("gb200-nvl72", model, **more)
        for model, more in ((windowed, fp8), (dense(), fp8), (windowed, {"precision": "mxfp8"}))
    )
    assert seen[0] < 0.3 * whole[0]
    assert seen[1] == pytest.approx(whole[1], rel=1e-9)
    assert plain[1] < 0.3 * seen[1]
    documents = attention_seconds("gb200-nvl72", **fp8, document_len=512)
    assert documents[1] < 0.3 * whole[1]


def test_layers_in_bf16_have_no_attention_in_fp8():
    work = Workload(seq_len=SEQ, precision="fp8", bf16_layers=2, fp8_attention=True, compiled=True)
    model = with_bf16_ends(dense(), work)
    costs = layer_costs(pricer_of(model, work))
    bf16 = layer_costs(pricer_of(dense(), Workload(seq_len=SEQ, compiled=True)))
    assert costs["a_bf16"].forward["attention core"] == bf16["a"].forward["attention core"]
    assert costs["a"].forward["attention core"] < costs["a_bf16"].forward["attention core"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"framework": "torchtitan"}, "which torchtitan does not run"),
        ({"attention_kernel": "flash-2"}, "FlashAttention-2 has no fp8"),
    ],
)
def test_attention_in_fp8_is_transformer_engine_s(fields, words):
    with pytest.raises(UsageError, match=words):
        traits_of(Workload(precision="fp8", fp8_attention=True, **fields), load_cluster("dgx-h100").device)
