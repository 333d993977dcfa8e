"""Native libraries in many threads and processes, in C++, and the memory that they take."""

import os
import resource
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cpp_example import build_example
from tiny_library import expected, python, values

from ptqc.runtime.library import Library

ROOT = Path(__file__).resolve().parents[2]


HEAVY = ("tvm", "torch", "onnx", "onnxruntime")

OPEN_AND_RUN = f"""
import sys
from pathlib import Path
import numpy as np
from ptqc.runtime.library import Library
print(Library.open(Path(sys.argv[1])).run({{"x": np.ones((1, 2, 3), np.float32)}})["y"].ravel().tolist())
print([name for name in {HEAVY} if name in sys.modules])
"""

FORK = """
import os, sys
from pathlib import Path
import numpy as np
from ptqc.runtime.library import Library
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


def test_many_threads_share_one_library(library: Library) -> None:
    def work(seed: int) -> bool:
        batches = [values(1 + (seed + i) % 6) + seed for i in range(200)]
        return all(np.array_equal(library.run({"x": x})["y"], expected(x)) for x in batches)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


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


@pytest.mark.slow
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
