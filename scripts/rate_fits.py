"""The fits behind scripts/fit_rates.py: one least-squares fit of a form of parlay/rates/kernels.py for each kind of work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import least_squares

from parlay.rates.kernels import ELEMENT_BYTES, Attention, AttentionShape, GroupedProduct, Product, Residuals

TABLE_SOURCE = "ai-dynamo/aiconfigurator 095f58a51 (Apache-2.0)"
DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}  # catalog dtype: name in the tables
GRID_M = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GRID_NK = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
NODE_REACH = 0.35  # octaves on each axis that count as around a node
# The GB200 of the tables drops from 1770 to 1100 TFLOP/s where a kernel lasts longer than this: its power limit, not the
# product. Others keep their rate, so only its longer rows are left out (the clock is counted apart).
THROTTLED_ABOVE_S = {"gb200": 0.8e-3}
RESIDUAL_BOUND = 0.5  # |log residual| of one cell: more is an outlier of one kernel choice
FIT_ROWS = 4000


def table(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Return the columns of a parquet file."""
    data = pq.read_table(folder / f"{name}.parquet")
    return {column: np.array(data[column].to_pylist()) for column in data.column_names}


def fit(model, measured, start, low, high):
    """Return the parameters (as logarithms) that fit log time robustly."""
    start = np.clip(start, np.array(low) + 1e-6, np.array(high) - 1e-6)
    return least_squares(lambda x: np.log(model(x) / measured), start, bounds=(low, high), loss="soft_l1", f_scale=0.1).x


def errors(predicted, measured, held: int) -> dict[str, float]:
    """Return how far predictions of held-out points lie from the measured times."""
    e = np.abs(predicted / measured - 1)
    return {
        "median": round(float(np.median(e)), 4),
        "p90": round(float(np.percentile(e, 90)), 4),
        "max": round(float(e.max()), 3),
        "bias": round(float(np.median(predicted / measured) - 1), 4),
        "held_out_points": int(held),
    }


