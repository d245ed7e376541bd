"""`parlay models`: list, show and import models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlay.cli import flags, output

if TYPE_CHECKING:
    from parlay.models.huggingface import Imported

Name = Annotated[str, typer.Argument(metavar="MODEL", help="A catalog name, a model TOML, or a Hugging Face config.json.")]


def list_(json: flags.Json = False) -> None:
    """List the models of the catalog with their parameters.

    Example: parlay models list
    """
    from parlay.models.load import list_models, load_model

    specs = [load_model(entry.id) for entry in list_models()]
    from parlay.report.models import model_list_document, model_list_lines

    if json:
        output.say_json(model_list_document(specs))
    else:
        output.say(model_list_lines(specs, output.page()))


def show(
    model: Name,
    seq_len: Annotated[str, typer.Option("--seq-len", metavar="TOKENS", help="Sequence length for FLOPs and cache.")] = "8192",
    json: flags.Json = False,
) -> None:
    """Show shapes, parameters by part, FLOPs and K/V cache of a model.

    Example: parlay models show llama-3.1-70b
    """
    from parlay.models.load import is_config, load_model
    from parlay.report.models import model_document, model_lines

    tokens = flags.token_count(seq_len)
    spec = _imported(model).spec if is_config(model) else load_model(model)
    if json:
        output.say_json(model_document(spec, tokens))
    else:
        output.say(model_lines(spec, tokens, output.page()))


def import_(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config.json, a directory that holds one, or - for stdin.")],
    to: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the model here instead of stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: flags.Json = False,
) -> None:
    """Read a Hugging Face config.json and write it as a model TOML.

    What was assumed and ignored is noted on stderr; with --json it is in the document, which then stands on stdout.

    Example: parlay models import config.json -o my-model.toml
    """
    import sys

    from parlay.errors import UsageError
    from parlay.models.write import to_toml

    read = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
    if to is not None and to.exists() and read.exists() and to.samefile(read):
        raise UsageError("is the file that was read", where=str(to), hint="choose another name, such as my-model.toml")
    found = _imported(config)
    if json:
        from parlay.report.models import import_document

        output.say_json(import_document(found))
        if to is None:
            return
    text = to_toml(found.spec)
    if to is None:
        output.say(text.rstrip("\n").split("\n"))
        return
    output.write_file(to, text, replace=force)
    sys.stderr.write(f"wrote {to}\n")


def _imported(config: str) -> Imported:
    """Return the model of a config.json; what was assumed and ignored to read it is noted on stderr."""
    from parlay.models.huggingface import import_config

    found = import_config(config)
    output.note(*found.assumed, *(f"ignored: {x}" for x in found.ignored))
    return found


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(help="List, show and import models.", rich_markup_mode=None, no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("import")(import_)
    app.add_typer(group, name="models")
