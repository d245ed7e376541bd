"""What a person sees: nothing is cut at 80 columns, colour only on a terminal, and help texts that do not drift."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from parlay.cli.main import COMMANDS

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HELP = Path(__file__).parent / "help"
QUESTION = ["llama-3.1-70b", "--on", "dgx-h100", "--seq-len", "8192", "--global-batch", "512"]
SHOWN = [
    ["plan", *QUESTION, "--gpus", "64", "--tokens", "15T", "--gpu-hour-usd", "2.5"],
    ["plan", "deepseek-v3", "--on", "hgx-h800", "--gpus", "256", "--global-batch", "1024", "--fix", "pp=8", "--fix", "tp=1"],
    ["plan", "llama-3.1-405b", "--on", "dgx-h100", "--gpus", "8"],
    ["estimate", *QUESTION, "--layout", "tp8.pp2.dp4"],
    ["estimate", "mixtral-8x7b", "--on", "dgx-h100", "--layout", "tp2.pp4.dp8.ep8"],
    ["compare", *QUESTION, "--layout", "tp8.pp2.dp4", "--layout", "tp4.pp4.dp4"],
    ["explain"],
    ["explain", "pipeline.one_f_one_b_bubble_s", "--set", "stages=8", "--set", "forward_s=2ms", "--set", "backward_s=4ms"],
    ["explain", "step.exposed.tp", *QUESTION, "--layout", "tp8.pp2.dp4"],
    ["verify"],
    ["models", "list"],
    ["models", "show", "deepseek-v3"],
    ["hardware", "list"],
    ["hardware", "show", "dgx-h100"],
    ["hardware", "show", "h100-sxm"],
]  # fmt: skip


def on_terminal(arguments, columns, **environment):
    """Return the exit code and what `parlay` shows on a terminal that is `columns` wide."""
    child, screen = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "PYTHONWARNINGS")}
        os.execve(sys.executable, [sys.executable, "-m", "parlay", *arguments], {**kept, "TERM": "xterm-256color", **environment})
    out = b""
    while True:
        try:
            data = os.read(screen, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        out += data
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out.decode().replace("\r\n", "\n")


def numbers(text):
    """Return the numbers of a text, but for the seconds that a search took and the list of columns left out."""
    text = re.sub(r" in \d+\.\d+ s,|\(left out for width:.*?\)", "", text, flags=re.S)
    return set(re.findall(r"(?<![\w.])\d[\d,]*\.?\d*(?![\w.])", text))


@pytest.mark.parametrize("arguments", SHOWN, ids=" ".join)
def test_eighty_columns_hold_every_line(arguments):
    _, shown = on_terminal(arguments, 80)
    lines = ESCAPE.sub("", shown).split("\n")
    too_long = [line for line in lines if len(line) > 80 and not re.search(r"https?://\S{40}|\S{78}", line)]
    assert too_long == []
    assert len(lines) > 3
    assert "…" not in shown


@pytest.mark.parametrize("arguments", [SHOWN[0], SHOWN[3], SHOWN[5]], ids=lambda a: a[0])
def test_a_terminal_shows_the_numbers_that_a_pipe_gets(arguments, parlay):
    code, wide = on_terminal(arguments, 200, NO_COLOR="1")
    piped = parlay(*arguments)
    assert (code, numbers(wide)) == (piped.code, numbers(piped.out))


@pytest.mark.parametrize(("environment", "styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_styles(environment, styled):
    _, shown = on_terminal(["models", "show", "llama-3.1-8b"], 100, **environment)
    assert bool(ESCAPE.search(shown)) is styled
    assert "8,030,261,248" in shown


@pytest.mark.parametrize("arguments", SHOWN, ids=" ".join)
def test_a_pipe_gets_plain_text_with_every_column(arguments, parlay):
    ran = parlay(*arguments)
    assert "\x1b" not in ran.out
    assert "left out for width" not in ran.out
    assert not re.search(r"[─-╿]", ran.out)  # boxes


def test_a_long_error_is_broken_at_spaces():
    code, shown = on_terminal(["estimate", "llama-3.1-70b", "--on", "dgx-h100", "--layout", "tp16.pp4"], 80)
    assert code == 2
    assert max(map(len, shown.split("\n"))) <= 80
    assert shown.startswith("error: layout tp16.pp4.dp1.mb1: tp=16 is wider than the 8 GPUs that share")
    assert "\nhint: tp may be up to 8" in shown


def test_head_ends_a_command_quietly():
    command = f"set -o pipefail; '{sys.executable}' -m parlay models list | head -n 1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout.startswith("model ")
    assert ran.stderr == ""


def test_control_c_is_one_line_and_130():
    """Send SIGINT while a question is read, before there is a best layout to show."""
    code = (
        "import signal, sys, time, parlay.hardware.load as load\n"
        "from parlay.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "load.load_cluster = lambda *_: (print('ready', flush=True), time.sleep(60))\n"
        "sys.exit(main(['plan', 'deepseek-v3', '--on', 'hgx-h800', '--gpus', '2048']))"
    )
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted\n")


NAMES = [
    "",
    *COMMANDS,
    "show ring",
    "show ulysses",
    "show sp",
    "show experts",
    "show block-size",
    "calibrate run",
    "calibrate show",
    "calibrate diff",
    "calibrate import",
    "calibrate fit",
    "models list",
    "models show",
    "models import",
    "hardware list",
    "hardware show",
]
TYPES = re.compile(r"[{}\[\]<>]|\b(INTEGER|FLOAT|TEXT|PATH|int|float|str|path|range|RANGE)\b")


@pytest.mark.parametrize("name", NAMES)
def test_help_texts_are_as_reviewed(name, parlay):
    """Compare a help text with the reviewed copy; PARLAY_WRITE_HELP=1 writes new copies, to be read before they are committed.

    Words are compared, since releases of the argument parser wrap lines and name types differently.
    """
    ran = parlay(*name.split(), "--help")
    file = HELP / f"{name.replace(' ', '-') or 'parlay'}.txt"
    if os.environ.get("PARLAY_WRITE_HELP"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(ran.out, encoding="utf-8")
    assert ran.code == 0
    assert file.is_file(), "a new command: PARLAY_WRITE_HELP=1 python -m pytest tests/cli/test_terminal.py"
    assert TYPES.sub(" ", ran.out).split() == TYPES.sub(" ", file.read_text(encoding="utf-8")).split()
    assert not re.search(r"\w(\.\.\.|…)$", ran.out.partition("Commands:")[2], re.M)  # no summary is cut


def test_no_help_text_is_left_over():
    assert {f.stem for f in HELP.glob("*.txt")} == {name.replace(" ", "-") or "parlay" for name in NAMES}


def test_notes_are_broken_at_the_width_of_a_terminal(parlay, monkeypatch):
    """Piped, a note is one line; on a terminal it is broken at spaces, and joined again it says the same."""
    asked = ["estimate", "llama-3.1-8b", "--on", "dgx-h100", "--layout", "tp2.dp4", "--seq-len", "256k", "--gpu-hour-usd", "2"]
    piped = parlay(*asked).err
    monkeypatch.setenv("COLUMNS", "60")
    assert parlay(*asked).err == piped
    assert max(map(len, piped.splitlines())) > 60
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    told = parlay(*asked).err
    assert max(map(len, told.splitlines())) <= 60
    assert re.sub(r"\n  ", " ", told) == piped
