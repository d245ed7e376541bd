"""Change one operator, constant or branch of a formula at a time, and see whether a test notices.

    python scripts/mutate_formulas.py routing topology      # or none for every file; writes build/mutants.jsonl

Each mutant runs in a forked process, so that NumPy, pytest and hypothesis load once, and nothing on disk changes. The examples
in the docstrings run first, then tests/formulas/test_<file>.py, then what holds for every formula (test_units.py), until one
fails; the comparisons with the simulated ranks are slower and do not count here. What survives is compared with the original on
drawn arguments: a survivor that gives another number somewhere is a hole in the tests, one that never does is probably the same
function written otherwise.

Not mutated: the ranges in calls of `_check`, which decide what is refused and not what is computed, annotations, and `registry.py`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import doctest
import importlib
import importlib.util
import inspect
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
FORMULAS = ROOT / "parlay" / "formulas"
LEFT_OUT = ("__init__", "_check", "registry")
SECONDS = 60  # of one stage of tests; a mutant that takes longer hangs
DRAWS = 4000  # argument sets on which a survivor is compared with the original
SAME = 1e-12  # relative; only the rounding of floating-point arithmetic

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Div,), ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
PAIRS = {"minimum": "maximum", "min": "max", "floor": "ceil", "argmin": "argmax", "any": "all", "sum": "prod"}
SWAPS = PAIRS | {b: a for a, b in PAIRS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One possible change: the place of the node in `ast.walk` order, which of its changes, where, and what it says."""

    node: int
    variant: int
    line: int
    function: str
    text: str


ORIGINAL = Site(-1, 0, 0, "", "nothing")


def changes(node: ast.AST) -> list[tuple[str, Any]]:
    """Return what may be done to one node: a description, and a function that makes the new node from it."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return [(f"{_sign(node.op)} -> {_sign(new)}", _replaced(node, op=new())) for new in OPERATORS.get(type(node.op), ())]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        found = OPERATORS.get(type(node.ops[0]), ())
        return [(f"{_sign(node.ops[0])} -> {_sign(new)}", _replaced(node, ops=[new()])) for new in found]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        others = [node.value + 1, *([node.value - 1] if node.value else [])]
        return [(f"{node.value!r} -> {new!r}", _replaced(node, value=new)) for new in others]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [(f"{node.value} -> {not node.value}", _replaced(node, value=not node.value))]
    if isinstance(node, ast.Attribute) and node.attr in SWAPS:
        return [(f"{node.attr} -> {SWAPS[node.attr]}", _replaced(node, attr=SWAPS[node.attr]))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert | ast.Not):
        return [(f"without {_sign(node.op)}", node.operand)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where":
        a, b, c = node.args
        return [("where: branches swapped", _replaced(node, args=[a, c, b]))]
    if isinstance(node, ast.IfExp):
        return [("if-else: branches swapped", _replaced(node, body=node.orelse, orelse=node.body))]
    return []


def _sign(op: ast.AST | type[ast.AST]) -> str:
    return (op if isinstance(op, type) else type(op)).__name__


def _replaced(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def sites(tree: ast.Module) -> Iterator[Site]:
    """Return every change that may be made to a file of formulas."""
    skipped, function_of = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            function_of |= dict.fromkeys(map(id, ast.walk(node)), node.name)
            annotations = [node.returns, *(a.annotation for a in [*node.args.args, *node.args.kwonlyargs])]
            skipped |= {id(x) for a in annotations if a is not None for x in ast.walk(a)}
        if isinstance(node, ast.AnnAssign):
            skipped |= {id(x) for x in ast.walk(node.annotation)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "_check":
            skipped |= {id(x) for k in node.keywords for x in ast.walk(k)}
    for i, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped:
            for k, (text, _) in enumerate(changes(node)):
                yield Site(i, k, node.lineno, function_of.get(id(node), ""), text)  # type: ignore[attr-defined]


def mutated(source: str, site: Site) -> ast.Module:
    """Return the file with one change, or as it is for ORIGINAL."""
    tree = ast.parse(source)
    if site is ORIGINAL:
        return tree
    target = list(ast.walk(tree))[site.node]
    new = changes(target)[site.variant][1]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Put().visit(tree))


def loaded(name: str, tree: ast.Module) -> ModuleType:
    """Put a file of formulas with this text where everybody imports it from."""
    full = f"parlay.formulas.{name}"
    package = importlib.import_module("parlay.formulas")
    spec = importlib.util.find_spec(full)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    exec(compile(tree, str(FORMULAS / f"{name}.py"), "exec"), module.__dict__)
    setattr(package, name, module)
    return module


def stages(name: str) -> Iterator[tuple[str, list[str]]]:
    """Return the stages of tests for a file, the likeliest to fail first: a name and what pytest is given."""
    folder = ROOT / "tests" / "formulas"
    own = [folder / f"test_{name}.py"]
    if not own[0].is_file():  # a file whose tests stand beside those of another one
        own = [p for p in sorted(folder.glob("test_*.py")) if re.search(rf"import {name}\b", p.read_text(encoding="utf-8"))]
    if own:
        yield "own tests", [str(p) for p in own]
    yield "units", [str(ROOT / "tests" / "formulas" / "test_units.py"), "-k", f"{name}."]


OPTIONS = [
    "-x", "-q", "--no-header", "--tb=no", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-o", "addopts=--import-mode=importlib",
    "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist", "--hypothesis-seed=0", "--assert=plain",
]  # fmt: skip


def tried(name: str, source: str, site: Site, examples: bool) -> dict[str, Any]:
    """Return, in this process, what becomes of one mutant; without the examples of the docstrings where `examples` is false."""
    signal.alarm(SECONDS)
    try:
        module = loaded(name, mutated(source, site))
        failed = examples and doctest.testmod(module, verbose=False).failed
    except Exception as error:
        return {"killed_by": "import", "note": type(error).__name__}
    if failed:
        return {"killed_by": "examples"}
    for stage, given in stages(name):
        signal.alarm(SECONDS)
        code = pytest.main([*given, *OPTIONS])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return {"killed_by": stage}
    signal.alarm(2 * SECONDS)
    return {"killed_by": None, **compared_with_original(name, source, module, site.function)}


VECTORS = ("busiest_over_mean", "load_balancing_loss")  # these take lists, here two of three entries
POOL = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 16.0, 33.0, 128.0, 4097.0, 1e6)


def compared_with_original(name: str, source: str, module: ModuleType, function: str) -> dict[str, Any]:
    """Return arguments for which the mutant gives another number than the original, if drawing finds some.

    A private function or a constant is compared through all public functions of the file.
    """
    mutant = dict(vars(module))
    original = vars(loaded(name, ast.parse(source)))
    public = [f for f, v in original.items() if inspect.isfunction(v) and v.__module__ == module.__name__ and f[0] != "_"]
    rng, used = np.random.default_rng(0), 0
    for target in [function] if function in public else public:
        arguments = inspect.signature(original[target]).parameters
        needed = [n for n, a in arguments.items() if a.default is inspect.Parameter.empty]
        shape = (2, 3) if target in VECTORS else None
        for draw in range(DRAWS):  # every other time the defaults are left to themselves
            given = {n: rng.choice(POOL, shape).tolist() for n in (arguments if draw % 2 else needed)}
            before = _result(original[target], given)
            if before is None:
                continue
            used += 1
            after = _result(mutant[target], given)
            if after is None or not np.allclose(after, before, rtol=SAME, atol=0, equal_nan=True):
                return {"changes": True, "function": target, "given": given, "before": str(before), "after": str(after)}
    return {"changes": False, "draws": used}


def _result(function: Any, given: dict[str, Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(**given), dtype=np.float64)
    except Exception:
        return None


def forked(name: str, source: str, site: Site, examples: bool) -> dict[str, Any]:
    """Return what becomes of one mutant, tried in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = tried(name, source, site, examples)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        return dict(json.loads(said))
    return {"killed_by": "time"} if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else {"killed_by": "crash"}


