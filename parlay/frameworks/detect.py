"""Which framework a configuration file belongs to, by its form and its keys; and the one way in: read_framework."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from parlay.errors import UsageError
from parlay.frameworks.deepspeed import KEYS as DEEPSPEED_KEYS
from parlay.frameworks.deepspeed import read_deepspeed
from parlay.frameworks.given import Imported
from parlay.frameworks.megatron import read_script, read_yaml
from parlay.frameworks.torchtitan import SECTIONS, read_torchtitan
from parlay.specfile import read_standard_input, read_text

MOST_BYTES = 1 << 18  # a launch script or a configuration is a few pages
KNOWN = "a Megatron-LM launch script, argument list or YAML; a torchtitan TOML; a DeepSpeed JSON"
MEGATRON_NAMES = ("num-layers", "hidden-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size")


def read_framework(name: str, gpus: int | None = None, layers: int | None = None) -> Imported:
    """Return what a framework's configuration file says about model, layout and training.

    Parameters
    ----------
    name : str
        The file, or "-" for standard input. [-]
    gpus : int, optional
        GPUs of the job, where the file does not tell or another number is meant. [-]
    layers : int, optional
        Layers of the model, where it is named beside the file. [-]

    Returns
    -------
    Imported
        The run in the form of a run file, with what was understood and what was not. [-]

    Raises
    ------
    UsageError
        The file cannot be read, belongs to no known framework, or a setting in it makes no sense.

    Notes
    -----
    Files are parsed, never run or executed.
    """
    path = Path(name)
    if name == "-":
        text, where = _from_stdin(), "standard input"
    else:
        text, where = read_text(path, most_bytes=MOST_BYTES), name
    if not text.strip():
        raise UsageError("is empty", where=where, hint=f"--from takes {KNOWN}")
    kind = _kind(path.suffix.lower() if name != "-" else "", text)
    if kind == "json":
        return _of_json(_parsed_json(text, where), where, gpus)
    if kind == "toml":
        return _of_toml(text, where, gpus, layers)
    title = path.stem if name != "-" else "megatron"
    title = path.resolve().parent.name or title if title == "model_config" else title
    if kind == "yaml":
        return _of_yaml(text, where, title, gpus, layers)
    return read_script(text, where, title, gpus, layers)


def _from_stdin() -> str:
    data = read_standard_input(MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise UsageError(f"is larger than {MOST_BYTES:,} bytes", where="standard input")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", where="standard input") from None


def _kind(suffix: str, text: str) -> str:
    """Return the form of a text: by the file's ending where it has a telling one, else by what the text looks like."""
    named = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "script", ".slurm": "script"}.get(suffix)
    if named:
        return named
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    if first.startswith("{"):
        return "json"
    if first.startswith("[") and first.endswith("]"):
        return "toml"
    return "yaml" if any(line.startswith("MODEL_ARGS:") for line in lines) else "script"


def _parsed_json(text: str, where: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        place = (
            f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "nested too deeply, or too long"
        )
        raise UsageError(
            f"not valid JSON: {place}", where=where, hint="correct that line; DeepSpeed reads no comments either"
        ) from None
    if not isinstance(table, dict):
        raise UsageError(f"expected an object, got {type(table).__name__}", where=where, hint=f"--from takes {KNOWN}")
    return table


def _of_json(table: dict[str, Any], where: str, gpus: int | None) -> Imported:
    if "model_type" in table or "architectures" in table or "hidden_size" in table:
        raise UsageError(
            "is a model, not a framework's configuration", where=where, hint=f"name it as the model: parlay estimate {where} ..."
        )
    if not any(key in table for key in DEEPSPEED_KEYS):
        raise UsageError("has none of DeepSpeed's keys", where=where, hint=f"--from takes {KNOWN}")
    return read_deepspeed(table, where, gpus)


def _of_toml(text: str, where: str, gpus: int | None, layers: int | None) -> Imported:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        message = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "nested too deeply"
        raise UsageError(f"not valid TOML: {message}", where=where) from None
    if "cluster" in table or isinstance(table.get("model"), str) or "layout" in table:
        raise UsageError("is a run file of Parlay", where=where, hint=f"give it as the model: parlay estimate {where}")
    if not any(isinstance(table.get(section), dict) for section in SECTIONS):
        raise UsageError("has none of torchtitan's sections", where=where, hint=f"--from takes {KNOWN}")
    return read_torchtitan(table, where, gpus, layers)


def _of_yaml(text: str, where: str, title: str, gpus: int | None, layers: int | None) -> Imported:
    import yaml  # type: ignore[import-untyped]

    try:
        if any(isinstance(event, yaml.events.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise UsageError("uses YAML aliases (*name), which are not read", where=where, hint="write the values out")
        table = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UsageError(f"not valid YAML: {line}{error.problem or error.context}", where=where) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise UsageError(
            f"not valid YAML: {str(error).splitlines()[0][:100] if str(error) else 'nested too deeply'}", where=where
        ) from None
    if not isinstance(table, dict):
        raise UsageError(f"expected a table, got {type(table).__name__}", where=where, hint=f"--from takes {KNOWN}")
    if any(key in table for key in DEEPSPEED_KEYS[:3]):
        return read_deepspeed(table, where, gpus)
    if "MODEL_ARGS" not in table and not any(n in text.replace("_", "-") for n in MEGATRON_NAMES):
        raise UsageError("has none of Megatron-LM's arguments", where=where, hint=f"--from takes {KNOWN}")
    return read_yaml(table, where, title, gpus, layers)
