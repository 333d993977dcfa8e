"""The documentation as a site: it builds without a warning, and has every command and every public name."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ptqc
from ptqc.cli.parser import COMMANDS, parsers

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'ptqc[docs]'")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees"), "docs"]
    done = subprocess.run([*command, str(folder / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.long
def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").glob("**/*.md")}
    assert pages - {path.relative_to(site).with_suffix("") for path in site.glob("**/*.html")} == set()


@pytest.mark.long
def test_every_command_and_public_name_has_its_place(site: Path) -> None:
    commands, reference = ((site / "reference" / f"{name}.html").read_text() for name in ("command-line", "python"))
    assert [name for name in COMMANDS if f'id="ptqc-{name}"' not in commands] == []
    names = [name for name in ptqc.__all__ if not name.startswith("__")]
    assert [name for name in names if not re.search(rf'id="(module-)?ptqc\.{name}"', reference)] == []


def test_options_and_values_are_written_as_they_are_typed(site: Path) -> None:
    """No dash in place of two hyphens, no curly quotes, and no address of e-mail in place of a budget."""
    text = {str(path.relative_to(site)): html.unescape(path.read_text()) for path in site.glob("**/*.html")}
    commands, reference = (text[f"reference/{name}.html"] for name in ("command-line", "python"))
    _, known = parsers()
    options = {option for parser in known.values() for one in parser._actions for option in one.option_strings}
    options -= {"-h", "--help"}  # which every command has
    assert [option for option in options if f">{option}" not in commands] == []
    assert [name for name, page in text.items() if re.search(r"mailto:|[“”]|–(?=[a-z])", page)] == []
    assert '"2ms@cpu"' in reference
    assert "`" not in commands.partition("<article")[2].partition("</article>")[0]


def test_nothing_is_fetched_from_other_hosts(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text()
        assert 'src="http' not in text
        assert 'rel="stylesheet" type="text/css" href="http' not in text
