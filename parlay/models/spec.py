"""What a model is, as data: layers of several kinds, each an attention (or another mixer) and a feed-forward part.

A ModelSpec holds shapes, never formulas: parlay.estimate.counts joins it with parlay.formulas. Sizes are plain
integers in elements. A layer is h -> norm -> mixer -> +h -> norm -> feed-forward -> +h unless `norms` says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from parlay.specfile import Spec

Positive = Annotated[int, Field(gt=0, le=1 << 40)]
NonNegative = Annotated[int, Field(ge=0, le=1 << 40)]
Norm = Literal["rmsnorm", "layernorm", "layernorm_no_bias", "nonparametric"]


class GroupedAttention(Spec):
    """Softmax attention with `heads` queries and `kv_heads` keys and values (MHA, GQA, MQA are the same thing)."""

    kind: Literal["gqa"] = "gqa"
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # one norm of head_dim, or one over all heads, each for q and k
    qk_norm_bias: bool = False
    window: Positive | None = None  # tokens a query sees, itself included; None = all
    chunked: bool = False  # the window is a fixed chunk (Llama 4), not a sliding one
    sinks: bool = False  # one learned logit per head (gpt-oss)
    output_gate: bool = False  # q projection twice as wide, the second half gates the output (Qwen3-Next)
    rope: bool = True
    rope_scaled: bool = False  # cos and sin carry a factor, as YaRN's do (gpt-oss): not every fused kernel has it

    @model_validator(mode="after")
    def _groups(self) -> GroupedAttention:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class LatentAttention(Spec):
    """Multi-head latent attention (DeepSeek-V2): low-rank queries (optional) and a shared latent for keys and values."""

    kind: Literal["mla"] = "mla"
    heads: Positive
    q_rank: Positive | None = None  # None = full-rank query projection
    kv_rank: Positive
    nope_dim: Positive
    rope_dim: Positive
    v_dim: Positive
    bias: bool = False  # on the down-projections and the output (DeepSeek: none)
    window: Positive | None = None
    up_projection: bool = True  # False: keys and values are the latent itself, the same for all heads (DeepSeek-V4)
    out_rank: Positive | None = None  # the output goes through this rank in each of `out_groups` groups of heads
    out_groups: Positive = 1
    # Beyond its window a query sees entries that stand for this many tokens each, or those of them that an index picks.
    compress_rate: Positive | None = None
    compress_top: Positive | None = None

    @property
    def kv_heads(self) -> int:
        """Key and value heads as attention sees them: one a query head, or the latent itself for all."""
        return self.heads if self.up_projection else 1


class Mamba2(Spec):
    """A Mamba-2 mixer (Nemotron-H): in_proj, causal conv, selective state, gated norm, out_proj."""

    kind: Literal["mamba2"] = "mamba2"
    heads: Positive
    head_dim: Positive
    groups: Positive
    state: Positive
    conv: Positive = 4
    conv_bias: bool = True
    bias: bool = False
    # Served with its state in fp32 rather than the model's dtype (mamba_ssm_cache_dtype, mamba_ssm_dtype).
    fp32_state: bool = False


class Mamba1(Spec):
    """A Mamba-1 mixer (Jamba): in_proj, conv, x_proj, dt_proj, out_proj, and Jamba's three inner norms."""

    kind: Literal["mamba1"] = "mamba1"
    inner: Positive
    state: Positive
    dt_rank: Positive
    conv: Positive = 4
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False
    fp32_state: bool = False


class GatedDelta(Spec):
    """A gated DeltaNet mixer (Qwen3-Next): qkvz and ba projections, conv over q,k,v, gated norm, out projection."""

    kind: Literal["gated_delta"] = "gated_delta"
    key_heads: Positive
    value_heads: Positive
    key_dim: Positive
    value_dim: Positive
    conv: Positive = 4
    gate_rank: Positive | None = None  # Kimi Delta Attention: decay per channel and output gate, both through this rank
    fp32_state: bool = False  # vLLM keeps Kimi Delta Attention's in fp32 whatever this says


class NoMixer(Spec):
    """No token mixing in this layer (a pruned attention, or a feed-forward-only block of a hybrid)."""

    kind: Literal["none"] = "none"


class DenseMlp(Spec):
    """A feed-forward part: two matrices, or three if gated."""

    kind: Literal["dense"] = "dense"
    width: Positive
    gated: bool = True
    activation: Literal["silu", "gelu", "relu", "relu2"] = "silu"
    bias: bool = False


