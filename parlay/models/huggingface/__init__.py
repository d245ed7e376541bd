"""Models from a Hugging Face config.json: read exactly, without a network and without running anything of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parlay.errors import UsageError
from parlay.models.huggingface import classic, hybrid, latent, pruned, second_attention, transformer, unknown, wrappers
from parlay.models.huggingface.defaults import keys_for
from parlay.models.huggingface.reader import MAX_BYTES, Keys, Log, parse, printable, read_file
from parlay.models.huggingface.shapes import Draft, named, runs
from parlay.models.spec import ModelSpec
from parlay.specfile import as_usage_error, read_standard_input

PRUNED = ("nemotron-nas", "deci", "decilm")
TEXT_OF = {  # the text model of a wrapper -> the architecture whose class it copies
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
    "glm_ocr_text": "glm4v_text",
}
# Keys that change neither shapes nor counts: training, generation, tokenizer, bookkeeping, numerics.
HARMLESS = re.compile(
    r"^(_.*|architectures|auto_map|transformers_version|.*token_id|.*token_ids|.*_token|.*_token_index|.*dropout.*|.*pdrop"
    r"|initializer.*|init_.*|.*_eps|.*epsilon|use_cache|rope_.*|.*rope|.*rotary.*|.*_coef|.*_coeff|.*loss.*|output_.*|return_.*"
    r"|id2label|label2id|torchscript|task_specific_params|.*_penalty|.*beam.*|do_sample|temperature|top_k|top_p|typical_p"
    r"|max_length|min_length|.*softcap.*|.*cap|.*multiplier.*|.*scal(e|ing).*|summary_.*|problem_type|pruned_heads|prefix|model_type"
    r"|pretraining_tp|quantization_config|torch_dtype|dtype|ep_size|norm_topk_prob|scoring_func|topk_method|seq_aux"
    r"|tie_encoder_decoder|tokenizer.*|use_bfloat16|.*attn_implementation|finetuning_task|is_decoder|is_encoder_decoder"
    r"|cross_attention.*|add_cross_attention|bad_words_ids|.*suppress_tokens|chunk_size.*|early_stopping|remove_invalid_values"
    r"|decoder_.*|encoder_no.*|no_repeat.*|diversity.*|num_return.*|exponential.*|forced.*|image_.*|video_.*|audio_token.*"
    r"|vision_.*token.*|clip_qkv|alibi.*|logits_.*|logit_.*|time_step.*|use_mamba.*|mamba_.*act|mamba_chunk.*|residual_in_fp32"
    r"|rescale.*|num_logits.*|expand|partial_.*|router_.*|swiglu_limit|original_max.*|name_or_path|gradient_checkpointing"
    r"|max_window_layers|topk_group|hidden_act.*|activation_function|initial_context_length|max_sequence_length|model_max_length|layerdrop"
    r"|use_sliding_window|sliding_window|window_size|attention_softmax.*|scale_.*|reorder.*|mm_.*|ignore_index"
    r"|media_.*|use_unified.*|attn_impl|softmax_scale|prefix_lm|attn_type|attn_uses.*|moe_jitter.*|moe_normalize.*|moe_renorm.*"
    r"|input_jitter.*|torch_.*|cache_implementation|query_pre.*|attn_temperature.*|floor_scale|attn_scale|for_llm_class|verbose"
    r"|resid.*|embd?_.*|embed_.*|classifier.*|n_ctx|norm_eps|mamba_ssm.*|use_mambapy|use_assoc.*|apply_res.*|slow_.*|offset_alibi"
    r"|attn_config|ffn_config|use_flash.*|flash_.*|bos_.*|eos_.*|pad_.*|sep_.*|unk_.*|keys_to_ignore.*|max_attn_value|use_mrope)$"
)
MOST_KEY = 100  # characters of a key that are looked at
# Nested tables of other parts, by the last word of their name.
OTHER_PARTS = (
    "audio_config",
    "speech_config",
    "talker_config",
    "dit_config",
    "decoder_config",
    "encoder_config",
    "img_processor",
    "audio_processor",
    "embd_layer",
)


@dataclass(frozen=True)
class Imported:
    """A model read from a config.json, what was assumed to read it, and which of its keys were not used."""

    spec: ModelSpec
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    dtype: str = "bfloat16"  # of the weights as published
    quantization: str = ""  # the file's quantization method; counts are of the unquantized model


def load_config(path: Path | str) -> ModelSpec:
    """Return the model of a config.json, of a directory that holds one, or (`-`) of standard input."""
    return import_config(path).spec


def import_config(path: Path | str) -> Imported:
    """Return what `load_config` does, with what was assumed and ignored."""
    if str(path) == "-":
        return read_config(_standard_input(), "standard input")
    file = Path(path)
    if file.is_dir():
        if not (file / "config.json").is_file():
            raise UsageError("holds no config.json", where=str(file), hint="name the file itself")
        file = file / "config.json"
    return read_config(read_file(file), str(file), name=_name_of(file))


def _standard_input() -> str:
    data = read_standard_input(MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES >> 20} MiB, so it is not a config.json", where="standard input")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", where="standard input") from None


def _name_of(file: Path) -> str:
    """Return a name for the model: of the file, or of its folder, or of the repository in the hub's local cache."""
    if file.stem not in ("config", "configuration"):
        return file.stem
    folder = file.parent.absolute()
    if folder.parent.name == "snapshots":  # models--OWNER--NAME/snapshots/REVISION/config.json
        return folder.parent.parent.name.split("--")[-1]
    return folder.name


