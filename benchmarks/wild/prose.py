"""Text: what the standard library's own files say of themselves."""

import ast
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np

TOPICS = ("asyncio", "email", "unittest", "xml", "http", "multiprocessing", "tkinter", "importlib")
LEAST_LETTERS = 40


@cache
def paragraphs() -> dict[str, tuple[str, ...]]:
    """Paragraphs of docstrings for each topic, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    return {topic: tuple(_of_folder(library / topic)) for topic in TOPICS}


def _of_folder(folder: Path) -> list[str]:
    sentences: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        if "test" in path.parts[len(folder.parts) :]:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                sentences |= dict.fromkeys(_split(ast.get_docstring(node) or ""))
    return list(sentences)


def _split(text: str) -> list[str]:
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    return [part for part in parts if len(part) >= LEAST_LETTERS]


def labelled() -> tuple[list[str], np.ndarray]:
    """Paragraphs in a fixed random order, and the numbers of their topics."""
    pairs = [(text, number) for number, texts in enumerate(paragraphs().values()) for text in texts]
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[index][0] for index in order], np.array([pairs[index][1] for index in order])


def text() -> str:
    """All of it as one string of printable ASCII."""
    joined = "\n".join(labelled()[0])
    return "".join(letter for letter in joined if letter == "\n" or " " <= letter <= "~")


@cache
def words() -> tuple[str, ...]:
    """Lower-case words of 2 to 10 letters, the most frequent first."""
    unique, counts = np.unique(re.findall(r"\b[a-z]{2,10}\b", text().lower()), return_counts=True)
    return tuple(unique[np.argsort(-counts, kind="stable")])


def files() -> list[bytes]:
    """The beginning and the end of files that every Python brings: sources, compiled sources, libraries, tables."""
    folders = [Path(sysconfig.get_path("stdlib")), Path(sys.prefix)]
    by_ending: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.*"))[:20000]:
            if path.is_file() and not path.is_symlink() and path.stat().st_size >= 64:
                by_ending.setdefault(path.suffix, []).append(path)
    return [path.read_bytes() for paths in by_ending.values() for path in paths[:: max(1, len(paths) // 12)][:12]]
