"""One H200, calibrated, and layers of Llama 3.1 8B timed on it: what Parlay predicts from the file against what was measured.

Measured on 2026-11-29 (torch 2.11.0, CUDA 13.0) by scripts/time_llama_stack.py: eight layers, medians of 20 steps, in the same
ten minutes as the shipped calibration.
"""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parlay.cli.main import main
from parlay.hardware.load import load_device
from parlay.rates.calibration_file import load_calibration, shipped_calibrations

NAME = "h200-one-gpu"
SCRIPT = Path(__file__).parents[2] / "scripts" / "time_llama_stack.py"
LAYERS = 8
# sequence length, sequences, ms: forward eager and compiled, forward and backward eager and compiled
MEASURED = [(8192, 1, 57.089, 51.130, 178.451, 163.084), (4096, 2, 53.808, 47.371, 163.232, 149.686), (2048, 1, 13.061, 11.631, 39.753, 36.211)]  # fmt: skip


@pytest.fixture(scope="module")
def stack():
    spec = importlib.util.spec_from_file_location("time_llama_stack", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["time_llama_stack"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("seq", "batch", "eager_f", "compiled_f", "eager", "compiled"), MEASURED)
def test_layers_on_a_real_gpu_are_predicted_within_15_percent(stack, seq, batch, eager_f, compiled_f, eager, compiled):
    found = stack.predicted(SimpleNamespace(layers=LAYERS, seq=seq, batch=batch, predict=Path(NAME), on="dgx-h200"))
    assert found["eager forward and backward ms"] == pytest.approx(eager, rel=0.15)
    assert found["compiled forward and backward ms"] == pytest.approx(compiled, rel=0.15)
    assert found["compiled forward ms"] == pytest.approx(compiled_f, rel=0.2)  # a forward alone is over before the clock falls
    assert found["eager forward ms"] == pytest.approx(eager_f, rel=0.2)
    assert {found["sources"][k] for k in ("mlp", "attention projections", "attention core")} <= {"calibrated", "interpolated"}


def test_the_shipped_calibration_is_complete_and_says_where_it_comes_from():
    found = load_calibration(NAME)
    assert shipped_calibrations() == (NAME,)
    assert found.complete
    assert not found.errors
    assert found.count == 250
    assert found.device.name == "NVIDIA H200"
    assert found.software.torch == "2.11.0+cu130"
    assert found.method.compiled
    sheet = load_device("h200-sxm")
    for gemm in found.gemms:
        rate = 2.0 * gemm.m * gemm.n * gemm.k / gemm.seconds.median
        assert rate < sheet.flops_per_s[gemm.dtype].value
    for stream in found.memory:
        assert stream.bytes < 1 << 26 or stream.bytes / stream.seconds.median < sheet.hbm_bytes_per_s.value


def test_a_shipped_calibration_is_named_where_a_file_would_be(capsys):
    asked = ["llama-3.1-8b", "--on", "dgx-h200", "--layout", "dp8", "--zero", "3", "--framework", "torchtitan"]
    assert main(["estimate", *asked, "--rates", NAME]) == 0
    assert "interpolated" in capsys.readouterr().out
    assert main(["calibrate", "show", NAME]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
