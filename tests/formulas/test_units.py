"""What holds for every formula: units as stated, broadcasting as a loop, refusal of what means nothing.

The values are not meant to be sensible models, only arguments that the formula accepts.
"""

import math

import numpy as np
import pytest

from parlay.formulas._check import FormulaDomainError
from parlay.formulas.registry import Formula, formulas

BASE = ("B", "s", "USD", "W")  # FLOP, token, layer and GPU are counts, hence without dimension
PLAIN = (1.0, 2.0, 4.0)  # three values that most arguments accept
SHARE = (0.25, 0.5, 1.0)

# Arguments that need other values, by argument, or by formula and argument where the name means another thing.
VALUES = {
    "sequence_parallel": (0.0, 1.0, 1.0),
    "dropout": (0.0, 1.0, 1.0),
    "recomputed_share": SHARE,
    "share": SHARE,
    "score_share": SHARE,
    "unified_pages": (0.0, 1.0, 1.0),
    "utilization": SHARE,
    "serving.experts_touched.experts": (4.0, 8.0, 16.0),
    "parameters.lora_parameters.rank": (1.0, 2.0, 4.0),
    "roofline.compute_bound_rows.inner": (64.0, 128.0, 256.0),
    "roofline.compute_bound_rows.columns": (64.0, 128.0, 256.0),
    "stage": (0.0, 1.0, 2.0),
    "rank": (0.0, 1.0, 1.0),
    "flops.window_context.seq_len": (4.0, 8.0, 16.0),
    "activations_context.ring_forward_held.ring": (2.0, 2.0, 4.0),
    "activations_moe.expert_rows.capacity_factor": (0.0, 1.0, 2.0),
}
# Counts of things that cannot be cut, wherever they appear. Sizes of shards and mean values may be fractions.
WHOLE = {
    "stages", "stage", "virtual", "micro_batches", "ranks", "local_ranks", "ring_ranks", "ulysses_ranks", "nodes", "devices",
    "size", "stride", "domain", "round_index", "query_heads", "tables", "multiple",
}  # fmt: skip
FRACTIONS = {  # these check the range alone
    ("activations_context.gathered_keys_values", "ranks"),
    ("communication_buffers.deepep_buffers", "ranks"),
}
# Arguments of which the last axis is one entry an expert or rank, and which the formula reduces.
VECTORS: dict[str, tuple[str, ...]] = {
    "routing.busiest_over_mean": ("loads",),
    "routing.load_balancing_loss": ("routed_shares", "gate_means"),
}

ALL = list(formulas().values())


def test_every_special_value_is_still_of_use():
    arguments = {p.name for f in ALL for p in f.parameters} | {f"{f.name}.{p.name}" for f in ALL for p in f.parameters}
    vectors = {f"{name}.{argument}" for name, given in VECTORS.items() for argument in given}
    assert set(VALUES) | vectors <= arguments


def values_of(formula: Formula, name: str) -> tuple[float, float, float]:
    return VALUES.get(f"{formula.name}.{name}", VALUES.get(name, PLAIN))


def vectors_of(formula: Formula) -> tuple[str, ...]:
    return VECTORS.get(formula.name, ())


def argument(formula: Formula, name: str, value: float) -> object:
    """Return a value as the formula takes it: as it is, or as a vector of three."""
    return [value, value / 2, value / 4] if name in vectors_of(formula) else value


def base_arguments(formula: Formula, pick: int = 2) -> dict[str, object]:
    return {p.name: argument(formula, p.name, values_of(formula, p.name)[pick]) for p in formula.parameters}


def powers(unit: str) -> dict[str, int]:
    up, _, down = unit.partition("/")
    return {b: up.split("*").count(b) - down.split("*").count(b) for b in BASE}


@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.name)
@pytest.mark.parametrize("k", [2.0**10, 2.0**-10], ids=["larger", "smaller"])
@pytest.mark.parametrize("base", BASE)
def test_the_result_rescales_as_the_stated_units_say(formula, base, k):
    scale = {p.name: k ** powers(p.unit)[base] for p in formula.parameters}
    for pick in range(3):
        given = base_arguments(formula, pick)
        scaled = {name: np.multiply(value, scale[name]) for name, value in given.items()}
        expected = np.asarray(formula.function(**given)) * k ** powers(formula.unit)[base]
        assert np.asarray(formula.function(**scaled)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.name)
def test_broadcasting_equals_a_loop(formula):
    names = [p.name for p in formula.parameters if p.name not in vectors_of(formula)]
    fixed = {n: v for n, v in base_arguments(formula).items() if n in vectors_of(formula)}
    for turned in names:  # this one down, all others across
        down = np.array(values_of(formula, turned)[:2])
        across = {n: np.array(values_of(formula, n)) for n in names if n != turned}
        result = np.asarray(formula.function(**{turned: down[:, None]}, **across, **fixed))
        assert result.shape == ((2, 3) if across else (2, 1))
        for i in range(2):
            for j in range(result.shape[1]):
                one = formula.function(**{turned: float(down[i])}, **{n: float(v[j]) for n, v in across.items()}, **fixed)
                assert result[i, j] == pytest.approx(float(one), rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, -1.0], ids=["nan", "negative"])
@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.name)
def test_what_means_nothing_is_refused_by_name(formula, bad):
    for p in formula.parameters:
        wrong = [bad, 1.0] if p.name in vectors_of(formula) else bad
        with pytest.raises(FormulaDomainError, match=f"`{p.name}` must be"):
            formula.function(**{**base_arguments(formula), p.name: wrong})


COUNTED = [(f, p.name) for f in ALL for p in f.parameters if p.name in WHOLE and (f.name, p.name) not in FRACTIONS]


@pytest.mark.parametrize(("formula", "name"), COUNTED, ids=lambda x: getattr(x, "name", x))
def test_half_of_what_cannot_be_cut_is_refused(formula, name):
    given = base_arguments(formula)
    with pytest.raises(FormulaDomainError, match=f"`{name}` must be a whole number"):
        formula.function(**{**given, name: float(np.float64(given[name])) + 0.5})


@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.name)
def test_the_stated_units_are_known_ones(formula):
    allowed = {"-", "B", "s", "FLOP", "token", "B/s", "FLOP/s", "FLOP/B", "B/token", "token/s", "USD", "W"}
    assert {formula.unit, *(p.unit for p in formula.parameters)} <= allowed


@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.name)
def test_defaults_are_those_that_the_docstring_states(formula):
    stated = {p.name: float(p.type.rpartition("default ")[2]) for p in formula.parameters if "default " in p.type}
    assert stated == {p.name: p.default for p in formula.parameters if p.default is not None}
