"""Native libraries at run time, on a tiny one: y = 2·x + (0 … 5) over inputs of (n, 2, 3)."""

import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptqc.errors import TargetError, UsageError
from ptqc.native import library as library_module
from ptqc.native.library import Library, aligned
from ptqc.native.machine import machine as this_machine
from ptqc.native.runtime import runtime_path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "cpp" / "main.cpp"
HEAVY = ("tvm", "torch", "onnx", "onnxruntime")

# Builds the library in a process of its own, so that the process of the tests never loads the compiler.
BUILD = '''
import sys
from pathlib import Path
import numpy as np
import tvm
from tvm import relax
from tvm.script import from_source
from ptqc.codegen.cpu import isa, package

KERNEL = """
@T.prim_func
def scale(x_: T.handle, c: T.Buffer((6,), "float32"), y_: T.handle):
    n = T.int64()
    x = T.match_buffer(x_, (n, 2, 3), "float32")
    y = T.match_buffer(y_, (n, 2, 3), "float32")
    for i in T.parallel(n):
        for j in T.serial(2):
            for k in T.serial(3):
                y[i, j, k] = x[i, j, k] * T.float32(2) + c[j * 3 + k]
"""
shape = (tvm.tirx.Var("n", "int64"), 2, 3)
tensor = relax.TensorType(shape, "float32")
builder = relax.BlockBuilder()
kernel = builder.add_func(from_source(KERNEL), "scale")
with builder.function("prepare", [relax.Var("weights", relax.TensorType(None, "uint8", ndim=1))]):
    builder.emit_func_output(relax.Tuple([relax.const(np.arange(6, dtype="float32"))]))
x = relax.Var("x", tensor)
constants = relax.Var("constants", relax.TupleType([relax.TensorType((6,), "float32")]))
workspace = relax.Var("workspace", relax.TupleType([]))
with builder.function("workspace", [relax.Var("x", tensor)]):
    builder.emit_func_output(relax.Tuple([]))
with builder.function("main", [x, constants, workspace]):
    with builder.dataflow():
        y = builder.emit(relax.call_tir(kernel, [x, builder.emit(relax.TupleGetItem(constants, 0))], tensor))
        result = builder.emit_output(relax.Tuple([y]))
    builder.emit_func_output(result)
package.link(builder.get(), isa.named("portable"), Path(sys.argv[1]))
'''

OPEN_AND_RUN = f"""
import sys
from pathlib import Path
import numpy as np
from ptqc.native.library import Library
print(Library.open(Path(sys.argv[1])).run({{"x": np.ones((1, 2, 3), np.float32)}})["y"].ravel().tolist())
print([name for name in {HEAVY} if name in sys.modules])
"""

FORK = """
import os, sys
from pathlib import Path
import numpy as np
from ptqc.native.library import Library
library = Library.open(Path(sys.argv[1]), threads=int(sys.argv[2]))
feeds = {"x": np.ones((4, 2, 3), np.float32)}
library.run(feeds)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    print(library.run(feeds)["y"][0, 0, 0], flush=True)
except Exception as error:
    print(error, file=sys.stderr, flush=True)
os._exit(0)  # as processes of multiprocessing end
"""


def values(n: int) -> np.ndarray:
    return np.arange(6 * n, dtype=np.float32).reshape(n, 2, 3) % 7 - 3


def expected(x: np.ndarray) -> np.ndarray:
    return 2 * x + np.arange(6, dtype=np.float32).reshape(2, 3)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like an artifact's cpu/."""
    if sys.platform != "linux":
        pytest.skip("native libraries run on Linux only")
    if importlib.util.find_spec("tvm") is None or importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("needs apache-tvm to build a library: pip install 'ptqc[tvm]'")
    if shutil.which("g++") is None:
        pytest.skip("needs a linker to build a library: no g++ here")
    made = tmp_path_factory.mktemp("cpu")
    done = python(BUILD, str(made / "generic.so"))
    assert done.returncode == 0, done.stderr
    value = {"dtype": "float32", "shape": [None, 2, 3]}
    interface = {
        "libraries": [{"isa": "generic", "features": [], "machine": this_machine()}],
        "tvm": metadata.version("apache-tvm"),
        "inputs": [{"name": "x", **value}],
        "outputs": [{"name": "y", **value}],
        "threads": 0,
    }
    (made / "interface.json").write_text(json.dumps(interface))
    (made / "weights.bin").write_bytes(bytes(64))
    return made


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    return Library.open(folder)


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
    found = Library.open(folder, threads).run({"x": values(n)})
    assert list(found) == ["y"]
    np.testing.assert_array_equal(found["y"], expected(values(n)))


