"""The shape of the house: which packages are installed, what imports what, and what an import costs."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
from distributions import wheel

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"ptqc": ROOT / "ptqc", "ptqc.passes": ROOT / "passes", "ptqc.codegen": ROOT / "codegen"}

# From below to above: a room, or a module that lies in none, imports from its own line and those before it.
LAYERS = (
    ("errors", "notes", "plugins", "presets", "utils"),
    ("formats", "solver"),
    ("ir",),
    ("kv_cache", "execution"),
    ("frontend", "losses", "runtime"),
    ("calibration",),
    ("options",),
    ("codegen",),
    ("evaluation",),
    ("passes",),
    ("budget",),
    ("artifact",),
    ("tools",),
    ("early_checks", "compiler"),
    ("api",),
    ("cli", "__main__", "__init__"),
)
# Within the code generators: only a target knows itself.
TARGETS = tuple(f"ptqc.codegen.{path.parent.name}" for path in (ROOT / "codegen").glob("*/target.py"))

# What runs where neither TVM nor torch is installed, and tells of them.
WITHOUT_TARGETS = (
    *("ptqc.compiler", "ptqc.artifact.verify", "ptqc.artifact.bisect", "ptqc.artifact.bench", "ptqc.tools.doctor"),
    *(f"{target}.target" for target in TARGETS),
)

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".json", ".sh", ""}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def modules(room: str) -> dict[str, Path]:
    """Dotted name -> file of every module of one room; the links inside ptqc/ belong to the other rooms."""
    folder = ROOMS[room]
    files = [path for path in folder.rglob("*.py") if not (folder / path.relative_to(folder).parts[0]).is_symlink()]
    return {dotted(room, path.relative_to(folder)): path for path in files}


def everywhere() -> dict[str, Path]:
    """The modules of all rooms."""
    return {name: path for room in ROOMS for name, path in modules(room).items()}


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(room: str, path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((room, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports(name: str, path: Path) -> Iterator[str]:
    """Dotted names that a module imports, wherever in the file; `from a import b` counts as both a and a.b."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def needed(name: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a module imports; of `from a import b` a.b where that is one, else a."""
    named = list(imports(name, path))
    for first, second in pairwise([*named, ""]):
        if first in files and not (second.rpartition(".")[0] == first and second in files):
            yield first


def place(name: str) -> str:
    """The room of a module, or the module itself where it lies in none."""
    return name.split(".")[1] if "." in name else "__init__"


def layer(name: str) -> int:
    """The line of `LAYERS` that a module belongs to."""
    return next(number for number, places in enumerate(LAYERS) if place(name) in places)


@cache
def imported() -> list[tuple[str, str]]:
    """Every import of one module of ptqc by another."""
    files = everywhere()
    return [(name, other) for name, path in files.items() for other in needed(name, path, files) if other != name]


def text_files() -> Iterator[Path]:
    """Text files of the project, found without git so that an unpacked archive is checked as well."""
    rooms = ["ptqc", "passes", "codegen", "models", "tests", "benchmarks", "docs", "examples", ".ci"]
    candidates = [*ROOT.iterdir(), *(path for room in rooms for path in (ROOT / room).rglob("*"))]
    texts = (path for path in candidates if path.is_file() and path.suffix in TEXT_SUFFIXES)
    # .git of a work tree names a folder; examples are built in folders of their own, with packages of others.
    apart = {"build", "node_modules"}
    return (path for path in texts if path.name != ".git" and apart.isdisjoint(path.relative_to(ROOT).parts))


