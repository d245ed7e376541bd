"""Small random configurations of every architecture that is read, with their odd corners: absent and null keys, biases on and
off, head widths that are not hidden / heads, dense layers between experts, windows, tied and untied embeddings.

These are the text models; random_configs adds the wrappers around them and draws.
"""

from __future__ import annotations

import random
from typing import Any

Config = dict[str, Any]
Rng = random.Random

ABSENT = object()


def base(r: Rng, *, kv: bool = True, head_dim: bool = True) -> Config:
    """Return the keys of a decoder of Llama's pattern."""
    heads = r.choice([2, 3, 4, 6, 8])
    config: Config = {
        "hidden_size": heads * r.choice([8, 12, 16, 20]),
        "intermediate_size": r.choice([24, 40, 56, 88, 100]),
        "num_hidden_layers": r.randint(1, 7),
        "num_attention_heads": heads,
        "vocab_size": r.choice([97, 128, 211, 500]),
        "max_position_embeddings": r.choice([64, 128]),
    }
    if kv and r.random() < 0.8:
        config["num_key_value_heads"] = r.choice([d for d in (1, 2, 3, 4, 6, 8) if heads % d == 0])
    elif kv:
        config["num_key_value_heads"] = r.choice([heads, None])
    if head_dim and r.random() < 0.6:
        config["head_dim"] = r.choice([4, 8, 10, 16, 24, 36])
    if r.random() < 0.5:
        config["tie_word_embeddings"] = r.random() < 0.5
    return config


def maybe(r: Rng, config: Config, **keys: Any) -> Config:
    """Set each key with probability 0.6, to the value or to one of the list's."""
    for key, value in keys.items():
        if r.random() < 0.6:
            config[key] = r.choice(value) if isinstance(value, list) else value
    return config


BOTH = [True, False]


def llama(r: Rng) -> Config:
    """Llama and classes that read the same keys."""
    return maybe(r, base(r), attention_bias=BOTH, mlp_bias=BOTH)


def windowed(r: Rng) -> Config:
    """Mistral, Phi-3: a sliding window or none."""
    return maybe(r, base(r), sliding_window=[None, 16, 32])


def no_head_dim(r: Rng) -> Config:
    """Classes whose head width is always hidden / heads."""
    return maybe(r, base(r, head_dim=False), attention_bias=BOTH, mlp_bias=BOTH)


def qwen2(r: Rng) -> Config:
    """Qwen2 and Qwen3: a window from a layer on."""
    return maybe(r, base(r, head_dim=False), use_sliding_window=BOTH, sliding_window=[None, 32], max_window_layers=[0, 2, 5])


def qwen3(r: Rng) -> Config:
    """Qwen3: norms on q and k."""
    return maybe(r, base(r), use_sliding_window=BOTH, sliding_window=[None, 32], max_window_layers=[0, 2], attention_bias=BOTH)


def experts(r: Rng, number: str = "num_local_experts") -> Config:
    """Mixtral and alike."""
    config = base(r)
    count = r.choice([2, 4, 5, 8])
    config.update({number: count, "num_experts_per_tok": r.randint(1, count)})
    return config


def qwen_moe(r: Rng, shared: bool = True) -> Config:
    """Qwen MoE: dense layers between experts."""
    config = experts(r, "num_experts")
    config["moe_intermediate_size"] = r.choice([12, 20, 36])
    if shared:
        maybe(r, config, shared_expert_intermediate_size=[16, 44])
    maybe(r, config, decoder_sparse_step=[1, 2, 3], norm_topk_prob=BOTH)
    if r.random() < 0.5:
        config["mlp_only_layers"] = r.sample(range(config["num_hidden_layers"]), r.randint(0, config["num_hidden_layers"]))
    return config


def qwen2_moe(r: Rng) -> Config:
    """Qwen1.5-MoE and Qwen2-MoE."""
    config = qwen_moe(r)
    config.pop("head_dim", None)
    return maybe(r, config, qkv_bias=BOTH)


def qwen3_moe(r: Rng) -> Config:
    """Qwen3-MoE."""
    return maybe(r, qwen_moe(r, shared=False), attention_bias=BOTH)


