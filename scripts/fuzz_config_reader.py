"""Fuzz the reader of config.json: every input must give a specification or one UsageError, soon and in little memory.

python scripts/fuzz_config_reader.py 10000            mutations of real files, seeded, with time and memory measured
python scripts/fuzz_config_reader.py atheris -max_total_time=300 -artifact_prefix=/tmp/   coverage-guided bytes (needs atheris)

Run on 2026-11-29: 10,000 mutations in 5 s gave 2,142 specifications and 7,858 messages, the slowest in 0.14 s, 41 MiB for the
whole process. atheris 3.0 found one input in its first minute (a width of 0 without experts, now a message and a test), then
none in 1,363,338 and 1,631,136 further runs of 4 and 5 minutes.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parent.parent / "tests" / "models" / "hf"
MOST_SECONDS = 2.0  # for one file; a real one takes milliseconds
MOST_BYTES = 500 << 20  # of the whole process

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 1 << 31, 1 << 62, 10**30, 10**400, -(10**20), 0.5, 1.0, 4096.0, 1e308, -0.0,
    float("nan"), float("inf"), float("-inf"), "", "4096", "auto", "llama", "gelu", "M", "MEM*-E", "\ud800", "\x00", "x" * 10_000,
    [], [1], [0] * 7, [None], ["full_attention"], ["sliding_attention"] * 3, [[["global"], 2]], [1 << 70], {}, {"a": 1},
    {"model_type": "llama"}, [{}], [{"attention": {}, "ffn": {}}],
)  # fmt: skip


def configs() -> list[dict[str, Any]]:
    """Return the configurations that are mutated: the files, and the small ones of every architecture."""
    files = [
        json.loads(path.read_text())
        for path in sorted(FILES.glob("*.json"))
        if path.stem not in ("known", "random", "beside-weights")
    ]
    rows = json.loads((FILES / "random.json").read_text())["rows"]
    return files + [config for config, _ in rows]


def tables(value: Any) -> list[Any]:
    """Return every table and list inside a value, itself included."""
    found = [value]
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            found += tables(item)
    return found


def mutate(r: random.Random, config: dict[str, Any], names: list[str]) -> str:
    """Return a config.json's text with a few things wrong."""
    data = json.loads(json.dumps(config))
    for _ in range(r.randint(1, 5)):
        table = r.choice(tables(data))
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        kind = r.randrange(6)
        if kind == 0 and keys and isinstance(table, dict):
            del table[r.choice(keys)]
        elif kind == 1 and isinstance(table, dict):
            table[r.choice(names)] = copy.deepcopy(r.choice(VALUES))
        elif kind == 2 and keys:
            table[r.choice(keys)] = nested(r.choice((3, 50, 2000, 100_000)), r.random() < 0.5)
        elif keys:
            table[r.choice(keys)] = copy.deepcopy(r.choice(VALUES))
    text = dumps(data)
    if r.random() < 0.1:
        text = text[:-1] + ',"hidden_size":64,"hidden_size":128}'  # a key given twice
    if r.random() < 0.05:
        place = r.randrange(len(text) + 1)
        text = text[:place] + r.choice(("{", "}", "[", "]", '"', ",", "\x00", "é", "1e999", "nul")) + text[place:]
    return text


class Nested(str):
    """A piece of JSON that no value can hold, because building it would nest too deeply."""


def nested(depth: int, table: bool) -> Any:
    """Return lists or tables nested `depth` times, as text if that is too deep to build."""
    return Nested('{"a":' * depth + "1" + "}" * depth if table else "[" * depth + "]" * depth)


def dumps(data: Any) -> str:
    """Return JSON, with the pieces of Nested as they are."""
    pieces: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Nested):
            pieces.append(str(value))
            return f"@@{len(pieces) - 1}@@"
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    text = json.dumps(marked(data))
    sys.set_int_max_str_digits(limit)
    for index, piece in enumerate(pieces):
        text = text.replace(f'"@@{index}@@"', piece)
    return text


def outcome(text: str) -> str:
    """Return what the reader makes of a text: 'specification', or the kind of message; anything else escapes."""
    from parlay.errors import UsageError
    from parlay.models.huggingface import read_config
    from parlay.models.write import to_toml

    try:
        spec = read_config(text, "fuzz").spec
    except UsageError as error:
        message = str(error)
        if not message.isprintable() or len(message) > 600:
            raise AssertionError(f"message of {len(message)} characters: {message[:700]!r}") from None
        return "message"
    to_toml(spec)
    return "specification"


def mutations(number: int, seed: int = 1) -> Counter[str]:
    """Run `number` mutations and return the outcomes; raises on the first that is neither."""
    r = random.Random(seed)
    base = configs()
    names = sorted({key for config in base for table in tables(config) if isinstance(table, dict) for key in table})
    seen: Counter[str] = Counter()
    slowest, text = 0.0, ""
    for _ in range(number):
        text = mutate(r, r.choice(base), names)
        start = time.perf_counter()
        try:
            seen[outcome(text)] += 1
        except BaseException:
            print(f"failed on: {text[:2000]}", file=sys.stderr)
            raise
        slowest = max(slowest, time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{number} inputs: {dict(seen)}; slowest {slowest:.3f} s; peak memory of the process {peak / 2**20:.0f} MiB")
    if slowest > MOST_SECONDS or peak > MOST_BYTES:
        raise SystemExit("too slow or too large")
    return seen


def coverage_guided(arguments: list[str]) -> None:
    """Run atheris on bytes, starting from the files."""
    import tempfile

    import atheris

    with atheris.instrument_imports(include=["parlay.models"]):
        import parlay.models.huggingface
        import parlay.models.write  # noqa: F401

    def one(data: bytes) -> None:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return
        outcome(text)

    with tempfile.TemporaryDirectory() as corpus:
        for index, config in enumerate(configs()):
            Path(corpus, str(index)).write_text(json.dumps(config))
        run: Callable[[], None] = atheris.Fuzz
        atheris.Setup([sys.argv[0], corpus, *arguments], one)
        run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["atheris"]:
        coverage_guided(sys.argv[2:])
    else:
        mutations(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
