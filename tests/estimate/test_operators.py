import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from parlay.estimate.communication import layer_transfers
from parlay.estimate.costs import head_cost, layer_costs, unread_tail
from parlay.estimate.operators import (
    ATTENTION_TILE,
    HOST_WAIT_OPERATORS,
    attention_share,
    embedding_operators,
    layer_operators,
    routed_rows,
)
from parlay.estimate.precision import with_bf16_ends
from parlay.estimate.pricer import Pricer
from parlay.estimate.shard import Shard
from parlay.estimate.traits import HOST_FACTOR, HOST_OPERATOR_S, traits_of
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.vocabulary import CP_KINDS, RECOMPUTE
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LayerKind, Mamba2, ModelSpec, MoeMlp, Run
from parlay.rates.choose import rates_for
from parlay.rates.interface import Group

spec = importlib.util.spec_from_file_location("counting", Path(__file__).with_name("counting.py"))
counting = importlib.util.module_from_spec(spec)
sys.modules["counting"] = counting
spec.loader.exec_module(counting)
CountingRates = counting.CountingRates

SEQ = 8192


def dense(heads=64, kv=8, d=128, h=8192, f=28672, vocab=128256):
    kind = LayerKind(mixer=GroupedAttention(heads=heads, kv_heads=kv, head_dim=d), mlp=DenseMlp(width=f))
    return ModelSpec(id="m", name="m", hidden=h, vocab=vocab, kinds={"a": kind}, layers=(Run(kinds=("a",), count=4),))


def mixture(experts=8, top_k=2, shared=0):
    kind = LayerKind(
        mixer=GroupedAttention(heads=32, kv_heads=8, head_dim=128),
        mlp=MoeMlp(experts=experts, top_k=top_k, width=14336, shared_width=shared),
    )
    return ModelSpec(id="x", name="x", hidden=4096, vocab=32000, kinds={"a": kind}, layers=(Run(kinds=("a",), count=4),))


def cost(model, rates, workload=None, **layout):
    workload = workload or Workload(seq_len=SEQ, global_batch=64)
    cluster = load_cluster("dgx-h100")
    shard = Shard.of(Layouts.grid(**layout), workload, cluster)
    return layer_costs(Pricer(rates, workload, shard, model))["a"], shard


def expected_layer_flops(model, seq, batch=1):
    a, m = model.kinds["a"].mixer, model.kinds["a"].mlp
    h = model.hidden
    weights = h * (a.heads + 2 * a.kv_heads) * a.head_dim + a.heads * a.head_dim * h
    weights += 3 * h * m.width * (1 if isinstance(m, DenseMlp) else m.top_k)
    if isinstance(m, MoeMlp):
        weights += h * m.experts + 3 * h * m.shared_width
    scores = 4 * seq**2 * a.heads * a.head_dim / 2
    return batch * seq * 2 * weights, batch * scores


@pytest.mark.parametrize("model", [dense(), mixture(), mixture(16, 4, 1408)])
def test_forward_flops_are_two_per_weight_and_token_and_backward_twice_that(model):
    got, _ = cost(model, CountingRates(), dp=1)
    linear, scores = expected_layer_flops(model, SEQ)
    assert float(got.forward_s[0]) == pytest.approx(linear + scores)
    assert float(got.backward_s[0]) == pytest.approx(2 * linear + 2.5 * scores)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *[(m, x) for m in (dense(), mixture()) for x in ({"tp": 4}, {"cp": 4}, {"tp": 2, "cp": 2})],
        (dense(), {"tp": 8, "sp": False}),
    ],
)
def test_splitting_a_layer_splits_its_flops(model, layout):
    whole, _ = cost(model, CountingRates(), dp=1)
    part, shard = cost(model, CountingRates(), **layout)
    ways = float(shard.tp[0] * shard.cp[0])
    assert float(part.forward_s[0]) * ways == pytest.approx(float(whole.forward_s[0]))
    assert float(part.backward_s[0]) * ways == pytest.approx(float(whole.backward_s[0]))


