"""The search against pricing one by one, on random small problems: same counts, same ranking, same front, with constraints."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from parlay.estimate.estimate import price_memory, price_time
from parlay.estimate.offload import host_has_room
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout, Layouts
from parlay.layouts.rules import check
from parlay.layouts.split import BY_RULE
from parlay.layouts.vocabulary import DEFAULT_ORDER
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, ModelSpec, MoeMlp, Run
from parlay.rates.choose import rates_for
from parlay.search.constraints import AXES, Bound, Constraints
from parlay.search.plan import TIE, plan
from parlay.search.shortlist import exact_steps
from parlay.search.space import Space

CLUSTERS = {name: load_cluster(name) for name in ("dgx-h100", "dgx-a100-40gb")}
RATES = {name: rates_for(cluster) for name, cluster in CLUSTERS.items()}
GRID = ("tp", "cp", "pp", "dp", "ep", "etp")


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
    "cp_kind": ["zigzag", "allgather", "ulysses", "usp"],
    "tp_overlap": [False, True],
    "ep_overlap": [False, True],
    "offload_optimizer": [0.0, 1.0],
    "offload_activations": [0.0, 1.0],
    "last_layers": [BY_RULE, 0, 1],
    "first_layers": [BY_RULE, 0, 1],
    "etp": [1, 2],
    "sp": [True, False],
    "schedule": ["interleaved", "1f1b", "gpipe", "bfs", "zb-v", "dualpipev", "zb-h1", "zb-h2", "dualpipe"],
    "shard": [0, 2],
    "recompute_layers": [0, 1, 2],
    "order": [DEFAULT_ORDER, ("tp", "cp", "pp", "dp"), ("pp", "tp", "cp", "dp")],
}
FREE = ("shard", "recompute_layers")  # () stands for every value


@st.composite
def spaces(draw):
    wide = draw(st.sets(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=3))
    kept = {}
    for axis, values in CHOICES.items():
        # An axis that is not of this problem mostly keeps its usual value, so that most problems have layouts at all.
        several, unusual = axis in wide, draw(st.integers(0, 5)) == 0
        kept[axis] = (
            tuple(draw(st.permutations(values))[:2]) if several else (draw(st.sampled_from(values)) if unusual else values[0],)
        )
        if axis == "schedule" and not several:
            kept[axis] = ("1f1b", "interleaved")
        if axis in FREE and several and draw(st.booleans()):
            kept[axis] = ()
    return Space(vpp=(1, 2), **kept)


ASKED = st.builds(
    Constraints,
    bounds=st.lists(
        st.builds(Bound, axis=st.sampled_from((*AXES[:5], "vpp", "zero", "shard", "offload_activations")), sign=st.sampled_from(["<=", ">="]), value=st.sampled_from([1.0, 2.0, 4.0])),
        max_size=2,
    ).map(tuple),
    headroom_bytes=st.sampled_from([0.0, 20e9, 60e9]),
    min_micro_batches=st.sampled_from([1, 4]),
)  # fmt: skip


def said(end):
    """Return how a Layout says the layers of an end."""
    return None if end == BY_RULE else end


def schedules_of(space, pp, vpp):
    """Return the schedules of the space that run with so many chunks; without a pipeline none means anything."""
    if pp == 1:
        return [None] if vpp == 1 else []
    two, one = ("zb-v", "dualpipev"), ("1f1b", "gpipe", "zb-h1", "zb-h2", "dualpipe")
    fits = {"interleaved": vpp > 1, "bfs": True} | dict.fromkeys(two, vpp == 2) | dict.fromkeys(one, vpp == 1)
    return [s for s in space.schedule if fits[s]]


def one_by_one(model, cluster, workload, gpus, space):
    """Yield every layout that the rules and constraints allow, by trying all combinations one at a time."""
    degrees = [d for d in range(1, gpus + 1) if gpus % d == 0]
    experts = next((k.mlp.experts for k in model.kinds.values() if k.mlp.kind == "moe"), 0)
    for tp, cp, pp in itertools.product(degrees, repeat=3):
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest or dp < 1 or cp > max(1, workload.seq_len // 256):  # the space's own end: a rank keeps 256 tokens
            continue
        per_rank, ranks = workload.global_batch // dp, dp * cp
        micros = [b for b in space.micro_batch if per_rank % b == 0] or [1]
        kinds = [(k, u) for k in space.cp_kind for u in ([d for d in range(2, cp) if cp % d == 0] if k == "usp" else [1])]
        overlaps = {(sp, sp and o) for sp in space.sp for o in space.tp_overlap} if tp > 1 else {(None, False)}
        whole = cp if workload.framework == "torchtitan" else 1
        shards = (
            [d for d in range(1, ranks + 1) if ranks % d == 0 and d % whole == 0]
            if space.shard == ()
            else [s or ranks for s in space.shard]
        )
        if len(space.shard) > 1:
            shards = [s for s in shards if ranks % s == 0 and s % cp == 0] or [ranks]
        for (ep, vpp, micro, zero, (kind, inner), recompute, (sp, overlap), host, away), (ep_overlap, etp, order, ends) in itertools.product(
            itertools.product(
                [e for e in range(1, experts + 1) if experts % e == 0] or [1], (1, 2), micros, space.zero, kinds if cp > 1 else [("zigzag", 1)],
                space.recompute, overlaps, space.offload_optimizer, space.offload_activations,
            ),
            itertools.product(
                space.ep_overlap if experts else [False], [e for e in space.etp if tp % e == 0 or e == 1] if experts else [1],
                space.order if pp > 1 and dp > 1 else space.order[:1],
                set(itertools.product(space.first_layers, space.last_layers)) if pp > 1 else [(BY_RULE, BY_RULE)],
            ),
        ):  # fmt: skip
            even = model.layer_count % (pp * vpp) == 0 or (model.layer_count + 2) % (pp * vpp) == 0
            if vpp > 1 and (pp == 1 or not (even or ends != (BY_RULE, BY_RULE))):
                continue
            longest = -(-(model.layer_count + 2) // (pp * vpp))
            layers = [0] if recompute != ("full",) else range(longest) if space.recompute_layers == () else space.recompute_layers
            for schedule, shard, n in itertools.product(
                schedules_of(space, pp, vpp), {*shards} if zero == 3 else {ranks}, layers
            ):
                x = Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, vpp=vpp, micro_batch=micro, zero=zero, cp_kind=kind, ulysses=inner,
                           recompute=recompute, recompute_layers=n, tp_overlap=overlap, ep_overlap=ep_overlap, sp=sp, schedule=schedule,
                           shard=shard, offload_optimizer=host, offload_activations=away, first_layers=said(ends[0]), last_layers=said(ends[1]),
                           order=order)  # fmt: skip
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
    optimizer=st.sampled_from(["adamw", "adamw", "muon"]),
)  # fmt: skip
def test_the_search_is_pricing_one_by_one(model, cluster, gpus, batch, seq_len, space, asked, optimizer):
    where, rates = CLUSTERS[cluster], RATES[cluster]
    # torchtitan allows even virtual stages only, as this test's plain loop does
    workload = Workload(seq_len=seq_len, global_batch=batch, framework="torchtitan", optimizer=optimizer)
    space = dataclasses.replace(space, asked=asked)
    tried = list(one_by_one(model, where, workload, gpus, space))
    found = plan(model, where, workload, gpus, top=100, space=space, levers=False)
    assert found.priced == len(tried)
    prices = []
    for x in tried:
        alone = Layouts.of(x)
        held = price_memory(model, where, workload, alone)
        if held.peak[0] <= held.limit_bytes - asked.headroom_bytes and host_has_room(model, where, workload, alone)[0]:
            prices.append((float(price_time(model, where, workload, alone, rates).step[0]), float(held.peak[0]), x))
    assert found.fitting == len(prices)
    # The rows shown are the best by their own timelines, operation by operation, of every layout that fits.
    exact = exact_steps(model, where, workload, Layouts.of([x for *_, x in prices]), rates) if prices else []
    best = {}
    for step, (*_, x) in zip(exact, prices, strict=True):
        best[grid_of(x)] = min(step, best.get(grid_of(x), np.inf))
    assert {grid_of(r.estimate.layout) for r in found.rows} == set(best)
    for r in found.rows:
        assert r.estimate.step_s <= best[grid_of(r.estimate.layout)] * (1 + 2 * TIE)
        assert any(x == r.estimate.layout.model_copy(update={"sp": x.sp, "schedule": x.schedule}) for *_, x in prices)
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
