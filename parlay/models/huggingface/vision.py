"""Parameters of vision towers and of the projector into the text model, counted part by part as the classes build them.

A tower is described by the nested vision_config; where that is silent its class's default holds. Every count is of learned
numbers: a linear map i -> o has i x o, and o more with a bias; a norm has its width, twice that with a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from parlay.models.huggingface.reader import MISSING, Keys

MAX_WIDTH = 1 << 16  # no tower is wider, taller or deeper; keeps the count below what a specification holds
MAX_DEPTH = 1 << 10
MLLAMA_RATIOS = 8  # arrangements of up to four tiles, the class's default


def linear(width_in: int, width_out: int, bias: bool = True) -> int:
    """Return the parameters of a linear map."""
    return width_in * width_out + (width_out if bias else 0)


def norm(width: int, bias: bool = True) -> int:
    """Return the parameters of a norm."""
    return width * (2 if bias else 1)


def block(
    hidden: int, width: int, *, qkv: bool = True, out: bool = True, mlp: bool = True, norms: bool = True, gated: bool = False
) -> int:
    """Return one encoder layer: attention of the full width, two norms, and a plain or gated feed-forward part."""
    attention = 3 * linear(hidden, hidden, qkv) + linear(hidden, hidden, out)
    feed = (2 if gated else 1) * linear(hidden, width, mlp) + linear(width, hidden, mlp)
    return attention + feed + 2 * norm(hidden, norms)


def size(keys: Keys, name: str, *names: str) -> int:
    """Return a size of the tower, under the first name that the file holds."""
    for other in names:
        if not keys.has(name) and keys.has(other):
            name = other
    return keys.integer(name, high=MAX_DEPTH if "layers" in name or name == "depth" else MAX_WIDTH)


def side(keys: Keys, name: str) -> int:
    """Return a size that may be given for both directions, [h, w] with h = w."""
    value = keys.find(name)[1]
    default = keys.default(name)
    if value is MISSING and isinstance(default, list):
        value = default
    if isinstance(value, list):
        sides = value if value is default else keys.integers(name) or []
        if len(sides) != 2 or sides[0] != sides[1] or not 1 <= sides[0] <= MAX_WIDTH:
            raise keys.error(name, "must be one size, or two equal ones")
        return sides[0]
    return size(keys, name)


def patches(keys: Keys) -> int:
    """Return the number of patches of an image."""
    return (side(keys, "image_size") // side(keys, "patch_size")) ** 2


def siglip(keys: Keys) -> int:
    """SigLIP (Gemma 3, PaliGemma, LLaVA-OneVision), with its pooling head if `vision_use_head`."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h) + patches(keys) * h
    head = h + 3 * linear(h, h) + linear(h, h) + norm(h) + linear(h, f) + linear(f, h)
    return embed + n * block(h, f) + norm(h) + (head if keys.flag("vision_use_head", True) else 0)


def idefics(keys: Keys) -> int:
    """The encoder of Idefics3 and SmolVLM: SigLIP without a head."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h) + patches(keys) * h
    return embed + n * block(h, f) + norm(h)


def clip(keys: Keys) -> int:
    """CLIP (LLaVA): a class token, norms before and after."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = h + linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h, False) + (patches(keys) + 1) * h
    return embed + n * block(h, f) + 2 * norm(h)


def pixtral(keys: Keys) -> int:
    """Pixtral: rotary positions, gated feed-forward parts, no biases."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h, False) + norm(h, False)
    return embed + n * block(h, f, qkv=False, out=False, mlp=False, norms=False, gated=True)


def llama4(keys: Keys) -> int:
    """Llama 4's tower with its pixel-shuffle adapter."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h, False) + h + (patches(keys) + 1) * h
    adapter = linear(f, size(keys, "projector_input_dim"), False)
    adapter += linear(size(keys, "projector_output_dim"), size(keys, "projector_output_dim"), False)
    return embed + n * block(h, f) + 2 * norm(h) + adapter


def internvl(keys: Keys) -> int:
    """InternViT: a class token, layer scales, optional biases on q, k, v and norms on q and k."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = h + linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h) + (patches(keys) + 1) * h
    if not keys.flag("use_absolute_position_embeddings", True):
        embed -= (patches(keys) + 1) * h
    if keys.flag("use_mask_token"):
        embed += h
    rms = keys.text("norm_type") == "rms_norm"
    layer = block(h, f, qkv=keys.flag("attention_bias"), norms=not rms) + 2 * h
    layer += 2 * h if keys.flag("use_qk_norm") else 0  # RMS norms over all heads
    pooled = keys.flag("use_mean_pooling", True)
    return embed + n * layer + (0 if pooled else norm(h))


def intern_vit(keys: Keys) -> int:
    """InternViT as InternVL's own classes name its keys; no norm behind the last layer."""
    h, f, n = size(keys, "hidden_size"), size(keys, "intermediate_size"), size(keys, "num_hidden_layers")
    embed = h + linear(3 * side(keys, "patch_size") ** 2, h) + (patches(keys) + 1) * h
    rms = keys.text("norm_type") == "rms_norm"
    layer = block(h, f, qkv=keys.flag("qkv_bias"), norms=not rms) + 2 * h
    return embed + n * (layer + (2 * h if keys.flag("qk_normalization") else 0))