@pytest.mark.parametrize("kind", CP_KINDS)
def test_every_kind_of_context_parallelism_does_the_same_work_except_the_contiguous_ring(kind):
    whole, _ = cost(dense(), CountingRates(), dp=1)
    layout = {"cp": 4, "cp_kind": CP_KINDS.index(kind), "ulysses": 2 if kind == "usp" else 1}
    part, _ = cost(dense(), CountingRates(), **layout)
    core = 4 * float(part.forward["attention core"][0]) / float(whole.forward["attention core"][0])
    assert core == pytest.approx(7 / 4 if kind == "ring" else 1.0)  # N - 1/2 block times against N/2, lesson section 3


def test_expert_parallelism_moves_work_but_does_not_change_it():
    one, _ = cost(mixture(), CountingRates(), dp=8)
    eight, _ = cost(mixture(), CountingRates(), dp=8, ep=8)
    assert float(one.forward_s[0]) == pytest.approx(float(eight.forward_s[0]))


def test_the_busiest_expert_rank_sets_the_time():
    even, _ = cost(mixture(), CountingRates(), dp=8, ep=8)
    skewed, _ = cost(mixture(), CountingRates(), Workload(seq_len=SEQ, global_batch=64, moe_imbalance=2.0), dp=8, ep=8)
    router = 2 * SEQ * 4096 * 8
    assert float(skewed.forward["experts"][0]) - router == pytest.approx(2 * (float(even.forward["experts"][0]) - router))


def test_full_recompute_runs_the_forward_again_and_core_attention_only_the_scores():
    from parlay.layouts.vocabulary import recompute_bits

    full, _ = cost(dense(), CountingRates(), dp=1, recompute=recompute_bits(("full",)))
    core, _ = cost(dense(), CountingRates(), dp=1, recompute=recompute_bits(("core_attention",)))
    linear, scores = expected_layer_flops(dense(), SEQ)
    assert float(full.recompute[0]) == pytest.approx(linear + scores)
    assert float(core.recompute[0]) == pytest.approx(scores)


def test_tensor_parallel_bytes_are_the_lessons():
    # Lesson, bytes table: 4 (t-1)/t 2 s h forward, per layer; backward as much again, plus SP's second all-gathers.
    got, shard = cost(dense(heads=32, kv=32, h=4096, f=11008), CountingRates(flops=False, wire=True), tp=8)
    n = 2.0 * SEQ * 4096
    assert float(got.exposed_forward["tp"][0]) == pytest.approx(4 * 7 / 8 * n)
    whole = got.exposed_forward["tp"] + got.exposed_backward["tp"] + got.hidden["tp"]
    assert float(whole[0]) == pytest.approx((4 + 6) * 7 / 8 * n)
    assert float(shard.tokens[0]) == SEQ


def test_all_to_all_bytes_are_the_lessons_worked_example_e():
    got, _ = cost(mixture(), CountingRates(flops=False, wire=True), dp=8, ep=8)
    assert float(got.exposed_forward["ep"][0]) == pytest.approx(234881024)  # 235 MB


def test_ring_and_ulysses_bytes_are_worked_example_d():
    workload = Workload(seq_len=131072, global_batch=64)
    model = dense(heads=32, kv=32, h=4096, f=11008)
    ring, _ = cost(model, CountingRates(flops=False, wire=True), workload, cp=8)
    assert float(ring.exposed_forward["cp"][0]) == pytest.approx(1879048192)  # 1.88 GB
    ulysses, _ = cost(model, CountingRates(flops=False, wire=True), workload, cp=8, cp_kind=CP_KINDS.index("ulysses"))
    assert float(ulysses.exposed_forward["cp"][0]) == pytest.approx(469762048)  # 470 MB


