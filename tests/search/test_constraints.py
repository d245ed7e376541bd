"""Constraints: the search sees exactly the layouts that keep them, and says so where nothing is left."""

import dataclasses

import numpy as np
import pytest

from parlay.errors import UsageError
from parlay.hardware.load import load_cluster
from parlay.layouts.rules import Question
from parlay.layouts.workload import Workload
from parlay.models.load import load_model
from parlay.search.constraints import AXES, Bound, Constraints, parse_bound
from parlay.search.space import Counted, Space, join, layouts_of

H100 = load_cluster("dgx-h100")
WORK = Workload(seq_len=4096, global_batch=64)
SPACE = Space(vpp=(1, 2), micro_batch=(1, 2, 4), zero=(0, 1, 3), recompute=((), ("full",)), offload_optimizer=(0.0, 1.0))


def rows_of(question, space):
    blocks = list(layouts_of(question, space, Counted()))
    if not blocks:
        return set()
    x = join(blocks)
    names = [f.name for f in dataclasses.fields(x)]
    return set(zip(*(np.asarray(getattr(x, n)).tolist() for n in names), strict=True)), names


ASKED = [
    Constraints((Bound("pp", "<=", 4),)),
    Constraints((Bound("tp", ">", 1), Bound("tp", "<", 8))),
    Constraints((Bound("zero", ">=", 1), Bound("dp", ">=", 2))),
    Constraints((Bound("vpp", "==", 2), Bound("micro_batch", "<=", 2))),
    Constraints((Bound("ep", ">=", 4), Bound("cp", "==", 1))),
    Constraints((Bound("offload_optimizer", ">", 0),), min_micro_batches=8),
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: ",".join(a.words()))
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b"])
def test_a_constrained_search_sees_exactly_the_layouts_that_keep_it(name, asked):
    question = Question(load_model(name), H100, WORK, 16)
    everything, names = rows_of(question, SPACE)

    def keeps(row):
        value = dict(zip(names, row, strict=True))
        enough = WORK.global_batch // (value["dp"] * value["micro_batch"]) >= asked.min_micro_batches
        return enough and all(b.allows(value[b.axis]) for b in asked.bounds)

    wanted = {row for row in everything if keeps(row)}
    found = rows_of(question, dataclasses.replace(SPACE, asked=asked))
    assert (found[0] if found else set()) == wanted
    assert len(wanted) < len(everything)
    assert wanted or name == "llama-3.1-8b"


def test_an_axis_without_a_listed_value_left_offers_its_others():
    space = Space()
    assert space.zero == (1,)
    assert space.open(Constraints((parse_bound("zero>=2"),))).zero == (2, 3)
    assert space.open(Constraints((parse_bound("zero>=1"),))).zero == (1,)
    assert space.open(Constraints((parse_bound("mb=16"),))).micro_batch == (16,)
    assert space.open(Constraints((parse_bound("micro_batch=3"),))).micro_batch == space.micro_batch
    assert space.open(Constraints((parse_bound("offload_optimizer>0.9"),))).offload_optimizer == (1.0,)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("zero>=1", ("zero", ">=", 1)),
        ("tp = 8", ("tp", "==", 8)),
        ("mb<4", ("micro_batch", "<", 4)),
        ("offload_optimizer<=0.5", ("offload_optimizer", "<=", 0.5)),
    ],
)
def test_bounds_are_read(text, bound):
    assert parse_bound(text) == Bound(*bound)


def test_max_and_min_take_a_plain_value():
    assert parse_bound("pp=8", sign="<=", where="--max") == Bound("pp", "<=", 8)
    assert parse_bound("dp=2", sign=">=", where="--min") == Bound("dp", ">=", 2)


@pytest.mark.parametrize(
    "text", ["", "pp", "pp>", ">=3", "pp=>3", "pp=eight", "pq<=3", "pp<=1.2.3", "pp<=-1", "recompute==full", "pp<=3;"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError):
        parse_bound(text)


def test_max_refuses_a_sign_of_its_own():
    with pytest.raises(UsageError, match="is not a bound"):
        parse_bound("pp<=8", sign="<=", where="--max")


def test_words_say_all():
    asked = Constraints((Bound("pp", "<=", 8), Bound("zero", ">=", 1)), min_micro_batches=4)
    assert asked.words() == ["pp<=8", "zero>=1", "at least 4 micro-batches"]
    assert set(AXES) <= {f.name for f in dataclasses.fields(Space)}