def mllama(keys: Keys) -> int:
    """Llama 3.2 Vision: learned positions of patches and of tiles, then more layers with two learned scales each."""
    h, f = size(keys, "hidden_size"), size(keys, "intermediate_size")
    n, more, tiles = size(keys, "num_hidden_layers"), size(keys, "num_global_layers"), size(keys, "max_num_tiles")
    ratios = keys.find("supported_aspect_ratios")[1]
    shapes = (len(ratios) if isinstance(ratios, list) else MLLAMA_RATIOS) + 1  # and one row for padding
    points = patches(keys) + 1
    embed = linear(size(keys, "num_channels") * side(keys, "patch_size") ** 2, h, False) + h
    positions = 1 + points * h + shapes * tiles * points * h + 2 * (1 + shapes * tiles * h)
    layer = block(h, f, qkv=False, out=False)
    return embed + positions + 2 * norm(h) + n * layer + more * (layer + 2)


def qwen2_vl(keys: Keys) -> int:
    """Qwen2-VL, its merger into the text width included."""
    h, n = size(keys, "embed_dim"), size(keys, "depth")
    f = size(keys, "mlp_ratio") * h
    embed = linear(_pixels(keys), h, False)
    return embed + n * block(h, f) + _qwen_merger(keys, h, size(keys, "hidden_size"), norm(h))


def qwen2_5_vl(keys: Keys) -> int:
    """Qwen2.5-VL: gated feed-forward parts with biases, RMS norms."""
    h, n = size(keys, "hidden_size"), size(keys, "depth")
    layer = block(h, size(keys, "intermediate_size"), norms=False, gated=True)
    return linear(_pixels(keys), h, False) + n * layer + _qwen_merger(keys, h, size(keys, "out_hidden_size"), norm(h, False))


def qwen3_5(keys: Keys) -> int:
    """Qwen3.5: learned positions, a merger, and no deepstack."""
    h, n = size(keys, "hidden_size"), size(keys, "depth")
    keys.find("deepstack_visual_indexes")
    embed = linear(_pixels(keys), h) + size(keys, "num_position_embeddings") * h
    return embed + n * block(h, size(keys, "intermediate_size")) + _qwen_merger(keys, h, size(keys, "out_hidden_size"), norm(h))


def qwen3_vl(keys: Keys) -> int:
    """Qwen3-VL: as Qwen3.5's, and one more merger for each layer that feeds the text model (deepstack)."""
    h, out = size(keys, "hidden_size"), size(keys, "out_hidden_size")
    merge = size(keys, "spatial_merge_size") ** 2
    given = keys.integers("deepstack_visual_indexes")
    default = keys.default("deepstack_visual_indexes")
    deep = len(given) if given is not None else len(default) if isinstance(default, list) else 0
    return qwen3_5(keys) + deep * _qwen_merger(keys, h, out, norm(h * merge))


def _pixels(keys: Keys) -> int:
    """Values of one patch over its frames."""
    channels = size(keys, "in_channels", "in_chans")
    return channels * side(keys, "temporal_patch_size") * side(keys, "patch_size") ** 2


def _qwen_merger(keys: Keys, hidden: int, out: int, norms: int) -> int:
    wide = hidden * size(keys, "spatial_merge_size") ** 2
    return norms + linear(wide, wide) + linear(wide, out)


def glm4v(keys: Keys) -> int:
    """GLM-4.1V and GLM-4.5V: gated layers of width out_hidden_size, a down-sampling convolution and a gated merger."""
    h, n = size(keys, "hidden_size"), size(keys, "depth")
    out, wide = size(keys, "out_hidden_size"), size(keys, "intermediate_size")
    bias, merge = keys.flag("attention_bias"), size(keys, "spatial_merge_size")
    layer = block(h, out, qkv=bias, out=False, mlp=False, norms=False, gated=True)
    embed = linear(_pixels(keys), h) + patches(keys) * h + 2 * norm(h, False)
    merger = linear(out, out, False) + norm(out) + 3 * linear(out, wide, False)
    return embed + n * layer + linear(h * merge**2, out) + merger


