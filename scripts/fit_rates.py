"""Fit the shipped rate profiles from measured tables. Development only: needs pyarrow and scipy.

    python scripts/fit_rates.py --tables DIR --hardware measured-hardware.csv [--device h100-sxm ...]

DIR holds DEVICE-gemm.parquet, -attention-forward, -grouped-gemm and -nccl as ai-dynamo/aiconfigurator publishes them
(Apache-2.0); the CSV holds published single figures (SimuMax, Azure, ml-engineering). Writes parlay/rates/profiles/*.json
and the sample of held-out points that the tests read. Each block is one least-squares fit of a form of
parlay/rates/kernels.py. Fits of the tables use at most 4,000 rows of one half and are judged on the other half; the grid of
GEMM residuals uses the rows around its nodes and is judged on rows around none. Blocks that say `fitted_points` come from a
handful of published figures and are judged on those same figures.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
from pathlib import Path

import numpy as np
from rate_fits import (
    collective_curves,
    digits,
    errors,
    fit,
    fit_attention,
    fit_attention_b200,
    fit_group_launch,
    fit_grouped,
    fit_product,
    table,
)

from parlay.hardware.load import load_device
from parlay.rates.kernels import Product, Residuals
from parlay.rates.profile import residuals_of

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "parlay" / "rates" / "profiles"
SAMPLE = ROOT / "tests" / "rates" / "data" / "measured-sample.csv"
TABLES = {  # catalog id: prefix of its tables
    "a100-sxm": "a100-sxm",
    "h100-sxm": "h100-sxm",
    "h200-sxm": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
}
LINKS = {"a100-sxm": 300e9, "h100-sxm": 450e9, "h200-sxm": 450e9, "l40s": 31e9} | dict.fromkeys(
    ("b200", "b300", "gb200", "gb300"), 900e9
)  # one direction of the scale-up port that the collectives ran over
HARDWARE = {
    "a100-sxm": ("a100-80gb-sxm",),
    "h100-sxm": ("h100-sxm",),
    "h200-sxm": ("h200",),
    "b200": ("b200",),
    "b300": ("b300",),
    "gb200": ("gb200",),
}


# ------------------------------------------------------------------------------------------------ clocks


def comparisons(rows: list[dict], device: str):
    """Yield (m, n, k, dtype, measured FLOP/s, source) of sustained products of random data on this device."""
    for row in rows:
        if row["hardware"] not in HARDWARE.get(device, ()) or row["kind"] != "gemm":
            continue
        shape, dtype = (
            row["shape_or_payload"],
            {"fp16": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}.get(row["precision"]),
        )
        if "mamf" in row["operation"] and (found := re.search(r"(\d+)x(\d+)x(\d+)", shape)):
            yield (*map(float, found.groups()), dtype, float(row["value"]) * 1e12, "ml-engineering MAMF")
        elif "cuBLASLt" in row["operation"] and (found := re.search(r"m=(\d+) n=(\d+) k=(\d+)", shape)):
            yield (*map(float, found.groups()), dtype, float(row["value"]) * 1e12, "Azure cuBLASLt")
        elif row["operation"] == "matmul" and "b=1," in shape and (found := re.search(r"m=(\d+), k=(\d+), n=(\d+)", shape)):
            m, k, n = map(float, found.groups())
            peak = float(row["peak_theoretical"]) * 1e12
            yield (m, n, k, dtype, float(row["efficiency"]) * peak, "SimuMax TE")


MAMF_RANGE = (1024, 20480)  # sizes that ml-engineering's search for the best shape goes through


def best_rate(tables: Path, prefix: str) -> float:
    """Return the best bf16 FLOP/s of the table within the sizes that the search for a best shape covers."""
    g = table(tables, f"{prefix}-gemm")
    keep = g["gemm_dtype"] == "bfloat16"
    for axis in "mnk":
        keep &= (g[axis] >= MAMF_RANGE[0]) & (g[axis] <= MAMF_RANGE[1])
    return float(np.max(2.0 * g["m"][keep] * g["n"][keep] * g["k"][keep] / (g["latency"][keep] * 1e-3)))


def sustained(tables: Path, rows: list[dict], device: str, product: Product, residuals: Residuals) -> dict | None:
    """Return sustained over table FLOP/s for large bf16 products, from the steadiest source that has this device.

    The tables time kernels in short bursts; a training step runs random data at the power limit for hours. Named shapes
    are compared shape by shape; a best shape is compared with the table's best shape, not with its mean.
    """
    found: dict[str, list[float]] = {}
    for m, n, k, dtype, rate, source in comparisons(rows, device):
        if dtype == "bf16" and min(m, n, k) >= 1024 and m * n * k >= 2048**3:
            seconds = float(product.seconds(m, n, k) * residuals.factor(m, n, k))
            if source.endswith("MAMF"):
                seconds = 2 * m * n * k / best_rate(tables, TABLES[device])
            found.setdefault(source, []).append(rate * seconds / (2 * m * n * k))
    for source in ("SimuMax TE", "Azure cuBLASLt", "ml-engineering MAMF"):
        if source in found:
            ratio = float(np.median(found[source]))
            return {
                "factor": round(min(1.0, ratio), 3),
                "points": len(found[source]),
                "spread": [round(float(v), 3) for v in np.percentile(found[source], [10, 90])],
                "source": f"{source} (random data, steady state) over the table's FLOP/s, "
                + ("best shape to best shape" if source.endswith("MAMF") else "shape by shape"),
                "others": {k: round(float(np.median(v)), 3) for k, v in found.items() if k != source},
            }
    return None


def steady_fp8(rows: list[dict], device: str, base: Product, peak: float) -> dict | None:
    """Fit fp8 products of a device that Azure measured in the throttled steady state with cuBLASLt."""
    points = [
        (m, n, k, 2 * m * n * k / r) for m, n, k, d, r, s in comparisons(rows, device) if d == "fp8" and s.startswith("Azure")
    ]
    if len(points) < 5:
        return None
    m, n, k, t = np.array(points).T

    def model(x):
        return Product(peak, float(np.exp(x[0])), base.bytes_per_s, base.exponent, float(np.exp(x[1])), 1.0).seconds(m, n, k)

    x = fit(model, t, np.log([0.65 * peak, 5e-6]), np.log([0.3 * peak, 1e-6]), np.log([peak, 2e-5]))
    return {
        "flops_per_s": digits(np.exp(x[0])), "bytes_per_s": digits(base.bytes_per_s), "exponent": digits(base.exponent),
        "fixed_s": digits(np.exp(x[1])), "sustained": True,
        "formula_error": errors(model(x), t, 0) | {"fitted_points": len(t)},
        "range": {"m": [1024, 802816], "n": [192, 32768], "k": [768, 32768]},
        "source": "Azure/AI-benchmarking-guide, cuBLASLt fp8, throttled steady state",
    }  # fmt: skip


def exact_points(rows: list[dict], device: str) -> dict | None:
    """Return bf16 shapes that a training stack was timed on: m, n, k and the share of peak, layouts averaged."""
    found: dict[tuple[int, int, int], list[float]] = {}
    peak = load_device(device).flops_per_s["bf16"].value
    for m, n, k, dtype, rate, source in comparisons(rows, device):
        if source == "SimuMax TE" and dtype == "bf16":
            found.setdefault((int(m), int(n), int(k)), []).append(rate / peak)
    if not found:
        return None
    return {
        "shapes": [[*key, digits(float(1 / np.mean(1 / np.array(v))))] for key, v in sorted(found.items())],
        "source": "MooreThreads/SimuMax 4dcaae513, matmul, Transformer Engine general_gemm, random data, back to back",
    }


def stream_shares(rows: list[dict], device: str) -> dict | None:
    """Return measured shares of the memory's peak by kind of stream, where a source has this device."""
    peak = load_device(device).hbm_bytes_per_s.value
    value = {r["operation"]: r for r in rows if r["kind"] == "hbm" and r["hardware"] in HARDWARE.get(device, ())}
    if "BabelStream Copy" in value:
        copy, add = (float(value[f"BabelStream {k}"]["value"]) * 1e12 / peak for k in ("Copy", "Add"))
        shares = {"copy": copy, "cast": copy, "residual": add}
        return {
            "shares": {k: round(v, 3) for k, v in shares.items()},
            "source": "Azure/AI-benchmarking-guide, BabelStream copy and add",
        }
    if "permute_fwd" in value:
        share = {k: float(r["efficiency"]) * float(r["peak_theoretical"]) * 1e9 / peak for k, r in value.items()}
        shares = {"permute": share["permute_fwd"], "cross_entropy": share["ce"]}
        kinds = ("norm", "rope", "activation", "softmax", "residual", "optimizer", "cast")
        shares |= dict.fromkeys(kinds, share["default"])
        return {
            "shares": {k: round(v, 3) for k, v in shares.items()},
            "source": "MooreThreads/SimuMax 4dcaae513, accelerator bandwidth, B200",
        }
    return None


