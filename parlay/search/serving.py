"""What can be served: weights, K/V cache and activations under tp, pp and ep, and the least time of a token.

A copy of the model takes tp x pp GPUs; the others hold further copies, and experts may be spread over the copies' ranks
(ep). Layers are cut as for training. Times are floors: memory traffic alone, no launches and no communication.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from parlay.estimate.counts import cached_tokens, parameters, state_bytes
from parlay.estimate.local import local_parameters, table_on_rank
from parlay.estimate.memory_buffers import CONTEXT_BYTES
from parlay.estimate.precision import check_precision
from parlay.estimate.stages import Stages, stages_of
from parlay.formulas import activations, serving
from parlay.hardware.spec import Cluster
from parlay.layouts.layout import Layouts
from parlay.layouts.rules import RULES, Question, divisors
from parlay.layouts.vocabulary import Precision
from parlay.layouts.workload import Workload
from parlay.models.spec import (
    DenseMlp,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Mamba2,
    ModelSpec,
    MoeMlp,
)
from parlay.search.ladder import family, family_name, largest
from parlay.units import GIB

Array = NDArray[np.float64]

UTILIZATION = 0.9  # vLLM's gpu_memory_utilization default (vllm/engine/arg_utils.py)
LARGE_MEMORY_BYTES = 70 * 2**30  # vLLM get_batch_defaults: from here on (A100 apart) an API server batches 8,192 tokens
LARGE_BATCH_TOKENS, SMALL_BATCH_TOKENS = 8192, 2048
SAMPLED = 8.0  # of a full forward's tokens at most every eighth is sampled (there: 1,024 or 256 sequences a batch)
# Bytes of a weight, its share of a scale included: an fp32 scale for 128 x 128 (fp8-blockwise), a byte for 32 (OCP MX) and for 16
# (NVFP4), one for a whole matrix (fp8).
WEIGHT_BYTES: dict[Precision, float] = {
    "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp8-blockwise": 1.0 + 4 / 128**2, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
WIDE: tuple[Precision, ...] = ("fp32", "fp16", "bf16")  # cache and activations are as wide; bf16 beside narrower weights
SCORE_BYTES = 4.0  # logits are turned to fp32 for sampling
LONGEST = 1 << 40  # tokens; a cache that has room for so many does not grow
SPLIT_RULES = {"gpus", "heads", "kv_heads", "kv_copies", "width", "scale_up", "experts", "expert_grid", "layers"}


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """One way to serve, per GPU of the stage that limits the batch; `batch` sequences of the asked context fit on one copy."""

    tp: int
    pp: int
    ep: int
    copies: int
    parameters: int
    weight_bytes: float
    activation_bytes: float
    token_bytes: float  # of one token at the asked context, windows seen
    state_bytes: float  # of one sequence, however long: recurrent mixers
    cache_bytes: float  # of all sequences of the batch
    batch: int
    longest_context: int | None  # of one sequence alone; None where memory sets no limit
    alone_s: float  # of a token, one sequence of the asked context
    full_s: float  # of a token of each of `batch` sequences

    @property
    def fits(self) -> bool:
        """Whether one sequence of the asked context fits."""
        return self.batch > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """What can be served on one number of GPUs of one cluster."""

    cluster: Cluster
    gpus: int
    title: str
    growing: bool  # the largest shape of a family for each split; False: one model is given
    context: int
    weight_dtype: str
    cache_dtype: str
    limit_bytes: float
    splits: tuple[Split, ...]
    assumptions: tuple[str, ...]
    positions: int | None = None  # the longest context that a given model was made for
    why: str = ""  # why there are no splits: the cluster has not the precision

    @property
    def usable_bytes(self) -> float:
        """What the engine uses of a GPU: weights, activations, cache, and what the device's context takes."""
        return UTILIZATION * self.limit_bytes


