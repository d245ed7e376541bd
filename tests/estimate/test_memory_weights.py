"""The weight matrices of a layer: they are the parameters that are counted elsewhere, and equal shapes count once."""

import numpy as np
import pytest

from parlay.estimate.local import layer_on_rank
from parlay.estimate.memory_weights import Matrix, distinct_elements, elements_of, matrices
from parlay.estimate.shard import Shard
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
    NoMixer,
    NoMlp,
    Run,
)

LATENT = LatentAttention(heads=16, q_rank=384, kv_rank=128, nope_dim=64, rope_dim=32, v_dim=64)
GROUPED = GroupedAttention(heads=16, kv_heads=2, head_dim=64)
KINDS = {
    "latent": LayerKind(mixer=LATENT, mlp=DenseMlp(width=4096)),
    "full-rank latent": LayerKind(mixer=LATENT.model_copy(update={"q_rank": None}), mlp=NoMlp()),
    "grouped": LayerKind(mixer=GROUPED, mlp=DenseMlp(width=4096, gated=False)),
    "gated output": LayerKind(mixer=GROUPED.model_copy(update={"output_gate": True}), mlp=NoMlp()),
    "experts": LayerKind(mixer=NoMixer(), mlp=MoeMlp(experts=16, top_k=4, width=512, shared_width=512)),
    "latent experts": LayerKind(mixer=NoMixer(), mlp=MoeMlp(experts=16, top_k=4, width=512, latent_width=256)),
    "mamba2": LayerKind(mixer=Mamba2(heads=32, head_dim=64, groups=8, state=64), mlp=NoMlp()),
    "mamba1": LayerKind(mixer=Mamba1(inner=2048, state=16, dt_rank=64), mlp=NoMlp()),
    "delta": LayerKind(mixer=GatedDelta(key_heads=8, value_heads=16, key_dim=64, value_dim=64), mlp=NoMlp()),
}
MODEL = ModelSpec(id="m", name="m", hidden=1024, vocab=32000, kinds=KINDS, layers=(Run(kinds=tuple(KINDS), count=9),))
LAYOUTS = Layouts.grid(tp=np.array([1, 2, 4]), dp=8, ep=np.array([1, 2, 4]), etp=np.array([1, 1, 2]))
SHARD = Shard.of(LAYOUTS, Workload(), load_cluster("dgx-h100"))


@pytest.mark.parametrize("name", KINDS)
def test_matrices_are_the_counted_parameters_less_vectors(name):
    """Norms, biases, convolutions and per-head scalars are all that is missing: under 1 % of a layer and 32 rows of h."""
    dense, expert = layer_on_rank(MODEL, KINDS[name], LAYOUTS)
    found = matrices(KINDS[name], MODEL.hidden, SHARD)
    for counted, grouped in ((dense, False), (expert, True)):
        mine = sum((m.elements * m.count for m in found if m.grouped == grouped), start=np.zeros(3))[SHARD.row_of]
        assert (mine <= counted + 1e-6).all()
        assert (counted - mine <= 0.01 * counted + 32 * MODEL.hidden).all()


def test_routers_are_no_linear_layers():
    kind = KINDS["experts"]
    every, linear = elements_of(kind, 1024, SHARD), elements_of(kind, 1024, SHARD, linear_only=True)
    assert (every - linear == 16 * 1024).all()


def matrix(rows, columns):
    one = np.ones(2)
    return Matrix("m", np.asarray(rows, float) * one, np.asarray(columns, float) * one, one)


def test_equal_shapes_count_once_row_by_row():
    """The second row splits differently, so two shapes coincide there and not in the first."""
    present = [matrix([8, 4], 2), matrix(4, 2), matrix(2, 8), matrix(4, 2)]
    assert distinct_elements(present).tolist() == [16 + 8 + 16, 8 + 16]