def delta(r: Rng, config: Config) -> Config:
    """Add the keys of the gated delta rule."""
    keys = r.choice([1, 2, 4])
    config.update(
        linear_num_key_heads=keys,
        linear_num_value_heads=keys * r.choice([1, 2, 3]),
        linear_key_head_dim=r.choice([4, 8]),
        linear_value_head_dim=r.choice([4, 8, 12]),
    )
    maybe(r, config, linear_conv_kernel_dim=[2, 4], attention_bias=BOTH)
    count = config["num_hidden_layers"]
    if r.random() < 0.5:
        config["layer_types"] = [r.choice(["linear_attention", "full_attention"]) for _ in range(count)]
    elif r.random() < 0.5:
        config["full_attention_interval"] = r.choice([2, 3])
    return config


def qwen3_next(r: Rng) -> Config:
    """Qwen3-Next."""
    config = delta(r, qwen_moe(r))
    config["head_dim"] = r.choice([8, 16])
    return config


def qwen3_5(r: Rng) -> Config:
    """Qwen3.5, dense."""
    config = delta(r, base(r))
    config["head_dim"] = r.choice([8, 16])
    return config


def qwen3_5_moe(r: Rng) -> Config:
    """Qwen3.5 with experts in every layer."""
    config = delta(r, qwen_moe(r))
    config["head_dim"] = r.choice([8, 16])
    for key in ("decoder_sparse_step", "mlp_only_layers"):
        config.pop(key, None)
    return config


def grouped_experts(r: Rng) -> Config:
    """GLM-4.5, dots.llm1: DeepSeek's experts behind plain attention."""
    config = base(r)
    count = r.choice([2, 4, 8])
    config.update(
        n_routed_experts=count,
        num_experts_per_tok=r.randint(1, count),
        moe_intermediate_size=r.choice([12, 20]),
        n_shared_experts=r.choice([1, 2]),
        first_k_dense_replace=r.randint(0, config["num_hidden_layers"]),
        n_group=1,
        topk_group=1,
    )
    return maybe(r, config, attention_bias=BOTH)


def glm4_moe(r: Rng) -> Config:
    """GLM-4.5."""
    return maybe(r, grouped_experts(r), use_qk_norm=BOTH)


def latent(r: Rng) -> Config:
    """DeepSeek-V3 and alike."""
    config = grouped_experts(r)
    config.pop("head_dim", None)
    config["num_key_value_heads"] = config["num_attention_heads"]
    config.update(
        q_lora_rank=r.choice([None, 12, 20]),
        kv_lora_rank=r.choice([8, 16]),
        qk_nope_head_dim=r.choice([4, 8]),
        qk_rope_head_dim=r.choice([4, 8]),
        v_head_dim=r.choice([4, 6, 8]),
    )
    return config


def indexed(r: Rng) -> Config:
    """DeepSeek-V3.2 and GLM-5: an index beside latent attention."""
    config = latent(r)
    config.update(q_lora_rank=r.choice([12, 20]), index_n_heads=r.choice([2, 4]), index_head_dim=r.choice([8, 16]), index_topk=8)
    return config


def glm5(r: Rng) -> Config:
    """GLM-5: the index only in some layers."""
    return maybe(r, indexed(r), index_topk_freq=[1, 2, 3], index_skip_topk_offset=[1, 2, 3])


def youtu(r: Rng) -> Config:
    """Latent attention with dense layers."""
    config = latent(r)
    for key in ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace"):
        config.pop(key)
    return config


def gemma(r: Rng) -> Config:
    """Gemma 1 to 3."""
    return maybe(r, base(r), attention_bias=BOTH, sliding_window=[16, 32])


def gemma3(r: Rng) -> Config:
    """Gemma 3: how often a layer sees all, and many absent keys."""
    config = maybe(r, gemma(r), sliding_window_pattern=[2, 3, 6])
    if r.random() < 0.3:
        for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
            config.pop(key, None)
        config["hidden_size"] = 64
    return config


def phi(r: Rng) -> Config:
    """Phi-1 and Phi-2."""
    return maybe(r, base(r, head_dim=False), qk_layernorm=BOTH)


def phimoe(r: Rng) -> Config:
    """Phi-3.5-MoE."""
    return maybe(r, experts(r), attention_bias=BOTH, lm_head_bias=BOTH)


def starcoder2(r: Rng) -> Config:
    """StarCoder2."""
    return maybe(r, base(r, head_dim=False), use_bias=BOTH, sliding_window=[None, 32])


def cohere(r: Rng) -> Config:
    """Command-R."""
    return maybe(r, base(r, head_dim=False), attention_bias=BOTH, use_qk_norm=BOTH)


