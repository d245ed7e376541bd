"""Axes kept at values given as text: every axis is reachable, by the names that users bring."""

import dataclasses

import pytest

from parlay.cli.main import main
from parlay.errors import UsageError
from parlay.hardware.load import load_cluster
from parlay.layouts.layout import Layout
from parlay.layouts.rules import Question
from parlay.layouts.split import BY_RULE
from parlay.layouts.vocabulary import DEFAULT_ORDER
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.search.constraints import NAMED, SHORT, Bound, Constraints, parse_bound
from parlay.search.fixing import fixed
from parlay.search.space import ALL, HOW, NODE, Counted, Space, join, layouts_of
from parlay.search.spaces import default_space, wide_space

GIVEN = [
    ("tp=2,4", "tp", (2, 4)),
    ("mbs=2", "micro_batch", (2,)),
    ("schedule=zb-v,dualpipev", "schedule", ("zb-v", "dualpipev")),
    ("hsdp=node,all,16", "shard", (NODE, ALL, 16)),
    ("shard=any", "shard", ()),
    ("recompute=none,full,norm+mlp", "recompute", ((), ("full",), ("norm", "mlp"))),
    ("recompute_layers=all,2", "recompute_layers", (0, 2)),
    ("recompute_num_layers=any", "recompute_layers", ()),
    ("offload_activations=0,0.5,1", "offload_activations", (0.0, 0.5, 1.0)),
    ("order=tp-cp-dp-pp, tp-cp-pp-dp", "order", (DEFAULT_ORDER, ("tp", "cp", "pp", "dp"))),
    ("sequence_parallel=on,off", "sp", (True, False)),
    ("first_layers=rule,0,3", "first_layers", (BY_RULE, 0, 3)),
    ("pp=any", "pp", ()),
    ("cp_kind=usp", "cp_kind", ("usp",)),
    ("ulysses=2", "ulysses", (2,)),
]


@pytest.mark.parametrize(("text", "axis", "values"), GIVEN)
def test_values_are_read(text, axis, values):
    assert getattr(fixed(Space(), [text]), axis) == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shards=2", "did you mean shard"),
        ("refine=1", "unknown axis"),
        ("wide=1", "unknown axis"),
        ("sp=maybe", "neither on nor off"),
        ("order=tp-pp", "once each"),
        ("schedule=gdpipe", "should be 'gpipe'"),
        ("recompute=,full", "empty value"),
        ("shard=-1", "must be at least 1"),
        ("tp=any,2", "got 'any'"),
        ("offload_activations=2", "must be at most 1, got 2"),
        ("tp=", "gives no value"),
    ],
)
def test_wrong_values_say_what_is_allowed(text, says):
    with pytest.raises(UsageError) as caught:
        fixed(Space(), [text])
    assert says in f"{caught.value} {caught.value.hint}"


def test_every_axis_is_one_of_sizes_or_names():
    axes = {f.name for f in dataclasses.fields(Space)} - HOW
    from parlay.search.constraints import AXES

    assert axes == set(AXES) | set(NAMED)
    assert set(SHORT.values()) <= axes
    for name in NAMED:
        with pytest.raises(UsageError, match="names, not sizes"):
            parse_bound(f"{name}=x")


def test_whoever_names_a_schedule_gets_a_pipeline():
    space = fixed(Space(), ["schedule=gpipe"])
    assert space.asked.words() == ["schedule=gpipe", "pp>=2"]


def test_a_fixed_micro_batch_is_never_replaced_by_one():
    """Where it does not divide a rank's batch, the grid falls out; a search once showed such rows with one sequence each."""
    workload = Workload(global_batch=64)
    space = fixed(default_space(workload), ["micro_batch=4,8"])
    question = Question(load_model("llama-3.1-8b"), load_cluster("dgx-h100"), workload, 64)
    found = list(layouts_of(question, space, Counted()))
    assert {int(m) for x in found for m in x.micro_batch} == {4, 8}
    assert space.asked.words() == ["micro_batch=4,8"]


def test_a_named_recompute_is_not_refined():
    space = default_space(Workload())
    assert space.refine
    assert fixed(space, ["tp=8"]).refine
    assert not fixed(space, ["recompute=none,full"]).refine
    assert not fixed(space, ["recompute_layers=all"]).refine


def test_what_a_partial_layout_leaves_open_stays_open():
    space = fixed(Space(), [], Layout(tp=2, sp=None, shard=4, order=("tp", "cp", "pp", "dp")))
    assert (space.tp, space.sp, space.shard, space.order) == ((2,), (True,), (4,), (("tp", "cp", "pp", "dp"),))


def rows(name, gpus, space, **workload):
    where, work = load_cluster("dgx-h100"), Workload(seq_len=4096, global_batch=64, **workload)
    return join(list(layouts_of(Question(load_model(name), where, work, gpus), space, Counted())))


def test_shards_of_a_node_and_of_all():
    x = rows(
        "llama-3.1-8b",
        32,
        fixed(Space(zero=(1, 3), vpp=(1,), micro_batch=(1,)), ["shard=all,node", "cp=1,2"]),
        framework="torchtitan",
    )
    assert ((x.shard == x.dp * x.cp) | (x.zero == 3)).all()
    node = (x.zero == 3) & (x.shard < x.dp * x.cp)
    assert node.any()
    assert (x.shard[node] * x.tp[node] == 8).all()
    assert (x.shard % x.cp == 0).all()


def test_whoever_names_a_shard_wants_zero_3():
    space = fixed(Space(), ["shard=node"])
    assert space.zero == (3,)
    assert "zero>=3" in space.asked.words()
    assert fixed(Space(), ["shard=node", "zero=1,3"]).zero == (1, 3)
    bounded = Space().open(Constraints((Bound("zero", "<=", 1),)))
    assert fixed(bounded, ["shard=node"]).zero == (1,)


def test_every_divisor_is_a_shard_of_its_own():
    x = rows("llama-3.1-8b", 8, fixed(Space(zero=(3,), vpp=(1,), micro_batch=(1,)), ["shard=any", "tp=1", "cp=1", "pp=1"]))
    assert sorted(set(x.shard.tolist())) == [2, 4, 8]  # one GPU shards nothing


def test_full_recompute_on_every_number_of_layers_of_a_chunk():
    x = rows(
        "llama-3.1-8b", 8, fixed(Space(vpp=(1, 2), micro_batch=(1,)), ["recompute=full", "recompute_layers=any", "pp=4", "tp=2"])
    )
    assert sorted(set(x.recompute_layers[x.vpp == 1].tolist())) == list(range(9))
    assert sorted(set(x.recompute_layers[x.vpp == 2].tolist())) == list(range(5))


def test_a_schedule_that_the_framework_lacks_is_refused_at_once(capsys):
    asked = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "16", "--global-batch", "64", "--fix", "schedule=zb-v"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "megatron-core does not offer the pipeline schedule zb-v" in said
    assert "torchtitan: gpipe, 1f1b, interleaved, zb-v" in said
    assert main([*asked, "--framework", "torchtitan"]) == 0
    assert "zb-v" in capsys.readouterr().out


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "deepspeed"])
def test_the_wide_space_holds_the_tuned_one(framework):
    tuned, wide = (make(Workload(framework=framework)) for make in (default_space, wide_space))
    for f in dataclasses.fields(Space):
        values = getattr(tuned, f.name)
        if isinstance(values, tuple) and getattr(wide, f.name) and f.name != "vpp":
            assert set(values) <= set(getattr(wide, f.name)), f.name
