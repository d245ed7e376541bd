"""Small random configurations of every architecture that is read: the text models and the vision-language wrappers.

No dependency beyond the standard library: scripts/count_with_transformers.py counts them with the real classes, the tests
count them with Parlay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from random_text_configs import (
    BOTH,
    Config,
    Rng,
    bamba,
    base,
    bigcode,
    bloom,
    cohere,
    dbrx,
    deepseek_v4,
    ernie_moe,
    exaone_moe,
    experts,
    falcon,
    gemma,
    gemma3,
    glm4_moe,
    glm5,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    granite_hybrid,
    granite_shared,
    grouped_experts,
    helium,
    hunyuan,
    hunyuan_moe,
    indexed,
    jamba,
    kimi_linear,
    latent,
    llama,
    llama4,
    mamba1,
    mamba2,
    maybe,
    mpt,
    nemotron_h,
    no_head_dim,
    olmoe,
    opt,
    phi,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    seed_oss,
    stablelm,
    starcoder2,
    windowed,
    youtu,
)


def vit(r: Rng, **more: Any) -> Config:
    """Return the keys of a plain vision tower."""
    heads = r.choice([2, 4])
    config: Config = {"hidden_size": heads * 16, "num_attention_heads": heads, "intermediate_size": r.choice([40, 56])}
    config.update(num_hidden_layers=r.randint(1, 3), image_size=r.choice([28, 56]), patch_size=14, num_channels=3)
    return {**config, **more}


def wrapped(text: Callable[[Rng], Config], text_type: str, tower: Callable[[Rng], Config], **top: Any) -> Callable[[Rng], Config]:
    """Return a rule for a vision-language wrapper."""

    def rule(r: Rng) -> Config:
        inner = text(r)
        config: Config = {"text_config": {**inner, **({"model_type": text_type} if text_type else {})}, "vision_config": tower(r)}
        tie = inner.pop("tie_word_embeddings", None)
        if tie is not None:
            config["tie_word_embeddings"] = tie
            config["text_config"].pop("tie_word_embeddings", None)
        for key, value in top.items():
            if r.random() < 0.7:
                config[key] = r.choice(value) if isinstance(value, list) else value
        return config

    return rule


def qwen2_tower(r: Rng) -> Config:
    """Qwen2-VL's tower."""
    return {
        "depth": r.randint(1, 3),
        "embed_dim": 32,
        "num_heads": 2,
        "hidden_size": r.choice([24, 40]),
        "mlp_ratio": r.choice([2, 4]),
    }


def qwen25_tower(r: Rng) -> Config:
    """Qwen2.5-VL's tower."""
    return {
        "depth": r.randint(1, 3),
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 40,
        "out_hidden_size": r.choice([24, 40]),
    }


def qwen3_tower(r: Rng) -> Config:
    """Qwen3-VL's tower."""
    config = {**qwen25_tower(r), "num_position_embeddings": r.choice([16, 25]), "spatial_merge_size": 2}
    return {**config, "deepstack_visual_indexes": [0][: r.randint(0, 1)]}


def glm_tower(r: Rng) -> Config:
    """GLM-4.1V's tower."""
    config = {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 40, "intermediate_size": 56, "image_size": 56}
    return maybe(r, config, attention_bias=BOTH)


def llama4_tower(r: Rng) -> Config:
    """Llama 4's tower; the adapter needs an expansion of the hidden size by 4 in intermediate_size."""
    config = vit(r, vision_output_dim=24, projector_input_dim=24, projector_output_dim=24)
    config["intermediate_size"] = config["hidden_size"] * 4
    return config


def internvl_tower(r: Rng) -> Config:
    """InternViT."""
    config = vit(r)
    config["image_size"], config["patch_size"] = [config["image_size"]] * 2, [14, 14]
    maybe(r, config, attention_bias=BOTH, use_qk_norm=BOTH, use_mean_pooling=BOTH, norm_type=["layer_norm", "rms_norm"])
    return maybe(r, config, use_absolute_position_embeddings=BOTH)


def siglip(r: Rng) -> Config:
    """SigLIP."""
    return maybe(r, vit(r, model_type="siglip_vision_model"), vision_use_head=BOTH)


def kimi_tower(r: Rng) -> Config:
    """MoonViT."""
    config = vit(r, pos_emb_height=8, pos_emb_width=8)
    for key in ("image_size", "num_channels"):
        config.pop(key)
    return config


def minimax(r: Rng) -> Config:
    """MiniMax-01."""
    config = experts(r)
    if r.random() < 0.6:
        config["layer_types"] = [r.choice(["linear_attention", "full_attention"]) for _ in range(config["num_hidden_layers"])]
    return maybe(r, config, block_size=[32, 64])


def mllama(r: Rng) -> Config:
    """Llama 3.2 Vision's text model."""
    config = base(r, head_dim=False)
    config.pop("tie_word_embeddings", None)
    if config.get("num_key_value_heads", 0) is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    config["cross_attention_layers"] = r.sample(range(config["num_hidden_layers"]), r.randint(1, config["num_hidden_layers"]))
    return config