def serve(
    cluster: Cluster, gpus: int, context: int, *, model: ModelSpec | None = None, experts: bool = False,
    weight_dtype: Precision = "bf16",
) -> Serving:  # fmt: skip
    """Return every split of `gpus` GPUs: the largest batch of `model` at `context`, or the largest shape of the family."""
    check_precision(cluster.device, weight_dtype, "serve")
    if model and model.mtp_layers:  # an engine loads them for speculative decoding alone
        model = model.model_copy(update={"mtp_layers": 0})
    shapes = (model,) if model else family(experts)
    batched, cache_dtype = batch_tokens(cluster), _cache_dtype(weight_dtype)
    found = []
    for split in splits(shapes[-1], cluster, gpus):
        priced = _Priced(cluster, gpus, context, batched, split, WEIGHT_BYTES[weight_dtype], WEIGHT_BYTES[cache_dtype])
        able = [s for s in shapes if _can_be_cut(s, *split[:2])]
        at = 0 if model else largest(len(able), lambda i, p=priced, x=able: p.of(x[i]).fits)  # type: ignore[misc]
        found.append(priced.of(able[at]) if at >= 0 else _empty(*split, gpus))
    limit = float(cluster.device.memory.allocatable.value)
    return Serving(
        cluster, gpus, _title(model, experts), model is None, context, weight_dtype, cache_dtype, limit,
        tuple(found), assumptions(batched, context, limit, weight_dtype, model), model.max_positions if model else None,
    )  # fmt: skip


def serves_nothing(
    why: str, cluster: Cluster, gpus: int, context: int, *, model: ModelSpec | None = None, experts: bool = False,
    weight_dtype: Precision = "bf16",
) -> Serving:  # fmt: skip
    """Return what a cluster serves that cannot run what is asked: no split."""
    limit = float(cluster.device.memory.allocatable.value)
    positions = model.max_positions if model else None
    return Serving(
        cluster,
        gpus,
        _title(model, experts),
        model is None,
        context,
        weight_dtype,
        _cache_dtype(weight_dtype),
        limit,
        (),
        (),
        positions,
        why,
    )


def _title(model: ModelSpec | None, experts: bool) -> str:
    return model.name if model else f"largest of the {family_name(experts)} shapes"


def _cache_dtype(weight_dtype: Precision) -> Precision:
    return weight_dtype if weight_dtype in WIDE else "bf16"


def assumptions(
    batched: int, context: int, limit_bytes: float, weight_dtype: Precision, model: ModelSpec | None
) -> tuple[str, ...]:
    """Return what the figures rest on."""
    said = [
        f"the engine uses {UTILIZATION:.0%} of a GPU's memory, {UTILIZATION * limit_bytes / GIB:.1f} GiB, for weights, activations, cache "
        f"and {CONTEXT_BYTES / GIB:.1f} GiB of device context and kernels; it takes at most {batched:,} tokens into one forward (vLLM's "
        "defaults)",
        "activations: the widest moment of one layer, or the logits; a page holds one token, so a few tokens less fit in practice",
        "times: reading weights and cache once at the datasheet's memory bandwidth; real engines take 1.4 to 1.9 times as long or more",
    ]
    if model and model.max_positions and context > model.max_positions:
        said.append(f"the context is longer than the {model.max_positions:,} positions that the model was made for")
    if weight_dtype not in WIDE:
        bits = 8 * WEIGHT_BYTES[weight_dtype]
        said.append(f"all weights take {bits:.4g} bits, scales included; files often keep embedding and head in 16 bits")
    if model and any(state_bytes(k) for k in model.kinds.values()):
        said.append(
            "a sequence's state in recurrent layers: convolution inputs as the cache, the rest too unless the model's file asks for fp32 "
            "(vLLM's --mamba-ssm-cache-dtype auto); read and written for each token"
        )
    return tuple(said)


def batch_tokens(cluster: Cluster) -> int:
    """Return the tokens of the largest forward pass: vLLM's default for its API server."""
    large = cluster.device.memory.allocatable.value >= LARGE_MEMORY_BYTES and "a100" not in cluster.device.rated_as
    return LARGE_BATCH_TOKENS if large else SMALL_BATCH_TOKENS