# ------------------------------------------------------------------------------------------------ everything


BLACKWELL = ("b300", "gb200", "gb300")  # relatives of b200, whose attention a training stack was timed on
GROUPED_WORST = 0.2  # median error above which a fused fit is not shipped: another term is missing
# Steady fp8 over the best fp8 shape, where both were measured: H100 1358 / 1402.6, H200 1345 / 1453.4.
FP8_STEADY_OVER_BEST = 0.947
CLOCK_OF = {"h200-sxm": "h100-sxm", "gb300": "gb200"}  # the same chip under the same cooling, where nobody measured it


def clocks(tables: Path, rows: list[dict], device_id: str, base: Product, residuals: Residuals, gemm: dict) -> dict | None:
    """Return the sustained factor of each dtype, with its source."""
    own = sustained(tables, rows, device_id, base, residuals)
    if own is None:
        relative = CLOCK_OF.get(device_id)
        if relative is None:
            return None
        data = json.loads((PROFILES / f"{relative}.json").read_text())["sustained"]
        return {"factors": data["factors"], "source": f"as {relative}: {data['source']}"}
    factors = {"bf16": own.pop("factor")}
    if "fp8" in gemm and not gemm["fp8"].get("sustained"):
        best = [r for *_, d, r, s in comparisons(rows, device_id) if d == "fp8" and s.endswith("MAMF")]
        cap = FP8_STEADY_OVER_BEST * best[0] / gemm["fp8"]["flops_per_s"] if best else 1.0
        factors["fp8"] = round(min(factors["bf16"], cap), 3)
    if "fp4" in gemm:
        factors["fp4"] = factors["bf16"]  # what power leaves of the clock; fp8's own factor corrects its table as well
    return {"factors": factors} | own


