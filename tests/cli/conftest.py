"""Running the program in this process: exit code, stdout and stderr."""

import json
from typing import NamedTuple

import pytest

from parlay.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self):
        def never(constant):
            raise AssertionError(f"{constant} in JSON")

        return json.loads(self.out, parse_constant=never)


@pytest.fixture
def parlay(capsys):
    def run(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
