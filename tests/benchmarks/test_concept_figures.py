"""The figures of the concept pages are those that their script draws, and the pages quote what it computes."""

import re
from pathlib import Path
from xml.etree import ElementTree

import concept_figures
import pytest
from concept_figures import DRAWINGS, PICTURES, Axis, answers, errors

ROOT = Path(__file__).resolve().parent.parent.parent
CONCEPTS = ROOT / "docs" / "concepts"
# Their last digits depend on how a processor adds up.
FITTED = ("codebooks", "gptq_gain")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def page(name: str) -> str:
    return (CONCEPTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    stored, drawn = (PICTURES / f"{name}.svg").read_text(encoding="utf-8"), DRAWINGS[name]()
    ElementTree.fromstring(stored)
    if name in FITTED:
        assert abs(len(stored) - len(drawn)) < 0.02 * len(stored)
    else:
        assert stored == drawn


def test_every_picture_has_its_place() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in CONCEPTS.glob("*.md"))
    assert [name for name in DRAWINGS if f"../pictures/{name}.svg" not in pages] == []


def test_pages_quote_what_was_computed() -> None:
    assert answers() in page("reading-results")
    plain, gptq = (concept_figures.decibels(values[2]) for values in errors().values())
    assert f"the output has {plain:.1f} dB with nearest rounding and {gptq:.1f} dB with GPTQ" in page("reconstruction")
    drawn = (PICTURES / "codebooks.svg").read_text(encoding="utf-8")
    even, free, pairs = re.findall(r"SQNR ([\d.]+) dB", drawn)
    assert f"({free} against {even})" in page("codebooks")
    assert f"{pairs} dB at the same bits" in page("codebooks")


def test_ticks_have_names() -> None:
    assert [Axis(1e-5, 1, "loss", (), log=True).name(value) for value in (1e-5, 0.01, 1)] == ["10⁻⁵", "0.01", "1"]
    assert Axis(0, 1, "share", (), percent=True).name(0.001) == "0.1 %"
