"""Every term of an estimate can be worked out again from the inputs that `explain` prints, to the digits that it prints."""

import inspect

import pytest

from parlay.estimate.estimate import estimate
from parlay.formulas import pipeline
from parlay.formulas.contention import overlapped_s
from parlay.formulas.optimizer_step import host_step_s, step_traffic_bytes
from parlay.formulas.registry import find_formula
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.report.explain import INPUT_DIGITS

CLUSTER = load_cluster("dgx-h100")
PRINTED = 5e-5  # half of the fourth digit, of a value that may begin with a 1: 1.000 to 1.0005
CASES = {
    "megatron": ("llama-3.1-70b", {"tp": 8, "pp": 4, "dp": 4}, {}),
    "interleaved": ("llama-3.1-70b", {"tp": 8, "pp": 4, "dp": 2, "vpp": 5}, {}),
    "overlapped": ("llama-3.1-8b", {"tp": 2, "dp": 8}, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "experts and contexts": ("deepseek-v3", {"tp": 2, "cp": 2, "pp": 8, "dp": 8, "ep": 8}, {}),
    "no sequence parallelism": ("llama-3.1-8b", {"tp": 2, "pp": 2, "dp": 2, "sp": False}, {}),
    "userbuffers": ("llama-3.1-8b", {"tp": 2, "dp": 8, "tp_overlap": True}, {}),
    "ring": ("llama-3.1-8b", {"cp": 8}, {"seq_len": 131072}),
    "ulysses": ("llama-3.1-8b", {"cp": 8, "cp_kind": "ulysses"}, {"seq_len": 131072}),
    "gathered": ("llama-3.1-8b", {"cp": 8, "cp_kind": "allgather"}, {"seq_len": 131072}),
    "deepep": ("qwen3-30b-a3b", {"dp": 16, "ep": 16}, {"moe_dispatcher": "deepep"}),
    "expert tensor parallel": ("mixtral-8x7b", {"tp": 4, "pp": 2, "dp": 8, "ep": 4, "etp": 2}, {}),
    "dualpipe": ("deepseek-v3", {"pp": 16, "dp": 64, "ep": 64, "schedule": "dualpipe"}, {"framework": "hai-llm", "precision": "fp8-blockwise", "global_batch": 4096}),
    "zero-bubble": ("llama-3.1-70b", {"pp": 4, "dp": 16, "schedule": "zb-v", "vpp": 2, "zero": 0}, {"framework": "torchtitan", "global_batch": 256}),
    "recompute": ("llama-3.1-70b", {"tp": 8, "pp": 2, "dp": 2, "recompute": ("full",)}, {}),
    "fsdp": ("llama-3.1-8b", {"dp": 16, "zero": 3}, {"framework": "torchtitan"}),
    "hsdp": ("llama-3.1-8b", {"dp": 16, "zero": 3, "shard": 8}, {"framework": "torchtitan"}),
    "fsdp and a pipeline": ("llama-3.1-8b", {"dp": 8, "pp": 2, "zero": 3}, {"framework": "torchtitan"}),
    "megatron-fsdp": ("llama-3.1-8b", {"dp": 16, "zero": 3}, {}),
    "zero-2": ("llama-3.1-8b", {"dp": 16, "zero": 2}, {"framework": "deepspeed"}),
    "megatron's zero-2": ("llama-3.1-8b", {"dp": 16, "zero": 2}, {}),
    "on the host": ("llama-3.1-8b", {"dp": 8, "zero": 3, "offload_optimizer": 1.0}, {"framework": "deepspeed"}),
    "activations on the host": ("llama-3.1-8b", {"dp": 8, "offload_activations": 1.0}, {"seq_len": 512, "global_batch": 64}),
    "muon": ("qwen3-30b-a3b", {"dp": 16, "ep": 8, "zero": 3}, {"framework": "torchtitan", "optimizer": "muon"}),
    "dtensors": ("llama-3.1-8b", {"tp": 2, "dp": 8, "zero": 3}, {"framework": "torchtitan"}),
    "gathered twice": ("llama-3.1-8b", {"tp": 2, "dp": 8, "zero": 3, "recompute": ("selective_ops",)}, {"framework": "torchtitan"}),
    "hybridep beside": ("qwen3-30b-a3b", {"dp": 16, "ep": 16, "ep_overlap": True}, {"moe_dispatcher": "hybridep"}),
    "lora": ("llama-3.1-8b", {"tp": 2, "dp": 8}, {"lora_rank": 8}),
    "nanotron": ("llama-3.1-8b", {"tp": 2, "pp": 2, "dp": 2}, {"framework": "nanotron"}),
}  # fmt: skip


def printed(inputs):
    """Return inputs as a page has them."""
    return {k: float(f"{v:.{INPUT_DIGITS}g}") if isinstance(v, float) and v != int(v) else v for k, v in inputs.items()}


def kinds(x):
    """Return the seconds of all kinds of parameters of a reduction or gathering, from its collectives."""
    found = [name.removesuffix("_sent_bytes") for name in x if name.endswith("_sent_bytes")]
    return sum(
        x[f"{k}_collectives"] * x[f"{k}_latency_s"]
        + (x[f"{k}_sent_bytes"] / x[f"{k}_bytes_per_s"] if x[f"{k}_sent_bytes"] else 0.0)
        for k in found
    )


def reduction(x):
    if "layers" not in x:
        s = kinds(x)
        return x["rounds"] * (x["last_share"] * s + max(0.0, (1 - x["last_share"]) * s - x["beside_s"]))
    s, g, b = kinds(x) / x["layers"], x["gather_again_s"], x["backward_s"]
    assert s == pytest.approx(x["reduce_s"], rel=1e-4)
    others, between = max(x["layers"] - 1, 0), max(x["layers"] - 2, 0)
    return x["rounds"] * (s + min(others, 1) * max(0.0, s - b) + between * (max(0.0, g + s - b) - max(0.0, g - b)))


def gathering(x):
    if "layers" not in x:
        return reduction(x) if "dense_ranks" in x else 0.0
    g, again, once, f, b = (x[k] for k in ("gather_s", "gather_again_s", "gather_once_s", "forward_s", "backward_s"))
    assert kinds(x) / x["layers"] == pytest.approx(g + once, rel=1e-4)
    others = max(x["layers"] - 1, 0)
    each = g + others * (max(0.0, g - f) + max(0.0, again - b)) + max(0.0, again - f)
    return x["rounds"] * each + once + others * max(0.0, once - f)


def sends(x):
    if "one_way_s" in x:
        each = x["chunks"] * x["one_way_s"]
        beside = [max(0.0, each - x[k]) for k in ("forward_s", "backward_s") if k in x]
        assert x["exposed_s"] == pytest.approx(sum(beside) if beside else x["exchanges"] * each, rel=1e-4)
    return x["micro_batches"] * x["exposed_s"]


def update(x):
    each = step_traffic_bytes(1, **{p.name: x[p.name] for p in find_formula("optimizer_step.step_traffic_bytes").parameters[1:]})
    if "device_seconds" in x:
        assert x["bytes"] + x["parameters_on_host"] * each == pytest.approx(x["parameters_owned"] * each, rel=1e-4)
        held = x["parameters_on_host"]
        ways = [held * x[f"{way}_bytes_each"] / x[f"{way}_bytes_per_s"] for way in ("to_host", "to_device")]
        assert x["copy_seconds"] == pytest.approx(sum(ways), rel=1e-4)
        host = {"gpus": x["host_gpus"], "bytes_each": x["host_bytes_each"], "memory_bytes_per_s": x["host_memory_bytes_per_s"]}
        assert x["host_seconds"] == pytest.approx(host_step_s(held, share=x["host_share"], **host), rel=1e-4)
        device = x["bytes"] / x["bytes_per_s"] if x["bytes"] else x["device_seconds"]
        return device + x["copy_seconds"] + x["host_seconds"]
    assert x["bytes"] == pytest.approx(x["parameters_owned"] * each)
    return x["bytes"] / x["bytes_per_s"]


def both_ways(x):
    return x["micro_batches"] * (x["forward_s"] + x["backward_s"])


AGAIN = {
    "step.recompute": lambda x: x["micro_batches"] * x["recomputed_s"],
    "step.exposed.pp": sends,
    "step.exposed.host": lambda x: (
        x["micro_batches"] * (max(0.0, x["to_host_s"] - x["forward_s"]) + max(0.0, x["to_device_s"] - x["backward_s"]))
    ),
    "step.exposed.dp_reduce": reduction,
    "step.exposed.dp_gather": gathering,
    "step.exposed.dp_copies": lambda x: x["rounds"] * x["bytes"] / x["bytes_per_s"] if x["bytes"] else 0.0,
    "step.exposed.tied": lambda x: x["latency_s"] + x["sent_bytes"] / x["bytes_per_s"],
    "step.optimizer": update,
    "step.optimizer.update": update,
    "step.optimizer.orthogonalise": lambda x: x["flops"] / x["flops_per_s"],
    "step.optimizer.exchange": lambda x: x["bytes"] / x["bytes_per_s"],
    "step.host": lambda x: x["operators"] * x["operator_s"],
    "hidden.host": lambda x: x["micro_batches"] * x["hidden_s"],
    "hidden.dp": lambda x: x["all_s"] - x["exposed_s"],
    **dict.fromkeys([f"step.exposed.{axis}" for axis in ("tp", "cp", "ep")], both_ways),
    **dict.fromkeys([f"hidden.{axis}" for axis in ("tp", "cp", "ep")], lambda x: x["micro_batches"] * x["hidden_s"]),
}


def estimate_of(name):
    model, layout, workload = CASES[name]
    work = Workload(**({"seq_len": 4096, "global_batch": 128} | workload))
    return estimate(load_model(model), CLUSTER, work, Layout(**layout))


@pytest.fixture(scope="module", params=list(CASES))
def estimated(request):
    return estimate_of(request.param)


def test_terms_of_a_step_follow_from_what_is_printed(estimated):
    seen = 0
    for tree in (estimated.step, estimated.hidden):
        for t in (t for t in tree.walk() if not t.parts and t.value > 0):
            again = both_ways if t.key.startswith("step.compute") else AGAIN.get(t.key)
            if again is not None:
                assert again(printed(t.inputs)) == pytest.approx(t.value, rel=2 * PRINTED), t.key
                seen += 1
            else:
                assert t.key in ("step.bubble", "step.exposed.overlap"), t.key
    assert seen >= 6


def test_pieces_sum_to_their_term(estimated):
    for tree in (estimated.step, estimated.hidden):
        for t in tree.walk():
            pieces = [] if t.key == "step.bubble" or t.key == "step.exposed.pp" else t.pieces()
            if t.value > 0 and pieces:
                assert sum(p.value for p in pieces) == pytest.approx(t.value, rel=1e-9), t.key
                assert all(p.inputs for p in pieces)


def test_exposed_and_hidden_seconds_of_a_transfer_are_those_of_its_collectives(estimated):
    for axis in ("tp", "cp", "ep"):
        for p in estimated.step.find(f"step.exposed.{axis}").pieces():
            alone = 0.0
            by_place = {}
            for c in p.pieces():
                x = printed(c.inputs)
                if c.value:
                    assert x["latency_s"] + x["sent_bytes"] / x["bytes_per_s"] == pytest.approx(c.value, rel=PRINTED)
                    assert 0 < x["share_of_link"] < 1.4  # a switch that reduces beats a ring
                way, place, _ = c.label.rpartition(" between domains")
                way = way if place else c.label.removesuffix(" inside a domain")
                by_place.setdefault(way, []).append(c.value * (x["forward"] + x["backward"]))
            alone = sum(max(v) if axis == "ep" else sum(v) for v in by_place.values())
            x = p.inputs
            alone += x.get("copies_s", 0.0)
            assert x["forward_s"] + x["backward_s"] + x["hidden_s"] == pytest.approx(alone, rel=1e-9), p.label


def test_what_is_lost_to_overlap_is_the_formula_s(estimated):
    term = estimated.step.find("step.exposed.overlap")
    for p in term.pieces():
        x = printed(p.inputs)
        together = overlapped_s(x["compute_s"], x["transfer_s"], term.inputs["slow_compute"], term.inputs["slow_transfer"])
        lost = max(0.0, together - max(x["compute_s"], x["transfer_s"]))
        assert lost == pytest.approx(x["lost_s"], rel=1e-3, abs=1e-12)
        assert p.value == pytest.approx(x["times"] * x["lost_s"], rel=PRINTED)


def test_a_bubble_s_closed_form_is_the_formula_s(estimated):
    t = estimated.step.find("step.bubble")
    x = printed(t.inputs)
    if x["stages"] == 1:
        assert t.value == 0
        return
    if "others_s" in x:
        assert x["closed_form_s"] == pytest.approx(x["others_s"] / x.get("virtual", 1) + x["hops_s"], rel=PRINTED)
        stages = [p.value for p in t.pieces()]
        assert x["others_s"] == pytest.approx(sum(stages) - max(stages), rel=1e-4)
    else:
        call = getattr(pipeline, t.formula.partition(".")[2])
        found = call(*(x[name] for name in inspect.signature(call).parameters))
        assert x["closed_form_s"] == pytest.approx(max(found, 0.0) + x["hops_s"], rel=1e-3)


def test_moments_that_are_not_the_peak_follow_from_nothing(estimated):
    """Only the largest moment has inputs, what is gathered or absent then beside it; nothing is -0."""
    for tree in estimated.memory:
        peak = tree.find("memory.peak")
        moments = {t.key.rpartition(".")[2]: t for t in peak.parts}
        counting = {name for name, t in moments.items() if t.value and name not in ("gathered", "absent")}
        assert len(counting) <= 1 or counting == {"logits", "output"}
        for name, t in moments.items():
            assert str(t.value) != "-0.0", t.key
            if name not in ("gathered", "absent", *counting, *({"logits", "output"} if counting & {"logits", "output"} else ())):
                assert not t.inputs, t.key


def test_parts_that_run_beside_each_other_are_said_to():
    for name in ("deepep", "experts and contexts"):
        e = estimate_of(name)
        for term in (e.step.find("step.exposed.ep"), e.hidden.find("hidden.ep")):
            assert ("inside a domain runs beside the part between domains, and the longer counts" in term.note) == (
                name == "deepep"
            )
    (all_to_all,) = (t for t in estimate_of("deepep").step.find("step.exposed.ep").pieces() if t.value)
    seconds = {t.label.rpartition(", ")[2]: t.value for t in all_to_all.pieces()}
    ways = [max(seconds[f"{way} between domains"], seconds[f"{way} inside a domain"]) for way in ("dispatch", "combine")]
    assert all_to_all.inputs["forward_s"] == pytest.approx(sum(ways), rel=1e-9)


def test_terms_of_memory_follow_from_what_is_printed(estimated):
    """Where all of a formula's arguments are told, it gives the value; else the term says what it sums."""
    told = 0
    for tree in estimated.memory:
        for t in (t for t in tree.walk() if not t.parts and t.value):
            assert t.inputs or t.note, t.key
            x = dict(t.inputs)
            formula = find_formula(t.formula) if t.formula else None
            beside = x.pop("other_bytes", 0) if t.key == "memory.peak.logits" else 0
            times = x.pop("layers_in_flight", x.pop("communicators", 1))
            needed = [] if formula is None else [p.name for p in formula.parameters if p.default is None]
            if formula is not None and set(x) <= {p.name for p in formula.parameters} and set(needed) <= set(x):
                assert times * float(formula.function(**x)) + beside == pytest.approx(t.value, rel=1e-9), t.key
                told += 1
            elif t.key.startswith(("memory.peak.forward", "memory.peak.backward", "memory.peak.output", "memory.peak.embedding")):
                assert (
                    "layer_bytes" not in x
                    or not t.pieces()
                    or x["layer_bytes"] == pytest.approx(max(p.value for p in t.pieces()))
                )
                if len(x) > 1:
                    assert sum(x.values()) == pytest.approx(t.value), t.key
    assert told > 10