def mllama_tower(r: Rng) -> Config:
    """Llama 3.2 Vision's tower."""
    config = vit(r, num_global_layers=r.randint(1, 2), max_num_tiles=4)
    config["attention_heads"] = config.pop("num_attention_heads")
    config["vision_output_dim"] = config["hidden_size"] * r.choice([2, 3])
    config["intermediate_layers_indices"] = [0] * (config["vision_output_dim"] // config["hidden_size"] - 1)
    return config


FAMILIES: dict[str, Callable[[Rng], Config]] = {
    "llama": llama,
    "mistral": windowed,
    "ministral": windowed,
    "ministral3": windowed,
    "mixtral": experts,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5_moe,
    "deepseek_v2": latent,
    "deepseek_v3": latent,
    "deepseek_v32": indexed,
    "deepseek_v4": deepseek_v4,
    "glm_moe_dsa": glm5,
    "glm4_moe_lite": latent,
    "mistral4": latent,
    "youtu": youtu,
    "glm": llama,
    "glm4": llama,
    "glm4_moe": glm4_moe,
    "gpt_oss": experts,
    "gemma": gemma,
    "gemma2": gemma,
    "gemma3_text": gemma3,
    "phi": phi,
    "phi3": windowed,
    "phimoe": phimoe,
    "olmo": no_head_dim,
    "olmo2": no_head_dim,
    "olmo3": no_head_dim,
    "olmoe": olmoe,
    "flex_olmo": lambda r: experts(r, "num_experts"),
    "starcoder2": starcoder2,
    "cohere": cohere,
    "cohere2": no_head_dim,
    "nemotron": llama,
    "llama4_text": llama4,
    "granite": no_head_dim,
    "granitemoe": experts,
    "granitemoeshared": granite_shared,
    "smollm3": no_head_dim,
    "ernie4_5": lambda r: maybe(r, base(r), use_bias=BOTH),
    "ernie4_5_moe": ernie_moe,
    "hunyuan_v1_dense": hunyuan,
    "hunyuan_v1_moe": hunyuan_moe,
    "seed_oss": seed_oss,
    "exaone4": lambda r: base(r),
    "exaone_moe": exaone_moe,
    "dots1": grouped_experts,
    "arcee": llama,
    "apertus": llama,
    "stablelm": stablelm,
    "minimax_m2": experts,
    "helium": helium,
    "cwm": llama,
    "gpt2": gpt2,
    "gptj": gptj,
    "codegen": gptj,
    "gpt_bigcode": bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "falcon": falcon,
    "bloom": bloom,
    "opt": opt,
    "mpt": mpt,
    "dbrx": dbrx,
    "nemotron_h": nemotron_h,
    "jamba": jamba,
    "mamba": mamba1,
    "falcon_mamba": mamba1,
    "mamba2": mamba2,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "kimi_linear": kimi_linear,
    "minimax": minimax,
    "mllama": wrapped(mllama, "", mllama_tower),
    "qwen2_vl": wrapped(qwen2, "", qwen2_tower),
    "qwen2_5_vl": wrapped(qwen2, "", qwen25_tower),
    "qwen3_vl": wrapped(qwen3, "", qwen3_tower),
    "qwen3_vl_moe": wrapped(qwen3_moe, "", qwen3_tower),
    "qwen3_5": wrapped(qwen3_5, "", qwen3_tower),
    "qwen3_5_moe": wrapped(qwen3_5_moe, "", qwen3_tower),
    "gemma3": wrapped(gemma3, "", siglip),
    "llava": wrapped(llama, "llama", lambda r: vit(r, model_type="clip_vision_model"), multimodal_projector_bias=BOTH),
    "llava_next": wrapped(windowed, "mistral", lambda r: vit(r, model_type="clip_vision_model")),
    "llava_onevision": wrapped(qwen2, "qwen2", siglip),
    "paligemma": wrapped(
        gemma, "gemma", lambda r: vit(r, model_type="siglip_vision_model", projection_dim=24, vision_use_head=False)
    ),
    "mistral3": wrapped(
        windowed, "mistral", lambda r: vit(r, model_type="pixtral"), spatial_merge_size=[1, 2], multimodal_projector_bias=BOTH
    ),
    "llama4": wrapped(llama4, "", llama4_tower),
    "internvl": wrapped(qwen2, "qwen2", internvl_tower, downsample_ratio=[0.5, 0.25]),
    "idefics3": wrapped(llama, "llama", lambda r: vit(r), scale_factor=[2, 4]),
    "smolvlm": wrapped(llama, "llama", lambda r: vit(r), scale_factor=[2, 4]),
    "glm4v": wrapped(llama, "", glm_tower),
    "glm4v_moe": wrapped(grouped_experts, "", glm_tower),
    "kimi_k25": wrapped(latent, "deepseek_v3", kimi_tower),
    "cohere2_vision": wrapped(
        no_head_dim, "cohere2", lambda r: vit(r, model_type="siglip_vision_model"), alignment_intermediate_size=[24, 40]
    ),
}


def draw(kind: str, number: int, seed: int) -> Iterator[Config]:
    """Yield `number` configurations of one architecture, the same ones for the same seed."""
    r = random.Random(f"{kind}-{seed}")
    for _ in range(number):
        yield {"model_type": kind, **FAMILIES[kind](r)}