def test_ulysses_copies_key_heads_beyond_their_number():
    # prime-rl#3042: 2 K/V heads over 8 ranks send K and V 4 times.
    few = dense(heads=32, kv=2)
    got, _ = cost(few, CountingRates(flops=False, wire=True), cp=8, cp_kind=CP_KINDS.index("ulysses"))
    n = 2.0 * SEQ / 8 * 128
    assert float(got.exposed_forward["cp"][0]) == pytest.approx(7 / 8 * n * (32 + 2 * 2 * 4 + 32))


def test_the_head_takes_two_flops_per_weight_and_token():
    workload, cluster = Workload(seq_len=SEQ, global_batch=64), load_cluster("dgx-h100")
    shard = Shard.of(Layouts.grid(tp=2), workload, cluster)
    got = head_cost(Pricer(CountingRates(), workload, shard, dense()), np.array([64128.0]))
    assert float(got.forward_s[0]) == 2 * SEQ * 64128 * 8192


@pytest.mark.parametrize("window", [1, 7, 64, 100, 4096])
def test_the_share_of_a_sliding_window_counts_the_visible_pairs(window):
    s = 128
    i, j = np.indices((s, s))
    visible = (j <= i) & (i - j < window)
    share = attention_share(window, s, True)
    exact = visible.sum() / s**2
    assert share == pytest.approx(exact, abs=0.5 / s + 1e-12)  # the closed form leaves out half the diagonal


def test_chunked_attention_is_causal_inside_its_chunks():
    assert attention_share(2048, 8192, True, chunked=True) == pytest.approx(0.125)


# ------------------------------------------------------------------------- what a framework runs again, adds and waits for


def operators_of(model, workload, cluster="dgx-h100", **layout):
    where = load_cluster(cluster)
    shard = Shard.of(Layouts.grid(**layout), workload, where)
    pricer = Pricer(rates_for(where), workload, shard, model, traits_of(workload, where.device))
    return pricer, {o.name: o for o in layer_operators(pricer, model.kinds["a"])}


FULL = 1 << RECOMPUTE.index("full")


@pytest.mark.parametrize(
    ("framework", "date", "compiled", "skips"),
    [
        ("torchtitan", "2024-06-30", None, True),
        ("torchtitan", "2023-06-30", None, False),  # before PyTorch 2.1
        ("torchtitan", None, None, False),  # torchtitan turned it off in August 2025
        ("torchtitan", None, True, True),  # a compiler drops what nothing reads
        ("megatron-core", "2024-06-30", None, False),  # a reentrant checkpoint runs everything again
        ("deepspeed", "2024-06-30", None, False),
    ],
)
def test_a_recomputed_block_leaves_out_its_last_product_where_nothing_reads_it(framework, date, compiled, skips):
    work = Workload(seq_len=SEQ, global_batch=64, framework=framework, framework_date=date, compiled=compiled)
    pricer, operators = operators_of(dense(), work, dp=8, recompute=FULL)
    again = float(layer_costs(pricer)["a"].recompute[0])
    whole = float(sum(o.forward[0] for o in operators.values()))
    tail = float(operators["mlp down-projection"].forward[0] + operators["mlp residual"].forward[0])
    assert again == pytest.approx(whole - (tail if skips else 0.0), rel=1e-12)
    assert tail > 0.15 * whole


def test_the_tail_of_experts_is_run_again():
    """The combination of experts reads their outputs, so only the residual sum after it is left out."""
    _, operators = operators_of(mixture(), Workload(), dp=8)
    assert unread_tail(list(operators.values())) == {"mlp residual"}


def biased(**change):
    kind = mixture().kinds["a"]
    mlp = kind.mlp.model_copy(update={"bias": True, **change})
    return mixture().model_copy(update={"kinds": {"a": kind.model_copy(update={"mlp": mlp})}})


