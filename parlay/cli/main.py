"""The `parlay` program: finds the command, runs it, and turns every error into one message and an exit code.

Exit codes: 0 done; 1 done, and the answer is no; 2 asked wrongly; 101 a bug of ours; 130 interrupted.
A command is one file of this folder with `register(app)`, and one line in COMMANDS. Only the file of the command that
runs is imported, so that help and usage errors stay quick.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from itertools import pairwise
from typing import Any

import typer

from parlay import __version__
from parlay.cli.output import tell
from parlay.errors import ParlayError, UnknownNameError, UsageError, nearest

COMMANDS = {
    "plan": "Find the best parallel layouts for a model on a cluster.",
    "estimate": "Price one layout: memory by stage, time term by term.",
    "compare": "Show which terms differ between two layouts.",
    "check": "Hold the layout of a run file to its budget (a gate for CI).",
    "sweep": "Find the best layout for each of many combinations.",
    "ladder": "Show the largest model that GPUs can train or serve.",
    "calibrate": "Measure what this hardware really does.",
    "explain": "Explain a formula or a term of an estimate.",
    "validate": "Predict published runs and show the errors.",
    "verify": "Check the formulas against worked examples (a gate for CI).",
    "schedule": "Draw and time pipeline schedules.",
    "show": "Show a mechanism at work, in small numbers.",
    "models": "List, show and import models.",
    "hardware": "List and show devices, links and clusters.",
}

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

HELP = """Which parallel layout should this model run on this cluster, will it fit, how fast will it be, and why.