class MoeMlp(Spec):
    """A mixture of experts: `top_k` of `experts` per token, plus `shared_width` for every token."""

    kind: Literal["moe"] = "moe"
    experts: Positive
    top_k: Positive
    width: Positive  # of one routed expert
    gated: bool = True
    activation: Literal["silu", "gelu", "relu", "relu2"] = "silu"
    bias: bool = False  # on each expert's matrices (gpt-oss)
    shared_width: NonNegative = 0  # all shared experts together
    shared_gate: bool = False  # a learned scalar gate on the shared expert (Qwen2-MoE)
    router_bias: bool = False  # a bias of the router's linear map, a parameter (gpt-oss)
    score_correction: bool = False  # one learned-by-rule value per expert (DeepSeek-V3); see counts.py for how it counts
    latent_width: Positive | None = None  # experts work on tokens projected to this width (LatentMoE)
    groups: Positive = 1  # expert groups of the router
    top_groups: Positive | None = None  # groups a token may visit (node-limited routing)

    @model_validator(mode="after")
    def _fits(self) -> MoeMlp:
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) cannot exceed experts ({self.experts})")
        return self


class NoMlp(Spec):
    """No feed-forward part in this layer (a mixer-only block of a hybrid)."""

    kind: Literal["none"] = "none"


Mixer = Annotated[GroupedAttention | LatentAttention | Mamba2 | Mamba1 | GatedDelta | NoMixer, Field(discriminator="kind")]
FeedForward = Annotated[DenseMlp | MoeMlp | NoMlp, Field(discriminator="kind")]


class LayerKind(Spec):
    """One kind of layer. `norms` is how many norms of width hidden it holds (2 usual, 4 Gemma, 1 parallel block)."""

    mixer: Mixer
    mlp: FeedForward
    norms: Annotated[int, Field(ge=0, le=8)] = 2
    bf16: bool = False  # its products stay in bf16 where those of other layers are fp8 or fp4
    extra_parameters: NonNegative = 0  # small parts that no field above describes: counted, and active, but not priced


class Run(Spec):
    """`count` layers in a row of the kinds named, taken in turn: kinds = ["local", "global"], count = 4 is l g l g."""

    kinds: tuple[str, ...] = Field(min_length=1)
    count: Positive


class Published(Spec):
    """What the publisher says, for checks and for people; `active_counts_embedding` tells what their active number holds."""

    total: Positive | None = None
    active: Positive | None = None
    source: str = ""
    note: str = ""


class ModelSpec(Spec):
    """A decoder-only language model."""

    id: str
    name: str
    family: str = ""
    aliases: tuple[str, ...] = ()
    hidden: Positive
    vocab: Positive
    kinds: dict[str, LayerKind] = Field(min_length=1)
    layers: tuple[Run, ...] = Field(min_length=1)
    norm: Norm = "rmsnorm"
    tied_embeddings: bool = False
    position_embeddings: NonNegative = 0  # rows of a learned position table
    embedding_norm: bool = False  # BLOOM
    embedding_projection: Positive | None = None  # width of the token table where it differs from hidden (OPT-350m)
    head_bias: bool = False
    final_norm: bool = True
    mtp_layers: NonNegative = 0  # multi-token-prediction depth; each module is one layer of `mtp_kind` + projection + norms
    mtp_kind: str | None = None
    mtp_shared: bool = False  # one module, run once for each further token
    vision_parameters: NonNegative = 0  # tower and projector of a vision-language wrapper, counted, not laid out
    extra_parameters: NonNegative = 0  # outside the layers, that no field above describes: counted, not priced
    max_positions: Positive | None = None
    dropout: bool = False  # attention and hidden dropout in training (GPT-3 class models)
    published: Published = Published()
    source: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _names(self) -> ModelSpec:
        for run in self.layers:
            for kind in run.kinds:
                if kind not in self.kinds:
                    raise ValueError(f"layer kind '{kind}' is not one of {sorted(self.kinds)}")
        if self.mtp_layers and (self.mtp_kind or "") not in self.kinds:
            raise ValueError(f"mtp_kind must name one of {sorted(self.kinds)}")
        if self.layer_count > 100_000:
            raise ValueError(f"{self.layer_count} layers is more than any model has")
        return self

    def __hash__(self) -> int:
        """Return a hash over the shapes, so that what is counted once for a model can be kept (kinds is a dict)."""
        return hash((self.id, self.hidden, self.vocab, tuple(self.kinds.items()), self.layers, self.tied_embeddings))

    @property
    def layer_count(self) -> int:
        """Layers of the main model, multi-token-prediction modules left out."""
        return sum(run.count for run in self.layers)

    @property
    def mtp_modules(self) -> int:
        """Multi-token-prediction modules with weights of their own."""
        return min(self.mtp_layers, 1) if self.mtp_shared else self.mtp_layers

    def layer_names(self) -> list[str]:
        """Return the kind of every layer, first to last."""
        return [run.kinds[i % len(run.kinds)] for run in self.layers for i in range(run.count)]