@pytest.mark.parametrize(
    ("scaled", "framework", "moved"),
    [
        (False, "megatron-core", (4, 4)),
        (True, "megatron-core", (24, 28)),
        (True, "torchtitan", (20, 20)),
        (True, "deepspeed", (20, 20)),
    ],
)
def test_rotary_angles_with_a_factor_run_as_single_operations_under_megatron(scaled, framework, moved):
    """Products with cos and sin, halves negated and swapped, sums and copies: rope_utils.py, _apply_rotary_pos_emb_bshd."""
    rates, model, cluster = CountingRates(flops=False, streams=True), dense(), load_cluster("dgx-h100")
    mixer = model.kinds["a"].mixer.model_copy(update={"rope_scaled": scaled})
    model = model.model_copy(update={"kinds": {"a": model.kinds["a"].model_copy(update={"mixer": mixer})}})
    workload = Workload(seq_len=SEQ, global_batch=8, framework=framework)
    shard = Shard.of(Layouts.grid(), workload, cluster)
    pricer = Pricer(rates, workload, shard, model, traits_of(workload, cluster.device))
    (rotary,) = [o for o in layer_operators(pricer, model.kinds["a"]) if o.name == "rotary"]
    elements, tables = SEQ * (64 + 8) * 128, 88 * SEQ * 128 * (moved[0] == 24)
    assert (float(rotary.forward[0]), float(rotary.dgrad[0])) == pytest.approx(
        [moved[0] * elements + tables, moved[1] * elements]
    )
    assert float(np.max(rotary.launches)) == pytest.approx(2.8 if moved[0] == 24 else 1.0)


@pytest.mark.parametrize(
    ("norm", "day", "passes"),
    [("rmsnorm", "2025-10-14", 9), ("rmsnorm", None, 1), ("layernorm", "2025-10-14", 1)],
)
def test_norms_of_plain_operations_are_rmsnorms_of_older_pytorch(norm, day, passes):
    rates, cluster = CountingRates(flops=False, streams=True), load_cluster("dgx-h100")
    model = dense().model_copy(update={"norm": norm})
    workload = Workload(seq_len=SEQ, global_batch=8, framework="torchtitan", framework_date=day)
    shard = Shard.of(Layouts.grid(), workload, cluster)
    pricer = Pricer(rates, workload, shard, model, traits_of(workload, cluster.device))
    norms = [o for o in layer_operators(pricer, model.kinds["a"]) if o.name.endswith("norm")]
    assert [float(o.forward[0]) for o in norms] == pytest.approx([passes * 4 * SEQ * model.hidden] * 2)


def test_expert_biases_move_what_their_kernels_read_and_write():
    rows, h, f = SEQ * 2, 4096, 2 * 14336
    pricer, megatron = operators_of(biased(), Workload(seq_len=SEQ), dp=8)
    _, titan = operators_of(biased(), Workload(seq_len=SEQ, framework="torchtitan"), dp=8)
    seconds = lambda nbytes: float(pricer.rates.stream(float(nbytes), "residual").seconds)  # noqa: E731
    assert float(megatron["expert biases"].forward[0]) == pytest.approx(seconds(28 * rows * h), rel=1e-9)
    assert float(megatron["expert biases"].dgrad[0]) == pytest.approx(seconds(40 * rows * h + 2 * rows * f), rel=1e-9)
    assert float(titan["expert biases"].forward[0]) == pytest.approx(seconds(4 * rows * h), rel=1e-9)
    assert "expert biases" not in operators_of(mixture(), Workload(seq_len=SEQ), dp=8)[1]


CAPTURED = {"cuda_graphs": True, "moe_dispatcher": "hybridep", "precision": "mxfp8", "seq_len": SEQ, "global_batch": 64}


@pytest.mark.parametrize(
    ("cluster", "change", "fused"),
    [
        ("gb200-nvl72", {}, True),
        ("dgx-b300", {"precision": "nvfp4"}, True),
        ("dgx-b300", {"precision": "bf16"}, False),  # the kernel multiplies blocks of narrow numbers
        ("dgx-h100", {"precision": "fp8"}, False),
        ("gb200-nvl72", {"cuda_graphs": False}, False),
        ("gb200-nvl72", {"moe_dispatcher": "alltoall"}, False),
        ("gb200-nvl72", {"moe_capacity_factor": 1.0}, False),  # rows are known beforehand, so nothing asks for it
        ("gb200-nvl72", {"framework": "torchtitan"}, False),
    ],
)
def test_a_captured_iteration_without_drops_runs_fused_expert_kernels(cluster, change, fused):
    assert traits_of(Workload(**{**CAPTURED, **change}), load_cluster(cluster).device).fused_experts is fused


