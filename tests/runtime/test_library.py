"""Native libraries at run time: what they compute, take and give, and what cannot be run."""

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_library import expected, values

from ptqc.errors import TargetError, UsageError
from ptqc.runtime import library as library_module
from ptqc.runtime.library import Library, aligned
from ptqc.runtime.runtime import runtime_path
from ptqc.utils.machine import machine as this_machine


@pytest.fixture
def edited(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of the folder with other entries in its interface.json."""

    def edit(**entries: Any) -> Path:
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        path = tmp_path / "interface.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))
        return tmp_path

    return edit


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that would load TVM's runtime, which comes before the library itself."""

    def refuse() -> None:
        pytest.fail("the runtime was loaded before the machine was checked")

    monkeypatch.setattr(library_module, "load_runtime", refuse)


@pytest.mark.parametrize("threads", [0, 1, 2, 1000])
@pytest.mark.parametrize("n", [1, 5])
def test_the_result_is_right(folder: Path, n: int, threads: int) -> None:
    result = Library.open(folder, threads).run({"x": values(n)})
    assert list(result) == ["y"]
    np.testing.assert_array_equal(result["y"], expected(values(n)))


def test_an_empty_batch_gives_an_empty_output(library: Library) -> None:
    result = library.run({"x": values(0)})["y"]
    assert (result.shape, result.dtype) == ((0, 2, 3), np.float32)


def unaligned(x: np.ndarray) -> np.ndarray:
    room = np.empty(x.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + 4
    copy = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def unaddressable(x: np.ndarray) -> np.ndarray:
    """Not even at a multiple of the element's size."""
    room = np.empty(x.nbytes + 1, np.uint8)
    copy = room[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def read_only(x: np.ndarray) -> np.ndarray:
    copy = aligned(x.copy())
    copy.flags.writeable = False
    return copy


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "one row of many": lambda x: np.concatenate([x, x])[:: len(x)][:1],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "Fortran": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": unaligned,
    "unaddressable": unaddressable,
    "read-only": read_only,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_may_lie_in_memory_in_any_way(library: Library, layout: str) -> None:
    x = LAYOUTS[layout](values(5))
    np.testing.assert_array_equal(library.run({"x": x})["y"], expected(x))


def test_an_input_that_lies_well_is_not_copied() -> None:
    x = aligned(values(5))
    assert aligned(x) is x


def test_outputs_belong_to_the_caller(library: Library) -> None:
    first = library.run({"x": values(5)})["y"]
    library.run({"x": values(5) + 1})
    np.testing.assert_array_equal(first, expected(values(5)))
    first += 1
    assert first.flags.writeable
    assert not np.shares_memory(first, library.run({"x": values(5)})["y"])


def test_an_output_outlives_its_library(folder: Path) -> None:
    kept = Library.open(folder)
    other = Library.open(folder)
    result = other.run({"x": values(5)})["y"]
    del other
    np.testing.assert_array_equal(result, expected(values(5)))
    np.testing.assert_array_equal(kept.run({"x": values(5)})["y"], result)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "inputs none were given; the model takes ['x']"),
        ({"z": values(1)}, "inputs 'z' were given; the model takes ['x']"),
        ({"x": values(1), "z": values(1)}, "inputs 'x', 'z' were given; the model takes ['x']"),
        ({"x": values(1).astype(np.float64)}, "input 'x' is float64 [1, 2, 3]; expected float32 [N, 2, 3]"),
        ({"x": values(1).astype(">f4")}, "input 'x' is >f4 [1, 2, 3]; expected float32 [N, 2, 3]"),
        ({"x": values(1)[0]}, "input 'x' is float32 [2, 3]; expected float32 [N, 2, 3]"),
        ({"x": values(1)[:, :, :2]}, "input 'x' is float32 [1, 2, 2]; expected float32 [N, 2, 3]"),
        ({"x": values(1).tolist()}, "input 'x' is a list; expected a numpy array, float32 [N, 2, 3]"),
    ],
)
def test_wrong_inputs_are_refused(library: Library, feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        library.run(feeds)


def test_inputs_of_different_batch_sizes_are_refused(edited: Callable[..., Path]) -> None:
    inputs = [{"name": name, "dtype": "float32", "shape": [None, 2, 3]} for name in "xz"]
    with pytest.raises(UsageError, match=re.escape("batch sizes [1, 5]")):
        Library.open(edited(inputs=inputs)).run({"x": values(1), "z": values(5)})


def libraries(*names: str, machine: str = this_machine()) -> dict[str, Any]:
    return {"libraries": [{"isa": name, "features": ["made_up_feature"], "machine": machine} for name in names]}


def anywhere(name: str) -> dict[str, Any]:
    """A library that every machine runs."""
    return {"libraries": [{"isa": name, "features": [], "machine": this_machine()}]}


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (libraries("made-up"), "for made-up, this processor has no made_up_feature; compile for"),
        (libraries("made-up", machine="riscv64"), "for Linux on riscv64"),
        (libraries("made-up", "newer"), "no made_up_feature; the native library is for newer"),
        (libraries(), "there is no native library"),
        (anywhere("../evil"), "'../evil' is no instruction set"),
        (anywhere("/tmp/evil"), "'/tmp/evil' is no instruction set"),
        ({"tvm": "0.1.0"}, "built with apache-tvm 0.1.0, and "),
        ({"inputs": [{"name": "x"}]}, "does not describe a native library: KeyError: 'dtype'"),
        ({"outputs": [{"name": "x", "dtype": "huh", "shape": []}]}, "does not describe a native library: TypeError"),
    ],
)
def test_what_cannot_run_here_is_refused_before_it_is_loaded(
    edited: Callable[..., Path], entries: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=re.escape(message)):
        Library.open(edited(**entries))