Start with: parlay plan llama-3.1-70b --on dgx-h100 --gpus 64 --seq-len 8192 --global-batch 512
"""


def main(arguments: list[str]) -> int:
    """Run the program with `arguments` and return its exit code."""
    if sys.stderr is None:  # closed by whoever started us: there is nobody to complain to
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        if sys.stdout is None:
            raise UsageError("is closed", where="standard output", hint="send it to a file, a pipe or /dev/null")
        return _run(arguments)
    except ParlayError as error:
        return _say(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except Exception as error:
        if _interrupted(error):
            sys.stderr.write("interrupted\n")
            return INTERRUPTED
        if hasattr(error, "format_message"):
            return _say_usage(error, arguments)
        return _say_bug(error)


def _interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C is behind an error: a library may raise its own in place of it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _run(arguments: list[str]) -> int:
    name = next((a for a in arguments if not a.startswith("-")), None)
    first_is_command = bool(arguments) and arguments[0] == name
    if name and first_is_command and name not in COMMANDS:
        raise UnknownNameError("command", name, COMMANDS, hint="`parlay --help` lists all")
    app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    for command, summary in COMMANDS.items():
        if command == name and first_is_command:
            import_module(f"parlay.cli.{command}").register(app)
        else:
            app.command(command, help=summary)(_stub)
    command_line = typer.main.get_command(app)
    for option, last in _repeated(command_line, arguments).items():
        tell(f"note: {option} is given more than once; the last one counts: {last}")
    result = command_line(arguments or ["--help"], prog_name="parlay", standalone_mode=False)
    if result == INTERRUPTED:  # the argument parser turns Ctrl-C into this code and says nothing
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _repeated(command: Any, arguments: list[str]) -> dict[str, str]:
    """Return the options of one value that `arguments` give more than once, each with its last value.

    `command` is the program as the argument parser has it: a group, whose commands may be groups.
    """
    words = iter(arguments)
    given: dict[str, list[str]] = {}
    valued = _valued(command)
    for word in words:
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if option in valued:
            name, several = valued[option]
            value = value if equals else next(words, "")
            if not several:
                given.setdefault(name, []).append(value)
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
            valued = _valued(command)
    return {name: values[-1] for name, values in given.items() if len(set(values)) > 1}


def _valued(command: Any) -> dict[str, tuple[str, bool]]:
    """Return the options of a command that take a value: the first name of each and whether it takes several."""
    options = [p for p in command.params if p.param_type_name == "option" and not p.is_flag and not p.count]
    return {name: (p.opts[0], p.multiple) for p in options for name in p.opts}


def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True)) -> None:
    if version:
        typer.echo(f"parlay {__version__}")
        raise typer.Exit


GROUPS = ("calibrate", "hardware", "models", "show")  # their subcommands have the options
# Options that other tools have, and what says the same here.
OTHER_WORDS = {
    "model": "the model comes first, without an option: parlay plan llama-3.1-70b --on dgx-h100",
    "cluster": "the cluster is --on dgx-h100",
    "hardware": "the cluster is --on dgx-h100",
    "batch": "the batch of a step is --global-batch N, in sequences",
    "batch-size": "the batch of a step is --global-batch N, in sequences",
    "gbs": "the batch of a step is --global-batch N, in sequences",
    "seq": "the sequence length is --seq-len N, in tokens",
    "seq-length": "the sequence length is --seq-len N, in tokens",
    "sequence-length": "the sequence length is --seq-len N, in tokens",
    **dict.fromkeys(
        ("tp", "pp", "cp", "dp", "ep", "vpp", "micro-batch", "micro-batch-size", "mbs"),
        "degrees are part of a layout: plan takes --fix tp=8, estimate takes --layout tp8.pp4.dp2.mb1",
    ),
    "zero": "plan takes --fix zero=3; estimate, compare and explain take --zero 3",
    "recompute": "plan takes --fix recompute=full; estimate, compare and explain take --recompute full",
}
# What the argument parser says of a value, and how we say it.
OUR_WORDS = (
    (r"Input should be a valid integer.*|'.*' is not a valid int.*", "must be a whole number"),
    (r"Input should be a valid number.*|'.*' is not a valid float.*", "must be a number"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
)


def _stub() -> None:
    raise AssertionError("only the command that runs is imported")


def _say(error: ParlayError) -> int:
    tell(f"error: {error}", f"hint: {error.hint}" if error.hint else "")
    return error.code


def _say_usage(error: Exception, arguments: list[str]) -> int:
    """Say what the argument parser complains about in the form of our own errors."""
    message = str(getattr(error, "message", "") or error).rstrip(".")
    shown = getattr(error, "format_message", lambda: message)()
    shown = shown.strip().split("\n")[0].rstrip(".")
    if shown.startswith("Usage:"):  # a group without a subcommand: its help is the message
        group = next((a for a in arguments if a in COMMANDS), "")
        shown = f"'{group}' needs a subcommand"
    named = [a for a in arguments if a in COMMANDS][:1]
    if named and named[0] in GROUPS and arguments[1:2] and "command" not in shown and not arguments[1].startswith("-"):
        named[0] += f" {arguments[1]}"
    asked = str(getattr(error, "option_name", "")).lstrip("-")
    near = sorted(getattr(error, "possibilities", None) or ())[:3]
    if asked:  # the parser suggests whatever shares some letters
        alike = nearest(asked, [name.lstrip("-") for name in near])
        near = [name for name in near if name.lstrip("-") in alike]
    shown = shown.partition(" (Possible options:")[0]
    shown = _in_our_words(shown, arguments)
    elsewhere = OTHER_WORDS.get(asked)
    advice = f"did you mean {' or '.join(near)}? " if near and "did you mean" not in shown.lower() else ""
    advice = f"{elsewhere}; " if elsewhere else advice
    hint = f"hint: {advice}`parlay {named[0] + ' ' if named else ''}--help` shows what is allowed"
    tell(f"error: {shown[:1].lower()}{shown[1:]}", hint)
    return 2


def _in_our_words(shown: str, arguments: list[str]) -> str:
    """Return a complaint about the value of an option with what is allowed, and what was given, in our words."""
    match = re.fullmatch(r"Invalid value for '(--[\w-]+)[^']*': (.*)", shown)
    words = next((re.sub(raw, ours, match[2]) for raw, ours in OUR_WORDS if re.fullmatch(raw, match[2])), None) if match else None
    if match is None or words is None:
        return shown
    given = [a.partition("=")[2] for a in arguments if a.startswith(f"{match[1]}=")]
    given += [value for option, value in pairwise(arguments) if option == match[1]]
    return f"{match[1]}: {words}{f', got {given[-1][:40]}' if given else ''}"


def _say_bug(error: Exception) -> int:
    if os.environ.get("PARLAY_DEBUG"):
        raise error
    kind = type(error).__name__
    tell(
        f"error: a bug in Parlay {__version__}: {kind}: {str(error)[:300]}",
        "hint: please report the command and this line; PARLAY_DEBUG=1 shows where it happened",
    )
    return 101