def test_every_file_of_a_package_is_installed(tmp_path: Path) -> None:
    """From a source distribution, as an index delivers it."""
    result = {name for name in zipfile.ZipFile(wheel(tmp_path)).namelist() if name.startswith("ptqc/")}
    parts = {room: name.replace(".", "/") for name, room in ROOMS.items()}
    present = {
        f"{part}/{path.relative_to(room).as_posix()}"
        for room, part in parts.items()
        for path in room.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert result == present


def test_every_module_lies_in_a_package() -> None:
    bare = [
        str(path) for room in ROOMS for path in modules(room).values() if not path.with_name("__init__.py").exists()
    ]
    assert bare == []


@pytest.mark.parametrize("room", ["passes", "codegen"])
def test_a_room_cannot_be_imported_by_its_folder_name(room: str) -> None:
    done = python(f"import {room}")
    assert done.returncode == 1
    assert f"ImportError: import ptqc.{room}, not {room}" in done.stderr


@pytest.mark.parametrize("code", ["import ptqc", "from ptqc.cli.parser import parsers; parsers()"])
def test_import_loads_no_heavy_module(code: str) -> None:
    heavy = ("torch", "tvm", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "highspy")
    done = python(f"import sys; {code}; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_compiling_loads_neither_tvm_nor_torch_unless_asked() -> None:
    code = "import sys; sys.modules['tvm'] = sys.modules['tvm_ffi'] = sys.modules['torch'] = None; import "
    done = python(code + ", ".join(WITHOUT_TARGETS))
    assert done.returncode == 0, done.stderr


def test_nothing_imports_upwards() -> None:
    upwards = [f"{name} imports {other}" for name, other in imported() if layer(other) > layer(name)]
    assert upwards == []


def test_nothing_but_itself_knows_a_target() -> None:
    assert "ptqc.codegen.cpu" in TARGETS
    pairs = [(n, o, target) for n, o in imported() for target in TARGETS if f"{o}.".startswith(f"{target}.")]
    assert [f"{n} imports {o}" for n, o, target in pairs if not f"{n}.".startswith(f"{target}.")] == []


def test_no_module_imports_itself_on_some_way() -> None:
    """Imports inside functions count as well."""
    needs: dict[str, set[str]] = {}
    for name, other in imported():
        needs.setdefault(name, set()).add(other)
    try:
        tuple(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


def test_a_public_class_has_a_name_of_its_own() -> None:
    result: dict[str, list[str]] = {}
    for name, path in (item for room in ROOMS for item in modules(room).items()):
        classes = (node for node in parsed(path).body if isinstance(node, ast.ClassDef))
        for node in classes:
            result.setdefault(node.name, []).append(name)
    assert {name: where for name, where in result.items() if len(where) > 1 and not name.startswith("_")} == {}


def test_the_map_for_contributors_has_every_room_in_its_order() -> None:
    text = (ROOT / "docs" / "contributing" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE)
    steps = [name.removeprefix("passes/") for name in listed if name.startswith("passes/")]
    assert set(steps) == {path.name for path in (ROOT / "passes").iterdir() if (path / "__init__.py").exists()}
    rooms = [name.removeprefix("ptqc/") for name in listed if not name.startswith("passes/")]
    layers = [layer(f"ptqc.{name}") for name in rooms]
    assert layers == sorted(layers)
    assert set(rooms) == {path.name for path in (ROOT / "ptqc").iterdir() if (path / "__init__.py").exists()}


def test_no_file_names_a_folder_of_one_workplace() -> None:
    workplace = re.compile(r"(?<![\w.])/(?:work|tmp/v|home|root)/")
    result = [path for path in text_files() if workplace.search(path.read_text(encoding="utf-8"))]
    assert result == []


def test_no_text_that_is_installed_names_documentation_that_is_not() -> None:
    """Docstrings and messages are all that someone has who installed a wheel."""
    named = [
        f"{path}:{node.lineno}"
        for room in ROOMS
        for path in modules(room).values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bdocs/\w|\.md\b", node.value)
    ]
    assert not named


# What others call or implement: users, plugins, and whoever adds a pass, a budget or a target.
INTERFACES = (
    *("ptqc/__init__.py", "ptqc/api.py", "ptqc/options.py", "ptqc/plugins.py", "ptqc/errors.py"),
    *("passes/base.py", "passes/allocate/state.py", "codegen/targets.py", "codegen/kernels/backend.py"),
)


def test_interfaces_and_protocols_say_what_they_are() -> None:
    """Elsewhere a good name and types say it."""
    every = {path.relative_to(ROOT).as_posix(): path for room in ROOMS for path in modules(room).values()}
    assert set(INTERFACES) <= every.keys()
    bare = []
    for name, path in every.items():
        for node in parsed(path).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            is_protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
            if (is_protocol or name in INTERFACES) and ast.get_docstring(node) is None:
                bare.append(f"{name}: {node.name}")
    assert bare == []


CONNECTING = frozenset({"asyncio", "ftplib", "http", "httpx", "requests", "smtplib", "socket", "ssl", "urllib"})
UNPICKLING = frozenset({"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"})


def test_nothing_opens_connections_or_unpickles() -> None:
    """Only fsspec and Ray connect, where their user names an address."""
    files = everywhere()
    roots = {(name, other.partition(".")[0]) for name, path in files.items() for other in imports(name, path)}
    assert {(name, root) for name, root in roots if root in CONNECTING | UNPICKLING} == set()
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    assert [name for name, text in texts.items() if re.search(r"allow_pickle\s*=\s*True", text)] == []