def test_fused_expert_kernels_move_no_activation_and_cast_neither_hidden_rows_nor_their_gradients():
    """What is left: the input's cast (2 read, 1 + 1 written of the rows by h) and, backward, that of the output's gradient."""
    _, operators = operators_of(mixture(64, 8), Workload(**CAPTURED), "gb200-nvl72", dp=8, ep=8)
    pricer, apart = operators_of(mixture(64, 8), Workload(**{**CAPTURED, "cuda_graphs": False}), "gb200-nvl72", dp=8, ep=8)
    rows, h, f = SEQ * 8, 4096, 14336
    seconds = lambda nbytes: float(pricer.rates.stream(float(nbytes), "cast").seconds)  # noqa: E731

    def of(table, name):
        return float(table[name].forward[0]), float(table[name].dgrad[0])

    assert of(operators, "expert activation") == (0.0, 0.0)
    assert of(operators, "expert input quantisation") == pytest.approx((seconds(4 * rows * h), 0.0), rel=1e-9)
    assert of(operators, "expert hidden quantisation") == pytest.approx((0.0, seconds(4 * rows * h)), rel=1e-9)
    assert of(apart, "expert input quantisation") == pytest.approx((seconds(4 * rows * h), seconds(8 * rows * f)), rel=1e-9)
    assert of(apart, "expert hidden quantisation") == pytest.approx((seconds(4 * rows * f), seconds(4 * rows * h)), rel=1e-9)


def test_fused_expert_kernels_add_biases_themselves():
    """As elsewhere than in Megatron-core's loop over experts: one addition (4 bytes), and a sum backward."""
    pricer, operators = operators_of(biased(), Workload(**CAPTURED), "gb200-nvl72", dp=8)
    assert float(operators["expert biases"].forward[0]) == pytest.approx(
        float(pricer.rates.stream(4.0 * SEQ * 2 * 4096, "residual").seconds), rel=1e-9
    )


@pytest.mark.parametrize(("dispatcher", "with_it"), [("hybridep", True), ("deepep", False), ("alltoall", False)])
def test_permutations_run_with_the_transfer_that_holds_them(dispatcher, with_it):
    """HybridEP permutes in its dispatch and combine: overlapped, both are beside the compute, and not in it."""
    model, work = mixture(64, 8), Workload(seq_len=SEQ, global_batch=64, moe_dispatcher=dispatcher)
    both, _ = operators_of(model, work, dp=8, ep=8, ep_overlap=[False, True])
    alone, overlapped = (operators_of(model, work, dp=8, ep=8, ep_overlap=flag) for flag in (False, True))
    moved = sum(float(alone[1][name].forward[0] + alone[1][name].dgrad[0]) for name in ("permute", "unpermute"))
    found = [layer_costs(pricer)["a"] for pricer in (alone[0], overlapped[0])]
    busy = [float(c.forward["experts"][0] + c.backward["experts"][0]) for c in found]
    sent = [float((c.exposed_forward["ep"] + c.exposed_backward["ep"] + c.hidden["ep"])[0]) for c in found]
    assert busy[0] - busy[1] == pytest.approx(moved if with_it else 0.0, rel=1e-9, abs=1e-12)
    assert sent[1] - sent[0] == pytest.approx(moved if with_it else 0.0, rel=1e-9, abs=1e-12)
    together = layer_costs(both)["a"]
    assert [float(x) for x in together.forward_s] == pytest.approx([float(c.forward_s[0]) for c in found], rel=1e-12)