# FLOP/s of the backward over heads of 64 as a share of those over 128, where no training stack's table has such heads: cuDNN on GB200,
# gpt-oss's heads within a window of 1,024 against Llama 3.1 70B's, each over what its forward took more or less than the profile says
# (NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training/results/gb200_919_only_cudnn, gpt_oss_20260226_175022.csv and
# llama3.1_20260226_174648.csv: 0.83, 0.83, 0.82, 0.79, 0.74 and 1.34, 1.30, 1.26, 1.16, 0.97 of the profile's seconds at
# 32,768 to 2,048 tokens; medians).
SMALL_HEADS_BACKWARD = 0.65


def attention_of(tables: Path, rows: list[dict], device_id: str, device, sample: list, product: Product) -> dict:
    """Return both directions: as a training stack on B200 ran them, scaled to its relatives; else the forward table alone."""
    burst = fit_attention(tables, TABLES[device_id], device, sample)
    if device_id != "b200" and device_id not in BLACKWELL:
        return {"forward": burst}
    if device_id == "b200":
        forward, backward = (fit_attention_b200(rows, f"sdp_{way}", device) for way in ("fwd", "bwd"))
        drop = forward["flops_per_s"][0] / burst["flops_per_s"][1]
    else:
        data = json.loads((PROFILES / "b200.json").read_text())
        forward, backward = (dict(data["attention"][way]) for way in ("forward", "backward"))
        at = forward["head_dims"].index(128.0)
        drop = forward["flops_per_s"][at] / data["attention"]["forward_burst"]["flops_per_s"][1]
        gain = burst["flops_per_s"][1] / data["attention"]["forward_burst"]["flops_per_s"][1]
        forward["flops_per_s"] = [forward["flops_per_s"][i] * gain for i in (at, at + 1)]
        forward["head_dims"] = [128.0, 160.0]
        # The forward gain of Blackwell Ultra comes from its exponential units; the backward direction follows the products.
        gain = product.flops_per_s / data["gemm"]["bf16"]["flops_per_s"]
        backward["flops_per_s"] = [digits(v * gain) for v in backward["flops_per_s"]]
        for block in (forward, backward):
            block["source"] = f"scaled from b200: {block['source']}"
    known = {64.0: burst["flops_per_s"][0] * drop, 256.0: burst["flops_per_s"][2] * drop}
    known |= dict(zip(forward["head_dims"], forward["flops_per_s"]))
    forward["head_dims"], forward["flops_per_s"] = sorted(known), [digits(known[d]) for d in sorted(known)]
    if 64.0 not in backward["head_dims"]:
        backward["head_dims"] = [64.0, *backward["head_dims"]]
        backward["flops_per_s"] = [digits(SMALL_HEADS_BACKWARD * backward["flops_per_s"][0]), *backward["flops_per_s"]]
    return {"forward": forward, "backward": backward, "forward_burst": burst}


