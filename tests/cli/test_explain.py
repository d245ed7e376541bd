"""`parlay explain`: formulas and terms, with what they can be worked out again from."""

import re

import pytest

QUESTION = ["llama-3.1-70b", "--on", "dgx-h100", "--seq-len", "8192", "--global-batch", "512"]
LAYOUT = ["--layout", "tp8.pp2.dp4"]


def test_explain_lists_shows_and_computes(parlay):
    listed = parlay("explain", "--json").document["formulas"]
    assert "pipeline.one_f_one_b_bubble_s" in {f["name"] for f in listed}
    ran = parlay(
        "explain", "pipeline.one_f_one_b_bubble_s", "--set", "stages=[1, 8]", "--set", "forward_s=2 ms", "--set", "backward_s=4ms"
    )
    assert ran.code == 0
    for words in ("t_idle = (p - 1) * (f + B)", "stages", "arXiv:1811.06965", "[0 us, 42.00 ms]"):
        assert words in ran.out
    found = parlay(
        "explain",
        "roofline.machine_balance",
        "--set",
        "flops_per_s=989 TFLOP/s",
        "--set",
        "memory_bytes_per_s=3.35 TB/s",
        "--json",
    )
    assert found.document["result"] == pytest.approx(989 / 3.35)


def test_explain_a_term(parlay):
    ran = parlay("explain", "memory.optimizer.dense.moments", *QUESTION[:3], *LAYOUT, "--json")
    found = ran.document
    assert found["term"]["formula"] == "optimizer_state.sharded_bytes"
    inputs = found["term"]["inputs"]
    assert found["term"]["value"] == pytest.approx(inputs["parameters"] * inputs["bytes_each"] / inputs["shards"])
    text = parlay("explain", "step.exposed", *QUESTION[:3], *LAYOUT).out
    assert "step.exposed.tp" in text
    assert "S = P * b / D" in parlay("explain", "memory.optimizer.dense.moments", *QUESTION[:3], *LAYOUT).out


def test_explain_shows_both_exchanges_of_experts_with_their_own_bytes_and_seconds(parlay):
    asked = ["step.exposed.ep", "qwen3-30b-a3b", "--on", "hgx-h800", "--layout", "dp64.ep64", "--framework", "hai-llm",
             "--precision", "fp8-blockwise", "--global-batch", "512"]  # fmt: skip
    text = parlay("explain", *asked).out
    below = text[text.index("collectives, of one block:") :].splitlines()
    assert [re.search(r"(dispatch|combine) (between|inside)", line)[0] for line in below[2:6]] == [
        "dispatch between", "dispatch inside", "combine between", "combine inside"
    ]  # fmt: skip
    found = parlay("explain", *asked, "--json").document["pieces"][0]
    assert sum(p["value"] for p in found["pieces"] if "between" in p["label"]) == pytest.approx(found["inputs"]["forward_s"])
    for p in found["pieces"]:
        x = p["inputs"]
        assert p["value"] == pytest.approx(x["latency_s"] + x["sent_bytes"] / x["bytes_per_s"])


def test_explain_shows_the_rates_of_memory_links_and_the_host(parlay):
    for term, said in {
        "step.optimizer": ["bytes_per_s", "share_of_memory"],
        "step.exposed.dp_reduce": ["dense_latency_s", "dense_bytes_per_s", "dense_share_of_link", "dense_collectives"],
        "step.exposed.tp": ["latency s", "bytes per s", "share of link"],
        "step.exposed.overlap": ["transfer s", "compute s"],
        "step.host": ["operators", "operator_s"],
        "hidden.tp": ["hidden_s"],
        "memory.caches.rotary": ["tokens", "width"],
    }.items():
        text = parlay("explain", term, *QUESTION[:3], *LAYOUT).out
        assert all(word in text for word in said), term


def test_explain_and_compare_take_what_the_next_command_says(parlay):
    """The flags that `plan` writes behind `parlay estimate` mean the same to `explain` and `compare`."""
    asked = [*QUESTION, *LAYOUT, "--zero", "2", "--recompute", "full", "--optimizer", "sgd", "--global-tokens", "2M"]
    asked = [a for a in asked if a not in ("--global-batch", "512")]
    asked[-1] = str(8192 * 256)
    own = parlay("estimate", *asked, "--json").document
    told = parlay("explain", "step.optimizer", *asked, "--json").document
    both = parlay("compare", *asked, "--layout", "tp4.pp4.dp4", "--json").document
    assert told["layout"] == own["estimate"]["layout"] == both["first"]["estimate"]["layout"]
    assert (told["layout"]["zero"], told["layout"]["recompute"]) == (2, ["full"])
    assert both["second"]["estimate"]["layout"]["zero"] == 2
    assert told["question"] == own["question"]


def test_a_sum_lists_what_is_something(parlay):
    """Terms of nothing are named below it; -0 is nowhere."""
    ran = parlay(
        *["explain", "memory.peak", "llama-3.1-8b", "--layout", "tp2.dp8", "--framework", "torchtitan", "--on", "dgx-h100"]
    ).out
    assert [line.split()[0] for line in ran.splitlines() if line.startswith("memory.peak")] == [
        "memory.peak.logits",
        "memory.peak.gathered",
    ]
    assert "memory.peak.absent)" in ran
    assert "-0" not in ran
    zero = parlay(
        *["explain", "memory.peak.backward", "llama-3.1-8b", "--layout", "tp4.dp2", "--lora", "16", "--on", "dgx-h100"]
    ).out
    assert "value   0 B" in zero
    assert "note    0 where another moment is larger, else the inputs' sum" in zero
    assert "inputs:" not in zero


def test_a_closed_form_is_of_the_formula_that_is_shown(parlay):
    asked = [
        "step.bubble",
        "llama-3.1-8b",
        "--layout",
        "pp4.dp2.vpp2",
        "--set",
        "layout.schedule=zb-v",
        "--framework",
        "torchtitan",
        "--on",
        "dgx-h100",
    ]
    out = parlay("explain", *asked).out
    x = parlay("explain", *asked, "--json").document["term"]["inputs"]
    assert "t_idle = (p - 1) * max(f + B - 3 * w, 0) / 2" in out.replace("3 w", "3 * w").replace("(p - 1) max", "(p - 1) * max")
    idle = (x["stages"] - 1) * max(x["forward_s"] + x["backward_s"] - 3 * x["weight_s"], 0) / 2
    assert x["closed_form_s"] == pytest.approx(idle + x["hops_s"], rel=1e-9)
