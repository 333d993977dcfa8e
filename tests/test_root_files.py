"""Files at the root that sites of repositories read: they are well-formed, and agree with the package."""

import re
import tomllib
from pathlib import Path

import yaml

from ptqc.utils.version import __version__

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["version"], citation["license"]) == (__version__, project["license"])
    assert citation["keywords"] == project["keywords"]


def test_forms_have_what_a_form_needs() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    result = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in forms}
    assert set(result) == {"bug", "config", "feature"}
    for name in ("bug", "feature"):
        assert {"name", "description", "body"} <= result[name].keys()
        fields = [field for field in result[name]["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)


def test_links_of_root_files_lead_somewhere() -> None:
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        for target in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target


def test_the_address_of_the_repository_stands_once() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    others = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CITATION.cff", "docs/conf.py")
    assert [name for name in others if urls["Repository"] in (ROOT / name).read_text(encoding="utf-8")] == []
