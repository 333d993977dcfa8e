"""examples/expand: with ONNX Runtime alone, a file is unpacked and gives the golden samples bit by bit, or none is."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file

from ptqc.artifact import expand as expanding
from ptqc.artifact.folder import GOLDEN, Artifact
from ptqc.execution.loading import LoadCost

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "expand"
MODULES = EXAMPLE / "node_modules"
INCLUDE = "PTQC_ONNXRUNTIME_INCLUDE"
HEADER = "onnxruntime_cxx_api.h"
USUAL = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime")
# Domains of operators that are not ONNX's.
PORTABLE = {"", "com.microsoft"}

Example = Callable[[Sequence[Path]], "subprocess.CompletedProcess[str]"]


def run(command: Sequence[object], folder: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """The program in C++, built as its README says, with the library that ONNX Runtime's wheel has."""
    folders = [os.environ.get(INCLUDE, ""), *USUAL]
    include = next((folder for folder in folders if folder and (Path(folder) / HEADER).is_file()), None)
    library = next((Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if include is None or library is None:
        pytest.skip(f"needs ONNX Runtime's library and C++ headers: set {INCLUDE} to the folder that has {HEADER}")
    folder = tmp_path_factory.mktemp("expand")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(library)
    program = folder / "expand"
    options = ["-std=c++17", "-Wall", "-Wextra", "-isystem", include, f"-L{folder}", f"-Wl,-rpath,{folder}"]
    done = run(["g++", *options, EXAMPLE / "expand.cpp", "-o", program, "-lonnxruntime"], folder)
    assert (done.returncode, done.stderr) == (0, "")
    return lambda words: run([program, *words], folder)


@pytest.fixture(scope="module")
def in_node(tmp_path_factory: pytest.TempPathFactory) -> Example:
    if not MODULES.is_dir() or shutil.which("node") is None:
        pytest.skip("needs Node and onnxruntime-node: npm install --ignore-scripts --prefix examples/expand")
    return lambda words: run(["node", EXAMPLE / "expand.mjs", *words], tmp_path_factory.getbasetemp())


@pytest.fixture(params=["in_cpp", "in_node"])
def example(request: pytest.FixtureRequest) -> Example:
    program: Example = request.getfixturevalue(request.param)
    return program


@pytest.fixture
def by_ptqc(small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `ptqc expand` makes of the artifact."""
    monkeypatch.setattr(expanding, "measure_load", lambda _path: LoadCost(1.0, 1))
    return small.expand(tmp_path / "by ptqc").path


def test_both_forms_give_the_golden_samples(example: Example, small: Artifact, by_ptqc: Path, tmp_path: Path) -> None:
    for number, model in enumerate((small.path, by_ptqc)):
        expanded = tmp_path / f"{number}.onnx"
        done = example([model, expanded, small.folder / GOLDEN])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{expanded}, gives the recorded outputs\n"
        written = onnx.load(expanded)
        assert (len(written.functions), {node.domain for node in written.graph.node} - PORTABLE) == (0, set())
        assert "QLinearConv" in {node.op_type for node in written.graph.node}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.onnx", "1.onnx", "by ptqc"]


def test_nothing_is_written_where_outputs_differ(example: Example, small: Artifact, tmp_path: Path) -> None:
    arrays = {name: array.copy() for name, array in load_file(small.folder / GOLDEN).items()}
    arrays["1.output.y"][0, 0] += 1
    save_file(arrays, tmp_path / GOLDEN)
    done = example([small.path, tmp_path / "new.onnx", tmp_path / GOLDEN])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the expanded file gives other outputs than were recorded: go on with the packed one\n"
    assert [path.name for path in tmp_path.iterdir()] == [GOLDEN]


def test_what_is_refused(example: Example, tmp_path: Path) -> None:
    done = example([tmp_path / "missing.onnx", tmp_path / "new.onnx"])
    assert done.returncode == 1
    assert "missing.onnx" in done.stderr
    assert example([]).returncode == 2
    assert list(tmp_path.iterdir()) == []
