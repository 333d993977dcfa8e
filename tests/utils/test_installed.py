"""Entry points of installed packages: kept while the folders of packages stay as they are."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from ptqc.plugins import entry_points

GROUP = "ptqc.tests.installed"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages on the path of imports."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def install(site: Path, name: str) -> Path:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}:thing\n")
    return folder


def names() -> list[str]:
    return sorted(point.name for point in entry_points(GROUP))


def test_a_package_that_is_installed_or_removed_is_noticed(site: Path) -> None:
    assert names() == []
    first = install(site, "first")
    assert names() == ["first"]
    install(site, "second")
    assert names() == ["first", "second"]
    first.rename(site / "first.removed")
    assert names() == ["second"]


def test_another_path_of_imports_is_noticed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "first")
    assert names() == ["first"]
    monkeypatch.setattr(sys, "path", [*sys.path[:-1], str(site / "absent")])
    assert names() == []


def test_what_was_read_is_not_read_again(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "first")
    assert [point.dist.name for point in entry_points(GROUP) if point.dist is not None] == ["first"]
    monkeypatch.setattr(metadata, "entry_points", None)
    assert names() == ["first"]
