"""Documents: prose is short, in the field's words, and links and files are there; every page is in the contents."""

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
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("notes/*.md")),
]
# What users read: everything but the pages of those who work on ptqc, and the laboratory notes.
USER_PAGES = [
    path for path in sorted(ROOT.glob("docs/**/*.md")) if not path.is_relative_to(ROOT / "docs" / "contributing")
]
COLUMNS = 100
# Words of a sentence of a user page: the mean of a page, and the longest; words of all user pages together.
MEAN_SENTENCE, LONGEST_SENTENCE, MOST_WORDS = 22, 35, 30_000
# Few sentences have no mean.
FEW_SENTENCES = 5
# Words that the field does not use in this sense, or uses for something else; what to say in their place.
DIALECT = {
    r"told": "reported, says",
    r"behind": "after, downstream of",
    r"not to be had": "not available",
    r"processor s|seconds of a processor": "CPU s, CPU time",
    r"but (?:at|in|for|on) \d+": "except at",
    r"speaks? against": "no warnings",
    r"drawn samples?": "synthetic samples",
    r"(?:goes|go) the whole way": "fully",
    r"even grids?": "uniform quantization",
    r"pictures?": "image, figure",
    r"wide channels?|uneven": "outlier channel",
    r"walks?": "layer-by-layer pass",
    r"keeps? (?:a|its|the) (?:latency |memory |loss |byte )?budget": "meets",
    r"shares of (?:a|the) scale": "scale multipliers",
    r"numbers of a weight": "weights, elements",
    r"words of a text": "tokens",
    r"whatever (?:it|they) (?:was|were) told": "in any case",
}
# Words, without code and tables.
LONGEST_README = 700
# What an artifact or the user's own folder holds, not the project.
NOT_OURS = re.compile(r"^(build|out|images|my_package|smaller|cpu|cuda)/")
FILE = re.compile(r"`([\w./-]+/[\w.-]*)`")
# Groups of entry points, and a file of options.
NO_MODULES = ("ptqc.rewrites", "ptqc.observers", "ptqc.operators", "ptqc.targets", "ptqc.toml")
NAME = re.compile(r"`(ptqc(?:\.\w+)+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


# Ends of sentences; what begins a paragraph of its own.
END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[A-Z0-9\"'(`*_\[]|(?:ptqc|int\d)\b)")
ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+")


def relative(path: Path) -> str:
    """How a document is called in a report."""
    return str(path.relative_to(ROOT))


@pytest.fixture(params=DOCUMENTS, ids=relative)
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


def paragraphs(document: Path) -> Iterator[str]:
    """Paragraphs and items of lists, without headings, comments, addresses of links and what code says."""
    held: list[str] = []
    for _, line in prose(document):
        starts = not line.strip() or line.lstrip().startswith(("#", "<", "![", ">")) or ITEM.match(line)
        if starts and held:
            yield " ".join(held)
            held = []
        if line.strip() and not line.lstrip().startswith(("#", "<", "![")):
            held.append(ITEM.sub("", line).strip())
    if held:
        yield " ".join(held)


def plain(paragraph: str) -> str:
    """A paragraph as it is read: code is one word, and so is what is quoted in italics; links have no address."""
    short = re.sub(r"(?<![*\w])\*[^*\s][^*]*\*(?![*\w])", "Quoted", re.sub(r"`[^`]*`", "Code", paragraph))
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", short)


def sentences(document: Path) -> list[list[str]]:
    """The words of each sentence."""
    result = (part for paragraph in paragraphs(document) for part in END.split(plain(paragraph)))
    return [words for part in result if (words := [word for word in part.split() if re.search(r"\w", word)])]


def anchors(document: Path) -> set[str]:
    """Those of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_prose_wraps(document: Path) -> None:
    wide = [(number, line) for number, line in prose(document) if len(line) > COLUMNS and " " in line.strip()]
    assert [(number, line) for number, line in wide if not line.startswith("![")] == []


def test_readme_is_short() -> None:
    assert sum(len(line.split()) for _, line in prose(ROOT / "README.md")) <= LONGEST_README


@pytest.fixture(params=USER_PAGES, ids=relative)
def page(request: pytest.FixtureRequest) -> Path:
    """One page for users after the other."""
    path: Path = request.param
    return path


def test_sentences_are_short(page: Path) -> None:
    result = sentences(page)
    assert [" ".join(words) for words in result if len(words) > LONGEST_SENTENCE] == []
    assert len(result) < FEW_SENTENCES or sum(map(len, result)) < MEAN_SENTENCE * len(result)


def test_words_are_those_of_the_field(page: Path) -> None:
    text = "\n".join(map(plain, paragraphs(page)))
    result = {dialect: re.findall(rf"\b(?:{dialect})\b.{{0,30}}", text, re.IGNORECASE) for dialect in DIALECT}
    assert {dialect: (lines, DIALECT[dialect]) for dialect, lines in result.items() if lines} == {}


def test_user_pages_are_short_together() -> None:
    assert sum(len(line.split()) for path in USER_PAGES for _, line in prose(path)) <= MOST_WORDS


def test_every_page_is_in_the_contents() -> None:
    index = ROOT / "docs" / "index.md"
    blocks = re.findall(r"```{toctree}\n(.*?)```", index.read_text(encoding="utf-8"), re.DOTALL)
    listed = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    pages = (path.relative_to(index.parent).with_suffix("") for path in index.parent.glob("**/*.md"))
    assert sorted(listed) == sorted(str(path) for path in pages if path.name != "index" or path.parent.name)


def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    assert [target + anchor for target, anchor in targets if is_dead(document, target, anchor)] == []


def is_dead(document: Path, target: str, anchor: str) -> bool:
    """Whether a link leads nowhere; those to other sites are not tried."""
    path = document.parent / target if target else document
    return not target.startswith("http") and (not path.exists() or (bool(anchor) and anchor not in anchors(path)))


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
    result = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            result.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            result.update(target.id for target in targets if isinstance(target, ast.Name))
            result.update(str(text.value) for text in ast.walk(node) if isinstance(text, ast.Constant))
    return {str(name) for name in result}


def test_names_in_docstrings_and_documents_are_defined() -> None:
    sources = [
        path
        for folder in ("ptqc", "passes", "codegen", "tests", "benchmarks")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *sources]}
    named = {(str(path.relative_to(ROOT)), name) for path, text in texts.items() for name in NAME.findall(text)}
    assert {(path, name) for path, name in named if name not in NO_MODULES and not defined(name)} == set()