def test_an_empty_batch_gives_an_empty_output(library: Library) -> None:
    found = library.run({"x": values(0)})["y"]
    assert (found.shape, found.dtype) == ((0, 2, 3), np.float32)


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
    assert first.flags.owndata


def test_an_output_outlives_its_library(folder: Path) -> None:
    kept = Library.open(folder)
    other = Library.open(folder)
    found = other.run({"x": values(5)})["y"]
    del other
    np.testing.assert_array_equal(found, expected(values(5)))
    np.testing.assert_array_equal(kept.run({"x": values(5)})["y"], found)


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


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (libraries("made-up"), "for made-up, this processor has no made_up_feature; compile for"),
        (libraries("made-up", machine="riscv64"), "for Linux on riscv64"),
        (libraries("made-up", "newer"), "no made_up_feature; the native library is for newer"),
        (libraries(), "there is no native library"),
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
    generic = {"isa": "generic", "features": [], "machine": this_machine()}
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


def test_many_threads_share_one_library(library: Library) -> None:
    def work(seed: int) -> bool:
        batches = [values(1 + (seed + i) % 6) + seed for i in range(200)]
        return all(np.array_equal(library.run({"x": x})["y"], expected(x)) for x in batches)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def soon(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether a condition holds at last."""
    end = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return held


def test_the_threads_of_a_process_serve_all_that_call(folder: Path, tmp_path: Path) -> None:
    """Libraries, handles and calling threads share them, so there are never more than processors."""
    other = shutil.copytree(folder, tmp_path / "other")
    with (other / "generic.so").open("ab") as file:
        file.write(b"another library")
    opened = [Library.open(place, threads=1000) for place in (folder, folder, other)]
    opened[0].run({"x": values(5)})
    before = tasks()

    def work(number: int) -> None:
        np.testing.assert_array_equal(opened[number % 3].run({"x": values(100)})["y"], expected(values(100)))

    with ThreadPoolExecutor(1) as pool:
        list(pool.map(work, range(50)))
        assert tasks() <= before + 1


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own(folder: Path, threads: str) -> None:
    done = python(FORK, str(folder), threads)
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr


def test_running_loads_nothing_heavy(folder: Path) -> None:
    done = python(OPEN_AND_RUN, str(folder))
    assert done.stdout.splitlines() == ["[2.0, 3.0, 4.0, 5.0, 6.0, 7.0]", "[]"], done.stderr


def resident() -> int:
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_does_not_grow(library: Library) -> None:
    def run(count: int) -> None:
        for i in range(count):
            library.run({"x": values(1 + 1000 * (i % 4))})

    run(200)
    before = resident()
    run(2000)
    assert resident() - before < 4_000_000


def test_cpp_example(folder: Path, library: Library, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = build_example(tmp_path)
    done = subprocess.run(
        [program, folder / "generic.so", "5x2x3"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    shape, _, printed = done.stdout.strip().partition(":")
    assert shape == "output 0 [5, 2, 3]"
    np.testing.assert_array_equal(np.array(printed.split(), np.float32), library.run({"x": values(5)})["y"].ravel()[:8])


def build_example(folder: Path) -> Path:
    """Build examples/cpp as its README says."""
    config = [
        subprocess.run(
            [sys.executable, "-m", "tvm_ffi.config", option], capture_output=True, text=True, check=True
        ).stdout.strip()
        for option in ("--includedir", "--libdir")
    ]
    include, *libraries = [*config, str(runtime_path().parent)]
    paths = [option for library in libraries for option in (f"-L{library}", f"-Wl,-rpath,{library}")]
    program = folder / "example"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", str(EXAMPLE), "-o", str(program), "-isystem", include]
    done = subprocess.run(
        [*command, *paths, "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return program
