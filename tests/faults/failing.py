"""Compiles on a disk that fails: `python failing.py FOLDER ERROR fresh|forced NUMBER…`, a line of JSON for each.

Number 0 is a disk that does not fail: it tells how many changes there are. The library of `failing.c` is preloaded.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from compiling import alone, digests, proto, quick, weight

from ptqc.cli import main as cli
from ptqc.execution import speed
from ptqc.utils import sandbox
from ptqc.utils.store import Store, clear, contents

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
DISK = ctypes.CDLL(None)


def compiled(folder: Path, *more: str) -> tuple[int, str]:
    """The exit code of a compile into folder/work/out, and what it said."""
    inputs, text = folder.parent, io.StringIO()
    arguments = ["compile", str(inputs / "m.onnx"), "--calibration", str(inputs / "c.npz"), "--bits", "3,4"]
    arguments += ["-o", str(folder / "work" / "out"), "--cache", str(folder / "cache"), "--quiet", *more]
    with contextlib.redirect_stderr(text):
        return cli.main(arguments), text.getvalue()


def files(folder: Path) -> dict[str, str]:
    """Digests of an output that need not be there."""
    return digests(folder) if folder.exists() else {}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def prepare(folder: Path, forced: bool) -> dict[str, str]:
    """Empty folders, but for an earlier output of another seed; gives its files."""
    for name in ("work", "tmp"):
        (folder / name).mkdir(parents=True)
    os.chdir(folder / "work")
    tempfile.tempdir = str(folder / "tmp")
    if forced:
        shutil.copytree(folder.parent / "earlier" / "work" / "out", folder / "work" / "out")
    return files(folder / "work" / "out")


def outcome(place: Path, error: str, forced: bool, number: int) -> dict[str, Any]:
    """What a compile on a failing disk ends with and leaves, and what the next one makes of it."""
    folder = place / "faulty"
    before = prepare(folder, forced)
    DISK.failing_arm(str(folder).encode(), number, getattr(errno, error), error != "ENOSPC")
    code, text = compiled(folder, "--force")
    seen = DISK.failing_disarm()
    first = {"number": number, "code": code, "told": text, "changes": seen, "temporary": names(folder / "tmp")}
    first |= {"left": names(folder / "work"), "untouched": files(folder / "work" / "out") == before}
    made = files(folder / "work" / "out")
    code, text = compiled(folder, "--force")
    second = {"code": code, "told": text, "left": names(folder / "work"), "files": files(folder / "work" / "out")}
    store = Store(folder / "cache")
    clear(store)
    second["stored"] = contents(store).bytes
    shutil.rmtree(folder)
    return {**first, "made": made, "next": second}


def main() -> None:
    """Work through the numbers."""
    place, error, kind, *numbers = sys.argv[1:]
    folder = Path(place).resolve()
    onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), folder / "m.onnx")
    np.savez(folder / "c.npz", x=np.random.default_rng(7).standard_normal((8, 8)).astype(np.float32))
    sandbox.run = lambda *_given: sandbox.Ended(None, "")  # writes its files, but starts no process
    speed.SECONDS = 0.02
    alone()
    with quick():
        prepare(folder / "earlier", False)
        assert compiled(folder / "earlier", "--seed", "1") == (0, "")
        for number in map(int, numbers):
            print(json.dumps(outcome(folder, error, kind == "forced", number)), flush=True)


if __name__ == "__main__":
    main()