def profile(tables: Path, rows: list[dict], device_id: str, sample: list) -> dict:
    """Return the whole profile of a device."""
    device, prefix = load_device(device_id), TABLES[device_id]
    peak = device.flops_per_s["bf16"].value
    bf16 = fit_product(tables, prefix, "bf16", device, sample)
    base = Product(peak, *(bf16[k] for k in ("flops_per_s", "bytes_per_s", "exponent", "fixed_s")), 2.0)
    residuals = residuals_of(bf16["residuals"])
    gemm = {"bf16": bf16}
    for dtype in ("fp8", "fp4"):
        if dtype in device.flops_per_s and (dtype == "fp8" or prefix.startswith(("b", "gb"))):
            steady = steady_fp8(rows, device_id, base, device.flops_per_s["fp8"].value) if dtype == "fp8" else None
            gemm[dtype] = steady or fit_product(tables, prefix, dtype, device, sample, base)
    clock = clocks(tables, rows, device_id, base, residuals, gemm)
    out: dict = {
        "device": device_id,
        "fitted": datetime.date.today().isoformat(),
        "credit": "Measured tables: ai-dynamo/aiconfigurator, Apache-2.0; single figures as each source says. See NOTICE.",
        "peak_flops_per_s": {k: device.flops_per_s[k].value for k in gemm},
        "hbm_bytes_per_s": device.hbm_bytes_per_s.value,
        "power_w": device.power_w.value if device.power_w else None,
        "architecture": device.architecture,
        "gemm": gemm,
        "attention": attention_of(tables, rows, device_id, device, sample, base),
        "collective": collective_curves(tables, prefix, device_id, sample) | {"link_bytes_per_s": LINKS[device_id]},
    }
    if clock:
        out["sustained"] = clock
    grouped = fit_grouped(tables, prefix, base)
    if grouped and grouped["error"]["median"] <= GROUPED_WORST:
        out["grouped"] = {"fused": grouped}
    if device_id == "b200":
        held = Product(peak, base.flops_per_s * clock["factors"]["bf16"], base.bytes_per_s, base.exponent, base.fixed_s, 2.0)
        out.setdefault("grouped", {})["launched"] = fit_group_launch(rows, held)
        out["points"] = exact_points(rows, device_id)
    if streams := stream_shares(rows, device_id):
        out["streams"] = streams
    return out


def main() -> None:
    """Write profiles and the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--hardware", type=Path, required=True)
    parser.add_argument("--device", action="append", choices=sorted(TABLES))
    options = parser.parse_args()
    with options.hardware.open(newline="") as file:
        rows = list(csv.DictReader(file))
    PROFILES.mkdir(exist_ok=True)
    SAMPLE.parent.mkdir(exist_ok=True)
    sample: list[dict] = []
    for device in options.device or sorted(TABLES):
        data = profile(options.tables, rows, device, sample)
        (PROFILES / f"{device}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")
        gemm = ", ".join(f"{k} {v.get('error', v['formula_error'])['median']:.3f}" for k, v in data["gemm"].items())
        clock = data.get("sustained", {}).get("factors")
        print(f"{device}: gemm {gemm}; attention {data['attention']['forward']['error']}; {clock}")
    if not options.device:
        with SAMPLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(sample[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(sample)


if __name__ == "__main__":
    main()