def llama4(r: Rng) -> Config:
    """Llama 4: experts in every layer, every second, or in those listed."""
    config = experts(r)
    config["intermediate_size_mlp"] = r.choice([48, 60])
    maybe(r, config, interleave_moe_layer_step=[1, 2, 3], attention_bias=BOTH, attention_chunk_size=[None, 32])
    if r.random() < 0.3:
        config["moe_layers"] = r.sample(range(config["num_hidden_layers"]), r.randint(0, config["num_hidden_layers"]))
    return config


def olmoe(r: Rng) -> Config:
    """OLMoE, whose norms on q and k are as wide as the hidden size."""
    config = experts(r, "num_experts")
    config.pop("head_dim", None)
    return maybe(r, config, attention_bias=BOTH)


def helium(r: Rng) -> Config:
    """Helium, whose output projection is as wide as the hidden size."""
    config = llama(r)
    config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return config


def granite_shared(r: Rng) -> Config:
    """Granite-MoE with a shared expert."""
    return maybe(r, experts(r), attention_bias=BOTH, shared_intermediate_size=[0, 16, 28])


def ernie_moe(r: Rng) -> Config:
    """ERNIE 4.5 MoE."""
    config = base(r)
    count = r.choice([2, 4, 8])
    config.update(moe_num_experts=count, moe_k=r.randint(1, count), moe_intermediate_size=r.choice([12, 20]))
    config.update(moe_num_shared_experts=r.choice([1, 2]))
    layers = config["num_hidden_layers"]
    maybe(
        r,
        config,
        moe_layer_start_index=[0, 1, 2],
        moe_layer_end_index=[-1, layers - 1, 1],
        moe_layer_interval=[1, 2],
        use_bias=BOTH,
    )
    return config


def hunyuan(r: Rng) -> Config:
    """Hunyuan, dense."""
    config = maybe(r, base(r), attention_bias=BOTH)
    config["head_dim"] = r.choice([8, 16])
    return config


def hunyuan_moe(r: Rng) -> Config:
    """Hunyuan MoE: numbers for all layers, or one for each."""
    config = hunyuan(r)
    layers = config["num_hidden_layers"]
    per_layer = False
    config["num_experts"] = [r.choice([2, 4]) for _ in range(layers)] if per_layer else r.choice([1, 2, 4])
    config["moe_topk"] = [1] * layers if per_layer else 1
    return config


def seed_oss(r: Rng) -> Config:
    """Seed-OSS."""
    return maybe(r, base(r), attention_bias=BOTH, attention_out_bias=BOTH, mlp_bias=BOTH)


def exaone_moe(r: Rng) -> Config:
    """EXAONE MoE."""
    config = grouped_experts(r)
    config.pop("n_routed_experts")
    config["num_experts"] = r.choice([8, 9])
    config["num_shared_experts"] = config.pop("n_shared_experts")
    config.pop("attention_bias", None)
    return config


def stablelm(r: Rng) -> Config:
    """StableLM."""
    return maybe(r, base(r, head_dim=False), use_qkv_bias=BOTH, qk_layernorm=BOTH, use_parallel_residual=BOTH)


def gpt2(r: Rng) -> Config:
    """GPT-2, GPT-J, CodeGen: the old names."""
    heads = r.choice([2, 4, 8])
    config: Config = {
        "n_embd": heads * r.choice([8, 16]),
        "n_head": heads,
        "n_layer": r.randint(1, 4),
        "vocab_size": r.choice([97, 200]),
    }
    maybe(r, config, n_inner=[None, 40], n_positions=[32, 64], tie_word_embeddings=BOTH)
    return config


def gptj(r: Rng) -> Config:
    """GPT-J and CodeGen: heads wide enough for the rotary part."""
    heads = r.choice([2, 4])
    config: Config = {"n_embd": heads * 64, "n_head": heads, "n_layer": r.randint(1, 3), "vocab_size": r.choice([97, 200])}
    return maybe(r, config, n_inner=[None, 40], n_positions=[32, 64], rotary_dim=[16, 32])


def bigcode(r: Rng) -> Config:
    """StarCoder 1."""
    return maybe(r, gpt2(r), multi_query=BOTH)


