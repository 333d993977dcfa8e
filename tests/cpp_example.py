"""The example in C++, built as its README says."""

import subprocess
import sys
from pathlib import Path

from ptqc.runtime.runtime import runtime_path

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "cpp" / "main.cpp"


def build_example(folder: Path) -> Path:
    """The program, in a folder."""
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
