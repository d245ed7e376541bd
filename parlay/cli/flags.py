"""Flags that several commands share, spelled once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from parlay.cli import output

MOST_TOKENS = 1 << 30  # of a sequence
MOST_GPUS = 1 << 24
MODEL_HELP = "A model of the catalog, a model TOML, a Hugging Face config.json, or a run file (run.toml)."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ModelOrNone = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
FROM_HELP = "A framework's configuration: Megatron-LM arguments (script, list, YAML), torchtitan TOML, DeepSpeed JSON; or -."
From = Annotated[str | None, typer.Option("--from", metavar="FILE", help=FROM_HELP)]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="A cluster of the catalog, or a cluster TOML.")]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="N", help="How many GPUs.")]
SeqLen = Annotated[str | None, typer.Option("--seq-len", metavar="TOKENS", help="Sequence length. [default: 4096]")]
GlobalBatch = Annotated[
    str | None, typer.Option("--global-batch", metavar="SEQUENCES", help="Sequences per step, all GPUs. [default: 512]")
]
GlobalTokens = Annotated[
    str | None, typer.Option("--global-tokens", metavar="TOKENS", help="The same in tokens: a multiple of --seq-len.")
]
Precision = Annotated[str | None, typer.Option("--precision", help="bf16, fp16, fp32, fp8, fp8-blockwise, mxfp8 or nvfp4.")]
Optimizer = Annotated[str | None, typer.Option("--optimizer", help="adamw, adamw-8bit, adafactor, muon or sgd.")]
Lora = Annotated[
    str | None,
    typer.Option("--lora", metavar="RANK", help="Train LoRA adapters of this rank; the model itself is frozen."),
]
Framework = Annotated[str | None, typer.Option("--framework", help="megatron-core, torchtitan, deepspeed, nanotron or hai-llm.")]
Zero = Annotated[
    str | None, typer.Option("--zero", metavar="STAGE", help="ZeRO stage, 0 to 3; 3 is FSDP. [default: 1; torchtitan: 3]")
]
Recompute = Annotated[
    str | None,
    typer.Option("--recompute", help="none, selective, full, or modules joined by commas (norm,mlp_activation,mla_up)."),
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="N", help="Tokens of the whole run, such as 15T: adds days and GPU-hours.")
]
Price = Annotated[str | None, typer.Option("--gpu-hour-usd", metavar="USD", help="Price of a GPU-hour: adds the cost.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any field, such as training.gradient_dtype='bf16'. May be repeated."),
]
Rates = Annotated[
    Path | None,
    typer.Option("--rates", metavar="FILE", help="Rates measured by `parlay calibrate run`, over those Parlay ships."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def gpu_count(text: str | None) -> int | None:
    """Return the number of --gpus, in digits or with K; whether it is one of GPUs is checked with the rest of the question."""
    if text is None or re.fullmatch(r"-?\d{1,19}", text.strip()):
        return text if text is None else int(text)
    from parlay.errors import UsageError
    from parlay.units import parse_count

    count = parse_count(text, where="--gpus")
    if count > MOST_GPUS:
        raise UsageError(f"must be a whole number from 1 to {MOST_GPUS:,}, got {text[:40]}", where="--gpus")
    return count


def layout_fields(zero: str | None, recompute: str | None) -> dict[str, Any]:
    """Return the fields of a layout beside its degrees that were given as flags."""
    from parlay.errors import UsageError

    if zero is not None and zero.strip() not in ("0", "1", "2", "3"):
        raise UsageError(f"'{zero[:40]}' is not a ZeRO stage", where="--zero", hint="stages are 0, 1, 2 and 3, which is FSDP")
    return {"zero": None if zero is None else int(zero), "recompute": recompute}


def price(text: str | None) -> float | None:
    """Return the USD of --gpu-hour-usd; whether they are a price is checked with the rest of the question."""
    from parlay.errors import UsageError

    try:
        return None if text is None else float(text)
    except ValueError:
        hint = "write USD as a number alone, such as 2.5"
        raise UsageError(f"'{text[:40]}' is not a price" if text else "is empty", where="--gpu-hour-usd", hint=hint) from None


def token_count(text: str) -> int:
    """Return the tokens of a --seq-len that stands alone, in digits or with K."""
    from parlay.errors import UsageError
    from parlay.units import parse_count

    note_thousands(text)
    count = parse_count(text, where="--seq-len")
    if count > MOST_TOKENS:
        raise UsageError(f"must be a whole number from 1 to {MOST_TOKENS:,}, got {text[:40]}", where="--seq-len")
    return count


def note_thousands(text: str | None) -> None:
    """Say how long a sequence is that was written with k, where it is hardly meant: a power of two of them, or no multiple of 128."""
    match = re.fullmatch(r"(\d{1,9})\s*[kK]", (text or "").strip())
    if match and ((thousands := int(match[1])).bit_count() == 1 or thousands * 1000 % 128):
        binary = 1024 * thousands
        output.note(f"a --seq-len of {match[0]} is {1000 * thousands:,} tokens; {binary:,} is {thousands}Ki or {binary}")


def note_price(gpu_hour_usd: float | None, total_tokens: int | None) -> None:
    """Say that a price alone gives no cost."""
    if gpu_hour_usd is not None and total_tokens is None:
        output.note("--gpu-hour-usd needs --tokens, the tokens of the whole run; no cost is shown")


def need_model(model: str | None, source: str | None, command: str) -> None:
    """Raise UsageError where neither a model nor a framework's file is given."""
    if model is None and source is None:
        from parlay.errors import UsageError

        hint = f"name one: parlay {command} llama-3.1-70b ...; `parlay {command} --help` shows what is allowed"
        raise UsageError("missing argument 'MODEL'", hint=hint)


def training(
    seq_len: str | None,
    global_batch: str | None,
    global_tokens: str | None,
    precision: str | None,
    optimizer: str | None,
    framework: str | None,
    tokens: str | None,
    lora: str | None = None,
) -> dict[str, Any]:
    """Return the workload's fields that were given as flags."""
    note_thousands(seq_len)
    return {
        "seq_len": _number(seq_len),
        "global_batch": _number(global_batch),
        "global_tokens": global_tokens,
        "precision": precision,
        "optimizer": optimizer,
        "framework": framework,
        "total_tokens": tokens,
        "lora_rank": _number(lora),
    }


def _number(text: str | None) -> int | str | None:
    """Return plain digits as a number; anything else stays text for the unit parser."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else text
