"""Print what real FSDP2 holds, without a GPU: fully_shard over fake tensors and a fake process group, on the CPU.

Wrapped as torchtitan does it (distributed/fsdp.py: embedding, each block, norm and output layer, which stay gathered), bf16
weights, fp32 reduction, AdamW's moments, `pred` deleted before the backward pass. Every tensor is followed from its making
to its end, with the stream it was made on; the rules of PyTorch's caching allocator for large
blocks (c10/cuda/CUDACachingAllocator.cpp) turn that into reserved bytes, a pool for each stream. Needs torch 2.13; no part of Parlay.

    python scripts/simulate_fsdp.py --model 70b --layers 10 --ranks 1024 --seq 8192 --recompute full
"""

import argparse
import bisect
import weakref
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

MIB = 1 << 20
VOCAB, HEAD = 128256, 128
MODELS = {"8b": (4096, 32, 8, 14336), "70b": (8192, 64, 8, 28672)}  # hidden, heads, key/value heads, width


class Pool:
    """One stream's large blocks: best fit, split where more than 1 MiB is left, merged when freed."""

    def __init__(self) -> None:
        self.reserved = 0
        self.free: list[tuple[int, int, int]] = []  # (size, segment, offset), sorted
        self.segments = 0

    def take(self, asked: int) -> tuple[int, int, int]:
        """Return (size, segment, offset) of a block for `asked` bytes."""
        size = -(-asked // 512) * 512
        at = bisect.bisect_left(self.free, (size, -1, -1))
        if at == len(self.free):
            whole = max(20 * MIB, size) if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.reserved += whole
            self.segments += 1
            self.free.append((whole, self.segments, 0))
            at = len(self.free) - 1
        whole, segment, offset = self.free.pop(at)
        if whole - size > MIB:
            bisect.insort(self.free, (whole - size, segment, offset + size))
            whole = size
        return whole, segment, offset

    def give(self, block: tuple[int, int, int]) -> None:
        """Free a block, merged with its neighbours."""
        size, segment, offset = block
        for other in [b for b in self.free if b[1] == segment and (b[2] + b[0] == offset or b[2] == offset + size)]:
            self.free.remove(other)
            size, offset = size + other[0], min(offset, other[2])
        bisect.insort(self.free, (size, segment, offset))


class Follow(TorchDispatchMode):
    """Follows every storage from its making to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, str, str, tuple[int, int, int] | None]] = {}
        self.pools: dict[str, Pool] = {}
        self.names = {id(torch.cpu.current_stream()): "compute"}
        self.by_stream: dict[str, int] = {}
        self.pool_peak: dict[str, int] = {}
        self.allocated = self.peak = 0
        self.top: list[tuple[int, str, str]] = []

    def put(self, key: int, size: int, what: str) -> None:
        """Note a storage of `size` bytes; a change of its size frees the old one."""
        self.end(key)
        stream = self.names.setdefault(id(torch.cpu.current_stream()), f"stream {len(self.names)}")
        block = self.pools.setdefault(stream, Pool()).take(size) if size > MIB else None
        self.live[key] = size, stream, what, block
        self.allocated += size
        self.by_stream[stream] = self.by_stream.get(stream, 0) + size
        self.pool_peak[stream] = max(self.pool_peak.get(stream, 0), self.by_stream[stream])
        if self.allocated > self.peak:
            self.peak = self.allocated
            self.top = sorted((v[:3] for v in self.live.values()), reverse=True)

    def end(self, key: int) -> None:
        """Free a storage."""
        if key in self.live:
            size, stream, _, block = self.live.pop(key)
            self.allocated -= size
            self.by_stream[stream] -= size
            if block:
                self.pools[stream].give(block)

    def resized(self, change, tensor: torch.Tensor) -> None:
        """FSDP2's alloc_storage and free_storage, which resize in place."""
        change(tensor)
        storage = tensor.untyped_storage()
        self.put(storage._cdata, storage.size(), "gathered weight")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation and note what it made."""
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.live:
                    weakref.finalize(storage, self.end, key)
                    self.put(key, storage.size(), f"{function} {tuple(tensor.shape)} {tensor.dtype}")
        return result


class Kernel(torch.autograd.Function):
    """RMSNorm as CUDA runs it since PyTorch 2.9: one kernel, which keeps its input and a scale a token (aten, _fused_rms_norm)."""

    @staticmethod
    def forward(ctx, x, weight):
        """Keep what the backward reads and return what the kernel makes."""
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        """Return gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class KernelNorm(nn.RMSNorm):
    """RMSNorm of one kernel; on the CPU PyTorch takes it apart, as it did everywhere before 2.9."""

    def forward(self, x):
        """Return the normalised input."""
        return Kernel.apply(x, self.weight)


class Block(nn.Module):
    """A Llama block."""

    def __init__(self, hidden, heads, kv, width, norm) -> None:
        super().__init__()
        self.kv = kv
        self.wq, self.wk, self.wv = (nn.Linear(hidden, n * HEAD, bias=False) for n in (heads, kv, kv))
        self.wo = nn.Linear(heads * HEAD, hidden, bias=False)
        self.w1, self.w3 = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.norms = nn.ModuleList(norm(hidden, eps=1e-5) for _ in range(2))

    def forward(self, x):
        """Return the block's output."""
        y = self.norms[0](x)
        q, k, v = (w(y).unflatten(-1, (-1, HEAD)) for w in (self.wq, self.wk, self.wv))
        q, k = q * 1.0, k * 1.0  # rotary embedding, for what it keeps
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
        x = x + self.wo(out.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    """A Llama."""

    def __init__(self, layers, hidden, heads, kv, width, norm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, kv, width, norm) for _ in range(layers))
        self.norm, self.output = norm(hidden, eps=1e-5), nn.Linear(hidden, VOCAB, bias=False)

    def forward(self, tokens):
        """Return logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def selective_operators():
    """torchtitan's policy: attention and every second matrix product are kept."""
    seen = {False: 0, True: 0}

    def policy(context, function, *args, **kwargs):
        kept = "attention" in str(function)
        if function == torch.ops.aten.mm.default:
            seen[context.is_recompute] += 1
            kept = seen[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def main() -> None:
    """Print the peaks of two steps, and what the pools reserve."""
    options = argparse.ArgumentParser()
    for name, default in (("layers", 10), ("ranks", 64), ("seq", 8192), ("micro-batch", 1), ("show", 0)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--model", choices=MODELS, default="8b")
    options.add_argument("--recompute", choices=("none", "selective_ops", "full"), default="full")
    options.add_argument("--norm", choices=("kernel", "operations"), default="kernel")
    given = options.parse_args()
    dist.init_process_group("fake", rank=0, world_size=given.ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (given.ranks,))
    how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    follow = Follow()
    for module, name in ((_fsdp_param, "alloc_storage"), (_fsdp_param, "free_storage"), (_fsdp_param_group, "alloc_storage")):
        setattr(module, name, partial(follow.resized, getattr(module, name)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(given.layers, *MODELS[given.model], KernelNorm if given.norm == "kernel" else nn.RMSNorm)
        for i, layer in enumerate(model.layers):
            if given.recompute != "none":
                extra = {"context_fn": selective_operators} if given.recompute == "selective_ops" else {}
                model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False, **extra)
        fully_shard(model.embedding, **how)
        for layer in model.layers:
            fully_shard(layer, **how)
        fully_shard([model.norm, model.output], reshard_after_forward=False, **how)
        fully_shard(model, **how)
        with follow:
            state = [[torch.zeros_like(p.to_local()) for p in model.parameters()] for _ in range(2)]  # AdamW
            for step in range(2):
                tokens = torch.zeros(given.micro_batch, given.seq, dtype=torch.long)
                follow.peak = 0
                pred = model(tokens)
                print(f"step {step}: {'forward':9} peak {follow.peak / 1e9:8.3f}  then {follow.allocated / 1e9:8.3f}")
                follow.peak = 0
                loss = F.cross_entropy(pred.flatten(0, 1).float(), tokens.flatten())
                del pred
                print(f"step {step}: {'loss':9} peak {follow.peak / 1e9:8.3f}  then {follow.allocated / 1e9:8.3f}")
                follow.peak = 0
                loss.backward()
                print(f"step {step}: {'backward':9} peak {follow.peak / 1e9:8.3f}  then {follow.allocated / 1e9:8.3f}")
                top = follow.top
                model.zero_grad()
        print(f"moments {sum(t.nbytes for group in state for t in group) / 1e9:.3f}")
    for stream, pool in follow.pools.items():
        print(f"{stream:12} peak {follow.pool_peak[stream] / 1e9:8.3f}  reserved {pool.reserved / 1e9:8.3f}")
    print(f"reserved {sum(p.reserved for p in follow.pools.values()) / 1e9:8.3f}")
    for size, stream, what in top[: given.show]:
        print(f"{size / 1e9:8.3f} {stream:10} {what}")


if __name__ == "__main__":
    main()
