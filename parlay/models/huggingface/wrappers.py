"""Vision-language wrappers: which nested table holds the text model, which tower and projector stand beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parlay.models.huggingface import vision
from parlay.models.huggingface.defaults import keys_for
from parlay.models.huggingface.reader import Keys, printable

TEXT_TABLES = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class Wrapper:
    """One wrapper class. `tie` says where it looks for tied embeddings: in its own table, in the text's, or in either."""

    text: str  # model_type of the text model where the file names none
    projector: vision.Projector
    tower: vision.Tower | None = None  # fixed by the class; None = by the vision_config's model_type
    tower_type: str = ""  # model_type of the vision_config where the file names none
    tie: Literal["top", "text", "either"] = "top"


WRAPPERS: dict[str, Wrapper] = {
    "qwen2_vl": Wrapper("qwen2_vl_text", vision.nothing, vision.qwen2_vl, tie="either"),
    "qwen2_5_vl": Wrapper("qwen2_5_vl_text", vision.nothing, vision.qwen2_5_vl, tie="either"),
    "qwen3_vl": Wrapper("qwen3_vl_text", vision.nothing, vision.qwen3_vl),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", vision.nothing, vision.qwen3_vl),
    "qwen3_5": Wrapper("qwen3_5_text", vision.nothing, vision.qwen3_5),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", vision.nothing, vision.qwen3_5),
    "gemma3": Wrapper("gemma3_text", vision.gemma3_projector, tower_type="siglip_vision_model"),
    "llava": Wrapper("llama", vision.two_linear, tower_type="clip_vision_model", tie="either"),
    "llava_next": Wrapper("llama", vision.with_newline, tower_type="clip_vision_model"),
    "llava_onevision": Wrapper("qwen2", vision.with_newline, tower_type="siglip_vision_model", tie="either"),
    "paligemma": Wrapper("gemma", vision.one_linear, tower_type="siglip_vision_model"),
    "mistral3": Wrapper("mistral", vision.mistral3_projector, tower_type="pixtral"),
    "llama4": Wrapper("llama4_text", vision.llama4_projector, vision.llama4, tie="text"),
    "mllama": Wrapper("mllama_text_model", vision.mllama_projector, vision.mllama, tie="text"),
    "internvl": Wrapper("qwen2", vision.internvl_projector, vision.internvl),
    "internvl_chat": Wrapper("qwen2", vision.internvl_projector, vision.intern_vit, tie="text"),
    "idefics3": Wrapper("llama", vision.connector, vision.idefics),
    "smolvlm": Wrapper("llama", vision.connector, vision.idefics),
    "glm4v": Wrapper("glm4v_text", vision.nothing, vision.glm4v, tie="either"),
    "glm4v_moe": Wrapper("glm4v_moe_text", vision.nothing, vision.glm4v, tie="either"),
    "kimi_k25": Wrapper("deepseek_v3", vision.kimi_projector, vision.moonvit),
    "kimi_vl": Wrapper("deepseek_v3", vision.kimi_projector, vision.moonvit),
    "cohere2_vision": Wrapper("cohere2", vision.cohere_projector, tower_type="siglip_vision_model"),
}


def text_keys(top: Keys, kind: str) -> Keys | None:
    """Return the keys of the text model inside a wrapper, or None if the file describes a text model alone."""
    wrapper = WRAPPERS.get(kind)
    for name in TEXT_TABLES:
        table = top.table(name)
        if table is not None:
            table = table.table("text_config") or table  # a model of several speakers keeps it one level deeper
            inner = table.text("model_type") or (wrapper.text if wrapper else "")
            return keys_for(inner, table.data, top.where, top.log, path=table.path)
    if wrapper is None:
        return None
    if top.has("hidden_size") or top.has("num_hidden_layers"):
        return keys_for(wrapper.text, top.data, top.where, top.log)  # text keys lie flat beside vision_config
    top.log.assume(f"text_config is not in the file: the class's default model ({wrapper.text})")
    return keys_for(f"{kind}.text_config", {}, top.where, top.log, path="text_config.")


def vision_parameters(top: Keys, kind: str, text_hidden: int) -> int:
    """Return the parameters of tower and projector; an unknown tower is not counted, and that is noted."""
    wrapper = WRAPPERS.get(kind)
    if wrapper is None:
        return 0
    table = top.table("vision_config")
    if table is None:
        top.log.assume("vision_config is not in the file: the class's default tower is counted")
    data = table.data if table else {}
    given = data.get("model_type")
    inner = given if isinstance(given, str) and given in vision.TOWERS else wrapper.tower_type
    tower = wrapper.tower or vision.TOWERS[inner]
    if wrapper.tower is None and isinstance(given, str) and given not in vision.TOWERS:
        top.log.ignore(f"vision_config: tower '{printable(given)}' is not known and not counted")
        for key in data:
            top.log.read.add(f"vision_config.{key}")
        return 0
    fallback = f"{kind}.vision_config" if wrapper.tower or not data else inner
    keys = keys_for(fallback, data, top.where, top.log, path="vision_config.")
    return tower(keys) + wrapper.projector(top, keys, text_hidden)


def tied(top: Keys, text: Keys, kind: str) -> bool:
    """Return whether the wrapper ties its embeddings, looked up where its class looks."""
    wrapper = WRAPPERS.get(kind)
    rule = wrapper.tie if wrapper else "either"
    if rule == "top":
        text.find("tie_word_embeddings")
        return top.flag("tie_word_embeddings")
    if rule == "text":
        top.find("tie_word_embeddings")
        return text.flag("tie_word_embeddings")
    return any([top.flag("tie_word_embeddings"), text.flag("tie_word_embeddings")])
