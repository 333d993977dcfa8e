"""The documentation as a site: it builds without a warning, and has every command and every public name."""

import subprocess
import sys
from pathlib import Path

import pytest

import ptqc
from ptqc.command_line import COMMANDS

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'ptqc[docs]'")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees"), "docs"]
    done = subprocess.run([*command, str(folder / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages - {path.stem for path in site.glob("*.html")} == set()


def test_every_command_and_public_name_has_its_place(site: Path) -> None:
    commands, reference = ((site / name).read_text() for name in ("command-line.html", "reference.html"))
    assert [name for name in COMMANDS if f'id="ptqc-{name}"' not in commands] == []
    names = [name for name in ptqc.__all__ if not name.startswith("__")]
    assert [name for name in names if f'id="ptqc.{name}"' not in reference] == []


def test_nothing_is_fetched_from_other_hosts(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text
        assert 'rel="stylesheet" type="text/css" href="http' not in text
