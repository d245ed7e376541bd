"""One layer's memory over its life: what it keeps, what it rebuilds, and what it holds for a moment on top.

The peak of a rank is a maximum over moments, never kept bytes plus a constant. Arrays run over the distinct rows of a
Shard; "extra" is over everything the stage keeps, this layer included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.frameworks import Settings
from parlay.estimate.memory_eager import kept_tensors_eager
from parlay.estimate.memory_layers import INPUT, Kept, kept_tensors, routed_rows
from parlay.estimate.memory_nanotron import kept_tensors_nanotron
from parlay.estimate.shard import Shard
from parlay.formulas import activations as act
from parlay.formulas import activations_context as ctx
from parlay.formulas import activations_moe as moe
from parlay.layouts.vocabulary import CP_KINDS, RECOMPUTE
from parlay.layouts.workload import Workload
from parlay.models.spec import DenseMlp, GroupedAttention, LatentAttention, LayerKind, ModelSpec, MoeMlp

LISTS = {"transformer-engine": kept_tensors, "nanotron": kept_tensors_nanotron}

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer of one kind and one micro-batch."""

    tensors: tuple[tuple[Kept, Mask], ...]  # each tensor, and where the recompute choice keeps it
    kept: Array
    checkpoint: Array  # its input alone
    everything: Array  # what it keeps with nothing recomputed
    dropped: Array  # the most that one of its halves makes in the forward pass only to make it again
    forward_extra: Array
    backward_extra: Array
    # What the extras are the largest of, for `explain`: of which pass, what, and the bytes that sum to it.
    moments: Callable[[], tuple[tuple[str, str, dict[str, Array]], ...]]


def layer_memory(kind: LayerKind, model: ModelSpec, workload: Workload, settings: Settings, shard: Shard) -> LayerMemory:
    """Return the memory of one layer of `kind` under each row's recompute choice."""
    listed = LISTS.get(settings.kernels, kept_tensors_eager)(kind, model, workload, settings, shard)
    full = _has(shard, "full")
    marked = [(t, _is_kept(t, shard)) for t in listed]
    zero = np.zeros_like(shard.tp)
    halves: dict[str, Array] = {"mixer": zero, "mlp": zero}
    rebuilt: dict[str, Array] = {"mixer": zero, "mlp": zero}
    everything, checkpoint = zero, zero
    for tensor, keep in marked:
        halves[tensor.half] = halves[tensor.half] + np.where(keep, tensor.value, 0.0)
        if tensor.only_with is None:
            everything = everything + tensor.value
            again = full & (tensor.label != INPUT) | ~full & ~keep
            rebuilt[tensor.half] = rebuilt[tensor.half] + np.where(again, tensor.value, 0.0)
        if tensor.label == INPUT:
            checkpoint = checkpoint + tensor.value
    kept = halves["mixer"] + halves["mlp"]
    held = {k: np.where(full, 0.0, v) for k, v in halves.items()}  # what a layer's backward frees of what is kept
    m = _Moments(kind, model, workload, settings, shard, held, rebuilt)
    combine = m.combine()
    again = full | _has(shard, "moe")
    backward = np.maximum(m.mlp_backward(), m.mixer_backward())
    backward = np.where(again, np.maximum(backward, rebuilt["mixer"] + rebuilt["mlp"] + combine), backward)
    dropped, forward = np.maximum(rebuilt["mixer"], rebuilt["mlp"]), np.maximum(combine, m.mixer_forward())
    return LayerMemory(tuple(marked), kept, checkpoint, everything, dropped, forward, backward, lambda: m.told(again))


def _has(shard: Shard, module: str) -> Mask:
    return np.asarray((shard.recompute >> RECOMPUTE.index(module) & 1).astype(bool))


def _is_kept(tensor: Kept, shard: Shard) -> Mask:
    """Return where a tensor is kept when "full" is left to whoever counts layers."""
    keep = np.ones(shard.tp.shape, dtype=bool)
    for module in tensor.dropped_by:
        keep &= ~_has(shard, module)
    if tensor.only_with is not None:
        keep &= _has(shard, tensor.only_with)
    return keep