def main() -> int:
    """Try the mutants of the files named; return 1 if one that changes a number survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(p.stem for p in FORMULAS.glob("*.py") if p.stem not in LEFT_OUT)
    parser.add_argument("names", nargs="*", metavar="FILE", help="files of parlay/formulas without .py; all where none is given")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "mutants.jsonl", help="where each mutant becomes a line (appended)"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try every N-th mutant only")
    parser.add_argument("--lines", type=lambda t: {int(x) for x in t.split(",")}, help="only mutants of these lines")
    parser.add_argument("--no-examples", dest="examples", action="store_false", help="leave the examples of the docstrings out")
    given = parser.parse_args()
    hypothesis.settings.register_profile(
        "mutants", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    sys.dont_write_bytecode = True
    given.out.parent.mkdir(parents=True, exist_ok=True)
    holes = 0
    for name in given.names or known:
        source, start, results = (FORMULAS / f"{name}.py").read_text(encoding="utf-8"), time.monotonic(), []
        chosen = [s for s in list(sites(ast.parse(source)))[:: given.every] if not given.lines or s.line in given.lines]
        first = forked(name, source, ORIGINAL, given.examples)
        if first["killed_by"] is not None:
            sys.exit(f"the tests of {name} fail without a change: {first}")
        for site in chosen:
            found = {"file": name, **dataclasses.asdict(site), **forked(name, source, site, given.examples)}
            results.append(found)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            if found["killed_by"] is None:
                print(f"  survives {name}.py:{site.line} {site.text}: {_told(found)}", flush=True)
        lived = [r for r in results if r["killed_by"] is None]
        changing = sum(r["changes"] for r in lived)
        holes += changing
        print(f"{name}: {len(results)} mutants, {len(results) - len(lived)} killed, {changing} survivors change a number, "
              f"{len(lived) - changing} do not, {time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    return 1 if holes else 0


def _told(found: dict[str, Any]) -> str:
    if not found["changes"]:
        return f"the same on {found['draws']} argument sets"
    given = ", ".join(f"{k}={v}" for k, v in found["given"].items())
    return f"{found['function']}({given}) gives {found['after']} for {found['before']}"


if __name__ == "__main__":
    sys.exit(main())
