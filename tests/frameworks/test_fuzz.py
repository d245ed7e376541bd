"""Whatever a file holds, a reader returns a run or one UsageError, and soon."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlay.errors import UsageError
from parlay.frameworks.deepspeed import read_deepspeed
from parlay.frameworks.detect import read_framework
from parlay.frameworks.given import Imported
from parlay.frameworks.megatron import WITHOUT_EFFECT as MEGATRON_IGNORED
from parlay.frameworks.megatron import read_script, read_yaml
from parlay.frameworks.torchtitan import read_torchtitan
from parlay.layouts.layout import Layout
from parlay.layouts.workload import Workload
from parlay.models.spec import ModelSpec
from parlay.specfile import validate

DATA = Path(__file__).parent / "data"
FILES = sorted(f.name for f in DATA.iterdir())
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["auto", "$X", "-1", "1e400"])
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=5), SCALARS, max_size=3))
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(call, *arguments):
    """Read a file and check what was read as the command does; only a UsageError may come of it."""
    with contextlib.suppress(UsageError):
        found = call(*arguments)
        assert isinstance(found, Imported)
        validate(Layout, found.table["layout"], "file")
        validate(Workload, found.table["training"], "file")
        if isinstance(found.table.get("model"), dict):
            validate(ModelSpec, {"vocab": 1000, **found.table["model"]}, "file")


@pytest.mark.parametrize("name", FILES)
@quick
@given(cut=st.integers(0, 3000), at=st.integers(0, 3000), put=st.text(max_size=8))
def test_a_file_cut_short_or_with_something_put_in(tmp_path, name, cut, at, put):
    text = (DATA / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_bytes((text[:at] + put + text[at:])[: len(text) - cut % len(text)].encode("utf-8", "replace"))
    outcome(read_framework, str(path), 16)


FLAGS = [
    "num-layers", "hidden-size", "num-attention-heads", "num-query-groups", "group-query-attention", "swiglu", "num-experts",
    "moe-layer-freq", "moe-router-topk", "multi-latent-attention", "kv-lora-rank", "hybrid-layer-pattern", "vocab-size", "seq-length",
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "pipeline-model-parallel-layout", "context-parallel-size",
    "num-layers-per-virtual-pipeline-stage", "global-batch-size", "micro-batch-size", "recompute-granularity", "recompute-modules",
    "recompute-num-layers", "cp-comm-type", "fp8-format", "fp8-recipe", "window-size", "hidden-dropout", "mtp-num-layers", "bf16",
    "optimizer", "train-iters", "hierarchical-context-parallel-sizes", "num-distributed-optimizer-instances", "tokenizer-model",
]  # fmt: skip


@quick
@given(st.dictionaries(st.sampled_from([f"--{f}" for f in FLAGS]), VALUES | st.integers(1, 64), max_size=20))
def test_any_value_of_any_megatron_argument(values):
    outcome(read_yaml, {"MODEL_ARGS": values}, "f.yaml", "f", 64)


@quick
@given(st.dictionaries(st.sampled_from(["data_parallel_shard_degree", "tensor_parallel_degree", "pipeline_parallel_degree",
    "pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage", "context_parallel_degree", "expert_parallel_degree",
    "seq_len", "local_batch_size", "global_batch_size", "steps", "compile", "dtype"]), VALUES, max_size=8),
    st.dictionaries(st.sampled_from(["name", "flavor", "converters"]), VALUES, max_size=3))  # fmt: skip
def test_any_value_of_any_torchtitan_setting(values, model):
    outcome(read_torchtitan, {"parallelism": values, "training": values, "model": model, "activation_checkpoint": model}, "f", 64)


@quick
@given(st.dictionaries(st.sampled_from(["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16",
    "zero_optimization", "optimizer", "tensor_parallel", "activation_checkpointing", "fp16"]),
    VALUES | st.dictionaries(st.sampled_from(["stage", "enabled", "type", "autotp_size", "overlap_comm", "reduce_bucket_size"]), VALUES),
    max_size=8))  # fmt: skip
def test_any_value_of_any_deepspeed_setting(table):
    outcome(read_deepspeed, table, "ds.json", 64)


@quick
@given(st.text(alphabet=st.sampled_from("abAB=$(){}[]\"'\\\n ;#-0189+*/@!|&ifthenls"), max_size=200))
def test_any_shell_text(text):
    outcome(read_script, text + "\n--num-layers 2", "f.sh", "f", 8)


@pytest.mark.parametrize(
    "text",
    [
        "A=1\n" * 60_000,
        'A="$A$A"\n' * 20_000,
        "A+=(--x 1)\n" * 20_000,
        "if [ a = b ]; then\n" * 12_000,
        "--a " * 60_000,
        "--" + "a" * 250_000,
        "(" * 250_000,
        "'" * 250_001,
        "x=$((" * 50_000,
        "${a:-" * 50_000,
        "--moe-layer-freq " + "[0]+" * 50_000 + " --num-layers 4 --hidden-size 8 --num-attention-heads 1 --num-experts 2",
        "--pipeline-model-parallel-layout " + "(t*9999)*9999" * 100 + " --num-layers 4",
        "[[ " + "a || " * 40_000,
        "if [ " + "a || " * 40_000 + "]; then",
    ],
)
def test_hostile_scripts_are_answered_soon(text, processor_seconds):
    taken = processor_seconds(lambda: outcome(read_script, text, "f.sh", "f", 8), times=1)
    plain = processor_seconds(lambda: outcome(read_script, "A=1\n" * 60_000, "f.sh", "f", 8), times=1)
    assert taken < 20 * plain  # of the same length; measured: 3 at most


def test_a_hostile_yaml_is_answered_soon(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("MODEL_ARGS:\n" + "".join(f"  --x{i}: [1, 2]\n" for i in range(8_000)), encoding="utf-8")
    outcome(read_framework, str(path))
    path.write_text("a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)), encoding="utf-8")
    outcome(read_framework, str(path))


def test_no_argument_that_is_read_is_among_those_without_effect():
    sized = {
        "--num-layers",
        "--transformer-impl",
        "--max-position-embeddings",
        "--tokenizer-type",
        "--tokenizer-model",
    }  # asked first
    pattern = re.compile("|".join(MEGATRON_IGNORED))
    assert [f"--{f}" for f in FLAGS if pattern.fullmatch(f"--{f}") and f"--{f}" not in sized] == []
