"""Documents: their prose is short of line, their links and the files that they name are there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
]
COLUMNS = 100
# Words, without code and tables.
LONGEST_README = 700
# What an artifact or the user's own folder holds, not the project.
NOT_OURS = re.compile(r"^(build|out|images|my_package|smaller|cpu|cuda)/")
FILE = re.compile(r"`([\w./-]+/[\w.-]*)`")
# Groups of entry points, and a file of options.
NO_MODULES = ("ptqc.rewrites", "ptqc.observers", "ptqc.targets", "ptqc.toml")
NAME = re.compile(r"`(ptqc(?:\.\w+)+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    """One document after the other."""
    path: Path = request.param
    return path


def prose(document: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without code and tables."""
    in_code = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and not line.lstrip().startswith(("|", "```")):
            yield number, line


def anchors(document: Path) -> set[str]:
    """Those of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_prose_wraps(document: Path) -> None:
    assert [(number, line) for number, line in prose(document) if len(line) > COLUMNS and " " in line.strip()] == []


def test_readme_is_short() -> None:
    assert sum(len(line.split()) for _, line in prose(ROOT / "README.md")) <= LONGEST_README


def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target + anchor


def test_files_of_the_project_are_where_it_is_said(document: Path) -> None:
    named = set(FILE.findall(document.read_text(encoding="utf-8")))
    ours = {name for name in named if name.split("/")[0] in {path.name for path in ROOT.iterdir()}}
    assert {name for name in ours if not NOT_OURS.match(name) and not (ROOT / name).exists()} == set()


def defined(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines; looked up without importing it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            return count == len(parts) or parts[count] in names_of(file)
    return False


def names_of(file: Path) -> set[str]:
    """What a module defines or imports, and the names in its `__all__` and tables of lazy imports."""
    found = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
            found.update(str(text.value) for text in ast.walk(node) if isinstance(text, ast.Constant))
    return {str(name) for name in found}


def test_names_in_docstrings_and_documents_are_defined() -> None:
    sources = [
        path
        for folder in ("ptqc", "passes", "codegen", "tests", "benchmarks")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *sources]}
    named = {(str(path.relative_to(ROOT)), name) for path, text in texts.items() for name in NAME.findall(text)}
    assert {(path, name) for path, name in named if name not in NO_MODULES and not defined(name)} == set()
