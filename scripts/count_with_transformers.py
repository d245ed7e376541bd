"""Count parameters with the real model classes, on a device that holds no memory: the oracle for parlay.models.huggingface.

Needs torch and transformers, which Parlay itself does not depend on; run it in an environment of its own. No weights are
loaded and no code beside the installed package runs (trust_remote_code stays off).

    python scripts/count_with_transformers.py defaults > parlay/models/huggingface/defaults.json
    python scripts/count_with_transformers.py count tests/models/hf/*.json > tests/models/hf/counts.json
    python scripts/count_with_transformers.py known tests/models/hf/known.json > known.json && mv known.json tests/models/hf/
    python scripts/count_with_transformers.py random 500 7 > tests/models/hf/random.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from random_configs import FAMILIES, draw
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

TEXT = [
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "mixtral",
    "mistral4",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt_oss",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "phimoe",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "flex_olmo",
    "gpt2",
    "gpt_neo",
    "gptj",
    "gpt_neox",
    "gpt_bigcode",
    "codegen",
    "falcon",
    "bloom",
    "opt",
    "mpt",
    "starcoder2",
    "cohere",
    "cohere2",
    "dbrx",
    "nemotron",
    "nemotron_h",
    "jamba",
    "llama4_text",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "granitemoehybrid",
    "smollm3",
    "ernie4_5",
    "ernie4_5_moe",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "seed_oss",
    "exaone",
    "exaone4",
    "exaone_moe",
    "dots1",
    "arcee",
    "apertus",
    "stablelm",
    "minimax_m2",
    "helium",
    "internlm3",
    "cwm",
    "youtu",
    "bamba",
    "mamba",
    "falcon_mamba",
    "mamba2",
    "kimi_linear",
    "minimax",
    "mllama_text_model",
    "qwen2_vl_text",
    "qwen2_5_vl_text",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "glm4v_text",
    "glm4v_moe_text",
]
WRAPPERS = [
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "gemma3",
    "llava",
    "llava_next",
    "llava_onevision",
    "paligemma",
    "mistral3",
    "llama4",
    "glm4v",
    "glm4v_moe",
    "internvl",
    "idefics3",
    "smolvlm",
    "kimi_k25",
    "cohere2_vision",
    "mllama",
]
TOWERS = ["siglip_vision_model", "clip_vision_model", "pixtral"]
# Fields of the base class, and fields that change no shape.
NOISE = ("dropout", "pdrop", "token_id", "token_index", "initializer", "init_", "epsilon", "rope_para", "rotary", "coef", "cache")
NOISE += (
    "loss",
    "scal",
    "multiplier",
    "softcap",
    "time_step",
    "summary",
    "kernels",
    "mambapy",
    "associative",
    "residual_in",
    "rescale",
)
NOISE += (
    "chunk_size",
    "logit",
    "norm_topk",
    "output_router",
    "pretraining_tp",
    "classifier",
    "jitter",
    "apply_residual",
    "slow_but",
)
RENAMED = {"image_token_id", "boi_token_id", "eoi_token_id", "norm_topk_prob"}


def _noise(name: str) -> bool:
    return name.endswith("_eps") or (name != "scale_factor" and any(noise in name for noise in NOISE))


def defaults_of(config: type) -> dict[str, Any]:
    """Return the fields of a configuration class that say something about shapes, with their defaults."""
    base = {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}
    found = {}
    for field in dataclasses.fields(config):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if isinstance(value, tuple):
            value = list(value)
        plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, list) and len(value) <= 8)
        if plain and field.name not in base and not _noise(field.name):
            found[field.name] = value
    return found


def all_defaults() -> dict[str, Any]:
    """Return the defaults of every class that is read, and of the towers inside the wrappers."""
    classes: dict[str, Any] = {}
    for kind in TEXT + WRAPPERS + TOWERS:
        config = _class_of(kind)
        names = {new: old for new, old in config.attribute_map.items() if new not in RENAMED}
        classes[kind] = {"defaults": defaults_of(config), **({"names": names} if names else {})}
    for kind in WRAPPERS:
        for part in ("vision_config", "text_config"):
            inner = getattr(CONFIG_MAPPING[kind](), part)
            values = {key: getattr(inner, key) for key in defaults_of(type(inner))}
            values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
            values = {key: value for key, value in values.items() if not isinstance(value, list) or len(value) <= 8}
            names = {new: old for new, old in type(inner).attribute_map.items() if new not in RENAMED}
            classes[f"{kind}.{part}"] = {"defaults": values, **({"names": names} if names else {})}
    return {"transformers": transformers.__version__, "classes": classes}


def _class_of(kind: str) -> type:
    """Return a configuration class, also one that only exists inside a wrapper."""
    try:
        return CONFIG_MAPPING[kind]
    except KeyError:
        return type(CONFIG_MAPPING[kind.removesuffix("_text")]().text_config)


def build(config: dict[str, Any]) -> torch.nn.Module:
    """Return the model of a config.json on the meta device."""
    config = json.loads(json.dumps(config))
    data = {key: value for key, value in config.items() if key not in ("auto_map", "quantization_config")}
    kind = data.pop("model_type")
    if kind == "kimi_k2":
        kind = "deepseek_v3"
    if kind == "kimi_k25" and isinstance(data.get("text_config"), dict):
        text = dict(data["text_config"], model_type="deepseek_v3")
        text.pop("auto_map", None)
        text.pop("quantization_config", None)
        data["text_config"] = text
        # The class renames these keys of the published file when it is loaded through its own converter.
        vision = {key.removeprefix("vt_").removeprefix("init_"): value for key, value in data.get("vision_config", {}).items()}
        data["vision_config"] = {key: value for key, value in vision.items() if key not in ("_attn_implementation",)}
    for table in (data, data.get("text_config")):
        if isinstance(table, dict):
            table["pad_token_id"] = None  # small vocabularies have no row for the class's own
    parsed = CONFIG_MAPPING[kind].from_dict(data)
    factory = AutoModelForImageTextToText if kind in WRAPPERS else AutoModelForCausalLM
    with torch.device("meta"):
        if kind == "mistral4":  # in the package, and not in its automatic table
            return transformers.Mistral4ForCausalLM(parsed)
        return factory.from_config(parsed)


def count(config: dict[str, Any]) -> int:
    """Return the number of parameters of a config.json's model, shared ones once."""
    return sum(parameter.numel() for parameter in build(config).parameters())


def main(arguments: list[str]) -> None:
    """Run one of the three commands."""
    match arguments:
        case ["defaults"]:
            print(json.dumps(all_defaults(), indent=0, sort_keys=True))
        case ["count", *files]:
            counts = {}
            for file in files:
                try:
                    counts[Path(file).name] = count(json.loads(Path(file).read_text()))
                except Exception as error:
                    print(f"{file}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
            print(json.dumps({"transformers": transformers.__version__, "counts": counts}, indent=1, sort_keys=True))
        case ["known", file]:
            table = json.loads(Path(file).read_text())
            for name, entry in table.items():
                try:
                    entry["count"] = count(entry["config"])
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
            print("{\n" + lines + "\n}")
        case ["random", number, seed]:
            rows = []
            for kind in FAMILIES:
                for config in draw(kind, max(1, int(number) // len(FAMILIES)), int(seed)):
                    try:
                        rows.append([config, count(config)])
                    except Exception as error:
                        print(f"{kind}: {type(error).__name__}: {str(error)[:160]} {json.dumps(config)[:200]}", file=sys.stderr)
            lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
            print(f'{{"transformers": "{transformers.__version__}", "rows": [\n{lines}\n]}}')
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