def test_dtensors_wait_for_every_collective_and_copy_what_they_cut():
    """torchtitan: gather, scatter and a read and a write of the whole for each, both ways; gathered again under selective checkpoints."""
    work = Workload(seq_len=SEQ, global_batch=64, framework="torchtitan")
    rates, nbytes = rates_for(load_cluster("dgx-h100")), 2 * SEQ * 8192

    def transfer(workload=work, **layout):
        pricer, operators = operators_of(dense(), workload, tp=8, sp=True, **layout)
        found = next(
            t for t in layer_transfers(pricer, dense().kinds["a"], list(operators.values())) if t.name == "mlp tensor parallel"
        )
        return tuple(float(np.asarray(x)[0]) for x in (found.forward, found.backward, found.hidden))

    gather = float(rates.collective("all_gather", nbytes, Group(8.0, 8.0)).seconds)
    scatter = float(rates.collective("reduce_scatter", nbytes, Group(8.0, 8.0)).seconds)
    copy = float(rates.stream(2.0 * nbytes, "copy").seconds)
    each = gather + scatter + 2 * copy
    assert transfer() == pytest.approx((each, each, 0.0), rel=1e-9)
    selective = 1 << RECOMPUTE.index("selective_ops")
    assert transfer(recompute=selective) == pytest.approx((each, each + gather + copy, 0.0), rel=1e-9)
    assert transfer(recompute=FULL) == pytest.approx((each, each, 0.0), rel=1e-9)  # its second forward gathers by itself
    fused = transfer(tp_overlap=True)
    assert sum(fused) == pytest.approx(2 * (gather + scatter), rel=1e-9)  # async TP moves the same without the copies
    xla = transfer(work.model_copy(update={"shards_in_place": True}))
    assert xla == transfer(Workload(seq_len=SEQ, global_batch=64))  # XLA hides what Megatron hides


def test_a_scan_is_no_attention_core_to_recompute():
    model = ModelSpec(
        id="s", name="s", hidden=4096, vocab=32000, layers=(Run(kinds=("a",), count=2),),
        kinds={"a": LayerKind(mixer=Mamba2(heads=64, head_dim=64, groups=8, state=128), mlp=DenseMlp(width=8192))},
    )  # fmt: skip
    core, full = (1 << RECOMPUTE.index(name) for name in ("core_attention", "full"))
    pricer, operators = operators_of(model, Workload(seq_len=SEQ, global_batch=64), dp=8, recompute=[0, core, full])
    again = layer_costs(pricer)["a"].recompute
    assert list(again[:2]) == [0.0, 0.0]
    assert float(again[2]) > float(operators["scan"].forward.min()) > 0


@pytest.mark.parametrize(
    ("dispatcher", "waits"), [("alltoall", True), (None, True), ("deepep", True), ("hybridep", False), ("allgather", False)]
)
def test_dispatchers_that_wait_for_counts_on_the_host_drain_the_queue(dispatcher, waits):
    work = Workload(seq_len=SEQ, moe_dispatcher=dispatcher)
    _, operators = operators_of(mixture(), work, dp=8)
    _, capped = operators_of(mixture(), work.model_copy(update={"moe_capacity_factor": 1.0}), dp=8)
    assert float(operators["permute"].waits) == (HOST_WAIT_OPERATORS if waits else 0.0)
    assert float(capped["permute"].waits) == 0.0


def test_hai_llm_sends_tokens_in_fp8_and_takes_them_back_in_bf16():
    """DeepSeek-V3 report, 3.3.3: 1 byte and a scale for 128 elements there, 2 back, in both passes; in bf16 2 and 2."""
    seconds = {}
    for precision in ("bf16", "fp8-blockwise"):
        work = Workload(seq_len=SEQ, framework="hai-llm", precision=precision)
        pricer, operators = operators_of(mixture(64, 8), work, dp=64, ep=64)
        kind = next(iter(pricer.model.kinds.values()))
        found = next(t for t in layer_transfers(pricer, kind, list(operators.values())) if t.name == "expert all-to-all")
        seconds[precision] = float((found.forward + found.backward + found.hidden)[0])
    assert seconds["fp8-blockwise"] / seconds["bf16"] == pytest.approx((1 + 4 / 128 + 2) / 4, rel=0.03)  # latencies aside


