"""Time forward and backward of Llama-shaped layers on one device, and predict the same from a calibration of that device.

    python scripts/time_llama_stack.py --layers 8 --out stack.json                       # needs torch; a GPU where there is one
    python scripts/time_llama_stack.py --layers 8 --predict calibration.json --on dgx-h200

The layers are Llama 3.1 8B's unless told otherwise: grouped attention by PyTorch's scaled_dot_product_attention, RMSNorm, rotary
positions, a gated MLP; each layer's weights are its own. Gradients are made anew in every step, so nothing is accumulated. Measured
eager and compiled; predicted as torchtitan's accounting, eager and compiled.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HIDDEN, HEADS, KV_HEADS, WIDTH = 4096, 32, 8, 14336


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--predict", type=Path, metavar="CALIBRATION")
    parser.add_argument("--on", default="dgx-h200")
    return parser.parse_args()


def measured(o: argparse.Namespace) -> dict[str, object]:
    """Return median milliseconds of forward and of forward and backward, eager and compiled."""
    import torch
    import torch.nn.functional as F

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dim = HIDDEN // HEADS
            self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * self.dim, bias=False)
            self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.up = torch.nn.Linear(HIDDEN, 2 * WIDTH, bias=False)
            self.down = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
            self.first, self.second = (torch.nn.Parameter(torch.ones(HIDDEN)) for _ in range(2))

        def forward(self, x, cos, sin):
            batch, seq, hidden = x.shape

            def turn(t):
                low, high = t.chunk(2, dim=-1)
                return t * cos + torch.cat((-high, low), dim=-1) * sin

            y = self.qkv(F.rms_norm(x, (hidden,), self.first))
            q, k, v = y.split([HEADS * self.dim, KV_HEADS * self.dim, KV_HEADS * self.dim], dim=-1)
            q, k, v = (t.view(batch, seq, -1, self.dim) for t in (q, k, v))
            heads = [t.transpose(1, 2) for t in (turn(q), turn(k), v)]
            a = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            x = x + self.out(a.transpose(1, 2).reshape(batch, seq, hidden))
            gate, up = self.up(F.rms_norm(x, (hidden,), self.second)).chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(Block() for _ in range(o.layers)).to(device, torch.bfloat16)
    angles = torch.randn(o.seq, 1, HIDDEN // HEADS, device=device)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    x = torch.randn(o.batch, o.seq, HIDDEN, device=device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(x)

    def stack(layers):
        y = x
        for layer in layers:
            y = layer(y, cos, sin)
        return y

    def median_ms(step) -> float:
        for _ in range(3):
            step()
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(o.steps)]
        for start, end in events:
            start.record()
            step()
            end.record()
        torch.cuda.synchronize()
        return sorted(start.elapsed_time(end) for start, end in events)[o.steps // 2]

    def both(layers):
        def step():
            blocks.zero_grad(set_to_none=True)
            x.grad = None
            stack(layers).backward(gradient)

        return step

    def forward(layers):
        def step():
            with torch.no_grad():
                stack(layers)

        return step

    compiled = [torch.compile(block) for block in blocks]
    found: dict[str, object] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "layers": o.layers, "seq": o.seq, "batch": o.batch,
    }  # fmt: skip
    for name, layers in (("eager", blocks), ("compiled", compiled)):
        found[f"{name} forward ms"] = round(median_ms(forward(layers)), 3)
        found[f"{name} forward and backward ms"] = round(median_ms(both(layers)), 3)
    return found


def predicted(o: argparse.Namespace) -> dict[str, object]:
    """Return the same milliseconds as estimates price them, by operator, with rates of a calibration file."""
    import dataclasses

    from parlay.estimate.costs import layer_costs
    from parlay.estimate.pricer import Pricer
    from parlay.estimate.shard import Shard
    from parlay.estimate.traits import traits_of
    from parlay.hardware.load import load_cluster
    from parlay.layouts.layout import Layouts
    from parlay.layouts.workload import Workload
    from parlay.models.load import load_model
    from parlay.rates.calibrated import calibrated_rates
    from parlay.rates.calibration_file import load_calibration
    from parlay.rates.choose import rates_for

    cluster, model = load_cluster(o.on), load_model("llama-3.1-8b")
    rates = calibrated_rates(load_calibration(o.predict), cluster, rates_for(cluster))
    found: dict[str, object] = {"rates": str(o.predict.name), "layers": o.layers, "seq": o.seq, "batch": o.batch}
    for name, compiled in (("eager", False), ("compiled", True)):
        work = Workload(seq_len=o.seq, framework="torchtitan", compiled=compiled)
        shard = Shard.of(Layouts.grid(dp=1, micro_batch=o.batch), work, cluster)
        # The blocks' norms are one kernel each (F.rms_norm), whatever the rest is.
        traits = dataclasses.replace(traits_of(work, cluster.device), norm=1.0)
        cost = next(iter(layer_costs(Pricer(rates, work, shard, model, traits)).values()))
        parts = {k: round(1e3 * o.layers * float(cost.forward[k][0] + cost.backward[k][0]), 3) for k in cost.forward}
        found[f"{name} forward ms"] = round(1e3 * o.layers * float(cost.forward_s[0]), 3)
        found[f"{name} forward and backward ms"] = round(1e3 * o.layers * float(cost.forward_s[0] + cost.backward_s[0]), 3)
        found[f"{name} parts ms"] = {k: v for k, v in parts.items() if v}
        found["sources"] = cost.sources
    return found


def main() -> None:
    """Measure, or predict."""
    o = options()
    text = json.dumps(predicted(o) if o.predict else measured(o), indent=1)
    print(text)
    if o.out:
        o.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
