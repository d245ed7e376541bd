"""The search against pricing one by one, on random small problems: same counts, same ranking, same front, with constraints."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from parlay.estimate.estimate import price_memory, price_time
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, MoeMlp, Run
from parlay.rates.choose import rates_for
from parlay.search.constraints import AXES, Bound, Constraints
from parlay.search.plan import TIE, plan
from parlay.search.space import Space

CLUSTERS = {name: load_cluster(name) for name in ("dgx-h100", "dgx-a100-40gb")}
RATES = {name: rates_for(cluster) for name, cluster in CLUSTERS.items()}
GRID = ("tp", "cp", "pp", "dp", "ep", "etp", "zero")


@st.composite
def models(draw):
    heads = draw(st.sampled_from([4, 6, 8, 12]))
    kv_heads = draw(st.sampled_from([k for k in (1, 2, 4, heads) if heads % k == 0]))
    hidden = heads * 128 * draw(st.sampled_from([1, 2]))
    mlp = DenseMlp(width=draw(st.sampled_from([2, 3, 4])) * hidden)
    if draw(st.booleans()):
        experts = draw(st.sampled_from([4, 6, 8]))
        mlp = MoeMlp(experts=experts, top_k=draw(st.integers(1, 2)), width=hidden)
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=128), mlp=mlp)
    count = draw(st.integers(2, 12))
    return ModelSpec(
        id="random", name="random", hidden=hidden, vocab=draw(st.sampled_from([32000, 128256])), kinds={"layer": kind},
        layers=(Run(kinds=("layer",), count=count),),
    )  # fmt: skip


# Two values on two axes at most, so that 200 problems stay quick to price one by one.
CHOICES = {
    "zero": [0, 1, 2, 3],
    "micro_batch": [1, 2, 3, 4],
    "recompute": [(), ("full",), ("norm",)],
    "cp_kind": ["zigzag", "allgather", "ulysses"],
    "tp_overlap": [False, True],
    "offload_optimizer": [0.0, 1.0],
    "last_layers": [0, 1],
}


@st.composite
def spaces(draw):
    wide = draw(st.sets(st.sampled_from(sorted(CHOICES)), max_size=2))
    kept = {}
    for axis, values in CHOICES.items():
        kept[axis] = tuple(draw(st.permutations(values))[: 2 if axis in wide else 1])
    return Space(vpp=(1, 2), **kept)


ASKED = st.builds(
    Constraints,
    bounds=st.lists(
        st.builds(Bound, axis=st.sampled_from((*AXES[:5], "vpp", "zero")), sign=st.sampled_from(["<=", ">="]), value=st.sampled_from([1.0, 2.0, 4.0])),
        max_size=2,
    ).map(tuple),
    headroom_bytes=st.sampled_from([0.0, 20e9, 60e9]),
    min_micro_batches=st.sampled_from([1, 4]),
)  # fmt: skip


def one_by_one(model, cluster, workload, gpus, space):
    """Yield every layout that the rules and constraints allow, by trying all combinations one at a time."""
    degrees = [d for d in range(1, gpus + 1) if gpus % d == 0]
    experts = next((k.mlp.experts for k in model.kinds.values() if k.mlp.kind == "moe"), 0)
    for tp, cp, pp in itertools.product(degrees, repeat=3):
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest or dp < 1 or cp > max(1, workload.seq_len // 256):  # the space's own end: a rank keeps 256 tokens
            continue
        per_rank = workload.global_batch // dp
        micros = [b for b in space.micro_batch if per_rank % b == 0] or [1]
        for ep, vpp, micro, zero, kind, recompute, overlap, host, last in itertools.product(
            [e for e in range(1, experts + 1) if experts % e == 0] or [1], (1, 2), micros, space.zero,
            space.cp_kind if cp > 1 else ("zigzag",), space.recompute, space.tp_overlap if tp > 1 else (False,), space.offload_optimizer,
            space.last_layers if pp > 1 else (0,),
        ):  # fmt: skip
            even = model.layer_count % (pp * vpp) == 0 or (model.layer_count + 2) % (pp * vpp) == 0
            if vpp > 1 and (pp == 1 or not even):
                continue
            x = Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, vpp=vpp, micro_batch=micro, zero=zero, cp_kind=kind, recompute=recompute,
                       tp_overlap=overlap, offload_optimizer=host, last_layers=last)  # fmt: skip
            enough = per_rank // micro >= space.asked.min_micro_batches
            kept = enough and all(b.allows(getattr(x, b.axis)) for b in space.asked.bounds)
            if kept and not check(x, model, cluster, workload, gpus):
                yield x


def grid_of(x):
    return tuple(getattr(x, axis) for axis in GRID)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate])
@given(
    model=models(), cluster=st.sampled_from(sorted(CLUSTERS)), gpus=st.sampled_from([1, 2, 3, 4, 6]),
    batch=st.sampled_from([4, 6, 12, 16]), seq_len=st.sampled_from([1024, 2048, 4096]), space=spaces(), asked=ASKED,
)  # fmt: skip
def test_the_search_is_pricing_one_by_one(model, cluster, gpus, batch, seq_len, space, asked):
    where, rates = CLUSTERS[cluster], RATES[cluster]
    # torchtitan allows even virtual stages only, as this test's plain loop does
    workload = Workload(seq_len=seq_len, global_batch=batch, framework="torchtitan")
    space = dataclasses.replace(space, asked=asked)
    tried = list(one_by_one(model, where, workload, gpus, space))
    found = plan(model, where, workload, gpus, top=100, space=space, levers=False)
    assert found.priced == len(tried)
    prices = []
    for x in tried:
        alone = Layouts.of(x)
        held = price_memory(model, where, workload, alone)
        if held.peak[0] <= held.limit_bytes - asked.headroom_bytes:
            prices.append((float(price_time(model, where, workload, alone, rates).step[0]), float(held.peak[0]), x))
    assert found.fitting == len(prices)
    best = {}
    for step, _, x in prices:
        best[grid_of(x)] = min(step, best.get(grid_of(x), np.inf))
    shown = [r.estimate.layout for r in found.rows]
    assert {grid_of(x) for x in shown} == set(best)
    of = {(x.model_dump_json()): s for s, _, x in prices}
    for x in shown:
        step = float(price_time(model, where, workload, Layouts.of(x), rates).step[0])
        assert step <= best[grid_of(x)] * (1 + TIE)
        assert any(s == pytest.approx(step, rel=1e-12) for s in of.values())
    front = [(s, m) for s, m, _ in prices if not any(a <= s and b <= m and (a < s or b < m) for a, b, _ in prices)]
    seen = np.array([(p.step_s, p.peak_bytes) for p in found.pareto]).reshape(-1, 2)
    wanted = np.array(sorted(set(front))).reshape(-1, 2)
    assert seen.shape == wanted.shape
    assert seen == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("top", [1, 2, 5])
def test_chunks_and_top_keep_the_best_grids(top):
    """However the space is cut into chunks, the `top` fastest grids are the same, also where a grid has thousands of rows."""
    from parlay.models.load import load_model

    where, model = CLUSTERS["dgx-h100"], load_model("llama-3.1-8b")
    space = Space(
        zero=(0, 1, 2, 3),
        micro_batch=(1, 2, 4),
        cp_kind=("zigzag", "allgather"),
        tp_overlap=(False, True),
        offload_optimizer=(0.0, 1.0),
    )
    everything = plan(model, where, Workload(global_batch=64), 16, top=100, space=space)
    few = plan(model, where, Workload(global_batch=64), 16, top=top, space=space)
    closed = {}
    for r in everything.rows:
        x = r.estimate.layout
        closed[grid_of(x)] = float(price_time(model, where, everything.workload, Layouts.of(x), RATES["dgx-h100"]).step[0])
    fastest = sorted(closed, key=closed.get)[:top]
    shown = [grid_of(r.estimate.layout) for r in few.rows]
    assert len(shown) == top
    assert all(closed[g] <= closed[fastest[-1]] * (1 + 2 * TIE) for g in shown)
