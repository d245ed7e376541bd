"""Numbers in JSON are SI base units, and their key says which."""

import json

import pytest

from parlay.report.schemas import schemas

UNITS = ("_s", "_bytes", "_flops_per_s", "_per_s", "_per_s_per_gpu", "_per_token", "_sequences", "_tokens", "_hours", "_usd")
COUNTS = {  # numbers of things, shares, positions: what the word itself counts
    "parameters_total", "parameters_active", "parameters_trained", "lora_rank", "document_len", "gpus", "seq_len", "mfu", "schema_version", "rank", "considered", "priced", "fitting",
    "memory_worst_stage", "passed", "failed", "runs", "distance", "gain", "tp", "pp", "ep", "copies", "parameters", "layers", "hidden", "fewest_gpus", "knee_share",
    "predicted", "layouts", "median", "mean", "p90", "bias", "worst", "error", "rank_correlation", "regret", "seconds", "fullness", "fullest",
}  # fmt: skip
BESIDE_A_UNIT = {"value", "first", "second", "difference"}  # `unit` stands in the same object
UNIT_IN_NAME = {"LimitDocument": {"limit", "value"}}  # a limit is named as in a run file, such as step_s
NOT_SI = ("_gib", "_gb", "_ms", "_us", "_tflops", "_percent")
WHERE_NUMBERS_ARE_FREE = {"inputs", "said", "computed", "rejected", "layout", "largest_terms_bytes"}


def numeric(schema):
    kinds = [schema, *schema.get("anyOf", [])]
    return any(k.get("type") in ("number", "integer") for k in kinds) or isinstance(schema.get("const"), int)


@pytest.mark.parametrize(("name", "text"), schemas().items())
def test_numeric_keys_end_in_their_unit(name, text):
    schema = json.loads(text)
    seen = 0
    for kind in [schema, *schema.get("$defs", {}).values()]:
        for key, field in kind.get("properties", {}).items():
            if not numeric(field) or key in WHERE_NUMBERS_ARE_FREE:
                continue
            seen += 1
            assert not key.endswith(NOT_SI), key
            beside = key in BESIDE_A_UNIT and "unit" in kind["properties"]
            named = key in UNIT_IN_NAME.get(kind.get("title", ""), ())
            assert key.endswith(UNITS) or key in COUNTS or beside or named, f"{kind.get('title')}.{key} names no unit"
    assert seen >= 3


@pytest.mark.parametrize(("name", "text"), schemas().items())
def test_unknown_keys_are_refused(name, text):
    schema = json.loads(text)
    objects = [k for k in [schema, *schema.get("$defs", {}).values()] if "properties" in k]
    assert objects
    assert all(k["additionalProperties"] is False for k in objects)
