"""A model that stays in its files is compiled only while these stay as they are."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from compiling import compiled, proto, samples, weight

from ptqc.errors import Interrupted
from ptqc.frontend import read_model
from ptqc.frontend.model_files import FileStates
from ptqc.ir import external
from ptqc.passes import analyze
from ptqc.passes.allocate import fit

GRAPH = "g (float[N,16] x) => (float[N,8] y) { h = Gemm(x, w, b) y = Gemm(h, v) }"


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(64))
    os.utime(path, ns=(1, 1))  # whatever the clock's steps are


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


CHANGES = {"overwritten": overwritten, "replaced": replaced, "removed": Path.unlink}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    path = tmp_path / "model.onnx"
    model = proto(GRAPH, w=weight(16, 32), b=weight(32), v=weight(32, 8, seed=1))
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    return path


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["model.onnx", "model.data"])
def test_a_file_that_was_changed_is_named(path: Path, name: str, change: Callable[[Path], None]) -> None:
    files = read_model(path).files
    files.check()
    change(path.with_name(name))
    with pytest.raises(Interrupted, match=rf"{name} was changed while the model was compiled"):
        files.check()


def test_files_of_a_model_in_memory_may_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 10**9)
    assert read_model(path).files == FileStates()


@pytest.mark.parametrize(("module", "stage"), [(analyze, "measure"), (fit, "fit_search")])
def test_nothing_is_kept_of_a_compile_whose_model_changes(
    module: ModuleType, stage: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*arguments: object, **options: object) -> object:
        overwritten(path.with_name("model.data"))
        return right(*arguments, **options)

    right = getattr(module, stage)
    monkeypatch.setattr(module, stage, changing)
    with pytest.raises(Interrupted, match=r"model\.data was changed"):
        compiled(path, samples(16), tmp_path, bits=(4,), pipeline="light", activations="float")
    assert not (tmp_path / "out").exists()
    kept = [entry for entry in (tmp_path / "cache").glob("*/entry.json") if "measurements" in entry.read_text()]
    assert len(kept) == (stage != "measure")
