"""The frame: finding commands, exit codes, errors without tracebacks, and starting quickly."""

import os
import resource
import signal
import subprocess
import sys

import pytest

from parlay import __version__
from parlay.cli import main as program
from parlay.cli.main import COMMANDS

HEAVY = {"numpy", "rich", "torch"}  # a command's options make Typer load pydantic, and that is quick enough
LIGHT = {"parlay", "parlay.cli", "parlay.errors"}


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=False
    )


def test_version(parlay):
    assert parlay("--version") == (0, f"parlay {__version__}\n", "")


def test_without_arguments_it_shows_what_it_can_do(parlay):
    ran = parlay()
    assert ran.code == 0
    assert all(f"\n  {name} " in ran.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_says_the_same_in_both_helps(parlay, name):
    ran = parlay(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: parlay")
    assert COMMANDS[name] in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["plann"], "unknown command 'plann'", "did you mean plan"),
        (["plan", "llama-3.1-8b", "--gpu", "8"], "no such option: --gpu", "--gpus"),
        (["plan"], "missing argument", "parlay plan --help"),
        (["models", "lst"], "no such command 'lst'", "parlay models --help"),
        (["models"], "'models' needs a subcommand", "parlay models --help"),
        (["plan", "llama-3.1-8b", "--top", "400"], "--top: must be at most 100, got 400", "parlay plan --help"),
        (["plan", "llama-3.1-8b", "--top=x"], "--top: must be a whole number, got x", "parlay plan --help"),
        (["plan", "llama-3.1-8b", "--on", "dgx-h100", "--gpus", "eight"], "--gpus: 'eight' is not a count", "write it like 512"),
    ],
)
def test_wrong_usage_is_one_message_with_a_hint(parlay, arguments, message, hint):
    ran = parlay(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    first, second = ran.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["plann"], ["plan", "x", "--gpu", "8"], ["models"]])
def test_help_and_usage_errors_load_nothing_heavy(arguments):
    code = f"import sys; from parlay.cli.main import main; main({arguments!r}); print('LOADED', *sorted(sys.modules))"
    ran = python(code)
    loaded = set(ran.stdout.rpartition("LOADED")[2].split())
    assert "parlay.cli.main" in loaded
    assert not loaded & HEAVY
    assert not {m for m in loaded if m.startswith("parlay.") and not m.startswith("parlay.cli.")} - LIGHT
    assert "pydantic" not in loaded or arguments[0] in COMMANDS


def test_importing_the_package_loads_nothing_heavy():
    loaded = set(python("import sys, parlay, parlay.cli; print(*sys.modules)").stdout.split())
    assert not loaded & (HEAVY | {"pydantic", "typer"})


@pytest.mark.parametrize("arguments", [["--help"], ["plann"]])
def test_answers_quickly(arguments):
    def once(*words):
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=False, timeout=60)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    # processor time, the best of five: other work is not measured. An answer costs what loading the argument parser does.
    bare = min(once("-c", "import typer") for _ in range(5))
    assert min(once("-m", "parlay", *arguments) for _ in range(5)) < 2 * bare  # measured: 1.1


def test_a_bug_is_one_message_without_traceback(parlay, monkeypatch):
    def breaks(arguments):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(program, "_run", breaks)
    ran = parlay("plan")
    assert ran.code == 101
    assert ran.err.startswith(f"error: a bug in Parlay {__version__}: ZeroDivisionError: division by zero\nhint: ")
    monkeypatch.setenv("PARLAY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        program.main(["plan"])


def test_interrupted(parlay, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_run", interrupted)
    assert parlay("plan") == (130, "", "interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "parlay", "models", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_unknown_option_before_the_command(parlay):
    ran = parlay("--verbose", "plan")
    assert ran.code == 2
    assert "no such option: --verbose" in ran.err


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (["plan", "--on", "dgx-h100", "--on", "dgx-a100"], "--on is given more than once; the last one counts: dgx-a100"),
        (["estimate", "--seq-len=4096", "--seq-len", "8192"], "--seq-len is given more than once; the last one counts: 8192"),
        (["plan", "--on", "dgx-h100", "--on=dgx-h100"], ""),  # nothing is lost
        (["plan", "--fix", "tp=1", "--fix", "tp=2"], ""),  # takes several
        (["sweep", "--on", "dgx-h100", "--on", "dgx-a100"], ""),
        (["schedule", "--json", "--json"], ""),
    ],
)
def test_an_option_that_is_given_twice_is_not_dropped_in_silence(parlay, given, note):
    err = parlay(*given, "--no-such-option").err
    assert f"note: {note}\n" in err if note else "note:" not in err