def test_the_first_library_that_can_run_is_taken(edited: Callable[..., Path]) -> None:
    (generic,) = anywhere("generic")["libraries"]
    folder = edited(libraries=[*libraries("made-up")["libraries"], generic, {**generic, "isa": "absent"}])
    library = Library.open(folder)
    assert (library.isa, library.interface.runnable) == ("generic", ["generic", "absent"])
    with pytest.raises(TargetError, match="this processor has no made_up_feature"):
        Library.open(folder, isa="made-up")
    with pytest.raises(TargetError, match="'sse'; there are: made-up, generic, absent"):
        Library.open(folder, isa="sse")


def test_whoever_names_a_runtime_answers_for_its_version(
    edited: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTQC_TVM_RUNTIME", str(runtime_path()))
    assert Library.open(edited(tvm="0.1.0")).interface.tvm == "0.1.0"


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("name", ["generic.so", "interface.json", "weights.bin"])
def test_a_missing_file_is_refused(edited: Callable[..., Path], name: str) -> None:
    folder = edited()
    (folder / name).unlink()
    with pytest.raises(TargetError, match=re.escape(name)):
        Library.open(folder)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", '{"libraries": []}', None])
def test_what_describes_no_library_is_refused(edited: Callable[..., Path], content: str | None) -> None:
    folder = edited(threads=float("inf"))
    if content is not None:
        (folder / "interface.json").write_text(content)
    with pytest.raises(TargetError, match=r"interface\.json does not describe a native library"):
        Library.open(folder)


def test_a_file_that_is_no_library_is_refused(edited: Callable[..., Path]) -> None:
    folder = edited()
    (folder / "generic.so").write_bytes(b"not a library")
    with pytest.raises(TargetError, match=r"generic\.so is not a native library that runs here"):
        Library.open(folder)


def test_a_negative_thread_count_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="threads = -1"):
        Library.open(folder, threads=-1)


def test_an_absent_runtime_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TargetError, match=re.escape("pip install 'ptqc[tvm]'")):
        runtime_path()
    monkeypatch.setenv("PTQC_TVM_RUNTIME", str(tmp_path / "absent.so"))
    with pytest.raises(TargetError, match=re.escape("absent.so does not exist")):
        runtime_path()
