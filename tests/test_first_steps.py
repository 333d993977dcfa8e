"""The pages of docs/start and docs/concepts: commands parse, pictures and figures are those that were measured."""

import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ptqc.cli.parser import parsers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from tutorial_pictures import TEXT, terminal  # noqa: E402

PAGES = sorted(path for folder in ("start", "concepts") for path in (ROOT / "docs" / folder).glob("*.md"))
# Of the summary in the figure, by the table below it.
QUOTED = ("227,600", "13.00 %", "11 %", "2.12", "2.14", "2.16", "4.00")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Those of ptqc, in blocks."""
    lines = (
        "\n".join(block for language, block in BLOCK.findall(text) if not language).replace("\\\n", " ").splitlines()
    )
    return [shlex.split(line)[1:] for line in lines if line.startswith("ptqc ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_commands_parse(page: Path) -> None:
    _, known = parsers()
    for name, *arguments in commands(page.read_text(encoding="utf-8")):
        if name != "help":
            known[name].parse_args(arguments)


def test_the_terminal_is_drawn_from_its_text() -> None:
    text, drawn = TEXT.read_text(encoding="utf-8"), TEXT.with_suffix(".svg").read_text(encoding="utf-8")
    assert drawn == terminal(text)
    shown = ["".join(element.itertext()) for element in ElementTree.fromstring(drawn).iter() if "text" in element.tag]
    assert [line.replace("\N{NO-BREAK SPACE}", " ") for line in shown] == text.rstrip("\n").split("\n")


def test_the_tutorial_quotes_the_terminal() -> None:
    page = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
    text = TEXT.read_text(encoding="utf-8")
    assert [figure for figure in QUOTED if figure not in text or figure not in page] == []


def test_concepts_quote_the_summary_of_the_tutorial() -> None:
    shown = TEXT.read_text(encoding="utf-8").splitlines()
    for name in ("reading-results", "small-and-fast"):
        page = (ROOT / "docs" / "concepts" / f"{name}.md").read_text(encoding="utf-8")
        quoted = [line for line in page.splitlines() if re.match(r"(agreement|latency|kernels) {2,}", line)]
        assert quoted
        assert [line for line in quoted if line not in shown] == []


def test_the_readme_shows_the_summary_of_the_tutorial() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = (block for _, block in BLOCK.findall(readme) if block.startswith("verdict "))
    assert shown.strip() in TEXT.read_text(encoding="utf-8")
