"""The figures of the concept pages are those that their script draws, and the pages quote what it computes."""

import re
from pathlib import Path
from xml.etree import ElementTree

import concept_figures
import pytest
from concept_figures import DRAWINGS, FITTED, PICTURES, Axis, errors

ROOT = Path(__file__).resolve().parent.parent.parent
CONCEPTS = ROOT / "docs" / "concepts"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def page(name: str) -> str:
    return (CONCEPTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_picture_is_what_the_script_draws(name: str) -> None:
    stored, drawn = (PICTURES / f"{name}.svg").read_text(encoding="utf-8"), FITTED[name]()
    ElementTree.fromstring(stored)
    assert abs(len(stored) - len(drawn)) < 0.02 * len(stored)


def test_pictures_are_xml() -> None:
    for name in DRAWINGS:
        ElementTree.fromstring((PICTURES / f"{name}.svg").read_text(encoding="utf-8"))


def test_every_picture_has_its_place() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in CONCEPTS.glob("*.md"))
    assert [name for name in (*DRAWINGS, *FITTED) if f"../pictures/{name}.svg" not in pages] == []


def test_pages_quote_what_was_computed() -> None:
    plain, gptq = (concept_figures.decibels(values[2]) for values in errors().values())
    assert f"the output has {plain:.1f} dB with nearest rounding and {gptq:.1f} dB with GPTQ" in page("reconstruction")
    drawn = (PICTURES / "codebooks.svg").read_text(encoding="utf-8")
    even, free, pairs = re.findall(r"SQNR ([\d.]+) dB", drawn)
    assert f"({free} against {even})" in page("codebooks")
    assert f"{pairs} dB at the same bits" in page("codebooks")


def test_ticks_have_names() -> None:
    assert [Axis(1e-5, 1, "loss", (), log=True).name(value) for value in (1e-5, 0.01, 1)] == ["10⁻⁵", "0.01", "1"]
    assert Axis(0, 1, "share", (), percent=True).name(0.001) == "0.1 %"