def digits(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")


def halves(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices to fit on and those to judge on."""
    order = np.random.default_rng(seed).permutation(count)
    return order[: count // 2][:FIT_ROWS], order[count // 2 :]


# ------------------------------------------------------------------------------------------------ products


def product_of(x, peak: float, element: float) -> Product:
    """Return the product constants of a parameter vector (logarithms of F, W, p, t0)."""
    F, W, p, t0 = np.exp(x[:4])
    return Product(peak, float(F), float(W), float(p), float(t0), element)


def fit_product(tables: Path, prefix: str, dtype: str, device, sample: list, base: Product | None = None) -> dict:
    """Fit one dtype of the GEMM table: formula on half of the points, then residuals on a grid of shapes."""
    g = table(tables, f"{prefix}-gemm")
    keep = (g["gemm_dtype"] == DTYPES[dtype]) & (g["m"] >= 64) & (g["n"] >= 64) & (g["k"] >= 64)
    keep &= g["latency"] * 1e-3 <= THROTTLED_ABOVE_S.get(device.id, np.inf)
    m, n, k, t = (g[c][keep].astype(float) for c in ("m", "n", "k", "latency"))
    t = t * 1e-3
    peak, element = device.flops_per_s[dtype].value, ELEMENT_BYTES[dtype]
    # The narrow tables time the quantisation of the activations too (reads 2 m k, writes e m k bytes): fitted beside the
    # product, then left out, since training prices that cast on its own.
    quantised = dtype != "bf16"

    def model(x):
        if base is None:
            return product_of(x, np.inf, element).seconds(m, n, k)
        with_memory = np.array([x[0], np.log(base.bytes_per_s), x[2], x[3]])  # the memory is the same for every dtype
        return product_of(with_memory, np.inf, element).seconds(m, n, k) + m * k * (2 + element) / np.exp(x[4])

    W = device.hbm_bytes_per_s.value  # nothing streams faster than the memory: what looks so was in the L2 cache
    start = np.log([0.75 * peak, 0.7 * W, 2.0, 4e-6, W])
    low, high = np.log([0.1 * peak, 0.15 * W, 1.0, 5e-7, 0.05 * W]), np.log([peak, W, 8.0, 4e-5, 4 * W])
    cut = None if quantised else 4
    big = np.flatnonzero((m >= 512) & (n >= 256) & (k >= 256))
    on, off = halves(len(big))
    on, off = big[on], big[off]
    x = fit(lambda x: model(x)[on], t[on], start[:cut], low[:cut], high[:cut])
    found = product_of(x, peak, element)
    if base is not None:  # what starts later than bf16 does is the start of the cast
        found = Product(peak, found.flops_per_s, base.bytes_per_s, found.exponent, base.fixed_s, element)
    out = {
        "flops_per_s": digits(found.flops_per_s),
        "bytes_per_s": digits(found.bytes_per_s),
        "exponent": digits(found.exponent),
        "fixed_s": digits(found.fixed_s),
        "formula_error": errors(model(x)[off], t[off], len(off)),
        "range": {"m": [64, float(m.max())], "n": [64, float(n.max())], "k": [64, float(k.max())]},
        "source": f"{TABLE_SOURCE}, {prefix} gemm {DTYPES[dtype]}, {g['framework'][0].lower()} {g['version'][0]}",
    }
    if quantised:
        out["note"] = "without the quantisation of the activations, which the table times too"
        return out
    grid = residual_grid(m, n, k, np.log(t / found.seconds(m, n, k)), found)
    out["residuals"] = {axis: list(values) for axis, values in zip("mnk", grid[:3])} | {"per_mille": grid[3].ravel().tolist()}
    residuals = Residuals.of(*grid[:3], grid[3] / 1000.0)
    far = [~np.any(np.abs(np.log2(x)[:, None] - np.log2(nodes)) <= NODE_REACH, axis=1) for x, nodes in zip((m, n, k), grid[:3])]
    held = np.flatnonzero((far[0] | far[1] | far[2]) & (m >= 512) & (n >= 256) & (k >= 256))  # in no node's median
    predicted = np.maximum(found.seconds(m, n, k) * residuals.factor(m, n, k), 2 * m * n * k / peak)
    out["error"] = errors(predicted[held], t[held], len(held))
    take(sample, device.id, "gemm", {"m": m, "n": n, "k": k}, t, held, 20)
    return out


def residual_grid(m, n, k, r, formula: Product):
    """Return axes and per-mille log residuals at each node: the median of the measured shapes around it.

    One shape may have drawn a bad kernel; its neighbours say what that region runs at.
    """
    ms = [v for v in GRID_M if v <= m.max()]
    ns = [v for v in GRID_NK if v <= n.max()]
    logs = [np.log2(v) for v in (m, n, k)]
    near = [
        {node: np.abs(x - np.log2(node)) <= NODE_REACH for node in nodes} for x, nodes in zip(logs, (ms, ns, ns))
    ]  # each axis apart, so that a node is three lookups
    grid = np.full((len(ms), len(ns), len(ns)), np.nan)
    for i, a in enumerate(ms):
        for j, b in enumerate(ns):
            plane = near[0][a] & near[1][b]
            for h, c in enumerate(ns):
                around = plane & near[2][c]
                if around.any():
                    grid[i, j, h] = np.median(r[around])
    while np.isnan(grid).any():  # too large to have been measured: as the next smaller m
        for i in range(len(ms)):
            hole = np.isnan(grid[i])
            grid[i][hole] = grid[i - 1][hole] if i else 0.0
    plain = np.log(formula.seconds(*np.meshgrid(ms, ns, ns, indexing="ij")))
    grid = monotone(plain + np.clip(grid, -RESIDUAL_BOUND, RESIDUAL_BOUND)) - plain
    return ms, ns, ns, np.round(1000 * grid).astype(int)


def monotone(logs: np.ndarray) -> np.ndarray:
    """Return the mean of the least non-decreasing array above and the greatest below: no larger product is faster."""
    above, below = logs.copy(), logs.copy()
    for axis in range(logs.ndim):
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return (above + below) / 2


def take(sample: list, device: str, kind: str, columns: dict, t, held, count: int) -> None:
    """Add a few held-out points to the tests' sample."""
    for i in np.random.default_rng(1).choice(held, size=min(count, len(held)), replace=False):
        arguments = ";".join(f"{name}={values[i]:g}" for name, values in columns.items())
        sample.append({"device": device, "kind": kind, "arguments": arguments, "seconds": f"{t[i]:.6g}", "source": TABLE_SOURCE})


# ------------------------------------------------------------------------------------------------ attention

LEAST_ROWS = 16384  # tokens x heads of a GPU: 4096 tokens of four heads; serving has fewer, training more


def attention_rows(tables: Path, prefix: str):
    """Return forward rows of plain causal attention as training runs it: no window, bf16 cache, enough rows."""
    g = table(tables, f"{prefix}-attention-forward")
    window = g.get("window_size", np.zeros(len(g["isl"])))
    keep = (window == 0) & (g["kv_cache_dtype"] == "bfloat16") & (g["isl"] >= 1024)
    keep &= g["isl"] * g["batch_size"] * g["num_heads"] >= LEAST_ROWS
    keep &= np.isin(g["head_dim"], (64, 128, 192, 256))
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency")
    return [g[c][keep].astype(float) for c in names] + [f"{g['framework'][0].lower()} {g['version'][0]}"]


def fit_attention(tables: Path, prefix: str, device, sample: list) -> dict:
    """Fit the forward direction: one FLOP/s a head size, one constant each for length, rows, bytes and start."""
    b, s, h, kv, d, t, framework = attention_rows(tables, prefix)
    t = t * 1e-3
    shape = AttentionShape.of(s, s, h, kv, d, d, 0.5, b)
    dims = np.unique(d)
    peak, W = device.flops_per_s["bf16"].value, device.hbm_bytes_per_s.value

    def kernel(x) -> Attention:
        l0, u0, w, t0, q = np.exp(x[len(dims) :])
        return Attention(peak, tuple(dims), tuple(np.exp(x[: len(dims)])), l0, u0, q, w, t0)

    def model(x):
        return kernel(x).seconds(shape.forward_flops, 2 * shape.forward_elements, shape.mean_dim, shape.length, shape.rows)

    start = np.log([*(0.6 * peak for _ in dims), 64, 2e4, 0.5 * W, 1e-5, 1.1])
    low = np.log([*(0.1 * peak for _ in dims), 32, 1e3, 0.1 * W, 5e-7, 1.0])  # l0: half a tile of keys at least is wasted
    high = np.log([*(peak for _ in dims), 4e3, 4e5, 1.0 * W, 5e-5, 8.0])
    on, off = halves(len(t))
    x = fit(lambda x: model(x)[on], t[on], start, low, high)
    found = kernel(x)
    long = off[(s[off] >= 4096) & (b[off] * h[off] * s[off] >= 131072)]
    take(sample, device.id, "attention", {"batch": b, "length": s, "heads": h, "kv_heads": kv, "dim": d}, t, long, 15)
    return {
        "head_dims": [float(v) for v in dims],
        "flops_per_s": [digits(v) for v in found.flops_per_s],
        "half_length": digits(found.half_length),
        "half_rows": digits(found.half_rows),
        "rows_exponent": digits(found.rows_exponent),
        "bytes_per_s": digits(found.bytes_per_s),
        "fixed_s": digits(found.fixed_s),
        "error": errors(model(x)[off], t[off], len(off)),
        "error_from_4096_tokens": errors(model(x)[long], t[long], len(long)),
        "range": {"length": [1024, float(s.max())], "heads": [1, float(h.max())], "mask": "causal"},
        "source": f"{TABLE_SOURCE}, {prefix} attention, {framework}",
    }


def simumax_attention(rows: list[dict], operation: str):
    """Return (queries, heads, kv, dk, dv, seconds) of SimuMax's B200 rows; its efficiency counts the whole square."""
    out = []
    for row in rows:
        if row["operation"] == operation and row["hardware"] == "b200" and "contiguous=True" in row["shape_or_payload"]:
            v = {key: float(value) for key, value in re.findall(r"(\w+)=(\d+)", row["shape_or_payload"])}
            flops = (
                v["seq_len"] ** 2 * v["head_num"] * (v["qk_head_dim"] + v["v_head_dim"]) * (2 if operation == "sdp_fwd" else 5)
            )
            seconds = flops / (float(row["efficiency"]) * float(row["peak_theoretical"]) * 1e12)
            out.append((v["seq_len"], v["head_num"], v["kv_head_num"], v["qk_head_dim"], v["v_head_dim"], seconds))
    return np.array(out).T


def fit_attention_b200(rows: list[dict], operation: str, device) -> dict:
    """Fit one direction of B200 attention as a training stack runs it (Transformer Engine, random data)."""
    s, h, kv, dk, dv, t = simumax_attention(rows, operation)
    shape = AttentionShape.of(s, s, h, kv, dk, dv, 0.5, 1)
    backward = operation == "sdp_bwd"
    flops = shape.backward_flops if backward else shape.forward_flops
    elements = shape.backward_elements if backward else shape.forward_elements
    peak, W = device.flops_per_s["bf16"].value, device.hbm_bytes_per_s.value

    def kernel(x) -> Attention:
        l0, u0, t0, q = np.exp(x[2:])
        return Attention(peak, (128.0, 160.0), (np.exp(x[0]), np.exp(x[1])), l0, u0, q, 0.5 * W, t0)

    def model(x):
        return kernel(x).seconds(flops, 2 * elements, shape.mean_dim, shape.length, shape.rows)

    low, high = np.log([0.1 * peak, 0.1 * peak, 32, 1e3, 1e-6, 1.0]), np.log([peak, peak, 2e3, 4e5, 3e-5, 8.0])
    x = fit(model, t, np.log([0.5 * peak, 0.4 * peak, 100, 3e4, 1e-5, 1.5]), low, high)
    found = kernel(x)
    return {
        "head_dims": [128.0, 160.0],
        "flops_per_s": [digits(v) for v in found.flops_per_s],
        "half_length": digits(found.half_length),
        "half_rows": digits(found.half_rows),
        "rows_exponent": digits(found.rows_exponent),
        "bytes_per_s": digits(found.bytes_per_s),
        "fixed_s": digits(found.fixed_s),
        "error": errors(model(x), t, 0) | {"fitted_points": len(t)},
        "range": {"length": [4096, 131072], "heads": [4, 128], "mask": "causal"},
        "source": f"MooreThreads/SimuMax 4dcaae513, {operation}, {len(t)} shapes, Transformer Engine on B200, random data",
    }


# ------------------------------------------------------------------------------------------------ grouped products


def fit_grouped(tables: Path, prefix: str, product: Product) -> dict | None:
    """Fit the fused grouped kernel from balanced, unsharded, gated expert layers (two products, a gate between)."""
    g = table(tables, f"{prefix}-grouped-gemm")
    keep = (g["moe_dtype"] == "bfloat16") & (g["distribution"] == "balanced") & (g["moe_ep_size"] == 1) & (g["moe_tp_size"] == 1)
    keep &= (g["num_tokens"] >= 1024) & (g["inter_size"] != 1856) & (g["topk"] != 22)  # those two models have no gate
    fast = np.char.find(g["kernel_source"].astype(str), "trtllmbf16") >= 0
    keep &= fast if (keep & fast).any() else True  # Blackwell has two kernels: the tuned one
    if keep.sum() < 40:
        return None
    tokens, h, f, top, E, t = (
        g[c][keep].astype(float) for c in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "latency")
    )
    t, rows = t * 1e-3, tokens * top

    def model(x):
        kernel = GroupedProduct(product, float(np.exp(x[0])), float(np.exp(x[1])), 0.0)
        streams = 2 * (rows * (2 * h + 3 * f) + tokens * h) / (0.7 * product.bytes_per_s)  # permute, gate, sum over experts
        return kernel.seconds(rows, E, 2 * f, h) + kernel.seconds(rows, E, h, f) + streams

    on, off = halves(len(t))
    x = fit(lambda x: model(x)[on], t[on], np.log([0.8, 64]), np.log([0.2, 1]), np.log([1.0, 512]))
    return {
        "flops_share": digits(np.exp(x[0])),
        "padding_rows": digits(np.exp(x[1])),
        "error": errors(model(x)[off], t[off], len(off)),
        "source": f"{TABLE_SOURCE}, {prefix} moe bfloat16 balanced, fused expert layers of vllm",
    }


def fit_group_launch(rows: list[dict], product: Product) -> dict:
    """Fit what one group costs at least where every group is a launch of its own (Transformer Engine, B200)."""
    out = []
    for row in rows:
        if row["hardware"] == "b200" and row["operation"] == "group_matmul" and "dtype=bf16" in row["shape_or_payload"]:
            v = {key: float(value) for key, value in re.findall(r"\b(ng|M|N|K)=(\d+)", row["shape_or_payload"])}
            stage = re.search(r"stage=(\w+)", row["shape_or_payload"]).group(1)
            seconds = 2 * v["ng"] * v["M"] * v["N"] * v["K"] / (float(row["efficiency"]) * float(row["peak_theoretical"]) * 1e12)
            out.append((v["ng"], v["M"], v["N"], v["K"], seconds, stage == "bwd_grad_w"))
    ng, M, N, K, t, wgrad = np.array(out).T
    plain = wgrad == 0

    def model(x):
        kernel = GroupedProduct(product, float(np.exp(x[0])), 0.0, float(np.exp(x[1])))
        return kernel.seconds(ng * M, ng, N, K)

    x = fit(lambda x: model(x)[plain], t[plain], np.log([0.8, 1e-5]), np.log([0.3, 1e-6]), np.log([1.0, 5e-5]))
    kernel = GroupedProduct(product, float(np.exp(x[0])), 0.0, float(np.exp(x[1])))
    gradient = kernel.seconds(ng * M, ng, N, K, weight_gradient=True)[~plain]
    return {
        "flops_share": digits(np.exp(x[0])),
        "group_s": digits(np.exp(x[1])),
        "error": errors(model(x)[plain], t[plain], 0) | {"fitted_points": int(plain.sum())},
        "weight_gradient_error": errors(gradient, t[~plain], int((~plain).sum())),  # not fitted
        "source": "MooreThreads/SimuMax 4dcaae513, group_matmul, Transformer Engine general_grouped_gemm on B200, random data",
    }


# ------------------------------------------------------------------------------------------------ collectives


def collective_curves(tables: Path, prefix: str, device: str, sample: list) -> dict:
    """Return measured curves: bytes and microseconds of each operation and group size, made non-decreasing."""
    g = table(tables, f"{prefix}-nccl")
    names = {"all_gather": "all_gather", "all_reduce": "all_reduce", "alltoall": "all_to_all", "reduce_scatter": "reduce_scatter"}
    curves: dict = {}
    misses = []
    for theirs, ours in names.items():
        for ranks in np.unique(g["num_gpus"]):
            keep = (g["op_name"] == theirs) & (g["num_gpus"] == ranks)
            size = g["message_size"][keep] * np.where(g["nccl_dtype"][keep] == "half", 2, 1)  # the table counts elements
            sizes = np.unique(size)
            seconds = np.array([np.exp(np.mean(np.log(g["latency"][keep][size == v] * 1e-3))) for v in sizes])
            seconds = np.maximum.accumulate(seconds)
            guess = np.exp(np.interp(np.log(sizes[1:-1]), np.log(sizes[::2]), np.log(seconds[::2])))[::2]
            misses.append(np.abs(guess / seconds[1:-1:2] - 1) if len(guess) == len(seconds[1:-1:2]) else [])
            curves.setdefault(ours, {})[str(int(ranks))] = {
                "bytes": [int(v) for v in sizes],
                "microseconds": [digits(v * 1e6) for v in seconds],
            }
            for i in np.random.default_rng(int(ranks)).choice(len(sizes), 2, replace=False):
                arguments = f"op={ours};ranks={ranks};bytes={sizes[i]}"
                sample.append(
                    {
                        "device": device,
                        "kind": "collective",
                        "arguments": arguments,
                        "seconds": f"{seconds[i]:.6g}",
                        "source": TABLE_SOURCE,
                    }
                )
    e = np.concatenate([np.asarray(v, dtype=float) for v in misses])
    return {
        "curves": curves,
        "error": {"median": round(float(np.median(e)), 4), "p90": round(float(np.percentile(e, 90)), 4),
                  "max": round(float(e.max()), 3),
                  "how": "every second size left out and interpolated: twice the shipped spacing"},
        "source": f"{TABLE_SOURCE}, {prefix} nccl {g['version'][0]}",
    }  # fmt: skip