def splits(model: ModelSpec, cluster: Cluster, gpus: int) -> list[tuple[int, int, int]]:
    """Return the (tp, pp, ep) that keep the rules of shapes and of the scale-up domain.

    Experts are cut like the rest, or lie whole on the ranks of their copy or of all copies.
    """
    rows = []
    for tp in divisors(gpus, most=int(cluster.scale_up_gpus.value)):
        for pp in divisors(gpus // tp, most=1 << 20):
            wide = gpus // pp
            rows += [(tp, pp, ep) for ep in ({1, tp, wide} if _mixtures(model) else {1})]
    rows = sorted(set(rows))
    columns = np.asarray(rows, dtype=np.int64)
    layouts = _layouts(columns[:, 0], columns[:, 1], columns[:, 2], gpus)
    if not _mixtures(model):
        layouts = dataclasses.replace(layouts, etp=np.ones_like(layouts.etp))
    question = Question(model, cluster, Workload(), gpus)
    broken = np.any([rule.broken(layouts, question) for rule in RULES if rule.name in SPLIT_RULES], axis=0)
    return [row for row, bad in zip(rows, broken, strict=True) if not bad]


def _can_be_cut(model: ModelSpec, tp: int, pp: int) -> bool:
    """Return whether a shape of a family has heads for `tp` ranks and layers for `pp` stages."""
    heads = [k.mixer.heads for k in model.kinds.values() if isinstance(k.mixer, GroupedAttention | LatentAttention)]
    return model.layer_count + 2 >= pp and all(h % tp == 0 for h in heads)


def _layouts(tp: NDArray[np.int64] | int, pp: NDArray[np.int64] | int, ep: NDArray[np.int64] | int, gpus: int) -> Layouts:
    """Return splits as layouts; experts that are not spread are cut like the rest, by tensor parallelism."""
    return Layouts.grid(tp=tp, pp=pp, dp=gpus // (tp * pp), ep=ep, etp=np.where(np.asarray(ep) > 1, 1, tp), micro_batch=1)


def _mixtures(model: ModelSpec) -> list[MoeMlp]:
    return [k.mlp for k in model.kinds.values() if isinstance(k.mlp, MoeMlp)]


def _empty(tp: int, pp: int, ep: int, gpus: int) -> Split:
    return Split(tp, pp, ep, gpus // (tp * pp), 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class _Priced:
    """One split of one cluster; `of` prices a model on it."""

    cluster: Cluster
    gpus: int
    context: int
    batched: int
    split: tuple[int, int, int]
    weight_bytes: float
    cache_bytes: float

    def of(self, model: ModelSpec) -> Split:
        """Return what `model` takes and leaves."""
        tp, pp, ep = self.split
        copies = self.gpus // (tp * pp)
        workload = Workload()
        layouts = _layouts(tp, pp, ep, self.gpus)
        stages = stages_of(model, layouts, copies)
        local = local_parameters(model, workload, layouts, stages)
        dense, expert = self.weight_bytes * local.dense[0], self.weight_bytes * local.expert[0]
        active = activation_bytes(model, self.batched, tp, ep, self.cache_bytes)
        room = self._room(dense + expert, active)
        cache, state = self._cache(model, stages, self.context), self._state(model, stages)
        each = np.maximum(cache + state, 1.0)
        batch = int(np.min(np.floor(room / each))) if room.min() > 0 else 0
        at = int(np.argmin(room / each) if room.min() > 0 else np.argmax(dense + expert))
        table = table_on_rank(model, workload, layouts) * (stages.embedding[0] & ~(stages.head[0] & model.tied_embeddings))
        read, moved = dense - self.weight_bytes * table, cache + 2 * state
        alone = self._floor(model, read, expert, moved, 1, 1)
        full = self._floor(model, read, expert, moved, max(batch, 1), max(ep // tp, 1))
        return Split(
            tp, pp, ep, copies, parameters(model).total, float((dense + expert)[at]), active, float(cache[at]) / self.context,
            float(state[at]), batch * float(cache[at] + state[at]), batch, self._longest(model, stages, room), alone, full,
        )  # fmt: skip

    def _room(self, weights: Array, active: float) -> Array:
        """Return the bytes left for the cache on each stage."""
        memory = self.cluster.device.memory.allocatable.value
        return np.asarray(serving.cache_room_tokens(memory, UTILIZATION, weights, active, CONTEXT_BYTES, 1.0))

    def _cache(self, model: ModelSpec, stages: Stages, context: int) -> Array:
        """Return the K/V bytes of one sequence on each stage."""
        each = {n: layer_cache_bytes(k, context, self.split[0], self.cache_bytes) for n, k in model.kinds.items()}
        return np.asarray(sum(stages.layers[n][0] * each[n] for n in model.kinds))

    def _state(self, model: ModelSpec, stages: Stages) -> Array:
        """Return the bytes of one sequence on each stage that do not grow with it."""
        each = {n: state_bytes(k, element_bytes=self.cache_bytes, tensor_parallel=self.split[0]) for n, k in model.kinds.items()}
        return np.asarray(sum(stages.layers[n][0] * each[n] for n in model.kinds))

    def _longest(self, model: ModelSpec, stages: Stages, room: Array) -> int | None:
        """Return the longest sequence whose cache fits alone; None where the cache does not grow."""
        left = room - self._state(model, stages)
        found = largest(LONGEST + 1, lambda s: bool((self._cache(model, stages, s) <= left).all() and room.min() > 0))
        return None if found == LONGEST else max(found, 0)

    def _floor(self, model: ModelSpec, read: Array, expert: Array, moved: Array, batch: int, sharing: int) -> float:
        """Return the least seconds of one token of each sequence: all stages one after the other, experts as tokens choose them.

        `read` is the dense weights that a token needs on each stage, all but those that are looked up, and `moved` what a sequence
        reads and writes beside weights. `sharing` copies send their tokens to one group of experts.
        """
        touched = 1.0
        mixtures = _mixtures(model)
        if mixtures:
            m = mixtures[0]
            # The slowest rank decides: where experts lie whole on ranks, it reads one of them at least.
            each = float(serving.experts_touched(batch * sharing, m.top_k, m.experts)) / self.split[2]
            touched = max(each, 1.0) * self.split[2] / m.experts
        hbm = self.cluster.device.hbm_bytes_per_s.value
        return float(np.sum(serving.decode_floor_s(read + touched * expert, batch * moved, hbm)))


def layer_cache_bytes(kind: LayerKind, context: int, tensor: int, element_bytes: float) -> float:
    """Return the K/V bytes of one sequence in one layer on a rank; recurrent layers have a state instead."""
    x = kind.mixer
    if not isinstance(x, GroupedAttention | LatentAttention):
        return 0.0
    tokens = cached_tokens(kind, context)
    if isinstance(x, LatentAttention):
        return float(serving.latent_kv_bytes(tokens, x.kv_rank, x.rope_dim, 1, element_bytes=element_bytes))
    return float(serving.grouped_kv_bytes(tokens, x.kv_heads, x.head_dim, 1, tensor=tensor, element_bytes=element_bytes))


def activation_bytes(model: ModelSpec, tokens: int, tensor: int, expert: int, element_bytes: float = 2.0) -> float:
    """Return the widest moment of one forward of `tokens` tokens: a layer's inputs and its widest product, or logits.

    Beside the residual and its norm stand the queries, keys, values and output of attention, what a recurrent mixer projects its
    input to and its scan's output, or a feed-forward part's two halves and their product; routed experts work on `top_k`
    copies of each token, spread over the expert ranks.
    """
    widest = 0.0
    for kind in model.kinds.values():
        widest = max(widest, _mixer_width(kind) / tensor, _feed_forward_width(kind, model.hidden, tensor, expert))
    layer = activations.token_tensors(tokens, 2 * model.hidden + widest, element_bytes=element_bytes)
    logits = activations.token_tensors(tokens / SAMPLED, model.vocab / tensor, element_bytes=SCORE_BYTES)
    return float(max(float(layer), float(logits)))


def _mixer_width(kind: LayerKind) -> float:
    x = kind.mixer
    if isinstance(x, GroupedAttention):
        return float((2 * x.heads + 2 * x.kv_heads) * x.head_dim)
    if isinstance(x, LatentAttention):
        return float(x.heads * (2 * (x.nope_dim + x.rope_dim) + 2 * x.v_dim))
    if isinstance(x, Mamba1):
        return 3.0 * x.inner
    if isinstance(x, Mamba2):
        return 3.0 * x.heads * x.head_dim + 2.0 * x.groups * x.state + x.heads
    if isinstance(x, GatedDelta):
        return 2.0 * x.key_heads * x.key_dim + 3.0 * x.value_heads * x.value_dim + 2.0 * x.value_heads
    return 0.0


def _feed_forward_width(kind: LayerKind, hidden: int, tensor: int, expert: int) -> float:
    m = kind.mlp
    if isinstance(m, DenseMlp):
        return (3.0 if m.gated else 2.0) * m.width / tensor
    if isinstance(m, MoeMlp):  # ranks of a tensor-parallel group share their tokens: spread experts get a part, whole
        matrices = 3.0 if m.gated else 2.0
        rows, width = (m.top_k / tensor, float(m.width)) if expert > 1 else (float(m.top_k), m.width / tensor)
        return rows * (2.0 * hidden + matrices * width)
    return 0.0
