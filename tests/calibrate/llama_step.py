"""A small Llama in torch whose steps are timed: what predictions from a calibration are held against. Run as a program.

It times forward and backward of the block stack, and as a rank of torchrun also a whole data-parallel step: embedding, blocks,
head, loss, one all-reduce of all gradients, AdamW. All ranks do the same at once. Prints one JSON line on rank 0.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


def options():
    parser = argparse.ArgumentParser()
    for name, value in {
        "hidden": 512,
        "heads": 8,
        "kv-heads": 4,
        "width": 1536,
        "layers": 4,
        "vocab": 4096,
        "seq": 512,
        "batch": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=4.0)
    return parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv, self.dim = o.heads, o.kv_heads, o.hidden // o.heads
        self.qkv = torch.nn.Linear(o.hidden, (o.heads + 2 * o.kv_heads) * self.dim, bias=False)
        self.out = torch.nn.Linear(o.hidden, o.hidden, bias=False)
        self.up = torch.nn.Linear(o.hidden, 2 * o.width, bias=False)
        self.down = torch.nn.Linear(o.width, o.hidden, bias=False)
        self.first, self.second = (torch.nn.Parameter(torch.ones(o.hidden)) for _ in range(2))

    def turn(self, x, cos, sin):
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    def forward(self, x, cos, sin):
        batch, seq, hidden = x.shape
        y = self.qkv(F.rms_norm(x, (hidden,), self.first))
        q, k, v = y.split([self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], dim=-1)
        q, k, v = (t.view(batch, seq, -1, self.dim) for t in (q, k, v))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        a = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, seq, hidden))
        gate, up = self.up(F.rms_norm(x, (hidden,), self.second)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        self.table = torch.nn.Embedding(o.vocab, o.hidden)
        self.blocks = torch.nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = torch.nn.Parameter(torch.ones(o.hidden))
        self.head = torch.nn.Linear(o.hidden, o.vocab, bias=False)
        angles = torch.randn(o.seq, 1, o.hidden // o.heads)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def stack(self, x):
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x

    def forward(self, tokens):
        x = self.stack(self.table(tokens))
        return self.head(F.rms_norm(x, (x.shape[-1],), self.norm))


def median_s(step, seconds, agree):
    for _ in range(2):
        step()
    out, end = [], time.perf_counter() + seconds
    while agree(time.perf_counter() < end or len(out) < 5):
        start = time.perf_counter()
        step()
        out.append(time.perf_counter() - start)
    return sorted(out)[len(out) // 2]


def block_step(model, o):
    x = torch.randn(o.batch, o.seq, o.hidden).bfloat16().requires_grad_()
    gradient = torch.randn_like(x)

    def step():
        model.zero_grad(set_to_none=True)
        model.stack(x).backward(gradient)

    return step


def data_parallel_step(model, o):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(o.vocab, (o.batch, o.seq + 1))
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.bfloat16)
    at = 0
    for p in parameters:  # gradients live in one buffer, as Megatron and DDP keep them
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()

    def step():
        flat.zero_()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        dist.all_reduce(flat)
        optimizer.step()

    return step


def main():
    o = options()
    torch.manual_seed(0)
    model = Llama(o).bfloat16()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        print(json.dumps({"blocks_s": median_s(block_step(model, o), o.seconds, lambda more: more)}))
        return
    dist.init_process_group("gloo")

    def agree(more):
        both = torch.tensor([float(more)])
        dist.all_reduce(both, op=dist.ReduceOp.MIN)
        return bool(both.item())

    found = {"blocks_s": median_s(block_step(model, o), o.seconds, agree)}
    found["step_s"] = median_s(data_parallel_step(model, o), o.seconds, agree)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # What was measured is printed. The interpreter's own exit has ended in SIGABRT on both hosts once; torch's threads are suspected.
    os._exit(0)


main()