def test_the_host_is_as_fast_as_the_machine_has_it():
    """Grace and the hosts of A100 are the slowest, those of B200 the fastest; a framework's operators keep their proportion."""
    each = {}
    for name in ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "gb300-nvl72", "mi300x-8"):
        device = load_cluster(name).device
        each[name] = [traits_of(Workload(framework=f), device).host_operator_s for f in ("megatron-core", "deepspeed")]
    assert {name: round(e[0] / each["dgx-b200"][0], 9) for name, e in each.items()} == {
        "dgx-a100": 1.65, "dgx-h100": 1.2, "dgx-b200": 1.0, "gb200-nvl72": 1.8, "gb300-nvl72": 1.8, "mi300x-8": 1.0,
    }  # fmt: skip
    assert len({round(e[1] / e[0], 9) for e in each.values()}) == 1
    assert each["dgx-a100"][1] == pytest.approx(75e-6, rel=0.01)  # what vTrain's runs on A100 take


def test_only_a_forward_waits_for_the_counts():
    """Few tokens: the layer takes the host's time. The backward has the counts, so it waits for nothing."""
    model, layout = mixture(64, 8), {"dp": 8, "ep": 8}
    short = {"seq_len": 256, "framework_date": "2025-06-30"}
    found = [
        layer_costs(operators_of(model, Workload(**short, moe_dispatcher=name), **layout)[0])["a"]
        for name in ("deepep", "hybridep")
    ]
    waits = HOST_WAIT_OPERATORS * HOST_OPERATOR_S["megatron-core"] * HOST_FACTOR["hopper"]
    assert float(found[0].forward_s[0] - found[1].forward_s[0]) == pytest.approx(waits, rel=0.05)
    assert float(found[0].backward_s[0]) == pytest.approx(float(found[1].backward_s[0]), rel=1e-9)


def test_layers_kept_in_bf16_cost_what_they_cost_under_bf16():
    """A kind that stays in bf16 beside fp8 takes bf16's seconds; under bf16 itself it is like any other."""
    model = with_bf16_ends(dense(), Workload(precision="fp8", bf16_layers=2))
    seconds = {}
    for precision in ("fp8", "bf16"):
        work = Workload(seq_len=SEQ, precision=precision, bf16_layers=2, compiled=True)
        found = layer_costs(operators_of(model, work, dp=8)[0])
        seconds[precision] = {name: float((cost.forward_s + cost.backward_s)[0]) for name, cost in found.items()}
    assert seconds["fp8"]["a_bf16"] == seconds["bf16"]["a_bf16"] == seconds["bf16"]["a"]
    assert seconds["fp8"]["a"] < 0.8 * seconds["fp8"]["a_bf16"]


@pytest.mark.parametrize(
    ("framework", "date", "beside"),
    [
        ("deepspeed", "2022-03-31", False),
        ("deepspeed", "2024-03-31", True),
        ("megatron-core", "2021-04-30", False),
        ("megatron-core", "2022-05-31", True),
        ("megatron-core", None, True),
    ],
)
def test_backward_all_reduces_run_beside_the_weight_gradient_since_the_framework_can(framework, date, beside):
    work = Workload(seq_len=SEQ, framework=framework, framework_date=date)
    pricer, operators = operators_of(dense(), work, tp=8, sp=False, dp=1)
    found = [t for t in layer_transfers(pricer, dense().kinds["a"], list(operators.values())) if t.axis == "tp"]
    one = float(found[0].forward[0])  # the forward's all-reduce, the size of the backward's
    for transfer, up in zip(found, ("qkv projection", "mlp up-projection"), strict=True):
        shown = max(0.0, one - float(operators[up].wgrad[0])) if beside else one
        assert float(transfer.backward[0]) == pytest.approx(shown, rel=1e-12)