def moonvit(keys: Keys) -> int:
    """The tower of Kimi-VL and Kimi K2.5: learned positions on a grid, biases everywhere."""
    h, f = size(keys, "hidden_size", "vt_hidden_size"), size(keys, "intermediate_size", "vt_intermediate_size")
    n = size(keys, "num_hidden_layers", "vt_num_hidden_layers")
    grid = size(keys, "pos_emb_height", "init_pos_emb_height") * size(keys, "pos_emb_width", "init_pos_emb_width")
    return linear(3 * side(keys, "patch_size") ** 2, h) + grid * h + n * block(h, f) + norm(h)


def two_linear(top: Keys, vision: Keys, text: int) -> int:
    """LLaVA's projector: two linear maps."""
    bias = top.flag("multimodal_projector_bias", True)
    levels = top.find("vision_feature_layer")[1]
    count = len(levels) if isinstance(levels, list) and levels else 1
    return linear(size(vision, "hidden_size") * count, text, bias) + linear(text, text, bias)


def with_newline(top: Keys, vision: Keys, text: int) -> int:
    """LLaVA-NeXT's projector, and the learned row between image lines."""
    return two_linear(top, vision, text) + text


def one_linear(top: Keys, vision: Keys, text: int) -> int:
    """PaliGemma's projector: one linear map."""
    return linear(size(vision, "hidden_size"), size(top, "projection_dim"))


def gemma3_projector(top: Keys, vision: Keys, text: int) -> int:
    """Gemma 3's projector: a norm and a matrix."""
    hidden = size(vision, "hidden_size")
    return norm(hidden, False) + hidden * text


def mistral3_projector(top: Keys, vision: Keys, text: int) -> int:
    """Mistral Small 3.1's projector: a norm, a patch merger and two linear maps."""
    hidden, bias = size(vision, "hidden_size"), top.flag("multimodal_projector_bias")
    merge = size(top, "spatial_merge_size") ** 2
    levels = top.find("vision_feature_layer")[1]
    count = len(levels) if isinstance(levels, list) and levels else 1
    return (
        norm(hidden, False)
        + linear(hidden * merge, hidden, False)
        + linear(hidden * count, text, bias)
        + linear(text, text, bias)
    )


def llama4_projector(top: Keys, vision: Keys, text: int) -> int:
    """Llama 4's projector: one matrix."""
    return linear(size(vision, "vision_output_dim"), text, False)


def mllama_projector(top: Keys, vision: Keys, text: int) -> int:
    """Llama 3.2 Vision's projector: one linear map from the last and the kept layers."""
    return linear(size(vision, "vision_output_dim"), text)


def internvl_projector(top: Keys, vision: Keys, text: int) -> int:
    """InternVL's projector: pixel shuffle, a norm and two linear maps."""
    value = top.find("downsample_ratio")[1]
    ratio = value if isinstance(value, int | float) and not isinstance(value, bool) else 0.5
    if not (math.isfinite(ratio) and 2**-6 <= ratio <= 1):
        raise top.error("downsample_ratio", "must be a number from 1/64 to 1")
    wide = size(vision, "hidden_size") * int(1 / ratio) ** 2
    return norm(wide) + linear(wide, text) + linear(text, text)


def connector(top: Keys, vision: Keys, text: int) -> int:
    """The connector of Idefics3 and SmolVLM: pixel shuffle and one matrix."""
    return linear(size(vision, "hidden_size") * size(top, "scale_factor") ** 2, text, False)


def kimi_projector(top: Keys, vision: Keys, text: int) -> int:
    """Kimi's projector: a norm, then two linear maps on merged patches."""
    hidden = size(vision, "hidden_size", "vt_hidden_size")
    normed = size(vision, "mm_hidden_size") if vision.has("mm_hidden_size") else size(top, "projection_hidden_size")
    kernel = vision.integers("merge_kernel_size", 2) or [2, 2]
    if max(kernel) > MAX_WIDTH:
        raise vision.error("merge_kernel_size", f"must hold two numbers up to {MAX_WIDTH}")
    wide = hidden * math.prod(kernel)
    return norm(normed) + linear(wide, wide) + linear(wide, text)


def cohere_projector(top: Keys, vision: Keys, text: int) -> int:
    """Command A Vision's projector: pixel shuffle, then a gated pair of linear maps."""
    wide = top.integer("alignment_intermediate_size", high=1 << 20)
    shuffled = size(vision, "hidden_size") * size(top, "downsample_factor") ** 2
    return linear(shuffled, wide) + linear(wide // 2, text)


def nothing(top: Keys, vision: Keys, text: int) -> int:
    """No projector beside the tower: its merger is counted with it."""
    return 0


Tower = Callable[[Keys], int]
Projector = Callable[[Keys, Keys, int], int]

TOWERS: dict[str, Tower] = {
    "siglip_vision_model": siglip,
    "clip_vision_model": clip,
    "pixtral": pixtral,
    "llama4_vision_model": llama4,
    "internvl_vision": internvl,
    "idefics3_vision": idefics,
    "smolvlm_vision": idefics,
}