@dataclasses.dataclass(frozen=True)
class _Moments:
    """The moments of one layer that can be the peak."""

    kind: LayerKind
    model: ModelSpec
    workload: Workload
    settings: Settings
    shard: Shard
    held: dict[str, Array]
    rebuilt: dict[str, Array]

    @property
    def element(self) -> float:
        """Bytes of a gradient of an activation."""
        return 4.0 if self.workload.precision == "fp32" else 2.0

    @cached_property
    def stream(self) -> Array:
        """One tensor of the residual stream on this rank."""
        s = self.shard
        sp = s.sp.astype(np.float64)
        return np.asarray(
            act.token_tensors(s.tokens, self.model.hidden, tensor=s.tp, sequence_parallel=sp, element_bytes=self.element)
        )

    @cached_property
    def gathered(self) -> Array:
        """The same tensor gathered over the tensor-parallel ranks; nothing where it is not split."""
        s = self.shard
        whole = np.asarray(act.token_tensors(s.tokens, self.model.hidden, element_bytes=self.element))
        return np.where(s.sp & (s.tp > 1), whole, 0.0)

    def combine(self) -> Array:
        """Bytes held while a mixture-of-experts layer combines its outputs (0 for other layers)."""
        m, s = self.kind.mlp, self.shard
        if not isinstance(m, MoeMlp):
            return np.zeros_like(s.tp)
        fused = self.settings.kernels == "transformer-engine"
        copies = np.where(m.experts / s.ep > 1, 4.0, 3.0) if fused else np.full_like(s.tp, 2.0)
        return np.asarray(
            moe.combine_held(
                routed_rows(m, self.workload, s), float(m.latent_width or self.model.hidden), s.local_tokens, copies=copies,
                outputs=2.0 if m.shared_width else 1.0, element_bytes=self.element,
            )
        )  # fmt: skip

    def told(self, again: Mask) -> tuple[tuple[str, str, dict[str, Array]], ...]:
        """Return what each moment is made of: tensors made again, a gradient of the residual stream, the half's own, what is freed."""
        mlp, mixer, combine = self.mlp_backward(), self.mixer_backward(), self.combine()
        begun = {half: self.rebuilt[half] + self.stream for half in ("mlp", "mixer")}
        both = np.where(again, self.rebuilt["mixer"] + self.rebuilt["mlp"], 0.0)
        freed = -self.held["mlp"]

        def parts(half: str, own: Array, **more: Array) -> dict[str, Array]:
            return {"rebuilt_bytes": self.rebuilt[half], "stream_bytes": self.stream, "products_bytes": own, **more}

        return (
            ("backward", "feed-forward half", parts("mlp", mlp - begun["mlp"])),
            ("backward", "mixer half", parts("mixer", mixer - begun["mixer"] - freed, freed_bytes=freed)),
            ("backward", "all made again", {"rebuilt_bytes": both, "combine_bytes": np.where(again, combine, 0.0)}),
            ("forward", "outputs of experts combined", {"combine_bytes": combine}),
            ("forward", "end of attention", {"attention_bytes": self.mixer_forward() - freed, "freed_bytes": freed}),
        )

    def mlp_backward(self) -> Array:
        """Largest extra while the feed-forward half runs backward; its first gradient and the layer's stay alive."""
        m, s = self.kind.mlp, self.shard
        start = self.rebuilt["mlp"] + self.stream
        if isinstance(m, DenseMlp):
            return start + self._dense_backward(s.tokens, float(m.width), m.gated, s.tp, self.gathered)
        if isinstance(m, MoeMlp):
            rows = routed_rows(m, self.workload, s)
            wide = float(m.latent_width or self.model.hidden)
            moved = np.asarray(act.token_tensors(rows, wide, element_bytes=self.element))
            own = np.maximum(2 * moved, self._dense_backward(rows, float(m.width), m.gated, s.etp, moved))
            shared = self._dense_backward(s.tokens, float(m.shared_width), m.gated, s.tp, self.gathered)
            return start + np.maximum(own, shared)
        return start

    def _dense_backward(self, rows: Array, width: float, gated: bool, tensor: Array, gathered: Array) -> Array:
        """Three moments: gradient through the second matrix, through the activation, through the first matrix.

        Through the activation, the gradients of its output and input live while its output is gone [Megatron-LM
        fused_bias_swiglu.py:235, TransformerEngine linear.py]; a gathered tensor lives beside each matrix product.
        """
        e = self.element
        out = np.asarray(act.feed_forward(rows, width, branches=1, tensor=tensor, element_bytes=e))
        inner = (2.0 if gated else 1.0) * out
        return np.maximum(np.maximum(gathered + out, inner), 2 * gathered - out)

    def mixer_backward(self) -> Array:
        """Largest extra while the mixer half runs backward: the feed-forward half's tensors are gone by then."""
        x, s, e = self.kind.mixer, self.shard, self.element
        start = self.rebuilt["mixer"] + self.stream - self.held["mlp"]
        if not isinstance(x, GroupedAttention | LatentAttention):
            return start + self.gathered
        k, d_qk, d_v = _heads(x)
        out = np.asarray(act.attention_output(s.tokens, x.heads, d_v, tensor=s.tp, element_bytes=e))
        qkv = np.asarray(
            act.queries_keys_values(s.tokens, x.heads, k, d_qk, d_v, tensor=s.tp, ulysses=s.ulysses, element_bytes=e)
        )
        ring = np.asarray(
            ctx.ring_backward_held(s.tokens, x.heads, k, (d_qk + d_v) / 2, ring=s.ring, tensor=s.tp, element_bytes=e)
        )
        scores = np.zeros_like(s.tp)
        if not self.workload.flash_attention:  # gradients of probabilities and of scores
            scores = 2 * np.asarray(
                act.unfused_scores(s.tokens, self.workload.seq_len, x.heads, tensor=s.tp, dropout=0, element_bytes=e)
            )
        return start + np.maximum(self.gathered + out, out + qkv + ring + scores)

    def mixer_forward(self) -> Array:
        """Extra at the end of attention over a split sequence, before the feed-forward half has kept anything."""
        x, s, e = self.kind.mixer, self.shard, self.element
        later = self.held["mlp"]
        if not isinstance(x, GroupedAttention | LatentAttention):
            return -later
        k, d_qk, d_v = _heads(x)
        split = s.cp > 1
        gather = split & (s.cp_kind == CP_KINDS.index("allgather"))
        kv = np.asarray(ctx.gathered_keys_values(s.tokens, k, d_qk, d_v, ranks=s.cp, tensor=s.tp, element_bytes=e))
        ring = np.asarray(
            ctx.ring_forward_held(
                s.tokens, x.heads, k, (d_qk + d_v) / 2, ring=s.ring, tensor=s.tp, rank=s.ring - 1, element_bytes=e
            )
        )  # fmt: skip
        return np.where(gather, kv, np.where(s.ring > 1, ring, 0.0)) - later


def _heads(x: GroupedAttention | LatentAttention) -> tuple[int, int, int]:
    """Return key/value heads and the sizes of a query and a value head as attention sees them."""
    if isinstance(x, LatentAttention):
        return x.kv_heads, x.nope_dim + x.rope_dim, x.v_dim
    return x.kv_heads, x.head_dim, x.head_dim