def gpt_neo(r: Rng) -> Config:
    """GPT-Neo."""
    heads, layers = r.choice([2, 4, 8]), r.choice([2, 4])
    config: Config = {"hidden_size": heads * 8, "num_heads": heads, "num_layers": layers, "vocab_size": 97}
    config["attention_types"] = [[["global", "local"], layers // 2]]
    return maybe(r, config, intermediate_size=[None, 40], max_position_embeddings=[32, 64], tie_word_embeddings=BOTH)


def gpt_neox(r: Rng) -> Config:
    """GPT-NeoX."""
    return maybe(r, base(r, kv=False, head_dim=False), attention_bias=BOTH, use_parallel_residual=BOTH)


def falcon(r: Rng) -> Config:
    """Falcon, old and new."""
    config = base(r, kv=False, head_dim=False)
    del config["intermediate_size"]
    heads = config["num_attention_heads"]
    maybe(
        r,
        config,
        bias=BOTH,
        parallel_attn=BOTH,
        multi_query=BOTH,
        new_decoder_architecture=BOTH,
        alibi=BOTH,
        ffn_hidden_size=[None, 48],
    )
    if config.get("new_decoder_architecture"):
        maybe(r, config, num_kv_heads=[d for d in (1, 2, 4) if heads % d == 0], num_ln_in_parallel_attn=[1, 2, None])
    return config


def bloom(r: Rng) -> Config:
    """BLOOM."""
    heads = r.choice([2, 4, 8])
    config: Config = {"hidden_size": heads * r.choice([8, 16]), "n_head": heads, "n_layer": r.randint(1, 4), "vocab_size": 97}
    return maybe(r, config, tie_word_embeddings=BOTH)


def opt(r: Rng) -> Config:
    """OPT, with the corners of the 350M model."""
    config = base(r, kv=False, head_dim=False)
    config["ffn_dim"] = config.pop("intermediate_size")
    config["pad_token_id"] = 1
    maybe(
        r,
        config,
        do_layer_norm_before=BOTH,
        enable_bias=BOTH,
        layer_norm_elementwise_affine=BOTH,
        word_embed_proj_dim=[None, 16, 24],
    )
    return maybe(r, config, _remove_final_layer_norm=BOTH)


def mpt(r: Rng) -> Config:
    """MPT."""
    heads = r.choice([2, 4, 8])
    config: Config = {"d_model": heads * r.choice([8, 16]), "n_heads": heads, "n_layers": r.randint(1, 4), "vocab_size": 97}
    return maybe(r, config, tie_word_embeddings=BOTH, no_bias=True)


def dbrx(r: Rng) -> Config:
    """DBRX."""
    heads, count = r.choice([2, 4, 8]), r.choice([2, 4])
    config: Config = {"d_model": heads * 8, "n_heads": heads, "n_layers": r.randint(1, 4), "vocab_size": 97}
    config["attn_config"] = maybe(r, {"rope_theta": 10000.0}, kv_n_heads=[1, 2])
    config["ffn_config"] = maybe(r, {"moe_num_experts": count, "moe_top_k": 1}, ffn_hidden_size=[20, 44])
    return config


def nemotron_h(r: Rng) -> Config:
    """Nemotron-H and Nemotron-3, with the latent of its experts."""
    config = base(r)
    pattern = "".join(r.choice("ME*-") for _ in range(r.randint(2, 9)))
    config.update(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern), head_dim=r.choice([8, 16]))
    groups = r.choice([1, 2])
    config.update(
        mamba_num_heads=groups * r.choice([2, 4]),
        mamba_head_dim=r.choice([4, 8]),
        n_groups=groups,
        ssm_state_size=r.choice([4, 8]),
    )
    config.update(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=r.choice([12, 20]))
    config.update(moe_shared_expert_intermediate_size=r.choice([16, 24]))
    return maybe(r, config, moe_latent_size=[None, 8, 12], mlp_bias=BOTH, use_bias=BOTH, use_conv_bias=BOTH, conv_kernel=[2, 4])


def jamba(r: Rng) -> Config:
    """Jamba."""
    config = experts(r, "num_experts")
    config.pop("head_dim", None)
    config.update(attn_layer_period=r.choice([2, 3, 8]), attn_layer_offset=r.choice([0, 1]))
    config.update(expert_layer_period=r.choice([1, 2, 3]), expert_layer_offset=0)
    maybe(
        r,
        config,
        mamba_d_state=[4, 16],
        mamba_d_conv=[2, 4],
        mamba_expand=[1, 2],
        mamba_dt_rank=["auto", 5],
        mamba_conv_bias=BOTH,
    )
    return maybe(r, config, mamba_proj_bias=BOTH)


def mamba1(r: Rng) -> Config:
    """Mamba."""
    config: Config = {"hidden_size": r.choice([32, 40]), "num_hidden_layers": r.randint(1, 4), "vocab_size": 97}
    maybe(
        r,
        config,
        state_size=[4, 16],
        expand=[1, 2],
        conv_kernel=[2, 4],
        use_bias=BOTH,
        use_conv_bias=BOTH,
        time_step_rank=["auto", 3],
    )
    return maybe(r, config, tie_word_embeddings=BOTH)


def mamba2(r: Rng) -> Config:
    """Mamba-2."""
    groups = r.choice([1, 2])
    heads, width = groups * r.choice([2, 4]), r.choice([8, 16])
    config: Config = {"hidden_size": heads * width // 2, "num_heads": heads, "head_dim": width, "n_groups": groups, "expand": 2}
    config.update(num_hidden_layers=r.randint(1, 4), vocab_size=97)
    return maybe(r, config, state_size=[4, 16], use_bias=BOTH, use_conv_bias=BOTH, conv_kernel=[2, 4], tie_word_embeddings=BOTH)


def ibm_mamba(r: Rng, config: Config) -> Config:
    """Add the Mamba-2 keys of IBM's classes."""
    config["hidden_size"] = config["num_attention_heads"] * 16
    config.update(mamba_n_heads=r.choice([2, 4]), mamba_n_groups=r.choice([1, 2]), mamba_d_state=r.choice([4, 8]))
    return maybe(
        r, config, mamba_d_conv=[2, 4], mamba_conv_bias=BOTH, mamba_proj_bias=BOTH, attention_bias=BOTH, mamba_d_head="auto"
    )


def bamba(r: Rng) -> Config:
    """Bamba."""
    config = ibm_mamba(r, base(r, head_dim=False))
    config["attn_layer_indices"] = r.sample(range(config["num_hidden_layers"]), r.randint(0, config["num_hidden_layers"]))
    return maybe(r, config, mlp_bias=BOTH)


def granite_hybrid(r: Rng) -> Config:
    """Granite 4."""
    config = ibm_mamba(r, experts(r))
    config.pop("head_dim", None)
    config["layer_types"] = [r.choice(["mamba", "attention"]) for _ in range(config["num_hidden_layers"])]
    config["shared_intermediate_size"] = r.choice([16, 28])
    if r.random() < 0.3:
        config["num_local_experts"] = 0
    return config


def kimi_linear(r: Rng) -> Config:
    """Kimi Linear."""
    config = latent(r)
    config["num_experts"] = config.pop("n_routed_experts")
    config["num_shared_experts"] = config.pop("n_shared_experts")
    config["num_experts_per_token"] = config.pop("num_experts_per_tok")
    config.pop("attention_bias", None)
    count = config["num_hidden_layers"]
    full = sorted(r.sample(range(1, count + 1), r.randint(0, count)))
    config["linear_attn_config"] = {
        "full_attn_layers": full,
        "kda_layers": [i for i in range(1, count + 1) if i not in full],
        "head_dim": r.choice([8, 16]),
        "num_heads": r.choice([2, 4]),
        "short_conv_kernel_size": r.choice([2, 4]),
    }
    return config


def deepseek_v4(r: Rng) -> Config:
    """DeepSeek-V4."""
    heads, experts_count = r.choice([2, 4]), r.choice([2, 4])
    config: Config = {"hidden_size": 32, "num_attention_heads": heads, "num_hidden_layers": r.randint(1, 6), "vocab_size": 97}
    config.update(head_dim=r.choice([16, 32]), q_lora_rank=r.choice([8, 12]), o_lora_rank=r.choice([4, 8]), o_groups=2)
    config.update(n_routed_experts=experts_count, num_experts_per_tok=r.randint(1, experts_count), n_shared_experts=1)
    config.update(moe_intermediate_size=r.choice([12, 20]), hc_mult=r.choice([2, 4]), index_n_heads=2, index_head_dim=8)
    if r.random() < 0.5:
        config["compress_ratios"] = [r.choice([0, 4, 128]) for _ in range(config["num_hidden_layers"] + 1)]
    return maybe(r, config, tie_word_embeddings=BOTH, qk_rope_head_dim=[4, 8], sliding_window=[16, 32], index_topk=[8, 16])
