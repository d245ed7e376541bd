"""The pages on concepts: no number in them is written by hand, and what they name exists."""

import re
from pathlib import Path

import pytest

from parlay.report import concepts

TEMPLATES = sorted(concepts.FOLDER.glob("*.md"))
# Names that hold a digit, and the two numbers of a ring that is drawn.
NAMES = re.compile(r"1F1B|ZB-H[12]|NVLink \d|H100|bf16|fp32|1f1b zb-h1|top-(?=\{)")
SUBJECTS = ["data-parallelism", "tensor-parallelism", "sequence-parallelism", "context-parallelism", "pipeline-parallelism",
            "expert-parallelism", "rematerialisation", "zero", "serving-memory"]  # fmt: skip


def test_one_page_a_subject():
    assert {path.stem for path in TEMPLATES} == set(SUBJECTS)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_no_number_is_written_by_hand(path):
    text = path.read_text(encoding="utf-8").split("+++\n", 2)[2]
    prose = NAMES.sub("", concepts.HOLE.sub("", text))
    assert re.findall(r".*\d.*", prose) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_page(path):
    text = concepts.page(path.read_text(encoding="utf-8"))
    assert "{{" not in text
    assert "nan" not in text.split()
    assert "Formulas: " in text
    for target in re.findall(r"\]\(([\w.-]+\.md)\)", text):
        assert target in {*(f"{name}.md" for name in SUBJECTS), "errata.md"}


def test_numbers_of_the_sources():
    """Some that the sources print, read from the finished pages."""
    read = {name: " ".join(text.split()) for name, text in concepts.concept_pages().items()}
    for words in ("nothing | 1.14 GB", "tensor parallelism | 436 MB | 14.0 GB", "sequence parallelism | 143 MB"):
        assert words in read["sequence-parallelism.md"]
    for words in ("2,198 tokens over NVLink 4, and 19,780 over", "4,945 with 4 query heads", "sends 470 MB a layer", "1.88 GB"):
        assert words in read["context-parallelism.md"]
    assert "8 GPUs: 235 MB. The experts' products take 5.84 ms" in read["expert-parallelism.md"]
    assert "layers together: 5.37 GB" in read["rematerialisation.md"]
    assert "33 % more FLOP" in read["rematerialisation.md"]
    assert "8 K/V heads of 128 keeps 131 kB" in read["serving-memory.md"]


def test_errata_name_every_erratum_and_no_other():
    from parlay.validation.worked_examples import examples

    wrong, _, remarks = concepts.errata_page().partition("## Printed rightly")
    assert set(re.findall(r"^## (\S+)$", wrong, re.M)) == {e.id for e in examples() if e.status == "erratum"}
    assert set(re.findall(r"^### (\S+)$", remarks, re.M)) == {e.id for e in examples() if e.status == "agrees" and e.why}
    assert "- printed: L_short_GB = 0.104, L_long_GB = 41\n" in wrong
    assert "- computed: column = all-gather, row = all-reduce\n" in wrong


def test_a_hole_that_cannot_be_filled_is_named():
    with pytest.raises(ValueError, match=r"collectives\.no_such"):
        concepts.page("+++\n+++\n{{ collectives.no_such() }}")


def test_templates_are_part_of_the_package():
    assert Path(concepts.__file__).parent == concepts.FOLDER.parent