def test_a_window_costs_the_tiles_that_it_touches():
    """A tile of 128 queries with a window of 128 reads 256 keys: twice what its FLOPs count, and what a window of 256 less a tile does."""

    def seconds(window):
        kind = dense().kinds["a"]
        mixer = kind.mixer.model_copy(update={"window": window})
        model = dense().model_copy(update={"kinds": {"a": kind.model_copy(update={"mixer": mixer})}})
        return float(operators_of(model, Workload(seq_len=SEQ), dp=8)[1]["attention"].forward[0])

    pricer, _ = operators_of(dense(), Workload(seq_len=SEQ), dp=8)
    share = attention_share(128 + ATTENTION_TILE, SEQ, True)
    whole = pricer.rates.attention(SEQ, SEQ, 64.0, 8.0, 128.0, 128.0, score_share=share, batch=1)
    assert seconds(128) == pytest.approx(float(whole.seconds), rel=1e-9)
    assert seconds(128) < seconds(1024) < seconds(None)


@pytest.mark.parametrize(
    ("workload", "moved"),
    [
        ({}, 0.0),  # the product adds it
        ({"gradient_accumulation_fusion": False}, 2 + 2 * 4),  # a bf16 gradient is read, an fp32 one read and written
        ({"gradient_accumulation_fusion": False, "gradient_dtype": "bf16"}, 2 + 2 * 2),
        ({"framework": "nanotron"}, 2 + 2 * 4),
        ({"framework": "torchtitan"}, 0.0),
    ],
)
def test_gradients_that_no_product_adds_are_added_behind_the_backward(workload, moved):
    """A layer of Llama 70B's shape has 8192 x (10240 + 8192) + 3 x 8192 x 28672 weights; tensor parallelism halves them."""
    work, device = Workload(seq_len=SEQ, **workload), load_cluster("dgx-h100").device
    shard = Shard.of(Layouts.grid(tp=[1, 2]), work, load_cluster("dgx-h100"))
    pricer = Pricer(CountingRates(flops=False, streams=True), work, shard, dense(), traits_of(work, device))
    found = {o.name: o for o in layer_operators(pricer, dense().kinds["a"])}
    weights = 8192 * (10240 + 8192) + 3 * 8192 * 28672
    if not moved:
        assert "gradient accumulation" not in found
        return
    assert found["gradient accumulation"].wgrad.tolist() == [moved * weights, moved * weights / 2]
    assert not found["gradient accumulation"].forward.any()


@pytest.mark.parametrize(
    ("workload", "moved"),
    [({}, 2 + 10), ({"gradient_dtype": "bf16"}, 2 + 6), ({"framework": "deepspeed"}, 2), ({"precision": "fp32"}, 4 + 12)],
)
def test_a_tables_gradient_is_filled_with_zeros_and_added(workload, moved):
    """All rows of it, whatever few the tokens name; LoRA trains no table."""
    where = load_cluster("dgx-h100")
    seconds = []
    for lora in (None, 8):
        work = Workload(seq_len=SEQ, lora_rank=lora, **workload)
        shard = Shard.of(Layouts.grid(tp=[1]), work, where)
        pricer = Pricer(CountingRates(flops=False, streams=True), work, shard, dense(), traits_of(work, where.device))
        seconds.append({o.name: float(o.wgrad[0]) for o in embedding_operators(pricer, np.array([128256.0]))})
    assert seconds[0]["table gradient"] == moved * 128256 * 8192
    assert "table gradient" not in seconds[1]


def test_one_rank_of_experts_is_never_busier_than_the_mean():
    rows = [float(routed_rows(operators_of(mixture(64, 8), Workload(seq_len=SEQ, moe_imbalance=2.0), dp=8, ep=ep)[0],
                              mixture(64, 8).kinds["a"].mlp)[0]) for ep in (1, 8)]  # fmt: skip
    assert rows == [8 * SEQ, 2 * 8 * SEQ]
