"""The pages docs/concepts/*.md: prose from concept_pages/*.md, every number in it computed when the pages are written.

A page starts with its inputs in TOML between two lines of `+++`. In the text, `{{ expression }}` becomes its value: the inputs and
all files of formulas are at hand by name, and the functions of `_words`. A test refuses digits that stand outside of braces.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from parlay.formulas.registry import find_formula, formulas
from parlay.hardware.load import load_device, load_link
from parlay.report.latex import plain
from parlay.report.show import block_size_lines, experts_lines, ring_lines, sequence_parallel_lines, size, ulysses_lines
from parlay.report.table import Page
from parlay.report.verify import values_text
from parlay.simulate.show import ring_rounds, sequence_parallel, ulysses_grids
from parlay.simulate.show_experts import expert_load
from parlay.simulate.show_rates import block_sizes, layer_traffic
from parlay.units import show_bytes, show_count, show_rate, show_seconds, significant
from parlay.validation.worked_examples import Outcome, verify

FOLDER = Path(__file__).parent / "concept_pages"
HOLE = re.compile(r"\{\{ (.+?) \}\}", re.S)
TERMINAL = Page(80)
DEVICE = "h100-sxm"


def concept_pages() -> dict[str, str]:
    """Return the pages on concepts by their file names, and the page of errata."""
    names = sorted(path.stem for path in FOLDER.glob("*.md"))
    return {f"{name}.md": page((FOLDER / f"{name}.md").read_text(encoding="utf-8")) for name in names} | {
        "errata.md": errata_page()
    }


def page(template: str) -> str:
    """Return a page with its numbers put in.

    >>> page("+++\\nranks = 4\\n+++\\nAn all-reduce sends {{ size(collectives.all_reduce_sent_bytes(ranks, 1e9)) }}.")
    'An all-reduce sends 1.50 GB.'
    """
    _, inputs, text = template.split("+++\n", 2)
    names = {**_modules(), **_words(), **tomllib.loads(inputs)}
    return HOLE.sub(lambda hole: str(_value(hole.group(1), names)), text)


def _value(expression: str, names: dict[str, Any]) -> Any:
    """Return the value of an expression of our own pages; they are part of the package, not input."""
    try:
        return eval(expression, {"__builtins__": {}}, names)
    except Exception as error:
        raise ValueError(f"{expression}: {error}") from error


def _modules() -> dict[str, Any]:
    return {f.module: import_module(f"parlay.formulas.{f.module}") for f in formulas().values()}


def _words() -> dict[str, Callable[..., Any]]:
    """Return what the pages may call besides formulas."""
    return {
        "size": lambda x: size(float(x)),
        "binary": lambda x: show_bytes(float(x)),
        "seconds": lambda x: show_seconds(float(x)),
        "rate": lambda x, unit="FLOP/s": show_rate(float(x), unit),
        "count": lambda x: show_count(float(x)),
        "number": number,
        "percent": lambda x: f"{100 * float(x):.0f} %",
        "formula": lambda name: f"[`{name}`](../reference/formulas/{name.partition('.')[0]}.md#{name.partition('.')[2].lower()})",
        "equation": equation,
        "peak": lambda dtype="bf16": load_device(DEVICE).flops_per_s[dtype].value,
        "hbm": lambda: load_device(DEVICE).hbm_bytes_per_s.value,
        "memory": lambda: load_device(DEVICE).memory.allocatable.value,
        "link": lambda name: load_link(name).bytes_per_s.value,
        "show_ring": lambda *a, **k: block(ring_lines(ring_rounds(*a, **k), TERMINAL)),
        "show_ulysses": lambda *a, **k: block(ulysses_lines(ulysses_grids(*a, **k), TERMINAL)),
        "show_sp": lambda *a: block(sequence_parallel_lines(sequence_parallel(*a), TERMINAL, 2)),
        "show_experts": _experts,
        "show_block_size": _block_size,
    }


def number(value: Any) -> str:
    """Return whole numbers and those from a thousand on without decimals, others with three digits."""
    x = float(value)
    return f"{x:,.0f}" if x == int(x) or abs(x) >= 1000 else significant(x, 3)


def equation(name: str) -> str:
    """Return a formula's equation as a block of text."""
    return block(plain(find_formula(name).equation))


def block(lines: list[str]) -> str:
    """Return lines as a fenced block."""
    return "\n".join(["```text", *lines, "```"])


def _experts(gpus: int, number_of: int, tokens: int, top_k: int, skew: float, capacity_factor: float) -> str:
    load = expert_load(number_of, gpus, tokens, top_k, skew=skew, capacity_factor=capacity_factor)
    return block(experts_lines(load, [], tokens, TERMINAL))


def _block_size(link: str, ranks: int, seq_len: int, width: int, blocks: list[int]) -> str:
    shown = block_sizes(
        blocks, flops_per_s=load_device(DEVICE).flops_per_s["bf16"].value, link_bytes_per_s=load_link(link).bytes_per_s.value,
        query_width=width,
    )  # fmt: skip
    traffic = layer_traffic(ranks, seq_len, query_width=width)
    return block(block_size_lines(shown, f"ring attention over {link}", traffic, seq_len // ranks, TERMINAL))


ERRATA = """# Errata

Parlay checks itself against the numbers that two teaching documents print: `parlay verify`. In these places the document is wrong,
or says something that does not hold as printed. The right value is what Parlay's formulas give.

"""


REMARKS = """## Printed rightly, with a remark

These numbers agree as far as they are rounded, but need a word.

"""


def errata_page() -> str:
    """Return the page of the places where the documents of the worked examples are wrong, and of those that need a remark."""
    outcomes = verify()
    wrong = [_erratum(o, "##") for o in outcomes if o.example.status == "erratum"]
    other = [_erratum(o, "###") for o in outcomes if o.example.status == "agrees" and o.example.why]
    return ERRATA + "\n".join(wrong) + "\n" + REMARKS + "\n".join(other)


def _erratum(o: Outcome, level: str) -> str:
    e = o.example
    rows = [f"- where: {e.document}; {e.section}", f"- what is computed: {e.computes}"]
    rows += [f"- with: {values_text(e.inputs)}"] if e.inputs else []
    rows += [f"- printed: {values_text(e.said)}", f"- computed: {values_text(o.computed)}", f"- why: {e.why}"]
    return "\n".join([f"{level} {e.id}", "", *rows]) + "\n"