def read_config(text: str, where: str, *, name: str = "") -> Imported:
    """Return the model that a config.json's text describes; `where` names it in messages.

    Parameters
    ----------
    text : str
        The JSON text. [-]
    where : str
        File or stream, for messages. [-]
    name : str, default ""
        Name of the model where the file has none. [-]

    Returns
    -------
    Imported
        The specification, and what was assumed and ignored. [-]

    Raises
    ------
    UsageError
        If it is no JSON table, or one key that must be known is missing or wrong; the message names it.

    Examples
    --------
    >>> text = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100}'
    >>> model = read_config(text, "example")
    >>> model.spec.layer_count, model.spec.tied_embeddings
    (2, False)
    >>> model.assumed[0]
    'num_attention_heads = 32 (not in the file; the default of the llama class)'
    """
    log = Log()
    data = parse(text, where, log)
    kind = _kind(data, where)
    top = keys_for(kind, data, where, log)
    inner = wrappers.text_keys(top, kind)
    keys = top if inner is None else inner
    text_kind = (
        kind if inner is None else _kind(inner.data, where, wrappers.WRAPPERS[kind].text if kind in wrappers.WRAPPERS else kind)
    )
    if inner is not None and inner.data is top.data:
        text_kind = wrappers.WRAPPERS[kind].text
    try:
        draft = _draft(keys, text_kind)
    except ValidationError as error:  # a product of the file's numbers lies outside of what a specification holds
        raise as_usage_error(error, ModelSpec, where) from None
    if inner is not None:
        draft.tied = wrappers.tied(top, inner, kind)
        draft.fields["vision_parameters"] = wrappers.vision_parameters(top, kind, draft.hidden)
        if kind not in wrappers.WRAPPERS and top.table("vision_config") is not None:
            log.ignore(f"vision_config: the tower of '{printable(kind)}' is not known and not counted")
    spec = _assemble(draft, keys, name or kind, kind, where)
    dtype, method = _numbers(top, keys)
    ignored = (*log.ignored, *_unread(top, keys))
    return Imported(spec, tuple(log.assumed), tuple(dict.fromkeys(ignored)), dtype, method)


def _kind(data: dict[str, Any] | Any, where: str, fallback: str = "") -> str:
    """Return the model_type, or one guessed from the class named in `architectures`."""
    kind = data.get("model_type")
    if isinstance(kind, str) and kind:
        return kind
    if kind is not None and not isinstance(kind, str):
        raise UsageError("must be a word", where=f"{where}: model_type")
    if fallback:
        return fallback
    classes = data.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    folded = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", first[:80]).lower()
    for known in _known():
        if folded and known.replace("_", "").replace("-", "") == folded:
            return known
    return folded or "unknown"


