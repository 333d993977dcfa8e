"""docs/reference/messages.md has every note that the sources can make: its step, and what its message always says."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "messages.md"
# Functions of `ptqc.notes` that make a note of one step.
STEPS = {"out_of_time": "time-limit", "unfit": "not-fit-for-use"}
# Shorter parts stand in many messages.
SHORTEST = 8


@dataclass(frozen=True)
class Source:
    """Where a note is made. step: None where it is not told there. said: the longest part that never varies."""

    place: str
    step: str | None
    said: str


def functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    """All functions of a module, with the classes of methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            yield from ((node, method) for method in node.body if isinstance(method, ast.FunctionDef))


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """The last value of each name."""
    result: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            result[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            result[node.target.id] = node.value
    return result


def parts(node: ast.expr, names: dict[str, ast.expr]) -> Iterator[str]:
    """The parts of a text that never vary."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from parts(value.value if isinstance(value, ast.FormattedValue) else value, names)
    elif isinstance(node, ast.Name) and node.id in names:
        yield from parts(names[node.id], {name: value for name, value in names.items() if name != node.id})


def step_of(node: ast.expr, module: ast.Module, owner: ast.ClassDef | None) -> str | None:
    """What the first argument of a note is: a text, a constant of the module, or the name of a pass."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        named = node.value.id if isinstance(node.value, ast.Name) else ""
        classes = {one.name: one for one in module.body if isinstance(one, ast.ClassDef)}
        kind = owner if named == "self" else classes.get(named)
        node = assigned(kind.body).get("name", node) if kind else node
    elif isinstance(node, ast.Name):
        node = assigned(module.body).get(node.id, node)
    return str(node.value) if isinstance(node, ast.Constant) else None


def notes_of(path: Path) -> Iterator[Source]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    for owner, function in functions(module):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        before = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
        for call in calls:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name not in ("Note", *STEPS) or not call.args:
                continue
            names = assigned(module.body) | assigned([node for node in before if node.lineno <= call.lineno])
            text = call.args[2] if name == "Note" else call.args[0]
            said = max((part.strip(" ;,:") for part in parts(text, names)), key=len, default="")
            step = step_of(call.args[0], module, owner) if name == "Note" else STEPS[name]
            yield Source(f"{path.relative_to(ROOT)}:{call.lineno}", step, said)


@cache
def sources() -> list[Source]:
    files = [path for folder in ("ptqc", "passes", "codegen") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
    own = [path for path in files if path != ROOT / "ptqc" / "notes.py"]
    return [source for path in own for source in notes_of(path)]


@pytest.fixture(scope="module")
def page() -> str:
    return re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))


def test_every_step_is_listed(page: str) -> None:
    steps = {source.step for source in sources() if source.step}
    assert len(steps) > 20
    assert [step for step in sorted(steps) if not re.search(rf"(\| |, ){re.escape(step)}(,| \|)", page)] == []


def test_every_message_is_listed(page: str) -> None:
    said = [source for source in sources() if len(source.said) >= SHORTEST]
    assert len(said) > 50
    assert [source for source in said if source.said not in page] == []