def _known() -> list[str]:
    return [
        *transformer.RECIPES,
        *classic.BUILDERS,
        *hybrid.BUILDERS,
        *second_attention.BUILDERS,
        *latent.ROUTING,
        *wrappers.WRAPPERS,
        "kimi_k2",
    ]


def _draft(keys: Keys, kind: str) -> Draft:
    """Return the model, by the builder of its architecture."""
    kind = TEXT_OF.get(kind, kind)
    if kind in PRUNED or keys.has("block_configs"):
        return pruned.build(keys)
    for aliases in (transformer.ALIASES, classic.ALIASES, latent.ALIASES):
        kind = aliases.get(kind, kind)
    if kind in transformer.RECIPES:
        return transformer.build(keys, transformer.RECIPES[kind])
    if kind in classic.BUILDERS:
        return classic.BUILDERS[kind](keys)
    for builders in (hybrid.BUILDERS, second_attention.BUILDERS):
        if kind in builders:
            return builders[kind](keys)
    if kind == "deepseek_v4":
        return latent.deepseek_v4(keys)
    if kind in latent.ROUTING:
        return latent.build(keys, kind)
    return unknown.build(keys, kind)


def _assemble(draft: Draft, keys: Keys, name: str, kind: str, where: str) -> ModelSpec:
    """Return the specification of a draft; what its fields refuse is said in the words of the file."""
    layers = list(draft.layers) + ([draft.mtp] if draft.mtp else [])
    kinds, names = named(layers)
    fields: dict[str, Any] = dict(draft.fields)
    if draft.mtp:
        fields.update(mtp_layers=draft.mtp_layers, mtp_kind=names.pop())
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80].strip("-") or "model"
    try:
        return ModelSpec(
            id=label.lower(),
            name=label,
            family=re.sub(r"[^A-Za-z0-9._-]+", "-", kind[:80]),
            hidden=draft.hidden,
            vocab=draft.vocab,
            kinds=kinds,
            layers=runs(names),
            norm=draft.norm,
            tied_embeddings=draft.tied,
            source=where[-400:].encode("utf-8", "replace").decode("utf-8"),
            **fields,
        )
    except ValidationError as error:
        raise as_usage_error(error, ModelSpec, where) from None


def _numbers(top: Keys, text: Keys) -> tuple[str, str]:
    """Return the data type of the weights (dtype before torch_dtype, top before text) and the quantization method."""
    words = [keys.data.get(name) for keys in (top, text) for name in ("dtype", "torch_dtype")]
    found = next((word for word in words if isinstance(word, str) and word), None)
    if found is None:
        top.log.assume("dtype = bfloat16 (not in the file)")
    tables = [keys.data.get("quantization_config") for keys in (top, text)]
    table = next((item for item in tables if isinstance(item, dict)), None)
    if table is None:
        return printable((found or "bfloat16").removeprefix("torch.")), ""
    method = table.get("quant_method")
    method = printable(method) if isinstance(method, str) else "unnamed"
    top.log.assume(
        f"quantization_config ({method}) changes the stored bytes, not the parameters: these count the unquantized model"
    )
    return printable((found or "bfloat16").removeprefix("torch.")), method


def _unread(top: Keys, text: Keys) -> Sequence[str]:
    """Return the keys that nothing used and that may matter, dotted, the first forty of them."""
    tables = [(top, top.path)] if top.data is text.data else [(top, top.path), (text, text.path)]
    names = []
    for keys, path in tables:
        for key in keys.unread():
            if keys.data[key] in (None, False, 0, "", [], {}):
                continue  # says that something is absent, as it is in what was read
            if any(key.endswith(part) for part in OTHER_PARTS):
                names.append(f"{path}{printable(key, 60)}: its parameters are not counted")
            elif not HARMLESS.match(key[:MOST_KEY]) and f"{path}{key}" not in ("vision_config", "text_config", "block_configs"):
                names.append(f"{path}{printable(key, 60)}")
    return names[:40]
